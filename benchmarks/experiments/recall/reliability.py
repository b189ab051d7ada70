"""How far the probabilities of a recall tree can be trusted, and what a temperature on its scores would do.

For answers of a given probability, how often they are right, as in `benchmarks.experiments.reliability`. A temperature t divides the
scores of the candidates: probabilities become their powers 1 / t, made to sum to one again. It is found on rows that are
kept from learning, by the log loss of first answers, and judged on the test rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.experiments.reliability import EDGES, curve
from benchmarks.harness.accuracy import expected_error
from benchmarks.harness.output import canvas, draw, keep, store
from benchmarks.harness.problem import Problem
from treemax import OneVsAll

SUITES = ("glyphs1k", "glyphs5k", "wordnet")
PASSES = 3
HELD_OUT = 2000
TEMPERATURES = np.geomspace(0.25, 4.0, 65)
LEAST_PROBABILITY = 1e-4  # where a logarithm is taken
MOST_CANDIDATES = 200  # of a row, which leaves nothing out but for one-against-all


def models(dense: bool) -> dict[str, Any]:
    """One-against-all for comparison, where it is quick enough."""
    found: dict[str, Any] = {
        "beam": recall_tree(passes=PASSES),
        "beam, calibration=0": recall_tree(passes=PASSES, calibration=0.0),
        "paper": recall_tree(passes=PASSES, algorithm="paper"),
    }
    return {**found, "OneVsAll": OneVsAll(passes=PASSES, n_jobs=1, verbose=0)} if dense else found


class Candidates:
    """Probabilities of the candidates of some rows, the first answer first, and which of them is right."""

    def __init__(self, probabilities: np.ndarray, right: np.ndarray) -> None:
        self.probabilities = np.maximum(probabilities, 1e-30)
        self.right = right

    @classmethod
    def of(cls, model: Any, X: Any, y: np.ndarray) -> Candidates:
        k = model.describe().get("candidates", MOST_CANDIDATES)
        top = model.predict_topk(X, min(k, len(model.classes_)))
        return cls(top.scores, np.asarray(top.labels == y[:, None], dtype=bool))

    def at(self, temperature: float) -> Candidates:
        powers = self.probabilities ** (1.0 / temperature)
        return Candidates(powers / powers.sum(axis=1, keepdims=True), self.right)

    @property
    def first(self) -> tuple[np.ndarray, np.ndarray]:
        return self.probabilities[:, 0], self.right[:, 0]

    @property
    def likely(self) -> tuple[np.ndarray, np.ndarray]:
        """All candidates that are likely enough."""
        enough = self.probabilities >= EDGES[0]
        return self.probabilities[enough], self.right[enough]

    @property
    def loss_of_first(self) -> float:
        """The log loss of the first answers, each right or wrong: where no candidate is right, it is wrong."""
        probabilities, right = self.first
        given = np.where(right, probabilities, 1.0 - probabilities)
        return float(-np.log(np.maximum(given, LEAST_PROBABILITY)).mean())

    def best_temperature(self) -> float:
        losses = [self.at(temperature).loss_of_first for temperature in TEMPERATURES]
        return float(TEMPERATURES[int(np.argmin(losses))])


def answers_of(problem: Problem, model: Any) -> tuple[Candidates, float]:
    """Answers to the test rows of a model that did not see some training rows, and the temperature that suits those."""
    order = np.random.default_rng(0).permutation(len(problem.y))
    n_held_out = min(HELD_OUT, len(order) // 10)
    held_out, learned = order[:n_held_out], np.sort(order[n_held_out:])
    model.fit(problem.X[learned], problem.y[learned])
    temperature = Candidates.of(model, problem.X[held_out], problem.y[held_out]).best_temperature()
    return Candidates.of(model, problem.X_test, problem.y_test), temperature


def figures_of(answers: Candidates, temperature: float) -> dict[str, float]:
    tempered = answers.at(temperature)
    return {
        "error %": 100 * float(1 - answers.right[:, 0].mean()),
        "mean probability": float(answers.probabilities[:, 0].mean()),
        "calibration error, first answers": expected_error(*answers.first),
        "likely labels": expected_error(*answers.likely),
        "temperature": temperature,
        "then first answers": expected_error(*tempered.first),
        "then likely labels": expected_error(*tempered.likely),
    }


def result(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Columns and rows."""
    names = list(next(iter(found[next(iter(found))].values())))
    decimals = {name: 1 if "%" in name else 3 for name in names}
    columns = [
        *({"name": name} for name in ("data", "model")),
        *({"name": n, "decimals": d} for n, d in decimals.items()),
    ]
    rows = [
        [suite, model, *(round(figures[name], n) for name, n in decimals.items())]
        for suite, models_of in found.items()
        for model, figures in models_of.items()
    ]
    return {"columns": columns, "rows": rows}


def draw_curves(axis: Any, number: int, name: str, answers: Candidates, temperature: float) -> None:
    """As they are, and dashed with the temperature."""
    axis.plot(*curve(*answers.first), marker=".", color=f"C{number}", label=name)
    tempered = answers.at(temperature)
    axis.plot(*curve(*tempered.first), "--", marker=".", color=f"C{number}", label=f"{name}, temperature")


def main(arguments: list[str]) -> None:
    suites = arguments or list(SUITES)
    found: dict[str, dict[str, dict[str, float]]] = {}
    figure, axes = canvas(len(suites), 4.2 * len(suites), 4.6, sharex=True, sharey=True)
    for axis, suite in zip(axes, suites, strict=True):
        problem, found[suite] = Problem.read(suite), {}
        for number, (name, model) in enumerate(models(isinstance(problem.X, np.ndarray)).items()):
            answers, temperature = answers_of(problem, model)
            found[suite][name] = figures_of(answers, temperature)
            draw_curves(axis, number, name, answers, temperature)
        axis.plot([0, 1], [0, 1], color="0.8", zorder=0)
        axis.set_title(f"{suite}: first answers", fontsize=10)
        axis.set_xlabel("probability")
    axes[0].set_ylabel("share that is right")
    axes[0].legend(frameon=False, fontsize=8)
    keep("recall-reliability", found)
    print(pages.table(result(found)))
    draw(figure, "recall-tree-reliability")
    store(
        "recall-tree",
        "reliability",
        title="Probabilities",
        shows="Mean distance between probability and frequency over ten bins, of first answers and of all labels above 0.01; "
        "*temperature* is what would still improve it.",
        image={
            "file": "recall-tree-reliability.png",
            "text": "Probability of first answers and how often they are right",
        },
        **result(found),
    )
