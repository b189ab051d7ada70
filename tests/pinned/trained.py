"""What every model learns from small data with a fixed seed; `python tests/pinned/trained.py` stores it anew.

Nearly all first answers are the same on all machines, but for models that search for a local optimum. Bits are the same where processor and libraries are: what is
stored says of which it is.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import scipy
import scipy.sparse as sp
import sklearn

import treemax

STORED = Path(__file__).with_name("stored.json")
N_TRAIN = 400
WORDS = [
    "apple",
    "bread",
    "chair",
    "dance",
    "eagle",
    "flute",
    "grape",
    "horse",
    "igloo",
    "jelly",
    "knife",
    "lemon",
    "mango",
    "night",
    "ocean",
]


def rows(sparse: bool, multi_label: bool = False, integers: bool = False) -> tuple[Any, Any]:
    """600 rows of 40 numbers, 30 labels that the largest of them say."""
    random = np.random.RandomState(7)
    X = random.standard_normal((600, 40)).astype(np.float32)
    X[np.abs(X) < 0.8] = 0
    order = np.argsort(-X[:, :30], axis=1)
    names = [f"label {number:02}" for number in range(30)]
    y: Any = np.array(names)[order[:, 0]]
    if multi_label:
        y = [[names[place] for place in row[: 1 + number % 3]] for number, row in enumerate(order)]
    if integers:
        y = order[:, 0].astype(np.int64)
    return (sp.csr_matrix(X) if sparse else X), y


def texts() -> tuple[list[str], list[str]]:
    random = np.random.RandomState(3)
    found = [" ".join(random.choice(WORDS, size=6)) for _ in range(600)]
    return found, [text.split()[0][0] for text in found]


def in_pieces(model: Any, X: Any, y: Any) -> Any:
    for start in range(0, N_TRAIN, 90):
        model.partial_fit(X[start : min(start + 90, N_TRAIN)], y[start : min(start + 90, N_TRAIN)])
    return model


def fitted(model: Any, X: Any, y: Any) -> Any:
    return model.fit(X[:N_TRAIN], y[:N_TRAIN])


def answers(model: Any, X: Any) -> dict[str, Any]:
    """The first answers, and digests of the exact answers and of the file."""
    top, asked = model.predict_topk(X, 3), X[:50]
    exact = [top.scores, model.predict_proba(asked)]
    return {
        "first": top.labels[:50, 0].tolist(),
        "answers": hashlib.sha256(b"".join(array.tobytes() for array in exact)).hexdigest(),
        "file": file_digest(model),
    }


def file_digest(model: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model", **({"resume": True} if hasattr(model, "partial_fit") else {}))
        return hashlib.sha256((Path(folder) / "model").read_bytes()).hexdigest()


def trained(make: Callable[[], Any], how: Callable[..., Any] = fitted, **data: Any) -> Callable[[], dict[str, Any]]:
    def result() -> dict[str, Any]:
        X, y = rows(**data)
        return answers(how(make(), X, y), X[N_TRAIN:])

    return result


def text_model() -> dict[str, Any]:
    X, y = texts()
    model = fitted(treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(**ONE)), X, y)
    return answers(model, X[N_TRAIN:])


def language_model() -> dict[str, Any]:
    X, _ = texts()
    options = {"dimension": 16, "arity": 4, "passes": 2, "verbose": 0, "random_state": 1}
    model = treemax.TreeLanguageModel(**options).fit(X[:N_TRAIN])
    exact = np.concatenate(model.log_prob(X[N_TRAIN:]))
    return {
        "first": np.round(exact[:50].astype(float), 1).tolist(),
        "answers": hashlib.sha256(exact.tobytes()).hexdigest(),
        "file": hashlib.sha256(b"".join(a.tobytes() for a in model.to_parts()[1].values())).hexdigest(),
    }  # the rest of the file says how many seconds each pass took


ONE = {"random_state": 1, "verbose": 0}
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "one-vs-all, dense": trained(lambda: treemax.OneVsAll(**ONE), sparse=False),
    "one-vs-all, several labels": trained(lambda: treemax.OneVsAll(**ONE), sparse=True, multi_label=True),
    "one-vs-all, stream": trained(lambda: treemax.OneVsAll(**ONE), in_pieces, sparse=True),
    "label tree": trained(lambda: treemax.LabelTree(max_leaf=5, **ONE), sparse=True),
    "label tree, integers": trained(lambda: treemax.LabelTree(max_leaf=5, **ONE), sparse=False, integers=True),
    "label tree, several labels": trained(lambda: treemax.LabelTree(max_leaf=5, **ONE), sparse=True, multi_label=True),
    "label tree, three trees": trained(lambda: treemax.LabelTree(max_leaf=5, n_trees=3, **ONE), sparse=True),
    "label tree, L1": trained(lambda: treemax.LabelTree(max_leaf=5, penalty="l1", **ONE), sparse=True),
    "label tree, eight bits": trained(lambda: treemax.LabelTree(max_leaf=5, precision="int8", **ONE), sparse=True),
    "label tree, as published": trained(lambda: treemax.LabelTree.as_published(**ONE), sparse=True),
    "label tree, logistic": trained(lambda: treemax.LabelTree(max_leaf=5, loss="logistic", **ONE), sparse=True),
    "online label tree": trained(lambda: treemax.OnlineLabelTree(**ONE), sparse=True),
    "online label tree, stream": trained(lambda: treemax.OnlineLabelTree(**ONE), in_pieces, sparse=True, multi_label=True),
    "recall tree, dense": trained(lambda: treemax.RecallTree(**ONE), sparse=False),
    "recall tree, sparse": trained(lambda: treemax.RecallTree(**ONE), sparse=True),
    "recall tree, paper": trained(lambda: treemax.RecallTree(algorithm="paper", **ONE), in_pieces, sparse=True),
    "LOM tree": trained(lambda: treemax.LOMTree(**ONE), sparse=True),
    "double sampling": trained(lambda: treemax.DoubleSampling(**ONE), sparse=True),
    "memory tree, dense": trained(lambda: treemax.ContextualMemoryTree(**ONE), sparse=False),
    "memory tree, stream": trained(lambda: treemax.ContextualMemoryTree(**ONE), in_pieces, sparse=True, multi_label=True),
    "MACH": trained(lambda: treemax.MACH(**ONE), sparse=True),
    "learned tree": trained(lambda: treemax.LearnedTree(dimension=16, passes=3, **ONE), sparse=True),
    "learned tree, several labels": trained(lambda: treemax.LearnedTree(dimension=16, passes=3, **ONE), sparse=True, multi_label=True),
    "learned tree, stream": trained(lambda: treemax.LearnedTree(dimension=16, stream_assign_every=50, **ONE), in_pieces, sparse=True),
    "softmax tree": trained(lambda: treemax.SoftmaxTree(depth=2, **ONE), sparse=False),
    "softmax tree, sparse": trained(lambda: treemax.SoftmaxTree(depth=2, **ONE), sparse=True),
    "softmax forest": trained(lambda: treemax.SoftmaxForest(n_trees=2, depth=2, **ONE), sparse=False),
    "texts": text_model,
    "language model": language_model,
}  # fmt: skip


def machine() -> str:
    """Processor and libraries, on which the last bits depend."""
    versions = [f"{library.__name__} {library.__version__}" for library in (numba, llvmlite, np, scipy, sklearn)]
    return " ".join([llvmlite.binding.get_host_cpu_name(), f"Python {platform.python_version()[:4]}", *versions])


if __name__ == "__main__":
    stored = {"machine": machine(), **{name: result() for name, result in CASES.items()}}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"{len(CASES)} trainings stored in {STORED}")
