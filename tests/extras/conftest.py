"""These tests need extras, and are left out where those are not installed. `make test-extras` runs them."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*tree_softmax*.py", "test_examples.py", "test_reassignment.py"]
