"""Doctests of what needs an extra run where that is installed: `make test-extras`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["treemax/torch/*"]
if not find_spec("triton"):
    collect_ignore_glob.append("treemax/torch/triton_kernels.py")
