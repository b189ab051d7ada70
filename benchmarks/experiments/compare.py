"""`python -m benchmarks.experiments.compare SUITE,SUITE,...`: ours against the peers on several data sets, figure by figure.

The suites run one after the other. One whose report for the same systems and settings is in the folder already is
not run again, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import suites
from benchmarks.harness.command import add_options, run_suite, settings_of, systems_of
from benchmarks.harness.report import Row, table, with_error

Result = dict[str, Any]  # what `report.report` gives


def stored(name: str, options: argparse.Namespace) -> Result | None:
    """The newest report of this suite with the same systems and settings, if there is one."""
    wanted = [system.name for system in systems_of(name, options)]
    for path in sorted(options.out.glob(f"{name}-*.json"), reverse=True):
        found = json.loads(path.read_text())
        same = found.get("suite") == name and found["options"] == settings_of(options)
        if same and [row["system"] for row in found["rows"]] == wanted:
            return found
    return None


def results_of(names: Sequence[str], options: argparse.Namespace) -> Iterator[Result]:
    for name in names:
        found = None if options.again else stored(name, options)
        if found:
            print(f"{name}: taken from the report of {found['date']}", file=sys.stderr, flush=True)
        yield found or run_suite(name, options)


def figures_of(results: Sequence[Result]) -> list[str]:
    """The figures that have standard errors, of all suites."""
    names = (name for result in results for row in result["rows"] for name in row.get("standard_errors", ()))
    return list(dict.fromkeys(names))


def systems_in(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(row["system"] for result in results for row in result["rows"]))


def values_of(results: Sequence[Result], figure: str) -> dict[str, dict[str, Row]]:
    """Suite by suite, then system by system: value and standard error."""
    found = {}
    for result in results:
        of_suite = {
            row["system"]: {"value": row[figure], "error": row["standard_errors"][figure]}
            for row in result["rows"]
            if figure in row.get("standard_errors", ())
        }
        if of_suite:
            found[result["suite"]] = of_suite
    return found


def means_of(values: dict[str, dict[str, Row]]) -> dict[str, Row]:
    """The mean over the suites, for each system that has a figure for all of them."""
    n = len(values)
    return {
        system: {
            "value": sum(of_suite[system]["value"] for of_suite in values.values()) / n,
            "error": math.hypot(*(of_suite[system]["error"] for of_suite in values.values())) / n,
        }
        for system in next(iter(values.values()))
        if all(system in of_suite for of_suite in values.values())
    }


def standings_of(results: Sequence[Result], figure: str) -> dict[tuple[str, str], list[int]]:
    """For each of ours and each peer, in how many suites the peer is behind, within one standard error, ahead."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in (line for result in results for line in result["differences"] if figure in line):
        gain = -line[figure]["value"] if figure.startswith("error") else line[figure]["value"]
        place = 1 if abs(gain) <= line[figure]["error"] else 0 if gain > 0 else 2
        found.setdefault((line["ours"], line["peer"]), [0, 0, 0])[place] += 1
    return found


def time_ratios_of(results: Sequence[Result]) -> dict[tuple[str, str], dict[str, float]]:
    """Training time, ours / peer, suite by suite."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for result in results:
        for line in result["ratios"]:
            if line["train_seconds"]:
                found.setdefault((line["ours"], line["peer"]), {})[result["suite"]] = line["train_seconds"]
    return found


def markdown(results: Sequence[Result]) -> str:
    """All tables as a page."""
    page = [f"# {len(results)} suites, {time.strftime('%Y-%m-%d %H:%M:%S')}"]
    for figure in figures_of(results):
        page += ["", f"## {figure}", "", *figure_table(results, figure)]
    page += ["", "## Suites in which a peer is behind / within one standard error / ahead", ""]
    page += standings_table(results)
    page += ["", "## Training time, ours / peer", "", *time_table(results)]
    failed = [(result["suite"], row) for result in results for row in result["rows"] if row["error"]]
    notes = [f"- {suite}: {row['system']} failed: {row['error']}" for suite, row in failed]
    return "\n".join([*page, *(["", *notes] if notes else []), ""])


def figure_table(results: Sequence[Result], figure: str) -> list[str]:
    values = values_of(results, figure)
    columns = [system for system in systems_in(results) if any(system in of_suite for of_suite in values.values())]
    lines = {**values, "mean": means_of(values)} if len(values) > 1 else values
    body = [
        [suite, *(with_error(figure, of_suite.get(system), signed=False) for system in columns)]
        for suite, of_suite in lines.items()
    ]
    return table(["suite", *columns], body)


def standings_table(results: Sequence[Result]) -> list[str]:
    standings = {figure: standings_of(results, figure) for figure in figures_of(results)}
    pairs = dict.fromkeys(pair for of_figure in standings.values() for pair in of_figure)
    body = [
        [
            *pair,
            *(" / ".join(map(str, of_figure[pair])) if pair in of_figure else "" for of_figure in standings.values()),
        ]
        for pair in pairs
    ]
    return table(["ours", "peer", *standings], body)


def time_table(results: Sequence[Result]) -> list[str]:
    names = [result["suite"] for result in results]
    body = []
    for pair, ratios in time_ratios_of(results).items():
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        cells = [f"{ratios[name]:.3g}" if name in ratios else "" for name in names]
        body.append([*pair, *cells, f"{mean:.3g}"])
    return table(["ours", "peer", *names, "geometric mean"], body)


def numbers(results: Sequence[Result]) -> dict[str, Any]:
    """What the tables show, for programs."""

    def by_pair(found: dict[tuple[str, str], Any]) -> list[Row]:
        return [{"ours": ours, "peer": peer, "found": value} for (ours, peer), value in found.items()]

    figures = figures_of(results)
    return {
        "options": results[0]["options"],
        "dates": {result["suite"]: result["date"] for result in results},
        "values": {figure: values_of(results, figure) for figure in figures},
        "means": {figure: means_of(values_of(results, figure)) for figure in figures},
        "behind, within, ahead": {figure: by_pair(standings_of(results, figure)) for figure in figures},
        "train_seconds, ours / peer": by_pair(time_ratios_of(results)),
    }


def store(results: Sequence[Result], folder: Path) -> Path:
    """Write the page and its numbers; returns the path of the page."""
    page = folder / f"compare-{time.strftime('%Y-%m-%d-%H%M%S')}.md"
    page.write_text(markdown(results))
    page.with_suffix(".json").write_text(json.dumps(numbers(results), indent=2) + "\n")
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.compare", description=__doc__)
    parser.add_argument("suites", metavar="SUITE,...", help="any of " + ", ".join(suites.SUITES))
    parser.add_argument("--again", action="store_true", help="run also what is there already")
    add_options(parser)
    options = parser.parse_args(arguments)
    names = [name for name in options.suites.split(",") if name]
    unknown = [name for name in names if name not in suites.SUITES]
    if unknown or not names:
        parser.error(f"SUITE must be any of {', '.join(suites.SUITES)}, got {options.suites!r}")
    try:
        results = list(results_of(names, options))
    except (ValueError, ImportError, suites.DataMissing) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    page = store(results, options.out)
    print(page.read_text())
    print(f"Stored as {page} and {page.with_suffix('.json').name}.", file=sys.stderr)
    return 0 if not any(row["error"] for result in results for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
