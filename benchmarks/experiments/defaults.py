"""`python -m benchmarks.experiments.defaults SEARCH ...`: the search for defaults, on the validation parts of all suites at once.

A search trains a model with every setting of a grid on every suite. Its table has, for each setting, the mean rank over
the suites and the mean and the worst loss against the best setting of a suite. Another table has, for all searches and
suite by suite, what the other suites would have chosen and what that costs there. Results are kept in
`results/defaults`, so that a search goes on where it was stopped: remove them after a change to the library. Test rows are never read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import FOLDER
from benchmarks.harness import suites
from benchmarks.harness.accuracy import correct
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import store
from benchmarks.harness.systems import DRIVERS
from treemax.models.online_label_tree.training import (
    ENTRY_POWER,
    FEWEST_REPEATS,
    LABEL_POWER,
    MOST_REPEATS,
    POWER,
    RATE,
    STREAM_RATE,
)

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
NEW = ["java-types", "operations", "quotations", "kanji", "formulas", "places"]  # made after most defaults were chosen
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
    "cost": Search("label-tree", {"cost": ["auto", 0.25, 0.5, 1.0, 2.0, 4.0]}, "The cost of LabelTree"),
    "loss": Search("label-tree", {"loss": ["squared_hinge", "logistic"]}, "The loss of LabelTree, each with its own cost"),
    "leaf": Search("label-tree", {"max_leaf": [50, 100, 150, 200, 400]}, "The largest number of labels below a node of LabelTree"),
    "temperature": Search("label-tree", {"temperature": ["auto", 1.0, 1.32, 1.75, 2.3, 3.0]}, "The temperature of LabelTree"),
    "threshold": Search("label-tree", {"threshold": [0.02, 0.05, 0.1, 0.2]}, "The weights that LabelTree drops"),
    "rate": Search(
        "online-label-tree", {"learning_rate": ["auto", 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0]},
        "The learning rate of OnlineLabelTree",
    ),
}  # fmt: skip
SEEDS = {"label-tree": (0, 1), "online-label-tree": (0, 1, 2)}  # a tree varies by half a point with its seed


def measured(search: Search, suite: str, setting: Setting) -> float:
    """The mean of P@1, P@3 and P@5 on the validation rows of a suite, over the seeds."""
    driver, found = load_driver(DRIVERS / "treemax.py"), []
    data = Data(suites.prepared(suite, validation=True))
    for seed in SEEDS[search.model]:
        settings = {"model": search.model, "threads": 1, "verbose": 0, "random_state": seed, **setting}
        if search.model == "online-label-tree":  # the order of the suite, and others
            settings["shuffle"] = seed > 0
        model = driver.train(driver.load(data, settings), settings, None)
        answers = driver.labels(driver.predict_batch(model, driver.rows(model, data, settings), 5))
        ranked = np.array([row + [-1] * (5 - len(row)) for row in answers])
        hits = correct(ranked, *data.labels("test"), data.n_labels)
        found += [hits[:, :k].sum() / (k * len(ranked)) for k in (1, 3, 5)]
    return float(np.mean(found))


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
    return ", ".join(str(value) for value in setting.values())


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


def store_overview(name: str, figures: Figures) -> None:
    """Store the mean rank, mean loss and worst loss of every setting."""
    lost, rows = losses(figures), []
    for key in next(iter(figures.values())):
        ranks = [sorted(of_suite.values()).index(of_suite[key]) + 1 for of_suite in lost.values()]
        worst = max(lost, key=lambda suite: lost[suite][key])
        mean = np.mean([of_suite[key] for of_suite in lost.values()])
        rows.append([key, float(np.mean(ranks)), 100 * float(mean), 100 * lost[worst][key], worst])
    store(
        "defaults",
        name,
        title=SEARCHES[name].about,
        shows="Loss of the mean of P@1, P@3 and P@5 against the best setting of each suite; validation rows.",
        columns=["value", {"name": "mean rank", "decimals": 1}]
        + [{"name": f"{which} loss %", "decimals": 2} for which in ("mean", "worst")]
        + ["on"],
        rows=rows,
    )


def store_left_out(found: dict[str, Figures], names: Sequence[str]) -> None:
    """Store what the other suites would have chosen for each suite, and what that loses there, for all searches."""
    rows = []
    for suite in names:
        row: list[Any] = [suite]
        for figures in found.values():
            key = chosen({other: of_suite for other, of_suite in figures.items() if other != suite})
            row += [key, 100 * losses(figures)[suite][key]]
        rows.append(row)
    columns: list[Any] = ["suite"]
    for name in found:
        columns += [name, {"name": f"{name}: loss %", "decimals": 2}]
    store(
        "defaults",
        "left-out",
        title="What the other suites would have chosen for each suite",
        shows="For each suite, the value with the least mean loss on all others, and what it loses there against the best value of "
        "that suite. Much of it is noise: the best of several values is ahead of an equal one by chance.",
        columns=columns,
        rows=rows,
        command=f"python -m benchmarks.experiments.defaults {' '.join(found)}",
    )


# --- the rule for the rate of OnlineLabelTree --------------------------------------------------------------


class Rule(NamedTuple):
    """rate = factor * labels a row ** label_power * entries a row ** entry_power * rows a label ** repeat_power"""

    factor: float
    label_power: float
    entry_power: float
    repeat_power: float


RULES = [
    Rule(*values)
    for values in itertools.product(
        np.round(np.geomspace(0.8, 6.4, 13), 2).tolist(),
        [0.0, -0.1, -0.15, -0.2, -0.25, -0.3, -0.4],
        [0.0, -0.1, -0.15, -0.2, -0.25, -0.3],
        [0.0, -0.1, -0.15, -0.2, -0.25, -0.3],
    )
]
KINDS = {
    "": np.ones(len(RULES), dtype=bool),
    ", without rows a label": np.array([rule.repeat_power == 0 for rule in RULES]),
    ", without labels a row": np.array([rule.label_power == 0 for rule in RULES]),
}


def rule_losses(figures: Figures) -> dict[str, np.ndarray]:
    """What every rule loses on every suite, between the rates that were tried."""
    lost, (factor, *powers) = {}, np.array(RULES).T
    for suite, of_suite in figures.items():
        rates = {float(key): value for key, value in of_suite.items() if key != "auto"}
        data = Data(suites.prepared(suite, validation=True))
        n_rows, (_, _, starts), ids = data.n_rows("train"), data.csr("train")[0], data.labels("train")[0]
        repeats = np.clip(len(ids) / len(np.unique(ids)), FEWEST_REPEATS, MOST_REPEATS)
        facts = np.maximum([len(ids) / n_rows, starts[-1] / n_rows, repeats], 1.0)
        rule = factor * np.prod(facts[:, np.newaxis] ** powers, axis=0)
        value = np.interp(np.log(rule), np.log(list(rates)), list(rates.values()))
        lost[suite] = 1 - value / max(rates.values())
    return lost


def store_rules_without_each(figures: Figures, later: Figures) -> None:
    """Store the best rules, and what the rules of the other suites lose on each suite, and on later ones."""
    lost, lost_later = rule_losses(figures), rule_losses(later)

    def best(names: list[str], kind: str = "") -> int:
        return int(np.where(KINDS[kind], np.mean([lost[name] for name in names], axis=0), np.inf).argmin())

    def line(name: str, others: list[str], shown: dict[str, np.ndarray]) -> list[Any]:
        losses = [100 * float(np.mean([of_suite[best(others, kind)] for of_suite in shown.values()])) for kind in KINDS]
        return [name, *RULES[best(others)], *losses]

    rows = [line("none: their mean", list(lost), lost)]
    rows += [line(suite, [other for other in lost if other != suite], {suite: lost[suite]}) for suite in lost]
    rows += [line(suite, list(lost), {suite: lost_later[suite]}) for suite in later]
    rows += [line("the six before: their mean", list(lost), lost_later)]
    store(
        "defaults",
        "rate-rule",
        title="The constants of the learning rate, found without a suite",
        shows="The rule with the least mean loss on all suites but one, and what it loses there against the best rate, and the same for "
        f"rules with a power of zero. Rows a label are taken as at least {FEWEST_REPEATS:.0f} and at most {MOST_REPEATS:.0f}. The last "
        f"{len(later)} suites were never used to find a rule, but that the label power is zero was chosen with their losses in view. "
        f"`fit` has {RATE:.1f}, 0, {POWER} and {POWER}; a stream, which does not "
        f"know the rows of a label, has {STREAM_RATE:.1f}, {LABEL_POWER}, {ENTRY_POWER} and 0.",
        columns=["without", "factor", "label power", "entry power", "rows a label power"]
        + [{"name": f"loss there{kind} %", "decimals": 2} for kind in KINDS],
        rows=rows,
    )


def kept_figures(names: list[str]) -> dict[str, Figures]:
    """The figures of all searches that were run on all of these suites."""
    found = {}
    for name, search in SEARCHES.items():
        path = KEPT / f"{name}.json"
        figures: Figures = json.loads(path.read_text()) if path.exists() else {}
        if all(written(setting) in figures.get(suite, {}) for suite in names for setting in search.settings()):
            found[name] = {suite: figures[suite] for suite in names}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.defaults", description=__doc__)
    listing = "; ".join(f"{name} ({search.about})" for name, search in SEARCHES.items())
    parser.add_argument("searches", nargs="+", metavar="SEARCH", choices=[*SEARCHES], help=listing)
    parser.add_argument("--suites", default=",".join(SPARSE), help="default: all sparse suites")
    options = parser.parse_args()
    names = options.suites.split(",")
    for name in options.searches:
        figures = figures_of(name, names)
        store_overview(name, figures)
        if name == "rate":
            store_rules_without_each(figures, figures_of(name, [suite for suite in NEW if suite not in names]))
    store_left_out(kept_figures(names), names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
