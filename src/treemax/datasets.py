"""The data that comes with the library."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

from treemax.formats import Examples, read_examples


class Split(NamedTuple):
    """Examples to train on and examples to test on."""

    train: Examples
    test: Examples


def load_wordnet() -> Split:
    """WordNet's synsets (lemmas and gloss, as text) with their hypernym as label: 20,217 classes, long tail.

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
