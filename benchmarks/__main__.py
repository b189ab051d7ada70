"""`python -m benchmarks SUITE`: ours against the peers on one data set, in one run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import report, suites, systems
from benchmarks.runner import run_all


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="the data set: " + ", ".join(suites.SUITES))
    parser.add_argument(
        "--list", action="store_true", help="the suites, the peers and the models of the library"
    )
    parser.add_argument("--peers", help="NAME[:setting=value,...],... or none; default: those of the suite")
    parser.add_argument("--ours", help="the same for the library's models; default: all of them")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="train each N times, take the best time"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads and cores (default 1)")
    parser.add_argument(
        "--limit", type=int, metavar="ROWS", help="a sample of so many training and test rows"
    )
    parser.add_argument(
        "--validation", action="store_true", help="predict rows cut from the training rows, read no test row"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=3600,
        metavar="SECONDS",
        help="for each stage of a run (default 3600)",
    )
    parser.add_argument(
        "--out", type=Path, default=suites.HERE / "results", metavar="DIR", help="where to store the report"
    )
    return parser


def listing() -> str:
    try:
        models = ", ".join(systems.our_names())
    except ImportError as missing:
        models = f"(none: {missing})"
    lines = ["Suites:"]
    lines += [f"  {name:10} {suite.about}" for name, suite in suites.SUITES.items()]
    lines += [
        "Peers:",
        *(f"  {name:20} {settings}" for name, (_, _, settings) in systems.peer_names().items()),
    ]
    return "\n".join([*lines, f"Ours: {models}"])


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.list:
        print(listing())
        return 0
    if options.suite not in suites.SUITES:
        parser.error(f"SUITE must be one of {', '.join(suites.SUITES)}, got {options.suite!r}")
    suite = suites.SUITES[options.suite]
    try:
        peers = systems.peers(suite.peers if options.peers is None else options.peers)
        ours = systems.ours(options.ours or suite.ours or ",".join(systems.our_names()))
        data = suites.prepared(options.suite, options.limit, options.validation)
    except (ValueError, ImportError, suites.DataMissing) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    outcomes = run_all([*ours, *peers], data, options.repeat, options.threads, options.timeout)
    facts = json.loads((data / "facts.json").read_text())
    settings = {
        name: getattr(options, name) for name in ("repeat", "threads", "limit", "validation", "timeout")
    }
    result = report.report(options.suite, facts, outcomes, settings)
    page = report.store(result, options.out)
    print(report.markdown(result))
    print(f"Stored as {page} and {page.with_suffix('.json').name}.", file=sys.stderr)
    return 0 if all(outcome.runs for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
