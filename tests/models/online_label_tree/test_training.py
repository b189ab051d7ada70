"""The growth of the tree in training: its structure, and its classifiers against a slow reference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.models.online_label_tree.reference import OF_RECORDS, Reference, as_arrays, random_stream
from tests.models.online_label_tree.trees import (
    PLAIN,
    assert_same_classifiers,
    assert_sound,
    grown,
    growths,
    nested,
    planted_like,
    streams,
    taught,
)
from treemax.inputs.labels import Targets
from treemax.models.online_label_tree import kernels
from treemax.models.online_label_tree.training import POLICIES, empty_tree, tree_with_structure
from treemax.trees import Tree


def assert_agrees(tree, reference, rows, stream):
    assert nested(tree) == reference.root.nested()
    answers = tree.probabilities(rows)
    expected = np.zeros_like(answers)
    for i, (x, _) in enumerate(stream):
        for label, probability in reference.probabilities(x).items():
            if label is not None:
                expected[i, label] = probability
    np.testing.assert_allclose(answers, expected, atol=OF_RECORDS, rtol=OF_RECORDS)


@pytest.mark.parametrize("one_label", [False, True], ids=["multi-label", "multi-class"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("arity", "max_leaf"), [(2, 5), (3, 17), (4, 3)])
@pytest.mark.parametrize("together", [False, True])
def test_the_reference_grows_and_answers_the_same(policy, arity, max_leaf, together, one_label):
    how = replace(PLAIN, policy=policy, arity=arity, max_leaf=max_leaf, together=together)
    how = replace(how, least_gradient=1e-3 if together else 0.0)
    stream = random_stream(arity * 100 + max_leaf, n_rows=80, n_labels=50, one_label=one_label)
    rows, targets = as_arrays(stream)
    reference = Reference(how, one_label, seed=7)
    for x, labels in stream:
        reference.learn(x, labels)
    tree = grown(rows, targets, how, one_label)
    assert_agrees(tree, reference, rows, stream)
    pairs = [(0, reference.root)]
    for node, twin in pairs:
        weights, bias = tree.classifier(node)
        twin_weights, twin_bias = twin.eta.parameters()
        features = sorted(weights.keys() | twin_weights.keys())
        np.testing.assert_allclose(
            [weights.get(f, 0.0) for f in features], [twin_weights.get(f, 0.0) for f in features], atol=OF_RECORDS
        )
        assert bias == pytest.approx(twin_bias, abs=OF_RECORDS)
        children = sorted(np.flatnonzero(tree.nodes.parent[: tree.n_nodes] == node), key=lambda c: tree.nodes.place[c])
        pairs += zip(map(int, children), twin.children)
    assert len(pairs) == tree.n_nodes


@settings(deadline=None, max_examples=30)
@given(growths(), st.booleans(), st.integers(0, 2**31))
def test_the_reference_grows_the_same_from_a_given_tree(how, one_label, seed):
    """With any arity beside any other width, and rows with many new labels."""
    how = replace(how, rate=1.0, epsilon=0.01, schedule="adagrad", least_gradient=0.0)
    stream = random_stream(seed, n_rows=25, n_labels=60, n_features=10, one_label=one_label)
    rows, targets = as_arrays(stream)
    tree = planted_first(targets, how, one_label, seed)
    if how.policy in ("complete", "complete-kary"):
        return  # the tree given is not one
    reference = Reference(how, one_label, seed=7, nested=nested(tree))
    for x, labels in stream:
        reference.learn(x, labels)
    assume(reference.closest > 1e-4)  # closer scores may differ in order in float32
    assert_agrees(taught(tree, rows, targets, how), reference, rows, stream)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_reference_is_proper_itself(policy):
    """Algorithm 3 and Algorithm 1 with the tree that it built: the same classifiers."""
    how = replace(PLAIN, policy=policy, arity=2)
    stream = random_stream(3, n_rows=40)
    online = Reference(how, False)
    for x, labels in stream:
        online.learn(x, labels)
    given_tree = Reference(how, False, nested=online.root.nested())
    for x, labels in stream:
        given_tree.learn(x, labels)
    assert online.root.nested() == given_tree.root.nested()
    for one, other in zip(online.nodes(), given_tree.nodes()):
        (weights, bias), (other_weights, other_bias) = one.eta.parameters(), other.eta.parameters()
        assert weights == pytest.approx(other_weights) and bias == pytest.approx(other_bias)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(growths(), streams())
def test_every_classifier_is_what_it_would_be_with_the_tree_given(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    assert_sound(tree, how)
    assert set(tree.shape()[1][tree.shape()[1] >= 0]) == set(targets.ids.tolist())
    twin = taught(planted_like(tree, how), rows, targets, how)
    assert_sound(twin, how)
    assert_same_classifiers(tree, twin)
    np.testing.assert_array_equal(tree.probabilities(rows), twin.probabilities(rows))


@settings(deadline=None, max_examples=50)
@given(growths(), streams(), st.integers(0, 2**31))
def test_the_same_after_a_warm_start(how, stream, seed):
    """A first tree of any shape over some of the labels, which grows with the others."""
    rows, targets, one_label = stream
    first = taught(planted_first(targets, how, one_label, seed), rows, targets, how)
    assert_sound(first, how)
    twin = taught(planted_like(first, how), rows, targets, how)
    assert_same_classifiers(first, twin)
    np.testing.assert_array_equal(first.probabilities(rows), twin.probabilities(rows))


def planted_first(targets, how, one_label, seed):
    """A random tree over a random half of the labels: nodes of one child, leaves beside inner nodes."""
    random = np.random.RandomState(seed)
    ids = np.unique(targets.ids)
    ids = ids[random.uniform(size=len(ids)) < 0.5]
    if len(ids) == 0:
        return empty_tree(one_label, how, 7)
    parent, label = [-1], [-1]
    for number in range(len(ids)):
        at = int(random.choice([node for node in range(len(label)) if label[node] < 0]))
        while random.uniform() < 0.3:
            parent, label, at = [*parent, at], [*label, -1], len(parent)
        parent, label = [*parent, at], [*label, number]
    tree = Tree.from_parents(parent, label)
    return tree_with_structure(tree, one_label, how, 7, ids)


@settings(deadline=None, max_examples=60)
@given(growths(), streams())
def test_auxiliary_classifiers_at_most_double_the_work(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    updates, auxiliary = tree.counts[kernels.UPDATES], tree.counts[kernels.AUXILIARY_UPDATES]
    roots = len(rows) if one_label else 0  # with one label a row, the root has an auxiliary classifier only
    assert auxiliary <= updates + roots
    twin = taught(planted_like(tree, how), rows, targets, how)
    assert updates <= twin.counts[kernels.UPDATES], "no more updates than with the tree given"
    n_labels = len(np.unique(targets.ids))
    assert tree.n_nodes <= max(1, 2 * n_labels - 1)
    assert tree.n_blocks <= 1 + 2 * tree.n_nodes


def test_work_is_counted_as_the_reference_counts_it():
    how = replace(PLAIN, arity=2, max_leaf=100)
    stream = random_stream(5, n_rows=50)
    reference = Reference(how, False)
    for x, labels in stream:
        reference.learn(x, labels)
    tree = grown(*as_arrays(stream), how, False)
    assert tree.counts[kernels.UPDATES] == reference.regular_updates
    assert tree.counts[kernels.AUXILIARY_UPDATES] <= reference.auxiliary_updates  # it has them everywhere


@settings(deadline=None, max_examples=40)
@given(streams(), st.sampled_from((2, 3, 16)), st.sampled_from((2, 5, 15, 16, 17)), st.booleans(), st.booleans())
def test_nodes_are_as_wide_as_they_may_be(stream, arity, max_leaf, together, greedy):
    rows, targets, one_label = stream
    policy = "best-greedy" if greedy else "random"
    how = replace(PLAIN, policy=policy, arity=arity, max_leaf=max_leaf, together=together)
    nodes, n = (tree := grown(rows, targets, how, one_label)).nodes, tree.n_nodes
    inner = nodes.n_inner[:n] > 0
    assert nodes.n_children[:n][inner].max(initial=0) <= arity
    assert nodes.n_children[:n][~inner].max(initial=0) <= max_leaf
    assert (nodes.n_children[:n][nodes.label[:n] < 0] >= 2).all() or n == 1


@pytest.mark.parametrize("n_labels", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_the_depth_of_complete_and_one_level_trees(n_labels):
    stream = [([(label % 5, 1.0)], [label]) for label in range(n_labels)]
    for one_label in (False, True):
        complete = grown(*as_arrays(stream), replace(PLAIN, policy="complete"), one_label)
        assert complete.depth == int(np.ceil(np.log2(n_labels)))
        assert complete.n_nodes == 2 * n_labels - 1
        flat = grown(*as_arrays(stream), replace(PLAIN, policy="one-level"), one_label)
        assert flat.depth == min(1, n_labels - 1)


@pytest.mark.parametrize("arity", [2, 3, 4, 16, 17])
def test_a_complete_tree_is_filled_in_breadth(arity):
    """After n labels, all nodes but one have `arity` children or none, and leaves are on two levels."""
    how = replace(PLAIN, policy="complete-kary", arity=arity)
    for n_labels in (1, 2, 3, arity, arity + 1, 2 * arity - 1, 2 * arity, arity**2, arity**2 + 1):
        stream = [([(label % 5, 1.0)], [label]) for label in range(n_labels)]
        for one_label in (False, True):
            tree = grown(*as_arrays(stream), how, one_label)
            children = tree.nodes.n_children[: tree.n_nodes]
            partly = children[(children > 0) & (children < arity)]
            assert len(partly) <= 1 and children.max() <= arity
            assert partly.sum() == ((n_labels - 1) % (arity - 1) or -1) + 1
            levels = {depth_of(tree, leaf) for leaf in tree.leaf_of.tolist()}
            assert max(levels) - min(levels) <= 1
            assert_sound(tree, how)
    if arity == 2:
        binary = grown(*as_arrays(stream), replace(how, policy="complete"), False)
        assert nested(binary) == nested(grown(*as_arrays(stream), how, False))


def depth_of(tree, node):
    depth = 0
    while tree.nodes.parent[node] >= 0:
        node, depth = tree.nodes.parent[node], depth + 1
    return depth


@settings(deadline=None, max_examples=30)
@given(growths(), streams(), st.integers(0, 2**31))
def test_a_tree_that_does_not_grow_learns_its_own_labels_only(how, stream, seed):
    """IPLT-U: the same as Algorithm 1 on the stream without the labels that the tree does not have."""
    rows, targets, one_label = stream
    how = replace(how, policy="none")
    tree = planted_first(targets, how, one_label, seed)
    assume(tree.n_nodes > 1)
    tree.reserve_labels(int(targets.ids.max()) + 1)
    known = tree.leaf_of[targets.ids] >= 0
    kept_before = np.concatenate([[0], np.cumsum(known)])
    kept = Targets(kept_before[targets.indptr], targets.ids[known])
    twin = planted_first(targets, how, one_label, seed)
    shape = nested(tree)
    taught(tree, rows, targets, how)
    assert nested(tree) == shape
    assert_sound(tree, how)
    taught(twin, rows, kept, how)
    twin.reserve_labels(len(tree.leaf_of))
    assert_same_classifiers(tree, twin)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_a_label_is_bounded_by_those_on_its_path(seed):
    """Theorem 1, for instances whose distribution over all label sets is known."""
    random, n_labels, n_instances = np.random.RandomState(seed), 6, 4
    sets = np.array([[i >> j & 1 for j in range(n_labels)] for i in range(1 << n_labels)], dtype=bool)
    chances = random.dirichlet(np.full(len(sets), 0.05), size=n_instances)
    stream = []
    for _ in range(400):
        instance = random.randint(n_instances)
        labels = np.flatnonzero(sets[random.choice(len(sets), p=chances[instance])]).tolist()
        stream.append(([(instance, 1.0)], labels))
    rows, targets = as_arrays(stream)
    tree = grown(rows, targets, replace(PLAIN, arity=2, max_leaf=2), False)
    parent, label = tree.shape()
    below = np.zeros((tree.n_nodes, n_labels), dtype=bool)
    for leaf in np.flatnonzero(label >= 0):
        node = leaf
        while node >= 0:
            below[node, label[leaf]] = True
            node = parent[node]
    any_below = (sets[:, None, :] & below).any(axis=2)  # z of equation 1, of every set and node
    one_each, _ = as_arrays([([(instance, 1.0)], []) for instance in range(n_instances)])
    estimates = tree.probabilities(one_each)
    classifiers = [tree.classifier(node) for node in range(tree.n_nodes)]
    for instance in range(n_instances):
        of_node = chances[instance] @ any_below
        above = np.where(parent >= 0, of_node[parent], 1.0)
        conditional = of_node / np.where(above > 0, above, 1.0)
        scores = np.array([weights.get(instance, 0.0) + bias for weights, bias in classifiers])
        errors = above * np.abs(conditional - 1 / (1 + np.exp(-scores)))
        for j in range(n_labels):
            node, bound = int(tree.leaf_of[j]), 0.0
            while node >= 0:
                node, bound = int(parent[node]), bound + errors[node]
            truth = chances[instance] @ sets[:, j]
            assert abs(truth - estimates[instance, j]) <= bound + 1e-5


@settings(deadline=None, max_examples=80)
@given(growths(), streams(), st.integers(1, 100))
def test_every_search_finds_the_best(how, stream, k):
    rows, targets, one_label = stream
    tree = grown(rows, targets, replace(how, rate=3.0), one_label)
    everything = tree.probabilities(rows)
    best = -np.sort(-everything, axis=1)[:, :k]
    known = int((tree.leaf_of >= 0).sum())
    for ids, scores in (tree.top_k(rows, k), tree.top_k(rows, k, tree.n_nodes)):
        assert (ids[:, known:] == -1).all() and (scores[:, known:] == 0.0).all()
        ids, scores = ids[:, :known], scores[:, :known]
        np.testing.assert_array_equal(scores, best[:, :known])
        np.testing.assert_array_equal(scores, np.take_along_axis(everything, ids, axis=1))
        assert all(len(set(row)) == len(row) for row in ids.tolist())
    if one_label and known and how.scale_siblings:
        np.testing.assert_allclose(everything.sum(axis=1), 1.0, atol=1e-4)


def test_the_probability_of_a_label_is_the_product_along_its_path():
    stream = random_stream(9, n_rows=60, n_labels=40)
    rows, targets = as_arrays(stream)
    for one_label in (False, True):
        tree = grown(rows, targets, replace(PLAIN, arity=2, max_leaf=3), one_label)
        everything = tree.probabilities(rows)
        models = [tree.classifier(node) for node in range(tree.n_nodes)]
        for (x, _), row in zip(stream[::7], everything[::7]):
            own = [1 / (1 + np.exp(-bias - sum(v * weights.get(f, 0.0) for f, v in x))) for weights, bias in models]
            for label in np.flatnonzero(tree.leaf_of >= 0):
                node, product = int(tree.leaf_of[label]), 1.0
                while node > 0:
                    parent = tree.nodes.parent[node]
                    siblings = np.flatnonzero(tree.nodes.parent[: tree.n_nodes] == parent)
                    product *= own[node] / (sum(own[s] for s in siblings) if one_label else 1.0)
                    node = int(parent)
                assert row[label] == pytest.approx(product * (1.0 if one_label else own[0]), rel=1e-3, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(growths(), streams(), st.integers(1, 5), st.integers(1, 6))
def test_a_narrow_beam_answers_soundly(how, stream, width, k):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    everything = tree.probabilities(rows)
    ids, scores = tree.top_k(rows, k, width)
    found = ids >= 0
    assert (np.diff(scores, axis=1) <= 0).all() and (np.diff(found.astype(int), axis=1) <= 0).all()
    row = np.nonzero(found)[0]
    np.testing.assert_array_equal(scores[found], everything[row, ids[found]])
    assert not len(targets.ids) or found[:, 0].all()
