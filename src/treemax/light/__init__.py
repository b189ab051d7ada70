"""Predictions from model files with NumPy alone.

`treemax.light.load` starts in a fraction of a second, and runs where Numba does not: new Python versions, Pyodide. It
reads the files of `LabelTree`, `OnlineLabelTree`, `LearnedTree` and `OneVsAll`, alone or in a `TextModel`, and gives
the same labels in the same order, and the same probabilities but for rounding. A row takes milliseconds instead of
microseconds: for many rows use `treemax.load`.
"""

from treemax.light.model import LightModel, TopK, load

__all__ = ["LightModel", "TopK", "load"]
