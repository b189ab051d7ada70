"""The commands info and convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import FORMATS, bits_option, skip_bad_option


@click.command(short_help="What is in a model file; which models there are.")
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
    from treemax.models import MODELS

    return {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in MODELS.items()}


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        click.echo(f"{name:>{width}}  {shown}")


@click.command(short_help="From one data format to another.")
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
@click.option(
    "--from",
    "format_",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Format of DATA; auto detects it by the name or the first lines.",
)
@skip_bad_option
@bits_option
def convert(data: str, out: str, to: str, format_: str, skip_bad: bool, bits: int | None) -> None:
    """Convert DATA to another format and write it to OUT; - is standard output."""
    from treemax.cli.data import chunks, open_data
    from treemax.formats import write_examples

    with open_data(data, format_, skip_bad, bits) as reader:
        write_examples(out, chunks(reader, "convert", progress=out != "-"), to)
