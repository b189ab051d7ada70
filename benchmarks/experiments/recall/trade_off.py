"""Error against the time of a prediction: RecallTree at several settings, OneVsAll, and Vowpal Wabbit's reductions (4.2).

Everything is trained and timed by the harness, in processes of its own; the same passes for all. Times are processor time:
what else the machine had to do does not count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.harness.output import canvas, draw, keep, rounded, store
from benchmarks.harness.report import summary
from benchmarks.harness.runner import run_all
from benchmarks.harness.suites import prepared
from benchmarks.harness.systems import our_names, ours, peers

PASSES = 3
BEAMS = ((1, 10), (2, 20), (4, 40), (8, 60), (16, 100), (32, 150))  # width and candidates
CANDIDATES = (2, 5, 10, 20, 40, 100)
ERRORS = (8, 10, 15, 20, 30, 40, 60)  # on the axis
PEERS = ("vw-recall-tree", "vw-log-multi", "vw-oaa", "vw-memory-tree")
TIMES = {
    "batch_cpu_microseconds": "microseconds a row, all rows at once",
    "one_cpu_microseconds": "microseconds a row, one row at a time",
}


def families() -> dict[str, dict[str, str]]:
    """Our systems: what is drawn as one line -> name of a point -> system as the harness names it."""
    end = f"passes={PASSES}"
    found = {
        "RecallTree, beam/candidates": {
            f"{beam}/{n}": f"recall-tree:beam={beam},n_candidates={n},{end}" for beam, n in BEAMS
        },
        "RecallTree, paper, candidates": {
            f"{n}": f"recall-tree:algorithm=paper,n_candidates={n},{end}" for n in CANDIDATES
        },
        "OneVsAll": {"": f"one-vs-all:{end}"},
    }
    if "lom-tree" in our_names():
        found["LOMTree"] = {"": f"lom-tree:{end}"}
    return found


def peer_systems() -> dict[str, str]:
    return {name: f"{name}:passes={PASSES}" for name in PEERS}


def run(suite: str, report: str | None) -> list[dict[str, Any]]:
    """A row of figures for every system; the peers from `report`, an earlier run, if one is given."""
    names = [system for family in families().values() for system in family.values()]
    systems = ours(",".join(names))
    earlier: list[dict[str, Any]] = []
    if report is None:
        systems += peers(",".join(peer_systems().values()))
    else:
        earlier = [row for row in json.loads(Path(report).read_text())["rows"] if not row["ours"]]
    return [summary(outcome) for outcome in run_all(systems, prepared(suite))] + earlier


def located(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by family and point; what failed is left out. A peer is a family of one."""
    by_name = {row["system"]: row for row in rows if "error@1" in row}
    wanted = {**families(), **{name: {"": system} for name, system in peer_systems().items()}}
    found = {}
    for family, systems in wanted.items():
        points = {point: by_name[system] for point, system in systems.items() if system in by_name}
        if points:
            found[family] = points
    return found


COLUMNS = [
    {"name": name}
    for name in ("model", "setting", "error %", "train s", "predict us, batch", "predict us, one", "model MB")
]


def lines_of(found: dict[str, dict[str, dict[str, Any]]]) -> list[list[Any]]:
    names = ("error@1", "train_cpu_seconds", *TIMES, "model_mb")
    return [
        [family if family in PEERS else f"**{family}**", point, *(rounded(row[name]) for name in names)]
        for family, points in found.items()
        for point, row in points.items()
    ]


def plot(suite: str, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    from matplotlib.ticker import NullLocator

    figure, axes = canvas(2, 11, 5.5, sharey=True)
    for axis, (time, title) in zip(axes, TIMES.items(), strict=True):
        for family, points in found.items():
            places = [row[time] for row in points.values()]
            errors = [row["error@1"] for row in points.values()]
            axis.plot(places, errors, "s" if family in PEERS else "o-", markersize=5, label=family)
            left = "paper" in family
            for place_in_line, (point, place, error) in enumerate(zip(points, places, errors, strict=True)):
                offset = (-6, -3) if left else (3, 6 if place_in_line % 2 else -11)
                side = "right" if left else "left"
                axis.annotate(point, (place, error), offset, ha=side, textcoords="offset points", fontsize=7)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_yticks(ERRORS, [str(error) for error in ERRORS])
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(title)
        axis.set_title(f"{suite}, {PASSES} passes", fontsize=10)
    axes[0].set_ylabel("test error % (both axes logarithmic)")
    axes[1].legend(frameon=False, fontsize=8)
    draw(figure, "recall-tree-trade-off")


def main(arguments: list[str]) -> None:
    suite, *report = arguments or ["glyphs1k"]
    rows = run(suite, report[0] if report else None)
    keep(f"recall-trade-off-{suite}", {"suite": suite, "rows": rows})
    found = located(rows)
    lines = lines_of(found)
    print(pages.table({"columns": COLUMNS, "rows": lines}))
    for row in rows:
        if row["error"]:
            print(f"{row['system']} failed: {row['error']}")
    plot(suite, found)
    own = suite == "glyphs1k"
    store(
        "recall-tree",
        "trade-off" if own else f"trade-off-{suite}",
        title="Error and time" if own else f"Error and time: {suite}",
        shows=f"{suite}, {PASSES} passes, processor time. Settings of the default are the width of the beam and the candidates.",
        columns=COLUMNS,
        rows=lines,
        image={"file": "recall-tree-trade-off.png", "text": "Error against microseconds a prediction"},
    )
