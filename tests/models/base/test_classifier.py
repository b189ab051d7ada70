"""The forms of X and y through an estimator, growing streams, rejected input that changes nothing, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

import treemax
from treemax import OneVsAll, TrainingInterrupted
from treemax.inputs.labels import RaggedLabels, read_labels
from treemax.models.one_vs_all import estimator as one_vs_all

NAMES = np.array(["ant", "bee", "cat"])
random = np.random.RandomState(0)
X = np.ascontiguousarray(random.normal(size=(90, 5)), dtype=np.float32)
IDS = X[:, :3].argmax(axis=1)
WORDS = NAMES[IDS]
LISTS = [sorted({NAMES[a], NAMES[b]}) for a, b in zip(IDS, X[:, :3].argmin(axis=1))]
INDICATOR = np.array([[name in row for name in NAMES] for row in LISTS], dtype=np.int64)


def state(model: OneVsAll) -> list:
    """All that may be seen of a model."""
    top = model.predict_topk(X, 3)
    return [
        top.labels.tolist(), top.scores.tolist(), model.classes_.tolist(), model.classes_.dtype.str,
        model.label_counts_.tolist(), model.n_examples_, model.n_features_in_, model.multi_label_, model.describe(),
    ]  # fmt: skip


# --- forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y",
    [
        WORDS.tolist(),
        WORDS.astype(object),
        pd.Series(WORDS),
        pd.Series(WORDS, dtype="category"),
        pd.Series(WORDS, dtype="string"),
        pl.Series(WORDS.tolist()),
        read_labels(WORDS),
    ],
)
def test_every_form_of_a_vector_gives_the_same_model(y):
    expected, model = OneVsAll().fit(X, WORDS), OneVsAll().fit(X, y)
    assert model.classes_.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    assert model.predict(X).tolist() == expected.predict(X).tolist()


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, list, np.asfortranarray, lambda X: X.astype(float)])
def test_every_dense_form_of_x_gives_the_same_model(make):
    expected, model = OneVsAll().fit(X, WORDS), OneVsAll().fit(make(X), WORDS)
    np.testing.assert_array_equal(model.predict_proba(make(X)), expected.predict_proba(X))


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_every_sparse_form_of_x_gives_the_same_model(format, kind):
    expected = OneVsAll().fit(sp.csr_matrix(X), WORDS)
    given = kind(X).asformat(format)
    before = given.copy()
    model = OneVsAll().fit(given, WORDS)
    np.testing.assert_array_equal(model.predict_proba(given), expected.predict_proba(sp.csr_matrix(X)))
    assert (before != given).nnz == 0


def test_multi_label_answers_come_in_the_form_of_y():
    lists = OneVsAll().fit(X, LISTS).predict(X)
    assert isinstance(lists, list) and set(map(type, lists)) == {list}
    sparse = OneVsAll().fit(X, sp.csr_matrix(INDICATOR)).predict(X)
    assert sparse.format == "csr" and sparse.shape == INDICATOR.shape
    dense = OneVsAll().fit(X, INDICATOR).predict(X)
    assert type(dense) is np.ndarray
    np.testing.assert_array_equal(dense, sparse.toarray())
    np.testing.assert_array_equal(dense, [[name in row for name in NAMES] for row in lists])


def test_columns_without_a_single_one_are_labels_too():
    wide = np.hstack([INDICATOR, np.zeros((90, 2), dtype=int)])
    model = OneVsAll().fit(X, wide)
    assert model.classes_.tolist() == [0, 1, 2, 3, 4] and model.predict(X).shape == (90, 5)
    assert model.label_counts_[3:].tolist() == [0, 0]


def test_duplicate_labels_in_a_row_count_once():
    twice = [row + row for row in LISTS]
    assert state(OneVsAll().fit(X, twice)) == state(OneVsAll().fit(X, LISTS))


def test_the_callers_data_are_not_changed():
    matrix, labels, lists = X.copy(), WORDS.copy(), [list(row) for row in LISTS]
    matrix.flags.writeable = labels.flags.writeable = False
    OneVsAll().fit(matrix, labels).partial_fit(matrix, labels)
    OneVsAll().fit(matrix, lists)
    assert lists == LISTS


def test_one_class_one_row_and_rows_of_zeros():
    assert OneVsAll().fit(X, ["only"] * 90).predict_proba(X).tolist() == [[1.0]] * 90
    assert OneVsAll().fit(X[:1], ["only"]).predict(X[:2]).tolist() == ["only"] * 2
    y = ["rare"] * 10 + ["common"] * 80
    for zeros in (np.zeros((90, 5)), sp.csr_matrix((90, 5))):
        labels, scores = OneVsAll().fit(zeros, y).predict_topk(zeros[:1], 2)
        assert labels.tolist() == [["common", "rare"]] and np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("bad_X", "bad_y", "message"),
    [
        (X, WORDS[:-1], "X has 90 rows, y has 89"),
        (X[:0], WORDS[:0], "minimum of 1"),
        (X, [[]] * 90, r"no labels at all|multi-label"),
        (X, sp.csr_matrix((90, 0)), r"no labels at all|multi-label"),
        (X, np.linspace(0, 1, 90), "continuous"),
        (X, ["a", 1, *WORDS[2:]], "row 1 has 1 after 'a'"),
        (X, [None, *WORDS[1:]], "None .* at row 0"),
        (X, None, "y"),
        (X * np.float64(1e60), WORDS, "too large for float32"),
        (X, RaggedLabels(np.arange(0, 182, 2), np.arange(180), np.dtype(int), "vector"), "row 0 has 2 labels"),
    ],
)
def test_bad_input_is_refused_by_fit_and_by_partial_fit_and_changes_nothing(bad_X, bad_y, message):
    model = OneVsAll().fit(X, WORDS)
    before = state(model)
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=message):
            learn(bad_X, bad_y)
    assert state(model) == before
    for learn in (OneVsAll().fit, OneVsAll().partial_fit):
        with pytest.raises(ValueError, match=message):
            learn(bad_X, bad_y)
        with pytest.raises(NotFittedError):
            learn.__self__.predict(X)


@pytest.mark.parametrize("kind", treemax.MODELS.values(), ids=treemax.MODELS)
def test_methods_that_need_no_rows_say_that_a_model_is_not_fitted(kind):
    for method in ("describe", "make_label_weights"):
        if hasattr(kind, method):
            with pytest.raises(NotFittedError):
                getattr(kind(), method)()


# --- widths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained_on", [np.asarray, sp.csr_matrix])
def test_dense_rows_must_have_the_columns_of_the_training(trained_on):
    model = OneVsAll().fit(trained_on(X), WORDS)
    for wrong in (X[:, :4], np.hstack([X, X]), X[:, :3].tolist()):
        for call in (model.predict, model.predict_proba, model.predict_topk, lambda X: model.partial_fit(X, WORDS)):
            with pytest.raises(ValueError, match=rf"X has {len(wrong[0])} features, but OneVsAll is expecting 5"):
                call(wrong)


@pytest.mark.parametrize("trained_on", [np.asarray, sp.csr_matrix])
def test_columns_of_sparse_rows_are_features_known_or_not(trained_on):
    model = OneVsAll().fit(trained_on(X), WORDS)
    expected = model.predict_proba(X)
    wide = sp.csr_matrix(np.hstack([X, np.full((90, 3), 7.0)]))
    np.testing.assert_allclose(model.predict_proba(wide), expected, atol=1e-6)
    zeros = X.copy()
    zeros[:, 3:] = 0.0
    np.testing.assert_allclose(model.predict_proba(sp.csr_matrix(X[:, :3])), model.predict_proba(zeros), atol=1e-6)
    far = sp.csr_matrix((np.ones(1), ([0], [2**32 - 2])), shape=(1, 2**32 - 1))
    np.testing.assert_allclose(model.predict_proba(far), model.predict_proba(sp.csr_matrix((1, 5))), atol=1e-6)
    assert model.n_features_in_ == 5


@pytest.mark.parametrize("begun_with", [np.asarray, sp.csr_matrix])
def test_a_stream_of_wider_sparse_rows_grows_the_model(begun_with):
    model = OneVsAll().partial_fit(begun_with(X), WORDS)
    wide = sp.csr_matrix(np.hstack([X, np.full((90, 3), 7.0)]))
    model.partial_fit(wide, WORDS)
    assert model.n_features_in_ == 8 and model.predict(wide).shape == (90,)
    model.partial_fit(sp.csr_matrix(X[:, :2]), WORDS)
    assert model.n_features_in_ == 8
    with pytest.raises(ValueError, match="expecting 8 features"):
        model.predict(X)


def test_names_of_columns_must_stay():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = OneVsAll().fit(frame, WORDS)
    assert model.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[list("edcba")])
    model.fit(X, WORDS)
    assert not hasattr(model, "feature_names_in_")


# --- streams --------------------------------------------------------------------------------------------


def test_new_labels_arrive_and_old_ones_keep_id_and_weights():
    model = OneVsAll().partial_fit(X[:40], WORDS[:40])
    known, weights = model.classes_.tolist(), model.model_.weights.copy()
    model.partial_fit(np.zeros((1, 5)), ["yak"])  # a row of zeros moves no weight
    assert model.classes_.tolist() == [*known, "yak"]
    np.testing.assert_array_equal(model.model_.weights[:3], weights)
    assert model.predict_proba(X).shape == (90, 4)
    assert model.label_counts_.sum() == model.n_examples_ == 41


def test_labels_of_integers_widen_with_what_arrives():
    model = OneVsAll().partial_fit(X[:3], np.array([1, 2, 3], dtype=np.int8))
    model.partial_fit(X[:2], [2**62 + 1, -5])
    assert model.classes_.tolist() == [1, 2, 3, 2**62 + 1, -5]
    unsigned = OneVsAll().partial_fit(X[:1], np.array([2**63 - 1], dtype=np.uint64)).partial_fit(X[:1], [-1])
    assert unsigned.classes_.tolist() == [2**63 - 1, -1]


def test_announced_classes_come_first_and_need_no_examples():
    model = OneVsAll().partial_fit(X[:5], WORDS[:5], classes=["zebra", *NAMES])
    assert model.classes_.tolist() == ["zebra", *NAMES]
    assert model.label_counts_.tolist()[0] == 0 and model.predict_proba(X).shape == (90, 4)
    model.partial_fit(X[:5], WORDS[:5], classes=["late"])
    assert model.classes_.tolist() == ["zebra", *NAMES, "late"]
    with pytest.raises(ValueError, match="not in classes"):
        OneVsAll().partial_fit(X, WORDS, classes=["ant", "bee"])
    with pytest.raises(ValueError, match="one kind"):
        model.partial_fit(X, WORDS, classes=[1, 2])


@pytest.mark.parametrize("lists", [[["a"], ["b"]], [[1], [2]]])
def test_rows_without_labels_are_learned_as_such(lists):
    model = OneVsAll().partial_fit(X[:2], lists)
    model.partial_fit(X[:2], [[], []])
    assert model.label_counts_.tolist() == [1, 1] and model.n_examples_ == 4
    model.partial_fit(X[:2], lists)
    with pytest.raises(ValueError, match="needs at least one label"):
        OneVsAll().partial_fit(X[:2], [[], []])
    announced = OneVsAll().partial_fit(X[:2], [[], []], classes=[row[0] for row in lists])
    assert announced.label_counts_.tolist() == [0, 0] and announced.predict(X[:2]) == [[], []]


def test_indicators_get_wider_and_narrower():
    model = OneVsAll().partial_fit(X, sp.csr_matrix(INDICATOR))
    wide = sp.hstack([sp.csr_matrix((90, 3), dtype=int), sp.csr_matrix(INDICATOR)]).tocsr()
    model.partial_fit(X, wide)
    assert model.predict(X).shape == (90, 6) and model.classes_.tolist() == list(range(6))
    model.partial_fit(X, sp.csr_matrix(INDICATOR[:, :2]))
    assert model.predict(X).shape == (90, 6)


def test_the_form_of_y_must_stay():
    model = OneVsAll().partial_fit(X, WORDS)
    before = state(model)
    for other in (LISTS, INDICATOR, sp.csr_matrix(INDICATOR), list(range(90))):
        with pytest.raises(ValueError, match=r"multi-label|one kind"):
            model.partial_fit(X, other)
    assert state(model) == before


def test_a_model_of_indicators_takes_no_negative_labels():
    model = OneVsAll().partial_fit(X, INDICATOR)
    with pytest.raises(ValueError):
        model.partial_fit(X[:2], [[-1], [7]])


def test_refused_growth_leaves_the_stream_as_it_was():
    model = OneVsAll(max_memory=1e-6).partial_fit(X, WORDS)
    before = state(model)
    with pytest.raises(MemoryError, match="max_memory"):
        model.partial_fit(X, [f"label {i}" for i in range(90)])
    with pytest.raises(MemoryError, match="max_memory"):
        model.partial_fit(sp.csr_matrix(([1.0], ([0], [999])), shape=(1, 1000)), ["ant"])
    with pytest.raises(MemoryError, match="max_memory"):
        model.fit(np.zeros((2, 500)), ["a", "b"])
    assert state(model) == before


def test_memory_that_runs_out_while_growing_leaves_the_stream_as_it_was(monkeypatch):
    model = OneVsAll().partial_fit(X, WORDS)
    before = state(model)

    def out_of_memory(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(one_vs_all, "resized", out_of_memory)
        model.partial_fit(X[:1], ["yak"])
    assert state(model) == before


def test_an_absurdly_wide_indicator_is_refused_at_once():
    y = sp.csr_matrix(([1], ([0], [0])), shape=(1, 2**40))
    for learn in (OneVsAll().fit, OneVsAll(max_memory=1).partial_fit):
        with pytest.raises(MemoryError, match="max_memory"):
            learn(X[:1], y)


def test_fit_after_partial_fit_starts_anew():
    model = OneVsAll().partial_fit(X, WORDS).partial_fit(X[:1], ["yak"])
    assert state(model.fit(X, WORDS)) == state(OneVsAll().fit(X, WORDS))
    model.fit(X, LISTS)
    assert model.multi_label_ and state(model) == state(OneVsAll().fit(X, LISTS))


def test_a_stream_goes_on_after_saving_as_if_it_had_not_stopped(tmp_path):
    through = OneVsAll().partial_fit(X[:50], WORDS[:50])
    through.save(tmp_path / "half.treemax", resume=True)
    resumed = treemax.load(tmp_path / "half.treemax")
    for model in (through, resumed):
        model.partial_fit(X[50:], WORDS[50:]).partial_fit(X[:1], ["yak"])
    assert state(through) == state(resumed)


# --- interruptions --------------------------------------------------------------------------------------


class InterruptingBar:
    """A progress bar during which Ctrl-C is pressed."""

    def __init__(self, total, title, unit, verbose):
        self.n = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False

    def update(self, n):
        self.n += n
        if self.n >= 180:
            raise KeyboardInterrupt


@pytest.mark.parametrize("y", [WORDS, LISTS], ids=["vector", "lists"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_an_interrupted_fit_keeps_what_was_learned(monkeypatch, tmp_path, form, y):
    monkeypatch.setattr("treemax.models.base.classifier.progress_bar", InterruptingBar)
    model = OneVsAll(passes=4)
    with pytest.raises(KeyboardInterrupt, match="interrupted after 50% of the training") as caught:
        model.fit(form(X), y)
    assert isinstance(caught.value, TrainingInterrupted) and caught.value.done == 0.5
    assert model.score(form(X), y) > 0.7 and model.n_examples_ == 90
    model.save(tmp_path / "interrupted.treemax")
    assert state(treemax.load(tmp_path / "interrupted.treemax")) == state(model)
    monkeypatch.undo()
    model.partial_fit(form(X), y)


def test_the_share_done_is_known_without_a_bar(monkeypatch):
    def interrupted(*arguments):
        for done in learn(*arguments):
            yield done
            raise KeyboardInterrupt

    learn = one_vs_all.learn
    monkeypatch.setattr(one_vs_all, "learn", interrupted)
    with pytest.raises(TrainingInterrupted, match="interrupted after 50% of the training"):
        OneVsAll(passes=2, verbose=0).fit(X, WORDS)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="no signals")
def test_control_c_in_a_long_fit():
    script = """
        import numpy as np, os, signal, threading
        from treemax import OneVsAll, TrainingInterrupted
        X = np.random.RandomState(0).normal(size=(2000, 50)).astype(np.float32)
        y = X[:, :20].argmax(axis=1)
        model = OneVsAll(passes=10**6, learning_rate=1.0)  # the automatic rate is made for so many passes
        OneVsAll(passes=1).fit(X, y)  # compiles, so that the signal comes while it learns
        threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            model.fit(X, y)
        except TrainingInterrupted as stop:
            print("kept", stop.done, model.score(X, y) > 0.8, len(model.classes_))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, env=os.environ
    )
    kept, _, learned, labels = done.stdout.split()
    assert (kept, learned, labels) == ("kept", "True", "20"), done.stderr[-2000:]


# --- parameters in the middle of a stream -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("one-vs-all", "loss", "squared_hinge"),
        ("one-vs-all", "learning_rate", 0.25),
        ("one-vs-all", "batch_size", 3),
        ("recall-tree", "arity", 3),
        ("recall-tree", "depth", 5),
        ("recall-tree", "learning_rate", 0.25),
        ("lom-tree", "learning_rate", 0.25),
        ("memory-tree", "scorer_rate", 0.25),
        ("memory-tree", "random_state", 5),
        ("online-label-tree", "tree", {"ant": "animals"}),
    ],
)
def test_a_parameter_without_effect_is_refused_in_the_middle_of_a_stream(kind, name, value):
    model = treemax.MODELS[kind](verbose=0).partial_fit(X, WORDS)
    before, given = model.predict_proba(X), getattr(model, name)
    with pytest.raises(ValueError, match=f"{name} cannot be changed in the middle of a stream"):
        model.set_params(**{name: value}).partial_fit(X, WORDS)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.set_params(**{name: given}).partial_fit(X, WORDS)
    model.set_params(**{name: value}).fit(X, WORDS).partial_fit(X, WORDS)
