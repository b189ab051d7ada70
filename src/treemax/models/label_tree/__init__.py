"""Probabilistic label trees, trained in batch."""
