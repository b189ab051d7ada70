"""Durations of the tests in this folder: short in `make test`, long in `make faults`."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("TREEMAX_FAULTS_ROUNDS", "2"))  # of what is tried at random moments, for each model
SECONDS = float(os.environ.get("TREEMAX_FAULTS_SECONDS", "2"))  # of what goes on for some time
