"""The data sets, each made into one neutral file by one recipe, so that every system sees the same input.

A recipe reads the raw files of a data set and gives `(train, test)` as two `Part`s. To add a suite, write a
recipe and enter it in `SUITES`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
RECIPES = 1  # counted up when a recipe changes: what older recipes left in the cache is then made anew


class DataMissing(Exception):
    """The raw files of a suite are not on this machine."""


@dataclass(frozen=True)
class Part:
    """The training or the test rows: features (dense array or SciPy CSR), labels, and raw text if there is any."""

    X: Any
    labels: list[list[Any]]
    texts: list[str] | None = None


@dataclass(frozen=True)
class Suite:
    recipe: Callable[[Path], tuple[Part, Part]]
    files: tuple[str, ...]  # what the recipe reads, below the data folder
    about: str
    peers: str  # compared with when the command line names none
    multi_label: bool = False
    ours: str = ""  # likewise; empty: every model of the library


def data_folder() -> Path:
    """Where the raw data lies: $TREEMAX_DATA, or shared/data beside the project."""
    given = os.environ.get("TREEMAX_DATA")
    return Path(given) if given else HERE.parent.parent / "shared" / "data"


def find_files(name: str, suite: Suite) -> Path:
    """The data folder, once every file of the suite was seen in it."""
    folder = data_folder()
    missing = [file for file in suite.files if not (folder / file).exists()]
    if missing:
        raise DataMissing(
            f"The suite {name} needs {', '.join(missing)} below {folder}, and that is not there. "
            "Set TREEMAX_DATA to the folder that has it."
        )
    return folder


def prepared(name: str, limit: int | None = None) -> Path:
    """The folder with the prepared data of a suite; made on first use."""
    suite = SUITES[name]
    folder = CACHE / (f"{name}-{RECIPES}" + (f"-{limit}-rows" if limit else ""))
    if not (folder / "facts.json").exists():
        train, test = suite.recipe(find_files(name, suite))
        if limit:
            train, test = sample(train, limit), sample(test, limit)
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        write(train, test, suite.multi_label, unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    return folder


def sample(part: Part, limit: int) -> Part:
    """`limit` rows drawn at random (always the same), in their old order."""
    n_rows = len(part.labels)
    if limit >= n_rows:
        return part
    keep = np.sort(np.random.default_rng(0).choice(n_rows, limit, replace=False))
    texts = None if part.texts is None else [part.texts[i] for i in keep]
    return Part(part.X[keep], [part.labels[i] for i in keep], texts)


def write(train: Part, test: Part, multi_label: bool, folder: Path) -> None:
    """Both parts as plain arrays in `data.npz`, with label ids in place of labels, and `facts.json` beside it."""
    index = {label: i for i, label in enumerate(sorted({label for row in train.labels for label in row}))}
    arrays: dict[str, np.ndarray] = {}
    sparse = hasattr(train.X, "indptr")
    for name, part in (("train", train), ("test", test)):
        ids = [sorted(index[label] for label in row if label in index) for row in part.labels]
        arrays[f"labels_{name}"] = np.array([i for row in ids for i in row], dtype=np.int64)
        arrays[f"label_starts_{name}"] = _starts(ids)
        if sparse:
            csr = part.X.sorted_indices()
            arrays[f"values_{name}"] = csr.data.astype(np.float32)
            arrays[f"indices_{name}"] = csr.indices.astype(np.int32)
            arrays[f"starts_{name}"] = csr.indptr.astype(np.int64)
        else:
            arrays[f"X_{name}"] = np.ascontiguousarray(part.X, dtype=np.float32)
        if part.texts is not None:
            lines = "\n".join(" ".join(text.split()) for text in part.texts)
            arrays[f"text_{name}"] = np.frombuffer(lines.encode(), dtype=np.uint8)
    np.savez(folder / "data.npz", **arrays)
    facts = {
        "train_rows": len(train.labels),
        "test_rows": len(test.labels),
        "features": int(train.X.shape[1]),
        "labels": len(index),
        "multi_label": multi_label,
        "sparse": sparse,
        "text": train.texts is not None,
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=2))


def _starts(lists: list[list[int]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def _tfidf(train: list[str], test: list[str]) -> tuple[Any, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectoriser = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
    return vectoriser.fit_transform(train), vectoriser.transform(test)


def wordnet(folder: Path) -> tuple[Part, Part]:
    texts, labels = {}, {}
    for part in ("train", "test"):
        rows = [line.split(" ", 1) for line in _lines(folder / f"wordnet/{part}.txt.gz")]
        labels[part] = [[label] for label, _ in rows]
        texts[part] = [text for _, text in rows]
    X_train, X_test = _tfidf(texts["train"], texts["test"])
    return Part(X_train, labels["train"], texts["train"]), Part(X_test, labels["test"], texts["test"])


def gcc(folder: Path) -> tuple[Part, Part]:
    """The offline split: entries before 2018 against 2018 and 2019, labels seen at least twice in train."""
    entries = [json.loads(line) for line in _lines(folder / "gcc/stream.jsonl.gz")]
    parts = {
        "train": [entry for entry in entries if entry["date"] < "2018"],
        "test": [entry for entry in entries if "2018" <= entry["date"] < "2020"],
    }
    seen = Counter(label for entry in parts["train"] for label in set(entry["labels"]))
    texts, labels = {}, {}
    for part, rows in parts.items():
        kept = [(row["text"], sorted({label for label in row["labels"] if seen[label] > 1})) for row in rows]
        texts[part] = [text for text, known in kept if known]
        labels[part] = [known for _, known in kept if known]
    X_train, X_test = _tfidf(texts["train"], texts["test"])
    return Part(X_train, labels["train"], texts["train"]), Part(X_test, labels["test"], texts["test"])


def delicious(folder: Path) -> tuple[Part, Part]:
    return _xmc(folder / "delicious/train.xmc.gz"), _xmc(folder / "delicious/test.xmc.gz")


def _xmc(path: Path) -> Part:
    """Rows that have labels, scaled to unit length."""
    from scipy.sparse import csr_matrix
    from sklearn.preprocessing import normalize

    lines = _lines(path)
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


def glyphs(classes: str) -> Callable[[Path], tuple[Part, Part]]:
    def recipe(folder: Path) -> tuple[Part, Part]:
        arrays = np.load(folder / f"glyphs/glyphs{classes}.npz", allow_pickle=False)
        X_train = arrays["X_train"].astype(np.float32) / 255
        X_test = arrays["X_test"].astype(np.float32) / 255
        mean = X_train.mean(axis=0)
        labels_train, labels_test = ([[int(y)] for y in arrays[f"y_{part}"]] for part in ("train", "test"))
        return Part(X_train - mean, labels_train), Part(X_test - mean, labels_test)

    return recipe


PTB_PARTS = ("train", "test")


def _ptb_contexts(
    folder: Path, parts: Sequence[str] = PTB_PARTS
) -> dict[str, tuple[list[list[str]], list[list[str]]]]:
    """The three words before each word that is a class, within a sentence, and the word."""
    sentences = {
        part: [line.split() for line in _lines(folder / f"ptb/{part}.txt.gz")] for part in ("train", *parts)
    }
    seen = Counter(word for sentence in sentences["train"] for word in sentence)
    classes = {word for word, count in seen.items() if count >= 10 and word != "<unk>"}
    found = {}
    for part in parts:
        places = [(row, at) for row in sentences[part] for at in range(3, len(row)) if row[at] in classes]
        found[part] = [row[at - 3 : at] for row, at in places], [[row[at]] for row, at in places]
    return found


def ptb(folder: Path) -> tuple[Part, Part]:
    """The next word from the GloVe vectors of the three before it."""
    train, test = ptb_parts(folder, PTB_PARTS)
    return train, test


def ptb_parts(folder: Path, names: Sequence[str]) -> list[Part]:
    """The parts of that problem, by name: "train", "valid" or "test"."""
    glove = np.load(folder / "ptb/glove100.npz", allow_pickle=False)
    row_of = {str(word): i for i, word in enumerate(glove["words"])}
    vectors = np.vstack([glove["vectors"].astype(np.float32), np.zeros((1, 100), np.float32)])
    parts = []
    for contexts, labels in _ptb_contexts(folder, names).values():
        rows = np.array([[row_of.get(word, -1) for word in context] for context in contexts])
        parts.append(Part(vectors[rows].reshape(len(labels), -1), labels))
    return parts


def ptb_words(folder: Path) -> tuple[Part, Part]:
    """The next word from the three before it as they are: a feature for each word in each of the three places."""
    from scipy.sparse import csr_matrix

    found = _ptb_contexts(folder)
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
        X = csr_matrix((np.ones(len(indices), np.float32), indices, _starts(rows)), shape=shape)
        parts.append(Part(X, labels))
    return parts[0], parts[1]


LABEL_TREES = "omikuji,omikuji-1,pecos,napkinxc-plt,napkinxc-iplt,vw-plt,fasttext"

SUITES = {
    "wordnet": Suite(
        wordnet,
        ("wordnet/train.txt.gz", "wordnet/test.txt.gz"),
        "text -> hypernym, one of 19,387 classes, tf-idf",
        LABEL_TREES,
    ),
    "gcc": Suite(
        gcc,
        ("gcc/stream.jsonl.gz",),
        "text of a change -> files touched, 44,408 labels, tf-idf, train before 2018",
        LABEL_TREES,
        multi_label=True,
    ),
    "delicious": Suite(
        delicious,
        ("delicious/train.xmc.gz", "delicious/test.xmc.gz"),
        "bag of words -> tags, 983 labels, 19 a row",
        "omikuji,omikuji-1,pecos,napkinxc-plt,napkinxc-iplt,napkinxc-oplt,vw-plt:kary=2,fasttext:lr=0.1",
        multi_label=True,
    ),
    "glyphs1k": Suite(
        glyphs("1k"),
        ("glyphs/glyphs1k.npz",),
        "16x16 images -> one of 1,000 characters, dense",
        "vw-oaa,vw-recall-tree,vw-log-multi,sklearn-logistic",
    ),
    "glyphs5k": Suite(
        glyphs("5k"),
        ("glyphs/glyphs5k.npz",),
        "16x16 images -> one of 5,000 characters, dense",
        "vw-recall-tree,vw-log-multi",
    ),
    "ptb": Suite(
        ptb,
        ("ptb/train.txt.gz", "ptb/test.txt.gz", "ptb/glove100.npz"),
        "three GloVe vectors -> the next word, one of 6,718, dense",
        "vw-recall-tree,vw-log-multi",
    ),
    "ptb-words": Suite(
        ptb_words,
        ("ptb/train.txt.gz", "ptb/test.txt.gz"),
        "three words -> the next word, one of 6,718, three features a row",
        "vw-recall-tree,vw-log-multi",
    ),
}
