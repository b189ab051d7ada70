"""Probabilistic label trees that learn from a stream and grow as labels appear."""
