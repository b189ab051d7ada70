"""Checks of training and predictions."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from treemax.checks.examples import CLASSES, assert_raises, example_data, example_lists, facts, saved_and_loaded


def check_learns_and_scores(estimator: Any) -> None:
    """Check that the model learns an easy problem, and `score` is the accuracy of `predict`."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    accuracy = np.mean(model.predict(X) == y)
    assert accuracy > 0.9, f"accuracy {accuracy} on an easy problem"
    half_right = np.where(np.arange(len(y)) % 2, y, np.roll(y, 1))
    for truth in (y, half_right):
        assert abs(model.score(X, truth) - np.mean(model.predict(X) == truth)) < 1e-9, "score is not accuracy"
    assert model.n_features_in_ == X.shape[1]
    assert model.n_examples_ == len(y)
    assert model.label_counts_.tolist() == [30] * len(CLASSES)


def check_top_is_sorted_and_consistent(estimator: Any) -> None:
    """Check that `predict_topk` is sorted, without duplicates, and consistent with `predict` and `predict_proba`.

    If a model finds fewer than k labels, the last are None with score 0; the first is always a label.
    """
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    labels, scores = model.predict_topk(X, 4)
    assert labels.shape == scores.shape == (len(X), 4)
    assert scores.dtype == np.float32
    assert (np.diff(scores, axis=1) <= 0).all(), "scores are not sorted"
    rows = [[label for label in row if label is not None] for row in labels.tolist()]
    assert all(len(set(row)) == len(row) for row in rows), "a label is repeated"
    np.testing.assert_array_equal(labels[:, 0], model.predict(X))
    agree_with_probabilities(model, X, labels, scores)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), len(model.classes_))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-3)
    of_all = model.predict_proba_of(X, model.classes_)
    scaled = of_all / of_all.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, scaled, rtol=1e-3, atol=1e-5)
    assert model.predict_topk(X, 100).labels.shape == (len(X), len(CLASSES)), "k is not limited to the number of labels"


def agree_with_probabilities(model: Any, X: Any, labels: Any, scores: Any) -> None:
    """Assert that scores are the probabilities of their labels, and nearly always the largest (search may be approximate)."""
    probabilities = model.predict_proba_of(X, model.classes_)
    row, place = np.nonzero(labels.astype(object) != None)  # noqa: E711
    column = np.searchsorted(model.classes_, labels[row, place].astype(model.classes_.dtype))
    expected = np.zeros_like(scores)
    expected[row, place] = probabilities[row, column]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
    best = -np.sort(-probabilities, axis=1)[:, : scores.shape[1]]
    found = np.isclose(best, scores, rtol=1e-4, atol=1e-6).all(axis=1).mean()
    assert found > 0.95, f"predict_topk has the best labels of predict_proba in only {found:.0%} of the rows"


def check_label_weights(estimator: Any) -> None:
    """Check that `predict_topk` with allowed or weighted labels has the best of `predict_proba_of`, in order."""
    X, y = example_data()
    cases = [(X, y)] if estimator.ONE_LABEL_ONLY else [(X, y), (X, [[label, "all"] for label in y])]
    for rows, given in cases:
        model = clone(estimator).fit(rows, given)
        refuses_label_weights(model, rows)
        some, others = list(model.classes_[::2]), list(model.classes_[1::2])
        weights = np.linspace(0.5, 3.0, len(model.classes_))
        best_are(model, rows, some, None, labels=[*some, "unknown"])
        best_are(model, rows, some, None, exclude=others)
        best_are(model, rows, some, None, label_weights=model.make_label_weights(exclude=[*others, "unknown"]))
        best_are(model, rows, list(model.classes_), weights, label_weights=weights)
        best_are(model, rows, some, weights[::2], labels=some, label_weights=dict(zip(model.classes_, weights)))
        assert model.predict_topk(rows, 100, labels=some).labels.shape == (len(rows), len(some))


def refuses_label_weights(model: Any, X: Any) -> None:
    """Assert that invalid labels and weights are refused."""
    weights = np.ones(len(model.classes_))
    wrong: list[dict[str, Any]] = [{"labels": "ant"}, {"labels": [["ant"]]}, {"labels": ["unknown"]}, {"labels": 3}]
    wrong += [{"exclude": model.classes_}, {"exclude": "ant"}]
    wrong += [{"label_weights": bad} for bad in (weights[1:], -weights, weights * np.nan, 0 * weights, "rare", ["a"])]
    for options in wrong:
        assert_raises(partial(model.predict_topk, X, 2, **options), "label")


def best_are(model: Any, X: Any, allowed: list[Any], weights: Any, **options: Any) -> None:
    """Assert that the answers with these options are the best of the allowed labels by probability times weight."""
    labels, scores = model.predict_topk(X, 3, **options)
    of_allowed = model.predict_proba_of(X, allowed)
    products = of_allowed if weights is None else of_allowed * weights
    place = {label: number for number, label in enumerate(allowed)}
    row, column = np.nonzero(labels.astype(object) != None)  # noqa: E711
    ids = np.array([place[label] for label in labels[row, column].tolist()])
    np.testing.assert_allclose(scores[row, column], of_allowed[row, ids], rtol=1e-4, atol=1e-6)
    found = np.zeros(labels.shape)
    found[row, column] = products[row, ids]
    best = -np.sort(-products, axis=1)[:, :3]
    share = np.isclose(found, best, rtol=1e-3, atol=1e-6).all(axis=1).mean()
    assert share > 0.95, f"predict_topk with {options} has the best labels in only {share:.0%} of the rows"


def check_labels_come_back_in_the_callers_type(estimator: Any) -> None:
    """Check that predictions have the dtype of the labels in y."""
    X, y = example_data()
    numbers = np.searchsorted(CLASSES, y) * 1000 - 3000
    for given in (y, y.astype(object), numbers, numbers.astype(np.int16), numbers == 0):
        model = clone(estimator).fit(X, given)
        answer = model.predict(X)
        for form in (answer, model.predict_topk(X, 1).labels, model.classes_):
            same = form.dtype.kind == "U" if given.dtype.kind == "U" else form.dtype == given.dtype
            assert same, f"{given.dtype} became {form.dtype}"
        assert set(np.unique(answer)) <= set(np.unique(given))
        np.testing.assert_array_equal(model.classes_, np.unique(given))
    assert clone(estimator).fit(X, y.tolist()).predict(X[:1]).dtype.kind == "U"
    model = clone(estimator).fit(X, ["x" * 100_000 if label == CLASSES[0] else label for label in y.tolist()])
    for form in (model.predict(X), model.predict_topk(X, 2).labels, model.classes_):
        assert form.dtype == object, "one long label makes every prediction as large"


def check_sparse_and_dense_agree(estimator: Any) -> None:
    """Check that the model and its predictions do not depend on the form of X.

    The scaling of dense rows, and their extra passes, are disabled.
    """
    X, y = example_data()
    estimator = clone(estimator)
    if "scale" in estimator.get_params():
        estimator.set_params(scale=False, passes=5)
    dense = clone(estimator).fit(X, y)
    for form in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.coo_matrix, sp.lil_matrix):
        sparse = clone(estimator).fit(form(X), y)
        np.testing.assert_array_equal(dense.predict(X), sparse.predict(form(X)))
        np.testing.assert_allclose(dense.predict_proba(X), sparse.predict_proba(form(X)), atol=2e-3)
        for model in (dense, sparse):
            np.testing.assert_allclose(model.predict_proba(X), model.predict_proba(form(X)), atol=1e-5)
            a, b = model.predict_topk(X, 3), model.predict_topk(form(X), 3)
            np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
    far = sp.csr_matrix((np.ones(len(X)), (np.arange(len(X)), np.full(len(X), 10**9))))
    wide = sp.hstack([sp.csr_matrix(X), far]).tocsr()  # an unseen feature has no weight
    for model in (dense, sparse):
        np.testing.assert_allclose(model.predict_proba(wide), model.predict_proba(X), atol=1e-5)


def check_one_row_at_a_time(estimator: Any) -> None:
    """Check that the prediction of a row does not depend on the other rows."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    whole = model.predict_topk(X[:20], 2)
    for i in range(20):
        one = model.predict_topk(X[i : i + 1], 2)
        assert one.labels.tolist() == whole.labels[i : i + 1].tolist()
        np.testing.assert_allclose(one.scores, whole.scores[i : i + 1], rtol=1e-4, atol=1e-6)


def check_multi_label(estimator: Any) -> None:
    """Label lists and indicator matrices are learned, and `predict` returns the same form."""
    X, lists = example_lists()
    if estimator.ONE_LABEL_ONLY:
        assert_raises(lambda: clone(estimator).fit(X, lists), "one label per row")
        return
    model = clone(estimator).fit(X, lists)
    assert model.multi_label_ and model.score(X, lists) > 0.8
    answer = model.predict(X)
    assert isinstance(answer, list) and all(isinstance(row, list) for row in answer)
    assert np.mean([set(a) == set(b) for a, b in zip(answer, lists)]) > 0.5
    labels, scores = model.predict_topk(X, 3)
    assert (np.diff(scores, axis=1) <= 0).all(), "scores are not sorted"
    agree_with_probabilities(model, X, labels, scores)
    probabilities = model.predict_proba(X)
    likely = probabilities >= model.threshold_
    if model.calibration_.one_at_least:
        likely[np.arange(len(X)), probabilities.argmax(axis=1)] |= ~likely.any(axis=1)
    assert answer == [model.classes_[row].tolist() for row in likely], "predict is not the likely labels"
    model.threshold_ = 1.0
    for one_at_least in (True, False):
        model.calibration_ = model.calibration_._replace(one_at_least=one_at_least)
        assert ([] in model.predict(X)) != one_at_least, "wrong prediction for rows without a likely label"
    columns = [[CLASSES.index(label) for label in row] for row in lists]
    indicator = np.zeros((len(X), len(CLASSES)), dtype=int)
    for i, row in enumerate(columns):
        indicator[i, row] = 1
    sparse = clone(estimator).fit(X, sp.csr_matrix(indicator)).predict(X)
    assert sp.issparse(sparse) and sparse.shape == indicator.shape
    dense = clone(estimator).fit(X, indicator).predict(X)
    assert isinstance(dense, np.ndarray) and (dense == sparse.toarray()).all()
    np.testing.assert_array_equal(dense, [[name in row for name in CLASSES] for row in answer])


def check_thresholds_and_given_labels(estimator: Any) -> None:
    """Check that `predict_above` and `predict_proba_of` agree with the probabilities."""
    X, y = example_data()
    multi_X, lists = example_lists()
    problems = [(X, y), (sp.csr_matrix(multi_X), lists)]
    for features, labels in problems[:1] if estimator.ONE_LABEL_ONLY else problems:
        model = clone(estimator).fit(features, labels)
        probabilities = model.predict_proba_of(features, model.classes_)
        for threshold in (0.0, 0.05, 0.5, 1.0):
            found = model.predict_above(features, threshold)
            expected = [model.classes_[row].tolist() for row in probabilities >= threshold]
            agree = np.mean([a == b for a, b in zip(found, expected, strict=True)])
            assert agree > 0.99, f"predict_above({threshold}) differs from predict_proba_of"  # up to rounding
        for row, pairs in zip(probabilities[:20], model.predict_above(features, 0.05, scores=True)):
            assert [score for _, score in pairs] == sorted((score for _, score in pairs), reverse=True)
            for label, score in pairs:
                assert abs(score - row[np.searchsorted(model.classes_, label)]) < 1e-4
        some = [2, 0, 2]
        of_some = model.predict_proba_of(features, model.classes_[some])
        np.testing.assert_allclose(of_some, probabilities[:, some], rtol=1e-4, atol=1e-6)
        top = model.predict_topk(features, 3)
        given = model.predict_proba_of(features, top.labels)
        np.testing.assert_allclose(given, top.scores, rtol=1e-4, atol=1e-6)
        assert_raises(partial(model.predict_proba_of, features, ["yak"]), "yak")
        for wrong in (-0.1, 1.5, "half", None, True):
            assert_raises(partial(model.predict_above, features, wrong), "threshold")


def check_chosen_thresholds(estimator: Any) -> None:
    """Check that `choose_thresholds` changes `predict` as it says, is saved, and is refused for one label a row."""
    X, y = example_data()
    if estimator.ONE_LABEL_ONLY:
        assert_raises(lambda: clone(estimator).fit(X, y).choose_thresholds(X, y), "multi-label")
        return
    X, lists = example_lists()
    model = clone(estimator).fit(X, lists)
    probabilities = model.predict_proba_of(X, model.classes_)
    for metric, precision in (("macro-f1", None), ("micro-f1", None), ("instance-f1", None), ("precision", 0.9)):
        model.choose_thresholds(X, lists, metric, precision)
        assert metric in model.describe()["decision"]
        limits = model.decision_.of(np.arange(len(model.classes_)), model.threshold_)
        expected = [set(model.classes_[row >= limits].tolist()) for row in probabilities]
        found = [set(row) for row in model.predict(X)]
        single = [model.calibration_.one_at_least and len(row) == 1 for row in found]
        agree = [one or a == b for one, a, b in zip(single, found, expected, strict=True)]
        assert np.mean(agree) > 0.99, f"predict does not follow the thresholds of {metric}"
        loaded = saved_and_loaded(model)
        assert loaded.predict(X) == model.predict(X) and facts(loaded) == facts(model)
    model.threshold_ = 0.5
    assert "decision" not in model.describe()
    assert_raises(lambda: model.choose_thresholds(X, lists, "accuracy"), "metric")
    assert_raises(lambda: model.choose_thresholds(X, lists, "precision"), "precision")
    assert_raises(lambda: model.choose_thresholds(X, lists[1:]), "rows")
    assert_raises(lambda: model.choose_thresholds(X, [["unknown"]] * len(X)), "labels that the model knows")


def check_odd_shapes(estimator: Any) -> None:
    """One class, one row, one feature and rows of zeros work."""
    X, y = example_data()
    single = clone(estimator).fit(X, ["only"] * len(X))
    assert set(single.predict(X)) == {"only"} and single.predict_topk(X, 5).labels.shape == (len(X), 1)
    assert clone(estimator).fit(X[:1], y[:1]).predict(X[:3]).tolist() == [y[0]] * 3
    assert len(clone(estimator).fit(X[:, :1], y).predict(X[:, :1])) == len(X)
    model = clone(estimator).fit(X, y)
    for zeros in (np.zeros((2, X.shape[1])), sp.csr_matrix((2, X.shape[1]))):
        labels, scores = model.predict_topk(zeros, 3)
        assert np.isfinite(scores).all() and labels[0].tolist() == labels[1].tolist()
        agree_with_probabilities(model, zeros, labels, scores)
    assert np.isfinite(clone(estimator).fit(np.zeros_like(X), y).predict_proba(X)).all()


def check_rows_without_known_features(estimator: Any) -> None:
    """Check that the prediction for a sparse row without known features is the label frequencies."""
    X, y = example_data()
    model = clone(estimator).fit(sp.csr_matrix(X[:-20]), y[:-20])
    frequencies = model.label_counts_ / model.label_counts_.sum()
    empty = sp.csr_matrix((2, X.shape[1]))
    far = sp.csr_matrix(([1.0, 2.0], ([0, 1], [10**6, 10**6])))
    for rows in (empty, far):
        labels, scores = model.predict_topk(rows, 2)
        np.testing.assert_allclose(scores[0], np.sort(frequencies)[::-1][:2], rtol=1e-6)
        np.testing.assert_allclose(model.predict_proba(rows)[1], frequencies, rtol=1e-6)
        assert model.predict(rows).tolist() == [labels[0, 0]] * 2
        assert model.predict_above(rows, 0.0)[0] == model.classes_.tolist()


def check_explanations(estimator: Any) -> None:
    """Check that explanations are of the answers of `predict_topk`, add up, and are the same after loading."""
    X, y = example_data()
    multi_X, lists = example_lists()
    problems: list[tuple[Any, Any]] = [(X, y), (sp.csr_matrix(X), y), (sp.csr_matrix(multi_X), lists)]
    for features, labels in problems[:2] if estimator.ONE_LABEL_ONLY else problems:
        model = clone(estimator).fit(features, labels)
        if not hasattr(model.model_, "trace"):
            assert_raises(partial(model.explain, features[:1]), "cannot explain")
            return
        loaded = saved_and_loaded(model)
        some = features[1:9]
        rows = [some[i : i + 1] for i in range(8)]
        explained = zip(rows, model.explain(some, k=3), loaded.explain(some, k=3), zip(*model.predict_topk(some, 3)))
        for row, told, again, top in explained:
            assert_adds_up(told, *top)
            assert decisions(told) == decisions(again), "the explanation changes when the model is saved and loaded"
            for label in top[0][1:2]:
                if label is not None:
                    other = model.explain(row, label=label)
                    assert other.alternative is not None and other.alternative.label == other.candidates[0].label
                    assert_adds_up(other)
        assert_raises(partial(model.explain, features[:1], label="yak"), "yak")
        assert_raises(partial(model.explain, features[:1], k=0), "k must")
    if hasattr(estimator, "partial_fit"):
        stream = clone(estimator).partial_fit(sp.csr_matrix(X), y)
        stream.partial_fit(sp.csr_matrix(np.roll(X, 5, axis=1)), np.where(y == "ant", "auk", y))
        for i in range(5):
            assert_adds_up(stream.explain(X[i]), *(part[0] for part in stream.predict_topk(X[i : i + 1], 5)))
    assert_raises(lambda: clone(estimator).fit(X, y).explain(X[:1, :-1]), "features")
    model = clone(estimator).fit(sp.csr_matrix(X[:-20]), y[:-20])
    told = model.explain(sp.csr_matrix((1, X.shape[1])))
    assert told.prior and not told.paths and told.notes, "the explanation of a row without features is not the prior"
    assert told.label == model.predict(sp.csr_matrix((1, X.shape[1])))[0]


def decisions(told: Any) -> list[Any]:
    """Return the text of an explanation and its numbers, but not the numbers of nodes, which a file may change."""
    steps = [step for path in (*told.paths, *told.routes) for step in path.steps]
    return [str(told), *((step.probability, step.logit, step.added.tolist()) for step in steps)]


def assert_adds_up(told: Any, labels: Any = None, scores: Any = None) -> None:
    """Assert that the parts of an explanation add up, and that it is one of these answers of `predict_topk`."""
    if labels is not None:
        assert told.label == labels[0] and [each.label for each in told.candidates] == [
            x for x in labels if x is not None
        ]
        found = [each.probability for each in told.candidates]
        np.testing.assert_allclose(found, scores[: len(found)], rtol=1e-4, atol=1e-6)
    assert abs(sum(path.weight * path.probability for path in told.paths) - told.score) <= 1e-3 * told.score + 1e-6
    steps = [step for path in (*told.paths, *told.routes) for step in path.steps]
    assert steps and len(told.features) == len(told.values) == len(told.columns)
    for step in steps:
        if step.logit is not None:
            parts = sum(step.terms.values()) + step.added.sum()
            assert abs(parts - step.logit) <= 1e-9 * (1 + np.abs(step.added).sum()), "contributions are not the logit"
    np.testing.assert_allclose(sum(value for _, value in told.ranked()), told.added.sum(), atol=1e-9)
    assert str(told.label) in str(told) and "<div" in told.to_html()
    json.dumps(told.to_dict())
