"""Removal of labels from the arrays of an online label tree."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.models.online_label_tree.kernels import FEWEST_LANES, LANES

Arrays = dict[str, NDArray[Any]]
OF_LANES = ("weights", "squares")  # a column for each lane that is stored
OF_BIASES = ("bias", "bias_squares")  # sixteen for each block


class Block(NamedTuple):
    """One block: `columns` has a row for every feature, and a column for each child and, last, for free lanes."""

    owner: int
    lanes: int
    children: list[int]
    features: NDArray[np.uint32]
    columns: dict[str, NDArray[Any]]
    biases: dict[str, NDArray[np.float32]]

    @property
    def grows(self) -> bool:
        """Whether free lanes learn, so that the node may get another child."""
        return len(self.children) < LANES and self.lanes >> len(self.children) & 1 > 0


def without_labels(arrays: Arrays, kept: NDArray[np.bool_]) -> Arrays:
    """Return the arrays of `OnlineTree` without the leaves of other labels and the inner nodes that are left empty."""
    label, blocks = arrays["label"], _blocks(arrays)
    parent = np.full(len(label), -1)
    for block in blocks:
        parent[block.children] = block.owner
    stays = np.append(kept, False)[label]  # -1, an inner node, is the last
    stays[0] = True
    nodes = np.flatnonzero(stays)
    while len(nodes):  # upwards, level by level
        nodes = np.unique(parent[nodes])
        nodes = nodes[nodes >= 0]
        nodes = nodes[~stays[nodes]]
        stays[nodes] = True
    by_owner: dict[int, list[Block]] = {}
    for block in blocks:
        by_owner.setdefault(block.owner, []).append(block)
    left: list[Block] = []
    for owner, own in by_owner.items():  # the first is that of the root, which has the owner -1
        if owner >= 0 and not stays[owner]:
            continue
        whole = all(stays[block.children].all() for block in own)
        left += own if whole else _repacked(own, stays)
    return _joined(left, label, stays, np.cumsum(kept) - 1)


def _blocks(arrays: Arrays) -> list[Block]:
    used, filled, owner = (arrays[name].tolist() for name in ("used", "filled", "owner"))
    lanes, child = arrays["lanes"].tolist(), arrays["child"].tolist()
    found, at_child, at_feature, at_value = [], 0, 0, 0
    for number, n_used in enumerate(used):
        width = n_used + (n_used < LANES and lanes[number] >> n_used & 1)
        n_features = filled[number]
        values = slice(at_value, at_value + n_features * width)
        of_block = slice(number * LANES, (number + 1) * LANES)
        found.append(
            Block(
                owner[number],
                lanes[number],
                child[at_child : at_child + n_used],
                arrays["features"][at_feature : at_feature + n_features],
                {name: arrays[name][values].reshape(n_features, width) for name in OF_LANES if name in arrays},
                {name: arrays[name][of_block] for name in OF_BIASES if name in arrays},
            )
        )
        at_child, at_feature, at_value = at_child + n_used, at_feature + n_features, values.stop
    return found


def _repacked(own: list[Block], stays: NDArray[np.bool_]) -> list[Block]:
    """Return the blocks of a node with the children that stay, all but the last full.

    The node has fewer children now and may get others: if it had no auxiliary classifier any more, an untrained one.
    """
    lanes = [(block, lane) for block in own for lane, node in enumerate(block.children) if stays[node]]
    untrained = own[-1]._replace(
        features=own[-1].features[:0],
        columns={name: np.zeros((0, 1), array.dtype) for name, array in own[-1].columns.items()},
        biases={name: np.zeros(1, np.float32) for name in own[-1].biases},
    )
    free = (own[-1], len(own[-1].children)) if own[-1].grows else (untrained, 0)
    new = []
    for start in range(0, len(lanes) + 1, LANES):
        some = lanes[start : start + LANES]
        stored = some + ([free] if len(some) < LANES else [])
        features = np.unique(np.concatenate([block.features for block, _ in stored]))
        new.append(
            Block(
                own[0].owner,
                (1 << max(FEWEST_LANES, 1 << (len(stored) - 1).bit_length())) - 1,
                [block.children[lane] for block, lane in some],
                features,
                {name: _columns(name, stored, features) for name in own[0].columns},
                {name: _biases(name, stored) for name in own[0].biases},
            )
        )
    return new


def _columns(name: str, stored: list[tuple[Block, int]], features: NDArray[np.uint32]) -> NDArray[Any]:
    out = np.zeros((len(features), len(stored)), dtype=stored[0][0].columns[name].dtype)
    for column, (block, lane) in enumerate(stored):
        out[np.searchsorted(features, block.features), column] = block.columns[name][:, lane]
    return out


def _biases(name: str, stored: list[tuple[Block, int]]) -> NDArray[np.float32]:
    """Return sixteen biases; free lanes have that of the last lane that is stored."""
    own = [block.biases[name][lane] for block, lane in stored]
    return np.array(own + own[-1:] * (LANES - len(own)), dtype=np.float32)


def _joined(blocks: list[Block], label: NDArray[np.int64], stays: NDArray[np.bool_], number_of_label: Any) -> Arrays:
    """Return the arrays of blocks, with nodes and labels renumbered."""
    number = np.append(np.cumsum(stays) - 1, -1)  # the owner of the root's block is -1
    kept = label[stays]
    arrays = {
        "label": np.where(kept >= 0, number_of_label[kept], -1),
        "owner": number[[block.owner for block in blocks]],
        "used": np.array([len(block.children) for block in blocks]),
        "lanes": np.array([block.lanes for block in blocks], dtype=np.uint32),
        "child": number[[node for block in blocks for node in block.children]],
        "filled": np.array([len(block.features) for block in blocks]),
        "features": np.concatenate([block.features for block in blocks]),
    }
    for name in blocks[0].columns:
        arrays[name] = np.concatenate([block.columns[name].ravel() for block in blocks])
    for name in blocks[0].biases:
        arrays[name] = np.concatenate([block.biases[name] for block in blocks])
    return arrays
