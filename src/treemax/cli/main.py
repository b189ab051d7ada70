"""The group of commands, its exit codes, and errors without tracebacks.

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from treemax import __version__
from treemax.cli.answer import evaluate, predict
from treemax.cli.explain import explain
from treemax.cli.explore import explore
from treemax.cli.files import convert, info
from treemax.cli.interruption import interruption
from treemax.cli.labels import labels
from treemax.cli.learn import fit
from treemax.cli.serve import serve
from treemax.cli.show import compile_models, demo
from treemax.cli.stream import stream
from treemax.cli.thresholds import thresholds
from treemax.cli.tune import tune
from treemax.extras import MissingExtra


class _Commands(click.Group):
    """Group that handles the errors of every command, before click does."""

    def list_commands(self, context: click.Context) -> list[str]:
        """List the commands in order of use, not alphabetically."""
        return list(self.commands)

    def invoke(self, context: click.Context) -> Any:
        with interruption:
            try:
                return self._invoke(context)
            finally:
                interruption.hold()  # ignore Ctrl-C while the command ends

    def _invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt as stop:
            message = str(stop) or "interrupted"
            click.echo(message[0].upper() + message[1:], err=True)
            context.exit(130)
        except BrokenPipeError:  # as in `treemax predict ... | head`
            _drop_output()
            context.exit(0)
        except OSError as error:
            if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                error.filename = "standard output"  # all other files have a name
            if error.filename == "standard output":
                _drop_output()
            known = error.filename and error.strerror
            raise click.ClickException(f"{error.filename}: {error.strerror}" if known else str(error)) from None
        except (ValueError, MemoryError, MissingExtra) as error:
            raise click.ClickException(str(error) or "out of memory") from None


class _ClosedOutput(io.RawIOBase):
    """Replacement of a closed standard output: writing raises."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.EBADF, "The stream is closed", "standard output")


def _drop_output() -> None:
    """Discard buffered output, which Python would try to write again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(nowhere, sys.stdout.fileno())
        return
    sys.stdout = None


def _replace_closed_streams() -> None:
    """Reopen closed standard streams, so that no other file gets their descriptors and receives a library's messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is the one just closed
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(_ClosedOutput(), write_through=True)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="treemax")
def commands() -> None:
    """Classification with thousands to millions of labels.

    DATA is a file in fastText, XMC repository, svmlight, Vowpal Wabbit, JSON lines, npz, Parquet, Arrow, CSV or TSV format,
    or a folder of such files; .gz files are decompressed, and - is standard input. MODEL is a .treemax file.
    """


@click.command(short_help="Print the completion script of bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(treemax completion bash)"."""
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(commands, {}, "treemax", "_TREEMAX_COMPLETE").source())


for command in (
    fit, tune, predict, explain, explore, serve, evaluate, stream, thresholds, info, labels, convert, demo,
    compile_models, completion,
):  # fmt: skip
    commands.add_command(command)


def main() -> None:
    """Run the `treemax` command."""
    _replace_closed_streams()
    interruption.__enter__()
    try:
        commands.main(prog_name="treemax")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C while Python exits would print a traceback
