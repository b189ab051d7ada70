"""The picture and the table of the README: Treemax and its peers on wordnet.

    python -m benchmarks wordnet --ours label-tree,label-tree:n_trees=3,online-label-tree \\
        --peers pecos,omikuji-1,omikuji,napkinxc-plt,vw-oaa,fasttext --repeat 2
    python -m benchmarks.experiments.front_page benchmarks/results/wordnet-DATE.json

Times are processor seconds, which depend less on what else the machine does. The result is stored for
docs/experiments/peers.md; `python -m benchmarks.pages` writes that page, and the table of the README.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.output import IMAGES, canvas, help_if_asked, store

NAMES = {
    "label-tree": "LabelTree", "label-tree:n_trees=3": "LabelTree, 3 trees", "online-label-tree": "OnlineLabelTree",
    "pecos": "PECOS", "omikuji-1": "omikuji, 1 tree", "omikuji": "omikuji, 3 trees", "napkinxc-plt": "napkinXC",
    "vw-oaa": "Vowpal Wabbit, oaa", "fasttext": "fastText, hs",
}  # fmt: skip
BELOW = ("omikuji-1", "label-tree")  # names that are written below their points
IMAGE = "accuracy-and-time.png"
COMMAND = (
    "python -m benchmarks wordnet --ours label-tree,label-tree:n_trees=3,online-label-tree "
    "--peers pecos,omikuji-1,omikuji,napkinxc-plt,vw-oaa,fasttext --repeat 2"
)


def main() -> None:
    help_if_asked(__doc__)
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    rows = [row for row in rows if row["error"] is None]
    draw(rows)
    store(
        "peers",
        "wordnet",
        title="WordNet: accuracy and time",
        shows="85,873 texts of 19,387 classes, tf-idf, defaults, one thread; processor seconds, the best of two runs in turn.",
        command=COMMAND,
        machine="one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work",
        image={"file": IMAGE, "text": "P@1 against training seconds"},
        columns=[
            "system", {"name": "P@1", "decimals": 3}, {"name": "P@5", "decimals": 3}, {"name": "train s", "decimals": 1},
            {"name": "predict us", "decimals": 0}, {"name": "model MB", "decimals": 0},
        ],
        rows=[
            [NAMES[row["system"]], row["P@1"], row["P@5"], row["train_cpu_seconds"], row["batch_microseconds"], row["model_mb"]]
            for row in rows
        ],
    )  # fmt: skip


def draw(rows: list[dict[str, Any]]) -> None:
    figure, (axis,) = canvas(1, width=7.5, height=3.6)
    for ours, colour, mark in ((True, "#00796b", "o"), (False, "#9e9e9e", "s")):
        chosen = [row for row in rows if row["ours"] is ours]
        x, y = ([row[key] for row in chosen] for key in ("train_cpu_seconds", "P@1"))
        axis.scatter(x, y, s=60, color=colour, marker=mark, zorder=3, label="Treemax" if ours else "peers")
        for row in chosen:
            axis.annotate(
                NAMES[row["system"]], (row["train_cpu_seconds"], row["P@1"]),
                xytext=(7, -12 if row["system"] in BELOW else 4),
                textcoords="offset points", fontsize=8.5, weight="bold" if ours else "normal",
            )  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlim(right=axis.get_xlim()[1] * 3)
    axis.set_ylim(top=axis.get_ylim()[1] + 0.02)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("training, processor seconds (log scale; further left is better)")
    axis.set_ylabel("P@1 (higher is better)")
    axis.set_title("WordNet, 19,387 classes, one core, defaults", fontsize=10)
    axis.legend(loc="lower left", fontsize=8.5)
    figure.tight_layout()
    figure.savefig(IMAGES / IMAGE, dpi=150, facecolor="white")


if __name__ == "__main__":
    main()
