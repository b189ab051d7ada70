"""Validation and conversion of X and y."""
