"""Answers in a taxonomy, beside hiclass; see `__main__`."""
