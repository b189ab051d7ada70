"""The command that predicts, then learns, in order: stream."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import click

from treemax.cli.checkpoint import OtherData, StreamCheckpoint
from treemax.cli.interruption import interruption
from treemax.cli.options import (
    check_output,
    data_options,
    make_model,
    make_vectorizer,
    model_options,
    read_time,
)
from treemax.cli.saving import finish, save_model


@click.command(short_help="Predict, then learn, in order: progressive validation.")
@click.argument("data", is_eager=True)  # known when MODEL is checked
@model_options
@click.option(
    "-o",
    "--output",
    metavar="MODEL",
    callback=check_output,
    help="Write the model here at the end, ready to be continued.",
)
@click.option("--start", metavar="MODEL", help="Continue with this model instead of a new one.")
@click.option("--text", type=click.Choice(["hashing"]), default="hashing", hidden=True)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Keep in FOLDER where the stream stands; after a crash the same command goes on from there.",
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
    "--chunk",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Rows predicted, then learned, at a time.",
)
@click.option("--multi-label", is_flag=True, help="Rows may have several labels although the first have one.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one line a report, the last with all metrics."
)
@data_options
def stream(
    data: str, model_name: str, as_published: bool, settings: tuple[str, ...],
    text_settings: tuple[str, ...], jobs: int, output: str | None, start: str | None, text: str, checkpoint: str | None, every: float, chunk: int,
    multi_label: bool, as_json: bool, format_: str, skip_bad: bool, bits: int | None,
) -> None:  # fmt: skip
    """Progressive validation on DATA: predict each example, then learn it, in order.

    Prints how it stands at 1, 2, 4, 8, ... examples: progressive P@1, P@1 since the last report, labels known
    and microseconds an example. Every example is a test example once, so no held-out data is needed.
    """
    import treemax
    from treemax.cli.data import chunks, opened, remember_reading, report_dropped
    from treemax.formats.training_rows import TrainingRows
    from treemax.parallel.threads import delayed_interrupt

    if start is not None and (settings or text_settings or as_published):
        raise click.UsageError(
            "--set, --text-set and --as-published are for a new model; --start continues with one as it is."
        )
    kept = None
    if checkpoint is not None:
        options = {
            "--model": model_name, "--as-published": as_published, "--set": list(settings), "--text-set": list(text_settings), "--start": start,
            "--chunk": chunk, "--multi-label": multi_label, "--format": format_, "--skip-bad": skip_bad, "--bits": bits,
        }  # fmt: skip
        kept = StreamCheckpoint(checkpoint, every, options)
    model = make_model(model_name, settings, jobs, as_published) if start is None else treemax.load(start)
    report = _json_line if as_json else _Table().line
    with opened(data, format_, skip_bad, bits, chunk, None if start is None else model) as reader:
        several = multi_label or getattr(model, "multi_label_", False)
        rows = TrainingRows(reader.name, several, option="--multi-label")
        learner = _Learner(model, make_vectorizer(text, text_settings), rows, kept, report)
        ended = False
        try:
            for examples in chunks(reader, "stream", progress=not as_json):
                with delayed_interrupt():  # the model is never left, nor saved, in the middle of a chunk
                    learner.take(examples)
            learner.check_end()
            ended = True
            interruption.hold()
        except OtherData:
            learner.run = None  # nothing is written
            raise
        finally:  # Ctrl-C or a malformed line: what was learned until then is kept
            interruption.hold()
            if learner.run is not None:
                if start is None:
                    remember_reading(learner.model, bits)
                place = None if output is None else save_model(learner.model, output, resume=True)
                learner.keep(ended and place == output)
                _print_metrics(learner.run.result().metrics, as_json)
                if output is not None and place is not None:
                    finish(output, place)
    report_dropped(rows)


class _Learner:
    """Predicts and learns chunk by chunk, from the beginning or from a checkpoint on."""

    def __init__(
        self, model: Any, vectorizer: Any, rows: Any, kept: StreamCheckpoint | None, report: Callable[[Any], object]
    ) -> None:  # fmt: skip
        from treemax.metrics.progressive import ProgressiveRun

        self.model, self.run = model, None
        self._vectorizer, self._rows, self._kept, self._report = vectorizer, rows, kept, report
        self._sound = True  # the model is as it was after a whole chunk
        if kept is not None and kept.found is not None:
            self.model, header, arrays = kept.restored()
            self.run = ProgressiveRun(self.model, report=report)
            self.run.restore(header, arrays)

    def take(self, chunk: Any) -> None:
        """Predict and learn the examples of a chunk, unless they were learned before the checkpoint."""
        self._sound = False
        learned = self._kept is not None and self._kept.learned_before(chunk, self._rows.name)
        examples = self._rows.select(chunk)
        if not learned and len(examples):
            if self.run is None:
                self.run = self._begun(examples)
            self.run.step(examples.features, self._rows.labels(examples))
        self._sound = True
        if self.run is not None and self._kept is not None and self._kept.due:
            self.keep(ended=False)

    def _begun(self, examples: Any) -> Any:
        from treemax.cli.data import check_kind
        from treemax.metrics.progressive import ProgressiveRun
        from treemax.models.text_model import TextModel

        if not hasattr(self.model, "model_") and examples.texts is not None:
            self.model = TextModel(self._vectorizer, self.model)
        check_kind(self.model, examples, self._rows.name)
        _check_online(self.model)
        return ProgressiveRun(self.model, report=self._report)

    def check_end(self) -> None:
        """Refuse DATA that ended too early."""
        if self._kept is not None:
            self._kept.check_end(self._rows.name)

    def keep(self, ended: bool) -> None:
        """Write a checkpoint, if they are kept; at the end there is no need for one any more."""
        if self._kept is None or not self._sound:
            return
        if ended:
            self._kept.remove()
            return
        try:
            self._kept.write(self.model, self.run)
        except OSError as error:  # the stream goes on, and so does the file that was there
            click.echo(f"No checkpoint was written: {error.filename}: {error.strerror}", err=True)


def _check_online(model: Any) -> None:
    if not hasattr(model, "partial_fit"):
        from treemax.models import MODELS

        able = ", ".join(name for name, kind in MODELS.items() if hasattr(kind, "partial_fit"))
        kind = type(getattr(model, "estimator", model)).__name__
        raise ValueError(f"{kind} cannot learn from a stream; {able} can")


def _print_metrics(metrics: dict[str, float], as_json: bool) -> None:
    if as_json:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        click.echo(json.dumps(finite))  # JSON has no infinity, which the logarithm of no success is
        return
    click.echo()
    for name, value in metrics.items():
        click.echo(f"{name:>18} {value:.4g}")


def _json_line(point: Any) -> None:
    click.echo(json.dumps(point._asdict()))


class _Table:
    """The reports as lines under one heading."""

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
