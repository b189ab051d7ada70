"""Small files of online label trees: weights of one byte, without those that are close to zero.

A code is a sign and a rank: half-precision numbers with a significand of four bits are numbered in ascending order, and
counted down from the largest of the block, so that 127 ranks are nearly eight powers of two. Weights that are rounded
once are not changed by being rounded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treemax.models.online_label_tree import file_kernels
from treemax.models.online_label_tree.file_kernels import DROPPED_BITS, HALF_STEP, HIGHEST_CODE, HIGHEST_RANK

if TYPE_CHECKING:
    from treemax.models.online_label_tree.model import OnlineTree

LEAST = 0.25  # weights below this fraction of the root mean square of their block are dropped
TYPES = {"steps": np.uint8, "masks": np.uint16, "codes": np.uint8, "offsets": np.uint16}


def rounded_records(tree: OnlineTree, widths: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the records with weights of one byte; `widths` are the lanes of each block that are stored."""
    n_blocks, n_values = tree.n_blocks, tree.blocks.filled[: tree.n_blocks] * widths
    squares, largest = np.zeros(n_blocks), np.zeros(n_blocks, dtype=np.uint16)
    file_kernels.block_magnitudes(n_blocks, tree.blocks, tree.store, squares, largest)
    share = LEAST if tree.has_squares else 0.0  # those of a file that was loaded were dropped when it was saved
    least = (share * np.sqrt(squares / np.maximum(n_values, 1))).astype(np.float16).view(np.uint16)
    ranks = np.minimum((largest.astype(np.int64) + HALF_STEP) >> DROPPED_BITS, HIGHEST_RANK)
    offsets = np.maximum(ranks - HIGHEST_CODE, 0).astype(np.uint16)
    filled = np.empty(n_blocks, dtype=np.int64)
    most_records = int(tree.blocks.filled[:n_blocks].sum())
    steps, masks = np.empty(5 * most_records, dtype=np.uint8), np.empty(most_records, dtype=np.uint16)
    codes = np.empty(n_values.sum(), dtype=np.uint8)
    n_bytes, n_records, n_codes = file_kernels.pack_codes(
        n_blocks, tree.blocks, tree.store, least, offsets, filled, steps, masks, codes
    )
    return {
        "filled": filled, "steps": steps[:n_bytes], "masks": masks[:n_records], "codes": codes[:n_codes],
        "offsets": offsets,
    }  # fmt: skip


def restore_rounded(tree: OnlineTree, filled: NDArray[np.int64], arrays: dict[str, NDArray[Any]]) -> None:
    """Write the records of a small file into a tree without records; raise ValueError if they are damaged."""
    offsets, codes = arrays["offsets"], arrays["codes"]
    valid = len(offsets) == tree.n_blocks and offsets.max(initial=0) <= HIGHEST_RANK - HIGHEST_CODE
    valid = valid and bool((arrays["masks"] > 0).all()) and bool((codes & HIGHEST_CODE > 0).all())
    if not valid or not file_kernels.unpack_codes(
        tree.n_blocks, filled, arrays["steps"], arrays["masks"], codes, offsets, tree.blocks, tree.store, tree.counts
    ):
        raise ValueError("the rounded weights do not fit the tree")
