"""The tree of an output layer: its shape, and the place of each class.

Frequent classes may be children of the root: they are *direct*. All other classes are at the same depth, in places
numbered from left to right, so that the place of a class determines its path: the node on a level is the place divided
by the number of places below a node. Places may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treemax.parameters import check_number

TWO_LEVELS_UP_TO = 2**19  # classes: with more, the statistics at a wide root would need gigabytes
WIDTH_STEP = 16  # the width of the root is a multiple: matrix products are several times slower on unaligned rows
DIRECT_FACTOR = 4  # default number of direct classes, relative to the square root of the number of classes


@dataclass(frozen=True)
class TreeShape:
    """`arities` are the numbers of children of a node at each level below the root; empty for a flat softmax."""

    n_classes: int
    n_direct: int
    n_top: int
    arities: tuple[int, ...]

    def nodes(self, level: int) -> int:
        """Return the number of nodes of a level; level 0 has the children of the root."""
        return self.n_top * math.prod(self.arities[:level])

    def places_below(self, level: int) -> int:
        """Return the number of places below a node of a level."""
        return math.prod(self.arities[level:])

    @property
    def n_places(self) -> int:
        return self.nodes(len(self.arities)) if self.arities else 0

    @property
    def n_nodes(self) -> int:
        """Number of nodes except the root."""
        return sum(self.nodes(level) for level in range(len(self.arities)))

    def first_row(self, level: int) -> int:
        """Return the index of the first node of a level among all nodes."""
        return sum(self.nodes(above) for above in range(level))

    def __str__(self) -> str:
        levels = " x ".join(str(number) for number in (self.n_top, *self.arities))
        return f"{self.n_direct} direct, {levels}" if self.arities else f"{self.n_direct} direct"


def choose_shape(
    n_classes: int, depth: int | None, arity: int | None, n_direct: int | None, has_counts: bool
) -> TreeShape:
    """Return the tree shape, with defaults based on the number of classes."""
    if n_direct is None:
        n_direct = min(n_classes, DIRECT_FACTOR * math.isqrt(n_classes)) if has_counts else 0
    check_number("n_direct", n_direct, whole=True, least=0, most=n_classes)
    tail = n_classes - n_direct
    check_number("depth", depth, whole=True, least=1, optional=True)
    check_number("arity", arity, whole=True, least=2, optional=True)
    if tail == 0 or depth == 1:
        return TreeShape(n_classes, n_classes, 0, ())
    if arity is not None:
        depth = depth or max(2, math.ceil(math.log(tail) / math.log(arity) - 1e-9))
        if arity**depth < tail:
            raise ValueError(
                f"a tree of depth {depth} with {arity} children a node has room for {arity**depth} classes, but "
                f"there are {tail}: raise arity or depth."
            )
        return TreeShape(n_classes, n_direct, arity, (arity,) * (depth - 1))
    depth = depth or (2 if n_classes <= TWO_LEVELS_UP_TO else 3)
    even = _root_rounded_up(tail, depth)
    above_last = even ** (depth - 1)
    return TreeShape(n_classes, n_direct, even, (even,) * (depth - 2) + (math.ceil(tail / above_last),))


def _root_rounded_up(number: int, degree: int) -> int:
    """Return the smallest integer, at least 2, whose power is at least `number`."""
    root = max(2, math.floor(number ** (1 / degree)) - 1)
    while root**degree < number:
        root += 1
    return root


def spread_evenly(shape: TreeShape, order: Tensor) -> Tensor:
    """Return places of the classes in the given order, with balanced last nodes.

    The first `n_direct` classes of the order are direct; their place is `n_places`.
    """
    place = torch.full((shape.n_classes,), shape.n_places, dtype=torch.int64)
    tail = order[shape.n_direct :].to(torch.int64)
    if len(tail) == 0:
        return place
    n_last = shape.nodes(len(shape.arities) - 1)
    rank = torch.arange(len(tail))
    node = rank * n_last // len(tail)
    first = torch.searchsorted(node, node)
    place[tail] = node * shape.arities[-1] + rank - first
    return place


def custom_structure(paths: Any, n_classes: int) -> tuple[TreeShape, Tensor]:
    """Return the shape and places of a user-defined tree.

    `paths` has the group of each class, or a row of groups from the root down; -1 in the first column is a direct class.
    """
    codes = np.asarray(paths)
    if codes.ndim == 1:
        codes = codes[:, None]
    if codes.ndim != 2 or codes.shape[0] != n_classes or codes.dtype.kind not in "iu":
        raise ValueError(
            f"structure must have an integer, or a row of integers, for each of the {n_classes} classes, got an "
            f"array of shape {np.shape(paths)} and type {codes.dtype}."
        )
    codes = codes.astype(np.int64)
    direct = codes[:, 0] == -1
    if (codes[~direct] < 0).any():
        raise ValueError("structure has a negative group; only -1 in the first column, for a direct class, is allowed.")
    tail = np.flatnonzero(~direct)
    if len(tail) == 0:
        return TreeShape(n_classes, n_classes, 0, ()), torch.zeros(n_classes, dtype=torch.int64)
    columns = [*codes[tail].T, np.arange(len(tail))]  # a class is a node of its own
    node = np.zeros(len(tail), dtype=np.int64)  # index among the distinct paths so far
    numbers, arities = [], []
    for column in columns:
        node, number = _numbered_within(node, column)
        numbers.append(number)
        arities.append(int(number.max()) + 1)
    place = np.zeros(len(tail), dtype=np.int64)
    for number, arity in zip(numbers, arities):
        place = place * arity + number
    shape = TreeShape(n_classes, int(direct.sum()), arities[0], tuple(arities[1:]))
    places = torch.full((n_classes,), shape.n_places, dtype=torch.int64)
    places[torch.from_numpy(tail)] = torch.from_numpy(place)
    return shape, places


def _numbered_within(node: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct (node, column) pairs, numbered overall and within each node."""
    pairs, number = np.unique(np.stack([node, column], axis=1), axis=0, return_inverse=True)
    number = number.reshape(-1)
    within = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
    return number, within[number]


@dataclass
class TreeTables:
    """Lookup tables of a layer, computed from the places of the classes.

    `root_child` is the child of the root on the path of each class, `place` its place, `direct` are the direct classes,
    and `root_empty` marks children of the root without classes, including padding. `children` has for each level the
    parameter rows of every node's children (-1 if missing): node rows, and class rows on the last level. `bounds` has
    for each level the first place below each node and the number of places.
    """

    root_child: Tensor
    place: Tensor
    direct: Tensor
    root_empty: Tensor
    bounds: Tensor
    children: list[Tensor]


def make_tables(shape: TreeShape, place: Tensor) -> TreeTables:
    """Return the lookup tables for classes in these places, on the device of `place`."""
    check_places(shape, place)
    device = place.device
    is_direct = place == shape.n_places
    direct = is_direct.nonzero().flatten()
    class_of_place = torch.full((shape.n_places + 1,), -1, dtype=torch.int32, device=device)
    class_of_place[place] = torch.arange(shape.n_classes, dtype=torch.int32, device=device)
    class_of_place = class_of_place[: shape.n_places]
    root_child = torch.empty_like(place)
    root_child[direct] = torch.arange(shape.n_direct, device=device)
    root_child[~is_direct] = shape.n_direct + place[~is_direct] // max(1, shape.places_below(0))
    taken = class_of_place >= 0
    width = -(-(shape.n_direct + shape.n_top) // WIDTH_STEP) * WIDTH_STEP
    root_empty = torch.ones(width, dtype=torch.bool, device=device)
    root_empty[: shape.n_direct] = False
    children = []
    for level in range(len(shape.arities)):
        has_class = taken.view(shape.nodes(level), -1).any(dim=1)
        if level == 0:
            root_empty[shape.n_direct : shape.n_direct + shape.n_top] = ~has_class
            continue
        rows = shape.first_row(level) + torch.arange(len(has_class), dtype=torch.int32, device=device)
        children.append(rows.masked_fill(~has_class, -1).view(-1, shape.arities[level - 1]))
    if shape.arities:
        children.append(class_of_place.view(-1, shape.arities[-1]))
    bounds = [
        first
        for level in range(len(shape.arities))
        for first in range(0, shape.n_places + 1, shape.places_below(level))
    ]
    bounds_of_all = torch.tensor(bounds, dtype=torch.int64, device=device)
    return TreeTables(root_child, place.to(torch.int32), direct, root_empty, bounds_of_all, children)


def check_places(shape: TreeShape, place: Tensor) -> None:
    """Raise ValueError if the places are not a tree of this shape."""
    if place.shape != (shape.n_classes,) or place.dtype != torch.int64:
        raise ValueError(f"the tree has places of shape {tuple(place.shape)}, not ({shape.n_classes},).")
    if int(place.min()) < 0 or int(place.max()) > shape.n_places:
        raise ValueError("the tree is corrupt: a class is in a place that does not exist.")
    taken = place[place < shape.n_places]
    if len(torch.unique(taken)) != len(taken) or shape.n_classes - len(taken) != shape.n_direct:
        raise ValueError("the tree is corrupt: two classes are in one place.")


def shape_from_numbers(n_classes: int, numbers: Sequence[int]) -> TreeShape:
    """Restore a shape from a state dictionary."""
    n_direct, n_top, *arities = (int(number) for number in numbers)
    return TreeShape(n_classes, n_direct, n_top, tuple(arities))
