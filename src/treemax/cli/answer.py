"""The commands predict and eval."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import Reading, data_options


@click.command(short_help="Answer, one line of JSON per example.")
@click.argument("model")
@click.argument("data")
@click.option("--top", default=5, show_default=True, type=click.IntRange(min=1), help="Labels per example.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Predict all labels of at least this probability, instead of --top.",
)
@click.option(
    "--chunk",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Lines to predict at a time; 1 for an interactive pipe.",
)
@click.option("--jobs", type=int, help="Threads; -1 for all cores. The model's own setting by default.")
@data_options
def predict(
    model: str,
    data: str,
    top: int,
    threshold: float | None,
    chunk: int,
    jobs: int | None,
    reading: Reading,
) -> None:
    """Predict the labels of DATA: one line of JSON per example, best label first.

    Labels in DATA are ignored. A text model also reads plain lines of text.
    """
    from treemax.cli.data import check_kind, open_data

    loaded = _loaded(model, jobs)
    with open_data(data, reading, chunk, loaded, labels=False) as reader:
        for examples in reader:
            check_kind(loaded, examples, reader.name)
            labels, scores = _predictions(loaded, examples.features, top, threshold)
            click.echo(b"\n".join(map(_json_line, labels, scores)))


def _predictions(
    model: Any, X: Any, top: int, threshold: float | None
) -> tuple[list[list[Any]], list[list[float]]]:
    """Return the labels and scores of each row, best first: the top `top`, or all of at least `threshold`."""
    if threshold is None:
        found = model.predict_topk(X, top)
        return found.labels.tolist(), found.scores.tolist()
    rows = model.predict_above(X, threshold, scores=True)
    return [[label for label, _ in row] for row in rows], [[score for _, score in row] for row in rows]


def _json_line(labels: list[Any], scores: list[float]) -> bytes:
    n = sum(label is not None for label in labels)  # a model may have fewer than `top` labels
    answer = {"labels": labels[:n], "scores": [round(score, 6) for score in scores[:n]]}
    try:
        return json.dumps(answer, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can only escape
        return json.dumps(answer).encode()


@click.command("eval", short_help="Evaluate a model on a file.")
@click.argument("model")
@click.argument("data")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--jobs", type=int, help="Threads; -1 for all cores. The model's own setting by default.")
@data_options
def evaluate(model: str, data: str, as_json: bool, jobs: int | None, reading: Reading) -> None:
    """Evaluate MODEL on DATA: precision, nDCG, propensity-scored precision, time and size."""
    from treemax.cli.data import check_kind, chunks, open_data
    from treemax.formats.training_rows import drop_unlabelled
    from treemax.metrics import IdEncoder, Scores

    loaded = _loaded(model, jobs)
    encoder = IdEncoder(loaded.label_index_)
    scores = Scores(ks=(1, 3, 5), label_counts=loaded.label_counts_, n_train=loaded.n_examples_)
    seconds, n, n_dropped = 0.0, 0, 0
    with open_data(data, reading, model=loaded) as reader:
        for examples in chunks(reader, "eval", progress=not as_json):
            check_kind(loaded, examples, reader.name)
            labelled = drop_unlabelled(examples, loaded.multi_label_)  # as in training
            n_dropped += len(examples) - len(labelled)
            examples = labelled
            if len(examples) == 0:
                continue
            if n == 0:
                loaded.predict_topk(examples[:1].features, 5)  # compile before timing
            start = time.perf_counter()
            top = loaded.predict_topk(examples.features, 5)
            seconds += time.perf_counter() - start
            n += len(examples)
            scores.update(encoder.targets(examples.labels), encoder.ranking(top.labels))
    if n + n_dropped == 0:
        raise ValueError(f"{reader.name}: has no examples")
    result = scores.result() if n else {"n_unlabelled": 0}
    if result["n_unlabelled"] == n:
        raise ValueError(f"{reader.name}: no example has a label, so there is nothing to evaluate")
    if n_dropped:
        click.echo(f"Left out {n_dropped:,} without a label.", err=True)
    _print_scores(result, 1e3 * seconds / n, Path(model).stat().st_size / 1e6, as_json)


def _loaded(model: str, jobs: int | None) -> Any:
    import treemax

    loaded = treemax.load(model)
    if jobs is not None:
        getattr(loaded, "estimator", loaded).set_params(n_jobs=jobs)
    return loaded


def _print_scores(result: dict[str, Any], milliseconds: float, megabytes: float, as_json: bool) -> None:
    wanted = ("n", "P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
    figures = {name: result[name] for name in wanted}
    figures |= {"ms_per_example": milliseconds, "model_mb": megabytes}
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        click.echo(f"{name:>15} {value:,}" if isinstance(value, int) else f"{name:>15} {value:.4f}")
