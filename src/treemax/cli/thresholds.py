"""The command thresholds."""

from __future__ import annotations

import click

from treemax.cli.options import Reading, check_output, data_options

METRICS = ("micro-f1", "macro-f1", "instance-f1", "precision")


@click.command(short_help="Choose the thresholds of a multi-label model.")
@click.argument("model", is_eager=True)  # known when --output is checked
@click.argument("data", is_eager=True)
@click.option("-o", "--output", required=True, callback=check_output, metavar="FILE", help="Write the model to FILE.")
@click.option("--metric", default="macro-f1", show_default=True, type=click.Choice(METRICS), help="What to maximise.")
@click.option("--precision", type=click.FloatRange(0, 1, min_open=True), help="The wanted precision; sets --metric.")
@click.option("--resume", is_flag=True, help="Store the optimiser state of an online model in FILE.")
@data_options
def thresholds(
    model: str, data: str, output: str, metric: str, precision: float | None, resume: bool, reading: Reading
) -> None:
    """Choose thresholds for the labels of a multi-label MODEL on DATA, which it was not trained on.

    macro-f1 chooses one for each label, the others one for all.
    """
    from treemax.cli.data import check_kind, load_model, open_data
    from treemax.cli.saving import save_model
    from treemax.formats.examples import concatenate

    loaded = load_model(model, None)
    if not loaded.multi_label_:
        raise ValueError(f"{model} predicts one label per example: there is no threshold to choose")
    with open_data(data, reading, model=loaded) as reader:
        parts = list(reader)
    if not parts:
        raise ValueError(f"{data}: has no examples")
    examples = concatenate(parts)
    check_kind(loaded, examples, data)
    metric = metric if precision is None else "precision"
    loaded.choose_thresholds(examples.features, list(map(list, examples.labels)), metric, precision)
    path = save_model(loaded, output, resume=resume)
    click.echo(f"{loaded.describe()['decision']}; written to {path}", err=True)
