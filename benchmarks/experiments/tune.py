"""`treemax tune` beside fastText's automatic search, with the same minutes and the same rows held out.

    python -m benchmarks.experiments.tune SUITE --minutes 10

Both see the same training rows, search by the same validation rows, which are cut from them, and are judged on the test
rows. fastText chooses the loss, too; `--losses` names losses to run in its place, each with the minutes of ours. What it
found is trained once more on all training rows, as ours is; that time is not counted. Needs the extra `tune`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import treemax
from benchmarks import FOLDER
from benchmarks.harness import accuracy, suites
from benchmarks.harness.drivers import fasttext
from benchmarks.harness.environments import python_of
from benchmarks.harness.measure import Data
from benchmarks.harness.output import RESULTS, keep, number, table
from benchmarks.harness.problem import features
from treemax.tuning.data import TuningData
from treemax.tuning.result import Record

SCRIPT = FOLDER / "harness" / "fasttext_autotune.py"
K = 5
Line = dict[str, Any]


class Task:
    """A suite: rows to learn from, and the judge of answers for the test rows."""

    def __init__(self, suite: str, limit: int | None) -> None:
        self.data = Data(suites.prepared(suite, limit))
        self.multi_label = self.data.multi_label
        self.y = self.data.label_lists("train") if self.multi_label else self.data.classes("train")
        self.X, self.X_test = (self._rows(part) for part in ("train", "test"))
        self._weights = accuracy.inverse_propensities(
            self.data.labels("train")[0], self.data.n_labels, self.data.n_rows("train")
        )

    def _rows(self, part: str) -> Any:
        return self.data.texts(part) if self.data.has_text else features(self.data, part)

    def figures(self, ranked: np.ndarray) -> Line:
        """How good ranked label ids are on the test rows."""
        dense = not (self.data.sparse or self.data.has_text)
        return accuracy.accuracies(ranked, *self.data.labels("test"), self._weights, self.multi_label, dense=dense)


def searched(task: Task, minutes: float, threads: int, metric: str | None, models: list[str] | None) -> list[Line]:
    """Ours: what the search gives, and the best of the defaults that it tried."""
    start = time.perf_counter()
    result = treemax.tune(task.X, task.y, minutes=minutes, metric=metric, models=models, n_jobs=threads)
    seconds = time.perf_counter() - start
    lines = [
        {**our_line(task, "treemax tune", result.model, seconds), "chosen": str(Record.from_line(result.best).setting)}
    ]
    defaults = [Record.from_line(line) for line in result.table]
    defaults = [record for record in defaults if record.setting.is_default and record.value is not None]
    best = max(defaults, key=lambda record: record.rank)
    start = time.perf_counter()
    model = best.setting.estimator(n_jobs=threads, verbose=0)
    if best.setting.text is not None:
        model = treemax.TextModel(best.setting.vectorizer(), model)
    model.fit(task.X, task.y)
    seconds = time.perf_counter() - start
    lines.append({**our_line(task, "best default", model, seconds), "chosen": str(best.setting)})
    lines[0]["table"] = result.table
    return lines


def our_line(task: Task, name: str, model: Any, seconds: float) -> Line:
    model.predict_topk(task.X_test[:1], K)
    start = time.perf_counter()
    ranked = model.predict_topk(task.X_test, K).labels
    micros = 1e6 * (time.perf_counter() - start) / len(ranked)
    ranked = np.array([[-1 if label is None else label for label in row] for row in ranked.tolist()])
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax")
        size = (Path(folder) / "model.treemax").stat().st_size / 1e6
    return {"system": name, **task.figures(ranked), "seconds": seconds, "mb": size, "us": micros}


def autotuned(task: Task, minutes: float, threads: int, loss: str, k: int) -> Line:
    """fastText: its search, then what it found trained on all training rows."""
    texts, labels = fasttext._texts(task.data, "train"), task.data.label_lists("train")
    held = set(TuningData(task.X, task.y, 0).held.tolist())
    with TemporaryDirectory() as folder:
        place = Path(folder)
        lines = [" ".join([*(f"{fasttext.PREFIX}{label}" for label in row), text]) for row, text in zip(labels, texts)]
        write(place / "all.txt", lines)
        write(place / "train.txt", (line for row, line in enumerate(lines) if row not in held))
        write(place / "valid.txt", (line for row, line in enumerate(lines) if row in held))
        write(place / "test.txt", fasttext._texts(task.data, "test"))
        common = {"thread": threads, **({} if loss == "auto" else {"loss": loss})}
        search = {
            "autotuneValidationFile": str(place / "valid.txt"), "autotuneDuration": round(60 * minutes),
            "autotunePredictions": k,
        }  # fmt: skip
        found = trained(place, "train.txt", {**common, **search})
        final = trained(place, "all.txt", {**common, **found["chosen"]})
    ranked = np.full((len(final["ranked"]), K), -1)
    for row, answer in enumerate(final["ranked"]):
        ranked[row, : len(answer)] = answer
    return {
        "system": "fastText autotune" + ("" if loss == "auto" else f", {loss}"),
        **task.figures(ranked),
        "seconds": found["seconds"],
        "mb": final["mb"],
        "us": final["us"],
        "chosen": " ".join(
            f"{name}={value if isinstance(value, str) else f'{value:.3g}'}" for name, value in found["chosen"].items()
        ),
    }


def write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def trained(folder: Path, train: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One training in a process of its own."""
    job = {"train": str(folder / train), "test": str(folder / "test.txt"), "settings": settings, "k": K}
    job |= {"model": str(folder / "model.bin"), "answer": str(folder / "answer.json")}
    (folder / "job.json").write_text(json.dumps(job))
    command = [str(python_of(fasttext.ENVIRONMENT)), str(SCRIPT), str(folder / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"fastText ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads((folder / "answer.json").read_text())


def markdown(lines: list[Line]) -> str:
    metrics = [name for name in lines[0] if "@" in name]
    show: dict[str, Callable[[float], str]] = {name: lambda value: f"{value:.4f}" for name in metrics}
    show |= {"seconds": number, "mb": number, "us": number}
    rows = []
    for line in lines:
        figures = [form(line[name]) if name in line else "" for name, form in show.items()]
        rows.append([line["system"], *figures, line["chosen"]])
    return table(["system", *metrics, "s", "MB", "us a row", "chosen"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.tune", description=__doc__.split("\n")[0])
    parser.add_argument("suite", choices=list(suites.SUITES))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--metric", help="of ours; P@1, or P@5 for several labels a row, by default")
    parser.add_argument("--models", help="of ours, with commas between them")
    parser.add_argument("--losses", default="auto", help="of fastText, with commas between them; none for no fastText")
    parser.add_argument("--limit", type=int, metavar="ROWS", help="a sample of so many rows")
    options = parser.parse_args()
    task = Task(options.suite, options.limit)
    models = options.models.split(",") if options.models else None
    lines = searched(task, options.minutes, options.threads, options.metric, models)
    if task.data.has_text or task.data.sparse:
        for loss in options.losses.split(",") if options.losses != "none" else []:
            try:
                lines.append(autotuned(task, options.minutes, options.threads, loss, K if task.multi_label else 1))
            except RuntimeError as error:  # it gives up when it has not trained once in its minutes
                name = "fastText autotune" + ("" if loss == "auto" else f", {loss}")
                lines.append({"system": name, "chosen": str(error).strip().splitlines()[-1]})
    name = f"tune-{options.suite}" + (f"-{options.limit}" if options.limit else "")
    keep(name, {"options": vars(options), "lines": lines})
    (RESULTS / f"{name}.md").write_text(markdown(lines) + "\n")
    print(markdown(lines))


if __name__ == "__main__":
    main()
