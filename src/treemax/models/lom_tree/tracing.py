"""The decisions of a LOMTree for one row, with the weights of its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from treemax.explanations import Path, Step, Trace
from treemax.inputs.rows import Rows
from treemax.models.lom_tree.kernels import ROOT
from treemax.models.trained.tracing import Entries, decision, precision

if TYPE_CHECKING:
    from treemax.models.lom_tree.model import LOMTreeModel


def trace_labels(model: LOMTreeModel, row: Rows, ids: Sequence[int], scores: Sequence[float]) -> Trace:
    """Return the path of the row to its leaf, and the frequency of labels there; none for a label that it does not have."""
    entries, nodes, node, steps = Entries.of(model, row), model.nodes, int(model.nodes.used[ROOT]), []
    while nodes.regressors[node]:
        left, right = nodes.children[node].tolist()
        scorer = int(nodes.regressors[node]) - 1
        step = decision(model.regressors, scorer, entries, node, (left, right), ("left", "right"), zero_is_second=True)
        if not nodes.totals[step.child]:
            break  # no row has been there: its parent answers
        node = step.child
        steps.append(replace(step, labels=[int(nodes.best[node])]))
    total, paths = int(nodes.totals[node]), []
    for label, score in zip(ids, scores):
        last = Step(
            node, label, f"{round(score * total):,} of {total:,} rows at the leaf", score, labels=[label], n_labels=1
        )
        paths.append([Path([*steps, last])] if score > 0 else [])
    return Trace(entries.columns.astype(np.int64), entries.values, paths, precision(model.regressors))
