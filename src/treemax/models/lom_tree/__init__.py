"""LOM trees: an online binary tree with a label in every leaf, the baseline of the recall tree paper."""
