"""Texts of labels: `python -m benchmarks.experiments.label_texts [share|unseen]`, on wordnet's validation rows.

`share` clusters labels by their names and their examples, with several shares of both. `unseen` leaves all rows of 5 % of
the labels out, and adds these labels by their names alone, beside the label whose name is nearest. One thread; seconds are
of the processor.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.suites import SUITES, raw_parts
from treemax import LabelTree, TextModel

SUITE, UNSEEN, SHARES = "wordnet", 0.05, (0.0, 0.25, 0.5, 0.75, 1.0)

TITLES = {"share": "Names and examples of labels", "unseen": "Labels that training never saw"}
SHOWS = {
    "share": "wordnet, validation rows: labels are clustered by their examples and by their names, which have a share of the similarity. P@1, "
    "and the share of rows with the label among the first five, in percent; seconds of the processor.",
    "unseen": "wordnet, validation rows: all rows of 5 % of the labels are left out of training, and these labels are added by their names alone "
    "(`add_unseen`). P@1, and the share of rows with the label among the first five, in percent, of rows with such a label and of others.",
}


def read() -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """Texts and labels of the training and the validation rows."""
    train, valid = raw_parts(SUITE, SUITES[SUITE], validation=True)
    found: list[Any] = []
    for part in (train, valid):
        found += [list(part.texts), np.array([labels[0] for labels in part.labels])]
    return tuple(found)  # type: ignore[return-value]


def name_of(label: str) -> str:
    """The name in a label such as noun:03825135:bird_genus."""
    return label.split(":")[-1].replace("_", " ")


def precisions(top: np.ndarray, true: np.ndarray) -> list[float]:
    """P@1 and the share of rows with the true label among the first five, in percent."""
    right = top == true[:, None]
    return [round(100 * float(right[:, :k].any(axis=1).mean()), 2) for k in (1, 5)]


def model() -> TextModel:
    return TextModel(estimator=LabelTree(n_jobs=1, verbose=0))


def shares() -> list[list[Any]]:
    texts, y, valid, true = read()
    names, rows = {label: name_of(label) for label in np.unique(y).tolist()}, []
    for share in SHARES:
        start = time.process_time()
        options = {"label_texts": names, "label_share": share} if share else {}
        fitted = model().fit(texts, y, **options)
        seconds = time.process_time() - start
        rows.append(
            [f"share of names {share}", *precisions(fitted.predict_topk(valid, 5).labels, true), round(seconds, 1)]
        )
        print(*rows[-1], flush=True)
    return rows


def unseen() -> list[list[Any]]:
    texts, y, valid, true = read()
    labels = np.unique(y)
    gone = np.random.RandomState(0).choice(labels, int(UNSEEN * len(labels)), replace=False)
    kept = np.flatnonzero(~np.isin(y, gone))
    names = {label: name_of(label) for label in labels.tolist()}
    start = time.process_time()
    fitted = model().fit([texts[i] for i in kept], y[kept], label_texts=names, label_share=0.5, add_unseen=True)
    seconds = time.process_time() - start
    new = np.isin(true, gone)
    asked = [text for text, is_new in zip(valid, new) if is_new]
    others = [text for text, is_new in zip(valid, new) if not is_new]
    rows = []

    def note(name: str, top_new: np.ndarray, top_old: np.ndarray) -> None:
        rows.append([name, *precisions(top_new, true[new]), *precisions(top_old, true[~new]), round(seconds, 1)])
        print(*rows[-1], flush=True)

    note("LabelTree, unseen labels by name", *(fitted.predict_topk(part, 5).labels for part in (asked, others)))
    known = fitted.classes_
    vectors = fitted.vectorizer.transform([names[label] for label in known.tolist()]).T.tocsc()

    def nearest(part: list[str]) -> np.ndarray:
        scores = fitted.vectorizer.transform(part) @ vectors
        best = [np.argsort(-row.toarray()[0], kind="stable")[:5] for row in scores]
        return known[np.array(best)]

    note("nearest name", *map(nearest, (asked, others)))
    only = fitted.predict_topk(asked, 5, labels=gone.tolist()).labels
    note("LabelTree, only unseen labels allowed", only, fitted.predict_topk(others, 5).labels)
    return rows


def main() -> None:
    what = {"share": shares, "unseen": unseen}
    for name in sys.argv[1:] or what:
        rows = what[name]()
        columns = (
            ["model", "P@1", "among 5"] + (["P@1 others", "among 5 others"] if name == "unseen" else []) + ["seconds"]
        )
        store("label-tree", f"label-texts-{name}", title=TITLES[name], shows=SHOWS[name], columns=columns, rows=rows)


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
