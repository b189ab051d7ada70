"""The generic checks of `treemax.checks`, for every model."""

import pytest

from treemax.checks import CHECKS
from treemax.models import (
    MODELS,
    ContextualMemoryTree,
    DoubleSampling,
    LabelTree,
    LearnedTree,
    OneVsAll,
    OnlineLabelTree,
    RecallTree,
)

VARIANTS = {
    **{name: kind() for name, kind in MODELS.items()},
    "double-sampling, the paper's": DoubleSampling.as_published(n_candidates=3),
    "label-tree, three trees": LabelTree(n_trees=3, max_leaf=3),
    "label-tree, logistic, deep": LabelTree(loss="logistic", arity=2, max_leaf=2),
    "label-tree, exact, huffman": LabelTree(tree="huffman", search="exact"),
    "label-tree, L1": LabelTree(penalty="l1", arity=2, max_leaf=3, cost=3.0),
    "label-tree, eight bits": LabelTree(precision="int8", max_leaf=3),
    "learned-tree, binary, from a random tree": LearnedTree(arity=2, start="random", assign_every=0.5),
    "learned-tree, three children, beam": LearnedTree(arity=3, search="beam", labels="one", schedule="hold"),
    "learned-tree, the authors' program": LearnedTree.as_published(arity=3, dimension=16),
    "learned-tree, huffman, dimension 7": LearnedTree(tree="huffman", arity=2, dimension=7),
    "memory-tree, the paper's": ContextualMemoryTree.as_published(passes=1),
    "one-vs-all, logistic": OneVsAll(loss="logistic"),
    "one-vs-all, squared hinge": OneVsAll(loss="squared_hinge"),
    "one-vs-all, sampled negatives": OneVsAll(negatives=3),
    "online-label-tree, the paper's": OnlineLabelTree(arity=2, max_leaf=100, together=True, learning_rate=1.0),
    "online-label-tree, one level": OnlineLabelTree(policy="one-level", search="exact"),
    "online-label-tree, complete": OnlineLabelTree(policy="complete"),
    "online-label-tree, warm start": OnlineLabelTree(tree="kmeans", sample=0.5, policy="random", max_leaf=3),
    "recall-tree, the paper's": RecallTree(algorithm="paper"),
    "recall-tree, the paper's, few candidates": RecallTree(algorithm="paper", n_candidates=3),
    "recall-tree, the paper's, random sides": RecallTree(
        algorithm="paper", path_features="node", randomized_routing=True
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", VARIANTS)
def test_promise(name, check):
    check(VARIANTS[name])
