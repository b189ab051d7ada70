"""How far the probabilities of a recall tree can be trusted, and what a temperature on its scores would do.

The plot is that of `benchmarks.reliability`. A temperature t divides the scores of the candidates: probabilities become
their powers 1 / t, made to sum to one again. The one that suits best, by the log loss of first answers, is looked for on half
of the test rows, and judged on the other half. It may as well be found while learning (`progressive_temperature`): from
answers that were given before their rows were learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.measure import Data
from benchmarks.recall.output import canvas, draw, keep, table
from benchmarks.recall.problem import Problem, recall_tree
from benchmarks.reliability import Answers, curve, expected_error
from benchmarks.suites import prepared
from treemax import OneVsAll

SUITES = ("glyphs1k", "glyphs5k")
PASSES = 3
TEMPERATURES = np.geomspace(0.25, 4.0, 65)
LEAST_PROBABILITY = 1e-4  # where a logarithm is taken: also of a label that is no candidate
ROWS_A_STEP, STEPS = 200, 20


def models() -> dict[str, Any]:
    return {
        "beam": recall_tree(passes=PASSES),
        "paper": recall_tree(passes=PASSES, algorithm="paper"),
        "OneVsAll": OneVsAll(passes=PASSES, n_jobs=1, verbose=0),
    }


class Candidates:
    """Probabilities of the candidates of some rows, and which of them is right."""

    def __init__(self, probabilities: np.ndarray, right: np.ndarray) -> None:
        self.probabilities = np.maximum(probabilities, 1e-30)
        self.right = right

    @classmethod
    def of(cls, model: Any, X: Any, y: np.ndarray) -> Candidates:
        k = model.describe().get("candidates", len(model.classes_))
        top = model.predict_topk(X, min(k, len(model.classes_)))
        return cls(
            np.where(top.scores > 0, top.scores, 0.0), np.asarray(top.labels == y[:, None], dtype=bool)
        )

    def at(self, temperature: float) -> Candidates:
        powers = self.probabilities ** (1.0 / temperature)
        return Candidates(powers / powers.sum(axis=1, keepdims=True), self.right)

    def rows(self, rows: slice) -> Candidates:
        return Candidates(self.probabilities[rows], self.right[rows])

    @property
    def log_loss(self) -> float:
        """The mean of minus the logarithm of the probability of the label."""
        given = np.where(self.right, self.probabilities, 0.0).sum(axis=1)
        return float(-np.log(np.maximum(given, LEAST_PROBABILITY)).mean())

    @property
    def error_of_first(self) -> float:
        """The expected calibration error of the first answers."""
        return expected_error(self.probabilities[:, 0], self.right[:, 0])

    @property
    def loss_of_first(self) -> float:
        """The log loss of the first answers, each right or wrong: where no candidate is right, it is wrong."""
        right = self.right[:, 0]
        given = np.where(right, self.probabilities[:, 0], 1.0 - self.probabilities[:, 0])
        return float(-np.log(np.maximum(given, LEAST_PROBABILITY)).mean())

    def best_temperature(self) -> float:
        losses = [self.at(temperature).loss_of_first for temperature in TEMPERATURES]
        return float(TEMPERATURES[int(np.argmin(losses))])


def progressive_temperature(problem: Problem, model: Any) -> float:
    """The temperature that suits answers to the last rows of one pass, each given before its row was learned."""
    n_last = min(ROWS_A_STEP * STEPS, len(problem.y) // 2)
    order = np.random.default_rng(0).permutation(len(problem.y))
    first, last = order[:-n_last], order[-n_last:]
    model.partial_fit(problem.X[first], problem.y[first])
    given, right = [], []
    for start in range(0, n_last, ROWS_A_STEP):
        rows = last[start : start + ROWS_A_STEP]
        answers = Candidates.of(model, problem.X[rows], problem.y[rows])
        given.append(answers.probabilities)
        right.append(answers.right)
        model.partial_fit(problem.X[rows], problem.y[rows])
    width = max(part.shape[1] for part in given)
    given, right = ([_wider(part, width) for part in parts] for parts in (given, right))
    return Candidates(np.concatenate(given), np.concatenate(right)).best_temperature()


def _wider(part: np.ndarray, width: int) -> np.ndarray:
    return np.pad(part, ((0, 0), (0, width - part.shape[1])))


def measure(problem: Problem, name: str, model: Any) -> dict[str, Any]:
    answers = Candidates.of(model, problem.X_test, problem.y_test)
    halves = [answers.rows(slice(start, None, 2)) for start in (0, 1)]
    best = halves[0].best_temperature()
    figures: dict[str, Any] = {
        "error %": 100 * float(1 - answers.right[:, 0].mean()),
        "mean probability": float(answers.probabilities[:, 0].mean()),
        "calibration error": answers.error_of_first,
        "log loss": answers.log_loss,
        "best temperature": best,
        "calibration error, best": halves[1].at(best).error_of_first,
    }
    if name != "OneVsAll":
        found = progressive_temperature(problem, recall_tree(algorithm=model.algorithm))
        figures["progressive temperature"] = found
        figures["calibration error, progressive"] = answers.at(found).error_of_first
    return figures


def page(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    columns = list(next(iter(found[next(iter(found))].values())))
    rows = []
    for suite, figures_of in found.items():
        for name, figures in figures_of.items():
            cells = [f"{figures[what]:.3f}" if what in figures else "" for what in columns]
            rows.append([suite, name, *cells])
    return table(["data", "model", *columns], rows)


def main(arguments: list[str]) -> None:
    suites = arguments or list(SUITES)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    figure, axes = canvas(2 * len(suites), 4.2 * 2 * len(suites), 4.4, sharex=True, sharey=True)
    for column, suite in enumerate(suites):
        problem, found[suite] = Problem.read(suite), {}
        lists = Data(prepared(suite)).label_lists("test")
        for name, model in models().items():
            model.fit(problem.X, problem.y)
            found[suite][name] = measure(problem, name, model)
            answers = Answers(model, problem.X_test, lists)
            for axis, kind in zip(axes[2 * column :], (answers.first, answers.all), strict=False):
                axis.plot(*curve(*kind), marker=".", label=name)
        for axis, title in zip(axes[2 * column :], ("first answers", "likely labels"), strict=False):
            axis.plot([0, 1], [0, 1], color="0.8", zorder=0)
            axis.set_title(f"{suite}: {title}", fontsize=10)
            axis.set_xlabel("probability")
    axes[0].set_ylabel("share that is right")
    axes[0].legend(frameon=False)
    keep("reliability", found)
    print(page(found))
    draw(figure, "reliability")
