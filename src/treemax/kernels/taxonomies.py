"""Probabilities of the nodes of a taxonomy, from those of the labels.

The nodes above label l are `above[starts[l]:starts[l + 1]]`. Edges are sorted so that those of deeper children come
first.
"""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import empty, minimum
from treemax.kernels.jit import inline_kernel, kernel


@inline_kernel
def _add(node, probability, union, totals):
    """Add the probability of a label to a node: a sum, or that of at least one of independent labels."""
    if union:
        totals[node] += probability * (1.0 - totals[node])
    else:
        totals[node] += probability


@inline_kernel
def _write(totals, parent, child, out):
    """Write the totals of a row, at most 1, and no child above its parent: sums may differ in the last bits."""
    for node in range(totals.size):
        out[node] = np.float32(minimum(totals[node], 1.0))
    for edge in range(parent.size):
        if out[parent[edge]] < out[child[edge]]:
            out[parent[edge]] = out[child[edge]]


@kernel
def node_probabilities(probabilities, starts, above, parent, child, union, out):
    """Write the probability of every node for each row, from those of all labels."""
    totals = empty(out.shape[1], np.float64)
    for row in range(out.shape[0]):
        totals[:] = 0.0
        for label in range(starts.size - 1):
            probability = np.float64(probabilities[row, label])
            if probability > 0.0:
                for entry in range(starts[label], starts[label + 1]):
                    _add(above[entry], probability, union, totals)
        _write(totals, parent, child, out[row])


@kernel
def node_probabilities_of_some(row_starts, ids, probabilities, starts, above, parent, child, union, out):
    """Write the probability of every node for each row, from those of some labels: ids[row_starts[i]:row_starts[i + 1]]."""
    totals = empty(out.shape[1], np.float64)
    for row in range(out.shape[0]):
        totals[:] = 0.0
        for i in range(row_starts[row], row_starts[row + 1]):
            for entry in range(starts[ids[i]], starts[ids[i] + 1]):
                _add(above[entry], np.float64(probabilities[i]), union, totals)
        _write(totals, parent, child, out[row])


@inline_kernel
def _more_specific(node, best, depths, probabilities):
    """Return whether a node is deeper than `best`, or as deep and more probable; any node is better than -1."""
    if best < 0 or depths[node] != depths[best]:
        return best < 0 or depths[node] > depths[best]
    return probabilities[node] > probabilities[best]


@kernel
def back_off(probabilities, labels, starts, above, depths, confidence, answers):
    """Write the most specific node of each row above its label with at least this probability, or else of all nodes.

    `labels` are the most probable labels, -1 for none. -1 where no node has this probability.
    """
    for row in range(answers.size):
        of_row, best = probabilities[row], np.int64(-1)
        if labels[row] >= 0:
            for entry in range(starts[labels[row]], starts[labels[row] + 1]):
                node = above[entry]
                if of_row[node] >= confidence and _more_specific(node, best, depths, of_row):
                    best = node
        if best < 0:
            for node in range(of_row.size):
                if of_row[node] >= confidence and _more_specific(node, best, depths, of_row):
                    best = np.int64(node)
        answers[row] = best


@kernel
def most_specific(probabilities, parent, child, confidence, answers):
    """Mark the nodes of each row with at least this probability, and no child that has it."""
    for row in range(answers.shape[0]):
        for node in range(answers.shape[1]):
            answers[row, node] = probabilities[row, node] >= confidence
        for edge in range(parent.size):
            if probabilities[row, child[edge]] >= confidence:
                answers[row, parent[edge]] = False


@kernel
def best_of_level(probabilities, ids, best):
    """Write the columns with the largest probabilities of each row, and these; -1 where they are 0."""
    k = ids.shape[1]
    for row in range(ids.shape[0]):
        n_best = 0
        for column in range(probabilities.shape[1]):
            probability = probabilities[row, column]
            if probability <= 0.0 or (n_best == k and probability <= best[row, k - 1]):
                continue
            place = minimum(n_best, k - 1)
            while place > 0 and best[row, place - 1] < probability:
                best[row, place], ids[row, place] = best[row, place - 1], ids[row, place - 1]
                place -= 1
            best[row, place], ids[row, place] = probability, column
            n_best = minimum(n_best + 1, k)
        for place in range(n_best, k):
            best[row, place], ids[row, place] = np.float32(0.0), -1
