"""Lemma and gloss of WordNet as the mean of its words' GloVe vectors -> its hypernym, classes with at least five rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from benchmarks.harness import suites
from benchmarks.harness.recipes import Part
from benchmarks.make_data.embeddings import classes_with, raw_texts, rows_of_classes
from benchmarks.make_data.splits import write_vectors

LEAST_ROWS = 5


def make(scratch: Path, folder: Path) -> None:
    train, test = raw_texts("wordnet")
    classes = set(classes_with(train, LEAST_ROWS))
    parts = {"train": rows_of_classes(train, classes), "test": rows_of_classes(test, classes)}
    with np.load(suites.data_folder() / "ptb/glove100.npz", allow_pickle=False) as glove:
        place = {str(word): i for i, word in enumerate(glove["words"])}
        vectors = glove["vectors"].astype(np.float32)
    X = {name: means(part, place, vectors) for name, part in parts.items()}
    write_vectors(X, {name: [label for label, *_ in part.labels] for name, part in parts.items()}, folder)


def means(part: Part, place: dict[str, int], vectors: np.ndarray) -> np.ndarray:
    """A row for each text; zeros where no word is known."""
    found = np.zeros((len(part.labels), vectors.shape[1]), np.float32)
    for row, text in enumerate(part.texts or []):
        known = [place[word] for word in re.findall(r"\w+", text.lower()) if word in place]
        if known:
            found[row] = vectors[known].mean(axis=0)
    return found
