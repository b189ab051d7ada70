"""Searches of a learned tree: beam, exact, all labels, given labels, labels above a threshold."""

from __future__ import annotations

import numpy as np

from treemax.kernels.jit import fast_inline_kernel, fast_kernel, inline_kernel
from treemax.models.learned_tree.kernels import (
    ONE,
    ZERO,
    n_vectors,
    score_all,
    softmax_of_children,
    sum_embeddings,
)

# `widest` is the largest number of children; finding it would take longer than the prediction of one row.


@inline_kernel
def _offer(label, probability, ids, probabilities, filled):
    """Insert a label into the sorted top k, ties by lower id; returns the new length."""
    at = filled
    if filled == ids.size:
        worse = probability < probabilities[filled - 1]
        if worse or (probability == probabilities[filled - 1] and label > ids[filled - 1]):
            return filled
        at = filled - 1
    else:
        filled += 1
    while at > 0 and (
        probabilities[at - 1] < probability or (probabilities[at - 1] == probability and ids[at - 1] > label)
    ):
        ids[at] = ids[at - 1]
        probabilities[at] = probabilities[at - 1]
        at -= 1
    ids[at] = label
    probabilities[at] = probability
    return filled


@fast_inline_kernel
def _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares):
    """The probabilities of a node's children."""
    count = np.uint64(n_vectors(n_children[node]))
    first = np.uint64(first_vectors[node])
    score_all(hidden, np.uint64(0), weights, biases, first, count, width, shares, np.uint64(0))
    softmax_of_children(shares, np.uint64(0), np.uint64(n_children[node]))


@inline_kernel
def _insert(nodes, probabilities, begin, n, node, probability):
    """Insert a node into the stack from `begin` on, sorted with the most probable last."""
    at = n
    while at > begin and probabilities[at - 1] > probability:
        nodes[at] = nodes[at - 1]
        probabilities[at] = probabilities[at - 1]
        at -= 1
    nodes[at] = node
    probabilities[at] = probability


@fast_kernel
def best_exact(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, depth,
    ids, probabilities,
):  # fmt: skip
    """The k most probable labels of each row by depth-first branch and bound, the most probable child first."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, chances = np.empty(depth * widest + 2, np.int64), np.empty(depth * widest + 2, np.float32)
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        sum_embeddings(indices, values, first, last, ONE, embeddings, width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            if filled == k and chance < probabilities[r, k - 1]:
                continue
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            begin = n
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, chance * shares[c]
                if filled == k and probability < probabilities[r, k - 1]:
                    continue
                if n_children[child] == 0:
                    filled = _offer(labels[child], probability, ids[r], probabilities[r], filled)
                else:
                    _insert(nodes, chances, begin, n, child, probability)
                    n += 1


@fast_kernel
def best_beam(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, beam,
    ids, probabilities,
):  # fmt: skip
    """The best labels below the `beam` most probable nodes of each level."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, following = np.empty(beam, np.int64), np.empty(beam, np.int64)
    chances, coming = np.empty(beam, np.float32), np.empty(beam, np.float32)
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        sum_embeddings(indices, values, first, last, ONE, embeddings, width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n_following = 0
            for b in range(n):
                node = nodes[b]
                if filled == k and chances[b] < probabilities[r, k - 1]:
                    continue
                _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
                for c in range(n_children[node]):
                    child, probability = first_child[node] + c, chances[b] * shares[c]
                    if n_children[child] == 0:
                        filled = _offer(labels[child], probability, ids[r], probabilities[r], filled)
                    else:
                        n_following = _offer(child, probability, following, coming, n_following)
            nodes, following = following, nodes
            chances, coming = coming, chances
            n = n_following
        ids[r, filled:] = -1
        probabilities[r, filled:] = ZERO


@fast_kernel
def all_above(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, depth,
    threshold, starts,
):  # fmt: skip
    """Ids and probabilities of all labels with at least this probability; `starts` delimits the rows."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, chances = np.empty(depth * widest + 2, np.int64), np.empty(depth * widest + 2, np.float32)
    ids, probabilities = np.empty(256, np.int64), np.empty(256, np.float32)
    found = 0
    starts[0] = 0
    for r in range(starts.size - 1):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        sum_embeddings(indices, values, first, last, ONE, embeddings, width, hidden)
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, chance * shares[c]
                if probability < threshold:
                    continue
                if n_children[child] > 0:
                    nodes[n], chances[n] = child, probability
                    n += 1
                    continue
                if found == ids.size:
                    ids = np.concatenate((ids, np.empty(found, np.int64)))
                    probabilities = np.concatenate((probabilities, np.empty(found, np.float32)))
                ids[found], probabilities[found] = labels[child], probability
                found += 1
        starts[r + 1] = found
    return ids[:found], probabilities[:found]


@fast_kernel
def probabilities_of_all(
    indptr,
    indices,
    values,
    embeddings,
    width,
    widest,
    first_child,
    n_children,
    labels,
    first_vectors,
    weights,
    biases,
    out,
):
    """The probability of every label, from the root down."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    chances = np.empty(n_children.size, np.float32)
    for r in range(out.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        sum_embeddings(indices, values, first, last, ONE, embeddings, width, hidden)
        chances[0] = ONE
        for node in range(n_children.size):
            if n_children[node] == 0:
                out[r, labels[node]] = chances[node]
                continue
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            for c in range(n_children[node]):
                chances[first_child[node] + c] = chances[node] * shares[c]


@fast_kernel
def probabilities_of_given(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, parents,
    leaves, ids, out,
):  # fmt: skip
    """The probabilities of given labels, from the leaf up; zero for an id of -1."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    for r in range(out.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        sum_embeddings(indices, values, first, last, ONE, embeddings, width, hidden)
        for i in range(ids.shape[1]):
            out[r, i] = ZERO
            if ids[r, i] < 0:
                continue
            node, probability = leaves[ids[r, i]], ONE
            while node > 0:
                parent = parents[node]
                _shares_at(parent, n_children, first_vectors, hidden, weights, biases, width, shares)
                probability *= shares[node - first_child[parent]]
                node = parent
            out[r, i] = probability
