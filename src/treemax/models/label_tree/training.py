"""Training of label trees (Algorithm 9), with cost, temperature and calibration chosen on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treemax.inputs.labels import LabelIndex, take_targets
from treemax.inputs.rows import SparseRows
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.label_tree.choices import (
    USUAL_TEMPERATURE,
    calibrate,
    calibration_rows,
    choose_cost,
    choose_temperature,
    held_out_share,
)
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.nodes import Common, LabelTreeSettings, RowsInMemory
from treemax.models.label_tree.out_of_core import RowsOnDisk
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import interruptible
from treemax.trees import Tree, build_tree, is_hierarchy


@dataclass(frozen=True)
class Plan:
    """Settings of a training: the structure of the trees, their node classifiers, and the search in prediction."""

    tree: Any
    arity: int | str
    max_leaf: int
    seeds: list[int]  # one for each tree
    settings: LabelTreeSettings
    chooses_cost: bool  # on held-out rows
    temperature: float | None  # None: chosen on held-out rows
    beam: int | None
    threads: int
    verbose: int


def train_label_tree(
    source: RowsInMemory | RowsOnDisk,
    index: LabelIndex,
    multi_label: bool,
    plan: Plan,
    vectors: SparseRows | None = None,
) -> LabelTreeModel:
    """Build, train and calibrate the trees; after Ctrl-C, those that are complete.

    `vectors` are features of the labels for clustering; by default they are computed from the rows of each label.
    """
    if vectors is None and (is_hierarchy(plan.tree) or plan.tree == "kmeans"):
        vectors = source.label_vectors(len(index))
    n_rows = len(source.targets)
    held_share = held_out_share(n_rows) if plan.settings.passes > 1 else 0
    settings = replace(plan.settings, held_share=held_share)
    held_out = calibration_rows(n_rows, held_share)
    held_out_rows = source.load(held_out)
    calibration_features = np.zeros(held_out_rows.n_features, dtype=bool)
    calibration_features[held_out_rows.indices] = True
    trees: list[PackedTree] = []
    holdout_trees: list[PackedTree] = []  # trained without the held-out rows
    interrupted = False
    try:
        shape = plan.arity, plan.max_leaf, vectors
        grown = [
            build_tree(plan.tree, source.rows, source.targets, index, *shape, seed, plan.threads) for seed in plan.seeds
        ]
        commons = [Common(settings, seed, source.length, calibration_features) for seed in plan.seeds]
        if plan.chooses_cost:
            settings = replace(settings, leaf_cost=choose_cost(grown, source.targets, commons, source.run))
        for tree, common in zip(grown, commons, strict=True):
            final, holdout = train_nodes(source, tree, common._replace(settings=settings), multi_label, plan)
            trees.append(final)
            holdout_trees.append(holdout)
    except KeyboardInterrupt:
        if not holdout_trees:
            raise
        interrupted = True
    model, temperature = LabelTreeModel(tuple(trees), settings.loss, settings.leaf_cost), plan.temperature
    if len(held_out):
        holdout_model = replace(model, trees=tuple(holdout_trees))
        targets = take_targets(source.targets, held_out)
        if temperature is None:
            temperature = choose_temperature(holdout_model, held_out_rows, targets, plan.beam, plan.threads)
        holdout_model = holdout_model.at_temperature(temperature)
        calibration = calibrate(holdout_model, held_out_rows, targets, multi_label, plan.beam, plan.threads)
        model = replace(model, calibration=calibration)
    model = model.at_temperature(USUAL_TEMPERATURE if temperature is None else temperature)
    if interrupted:
        raise TrainingInterrupted(model, len(trees) / len(plan.seeds)) from None
    return model


def train_nodes(
    source: RowsInMemory | RowsOnDisk, tree: Tree, common: Common, multi_label: bool, plan: Plan
) -> tuple[PackedTree, PackedTree]:
    """Train the nodes of a tree; return the tree, and the tree trained without the held-out rows."""
    training, settings = source.training(tree, common, multi_label), common.settings
    title = f"label-tree, {settings.loss}, cost {settings.leaf_cost:.3g}"
    with interruptible(), progress_bar(training.work, title, "rows", plan.verbose) as bar:
        for done in training.run():
            bar.update(done)
    link, slopes, shifts = training.statistics.link(multi_label)
    scales = training.scales if settings.precision == "int8" else None
    final = PackedTree.join(tree, training.nodes, link, slopes, shifts, scales)
    return final, PackedTree.join(tree, training.holdout_nodes, link, slopes, shifts)
