"""Treemax against its peers: one data set, one run, one table. `python -m benchmarks --list` says what there is."""
