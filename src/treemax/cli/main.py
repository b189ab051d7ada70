"""The group of commands, and how it ends: exit codes, and errors without tracebacks.

0 done, 1 something was wrong with the data, the model or the machine, 2 the command was called wrongly,
130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import get_completion_class

from treemax import __version__
from treemax.cli.answer import evaluate, predict
from treemax.cli.files import convert, info
from treemax.cli.learn import fit, stream
from treemax.cli.show import demo


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="treemax")
def commands() -> None:
    """Classification with thousands to millions of labels.

    DATA is a file in fastText, XMC repository, svmlight, Vowpal Wabbit, JSON lines or npz format; .gz is read
    as it is, and - is standard input. MODEL is a .treemax file.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(treemax completion bash)"."""
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(commands, {}, "treemax", "_TREEMAX_COMPLETE").source())


for command in (fit, predict, evaluate, stream, info, convert, demo, completion):
    commands.add_command(command)


def main() -> None:
    """The `treemax` command."""
    try:
        commands.main(standalone_mode=False, prog_name="treemax")
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:  # click hides the one in the other
        click.echo(f"Interrupted: {stop.__cause__ or stop}".rstrip(": "), err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as in `treemax predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        click.echo(f"Error: {what}", err=True)
        sys.exit(1)
    except (ValueError, MemoryError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
