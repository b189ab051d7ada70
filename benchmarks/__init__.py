"""Treemax against its peers: one data set, one run, one table. `python -m benchmarks --list` says what there is."""

from pathlib import Path

FOLDER = Path(__file__).parent  # has results, .cache and .envs
