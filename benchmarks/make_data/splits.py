"""What all sets have in common: nine rows in ten to train on, labels of at least two of them, one file format."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.recipes import LABEL

TEST_SHARE = 0.1
LEAST_ROWS = 2

TextRow = tuple[Sequence[str], str]  # labels, text


def write_texts(rows: Iterable[TextRow], folder: Path) -> None:
    """Split the rows at random, always the same way, and write them in the format of fastText."""
    unique = sorted({(tuple(dict.fromkeys(map(one_word, labels))), plain(text)) for labels, text in rows})
    train, test = split(unique)
    kept = frequent(train)
    folder.mkdir(parents=True, exist_ok=True)
    for part, found in (("train", train), ("test", test)):
        with gzip.GzipFile(folder / f"{part}.txt.gz", "wb", mtime=0) as out:
            for labels, text in found:
                known = [f"{LABEL}{label}" for label in labels if label in kept]
                if known and text:
                    out.write(f"{' '.join(known)} {text}\n".encode())


def sampled(rows: Iterable[TextRow], most: int) -> list[TextRow]:
    """At most so many of the rows, drawn at random, always the same."""
    found = list(rows)
    return random.Random(0).sample(found, min(most, len(found)))


def split(rows: Sequence[TextRow]) -> tuple[list[TextRow], list[TextRow]]:
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    n_test = round(TEST_SHARE * len(shuffled))
    return shuffled[n_test:], shuffled[:n_test]


def frequent(train: Sequence[TextRow]) -> set[str]:
    seen = Counter(label for labels, _ in train for label in labels)
    return {label for label, count in seen.items() if count >= LEAST_ROWS}


def one_word(label: str) -> str:
    return "_".join(label.split())


def plain(text: str) -> str:
    """One line, and no word that looks like a label."""
    return " ".join(text.split()).replace(LABEL, "label")


def write_vectors(
    X: dict[str, np.ndarray], labels: dict[str, Sequence[str]], folder: Path, file: str = "vectors.npz"
) -> None:
    """Dense rows of "train" and "test" with the number of their class; test rows of other classes are left out."""
    classes = {label: i for i, label in enumerate(sorted(set(labels["train"])))}
    known = {part: [i for i, label in enumerate(found) if label in classes] for part, found in labels.items()}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / file,
        **{f"X_{part}": X[part][rows].astype(np.float32) for part, rows in known.items()},
        **{f"y_{part}": np.array([classes[labels[part][i]] for i in rows]) for part, rows in known.items()},
    )
