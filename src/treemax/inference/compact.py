"""Label trees in few bytes: weights of eight bits with a scale for every node, and no hash tables in the file.

What is searched is the same `PackedTree` as ever. It is taken apart for the file, each part in the smallest
integers that hold it, and put together again when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inference.label_tree import NodeWeights, PackedTree
from treemax.kernels import search as kernels
from treemax.trees import Tree

MOST = 127  # the largest code of a weight
OF_TREE = ("n_children", "label")


def rounded_weights(
    tree: Tree, weights: Mapping[int, NodeWeights]
) -> tuple[dict[int, NodeWeights], NDArray[np.float32]]:
    """The weights of each node as whole multiples of its scale, up to 127 of them, and the scales.

    What is nearest to no multiple at all is dropped, and features come in order.
    """
    scales = np.zeros(len(tree), dtype=np.float32)
    rounded = {}
    for node, part in weights.items():
        scales[node] = np.abs(part.weights).max(initial=0.0) / MOST
        rounded[node] = _rounded(part, scales[node])
    return rounded, scales


def _rounded(part: NodeWeights, scale: np.float32) -> NodeWeights:
    codes = np.rint(part.weights / scale) if scale > 0 else np.zeros_like(part.weights)
    kept = codes != 0
    feature = np.repeat(part.features, np.diff(part.starts))[kept]
    order = np.argsort(feature, kind="stable")
    features, counts = np.unique(feature, return_counts=True)
    return NodeWeights(
        features,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        part.children[kept][order],
        (codes[kept][order] * scale).astype(np.float32),
        part.biases,
    )


def saved_arrays(packed: PackedTree) -> dict[str, NDArray[Any]]:
    """The tree for the model file: as it is, or taken apart where its weights have scales."""
    if packed.scales is None:
        return packed.arrays()
    slots = packed.slots[packed.slots != kernels.EMPTY]
    node = np.repeat(np.arange(len(packed.tree)), np.diff(packed.tables))[packed.slots != kernels.EMPTY]
    offset = (slots & np.uint64(0xFFFFFFFF)).astype(np.int64)
    order = np.argsort(offset)
    slots, node, offset = slots[order], node[order], offset[order]
    counts = packed.entries[offset].astype(np.int64)
    is_entry = np.ones(len(packed.entries), dtype=bool)
    is_entry[offset] = False
    entries = packed.entries[is_entry]
    values = (entries & np.uint32(0xFFFF0000)).view(np.float32)
    codes = np.rint(values / np.repeat(packed.scales[node], counts))
    return {
        **{name: _smallest(array) for name, array in packed.tree.arrays().items()},
        "n_features": _smallest(np.bincount(node, minlength=len(packed.tree))[packed.tree.n_children > 0]),
        "features": _smallest(slots >> np.uint64(32)),
        "counts": _smallest(counts),
        "children": _smallest(entries & np.uint32(0xFFFF)),
        "codes": codes.astype(np.int8),
        "scales": packed.scales[packed.tree.n_children > 0],
        "bias": packed.bias,
        "slopes": packed.slopes,
        "shifts": packed.shifts,
    }


def loaded_tree(arrays: dict[str, NDArray[Any]], link: str) -> PackedTree:
    """The tree from its arrays, once nothing in them can point outside."""
    if "codes" not in arrays:
        return PackedTree.from_arrays(arrays, link)
    tree = Tree.from_arrays({name: arrays[name].astype(np.int64) for name in OF_TREE})
    _check(tree, arrays, link)
    inner = np.flatnonzero(tree.n_children)
    scales = np.zeros(len(tree), dtype=np.float32)
    scales[inner] = arrays["scales"]
    starts = np.concatenate([[0], np.cumsum(arrays["counts"], dtype=np.int64)])
    ends = np.cumsum(arrays["n_features"], dtype=np.int64)
    weights = {}
    for node, end, count in zip(inner.tolist(), ends.tolist(), arrays["n_features"].tolist()):
        own = slice(end - count, end)
        entries = slice(starts[end - count], starts[end])
        first = int(tree.first_child[node])
        weights[node] = NodeWeights(
            arrays["features"][own].astype(np.uint32),
            starts[end - count : end + 1] - starts[end - count],
            arrays["children"][entries].astype(np.uint32),
            arrays["codes"][entries] * scales[node],
            arrays["bias"][first : first + int(tree.n_children[node])],
        )
    return PackedTree.pack(tree, weights, link, arrays["slopes"], arrays["shifts"], scales)


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the smallest integers that hold them."""
    kinds: tuple[Any, ...] = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for kind in kinds:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _check(tree: Tree, arrays: dict[str, NDArray[Any]], link: str) -> None:
    """Everything that packing and searching rely on without looking."""
    n_inner = int((tree.n_children > 0).sum())
    n_slots, n_entries = len(arrays["features"]), len(arrays["codes"])
    lengths = {
        "n_features": n_inner, "scales": n_inner, "features": n_slots, "counts": n_slots, "children": n_entries,
        "codes": n_entries, "bias": len(tree), "slopes": tree.depth, "shifts": tree.depth,
    }  # fmt: skip
    for name, length in lengths.items():
        array = arrays[name]
        floats = name in ("scales", "bias", "slopes", "shifts")
        right_kind = array.dtype == np.float32 if floats else array.dtype.kind in "iu"
        whole = floats or name == "codes" or array.min(initial=0) >= 0
        if array.shape != (length,) or not right_kind or not whole:
            raise ValueError(
                f"{name} has dtype {array.dtype} and shape {array.shape}, expected {length} numbers"
            )
    counts = arrays["counts"].astype(np.int64)
    sound = link in ("softmax", "logistic") and tree.depth > 0 and arrays["codes"].dtype == np.int8
    sound = (
        sound and int(arrays["n_features"].sum(dtype=np.int64)) == n_slots and int(counts.sum()) == n_entries
    )
    if sound:
        node = np.repeat(np.flatnonzero(tree.n_children), arrays["n_features"])
        sound = bool((arrays["children"] < np.repeat(tree.n_children[node], counts)).all())
    if not sound or int(arrays["features"].max(initial=0)) >= 2**32:
        raise ValueError("the compact weights do not fit together")
