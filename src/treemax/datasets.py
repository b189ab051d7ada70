"""Data sets included in the package."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

from treemax.formats import Examples, read_examples


class Split(NamedTuple):
    """Training and test examples."""

    train: Examples
    test: Examples


def load_wordnet() -> Split:
    """Load WordNet synsets (lemmas and gloss as text) labelled by their hypernym: 20,217 classes, long-tailed.

    >>> train, test = load_wordnet()
    >>> len(train), len(test), train.labels[0]
    (85873, 9541, ['noun:03825135:net'])
    """
    folder = files("treemax") / "data" / "wordnet"
    parts = []
    for name in ("train.txt.gz", "test.txt.gz"):
        with as_file(folder / name) as path:
            parts.append(read_examples(path, "fasttext"))
    return Split(*parts)
