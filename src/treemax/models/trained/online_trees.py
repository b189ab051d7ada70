"""Base class of trained trees of linear scorers that learn online."""

from __future__ import annotations

from typing import Any

from treemax.inputs.conversions import densified, known_features, sparsified
from treemax.inputs.rows import Rows, SparseRows
from treemax.kernels.feature_tables import SparseScorers
from treemax.models.trained.interface import FromAllProbabilities
from treemax.models.trained.scaling import Scaling
from treemax.models.trained.scorers import Scorers, trainable_scorers


class OnlineTreeModel(FromAllProbabilities):
    """Base class of trees of linear scorers that learn online."""

    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    knows_squares: bool
    scaling: Scaling | None = None

    def restart_learning(self) -> None:
        """Make a model that was saved for prediction trainable again; AdaGrad starts anew."""
        self.routers, self.regressors = trainable_scorers(self.routers), trainable_scorers(self.regressors)
        self.knows_squares = True

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.regressors, SparseScorers)

    def rows(self, rows: Rows) -> Any:
        """Convert rows to the format and scale of the training rows."""
        if not self.is_sparse:
            dense = densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows
            return dense if self.scaling is None else self.scaling(dense)
        sparse = known_features(sparsified(rows), self.n_features)
        return sparse.indptr, sparse.indices, sparse.values
