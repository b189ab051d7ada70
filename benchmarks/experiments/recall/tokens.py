"""The bound (4.5) and the order of the stream (4.3) on the next token of the Linux source, six tokens of context.

`python -m benchmarks.experiments.linux prepare` first. Labels are the most frequent kinds of tokens, as many as the
paper has words; all others are one label. Progressive loss is over the whole stream; test error is that of files
which are not in the stream, of the model at its end.
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
from benchmarks.harness.output import keep, table

CONTEXT = tuple((distance,) for distance in range(1, 7))
LABELS = 80_000
BOUNDS = (None, 0, 1)
ROWS_A_STEP = 20_000
TEST_ROWS = 100_000


def rows_of(tokens: np.ndarray, file_of: np.ndarray, rows: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """X and y: the six tokens before each, and the token."""
    X = hashed_columns(context(tokens, file_of, rows, len(CONTEXT)), CONTEXT)
    return X, np.minimum(tokens[rows], LABELS).astype(np.int64)


def run(n_rows: int | None, threads: int = 1) -> dict[str, dict[str, Any]]:
    tokens, file_of, train, test = files_and_tokens(n_rows)
    test = test[:: max(1, len(test) // TEST_ROWS)]
    X_test, y_test = rows_of(tokens, file_of, test)
    orders = dict(zip(ORDERS, (train, np.random.default_rng(0).permutation(train)), strict=True))
    found: dict[str, dict[str, Any]] = {}
    for order, rows in orders.items():
        for bound in BOUNDS:
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


def pages(found: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The runs, and how likely each difference of two bounds or orders is by chance."""
    columns = ["order", "bound", "progressive loss %", "test error %", "recall of the candidates %", "processor s"]
    rows = [
        [run["order"], str(run["bound"]), f"{100 * run['loss']:.2f}", f"{100 * run['test error']:.2f}",
         f"{100 * run['recall']:.1f}", f"{run['processor seconds']:.0f}"]
        for run in found.values()
    ]  # fmt: skip
    differences = []
    for (first, one), (second, other) in combinations(found.items(), 2):
        if one["order"] == other["order"] or one["bound"] == other["bound"]:
            cells = [first, second]
            for what, n in (("loss", one["rows"]), ("test error", one["test rows"])):
                likely = chance(one[what], other[what], n)
                cells += [f"{100 * (one[what] - other[what]):+.2f}", "< .0001" if likely < 1e-4 else f"{likely:.2g}"]
            differences.append(cells)
    names = ["first", "second", "loss, difference", "by chance", "test error, difference", "by chance"]
    return table(columns, rows), table(names, differences)


def main(arguments: list[str]) -> None:
    found = run(int(arguments[0]) if arguments else None)
    keep("recall-tokens", found)
    print("\n\n".join(pages(found)))
