"""scikit-learn's own battery, over every model of the library."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from treemax.models import MODELS

EXPECTED_FAILURES: dict[str, str] = {}


@pytest.mark.slow
@parametrize_with_checks(
    [kind() for kind in MODELS.values()], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
