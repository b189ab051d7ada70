"""Pure functions on arrays, compiled by Numba and shared by several models."""
