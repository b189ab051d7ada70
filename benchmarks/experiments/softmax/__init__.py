"""Experiments with softmax trees; see `__main__`."""
