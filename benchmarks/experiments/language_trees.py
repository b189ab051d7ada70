"""What part learning has in a language model's tree: table 2 of the paper on learned trees, like with like.

    python -m benchmarks.experiments.language_trees run     train what is missing, and keep its figures; an hour
    python -m benchmarks.experiments.language_trees table   the table of what is kept

Every tree is trained with and without the frequent words among the children of its root, with random, clustered and learned places
for the others, all else equal; and in the paper's shape, 65-ary trees in which all words have the same depth. PASSES passes
over the Penn Treebank, SEEDS trainings of each (one of the flat softmaxes), one thread.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import treemax
from benchmarks.experiments.language_model import folder, texts
from benchmarks.harness.output import RESULTS, help_if_asked, keep, store

PASSES, SEEDS = 2, 3
NAME = "language-trees"
PLACES = ("random", "clusters", "learned")
CROWN = 512  # words at the root, the default of a learned tree
SHAPES: dict[str, dict[str, Any]] = {
    "640 children, 512 words at the root": {"arity": 640, "direct": CROWN},
    "640 children": {"arity": 640, "direct": 0},
    "65 children, all words equally deep": {"arity": 65, "direct": 0},
}
FLAT: dict[str, dict[str, Any]] = {
    "flat softmax": {"tree": "flat"},
    "flat softmax, output vectors are the embeddings": {"tree": "flat", "tied": True},
}
SHOWS = (
    "Test perplexity after two passes, means of three trainings and half of their range (one of each flat softmax). All else equal, "
    "learned places are 7 to 13 below random ones, and frequent words at the root take off 7 to 9 more. Clusters are 1.5 to 4 better than "
    "random places, so that our earlier table, which had frequent words at the root of the learned tree only, gave learning more than its share."
)
MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"


def trainings() -> list[tuple[str, dict[str, Any]]]:
    """The trainings by name, all trees with one seed after the other."""
    found: list[tuple[str, dict[str, Any]]] = []
    for seed in range(SEEDS):
        for shape, options in SHAPES.items():
            found += [(f"{shape}, {tree}, {seed}", {"tree": tree, "random_state": seed, **options}) for tree in PLACES]
        if seed == 0:
            found += [(f"{name}, 0", options) for name, options in FLAT.items()]
    return found


def kept() -> dict[str, Any]:
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def run() -> None:
    train, validation, test = (texts(part) for part in ("train", "valid", "test"))
    found = kept()
    for name, options in trainings():
        if name in found:
            continue
        model = treemax.TreeLanguageModel(passes=PASSES, verbose=0, **options)
        model.fit(train[:300])  # compiles what is needed
        model.fit(train, validation=validation)
        last, facts = model.history_[-1], model.describe()
        found[name] = {
            "test": model.perplexity(test), "validation": last["validation"], "seconds": last["seconds"],
            "depth": facts["depth"], "mean_depth": facts["mean_depth"], "loss": last["loss"],
        }  # fmt: skip
        keep(NAME, found)
        print(name, found[name], flush=True)


def cell(found: dict[str, Any], name: str) -> dict[str, float] | float | None:
    """Mean test perplexity of the seeds, and half of their range."""
    values = [found[key]["test"] for seed in range(SEEDS) if (key := f"{name}, {seed}") in found]
    if not values:
        return None
    if len(values) == 1:
        return round(float(values[0]), 1)
    return {"value": round(float(np.mean(values)), 1), "error": round((max(values) - min(values)) / 2, 1)}


def show() -> None:
    found = kept()
    rows: list[list[Any]] = [[shape, *(cell(found, f"{shape}, {tree}") for tree in PLACES), None] for shape in SHAPES]
    rows += [[name, None, None, None, cell(found, name)] for name in FLAT]
    store(
        "learned-tree", NAME, title="Trees under a language model, like with like", shows=SHOWS, rows=rows, machine=MACHINE,
        command="python -m benchmarks.experiments.language_trees run",
        columns=["shape", *({"name": name, "decimals": 1} for name in (*PLACES, "no tree"))],
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    if arguments not in (["run"], ["table"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not folder().exists():
        print(f"There is no {folder()}: nothing to do.", file=sys.stderr)
        return 0
    run() if arguments == ["run"] else show()
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
