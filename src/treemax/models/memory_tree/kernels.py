"""Contextual memory tree of Sun et al. (2019): queries, insertion, reward updates and re-insertion.

The tree is binary. Every node has a router, a linear regressor; a row goes left if its score is negative, else right.
A leaf has a linked list of memories: rows of length one, with their labels. The router of a leaf is trained too, so
that it can divide the memories when the leaf is split. Nodes are numbered in the order of creation.

An operation that lacks room returns before it changes anything. `state` says where to continue.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32, next_random
from treemax.kernels.jit import bare_inline_kernel, inline_kernel, kernel
from treemax.kernels.queues import offer, pad
from treemax.kernels.scorers import buckets_needed, reserve, row_of, scores, scores_of, update, update_of
from treemax.models.memory_tree.similarity_kernels import clear, similarity, spread, update_similarity

LEFT, RIGHT = 0, 1
NODES, INSERTED = 0, 1  # places in `used`
NONE = -1
DEEPEST = 64  # levels of the tree, so that a row takes bounded time whatever the data
SOFTMAX, CLIPPED, REGRESSORS = 0, 1, 2  # how scores become probabilities
ROW, STEP, PHASE, MEMORY, LEAF = 0, 1, 2, 3, 4  # places in `state`
CHOOSE, ROUTE, ANSWER, SPLIT = 0, 1, 2, 3  # phases of an insertion
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0  # bounds of the weight of a reward update
FEW = 0.001  # number of memories of an empty side, in logarithms
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_UNIT = 2.0**-53
_LOWEST = np.float32(-3e38)


class Nodes(NamedTuple):
    """The tree."""

    used: np.ndarray  # number of nodes; number of memories inserted so far
    left: np.ndarray  # the left child, 0 at a leaf; the right child is the next node
    depths: np.ndarray
    sides: np.ndarray  # nodes x (left, right): memories below; at a leaf, those that its router was trained on
    sizes: np.ndarray  # memories of a leaf
    first: np.ndarray  # the first memory of a leaf, or NONE


class Memories(NamedTuple):
    """The rows that are remembered."""

    rows: Any  # a matrix, or the three arrays of sparse rows
    starts: np.ndarray  # of the labels of each memory
    labels: np.ndarray  # sorted for each memory
    following: np.ndarray  # the next memory in the leaf, or NONE


class Scorer(NamedTuple):
    """The similarity of two rows is the sum of (1 + weight) times the products of their features."""

    weights: np.ndarray
    squares: np.ndarray


class Options(NamedTuple):
    """Options of the algorithm."""

    alpha: float  # weight of the router's own score and of rewards, against balance
    leaf_factor: float  # a leaf has at most this many times the logarithm of the number of memories
    dreams: int
    first_pass: bool  # rows are inserted
    rewards: bool  # reward updates are made
    train_dreams: bool  # re-insertion trains routers
    skip_itself: bool  # a memory is not its own nearest
    learn_scorer: bool
    output: int  # SOFTMAX, CLIPPED or REGRESSORS
    sharpness: np.float32


class Rates(NamedTuple):
    """AdaGrad's learning rates, the initial value of its sums, and the smallest gradient of a regressor."""

    routers: np.float32
    scorer: np.float32
    regressors: np.float32
    initial: np.float32
    scorer_initial: np.float32
    least_gradient: np.float32


class Progress(NamedTuple):
    """Where learning is."""

    random: np.ndarray
    state: np.ndarray
    found: np.ndarray  # rows answered before they were inserted, and all of them
    needed: np.ndarray  # hash buckets that the routers and the regressors lack


class Workspace(NamedTuple):
    """Buffers of one thread."""

    spread: np.ndarray  # the row, dense
    place: np.ndarray  # for each label, its position in `labels` plus 1; else 0
    labels: np.ndarray
    scores: np.ndarray
    counts: np.ndarray  # of the memories of each of these labels that have its score
    gradients: np.ndarray
    path: np.ndarray
    one: np.ndarray


# --- the tree --------------------------------------------------------------------------------------------


@bare_inline_kernel
def _uniform(random):
    """Return a random number from 0 to 1, exclusive."""
    random[0] = next_random(random[0])
    return np.float64(random[0] >> np.uint64(11)) * _UNIT


@bare_inline_kernel
def _score(x, node, routers, one):
    scores(routers, node, 1, x, one)
    return one[0]


@bare_inline_kernel
def _descend(x, node, nodes, routers, path, one):
    """Query: the leaf of a row below a node, and the length of the path to it, which is stored.

    A side without memories is not taken.
    """
    length = 0
    while nodes.left[node]:
        path[length] = node
        length += 1
        side = LEFT if _score(x, node, routers, one) < _ZERO else RIGHT
        if nodes.sides[node, side] == 0:
            side = RIGHT - side
        node = np.int64(nodes.left[node]) + side
    path[length] = node
    return node, length + 1


@bare_inline_kernel
def _push(memory, leaf, nodes, memories):
    memories.following[memory] = nodes.first[leaf]
    nodes.first[leaf] = memory
    nodes.sizes[leaf] += 1


@bare_inline_kernel
def _pop(nodes, memories, random):
    """Take out a random memory, of all memories with the same probability."""
    node = np.int64(0)
    while nodes.left[node]:
        in_left, in_right = nodes.sides[node, LEFT], nodes.sides[node, RIGHT]
        side = LEFT if _uniform(random) * (in_left + in_right) < in_left else RIGHT
        nodes.sides[node, side] -= 1
        node = np.int64(nodes.left[node]) + side
    before, memory = np.int64(NONE), nodes.first[node]
    for _ in range(np.int64(_uniform(random) * nodes.sizes[node])):
        before, memory = memory, memories.following[memory]
    if before == NONE:
        nodes.first[node] = memories.following[memory]
    else:
        memories.following[before] = memories.following[memory]
    nodes.sizes[node] -= 1
    return memory


@bare_inline_kernel
def _capacity(nodes, options):
    """Return the number of memories at which a leaf is split."""
    return max(np.int64(2), np.int64(options.leaf_factor * np.log2(max(2.0, np.float64(nodes.used[INSERTED])))))


@bare_inline_kernel
def _clipped(score):
    return min(_ONE, max(-_ONE, score))


@bare_inline_kernel
def _update_router(x, node, score, positive, weight, routers, rates, one):
    """Squared loss of the clipped score, for -1 (left) or 1 (right)."""
    gradient = _clipped(score) - (_ONE if positive else -_ONE)
    if gradient != _ZERO:
        one[0] = weight * gradient
        update(routers, node, one, 1, x, rates.routers, rates.initial)


@bare_inline_kernel
def train_node(x, node, nodes, routers, options, rates, one):
    """Train a router towards balance and its own score; returns the side of the row afterwards, which is counted."""
    score = _score(x, node, routers, one)
    balance = np.log2(max(FEW, nodes.sides[node, LEFT]) / (max(FEW, nodes.sides[node, RIGHT]) + 0.1))
    objective = (1.0 - options.alpha) * balance + options.alpha * _clipped(score)
    _update_router(x, node, score, objective >= 0.0, _ONE, routers, rates, one)
    side = LEFT if _score(x, node, routers, one) < _ZERO else RIGHT
    nodes.sides[node, side] += 1
    return side


@bare_inline_kernel
def _insert(x, memory, nodes, memories, routers, options, rates, one, trains):
    """Route a memory to a leaf and add it; returns the leaf."""
    node = np.int64(0)
    while nodes.left[node]:
        if trains:
            side = train_node(x, node, nodes, routers, options, rates, one)
        else:
            side = LEFT if _score(x, node, routers, one) < _ZERO else RIGHT
            nodes.sides[node, side] += 1
        node = np.int64(nodes.left[node]) + side
    _push(memory, node, nodes, memories)
    if trains:
        train_node(x, node, nodes, routers, options, rates, one)
    return node


@inline_kernel
def _can_be_divided(leaf, memories, nodes, routers, one):
    """Return whether the router of a leaf sends memories to both sides."""
    on_right, memory = np.int64(0), nodes.first[leaf]
    while memory != NONE:
        on_right += _score(row_of(memories.rows, memory), leaf, routers, one) >= _ZERO
        memory = memories.following[memory]
    return 0 < on_right < nodes.sizes[leaf]


@inline_kernel
def _buckets_to_split(leaf, memories, nodes, routers):
    needed, memory = np.int64(0), nodes.first[leaf]
    while memory != NONE:
        needed += buckets_needed(routers, row_of(memories.rows, memory), 2)
        memory = memories.following[memory]
    return needed


@inline_kernel
def _split(leaf, memories, nodes, routers, options, rates, one):
    """Divide the memories of a leaf between two new ones, whose routers are trained on them."""
    left = nodes.used[NODES]
    nodes.used[NODES] += 2
    for child in range(left, left + 2):
        nodes.depths[child] = nodes.depths[leaf] + 1
        nodes.first[child] = NONE
    memory = nodes.first[leaf]
    nodes.first[leaf] = NONE
    nodes.sides[leaf, LEFT] = nodes.sides[leaf, RIGHT] = 0
    while memory != NONE:
        after, x = memories.following[memory], row_of(memories.rows, memory)
        side = LEFT if _score(x, leaf, routers, one) < _ZERO else RIGHT
        nodes.sides[leaf, side] += 1
        _push(memory, left + side, nodes, memories)
        train_node(x, left + side, nodes, routers, options, rates, one)
        memory = after
    nodes.sizes[leaf] = 0
    nodes.left[leaf] = left


# --- rewards and the scorer ------------------------------------------------------------------------------


@bare_inline_kernel
def reward(one, other, memories):
    """Return F1 of the labels of two memories; with one label each, whether they are equal."""
    p, q, common = memories.starts[one], memories.starts[other], 0
    end, other_end = memories.starts[one + 1], memories.starts[other + 1]
    n = end - p + other_end - q
    while p < end and q < other_end:
        difference = np.int64(memories.labels[p]) - np.int64(memories.labels[q])
        common += difference == 0
        p += difference <= 0
        q += difference >= 0
    return np.float32(2 * common) / np.float32(n) if n else _ZERO


@bare_inline_kernel
def _nearest(dense, leaf, without, memories, nodes, scorer):
    """Return the memory of a leaf with the highest score, except for one; NONE if there is no other."""
    best, nearest, memory = _LOWEST, np.int64(NONE), nodes.first[leaf]
    while memory != NONE:
        if memory != without:
            score = similarity(dense, memories.rows, memory, scorer.weights)
            if score > best:
                best, nearest = score, memory
        memory = memories.following[memory]
    return nearest


@bare_inline_kernel
def _random_memory(leaf, nodes, memories, random):
    memory = nodes.first[leaf]
    for _ in range(np.int64(_uniform(random) * nodes.sizes[leaf])):
        memory = memories.following[memory]
    return memory


@bare_inline_kernel
def _update_scorer(dense, memory, target, weight, memories, scorer, rates):
    """Squared loss of the score of a memory and its reward."""
    gradient = weight * (similarity(dense, memories.rows, memory, scorer.weights) - target)
    update_similarity(dense, memories.rows, memory, gradient, scorer, rates.scorer, rates.scorer_initial)


@bare_inline_kernel
def _update_by_reward(x, own_memory, memories, nodes, routers, scorer, options, rates, own, random):
    """Try one side of a random node on the path of a row, and train its router by the reward there.

    At the leaf, the scorer is trained on a random memory.
    """
    leaf, length = _descend(x, np.int64(0), nodes, routers, own.path, own.one)
    if length < 2:
        return
    node = own.path[np.int64(_uniform(random) * length)]
    without = own_memory if options.skip_itself else np.int64(NONE)
    if node == leaf:
        memory = _random_memory(leaf, nodes, memories, random)
        if options.learn_scorer and memory != NONE and memory != without:
            _update_scorer(own.spread, memory, reward(own_memory, memory, memories), _ONE, memories, scorer, rates)
        return
    in_left, in_right = max(FEW, nodes.sides[node, LEFT]), max(FEW, nodes.sides[node, RIGHT])
    side = RIGHT if _uniform(random) < 0.5 else LEFT
    leaf, _ = _descend(x, np.int64(nodes.left[node]) + side, nodes, routers, own.path, own.one)
    memory, found = _nearest(own.spread, leaf, without, memories, nodes, scorer), _ZERO
    if memory != NONE:
        found = reward(own_memory, memory, memories)
        if options.learn_scorer:
            weight = np.float32(length / (length - 1.0))
            _update_scorer(own.spread, memory, found, weight, memories, scorer, rates)
    signed = found if side == RIGHT else -found
    objective = (1.0 - options.alpha) * np.log(in_left / in_right) + options.alpha * signed
    weight = np.float32(min(MOST_WEIGHT, max(LEAST_WEIGHT, abs(objective))))
    score = _score(x, node, routers, own.one)
    _update_router(x, node, score, objective >= 0.0, weight, routers, rates, own.one)


# --- answers ---------------------------------------------------------------------------------------------


@bare_inline_kernel
def _collect(leaf, memories, nodes, scorer, own):
    """Write the labels of the memories of a leaf, each with the score of its best memory; return their number."""
    n, memory = np.int64(0), nodes.first[leaf]
    while memory != NONE:
        score = similarity(own.spread, memories.rows, memory, scorer.weights)
        for p in range(memories.starts[memory], memories.starts[memory + 1]):
            label = np.int64(memories.labels[p])
            at = np.int64(own.place[label]) - 1
            if at < 0:
                own.labels[n], own.scores[n], own.counts[n] = label, score, _ONE
                n += 1
                own.place[label] = n
            elif score > own.scores[at]:
                own.scores[at], own.counts[at] = score, _ONE
            elif score == own.scores[at]:
                own.counts[at] += _ONE
        memory = memories.following[memory]
    return n


@bare_inline_kernel
def _forget(n, own):
    for q in range(n):
        own.place[own.labels[q]] = 0


@bare_inline_kernel
def _to_probabilities(n, output, sharpness, values, counts):
    """Convert scores to probabilities, in place; a softmax counts a label once for each memory with its score."""
    if output == SOFTMAX:
        top, total = _LOWEST, _ZERO
        for q in range(n):
            top = max(top, values[q])
        for q in range(n):
            values[q] = counts[q] * exp32(sharpness * (values[q] - top))
            total += values[q]
        for q in range(n):
            values[q] /= total
    elif output == CLIPPED:
        for q in range(n):
            values[q] = min(_ONE, max(_ZERO, values[q]))
    else:
        for q in range(n):
            values[q] = _ONE / (_ONE + exp32(-values[q]))


@bare_inline_kernel
def _answer(x, memories, nodes, routers, regressors, scorer, options, own):
    """Write the labels of a row's leaf and their probabilities; return their number."""
    leaf, _ = _descend(x, np.int64(0), nodes, routers, own.path, own.one)
    spread(x, own.spread)
    n = _collect(leaf, memories, nodes, scorer, own)
    clear(x, own.spread)
    _forget(n, own)
    if options.output == REGRESSORS:
        scores_of(regressors, own.labels, n, x, own.scores)
    _to_probabilities(n, options.output, options.sharpness, own.scores, own.counts)
    return n


@bare_inline_kernel
def _is_right(memory, n, memories, own):
    """Return whether the first of n answers is a label of a memory."""
    best = np.int64(0)
    for q in range(1, n):
        if own.scores[q] > own.scores[best]:
            best = np.int64(q)
    right = False
    if n:
        for p in range(memories.starts[memory], memories.starts[memory + 1]):
            right |= np.int64(memories.labels[p]) == own.labels[best]
    return right


@bare_inline_kernel
def _entries_of_leaf(leaf, memories, nodes):
    """Return an upper bound of the number of labels of a leaf."""
    n, memory = np.int64(0), nodes.first[leaf]
    while memory != NONE:
        n += memories.starts[memory + 1] - memories.starts[memory]
        memory = memories.following[memory]
    return n


@bare_inline_kernel
def _train_regressors(x, own_memory, leaf, memories, nodes, regressors, scorer, rates, own):
    """Train the regressors of the labels of a leaf, one against some, by their logistic loss."""
    n = _collect(leaf, memories, nodes, scorer, own)
    scores_of(regressors, own.labels, n, x, own.scores)
    for q in range(n):
        own.gradients[q] = _ONE / (_ONE + exp32(-own.scores[q]))
    for p in range(memories.starts[own_memory], memories.starts[own_memory + 1]):
        at = np.int64(own.place[memories.labels[p]]) - 1
        if at >= 0:
            own.gradients[at] -= _ONE
    _forget(n, own)
    for q in range(n):
        if abs(own.gradients[q]) < rates.least_gradient:
            own.gradients[q] = _ZERO
    update_of(regressors, own.labels, own.gradients, n, x, rates.regressors, rates.initial)


# --- learning --------------------------------------------------------------------------------------------


@inline_kernel
def _query(memory, memories, nodes, routers, regressors, scorer, options, rates, own, progress):
    """Do what comes before insertions: count whether the row is answered, reward update, and one-against-some.

    Returns False, and the buckets it needs, if there is no room.
    """
    x, found, needed = row_of(memories.rows, memory), progress.found, progress.needed
    answers = options.output == REGRESSORS and not options.first_pass
    leaf, _ = _descend(x, np.int64(0), nodes, routers, own.path, own.one)
    if not _has_buckets(x, 1, routers, needed, 0):
        return False
    if answers and not _has_buckets(x, _entries_of_leaf(leaf, memories, nodes), regressors, needed, 1):
        return False
    if options.first_pass:
        n = _answer(x, memories, nodes, routers, regressors, scorer, options, own)
        found[0] += _is_right(memory, n, memories, own)
        found[1] += 1
    spread(x, own.spread)
    if options.rewards:
        _update_by_reward(x, memory, memories, nodes, routers, scorer, options, rates, own, progress.random)
    if answers:
        _train_regressors(x, memory, leaf, memories, nodes, regressors, scorer, rates, own)
    clear(x, own.spread)
    return True


@bare_inline_kernel
def _has_buckets(x, n_owners, scorers, needed, place):
    needed[place] = buckets_needed(scorers, x, n_owners)
    return reserve(scorers, needed[place])


@inline_kernel
def _insert_in_phases(trains, memories, nodes, routers, regressors, scorer, options, rates, own, progress):
    """Insert the memory of `state`, or a random one; returns False if there is no room for the next phase."""
    state, needed = progress.state, progress.needed
    if state[PHASE] == CHOOSE:
        if state[STEP] > 1:
            state[MEMORY] = _pop(nodes, memories, progress.random)
        else:
            nodes.used[INSERTED] += 1
        state[PHASE] = ROUTE
    memory = state[MEMORY]
    x = row_of(memories.rows, memory)
    if state[PHASE] == ROUTE:
        if trains and not _has_buckets(x, DEEPEST + 1, routers, needed, 0):
            return False
        state[LEAF] = _insert(x, memory, nodes, memories, routers, options, rates, own.one, trains)
        state[PHASE] = ANSWER
    leaf = state[LEAF]
    if state[PHASE] == ANSWER:
        if options.output == REGRESSORS and trains:
            if not _has_buckets(x, _entries_of_leaf(leaf, memories, nodes), regressors, needed, 1):
                return False
            spread(x, own.spread)
            _train_regressors(x, memory, leaf, memories, nodes, regressors, scorer, rates, own)
            clear(x, own.spread)
        state[PHASE] = SPLIT
    # A leaf that cannot be divided is tried again when it has grown by as much.
    if nodes.sizes[leaf] % _capacity(nodes, options) == 0 and nodes.depths[leaf] < DEEPEST:
        if _can_be_divided(leaf, memories, nodes, routers, own.one):
            needed[0] = _buckets_to_split(leaf, memories, nodes, routers)
            if nodes.left.size - nodes.used[NODES] < 2 or not reserve(routers, needed[0]):
                return False
            _split(leaf, memories, nodes, routers, options, rates, own.one)
    state[PHASE] = CHOOSE
    return True


@kernel
def learn(order, tree, options, rates, own, progress):
    """Learn the memories of `order` from where `progress` is; return False if an array must be enlarged first.

    `tree` has all that is learned, here and in predictions.
    """
    memories, nodes, routers, regressors, scorer = tree
    state = progress.state
    while state[ROW] < order.size:
        if state[STEP] == 0:
            memory = np.int64(order[state[ROW]])
            if not _query(memory, memories, nodes, routers, regressors, scorer, options, rates, own, progress):
                return False
            state[MEMORY] = memory
            state[STEP] = 1 if options.first_pass else 2
        while state[STEP] < 2 + options.dreams:
            trains = options.first_pass or options.train_dreams
            if not _insert_in_phases(
                trains, memories, nodes, routers, regressors, scorer, options, rates, own, progress
            ):
                return False
            state[STEP] += 1
        state[STEP] = 0
        state[ROW] += 1
    return True


# --- prediction ------------------------------------------------------------------------------------------


@kernel
def predict(rows, n_rows, tree, options, own, weights, first, of_first, ids, probabilities):
    """Compute the most probable of all labels of each row's leaf (`first`), those of the labels with a weight (`ids`),
    and their probabilities; either may have no columns."""
    memories, nodes, routers, regressors, scorer = tree
    n_first, k = first.shape[1], ids.shape[1]
    for i in range(n_rows):
        n = _answer(row_of(rows, i), memories, nodes, routers, regressors, scorer, options, own)
        n_leading, filled = np.int64(0), np.int64(0)
        for q in range(n):
            if n_first:
                n_leading = offer(own.labels[q], own.scores[q], first[i], of_first[i], n_leading)
            if k and weights[own.labels[q]] > _ZERO:
                filled = offer(own.labels[q], own.scores[q], ids[i], probabilities[i], filled)
        pad(first[i], of_first[i], n_leading)
        pad(ids[i], probabilities[i], filled)


@kernel
def probabilities_of_all(rows, n_rows, tree, options, own, out):
    """Compute the probability of every label, which is zero if it is not in the row's leaf; `out` must be zero."""
    memories, nodes, routers, regressors, scorer = tree
    for i in range(n_rows):
        n = _answer(row_of(rows, i), memories, nodes, routers, regressors, scorer, options, own)
        for q in range(n):
            out[i, own.labels[q]] = own.scores[q]


@kernel
def gather(nodes, memories, order):
    """Write the memories of all leaves, in the order of the nodes."""
    n = np.int64(0)
    for node in range(nodes.used[NODES]):
        memory = nodes.first[node]
        while memory != NONE:
            order[n] = memory
            n += 1
            memory = memories.following[memory]
