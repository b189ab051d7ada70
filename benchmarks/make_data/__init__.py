"""Data sets made from public packages: `python -m benchmarks.make_data NAME`. One file a set; nothing is generated."""
