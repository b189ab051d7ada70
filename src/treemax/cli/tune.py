"""The command tune."""

from __future__ import annotations

import json
from typing import Any

import click

from treemax.cli.options import Reading, check_output, data_options, read_value
from treemax.cli.saving import finish, save_model


@click.command(short_help="Search over models and settings by validation.")
@click.argument("data", is_eager=True)  # known when MODEL is checked
@click.option("-o", "--output", required=True, metavar="MODEL", callback=check_output, help="Where to write the model.")
@click.option(
    "--minutes",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Time budget, including training the best model on all rows, without compiling for the first use.",
)
@click.option(
    "--metric",
    help="Metric to maximise: P@k, PSP@k, nDCG@k, macro-F1 or micro-F1; by default P@1, or P@5 for multi-label data.",
)
@click.option("--models", help="Names of models, separated by commas; by default all applicable to the data.")
@click.option("--max-mb", type=click.FloatRange(min=0, min_open=True), help="Limit on the model file, in megabytes.")
@click.option(
    "--max-us",
    type=click.FloatRange(min=0, min_open=True),
    help="Limit on the prediction time per row, in microseconds, in a batch.",
)
@click.option(
    "--class-weight",
    metavar="WEIGHTS",
    help="Weights of labels in training: balanced, or a dictionary such as \"{'rare': 5.0}\". Validation has no weights.",
)
@click.option("--max-trials", type=click.IntRange(min=1), help="Maximum number of settings to try.")
@click.option("--resume", is_flag=True, help="Resume the search that is stored in MODEL.study.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the search.")
@click.option("--jobs", default=1, show_default=True, help="Threads; -1 for all cores.")
@click.option("--json", "as_json", is_flag=True, help="Print all trials as JSON.")
@data_options
def tune(
    data: str, output: str, minutes: float, metric: str | None, models: str | None, max_mb: float | None,
    max_us: float | None, class_weight: str | None, max_trials: int | None, resume: bool, seed: int, jobs: int, as_json: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """Search over models and their settings on DATA, and write the best, trained on all rows, to MODEL.

    Prints a line for each better setting. Ctrl-C ends the search and keeps the best so far. The trials are stored in
    MODEL.study, from which --resume continues.
    """
    from treemax.cli.data import open_data, read_training_rows, store_reading_options
    from treemax.tuning import parse_metric
    from treemax.tuning import tune as search
    from treemax.tuning.study import load_optuna, study_exists

    load_optuna()
    study = f"{output}.study"
    if metric is not None:
        parse_metric(metric)
    if resume != study_exists(study):
        raise click.UsageError(
            f"There is no {study} to resume."
            if resume
            else f"{study} exists from an earlier search: resume it with --resume, or delete it to start again."
        )
    with open_data(data, reading) as reader:
        examples = read_training_rows(reader)
    result = search(
        examples.features,
        examples.targets,
        minutes=minutes,
        metric=metric,
        models=None if models is None else [name.strip() for name in models.split(",")],
        max_mb=max_mb,
        max_us=max_us,
        max_trials=max_trials,
        n_jobs=jobs,
        random_state=seed,
        study=study,
        report=lambda line: click.echo(line, err=True),
        sample_weight=examples.weights,
        class_weight=None if class_weight is None else read_value(class_weight),
    )
    store_reading_options(result.model, reading)
    place = save_model(result.model, output)
    _print(result, as_json)
    finish(output, place)
    if result.interrupted:
        rows = "all rows" if result.refitted else f"{result.best['rows']:,} rows"
        raise KeyboardInterrupt(f"interrupted; {output} is the best so far, trained on {rows}")


def _print(result: Any, as_json: bool) -> None:
    from treemax.tuning.result import table_lines

    if as_json:
        facts = {"metric": result.metric, "refitted": result.refitted, "best": result.best, "table": result.table}
        click.echo(json.dumps(facts))
        return
    for line in table_lines(result.table, result.metric):
        click.echo(line)
