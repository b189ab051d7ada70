"""Eight-bit weights: equal predictions before and after saving, a bound on the rounding error, and small files."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.inputs.rows import as_rows
from treemax.models.label_tree.compact import MAX_CODE, loaded_tree, rounded, saved_arrays
from treemax.models.label_tree.packed_tree import NodeWeights, PackedTree
from treemax.trees import random_tree


def random_weights(tree, n_features, seed, share=0.5):
    random = np.random.RandomState(seed)
    weights = {}
    for node in np.flatnonzero(tree.n_children).tolist():
        n = int(tree.n_children[node])
        dense = random.normal(size=(n_features, n)) * (random.uniform(size=(n_features, n)) < share)
        dense *= random.uniform(0.01, 100)
        used = random.permutation(np.flatnonzero(dense.any(axis=1)))  # in no order, as the solver gives them
        feature, child = np.nonzero(dense[used])
        starts = np.searchsorted(feature, np.arange(len(used) + 1))
        weights[node] = NodeWeights(
            used.astype(np.uint32), starts, child.astype(np.uint32),
            dense[used][feature, child].astype(np.float32), random.normal(size=n).astype(np.float32),
        )  # fmt: skip
    return weights


def packed(n_labels, n_features=20, seed=0, arity=3, max_leaf=5, share=0.5):
    tree = random_tree(n_labels, arity, max_leaf, seed)
    weights, scales = {}, np.zeros(len(tree), np.float32)
    for node, part in random_weights(tree, n_features, seed, share).items():
        weights[node], scales[node] = rounded(part)
    ones = np.ones(tree.depth)
    return PackedTree.pack(tree, weights, "softmax", ones, 0 * ones, scales)


def dense(part, n_features, n_children):
    table = np.zeros((n_features, n_children))
    table[np.repeat(part.features, np.diff(part.starts)).astype(int), part.children] = part.weights
    return table


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 1.0]))
def test_rounding_is_to_the_nearest_multiple(n_labels, n_features, seed, share):
    tree = random_tree(n_labels, 3, 5, seed)
    weights = random_weights(tree, n_features, seed, share)
    for node, part in weights.items():
        n = int(tree.n_children[node])
        found, scale = rounded(part)
        before, after = dense(part, n_features, n), dense(found, n_features, n)
        assert scale == pytest.approx(np.abs(before).max() / MAX_CODE)
        assert np.abs(before - after).max() <= 0.5001 * scale
        assert (np.diff(found.features.astype(int)) > 0).all()
        assert (found.weights != 0).all() and np.array_equal(found.biases, part.biases)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 1.0]))
def test_the_same_tree_from_its_arrays(n_labels, n_features, seed, share):
    whole = packed(n_labels, n_features, seed, share=share)
    again = loaded_tree(saved_arrays(whole), whole.link)
    for name, array in whole.arrays().items():
        assert np.array_equal(array, again.arrays()[name]), name
    assert np.array_equal(whole.scales, again.scales)
    rows = as_rows(sp.random(5, n_features, 0.5, format="csr", random_state=seed % 1000, dtype=np.float32))
    assert np.array_equal(whole.probabilities(rows), again.probabilities(rows))


def test_nodes_wider_than_a_byte_and_many_features():
    whole = packed(700, 300, arity=2, max_leaf=600, share=0.05)
    arrays = saved_arrays(whole)
    assert arrays["children"].dtype.itemsize == 2 and arrays["codes"].dtype == np.int8
    again = loaded_tree(arrays, "softmax")
    assert np.array_equal(whole.entries, again.entries) and np.array_equal(whole.slots, again.slots)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("children", lambda array: array + 100),
        ("counts", lambda array: array + 1),
        ("n_features", lambda array: array[::-1] + 1),
        ("codes", lambda array: array[:-1]),
        ("codes", lambda array: array.astype(np.int16)),
        ("scales", lambda array: array.astype(np.float64)),
        ("bias", lambda array: array[1:]),
        ("slopes", lambda array: array[:0]),
        ("steps", lambda array: array.astype(np.float32)),
        ("steps", lambda array: array | 0x80),
        ("steps", lambda array: array[1:]),
        ("steps", lambda array: np.append(array[:-1], [0xFF] * 8 + [1]).astype(np.uint8)),
        ("counts", lambda array: -array.astype(np.int16)),
        ("label", lambda array: array * 0),
        ("n_children", lambda array: array + 1),
        ("steps", lambda array: array.reshape(1, -1)),
    ],
)
def test_damaged_arrays_are_refused(name, change):
    arrays = saved_arrays(packed(30))
    with pytest.raises(ValueError):
        loaded_tree({**arrays, name: change(arrays[name])}, "softmax")
    with pytest.raises(ValueError, match="fit together"):
        loaded_tree(arrays, "cosine")


# --- models --------------------------------------------------------------------------------------------


def text_like(n_rows=1500, n_labels=60, seed=0):
    random = np.random.RandomState(seed)
    y = random.randint(0, n_labels, n_rows)
    X = sp.random(n_rows, 400, 0.02, format="csr", random_state=seed, dtype=np.float32)
    X = sp.hstack([X, sp.csr_matrix(np.eye(n_labels, dtype=np.float32)[y])], format="csr")
    return X, y


@pytest.mark.parametrize("parameters", [{}, {"penalty": "l1"}, {"n_trees": 2, "threshold": 0.0}])
def test_models_of_eight_bits(tmp_path, parameters):
    X, y = text_like()
    sizes, models = {}, {}
    for precision in ("bfloat16", "int8"):
        model = treemax.LabelTree(precision=precision, arity=4, max_leaf=8, verbose=0, **parameters).fit(X, y)
        model.save(tmp_path / precision)
        sizes[precision] = (tmp_path / precision).stat().st_size
        loaded = treemax.load(tmp_path / precision)
        assert np.array_equal(model.predict_proba(X), loaded.predict_proba(X))
        assert loaded.describe() == model.describe() and loaded.precision == precision
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / precision).read_bytes()
        models[precision] = model
    assert models["int8"].score(X, y) > models["bfloat16"].score(X, y) - 0.01
    assert np.abs(models["int8"].predict_proba(X) - models["bfloat16"].predict_proba(X)).max() < 0.1
    assert sizes["int8"] < 0.9 * sizes["bfloat16"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be one of bfloat16, int8, got 'int4'"):
        treemax.LabelTree(precision="int4").fit([[0.0], [1.0]], ["a", "b"])
