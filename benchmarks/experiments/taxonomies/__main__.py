"""Answers in a taxonomy, beside hiclass: `python -m benchmarks.experiments.taxonomies [icd|wordnet ...]`.

The taxonomy of icd is chapter, letter and digit, category, from the codes; that of wordnet are its hypernyms (see
`hierarchy.py`), for the labels of at least 30 rows: hiclass keeps a dense vector of all features for every node. Every
system trains in a process of its own, on the same tf-idf features. Times are of the processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse as sp

import treemax
from benchmarks.experiments.hierarchy import hypernyms
from benchmarks.harness.environments import python_of
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.suites import data_folder
from treemax.datasets import load_wordnet
from treemax.formats import read_examples
from treemax.metrics import HierarchicalScores

LEAST_ROWS = 30  # of a label of wordnet
CHAPTERS = [
    "A00",
    "C00",
    "D50",
    "E00",
    "F01",
    "G00",
    "H00",
    "H60",
    "I00",
    "J00",
    "K00",
    "L00",
    "M00",
    "N00",
    "O00",
    "P00",
    "Q00",
    "R00",
    "S00",
    "U00",
    "V00",
    "Z00",
]
OURS = {
    "LabelTree, the taxonomy as its tree": "label-tree:taxonomy",
    "LabelTree, its own tree": "label-tree",
    "OneVsAll": "one-vs-all",
}
THEIRS = {"hiclass, per parent node": "LocalClassifierPerParentNode"}


def icd() -> tuple[Any, Any, Any, Any, list[tuple[str, str]]]:
    train, test = (read_examples(data_folder() / "icd" / f"{part}.txt.gz") for part in ("train", "test"))
    y, y_test = (np.array([row[0] for row in examples.labels]) for examples in (train, test))
    edges = []
    for code in sorted(set(y.tolist())):
        chapter = max(first for first in CHAPTERS if first <= code)
        edges += [(f"chapter {chapter}", f"block {chapter} {code[:2]}"), (f"block {chapter} {code[:2]}", code)]
    return train.texts, y, test.texts, y_test, list(dict.fromkeys(edges))


def wordnet() -> tuple[Any, Any, Any, Any, list[tuple[str, str]]]:
    train, test = load_wordnet()
    parent_of = hypernyms(train.texts, train.y.tolist())
    frequent = {label for label, rows in Counter(train.y.tolist()).items() if rows >= LEAST_ROWS}
    edges: dict[tuple[str, str], None] = {}
    for label in sorted(frequent):
        while label in parent_of:  # the labels above it, also those of few rows
            edges[parent_of[label], label] = None
            label = parent_of[label]
    texts, y, test_texts, y_test = [], [], [], []
    for examples, rows, labels in ((train, texts, y), (test, test_texts, y_test)):
        kept = [i for i, label in enumerate(examples.y.tolist()) if label in frequent]
        rows += [examples.texts[i] for i in kept]
        labels += [examples.y[i] for i in kept]
    return texts, np.array(y), test_texts, np.array(y_test), list(edges)


def prepare(folder: Path, name: str) -> tuple[treemax.Taxonomy, Any]:
    """Write features, labels and paths of the labels; return the taxonomy and the labels of the test rows."""
    texts, y, test_texts, y_test, edges = {"icd": icd, "wordnet": wordnet}[name]()
    vectorizer = treemax.TfidfText()
    sp.save_npz(folder / "train.npz", sp.csr_matrix(vectorizer.fit_transform(texts)))
    sp.save_npz(folder / "test.npz", sp.csr_matrix(vectorizer.transform(test_texts)))
    taxonomy = treemax.Taxonomy(edges)
    paths = {label: [*taxonomy.ancestors(label), label] if label in taxonomy else [label] for label in set(y.tolist())}
    facts = {"y": y.tolist(), "edges": edges, "paths": paths}
    (folder / "facts.json").write_text(json.dumps(facts))
    return taxonomy, y_test


def measured(python: Path | str, program: str, system: str, folder: Path) -> dict[str, Any]:
    """Train and answer in a process of its own."""
    command = [str(python), program, system, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def row_of(name: str, title: str, found: dict[str, Any], taxonomy: treemax.Taxonomy, y_test: Any) -> list[Any]:
    answers = np.array(found["answers"], dtype=object)
    scores = HierarchicalScores(taxonomy)
    scores.update(y_test.tolist(), answers)
    of_all = scores.result()
    top = [[taxonomy.ancestors(label)[0] if label in taxonomy and taxonomy.ancestors(label) else label for label in labels]
           for labels in (y_test.tolist(), answers.tolist())]  # fmt: skip
    return [
        name, title, float(np.mean(answers == y_test)), float(np.mean(np.array(top[0]) == np.array(top[1]))), of_all["hF"],
        of_all["distance"], found["fit_s"], found["predict_s"], found["peak_mb"],
    ]  # fmt: skip


def main(names: list[str]) -> None:
    here = Path(__file__).parent
    rows, backed = [], []
    for name in names or ["icd", "wordnet"]:
        with TemporaryDirectory() as place:
            folder = Path(place)
            taxonomy, y_test = prepare(folder, name)
            print(f"{name}: {taxonomy}, {len(set(y_test.tolist())):,} labels tested", file=sys.stderr, flush=True)
            for title, system in {**OURS, **THEIRS}.items():
                ours = title in OURS
                program = here / ("with_treemax.py" if ours else "with_hiclass.py")
                found = measured(python_of("project" if ours else "hiclass"), str(program), system, folder)
                rows.append(row_of(name, title, found, taxonomy, y_test))
                print(rows[-1], file=sys.stderr, flush=True)
                for confidence, answers in found.get("backoff", {}).items():
                    scores = HierarchicalScores(taxonomy)
                    scores.update(y_test.tolist(), answers)
                    figures = scores.result()
                    backed.append(
                        [name, title, float(confidence), *(figures[key] for key in ("answered", "hP", "hR", "hF"))]
                    )
    store(
        "label-tree",
        "taxonomies",
        title="Taxonomies, beside hiclass",
        shows="Accuracy of the label and of its first ancestor, hierarchical F, mean distance in the tree, processor seconds, and the "
        "peak memory of the process. hiclass 5.0.8 with scikit-learn's `LogisticRegression`, its default. icd: chapter, letter and "
        f"digit, category. wordnet: hypernyms of the labels of at least {LEAST_ROWS} rows.",
        columns=[
            "data", "system", {"name": "accuracy", "decimals": 4}, {"name": "level 1", "decimals": 4}, {"name": "hF", "decimals": 4},
            {"name": "distance", "decimals": 3}, {"name": "fit s", "decimals": 1}, {"name": "predict s", "decimals": 2},
            {"name": "peak MB", "decimals": 0},
        ],
        rows=rows,
    )  # fmt: skip
    store(
        "label-tree",
        "taxonomies-backoff",
        title="Answers that back off to a confidence",
        shows="`predict_backoff`: the share of rows with an answer, and hierarchical precision, recall and F of the answers.",
        columns=[
            "data", "system", {"name": "confidence", "decimals": 1}, {"name": "answered", "decimals": 4},
            {"name": "hP", "decimals": 4}, {"name": "hR", "decimals": 4}, {"name": "hF", "decimals": 4},
        ],
        rows=backed,
    )  # fmt: skip


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
