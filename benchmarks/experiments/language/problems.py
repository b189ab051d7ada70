"""The two problems: the next word from the vectors of three words (table 3), and from the state of an LSTM (table 4).

Both have rows to train on, to choose a smoothing on (the validation part of the treebank) and to judge on, and a
softmax over all classes that was trained elsewhere, by PyTorch; `ngram-whole` is without it. With `-sample`, models learn
from 100,000 of the rows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.harness import environments, recipes, suites
from benchmarks.harness.measure import Data

HERE = Path(__file__).parent
CACHE = suites.CACHE
SAMPLE = 100_000  # training rows of the problems whose name ends in -sample


@dataclass(frozen=True)
class Rows:
    X: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Problem:
    """Rows, and where there is one the softmax over all classes: coef [classes, features] and bias."""

    train: Rows
    valid: Rows
    test: Rows
    n_classes: int
    softmax_name: str = ""
    coef: np.ndarray | None = None
    bias: np.ndarray | None = None


def ngram() -> Problem:
    """The suite `ptb`; the softmax is trained by PyTorch where its weights are not there yet, which takes long without a GPU."""
    folder, weights = suites.prepared("ptb"), CACHE / "ptb-softmax-1" / "weights.npz"
    if not weights.exists():
        weights.parent.mkdir(parents=True, exist_ok=True)
        in_torch("full_softmax.py", folder, weights)
    softmax = np.load(weights)
    return replace(ngram_rows(), softmax_name="softmax, Adam, 20 passes", coef=softmax["coef"], bias=softmax["bias"])


def ngram_rows() -> Problem:
    """The suite `ptb` without a softmax."""
    data = Data(suites.prepared("ptb"))
    train, test = (Rows(data.dense(part), data.classes(part)) for part in ("train", "test"))
    files = suites.find_files("ptb", suites.SUITES["ptb"], ("train", "valid"))
    raw_train, raw_valid = recipes.ptb(files, ("train", "valid"))
    words = sorted({label for row in raw_train.labels for label in row})
    return Problem(train, known_rows(raw_valid, words), test, len(words))


def sample(problem: Problem) -> Problem:
    """The problem with fewer training rows: the first of each class, and others at random."""
    X, y = problem.train.X, problem.train.y
    _, first = np.unique(y, return_index=True)
    others = np.setdiff1d(np.random.default_rng(0).permutation(len(y))[:SAMPLE], first)
    chosen = np.sort(np.concatenate([first, others[: max(0, SAMPLE - len(first))]]))
    return replace(problem, train=Rows(np.ascontiguousarray(X[chosen]), y[chosen]))


def known_rows(part: recipes.Part, labels: list[str]) -> Rows:
    """The rows whose label is among these, with its place as the class."""
    place = {label: i for i, label in enumerate(labels)}
    kept = [i for i, row in enumerate(part.labels) if row[0] in place]
    return Rows(part.X[kept], np.array([place[part.labels[i][0]] for i in kept]))


def lstm() -> Problem:
    """The states of an LSTM, which is trained where its weights are not there yet."""
    folder, raw = CACHE / "lstm-1", suites.data_folder() / "ptb"
    if not (folder / "words.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "weights.npz").exists():
            in_torch("lstm_states.py", "train", raw, folder / "weights.npz")
        in_torch("lstm_states.py", "states", raw, folder / "weights.npz", folder)
    parts = [Rows(np.load(folder / f"X_{part}.npy"), np.load(folder / f"y_{part}.npy")) for part in PARTS]
    bias = np.load(folder / "bias.npy")
    return Problem(*parts, len(bias), "softmax of the LSTM", np.load(folder / "coef.npy"), bias)


def in_torch(script: str, *arguments: str | Path) -> None:
    """Run a script of this folder in the environment that has PyTorch."""
    command = [environments.python_of("torch"), HERE / script, *arguments]
    subprocess.run([str(word) for word in command], check=True)


PARTS = ("train", "valid", "test")
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "ngram": ngram,
    "lstm": lstm,
    "ngram-whole": ngram_rows,
    "ngram-sample": lambda: sample(ngram_rows()),
    "lstm-sample": lambda: sample(lstm()),
}
