"""Base class of estimators whose parameter `tree` may be a hierarchy of labels."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from treemax import modelfile
from treemax.models.base.classifier import LabelClassifier
from treemax.models.base.saving import restored_parameters, saved_parameters
from treemax.trees import hierarchy_arrays, hierarchy_from_arrays, is_hierarchy, with_names


class WithHierarchy(LabelClassifier):
    """Classifier that saves the parameter `tree` as arrays if it is a hierarchy."""

    tree: Any

    def _parameter_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        return parameter_parts(self)

    def _parameters_with_names(self, names: dict[Any, Any]) -> dict[str, Any]:
        changed = super()._parameters_with_names(names)
        return {**changed, "tree": with_names(self.tree, names)} if is_hierarchy(self.tree) else changed

    @classmethod
    def _parameters_from_parts(cls, saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
        return parameters_from_parts(saved, arrays)


def parameter_parts(estimator: BaseEstimator) -> tuple[dict[str, Any], modelfile.Arrays]:
    """Return the parameters as a JSON-able dictionary, and `tree` as arrays if it is a hierarchy."""
    given, arrays = estimator.get_params(deep=False), {}
    if given["tree"] is not None and is_hierarchy(given["tree"]):
        arrays = modelfile.prefixed("tree", hierarchy_arrays(given["tree"]))
        given["tree"] = None
    return saved_parameters(given), arrays


def parameters_from_parts(saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
    """Restore the parameters from their parts."""
    saved, hierarchy = restored_parameters(saved), modelfile.part("tree", arrays)
    return {**saved, "tree": hierarchy_from_arrays(hierarchy)} if hierarchy else saved
