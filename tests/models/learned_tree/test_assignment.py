"""The objective of a node and the assignment of labels, against enumeration and the lemmas of the paper."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.models.learned_tree.reference import best_objective, node_gradient, objective, objective_gradient
from treemax.kernels.assignment import take_best_bounded
from treemax.models.learned_tree.assignment import assign_labels, assignment_scores

seeds = st.integers(0, 2**32 - 1)


def random_split(seed: int, n_labels: int, n_children: int, sharpness: float = 1.0):
    """Shares of labels, and probabilities of children for each."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.ones(n_labels))
    return shares, random.dirichlet(np.full(n_children, sharpness), size=n_labels)


def pure_split(seed: int, n_labels: int, n_children: int):
    random = np.random.default_rng(seed)
    return random.dirichlet(np.ones(n_labels)), np.eye(n_children)[random.integers(0, n_children, n_labels)]


def balanced_split(seed: int, n_children: int):
    """Labels of equal share with each row in all rotations, so that every child has the same probability."""
    random = np.random.default_rng(seed)
    rows = random.dirichlet(np.full(n_children, 0.5), size=2)
    rotated = np.concatenate([np.roll(rows, shift, axis=1) for shift in range(n_children)])
    return np.full(len(rotated), 1 / len(rotated)), rotated


def impurity(shares, probabilities):
    """The purity factor, definition 2."""
    n_children = probabilities.shape[1]
    return (shares @ np.minimum(probabilities, 1 - probabilities)).sum() / n_children


# --- the objective -------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 8), st.integers(2, 6), st.sampled_from([0.05, 1.0, 20.0]))
def test_objective_is_in_its_range(seed, n_labels, n_children, sharpness):  # Lemma 2
    value = objective(*random_split(seed, n_labels, n_children, sharpness))
    assert -1e-12 <= value <= best_objective(n_children) + 1e-12


@given(seeds, st.integers(2, 6), st.integers(1, 3))
def test_balanced_and_pure_is_best(seed, n_children, labels_a_child):  # Lemma 3, one way
    shares = np.full(n_children * labels_a_child, 1 / (n_children * labels_a_child))
    children = np.random.default_rng(seed).permutation(np.arange(len(shares)) % n_children)
    assert objective(shares, np.eye(n_children)[children]) == pytest.approx(best_objective(n_children))


@given(seeds, st.integers(1, 8), st.integers(2, 6), st.booleans())
def test_best_is_balanced_and_pure(seed, n_labels, n_children, pure):  # Lemma 3, the other way
    shares, probabilities = (
        pure_split(seed, n_labels, n_children) if pure else random_split(seed, n_labels, n_children, 0.1)
    )
    unbalanced = np.abs(shares @ probabilities - 1 / n_children).max()
    assume(unbalanced > 1e-3 or impurity(shares, probabilities) > 1e-3)
    assert objective(shares, probabilities) < best_objective(n_children) - 1e-9


@given(seeds, st.integers(1, 8), st.integers(2, 6))
def test_pure_splits_are_balanced_as_the_objective_says(seed, n_labels, n_children):  # Lemma 4
    shares, probabilities = pure_split(seed, n_labels, n_children)
    missing = best_objective(n_children) - objective(shares, probabilities)
    least = (shares @ probabilities).min()
    assert 1 / n_children - np.sqrt(n_children * max(missing, 0)) / 2 - 1e-9 <= least <= 1 / n_children


@given(seeds, st.integers(2, 6))
def test_balanced_splits_are_pure_as_the_objective_says(seed, n_children):
    """Lemma 5 with M / 4 in the place of 1 / 2: the two are one for M = 2."""
    shares, probabilities = balanced_split(seed, n_children)
    missing = best_objective(n_children) - objective(shares, probabilities)
    assert impurity(shares, probabilities) <= n_children / 4 * missing + 1e-12


def test_lemma_five_as_printed_fails_for_three_children():
    """Why the test above has another factor than the paper."""
    shares, probabilities = np.full(3, 1 / 3), np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    missing = best_objective(3) - objective(shares, probabilities)
    assert impurity(shares, probabilities) == pytest.approx(1 / 3)
    assert missing / 2 == pytest.approx(2 / 9)


# --- its gradient --------------------------------------------------------------------------------------


def differences(shares, probabilities, step=1e-7):
    """The derivative of the objective by each probability alone."""
    exact = np.empty_like(probabilities)
    for at in np.ndindex(*probabilities.shape):
        more, less = probabilities.copy(), probabilities.copy()
        more[at] += step
        less[at] -= step
        exact[at] = (objective(shares, more) - objective(shares, less)) / (2 * step)
    return exact


@given(seeds, st.integers(2, 6), st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_gradient_points_the_way_of_the_objective(seed, n_labels, n_children):  # equation 10
    shares, probabilities = random_split(seed, n_labels, n_children)
    distance = probabilities - shares @ probabilities
    assume(np.abs(distance).min() > 1e-4)  # not at a corner
    gradient = objective_gradient(shares, probabilities)
    sign = np.sign(distance)
    assert gradient == pytest.approx(2 / n_children * (shares * (1 - shares))[:, None] * sign)
    exact = 2 / n_children * shares[:, None] * (sign - shares @ sign)
    assert differences(shares, probabilities) == pytest.approx(exact, abs=1e-6)
    assert (gradient * exact >= 0).all()


def test_gradient_of_the_logarithm_is_by_the_chain_rule():  # equation 12
    shares, probabilities = random_split(3, 5, 4)
    plain = objective_gradient(shares, probabilities)
    assert objective_gradient(shares, probabilities, of_logarithm=True) == pytest.approx(plain * probabilities)


def test_gradient_from_statistics_is_that_of_means():  # Algorithm 1
    random = np.random.default_rng(4)
    labels, outputs = random.integers(0, 5, 100), random.dirichlet(np.ones(3), size=100)
    sums, counts = np.zeros((6, 3)), np.bincount(labels, minlength=6)
    np.add.at(sums, labels, outputs)
    means = np.array([outputs[labels == i].mean(axis=0) for i in range(5)])
    expected = objective_gradient(counts[:5] / 100, means, of_logarithm=True)
    assert node_gradient(sums, counts)[:5] == pytest.approx(expected)
    assert not node_gradient(sums, counts)[5].any(), "a label never seen prefers nothing"


@given(seeds, st.integers(1, 8), st.integers(2, 6), st.booleans())
@settings(deadline=None)
def test_scores_of_pairs_are_the_gradient(seed, n_labels, n_children, of_logarithm):  # equations 10 and 12
    _, probabilities = random_split(seed, n_labels, n_children)
    counts = np.random.default_rng(seed).integers(1, 50, n_labels)
    expected = objective_gradient(counts / counts.sum(), probabilities, of_logarithm)
    scores = assignment_scores(counts, probabilities, "log-gradient" if of_logarithm else "gradient")
    np.testing.assert_allclose(2 / n_children * scores, expected, atol=1e-12)


# --- the error of a tree -------------------------------------------------------------------------------


def split_largest(labels, leaves, n_children, random, balanced):
    """Split the leaf with the most examples; returns its objective and the least share of a child.

    A leaf is a list of examples. Examples of a label go mostly to one child; balanced leaves are cut in equal parts.
    """
    largest = max(range(len(leaves)), key=lambda leaf: len(leaves[leaf]))
    examples = np.array(leaves.pop(largest))
    if balanced:
        examples = examples[np.argsort(labels[examples], kind="stable")]
        children = np.repeat(np.arange(n_children), len(examples) // n_children)
    else:
        wanted = random.permutation(np.arange(labels.max() + 1) % n_children)[labels[examples]]
        astray = random.random(len(examples)) < 0.1
        children = np.where(astray, random.integers(n_children, size=len(examples)), wanted)
    shares = np.bincount(labels[examples]) / len(examples)
    sent = np.zeros((len(shares), n_children))
    np.add.at(sent, (labels[examples], children), 1.0)
    present = shares > 0
    probabilities = sent[present] / sent[present].sum(axis=1, keepdims=True)
    leaves += [examples[children == child].tolist() for child in range(n_children) if (children == child).any()]
    return objective(shares[present], probabilities), (shares[present] @ probabilities).min()


def tree_error(labels, leaves):
    """The share of examples that do not have the most frequent label of their leaf."""
    return 1 - sum(int(np.bincount(labels[leaf]).max()) for leaf in leaves) / len(labels)


def least_error(n_splits, exponent):
    """The kappa for which (1 / kappa) ** exponent internal nodes are `n_splits`."""
    return n_splits ** (-1 / exponent)


@pytest.mark.parametrize("n_children", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_error_of_a_tree_is_bounded(seed, n_children):  # Theorem 1
    """Where all nodes have an objective of at least gamma, so many splits have at most the error kappa."""
    random, n_labels = np.random.default_rng(seed), 12
    labels = random.integers(n_labels, size=2400)
    leaves, gamma, n_checked = [list(range(len(labels)))], 1.0, 0
    for n_splits in range(1, 15):
        value, least = split_largest(labels, leaves, n_children, random, balanced=False)
        gamma = min(gamma, value, 1 - n_children / 2 * least)  # the range that the theorem allows
        assert gamma > 0
        spread = n_children * (1 - 2 * gamma) + 2 * gamma
        if gamma < n_children / 2 * least or spread <= 0:
            continue
        exponent = 16 * spread * (n_children - 1) / (np.log2(np.e) * n_children**2 * gamma**2) * np.log(n_labels)
        assert tree_error(labels, leaves) <= least_error(n_splits, exponent) + 1e-12
        n_checked += 1
    assert n_checked > 0


@pytest.mark.parametrize("n_children, levels", [(2, 4), (3, 3), (4, 2)])
def test_error_of_a_balanced_tree_is_bounded(n_children, levels):  # Corollary 1
    """Equally frequent labels and pure, balanced splits: gamma is the best objective, and no error remains."""
    n_labels = n_children**levels
    labels, leaves = np.repeat(np.arange(n_labels), 3), [list(range(3 * n_labels))]
    gamma, n_inner = np.inf, (n_labels - 1) // (n_children - 1)
    for n_splits in range(1, n_inner + 1):
        value, least = split_largest(labels, leaves, n_children, None, balanced=True)
        gamma = min(gamma, value)
        assert least == pytest.approx(1 / n_children)
        assert gamma == pytest.approx(best_objective(n_children))
        exponent = 16 * (n_children - 1) / (np.log2(np.e) * n_children**2 * gamma**2) * np.log(n_labels)
        assert tree_error(labels, leaves) <= least_error(n_splits, exponent)
    assert tree_error(labels, leaves) == 0


# --- the assignment ------------------------------------------------------------------------------------


def greedy_by_the_book(scores, is_full):
    """Algorithm 2 word for word: the best pair of an open label and a child that is not full, again and again."""
    n_labels, n_children = scores.shape
    child_of = np.full(n_labels, -1)
    held = np.zeros(n_children, dtype=int)
    while (child_of < 0).any():
        pairs = [
            (-scores[i, j], i, j)
            for i in np.flatnonzero(child_of < 0)
            for j in range(n_children)
            if not is_full(held, j)
        ]
        _, i, j = min(pairs)
        child_of[i] = j
        held[j] += 1
    return child_of


@given(seeds, st.integers(1, 12), st.integers(2, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_assignment_with_capacities_is_greedy(seed, n_labels, n_children, ties):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(n_labels, n_children))
    scores = np.round(scores) if ties else scores
    capacities = random.multinomial(n_labels + random.integers(0, 4), np.full(n_children, 1 / n_children))
    expected = greedy_by_the_book(scores, lambda held, j: held[j] == capacities[j])
    np.testing.assert_array_equal(assign_labels(scores, capacities), expected)


def unbounded(scores):
    """The labels of Algorithm 2 where the tree may be as deep as it likes."""
    n_labels, n_children = scores.shape
    padded = max(n_labels, n_children)
    padded += (n_children - padded) % (n_children - 1)
    child_of_label = np.full(n_labels, -1)
    take_best_bounded(scores, padded, padded, child_of_label, np.zeros(n_children, dtype=np.int64))
    return child_of_label


@given(seeds, st.integers(0, 4), st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_assignment_without_capacities_is_well_formed(seed, blocks, n_children):
    n_labels = n_children + blocks * (n_children - 1)
    scores = np.random.default_rng(seed).normal(size=(n_labels, n_children))
    held = np.bincount(unbounded(scores), minlength=n_children)
    assert (held >= 1).all() and ((held - 1) % (n_children - 1) == 0).all()

    def is_full(held, j):
        begun = sum(-(-max(number - 1, 0) // (n_children - 1)) for number in held)
        return held[j] > 0 and (held[j] - 1) % (n_children - 1) == 0 and begun == blocks

    np.testing.assert_array_equal(unbounded(scores), greedy_by_the_book(scores, is_full))


@given(seeds, st.integers(1, 30), st.integers(2, 6))
@settings(deadline=None)
def test_any_number_of_labels_finds_a_place(seed, n_labels, n_children):
    scores = np.random.default_rng(seed).normal(size=(n_labels, n_children))
    children = unbounded(scores)
    assert children.min() >= 0 and children.max() < n_children


def gain(scores, children):
    return scores[np.arange(len(scores)), list(children)].sum()


def best_gain(scores, allowed):
    n_labels, n_children = scores.shape
    candidates = product(range(n_children), repeat=n_labels)
    return max(gain(scores, c) for c in candidates if allowed(np.bincount(np.array(c), minlength=n_children)))


@given(seeds, st.integers(2, 9), st.booleans())
@settings(max_examples=40, deadline=None)
def test_assignment_to_two_children_is_the_best_of_all(seed, n_labels, bounded):  # Lemma 1
    shares, probabilities = random_split(seed, n_labels, 2)
    scores = objective_gradient(shares, probabilities)
    if bounded:
        capacities = np.array([n_labels // 2, n_labels - n_labels // 2])
        best = best_gain(scores, lambda held: (held <= capacities).all())
        found = assign_labels(scores, capacities)
    else:
        best = best_gain(scores, lambda held: (held > 0).all())
        found = unbounded(scores)
    assert gain(scores, found) == pytest.approx(best)


@given(seeds, st.integers(2, 6), st.integers(2, 4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_assignment_is_the_best_of_all_where_there_is_room(seed, n_labels, n_children, of_logarithm):
    scores = objective_gradient(*random_split(seed, n_labels, n_children), of_logarithm)
    found = assign_labels(scores, np.full(n_children, n_labels))
    assert gain(scores, found) == pytest.approx(best_gain(scores, lambda held: True))


def test_greedy_can_miss_the_best_with_three_children():
    """Lemma 1 says otherwise: but a label that likes two children may take the only one that another likes."""
    shares = np.array([0.4, 0.25, 0.35])
    probabilities = np.array([[0.45, 0.45, 0.1], [0.6, 0.05, 0.35], [0.05, 0.2, 0.75]])
    scores = objective_gradient(shares, probabilities)
    found = gain(scores, assign_labels(scores, np.ones(3, dtype=int)))
    best = best_gain(scores, lambda held: (held == 1).all())
    assert found < best - 0.01


def test_assignment_raises_the_objective_of_a_fixed_depth_tree():
    """Moving each label's probability towards its child makes the split better."""
    shares, probabilities = random_split(7, 8, 4)
    scores = objective_gradient(shares, probabilities, of_logarithm=True)
    chosen = np.eye(4)[assign_labels(scores, np.full(4, 2))]
    moved = 0.9 * probabilities + 0.1 * chosen
    assert objective(shares, moved) > objective(shares, probabilities)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="3 labels do not fit into children with a total capacity of 2"):
        assign_labels(np.zeros((3, 2)), np.array([1, 1]))
    with pytest.raises(ValueError, match="at least two children"):
        assign_labels(np.zeros((3, 1)), np.array([3]))
