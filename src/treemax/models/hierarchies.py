"""What estimators share that search a tree over the labels, which may be a hierarchy of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from treemax import modelfile
from treemax.inputs.rows import Rows
from treemax.models.base import LabelClassifier, jsonable
from treemax.models.searching import Found
from treemax.parallel.threads import thread_count
from treemax.trees import hierarchy_arrays, hierarchy_from_arrays, is_hierarchy


class WithHierarchy(LabelClassifier):
    """Asks the model for all but the best labels, and saves the parameter `tree` as arrays where it is a hierarchy."""

    tree: Any
    n_jobs: int | None
    model_: Any

    def _probabilities(self, rows: Rows) -> NDArray[np.float32]:
        return self.model_.probabilities(rows, thread_count(self.n_jobs))

    def _above(self, rows: Rows, threshold: float) -> Found:
        return self.model_.above(rows, threshold, thread_count(self.n_jobs))

    def _probabilities_of(self, rows: Rows, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.model_.of_labels(rows, ids, thread_count(self.n_jobs))

    def _parameter_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        return parameter_parts(self)

    @classmethod
    def _parameters_from_parts(cls, saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
        return parameters_from_parts(saved, arrays)


def parameter_parts(estimator: BaseEstimator) -> tuple[dict[str, Any], modelfile.Arrays]:
    """Parameters as JSON, and as arrays the parameter `tree` where it is a hierarchy."""
    given, arrays = estimator.get_params(deep=False), {}
    if given["tree"] is not None and is_hierarchy(given["tree"]):
        arrays = modelfile.prefixed("tree", hierarchy_arrays(given["tree"]))
        given["tree"] = None
    return {name: jsonable(name, value) for name, value in given.items()}, arrays


def parameters_from_parts(saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
    """The parameters back from their parts."""
    hierarchy = modelfile.part("tree", arrays)
    return {**saved, "tree": hierarchy_from_arrays(hierarchy)} if hierarchy else saved
