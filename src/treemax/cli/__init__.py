"""The command line: `treemax fit | tune | predict | explain | eval | stream | info | convert | demo | completion`."""

from treemax.cli.main import main

__all__ = ["main"]
