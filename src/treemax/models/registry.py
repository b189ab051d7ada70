"""The models by name, and the choice of a model for given data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from treemax.inputs.labels import RaggedLabels, check_same_length, read_labels
from treemax.inputs.rows import SparseRows, as_rows
from treemax.models.base.classifier import LabelClassifier
from treemax.models.double_sampling.estimator import DoubleSampling
from treemax.models.label_tree.estimator import LabelTree
from treemax.models.learned_tree.estimator import LearnedTree
from treemax.models.lom_tree.estimator import LOMTree
from treemax.models.mach.estimator import MACH
from treemax.models.memory_tree.estimator import ContextualMemoryTree
from treemax.models.one_vs_all.estimator import OneVsAll
from treemax.models.online_label_tree.estimator import OnlineLabelTree
from treemax.models.recall_tree.estimator import RecallTree
from treemax.models.softmax_tree.estimator import SoftmaxForest, SoftmaxTree
from treemax.models.text_model import TextModel
from treemax.text.vectorizers import HashingText, TfidfText, holds_texts

MODELS: dict[str, type[LabelClassifier]] = {
    "label-tree": LabelTree,
    "learned-tree": LearnedTree,
    "lom-tree": LOMTree,
    "mach": MACH,
    "double-sampling": DoubleSampling,
    "memory-tree": ContextualMemoryTree,
    "one-vs-all": OneVsAll,
    "online-label-tree": OnlineLabelTree,
    "recall-tree": RecallTree,
    "softmax-tree": SoftmaxTree,
    "softmax-forest": SoftmaxForest,
}
"""Command-line name -> class. Models listed here are included in the command line, the demo, the benchmarks and the
generic tests."""

MOST_FLAT_WORK = 1e11  # rows x features x labels that OneVsAll learns in about a minute
MOST_FLAT_LABELS = (
    1_000  # with one label a row: above, RecallTree was half a point behind OneVsAll at most, often ahead
)
MOST_STREAM_LABELS = 20_000  # number of labels that OneVsAll compares in about a millisecond


class DataFacts(NamedTuple):
    """What the choice of a model depends on."""

    sparse: bool  # texts or a sparse matrix
    multi_label: bool
    stream: bool
    n_rows: int = 0
    n_features: int = 0  # of dense rows
    n_labels: int = 0

    @property
    def flat(self) -> bool:
        """Whether a flat model can be trained in about a minute."""
        return self.n_rows * self.n_features * self.n_labels <= MOST_FLAT_WORK


class Rule(NamedTuple):
    """A model for one kind of data."""

    applies: Callable[[DataFacts], bool]
    model: str
    settings: dict[str, Any]
    reason: str


RULES = (
    Rule(lambda data: data.stream and data.sparse, "online-label-tree", {}, "a stream of texts or sparse rows"),
    Rule(lambda data: data.stream and (data.multi_label or data.n_labels <= MOST_STREAM_LABELS), "one-vs-all", {},
         "a stream of dense rows"),
    Rule(lambda data: data.stream, "recall-tree", {}, "a stream of dense rows with very many labels"),
    Rule(lambda data: data.sparse, "label-tree", {"n_trees": 3}, "texts or sparse rows"),
    Rule(lambda data: not data.multi_label and (data.n_labels >= MOST_FLAT_LABELS or not data.flat), "recall-tree", {},
         "dense rows with one of many labels each"),
    Rule(lambda data: data.flat, "one-vs-all", {}, "dense rows, and few enough labels to compare all of them"),
    Rule(lambda data: True, "label-tree", {"n_trees": 3}, "dense rows with several labels each, too many to compare all"),
)  # fmt: skip
"""The first rule that applies gives the model. They come from `benchmarks/experiments/choosing.py`; see
`docs/choosing.md`."""


def choose_model(X: Any, y: Any, *, stream: bool = False, verbose: int = 1) -> Any:
    """Return the model, not yet trained, that suits the kind of data best.

    The choice depends on whether X is text, sparse or dense, on whether rows have several labels, on the numbers of rows,
    features and labels, and on `stream`; no model is trained for it. `treemax.tune` compares models on the data itself.

    Parameters
    ----------
    X : matrix, data frame, any SciPy sparse format, or list of texts
        The rows to learn from. For texts the result is a `TextModel`.
    y : vector, list of label lists, or indicator matrix
        As in `fit`.
    stream : bool
        Whether the model is to learn from a stream, with `partial_fit`.
    verbose : int
        1 prints the choice and the reason on standard error, 0 nothing.

    Returns
    -------
    estimator
        A classifier with its defaults.

    Examples
    --------
    >>> import treemax
    >>> model = treemax.choose_model(["a red apple", "a fast car"], ["fruit", "vehicle"], verbose=0)
    >>> model.estimator
    LabelTree(n_trees=3)
    """
    texts = holds_texts(X)
    estimator, line = choose(data_facts(X, read_labels(y), stream))
    if verbose:
        print(line, file=sys.stderr)
    if not texts:
        return estimator
    return TextModel(HashingText() if stream else TfidfText(), estimator)


def data_facts(X: Any, labels: RaggedLabels, stream: bool) -> DataFacts:
    """Return the facts about X and y that the rules use."""
    facts = DataFacts(True, labels.multi_label, stream)
    rows: Any = X
    if not holds_texts(X):
        rows = as_rows(X)
        facts = facts._replace(sparse=isinstance(rows, SparseRows), n_features=rows.shape[1])
    check_same_length(len(rows), len(labels))
    used = labels.values[labels.indptr[0] : labels.indptr[-1]]
    return facts._replace(n_rows=len(labels), n_labels=len(set(used.tolist())))


def choose(facts: DataFacts) -> tuple[LabelClassifier, str]:
    """Return a model and a line that says why."""
    rule = next(rule for rule in RULES if rule.applies(facts))
    model = MODELS[rule.model](**rule.settings)
    return model, f"Model: {model}, for {rule.reason} (--model {rule.model})"
