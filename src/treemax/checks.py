"""Checks of the behaviour that all classifiers of the library share.

Each check takes an unfitted estimator and raises an AssertionError if it fails. They run over every model in
`treemax.MODELS`, and over yours:

    from treemax.checks import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_check(check):
        check(MyClassifier())

Run scikit-learn's `check_estimator` as well.
"""

from __future__ import annotations

import json
import pickle
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import treemax

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")

ODD_VALUES: tuple[Any, ...] = (
    "x", "auto", None, True, -1, 0, 0.5, float("nan"), float("inf"), 1e-300, 1e300, 2**31 - 1, 2**63, -(10**30), 10**400,
    np.int8(100), np.uint8(0), np.float16(0.5), np.bool_(True), np.str_("x"), [1], np.array([1, 2]), 1j,
)  # fmt: skip
"""Invalid values of parameters."""


def example_data(n_rows: int = 210, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return seven well separated classes of points, with a fifth of the entries non-zero."""
    random = np.random.RandomState(seed)
    y = np.arange(n_rows) % len(CLASSES)
    centres = random.uniform(1.0, 2.0, (len(CLASSES), 20)) * (random.uniform(size=(len(CLASSES), 20)) < 0.3)
    X = (centres[y] + 0.2 * random.normal(size=(n_rows, 20))) * (centres[y] > 0)
    return np.ascontiguousarray(X, dtype=np.float32), np.array(CLASSES)[y]


def example_lists(n_rows: int = 210) -> tuple[NDArray[np.float32], list[list[str]]]:
    """Return multi-label data: the sum of two points has the labels of both; some rows have one label or none."""
    X, y = example_data(n_rows)
    order = np.random.RandomState(1).permutation(n_rows)
    lists = [sorted({a, b}) for a, b in zip(y.tolist(), y[order].tolist())]
    X = X + X[order]
    X[::50], lists[::50] = 0.0, [[] for _ in lists[::50]]
    return X, lists


def assert_same_predictions(one: Any, other: Any, X: Any) -> None:
    """Assert that both models predict the same top 3, bit for bit."""
    a, b = one.predict_topk(X, 3), other.predict_topk(X, 3)
    np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(a.scores, b.scores)


def saved_and_loaded(model: Any, resume: bool = False) -> Any:
    """Return the model from a file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax", resume=resume)
        return treemax.load(Path(folder) / "model.treemax")


def facts(model: Any) -> tuple[Any, ...]:
    """Return the labels, counts, examples, features and description of a model, without what only learning models know."""
    described = {name: fact for name, fact in model.describe().items() if name != "quality"}
    counts = model.label_counts_.tolist()
    return model.classes_.tolist(), counts, model.n_examples_, model.n_features_in_, described


def assert_raises(call: Callable[[], Any], *words: str) -> None:
    """Assert that the call raises a ValueError whose message has these words."""
    try:
        call()
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the error does not say {missing}: {error}"
    else:
        raise AssertionError("bad input was accepted")


# --- fitting and answering -----------------------------------------------------------------------------


def check_learns_and_scores(estimator: Any) -> None:
    """The model learns an easy problem, and `score` is the accuracy of `predict`."""
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
    """`predict_topk` is sorted, without duplicates, and consistent with `predict` and `predict_proba`.

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
    """`predict_topk` of allowed labels and with label weights has the best of `predict_proba_of`, in order."""
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
    """Predictions have the dtype of the labels in y."""
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
    """The model and its predictions do not depend on the form of X.

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
    """The prediction of a row does not depend on the other rows."""
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
    """`predict_above` and `predict_proba_of` agree with the probabilities."""
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
        own = model.predict_proba_of(features, top.labels)
        np.testing.assert_allclose(own, top.scores, rtol=1e-4, atol=1e-6)
        assert_raises(partial(model.predict_proba_of, features, ["yak"]), "yak")
        for wrong in (-0.1, 1.5, "half", None, True):
            assert_raises(partial(model.predict_above, features, wrong), "threshold")


def check_chosen_thresholds(estimator: Any) -> None:
    """`choose_thresholds` changes `predict` as it says, is saved, and is refused for one label a row."""
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
    """The prediction for a sparse row without known features is the label frequencies."""
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
    """`explain` explains the answer of `predict_topk`, and its parts add up; saved and loaded models agree."""
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


# --- reproducing, saving, copying ----------------------------------------------------------------------


def check_reproducible(estimator: Any) -> None:
    """The same seed with one thread gives the same model; a second `fit` starts again."""
    X, y = example_data()
    one, other = clone(estimator).fit(X, y), clone(estimator).fit(X, y)
    assert_same_predictions(one, other, X)
    others: list[Any] = [y[::-1], np.char.add("x", y), [[label] for label in y.tolist()]]
    for before in others[:2] if estimator.ONE_LABEL_ONLY else others:
        other.fit(X[::-1], before)
        assert set(other.classes_) == set(np.ravel(before)), "classes_ are those of the previous fit"
        other.fit(X, y)
        assert_same_predictions(one, other, X)
        assert facts(other) == facts(one), "state of the previous fit is left"


def check_save_and_load(estimator: Any) -> None:
    """A loaded model has the same class, parameters and predictions, bit for bit."""
    X, y = example_data()
    multi_X, lists = example_lists()
    problems = [(X, y), (sp.csr_matrix(X), y), (X, np.searchsorted(CLASSES, y)), (multi_X, lists)]
    for features, labels in problems[:3] if estimator.ONE_LABEL_ONLY else problems:
        model = clone(estimator).fit(features, labels)
        loaded = saved_and_loaded(model)
        assert type(loaded) is type(model) and loaded.get_params() == model.get_params()
        assert_same_predictions(model, loaded, features)
        np.testing.assert_array_equal(model.classes_, loaded.classes_)
        assert model.classes_.dtype == loaded.classes_.dtype
        assert facts(model) == facts(loaded)


def check_forgotten_labels(estimator: Any) -> None:
    """Forgotten labels are not answered, the probabilities of others stay, and files do not have them."""
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
    """Assert that wrong changes of labels raise an error and change nothing."""
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
    """Saved and compacted models have nothing of forgotten labels; models that cannot remove them say so."""
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
        text = json.dumps(saved[0]).encode() + b"".join(array.tobytes() for array in saved[1].values())
        assert not any(label.encode() in text for label in gone), "the name of a forgotten label is in the file"
        assert len(saved[1]["label_counts"]) == len(model.classes_) - 2
        assert sum(map(np.size, saved[1].values())) < sum(map(np.size, arrays.values())), "nothing was removed"
        model.compact()
        assert facts(loaded) == facts(model)
        for other in (loaded, model):
            assert other.classes_.tolist() == [label for label in CLASSES if label not in gone]
            assert set(np.ravel(other.predict_topk(X, 3).labels)) <= {*CLASSES, None} - set(gone)
            assert other.score(X, y) >= 0.6, "the labels that are left are not found"
        assert_same_predictions(loaded, model, X)


def check_added_labels(estimator: Any) -> None:
    """Labels can be added to a trained model, which finds them, logs and saves them; models that cannot say so."""
    for X, y in _problems_of_labels(estimator):
        new = np.array([CLASSES[-1] in row for row in y]) if isinstance(y, list) else y == CLASSES[-1]
        old, more = np.flatnonzero(~new), np.flatnonzero(new)[:15]
        own = (lambda rows, y=y: [y[i] for i in rows]) if isinstance(y, list) else (lambda rows, y=y: y[rows])
        model = clone(estimator).fit(X[old], own(old))
        before = model.predict_topk(X, 3)
        try:
            model.add_labels(X[more], own(more))
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
    """Renamed labels are answered by their new names, also after loading."""
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
    """The probability of a merged label is that of its parts together, in all answers, also after loading."""
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
    """Nodes of a taxonomy have the probability of the labels below them, no child more than its parent, and answers
    back off until they are probable enough, also after loading and with other names."""
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
                own = np.array([of_labels[label] for label in below.get(node, [node])])
                expected = 1 - np.prod(1 - own, axis=0) if model.multi_label_ else np.minimum(own.sum(axis=0), 1)
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


def check_copies(estimator: Any) -> None:
    """Pickling keeps the model, cloning only the parameters."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    assert_same_predictions(model, pickle.loads(pickle.dumps(model)), X)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    try:
        twin.predict(X)
    except NotFittedError:
        pass
    else:
        raise AssertionError("a clone predicts without being fitted")


def check_threads_agree(estimator: Any) -> None:
    """Predictions from several threads equal those of one thread; training with threads works."""
    X, y = example_data(2100)
    model = clone(estimator).fit(X, y)
    alone = model.predict_topk(X, 3)
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: model.predict_topk(X, 3), range(8)):
            np.testing.assert_array_equal(answer.labels, alone.labels)
            np.testing.assert_array_equal(answer.scores, alone.scores)
    if "n_jobs" in estimator.get_params():
        model.set_params(n_jobs=2)
        np.testing.assert_array_equal(model.predict_topk(X, 3).scores, alone.scores)
        assert clone(estimator).set_params(n_jobs=2).fit(X, y).score(X, y) > 0.9


# --- bad input -----------------------------------------------------------------------------------------


def check_bad_input_is_refused(estimator: Any) -> None:
    """Bad input raises an error that says what is wrong, and leaves the model unchanged."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    before, known = model.predict_topk(X, 3), facts(model)
    not_a_number, infinite, wild = X.copy(), X.copy(), sp.csr_matrix(X)
    not_a_number[3, 4], infinite[5, 6] = np.nan, np.inf
    wild.indices[0] = 77
    bad_X = [
        (not_a_number, ("NaN", "row 3", "column 4")),
        (infinite, ("inf", "row 5", "column 6")),
        (sp.csr_matrix(not_a_number), ("NaN", "row 3", "column 4")),
        (wild, ("77", "row 0")),
        (X[:0], ("0 sample",)),
        (X[0], ("2D",)),
        (X.astype(complex), ("omplex",)),
    ]
    for features, words in bad_X:
        for answer in (model.predict_topk, model.predict, model.predict_proba):
            assert_raises(partial(answer, features), *words)
        assert_raises(partial(model.fit, features, y[:7]), *words)
        assert facts(model) == known, "a fit that raised has changed the model"
    assert_raises(lambda: model.predict(X[:, :-1]), "features")
    mixed: list[Any] = ["a", 1, *y[2:].tolist()]
    bad_y: list[tuple[Any, tuple[str, ...]]] = [
        (y[:-1], ("209", "210")), (mixed, ("row 1",)), (None, ("y",)), (np.linspace(0, 1, len(X)), ("label",)),
        ([None] * len(X), ("None", "row 0")), ([[]] * len(X), ("label",)), ([["a"], "b"] * 105, ("row 1",)),
    ]  # fmt: skip
    for labels, words in bad_y:
        assert_raises(partial(model.fit, X, labels), *words)
        assert facts(model) == known, "a fit that raised has changed the model"
    for k in (0, -1, 1.5, "3", True):
        assert_raises(partial(model.predict_topk, X, k), "k must be")
    after = model.predict_topk(X, 3)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.scores, after.scores)


def check_extreme_values(estimator: Any) -> None:
    """One extreme value in a row raises or does not spoil the model; predictions are always finite."""
    X, y = example_data(420)
    mixed = X.copy()
    mixed[::7] *= np.float32(1e-42)
    mixed[1::7] *= np.float32(1e-12)
    mixed[2::7] *= np.float32(1e12)
    wild = np.full((4, X.shape[1]), 1e15, dtype=np.float32)
    wild[1] *= -1.0
    wild[2, ::2] *= -1.0
    wild[3] = 1e-42
    for form in (np.asarray, sp.csr_matrix):
        trained: list[Any] = [clone(estimator).fit(form(X), y)]
        for value in (1e6, 1e15):
            wrong = X.copy()
            wrong[3, np.flatnonzero(X[3])[0]] = value
            trained.append(clone(estimator).fit(form(wrong), y))
            if hasattr(estimator, "partial_fit"):
                trained.append(clone(estimator).fit(form(X), y).partial_fit(form(wrong[:7]), y[:7]))
                alone = clone(estimator).partial_fit(form(wrong[3:4]), y[3:4]).partial_fit(form(X), y)
                trained.append(alone.partial_fit(form(X), y).partial_fit(form(X), y))
                begun = clone(estimator).partial_fit(form(wrong), y)
                trained.append(begun.partial_fit(form(X), y).partial_fit(form(X), y))
        for model in trained:
            assert model.score(form(X), y) > 0.85, f"one wrong value leaves an accuracy of {model.score(form(X), y)}"
        try:
            trained.append(clone(estimator).fit(form(mixed), y))
        except ValueError as error:
            assert "not finite numbers" in str(error)
        for model in trained:
            for rows in (wild, mixed, X):
                assert np.isfinite(model.predict_topk(form(rows), 3).scores).all()
                assert np.isfinite(model.predict_proba(form(rows))).all()
        _too_large_values_raise(estimator, form)


def _too_large_values_raise(estimator: Any, form: Callable[[Any], Any]) -> None:
    X, y = example_data()
    model = clone(estimator).fit(form(X), y)
    before, known = model.predict_topk(form(X), 3), facts(model)
    for value in (1.1e15, -1e20, 3e38):
        wrong = X.copy()
        wrong[3, 4] = value
        rows = form(wrong)
        for learn in (model.fit, getattr(model, "partial_fit", model.fit)):
            assert_raises(partial(learn, rows, y), "row 3", "column 4", "e+")
        assert_raises(partial(model.predict, rows), "row 3", "column 4", "e+")
    for scale in (1e-12, 1e-38, 1e-42):
        small = form(X * np.float32(scale))
        for learn in (clone(estimator).fit, getattr(clone(estimator), "partial_fit", model.fit)):
            assert_raises(partial(learn, small, y), "largest value", "too small")
    assert facts(model) == known, "rows that raised have changed the model"
    np.testing.assert_array_equal(before.scores, model.predict_topk(form(X), 3).scores)


def check_large_feature_ids(estimator: Any) -> None:
    """Memory and file size depend on the features that occur, not on their largest id."""
    X, y = example_data()
    narrow, far = sp.csr_matrix(X), 2**32 - 2
    column = sp.csr_matrix(([1.0, 1.0], ([3, 10], [0, 0])), shape=(len(X), 1))
    wide = sp.csr_matrix(sp.hstack([narrow, column]))
    wide = sp.csr_matrix(
        (wide.data, np.where(wide.indices == 20, far, wide.indices.astype(np.int64)), wide.indptr), shape=(len(X), far + 1)
    )  # fmt: skip
    models = [clone(estimator).fit(wide, y)]
    if hasattr(estimator, "partial_fit"):
        models += [
            clone(estimator).partial_fit(wide, y).partial_fit(narrow, y).partial_fit(wide, y),
            clone(estimator).fit(narrow, y).partial_fit(wide, y),
        ]
    for model in models:
        assert model.n_features_in_ == 21
        assert model.score(wide, y) > 0.9 and model.score(narrow, y) > 0.9
        loaded = saved_and_loaded(model, resume=True)
        assert_same_predictions(model, loaded, wide)
        assert_same_predictions(pickle.loads(pickle.dumps(model)), loaded, wide)
        if hasattr(estimator, "partial_fit"):
            assert_same_predictions(model.partial_fit(wide[:30], y[:30]), loaded.partial_fit(wide[:30], y[:30]), wide)
    known = clone(estimator).fit(narrow, y)
    np.testing.assert_allclose(known.predict_proba(wide), known.predict_proba(narrow), atol=1e-6)
    same = known.predict_topk(wide, 3).scores
    np.testing.assert_allclose(same, known.predict_topk(narrow, 3).scores, atol=1e-6)


def check_parameters_when_used(estimator: Any) -> None:
    """Parameters changed after `fit`, or in a file, work or raise ValueError or ModelFileError."""
    X, y = example_data()
    for form in (np.asarray, sp.csr_matrix):
        model = clone(estimator).fit(form(X), y)
        header, arrays = model.to_parts(resume=True)
        for name, good in model.get_params(deep=False).items():
            for value in ODD_VALUES:
                setattr(model, name, value)
                _predicts_or_raises(model, form(X[:20]), y[:20])
                if type(value) in (int, float, str, bool, type(None)):
                    changed = {**header, "parameters": {**header["parameters"], name: value}}
                    try:
                        parts = {"class": type(model).__name__, "state": changed}
                        loaded = treemax.modelfile.object_from_parts(parts, arrays)
                    except treemax.ModelFileError:
                        continue
                    _predicts_or_raises(loaded, form(X[:20]), y[:20])
            setattr(model, name, good)
        assert model.predict_topk(form(X), 3).labels.shape == (len(X), 3)


def _predicts_or_raises(model: Any, X: Any, y: Any) -> None:
    """Assert that the model predicts finite numbers, or raises with the name of the invalid parameter."""
    calls = (
        lambda: model.predict_topk(X, 3).scores,
        lambda: model.predict_proba(X),
        lambda: model.predict_above(X, 0.1),
    )
    refusals = 0
    for call in calls:
        try:
            answer = call()
        except ValueError as error:
            assert "must be" in str(error) or "cannot be used to seed" in str(error), f"not our error: {error}"
            refusals += 1
        else:
            assert len(answer) == X.shape[0] and (isinstance(answer, list) or np.isfinite(answer).all())
    assert refusals in (0, len(calls)), "some methods check the parameters, some do not"
    if refusals and hasattr(model, "partial_fit"):
        assert_raises(lambda: model.partial_fit(X, y), "")


def check_unfitted(estimator: Any) -> None:
    """Methods of an unfitted model raise NotFittedError."""
    X, _ = example_data()
    for call in ("predict", "predict_topk", "predict_proba", "predict_above"):
        try:
            getattr(clone(estimator), call)(X)
        except NotFittedError:
            continue
        raise AssertionError(f"{call} worked before fit")


# --- online --------------------------------------------------------------------------------------------


def check_partial_fit_continues(estimator: Any) -> None:
    """A stream is learned in chunks with new labels and features; known labels keep their ids."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data(2100)
    model = clone(estimator)
    late = np.isin(y, CLASSES[4:]) & (np.arange(len(X)) < 700)
    order = np.concatenate([np.flatnonzero(~late), np.flatnonzero(late)])  # three classes appear after 400 rows
    for start in range(0, len(X), 100):
        known = list(getattr(model, "classes_", []))
        part = order[start : start + 100]
        model.partial_fit(X[part], y[part])
        assert list(model.classes_[: len(known)]) == known, "a label has changed its id"
    assert set(model.classes_) == set(CLASSES)
    assert model.n_examples_ == len(X) and model.label_counts_.sum() == len(X)
    assert model.score(X, y) > 0.85
    announced = clone(estimator).partial_fit(X[:70], y[:70], classes=[*CLASSES, "yak"])
    assert set(announced.classes_) == {*CLASSES, "yak"}, "announced classes are not known"
    wider = clone(estimator).partial_fit(sp.csr_matrix(X[:700, :10]), y[:700])
    wider.partial_fit(sp.csr_matrix(X), y)
    assert wider.n_features_in_ == X.shape[1] and wider.score(sp.csr_matrix(X), y) > 0.85


def check_partial_fit_after_fit_and_load(estimator: Any) -> None:
    """`partial_fit` continues after `fit`, and after saving with `resume`, bit for bit."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data()
    more_X, more_y = example_data(seed=5)
    for form in (np.asarray, sp.csr_matrix):
        model = clone(estimator).fit(form(X), y)
        loaded, lean = saved_and_loaded(model, resume=True), saved_and_loaded(model)
        for twin in (model, loaded):
            twin.partial_fit(form(more_X), np.where(more_y == "ant", "auk", more_y))
        assert_same_predictions(model, loaded, form(X))
        assert model.classes_[-1] == loaded.classes_[-1] == "auk"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may warn that the learning state was not saved
            lean.partial_fit(form(more_X), more_y)
        assert len(lean.predict(form(X))) == len(X)


def check_bad_chunk_changes_nothing(estimator: Any) -> None:
    """A chunk that raises leaves the model unchanged, also for later learning."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data()
    model, twin = clone(estimator).partial_fit(X, y), clone(estimator).partial_fit(X, y)
    before, known = model.predict_topk(X, 3), facts(model)
    broken = X.copy()
    broken[2, 2] = np.nan
    newcomer = np.where(y == "ant", "yak", y)
    assert_raises(lambda: model.partial_fit(broken, newcomer), "row 2")
    assert_raises(lambda: model.partial_fit(X, newcomer[:-1]), "209")
    assert_raises(lambda: model.partial_fit(X, np.arange(len(X))), "integers")
    assert_raises(lambda: model.partial_fit(X[:, :-1], newcomer), "features")
    word = "one label" if estimator.ONE_LABEL_ONLY else "multi-class"
    assert_raises(lambda: model.partial_fit(X, [[label] for label in newcomer]), word)
    assert facts(model) == known, "a chunk that raised has changed the model"
    np.testing.assert_array_equal(before.scores, model.predict_topk(X, 3).scores)
    assert_same_predictions(model.partial_fit(X, newcomer), twin.partial_fit(X, newcomer), X)


# --- weights -------------------------------------------------------------------------------------------


def ambiguous_data() -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any]]:
    """Return rows twice, first with their label, then with the label of the next class, and whether they are the first."""
    X, y = example_data()
    following = np.array(CLASSES)[(np.searchsorted(CLASSES, y) + 1) % len(CLASSES)]
    order = np.random.RandomState(2).permutation(2 * len(y))
    is_first = np.arange(2 * len(y)) < len(y)
    return np.concatenate([X, X])[order], np.concatenate([y, following])[order], is_first[order]


def check_weights_of_zero(estimator: Any) -> None:
    """Rows of weight zero are left out, with the labels that only they have; weights of one change nothing."""
    X, y = example_data()
    if not estimator.supports_weights:
        assert_raises(lambda: clone(estimator).fit(X, y, sample_weight=np.ones(len(y))), "sample_weight")
        return
    weights = np.random.RandomState(1).uniform(0.5, 2.0, len(y)) * ((np.arange(len(y)) % 3 > 0) & (y != CLASSES[2]))
    for features in (X, sp.csr_matrix(X)):
        left_out = clone(estimator).fit(features[weights > 0], y[weights > 0], sample_weight=weights[weights > 0])
        zero = clone(estimator).fit(features, y, sample_weight=weights)
        assert_same_predictions(left_out, zero, features)
        assert facts(left_out) == facts(zero) and CLASSES[2] not in zero.classes_
        ones = clone(estimator).fit(features, y, sample_weight=[1] * len(y))
        assert_same_predictions(clone(estimator).fit(features, y), ones, features)
    if hasattr(estimator, "partial_fit"):
        left_out, zero = clone(estimator), clone(estimator)
        for part in (slice(0, 100), slice(100, None)):
            kept = weights[part] > 0
            left_out.partial_fit(X[part][kept], y[part][kept], sample_weight=weights[part][kept])
            zero.partial_fit(X[part], y[part], sample_weight=weights[part])
        zero.partial_fit(X[:3], y[:3], sample_weight=[0, 0, 0])
        assert_same_predictions(left_out, zero, X)
        assert facts(left_out) == facts(zero)


def check_weights_decide(estimator: Any) -> None:
    """Where rows have contradicting labels, the heavier win, whether rows or labels have the weights; also after saving."""
    if not estimator.supports_weights:
        return
    X, y, is_first = ambiguous_data()
    for heavy in (is_first, ~is_first):
        model = clone(estimator).fit(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
        # A LOM tree has 0.79 to 0.83 with fractions, 1 with whole weights.
        won, least = model.score(X[heavy], y[heavy]), 0.75 if model._repeats_rows() else 0.9
        assert won > least, f"the heavier labels win in only {won}"
        by_weight = model.score(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
        accuracy = np.average(model.predict(X) == y, weights=np.where(heavy, 2.0, 0.25))
        assert abs(by_weight - accuracy) < 1e-6, "score does not weight the rows"
        repeats = model._repeats_rows()
        total = model.label_counts_.sum() if repeats else model.label_weights_.sum()
        np.testing.assert_allclose(total, 1.125 * len(y), rtol=0.02 if repeats else 1e-6)
        loaded = saved_and_loaded(model)
        assert_same_predictions(model, loaded, X)
        np.testing.assert_array_equal(model.label_weights_, loaded.label_weights_)
        if hasattr(estimator, "partial_fit"):
            stream = clone(estimator)
            for _ in range(5):
                stream.partial_fit(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
            assert stream.score(X[heavy], y[heavy]) > 0.7, "the heavier labels do not win in a stream"
    sparse = clone(estimator).fit(sp.csr_matrix(X), y, sample_weight=np.where(y == CLASSES[3], 50.0, 1.0))
    assert sparse.predict(sp.csr_matrix((1, X.shape[1]))).tolist() == [CLASSES[3]], "frequencies are not weighted"


def check_whole_weights(estimator: Any) -> None:
    """A model that counts rows learns a row of a whole weight as often as it says, bit for bit."""
    if not estimator.supports_weights or not estimator._repeats_rows():
        return
    X, y = example_data()
    times = np.random.RandomState(3).randint(0, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), times)
    methods = ("fit", "partial_fit") if hasattr(estimator, "partial_fit") else ("fit",)
    for method in methods:
        weighted = getattr(clone(estimator), method)(X, y, sample_weight=times)
        expected = getattr(clone(estimator), method)(X[repeated], y[repeated])
        assert_same_predictions(weighted, expected, X)
        assert facts(weighted) == facts(expected)


def check_class_weights(estimator: Any) -> None:
    """Class weights act as weights of the rows of a label, and are saved."""
    X, y, _ = ambiguous_data()
    if "class_weight" not in estimator.get_params():
        return
    favoured = {label: 2.0 if place % 2 == 0 else 0.25 for place, label in enumerate(CLASSES)}
    model = clone(estimator).set_params(class_weight=favoured).fit(X, y)
    weights = [favoured[label] for label in y.tolist()]
    of_rows = clone(estimator).fit(X, y, sample_weight=weights)
    assert_same_predictions(model, of_rows, X)
    # Without weights it is 0.57. Double sampling as published takes the same number of rows of each class, and has 0.63.
    assert np.isin(model.predict(X), CLASSES[::2]).mean() > (0.6 if model._repeats_rows() else 0.8)
    if hasattr(estimator, "partial_fit"):
        of_labels = clone(estimator).set_params(class_weight=favoured).partial_fit(X, y)
        assert_same_predictions(of_labels, clone(estimator).partial_fit(X, y, sample_weight=weights), X)
    assert saved_and_loaded(model).class_weight == favoured
    few = (y != CLASSES[0]) | (np.arange(len(y)) % 7 == 0)
    balanced = clone(estimator).set_params(class_weight="balanced").fit(X[few], y[few])
    totals = balanced.label_counts_ if balanced._repeats_rows() else balanced.label_weights_
    np.testing.assert_allclose(totals, few.sum() / len(CLASSES), rtol=0.2 if balanced._repeats_rows() else 1e-5)
    for wrong in ("even", {CLASSES[0]: -1.0}, {CLASSES[0]: "x"}, [1.0], {"yak": 2.0}):
        assert_raises(partial(clone(estimator).set_params(class_weight=wrong).fit, X, y), "class_weight")


def check_relevance(estimator: Any) -> None:
    """Values of a sparse y other than 0 and 1 are the relevance of labels, which decides how probable they become."""
    X, y = example_data()
    number = np.searchsorted(CLASSES, y)
    indicator = np.tile(np.eye(len(CLASSES))[number], (2, 1))  # of the rows twice,
    second = len(y) + np.arange(len(y)), (number + 1) % len(CLASSES)  # the second time with one label more
    X, order = np.concatenate([X, X]), np.random.RandomState(2).permutation(2 * len(y))

    def with_relevance(relevance: float) -> Any:
        indicator[second] = relevance
        return sp.csr_matrix(indicator[order])

    if not estimator.supports_relevance:
        expected = "one label per row" if estimator.ONE_LABEL_ONLY else "relevance"
        assert_raises(lambda: clone(estimator).fit(X[order], with_relevance(0.5)), expected)
        return
    if estimator.get_params().get("penalty") == "l1":
        assert_raises(lambda: clone(estimator).fit(X[order], with_relevance(0.5)), "penalty")
        return
    low, one, high = (
        clone(estimator).fit(X[order], with_relevance(relevance)).predict_proba(X)[second].mean()
        for relevance in (0.05, 1.0, 20.0)
    )
    assert low < 0.5 * one and one + 0.1 < high, f"the probabilities are {low}, {one} and {high}"
    for wrong in (-1.0, np.nan, np.inf):
        assert_raises(partial(clone(estimator).fit, X[order], with_relevance(wrong)), "y")


def check_wrong_weights(estimator: Any) -> None:
    """Weights that are not one finite number from zero for each row are refused."""
    if not estimator.supports_weights:
        return
    X, y = example_data()
    ones = np.ones(len(y))
    for wrong in (
        ones[:-1],
        ones[:, None],
        np.where(ones, -1.0, 0.0),
        ones * np.nan,
        ones * np.inf,
        0 * ones,
        "x",
        ["x"] * len(y),
    ):
        for method in ("fit", "partial_fit"):
            if hasattr(estimator, method):
                learn = getattr(clone(estimator), method)
                assert_raises(partial(learn, X, y, sample_weight=wrong), "sample_weight")


CHECKS: list[Callable[[Any], None]] = [check for name, check in list(globals().items()) if name.startswith("check_")]
