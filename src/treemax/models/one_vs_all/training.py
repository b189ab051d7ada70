"""Training of a flat linear model by AdaGrad over all labels at once.

Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization", 2011.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.conversions import densified, sparsified
from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.kernels import sparse_rows
from treemax.models.one_vs_all import kernels, sampling_kernels
from treemax.models.one_vs_all.model import FeatureMajor, LabelMajor, LinearModel, unpacked
from treemax.models.one_vs_all.sampling_kernels import Sampling
from treemax.parallel.threads import one_blas_thread, run_all

LOSSES = {"softmax": kernels.SOFTMAX, "logistic": kernels.LOGISTIC, "squared_hinge": kernels.SQUARED_HINGE}
MOST_BATCH_ROWS = 65_536
WORK_AT_ONCE = 200_000_000  # multiply-adds of one kernel call: a few hundredths of a second


TrainableModel: TypeAlias = "LabelMajor | FeatureMajor"


@dataclass(frozen=True)
class AdaGradSettings:
    """Settings of AdaGrad; the rate decreases linearly from `rate` to `final_rate * rate` over the planned rows."""

    loss: str
    rate: float
    initial: float  # value of the sums of squared gradients: a larger one makes the first steps smaller
    constant: float  # the value of the feature whose weight is the bias
    final_rate: float = 1.0
    batch_rows: int = 16
    least_gradient: float = 1e-3
    passes: int = 1


def empty_model(sparse: bool, n_features: int, bias: NDArray[np.float32]) -> TrainableModel:
    """Return an untrained model with these initial biases, in the layout for sparse or dense rows."""
    n_labels = len(bias)
    shape = (n_features, n_labels) if sparse else (n_labels, n_features)
    form = FeatureMajor if sparse else LabelMajor
    return form(
        np.zeros(shape, dtype=np.float32), bias, np.zeros(shape, dtype=np.float32), np.zeros(n_labels, dtype=np.float32)
    )


def training_bytes(n_features: int, n_labels: int, model: LinearModel | None = None) -> int:
    """Return the memory for training: weights and sums of squares, and the old table while it is reallocated."""
    if not isinstance(model, FeatureMajor):
        return 8 * (n_features + 1) * n_labels
    capacity = _capacity(model.weights.shape[1], n_labels)
    moved = 0 if model.weights.shape == (n_features, capacity) else 2 * model.weights.nbytes
    return 8 * (n_features + 1) * capacity + moved


def resized(model: LinearModel, n_features: int, bias: NDArray[np.float32]) -> TrainableModel:
    """Return the model for training, with capacity for new labels and features.

    `bias` are the initial biases of all labels, used for new ones. The capacity for labels is doubled, so that a table
    is rarely reallocated. Memory-mapped arrays are copied.
    """
    table = unpacked(model)
    if table.squares is None:
        warnings.warn(
            "This model was saved without its learning state: AdaGrad starts again from its weights. "
            "Use save(path, resume=True) to continue as if training had not been interrupted.",
            stacklevel=9,
        )
    n_labels, n_features = len(bias), max(n_features, table.n_features)
    new_bias = np.concatenate([table.bias, bias[table.n_labels :]])
    by_feature = isinstance(table, FeatureMajor)
    shape = (n_features, _capacity(table.weights.shape[1], n_labels)) if by_feature else (n_labels, n_features)
    larger = type(table)(
        _enlarged(table.weights, shape), new_bias,
        _enlarged(table.squares, shape), _enlarged(table.bias_squares, (n_labels,)),
    )  # fmt: skip
    if isinstance(table, LabelMajor) and isinstance(larger, LabelMajor) and table.scaling is not None:
        larger.mean, larger.factor = table.scaling.widened(n_features)
    return larger


def learn(
    model: TrainableModel,
    rows: Rows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: AdaGradSettings,
    planned_rows: int,
    threads: int,
    done_before: int = 0,
    sampling: Sampling | None = None,
) -> Iterator[int]:
    """Train in place on the rows in the given orders, one per pass; yield the number of rows after each block.

    `done_before` of the planned rows have been used before; the rate continues from there. Several threads update
    the weights without locks. With `sampling`, only a sample of the negative labels learns from a row.
    """
    assert model.squares is not None and model.bias_squares is not None
    state = kernels.State(model.weights, model.squares, model.bias, model.bias_squares)
    of_kernel = kernels.AdaGrad(
        np.float32(settings.initial), np.float32(settings.constant), LOSSES[settings.loss], np.float32(settings.least_gradient),
        min(settings.batch_rows, len(rows)), int(np.diff(targets.indptr).max(initial=0)),
    )  # fmt: skip
    truth = kernels.Truth(targets.indptr, targets.ids, targets.row_weights, targets.entry_weights)
    run, inputs = _kernel_and_inputs(model, rows, sampling is not None)

    def work(piece: tuple[int, NDArray[np.uint32]]) -> None:
        done, order = piece
        rates = _rates(settings, done_before + done, len(order), planned_rows)
        drawn = () if sampling is None else (sampling._replace(first=sampling.first + done_before + done),)
        with one_blas_thread():
            run(inputs, order, truth, state, rates, of_kernel, *drawn)

    pieces = _cut(orders, _piece_rows(model, rows))
    while block := list(islice(pieces, 1 if threads == 1 else 2 * threads)):
        run_all(block, work, threads)
        yield sum(len(order) for _, order in block)


def _kernel_and_inputs(
    model: TrainableModel, rows: Rows, sampled: bool
) -> tuple[Callable[..., None], sparse_rows.Rows | NDArray[np.float32]]:
    module = sampling_kernels if sampled else kernels
    if isinstance(model, FeatureMajor):
        return module.learn_sparse, sparsified(rows).arrays
    dense = densified(rows, model.n_features) if isinstance(rows, SparseRows) else rows
    return module.learn_dense, model.scaled(dense)


def _rates(settings: AdaGradSettings, done: int, n_rows: int, planned_rows: int) -> NDArray[np.float32]:
    """Return the rate of each batch of a piece that starts after `done` rows."""
    starts = done + np.arange(0, n_rows, settings.batch_rows)
    fall = (1.0 - settings.final_rate) * starts / max(1, planned_rows)
    return (settings.rate * (1.0 - fall)).astype(np.float32)


def _piece_rows(model: TrainableModel, rows: Rows) -> int:
    """Return the number of rows of one kernel call."""
    width = rows.nnz / max(1, len(rows)) if isinstance(rows, SparseRows) else rows.shape[1]
    return int(np.clip(WORK_AT_ONCE / (model.n_labels * max(1.0, width)), 1, 8192))


def prior_bias(loss: str, counts: NDArray[Any], n_examples: float) -> NDArray[np.float32]:
    """Return initial biases: the best constant scores for labels with these counts or sums of weights."""
    share = (counts + 0.5) / (n_examples + 1.0)
    if loss == "softmax":
        return np.log(share).astype(np.float32)
    if loss == "logistic":
        return np.log(share / (1.0 - share)).astype(np.float32)
    return (2.0 * share - 1.0).astype(np.float32)


def _cut(orders: Iterable[NDArray[np.uint32]], size: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield pieces of at most `size` rows, each with the number of rows before it."""
    done = 0
    for order in orders:
        for start in range(0, len(order), size):
            piece = order[start : start + size]
            yield done, piece
            done += len(piece)


def _capacity(have: int, need: int) -> int:
    return have if need <= have else max(need, 2 * have)


def _enlarged(array: NDArray[np.float32] | None, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if array is not None and array.shape == shape and array.flags.writeable:
        return array
    out = np.zeros(shape, dtype=np.float32)
    if array is not None:
        out[tuple(slice(0, n) for n in array.shape)] = array
    return out
