"""Search over models and their settings by validation, in a time budget: `treemax.tune` and `treemax tune`."""

from treemax.tuning.metric import Metric, parse_metric
from treemax.tuning.result import TuneResult
from treemax.tuning.search import tune

__all__ = ["Metric", "TuneResult", "parse_metric", "tune"]
