"""Training a label tree, from rows to the packed model: the story of Algorithm 9 and of what is chosen on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treemax.inputs.labels import LabelIndex, picked_targets
from treemax.inputs.rows import SparseRows
from treemax.models.base import TrainingInterrupted
from treemax.models.label_tree.choices import calibrate, calibration_rows, choose_cost, held_share_of
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.nodes import Common, LabelTreeSettings, RowsInMemory
from treemax.models.label_tree.out_of_core import RowsOnDisk
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import interruptible
from treemax.trees import Tree, build_tree, is_hierarchy


@dataclass(frozen=True)
class Plan:
    """What to train: the shape of the trees, how their nodes are trained, and how answers will be searched."""

    tree: Any
    arity: int | str
    max_leaf: int
    seeds: list[int]  # one for each tree
    settings: LabelTreeSettings
    chooses_cost: bool  # on held-out rows
    temperature: float
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
    """Build, train and calibrate the trees; after Ctrl-C, those that are ready.

    `vectors` are features of the labels, in place of what their rows look like.
    """
    if vectors is None and (is_hierarchy(plan.tree) or plan.tree == "kmeans"):
        vectors = source.label_vectors(len(index))
    n_rows = len(source.targets)
    held_share = held_share_of(n_rows) if plan.settings.passes > 1 else 0
    settings = replace(plan.settings, held_share=held_share)
    judging = calibration_rows(n_rows, held_share)
    held = source.load(judging)
    early_features = np.zeros(held.n_features, dtype=bool)
    early_features[held.indices] = True
    trees: list[PackedTree] = []
    early_trees: list[PackedTree] = []  # as they were before the held-out rows joined
    stopped = False
    try:
        for seed in plan.seeds:
            tree = build_tree(
                plan.tree, source.rows, source.targets, index, plan.arity, plan.max_leaf, vectors, seed, plan.threads
            )  # fmt: skip
            common = Common(settings, seed, source.length, early_features)
            if not trees and plan.chooses_cost:
                settings = replace(settings, leaf_cost=choose_cost(tree, source.targets, common, source.run))
                common = common._replace(settings=settings)
            trained, early = train_nodes(source, tree, common, multi_label, plan)
            trees.append(trained)
            early_trees.append(early)
    except KeyboardInterrupt:
        if not early_trees:
            raise
        stopped = True
    model = LabelTreeModel(tuple(trees), settings.loss, settings.leaf_cost)
    if len(judging):
        targets, earlier = picked_targets(source.targets, judging), replace(model, trees=tuple(early_trees))
        found = calibrate(earlier, held, targets, multi_label, plan.beam, plan.threads)
        model = replace(model, calibration=found)
    if stopped:
        raise TrainingInterrupted(model, len(trees) / len(plan.seeds)) from None
    return model


def train_nodes(
    source: RowsInMemory | RowsOnDisk, tree: Tree, common: Common, multi_label: bool, plan: Plan
) -> tuple[PackedTree, PackedTree]:
    """Train the nodes of a tree; gives the tree, and the tree as it was before the held-out rows joined."""
    training, settings = source.training(tree, common), common.settings
    title = f"label-tree, {settings.loss}, cost {settings.leaf_cost:.3g}"
    with interruptible(), progress_bar(training.work, title, "rows", plan.verbose) as bar:
        for done in training.run():
            bar.update(done)
    if multi_label:
        link, (slopes, shifts) = "logistic", training.scores.logistic_slopes()
    else:
        link, slopes = "softmax", training.scores.softmax_slopes()
        shifts = np.zeros_like(slopes)
    slopes, shifts = slopes / plan.temperature, shifts / plan.temperature
    scales = training.scales if settings.precision == "int8" else None
    late = PackedTree.join(tree, training.nodes, link, slopes, shifts, scales)
    return late, PackedTree.join(tree, training.early_nodes, link, slopes, shifts)
