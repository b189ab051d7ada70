"""scikit-learn's checks of estimators, for every model."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from treemax.models import MODELS

EQUIVALENCE = "a row of weight two is one step twice as long, or one draw of the order, and not two steps"


def expected_failures(estimator):
    """The checks of sample weights that repeat rows in another order, which stochastic training does not allow."""
    return dict.fromkeys(
        (f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")), EQUIVALENCE
    )


@pytest.mark.slow
@parametrize_with_checks([kind() for kind in MODELS.values()], expected_failed_checks=expected_failures)
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
