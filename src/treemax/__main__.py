"""`python -m treemax` is the command line."""

from treemax.cli import main

main()
