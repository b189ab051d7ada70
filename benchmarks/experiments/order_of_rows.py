"""`python -m benchmarks.experiments.order_of_rows`: `OnlineLabelTree.fit` on rows in other orders, on validation rows.

The order of the data, which is that of time in gcc and random elsewhere, and sorted by the first label of a row; each as
it is, and shuffled by `fit`, which is the default.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

import treemax
from benchmarks.harness import suites
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, store

SUITES = ("wordnet", "icd", "debtags", "kinc", "gcc")
SEEDS = (0, 1, 2)


def part_of(data: Data, part: str) -> tuple[csr_matrix, list[list[int]]]:
    (values, indices, starts), shape = data.csr(part)
    return csr_matrix((values, indices, starts), shape=shape), data.label_lists(part)


def precision(data: Data, order: np.ndarray, shuffle: bool) -> float:
    """The precision at 1 in per cent, the mean over the seeds if rows are shuffled."""
    (X, labels), (rows, truth) = (part_of(data, part) for part in ("train", "test"))
    y = [labels[row] for row in order]
    found = []
    for seed in SEEDS if shuffle else SEEDS[:1]:
        model = treemax.OnlineLabelTree(shuffle=shuffle, random_state=seed, verbose=0).fit(X[order], y)
        first = model.predict_topk(rows, 1).labels[:, 0]
        found.append(np.mean([label in own for label, own in zip(first.tolist(), truth, strict=True)]))
    return 100 * float(np.mean(found))


def main() -> None:
    help_if_asked(__doc__)
    rows = []
    for suite in SUITES:
        data = Data(suites.prepared(suite, validation=True))
        given = np.arange(data.n_rows("train"))
        by_label = np.argsort([own[0] for own in data.label_lists("train")], kind="stable")
        rows.append(
            [suite, *(precision(data, order, shuffle) for order in (given, by_label) for shuffle in (False, True))]
        )
        print(rows[-1], flush=True)
    store(
        "defaults",
        "order-of-rows",
        title="OnlineLabelTree on rows that are sorted by label",
        shows="P@1 in per cent after one pass over the rows in the order of the data, and sorted by their first label, as they are and "
        "shuffled by `fit` (the default; mean of three seeds). Only gcc is in the order of time, and its validation rows come after "
        "the others. Labels are given as lists, also where rows have one. Validation rows.",
        columns=["suite"]
        + [
            {"name": f"{order}, {how}", "decimals": 2}
            for order in ("given", "by label")
            for how in ("as it is", "shuffled")
        ],
        rows=rows,
    )


if __name__ == "__main__":
    main()
