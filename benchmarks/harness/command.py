"""What the commands that run suites share: their options, and one suite from its data to the stored report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import FOLDER
from benchmarks.harness import report, suites, systems
from benchmarks.harness.runner import run_all

SETTINGS = ("repeat", "threads", "limit", "validation", "timeout")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", help="NAME[:setting=value,...],... or none; default: those of the suite")
    parser.add_argument("--ours", help="the same for the library's models; default: all of them")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="train each N times, take the best time")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads and cores (default 1)")
    parser.add_argument("--limit", type=int, metavar="ROWS", help="a sample of so many training and test rows")
    parser.add_argument(
        "--validation", action="store_true", help="predict rows cut from the training rows, read no test row"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600, metavar="SECONDS", help="for each stage of a run (default 3600)"
    )
    parser.add_argument("--out", type=Path, default=FOLDER / "results", metavar="DIR", help="where to store the report")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a result depends on, beside the suite and the systems."""
    return {name: getattr(options, name) for name in SETTINGS} | {"recipes": suites.RECIPES}


def systems_of(name: str, options: argparse.Namespace) -> list[systems.System]:
    """Ours, then the peers, as the options name them or the suite does."""
    suite = suites.SUITES[name]
    peers = systems.peers(suite.peers if options.peers is None else options.peers)
    return [*systems.ours(options.ours or suite.ours or ",".join(systems.our_names())), *peers]


def run_suite(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a suite and store its report."""
    chosen = systems_of(name, options)
    data = suites.prepared(name, options.limit, options.validation)
    outcomes = run_all(chosen, data, options.repeat, options.threads, options.timeout)
    facts = json.loads((data / "facts.json").read_text())
    result = report.report(name, facts, outcomes, settings_of(options))
    page = report.store(result, options.out)
    print(f"Stored as {page} and {page.with_suffix('.json').name}.", file=sys.stderr)
    return result
