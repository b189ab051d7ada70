"""The decisions of recall trees for one row: routers, which find candidates, and regressors, which rank them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows
from treemax.models.recall_tree.kernels import LEAST_MASS
from treemax.models.trained.scorers import weights_of_features
from treemax.models.trained.tracing import RANKING, Entries, decision, precision, shares

if TYPE_CHECKING:
    from treemax.models.recall_tree.model import Beam, RecallTreeModel
    from treemax.models.recall_tree.paper_model import Descent, PaperTreeModel

# --- the tree with a beam --------------------------------------------------------------------------------


class _Leaf(NamedTuple):
    node: int
    share: float
    steps: tuple[Step, ...]


def trace_candidates(
    model: RecallTreeModel, row: Rows, ids: Sequence[int], scores: Sequence[float], search: Beam
) -> Trace:
    """Return the ranking of labels, and the routes to the leaves that made them candidates."""
    entries, beam = Entries.of(model, row), model.clipped_beam(search)
    leaves = _descend(model, entries, beam)
    routes = [_routes(model, leaves, label) for label in ids]
    paths = [
        [Path([_ranking(model, entries, beam, label, score, own)])] if score > 0 else []
        for label, score, own in zip(ids, scores, routes)
    ]
    return Trace(entries.columns.astype(np.int64), entries.values, paths, precision(model.regressors), routes)


def _descend(model: RecallTreeModel, entries: Entries, beam: Beam) -> list[_Leaf]:
    """Return the leaves in the beam, with the steps to each."""
    level = [_Leaf(0, 1.0, ())]
    for _ in range(model.depth):
        found = []
        for node, share, steps in level:
            first = node * model.arity
            weights = weights_of_features(model.routers, first, model.arity, entries.columns)
            biases = model.routers.bias[first : first + model.arity].astype(np.float64)
            added = weights * entries.values
            for c, probability in enumerate(shares(biases + added.sum(axis=1)).tolist()):
                if share * probability >= beam.least_share:
                    branch, bias = f"child {c + 1} of {model.arity}", {"bias": float(biases[c])}
                    step = linear_step(node, first + 1 + c, branch, probability, bias, added[c])
                    found.append(_Leaf(first + 1 + c, share * probability, (*steps, step)))
        level = sorted(found, key=lambda leaf: -leaf.share)[: beam.width]
    return level


def _routes(model: RecallTreeModel, leaves: Sequence[_Leaf], label: int) -> list[Path]:
    """Return the routes to the leaves that have a label, weighted by its share of the rows there; the best first."""
    own, routes = model.histograms, []
    for node, share, steps in leaves:
        at = np.flatnonzero(own.labels[node, : own.n_labels[node]] == label)
        weight = float(own.label_counts[node, at[0]] / own.total[node]) if len(at) and own.total[node] > 0 else 0.0
        if share * weight >= LEAST_MASS:
            routes.append(Path(steps, weight))
    return sorted(routes, key=lambda route: -route.weight * route.probability)


def _ranking(
    model: RecallTreeModel, entries: Entries, beam: Beam, label: int, score: float, routes: Sequence[Path]
) -> Step:
    mass = sum(route.weight * route.probability for route in routes)
    sharp, weights = model.sharpness, weights_of_features(model.regressors, label, 1, entries.columns)[0]
    terms = {
        "bias": sharp * float(model.regressors.bias[label]),
        "log-probability of the tree": sharp * beam.prior * math.log(mass + float(LEAST_MASS)),
    }
    branch = f"rank among at most {min(beam.n_candidates, model.n_labels):,} candidates"
    return linear_step(RANKING, label, branch, score, terms, sharp * weights * entries.values, [label], 1)


# --- the paper's algorithm -------------------------------------------------------------------------------


def trace_path(
    model: PaperTreeModel, row: Rows, ids: Sequence[int], scores: Sequence[float], search: Descent, end: int
) -> Trace:
    """Return the path of the row to the node `end`, and the ranking of labels among its candidates."""
    entries, nodes, node, steps = Entries.of(model, row), model.nodes, 0, []
    while node != end and nodes.routers[node]:
        right, left = int(nodes.children[node, 1]), int(nodes.children[node, 0])
        step = decision(model.routers, int(nodes.routers[node]) - 1, entries, node, (right, left), ("right", "left"))
        node = step.child
        steps.append(replace(step, labels=nodes.labels[node, : nodes.n_candidates[node]]))
    candidates = nodes.labels[end, : nodes.n_candidates[end]]
    paths: list[list[Path]] = []
    for label, score in zip(ids, scores):
        at = np.flatnonzero(candidates == label)
        if len(at) == 0:
            paths.append([])
            continue
        terms = {"bias": float(model.regressors.bias[label])}
        if search.path_features:
            terms["path"] = float(model._path_scores(search)[end, at[0]])
        weights = weights_of_features(model.regressors, label, 1, entries.columns)[0]
        branch = f"rank among {len(candidates)} candidates"
        rank = linear_step(RANKING, label, branch, score, terms, weights * entries.values, [label], 1)
        paths.append([Path([*steps, rank])])
    return Trace(entries.columns.astype(np.int64), entries.values, paths, precision(model.regressors))
