"""MACH: merged-average classifiers via hashing."""
