"""The data sets, each made into one neutral file by one recipe, so that every system sees the same input.

To add a suite, enter it in `SUITES`, with a reader and a function for its features of `recipes`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import FOLDER
from benchmarks.harness import paper_data, recipes
from benchmarks.harness.recipes import Part, Reader, starts_of

CACHE = FOLDER / ".cache"
RECIPES = 1  # counted up when a recipe changes: what older recipes left in the cache is then made anew
VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 5000  # of the training rows, and at most


class DataMissing(Exception):
    """The raw files of a suite are not on this machine."""


@dataclass(frozen=True)
class Suite:
    read: Reader
    features: Callable[[Part, Part], tuple[Part, Part]]  # fitted to the first part, made for both
    files: tuple[str, ...]  # what is read, below the data folder, with {part} for train, test or valid
    about: str
    peers: str  # compared with when the command line names none
    multi_label: bool = False
    ours: str = ""  # likewise; empty: every model of the library
    validation: str = "random"  # how that part is found: random rows, the last rows, or its own file
    made: bool = False  # by `python -m benchmarks.make_data`


def data_folder() -> Path:
    """Where the raw data lies: $TREEMAX_DATA, or shared/data beside the project."""
    given = os.environ.get("TREEMAX_DATA")
    return Path(given) if given else FOLDER.parents[1] / "shared" / "data"


def made_folder() -> Path:
    """Where `python -m benchmarks.make_data` leaves its sets."""
    return CACHE / "raw"


def find_files(name: str, suite: Suite, parts: Sequence[str] = ("train", "test")) -> Path:
    """The data folder, once every file of these parts was seen in it."""
    folder = made_folder() if suite.made else data_folder()
    files = dict.fromkeys(file.format(part=part) for file in suite.files for part in ("train", *parts))
    missing = [file for file in files if not (folder / file).exists()]
    if missing:
        remedy = (
            f"Make it with `python -m benchmarks.make_data {name}`."
            if suite.made
            else "Set TREEMAX_DATA to the folder that has it."
        )
        if name in paper_data.SOURCES:
            remedy = f"It is {paper_data.SOURCES[name]}. {remedy}"
        raise DataMissing(
            f"The suite {name} needs {', '.join(missing)} below {folder}, and that is not there. {remedy}"
        )
    return folder


def prepared(name: str, limit: int | None = None, validation: bool = False) -> Path:
    """The folder with the prepared data of a suite; made on first use.

    With `validation`, the rows to predict are cut from the training rows, and no test row is read.
    """
    suite = SUITES[name]
    kind = ("-validation" if validation else "") + (f"-{limit}-rows" if limit else "")
    folder = CACHE / f"{name}-{RECIPES}{kind}"
    if not (folder / "facts.json").exists():
        train, test = suite.features(*raw_parts(name, suite, validation))
        if limit:
            train, test = sample(train, limit), sample(test, limit)
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        write(train, test, suite.multi_label, unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    return folder


def raw_parts(name: str, suite: Suite, validation: bool) -> tuple[Part, Part]:
    """The rows to train on and the rows to predict, before features are fitted."""
    names: tuple[str, ...] = ("train", "test")
    if validation:
        names = ("train", "valid") if suite.validation == "file" else ("train",)
    parts = suite.read(find_files(name, suite, names), names)
    if len(parts) == 1:
        return split_validation(parts[0], last=suite.validation == "last")
    train, test = parts
    return train, test


def split_validation(train: Part, last: bool) -> tuple[Part, Part]:
    """The training rows without the validation part, and that part: random rows (always the same), or the last."""
    n_rows = len(train.labels)
    n_held_out = max(1, min(round(VALIDATION_SHARE * n_rows), VALIDATION_ROWS))
    order = np.arange(n_rows) if last else np.random.default_rng(0).permutation(n_rows)
    return train.take(np.sort(order[:-n_held_out])), train.take(np.sort(order[-n_held_out:]))


def sample(part: Part, limit: int) -> Part:
    """`limit` rows drawn at random (always the same), in their old order."""
    n_rows = len(part.labels)
    if limit >= n_rows:
        return part
    return part.take(np.sort(np.random.default_rng(0).choice(n_rows, limit, replace=False)))


def write(train: Part, test: Part, multi_label: bool, folder: Path) -> None:
    """Both parts as plain arrays in `data.npz`, with label ids in place of labels, and `facts.json` beside it."""
    index = {label: i for i, label in enumerate(sorted({label for row in train.labels for label in row}))}
    arrays: dict[str, np.ndarray] = {}
    sparse = hasattr(train.X, "indptr")
    for name, part in (("train", train), ("test", test)):
        ids = [sorted(index[label] for label in row if label in index) for row in part.labels]
        arrays[f"labels_{name}"] = np.array([i for row in ids for i in row], dtype=np.int64)
        arrays[f"label_starts_{name}"] = starts_of(ids)
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


LABEL_TREES = "omikuji,omikuji-1,pecos,napkinxc-plt,napkinxc-iplt,vw-plt,fasttext"
TEXT_PEERS = "omikuji,omikuji-1,pecos,napkinxc-plt,napkinxc-oplt,fasttext"
DENSE_PEERS = "sklearn-logistic,vw-recall-tree"
VECTOR_PEERS = (
    "sklearn-logistic,sklearn-logistic:C=100,vw-recall-tree"  # its default is far too cautious for unit vectors
)


def text_suite(name: str, about: str, peers: str = TEXT_PEERS, multi_label: bool = True, made: bool = False) -> Suite:
    """Text in the format of fastText, as tf-idf."""
    files = (f"{name}/{{part}}.txt.gz",)
    return Suite(recipes.texts(name), recipes.tfidf, files, about, peers, multi_label, made=made)


def vector_suite(name: str, about: str) -> Suite:
    """Dense vectors that `benchmarks.make_data` made."""
    file = f"{name}/vectors.npz"
    return Suite(recipes.vectors(file), recipes.as_they_are, (file,), about, VECTOR_PEERS, made=True)


def image_suite(file: str, about: str, peers: str) -> Suite:
    return Suite(recipes.images(file), recipes.centred, (file,), about, peers)


SUITES = {
    "wordnet": text_suite("wordnet", "text -> hypernym, one of 19,387 classes, tf-idf", LABEL_TREES, multi_label=False),
    "gcc": Suite(
        recipes.gcc,
        recipes.tfidf,
        ("gcc/stream.jsonl.gz",),
        "text of a change -> files touched, 44,408 labels, tf-idf, train before 2018",
        LABEL_TREES,
        multi_label=True,
        validation="last",
    ),
    "delicious": Suite(
        recipes.delicious,
        recipes.as_they_are,
        ("delicious/{part}.xmc.gz",),
        "bag of words -> tags, 983 labels, 19 a row",
        "omikuji,omikuji-1,pecos,napkinxc-plt,napkinxc-iplt,napkinxc-oplt,vw-plt:kary=2,fasttext:lr=0.1",
        multi_label=True,
    ),
    "kinc": text_suite("kinc", "C file -> headers it includes, 7,355 labels, 10 a row, tf-idf"),
    "builddeps": text_suite("builddeps", "source package -> what it needs to build, 15,863 labels, 8 a row, tf-idf"),
    "debtags": text_suite("debtags", "package description -> tags, 574 labels, 4 a row, tf-idf"),
    "icd": text_suite(
        "icd", "term of a disease -> its category, one of 1,776, 7 words a row, tf-idf", multi_label=False
    ),
    "glyphs1k": image_suite(
        "glyphs/glyphs1k.npz",
        "16x16 images -> one of 1,000 characters, dense",
        "vw-oaa,vw-recall-tree,vw-log-multi,sklearn-logistic",
    ),
    "glyphs5k": image_suite(
        "glyphs/glyphs5k.npz", "16x16 images -> one of 5,000 characters, dense", "vw-recall-tree,vw-log-multi"
    ),
    "icons": image_suite("icons/icons.npz", "24x24 drawings -> one of 1,490 names, dense, not linear", DENSE_PEERS),
    "ptb": Suite(
        recipes.ptb,
        recipes.as_they_are,
        ("ptb/{part}.txt.gz", "ptb/glove100.npz"),
        "three GloVe vectors -> the next word, one of 6,715, dense",
        "vw-recall-tree,vw-log-multi",
        validation="file",
    ),
    "ptb-words": Suite(
        recipes.ptb_words,
        recipes.as_they_are,
        ("ptb/{part}.txt.gz",),
        "three words -> the next word, one of 6,715, three features a row",
        "vw-recall-tree,vw-log-multi",
        validation="file",
    ),
    "emoji": text_suite(
        "emoji", "name of a character in 16 languages -> keywords, 19,084 labels, 4 a row, tf-idf", made=True
    ),
    "icon-tags": text_suite(
        "icon-tags", "name of an icon -> tags, 7,771 labels, 7 a row, 2 words a row, tf-idf", made=True
    ),
    "parameters": text_suite(
        "parameters", "what a Python function does -> names of its parameters, 8,233 labels, 5 a row, tf-idf", made=True
    ),
    "manuals": text_suite("manuals", "manual page -> pages it refers to, 700 words a row, tf-idf", made=True),
    "kconfig": text_suite("kconfig", "help of an option of Linux -> options it needs, tf-idf", made=True),
    "verses": text_suite(
        "verses",
        "verse of the Bible -> the verse in other translations, one of 14,306, 3 rows a class, tf-idf",
        multi_label=False,
        made=True,
    ),
    "kanji": text_suite("kanji", "meaning of a Japanese word -> Chinese characters in it, 2 a row, tf-idf", made=True),
    "operations": text_suite(
        "operations", "what a web service does -> fields of request and response, 17 labels a row, tf-idf", made=True
    ),
    "java-types": text_suite("java-types", "page on a class of Java -> types in its signatures, tf-idf", made=True),
    "quotations": text_suite(
        "quotations", "quotation in a dictionary -> writer or book, one class, tf-idf", multi_label=False, made=True
    ),
    "places": text_suite(
        "places", "name of a town -> region, one class, 1 or 2 words a row, tf-idf", multi_label=False, made=True
    ),
    "formulas": text_suite(
        "formulas", "names of a chemical compound -> formula, one class, tf-idf", multi_label=False, made=True
    ),
    "wordnet-glove": vector_suite(
        "wordnet-glove", "mean of word vectors -> hypernym, one of 4,335, dense, 100 numbers"
    ),
    "wordnet-minilm": vector_suite("wordnet-minilm", "embedded text -> hypernym, one of 3,000, dense, 384 numbers"),
    "icd-minilm": vector_suite("icd-minilm", "embedded term of a disease -> its category, dense, 384 numbers"),
}


def paper_suite(file: str, format: str, about: str, peers: str, multi_label: bool = False, **options: Any) -> Suite:
    """A data set of the papers, which does not come with the project."""
    read = paper_data.examples(file, format, **options)
    return Suite(read, recipes.as_they_are, (file,), about, peers, multi_label)


HASHED = {"format": "vw", "peers": "vw-recall-tree,vw-log-multi", "bits": paper_data.HASH_BITS}

SUITES |= {
    "aloi": Suite(
        paper_data.aloi,
        recipes.centred,
        ("aloi/aloi.scale.bz2",),
        "colour histogram -> one of 1,000 objects, dense, 128 numbers; papers on recall, softmax and online label trees",
        "vw-oaa,vw-recall-tree,vw-log-multi,sklearn-logistic",
    ),
    "odp": paper_suite(
        "odp/odp_{part}.vw.gz", about="web page -> one of 105,033 categories; recall and softmax trees", **HASHED
    ),
    "ltcb": paper_suite(
        "ltcb/enwik9.{part}.vw.gz", about="six words -> the next, one of 80,001; recall trees", **HASHED
    ),
    "ltcb-in-order": paper_suite(
        "ltcb/enwik9.inorder.{part}.vw.gz", about="the same, in the order of the text", **HASHED
    ),
    "wiki-small": paper_suite(
        "wiki-small/{part}.txt",
        "svmlight",
        "page -> one of 36,504 categories; softmax trees",
        "pecos,omikuji-1,vw-recall-tree",
    ),
    **{
        name: paper_suite(f"{name}/{{part}}.txt", "xmc", f"{about}; online label trees", LABEL_TREES, True)
        for name, about in {
            "eurlex": "law -> subjects, 3,993 labels",
            "wiki10": "page of Wikipedia -> tags, 30,938 labels",
            "amazoncat": "product -> categories, 13,330 labels",
        }.items()
    },
    "yfcc100m": text_suite("yfcc100m", "title and caption of a photo -> tags, 312,116 labels; learned trees"),
}
