"""The commands demo and compile."""

from __future__ import annotations

import time

import click

from treemax.cli.options import name_of_model


@click.command(short_help="Train trees on the embedded WordNet data.")
@click.option("--jobs", default=1, show_default=True, help="Threads; -1 for all cores.")
@click.option("--rows", type=click.IntRange(min=1), help="Train on the first ROWS examples only, for a quick run.")
@click.option("--all", "all_models", is_flag=True, help="Compare other models too, which takes minutes.")
def demo(jobs: int, rows: int | None, all_models: bool) -> None:
    """Train trees on the embedded WordNet data, compare them in one table and show predictions."""
    click.echo("Loading ...", err=True)
    from treemax.demo import run

    for line in run(jobs, rows, all_models):
        click.echo(line)


@click.command("compile", short_help="Compile models in advance.")
@click.argument("models", nargs=-1, metavar="[NAME]...")
def compile_models(models: tuple[str, ...]) -> None:
    """Compile the kernels of models, given by name, all by default, so that their first use starts at once.

    Compiled kernels are kept in the folder NUMBA_CACHE_DIR, or else beside the package or in the home folder. They are
    for the processor of this machine.
    """
    from treemax.models import MODELS
    from treemax.models.compiling import compile_model

    models = tuple(map(name_of_model, models))
    unknown = [name for name in models if name not in MODELS]
    if unknown:
        raise click.BadParameter(f"unknown name of a model {unknown[0]!r}; choose from {', '.join(MODELS)}.")
    for name in models or MODELS:
        start = time.perf_counter()
        compile_model(name)
        click.echo(f"{name}: {time.perf_counter() - start:.1f} s", err=True)
