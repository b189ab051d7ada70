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
