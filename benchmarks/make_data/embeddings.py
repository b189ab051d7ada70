"""Sets of texts that are there already, as dense vectors, with the split they have."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import environments, recipes, suites
from benchmarks.harness.recipes import Part

HERE = Path(__file__).parent


def raw_texts(name: str) -> tuple[Part, Part]:
    """The training and the test rows of a suite of texts with one label a row."""
    train, test = recipes.texts(name)(suites.find_files(name, suites.SUITES[name]), ("train", "test"))
    return train, test


def rows_of_classes(part: Part, classes: set[str]) -> Part:
    return part.take(np.array([i for i, (label, *_) in enumerate(part.labels) if label in classes]))


def classes_with(part: Part, least_rows: int) -> list[str]:
    """The classes that have so many rows, in their own order."""
    counts = Counter(label for label, *_ in part.labels)
    return sorted(label for label, count in counts.items() if count >= least_rows)


def minilm(texts: Sequence[str], scratch: Path) -> np.ndarray:
    """384 numbers a text. It takes minutes: about a hundred texts a second on one core."""
    lines, out = scratch / "texts.txt", scratch / "vectors.npy"
    lines.write_text("\n".join(texts))
    python = environments.python_of("minilm")
    subprocess.run([str(python), "-I", str(HERE / "embed_texts.py"), str(lines), str(out)], check=True)
    return np.load(out)
