"""Joint training of the children of one node, which share their rows, sixteen at a time.

Weights are stored by feature, sixteen siblings side by side, only for the features that occur in the node's rows: the
local matrix fits in a cache, and a row's scores for sixteen siblings are one vector. `solver_kernels.py` has the solver.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import copy_into, exp32, next_random
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import bare_fast_kernel, bare_inline_kernel, bare_kernel, fast_inline_kernel, kernel
from treemax.kernels.sparse_rows import Rows
from treemax.models.label_tree.solver_kernels import Block, run_passes, score_held, start_resting, step_length, visits

BINS, HISTOGRAM_REACH = 512, 8  # of histograms of held-out scores, from -HISTOGRAM_REACH to HISTOGRAM_REACH
_WIDTH = np.uint64(vector.WIDTH)
_FEATURES_AT_ONCE = 1 << 12  # between growths of an array of weights


class Siblings(NamedTuple):
    """The positive siblings of each row: row i has children[indptr[i]:indptr[i + 1]]. Empty weights mean one."""

    indptr: np.ndarray
    children: np.ndarray
    n_children: int
    row_weights: np.ndarray  # multiply the cost of a row
    pair_weights: np.ndarray  # multiply the cost of a row and a positive sibling


class Plan(NamedTuple):
    """Settings of the training of a node, besides its `Solver`."""

    length: np.float32  # values are divided by it; the weights are for such rows
    passes: int
    held_share: int  # about one row in so many is held out in the first passes; 0: none
    seed: int
    least: np.float32  # absolute value of the weights that are kept


class Statistics(NamedTuple):
    """Calibration statistics of held-out rows: the log-likelihood of a softmax over the siblings at each slope, and
    histograms of the scores of wrong (row 0) and right (row 1) children."""

    slopes: np.ndarray
    likelihood: np.ndarray
    histogram: np.ndarray


@bare_kernel
def _write_local(source, rows, order, length, local_of, local_rows, features):
    """Write the rows in local order, and their features, numbered 0, 1, 2, ... by first appearance; return how many
    there are. `local_of` is zero before and after."""
    local_indptr, local_indices, local_values = local_rows
    n_local = np.uint32(0)
    at = 0
    for i in range(rows.size):
        row = rows[order[i]]
        for p in range(source.indptr[row], source.indptr[row + 1]):
            f = source.indices[p]
            if local_of[f] == 0:
                features[n_local] = f
                n_local += np.uint32(1)
                local_of[f] = n_local
            local_indices[at] = local_of[f] - np.uint32(1)
            local_values[at] = source.values[p] / length
            at += 1
        local_indptr[i + 1] = at
    for j in range(n_local):
        local_of[features[j]] = 0
    return n_local


@kernel
def aligned(n):
    """Return n zeros aligned to a cache line: loads across two lines would cost a quarter of the time."""
    room = zeros(n + 16, np.float32)
    skip = (64 - room.ctypes.data % 64) % 64 // 4
    return room[skip : skip + n]


@kernel
def calibrate(held, siblings, held_scores, statistics):
    """Add the calibration statistics of the held-out rows; rows and right children count by their weights."""
    _calibrate(held, siblings, held_scores, statistics, empty(siblings.n_children, np.float32))


@bare_fast_kernel
def _calibrate(held, siblings, held_scores, statistics, scores):
    """The same as `calibrate`, with scratch for the scores of a row."""
    child_indptr, children, n_children, row_weights, pair_weights = siblings
    slopes, likelihood, histogram = statistics
    n_held = held.size
    for h in range(n_held):
        i = held[h]
        weight = np.float64(row_weights[i]) if row_weights.size else 1.0
        for c in range(n_children):
            scores[c] = held_scores[(c // 16 * n_held + h) * 16 + c % 16]
            histogram[0, _bin(scores[c])] += weight
        for q in range(child_indptr[i], child_indptr[i + 1]):
            at = _bin(scores[children[q]])
            histogram[0, at] -= weight
            histogram[1, at] += weight * pair_weights[q] if pair_weights.size else weight
        if child_indptr[i + 1] - child_indptr[i] != 1:
            continue
        top = scores[0]
        for c in range(n_children):
            top = maximum(top, scores[c])
        for g in range(slopes.size):
            total = np.float32(0.0)
            for c in range(n_children):
                total += exp32(slopes[g] * (scores[c] - top))
            likelihood[g] += weight * (slopes[g] * (scores[children[child_indptr[i]]] - top) - np.log(total))


@fast_inline_kernel
def _bin(score):
    """The bin of a score: BINS of them between -HISTOGRAM_REACH and HISTOGRAM_REACH."""
    place = (score + np.float32(HISTOGRAM_REACH)) * np.float32(BINS / (2 * HISTOGRAM_REACH))
    return np.int64(minimum(maximum(place, np.float32(0.0)), np.float32(BINS - 1)))


@kernel
def shuffled(n, random):
    """0 to n - 1 in random order."""
    order = empty(n, np.int64)
    for i in range(n):
        order[i] = i
    for i in range(n - 1, 0, -1):
        random = next_random(random)
        j = np.int64(((random >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        order[i], order[j] = order[j], order[i]
    return order


@kernel
def local_problem(source, rows, length, seed, local_of):
    """Return an order of the rows, the rows in this order, by local features and divided by `length`, and the features."""
    n, nnz = rows.size, 0
    for i in range(n):
        nnz += source.indptr[rows[i] + 1] - source.indptr[rows[i]]
    local = Rows(zeros(n + 1, np.int64), empty(nnz, np.uint32), empty(nnz, np.float32))
    features, order = empty(minimum(nnz, local_of.size), np.uint32), shuffled(n, np.uint64(seed))
    n_local = _write_local(source, rows, order, length, local_of, local, features)
    return order, local, features[: np.int64(n_local)]


@bare_kernel
def write_inverse(local, order, siblings, solver, inverse):
    """Write the `inverse` of a block, for rows in local order."""
    for i in range(order.size):
        squares = np.float32(1.0)
        for p in range(local.indptr[i], local.indptr[i + 1]):
            squares += local.values[p] * local.values[p]
        inverse[i] = _inverse(squares, order[i], siblings, solver)


@kernel
def empty_costs(n, siblings):
    """Return room for the `costs` of a block of n rows."""
    if siblings.pair_weights.size:
        return aligned(n * 16)
    return aligned(n if siblings.row_weights.size else 0)


@bare_kernel
def write_costs(order, cost, siblings, block, costs):
    """Write the cost of each row, in local order: the common cost times the weight of the row. If pairs have weights,
    write it for each sibling of a block, times the weight of the pair for positive siblings."""
    child_indptr, children, _, row_weights, pair_weights = siblings
    for i in range(order.size if costs.size else 0):
        row = order[i]
        own = cost * row_weights[row] if row_weights.size else cost
        if not pair_weights.size:
            costs[i] = own
            continue
        for c in range(16):
            costs[i * 16 + c] = own
        for q in range(child_indptr[row], child_indptr[row + 1]):
            c = np.int64(children[q]) - 16 * block
            if 0 <= c < 16:
                costs[i * 16 + c] = own * pair_weights[q]


@bare_inline_kernel
def _inverse(squares, row, siblings, solver):
    """The length of the step that a row allows, or its squared length if its pairs have weights."""
    if siblings.pair_weights.size:
        return squares
    cost = solver.cost * siblings.row_weights[row] if siblings.row_weights.size else solver.cost
    return step_length(squares, solver.loss, cost)


@bare_kernel
def look_over(rows, places, order, length, siblings, solver, inverse, first_at):
    """For a part of the rows, with their places in the local order: write `inverse` as `write_inverse` does, and the
    first place of every feature."""
    for i in range(places.size):
        squares = np.float32(1.0)
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            value = rows.values[p] / length
            squares += value * value
            first_at[rows.indices[p]] = minimum(first_at[rows.indices[p]], places[i])
        inverse[places[i]] = _inverse(squares, order[places[i]], siblings, solver)


@kernel
def positive_bits(order, siblings):
    """Return the positive children of each row as bits, sixteen per row, for each block of sixteen children."""
    positive = zeros((siblings.n_children + 15) // 16 * order.size, np.uint32)
    _set_positive_bits(order, siblings, positive)
    return positive


@bare_kernel
def _set_positive_bits(order, siblings, positive):
    n = order.size
    for i in range(n):
        for q in range(siblings.indptr[order[i]], siblings.indptr[order[i] + 1]):
            c = siblings.children[q]
            positive[c // 16 * n + i] |= np.uint32(1) << np.uint32(c % 16)


@kernel
def held_places(numbers, order, held_share):
    """Return the places of the held-out rows: about one row in `held_share`, the same rows in every node."""
    held = empty(numbers.size, np.int64)
    return held[: _find_held(numbers, order, held_share, held)]


@bare_kernel
def _find_held(numbers, order, held_share, held):
    n_held = 0
    for i in range(numbers.size if held_share > 0 else 0):
        if (next_random(np.uint64(numbers[order[i]])) >> np.uint64(33)) % np.uint64(held_share) == 0:
            held[n_held] = i
            n_held += 1
    return n_held


@kernel
def train_siblings(source, rows, numbers, siblings, solver, plan, statistics, early_features, local_of):
    """Train the siblings of one node on its rows.

    `rows` are indices into the matrix `source`, `numbers` the numbers of these rows in the whole data. The scores of
    the held-out rows are added to `statistics`, and these rows are used in the last passes. `local_of` is a zeroed
    scratch array over the features. Returns the features, the start of the entries of each, the child and weight of
    every entry, and the biases; then the same as trained without the held-out rows, only for the features marked in
    `early_features`.
    """
    order, local, features = local_problem(source, rows, plan.length, plan.seed, local_of)
    n, n_local, n_children = rows.size, features.size, siblings.n_children
    inverse = empty(n, np.float32)
    write_inverse(local, order, siblings, solver, inverse)
    costs = empty_costs(n, siblings)
    positive = positive_bits(order, siblings)
    held = held_places(numbers, order, plan.held_share)
    blocks, block_held = (n_children + 15) // 16, held.size * 16
    weights, alphas, resting = aligned((n_local + 1) * 16), aligned(n * 16), empty(n, np.int32)
    active = empty(n, np.uint32)
    held_scores = empty(blocks * block_held, np.float32)
    biases, early_biases = empty(n_children, np.float32), zeros(n_children, np.float32)
    masks, early_masks = empty(blocks * n_local, np.uint32), zeros(blocks * n_local, np.uint32)
    kept, early_kept = empty(1024, np.float32), empty(1024, np.float32)
    n_kept, n_early = np.int64(0), np.int64(0)
    everything, wanted = empty(n_local, np.bool_), empty(n_local, np.bool_)
    for j in range(n_local):
        everything[j], wanted[j] = True, early_features[features[j]]
    join_at = join_pass(plan.passes, plan.held_share)
    order_of_passes = visits(n, plan.passes, plan.seed)
    for b in range(blocks):
        in_block = minimum(16, n_children - 16 * b)
        valid = (np.uint32(1) << np.uint32(in_block)) - np.uint32(1)
        own = slice(b * n_local, (b + 1) * n_local)
        write_costs(order, solver.cost, siblings, b, costs)
        weights[:] = 0
        alphas[:] = 0
        start_resting(positive[b * n : (b + 1) * n], held, join_at, solver.small, resting)
        block = Block(positive[b * n : (b + 1) * n], valid, inverse, costs, weights, alphas, resting)
        run_passes(np.int64(0), join_at, order_of_passes, local, block, active, solver)
        if join_at > 0:
            score_held(held, local, weights, held_scores[b * block_held : (b + 1) * block_held])
            early_kept, n_early = keep_large(weights, plan.least, valid, wanted, early_masks[own], early_kept, n_early)
            copy_into(early_biases[16 * b :], weights[n_local * 16 :], in_block)
        run_passes(join_at, plan.passes, order_of_passes, local, block, active, solver)
        kept, n_kept = keep_large(weights, plan.least, valid, everything, masks[own], kept, n_kept)
        copy_into(biases[16 * b :], weights[n_local * 16 :], in_block)
    calibrate(order[held], siblings, held_scores, statistics)
    late = merged(features, masks, kept, n_kept, blocks)
    early = merged(features, early_masks, early_kept, n_early, blocks)
    return late[0], late[1], late[2], late[3], biases, early[0], early[1], early[2], early[3], early_biases


@kernel
def join_pass(passes, held_share):
    """Return the first pass that uses the held-out rows: half of the passes."""
    return maximum(1, passes // 2) if held_share > 0 else 0


@kernel
def keep_large(weights, least, valid, wanted, masks, kept, n_kept):
    """Append the weights of a block that are large enough, of wanted features, to `kept`, whose last sixteen places stay
    unused; write the masks of their siblings. Returns `kept`, which may be a longer copy, and the number of its weights."""
    for first in range(0, masks.size, _FEATURES_AT_ONCE):
        last = minimum(first + _FEATURES_AT_ONCE, masks.size)
        most = n_kept + 16 * (last - first + 1)
        if most > kept.size:
            larger = empty(maximum(most, 2 * kept.size), np.float32)
            copy_into(larger, kept, n_kept)
            kept = larger
        n_kept = _append_large(weights, least, valid, wanted, first, last, masks, kept, n_kept)
    return kept, n_kept


@bare_kernel
def _append_large(weights, least, valid, wanted, first, last, masks, kept, n_kept):
    """The same as `keep_large` for some of the features, with enough room in `kept`."""
    bound, zero = vector.splat(least), vector.splat(np.float32(0.0))
    n = np.uint64(n_kept)
    for j in range(first, last):
        mask = np.uint32(0)
        if wanted[j]:
            w = vector.load(weights, np.uint64(j) * _WIDTH)
            size = vector.maximum(w, vector.subtract(zero, w))
            mask = np.uint32(~vector.bits_above(bound, size) & valid)
            vector.store_chosen(kept, n, w, mask)
            n += np.uint64(vector.count_bits(mask))
        masks[j] = mask
    return np.int64(n)


@kernel
def merged(features, masks, kept, n_kept, blocks):
    """Return the entries of all blocks, by feature, from the masks and weights of `keep_large`."""
    place = zeros(blocks, np.int64)
    _find_places(masks, features.size, place)
    kept_features, starts = empty(features.size, np.uint32), zeros(features.size + 1, np.int64)
    children, weights = empty(n_kept + 16, np.uint32), empty(n_kept + 16, np.float32)
    n_features = _merge(features, masks, kept, place, kept_features, starts, children, weights)
    return kept_features[:n_features], starts[: n_features + 1], children[:n_kept], weights[:n_kept]


@bare_kernel
def _find_places(masks, n_local, place):
    """Write the first of the kept weights of each block."""
    for b in range(1, place.size):
        n = np.int64(0)
        for j in range((b - 1) * n_local, b * n_local):
            n += np.int64(vector.count_bits(masks[j]))
        place[b] = place[b - 1] + n


@bare_kernel
def _merge(features, masks, kept, place, kept_features, starts, children, weights):
    """Write the entries of all blocks, by feature, and return the number of features that have any; `place` is used up."""
    n_local = features.size
    at, k = np.uint64(0), 0
    for j in range(n_local):
        before = at
        for b in range(place.size):
            mask = masks[b * n_local + j]
            if mask:
                n, own = np.uint64(vector.count_bits(mask)), np.uint64(place[b])
                vector.store_bit_numbers(children, at, np.uint32(16 * b), mask)
                vector.store(weights, at, vector.load(kept, own))
                place[b] = np.int64(own + n)
                at += n
        if at > before:
            kept_features[k] = features[j]
            k += 1
            starts[k] = at
    return k
