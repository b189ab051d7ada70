"""The adapters are estimators of river, with the predictions of the models that they wrap."""

from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import river.datasets
from river import checks, evaluate, feature_extraction, metrics
from scipy.sparse import csr_matrix
from sklearn.base import clone

import treemax
from treemax.river import TreemaxClassifier, TreemaxMultiLabelClassifier

MODELS = [treemax.OnlineLabelTree(), treemax.RecallTree(), treemax.LOMTree(), treemax.OneVsAll(), treemax.LearnedTree()]
WORDS = [f"word{i}" for i in range(200)]


def stream(n_rows: int, n_classes: int = 30, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Rows whose class can be told from two of their words."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n_rows):
        label = draw.randrange(n_classes)
        x = dict.fromkeys(draw.sample(WORDS[2 * n_classes :], 4), 1.0)
        rows.append((x | {WORDS[2 * label]: 2.0, WORDS[2 * label + 1]: 1.0}, f"class {label}"))
    return rows


class Music:
    """A stream of the shape of river's `datasets.Music`, which would be downloaded."""

    def take(self, n_rows: int):
        draw = np.random.default_rng(0)
        for _ in range(n_rows):
            values = draw.normal(size=72)
            yield {f"f{i}": float(v) for i, v in enumerate(values)}, {f"l{i}": bool(values[i] > 0.3) for i in range(6)}


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, *MODELS], ids=lambda model: type(model).__name__)
def test_classifiers_pass_the_checks_of_river(model):
    checks.check_estimator(TreemaxClassifier(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [treemax.OnlineLabelTree(), treemax.OneVsAll()], ids=lambda model: type(model).__name__
)
def test_multi_label_classifiers_pass_the_checks_of_river(model, monkeypatch):
    monkeypatch.setattr(river.datasets, "Music", Music)
    checks.check_estimator(TreemaxMultiLabelClassifier(model))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_answers_equal_those_of_the_model_on_the_same_rows(model):
    rows = stream(300)
    adapter, plain, columns, classes = TreemaxClassifier(model), clone(model), {}, {}

    def matrix(x):
        entries = sorted((columns[name], value) for name, value in x.items() if name in columns)
        numbers, values = zip(*entries)
        return csr_matrix((values, numbers, [0, len(values)]), shape=(1, 256))

    for x, y in rows:
        adapter.learn_one(x, y)
        for name in sorted(set(x) - set(columns)):
            columns[name] = len(columns)
        plain.partial_fit(matrix(x), [classes.setdefault(y, len(classes))])
    names = list(classes)
    for x, _ in stream(50, seed=1):
        assert adapter.predict_one(x) == names[int(plain.predict(matrix(x))[0])]
        labels, scores = plain.predict_topk(matrix(x), 3)
        expected = {
            names[label]: score for label, score in zip(labels[0].tolist(), scores[0].tolist()) if label is not None
        }
        found = adapter.predict_topk_one(x, 3)
        assert list(found) == list(expected)
        assert found == pytest.approx(expected)


def test_a_stream_is_learned():
    accuracy = evaluate.progressive_val_score(stream(2000), TreemaxClassifier(), metrics.Accuracy())
    assert accuracy.get() > 0.8


def test_texts_go_through_a_pipeline():
    model = feature_extraction.TFIDF(ngram_range=(1, 2)) | TreemaxClassifier()
    texts = [(" ".join(x), y) for x, y in stream(600)]
    for text, y in texts:
        model.learn_one(text, y)
    assert np.mean([model.predict_one(text) == y for text, y in texts]) > 0.95


def test_strings_are_categories_and_absent_values_are_left_out():
    model = TreemaxClassifier()
    for _ in range(10):
        model.learn_one({"colour": "red", "size": None}, 1)
        model.learn_one({"colour": "blue", "size": float("nan")}, 2)
    assert model.predict_one({"colour": "red"}) == 1
    assert model.predict_one({"colour": "blue", "other": 3, "flag": True}) == 2
    assert model.predict_proba_one({"colour": "red"}) == model.predict_proba_one({"colour": "red", "size": 0})


def test_classes_keep_their_types():
    model = TreemaxClassifier()
    for y in (True, "two", (3, "three"), None, 2.5):
        model.learn_one({f"only {y}": 1.0}, y)
    assert set(model.predict_proba_one({"only two": 1.0})) == {True, "two", (3, "three"), None, 2.5}


def test_weights_count_as_repetitions_would():
    one, many = TreemaxClassifier(), TreemaxClassifier()
    for x, y in stream(60):
        one.learn_one(x, y, w=2.0)
        many.learn_one(x, y)
    assert one.learner.label_weights_.sum() == 120
    assert one.predict_proba_one(x) != many.predict_proba_one(x)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_answer_as_rows_do(library):
    frame = pytest.importorskip(library)
    rows, model = stream(200), TreemaxClassifier()
    X, y = [{name: x.get(name, 0.0) for name in WORDS} for x, _ in rows], [y for _, y in rows]
    model.learn_many(frame.DataFrame(X), frame.Series(y))
    labels = model.predict_many(frame.DataFrame(X))
    assert list(labels) == [model.predict_one(x) for x, _ in rows]
    found = model.predict_proba_many(frame.DataFrame(X))
    assert np.allclose(found.to_numpy()[7], [model.predict_proba_one(rows[7][0])[name] for name in found.columns])


@pytest.mark.slow
def test_pickled_and_copied_models_continue_alike():
    rows, model = stream(400), TreemaxClassifier()
    for x, y in rows[:200]:
        model.learn_one(x, y)
    others = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    for other in [model, *others]:
        for x, y in rows[200:]:
            other.learn_one(x, y)
    assert all(other.predict_proba_one(x) == model.predict_proba_one(x) for other in others for x, _ in rows[:50])
    assert model.clone().predict_one(rows[0][0]) is None


@pytest.mark.slow
def test_threads_may_learn_and_predict_at_once():
    model, rows = TreemaxClassifier(), stream(1200)

    def learn(part):
        for x, y in rows[part::4]:
            model.learn_one(x, y)
            assert model.predict_one(x) is not None

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn, range(4)))
    assert model.learner.n_examples_ == 1200
    assert len(model.predict_proba_one(rows[0][0])) == 30


def test_labels_that_were_never_false_are_answered_if_true():
    model = TreemaxMultiLabelClassifier()
    assert model.predict_one({"a": 1}) == {}
    for _ in range(20):
        model.learn_one({"a": 1, "b": 1}, {"x": True, "y": True})
        model.learn_one({"b": 1}, {"y": True, "z": False})
        model.learn_one({"c": 1}, {})
    assert model.predict_one({"a": 1, "b": 1}) == {"x": True, "y": True, "z": False}
    assert model.predict_one({"b": 1})["x"] is False
    assert model.predict_proba_one({"b": 1})["y"][True] > 0.8
    assert list(model.predict_topk_one({"b": 1}, 1)) == ["y"]


def test_rows_without_labels_may_come_first():
    model = TreemaxMultiLabelClassifier(treemax.OneVsAll())
    model.learn_one({"a": 1}, {"x": False})
    model.learn_one({"a": 1}, {"x": True})
    assert model.predict_one({"a": 1}) == {"x": True}


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("a text", "x is a str, expected a dictionary of features"),
        ({"a": [1]}, r"Feature 'a' is \[1\] \(list\), expected a number, a bool or a string"),
        ({"a": float("inf")}, "Feature 'a' is inf, beyond"),
    ],
)
def test_bad_features_raise_and_leave_the_model_as_it_was(x, message):
    model = TreemaxClassifier()
    model.learn_one({"a": 1}, "y")
    before = pickle.dumps(model)
    for call in (lambda: model.learn_one(x, "z"), lambda: model.predict_one(x)):
        with pytest.raises(ValueError, match=message):
            call()
    assert pickle.dumps(model) == before


def test_bad_models_and_labels_raise():
    with pytest.raises(ValueError, match="model must be a classifier of treemax with partial_fit"):
        TreemaxClassifier(treemax.LabelTree())
    with pytest.raises(ValueError, match="RecallTree supports one label per row only"):
        TreemaxMultiLabelClassifier(treemax.RecallTree())
    with pytest.raises(ValueError, match="y is a str, expected a dictionary"):
        TreemaxMultiLabelClassifier().learn_one({"a": 1}, "y")
    with pytest.raises(ValueError):
        TreemaxClassifier().learn_many(pd.DataFrame({"a": [1, 2]}), pd.Series(["y"]))
