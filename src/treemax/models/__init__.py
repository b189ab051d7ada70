"""The classifiers, one folder per model."""

from __future__ import annotations

from treemax.models.base.classifier import LabelClassifier, TrainingInterrupted
from treemax.models.base.online import OnlineLabelClassifier
from treemax.models.double_sampling.estimator import DoubleSampling
from treemax.models.label_tree.estimator import LabelTree
from treemax.models.language_model.estimator import TreeLanguageModel
from treemax.models.learned_tree.estimator import LearnedTree
from treemax.models.lom_tree.estimator import LOMTree
from treemax.models.mach.estimator import MACH
from treemax.models.memory_tree.estimator import ContextualMemoryTree
from treemax.models.one_vs_all.estimator import OneVsAll
from treemax.models.online_label_tree.estimator import OnlineLabelTree
from treemax.models.recall_tree.estimator import RecallTree
from treemax.models.registry import MODELS, choose_model
from treemax.models.softmax_tree.estimator import SoftmaxForest, SoftmaxTree
from treemax.models.text_model import TextModel
from treemax.numpy_only.topk import TopK

__all__ = [
    "MACH",
    "MODELS",
    "ContextualMemoryTree",
    "DoubleSampling",
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
    "choose_model",
]
