"""One small trained model of every kind, as the header and arrays of its file, and all that can be asked of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

import treemax
from treemax import modelfile

N_LABELS, N_ROWS, N_FEATURES = 9, 72, 6
_random = np.random.default_rng(5)
CENTRES = _random.normal(size=(N_LABELS, N_FEATURES))
NUMBERS = np.arange(N_ROWS) % N_LABELS
DENSE = (CENTRES[NUMBERS] + 0.1 * _random.normal(size=(N_ROWS, N_FEATURES))).astype(np.float32)
SPARSE = sp.csr_matrix(np.where(np.abs(DENSE) > 0.6, DENSE, 0))
LARGE_IDS = sp.csr_matrix(
    (SPARSE.data, SPARSE.indices.astype(np.int64) * 700_000_001, SPARSE.indptr), (N_ROWS, 2**32 - 2)
)
WORDS = ["red", "blue", "green", "apple", "car", "sky", "old", "new", "fast"]
TEXTS = [f"{WORDS[i]} {WORDS[(i * 2 + 1) % N_LABELS]} thing{i % 4}" for i in NUMBERS]
NAMES = np.array([f"label {i}" for i in NUMBERS])
SEVERAL = [[int(i), int(i + 3) % N_LABELS] for i in NUMBERS]
HIERARCHY = {
    "root": ["low", "high"],
    "low": [f"label {i}" for i in range(4)],
    "high": [f"label {i}" for i in range(4, 9)],
}
INDICATOR = np.eye(N_LABELS, dtype=int)[NUMBERS]

Question = tuple[Any, Any]  # X and y
Kind = tuple[Callable[[], Any], Any, Any]


def _text(vectorizer: Any, estimator: Any) -> Kind:
    return lambda: treemax.TextModel(vectorizer, estimator), TEXTS, NAMES


KINDS: dict[str, Kind] = {
    "one-vs-all": (treemax.OneVsAll, DENSE, NAMES),
    "one-vs-all, sparse, several labels": (treemax.OneVsAll, SPARSE, SEVERAL),
    "label-tree": (lambda: treemax.LabelTree(max_leaf=3, arity=2), SPARSE, NAMES),
    "label-tree, several trees and labels": (lambda: treemax.LabelTree(n_trees=2, max_leaf=3), SPARSE, SEVERAL),
    "label-tree, own hierarchy": (lambda: treemax.LabelTree(tree=HIERARCHY), SPARSE, NAMES),
    "label-tree, eight bits": (lambda: treemax.LabelTree(precision="int8", max_leaf=3), DENSE, INDICATOR),
    "online-label-tree": (lambda: treemax.OnlineLabelTree(max_leaf=3, arity=2), SPARSE, NUMBERS),
    "online-label-tree, several labels": (lambda: treemax.OnlineLabelTree(max_leaf=3), SPARSE, SEVERAL),
    "online-label-tree, eight bits": (lambda: treemax.OnlineLabelTree(precision="float8"), SPARSE, SEVERAL),
    "recall-tree": (lambda: treemax.RecallTree(n_candidates=4), DENSE, NUMBERS),
    "recall-tree, sparse": (lambda: treemax.RecallTree(arity=2, depth=2), SPARSE, NAMES),
    "recall-tree, paper": (lambda: treemax.RecallTree(algorithm="paper", n_candidates=3), DENSE, NAMES),
    "recall-tree, paper, sparse": (lambda: treemax.RecallTree(algorithm="paper"), SPARSE, NUMBERS),
    "recall-tree, large ids": (lambda: treemax.RecallTree(arity=2), LARGE_IDS, NAMES),
    "lom-tree": (treemax.LOMTree, DENSE, NAMES),
    "lom-tree, sparse": (treemax.LOMTree, SPARSE, NUMBERS),
    "memory-tree": (lambda: treemax.ContextualMemoryTree(leaf_factor=1.0), DENSE, NAMES),
    "memory-tree, sparse, several labels": (lambda: treemax.ContextualMemoryTree(leaf_factor=1.0), SPARSE, SEVERAL),
    "mach": (lambda: treemax.MACH(n_buckets=3, n_repetitions=2), DENSE, NAMES),
    "mach, sparse, several labels": (lambda: treemax.MACH(n_repetitions=2), SPARSE, SEVERAL),
    "double-sampling": (lambda: treemax.DoubleSampling(n_candidates=3), DENSE, NAMES),
    "double-sampling, sparse": (treemax.DoubleSampling, SPARSE, NUMBERS),
    "learned-tree": (lambda: treemax.LearnedTree(arity=2), SPARSE, NAMES),
    "learned-tree, running sums": (lambda: treemax.LearnedTree(arity=2, statistics="running"), SPARSE, NAMES),
    "learned-tree, several labels": (lambda: treemax.LearnedTree(arity=3), SPARSE, SEVERAL),
    "softmax-tree": (lambda: treemax.SoftmaxTree(depth=2, leaf_classes=4), DENSE, NAMES),
    "softmax-tree, sparse": (lambda: treemax.SoftmaxTree(depth=1, leaf_classes=6), SPARSE, NUMBERS),
    "softmax-forest": (lambda: treemax.SoftmaxForest(n_trees=2), DENSE, NUMBERS),
    "text, tf-idf": _text(treemax.TfidfText(), treemax.LabelTree(max_leaf=3)),
    "text, hashing": _text(treemax.HashingText(bits=6), treemax.OnlineLabelTree()),
    "language-model": (lambda: treemax.TreeLanguageModel(arity=4, dimension=8, context=2), TEXTS, None),
}
RESUMABLE = (
    "one-vs-all",
    "online-label-tree",
    "recall-tree",
    "lom-tree",
    "softmax-tree",
    "text, hashing",
    "learned-tree",
    "memory-tree",
)
NAMES_OF_ALL = list(KINDS) + [f"{name}, to resume" for name in KINDS if name.startswith(RESUMABLE)]


def kind_of(name: str) -> Kind:
    return KINDS[name.removesuffix(", to resume")]


@cache
def parts(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of the file of a trained model."""
    make, X, y = kind_of(name)
    model = make()
    if "verbose" in model.get_params():
        quiet = {key: 0 for key in model.get_params() if key.split("__")[-1] == "verbose"}
        model.set_params(**quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X) if y is None else model.fit(X, y)
    options = {"resume": True} if name.endswith("to resume") else {}
    header, arrays = modelfile.object_parts(model, **options)
    return header, {key: np.array(array) for key, array in arrays.items()}


def use(model: Any, name: str, path: str) -> str:
    """Ask everything, learn where the model can, save, load and ask again; raises where an answer is not sound."""
    _, X, y = kind_of(name)
    ask(model, with_strange_rows(X))
    if hasattr(model, "partial_fit"):
        model.partial_fit(X[:20], y[:20])
        model.partial_fit(X[20:40], y[20:40])
        ask(model, X)
    if name.startswith("softmax") and name.endswith("to resume"):
        model.set_params(warm_start=True, iterations=1).fit(X, y)
        ask(model, X)
    modelfile.save(model, path)
    ask(modelfile.load(path), with_strange_rows(X))
    return "answered"


def with_strange_rows(X: Any) -> Any:
    """The rows, one without any feature, and one with features of which the training had none."""
    if isinstance(X, list):
        return [*X, "", "unknown words"]
    if not sp.issparse(X):
        return np.concatenate([X, np.zeros((1, X.shape[1]), np.float32)])
    n_columns = max(301, X.shape[1])
    strange = sp.csr_matrix(([1.0], [300], [0, 0, 1]), shape=(2, n_columns))
    wide = sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], n_columns))
    return sp.vstack([wide, strange], "csr")


def ask(model: Any, X: Any) -> None:
    best = model.predict_topk(X, 3)
    _check(best.scores)
    _check(model.predict_proba(X))
    model.predict(X)
    model.describe()
    if hasattr(model, "predict_above"):
        for row in model.predict_above(X[:5], 0.2, scores=True):
            _check(np.array([score for _, score in row], dtype=float))
        _check(model.predict_proba_of(X[:5], best.labels[:5]))
    for tree in ("label_tree", "node_labels"):
        if hasattr(model, tree):
            getattr(model, tree)()
    if hasattr(model, "log_prob"):
        assert all(np.isfinite(row).all() for row in model.log_prob(X[:5])), "a probability is not finite"


def _check(probabilities: np.ndarray) -> None:
    assert np.isfinite(probabilities).all(), "a probability is not finite"
    assert ((probabilities >= 0) & (probabilities <= 1 + 1e-4)).all(), "a probability is not from 0 to 1"
