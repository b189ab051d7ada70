"""The loops: pure functions on arrays, compiled by Numba. Nothing here knows about estimators."""
