"""The classifiers, one file per system, under the names the command line knows."""

from __future__ import annotations

from treemax.estimators.base import LabelClassifier, TopK, TrainingInterrupted
from treemax.estimators.label_tree import LabelTree
from treemax.estimators.language_model import TreeLanguageModel
from treemax.estimators.learned_tree import LearnedTree
from treemax.estimators.lom_tree import LOMTree
from treemax.estimators.one_vs_all import OneVsAll
from treemax.estimators.online import OnlineLabelClassifier
from treemax.estimators.online_label_tree import OnlineLabelTree
from treemax.estimators.recall_tree import RecallTree
from treemax.estimators.softmax_tree import SoftmaxForest, SoftmaxTree

MODELS: dict[str, type[LabelClassifier]] = {
    "label-tree": LabelTree,
    "learned-tree": LearnedTree,
    "lom-tree": LOMTree,
    "one-vs-all": OneVsAll,
    "online-label-tree": OnlineLabelTree,
    "recall-tree": RecallTree,
    "softmax-tree": SoftmaxTree,
    "softmax-forest": SoftmaxForest,
}
"""Command-line name -> class. A system listed here appears in the command line, the demo, the benchmarks and
the battery of tests by itself."""

__all__ = [
    "MODELS",
    "LOMTree",
    "LabelClassifier",
    "LabelTree",
    "LearnedTree",
    "OneVsAll",
    "OnlineLabelClassifier",
    "OnlineLabelTree",
    "RecallTree",
    "SoftmaxForest",
    "SoftmaxTree",
    "TopK",
    "TrainingInterrupted",
    "TreeLanguageModel",
]
