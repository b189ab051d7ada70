"""WordNet's own hierarchy as the tree of a `LabelTree`, beside trees that are made from the data.

    python -m benchmarks.experiments.hierarchy

The embedded data is pairs of a synset's text and its hypernym, so the hierarchy is in it by name: a label
`noun:03825135:net` is below the label of the rows whose text begins with "net". A name of several meanings
is settled by the numbers of the synsets, which are near to each other where the subject is the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import treemax
from benchmarks.harness.output import help_if_asked
from benchmarks.pages import publish
from treemax.datasets import load_wordnet
from treemax.metrics import precision_at_k

COLUMNS = [
    {"name": "wordnet, tree"},
    *({"name": f"P@{k}", "decimals": 4} for k in (1, 3, 5)),
    {"name": "depth"},
    *({"name": name, "decimals": 1} for name in ("fit s (with tf-idf)", "MB (with vocabulary)")),
]


def hypernyms(texts: list[str], labels: list[str]) -> dict[str, str]:
    """The parent of every label for which the rows have one; what would close a circle is left out."""
    begun_by: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for text, label in zip(texts, labels):
        words = text.split(" : ")[0].lower()
        begun_by[label.split(":")[0], words.split(" ")[0]].append((words, label))
    parent_of: dict[str, str] = {}
    for label in sorted(set(labels)):
        kind, number, name = label.split(":", 2)
        name = name.replace("_", " ").lower()
        candidates = [
            (words != name, abs(int(other.split(":")[1]) - int(number)), other)
            for words, other in begun_by[kind, name.split(" ")[0]]
            if f"{words} ".startswith(f"{name} ") and other != label
        ]
        for _, _, parent in sorted(candidates):
            if not _is_above(label, parent, parent_of):
                parent_of[label] = parent
                break
    return parent_of


def _is_above(label: str, other: str | None, parent_of: dict[str, str]) -> bool:
    """Whether `label` stands above `other`, or is it."""
    while other is not None and other != label:
        other = parent_of.get(other)
    return other == label


def measured(tree: Any, train: Any, test: Any, **options: Any) -> list[Any]:
    """P@1, P@3, P@5, depth, seconds of training and MB of the file."""
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(tree=tree, **options))
    start = time.perf_counter()
    model.fit(train.texts, train.y)
    seconds = time.perf_counter() - start
    top = model.predict_topk(test.texts, 5).labels
    precision = [precision_at_k(test.y, top, k) for k in (1, 3, 5)]
    facts = model.describe()
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax")
        size = (Path(folder) / "model.treemax").stat().st_size / 2**20
    return [*(round(value, 4) for value in precision), facts["depth"], round(seconds, 1), round(size, 1)]


def main() -> None:
    train, test = load_wordnet()
    own = hypernyms(train.texts, train.labels.values.tolist())
    known = set(own) | set(own.values())
    print(
        f"{len(own):,} of {len(set(train.labels.values)):,} labels have a hypernym among the labels, {len(known):,} are known"
    )
    treemax.LabelTree(verbose=0).fit([[0.0], [1.0]] * 9, ["a", "b"] * 9)  # compiles, off the clock
    trees = {"kmeans": "kmeans", "hypernyms": own, "complete": "complete", "random": "random"}
    rows = [[name, *measured(tree, train, test)] for name, tree in trees.items()]
    publish(
        "hierarchy",
        "label-tree",
        "hierarchy",
        title="WordNet's hypernyms as the tree",
        shows="The embedded WordNet data; training includes tf-idf, and the file its vocabulary.",
        columns=COLUMNS,
        rows=rows,
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
