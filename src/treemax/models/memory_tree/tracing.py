"""The decisions of a ContextualMemoryTree for one row: routers, and the similarity to remembered rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows
from treemax.models.memory_tree.kernels import NONE, REGRESSORS, SOFTMAX, Options
from treemax.models.trained.scorers import weights_of_features
from treemax.models.trained.tracing import RANKING, Entries, precision

if TYPE_CHECKING:
    from treemax.models.memory_tree.model import MemoryTreeModel


def trace_labels(
    model: MemoryTreeModel, row: Rows, ids: Sequence[int], scores: Sequence[float], options: Options
) -> Trace:
    """Return the path of the row to its leaf, and how labels rank there; none for a label that the leaf does not have."""
    entries = _entries(model, row)
    steps, leaf = _descend(model, entries)
    memories = np.fromiter(_memories(model, leaf), np.int64)
    owners, labels = _labels(model, memories)
    paths: list[list[Path]] = []
    for label, score in zip(ids, scores):
        with_label = owners[labels == label].tolist()
        if not with_label:
            paths.append([])
            continue
        if options.output == REGRESSORS:
            weights = weights_of_features(model.regressors, label, 1, entries.columns)[0]
            bias, branch = {"bias": float(model.regressors.bias[label])}, "rank among the labels of the leaf"
            last = linear_step(RANKING, label, branch, score, bias, weights * entries.values, [label], 1)
        else:
            similar = [_similarity(model, entries, memory) for memory in with_label]
            totals = [float(added.sum()) for added in similar]
            best, count = similar[int(np.argmax(totals))], totals.count(max(totals))
            branch = f"most similar of its {len(with_label):,} rows, {len(memories):,} in the leaf"
            sharp, terms = float(options.sharpness) if options.output == SOFTMAX else 1.0, {}
            if options.output == SOFTMAX and count > 1:
                terms["rows as similar"] = math.log(count)
            last = linear_step(RANKING, label, branch, score, terms, sharp * best, [label], 1)
        paths.append([Path([*steps, last])])
    return Trace(entries.columns.astype(np.int64), entries.values, paths, precision(model.routers))


def _entries(model: MemoryTreeModel, row: Rows) -> Entries:
    """Return the features of a row of length one."""
    form = model.rows(row)
    if model.is_sparse:
        return Entries(form[1], form[2])
    columns = np.flatnonzero(form[0])
    return Entries(columns, form[0][columns])


def _descend(model: MemoryTreeModel, entries: Entries) -> tuple[list[Step], int]:
    """Return the decisions of the routers, and the leaf; a side without remembered rows is not taken."""
    nodes, node, steps = model.nodes, 0, []
    while nodes.left[node]:
        added = weights_of_features(model.routers, node, 1, entries.columns)[0] * entries.values
        bias = float(model.routers.bias[node])
        side = int(bias + float(added.sum()) >= 0.0)
        branch = ("left", "right")[side]
        if nodes.sides[node, side] == 0:
            side = 1 - side
            branch = f"{('left', 'right')[side]}, the only side with rows"
        sign, child = 2 * side - 1, int(nodes.left[node]) + side
        steps.append(linear_step(node, child, branch, 1.0, {"bias": sign * bias}, sign * added))
        node = child
    return steps, node


def _memories(model: MemoryTreeModel, leaf: int) -> Iterator[int]:
    memory = int(model.nodes.first[leaf])
    while memory != NONE:
        yield memory
        memory = int(model.store.following[memory])


def _labels(model: MemoryTreeModel, memories: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the labels of some memories, one after the other, and the memory of each."""
    first = model.store.starts[memories]
    counts = model.store.starts[memories + 1] - first
    place = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.repeat(memories, counts), model.store.labels[place]


def _similarity(model: MemoryTreeModel, entries: Entries, memory: int) -> NDArray[np.float64]:
    """Return what each feature of a row adds to its similarity to a remembered row."""
    weights = 1.0 + model.scorer.weights[entries.columns].astype(np.float64)
    if not model.is_sparse:
        return weights * entries.values * model.store.rows[0][memory, entries.columns]
    indptr, indices, values = model.store.rows
    part = slice(int(indptr[memory]), int(indptr[memory + 1]))
    dense = dict(zip(indices[part].tolist(), values[part].tolist()))
    return weights * entries.values * np.array([dense.get(column, 0.0) for column in entries.columns.tolist()])
