"""These tests need extras, and are left out where those are not installed. `make test-extras` runs them."""

import os
from importlib.util import find_spec
from pathlib import Path

# The workers of Ray import the functions of these files by name.
_here = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_here), str(_here.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
).rstrip(os.pathsep)

collect_ignore_glob = (
    [] if find_spec("torch") else ["*tree_softmax*.py", "test_examples.py", "test_reassignment.py"]
)
