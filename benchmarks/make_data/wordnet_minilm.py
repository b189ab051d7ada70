"""Lemma and gloss of WordNet as an embedding -> its hypernym: 3,000 classes with at least five rows, drawn at random."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.make_data.embeddings import classes_with, minilm, raw_texts, rows_of_classes
from benchmarks.make_data.splits import write_vectors

LEAST_ROWS, CLASSES = 5, 3000


def make(scratch: Path, folder: Path) -> None:
    train, test = raw_texts("wordnet")
    classes = set(random.Random(0).sample(classes_with(train, LEAST_ROWS), CLASSES))
    parts = {"train": rows_of_classes(train, classes), "test": rows_of_classes(test, classes)}
    X = {name: minilm(part.texts or [], scratch) for name, part in parts.items()}
    write_vectors(X, {name: [label for label, *_ in part.labels] for name, part in parts.items()}, folder)
