"""Why a learned tree has no better P@1 than a random one on gcc: one thing changed at a time.

    python -m benchmarks.experiments.learned_gcc

Trained on the training rows of gcc without its validation rows, which are predicted; no test row is read. One thread, one seed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, keep, store
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared
from treemax import LearnedTree
from treemax.metrics import precision_at_k

OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one random label of a row in a step": {"labels": "one"},
    "assignment by all rows, not by the means of labels": {"statistics": "rows"},
    "depth of a complete tree": {"max_depth": 4},
    "twelve passes": {"passes": 12},
    "rows cut to their first label": {},
}
TREES = ("learned", "random")
MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"
SHOWS = (
    "P@1 (P@5) on validation rows, dimension 50, one training each. The default learned tree is 1.6 points below a random one. "
    "With the depth of a complete tree (4 in place of 6) it is 0.5 below; assignments by all rows, one label a step and twice the "
    "passes change less. With one label a row it is 0.6 above."
)


def lists(data: Data, part: str) -> list[list[int]]:
    ids, starts = data.labels(part)
    return [own.tolist() for own in np.split(ids, starts[1:-1])]


def main(arguments: list[str]) -> int:
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    data = Data(prepared("gcc", validation=True))
    X, X_held = features(data, "train"), features(data, "test")
    y, y_held = lists(data, "train"), lists(data, "test")
    found: dict[str, Any] = {}
    for name, options in OPTIONS.items():
        cut = name.startswith("rows cut")
        kept = [row for row, labels in enumerate(y) if labels]
        rows, targets = (X[kept], [y[row][0] for row in kept]) if cut else (X, y)
        wanted = [labels[:1] for labels in y_held] if cut else y_held
        for tree in TREES:
            if tree != "learned" and ("statistics" in options or "max_depth" in options):
                continue
            model, start = LearnedTree(tree=tree, dimension=50, verbose=0, **options), time.process_time()
            model.fit(rows, targets)
            top, labels = model.predict_topk(X_held, 5).labels, model.label_tree()
            found[f"{name}, {tree}"] = {
                "precisions": [float(precision_at_k(wanted, top, k)) for k in (1, 5)],
                "seconds": time.process_time() - start, "depth": labels.depth,
                "mean_depth": model.describe()["mean_depth"],
            }  # fmt: skip
            print(name, tree, found[f"{name}, {tree}"], flush=True)
    keep("learned-gcc", found)

    def cell(name: str) -> dict[str, float] | None:
        if name not in found:
            return None
        first, fifth = found[name]["precisions"]
        return {"value": round(first, 4), "beside": round(fifth, 4)}

    store(
        "learned-tree", "gcc-causes", title="Why the learned tree does not gain on gcc", shows=SHOWS, machine=MACHINE,
        columns=["setting", *({"name": tree, "decimals": 4} for tree in TREES)],
        rows=[[name, *(cell(f"{name}, {tree}") for tree in TREES)] for name in OPTIONS],
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
