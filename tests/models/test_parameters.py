"""Values that no parameter of a model may have."""

import re

import numpy as np
import pytest

import treemax

WRONG = {
    treemax.OneVsAll: [
        ("loss", "hinge"), ("passes", 0), ("passes", 1.5), ("passes", True), ("learning_rate", -1), ("learning_rate", "fast"),
        ("learning_rate", float("nan")), ("final_rate", 2), ("initial_accumulator", 0), ("batch_size", 0), ("least_gradient", -1),
        ("n_jobs", 0), ("n_jobs", "two"), ("max_memory", 0),
    ],
    treemax.LearnedTree: [
        ("tree", "oak"), ("tree", None), ("start", "learned"), ("arity", 1), ("arity", 2.5), ("arity", 5000), ("dimension", 0),
        ("passes", 0), ("passes", "many"), ("learning_rate", 0.0), ("learning_rate", "fast"), ("schedule", "cosine"),
        ("optimizer", "adam"), ("objective", "p"), ("statistics", "none"), ("dropout", 1.0), ("dropout", -0.1), ("labels", "two"),
        ("assign_every", 0), ("assign_until", 1.5), ("search", "greedy"), ("beam", 0), ("n_jobs", 0),
    ],
    treemax.SoftmaxTree: [
        ("depth", -1), ("leaf_classes", 0), ("alpha", -1.0), ("start", "best"), ("missing", "never"), ("spill", -0.1),
        ("early_share", 0.0), ("ridge", -1.0), ("plane_penalty", 0), ("iterations", 0), ("n_init", 0), ("accept_worse", "no"),
        ("smoothing", 2.0),
    ],
    treemax.RecallTree: [
        ("beam", 0), ("arity", 1), ("n_candidates", "many"), ("depth", 0), ("learning_rate", -1.0), ("final_rate", 2.0),
        ("calibration", 0.9), ("algorithm", "printed"), ("router_weight", "none"), ("bound", -1.0), ("path_features", "nodes"),
        ("randomized_routing", 1),
    ],
    treemax.LOMTree: [
        ("max_nodes", 0), ("max_nodes", "many"), ("swap_resistance", -1.0), ("least_weight", 0.0), ("passes", 0),
        ("learning_rate", 0.0), ("n_jobs", 0),
    ],
    treemax.ContextualMemoryTree: [
        ("leaf_factor", 0.0), ("alpha", 1.5), ("dreams", -1), ("passes", 0), ("learning_rate", 0.0), ("scorer_rate", -0.1),
        ("one_against_some", "yes"), ("skip_itself", 2), ("n_jobs", 0),
    ],
    treemax.MACH: [("n_buckets", 1), ("n_repetitions", 0), ("combine", "max"), ("scale", "yes"), ("calibration", 0.9)],
    treemax.DoubleSampling: [
        ("n_candidates", 0), ("distance", "manhattan"), ("adversaries", "all"), ("n_adversaries", 0), ("rows_per_class", 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        pytest.param(kind, *wrong, id=f"{kind.__name__}-{wrong[0]}-{wrong[1]}")
        for kind, of_kind in WRONG.items()
        for wrong in of_kind
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*{re.escape(repr(value))}"):
        kind(**{name: value}).fit(np.eye(2), ["a", "b"])
