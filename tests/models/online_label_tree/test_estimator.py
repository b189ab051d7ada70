"""OnlineLabelTree: streams, interruptions, threads, unusual rows; the trees themselves are in test_training.py.

Private methods give scores before calibration, the stored arrays, and the blocks at which a stream is interrupted.
"""

import copy
import pickle
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from itertools import pairwise

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import treemax
from tests.models.online_label_tree.reference import OF_RECORDS, Reference, as_arrays, random_stream
from tests.models.online_label_tree.trees import assert_tables_are_sound
from treemax import OnlineLabelTree
from treemax.inputs.conversions import normalized
from treemax.inputs.labels import RaggedLabels, Targets, read_labels
from treemax.inputs.rows import as_rows
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.base.online import Batch
from treemax.models.online_label_tree.training import POLICIES, learn
from treemax.models.training.learning_rates import row_orders

VARIANTS = {
    **{policy: {"policy": policy, "arity": 2, "max_leaf": 3} for policy in sorted(POLICIES)},
    "together": {"together": True, "arity": 3, "max_leaf": 2},
    "paper": {"arity": 2, "max_leaf": 100, "together": True, "least_gradient": 0.0},
    "inverse-root": {"schedule": "inverse-root", "max_leaf": 4},
    "warm": {"tree": "random", "max_leaf": 3, "policy": "random"},
}


def estimator(variant, **more):
    return OnlineLabelTree(**{"learning_rate": 1.0, "verbose": 0, **VARIANTS[variant], **more})


def data(seed=0, n_rows=120, n_labels=40, one_label=False, **more):
    """X and y of a stream; the first row has a label."""
    stream = random_stream(seed, n_rows=n_rows, n_labels=n_labels, one_label=one_label, **more)
    stream[0] = (stream[0][0], stream[0][1] or [0])
    rows, _ = as_arrays(stream)
    lists = [labels for _, labels in stream]
    y = np.array([labels[0] for labels in lists]) if one_label else lists
    return rows.to_scipy(), y


def assert_same_model(one, other, X):
    """The same facts, tree and answers, bit for bit; and the same learning state."""
    assert one.classes_.tolist() == other.classes_.tolist() and one.n_examples_ == other.n_examples_
    assert one.label_counts_.tolist() == other.label_counts_.tolist()
    for a, b in zip(one.model_.shape(), other.model_.shape()):
        np.testing.assert_array_equal(a, b)
    assert one.model_.random_state == other.model_.random_state
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.predict_topk(X, 5).labels, other.predict_topk(X, 5).labels)
    first, second = one.model_._arrays(resume=True), other.model_._arrays(resume=True)
    for name in ("bias", "bias_squares"):
        np.testing.assert_array_equal(first[name], second[name])
    for name in ("weights", "squares"):  # in another order, after loading
        np.testing.assert_array_equal(np.sort(first[name]), np.sort(second[name]))


def parts(n_rows, cuts):
    edges = sorted({0, n_rows, *(cut % n_rows for cut in cuts)})
    return [slice(a, b) for a, b in pairwise(edges)]


# --- a stream is a stream --------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([name for name in VARIANTS if name != "warm"]),
    st.booleans(),
    st.integers(0, 1000),
    st.lists(st.integers(1, 119), max_size=8),
)
def test_any_split_of_a_stream_gives_the_same_model(variant, one_label, seed, cuts):
    X, y = data(seed, one_label=one_label)
    whole, pieces = estimator(variant).partial_fit(X, y), estimator(variant)
    for part in parts(X.shape[0], cuts):
        pieces.partial_fit(X[part], y[part])
        pieces.predict_topk(X[:3], 2)  # asking changes nothing
        pieces.predict_proba(X[:1])
    assert_same_model(whole, pieces, X)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "warm"])
def test_one_row_at_a_time(variant):
    X, y = data(1)
    whole, pieces = estimator(variant).partial_fit(X, y), estimator(variant)
    for i in range(X.shape[0]):
        pieces.partial_fit(X[i], y[i : i + 1])
    assert_same_model(whole, pieces, X)


@pytest.mark.parametrize("one_label", [False, True])
def test_dense_and_sparse_rows_are_learned_alike(one_label):
    X, y = data(2, one_label=one_label)
    sparse, dense = estimator("best-greedy").partial_fit(X, y), estimator("best-greedy")
    dense.partial_fit(X[:50].toarray(), y[:50]).partial_fit(X[50:].toarray(), y[50:])
    filled = X[np.diff(X.indptr) > 0]  # where there is nothing, a model of sparse rows answers with frequencies
    assert_same_model(sparse, dense, filled)
    np.testing.assert_array_equal(dense.predict_proba(X), dense.predict_proba(X.toarray()))


def test_rows_that_are_sorted_by_label_do_no_harm():
    """`fit` shuffles the rows, in every pass anew."""
    random = np.random.RandomState(0)
    y = random.randint(100, size=2000)
    X = sp.csr_matrix(random.normal(size=(100, 20))[y] + 0.2 * random.normal(size=(2000, 20)))
    order = np.argsort(y[:1500], kind="stable")
    right = [
        OnlineLabelTree(verbose=0, **options).fit(X[:1500][rows], y[:1500][rows]).score(X[1500:], y[1500:])
        for options, rows in (({}, slice(None)), ({}, order), ({"shuffle": False}, order))
    ]
    assert right[1] > right[0] - 0.05 > right[2] + 0.1


def test_fit_without_shuffling_takes_the_rows_as_they_come():
    """With labels that arrive in their order, as a stream does; several passes are the stream several times."""
    X, y = data(3, one_label=True)
    order = {label: number for number, label in enumerate(dict.fromkeys(y.tolist()))}
    y = np.array([order[label] for label in y.tolist()])
    streamed = estimator("random").partial_fit(X, y)
    assert_same_model(estimator("random", shuffle=False).fit(X, y), streamed, X)
    streamed.partial_fit(X, y).partial_fit(X, y)
    fitted = estimator("random", shuffle=False, passes=3).fit(X, y)
    np.testing.assert_array_equal(fitted._probabilities(as_rows(X)), streamed._probabilities(as_rows(X)))


def test_the_exact_search_is_never_worse_than_the_beam():
    X, y = data(4, n_rows=300, n_labels=150)
    model = estimator("best-greedy").partial_fit(X, y)
    beam = model.set_params(beam=2).predict_topk(X, 5).scores
    exact = model.set_params(search="exact").predict_topk(X, 5).scores
    assert (exact >= beam).all() and (exact > beam).any()
    wide = model.set_params(search="beam", beam=10**6).predict_topk(X, 5).scores
    np.testing.assert_array_equal(exact, wide)


# --- stop and go on --------------------------------------------------------------------------------------

GO_ON = """
import sys
import numpy as np, scipy.sparse as sp
import treemax
from tests.models.online_label_tree.reference import as_arrays, random_stream
folder, variants = sys.argv[1], sys.argv[2:]
for variant in variants:
    X = sp.load_npz(f"{folder}/X.npz")
    y = np.load(f"{folder}/y.npy", allow_pickle=True).tolist()
    model = treemax.load(f"{folder}/{variant}.treemax")
    model.partial_fit(X, y).save(f"{folder}/{variant}.treemax", resume=True)
"""


@pytest.mark.slow
def test_another_process_goes_on_as_if_nothing_had_happened(tmp_path):
    X, y = data(5)
    sp.save_npz(tmp_path / "X.npz", X[60:])
    np.save(tmp_path / "y.npy", np.array([*y[60:], None], dtype=object)[:-1], allow_pickle=True)
    never_stopped = {}
    for variant in VARIANTS:
        model = estimator(variant).partial_fit(X[:60], y[:60])
        model.save(tmp_path / f"{variant}.treemax", resume=True)
        never_stopped[variant] = model.partial_fit(X[60:], y[60:])
    subprocess.run([sys.executable, "-c", GO_ON, str(tmp_path), *VARIANTS], check=True, timeout=300)
    for variant, model in never_stopped.items():
        assert_same_model(treemax.load(tmp_path / f"{variant}.treemax"), model, X)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("one_label", [False, True])
def test_saved_in_the_middle_of_several_passes(variant, one_label, tmp_path):
    X, y = data(6, one_label=one_label)
    model, stopping = estimator(variant), estimator(variant)
    for turn in range(3):
        for part in parts(X.shape[0], (50, 90)):
            model.partial_fit(X[part], y[part])
            stopping.partial_fit(X[part], y[part])
            stopping.save(tmp_path / "model.treemax", resume=True)
            stopping = treemax.load(tmp_path / "model.treemax")
        assert_same_model(stopping, model, X)
        assert model.n_examples_ == (turn + 1) * X.shape[0]


def test_a_lean_file_answers_the_same_and_warns_when_it_learns(tmp_path):
    X, y = data(7)
    for variant in VARIANTS:
        model = estimator(variant).partial_fit(X, y)
        model.save(tmp_path / "lean.treemax")
        model.save(tmp_path / "full.treemax", resume=True)
        assert (tmp_path / "lean.treemax").stat().st_size < (tmp_path / "full.treemax").stat().st_size
        lean = treemax.load(tmp_path / "lean.treemax")
        np.testing.assert_array_equal(lean.predict_proba(X), model.predict_proba(X))
        if model.settings_.schedule == "adagrad":
            with pytest.warns(UserWarning, match="resume=True"):
                lean.partial_fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lean.partial_fit(X, y)  # once is enough
            treemax.load(tmp_path / "full.treemax").partial_fit(X, y)


@pytest.mark.parametrize(("schedule", "rate"), [("constant", 1e-4), ("adagrad", 0.01)])
def test_many_small_steps_are_not_lost(schedule, rate):
    """Each is smaller than the distance of two half-precision numbers, once the weight is 0.13, and its square smaller
    than that of two sums."""
    n_rows = 20_000
    model = OnlineLabelTree(schedule=schedule, learning_rate=rate, normalize=False, least_gradient=0, verbose=0)
    model.fit(sp.csr_array(np.ones((n_rows, 1), dtype=np.float32)), [["a"]] * n_rows)
    expected, squares = 0.0, model.epsilon
    for _ in range(n_rows):
        gradient = 1 / (1 + np.exp(2 * expected))  # the bias is the same
        squares += gradient**2
        expected += rate * gradient / (np.sqrt(squares) if schedule == "adagrad" else 1)
    weights, bias = model.model_.classifier(0)
    assert expected > 0.5 and [weights[0], bias] == pytest.approx([expected, expected], rel=0.05)


@pytest.mark.parametrize("one_label", [False, True])
def test_a_file_of_eight_bits_is_small_and_answers_nearly_the_same(one_label, tmp_path):
    X, y = data(8, n_rows=600, n_features=200, one_label=one_label)
    model = OnlineLabelTree(verbose=0).fit(X, y)
    model.save(tmp_path / "exact.treemax")
    model.set_params(precision="float8").save(tmp_path / "rounded.treemax")
    model.save(tmp_path / "full.treemax", resume=True)
    sizes = [(tmp_path / f"{name}.treemax").stat().st_size for name in ("rounded", "exact", "full")]
    assert sizes[0] < 0.7 * sizes[1] < sizes[1] < sizes[2]
    np.testing.assert_array_equal(treemax.load(tmp_path / "full.treemax").predict_proba(X), model.predict_proba(X))
    loaded = treemax.load(tmp_path / "rounded.treemax")
    assert np.abs(loaded.predict_proba(X) - model.predict_proba(X)).mean() < 0.01
    assert np.mean(loaded.predict_topk(X, 1).labels == model.predict_topk(X, 1).labels) > 0.95
    loaded.save(tmp_path / "again.treemax")
    assert (tmp_path / "again.treemax").read_bytes() == (tmp_path / "rounded.treemax").read_bytes()
    loaded.forget([3, 7]).compact()
    with pytest.warns(UserWarning, match="resume=True"):
        loaded.partial_fit(X, y)
    assert set(loaded.classes_) == set(model.classes_)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("arity", "max_leaf", "share"), [(2, 2, 0.5), (3, 5, 0.1), (16, 15, 0.3), (17, 2, 0.8)])
def test_a_tree_that_forgot_labels_can_be_loaded_and_grows_again(policy, arity, max_leaf, share, tmp_path):
    """A full node that loses children may grow again, although its auxiliary classifier learned no more."""
    random = np.random.RandomState(0)
    y = random.randint(0, 60, 300)
    X = np.cos(np.outer(y + 1, np.arange(8))).astype(np.float32)
    model = OnlineLabelTree(policy=policy, arity=arity, max_leaf=max_leaf, verbose=0).partial_fit(X, y)
    model.forget(random.permutation(model.classes_)[: int(share * len(model.classes_))].tolist())
    model.save(tmp_path / "model.treemax", resume=True)
    loaded = treemax.load(tmp_path / "model.treemax")
    for one in (loaded, model.compact()):
        assert one.model_.can_grow(one.settings_.growth)
        one.partial_fit(X, y + 40)
        assert set(y + 40) <= set(one.classes_) and (one.model_.leaf_of >= 0).all()
        assert_tables_are_sound(one.model_)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def copies(model, folder):
    joblib.dump(model, folder / "model.joblib")
    yield pickle.loads(pickle.dumps(model))
    yield copy.deepcopy(model)
    yield joblib.load(folder / "model.joblib", mmap_mode="r")


@pytest.mark.parametrize("variant", VARIANTS)
def test_copies_are_models_of_their_own(variant, tmp_path):
    X, y = data(8)
    model = estimator(variant).partial_fit(X[:60], y[:60])
    before = model.predict_proba(X)
    twins = list(copies(model, tmp_path))
    for twin in twins:
        np.testing.assert_array_equal(twin.predict_proba(X), before)
        twin.partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(model.predict_proba(X), before, "a copy shares memory with its original")
    model.partial_fit(X[60:], y[60:])
    for twin in twins:
        assert_same_model(model, twin, X)
    assert not hasattr(clone(model), "model_")


def test_settings_of_a_file_are_checked():
    X, y = data(9)
    header, arrays = estimator("best-greedy").partial_fit(X, y).to_parts(resume=True)
    forged = [
        ("policy", "best"),
        ("schedule", ""),
        ("arity", 1),
        ("arity", "2"),
        ("max_leaf", -5),
        ("alpha", float("nan")),
    ]
    forged += [
        ("alpha", 2.0),
        ("epsilon", 0.0),
        ("rate", -1.0),
        ("fitted_rate", 0.0),
        ("least_gradient", 1.0),
        ("surprise", 1),
    ]
    for name, value in forged:
        settings = {**header["model"]["settings"], name: value}
        with pytest.raises((ValueError, TypeError)):
            OnlineLabelTree.from_parts({**header, "model": {**header["model"], "settings": settings}}, arrays)


def test_numpy_numbers_as_parameters(tmp_path):
    X, y = data(10)
    model = OnlineLabelTree(
        arity=np.int64(2), max_leaf=np.int32(3), alpha=np.float32(0.5), together=np.bool_(True), verbose=0
    ).partial_fit(X, y)
    model.save(tmp_path / "model.treemax", resume=True)
    plain = OnlineLabelTree(arity=2, max_leaf=3, alpha=0.5, together=True, verbose=0).partial_fit(X, y)
    assert_same_model(treemax.load(tmp_path / "model.treemax"), plain, X)


def test_interrupted_fit_keeps_what_was_learned(monkeypatch):
    X, y = data(11, n_rows=300)
    import treemax.models.online_label_tree.training as learning

    monkeypatch.setattr(learning, "ROWS_AT_ONCE", 50)
    done, whole = [], learning._learn_piece

    def interrupted(*arguments):
        if sum(done) >= 100:
            raise KeyboardInterrupt
        whole(*arguments)
        done.append(len(arguments[3]))

    monkeypatch.setattr(learning, "_learn_piece", interrupted)
    model = estimator("best-greedy")
    with pytest.raises(TrainingInterrupted, match=r"3[3-9]%"):
        model.fit(X, y)
    monkeypatch.setattr(learning, "_learn_piece", whole)
    assert (model.model_.leaf_of >= 0).all(), "every label has a leaf"
    assert model.predict_topk(X, 3).labels.shape == (300, 3)
    model.partial_fit(X, y)  # nothing holds a lock


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_that_learns_on_after_an_interruption_can_be_saved(threads, monkeypatch, tmp_path):
    """Rows for the calibration are predicted before they are learned; those that were not are predicted again."""
    import treemax.models.online_label_tree.training as learning

    X, y = data(11, n_rows=300)
    model, pieces, whole = estimator("best-greedy"), [], learning._learn_piece
    model.set_params(n_jobs=threads)

    def interrupted(*arguments):
        whole(*arguments)
        pieces.append(arguments[3])
        if len(pieces) == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(learning, "_learn_piece", interrupted)
        model.partial_fit(X, y)
    path = tmp_path / "model.treemax"
    for _ in range(2):
        model.save(path, resume=True)
        assert_same_model(treemax.load(path), model, X)
        model.partial_fit(X, y)


def test_a_model_saved_between_two_pieces_has_no_predictions_of_later_rows(tmp_path):
    X, y = data(11, n_rows=300)
    model = estimator("best-greedy").set_params(n_jobs=2)
    stream, path = model._learn_blocks(Batch(X, as_rows(X), read_labels(y), None, None)), tmp_path / "model.treemax"
    numbers = []
    for _ in stream:
        model.save(path, resume=True)
        summary = treemax.load(path).model_.stream
        numbers.append(max([number for number, *_ in summary._predictions], default=-1))
        assert numbers[-1] < summary.rows
    assert numbers[-1] > 200


# --- threads ---------------------------------------------------------------------------------------------


def easy_problem(n_rows=3000, n_labels=100, n_features=300):
    random = np.random.RandomState(0)
    y = random.randint(n_labels, size=n_rows)
    own = random.randint(n_features, size=(n_labels, 12))
    rows = np.repeat(np.arange(n_rows), 9)
    columns = np.c_[
        own[y][np.arange(n_rows)[:, None], random.randint(12, size=(n_rows, 6))],
        random.randint(n_features, size=(n_rows, 3)),
    ]
    X = sp.csr_matrix((np.ones(rows.size, np.float32), (rows, columns.ravel())), shape=(n_rows, n_features))
    return X, y


@pytest.mark.slow
def test_threads_learn_as_well_as_one():
    X, y = easy_problem()
    train, test = slice(0, 2500), slice(2500, None)
    accuracy = {}
    for n_jobs in (1, 2, 4):
        model = OnlineLabelTree(passes=2, n_jobs=n_jobs, verbose=0).fit(X[train], y[train])
        accuracy[n_jobs] = model.score(X[test], y[test])
        assert (model.model_.leaf_of >= 0).all()
    assert accuracy[1] > 0.7
    assert min(accuracy.values()) > accuracy[1] - 0.06, accuracy


def test_threads_predict_the_same_rows_for_the_calibration():
    random = np.random.RandomState(0)
    X, y = random.rand(9000, 6).astype(np.float32), random.randint(8, size=9000)
    numbers = []
    for jobs in (1, 2):
        model = OnlineLabelTree(n_jobs=jobs, passes=2, verbose=0).fit(X, y)
        numbers.append(model.model_.stream.arrays()["numbers"])
    assert len(numbers[0]) > 300 and (numbers[0] == numbers[1]).all()
    for _ in range(2):  # pieces end anywhere
        model.partial_fit(X[:777], y[:777])
    known = model.model_.stream.arrays()["numbers"]
    assert (np.diff(known) > 0).all()


def test_threads_answer_the_same():
    X, y = easy_problem(1500)
    model = OnlineLabelTree(verbose=0).fit(X, y)
    for search in ("beam", "exact"):
        one = model.set_params(search=search, n_jobs=None).predict_topk(X, 5)
        many = model.set_params(n_jobs=4).predict_topk(X, 5)
        np.testing.assert_array_equal(one.labels, many.labels)
        np.testing.assert_array_equal(one.scores, many.scores)
        np.testing.assert_array_equal(model.predict_proba(X), model.set_params(n_jobs=None).predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["best-greedy", "complete", "one-level"])
def test_answers_while_another_thread_learns(policy):
    """No crash, and every answer a sound one: probabilities that sum to one, in order."""
    X, y = easy_problem(2000, n_labels=1500, n_features=3000)
    model = OnlineLabelTree(policy=policy, verbose=0).partial_fit(X[:10], y[:10])
    stop, troubles, answers = threading.Event(), [], [0]

    def ask():
        try:
            while not stop.is_set():
                scores = model.predict_topk(X[:5], 3).scores
                assert (np.diff(scores, axis=1) <= 0).all() and (scores >= 0).all()
                np.testing.assert_allclose(model.predict_proba(X[:5]).sum(axis=1), 1.0, atol=1e-3)
                answers[0] += 1
        except BaseException as error:
            troubles.append(error)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for start in range(10, 2000, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    stop.set()
    for thread in asking:
        thread.join()
    assert not troubles and answers[0] > 0
    alone = OnlineLabelTree(policy=policy, verbose=0).partial_fit(X[:10], y[:10]).partial_fit(X[10:], y[10:])
    assert_same_model(model, alone, X[:50])


# --- odd rows and labels ---------------------------------------------------------------------------------


def test_rows_without_labels_or_features():
    X = sp.csr_matrix(np.eye(4, 6, dtype=np.float32))
    nothing = sp.csr_matrix((3, 6), dtype=np.float32)
    model = estimator("best-greedy")
    model.partial_fit(sp.vstack([nothing, X]).tocsr(), [[], [], ["a"], [], ["b"], [], ["c", "a"]])
    assert set(model.classes_) == {"a", "b", "c"}
    model.partial_fit(nothing, [[], [], []])
    assert model.n_examples_ == 10 and len(model.classes_) == 3
    likely = model.predict_proba(nothing)
    assert likely.shape == (3, 3) and (likely < 0.5).all(), "mostly nothing is right"


@pytest.mark.parametrize("cuts", [(), (1, 2, 3), (7,), (12,), (13, 14)])
def test_rows_without_labels_before_the_first_label(cuts, tmp_path):
    """They are negative examples of the root (Algorithms 2 and 9), in one call or in many, saved in between or not."""
    X, y = data(17, n_rows=60)
    y = [[] for _ in range(12)] + y[12:]
    whole, pieces = estimator("paper").partial_fit(X, y), estimator("paper")
    for part in parts(X.shape[0], cuts):
        pieces.partial_fit(X[part], y[part])
        pieces.save(tmp_path / "model.treemax", resume=True)
        pieces = treemax.load(tmp_path / "model.treemax")
    assert_same_model(whole, pieces, X)
    rows = normalized(as_rows(X))
    reference = Reference(whole.settings_, one_label=False)
    for labels, (start, stop) in zip(y, pairwise(rows.indptr)):
        x = list(zip(rows.indices[start:stop].tolist(), rows.values[start:stop].tolist()))
        reference.learn(x, whole.label_index_.ids(labels).tolist())
    weights, bias = whole.model_.classifier(0)
    expected, expected_bias = reference.root.eta.parameters()
    assert weights == pytest.approx(expected, abs=OF_RECORDS) and bias == pytest.approx(expected_bias, abs=OF_RECORDS)


def test_answers_before_the_first_label(tmp_path):
    X, _ = data(18)
    model = estimator("best-greedy").partial_fit(X[:20], [[]] * 20)
    model.save(tmp_path / "model.treemax", resume=True)
    for twin in (model, treemax.load(tmp_path / "model.treemax"), copy.deepcopy(model)):
        assert twin.predict_topk(X[:3], 5).labels.shape == (3, 0) and twin.predict_proba(X[:3]).shape == (3, 0)
        assert twin.predict(X[:3]) == twin.predict_above(X[:3], 0.0) == [[], [], []]
        assert twin.classes_.tolist() == [] and twin.n_examples_ == 20 and twin.describe()["labels"] == 0
        with pytest.raises(ValueError, match="no labels at all"):
            twin.fit(X[:3], [[], [], []])
        twin.partial_fit(X[:2], [["a"], ["b"]])
        assert twin.predict_topk(X[:1], 5).labels.shape == (1, 2)


def test_empty_batches():
    X, y = data(12)
    model = estimator("random").partial_fit(X, y)
    before = model.predict_proba(X)
    for labels in ([], RaggedLabels(np.zeros(1, np.int64), np.zeros(0, np.int64), np.dtype(np.int64))):
        try:
            model.partial_fit(X[:0], labels)
        except ValueError as error:
            assert "0 sample" in str(error) or "0 row" in str(error) or "no rows" in str(error)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_labels_twice_in_a_row_are_there_once():
    X, y = data(13)
    twice = [labels + labels[::-1] for labels in y]
    assert_same_model(estimator("best-greedy").partial_fit(X, twice), estimator("best-greedy").partial_fit(X, y), X)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("one_label", [False, True])
def test_labels_announced_that_never_come(variant, one_label):
    X, y = data(14, one_label=one_label)
    model = estimator(variant).partial_fit(X, y, classes=list(range(60)))
    assert len(model.classes_) == 60 and (model.model_.leaf_of >= 0).all()
    assert model.predict_proba(X).shape == (X.shape[0], 60)
    labels, scores = model.set_params(search="exact").predict_topk(X, 60)
    assert sorted(labels[0].tolist()) == list(range(60)) and np.isfinite(scores).all()
    model.partial_fit(X, y, classes=[100, 101])
    assert (model.model_.leaf_of >= 0).sum() == 62
    if one_label:
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, atol=1e-4)


def test_the_last_feature_there_is():
    """Column 2**32 - 2, and rows of thousands of features."""
    random = np.random.RandomState(0)
    columns = np.unique(random.randint(2**32 - 1, size=5000))
    columns = np.append(columns, 2**32 - 2) if columns[-1] != 2**32 - 2 else columns
    X = sp.csr_matrix(
        (np.ones(2 * len(columns), np.float32), (np.repeat([0, 1], len(columns)), np.tile(columns, 2))),
        shape=(2, 2**32 - 1),
    )
    X.data[: len(columns)] *= 0.01 * random.normal(size=len(columns)).astype(np.float32)
    X.data[len(columns) :] *= 0.01 * random.normal(size=len(columns)).astype(np.float32)
    model = estimator("best-greedy")
    for _ in range(5):
        model.partial_fit(X, ["left", "right"])
    assert model.predict(X).tolist() == ["left", "right"]
    weights, _ = model.model_.classifier(int(model.model_.leaf_of[0]))
    assert 2**32 - 2 in [model._feature_numbers.id_of(number) for number in weights]


def test_a_warm_start_takes_the_labels_that_come_later():
    X, y = data(15, n_rows=300, n_labels=80, one_label=True)
    for tree in ("kmeans", "huffman", "complete", "random"):
        for sample in (0.01, 0.3, 1.0):
            model = estimator("best-greedy", tree=tree, sample=sample).fit(X, y)
            assert (model.model_.leaf_of >= 0).all() and len(model.classes_) == len(set(y.tolist()))
            np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, atol=1e-4)


def test_an_own_hierarchy_grows_too():
    X, y = data(16, n_rows=200, n_labels=30)
    tree = {f"g{g}": list(range(g * 5, g * 5 + 5)) for g in range(3)}
    first = [[label for label in labels if label < 15] or [0] for labels in y[:20]]
    model = estimator("best-greedy", tree=tree).partial_fit(X[:20], first)
    model.partial_fit(X, y)
    assert (model.model_.leaf_of >= 0).all()


# --- warm starts and hierarchies ---------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["kmeans", "random", "huffman"])
def test_the_sample_of_a_warm_start_is_what_is_learned_first(tree):
    X, y = data(19, n_rows=200, one_label=True)
    options = {"tree": tree, "sample": 0.2, "random_state": 3}
    shuffled = estimator("best-greedy", shuffle=True, **options).fit(X, y)
    order = next(row_orders(200, 1, 3))
    assert_same_model(shuffled, estimator("best-greedy", shuffle=False, **options).fit(X[order], y[order]), X)


def lowest_above(tree, labels):
    """The lowest node above all these labels."""
    paths = []
    for leaf in tree.leaf_of[labels].tolist():
        paths.append([leaf])
        while tree.nodes.parent[paths[-1][-1]] >= 0:
            paths[-1].append(int(tree.nodes.parent[paths[-1][-1]]))
    return next(node for node in paths[0] if all(node in path for path in paths))


@pytest.mark.parametrize("policy", ["best-greedy", "best-greedy-printed", "random"])
@pytest.mark.parametrize("n_first", [0, 5, 60])
def test_later_labels_go_where_the_hierarchy_says(policy, n_first, tmp_path):
    """Below the lowest node above the known labels of the nearest category that has any."""
    random, n_labels = np.random.RandomState(4), 90
    parents = {label: f"{label % 9} of {label % 3}" for label in range(n_labels)}
    parents |= {f"{group} of {group % 3}": f"all {group % 3}" for group in range(9)}
    X, _ = data(20, n_rows=150)
    y = [[], *random.permutation(n_labels).reshape(-1, 1).tolist(), *random.randint(n_labels, size=(59, 2)).tolist()]
    model = estimator(policy, tree=parents).partial_fit(X[: n_first + 1], y[: n_first + 1])
    for i in range(n_first + 1, 150):
        known = set(model.classes_.tolist())
        (label, *_) = y[i]
        same = [k for k in known if k % 9 == label % 9] or [k for k in known if k % 3 == label % 3]
        ids = model.label_index_.ids(same)
        before = lowest_above(model.model_, ids) if same else 0
        beside = int(model.model_.nodes.parent[before]) if model.model_.nodes.first_block[before] < 0 else before
        model.partial_fit(X[i], y[i : i + 1])
        node = int(model.model_.leaf_of[model.label_index_.ids([label])[0]])
        while label not in known and node != beside:
            node = int(model.model_.nodes.parent[node])
            assert node >= 0, "the label is not below its category"
        if i == 100:
            model.save(tmp_path / "model.treemax", resume=True)
            model = treemax.load(tmp_path / "model.treemax")
    at_once = estimator(policy, tree=parents).partial_fit(X[: n_first + 1], y[: n_first + 1])
    at_once.partial_fit(X[n_first + 1 :], y[n_first + 1 :])
    assert_same_model(at_once, model, X)
    announced = estimator(policy, tree=parents).partial_fit(X[:2], y[:2], classes=[*range(5), *y[1]])
    assert (announced.partial_fit(X[:2], y[:2], classes=list(range(90))).model_.leaf_of >= 0).all()


# --- parameters in the middle of a stream -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.1},
        {"learning_rate": "auto"},
        {"epsilon": 1.0},
        {"least_gradient": 0.3},
        {"schedule": "constant"},
        {"alpha": 0.0},
        {"max_leaf": 2},
        {"together": True},
        {"arity": 2},
        {"policy": "random"},
        {"policy": "none"},
    ],
)
def test_parameters_set_in_the_middle_of_a_stream_hold_from_then_on(changes):
    X, y = data(21)
    y = [[*labels, i % 40] if i % 40 not in labels else labels for i, labels in enumerate(y)]
    model = estimator("best-greedy", arity=3).partial_fit(X[:60], [labels[:1] for labels in y[:60]])
    unchanged, tree = copy.deepcopy(model), copy.deepcopy(model.model_)
    model.set_params(**changes).partial_fit(X[60:], y[60:])
    rows, ids = normalized(as_rows(X[60:])), model.label_index_
    indptr = np.cumsum([0, *map(len, y[60:])])
    targets = Targets(indptr, np.concatenate([ids.ids(labels) for labels in y[60:]]).astype(np.uint32))
    changed = replace(unchanged.settings_, **{{"learning_rate": "rate"}.get(k, k): v for k, v in changes.items()})
    changed = replace(changed, rate=None) if changed.rate == "auto" else changed
    tree.reserve_labels(len(ids))
    for _ in learn(tree, rows, targets, [np.arange(60, dtype=np.uint32)], changed, 10):
        pass
    np.testing.assert_array_equal(model.model_.probabilities(rows), tree.probabilities(rows))
    unchanged.partial_fit(X[60:], y[60:])
    assert not np.array_equal(unchanged.model_.probabilities(rows), tree.probabilities(rows))


def test_parameters_that_cannot_change_in_the_middle_of_a_stream_are_refused(tmp_path):
    X, y = data(22)
    started = estimator("best-greedy").partial_fit(X[:60], y[:60])
    started.save(tmp_path / "model.treemax", resume=True)
    for model in (started, treemax.load(tmp_path / "model.treemax")):
        before = model.predict_proba(X)
        for changes, message in (
            ({"policy": "complete"}, "cannot be extended with policy='complete'"),
            ({"arity": 200}, "arity=2 and cannot be extended with policy='best-greedy' and arity=200"),
            ({"tree": "kmeans"}, "tree cannot be changed .* started with None, got 'kmeans'"),
            ({"random_state": 7}, "random_state cannot be changed .* started with 0, got 7"),
        ):
            known = model.get_params()
            with pytest.raises(ValueError, match=message):
                model.set_params(**changes).partial_fit(X[60:], y[60:])
            np.testing.assert_array_equal(model.predict_proba(X), before)
            model.set_params(**{name: known[name] for name in changes})
        model.partial_fit(X[60:], y[60:])


# --- trees that do not grow, and estimates before calibration -----------------------------------------------


@pytest.mark.parametrize("one_label", [False, True])
def test_a_tree_that_does_not_grow(one_label, tmp_path):
    X, y = data(23, n_rows=200, one_label=one_label)
    model = estimator("best-greedy", policy="none", tree="kmeans", sample=0.1, shuffle=False).fit(X, y)
    inside = {label for labels in y[:20] for label in np.atleast_1d(labels).tolist()}
    has_leaf = np.isin(model.classes_, sorted(inside))
    np.testing.assert_array_equal(model.model_.leaf_of >= 0, has_leaf)
    assert (model._probabilities(as_rows(X))[:, ~has_leaf] == 0).all()
    with_features = X[np.diff(X.indptr) > 0]  # the others get the most frequent labels
    top = model.set_params(search="exact").predict_topk(with_features, len(has_leaf)).labels
    assert {label for row in top for label in row if label is not None} == inside
    model.save(tmp_path / "model.treemax", resume=True)
    twin = treemax.load(tmp_path / "model.treemax")
    assert_same_model(model.partial_fit(X, y), twin.partial_fit(X, y), X)
    for wrong in ({"tree": None}, {"policy": "none"}):
        with pytest.raises(ValueError, match="policy='none' adds no labels"):
            estimator("best-greedy", **{"policy": "none", "tree": "kmeans", **wrong}).partial_fit(X[:1], [[]])
    with pytest.raises(ValueError, match="cannot be extended with policy='random'"):
        model.set_params(policy="random").partial_fit(X, y)


@pytest.mark.parametrize("one_label", [False, True])
def test_path_probabilities_are_the_products_of_equation_2(one_label):
    X, y = data(24, one_label=one_label)
    model = estimator("best-greedy", normalize=False).partial_fit(X, y)
    rows, tree = as_rows(X), model.model_
    parent, label = tree.shape()
    scores = np.zeros((len(rows), len(parent)))
    for node in range(0 if not one_label else 1, len(parent)):
        weights, bias = tree.classifier(node)
        scores[:, node] = X[:, list(weights)] @ np.array(list(weights.values())) + bias
    own = 1 / (1 + np.exp(-scores))
    if one_label:
        own[:, 0] = 1.0
    expected = np.ones((len(rows), len(tree.leaf_of)))
    for leaf in np.flatnonzero(label >= 0):
        node = leaf
        while node >= 0:
            expected[:, label[leaf]] *= own[:, node]
            node = parent[node]
    np.testing.assert_allclose(model.path_probabilities(X), expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(model.no_label_probability(X), 1 - own[:, 0], rtol=1e-3, atol=1e-6)
    if not one_label:
        np.testing.assert_array_equal(model.path_probabilities(X), model._probabilities(rows))


def test_the_published_tree_ranks_by_equation_2(tmp_path):
    """With one label a row, the answers are those of the unscaled products, also of a loaded model."""
    X, y = data(25, n_rows=300, n_features=60, one_label=True)
    model, scaled = (
        OnlineLabelTree.as_published(verbose=0, max_leaf=5, **more).fit(X, y) for more in ({}, {"scale_siblings": True})
    )
    X = X[np.diff(X.indptr) > 0]
    products = model.path_probabilities(X)
    np.testing.assert_array_equal(model.predict(X), model.classes_[products.argmax(axis=1)])
    ranked = model.classes_[np.argsort(-products, axis=1, kind="stable")[:, :5]]
    distinct = np.diff(np.sort(products, axis=1), axis=1).min(axis=1) > 0
    np.testing.assert_array_equal(model.predict_topk(X, 5).labels[distinct], ranked[distinct])
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, rtol=1e-4)
    assert (scaled.predict(X) != scaled.classes_[scaled.path_probabilities(X).argmax(axis=1)]).any()
    model.save(tmp_path / "model.treemax", resume=True)
    for twin in (treemax.load(tmp_path / "model.treemax"), copy.deepcopy(model), model.forget([]).compact()):
        np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    model.explain(X[0])


def test_the_probability_of_no_label_is_learned():
    """P(y = 0 | x), also before there is any label."""
    X = sp.csr_matrix(np.eye(2, dtype=np.float32)[[0, 1] * 100])
    model = OnlineLabelTree(verbose=0).partial_fit(X[:100], [[]] * 100)
    assert (model.no_label_probability(X[:2]) > 0.9).all()
    model.partial_fit(X, [[], ["a"]] * 100)
    nothing, something = model.no_label_probability(X[:2])
    assert nothing > 0.9 and something < 0.1


def test_a_tree_without_all_labels_says_so():
    X = sp.eye(4, format="csr")
    model = treemax.OnlineLabelTree(verbose=0, policy="none", tree="random", sample=0.5)
    model.fit(X, [["a"], ["c"], ["b"], ["d"]])
    empty = treemax.OnlineLabelTree(verbose=0).partial_fit(X, [[], [], [], []])
    for show in (treemax.OnlineLabelTree.label_tree, treemax.show_tree):
        with pytest.raises(ValueError, match="Only 2 of the 4 labels are in the tree"):
            show(model)
        with pytest.raises(ValueError, match="no labels yet"):
            show(empty)


@pytest.mark.parametrize("n_known", [1, 2])
def test_labels_that_are_being_learned_are_children_of_the_root(n_known):
    """Between two blocks of rows `classes_` has labels whose rows were not learned yet."""
    X, y = sp.eye(5, format="csr"), np.array(list("abcde"))
    model = treemax.OnlineLabelTree(verbose=0).partial_fit(X[:n_known], y[:n_known])
    model._extend(Batch(X, as_rows(X), read_labels(y), None, None))  # what partial_fit does before the first block
    tree = model.label_tree()
    assert len(model.classes_) == 5 and np.bincount(tree.label[tree.label >= 0]).tolist() == [1] * 5
    assert treemax.show_tree(model)


# --- the automatic learning rate ----------------------------------------------------------------------------


def rate_by_formula(X, y, passes=1):
    """4.2 / (features a row * rows a label)**0.2, with 5 to 200 rows a label, in all passes."""
    labels = [label for row in y for label in (row if isinstance(row, list) else [row])]
    rows_a_label = min(max(passes * len(labels) / max(1, len(set(labels))), 5), 200)
    return 4.2 / (max(1, X.nnz / X.shape[0]) * rows_a_label) ** 0.2


@pytest.mark.parametrize(
    ("n_rows", "n_labels", "one_label"), [(4, 4, True), (120, 40, False), (900, 3, True), (90, 9, True)]
)
def test_fit_computes_its_rate_from_all_rows(n_rows, n_labels, one_label):
    X, y = data(31, n_rows=n_rows, n_labels=n_labels, one_label=one_label)
    model = OnlineLabelTree(verbose=0).fit(X, y)
    assert model.learning_rate_ == model.settings_.fixed_rate == pytest.approx(rate_by_formula(X, y))
    assert model.describe()["learning_rate"] == round(model.learning_rate_, 3)
    fixed = OnlineLabelTree(verbose=0, learning_rate=model.learning_rate_).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), fixed.predict_proba(X))
    order = np.random.RandomState(0).permutation(n_rows)
    shuffled = OnlineLabelTree(verbose=0).fit(X[order], [y[row] for row in order])
    warm = OnlineLabelTree(verbose=0, tree="random", passes=3, shuffle=True).fit(X, y)
    assert shuffled.learning_rate_ == model.learning_rate_
    assert warm.learning_rate_ == pytest.approx(rate_by_formula(X, y, passes=3))
    if one_label:
        dense = OnlineLabelTree(verbose=0).fit(X.toarray(), y)
        assert dense.learning_rate_ == model.learning_rate_


def test_rows_after_fit_have_its_rate(tmp_path):
    X, y = data(32)
    model = OnlineLabelTree(verbose=0).fit(X[:60], y[:60])
    rate = model.learning_rate_
    fixed = OnlineLabelTree(verbose=0, learning_rate=rate).fit(X[:60], y[:60]).partial_fit(X[60:], y[60:])
    model.save(tmp_path / "model.treemax", resume=True)
    for own in (treemax.load(tmp_path / "model.treemax"), model):
        own.partial_fit(X[60:], y[60:])
        assert own.learning_rate_ == rate
        np.testing.assert_array_equal(own.predict_proba(X), fixed.predict_proba(X))
    assert model.set_params(learning_rate=0.5).partial_fit(X[:1], y[:1]).learning_rate_ == 0.5
    assert model.set_params(learning_rate="auto").partial_fit(X[:1], y[:1]).learning_rate_ == rate


def test_a_stream_computes_its_rate_from_the_rows_seen():
    X, y = data(33)
    model = OnlineLabelTree(verbose=0).partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    labels, entries = sum(map(len, y)) / 120, X.nnz / 120
    assert model.learning_rate_ == pytest.approx(3.2 * max(1, labels) ** -0.25 * entries**-0.2)


def test_a_file_from_before_fit_kept_its_rate_can_be_loaded():
    X, y = data(34)
    model = OnlineLabelTree(verbose=0).partial_fit(X, y)
    header, arrays = model.to_parts(resume=True)
    del header["model"]["settings"]["fitted_rate"]
    loaded = OnlineLabelTree.from_parts(header, arrays)
    assert loaded.learning_rate_ == model.learning_rate_
    assert_same_model(loaded.partial_fit(X, y), model.partial_fit(X, y), X)
