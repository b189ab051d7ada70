"""Calibration maps and thresholds, on their own and in models.

The number of forgotten rows of a stream is set, since a real stream would need millions of rows.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.models.calibration import Calibration, best_threshold, calibration_from_hits, fit_calibration, fit_next
from treemax.numpy_only.calibration import LEADING


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def answers(n_rows, slope, shift, k=5, seed=0):
    """Scores of the best labels, and hits that are as frequent as a known curve says."""
    random = np.random.RandomState(seed)
    scores = -np.sort(-random.uniform(0.01, 0.99, size=(n_rows, k)), axis=1)
    chance = sigmoid(slope * np.log(scores / (1 - scores)) + shift)
    return scores.astype(np.float32), random.uniform(size=scores.shape) < chance


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.5, -1.0), (2.0, 0.7)])
def test_a_known_curve_is_found(slope, shift):
    found = fit_calibration(*answers(20_000, slope, shift))
    assert abs(found.slope - slope) < 0.1 and abs(found.shift - shift) < 0.1


def test_few_rows_change_little_and_none_nothing():
    scores, hits = answers(3, 1.0, 3.0)
    few = fit_calibration(scores, hits)
    assert abs(few.slope - 1) < 0.7 and abs(few.shift) < 1.5
    assert fit_calibration(scores[:0], hits[:0]) == Calibration()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 50), st.booleans())
def test_the_ranking_stays_and_probabilities_are_probabilities(seed, n_rows, all_right):
    random = np.random.RandomState(seed)
    scores = -np.sort(-random.choice([0.0, 1e-30, 0.2, 0.5, 1.0], size=(n_rows, 4)), axis=1).astype(np.float32)
    hits = np.ones(scores.shape, bool) if all_right else random.uniform(size=scores.shape) < 0.3
    found = calibration_from_hits(scores, hits, hits.sum(axis=1), 4, multi_label=True)
    probabilities = found.probabilities(scores)
    assert np.isfinite(found).all() and found.slope > 0 and 0 <= found.threshold <= 1
    assert (np.diff(probabilities, axis=1) <= 0).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert (probabilities[scores == 0] == 0).all()


CURVES = (st.integers(0, 1000), st.floats(0.1, 5), st.floats(-4, 4), st.floats(0, 1), st.floats(0.25, 4))


def falling_scores(seed, n_labels=9):
    """Scores of labels of which a row has one: many alike in some rows, some of nothing, all alike in the first row."""
    random = np.random.RandomState(seed)
    scores = random.dirichlet(np.full(n_labels, 0.3), size=20)
    scores[:10] = np.round(scores[:10], 1)
    scores[0] = 1 / n_labels
    return -np.sort(-scores / np.maximum(1, scores.sum(axis=1, keepdims=True)), axis=1).astype(np.float32)


@settings(max_examples=100, deadline=None)
@given(*CURVES, st.sampled_from([1, 2, 4, 5, 6, 7, 12]))
def test_of_labels_of_which_a_row_has_one_the_ranking_stays_and_no_sum_is_above_one(
    seed, slope, shift, next_share, sharpness, n_labels
):
    scores = falling_scores(seed, n_labels)
    calibration = Calibration(slope, shift, next_share=next_share, sharpness=sharpness)
    is_first = np.zeros(scores.shape, dtype=bool)
    is_first[:, 0] = True
    found = calibration.multiclass_probabilities(scores, scores[:, :LEADING], is_first)
    np.testing.assert_allclose(found[:, 0], calibration.probabilities(scores[:, 0]), rtol=1e-6)
    assert (np.diff(found, axis=1) <= 1e-6).all() and (found >= 0).all()
    assert (found.sum(axis=1) <= 1 + 1e-4).all()


@settings(max_examples=100, deadline=None)
@given(*CURVES, st.floats(0.001, 0.5))
def test_no_label_behind_the_leading_ones_is_more_probable_than_its_score_says(
    seed, slope, shift, next_share, sharpness, threshold
):
    scores = falling_scores(seed, 12)
    calibration = Calibration(slope, shift, next_share=next_share, sharpness=sharpness)
    is_first = np.broadcast_to(np.arange(12) == 0, scores.shape)
    found = calibration.multiclass_probabilities(scores, scores[:, :LEADING], is_first)[:, LEADING:]
    lowest = calibration.lowest_score_after_leading(scores[:, :LEADING], threshold)
    assert (scores[:, LEADING:][found >= threshold] >= lowest).all()


def test_the_share_of_the_next_labels_is_found():
    random, n_rows = np.random.RandomState(0), 20_000
    scores = -np.sort(-random.dirichlet(np.full(8, 0.5), size=n_rows), axis=1).astype(np.float32)[:, :5]
    chance = np.maximum(scores, 1e-30) ** 1.5
    chance[:, 1:] *= 0.3 * 0.4 / chance[:, 1:].sum(axis=1, keepdims=True)
    chance[:, 0] = 0.7
    bounds = np.cumsum(chance, axis=1)
    at = (random.uniform(size=(n_rows, 1)) > bounds).sum(axis=1)
    next_share, sharpness = fit_next(scores, np.arange(5) == at[:, None])
    assert abs(next_share - 0.4) < 0.03 and abs(sharpness - 1.5) < 0.15


def test_without_errors_nothing_is_said_of_the_next_labels():
    scores = np.full((3, 5), 0.2, dtype=np.float32)
    assert fit_next(scores, np.broadcast_to(np.arange(5) == 0, (3, 5))) == (0.0, 1.0)
    assert fit_next(scores[:, :1], np.zeros((3, 1), dtype=bool)) == (0.0, 1.0)


def test_answers_after_the_first_are_as_probable_as_they_are_right():
    random = np.random.RandomState(0)
    kind, noise = random.randint(40, size=(6000, 1)), 40 + random.randint(200, size=(6000, 2))
    X = sp.csr_matrix((np.ones(18_000), np.hstack([kind, noise]).ravel(), np.arange(0, 18_001, 3)))
    y = kind[:, 0] + 40 * random.choice(4, size=6000, p=[0.5, 0.25, 0.15, 0.1])  # four labels for every kind of row
    top = treemax.LabelTree(verbose=0, random_state=0).fit(X[:4000], y[:4000]).predict_topk(X[4000:], 4)
    right = (top.labels == y[4000:, None]).mean(axis=0)
    assert np.abs(top.scores.mean(axis=0) - right).max() < 0.06


@given(st.floats(0.001, 0.999), st.floats(0.1, 5), st.floats(-4, 4))
def test_there_is_a_way_back(probability, slope, shift):
    calibration = Calibration(slope, shift)
    score = np.array([calibration.score(probability)], dtype=np.float32)
    assert 0 <= score[0] <= 1
    if 1e-4 < score[0] < 1 - 1e-4:
        assert abs(calibration.probabilities(score)[0] - probability) < 1e-3 * (1 + slope)


def f1_of(ranked, hits, n_labels, threshold, always_one):
    """Micro-averaged F1, row by row."""
    right = answered = 0
    for row, hit in zip(ranked, hits):
        chosen = row >= threshold
        if always_one:
            chosen[0] = True
        right, answered = right + (chosen & hit).sum(), answered + chosen.sum()
    return 2 * right / (answered + n_labels.sum())


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-3.0, -0.5, 1.0])
def test_no_other_threshold_has_a_much_larger_f1(shift):
    ranked, hits = answers(4000, 1.3, shift)
    n_labels = hits.sum(axis=1)
    threshold, one_at_least = best_threshold(ranked, hits, n_labels, 5)
    best = max(f1_of(ranked, hits, n_labels, t, one) for t in np.linspace(0, 1, 101) for one in (False, True))
    assert f1_of(ranked, hits, n_labels, threshold, one_at_least) > best - 0.033


def test_rows_stay_without_an_answer_where_most_have_none():
    ranked, hits = answers(2000, 1.0, 0.0)
    unlabelled = np.arange(2000) % 10 > 0
    ranked[unlabelled] *= 0.1
    hits[unlabelled] = False
    assert not best_threshold(ranked, hits, hits.sum(axis=1), 5)[1]


def test_the_threshold_is_not_below_what_was_ranked():
    ranked, hits = answers(30, 1.0, 0.0)
    assert best_threshold(ranked, np.ones_like(hits), np.full(30, 5), 5)[0] < ranked[:, -1].max()
    cut, _ = best_threshold(ranked, np.ones_like(hits), np.full(30, 5), 100)
    assert (ranked[:, -1] > cut).mean() <= 0.11


def test_without_rows_or_labels_the_threshold_is_one_half():
    nothing = np.zeros((0, 3), np.float32)
    assert best_threshold(nothing, nothing > 0, np.zeros(0, np.int64), 3) == (0.5, True)
    assert best_threshold(*answers(5, 1, 0), np.zeros(5, np.int64), 5) == (0.5, False)


@pytest.mark.parametrize(
    "numbers",
    [
        [0.0, 0, 0.5, True], [1, float("nan"), 0.5, True], [1, 0, 1.5, True], [1, float("inf"), 0, True], [1, 0, 0.5],
        [1, -8000, 0.5, True], "110", {}, [1, 0, 0.5, 1], [True, 0, 0.5, True],
    ],
)  # fmt: skip
def test_unsound_numbers_of_a_file_are_refused(numbers):
    with pytest.raises(ValueError, match="calibration"):
        Calibration.checked(numbers)


# --- models --------------------------------------------------------------------------------------------


def noisy_texts(n_rows, n_labels=60, seed=0, several=True):
    """Sparse rows whose words point at their labels, often wrongly, so that certainty would be a mistake."""
    random = np.random.RandomState(seed)
    y = [
        sorted(set(random.randint(n_labels, size=random.randint(1, 4 if several else 2)).tolist()))
        for _ in range(n_rows)
    ]
    columns = [[5 * label + random.randint(5) for label in row] + random.randint(300, size=4).tolist() for row in y]
    rows = np.repeat(np.arange(n_rows), [len(row) for row in columns])
    X = sp.csr_matrix((np.ones(len(rows)), (rows, np.concatenate(columns))), shape=(n_rows, 300))
    return X, y if several else [row[0] for row in y]


MODELS = [treemax.LabelTree, treemax.OnlineLabelTree]


def calibration_error(scores, right):
    order = np.array_split(np.argsort(scores), 10)
    return sum(abs(scores[part].mean() - right[part].mean()) * len(part) for part in order) / len(scores)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_first_answers_are_right_as_often_as_they_say(kind, several):
    X, y = noisy_texts(12_000, several=several)
    model = kind(verbose=0).fit(X[:8000], y[:8000])
    labels, scores = model.predict_topk(X[8000:], 1)
    right = np.array([label in (row if several else [row]) for label, row in zip(labels[:, 0], y[8000:])])
    model.calibration_ = Calibration()
    raw = model.predict_topk(X[8000:], 1)
    assert raw.labels.tolist() == labels.tolist(), "the ranking stays"
    error = calibration_error(scores[:, 0], right)
    assert error < 0.08 and error < calibration_error(raw.scores[:, 0], right)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_multi_label_answer_has_a_good_f1_and_no_row_without_a_label(kind):
    X, y = noisy_texts(9000)
    model = kind(verbose=0).fit(X[:6000], y[:6000])

    def f1():
        found = model.predict(X[6000:])
        assert all(found)
        right = sum(len(set(a) & set(b)) for a, b in zip(found, y[6000:]))
        return 2 * right / (sum(map(len, found)) + sum(map(len, y[6000:])))

    chosen, threshold = f1(), model.threshold_
    others = []
    for other in np.linspace(0.05, 0.95, 10):
        model.threshold_ = other
        others.append(f1())
    assert chosen > max(others) - 0.02
    assert 0 < threshold < 1


def test_the_threshold_is_saved_and_stays_when_it_was_set(tmp_path):
    X, y = noisy_texts(600)
    model = treemax.OnlineLabelTree(verbose=0).partial_fit(X[:500], y[:500])
    model.threshold_ = 0.77
    model.partial_fit(X[500:], y[500:])
    assert model.threshold_ == 0.77
    model.save(tmp_path / "model.treemax")
    again = treemax.load(tmp_path / "model.treemax")
    assert again.calibration_ == model.calibration_ and again.predict(X) == model.predict(X)
    for wrong in (-0.1, 1.1, "half", None):
        with pytest.raises(ValueError, match="threshold_"):
            model.threshold_ = wrong
    with pytest.raises(AttributeError, match="before it is fitted"):
        _ = treemax.LabelTree().threshold_


def test_one_row_without_labels_changes_little():
    X, y = noisy_texts(4000)
    found = []
    for labels in (y[:2000], [*y[:1999], []]):
        answer = treemax.OneVsAll(verbose=0).fit(X[:2000], labels).predict(X[2000:])
        right = sum(len(set(a) & set(b)) for a, b in zip(answer, y[2000:]))
        found.append(2 * right / (sum(map(len, answer)) + sum(map(len, y[2000:]))))
    assert abs(found[0] - found[1]) < 0.05


def test_a_stream_that_is_saved_without_its_answers_goes_on(tmp_path):
    X, y = noisy_texts(400)
    model = treemax.OnlineLabelTree(verbose=0).partial_fit(X[:200], y[:200])
    model.model_.stream._n_forgotten = 4000  # as after millions of rows
    model.save(tmp_path / "model.treemax")
    again = treemax.load(tmp_path / "model.treemax").partial_fit(X[200:], y[200:])
    assert again.n_examples_ == 400


def test_a_threshold_set_through_a_text_model_is_used():
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0))
    model.fit(["red apple", "fast car"] * 20, [["fruit"], ["vehicle"]] * 20)
    model.threshold_ = 0.0
    assert model.predict(["red apple"]) == [["fruit", "vehicle"]] and model.estimator.threshold_ == 0.0


def test_a_text_of_new_words_gets_the_frequencies():
    texts = ["red apple", "green apple", "ripe pear", "fast car"] * 5
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0))
    model.fit(texts, ["fruit", "fruit", "fruit", "vehicle"] * 5)
    labels, scores = model.predict_topk(["zzz qqq"], 2)
    assert labels[0].tolist() == ["fruit", "vehicle"]
    np.testing.assert_allclose(scores[0], [0.75, 0.25])


@pytest.mark.parametrize("cut", [1, 37, 5000])
def test_the_calibration_of_a_stream_does_not_depend_on_how_it_is_cut(cut, tmp_path):
    X, y = noisy_texts(1500)
    whole = treemax.OnlineLabelTree(verbose=0).partial_fit(X, y)
    pieces = treemax.OnlineLabelTree(verbose=0)
    for start in range(0, 300, cut):
        pieces.partial_fit(X[start : min(300, start + cut)], y[start : min(300, start + cut)])
    pieces.save(tmp_path / "stream.treemax", resume=True)
    pieces = treemax.load(tmp_path / "stream.treemax").partial_fit(X[300:], y[300:])
    assert pieces.calibration_ == whole.calibration_ != Calibration()
    assert pieces.learning_rate_ == whole.learning_rate_


# --- the cost ------------------------------------------------------------------------------------------


def test_the_cost_is_larger_where_labels_are_clear():
    X, y = noisy_texts(6000, several=False)
    noisy = treemax.LabelTree(verbose=0, max_leaf=30).fit(X, y)
    label = np.array(y)
    clear = sp.csr_matrix((np.ones(6000), (np.arange(6000), 5 * label)), shape=(6000, 300))
    assert treemax.LabelTree(verbose=0, max_leaf=30).fit(clear, y).cost_ > noisy.cost_


def test_the_cost_is_the_same_every_time_and_in_threads():
    X, y = noisy_texts(3000)
    models = [treemax.LabelTree(verbose=0, n_jobs=jobs).fit(X, y) for jobs in (1, 1, 2)]
    assert len({model.cost_ for model in models}) == 1
    assert len({model.calibration_ for model in models}) == 1
    fixed = treemax.LabelTree(verbose=0, cost=models[0].cost_).fit(X, y)
    assert fixed.cost_ == models[0].cost_


@pytest.mark.parametrize("n_rows", [1, 2, 7, 40])
def test_hardly_any_rows(n_rows):
    X, y = noisy_texts(n_rows)
    model = treemax.LabelTree(verbose=0).fit(X, y)
    assert 0.25 <= model.cost_ <= 4 and np.isfinite(model.predict_topk(X, 3).scores).all()


def test_few_rows_give_no_extreme_probabilities():
    """Targets as in Platt (1999): one right answer is no proof of certainty."""
    for score in (0.6, 0.9, 0.999999):
        calibration = fit_calibration(np.array([[score]], np.float32), np.array([[True]]))
        assert 0.5 < calibration.probabilities(np.array([score], np.float32))[0] < 0.85
    texts = ["red apple", "ripe pear", "green apple", "fast car", "red car", "small bird", "green bird", "bird"]
    y = ["fruit", "fruit", "fruit", "vehicle", "vehicle", "bird", "bird", "bird"]
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree()).fit(texts, y)
    labels, scores = model.predict_topk(texts, 1)
    assert labels[:, 0].tolist() == y and scores.max() < 0.99
