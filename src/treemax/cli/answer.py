"""The commands predict and eval."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import Reading, data_options
from treemax.cli.reporting import Predictions, json_line, metric_ks, metric_options, print_metrics


@click.command(short_help="Answer, one line of JSON per example.")
@click.argument("model")
@click.argument("data")
@click.option("--top", "--k", default=5, show_default=True, type=click.IntRange(min=1), help="Labels per example.")
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
@click.option("--labels", metavar="FILE", help="Predict only these labels, one per line.")
@click.option("--exclude", metavar="FILE", help="Do not predict these labels, one per line.")
@click.option(
    "--label-weights",
    metavar="FILE|propensity",
    help="Rank labels by probability times weight: lines of label, tab and weight (1 if a label has no line), or "
    "inverse propensities, which favour rare labels.",
)
@click.option("--utility", metavar="NAME",
              help="Choose the labels that maximise an expected utility of all of DATA together: macro-f1, macro-precision, "
              "macro-recall, macro-balanced-accuracy or coverage. DATA is read into memory.")  # fmt: skip
@click.option("--jobs", type=int, help="Threads; -1 for all cores. The model's own setting by default.")
@data_options
def predict(
    model: str, data: str, top: int, threshold: float | None, chunk: int, labels: str | None, exclude: str | None,
    label_weights: str | None, utility: str | None, jobs: int | None, reading: Reading,
) -> None:  # fmt: skip
    """Predict the labels of DATA: one line of JSON per example, best label first.

    Labels in DATA are ignored. A text model also reads plain lines of text. A language model predicts the next word.
    """
    from treemax.cli.data import check_kind, load_model, open_data, read_whole
    from treemax.cli.language import is_language_model

    weighted = any(option is not None for option in (labels, exclude, label_weights))
    if weighted and threshold is not None:
        raise click.UsageError("--threshold cannot be combined with --labels, --exclude or --label-weights.")
    if utility is not None and threshold is not None:
        raise click.UsageError("--utility chooses --top labels; leave out --threshold.")
    loaded = load_model(model, jobs)
    if is_language_model(loaded) and (weighted or threshold is not None or utility is not None):
        raise click.UsageError(
            "--threshold, --labels, --exclude, --label-weights and --utility are not for a language model."
        )
    weights = _label_weights(loaded, labels, exclude, label_weights) if weighted else None
    with open_data(data, reading, chunk, loaded, labels=False) as reader:
        for examples in reader if utility is None else [read_whole(reader)]:
            check_kind(loaded, examples, reader.name)
            found, scores = _predictions(loaded, examples.features, top, threshold, weights, utility)
            click.echo(b"\n".join(map(json_line, found, scores)))


def _label_weights(model: Any, labels: str | None, exclude: str | None, weights: str | None) -> Any:
    """Return the weights of all labels from the files of the options."""
    from treemax.cli.label_files import read_labels, read_weights

    index = model.label_index_
    return model.make_label_weights(
        labels=None if labels is None else read_labels(labels, index),
        exclude=None if exclude is None else read_labels(exclude, index),
        label_weights=weights if weights in (None, "propensity") else read_weights(weights, index),
    )


def _predictions(
    model: Any, X: Any, top: int, threshold: float | None, weights: Any, utility: str | None
) -> tuple[list[list[Any]], list[list[float]]]:
    """Return the labels and scores of each row, best first: the top `top`, or all of at least `threshold`."""
    if threshold is None:
        options = {} if weights is None else {"label_weights": weights}
        if utility is None:
            found = model.predict_topk(X, top, **options)
        else:
            found = model.predict_for_utility(X, top, utility, **options)
        return found.labels.tolist(), found.scores.tolist()
    rows = model.predict_above(X, threshold, scores=True)
    return [[label for label, _ in row] for row in rows], [[score for _, score in row] for row in rows]


@click.command("eval", short_help="Evaluate a model on a file.")
@click.argument("model", is_eager=True)  # known when FILE is checked
@click.argument("data", is_eager=True)
@metric_options
@click.option("--perplexity", is_flag=True,
              help="Also print perplexity, coverage and error@k, of a model with one label per example.")  # fmt: skip
@click.option("--jobs", type=int, help="Threads; -1 for all cores. The model's own setting by default.")
@data_options
def evaluate(
    model: str, data: str, k: int, per_label: bool, predictions: str | None, as_json: bool, perplexity: bool,
    jobs: int | None, reading: Reading,
) -> None:  # fmt: skip
    """Evaluate MODEL on DATA: precision, nDCG, propensity-scored precision, time and size.

    Of a language model: the perplexity of the texts of DATA.
    """
    from treemax.cli.data import check_kind, chunks, load_model, open_data
    from treemax.cli.language import evaluate_language_model, is_language_model
    from treemax.formats.training_rows import drop_unlabelled
    from treemax.metrics import Confusions, DensityScores, IdEncoder, Scores
    from treemax.metrics.reports import report_of

    loaded = load_model(model, jobs)
    if is_language_model(loaded):
        if per_label or predictions is not None:
            raise click.UsageError("--per-label and --predictions are not for a language model.")
        print_metrics(evaluate_language_model(loaded, model, data, reading), k, as_json)
        return
    if perplexity and loaded.multi_label_:
        raise ValueError(f"--perplexity needs a model with one label per example, but {model} is multi-label")
    encoder = IdEncoder(loaded.label_index_)
    scores = Scores(ks=metric_ks(k), label_counts=loaded.label_counts_, n_train=loaded.n_examples_)
    density, confusions = DensityScores(), Confusions()
    seconds, n, n_dropped = 0.0, 0, 0
    kept = None if predictions is None else Predictions(predictions)
    with open_data(data, reading, model=loaded) as reader:
        for examples in chunks(reader, "eval", progress=not as_json):
            check_kind(loaded, examples, reader.name)
            labelled = drop_unlabelled(examples, loaded.multi_label_)  # as in training
            n_dropped += len(examples) - len(labelled)
            examples = labelled
            if len(examples) == 0:
                continue
            if n == 0:
                loaded.predict_topk(examples[:1].features, k)  # compile before timing
            start = time.perf_counter()
            top = loaded.predict_topk(examples.features, k)
            seconds += time.perf_counter() - start
            n += len(examples)
            targets, ranking = encoder.targets(examples.labels), encoder.ranking(top.labels)
            scores.update(targets, ranking)
            if per_label:
                confusions.update(targets, ranking)
            if perplexity:
                density.update(_probabilities_of_labels(loaded, examples, reader.name))
            if kept is not None:
                kept.add(examples.labels, top.labels.tolist(), top.scores.tolist())
    if n + n_dropped == 0:
        raise ValueError(f"{reader.name}: has no examples")
    result = scores.result() if n else {"n_unlabelled": 0}
    if result["n_unlabelled"] == n:
        raise ValueError(f"{reader.name}: no example has a label, so there is nothing to evaluate")
    if n_dropped:
        click.echo(f"Left out {n_dropped:,} without a label.", err=True)
    if perplexity:
        found = density.result()
        result |= {"perplexity": found.perplexity, "coverage": found.coverage}
    result |= {
        "labels_known": len(loaded.label_index_),
        "ms_per_example": 1e3 * seconds / n,
        "model_mb": Path(model).stat().st_size / 1e6,
    }
    report = report_of(scores, confusions, encoder.index, loaded.label_counts_) if per_label else None
    print_metrics(result, k, as_json, *(report or ()))


def _probabilities_of_labels(model: Any, examples: Any, name: str) -> Any:
    """Return the probability of the label of each example, 0 for a label that training never had."""
    if (examples.labels.counts != 1).any():
        raise ValueError(f"{name}: --perplexity needs one label per example, but some have several")
    labels = [own[0] for own in examples.labels]
    known = model.label_index_.ids(labels) >= 0
    asked = [[label if is_known else None] for label, is_known in zip(labels, known)]
    return model.predict_proba_of(examples.features, asked)[:, 0]
