"""Figure 4 of the paper: error beside one-against-all, and the time of an answer; one pass over four data sets.

Everything is trained and timed by the harness, in processes of its own. Times are processor time.
"""

from __future__ import annotations

from typing import Any

from benchmarks import pages
from benchmarks.harness.output import canvas, draw, keep, rounded, store
from benchmarks.harness.report import summary
from benchmarks.harness.runner import run_all
from benchmarks.harness.suites import prepared
from benchmarks.harness.systems import ours, peers

SUITES = ("glyphs1k", "glyphs5k", "wordnet", "ptb-words")
FLAT = "one-vs-all:passes=1"
SYSTEMS = {
    "RecallTree": "recall-tree:passes=1",
    "RecallTree, paper": "recall-tree:algorithm=paper,passes=1",
    "LOMTree": "lom-tree:passes=1",
    "OneVsAll": FLAT,
}
PEERS = {"VW --recall_tree": "vw-recall-tree", "VW --log_multi": "vw-log-multi"}


def run(suite: str) -> dict[str, dict[str, Any]]:
    """Figures by model; None for what failed."""
    systems = ours(",".join(SYSTEMS.values())) + peers(",".join(PEERS.values()))
    rows = {row["system"]: row for row in map(summary, run_all(systems, prepared(suite)))}
    return {name: rows[system] for name, system in {**SYSTEMS, **PEERS}.items()}


def figures(row: dict[str, Any]) -> tuple[float, float, float, float] | None:
    """Error %, seconds of training, microseconds of an answer: all rows at once, one at a time."""
    if row["error"]:
        return None
    error = row["error@1"] if "error@1" in row else 100 * (1 - row["P@1"])
    return error, row["train_cpu_seconds"], row["batch_cpu_microseconds"], row["one_cpu_microseconds"]


COLUMNS = [
    *({"name": name} for name in ("data", "model")),
    {"name": "error %", "decimals": 1},
    {"name": "less OneVsAll", "decimals": 1, "signed": True},
    *({"name": name} for name in ("train s", "predict us, batch", "predict us, one")),
]


def lines(found: dict[str, dict[str, dict[str, Any]]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for suite, models in found.items():
        flat = figures(models["OneVsAll"])
        for name, row in models.items():
            here, shown = figures(row), name if name in PEERS else f"**{name}**"
            if here is None:
                rows.append([suite, shown, *[None] * 5])
                continue
            difference = here[0] - flat[0] if flat else None
            rows.append([suite, shown, round(here[0], 2), rounded(difference), *map(rounded, here[1:])])
    return rows


def plot(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Two panels of bars, as in the paper: difference of the error from that of OneVsAll, and the time of an answer."""
    figure, (errors, times) = canvas(2, 11, 4.6)
    names = [*SYSTEMS, *PEERS]
    width = 0.8 / len(names)
    for number_of, name in enumerate(names):
        for place, models in enumerate(found.values()):
            here, flat = figures(models[name]), figures(models["OneVsAll"])
            if here is None or flat is None:
                continue
            x = place + (number_of - (len(names) - 1) / 2) * width
            if name != "OneVsAll":
                errors.bar(x, here[0] - flat[0], width, color=f"C{number_of}", label=name if not place else None)
            times.bar(x, here[2], width, color=f"C{number_of}", label=name if not place else None)
    errors.axhline(0, color="gray", linewidth=0.8)
    errors.set_ylabel("error % less that of OneVsAll")
    times.set_ylabel("microseconds an answer, all rows at once")
    times.set_yscale("log")
    for axis in (errors, times):
        axis.set_xticks(range(len(found)), list(found))
    times.legend(frameon=False, fontsize=8)
    draw(figure, "recall-tree-figure4")


def main(arguments: list[str]) -> None:
    found = {}
    for suite in arguments or SUITES:
        found[suite] = run(suite)
        keep("recall-figure4", found)
    rows = lines(found)
    print(pages.table({"columns": COLUMNS, "rows": rows}))
    plot(found)
    store(
        "recall-tree",
        "figure4",
        title="Error beside one-against-all, and time",
        shows="Figure 4 of the paper on our data: one pass, processor time, all in one run.",
        columns=COLUMNS,
        rows=rows,
        image={
            "file": "recall-tree-figure4.png",
            "text": "Error less that of OneVsAll, and microseconds of an answer, on four data sets",
        },
    )
