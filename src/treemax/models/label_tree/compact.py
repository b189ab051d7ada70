"""Compact files of label trees: 8-bit weights with a scale for every node, and no hash tables.

For the file, a `PackedTree` is decomposed into arrays of the smallest integer types; loading packs it again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels import search as kernels
from treemax.models.label_tree.packed_tree import NodeWeights, PackedTree, check_slopes
from treemax.numpy_only.storage import decode_sorted, encode_sorted
from treemax.trees import Tree

MAX_CODE = 127  # largest code of a weight
OF_TREE = ("n_children", "label")


def rounded(part: NodeWeights) -> tuple[NodeWeights, np.float32]:
    """Quantise the weights of a node to integer multiples of a scale, from -127 to 127; return them and the scale.

    Weights that round to zero are dropped, and features are sorted.
    """
    scale = np.float32(np.abs(part.weights).max(initial=0.0) / MAX_CODE)
    codes = np.rint(part.weights / scale) if scale > 0 else np.zeros_like(part.weights)
    kept = codes != 0
    feature = np.repeat(part.features, np.diff(part.starts))[kept]
    order = np.argsort(feature, kind="stable")
    features, counts = np.unique(feature, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    weights = (codes[kept][order] * scale).astype(np.float32)
    return NodeWeights(features, starts, part.children[kept][order], weights, part.biases), scale


def saved_arrays(packed: PackedTree) -> dict[str, NDArray[Any]]:
    """Return the arrays of a tree for the model file; compact ones if its weights have scales."""
    if packed.scales is None:
        return packed.arrays()
    node, features, counts, children, weights = _in_order(packed)
    codes = np.rint(weights / np.repeat(packed.scales[node], counts))
    n_features = np.bincount(node, minlength=len(packed.tree))[packed.tree.n_children > 0]
    return {
        **{name: _smallest(array) for name, array in packed.tree.arrays().items()},
        "n_features": _smallest(n_features),
        "steps": encode_sorted(features.astype(np.int64), n_features),
        "counts": _smallest(counts),
        "children": _smallest(children),
        "codes": codes.astype(np.int8),
        "scales": packed.scales[packed.tree.n_children > 0],
        "bias": packed.bias,
        "slopes": packed.slopes,
        "shifts": packed.shifts,
    }


def without_labels(packed: PackedTree, kept: NDArray[np.bool_]) -> PackedTree:
    """Return the tree of the `kept` labels; nodes without labels below them are removed, the others keep their weights."""
    tree, nodes = packed.tree.without_labels(kept)
    node, features, counts, children, weights = _in_order(packed)
    number = np.full(len(packed.tree), -1)
    number[nodes] = np.arange(len(nodes))
    slot = np.repeat(np.arange(len(node)), counts)
    child = number[packed.tree.first_child[node[slot]] + children]
    stays = child >= 0
    slot, child, weights = slot[stays], child[stays], weights[stays]
    used, counts = np.unique(slot, return_counts=True)
    parent, features = number[node[used]], features[used]
    starts, ends = np.concatenate([[0], np.cumsum(counts)]), np.searchsorted(parent, np.arange(len(tree) + 1))
    parts = {}
    for inner in np.flatnonzero(tree.n_children).tolist():
        first, stop = ends[inner], ends[inner + 1]
        entries = slice(starts[first], starts[stop])
        parts[inner] = NodeWeights(
            features[first:stop],
            starts[first : stop + 1] - starts[first],
            (child[entries] - tree.first_child[inner]).astype(np.uint32),
            weights[entries],
            packed.bias[nodes[tree.children(inner)]],
        )
    scales = None if packed.scales is None else packed.scales[nodes]
    depth = tree.depth
    return PackedTree.pack(tree, parts, packed.link, packed.slopes[:depth], packed.shifts[:depth], scales)


def _in_order(packed: PackedTree) -> tuple[NDArray[Any], ...]:
    """Return node, feature and number of entries of each slot, sorted by node and feature, and the entries."""
    tables, n_children = packed.tables, packed.tree.n_children
    node, features, counts, children, weights = kernels.unpacked(tables, packed.slots, packed.entries, n_children)
    order = np.lexsort((features, node))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entry_order = np.argsort(np.repeat(place, counts), kind="stable")
    return node[order], features[order], counts[order], children[entry_order], weights[entry_order]


def loaded_tree(arrays: dict[str, NDArray[Any]], link: str) -> PackedTree:
    """Restore a tree from the arrays of a model file; raise ValueError if they are invalid."""
    if "codes" not in arrays:
        return PackedTree.from_arrays(arrays, link)
    tree = Tree.from_arrays({name: arrays[name].astype(np.int64) for name in OF_TREE})
    features = _check(tree, arrays, link)
    inner = np.flatnonzero(tree.n_children)
    scales = np.zeros(len(tree), dtype=np.float32)
    scales[inner] = arrays["scales"]
    starts = np.concatenate([[0], np.cumsum(arrays["counts"], dtype=np.int64)])
    ends = np.cumsum(arrays["n_features"], dtype=np.int64)
    weights = {}
    for node, end, count in zip(inner.tolist(), ends.tolist(), arrays["n_features"].tolist()):
        slots = slice(end - count, end)
        entries = slice(starts[end - count], starts[end])
        first = int(tree.first_child[node])
        weights[node] = NodeWeights(
            features[slots],
            starts[end - count : end + 1] - starts[end - count],
            arrays["children"][entries].astype(np.uint32),
            arrays["codes"][entries] * scales[node],
            arrays["bias"][first : first + int(tree.n_children[node])],
        )
    return PackedTree.pack(tree, weights, link, arrays["slopes"], arrays["shifts"], scales)


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    """Convert integers to the smallest type that holds them."""
    kinds: tuple[Any, ...] = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for kind in kinds:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _check(tree: Tree, arrays: dict[str, NDArray[Any]], link: str) -> NDArray[np.uint32]:
    """Return the features; raise ValueError unless everything holds that packing and searching assume."""
    n_inner = int((tree.n_children > 0).sum())
    n_slots, n_entries = len(arrays["counts"]), len(arrays["codes"])
    lengths = {
        "n_features": n_inner, "scales": n_inner, "steps": len(arrays["steps"]), "counts": n_slots,
        "children": n_entries, "codes": n_entries, "bias": len(tree), "slopes": tree.depth, "shifts": tree.depth,
    }  # fmt: skip
    for name, length in lengths.items():
        array = arrays[name]
        floats = name in ("scales", "bias", "slopes", "shifts")
        right_kind = array.dtype == np.float32 if floats else array.dtype.kind in "iu"
        whole = floats or name == "codes" or array.min(initial=0) >= 0
        if array.shape != (length,) or not right_kind or not whole:
            raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}, expected {length} numbers")
    counts, n_features = arrays["counts"].astype(np.int64), arrays["n_features"].astype(np.int64)
    valid = link in ("softmax", "logistic") and tree.depth > 0
    valid = valid and arrays["codes"].dtype == np.int8 and arrays["steps"].dtype == np.uint8
    # Bounded, so that the sums below do not overflow.
    valid = valid and n_features.min(initial=0) >= 0 and n_features.max(initial=0) <= n_slots
    valid = valid and counts.min(initial=0) >= 0 and counts.max(initial=0) <= n_entries
    valid = valid and int(n_features.sum()) == n_slots and int(counts.sum()) == n_entries
    check_slopes(arrays["slopes"], arrays["shifts"])
    if (arrays["scales"] < 0).any():
        raise ValueError("a node has a negative scale")
    if not valid:
        raise ValueError("the compact weights do not fit together")
    node = np.repeat(np.flatnonzero(tree.n_children), n_features)
    features = decode_sorted(arrays["steps"], n_features)
    if (arrays["children"] >= np.repeat(tree.n_children[node], counts)).any() or features.max(initial=0) >= 2**32:
        raise ValueError("the compact weights have children or features out of range")
    return features.astype(np.uint32)
