"""Commands that learn: fit and stream."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import (
    check_output,
    data_options,
    make_model,
    make_vectorizer,
    model_options,
    read_size,
)


@click.command(short_help="Train a model on a file.")
@click.argument("data", is_eager=True)  # known when MODEL is checked
@click.option(
    "-o", "--output", required=True, metavar="MODEL", callback=check_output, help="Where to write the model."
)
@model_options
@click.option(
    "--text",
    type=click.Choice(["tfidf", "hashing"]),
    default="tfidf",
    show_default=True,
    help="How text becomes features.",
)
@click.option(
    "--hierarchy",
    type=click.Path(exists=True, dir_okay=False),
    help="The tree over the labels, for models that take one: lines of parent, tab, child.",
)
@click.option("--resume", is_flag=True, help="Keep in MODEL what learning needs to continue.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Train on a Ray cluster: auto, local or ray://host:10001 (label-tree, softmax-tree, softmax-forest).",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Keep what is learned in FOLDER until MODEL is written; the same command goes on from there.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=read_size,
    help="Train on data larger than memory: at most so much at a time, such as 2GB (label-tree).",
)
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Where --memory puts its temporary files; beside MODEL by default.",
)
@data_options
def fit(
    data: str, output: str, model_name: str, settings: tuple[str, ...], text_settings: tuple[str, ...], jobs: int,
    text: str, hierarchy: str | None, resume: bool, cluster: str | None, checkpoint: str | None,
    memory: int | None, scratch: str | None, format_: str, skip_bad: bool, bits: int | None,
) -> None:  # fmt: skip
    """Train a model on DATA and write it to MODEL."""
    from treemax.cli.data import remember_reading
    from treemax.estimators import TrainingInterrupted

    model = make_model(model_name, settings, jobs)
    places = {"--cluster": cluster, "--checkpoint": checkpoint}
    _check_options(model, model_name, data, hierarchy, memory, scratch, places)
    vectorizer = make_vectorizer(text, text_settings)
    reading = {"format_": format_, "skip_bad": skip_bad, "bits": bits}
    with _training_place(cluster, checkpoint):  # found before hours are spent on reading
        if memory is None:
            model, train = _in_memory(model, vectorizer, data, hierarchy, reading)
        else:
            model, train = _from_disk(model, vectorizer, data, hierarchy, reading, memory, scratch or output)
        start = time.perf_counter()
        try:
            train()
        except TrainingInterrupted as stop:
            remember_reading(model, bits)
            model.save(output, resume=resume)
            raise TrainingInterrupted(None, stop.done) from None
        seconds = time.perf_counter() - start
        remember_reading(model, bits)
        model.save(output, resume=resume)
    facts = model.describe()
    names = ("loss", "passes", "learning_rate")
    chosen = "".join(f"{name.replace('_', ' ')} {facts[name]}, " for name in names if name in facts)
    click.echo(
        f"{output}: {facts['model']}, labels {facts['labels']:,}, features {facts['features']:,}, "
        f"examples {facts['examples']:,}, {chosen}trained in {seconds:.1f} s",
        err=True,
    )


def _check_options(
    model: Any, name: str, data: str, hierarchy: str | None, memory: int | None, scratch: str | None, places: dict[str, str | None]
) -> None:  # fmt: skip
    """Refuse options that the model, DATA or each other cannot do with."""
    from treemax.estimators import MODELS

    if hierarchy is not None and "tree" not in model.get_params():
        raise click.UsageError(f"--hierarchy is for models with a tree over the labels, not for {name}.")
    if scratch is not None and memory is None:
        raise click.UsageError("--scratch is for --memory, which was not given.")
    if memory is not None and not hasattr(model, "fit_file"):
        raise click.UsageError(f"--memory is for label-tree, not for {name}.")
    if memory is not None and data == "-":
        raise click.UsageError(
            "--memory reads DATA more than once, and standard input can be read once: name a file."
        )
    for option in (option for option, place in places.items() if place is not None):
        if memory is not None:
            raise click.UsageError(f"{option} does not go with --memory, which trains from the disk.")
        if not model.NODE_BY_NODE:
            able = ", ".join(other for other, kind in MODELS.items() if kind.NODE_BY_NODE)
            raise click.UsageError(f"{option} is for {able}, not for {name}.")


def _in_memory(
    model: Any, vectorizer: Any, data: str, hierarchy: str | None, reading: dict[str, Any]
) -> tuple[Any, Callable[[], object]]:
    """The model for DATA, all of which is read, and how to train it."""
    from treemax.cli.data import TrainingRows, opened, read_edges, read_whole
    from treemax.text import TextModel

    with opened(data, **reading) as reader:
        learnable = TrainingRows(reader.name)
        examples = learnable.part(read_whole(reader))
    learnable.finish()
    if hierarchy is not None:
        model.set_params(tree=read_edges(hierarchy, whole_numbers=examples.labels.dtype.kind in "iu"))
    if examples.texts is not None:
        model = TextModel(vectorizer, model)
    return model, lambda: model.fit(examples.X, examples.y)


def _from_disk(
    model: Any, vectorizer: Any, data: str, hierarchy: str | None, reading: dict[str, Any], memory: int, place: str
) -> tuple[Any, Callable[[], object]]:  # fmt: skip
    """The model for DATA, of which the beginning is read, and how to train it with little memory."""
    from treemax.cli.data import BITS, first_labelled, opened, read_edges
    from treemax.text import TextModel

    with opened(data, **reading) as reader:
        examples = first_labelled(reader)
    if hierarchy is not None:
        model.set_params(tree=read_edges(hierarchy, whole_numbers=examples.labels.dtype.kind in "iu"))
    if examples.texts is not None:
        model = TextModel(vectorizer, model)
    options = {
        "format": reader.format, "skip_bad": reading["skip_bad"], "bits": reading["bits"] or BITS, "zero_based": True,
    }  # fmt: skip
    folder = Path(place) if Path(place).is_dir() else Path(place).absolute().parent
    return model, lambda: model.fit_file(data, memory=memory, folder=folder, **options)


@contextmanager
def _training_place(address: str | None, folder: str | None) -> Iterator[None]:
    """Where to train, and where to keep what was learned so far."""
    import treemax

    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(treemax.checkpoint(folder))
        if address is not None:
            stack.enter_context(treemax.cluster(address))
        yield


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
    data: str, model_name: str, settings: tuple[str, ...], text_settings: tuple[str, ...], jobs: int,
    output: str | None, start: str | None, text: str, chunk: int, multi_label: bool, as_json: bool,
    format_: str, skip_bad: bool, bits: int | None,
) -> None:  # fmt: skip
    """Progressive validation on DATA: predict each example, then learn it, in order.

    Prints how it stands at 1, 2, 4, 8, ... examples: progressive P@1, P@1 since the last report, labels known
    and microseconds an example. Every example is a test example once, so no held-out data is needed.
    """
    import treemax
    from treemax.cli.data import TrainingRows, as_lists, check_kind, chunks, opened, remember_reading
    from treemax.progressive import ProgressiveRun
    from treemax.text import TextModel

    if start is not None and (settings or text_settings):
        raise click.UsageError(
            "--set and --text-set are for a new model; --start continues with one as it is."
        )
    model = make_model(model_name, settings, jobs) if start is None else treemax.load(start)
    vectorizer = make_vectorizer(text, text_settings)
    run, seen = None, 0
    report = _json_line if as_json else _Table().line
    with opened(data, format_, skip_bad, bits, chunk, None if start is None else model) as reader:
        learnable = TrainingRows(reader.name, multi_label or getattr(model, "multi_label_", False))
        try:
            for examples in map(learnable.part, chunks(reader, "stream", progress=not as_json)):
                if len(examples) == 0:
                    continue
                if run is None:
                    if start is None and examples.texts is not None:
                        model = TextModel(vectorizer, model)
                    check_kind(model, examples, reader.name)
                    _check_online(model)
                    run = ProgressiveRun(model, report=report)
                run.step(examples.X, as_lists(examples.y) if learnable.multi_label else examples.y)
                seen += len(examples)
        finally:  # Ctrl-C or a malformed line: what was learned until then is kept
            if run is not None and seen:
                if output is not None:
                    if start is None:
                        remember_reading(model, bits)
                    model.save(output, resume=True)
                _print_metrics(run.result().metrics, as_json)
    learnable.finish()


def _check_online(model: Any) -> None:
    if not hasattr(model, "partial_fit"):
        from treemax.estimators import MODELS

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
