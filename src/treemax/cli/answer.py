"""The commands predict and eval."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from treemax.cli.few_rows import open_lines, predict_few
from treemax.cli.options import Reading, data_options
from treemax.cli.reporting import Predictions, answer, as_json, json_line, metric_ks, metric_options, print_metrics


@click.command(short_help="Predict labels, one line of JSON per example.")
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
@click.option("--hierarchy", metavar="FILE", help="The taxonomy of the labels: lines of parent, tab, child, or JSON. By "
              "default that of the model.")  # fmt: skip
@click.option("--backoff", type=click.FloatRange(0, 1), metavar="CONFIDENCE",
              help="Predict the most specific node of the taxonomy of at least this probability.")  # fmt: skip
@click.option("--levels", is_flag=True, help="Predict the best --top nodes of each level of the taxonomy.")
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
    model: str, data: str, top: int, threshold: float | None, chunk: int, hierarchy: str | None, backoff: float | None,
    levels: bool, labels: str | None, exclude: str | None, label_weights: str | None, utility: str | None,
    jobs: int | None, reading: Reading,
) -> None:  # fmt: skip
    """Predict the labels of DATA: one line of JSON per example, best label first.

    Labels in DATA are ignored. A text model also reads plain lines of text. A language model predicts the next word.
    """
    weighted = any(option is not None for option in (labels, exclude, label_weights))
    ways = {"--threshold": threshold is not None, "--backoff": backoff is not None, "--levels": levels}
    given = [option for option, is_given in ways.items() if is_given]
    if weighted and given:
        raise click.UsageError(f"{given[0]} cannot be combined with --labels, --exclude or --label-weights.")
    if utility is not None and given:
        raise click.UsageError(f"--utility chooses --top labels; leave out {given[0]}.")
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} cannot be combined with {given[1]}.")
    if hierarchy is not None and not (levels or backoff is not None):
        raise click.UsageError("--hierarchy needs --backoff or --levels.")
    lines = None
    if not (weighted or given or utility is not None or jobs is not None):
        lines = open_lines(model, data, chunk, reading)
        if lines is not None and (answers := predict_few(model, lines, top, reading.format)) is not None:
            click.echo(answers)
            return
    from treemax.cli.data import check_kind, load_model, open_data, read_whole
    from treemax.cli.language import is_language_model

    loaded = load_model(model, jobs)
    if is_language_model(loaded) and (weighted or given or utility is not None):
        raise click.UsageError(
            "--threshold, --backoff, --levels, --labels, --exclude, --label-weights and --utility are not for a language "
            "model."
        )
    if levels or backoff is not None:
        set_taxonomy(loaded, model, hierarchy)
    weights = _label_weights(loaded, labels, exclude, label_weights) if weighted else None
    with open_data(data, reading, chunk, loaded, labels=False, lines=lines) as reader:
        for examples in reader if utility is None else [read_whole(reader)]:
            check_kind(loaded, examples, reader.name)
            if levels:
                click.echo(b"\n".join(_levels(loaded.predict_levels(examples.features, top))))
                continue
            found, scores = _predictions(loaded, examples.features, top, threshold, backoff, weights, utility)
            click.echo(b"\n".join(map(json_line, found, scores)))


def set_taxonomy(model: Any, path: str, hierarchy: str | None) -> None:
    """Set the taxonomy of --hierarchy; without it, that of the model is required."""
    from treemax.cli.data import read_taxonomy

    if hierarchy is not None:
        model.set_taxonomy(read_taxonomy(hierarchy, model))
    elif model.taxonomy_ is None:
        raise click.UsageError(f"{path} has no taxonomy of its labels: give --hierarchy FILE.")


def _levels(levels: list[Any]) -> list[bytes]:
    """Return a line of JSON for each row."""
    by_level = [list(map(answer, level.labels.tolist(), level.scores.tolist())) for level in levels]
    return [as_json({"levels": list(row)}) for row in zip(*by_level)]


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
    model: Any, X: Any, top: int, threshold: float | None, backoff: float | None, weights: Any, utility: str | None
) -> tuple[list[list[Any]], list[list[float]]]:
    """Return the labels and scores of each row, best first: the top `top`, all of at least `threshold`, or backed off."""
    if backoff is not None:
        labels, scores = model.predict_backoff(X, backoff)
        if model.multi_label_:
            return labels, scores
        return [[label] for label in labels.tolist()], [[score] for score in scores.tolist()]
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
@click.option("--hierarchy", metavar="FILE", help="The taxonomy of the labels, for hierarchical precision, recall, F and "
              "distance: lines of parent, tab, child, or JSON. By default that of the model.")  # fmt: skip
@click.option("--backoff", type=click.FloatRange(0, 1), metavar="CONFIDENCE",
              help="Compute these for the answers of predict --backoff.")  # fmt: skip
@click.option("--perplexity", is_flag=True,
              help="Also print perplexity, coverage and error@k, of a model with one label per example.")  # fmt: skip
@click.option("--jobs", type=int, help="Threads; -1 for all cores. The model's own setting by default.")
@data_options
def evaluate(
    model: str, data: str, k: int, per_label: bool, predictions: str | None, as_json: bool, hierarchy: str | None,
    backoff: float | None, perplexity: bool, jobs: int | None, reading: Reading,
) -> None:  # fmt: skip
    """Evaluate MODEL on DATA: precision, nDCG, propensity-scored precision, time and size.

    Of a language model: the perplexity of the texts of DATA.
    """
    from treemax.cli.data import check_kind, chunks, load_model, open_data
    from treemax.cli.language import evaluate_language_model, is_language_model

    loaded = load_model(model, jobs)
    if is_language_model(loaded):
        if per_label or predictions is not None or hierarchy is not None or backoff is not None:
            raise click.UsageError(
                "--per-label, --predictions, --hierarchy and --backoff are not for a language model."
            )
        print_metrics(evaluate_language_model(loaded, model, data, reading), k, as_json)
        return
    if perplexity and loaded.multi_label_:
        raise ValueError(f"--perplexity needs a model with one label per example, but {model} is multi-label")
    if hierarchy is not None or backoff is not None:
        set_taxonomy(loaded, model, hierarchy)
    evaluation = _Evaluation(loaded, k, per_label, perplexity, backoff, predictions)
    with open_data(data, reading, model=loaded) as reader:
        for examples in chunks(reader, "eval", progress=not as_json):
            check_kind(loaded, examples, reader.name)
            evaluation.update(examples, reader.name)
    metrics = {**evaluation.result(reader.name), "model_mb": Path(model).stat().st_size / 1e6}
    print_metrics(metrics, k, as_json, *evaluation.by_label())


class _Evaluation:
    """The metrics of a model, updated by chunks of examples."""

    def __init__(
        self, model: Any, k: int, per_label: bool, perplexity: bool, backoff: float | None, predictions: str | None
    ) -> None:
        from treemax.metrics import Confusions, DensityScores, HierarchicalScores, IdEncoder, Scores

        self._model, self._k, self._backoff = model, k, backoff
        self._encoder = IdEncoder(model.label_index_)
        self._scores = Scores(ks=metric_ks(k), label_counts=model.label_counts_, n_train=model.n_examples_)
        self._confusions = Confusions() if per_label else None
        self._density = DensityScores() if perplexity else None
        self._in_taxonomy = None if model.taxonomy_ is None else HierarchicalScores(model.taxonomy_)
        self._predictions = None if predictions is None else Predictions(predictions)
        self._n = self._n_unlabelled = 0
        self._seconds = 0.0

    def update(self, examples: Any, name: str) -> None:
        """Predict examples of the file `name` and add them to all metrics; rows without a label are left out."""
        from treemax.formats.training_rows import drop_unlabelled

        n_read = len(examples)
        examples = drop_unlabelled(examples, self._model.multi_label_)  # as in training
        self._n_unlabelled += n_read - len(examples)
        if not len(examples):
            return
        top = self._timed_topk(examples)
        targets, ranking = self._encoder.targets(examples.labels), self._encoder.ranking(top.labels)
        self._scores.update(targets, ranking)
        if self._model.multi_label_:
            answers = _answers(self._model, examples.features, top, None)
            self._scores.update_answers(targets, self._encoder.ranking(answers))
        if self._confusions is not None:
            self._confusions.update(targets, ranking)
        if self._density is not None:
            self._density.update(_probabilities_of_labels(self._model, examples, name))
        if self._in_taxonomy is not None:
            answers = _answers(self._model, examples.features, top, self._backoff)
            self._in_taxonomy.update(list(examples.labels), answers)
        if self._predictions is not None:
            self._predictions.add(examples.labels, top.labels.tolist(), top.scores.tolist())

    def _timed_topk(self, examples: Any) -> Any:
        """Return the top k labels of the examples, and add the time this takes."""
        if self._n == 0:
            self._model.predict_topk(examples[:1].features, self._k)  # compile before timing
        start = time.perf_counter()
        top = self._model.predict_topk(examples.features, self._k)
        self._seconds += time.perf_counter() - start
        self._n += len(examples)
        return top

    def result(self, name: str) -> dict[str, float]:
        """Return the metrics by name; raises if no example of the file `name` has a label."""
        if self._n + self._n_unlabelled == 0:
            raise ValueError(f"{name}: has no examples")
        metrics = self._scores.result() if self._n else {"n_unlabelled": 0}
        if metrics["n_unlabelled"] == self._n:
            raise ValueError(f"{name}: no example has a label, so there is nothing to evaluate")
        if self._n_unlabelled:
            rows = "row" if self._n_unlabelled == 1 else "rows"
            click.echo(f"Left out {self._n_unlabelled:,} {rows} without a label.", err=True)
        if self._in_taxonomy is not None:
            metrics |= {key: value for key, value in self._in_taxonomy.result().items() if key != "n"}
        if self._density is not None:
            density = self._density.result()
            metrics |= {"perplexity": density.perplexity, "coverage": density.coverage}
        known, milliseconds = len(self._model.label_index_), 1e3 * self._seconds / self._n
        return metrics | {"labels_known": known, "ms_per_example": milliseconds}

    def by_label(self) -> tuple[Any, ...]:
        """Return the metrics of each label, and those by number of training examples, if they were asked for."""
        from treemax.metrics.reports import report_of

        if self._confusions is None:
            return ()
        return report_of(self._scores, self._confusions, self._encoder.index, self._model.label_counts_)


def _answers(model: Any, X: Any, top: Any, backoff: float | None) -> Any:
    """Return the labels that the model answers, backed off to a confidence if it is given."""
    if backoff is not None:
        return model.predict_backoff(X, backoff).labels
    if not model.multi_label_:
        return top.labels[:, 0]
    from scipy.sparse import lil_matrix

    found = model.predict(X)
    return found if isinstance(found, list) else lil_matrix(found).rows.tolist()  # columns are the labels


def _probabilities_of_labels(model: Any, examples: Any, name: str) -> Any:
    """Return the probability of the label of each example, 0 for a label that training never had."""
    from treemax.metrics.density import probabilities_of_labels

    if (examples.labels.counts != 1).any():
        raise ValueError(f"{name}: --perplexity needs one label per example, but some have several")
    return probabilities_of_labels(model, examples.features, [labels[0] for labels in examples.labels])
