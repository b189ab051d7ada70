"""How the raw files of each data set are read.

A reader takes the data folder and the names of parts, "train" first, and gives a `Part` each. It opens no file of a
part that was not asked for. Features that are fitted to the training rows (tf-idf, the mean) come after, by one of
the functions at the end, so that a validation part can be cut from the training rows before.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

LABEL = "__label__"
GCC_YEARS = {"train": ("", "2018"), "test": ("2018", "2020")}


@dataclass(frozen=True)
class Part:
    """Some rows: features (dense array or SciPy CSR; None before tf-idf), labels, and raw text if there is any."""

    X: Any
    labels: list[list[Any]]
    texts: list[str] | None = None

    def take(self, rows: np.ndarray) -> Part:
        """The rows with these numbers, in this order."""
        X = None if self.X is None else self.X[rows]
        texts = None if self.texts is None else [self.texts[i] for i in rows]
        return Part(X, [self.labels[i] for i in rows], texts)


Reader = Callable[[Path, Sequence[str]], list[Part]]


def lines_of(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def starts_of(lists: Sequence[Sequence[Any]]) -> np.ndarray:
    """Where each list starts, were they written one after the other."""
    return np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)


def texts(name: str) -> Reader:
    """Text in the format of fastText: the labels of a row, each after `__label__`, then its words."""

    def read(folder: Path, parts: Sequence[str]) -> list[Part]:
        return [_labelled_texts(folder / f"{name}/{part}.txt.gz") for part in parts]

    return read


def _labelled_texts(path: Path) -> Part:
    labels, found = [], []
    for line in lines_of(path):
        words = line.split(" ")
        known = list(takewhile(lambda word: word.startswith(LABEL), words))
        labels.append(known)
        found.append(" ".join(words[len(known) :]))
    return Part(None, labels, found)


def gcc(folder: Path, parts: Sequence[str]) -> list[Part]:
    """The offline split: entries before 2018 against 2018 and 2019, labels seen at least twice in train."""
    end = max(GCC_YEARS[part][1] for part in parts)
    entries = map(json.loads, lines_of(folder / "gcc/stream.jsonl.gz"))  # in the order of time
    wanted = list(takewhile(lambda entry: entry["date"] < end, entries))
    before = GCC_YEARS["train"][1]
    seen = Counter(label for entry in wanted if entry["date"] < before for label in set(entry["labels"]))
    found = []
    for start, stop in (GCC_YEARS[part] for part in parts):
        rows = [entry for entry in wanted if start <= entry["date"] < stop]
        kept = [(row["text"], sorted({label for label in row["labels"] if seen[label] > 1})) for row in rows]
        found.append(Part(None, [known for _, known in kept if known], [text for text, known in kept if known]))
    return found


def delicious(folder: Path, parts: Sequence[str]) -> list[Part]:
    return [_xmc(folder / f"delicious/{part}.xmc.gz") for part in parts]


def _xmc(path: Path) -> Part:
    """Rows that have labels, scaled to unit length."""
    from scipy.sparse import csr_matrix
    from sklearn.preprocessing import normalize

    lines = lines_of(path)
    n_features = int(next(lines).split()[1])
    labels, starts, indices, values = [], [0], [], []
    for line in lines:
        row, *pairs = line.split(" ")
        if row:
            labels.append([int(label) for label in row.split(",")])
            for index, value in (pair.split(":") for pair in pairs if pair):
                indices.append(int(index))
                values.append(float(value))
            starts.append(len(indices))
    X = csr_matrix((values, indices, starts), shape=(len(labels), n_features), dtype=np.float32)
    return Part(normalize(X), labels)


def images(file: str) -> Reader:
    """Grey images between 0 and 1, and the number of the class."""

    def read(folder: Path, parts: Sequence[str]) -> list[Part]:
        with np.load(folder / file, allow_pickle=False) as arrays:  # read member by member
            return [
                Part(arrays[f"X_{part}"].astype(np.float32) / 255, [[int(y)] for y in arrays[f"y_{part}"]])
                for part in parts
            ]

    return read


def vectors(file: str) -> Reader:
    """Dense vectors as they are, and the number of the class."""

    def read(folder: Path, parts: Sequence[str]) -> list[Part]:
        with np.load(folder / file, allow_pickle=False) as arrays:
            return [Part(arrays[f"X_{part}"], [[int(y)] for y in arrays[f"y_{part}"]]) for part in parts]

    return read


def _ptb_contexts(folder: Path, parts: Sequence[str]) -> dict[str, tuple[list[list[str]], list[list[str]]]]:
    """The three words before each word that is a class, within a sentence, and the word."""
    sentences = {part: [line.split() for line in lines_of(folder / f"ptb/{part}.txt.gz")] for part in ("train", *parts)}
    seen = Counter(word for sentence in sentences["train"] for word in sentence)
    classes = {word for word, count in seen.items() if count >= 10 and word != "<unk>"}
    found = {}
    for part in parts:
        places = [(row, at) for row in sentences[part] for at in range(3, len(row)) if row[at] in classes]
        found[part] = [row[at - 3 : at] for row, at in places], [[row[at]] for row, at in places]
    return found


def ptb(folder: Path, names: Sequence[str]) -> list[Part]:
    """The next word from the GloVe vectors of the three before it; "train", "valid" or "test"."""
    glove = np.load(folder / "ptb/glove100.npz", allow_pickle=False)
    row_of = {str(word): i for i, word in enumerate(glove["words"])}
    vectors = np.vstack([glove["vectors"].astype(np.float32), np.zeros((1, 100), np.float32)])
    parts = []
    for contexts, labels in _ptb_contexts(folder, names).values():
        rows = np.array([[row_of.get(word, -1) for word in context] for context in contexts])
        parts.append(Part(vectors[rows].reshape(len(labels), -1), labels))
    return parts


def ptb_words(folder: Path, names: Sequence[str]) -> list[Part]:
    """The next word from the three before it as they are: a feature for each word in each of the three places."""
    from scipy.sparse import csr_matrix

    found = _ptb_contexts(folder, names)
    words = sorted({word for context in found["train"][0] for word in context})
    columns = {word: i for i, word in enumerate(words)}
    parts = []
    for contexts, labels in found.values():
        rows = [
            [columns[word] + place * len(words) for place, word in enumerate(row) if word in columns]
            for row in contexts
        ]
        indices = np.array([column for row in rows for column in row])
        shape = (len(rows), 3 * len(words))
        X = csr_matrix((np.ones(len(indices), np.float32), indices, starts_of(rows)), shape=shape)
        parts.append(Part(X, labels))
    return parts


# --- features fitted to the training rows --------------------------------------------------------------


def as_they_are(train: Part, test: Part) -> tuple[Part, Part]:
    return train, test


def tfidf(train: Part, test: Part) -> tuple[Part, Part]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectoriser = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
    X_train, X_test = vectoriser.fit_transform(train.texts), vectoriser.transform(test.texts)
    return Part(X_train, train.labels, train.texts), Part(X_test, test.labels, test.texts)


def centred(train: Part, test: Part) -> tuple[Part, Part]:
    mean = train.X.mean(axis=0)
    return Part(train.X - mean, train.labels), Part(test.X - mean, test.labels)
