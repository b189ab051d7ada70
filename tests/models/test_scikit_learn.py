"""scikit-learn's own battery, over every model of the library."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from treemax.models import MODELS

EQUIVALENCE = "a row of weight two is one step twice as long, or one draw of the order, and not two steps"
REFUSED = "it refuses sample_weight"


def expected_failures(estimator):
    """The checks of sample weights that repeat rows in another order, which stochastic training does not allow."""
    names = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
    if estimator.supports_weights:
        return dict.fromkeys(names, EQUIVALENCE)
    forms = ("pandas_series", "not_an_array", "list", "shape", "not_overwritten")
    names += ["check_all_zero_sample_weights_error", "check_classifiers_one_label_sample_weights"]
    return dict.fromkeys([*names, *(f"check_sample_weights_{form}" for form in forms)], REFUSED)


@pytest.mark.slow
@parametrize_with_checks([kind() for kind in MODELS.values()], expected_failed_checks=expected_failures)
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
