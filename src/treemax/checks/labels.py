"""Checks of labels that change, and of taxonomies."""

from __future__ import annotations

import json
import pickle
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone

from treemax.checks.examples import CLASSES, assert_raises, assert_same_predictions, example_data, example_lists, facts


def check_forgotten_labels(estimator: Any) -> None:
    """Check that forgotten labels are not answered, the probabilities of others stay, and files do not have them."""
    for X, y in _problems_of_labels(estimator):
        model = clone(estimator).fit(X, y)
        before, gone = pickle.loads(pickle.dumps(model)), list(model.classes_[1:3])
        _refuses_unknown_labels(model, X)
        model.forget(gone)
        assert model.describe()["label_changes"] == [{"forgot": 2}]
        assert model.describe()["labels"] == before.describe()["labels"] - 2
        best, expected = model.predict_topk(X, 3), before.predict_topk(X, 3, exclude=gone)
        np.testing.assert_array_equal(best.labels, expected.labels)
        np.testing.assert_array_equal(best.scores, expected.scores)
        _answers_are_filtered(model, before, X, gone)
        assert_raises(partial(model.forget, gone[:1]), "forgotten", repr(gone[0]))
        again = clone(estimator).fit(X, y).forget(gone)
        assert_same_predictions(model, again.forget([]), X)
        assert_same_predictions(model.fit(X, y), before, X)  # which starts anew


def _problems_of_labels(estimator: Any) -> list[tuple[Any, Any]]:
    """Return data with one label per row, and with lists of labels if the model takes them."""
    X, y = example_data()
    return [(X, y)] if estimator.ONE_LABEL_ONLY else [(sp.csr_matrix(X), y), example_lists()]


def _refuses_unknown_labels(model: Any, X: Any) -> None:
    """Assert that invalid changes of labels raise an error and change nothing."""
    before = model.predict_topk(X, 3)
    some, other = model.classes_[:2].tolist()
    for change in (model.forget, lambda labels: model.merge(dict.fromkeys(labels, other)),
                   lambda labels: model.rename(dict.fromkeys(labels, "yak"))):  # fmt: skip
        assert_raises(partial(change, [some, "unknown"]), "'unknown'", "Nothing was changed")
    assert_raises(lambda: model.forget(some), "list of labels")
    assert_raises(lambda: model.forget(model.classes_), "No label would be left")
    assert_raises(lambda: model.merge({some: other, other: some}), repr(some))
    assert_raises(lambda: model.rename({some: other}), "merge", repr(other))
    assert_raises(lambda: model.rename({some: "yak", other: "yak"}), "merge", "'yak'")
    assert_raises(lambda: model.rename({some: 3}), "strings")
    assert_raises(lambda: model.rename([some]), "dictionary")
    after = model.predict_topk(X, 3)
    np.testing.assert_array_equal(before.labels, after.labels)
    assert "label_changes" not in model.describe(), "a wrong change is logged"


def _answers_are_filtered(model: Any, before: Any, X: Any, gone: list[Any]) -> None:
    """Assert that a model which has forgotten labels answers as before without them."""
    kept = ~np.isin(model.classes_, gone)
    of_all, old = model.predict_proba_of(X, model.classes_), before.predict_proba_of(X, model.classes_)
    np.testing.assert_array_equal(of_all, old * kept)
    for threshold in (0.05, 0.5):
        found = model.predict_above(X, threshold, scores=True)
        expected = [
            [pair for pair in row if pair[0] not in gone] for row in before.predict_above(X, threshold, scores=True)
        ]
        assert found == expected, "predict_above is not filtered"
    probabilities, old = model.predict_proba(X), before.predict_proba(X)
    assert not probabilities[:, ~kept].any()
    if model.multi_label_:
        np.testing.assert_array_equal(probabilities, old * kept)
        assert not {label for row in model.predict(X) for label in row} & set(gone)
    else:
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-3)
        expected = old * kept / np.maximum((old * kept).sum(axis=1, keepdims=True), 1e-30)
        possible = expected.any(axis=1)
        np.testing.assert_allclose(probabilities[possible], expected[possible], rtol=1e-4, atol=1e-6)
        assert set(model.predict(X)) <= set(model.classes_[kept])


def check_removed_labels(estimator: Any) -> None:
    """Check that saved and compacted models have nothing of forgotten labels; models that cannot remove them say so."""
    for X, y in _problems_of_labels(estimator):
        model = clone(estimator).fit(X, y)
        arrays, gone = model.to_parts()[1], model.classes_[1:3].tolist()
        model.forget(gone)
        if not model.supports_compact:
            for change in (model.compact, model.to_parts):
                assert_raises(change, type(model).__name__, "OneVsAll", "LabelTree")
            continue
        saved = model.to_parts()
        loaded = type(model).from_parts(*saved)
        resumed = type(model).from_parts(*model.to_parts(resume=True))
        text = json.dumps(saved[0]).encode() + b"".join(array.tobytes() for array in saved[1].values())
        assert not any(label.encode() in text for label in gone), "the name of a forgotten label is in the file"
        assert len(saved[1]["label_counts"]) == len(model.classes_) - 2
        assert sum(map(np.size, saved[1].values())) < sum(map(np.size, arrays.values())), "nothing was removed"
        model.compact()
        assert facts(loaded) == facts(model)
        for other in (loaded, resumed, model):
            assert other.classes_.tolist() == [label for label in CLASSES if label not in gone]
            assert set(np.ravel(other.predict_topk(X, 3).labels)) <= {*CLASSES, None} - set(gone)
            assert other.score(X, y) >= 0.6, "the labels that are left are not found"
        assert_same_predictions(loaded, model, X)


def check_added_labels(estimator: Any) -> None:
    """Check that labels can be added to a trained model, which predicts, logs and saves them, or that it raises."""
    for X, y in _problems_of_labels(estimator):
        new = np.array([CLASSES[-1] in row for row in y]) if isinstance(y, list) else y == CLASSES[-1]
        old, more = np.flatnonzero(~new), np.flatnonzero(new)[:15]
        labels_of = (lambda rows, y=y: [y[i] for i in rows]) if isinstance(y, list) else (lambda rows, y=y: y[rows])
        model = clone(estimator).fit(X[old], labels_of(old))
        before = model.predict_topk(X, 3)
        try:
            model.add_labels(X[more], labels_of(more))
        except ValueError as error:
            assert type(model).__name__ in str(error) and "LabelTree" in str(error)
            np.testing.assert_array_equal(model.predict_topk(X, 3).labels, before.labels)
            continue
        assert model.classes_.tolist() == list(CLASSES)
        assert model.describe()["label_changes"] == [{"added": 1}]
        probability = model.predict_proba_of(X, [CLASSES[-1]])[:, 0]
        assert probability[new].mean() > probability[~new].mean(), "the new label is not found"
        loaded = type(model).from_parts(*model.to_parts())
        assert loaded.describe()["label_changes"] == [{"added": 1}]
        assert_same_predictions(loaded, model, X)


def check_renamed_labels(estimator: Any) -> None:
    """Check that renamed labels are answered by their new names, also after loading."""
    for X, y in _problems_of_labels(estimator):
        model = clone(estimator).fit(X, y)
        best = model.predict_topk(X, 3)
        new = {"ant": "termite, a longer name", "bee": "cat", "cat": "bee"}
        model.rename(new)
        loaded = type(model).from_parts(*model.to_parts())
        names = [[new.get(label, label) for label in row] for row in best.labels.tolist()]
        for other in (model, loaded):
            assert other.predict_topk(X, 3).labels.tolist() == names
            np.testing.assert_array_equal(other.predict_topk(X, 3).scores, best.scores)
            assert other.describe()["label_changes"] == [{"renamed": 3}]
            assert other.classes_.tolist()[:3] == list(new.values())


def check_merged_labels(estimator: Any) -> None:
    """Check that the probability of a merged label is that of its parts together, also after loading."""
    for X, y in _problems_of_labels(estimator):
        model = clone(estimator).fit(X, y)
        parts = model.predict_proba_of(X, ["ant", "bee", "cat"]).astype(np.float64)
        others = model.predict_proba_of(X, CLASSES[3:])
        model.merge({"ant": "bee"}).merge({"bee": "cat"})
        loaded = type(model).from_parts(*model.to_parts())
        expected = 1 - np.prod(1 - parts, axis=1) if model.multi_label_ else np.minimum(parts.sum(axis=1), 1)
        for other in (model, loaded):
            assert other.describe()["labels"] == len(CLASSES) - 2
            np.testing.assert_array_equal(other.predict_proba_of(X, CLASSES[3:]), others)
            np.testing.assert_allclose(other.predict_proba_of(X, ["cat"])[:, 0], expected, rtol=1e-4, atol=1e-6)
            assert not other.predict_proba_of(X, ["ant", "bee"]).any()
            best = other.predict_topk(X, len(CLASSES))
            assert best.labels.shape[1] == len(CLASSES) - 2
            found = np.where(best.labels == "cat", best.scores, 0).sum(axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
            assert (np.diff(best.scores, axis=1) <= 0).all()
            above = [dict(row).get("cat", 0.0) for row in other.predict_above(X, 0.3, scores=True)]
            np.testing.assert_allclose(above, np.where(expected >= 0.3, expected, 0), rtol=1e-4, atol=1e-6)
            all_of = other.predict_proba(X)
            assert not all_of[:, :2].any()
            if not other.multi_label_:
                np.testing.assert_allclose(all_of.sum(axis=1), 1.0, atol=1e-3)
        assert_raises(partial(model.forget, ["ant"]), "'ant'")
        model.forget(["cat"])
        assert not set(np.ravel(model.predict_topk(X, 3).labels)) & {"ant", "bee", "cat"}


TAXONOMY = [("insect", "ant"), ("insect", "bee"), ("pet", "bee"), ("pet", "cat"), ("pet", "dog"), ("cat", "eel")]
"""A taxonomy of the classes: two parents, a label at an inner node, and two labels that are not in it."""


def check_taxonomy(estimator: Any) -> None:
    """Check that nodes of a taxonomy have the probability of the labels below them, no child more than its parent, and
    answers back off until they are probable enough, also after loading and with other names."""
    for X, y in _problems_of_labels(estimator):
        model = clone(estimator).fit(X, y)
        assert_raises(partial(model.predict_levels, X), "set_taxonomy")
        model.set_taxonomy(TAXONOMY)
        loaded = type(model).from_parts(*model.to_parts())
        of_labels = dict(zip(CLASSES, model.predict_proba_of(X, CLASSES).astype(np.float64).T))
        below = {"insect": ["ant", "bee"], "pet": ["bee", "cat", "dog", "eel"], "cat": ["cat", "eel"]}
        for other in (model, loaded):
            found = _of_nodes(other, X)
            for node in {*below, *CLASSES}:
                parts = np.array([of_labels[label] for label in below.get(node, [node])])
                expected = 1 - np.prod(1 - parts, axis=0) if model.multi_label_ else np.minimum(parts.sum(axis=0), 1)
                np.testing.assert_allclose(found[node], expected, rtol=1e-4, atol=1e-6)
            for parent, child in TAXONOMY:
                assert (found[child] <= found[parent]).all(), "a child is more probable than its parent"
        _backs_off(model, X, found)
        model.rename({"dog": "hound"})
        _backs_off(model, X, _of_nodes(model, X))
        assert "hound" in model.taxonomy_ and "dog" not in model.taxonomy_


def _of_nodes(model: Any, X: Any) -> dict[Any, NDArray[np.float32]]:
    """Return the probabilities of all nodes of the taxonomy, from `predict_levels`."""
    n_rows = X.shape[0]
    found: dict[Any, NDArray[np.float32]] = {name: np.zeros(n_rows, np.float32) for name in model.taxonomy_.names}
    found |= {label: np.zeros(n_rows, np.float32) for label in model.classes_.tolist()}
    for level in model.predict_levels(X, 100):
        assert (np.diff(level.scores, axis=1) <= 0).all(), "scores are not sorted"
        for row, labels in enumerate(level.labels.tolist()):
            for label, score in zip(labels, level.scores[row]):
                if label is not None:
                    found[label][row] = score
    return found


def _backs_off(model: Any, X: Any, found: dict[Any, NDArray[np.float32]]) -> None:
    """Assert that answers have the confidence that is asked for, and that less confidence gives no higher nodes."""
    steps = [0.0, 0.5, 0.8, 0.99]
    answers = [model.predict_backoff(X, confidence) for confidence in steps]
    if not model.multi_label_:
        np.testing.assert_array_equal(answers[0].labels, model.predict(X))
    for confidence, answer in zip(steps, answers):
        for row, (labels, scores) in enumerate(zip(answer.labels, answer.scores)):
            several = list(zip(labels, scores)) if model.multi_label_ else [(labels, scores)]
            for label, score in several:
                if label is None:
                    assert score == 0 and all(values[row] < confidence for values in found.values())
                else:
                    assert score >= np.float32(confidence) and score == found[label][row]
    if not model.multi_label_:
        scores = np.array([np.where(answer.scores > 0, answer.scores, 2) for answer in answers])
        assert (np.diff(scores, axis=0) >= 0).all(), "more confidence gives a less probable answer"
