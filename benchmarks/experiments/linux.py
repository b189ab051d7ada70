"""The next token of the Linux source: `python -m benchmarks.experiments.linux prepare`, then `train MODEL` and `table`.

`prepare` downloads Debian's package linux-source-6.1 and reads kernel, mm, fs, net and include: identifiers and punctuation marks,
about 28 million, of 725,000 kinds. A row is a token, its features are the tokens before it in the file, each by its distance,
and pairs of them; one file in fifty is held out. Labels are all kinds of tokens that occur in the other files. `train` needs a
process for itself and reports accuracy, time, memory and size; `counts` is a table of what followed most often, for comparison.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

import treemax
from benchmarks import FOLDER
from benchmarks.harness.output import RESULTS, keep, number, table

CACHE = FOLDER / ".cache" / "linux-1"
PACKAGE = "linux-source-6.1"
FOLDERS = {"kernel", "mm", "fs", "net", "include"}
TOKEN = re.compile(rb"[A-Za-z_]\w*|[^\w\s]")
HELD_OUT = 50  # one file in so many
BITS = 22  # of the columns
DISTANCES = (1, 2, 3, 4)  # of the tokens that a row sees
PAIRS = ((1, 2), (1, 3))
START = 2**32 - 1  # what stands before a file
TEST_ROWS = 100_000
SETTINGS: dict[str, dict[str, Any]] = {"online-label-tree": {}, "learned-tree": {"passes": 3}, "label-tree": {}}


# --- the text ------------------------------------------------------------------------------------------


def prepare() -> None:
    """Tokens as numbers, the most frequent first, and where files begin."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not list(CACHE.glob("*.deb")):
        subprocess.run(["apt-get", "download", PACKAGE], cwd=CACHE, check=True)
    numbers: dict[bytes, int] = {}
    files = []
    for text in _sources(next(CACHE.glob("*.deb"))):
        tokens = TOKEN.findall(text)
        files.append(np.fromiter((numbers.setdefault(token, len(numbers)) for token in tokens), np.uint32, len(tokens)))
    tokens = np.concatenate(files)
    counts = np.bincount(tokens)
    rank = np.empty(len(counts), np.uint32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    starts = np.concatenate([[0], np.cumsum([len(file) for file in files])])
    np.savez(CACHE / "tokens.npz", tokens=rank[tokens], starts=starts)
    print(f"{len(files):,} files, {len(tokens):,} tokens of {len(counts):,} kinds")


def _sources(package: Path) -> Iterator[bytes]:
    """The files of the folders, out of an archive in an archive."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as outer,
    ):
        for member in outer:
            if not member.name.endswith(".tar.xz"):
                continue
            with tarfile.open(fileobj=outer.extractfile(member), mode="r|xz") as inner:
                for file in inner:
                    folder = file.name.partition("/")[2].partition("/")[0]
                    content = inner.extractfile(file) if file.isfile() and folder in FOLDERS else None
                    if content is not None:
                        yield content.read()


def files_and_tokens(n_rows: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, the file of each, and the places of the training (the first so many) and of the test tokens."""
    with np.load(CACHE / "tokens.npz") as arrays:
        tokens, starts = arrays["tokens"], arrays["starts"]
    held = np.random.default_rng(0).permutation(len(starts) - 1) % HELD_OUT == 0
    is_test = np.repeat(held, np.diff(starts))
    file_of = np.repeat(np.arange(len(starts) - 1, dtype=np.uint32), np.diff(starts))
    return tokens, file_of, np.flatnonzero(~is_test)[:n_rows], np.flatnonzero(is_test)


def problem(n_rows: int | None) -> tuple[Any, ...]:
    """X and y of training and test: the first so many rows of training, and test rows spread over the files held out."""
    tokens, file_of, train, test = files_and_tokens(n_rows)
    test = test[:: max(1, len(test) // TEST_ROWS)]
    before = [context(tokens, file_of, rows, max(DISTANCES)) for rows in (train, test)]
    groups = [(distance,) for distance in DISTANCES] + list(PAIRS)
    found = []
    for rows, tokens_before in zip((train, test), before, strict=True):
        found += [hashed_columns(tokens_before, groups), tokens[rows].astype(np.int64)]
    return (*found, *before)


def context(tokens: np.ndarray, file_of: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    """[row, distance - 1]: the n tokens before each, START before the file."""
    found = np.full((len(rows), n), START, np.uint32)
    for distance in range(1, n + 1):
        place = np.maximum(rows - distance, 0)
        inside = (rows >= distance) & (file_of[place] == file_of[rows])
        found[inside, distance - 1] = tokens[place[inside]]
    return found


def hashed_columns(before: np.ndarray, groups: Sequence[tuple[int, ...]]) -> csr_matrix:
    """One column for each group of distances with the tokens there, hashed."""
    width = len(groups)
    columns = np.empty((len(before), width), np.int32)
    for place, group in enumerate(groups):
        mixed = np.full(len(before), place + 1, np.uint64)
        for distance in group:
            mixed = (mixed ^ before[:, distance - 1].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        columns[:, place] = (mixed >> np.uint64(64 - BITS)).astype(np.int32)
    columns.sort(axis=1)
    values = np.full(columns.size, 1.0 / np.sqrt(width), np.float32)
    X = csr_matrix(
        (values, columns.ravel(), np.arange(len(before) + 1, dtype=np.int64) * width), shape=(len(before), 2**BITS)
    )
    X.has_sorted_indices = True
    return X


# --- models --------------------------------------------------------------------------------------------


def train(name: str, n_rows: int | None, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One model in this process; what it took, and how often it is right."""
    X, y, X_test, y_test, *_ = problem(n_rows)
    chosen = {**SETTINGS[name], **settings}
    model = treemax.MODELS[name](**chosen, n_jobs=threads, verbose=1)
    warm = type(model)(**{**model.get_params(deep=False), "verbose": 0})
    warm.fit(X[:2000], y[:2000]).predict_topk(X_test[:10], 5)
    before = _megabytes()
    start, cpu = time.perf_counter(), time.process_time()
    model.fit(X, y)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    start = time.perf_counter()
    best = model.predict_topk(X_test, 5).labels
    answered = time.perf_counter() - start
    path = CACHE / f"{name}.treemax"
    model.save(path)
    hits = best == y_test[:, None]
    identifiers = y_test >= 100  # punctuation and the most frequent words are easy
    return {
        "model": name, "settings": chosen, "rows": len(y), "labels": len(np.unique(y)), "threads": threads,
        "P@1": float(hits[:, 0].mean()), "in the best 5": float(hits.any(axis=1).mean()),
        "P@1 of rare": float(hits[identifiers, 0].mean()), "train s": seconds, "train processor s": cpu,
        "us a row": 1e6 * seconds / len(y), "answer us": 1e6 * answered / len(y_test), "peak MB": _megabytes(),
        "MB before": before, "model MB": path.stat().st_size / 1e6,
    }  # fmt: skip


def counted(n_rows: int | None) -> dict[str, Any]:
    """What most often followed the two tokens before, or the one, or anything."""
    _, y, _, y_test, before, before_test = problem(n_rows)
    start = time.perf_counter()
    answer = np.full(len(y_test), int(np.bincount(y).argmax()))
    for n in (1, 2):
        keys, keys_test = _keys(before[:, :n]), _keys(before_test[:, :n])
        order = np.lexsort((y, keys))
        key, label = keys[order], y[order]
        begins = np.flatnonzero(np.concatenate([[True], (np.diff(key) != 0) | (np.diff(label) != 0)]))
        count = np.diff(np.append(begins, len(key)))
        by_count = np.lexsort((-count, key[begins]))
        pair_keys, pair_labels = key[begins][by_count], label[begins][by_count]
        first = np.concatenate([[True], np.diff(pair_keys) != 0])
        pair_keys, pair_labels = pair_keys[first], pair_labels[first]
        place = np.minimum(np.searchsorted(pair_keys, keys_test), len(pair_keys) - 1)
        known = pair_keys[place] == keys_test
        answer[known] = pair_labels[place[known]]
    rare = y_test >= 100
    return {
        "model": "counts", "rows": len(y), "P@1": float((answer == y_test).mean()),
        "P@1 of rare": float((answer == y_test)[rare].mean()), "train s": time.perf_counter() - start,
    }  # fmt: skip


def _keys(before: np.ndarray) -> np.ndarray:
    keys = np.zeros(len(before), np.int64)
    for column in before.T:
        keys = keys * 2**20 + np.minimum(column, 2**20 - 1)
    return keys


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def tables() -> None:
    """All that was measured, as one table."""
    columns = [
        "model",
        "P@1",
        "in the best 5",
        "P@1 of rare",
        "train s",
        "us a row",
        "answer us",
        "peak MB",
        "model MB",
    ]
    rows = []
    for path in sorted(RESULTS.glob("linux-*.json")):
        found = json.loads(path.read_text())
        rows.append([found["model"], *(f"{found[c]:.4f}" if "P@" in c or "best" in c else number(found[c]) if c in found else "" for c in columns[1:])])  # fmt: skip
    print(table(columns, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prepare", "train", "table"])
    parser.add_argument("model", nargs="?", choices=["counts", *SETTINGS])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", type=json.loads, default={}, help="settings as JSON")
    arguments = parser.parse_args()
    if arguments.what == "prepare":
        prepare()
    elif arguments.what == "table":
        tables()
    else:
        name = arguments.model
        found = (
            counted(arguments.rows)
            if name == "counts"
            else train(name, arguments.rows, arguments.threads, arguments.set)
        )
        print(json.dumps(found, indent=1))
        if arguments.rows is None:
            keep(f"linux-{name}", found)


if __name__ == "__main__":
    main()
