"""Predicting the next word: the language experiments of the softmax-tree paper."""
