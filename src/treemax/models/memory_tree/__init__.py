"""Contextual memory trees: a binary tree whose leaves remember rows, a baseline of the online label tree paper."""
