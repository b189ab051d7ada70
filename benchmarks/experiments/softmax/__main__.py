"""The experiments of the paper on softmax trees on our data, and what it leaves open. One thread.

    python -m benchmarks.experiments.softmax answers [FOLDER]       the time of an answer, beside a full softmax's bare product
    python -m benchmarks.experiments.softmax double-sampling [SUITE...]   a baseline of table 2, beside a label tree
    python -m benchmarks.experiments.softmax missing [SUITE [ROWS]] three treatments of a class that the leaf lacks (table 1)
    python -m benchmarks.experiments.softmax shape [SUITE]          error and time by depth and classes of a leaf (figures 2 and 4)
    python -m benchmarks.experiments.softmax starts [SUITE]         error by where training begins (figure 3)
    python -m benchmarks.experiments.softmax steps [SUITE...]       few solver steps in early iterations, on validation rows
    python -m benchmarks.experiments.softmax text [SUITE [ROWS]]    softmax trees and their baselines on texts (table 2)
    python -m benchmarks.experiments.softmax training [SUITE]       training time, beside scikit-learn's solvers at the nodes
    python -m benchmarks.experiments.softmax training-times [SUITE]   training time of trees and baselines (tables 5 and 8)
    python -m benchmarks.experiments.softmax trade-off [SUITE]      error against microseconds, beside our other models

Tables are printed, what was found is stored as JSON in `results`, plots go to `docs/images`. With a FOLDER the models
of `answers` are kept there, and taken from there the next time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import sys

from benchmarks.harness.output import help_if_asked, run_experiment

EXPERIMENTS = (
    "answers",
    "double-sampling",
    "missing",
    "shape",
    "starts",
    "steps",
    "text",
    "trade-off",
    "training",
    "training-times",
)


def main(arguments: list[str]) -> int:
    return run_experiment("benchmarks.experiments.softmax", EXPERIMENTS, __doc__, arguments)


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
