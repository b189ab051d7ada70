"""Classification with thousands to millions of labels, in time logarithmic in their number."""

__version__ = "0.1.0"
