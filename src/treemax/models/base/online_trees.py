"""Base class of the online trees of linear scorers."""

from __future__ import annotations

import warnings
from typing import Any

from treemax import modelfile
from treemax.models.base.online import OnlineLabelClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.trees import NodeLabels


class OnlineTreeClassifier(OnlineLabelClassifier):
    """Base class of the online trees `RecallTree`, `LOMTree` and `ContextualMemoryTree`."""

    model_: Any

    def _check_learnable(self, model: Any, n_features: int) -> None:
        """Raise if a model of dense rows would get more features; restart a learning state that was not saved."""
        if n_features > model.n_features and not model.is_sparse:
            raise ValueError(
                f"X has {n_features} features, but {type(self).__name__} was started with {model.n_features} dense features, "
                "and their number is fixed. Use sparse rows if new features may appear."
            )
        if not model.knows_squares:
            warnings.warn(
                "This model was saved without its learning state, which starts afresh. "
                "Use save(path, resume=True) to continue as if learning had never stopped.",
                stacklevel=9,
            )
            model.restart_learning()

    @property
    def progressive_loss_(self) -> float:
        """Progressive validation error: share of rows predicted wrongly just before they were learned."""
        return float(1.0 - self.model_.found[0] / max(1, self.model_.found[-1]))

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = super()._model_parts(resume)
        return {**header, "settings": vars(self.settings_)}, arrays

    @snapshot_access
    def node_labels(self) -> NodeLabels:
        """Return the labels at each node of the tree; for `show_tree` and `plot_tree`."""
        return self.model_.node_labels()
