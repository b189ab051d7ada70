"""A term of ICD-10-CM as an embedding -> its category; 30,000 training rows, drawn at random."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.suites import sample
from benchmarks.make_data.embeddings import classes_with, minilm, raw_texts, rows_of_classes
from benchmarks.make_data.splits import LEAST_ROWS, write_vectors

ROWS = 30_000


def make(scratch: Path, folder: Path) -> None:
    train, test = raw_texts("icd")
    train = sample(train, ROWS)
    classes = set(classes_with(train, LEAST_ROWS))
    parts = {"train": rows_of_classes(train, classes), "test": rows_of_classes(test, classes)}
    X = {name: minilm(part.texts or [], scratch) for name, part in parts.items()}
    write_vectors(X, {name: [label for label, *_ in part.labels] for name, part in parts.items()}, folder)
