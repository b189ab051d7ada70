"""New labels in a trained label tree: `python -m benchmarks.experiments.new_labels [SUITE...]`.

5 % of the labels with enough training rows are held out. A model trained without them gets them by `add_labels`, with
`SHOTS` rows each, beside one that is trained anew on the same rows. P@1 on validation rows whose labels were all known at
first, and on those with a new label. One thread; seconds are of the processor.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared
from treemax import LabelTree, OnlineLabelTree

SHARE, SHOTS = 0.05, 5
SUITES = ("wordnet", "builddeps", "icd")


class Split:
    """Training rows without the new labels, a few rows with them, and validation rows."""

    def __init__(self, suite: str, shots: int = SHOTS) -> None:
        data = Data(prepared(suite, validation=True))
        self.multi_label = data.multi_label
        lists = [list(labels) for labels in data.label_lists("train")]
        self.X, self.lists = features(data, "train"), lists
        counts = np.bincount([label for labels in lists for label in labels])
        enough = np.flatnonzero(counts >= shots)
        self.new = set(np.random.RandomState(0).choice(enough, int(SHARE * len(counts)), replace=False).tolist())
        rows_of: dict[int, list[int]] = {label: [] for label in self.new}
        for row in np.random.RandomState(1).permutation(len(lists)).tolist():
            for label in lists[row]:
                if label in self.new and len(rows_of[label]) < shots:
                    rows_of[label].append(row)
        self.few = np.unique([row for rows in rows_of.values() for row in rows])
        has_new = np.array([any(label in self.new for label in labels) for labels in lists])
        self.old = np.flatnonzero(~has_new & np.array([bool(labels) for labels in lists]))
        self.X_valid, self.valid = features(data, "test"), data.label_lists("test")

    def y(self, rows: Any) -> Any:
        own = [self.lists[row] for row in rows]
        return own if self.multi_label else [labels[0] for labels in own]

    def precision(self, model: Any) -> tuple[float, float]:
        """P@1 of rows with known labels only, and share of the rows with a new label where that is the first answer."""
        first = model.predict_topk(self.X_valid, 1).labels[:, 0]
        old, new = [], []
        for answer, labels in zip(first.tolist(), self.valid):
            own_new = [label for label in labels if label in self.new]
            if own_new:
                new.append(answer in (labels if self.multi_label else own_new))
            elif len(labels):
                old.append(answer in labels)
        return float(np.mean(old)), float(np.mean(new))


def timed(work: Any, X: Any, y: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = work(X, y)
    return result, time.process_time() - start


def compare(suite: str) -> list[list[Any]]:
    split, rows = Split(suite), []

    def note(name: str, model: Any, seconds: float) -> None:
        old, new = split.precision(model)
        rows.append([suite, name, round(100 * old, 2), round(100 * new, 2), round(seconds, 2)])
        print(*rows[-1], flush=True)

    for label, kind in (("LabelTree", LabelTree), ("OnlineLabelTree", OnlineLabelTree)):
        model, seconds = timed(kind(n_jobs=1, verbose=0).fit, split.X[split.old], split.y(split.old))
        note(f"{label}, without the new labels", model, seconds)
        _, seconds = timed(model.add_labels, split.X[split.few], split.y(split.few))
        note(f"{label}, add_labels", model, seconds)
        both = np.sort(np.concatenate([split.old, split.few]))
        model, seconds = timed(kind(n_jobs=1, verbose=0).fit, split.X[both], split.y(both))
        note(f"{label}, trained anew", model, seconds)
    return rows


def main() -> None:
    rows = [row for suite in sys.argv[1:] or SUITES for row in compare(suite)]
    store(
        "label-tree", "new-labels",
        title="New labels with a few rows each",
        shows="5 % of the labels with five rows or more are held out of training, then added with five rows each, beside training anew with "
        "these rows. P@1 on validation rows without and with a new label (with several labels a row, of any label), and seconds of the "
        "processor. One thread.",
        columns=["data", "model", "P@1, known labels", "P@1, new labels", {"name": "seconds", "decimals": 2}],
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
