"""The commands info and convert."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import FORMATS, Reading, data_options, known_models


@click.command(short_help="Describe a model file, or list the models.")
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verify", is_flag=True, help="Verify the checksums of files of any size.")
@click.option("--models", is_flag=True, help="List the models that can be trained, instead.")
def info(model: str | None, as_json: bool, verify: bool, models: bool) -> None:
    """Describe MODEL: kind, labels, features, weights, bytes."""
    if models:
        _print_facts(_known_models(), as_json)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    import treemax

    facts = treemax.load(model, verify=True if verify else None).describe()
    _print_facts({**facts, "bytes": Path(model).stat().st_size}, as_json)


def _known_models() -> dict[str, str]:
    return {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in known_models().items()}


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        click.echo(f"{name:>{width}}  {shown}")


@click.command(short_help="Convert data to another format.")
@click.argument("data")
@click.argument("out")
@click.option(
    "--format",
    "to",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Format of OUT; auto uses the extension.",
)
@partial(data_options, format_option="--from")
def convert(data: str, out: str, to: str, reading: Reading) -> None:
    """Convert DATA to another format and write it to OUT; - is standard output."""
    from treemax.cli.data import chunks, open_data
    from treemax.formats import write_examples
    from treemax.formats.detection import is_delimited

    separator = reading.label_separator
    if not is_delimited(data, reading.format):  # then it is for OUT
        reading = replace(reading, label_separator=None)
    with open_data(data, reading) as reader:
        write_examples(out, chunks(reader, "convert", progress=out != "-"), to, label_separator=separator)
