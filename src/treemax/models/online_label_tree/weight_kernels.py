"""The weights of single features, for explanations."""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.jit import kernel
from treemax.models.online_label_tree.kernels import _MISSING, LANES, find_all


@kernel
def block_weights(block, indices, blocks, store, found, out):
    """Write the sixteen weights of each feature in a block to `out`, which must be zero; `found` is scratch."""
    find_all(block, indices, blocks, store, found)
    for p in range(np.uint64(indices.size)):
        if found[p] != _MISSING:
            vector.store(out, p * np.uint64(LANES), vector.load_halves_at(found[p]))


@kernel
def labels_below(node, nodes, blocks, waiting, labels):
    """Write labels below a node, those near to it first, until `labels` is full; returns their number."""
    n, n_waiting, i = np.int64(0), np.int64(1), np.int64(0)
    waiting[0] = node
    while i < n_waiting and n < len(labels):
        place = waiting[i]
        i += 1
        if nodes.label[place] >= 0:
            labels[n] = nodes.label[place]
            n += 1
            continue
        block = np.int64(nodes.first_block[place])
        while block >= 0 and n_waiting + LANES <= len(waiting):
            for lane in range(block * LANES, block * LANES + blocks.used[block]):
                waiting[n_waiting] = blocks.child[lane]
                n_waiting += 1
            block = np.int64(blocks.following[block])
    return n
