"""Ranking metrics, propensity-scored metrics, density metrics and metrics of taxonomies.

`evaluate` computes all ranking metrics, the functions one each; `Scores` accumulates over a stream. `docs/metrics.md`
has the definitions.
"""

from treemax.metrics.density import DensityScores, Perplexity, entropy_reduction, perplexity
from treemax.metrics.encoding import IdEncoder, count_labels
from treemax.metrics.evaluation import (
    constant_accuracy,
    error_at_k,
    evaluate,
    label_coverage,
    macro_f1_at_k,
    micro_f1_at_k,
    ndcg_at_k,
    precision_at_k,
    psndcg_at_k,
    psp_at_k,
    recall_at_k,
)
from treemax.metrics.hierarchical import (
    HierarchicalScores,
    hierarchical_f1,
    hierarchical_precision,
    hierarchical_recall,
    tree_distance,
)
from treemax.metrics.propensity import propensities
from treemax.metrics.ranking import hits
from treemax.metrics.reports import Confusions, LabelReport, label_report
from treemax.metrics.scores import Scores
from treemax.metrics.utility import best_for_utility, expected_utility

__all__ = [
    "Confusions",
    "DensityScores",
    "HierarchicalScores",
    "IdEncoder",
    "LabelReport",
    "Perplexity",
    "Scores",
    "best_for_utility",
    "constant_accuracy",
    "count_labels",
    "entropy_reduction",
    "error_at_k",
    "evaluate",
    "expected_utility",
    "hierarchical_f1",
    "hierarchical_precision",
    "hierarchical_recall",
    "hits",
    "label_coverage",
    "label_report",
    "macro_f1_at_k",
    "micro_f1_at_k",
    "ndcg_at_k",
    "perplexity",
    "precision_at_k",
    "propensities",
    "psndcg_at_k",
    "psp_at_k",
    "recall_at_k",
    "tree_distance",
]
