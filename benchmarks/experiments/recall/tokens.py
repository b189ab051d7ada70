"""The bound (4.5) and the order of the stream (4.3) on the next token of the Linux source, six tokens of context.

`python -m benchmarks.experiments.linux prepare` first. Labels are the most frequent kinds of tokens, as many as the
paper has words; all others are one label. Progressive loss is over the whole stream; test error is that of files
which are not in the stream, of the model at its end.

    python -m benchmarks.experiments.recall tokens 3000000     the first tokens
    python -m benchmarks.experiments.recall tokens all 0 1     all tokens, with these bounds only: without a bound it takes five times as long
"""

from __future__ import annotations

import sys
import time
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.experiments.linux import context, files_and_tokens, hashed_columns
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.experiments.recall.stream import ORDERS, chance
from benchmarks.harness.output import keep, store

CONTEXT = tuple((distance,) for distance in range(1, 7))
LABELS = 80_000
BOUNDS: tuple[int | None, ...] = (None, 0, 1)
ROWS_A_STEP = 20_000
TEST_ROWS = 100_000


def rows_of(tokens: np.ndarray, file_of: np.ndarray, rows: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """X and y: the six tokens before each, and the token."""
    X = hashed_columns(context(tokens, file_of, rows, len(CONTEXT)), CONTEXT)
    return X, np.minimum(tokens[rows], LABELS).astype(np.int64)


def run(n_rows: int | None, bounds: tuple[int | None, ...] = BOUNDS, threads: int = 1) -> dict[str, dict[str, Any]]:
    tokens, file_of, train, test = files_and_tokens(n_rows)
    test = test[:: max(1, len(test) // TEST_ROWS)]
    X_test, y_test = rows_of(tokens, file_of, test)
    orders = dict(zip(ORDERS, (train, np.random.default_rng(0).permutation(train)), strict=True))
    found: dict[str, dict[str, Any]] = {}
    for order, rows in orders.items():
        for bound in bounds:
            model = recall_tree(algorithm="paper", bound=bound, n_jobs=threads)
            seconds = 0.0
            for start in range(0, len(rows), ROWS_A_STEP):
                X, y = rows_of(tokens, file_of, rows[start : start + ROWS_A_STEP])
                began = time.process_time()
                model.partial_fit(X, y)
                seconds += time.process_time() - began
            error = float((model.predict(X_test) != y_test).mean())
            name = f"{order}, {bound}"
            found[name] = {
                "order": order, "bound": bound, "rows": len(rows), "test rows": len(y_test), "processor seconds": seconds,
                "loss": model.progressive_loss_, "test error": error, "recall": model.candidate_recall_,
                "labels": len(model.classes_),
            }  # fmt: skip
            print(name, found[name], file=sys.stderr, flush=True)
    return found


def differences(found: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """How likely each difference of two bounds or orders is by chance."""
    rows = []
    for (first, one), (second, other) in combinations(found.items(), 2):
        if one["order"] == other["order"] or one["bound"] == other["bound"]:
            cells: list[Any] = [first, second]
            for what, n in (("loss", one["rows"]), ("test error", one["test rows"])):
                likely = chance(one[what], other[what], n)
                cells += [100 * (one[what] - other[what]), "< .0001" if likely < 1e-4 else f"{likely:.2g}"]
            rows.append(cells)
    return rows


def store_tables(found: dict[str, dict[str, Any]], name: str, arguments: list[str]) -> None:
    n_rows = next(iter(found.values()))["rows"]
    command = " ".join(["python -m benchmarks.experiments.recall tokens", *arguments])
    title = "Bound and order on the Linux source" + (", all tokens" if name == "tokens-all" else "")
    store(
        "recall-tree", name,
        title=title,
        shows=f"Sections 4.3 and 4.5 of the paper: the next token from the six before it, {n_rows:,} tokens, `algorithm=\"paper\"`, one thread.",
        columns=["order", "bound", {"name": "progressive loss %", "decimals": 2}, {"name": "test error %", "decimals": 2},
                 {"name": "recall of the candidates %", "decimals": 1}, {"name": "processor s", "decimals": 0}],
        rows=[
            [run["order"], str(run["bound"]), 100 * run["loss"], 100 * run["test error"], 100 * run["recall"], run["processor seconds"]]
            for run in found.values()
        ],
        command=command,
    )  # fmt: skip
    store(
        "recall-tree", f"{name}-differences",
        title=f"{title}: differences",
        shows="Every pair of runs with the same order or the same bound, by the N - 1 chi-squared test.",
        columns=["first", "second", {"name": "loss, difference", "decimals": 2, "signed": True}, "by chance",
                 {"name": "test error, difference", "decimals": 2, "signed": True}, "by chance"],
        rows=differences(found),
        command=command,
    )  # fmt: skip


def main(arguments: list[str]) -> None:
    whole = arguments[:1] == ["all"]
    bounds = tuple(int(bound) for bound in arguments[1:]) or BOUNDS
    found = run(None if whole or not arguments else int(arguments[0]), bounds)
    name = "tokens-all" if whole else "tokens"
    keep(f"recall-{name}", found)
    store_tables(found, name, arguments)
