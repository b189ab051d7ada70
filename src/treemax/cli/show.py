"""The command demo."""

from __future__ import annotations

import click


@click.command(short_help="The models on the embedded WordNet data, in one table.")
@click.option("--jobs", default=1, show_default=True, help="Threads; -1 for all cores.")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Train on the first ROWS examples only, for a quick run."
)
def demo(jobs: int, rows: int | None) -> None:
    """Train the models on the embedded WordNet data and compare them in one table."""
    from treemax.demo import run

    for line in run(jobs, rows):
        click.echo(line)
