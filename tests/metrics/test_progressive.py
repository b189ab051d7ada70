"""Progressive validation of small online models against a loop written from the definition."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import treemax
from treemax import metrics
from treemax.inputs.labels import LabelIndex, read_labels
from treemax.inputs.rows import SparseRows
from treemax.metrics.progressive import ProgressivePoint, ProgressiveRun, progressive_validation


def dense(X):
    if isinstance(X, SparseRows):
        X = X.to_scipy()
    return X.toarray() if sp.issparse(X) else np.asarray(X)


class FrequentLabels:
    """Ranks the labels seen so far with the same first feature, the most frequent first."""

    def __init__(self):
        self.counts = defaultdict(Counter)
        self.rows_learned = []

    def partial_fit(self, X, y):
        labels = read_labels(y)
        if not hasattr(self, "label_index_"):
            self.label_index_ = LabelIndex()
        if len(labels.values):
            self.label_index_.add(labels.values.tolist())
        for x, row in zip(dense(X), labels):
            self.counts[x[0]].update(row)
        self.rows_learned.append(len(labels))
        return self

    def predict_topk(self, X, k):
        if not hasattr(self, "label_index_"):
            raise NotFittedError("not fitted")
        width = min(k, len(self.label_index_))
        rows = [[label for label, _ in self.counts[x[0]].most_common(k)] for x in dense(X)]
        labels = np.array([row + [None] * (width - len(row)) for row in rows], dtype=object)
        return SimpleNamespace(labels=labels.reshape(len(rows), width), scores=None)


def slow_rankings(X, y, k, chunk_rows):
    """What the definition says is predicted for each row."""
    model, rankings = FrequentLabels(), []
    for start in range(0, len(y), chunk_rows):
        part = slice(start, start + chunk_rows)
        rankings += model.predict_topk(X[part], k).labels.tolist() if start else [[]] * len(y[part])
        model.partial_fit(X[part], y[part])
    return [row + [None] * (k - len(row)) for row in rankings]


@st.composite
def streams(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 60))
    X = rng.integers(0, 3, (n, 2)).astype(float) + 1
    labels = draw(st.sampled_from([1, 4, 30]))
    y = [(rng.permutation(labels)[: rng.integers(0, 3)] + 10).tolist() for _ in range(n)]
    return X, y


@settings(max_examples=40, deadline=None)
@given(streams(), st.integers(1, 20), st.integers(1, 6))
def test_agrees_with_the_definition(stream, chunk_rows, k):
    X, y = stream
    result = progressive_validation(FrequentLabels(), X, y, k=k, chunk_rows=chunk_rows)
    ks = sorted({j for j in (1, 3, 5) if j < k} | {k})
    expected = metrics.evaluate(y, slow_rankings(X, y, k, chunk_rows), ks=ks)
    assert {name: result.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert result.metrics["labels_known"] == len({label for row in y for label in row})
    assert result.curve[-1].examples == len(y)
    assert result.curve[-1].precision == expected["P@1"]


@settings(max_examples=25, deadline=None)
@given(streams(), st.one_of(st.none(), st.integers(1, 70)), st.integers(1, 9))
def test_the_curve_is_the_running_and_the_windowed_precision(stream, every, chunk_rows):
    X, y = stream
    reported = []
    result = progressive_validation(FrequentLabels(), X, y, chunk_rows=chunk_rows, every=every, report=reported.append)
    assert tuple(reported) == result.curve
    rankings = slow_rankings(X, y, 5, chunk_rows)
    right = np.array([row[0] is not None and row[0] in true for row, true in zip(rankings, y)])
    before = 0
    for point in result.curve:
        assert point.precision == pytest.approx(right[: point.examples].mean())
        assert point.window_precision == pytest.approx(right[before : point.examples].mean())
        known = {label for row in y[: point.examples] for label in row}
        assert point.labels_known == len(known)
        before = point.examples
    assert (np.diff(result.column("predict_seconds")) >= 0).all()


def test_compiling_is_not_counted_in_the_seconds(monkeypatch):
    clock = Counter()
    monkeypatch.setattr("treemax.metrics.progressive.perf_counter", lambda: clock["seconds"])
    monkeypatch.setattr("treemax.metrics.progressive.seconds_of_compiling", lambda: clock["compiling"])

    class Compiles(FrequentLabels):
        def partial_fit(self, X, y):
            clock.update(seconds=5, compiling=3)
            return super().partial_fit(X, y)

    metrics = progressive_validation(Compiles(), np.ones((4, 1)), ["a"] * 4).metrics
    assert metrics["learn_seconds"] == 8 and metrics["predict_seconds"] == 0


def test_points_come_at_powers_of_two_or_at_even_steps_and_at_the_end():
    X, y = np.ones((11, 1)), ["a"] * 11
    assert progressive_validation(FrequentLabels(), X, y).column("examples").tolist() == [1, 2, 4, 8, 11]
    even = progressive_validation(FrequentLabels(), X, y, every=5)
    assert even.column("examples").tolist() == [5, 10, 11]
    chunked = progressive_validation(FrequentLabels(), X, y, chunk_rows=3)
    assert chunked.column("examples").tolist() == [3, 6, 9, 11]
    exact = progressive_validation(FrequentLabels(), X[:8], y[:8])
    assert exact.column("examples").tolist() == [1, 2, 4, 8]
    assert list(pd.DataFrame(even.curve).columns) == list(ProgressivePoint._fields)


def test_the_first_chunk_of_an_unfitted_model_is_missed_and_of_a_fitted_one_is_not():
    X, y = np.ones((10, 1)), np.array(["a"] * 10)
    assert progressive_validation(FrequentLabels(), X, y).metrics["P@1"] == 0.9
    assert progressive_validation(FrequentLabels(), X, y, chunk_rows=5).metrics["P@1"] == 0.5
    fitted = FrequentLabels().partial_fit(X, y)
    assert progressive_validation(fitted, X, y).metrics["P@1"] == 1


def test_a_label_never_seen_is_a_miss():
    result = progressive_validation(FrequentLabels(), np.ones((5, 1)), list(range(5)))
    assert result.metrics["P@5"] == result.metrics["recall@5"] == 0
    assert result.metrics["n"] == 5
    assert result.metrics["labels_known"] == 5


def test_every_form_of_stream_gives_the_same_numbers():
    rng = np.random.default_rng(0)
    X = rng.integers(1, 4, (50, 3)).astype(np.float32)
    y = rng.integers(0, 6, 50)
    indicator = sp.csr_matrix((np.ones(50), (np.arange(50), y)), shape=(50, 6))
    expected = progressive_validation(FrequentLabels(), X, y, chunk_rows=4)

    def numbers(result):
        return {name: value for name, value in result.metrics.items() if "seconds" not in name}

    forms = [
        (sp.coo_matrix(X), y),
        (X.astype(int), y.tolist()),
        (X.tolist(), [[label] for label in y]),
        (pd.DataFrame(X), pd.Series(y)),
        (X, indicator),
        ([(X[:12], y[:12]), (X[12:], y[12:].tolist())], None),
        (iter([(X[:0], y[:0]), (sp.csr_array(X), read_labels(y))]), None),
        (((X[i : i + 4], y[i : i + 4]) for i in range(0, 50, 4)), None),
        ([SimpleNamespace(X=X, y=read_labels(y))], None),
    ]
    for stream, labels in forms:
        result = progressive_validation(FrequentLabels(), stream, labels, chunk_rows=4)
        assert numbers(result) == pytest.approx(numbers(expected))
    as_they_come = FrequentLabels()
    progressive_validation(as_they_come, [(X[:20], y[:20]), (X[20:], y[20:])], chunk_rows=None)
    assert as_they_come.rows_learned == [20, 30]


def test_predictions_and_labels_of_a_run():
    X, y = np.eye(3)[[0, 1, 0, 2, 0, 1]], ["a", "b", "a", "c", "a", "b"]
    seen = []
    run = ProgressiveRun(treemax.OneVsAll(), k=2, on_predictions=lambda *given: seen.append(given))
    for row in range(len(y)):
        run.step(X[row : row + 1], y[row : row + 1])
    true, ranked, scores = zip(*seen)
    assert [list(own) for own in true] == [[[label]] for label in y]
    assert ranked[0] == [[]] and scores[0] == [[]]
    assert sorted(ranked[2][0]) == ["a", "b"] and len(scores[2][0]) == 2
    table = run.per_label()
    assert [(row["label"], row["examples"]) for row in table] == [("a", 3), ("b", 2), ("c", 1)]
    first = [row[0][0] if row[0] else None for row in ranked]
    assert [row["predicted"] for row in table] == [first.count(label) for label in "abc"]


def test_a_row_without_a_label_does_not_make_a_file_multi_label(tmp_path):
    path = tmp_path / "stream.jsonl"
    lines = ['{"text": "cat", "labels": ["a"]}', '{"text": "?", "labels": []}', '{"text": "dog", "labels": ["b"]}']
    path.write_text("\n".join(lines * 3))
    model = treemax.TextModel(treemax.HashingText(), treemax.OneVsAll(verbose=0))
    result = progressive_validation(model, path)
    assert result.metrics["n"] == model.n_examples_ == 6 and not model.multi_label_
    model = treemax.TextModel(treemax.HashingText(), treemax.OneVsAll(verbose=0))
    result = progressive_validation(model, path, multi_label=True)
    assert result.metrics["n"] == model.n_examples_ == 9 and model.multi_label_


def test_long_streams_are_scored_in_batches():
    rng = np.random.default_rng(1)
    X, y = np.ones((3000, 1)), rng.integers(0, 3, 3000)
    result = progressive_validation(FrequentLabels(), X, y, every=10_000)
    rankings = slow_rankings(X, y.tolist(), 5, 1)
    expected = np.mean([row[0] == label for row, label in zip(rankings, y.tolist())])
    assert result.metrics["P@1"] == pytest.approx(expected)
    assert len(result.curve) == 1


def test_step_by_step_a_refused_chunk_is_not_counted_and_the_result_stays_at_hand():
    class Fussy(FrequentLabels):
        def partial_fit(self, X, y):
            if len(y) == 3:
                raise KeyboardInterrupt
            return super().partial_fit(X, y)

    run = ProgressiveRun(Fussy())
    run.step([[1], [1]], ["a", "a"])
    with pytest.raises(KeyboardInterrupt):
        run.step([[1]] * 3, ["a"] * 3)
    assert run.result().metrics["n"] == 2
    assert run.result().curve == run.result().curve
    run.step([[1], [1]], ["a", "b"])
    assert run.result().metrics["P@1"] == 0.25


def test_a_model_that_forgets_it_was_fitted_is_not_excused():
    class Forgetful(FrequentLabels):
        def predict_topk(self, X, k):
            raise NotFittedError("still nothing")

    with pytest.raises(NotFittedError):
        progressive_validation(Forgetful(), np.ones((3, 1)), ["a", "b", "c"])


def test_bad_calls_are_refused():
    X, y = np.ones((4, 1)), ["a", "b", "c", "d"]
    for arguments, message in [
        ({"k": 0}, "k must be an integer"),
        ({"chunk_rows": 0}, "chunk_rows must be 1 or more"),
        ({"every": 0}, "every must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            progressive_validation(FrequentLabels(), X, y, **arguments)
    with pytest.raises(ValueError, match="y is missing"):
        progressive_validation(FrequentLabels(), X)
    with pytest.raises(ValueError, match="X has 4 rows, but y has 3"):
        progressive_validation(FrequentLabels(), X, y[:3])
    with pytest.raises(ValueError, match="after 0 examples: X has 4 rows, but y has 3"):
        progressive_validation(FrequentLabels(), X, y[:3], chunk_rows=None)
    with pytest.raises(ValueError, match="chunk 1 of the stream is a str"):
        progressive_validation(FrequentLabels(), [(X, y), "nonsense"])
    with pytest.raises(ValueError, match="has no examples"):
        progressive_validation(FrequentLabels(), [])
    with pytest.raises(ValueError, match="contains NaN at row 2"):
        progressive_validation(FrequentLabels(), np.array([[1.0], [1], [np.nan]]), ["a", "b", "c"])
    result = progressive_validation(FrequentLabels(), X, y)
    with pytest.raises(ValueError, match="no column 'loss'"):
        result.column("loss")


def test_the_curve_has_the_gain_over_the_best_constant_predictor():
    X, y = np.ones((8, 1)), np.array(["a", "a", "b", "a", "a", "c", "a", "a"])
    result = progressive_validation(FrequentLabels(), X, y, every=1)
    hits = np.cumsum([0, 1, 0, 1, 1, 0, 1, 1])
    constant = [max(Counter(y[:n].tolist()).values()) for n in range(1, 9)]
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(result.column("entropy_reduction"), np.log2(hits / constant))
    assert result.column("entropy_reduction")[-1] == result.metrics["entropy_reduction"]


@pytest.mark.parametrize("chunk_rows", [1, 3, None])
def test_a_multi_label_stream_may_begin_with_rows_without_labels(chunk_rows):
    X = np.eye(8, dtype=np.float32)[[0, 1, 0, 1, 2, 2, 2, 2]]
    y = [[], [], [], [], ["a"], ["a"], ["a", "b"], ["a"]]
    model = treemax.OnlineLabelTree(verbose=0)
    result = progressive_validation(model, sp.csr_matrix(X), y, chunk_rows=chunk_rows)
    assert result.metrics["n"] == 8 and result.metrics["labels_known"] == 2
    assert result.metrics["P@1"] == {1: 3 / 8, 3: 2 / 8, None: 0.0}[chunk_rows]
    whole = treemax.OnlineLabelTree(verbose=0).partial_fit(sp.csr_matrix(X), y)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))
    chunks = [(sp.csr_matrix(X[:4]), y[:4]), (sp.csr_matrix(X[4:]), y[4:])]
    assert progressive_validation(treemax.OnlineLabelTree(verbose=0), chunks).metrics["n"] == 8
