"""The command serve."""

from __future__ import annotations

import os
from pathlib import Path

import click

from treemax.cli.options import Reading
from treemax.memory import parse_bytes


@click.command(short_help="Serve models over HTTP, with a web page.")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for a free one.")
@click.option("--data", metavar="FOLDER", help="Folder of copies of models and of examples; default MODEL.serve.")
@click.option(
    "--token",
    envvar="TREEMAX_TOKEN",
    metavar="TOKEN",
    help="Token required to learn and to read the log; at least 16 characters, or its hash. Also TREEMAX_TOKEN.",
)
@click.option(
    "--token-file", metavar="FILE", help="File with the hash of the token; made, with a new token, if missing."
)
@click.option("--private", is_flag=True, help="Require the token for all requests.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Name of this server, such as models.example.org.")
@click.option("--max-body", default="4MB", show_default=True, metavar="SIZE", help="Maximum size of a request.")
@click.option(
    "--max-rows", default=1000, show_default=True, type=click.IntRange(min=1), help="Maximum rows per request."
)
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Maximum time for a request to arrive, and for its response.",
)
@click.option("--connections", default=1000, show_default=True, type=click.IntRange(min=1), help="Maximum connections.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Number of processes.")
@click.option(
    "--learn/--no-learn", default=True, show_default=True, help="Let models that learn online learn from /learn."
)
@click.option(
    "--test",
    "tests",
    multiple=True,
    metavar="[NAME=]DATA",
    help="Labelled data: the page shows the error of each node.",
)
@click.option("--api", type=click.Choice(["annif"]), help="Also provide another API: that of Annif.")
def serve(
    models: tuple[str, ...], host: str, port: int, data: str | None, token: str | None, token_file: str | None,
    private: bool, allow_host: tuple[str, ...], max_body: str, max_rows: int, timeout: float, connections: int, workers: int, learn: bool, tests: tuple[str, ...],
    api: str | None,
) -> None:  # fmt: skip
    """Serve MODELs over HTTP: /predict, /explain, /labels, /models and a page; /openapi.json lists all.

    A MODEL has the name of its file, without the extension, unless NAME= is before it. A file that changes is loaded
    again; if that fails, the old model stays in use.
    """
    from treemax.serving.running import Settings, run

    token_hash = _token_hash(token, token_file)
    named = _named(models)
    settings = Settings(
        models=named,
        errors=_errors(tests, named),
        host=host,
        port=port,
        data=data,
        token_hash=token_hash,
        private=private,
        allowed_hosts=list(allow_host),
        body_bytes=parse_bytes(max_body),
        rows=max_rows,
        seconds=timeout,
        connections=connections,
        workers=workers,
        learn=learn,
        api=api,
    )
    run(settings, lambda line: click.echo(line, err=True))


def _named(models: tuple[str, ...]) -> dict[str, str]:
    """Return the paths of the models by name."""
    named: dict[str, str] = {}
    for each in models:
        name, equals, path = each.partition("=")
        if not equals or os.sep in name:
            name, path = Path(each).stem, each
        if not name or name in named:
            raise click.UsageError(f"Two models are called {name!r}; write NAME={path} to give one another name.")
        named[name] = str(Path(path).absolute())
    return named


def _errors(tests: tuple[str, ...], models: dict[str, str]) -> dict[str, dict[str, list[int]]]:
    """Return the errors of models at their nodes, measured on labelled data."""
    found = {}
    for each in tests:
        name, equals, path = each.partition("=")
        if not equals or os.sep in name:
            name, path = next(iter(models)), each
            if len(models) > 1:
                raise click.UsageError(f"Several models are served; write --test NAME={each}.")
        if name not in models:
            raise click.UsageError(f"--test {each}: there is no model {name!r}; served are {', '.join(models)}.")
        found[name] = _node_errors(models[name], path)
    return found


def _node_errors(path: str, data: str) -> dict[str, list[int]]:
    from treemax.cli.data import checked_chunks, load_model
    from treemax.serving.offline_page import node_errors

    model = load_model(path, None)
    return node_errors(model, checked_chunks(model, data, Reading()))


def _token_hash(token: str | None, token_file: str | None) -> str | None:
    from treemax.serving.guard import hash_of_token, is_hash, read_token_file

    if token is not None and token_file is not None:
        raise click.UsageError("--token and --token-file are two ways to give one token; choose one.")
    if token_file is not None:
        stored, new = read_token_file(token_file)
        if new is not None:
            click.echo(f"The new token, which is stored nowhere: {new}", err=True)
        return stored
    return token if token is None or is_hash(token) else hash_of_token(token)
