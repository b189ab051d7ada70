"""Checks of the behaviour that all classifiers of the library share.

Each check takes an unfitted estimator and raises an AssertionError if it fails. They run over every model in
`treemax.MODELS`, and over yours:

    from treemax.checks import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_check(check):
        check(MyClassifier())

Run scikit-learn's `check_estimator` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treemax.checks import bad_input, labels, online, predictions, reproducing, weights

CHECKS: list[Callable[[Any], None]] = [
    check
    for module in (predictions, reproducing, labels, bad_input, online, weights)
    for name, check in vars(module).items()
    if name.startswith("check_")
]
