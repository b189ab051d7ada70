"""`python -m benchmarks.experiments.sizes [SUITE ...]`: what the data of each suite is like, as a table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.harness import suites
from benchmarks.harness.output import help_if_asked, number, table
from benchmarks.harness.recipes import Part

COLUMNS = ("suite", "train / test rows", "labels", "labels a row", "rows a label", "words a row")


def sizes(train: Part, test: Part) -> list[str]:
    """The cells of a suite; for dense data, the number of features in place of words."""
    counts = Counter(label for row in train.labels for label in row)
    uses, n_rows = sum(counts.values()), len(train.labels)
    words = "" if train.X is None else f"{train.X.shape[1]:,} features"
    if train.texts is not None:
        words = number(sum(len(text.split()) for text in train.texts) / n_rows)
    rows = f"{n_rows:,} / {len(test.labels):,}"
    return [rows, f"{len(counts):,}", number(uses / n_rows), number(uses / len(counts)), words]


def lines(names: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        try:
            yield [name, *sizes(*suites.raw_parts(name, suites.SUITES[name], validation=False))]
        except suites.DataMissing as missing:
            print(f"benchmarks: {missing}", file=sys.stderr)


if __name__ == "__main__":
    help_if_asked(__doc__)
    print(table(COLUMNS, lines(sys.argv[1:] or list(suites.SUITES))))
