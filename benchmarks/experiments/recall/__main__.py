"""The experiments of the paper on recall trees, and what it leaves open, on our data. One thread.

    python -m benchmarks.experiments.recall ablation glyphs1k       candidates, path features, bound, router weights (4.4, 4.5)
    python -m benchmarks.experiments.recall stream ptb gcc          progressive loss, in order and permuted (4.3)
    python -m benchmarks.experiments.recall tokens                  bound and order on the Linux source (4.3, 4.5)
    python -m benchmarks.experiments.recall classes                 time a row against the number of classes, beside OneVsAll
    python -m benchmarks.experiments.recall trade-off glyphs1k      error against microseconds, beside Vowpal Wabbit (4.2)
    python -m benchmarks.experiments.recall figure4                 error beside OneVsAll and time, four data sets (Figure 4)
    python -m benchmarks.experiments.recall negatives               OneVsAll with a sample of the negative labels (4.2)
    python -m benchmarks.experiments.recall threads                 two threads beside two processes (footnote 2)
    python -m benchmarks.experiments.recall reliability             probabilities against frequencies
    python -m benchmarks.experiments.recall memory                  bytes of a model, beside OneVsAll

Tables are printed, figures are stored as JSON in `results`, plots go to `docs/images`. Further words: `ablation
SUITE SERIES...` takes only these series and draws nothing, `tokens ROWS` so many tokens,
`classes SIZE...` these numbers of classes, `trade-off
SUITE REPORT` takes the peers from an earlier report of the harness, `reliability SUITE...` and `memory SUITE...`
take these suites.
"""

from __future__ import annotations

import sys

from benchmarks.harness.output import help_if_asked, run_experiment

EXPERIMENTS = (
    "ablation",
    "stream",
    "tokens",
    "classes",
    "trade-off",
    "figure4",
    "negatives",
    "threads",
    "reliability",
    "memory",
)


def main(arguments: list[str]) -> int:
    return run_experiment("benchmarks.experiments.recall", EXPERIMENTS, __doc__, arguments)


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
