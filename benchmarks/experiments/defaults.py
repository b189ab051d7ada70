"""`python -m benchmarks.experiments.defaults SEARCH`: the search for defaults, on the validation parts of all suites at once.

A search trains a model with every setting of a grid on every suite. The table has, for each setting, its mean rank over
the suites and its worst loss against the best setting of a suite; then, suite by suite, what the other suites
would have chosen and what that costs there. Results are kept, so that a search goes on where it was stopped. Test rows
are never read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import FOLDER
from benchmarks.harness import suites
from benchmarks.harness.accuracy import correct
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.report import table
from benchmarks.harness.systems import DRIVERS

SPARSE = [
    "wordnet",
    "gcc",
    "delicious",
    "kinc",
    "builddeps",
    "debtags",
    "icd",
    "emoji",
    "icon-tags",
    "parameters",
    "manuals",
    "kconfig",
    "verses",
]
KEPT = FOLDER / "results" / "defaults"
Setting = dict[str, Any]
Figures = dict[str, dict[str, float]]  # suite -> setting, as text -> the mean of P@1, P@3 and P@5


class Search(NamedTuple):
    """A model of the library, and the settings to try."""

    model: str
    grid: dict[str, list[Any]]
    about: str

    def settings(self) -> Iterator[Setting]:
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values))


SEARCHES = {
    "cost": Search("label-tree", {"cost": ["auto", 0.25, 0.5, 1.0, 2.0, 4.0]}, "the cost of errors"),
    "leaf": Search("label-tree", {"max_leaf": [50, 100, 150, 200, 400]}, "labels under a last inner node"),
    "loss": Search("label-tree", {"loss": ["squared_hinge", "logistic"]}, "the loss, each with its own cost"),
    "temperature": Search("label-tree", {"temperature": [1.0, 1.25, 1.5, 2.0]}, "the temperature of the ranking"),
    "threshold": Search("label-tree", {"threshold": [0.02, 0.05, 0.1, 0.2]}, "weights that are dropped"),
    "rate": Search(
        "online-label-tree", {"learning_rate": ["auto", 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0]}, "the rate"
    ),
}  # fmt: skip


def measured(search: Search, suite: str, setting: Setting) -> float:
    """The mean of P@1, P@3 and P@5 on the validation rows of a suite."""
    driver = load_driver(DRIVERS / "treemax.py")
    data = Data(suites.prepared(suite, validation=True))
    settings = {"model": search.model, "threads": 1, "verbose": 0, **setting}
    model = driver.train(driver.load(data, settings), settings, None)
    answers = driver.labels(driver.predict_batch(model, driver.rows(model, data, settings), 5))
    ranked = np.array([row + [-1] * (5 - len(row)) for row in answers])
    hits = correct(ranked, *data.labels("test"), data.n_labels)
    return float(np.mean([hits[:, :k].sum() / (k * len(ranked)) for k in (1, 3, 5)]))


def figures_of(name: str, names: list[str]) -> Figures:
    """All figures of a search, those of earlier runs included."""
    path = KEPT / f"{name}.json"
    figures: Figures = json.loads(path.read_text()) if path.exists() else {}
    for suite, setting in itertools.product(names, SEARCHES[name].settings()):
        of_suite, key = figures.setdefault(suite, {}), written(setting)
        if key not in of_suite:
            of_suite[key] = measured(SEARCHES[name], suite, setting)
            print(f"{suite:12} {key:24} {of_suite[key]:.4f}", file=sys.stderr, flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(figures, indent=1))
    return {suite: figures[suite] for suite in names}


def written(setting: Setting) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def losses(figures: Figures) -> dict[str, dict[str, float]]:
    """Suite -> setting -> how far it is below the best setting there, as a share of that."""
    return {
        suite: {key: 1 - value / max(of_suite.values()) for key, value in of_suite.items()}
        for suite, of_suite in figures.items()
    }


def chosen(figures: Figures) -> str:
    """The setting that loses least on average over the suites."""
    lost = losses(figures)
    keys = next(iter(figures.values()))
    return min(keys, key=lambda key: float(np.mean([of_suite[key] for of_suite in lost.values()])))


def overview(figures: Figures) -> str:
    """Mean rank, mean loss and worst loss of every setting."""
    lost, rows = losses(figures), []
    for key in next(iter(figures.values())):
        ranks = [sorted(of_suite.values()).index(of_suite[key]) + 1 for of_suite in lost.values()]
        worst = max(lost, key=lambda suite: lost[suite][key])
        mean = np.mean([of_suite[key] for of_suite in lost.values()])
        rows.append([key, f"{np.mean(ranks):.1f}", f"{mean:.2%}", f"{lost[worst][key]:.2%} ({worst})"])
    return "\n".join(table(["setting", "mean rank", "mean loss", "worst loss"], rows))


def without_each(figures: Figures, choose: Callable[[Figures], str] = chosen) -> str:
    """What the other suites would have chosen for each suite, and what that loses there."""
    rows = []
    for suite in figures:
        key = choose({other: of_suite for other, of_suite in figures.items() if other != suite})
        best = max(figures[suite], key=figures[suite].__getitem__)
        rows.append([suite, best, key, f"{losses(figures)[suite][key]:.2%}"])
    return "\n".join(table(["suite", "best there", "chosen without it", "loss there"], rows))


# --- the rule for the rate of OnlineLabelTree --------------------------------------------------------------


class Rule(NamedTuple):
    """rate = factor * labels a row ** label_power * entries a row ** entry_power"""

    factor: float
    label_power: float
    entry_power: float


RULES = [
    Rule(*values)
    for values in itertools.product(
        np.round(np.geomspace(0.8, 6.4, 13), 2).tolist(),
        [0.0, -0.1, -0.15, -0.2, -0.25, -0.3, -0.4],
        [0.0, -0.1, -0.15, -0.2, -0.25, -0.3],
    )
]


def rule_losses(figures: Figures) -> dict[str, list[float]]:
    """What every rule loses on every suite, between the rates that were tried."""
    lost = {}
    for suite, of_suite in figures.items():
        rates = {float(key.split("=")[1]): value for key, value in of_suite.items() if "auto" not in key}
        data = Data(suites.prepared(suite, validation=True))
        n_rows, (_, _, starts) = data.n_rows("train"), data.csr("train")[0]
        labels, entries = len(data.labels("train")[0]) / n_rows, starts[-1] / n_rows
        rule = np.array([rule.factor * labels**rule.label_power * entries**rule.entry_power for rule in RULES])
        value = np.interp(np.log(rule), np.log(list(rates)), list(rates.values()))
        lost[suite] = (1 - value / max(rates.values())).tolist()
    return lost


def rules_without_each(figures: Figures) -> str:
    """The best rule, and what the rule of the other suites loses on each."""
    lost = rule_losses(figures)

    def best(names: list[str]) -> int:
        return int(np.mean([lost[name] for name in names], axis=0).argmin())

    whole = best(list(lost))
    rows = [["all", str(tuple(RULES[whole])), f"{np.mean([lost[name][whole] for name in lost]):.2%}"]]
    for suite in lost:
        number = best([other for other in lost if other != suite])
        rows.append([suite, str(tuple(RULES[number])), f"{lost[suite][number]:.2%}"])
    return "\n".join(table(["without", "factor, label power, entry power", "loss there"], rows))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.defaults", description=__doc__)
    listing = "; ".join(f"{name} ({search.model}: {search.about})" for name, search in SEARCHES.items())
    parser.add_argument("search", metavar="SEARCH", choices=[*SEARCHES], help=listing)
    parser.add_argument("--suites", default=",".join(SPARSE), help="default: all sparse suites")
    options = parser.parse_args()
    figures = figures_of(options.search, options.suites.split(","))
    page = f"{overview(figures)}\n\n{without_each(figures)}\n"
    if options.search == "rate":
        page += f"\n{rules_without_each(figures)}\n"
    print(page)
    Path(KEPT / f"{options.search}.md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
