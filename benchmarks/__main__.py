"""`python -m benchmarks SUITE`: ours against the peers on one data set, in one run."""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness import report, suites, systems
from benchmarks.harness.command import add_options, run_suite


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="the data set: " + ", ".join(suites.SUITES))
    parser.add_argument("--list", action="store_true", help="the suites, the peers and the models of the library")
    add_options(parser)
    return parser


def listing() -> str:
    try:
        models = ", ".join(systems.our_names())
    except ImportError as missing:
        models = f"(none: {missing})"
    lines = ["Suites:"]
    lines += [f"  {name:16} {suite.about}" for name, suite in suites.SUITES.items()]
    lines += ["Peers:", *(f"  {name:20} {settings}" for name, (_, _, settings) in systems.peer_names().items())]
    return "\n".join([*lines, f"Ours: {models}"])


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.list:
        print(listing())
        return 0
    if options.suite not in suites.SUITES:
        parser.error(f"SUITE must be one of {', '.join(suites.SUITES)}, got {options.suite!r}")
    try:
        result = run_suite(options.suite, options)
    except (ValueError, ImportError, suites.DataMissing) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    print(report.markdown(result))
    return 0 if all(of_system["runs"] for of_system in result["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
