"""How fast the readers are, beside scikit-learn's: `python -m benchmarks.experiments.readers`.

Both read the same files, in turn, in one thread; each keeps its best time. The matrices must be equal, bit for
bit once scikit-learn's float64 is rounded to float32.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file

from benchmarks.harness.output import help_if_asked, rounded
from benchmarks.harness.suites import data_folder
from benchmarks.pages import publish
from treemax.formats import read_examples

REPEATS = 5
DELICIOUS = data_folder() / "delicious" / "train.xmc.gz"


def synthetic_lines(n_rows: int, n_features: int, n_labels: int, digits: str, seed: int = 0) -> list[str]:
    """Rows shaped like tf-idf vectors: a few dozen to a few hundred features, frequent ones more often."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n_rows):
        indices = np.unique((n_features * rng.random(rng.integers(20, 200)) ** 3).astype(np.int64))
        values = rng.random(len(indices)) / np.sqrt(len(indices))
        labels = np.unique((n_labels * rng.random(rng.integers(1, 8)) ** 2).astype(np.int64))
        pairs = (f"{index}:{digits % value}" for index, value in zip(indices, values))
        lines.append(f"{','.join(map(str, labels))} {' '.join(pairs)}\n")
    return lines


def make_files(folder: Path) -> list[tuple[str, Path]]:
    """The files to read: generated ones, and Delicious where it is at hand."""
    files = []
    for digits, pattern in ((6, "%.6f"), (17, "%.17g")):
        lines = synthetic_lines(8000, 100_000, 5000, pattern)
        header = f"{len(lines)} 100000 5000\n"
        for suffix, first in (("xmc", header), ("svm", "")):
            path = folder / f"tfidf-{digits}.{suffix}"
            path.write_text(first + "".join(lines))
            files.append((f".{suffix}, tf-idf of {digits} digits", path))
    if DELICIOUS.exists():
        path = folder / "delicious.xmc"
        path.write_bytes(gzip.decompress(DELICIOUS.read_bytes()))
        files.append((".xmc, Delicious (values all 1)", path))
    return files


def read_with_sklearn(path: Path) -> Any:
    """The matrix and the labels; it knows nothing of the header of an XMC file, which is taken off first."""
    with path.open("rb") as file:
        if path.suffix == ".xmc":
            file.readline()
        return load_svmlight_file(file, multilabel=True, zero_based=True)


def same(ours: Any, theirs: Any) -> bool:
    """Whether both have read the same matrix and labels."""
    matrix, labels = theirs
    rows = ours.rows
    return (
        np.array_equal(rows.indptr, matrix.indptr)
        and np.array_equal(rows.indices, matrix.indices)
        and np.array_equal(rows.values, matrix.data.astype(np.float32))
        and list(ours.labels) == [list(map(int, row)) for row in labels]
    )


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def compare(path: Path) -> tuple[float, float, bool]:
    """Seconds of ours, seconds of scikit-learn's, and whether they agree."""
    ours, theirs = float("inf"), float("inf")
    read_examples(path)  # compiles
    for _ in range(REPEATS):
        seconds, examples = timed(lambda: read_examples(path, zero_based=True))
        ours = min(ours, seconds)
        seconds, reference = timed(lambda: read_with_sklearn(path))
        theirs = min(theirs, seconds)
    return ours, theirs, same(examples, reference)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in make_files(Path(folder)):
            size = path.stat().st_size / 1e6
            ours, theirs, agree = compare(path)
            assert agree, f"{name}: the matrices differ"
            rows.append([name, *map(rounded, (size, size / ours, size / theirs)), rounded(theirs / ours, 2)])
    publish(
        "readers",
        "systems",
        "readers",
        title="Reading files",
        shows="Beside `sklearn.datasets.load_svmlight_file`, one thread; both give the same matrix.",
        columns=[{"name": name} for name in ("file", "MB", "treemax MB/s", "scikit-learn MB/s", "times as fast")],
        rows=rows,
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
