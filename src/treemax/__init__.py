"""Classification with thousands to millions of labels, in time logarithmic in their number."""

__version__ = "0.1.0"

from treemax.estimators import MODELS, OneVsAll, TopK, TrainingInterrupted
from treemax.modelfile import ModelFileError, load

__all__ = ["MODELS", "ModelFileError", "OneVsAll", "TopK", "TrainingInterrupted", "__version__", "load"]
