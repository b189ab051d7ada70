"""Doctests of what needs an extra run where that is installed: `make test-extras`."""

from importlib.util import find_spec

collect_ignore_glob = [f"treemax/{extra}/*" for extra in ("torch", "river", "annif") if find_spec(extra) is None]
if not find_spec("triton"):
    collect_ignore_glob.append("treemax/torch/triton_*.py")
