"""Searches of a learned tree: beam, exact, all labels, given labels, labels above a threshold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.intrinsics import empty, minimum
from treemax.kernels.jit import bare_fast_inline_kernel, fast_kernel, inline_kernel, kernel
from treemax.kernels.queues import HUGE, offer, pop, push
from treemax.kernels.sparse_rows import Rows
from treemax.models.learned_tree.kernels import ONE, ZERO, n_vectors, represent_row, score_all, softmax_of_children

WIDTH = np.uint64(vector.WIDTH)


class SearchTree(NamedTuple):
    """A trained tree. The searches take it and the rows as plain tuples: for a named one, which Numba examines in
    Python, a call from Python takes two microseconds more."""

    embeddings: np.ndarray
    width: np.uint64
    widest: int  # largest number of children; finding it would take longer than the prediction of one row
    first_child: np.ndarray
    n_children: np.ndarray
    labels: np.ndarray
    first_vectors: np.ndarray
    weights: np.ndarray
    biases: np.ndarray


@kernel
def _set_up(rows, tree):
    """Return the rows and the tree as named tuples, and memory for a row and for the probabilities of children."""
    tree = SearchTree(*tree)
    shares = np.empty(tree.widest + vector.WIDTH, np.float32)  # can be read in whole vectors
    return Rows(*rows), tree, np.empty(tree.width, np.float32), shares


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


@bare_fast_inline_kernel
def _shares_at(node, tree, hidden, shares):
    """Compute the probabilities of a node's children."""
    count = np.uint64(n_vectors(tree.n_children[node]))
    first, zero = np.uint64(tree.first_vectors[node]), np.uint64(0)
    score_all(hidden, zero, tree.weights, tree.biases, first, count, tree.width, shares, zero)
    softmax_of_children(shares, zero, np.uint64(tree.n_children[node]))


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
def best_exact(rows, tree, depth, ids, probabilities):
    """Compute the k most probable labels of each row by depth-first branch and bound, the most probable child first."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    nodes, chances = (empty(depth * tree.widest + 2, np.int64), empty(depth * tree.widest + 2, np.float32))
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            if filled == k and chance < probabilities[r, k - 1]:
                continue
            _shares_at(node, tree, hidden, shares)
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
def best_beam(rows, tree, beam, ids, probabilities):
    """Compute the best labels below the `beam` most probable nodes of each level."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    nodes, following = empty(beam, np.int64), empty(beam, np.int64)
    chances, coming = empty(beam, np.float32), empty(beam, np.float32)
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n_following = 0
            for b in range(n):
                node = nodes[b]
                if filled == k and chances[b] < probabilities[r, k - 1]:
                    continue
                _shares_at(node, tree, hidden, shares)
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
def best_weighted(rows, tree, level, depth, beam, node_weights, ids, probabilities):
    """Compute the largest products of probability and weight, with at most `beam` opened nodes a level.

    `node_weights` are those of `largest_weights`; labels of weight 0 are left out.
    """
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    heap_nodes, heap_products = empty(n_children.size, np.int64), empty(n_children.size, np.float32)
    of_node = empty(n_children.size, np.float32)  # probabilities of the nodes that were reached
    opened = empty(depth + 1, np.int64)
    k = ids.shape[1]
    products = empty(k, np.float32)
    for r in range(ids.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        best, filled = ids[r], np.int64(0)  # leaves, until the search ends
        opened[:] = 0
        of_node[0] = ONE
        heap_nodes[0], heap_products[0], size = 0, node_weights[0], np.int64(node_weights[0] > ZERO)
        while size > 0:
            size = pop(heap_nodes, heap_products, size)
            node = heap_nodes[size]
            if filled == k and heap_products[size] <= products[k - 1]:
                break
            if opened[level[node]] == beam:
                continue
            opened[level[node]] += 1
            _shares_at(node, tree, hidden, shares)
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, of_node[node] * shares[c]
                product = probability * node_weights[child]
                if node_weights[child] == ZERO or (filled == k and product <= products[k - 1]):
                    continue
                of_node[child] = probability
                if n_children[child] == 0:
                    filled = offer(child, product, best, products, filled)
                else:
                    size = push(heap_nodes, heap_products, size, child, product)
        for j in range(filled):
            probabilities[r, j] = of_node[best[j]]
            best[j] = labels[best[j]]
        ids[r, filled:] = -1
        probabilities[r, filled:] = ZERO


@fast_kernel
def best_allowed(rows, tree, depth, node_weights, first, of_first, ids, probabilities):
    """Compute the most probable of all labels (`first`, may have no columns) and of the allowed ones, those below
    nodes with a weight, in one search like `best_exact`."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    nodes, chances = (empty(depth * tree.widest + 2, np.int64), empty(depth * tree.widest + 2, np.float32))
    n_first, k = first.shape[1], ids.shape[1]
    for r in range(ids.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        n_leading, filled = np.int64(0), np.int64(0)
        worst_leading, worst = ZERO if n_first else HUGE, ZERO
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            if chance < worst_leading and (chance < worst or node_weights[node] == ZERO):
                continue
            _shares_at(node, tree, hidden, shares)
            begin = n
            n_here = np.uint64(n_children[node])
            for block in range(np.uint64(0), n_here, WIDTH):
                valid = np.uint32((np.uint64(1) << minimum(WIDTH, n_here - block)) - np.uint64(1))
                products = vector.multiply(vector.splat(chance), vector.load(shares, block))
                of_children = vector.load(node_weights, np.uint64(first_child[node]) + block)
                leading = valid & ~vector.bits_above(vector.splat(worst_leading), products)
                allowed = valid & ~vector.bits_above(vector.splat(worst), products)
                allowed &= vector.bits_above(of_children, vector.splat(ZERO))
                left = leading | allowed
                while left:
                    bit = np.uint32(vector.lowest_bit(left))
                    left &= left - np.uint32(1)
                    c = block + np.uint64(bit)
                    child, probability = first_child[node] + np.int64(c), chance * shares[c]
                    is_allowed = (allowed >> bit) & np.uint32(1) and probability >= worst
                    if probability < worst_leading and not is_allowed:
                        continue
                    if n_children[child] > 0:
                        _insert(nodes, chances, begin, n, child, probability)
                        n += 1
                        continue
                    if probability >= worst_leading:
                        n_leading = _offer(labels[child], probability, first[r], of_first[r], n_leading)
                        worst_leading = of_first[r, n_first - 1] if n_leading == n_first else ZERO
                    if is_allowed:
                        filled = _offer(labels[child], probability, ids[r], probabilities[r], filled)
                        worst = probabilities[r, k - 1] if filled == k else ZERO
        ids[r, filled:] = -1
        probabilities[r, filled:] = ZERO


@fast_kernel
def all_above(rows, tree, depth, threshold, starts):
    """Return the ids and probabilities of all labels with at least this probability; `starts` delimits the rows."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    nodes, chances = (empty(depth * tree.widest + 2, np.int64), empty(depth * tree.widest + 2, np.float32))
    ids, probabilities = empty(256, np.int64), empty(256, np.float32)
    found = 0
    starts[0] = 0
    for r in range(starts.size - 1):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        nodes[0], chances[0] = 0, ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            _shares_at(node, tree, hidden, shares)
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, chance * shares[c]
                if probability < threshold:
                    continue
                if n_children[child] > 0:
                    nodes[n], chances[n] = child, probability
                    n += 1
                    continue
                if found == ids.size:
                    ids = np.concatenate((ids, empty(found, np.int64)))
                    probabilities = np.concatenate((probabilities, empty(found, np.float32)))
                ids[found], probabilities[found] = labels[child], probability
                found += 1
        starts[r + 1] = found
    return ids[:found], probabilities[:found]


@fast_kernel
def probabilities_of_all(rows, tree, out):
    """Compute the probability of every label, from the root down."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child, n_children, labels = tree.first_child, tree.n_children, tree.labels
    chances = empty(n_children.size, np.float32)
    for r in range(out.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        chances[0] = ONE
        for node in range(n_children.size):
            if n_children[node] == 0:
                out[r, labels[node]] = chances[node]
                continue
            _shares_at(node, tree, hidden, shares)
            for c in range(n_children[node]):
                chances[first_child[node] + c] = chances[node] * shares[c]


@fast_kernel
def probabilities_of_given(rows, tree, parents, leaves, ids, out):
    """Compute the probabilities of given labels, from the leaf up; zero for an id of -1."""
    rows, tree, hidden, shares = _set_up(rows, tree)
    first_child = tree.first_child
    for r in range(out.shape[0]):
        represent_row(rows, r, ONE, tree.embeddings, tree.width, hidden)
        for i in range(ids.shape[1]):
            out[r, i] = ZERO
            if ids[r, i] < 0:
                continue
            node, probability = leaves[ids[r, i]], ONE
            while node > 0:
                parent = parents[node]
                _shares_at(parent, tree, hidden, shares)
                probability *= shares[node - first_child[parent]]
                node = parent
            out[r, i] = probability
