"""A bound on the memory of online label trees: the records with the smallest weights are dropped."""

from __future__ import annotations

import numpy as np

from treemax.memory import format_bytes
from treemax.models.online_label_tree import dropping_kernels, kernels
from treemax.models.online_label_tree.dropping_kernels import FREE, N_USES
from treemax.models.online_label_tree.model import SMALLEST_BYTES, OnlineTree

DROPPED = 0.25  # of the memory that is left for weights, so that this is rare
MOST_FIXED = 0.75  # of the bound, for nodes and biases
BLOCKS_AT_ONCE = 1024


def drop_smallest(tree: OnlineTree, lines: int, slots: int) -> None:
    """Drop records until so many more lines and slots are within the bound; raise MemoryError if that is impossible.

    What is dropped depends on the weights alone, not on where they are: a model that was saved in between drops the same.
    """
    most, needed = int(tree.counts[kernels.MOST_BYTES]), lines * kernels.LINE_BYTES + slots * kernels.SLOT_BYTES
    fixed = _bytes_without_weights(tree)
    if fixed > MOST_FIXED * most or fixed + needed > most:
        least = max(int(fixed / MOST_FIXED), fixed + needed) + SMALLEST_BYTES
        raise MemoryError(
            f"max_memory is {format_bytes(most + SMALLEST_BYTES)}, but {tree.n_nodes:,} nodes and the next row may need "
            f"{format_bytes(least)}, even if all weights are dropped. Raise max_memory, or set max_labels."
        )
    left = min((1 - DROPPED) * (most - fixed), most - fixed - needed)
    while kernels.bytes_needed(lines, slots, tree.counts) > most:
        _drop(tree, left)
        left *= 1 - DROPPED
    tree.release_spare(lines, slots)


def _bytes_without_weights(tree: OnlineTree) -> int:
    counts = tree.counts.copy()
    counts[kernels.LINES], counts[kernels.TABLE_SLOTS] = 0, tree.n_blocks << int(kernels.SMALLEST_TABLE_BITS)
    return int(kernels.bytes_needed(0, 0, counts))


def _drop(tree: OnlineTree, left: float) -> None:
    """Drop the records with the smallest weights, so that the others take about `left` bytes.

    The tree is consistent between the pieces, should Ctrl-C end it there.
    """
    arrays, n_blocks = (tree.blocks, tree.store), tree.n_blocks
    pieces = [(first, min(first + BLOCKS_AT_ONCE, n_blocks)) for first in range(0, n_blocks, BLOCKS_AT_ONCE)]
    sizes, place_of_line = np.zeros(N_USES, dtype=np.int64), np.full(tree.n_lines, FREE, dtype=np.int32)
    for piece in pieces:
        dropping_kernels.bytes_by_use(*piece, *arrays, sizes)
    least = int((np.cumsum(sizes[::-1]) > left).sum())  # from here on, records take no more than that
    n_lines, free = 0, 0
    for piece in pieces:
        n_dropped, n_kept = dropping_kernels.drop_records(*piece, least, *arrays, tree.counts, place_of_line)
        tree.n_dropped += n_dropped
        n_lines += n_kept
    for piece in pieces:
        free = dropping_kernels.move_lines(*piece, n_lines, free, *arrays, place_of_line)
    dropping_kernels.clear_lines(n_lines, tree.store, tree.counts)
