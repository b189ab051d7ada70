"""The command line; `treemax --help` lists the commands."""

from treemax.cli.main import main

__all__ = ["main"]
