"""Weights through pipelines, searches, text models, threads, checkpoints and saved streams."""

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import treemax
from treemax.checks.examples import ambiguous_data, assert_same_predictions
from treemax.inputs.labels import read_labels, target_ids
from treemax.inputs.weights import read_weights, repetitions

X, Y, FIRST = ambiguous_data()
WEIGHTS = np.where(FIRST, 2.0, 0.25)


def test_forms_of_weights():
    expected = WEIGHTS.astype(np.float32).tolist()
    for form in (WEIGHTS, WEIGHTS.tolist(), WEIGHTS.astype(np.float16)):
        assert read_weights(form, len(Y)).tolist() == expected
    assert read_weights(2, 3).tolist() == [2, 2, 2] and read_weights(np.ones(3, dtype=int), 3) is None


def test_fractions_are_rounded_up_as_often_as_they_say():
    weights = np.random.RandomState(0).uniform(0, 3, 5000).astype(np.float32)
    times = np.bincount(repetitions(weights), minlength=len(weights))
    assert ((times == np.floor(weights)) | (times == np.ceil(weights))).all()
    assert abs(times.sum() - weights.sum()) < 50
    halves = [len(repetitions(np.full(1, 0.5, np.float32), n)) for n in range(1, 1001)]  # one row at a time
    assert abs(sum(halves) - 500) < 10
    with pytest.raises(ValueError, match="mean is at most 1000"):
        repetitions(np.full(3, 1e6, np.float32))
    with pytest.raises(ValueError, match="about one"):
        repetitions(np.full(3, 1e-3, np.float32))


def test_pipelines_and_metadata_routing_pass_weights():
    alone = treemax.OneVsAll(scale=False, verbose=0).fit(StandardScaler().fit_transform(X), Y, sample_weight=WEIGHTS)
    pipeline = make_pipeline(StandardScaler(), treemax.OneVsAll(scale=False, verbose=0))
    pipeline.fit(X, Y, onevsall__sample_weight=WEIGHTS)
    np.testing.assert_array_equal(pipeline.predict(X), alone.predict(StandardScaler().fit_transform(X)))
    with sklearn.config_context(enable_metadata_routing=True):
        model = treemax.OneVsAll(verbose=0).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scores = cross_val_score(model, X, Y, cv=3, params={"sample_weight": WEIGHTS})
    assert scores.mean() > 0.8


def test_text_models_pass_weights():
    texts, y = ["red apple", "red apple", "fast car"] * 10, ["fruit", "colour", "vehicle"] * 10
    for winner, weights in (("fruit", [3.0, 0.5, 1.0] * 10), ("colour", [0.5, 3.0, 1.0] * 10)):
        model = treemax.TextModel(estimator=treemax.LabelTree(verbose=0)).fit(texts, y, sample_weight=weights)
        assert model.predict(["red apple"]).tolist() == [winner]
        assert model.score(texts, y, sample_weight=weights) > 0.8


def test_a_label_tree_with_weights_does_not_depend_on_threads_or_checkpoints(tmp_path):
    one = treemax.LabelTree(max_leaf=2, arity=2, verbose=0).fit(X, Y, sample_weight=WEIGHTS)
    assert_same_predictions(
        one, treemax.LabelTree(max_leaf=2, arity=2, verbose=0, n_jobs=2).fit(X, Y, sample_weight=WEIGHTS), X
    )
    with treemax.checkpoint(tmp_path):
        kept = treemax.LabelTree(max_leaf=2, arity=2, verbose=0).fit(X, Y, sample_weight=WEIGHTS)
        other = treemax.LabelTree(max_leaf=2, arity=2, verbose=0).fit(X, Y, sample_weight=1 / WEIGHTS)
    assert_same_predictions(one, kept, X)
    assert (other.predict(X) != one.predict(X)).mean() > 0.5, "the checkpoint of other weights was used"


@pytest.mark.parametrize("kind", [treemax.OneVsAll, treemax.OnlineLabelTree, treemax.RecallTree])
def test_a_stream_with_weights_is_saved_and_resumed(kind, tmp_path):
    first, then = slice(0, 200), slice(200, None)
    model = kind(verbose=0).partial_fit(X[first], Y[first], sample_weight=WEIGHTS[first])
    model.save(tmp_path / "model.treemax", resume=True)
    resumed = treemax.load(tmp_path / "model.treemax")
    for learner in (model, resumed):
        learner.partial_fit(X[then], Y[then], sample_weight=WEIGHTS[then]).partial_fit(X[:5], Y[:5])
    assert_same_predictions(model, resumed, X)
    np.testing.assert_array_equal(model.label_weights_, resumed.label_weights_)
    np.testing.assert_allclose(model.label_weights_.sum(), WEIGHTS.sum() + 5, rtol=1e-6)


@pytest.mark.parametrize("kind", [treemax.LOMTree, treemax.LearnedTree, treemax.ContextualMemoryTree])
def test_a_stream_with_repeated_rows_is_resumed_where_its_rounding_was(kind, tmp_path):
    weights = np.where(FIRST, 1.5, 0.25)
    model = kind(verbose=0).partial_fit(X[:1], Y[:1], sample_weight=[0.25])  # which alone would be rounded to no row
    assert model.predict(X[:1]).tolist() == Y[:1].tolist()
    model.partial_fit(X[:201], Y[:201], sample_weight=weights[:201])
    model.save(tmp_path / "model.treemax", resume=True)
    resumed = treemax.load(tmp_path / "model.treemax")
    for learner in (model, resumed):
        for row in range(201, 230):
            learner.partial_fit(X[row : row + 1], Y[row : row + 1], sample_weight=weights[row : row + 1])
    assert model.n_examples_ == resumed.n_examples_
    assert_same_predictions(model, resumed, X)


@pytest.mark.parametrize("kind", [treemax.LOMTree, treemax.LabelTree])
def test_labels_of_small_class_weight_are_known(kind):
    model = kind(class_weight={"ant": 1e-4}, verbose=0).fit(X, np.where(FIRST, "ant", "bee"))
    assert set(model.predict(X)) == {"bee"}
    with pytest.raises(ValueError, match="not in y"):
        kind(class_weight={"wasp": 1e-4}, verbose=0).fit(X, Y)


@pytest.mark.parametrize("kind", [treemax.OneVsAll, treemax.LabelTree])
def test_class_weights_of_several_labels_are_those_of_each_label(kind):
    lists = [[label, "all"] for label in Y.tolist()]
    names = sorted({*Y.tolist(), "all"})
    favoured = {name: 3.0 if place % 2 else 0.3 for place, name in enumerate(names)}
    indicator = np.array([[name in row for name in names] for row in lists], dtype=float)
    relevance = sp.csr_matrix(indicator * [favoured[name] for name in names])
    by_label = kind(class_weight=favoured, verbose=0).fit(X, lists)
    by_relevance = kind(verbose=0).fit(X, relevance)
    np.testing.assert_array_equal(by_label.predict_proba(X), by_relevance.predict_proba(X))
    assert not np.array_equal(by_label.predict_proba(X), kind(verbose=0).fit(X, lists).predict_proba(X))


def test_class_weights_with_several_labels_are_refused_where_labels_share_a_loss():
    with pytest.raises(ValueError, match="class_weight with one label per row only"):
        treemax.OnlineLabelTree(class_weight={"ant": 2.0}, verbose=0).fit(X, [[label] for label in Y.tolist()])
    with pytest.raises(ValueError, match="partial_fit does not know"):
        treemax.OneVsAll(class_weight="balanced", verbose=0).partial_fit(X, Y)


def test_relevance_follows_the_ids_of_its_labels():
    y = sp.csr_matrix(np.array([[0, 0.5, 2], [1, 0, 0], [0.25, 0, 4]]))
    labels = read_labels(y)
    targets = target_ids(labels, labels.values)
    assert targets.ids.tolist() == [1, 2, 0, 0, 2] and targets.relevance.tolist() == [0.5, 2, 1, 0.25, 4]
    assert labels.take(np.array([2, 0])).relevance.tolist() == [0.25, 4, 0.5, 2]


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_a_softmax_has_the_optimum_of_repeated_rows(form):
    """One leaf is a convex problem; a deeper tree may end in another local optimum."""
    times = np.random.RandomState(0).randint(1, 5, len(Y))
    model = treemax.SoftmaxTree(depth=0, alpha=0.1, spill=0.0, growth=1.0, tolerance=1e-5, verbose=0)
    weighted = sklearn.base.clone(model).fit(form(X), Y, sample_weight=times)
    repeated = sklearn.base.clone(model).fit(form(np.repeat(X, times, axis=0)), np.repeat(Y, times))
    plain = sklearn.base.clone(model).fit(form(X), Y)
    expected = repeated.predict_proba(X)
    assert np.abs(weighted.predict_proba(X) - expected).mean() < 0.01
    assert np.abs(plain.predict_proba(X) - expected).mean() > 0.01
