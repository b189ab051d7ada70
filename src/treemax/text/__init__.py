"""Vectorisers of texts."""
