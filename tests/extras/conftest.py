"""These tests need extras, and are left out where those are not installed. `make test-extras` runs them."""

from importlib.util import find_spec

import pytest

NEEDS = {
    "torch": ["*tree_sigmoid*.py", "*tree_softmax*.py", "test_examples.py", "test_reassignment.py"],
    "river": ["test_river.py"],
    "annif": ["test_annif.py", "test_annif_http.py"],
}
collect_ignore_glob = [name for extra, names in NEEDS.items() if find_spec(extra) is None for name in names]


@pytest.fixture(scope="module")
def one_machine():
    """A Ray cluster of two cores on this machine."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
