"""The long run of the fuzzers: `make fuzz MINUTES=30`, or `python -m tests.fuzz.run --minutes 30`.

Findings are written into a file, one a line, with all that is needed to repeat them: a model file by the changes to
make, a data file by its bytes. `python -m tests.fuzz.run --again FILE` runs them once more. What was found and repaired
belongs into `corpus.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import model_files, readers
from tests.fuzz.saved_models import NAMES_OF_ALL
from tests.fuzz.workers import Outcome, run_cases
from treemax.formats import FORMATS

AT_ONCE = 200  # cases of one kind
KINDS = {kind.__name__: kind for kind in (model_files.Forged, model_files.Damaged, readers.File)}
CHECKS: dict[str, Callable[[Any], str]] = {
    "Forged": model_files.check,
    "Damaged": model_files.check,
    "File": readers.check,
}


def batches(seed: int) -> Iterator[list[Any]]:
    """Cases without end: of every model and every format in turn."""
    while True:
        seeds = range(seed, seed + AT_ONCE)
        for model in NAMES_OF_ALL:
            yield [model_files.forged(model, own) for own in seeds]
            yield [model_files.damaged(model, own) for own in seeds[: AT_ONCE // 10]]
        for format in FORMATS:
            yield [readers.made(format, own) for own in seeds]
        seed += AT_ONCE


def run(minutes: float, seed: int, findings: Path) -> int:
    """Fuzz for so long; returns how much was found."""
    started, counts = time.monotonic(), Counter[str]()
    for model in NAMES_OF_ALL:  # train and compile before processes are forked
        model_files.check(model_files.Damaged(model, []))
    for format in FORMATS:
        readers.check(readers.sound(format))
    started = time.monotonic()
    for cases in batches(seed):
        kind = type(cases[0]).__name__
        for outcome in run_cases(cases, CHECKS[kind]):
            counts[f"{kind}, {'FOUND' if outcome.found else outcome.what}"] += 1
            if outcome.found:
                _keep(outcome, findings)
            if time.monotonic() - started > 60 * minutes:
                _report(counts, seed, started)
                return sum(number for name, number in counts.items() if name.endswith("FOUND"))
    raise AssertionError("unreachable")


def _keep(outcome: Outcome, findings: Path) -> None:
    kind = type(outcome.case).__name__
    with findings.open("a") as file:
        file.write(json.dumps({"kind": kind, "case": outcome.case, "what": outcome.what}) + "\n")
    print(f"FOUND: {kind} {str(outcome.case)[:300]}\n{outcome.what[-600:]}\n", flush=True)


def _report(counts: Counter[str], seed: int, started: float) -> None:
    bounds = "with" if os.environ.get("NUMBA_BOUNDSCHECK") == "1" else "without"
    minutes = (time.monotonic() - started) / 60
    print(f"{counts.total():,} cases in {minutes:.0f} minutes, {bounds} bounds checks, from seed {seed}:")
    for name, number in sorted(counts.items()):
        print(f"  {name}: {number:,}")


def again(findings: Path) -> int:
    """Run what is in a file of findings once more; returns how much is still found."""
    still = 0
    for line in findings.read_text().splitlines():
        entry = json.loads(line)
        case = KINDS[entry["kind"]](*entry["case"])
        for outcome in run_cases([case], CHECKS[entry["kind"]]):
            still += outcome.found
            print(f"{'FOUND' if outcome.found else 'gone'}: {str(case)[:300]}\n{outcome.what[-1500:]}\n")
    return still


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="where to begin; by default the time of day")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings.jsonl"))
    parser.add_argument("--again", type=Path, default=None, help="a file of findings to run once more")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.again:
        sys.exit(again(given.again) > 0)
    seed = given.seed if given.seed is not None else int(time.time())
    sys.exit(run(given.minutes, seed, given.findings) > 0)
