"""The command explore."""

from __future__ import annotations

from pathlib import Path

import click

from treemax.cli.options import Reading, check_output, data_options, read_size


@click.command(short_help="Write the tree of a model as a web page.")
@click.argument("model", is_eager=True)  # known when --output is checked
@click.argument("data", required=False, is_eager=True)
@click.option("-o", "--output", required=True, callback=check_output, metavar="FILE", help="Write the page to FILE.")
@click.option(
    "--examples", default=200, show_default=True, type=click.IntRange(min=0), help="Examples of DATA in the page."
)
@click.option("--size", default="50MB", show_default=True, callback=read_size, help="Approximate size of the page.")
@data_options
def explore(model: str, data: str | None, output: str, examples: int, size: int, reading: Reading) -> None:
    """Write a page with the tree of MODEL, to open in a browser without a server.

    With DATA, the page has examples with their answers and explanations, and the nodes and labels that are confused
    most. Up to half of the examples have a wrong prediction.
    """
    from treemax.cli.data import checked_chunks, load_model
    from treemax.replacing import replacing
    from treemax.serving.offline_page import offline_page
    from treemax.serving.outline import has_tree

    loaded = load_model(model, None)
    if data is None and not has_tree(loaded):
        kind = type(getattr(loaded, "estimator", loaded)).__name__
        raise ValueError(f"{model} is a {kind}, which has no tree: give DATA, to show its answers")
    rows = () if data is None else checked_chunks(loaded, data, reading)
    page = offline_page(loaded, Path(model).stem, rows, examples, size)
    with replacing(output) as file:
        file.write(page.html)
    click.echo(f"{output}: {len(page.html) / 1e6:.1f} MB; open it in a browser", err=True)
    if page.n_left_out:
        click.echo(f"Left out {page.n_left_out:,} nodes of the tree to keep the page small; see --size.", err=True)
