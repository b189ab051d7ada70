"""The command explain."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treemax.cli.options import Reading, check_output, data_options

if TYPE_CHECKING:
    from treemax.explanations import Explanation


@click.command(short_help="Explain a prediction.")
@click.argument("model", is_eager=True)  # known when --output is checked
@click.argument("text", required=False)
@click.option(
    "--data", is_eager=True, metavar="DATA", help="Explain a row of DATA instead of TEXT; - is standard input."
)
@click.option("--row", default=1, show_default=True, type=click.IntRange(min=1), help="The row of DATA.")
@click.option("--label", help="Explain this label; by default the answer.")
@click.option("-k", default=5, show_default=True, type=click.IntRange(min=1), help="Candidates to list.")
@click.option(
    "--features",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="Words or features to show at each step.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html", "plot"]),
    default="text",
    show_default=True,
    help="Form of the answer; plot writes the kind of image that FILE ends with, such as .png or .svg.",
)
@click.option("-o", "--output", callback=check_output, metavar="FILE", help="Write to FILE instead of standard output.")
@partial(data_options, format_option="--from")
def explain(
    model: str, text: str | None, data: str | None, row: int, label: str | None, k: int, features: int, form: str,
    output: str | None, reading: Reading,
) -> None:  # fmt: skip
    """Explain the answer of MODEL for TEXT: the path through the tree, and what each word added.

    For a model of features, or to explain a text of a file, use --data.
    """
    from treemax.cli.data import load_model, takes_text
    from treemax.cli.label_files import label_from_text
    from treemax.replacing import replacing

    if form == "plot" and output is None:
        raise click.UsageError("--format plot needs --output, such as --output why.png.")
    if (text is None) == (data is None):
        raise click.UsageError("Give either TEXT or --data.")
    loaded = load_model(model, None)
    if text is not None and not takes_text(loaded):
        raise ValueError(f"{model} was trained on features, not on text: give a row of features with --data.")
    given = [text] if data is None else _row(loaded, data, row, reading)
    explanation = loaded.explain(
        given, label=None if label is None else label_from_text(label, loaded.label_index_), k=k
    )
    if form == "plot":
        assert output is not None
        encoded = _image(explanation, features, Path(output).suffix[1:])
    else:
        answer = {
            "text": lambda: explanation.to_text(features), "json": explanation.to_json, "html": lambda: explanation.to_html(features, page=True),
        }[form]()  # fmt: skip
        encoded = answer.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"  # half a character is escaped
    if output is None:
        click.echo(encoded, nl=False)
        return
    with replacing(output) as file:
        file.write(encoded)


def _image(explanation: Explanation, features: int, kind: str) -> bytes:
    """Return a plot of the explanation as the bytes of an image file."""
    from treemax.plots import plot_explanation

    image = BytesIO()
    plot_explanation(explanation, features=features).figure.savefig(image, format=kind or "png", bbox_inches="tight")
    return image.getvalue()


def _row(model: Any, data: str, number: int, reading: Reading) -> Any:
    """Return one row of DATA, counted from 1."""
    from treemax.cli.data import check_kind, open_data

    before = 0
    with open_data(data, reading, model=model, labels=False) as reader:
        for examples in reader:
            check_kind(model, examples, reader.name)
            if number <= before + len(examples):
                return examples[number - 1 - before : number - before].features
            before += len(examples)
        raise ValueError(f"{reader.name}: has {before:,} rows, so there is no row {number:,}")
