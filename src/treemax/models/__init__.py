"""The classifiers, one folder per model, and their names on the command line."""

from __future__ import annotations

from treemax.models.base import LabelClassifier, TopK, TrainingInterrupted
from treemax.models.label_tree.estimator import LabelTree
from treemax.models.language_model.estimator import TreeLanguageModel
from treemax.models.learned_tree.estimator import LearnedTree
from treemax.models.lom_tree.estimator import LOMTree
from treemax.models.one_vs_all.estimator import OneVsAll
from treemax.models.online import OnlineLabelClassifier
from treemax.models.online_label_tree.estimator import OnlineLabelTree
from treemax.models.recall_tree.estimator import RecallTree
from treemax.models.softmax_tree.estimator import SoftmaxForest, SoftmaxTree
from treemax.models.text_model import TextModel

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
"""Command-line name -> class. Models listed here are included in the command line, the demo, the benchmarks and the
generic tests."""

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
    "TextModel",
    "TopK",
    "TrainingInterrupted",
    "TreeLanguageModel",
]
