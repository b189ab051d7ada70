"""Classification with thousands to millions of labels, in time logarithmic in their number."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treemax.lazy import lazy_attributes

__version__ = "0.1.0"

if TYPE_CHECKING:
    from treemax.explanations import Explanation
    from treemax.metrics.progressive import progressive_validation
    from treemax.modelfile import ModelFileError
    from treemax.models import (
        MACH,
        MODELS,
        ContextualMemoryTree,
        DoubleSampling,
        LabelTree,
        LearnedTree,
        LOMTree,
        OneVsAll,
        OnlineLabelTree,
        RecallTree,
        SoftmaxForest,
        SoftmaxTree,
        TopK,
        TrainingInterrupted,
        TreeLanguageModel,
        choose_model,
    )
    from treemax.models.text_model import TextModel
    from treemax.parallel.checkpoints import checkpoint
    from treemax.parallel.ray_cluster import cluster
    from treemax.parallel.ray_data import predict_dataset
    from treemax.plots import plot_explanation, plot_history, plot_tree, show_tree
    from treemax.text.vectorizers import HashingText, TfidfText
    from treemax.trees.taxonomy import Taxonomy
    from treemax.tuning import TuneResult, tune

# Names are imported on first use, so that `treemax --help` does not import Numba.
_HOMES = {
    "MACH": "treemax.models",
    "MODELS": "treemax.models",
    "ContextualMemoryTree": "treemax.models",
    "DoubleSampling": "treemax.models",
    "LabelTree": "treemax.models",
    "LearnedTree": "treemax.models",
    "LOMTree": "treemax.models",
    "OneVsAll": "treemax.models",
    "OnlineLabelTree": "treemax.models",
    "RecallTree": "treemax.models",
    "SoftmaxForest": "treemax.models",
    "SoftmaxTree": "treemax.models",
    "TopK": "treemax.models",
    "TrainingInterrupted": "treemax.models",
    "TreeLanguageModel": "treemax.models",
    "choose_model": "treemax.models",
    "Explanation": "treemax.explanations",
    "ModelFileError": "treemax.modelfile",
    "plot_explanation": "treemax.plots",
    "plot_history": "treemax.plots",
    "plot_tree": "treemax.plots",
    "show_tree": "treemax.plots",
    "checkpoint": "treemax.parallel.checkpoints",
    "cluster": "treemax.parallel.ray_cluster",
    "predict_dataset": "treemax.parallel.ray_data",
    "progressive_validation": "treemax.metrics.progressive",
    "HashingText": "treemax.text.vectorizers",
    "Taxonomy": "treemax.trees.taxonomy",
    "TextModel": "treemax.models.text_model",
    "TfidfText": "treemax.text.vectorizers",
    "TuneResult": "treemax.tuning",
    "tune": "treemax.tuning",
}

__all__ = [
    "MACH",
    "MODELS",
    "ContextualMemoryTree",
    "DoubleSampling",
    "Explanation",
    "HashingText",
    "LOMTree",
    "LabelTree",
    "LearnedTree",
    "ModelFileError",
    "OneVsAll",
    "OnlineLabelTree",
    "RecallTree",
    "SoftmaxForest",
    "SoftmaxTree",
    "Taxonomy",
    "TextModel",
    "TfidfText",
    "TopK",
    "TrainingInterrupted",
    "TreeLanguageModel",
    "TuneResult",
    "__version__",
    "checkpoint",
    "choose_model",
    "cluster",
    "load",
    "plot_explanation",
    "plot_history",
    "plot_tree",
    "predict_dataset",
    "progressive_validation",
    "show_tree",
    "tune",
]


def load(path: Any, verify: bool | None = None) -> Any:
    """Load a model from a `.treemax` file.

    Arrays are memory-mapped, so that a large model opens immediately and processes share its memory. The checksums of
    files up to 64 MB are verified; `verify=True` does so for any size, `verify=False` for none.
    """
    from treemax.modelfile import load as load_model

    for module in ("treemax.models", "treemax.text.vectorizers"):  # register the classes of model files
        import_module(module)
    return load_model(path, verify)


__getattr__ = lazy_attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
