"""What estimators share whose parameter `tree` may be a hierarchy of the user's own."""

from __future__ import annotations

from typing import Any

from treemax import modelfile
from treemax.estimators.base import LabelClassifier
from treemax.trees import hierarchy_arrays, hierarchy_from_arrays, is_hierarchy


class WithHierarchy(LabelClassifier):
    """Saves the parameter `tree` as arrays where it is a hierarchy."""

    tree: Any

    def _parameter_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        if self.tree is None or not is_hierarchy(self.tree):
            return super()._parameter_parts()
        plain, _ = type(self)(**{**self.get_params(deep=False), "tree": None})._parameter_parts()
        return plain, modelfile.prefixed("tree", hierarchy_arrays(self.tree))

    @classmethod
    def _parameters_from_parts(cls, saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
        hierarchy = modelfile.part("tree", arrays)
        return {**saved, "tree": hierarchy_from_arrays(hierarchy)} if hierarchy else saved
