"""The command stream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from treemax.cli.interruption import interruption
from treemax.cli.options import (
    Reading,
    check_output,
    choose_model,
    data_options,
    make_model,
    make_vectorizer,
    model_options,
    read_time,
)
from treemax.cli.reporting import Predictions, metric_options, print_metrics
from treemax.cli.saving import finish, save_model

KEPT_EXAMPLES = 10_000  # examples kept of a stream that began with one label per row, to restart as multi-label

if TYPE_CHECKING:
    from treemax.cli.checkpoint import StreamCheckpoint


@click.command(short_help="Predict each example, then learn it: progressive validation.")
@click.argument("data", is_eager=True)  # known when MODEL is checked
@model_options
@click.option(
    "-o",
    "--output",
    metavar="MODEL",
    callback=check_output,
    help="Write the model here at the end, with its learning state.",
)
@click.option("--start", metavar="MODEL", help="Continue with this model instead of a new one.")
@click.option("--text", type=click.Choice(["hashing"]), default="hashing", hidden=True)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Write checkpoints to FOLDER; after a crash the same command resumes from them.",
)
@click.option(
    "--every",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=read_time,
    help="The time between two checkpoints: 30s, 5m, 1h.",
)
@click.option(
    "--chunk", default=1, show_default=True, type=click.IntRange(min=1), help="Rows to predict, then learn, at a time."
)
@click.option(
    "--multi-label",
    is_flag=True,
    help="Rows may have several labels, although the first 10,000 rows of a pipe have one; else this is found out.",
)
@metric_options
@data_options
def stream(
    data: str, model_name: str, as_published: bool, settings: tuple[str, ...],
    text_settings: tuple[str, ...], jobs: int, output: str | None, start: str | None, text: str, checkpoint: str | None, every: float, chunk: int,
    multi_label: bool, k: int, per_label: bool, predictions: str | None, as_json: bool, reading: Reading,
) -> None:  # fmt: skip
    """Progressive validation on DATA: predict each example, then learn it, in order.

    Reports at 1, 2, 4, 8, ... examples: progressive P@1, P@1 since the last report, labels known and microseconds
    per example. Every example is a test example once, so no held-out data is needed.
    """
    from treemax.cli.checkpoint import OtherData, StreamCheckpoint
    from treemax.cli.data import chunks, has_several_labels, load_model, open_data, report_dropped
    from treemax.formats.training_rows import TrainingRows

    if start is not None and (_given("model_name") or settings or text_settings or as_published):
        raise click.UsageError("--model, --set, --text-set and --as-published are for a new model, not for --start.")
    if predictions is not None and checkpoint is not None:
        raise click.UsageError("--predictions cannot be combined with --checkpoint.")
    kept = None
    if checkpoint is not None:
        options = {
            "--model": model_name, "--as-published": as_published, "--set": list(settings), "--text-set": list(text_settings), "--start": start,
            "--chunk": chunk, "--k": k, "--multi-label": multi_label, **{f"--{name.replace('_', '-')}": value for name, value in asdict(reading).items()},
        }  # fmt: skip
        kept = StreamCheckpoint(checkpoint, every, options)
    if start is None:
        model = make_model(model_name, settings, jobs, as_published)
        if model is not None:
            _check_online(model)
        multi_label = multi_label or has_several_labels(data, reading, progress=not as_json)
        advice = "pass --multi-label if rows may have several."
    else:
        model = load_model(start, jobs if _given("jobs") else None)
        multi_label = multi_label or getattr(model, "multi_label_", False)
        advice = f"{start} was started so. Start a new model, without --start."
    with open_data(data, reading, chunk, None if start is None else model) as reader:
        rows = TrainingRows(reader.name, multi_label, advice)
        progress = {
            "k": k,
            "report": _json_line if as_json else _Table().line,
            "on_predictions": None if predictions is None else Predictions(predictions).add,
        }
        learner = _Learner(model, jobs, make_vectorizer(text, text_settings), rows, kept, progress)
        try:
            learner.process_all(chunks(reader, "stream", progress=not as_json))
        except OtherData:
            learner.run = None  # write nothing
            raise
        finally:  # after Ctrl-C or a malformed line too: save what was learned
            interruption.hold()
            if learner.run is not None:
                place = _save(learner, output, reading if start is None else None)
                _print_result(learner.run, k, as_json, per_label)
                if output is not None and place is not None:
                    finish(output, place)
    report_dropped(rows)


def _save(learner: _Learner, output: str | None, reading: Reading | None) -> str | None:
    """Write the model, with the reading options of a new one, and the checkpoint; return the path of the model."""
    from treemax.cli.data import store_reading_options

    if reading is not None:
        store_reading_options(learner.model, reading)
    place = None if output is None else save_model(learner.model, output, resume=True)
    learner.write_checkpoint(ended=learner.ended and place == output)
    return place


class _Learner:
    """Prediction and learning of chunks, from the beginning or from a checkpoint."""

    def __init__(
        self, model: Any, jobs: int, vectorizer: Any, rows: Any, kept: StreamCheckpoint | None, options: dict[str, Any]
    ) -> None:
        self.model = model  # chosen by the first chunk if it is None
        self.run: Any = None
        self.ended = False  # all of DATA was learned
        self._is_chosen, self._jobs = model is None, jobs
        self._earlier: list[Any] | None = None if hasattr(model, "model_") else []  # chunks, to start again
        self._vectorizer, self._rows, self._kept, self._options = vectorizer, rows, kept, options
        self._between_chunks = True  # no chunk is half learned
        if kept is not None and kept.found is not None:
            self.model, *parts = kept.restored()
            self._resume(*parts)
            rows.multi_label = self.model.multi_label_  # although DATA may have grown

    def process_all(self, chunks: Iterable[Any]) -> None:
        """Predict and learn all chunks of DATA."""
        from treemax.parallel.threads import delayed_interrupt

        for chunk in chunks:
            with delayed_interrupt():  # the model is never saved in the middle of a chunk
                self.process(chunk)
        if self._kept is not None:
            self._kept.check_end(self._rows.name)
        self.ended = True

    def process(self, chunk: Any) -> None:
        """Predict and learn the examples of a chunk, unless they were learned before the checkpoint."""
        self._between_chunks = False
        learned = self._kept is not None and self._kept.learned_before(chunk, self._rows.name)
        several = chunk.labels.counts > 1
        if several.any() and self.run is not None and self._earlier is not None and not self._rows.multi_label:
            self._start_again(several)
        examples = self._rows.select(chunk)
        if self.run is None and not len(examples.labels.values) and not self._may_start(examples):
            self._rows.n_dropped += len(examples)  # learning begins with the first label
        elif not learned and len(examples):
            run = self._start(examples) if self.run is None else self.run
            run.step(examples.features, self._rows.labels(examples), examples.weights)
            self.run = run  # there is nothing to save or to report if the first chunk fails
        self._remember(chunk)
        self._between_chunks = True
        if self.run is not None and self._kept is not None and self._kept.due:
            self.write_checkpoint(ended=False)

    def _may_start(self, examples: Any) -> bool:
        """Return whether the model can learn from these examples, which have no labels."""
        if hasattr(self.model, "model_") or not self._rows.multi_label or not len(examples):
            return hasattr(self.model, "model_")
        if self.model is None:
            self.model = choose_model(examples, self._jobs, stream=True, multi_label=True)
        estimator = getattr(self.model, "estimator", self.model)
        return bool(getattr(estimator, "STARTS_WITHOUT_LABELS", False))

    def _remember(self, chunk: Any) -> None:
        """Keep the chunk while the stream could start again as multi-label."""
        if self._earlier is not None:
            self._earlier.append(chunk)
            if self._rows.multi_label or self._rows.n_read > KEPT_EXAMPLES:
                self._earlier = None

    def _start_again(self, several: Any) -> None:
        """Replace the model by a multi-label one that learned the same examples, without reporting them again."""
        from sklearn.base import clone

        rows = self._rows
        click.echo(
            f"Example {rows.n_read + int(several.argmax()) + 1:,} has several labels, and those before it had one: "
            "starting again as multi-label.",
            err=True,
        )
        model = None if self._is_chosen else clone(self.model)
        silent = {**self._options, "report": None, "on_predictions": None}
        again = _Learner(model, self._jobs, self._vectorizer, type(rows)(rows.name, True), None, silent)
        for chunk in self._earlier or []:
            again.process(chunk)
        self.model, self._earlier = again.model, None
        self._resume(*again.run.parts())
        rows.multi_label, rows.n_dropped = True, again._rows.n_dropped

    def _resume(self, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Continue a run of the model, with the metrics of its parts."""
        from treemax.metrics.progressive import ProgressiveRun

        self.run = ProgressiveRun(self.model, **self._options)
        self.run.restore(header, arrays)

    def _start(self, examples: Any) -> Any:
        from treemax.cli.data import check_kind, takes_text
        from treemax.metrics.progressive import ProgressiveRun
        from treemax.models.text_model import TextModel

        if self.model is None:
            self.model = choose_model(examples, self._jobs, stream=True, multi_label=self._rows.multi_label)
        if not hasattr(self.model, "model_") and examples.texts is not None and not takes_text(self.model):
            self.model = TextModel(self._vectorizer, self.model)
        check_kind(self.model, examples, self._rows.name)
        _check_online(self.model)
        return ProgressiveRun(self.model, **self._options)

    def write_checkpoint(self, ended: bool) -> None:
        """Write a checkpoint, or remove it at the end."""
        if self._kept is None or not self._between_chunks:
            return
        if ended:
            self._kept.remove()
            return
        try:
            self._kept.write(self.model, self.run)
        except OSError as error:  # continue, with the previous checkpoint
            click.echo(f"No checkpoint was written: {error.filename}: {error.strerror}", err=True)


def _check_online(model: Any) -> None:
    if not hasattr(model, "partial_fit"):
        from treemax.models import MODELS

        able = ", ".join(name for name, kind in MODELS.items() if hasattr(kind, "partial_fit"))
        kind = type(getattr(model, "estimator", model)).__name__
        raise ValueError(f"{kind} cannot learn from a stream: it has no partial_fit. Use one of {able}.")


def _given(parameter: str) -> bool:
    """Return whether an option was given on the command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not click.core.ParameterSource.DEFAULT


def _print_result(run: Any, k: int, as_json: bool, per_label: bool) -> None:
    metrics = run.result().metrics
    milliseconds = {
        name: 1e3 * metrics.pop(seconds) / metrics["n"]
        for name, seconds in (("ms_per_example", "predict_seconds"), ("learn_ms_per_example", "learn_seconds"))
    }
    if not as_json:
        click.echo()
    print_metrics({**metrics, **milliseconds}, k, as_json, run.per_label() if per_label else None)


def _json_line(point: Any) -> None:
    click.echo(json.dumps(point._asdict()))


class _Table:
    """Reports as lines of a table."""

    def __init__(self) -> None:
        self.begun = False

    def line(self, point: Any) -> None:
        if not self.begun:
            click.echo(f"{'examples':>12} {'P@1':>8} {'since':>8} {'labels':>9} {'us/example':>11}")
            self.begun = True
        micros = 1e6 * (point.predict_seconds + point.learn_seconds) / point.examples
        click.echo(
            f"{point.examples:>12,} {point.precision:>8.4f} {point.window_precision:>8.4f} "
            f"{point.labels_known:>9,} {micros:>11.1f}"
        )
