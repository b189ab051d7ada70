"""What a bound on the memory of online label trees costs: streams with a half, a quarter and an eighth of the memory.

    python -m benchmarks.experiments.online_memory [SUITE ...]

Training rows in their order, of which validation rows are held out. One thread.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.experiments.online import Suite, online, streamed
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.suites import prepared

SUITES = ("gcc", "kinc", "builddeps")
SHARES = (1, 2, 4, 8)
FIGURES = ("P@1", "P@3", "P@5")
COLUMNS = [
    {"name": "suite"},
    {"name": "bound"},
    {"name": "MB in memory", "decimals": 1},
    {"name": "weights dropped, millions", "decimals": 1},
    *({"name": name, "decimals": 4} for name in ("progressive P@1", *FIGURES)),
    {"name": "train s", "decimals": 1},
]


def measure(name: str) -> list[list[object]]:
    """A row of the table for each bound; the first stream has none."""
    suite = Suite.from_folder(name, prepared(name, validation=True))
    n_rows, rows, whole = len(suite.train.y), [], 0.0
    for share in SHARES:
        model = online(max_memory=whole / share / 1e9 if whole else None)
        found = streamed(suite, model, 0, None, n_rows)
        progressive = float(np.mean(found["hits"][n_rows // 10 :]))
        whole = whole or float(model.model_.nbytes)
        size, dropped = model.model_.nbytes / 1e6, model.describe()["dropped_weights"] / 1e6
        bound = f"1/{share}: {whole / share / 1e6:.0f} MB" if share > 1 else "none"
        figures = [size, dropped, progressive, *(found[figure] for figure in FIGURES), found["train s"]]
        rows.append([name, bound, *(round(figure, 4) for figure in figures)])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main(names: list[str]) -> None:
    store(
        "online-label-tree",
        "bound",
        title="A bound on memory",
        shows="`max_memory` as a share of what the tree takes without a bound. Every hundred rows are predicted before they are learned: progressive "
        "P@1 from the second tenth of the stream on; P@k on validation rows after it; seconds of the processor for learning, one thread. Weights may be dropped several times, "
        "since they start again when their features return.",
        columns=COLUMNS,
        rows=[row for name in names or SUITES for row in measure(name)],
        command="python -m benchmarks.experiments.online_memory",
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
