"""LabelTree through its public methods: accuracy, calibration and threads.

Scores before calibration are compared by private methods.
"""

import math
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from treemax.datasets import load_wordnet
from treemax.inputs.labels import Targets
from treemax.inputs.rows import as_rows
from treemax.kernels import search as kernels
from treemax.models.label_tree.nodes import Common, LabelTreeSettings, RowsInMemory, TreeTraining
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.models.training.learning_rates import mean_squared_length
from treemax.trees import TREES, complete_tree

N_LABELS = 40


def easy(n_rows=600, seed=0, multi_label=False, noise=0.15):
    """Every label has a feature of its own; rows are of length one, as text would be."""
    random = np.random.RandomState(seed)
    counts = random.randint(0, 4, n_rows) if multi_label else np.ones(n_rows, dtype=int)
    lists = [sorted(random.choice(N_LABELS, count, replace=False).tolist()) for count in counts]
    X = (
        noise
        * np.abs(random.normal(size=(n_rows, N_LABELS + 10)))
        * (random.uniform(size=(n_rows, N_LABELS + 10)) < 0.2)
    )
    for i, row in enumerate(lists):
        X[i, row] += 1.0
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)  # what has no label stays short
    y = lists if multi_label else [f"label {row[0]:02d}" for row in lists]
    return sp.csr_matrix(X.astype(np.float32)), y


def model(**parameters):
    return treemax.LabelTree(**{"arity": 4, "max_leaf": 6, "verbose": 0, **parameters})


def same(one, other):
    """Whether two models have the same arrays, bit for bit."""
    return all(
        np.array_equal(mine, theirs)
        for tree, twin in zip(one.model_.trees, other.model_.trees, strict=True)
        for mine, theirs in zip(tree.arrays().values(), twin.arrays().values(), strict=True)
    )


# --- learning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("tree", TREES)
def test_multi_class(tree, loss):
    X, y = easy()
    X_test, y_test = easy(seed=1)
    fitted = model(tree=tree, loss=loss).fit(X, y)
    assert fitted.score(X_test, y_test) > 0.97
    probabilities = fitted.predict_proba(X_test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-4)
    assert (probabilities >= 0).all()
    found = fitted.predict_topk(X_test, 3)
    assert found.labels.shape == (600, 3) and (np.diff(found.scores, axis=1) <= 0).all()
    assert fitted.describe()["depth"] == fitted.model_.trees[0].tree.depth > 1


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("tree", TREES)
def test_multi_label(tree, loss):
    X, y = easy(900, multi_label=True)
    X_test, y_test = easy(seed=1, multi_label=True)
    fitted = model(tree=tree, loss=loss).fit(X, y)
    answers = fitted.predict(X_test)
    right = sum(len(set(answer) & set(row)) for answer, row in zip(answers, y_test))
    given, wanted = sum(map(len, answers)), sum(map(len, y_test))
    assert 2 * right / (given + wanted) > 0.8  # F1 over all labels
    assert fitted.score(X_test, [row or [0] for row in y_test]) > 0.7
    probabilities = fitted.predict_proba(X_test)
    assert (probabilities >= 0).all() and (probabilities <= 1).all()


@pytest.mark.parametrize("multi_label", [False, True])
def test_threads_give_the_same_model(multi_label):
    X, y = easy(multi_label=multi_label)
    models = [model(n_jobs=n_jobs, n_trees=2).fit(X, y) for n_jobs in (1, 3, -1)]
    assert same(models[0], models[1]) and same(models[0], models[2])
    for one, other in zip(models[0].predict_topk(X, 4), models[1].predict_topk(X, 4)):
        assert np.array_equal(one, other)
    assert not same(models[0], model(n_trees=2, random_state=1).fit(X, y))


def test_a_model_of_one_node_is_a_flat_one():
    """With all labels under the root there is nothing to lose on the way: beam and exact agree."""
    X, y = easy()
    flat = model(max_leaf=100).fit(X, y)
    assert flat.describe()["depth"] == 1
    exact = flat.predict_topk(X, 5)
    for one, other in zip(exact, flat.set_params(search="exact").predict_topk(X, 5)):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("multi_label", [False, True])
def test_exact_search_is_never_worse_than_the_beam(multi_label):
    X, y = easy(noise=0.6, multi_label=multi_label)
    fitted, rows = model(beam=1).fit(X, y), as_rows(X)
    scores = fitted._probabilities(rows)
    _, narrow = fitted._top(rows, 5)
    _, wide = fitted.set_params(beam=100)._top(rows, 5)
    _, exact = fitted.set_params(search="exact")._top(rows, 5)
    np.testing.assert_allclose(exact, -np.sort(-scores, axis=1)[:, :5], rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(wide, exact, rtol=1e-5, atol=1e-30)
    assert (narrow <= exact * (1 + 1e-5)).all()
    assert (narrow < 0.9 * exact).any(), "a beam of one node does lose something here"


def test_more_answers_than_a_beam_of_one_can_give():
    X, y = easy()
    fitted = model(beam=1).fit(X, y)
    found = fitted.predict_topk(X, 100)
    assert found.labels.shape == (600, N_LABELS)
    assert [label for label in found.labels[0] if label is None], "what was not found is None"
    assert (found.scores[found.labels == None] == 0).all()  # noqa: E711 - an array of objects
    everything = fitted.set_params(search="exact").predict_topk(X, 100)
    assert all(sorted(row) == fitted.classes_.tolist() for row in everything.labels.tolist())


def test_several_trees_are_better_than_one():
    X, y = easy(noise=0.6, n_rows=1500)
    X_test, y_test = easy(noise=0.6, seed=1, n_rows=2000)
    scores = [model(tree="random", n_trees=n_trees).fit(X, y).score(X_test, y_test) for n_trees in (1, 5)]
    assert scores[1] > scores[0]


def scores_on_text(train, test):
    """The share of texts with the right answer, by the tree; only labels that the training knows are asked for."""
    vectorizer = treemax.HashingText(bits=16)
    known = {label for _, label in train}
    test = [(text, label) for text, label in test if label in known]
    (texts, labels), (test_texts, test_labels) = zip(*train), zip(*test)
    X, X_test = vectorizer.transform(texts), vectorizer.transform(test_texts)
    return {
        tree: treemax.LabelTree(tree=tree, hard_negatives=0, verbose=0)
        .fit(X, list(labels))
        .score(X_test, list(test_labels))
        for tree in ("kmeans", "random")
    }


@pytest.fixture(scope="module")
def wordnet():
    """Pairs of text and label, to train on and to test on."""
    return [[(text, row[0]) for text, row in zip(part.texts, part.labels)] for part in load_wordnet()]


@pytest.mark.slow
def test_clusters_are_better_than_chance_on_text(wordnet):
    train, test = wordnet
    counts = Counter(label for _, label in train)
    scores = scores_on_text([pair for pair in train if counts[pair[1]] >= 20], test)
    assert scores["kmeans"] > scores["random"] + 0.02 and scores["random"] > 0.5


# --- how sure it is ------------------------------------------------------------------------------------


def drawn(n_rows, seed):
    """Rows whose labels are drawn from a softmax over their features: nobody can be sure of them."""
    random = np.random.RandomState(seed)
    directions = np.random.RandomState(99).normal(size=(20, 12))
    X = random.normal(size=(n_rows, 20))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = 4.0 * X @ directions
    labels = (scores + random.gumbel(size=scores.shape)).argmax(axis=1)
    return X.astype(np.float32), labels


@pytest.mark.parametrize(
    "parameters",
    [
        {"loss": "logistic", "max_leaf": 3, "temperature": 1.0},
        {"loss": "logistic", "max_leaf": 100, "temperature": 1.0},
        {"loss": "squared_hinge", "max_leaf": 100, "temperature": 1.0},
    ],
)
def test_confidence_is_about_accuracy(parameters):
    X, y = drawn(4000, 0)
    X_test, y_test = drawn(2000, 1)
    found = model(**{"max_leaf": 3, **parameters}).fit(X, y).predict_topk(X_test, 1)
    right = found.labels[:, 0] == y_test
    assert 0.5 < right.mean() < 0.95
    sure = found.scores[:, 0] > np.median(found.scores)
    assert right[sure].mean() > right[~sure].mean() + 0.05, "the sure ones are right more often"
    assert abs(found.scores.mean() - right.mean()) < 0.1


@pytest.mark.parametrize("temperature", [1.0, 1.75, 4.0])
def test_the_temperature_does_not_make_probabilities_wrong(temperature):
    differences = []
    for seed in (0, 10, 20):  # a single sample differs by up to a tenth
        X, y = drawn(4000, seed)
        X_test, y_test = drawn(2000, seed + 1)
        found = model(max_leaf=3, temperature=temperature).fit(X, y).predict_topk(X_test, 1)
        differences.append(found.scores.mean() - (found.labels[:, 0] == y_test).mean())
    assert abs(np.mean(differences)) < 0.08


def test_multi_label_probabilities_are_about_frequencies():
    X, labels = drawn(4000, 2)
    X_test, test_labels = drawn(2000, 3)
    y = [[label, (label + 1) % 12] if label % 2 else [label] for label in labels.tolist()]
    y_test = [[label, (label + 1) % 12] if label % 2 else [label] for label in test_labels.tolist()]
    fitted = model(max_leaf=3, temperature=1.0, threshold=0.0).fit(X, y)
    probabilities = fitted.predict_proba(X_test)
    truth = np.zeros_like(probabilities)
    for i, row in enumerate(y_test):
        truth[i, row] = 1.0
    for low, high in [(0.0, 0.1), (0.1, 0.4), (0.4, 0.7), (0.7, 1.0)]:
        chosen = (probabilities >= low) & (probabilities < high)
        assert chosen.sum() > 100
        assert abs(truth[chosen].mean() - probabilities[chosen].mean()) < 0.15


def test_a_higher_temperature_is_less_sure():
    X, y = drawn(1000, 0)
    sure = [model(temperature=t).fit(X, y)._top(as_rows(X), 1)[1].mean() for t in (0.5, 1.0, 2.0)]
    assert sure[0] > sure[1] > sure[2], "before probabilities are calibrated"


# --- size and file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
def test_saved_and_loaded(tmp_path, multi_label):
    X, y = easy(multi_label=multi_label)
    fitted = model(n_trees=2).fit(X, y)
    path = tmp_path / "model.treemax"
    fitted.save(path)
    loaded = treemax.load(path)
    assert same(fitted, loaded)
    assert np.array_equal(fitted.predict_proba(X), loaded.predict_proba(X))
    for one, other in zip(fitted.predict_topk(X, 3), loaded.predict_topk(X, 3)):
        assert np.array_equal(one, other)


def test_the_file_is_small(tmp_path):
    """Five bytes a weight, tables and tree included; and weights below the threshold are not there."""
    random = np.random.RandomState(0)
    X = sp.random(2000, 3000, 0.01, format="csr", random_state=0, dtype=np.float32)
    X = sp.csr_matrix(X.multiply(1 / np.maximum(sp.linalg.norm(X, axis=1), 1e-9)[:, None]))
    y = random.randint(0, 200, 2000)
    sizes = []
    for threshold in (0.1, 0.3):
        fitted = model(max_leaf=100, arity=2, threshold=threshold).fit(X, y)
        path = tmp_path / "model.treemax"
        fitted.save(path)
        sizes.append(path.stat().st_size)
        weights = fitted.describe()["weights"]
        features = sum(len(packed.slots) for packed in fitted.model_.trees)
        assert sizes[-1] < 4 * weights + 8 * features + 20_000
    assert sizes[1] < 0.8 * sizes[0]


def test_weights_below_the_threshold_are_dropped():
    X, y = easy()
    for threshold in (0.0, 0.2, 1e6):
        fitted = model(threshold=threshold).fit(X, y)
        packed = fitted.model_.trees[0]
        rows = as_rows(X)
        length = math.sqrt(mean_squared_length(rows)[0])
        settings = LabelTreeSettings("squared_hinge", 1.0, 1.0, 10, threshold, 20)
        common = Common(settings, 0, length, np.zeros(rows.n_features, dtype=bool))
        rebuilt = TreeTraining(packed.tree, RowsInMemory(rows, targets_of(fitted, y), 1), common, False)
        for _ in rebuilt.run():
            pass
        ones = np.ones(packed.tree.depth)
        joined = PackedTree.join(packed.tree, rebuilt.nodes, "softmax", ones, 0 * ones)
        weights = kernels.unpacked(joined.tables, joined.slots, joined.entries, packed.tree.n_children)[-1]
        assert (np.abs(weights) >= 0.99 * np.float32(threshold)).all()  # rounded to sixteen bits
    assert fitted.describe()["weights"] == 0
    assert fitted.predict_proba(X).shape == (600, N_LABELS)


def targets_of(fitted, y):
    return Targets(np.arange(len(y) + 1), fitted.label_index_.ids(y).astype(np.uint32))


def test_features_of_any_scale():
    X, y = easy()
    scores = [model().fit(X * scale, y).score(X * scale, y) for scale in (1.0, 40.0)]
    assert scores[1] > 0.9 * scores[0]


@pytest.mark.parametrize("parameters", [{"cost": 1000.0}, {"cost": 300.0, "threshold": 0.0}])
def test_logistic_loss_at_a_high_cost(parameters):
    X, y = easy()
    assert model(loss="logistic", **parameters).fit(X * 2, y).score(X * 2, y) > 0.9


# --- odd problems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("search", ["beam", "exact"])
def test_a_single_class(tree, search):
    X, _ = easy(20)
    fitted = model(tree=tree, search=search).fit(X, ["only"] * 20)
    assert fitted.predict(X).tolist() == ["only"] * 20
    np.testing.assert_allclose(fitted.predict_topk(X, 3).scores, 1.0)
    fitted = model(tree=tree, search=search).fit(X, [["only"]] * 20)
    assert fitted.predict_topk(X, 1).labels.tolist() == [["only"]] * 20


def test_an_indicator_without_any_label():
    X, _ = easy(20)
    fitted = model().fit(X, sp.csr_matrix((20, 3), dtype=np.int64))
    assert (fitted.predict_proba(X) < 0.5).all()


@pytest.mark.parametrize("tree", TREES)
def test_columns_of_an_indicator_that_no_row_has(tree):
    X, y = easy(multi_label=True)
    indicator = sp.lil_matrix((600, N_LABELS + 30), dtype=np.int64)
    for i, row in enumerate(y):
        indicator[i, row] = 1
    fitted = model(tree=tree).fit(X, indicator.tocsr())
    probabilities = fitted.predict_proba(X)
    assert probabilities.shape == (600, N_LABELS + 30)
    assert probabilities[:, N_LABELS:].max() < 0.5


@pytest.mark.parametrize("tree", ["kmeans", "random", "complete"])
def test_more_children_than_labels(tree):
    X, y = easy()
    assert model(tree=tree, arity=64, max_leaf=20).fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize("tree", TREES)
def test_rows_without_features(tree):
    X, y = easy(200)
    X = sp.vstack([X, sp.csr_matrix((5, X.shape[1]), dtype=np.float32)], format="csr")
    fitted = model(tree=tree).fit(X, [*y, *["empty"] * 5])
    assert fitted.predict(sp.csr_matrix((2, X.shape[1]))).shape == (2,)
    nothing = model(tree=tree).fit(sp.csr_matrix((6, 3)), ["a", "b", "c", "a", "a", "b"])
    probabilities = nothing.predict_proba(sp.csr_matrix((1, 3)))
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e6, 1e14])
def test_features_near_the_limits_of_what_is_accepted(loss, scale):
    """The same answers as at scale one."""
    X, y = easy(200)
    X = X * np.float32(scale)
    fitted = model(loss=loss).fit(X, y)
    assert np.isfinite(fitted.predict_proba(X)).all()
    assert fitted.score(X, y) > 0.9


@pytest.mark.parametrize("tree", TREES)
def test_values_of_either_sign(tree):
    """Sums of rows that cancel out, in every feature and over many rows."""
    random = np.random.RandomState(0)
    y = random.randint(0, N_LABELS, 2000)
    X = np.where(random.uniform(size=(2000, N_LABELS)) < 0.05, random.choice([-1.0, 1.0], size=(2000, N_LABELS)), 0.0)
    X[np.arange(2000), y] = 3.0
    fitted = model(tree=tree).fit(sp.csr_matrix(X), y)
    assert fitted.score(sp.csr_matrix(X), y) > 0.95


@pytest.mark.parametrize("passes", [1, 2, 3, 50])
def test_any_number_of_passes(passes):
    X, y = easy()
    assert model(passes=passes).fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tree": "oak"}, "tree must be one of kmeans, random, complete, huffman, or a hierarchy, got 'oak'"),
        ({"tree": None}, "tree must be one of .* got None"),
        ({"loss": "hinge"}, "loss must be one of squared_hinge, logistic, got 'hinge'"),
        ({"search": "depth-first"}, "search must be one of beam, exact, got 'depth-first'"),
        ({"arity": 1}, "arity must be an integer at least 2 and at most 65536, got 1"),
        ({"arity": 2.0}, "arity must be an integer .* got 2.0"),
        ({"arity": "many"}, "arity must be .* got 'many'"),
        ({"arity": 2**16 + 1}, "arity must be .* got 65537"),
        ({"max_leaf": 1}, "max_leaf must be an integer at least 2 and at most 65536, got 1"),
        ({"max_leaf": 10**6}, "max_leaf must be .* got 1000000"),
        ({"max_leaf": "many"}, "max_leaf must be .* got 'many'"),
        ({"n_trees": 0}, "n_trees must be an integer at least 1, got 0"),
        ({"cost": 0}, "cost must be a number above 0, got 0"),
        ({"cost": -1.0}, "cost must be .* got -1.0"),
        ({"cost": float("nan")}, "cost must be .* got nan"),
        ({"cost": float("inf")}, "cost must be .* got inf"),
        ({"temperature": 0.0}, "temperature must be a number .* got 0.0"),
        ({"passes": 0}, "passes must be an integer at least 1, got 0"),
        ({"passes": 2.5}, "passes must be .* got 2.5"),
        ({"passes": True}, "passes must be .* got True"),
        ({"threshold": -0.1}, "threshold must be a number at least 0, got -0.1"),
        ({"threshold": "none"}, "threshold must be .* got 'none'"),
        ({"beam": 0}, "beam must be an integer at least 1, got 0"),
        ({"n_jobs": 0}, "n_jobs must be .* got 0"),
    ],
)
def test_parameters_are_refused_by_name_and_value(parameters, message):
    X, y = easy(10)
    with pytest.raises(ValueError, match=message):
        model(**parameters).fit(X, y)


@pytest.mark.parametrize(("name", "value"), [("cost", 1e-45), ("cost", 1e39), ("temperature", 1e-300)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_that_single_precision_does_not_know(name, value):
    """Refused, or without harm."""
    X, y = easy(50)
    try:
        fitted = model(**{name: value}).fit(X, y)
    except ValueError as error:
        assert name in str(error)
        return
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_damaged_parts_of_a_model_are_refused():
    X, y = easy(100)
    header, arrays = model(n_trees=2).fit(X, y).to_parts()
    for links in ([], ["softmax"] * 3, ["softmax", "probit"], ["softmax", None]):
        with pytest.raises((ValueError, KeyError)):
            treemax.LabelTree.from_parts({**header, "model": {"links": links}}, dict(arrays))
    other = complete_tree(7).arrays()
    with pytest.raises(ValueError):
        treemax.LabelTree.from_parts(
            header, {**arrays, "model/1/n_children": other["n_children"], "model/1/label": other["label"]}
        )
