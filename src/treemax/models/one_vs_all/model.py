"""Flat linear models: one score per label.

There are three layouts of the weights: `LabelMajor` for dense rows, `FeatureMajor` for sparse rows, and
`PackedFeatures`, a sparse form of `FeatureMajor`: smaller and faster, but for prediction only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace, linear_step
from treemax.inputs.conversions import Floats, blocks, densified, sparsified
from treemax.inputs.rows import Rows, SparseRows, ascends, read_only
from treemax.models.one_vs_all import kernels
from treemax.models.trained import FromAllProbabilities
from treemax.models.trained.parts import expect_squares
from treemax.models.trained.scaling import Scaling
from treemax.models.trained.searching import TopKAllowed, empty_top_k
from treemax.models.trained.tracing import flat_trace, row_entries
from treemax.parallel.threads import one_blas_thread, run_all

LINKS = {"softmax": kernels.SOFTMAX_LINK, "logistic": kernels.LOGISTIC_LINK, "squared_hinge": kernels.HINGE_LINK}
NEVER = np.float32(-30.0)  # the bias of a label that is never answered


class Link(NamedTuple):
    """The link function: that of the loss; with `one_label`, the probabilities of a row sum to one."""

    loss: str
    one_label: bool


class LinearModel(FromAllProbabilities):
    """A weight for each label and feature, in one of three layouts."""

    weights: Floats
    bias: Floats
    squares: Floats | None
    bias_squares: Floats | None
    layout: ClassVar[str]

    @property
    def n_labels(self) -> int:
        return len(self.bias)

    @property
    def n_features(self) -> int:
        raise NotImplementedError

    def scores(self, rows: Rows) -> Floats:
        """Return scores of all labels for each row."""
        raise NotImplementedError

    def top_k(self, rows: Rows, k: int, search: Link, threads: int = 1) -> tuple[NDArray[np.int64], Floats]:
        """Return the k best labels of each row, best first, and their probabilities."""
        k = min(k, self.n_labels)
        ids, best = empty_top_k(len(rows), k)

        def predict_block(block: slice) -> None:
            scores = self.scores(rows[block])
            kernels.best_of_rows(scores, ids[block], best[block])
            kernels.probabilities_of_best(scores, best[block], LINKS[search.loss], search.one_label)

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return ids, best

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: Link, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best of those with a weight, from the same scores."""
        link = LINKS[search.loss]
        sums_to_one = search.one_label or link == kernels.SOFTMAX_LINK
        n_best = max(n_first, int(sums_to_one))  # the best score is that to which a softmax is relative
        found = TopKAllowed.empty(len(rows), n_best, k)
        weights = read_only(weights)

        def predict_block(block: slice) -> None:
            scores = self.scores(rows[block])
            first, of_first, ids, best = (array[block] for array in found)
            if n_best:
                kernels.best_of_rows(scores, first, of_first)
            kernels.best_of_allowed(scores, weights, ids, best)
            both = np.hstack([of_first, best])
            kernels.probabilities_of_best(scores, both, link, search.one_label)
            of_first[:], best[:] = both[:, :n_best], both[:, n_best:]

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return found._replace(first=found.first[:, :n_first], of_first=found.of_first[:, :n_first])

    def probabilities(self, rows: Rows, search: Link, threads: int = 1) -> Floats:
        """Return the probability of every label for each row."""
        out = np.empty((len(rows), self.n_labels), dtype=np.float32)

        def predict_block(block: slice) -> None:
            scores = self.scores(rows[block])
            kernels.rows_to_probabilities(scores, LINKS[search.loss], search.one_label)
            out[block] = scores

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return out

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Link) -> Trace:
        """Return the score of each label, for `explain`."""
        columns, values = self.inputs(row)
        added = values.astype(np.float64) * self.weights_of(np.array(ids), columns)
        steps = [
            linear_step(0, label, f"label among {self.n_labels:,}", score, {"bias": float(self.bias[label])}, contributions, [label], 1)
            for label, score, contributions in zip(ids, scores, added)
        ]  # fmt: skip
        return flat_trace(columns, values, steps, "float32")

    def inputs(self, row: Rows) -> tuple[NDArray[Any], Floats]:
        """Return the columns of a row and their values, as the weights take them."""
        return row_entries(row, self.n_features)

    def weights_of(self, labels: NDArray[np.int64], columns: NDArray[Any]) -> Floats:
        """Return the weights of labels for these features."""
        raise NotImplementedError

    def without_labels(self, kept: NDArray[np.bool_]) -> LinearModel:
        """Return the model of the `kept` labels, renumbered."""
        return replace(
            self,  # type: ignore[type-var]  # the layouts are dataclasses
            weights=self._of_labels(self.weights, kept),
            bias=self.bias[kept],
            squares=None if self.squares is None else self._of_labels(self.squares, kept),
            bias_squares=None if self.bias_squares is None else self.bias_squares[kept],
        )

    def with_zeros(self, labels: NDArray[np.bool_]) -> LinearModel:
        """Return the model with neither weights nor bias for some labels, which keep their numbers."""
        kept = ~labels
        return replace(
            self,  # type: ignore[type-var]  # the layouts are dataclasses
            weights=self._masked(self.weights, kept),
            bias=np.where(kept, self.bias, NEVER).astype(np.float32),
            squares=None,
            bias_squares=None,
        )

    def _masked(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        """Return the weights with zeros for labels that are not `kept`."""
        raise NotImplementedError

    def _of_labels(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        """Return weights, or their squares, of the `kept` labels."""
        raise NotImplementedError

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the model as a JSON-able header and arrays; with `resume`, including AdaGrad's sums of squares."""
        model = packed(self)
        arrays = {name: array for name, array in vars(model).items() if array is not None}
        if isinstance(model, FeatureMajor):  # without spare capacity
            for name in arrays.keys() & {"weights", "squares"}:
                arrays[name] = arrays[name][:, : model.n_labels]
        if not resume:
            arrays = {name: array for name, array in arrays.items() if not name.endswith("squares")}
        return {"layout": model.layout}, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> LinearModel:
        """Restore the model from its parts; raise ValueError if they are inconsistent."""
        forms = {form.layout: form for form in (LabelMajor, FeatureMajor, PackedFeatures)}
        layout = header["layout"]
        if layout not in forms:
            raise ValueError(f"unknown layout of weights {layout!r}")
        for name, array in arrays.items():
            expected = {"indptr": np.int64, "labels": np.uint32}.get(name, np.float32)
            if array.dtype != expected:
                raise ValueError(f"{name} has dtype {array.dtype}, expected {np.dtype(expected)}")
            if name.endswith("squares"):
                expect_squares(arrays, name, array.shape)
        model = forms[layout](**arrays)
        if not _fits_together(model):
            raise ValueError("the arrays of weights do not fit together")
        if model.n_labels != n_labels:
            raise ValueError("the weights do not fit the labels")
        return model


@dataclass
class LabelMajor(LinearModel):
    """weights[label, feature], for dense rows; `squares` are AdaGrad's sums, if training may continue."""

    weights: Floats
    bias: Floats
    squares: Floats | None = None
    bias_squares: Floats | None = None
    mean: Floats | None = None  # of every feature; see `Scaling`
    factor: Floats | None = None
    layout: ClassVar[str] = "label-major"

    @property
    def n_features(self) -> int:
        return self.weights.shape[1]

    @property
    def scaling(self) -> Scaling | None:
        return None if self.mean is None or self.factor is None else Scaling(self.mean, self.factor)

    def scaled(self, rows: Floats) -> Floats:
        """Scale the rows as in training."""
        return rows if self.scaling is None else self.scaling(rows)

    def scores(self, rows: Rows) -> Floats:
        rows = self.scaled(densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows)
        if len(rows) == 1:
            scores: Floats = np.empty((1, self.n_labels), dtype=np.float32)
            kernels.score_dense_row(rows[0], read_only(self.weights), read_only(self.bias), scores[0])
            return scores
        with one_blas_thread():
            scores = rows @ self.weights.T
        scores += self.bias
        return scores

    def inputs(self, row: Rows) -> tuple[NDArray[Any], Floats]:
        scaled = self.scaled(densified(row, self.n_features) if isinstance(row, SparseRows) else row)[0]
        columns = np.flatnonzero(scaled)
        return columns, scaled[columns]

    def weights_of(self, labels: NDArray[np.int64], columns: NDArray[Any]) -> Floats:
        return self.weights[labels[:, np.newaxis], columns]

    def _of_labels(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return weights[kept]

    def _masked(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return weights * kept[:, None]


@dataclass
class FeatureMajor(LinearModel):
    """weights[feature, label], for sparse rows; there may be spare columns for new labels."""

    weights: Floats
    bias: Floats
    squares: Floats | None = None
    bias_squares: Floats | None = None
    layout: ClassVar[str] = "feature-major"

    @property
    def n_features(self) -> int:
        return self.weights.shape[0]

    def scores(self, rows: Rows) -> Floats:
        rows = sparsified(rows)
        scores = np.empty((len(rows), self.n_labels), dtype=np.float32)
        arrays = (read_only(self.weights), read_only(self.bias))
        kernels.score_sparse_rows(rows.indptr, rows.indices, rows.values, *arrays, scores)
        return scores

    def weights_of(self, labels: NDArray[np.int64], columns: NDArray[Any]) -> Floats:
        return self.weights[columns, labels[:, np.newaxis]]

    def _of_labels(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return np.ascontiguousarray(weights[:, : len(kept)][:, kept])  # without spare columns

    def _masked(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return weights[:, : len(kept)] * kept


@dataclass
class PackedFeatures(LinearModel):
    """The updated weights of each feature f: labels[indptr[f]:indptr[f+1]] and the same slice of weights."""

    indptr: NDArray[np.int64]
    labels: NDArray[np.uint32]
    weights: Floats
    bias: Floats
    squares: Floats | None = None
    bias_squares: Floats | None = None
    layout: ClassVar[str] = "packed-features"

    @property
    def n_features(self) -> int:
        return len(self.indptr) - 1

    def scores(self, rows: Rows) -> Floats:
        rows = sparsified(rows)
        scores = np.empty((len(rows), self.n_labels), dtype=np.float32)
        arrays = (read_only(self.indptr), read_only(self.labels), read_only(self.weights), read_only(self.bias))
        kernels.score_packed_rows(rows.indptr, rows.indices, rows.values, *arrays, scores)
        return scores

    def weights_of(self, labels: NDArray[np.int64], columns: NDArray[Any]) -> Floats:
        first = self.indptr[columns]
        counts = self.indptr[columns.astype(np.int64) + 1] - first
        places = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        wanted, rank = np.unique(labels, return_inverse=True)
        place_of = np.full(self.n_labels, -1, dtype=np.int32)
        place_of[wanted] = np.arange(len(wanted))
        at = place_of[self.labels[places]]
        present = np.flatnonzero(at >= 0)
        out = np.zeros((len(wanted), len(columns)), dtype=np.float32)
        out[at[present], np.repeat(np.arange(len(columns)), counts)[present]] = self.weights[places[present]]
        return out[rank]

    def without_labels(self, kept: NDArray[np.bool_]) -> LinearModel:
        indptr = np.concatenate([[0], np.cumsum(kept[self.labels])])[self.indptr]
        number = (np.cumsum(kept) - 1).astype(np.uint32)
        labels = number[self.labels[kept[self.labels]]]
        return replace(super().without_labels(kept), indptr=indptr, labels=labels)  # type: ignore[type-var]

    def _of_labels(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return weights[kept[self.labels]]

    def _masked(self, weights: Floats, kept: NDArray[np.bool_]) -> Floats:
        return weights * kept[self.labels]


def packed(model: LinearModel) -> LinearModel:
    """Return the model for prediction: a feature-major table is packed if most of its weights were never updated."""
    if not isinstance(model, FeatureMajor):
        return model
    n_labels, squares = model.n_labels, model.weights if model.squares is None else model.squares
    counts = np.empty(model.n_features, dtype=np.int64)
    kernels.count_used(read_only(model.weights), read_only(squares), n_labels, counts)
    indptr = np.zeros(model.n_features + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    used = int(indptr[-1])
    if 2 * used >= model.n_features * n_labels:
        return model
    labels = np.empty(used, dtype=np.uint32)
    weights, sums = np.empty(used, dtype=np.float32), np.empty(used, dtype=np.float32)
    kernels.pack_used(read_only(model.weights), read_only(squares), n_labels, indptr, labels, weights, sums)
    kept = None if model.squares is None else sums
    return PackedFeatures(indptr, labels, weights, model.bias, kept, model.bias_squares)


def unpacked(model: LinearModel) -> LabelMajor | FeatureMajor:
    """Return the model for training, with the whole table."""
    if isinstance(model, LabelMajor | FeatureMajor):
        return model
    assert isinstance(model, PackedFeatures)
    shape = (model.n_features, model.n_labels)
    weights, squares = np.zeros(shape, dtype=np.float32), None
    indptr, labels = read_only(model.indptr), read_only(model.labels)
    kernels.unpack(indptr, labels, read_only(model.weights), weights)
    if model.squares is not None:
        squares = np.zeros(shape, dtype=np.float32)
        kernels.unpack(indptr, labels, read_only(model.squares), squares)
    return FeatureMajor(weights, model.bias, squares, model.bias_squares)


def _fits_together(model: LinearModel) -> bool:
    weights, bias = model.weights, model.bias
    fits = model.squares is None or model.squares.shape == weights.shape
    fits = fits and (model.bias_squares is None or model.bias_squares.shape == bias.shape) and bias.ndim == 1
    if isinstance(model, PackedFeatures):
        indptr, labels = model.indptr, model.labels
        fits = fits and weights.ndim == indptr.ndim == 1 and labels.shape == weights.shape and len(indptr) > 0
        fits = fits and indptr[0] == 0 and indptr[-1] == len(labels) and ascends(indptr)
        return fits and (len(labels) == 0 or int(labels.max()) < len(bias))
    if isinstance(model, LabelMajor) and fits and weights.ndim == 2:
        shapes = {array.shape for array in (model.mean, model.factor) if array is not None}
        fits = (model.mean is None) == (model.factor is None) and shapes <= {weights.shape[1:]}
        if fits and model.scaling is not None:
            model.scaling.checked()
    return fits and weights.ndim == 2 and weights.shape[0 if model.layout == LabelMajor.layout else 1] == len(bias)
