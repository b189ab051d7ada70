"""Searches of an online label tree: beam, exact, all labels, given labels, labels above a threshold.

`tree` is a plain tuple, which is faster where Python calls a search for every row: whether rows have one label, whether
the probabilities of siblings are scaled, the number of nodes, the most children of one, and the arrays.
"""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, kernel
from treemax.kernels.queues import FOR_ALLOWED, FOR_FIRST, HUGE, offer, opened_for, pad, pop, push
from treemax.models.online_label_tree.kernels import FIRST, LANES, ONE, ZERO, block_scores, find_all


@bare_inline_kernel
def logistic(score):
    one = vector.splat(ONE)
    return vector.divide(one, vector.add(one, vector.exponential(vector.subtract(vector.splat(ZERO), score))))


@bare_kernel
def _expand(node, above, indices, values, scaled, nodes, blocks, store, found, scores):
    """Write the probabilities of a node's children: `above`, that of the node, times those of their classifiers,
    divided by their sum if `scaled`."""
    block, start = nodes.first_block[node], 0
    while block >= 0:
        find_all(block, indices, blocks, store, found)
        vector.store(scores, np.uint64(start), logistic(block_scores(block, values, blocks, found)))
        start += blocks.used[block]
        block = blocks.following[block]
    n = nodes.n_children[node]
    scale = above
    if scaled:
        total = ZERO
        for c in range(n):
            total += scores[c]
        scale = above / total
    for c in range(n):
        scores[c] *= scale
    return n


@bare_kernel
def _root_probability(indices, values, one_label, blocks, store, found, scores):
    if one_label:
        return ONE
    find_all(FIRST, indices, blocks, store, found)
    vector.store(scores, np.uint64(0), logistic(block_scores(FIRST, values, blocks, found)))
    return scores[0]


@kernel
def _rooms(indptr, widest):
    """Return scratch for one row: addresses of its records, scores of a node's children."""
    longest = 0
    for i in range(indptr.size - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return np.empty(longest, np.uint64), np.empty(widest + 2 * LANES, np.float32)


@kernel
def weighted_search(indptr, indices, values, tree, width, node_weights, ids, probabilities):
    """Compute the largest products of probability and weight, with at most `width` opened nodes a level.

    `node_weights` are those of `largest_weights`; labels of weight 0 are left out.
    """
    one_label, scaled, n_nodes, widest, nodes, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    heap_nodes, heap_products = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    of_node, level = np.empty(n_nodes, np.float32), np.empty(n_nodes, np.int64)  # of the nodes that were reached
    opened, deepest = np.zeros(n_nodes, np.int64), np.int64(0)
    k = ids.shape[1]
    products = np.empty(k, np.float32)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        best, n_best, size = ids[row], np.int64(0), np.int64(0)  # leaves, until the search ends
        opened[: deepest + 1] = 0
        of_node[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        level[0], deepest = 0, np.int64(0)
        if node_weights[0] > ZERO:
            if nodes.label[0] >= 0:
                n_best = offer(FIRST, of_node[0] * node_weights[0], best, products, n_best)
            else:
                size = push(heap_nodes, heap_products, size, FIRST, of_node[0] * node_weights[0])
        while size:
            size = pop(heap_nodes, heap_products, size)
            node = heap_nodes[size]
            if n_best == k and heap_products[size] <= products[k - 1]:
                break
            if opened[level[node]] == width:
                continue
            opened[level[node]] += 1
            deepest = max(deepest, level[node])
            _expand(node, of_node[node], indices[x], values[x], scaled, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    child = blocks.child[block * LANES + lane]
                    product = scores[c] * node_weights[child]
                    if node_weights[child] > ZERO and (n_best < k or product > products[k - 1]):
                        of_node[child], level[child] = scores[c], level[node] + 1
                        if nodes.label[child] >= 0:
                            n_best = offer(child, product, best, products, n_best)
                        else:
                            size = push(heap_nodes, heap_products, size, child, product)
                    c += 1
                block = blocks.following[block]
        for j in range(n_best):
            probabilities[row, j] = of_node[best[j]]
            best[j] = nodes.label[best[j]]
        for j in range(n_best, k):
            best[j] = -1
            probabilities[row, j] = ZERO


@kernel
def allowed_search(indptr, indices, values, tree, width, node_weights, first, of_first, ids, probabilities):
    """Algorithm 10, uniform-cost search, for the best of all labels (`first`) and the best allowed ones, those below nodes
    with a weight, with at most `width` opened nodes a level for each; either may have no columns.

    Nodes are opened in order of probability, until the next one cannot improve the labels found. No node is more
    probable than its parent, so that these are the nodes of a beam, or with a large `width` the true top k.
    """
    one_label, scaled, n_nodes, widest, nodes, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    heap, heap_scores = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)  # 4 * node + what it is opened for
    level = np.empty(n_nodes, np.int64)  # of the nodes that were reached
    opened, opened_allowed = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)  # of levels up to the deepest
    n_first, k = first.shape[1], ids.shape[1]
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        best, best_scores, n_best = ids[row], probabilities[row], np.int64(0)
        leading, leading_scores, n_leading = first[row], of_first[row], np.int64(0)
        worst_leading, worst = -ONE if n_first else HUGE, -ONE if k else HUGE
        root = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        level[0], deepest, size = 0, np.int64(0), np.int64(0)
        opened[0], opened_allowed[0] = 0, 0
        if nodes.label[0] < 0:
            size = push(heap, heap_scores, size, FOR_FIRST | FOR_ALLOWED, root)
        else:
            if n_first:
                n_leading = offer(nodes.label[0], root, leading, leading_scores, n_leading)
            if k and node_weights[0] > ZERO:
                n_best = offer(nodes.label[0], root, best, best_scores, n_best)
        while size:
            size = pop(heap, heap_scores, size)
            node, purpose, above = heap[size] >> 2, heap[size] & 3, heap_scores[size]
            if above <= min(worst, worst_leading):
                break
            depth = level[node]
            purpose = opened_for(purpose, above, worst_leading, worst, opened[depth], opened_allowed[depth], width)
            if purpose == 0:
                continue
            for_first, for_allowed = purpose & FOR_FIRST != 0, purpose & FOR_ALLOWED != 0
            opened[depth] += for_first
            opened_allowed[depth] += for_allowed
            _expand(node, above, indices[x], values[x], scaled, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    child, score = blocks.child[block * LANES + lane], scores[c]
                    c += 1
                    leads = for_first and score > worst_leading
                    allowed = for_allowed and score > worst and node_weights[child] > ZERO
                    if not (leads or allowed):
                        continue
                    if nodes.label[child] < 0:
                        level[child] = depth + 1
                        if depth == deepest:
                            deepest += 1
                            opened[deepest], opened_allowed[deepest] = 0, 0
                        purpose = (FOR_FIRST if leads else 0) | (FOR_ALLOWED if allowed else 0)
                        size = push(heap, heap_scores, size, 4 * child + purpose, score)
                        continue
                    if leads:
                        n_leading = offer(nodes.label[child], score, leading, leading_scores, n_leading)
                        worst_leading = leading_scores[n_first - 1] if n_leading == n_first else -ONE
                    if allowed:
                        n_best = offer(nodes.label[child], score, best, best_scores, n_best)
                        worst = best_scores[k - 1] if n_best == k else -ONE
                block = blocks.following[block]
        pad(leading, leading_scores, n_leading)
        pad(best, best_scores, n_best)


@kernel
def root_probabilities(indptr, indices, values, tree, out):
    """Compute the probability of the root for each row: that it has a label."""
    one_label, _, _, widest, _, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        out[row, 0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)


@kernel
def all_probabilities(indptr, indices, values, tree, out):
    """Compute the probability of every label for each row: every node is visited. Labels without a leaf have none."""
    one_label, scaled, n_nodes, widest, nodes, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    waiting, above = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        out[row] = ZERO
        waiting[0], size = 0, 1
        above[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        while size:
            size -= 1
            node = waiting[size]
            if nodes.label[node] >= 0:
                out[row, nodes.label[node]] = above[size]
                continue
            _expand(node, above[size], indices[x], values[x], scaled, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    waiting[size] = blocks.child[block * LANES + lane]
                    above[size] = scores[c]
                    size, c = size + 1, c + 1
                block = blocks.following[block]


@kernel
def probabilities_of(indptr, indices, values, tree, leaf_of, ids, out):
    """Compute the probabilities of given labels (0 for -1): only the nodes above them are visited, each once a row."""
    one_label, scaled, n_nodes, widest, nodes, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    of_node = np.empty(n_nodes, np.float32)
    known_in = np.full(n_nodes, -1, np.int64)  # the row for which a node's probability is known
    path = np.empty(n_nodes, np.int64)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        of_node[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        known_in[0] = row
        for j in range(ids.shape[1]):
            leaf = leaf_of[ids[row, j]] if ids[row, j] >= 0 else -1
            if leaf < 0:
                out[row, j] = ZERO
                continue
            node, length = leaf, 0
            while known_in[node] != row:
                node = nodes.parent[node]
                path[length] = node
                length += 1
            for step in range(length - 1, -1, -1):
                node = path[step]
                _expand(node, of_node[node], indices[x], values[x], scaled, nodes, blocks, store, found, scores)
                block, c = nodes.first_block[node], 0
                while block >= 0:
                    for lane in range(blocks.used[block]):
                        child = blocks.child[block * LANES + lane]
                        of_node[child], known_in[child] = scores[c], row
                        c += 1
                    block = blocks.following[block]
            out[row, j] = of_node[leaf]


@kernel
def labels_above(indptr, indices, values, tree, threshold, starts):
    """Return all labels whose probability is at least `threshold`: no branch below it is opened. Those of row i are
    starts[i] to starts[i + 1] of what is returned."""
    one_label, scaled, n_nodes, widest, nodes, blocks, store = tree
    found, scores = _rooms(indptr, widest)
    waiting, above = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    ids, probabilities = np.empty(64, np.int64), np.empty(64, np.float32)
    count = 0
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        starts[row] = count
        waiting[0], size = 0, 1
        above[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        while size:
            size -= 1
            node, probability = waiting[size], above[size]
            if probability < threshold:
                continue
            if nodes.label[node] >= 0:
                if count == ids.size:
                    ids = np.append(ids, np.empty(count, np.int64))
                    probabilities = np.append(probabilities, np.empty(count, np.float32))
                ids[count], probabilities[count] = nodes.label[node], probability
                count += 1
                continue
            _expand(node, probability, indices[x], values[x], scaled, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    if scores[c] >= threshold:
                        waiting[size], above[size] = blocks.child[block * LANES + lane], scores[c]
                        size += 1
                    c += 1
                block = blocks.following[block]
    starts[indptr.size - 1] = count
    return ids[:count], probabilities[:count]
