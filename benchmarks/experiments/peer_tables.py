"""`python -m benchmarks.experiments.peer_tables FOLDER ...`: tables of label trees beside their peers, from reports.

The folders are those of `compare --out`; the newest report of a suite counts. A model without reports keeps its tables.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.compare import Result, standings_of
from benchmarks.experiments.defaults import NEW, SPARSE
from benchmarks.harness.output import STORED, help_if_asked, store

PAGE = "peers"
PAIRS = {
    "label-tree": ["pecos", "omikuji-1", "napkinxc-plt"],
    "label-tree:n_trees=3": ["omikuji"],
    "online-label-tree": ["napkinxc-oplt"],
}
NAMES = {
    "label-tree": "LabelTree",
    "label-tree:n_trees=3": "LabelTree, 3 trees",
    "online-label-tree": "OnlineLabelTree",
    "pecos": "PECOS",
    "omikuji-1": "omikuji, 1 tree",
    "omikuji": "omikuji, 3 trees",
    "napkinxc-plt": "napkinXC PLT",
    "napkinxc-oplt": "napkinXC OPLT",
}
FILES = {"label-tree": "label-tree", "label-tree:n_trees=3": "three-trees", "online-label-tree": "online"}
METRICS = ("P@1", "P@3", "P@5")
PARTS = {"first": SPARSE, "new": NEW}  # suites on which defaults were chosen, and those made afterwards
MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"


def reports(folders: Sequence[Path], ours: str) -> list[Result]:
    """The newest report of each suite that has this model; none if there is none at all."""
    found: dict[str, Result] = {}
    for path in sorted((path for folder in folders for path in folder.glob("*.json")), key=lambda path: path.name):
        report = json.loads(path.read_text())
        if ours in [row["system"] for row in report.get("rows", ())]:
            found[report["suite"]] = report
    missing = [suite for suite in (*SPARSE, *NEW) if suite not in found]
    if found and missing:
        raise SystemExit(f"peer_tables: there is no report with {ours} on {', '.join(missing)}")
    return [found[suite] for suite in (*SPARSE, *NEW)] if found else []


def figure(report: Result, system: str, name: str) -> Any:
    """A figure of a system in a report, rounded; None if it has none."""
    value = next(row for row in report["rows"] if row["system"] == system).get(name)
    return None if value is None else float(f"{value:.3g}") if name.endswith(("seconds", "mb")) else round(value, 4)


def of_part(results: Sequence[Result], part: str) -> list[Result]:
    return [result for result in results if result["suite"] in PARTS[part]]


def line_of(result: Result, ours: str, metric: str) -> list[Any]:
    """The suite, our figure, and that of each peer with our difference to it."""
    differences = {line["peer"]: line[metric] for line in result["differences"] if line["ours"] == ours}
    line = [result["suite"], figure(result, ours, metric)]
    for peer in PAIRS[ours]:
        line += [figure(result, peer, metric), {key: round(value, 4) for key, value in differences[peer].items()}]
    return line


def mean_of(name: str, lines: Sequence[list[Any]]) -> list[Any]:
    """The means of the columns."""
    columns = list(zip(*lines, strict=True))[1:]
    means = (
        statistics.fmean(cell["value"] if isinstance(cell, dict) else cell for cell in column) for column in columns
    )
    return [name, *(round(mean, 4) for mean in means)]


def store_precision(results: Sequence[Result], ours: str) -> None:
    for metric in METRICS:
        columns: list[Any] = ["suite", {"name": NAMES[ours], "decimals": 4}]
        for peer in PAIRS[ours]:
            columns += [{"name": NAMES[peer], "decimals": 4}]
            columns += [{"name": f"difference to {NAMES[peer]}", "decimals": 4, "signed": True}]
        first, new = ([line_of(result, ours, metric) for result in of_part(results, part)] for part in PARTS)
        store(
            PAGE, f"{FILES[ours]}-{metric.lower().replace('@', '')}", columns=columns, machine=MACHINE,
            title=f"{NAMES[ours]}: {metric}", command=command(results, ours),
            rows=[*first, mean_of("mean of these", first), *new, mean_of("mean of the last six", new)],
            shows="Test rows, defaults on both sides, one thread. A difference is ours less the peer's on the same rows, with its "
            "standard error. The last six suites were made after the defaults were chosen.",
        )  # fmt: skip


def command(results: Sequence[Result], ours: str) -> str:
    suites = ",".join(result["suite"] for result in results)
    return f"python -m benchmarks.experiments.compare {suites} --ours {ours} --peers {','.join(PAIRS[ours])}"


def mean_rows(results: Sequence[Result], ours: str) -> Iterator[list[Any]]:
    """For each peer and metric the means, and in how many suites ours is ahead, even and behind by one standard error."""
    for place, peer in enumerate(PAIRS[ours]):
        for metric in METRICS:
            means = mean_of("", [line_of(result, ours, metric) for result in results])
            standing = standings_of(results, metric)[ours, peer]
            yield [NAMES[ours], NAMES[peer], metric, means[1], *means[2 + 2 * place : 4 + 2 * place], *standing]


def store_means(name: str, rows: list[list[Any]]) -> None:
    """Store the table of means anew, with its title and text, and the rows of the models without reports."""
    before = json.loads((STORED / PAGE / f"{name}.json").read_text())
    run = {row[0] for row in rows}
    kept = [row for row in before["rows"] if row[0] not in run]
    rows = sorted([*rows, *kept], key=lambda row: list(NAMES.values()).index(row[0]))
    texts = {key: before[key] for key in ("title", "shows", "columns", "command")}
    store(PAGE, name, rows=rows, machine=MACHINE, **texts)


def store_training(results: Sequence[Result], ours: str) -> None:
    """Store training seconds, file sizes, calibration error and F1."""
    peer, systems, seconds = PAIRS[ours][0], [ours, *PAIRS[ours]], "train_cpu_seconds"
    ratios = [figure(result, peer, seconds) / figure(result, ours, seconds) for result in results]
    shown = [(system, "s", seconds) for system in systems] + [(system, "MB", "model_mb") for system in systems[:2]]
    shown += [(system, "ECE", "ECE") for system in systems if figure(results[0], system, "ECE") is not None]
    shown += [(ours, "micro-F1", "micro-F1")]
    columns: list[Any] = ["suite"]
    for system, unit, name in shown:
        columns.append({"name": f"{NAMES[system]}, {unit}", **({"decimals": 3} if name in ("ECE", "micro-F1") else {})})
    store(
        PAGE, f"{FILES[ours]}-training", columns=columns, machine=MACHINE, command=command(results, ours),
        title=f"{NAMES[ours]}: training seconds, file sizes and calibration",
        rows=[[result["suite"], *(figure(result, system, name) for system, _, name in shown)] for result in results],
        shows=f"Processor seconds, defaults, one thread. {NAMES[ours]} trains {min(ratios):.1f} to {max(ratios):.1f} times as fast as "
        f"{NAMES[peer]}, {statistics.geometric_mean(ratios):.1f} times in the geometric mean. ECE is the expected calibration error of "
        "the first answer, in ten bins with the same number of rows; a perfectly calibrated model has 0.01 to 0.04 on so few rows. "
        "micro-F1 is that of the labels that `predict` answers.",
    )  # fmt: skip


def main(folders: Sequence[Path]) -> None:
    means: dict[str, list[list[Any]]] = {"means": [], "new-suites-means": []}
    for ours in PAIRS:
        results = reports(folders, ours)
        if results:
            store_precision(results, ours)
            store_training(results, ours)
            for name, part in zip(means, PARTS):
                means[name] += mean_rows(of_part(results, part), ours)
    for name, rows in means.items():
        store_means(name, rows)


if __name__ == "__main__":
    help_if_asked(__doc__)
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
