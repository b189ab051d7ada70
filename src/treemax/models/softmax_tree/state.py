"""The state of tree alternating optimisation: its settings, the nodes of the tree and the history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.models.softmax_tree.solvers import Matrix, penalty

ZERO_ONE, BETA, DROP = "zero-one", "beta", "drop"  # losses of a row whose class is not in its leaf

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plane:
    """The hyperplane of a decision node."""

    coef: Matrix  # [1, features]
    bias: float

    @property
    def size(self) -> float:
        """The sum of the absolute weights."""
        return penalty(self.coef, alpha=1.0)

    @property
    def is_constant(self) -> bool:
        """Whether every row goes left: a placeholder of a node in a tree that is not complete."""
        return self.bias == -math.inf


@dataclass(frozen=True, eq=False)
class Leaf:
    """The softmax of a leaf, over `classes` in ascending order; empty if no row ever reached the leaf."""

    classes: Indices
    coef: Matrix  # [classes, features]
    bias: NDArray[np.float32]

    def places(self, labels: Indices) -> Indices:
        """Return the indices of labels in the classes, -1 if missing."""
        if not len(self.classes):
            return np.full(len(labels), -1)
        place = np.minimum(np.searchsorted(self.classes, labels), len(self.classes) - 1)
        return np.where(self.classes[place] == labels, place, -1)

    def without_labels(self, kept: NDArray[np.bool_]) -> Leaf:
        """Return the leaf with the `kept` labels only, numbered anew."""
        own = np.flatnonzero(kept[self.classes])
        return Leaf((np.cumsum(kept) - 1)[self.classes[own]], self.coef[own], self.bias[own])


@dataclass(frozen=True)
class TaoSettings:
    """Objective and settings of tree alternating optimisation."""

    alpha: float
    n_classes: int  # of a leaf, at most
    missing: str = ZERO_ONE
    beta: float = 100.0
    spill: float = 0.0  # noise of a row's score for the training of leaves, relative to the deviation of the scores
    tolerance: float = 1e-3  # of the solvers
    ridge: float = 0.0  # L2 penalty of the leaves
    plane_ridge: float = 0.0
    plane_alpha: float | None = None  # None: alpha
    growth: float = 1.0  # leaves that miss the class of a larger share of their rows are split between iterations
    early_share: float = 1.0  # of the rows: what all iterations but the last learn from
    early_steps: int | None = None  # of the solvers, before the last iteration, which then only trains leaves
    accept_worse: bool = False  # whether a node takes parameters that are worse for its reduced problem

    @property
    def plane_costs(self) -> tuple[float, float]:
        """The alpha and the ridge of decision nodes."""
        return self.alpha if self.plane_alpha is None else self.plane_alpha, self.plane_ridge

    @property
    def is_monotone(self) -> bool:
        """Whether the objective never increases."""
        exact = not self.spill and self.early_share == 1.0 and self.missing != DROP
        return exact and not self.accept_worse and self.early_steps is None

    def penalty(self, node: Plane | Leaf) -> float:
        """Return the penalty of the weights of a node."""
        alpha, ridge = self.plane_costs if isinstance(node, Plane) else (self.alpha, self.ridge)
        return penalty(node.coef, alpha, ridge)


@dataclass(frozen=True)
class Record:
    """Training history entry after the update of a depth."""

    iteration: int
    depth: int  # one more than that of the tree if leaves were split
    objective: float  # NaN before all nodes have parameters
    error: float  # training error after a full iteration, else NaN


@dataclass
class SoftmaxTreeState:
    """A complete tree and its training history."""

    depth: int
    planes: list[Plane | None]
    leaves: list[Leaf | None]
    history: list[Record] = field(default_factory=list)

    @classmethod
    def empty(cls, depth: int) -> SoftmaxTreeState:
        return cls(depth, [None] * (2**depth - 1), [None] * 2**depth)

    @property
    def is_complete(self) -> bool:
        """Whether every node has parameters."""
        return None not in self.planes and None not in self.leaves

    def without_labels(self, kept: NDArray[np.bool_]) -> SoftmaxTreeState:
        """Return the state with the `kept` labels only, numbered anew; leaves may become empty."""
        leaves = [None if leaf is None else leaf.without_labels(kept) for leaf in self.leaves]
        return SoftmaxTreeState(self.depth, list(self.planes), leaves, list(self.history))

    def with_weights_times(self, factor: float) -> SoftmaxTreeState:
        """Return the state with all weights multiplied: that for rows divided by `factor`."""
        if factor == 1.0:
            return self
        planes = [plane and replace(plane, coef=plane.coef * np.float32(factor)) for plane in self.planes]
        leaves = [leaf and replace(leaf, coef=leaf.coef * np.float32(factor)) for leaf in self.leaves]
        return SoftmaxTreeState(self.depth, planes, leaves, list(self.history))

    def penalty(self, settings: TaoSettings) -> float:
        """Return the penalty of the weights of all nodes."""
        return sum(settings.penalty(node) for node in [*self.planes, *self.leaves] if node is not None)


def state_parts(state: SoftmaxTreeState) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the training state of a complete tree as a JSON-serialisable header and arrays."""
    planes: list[Any] = [plane for plane in state.planes if plane is not None]
    leaves: list[Any] = [leaf for leaf in state.leaves if leaf is not None]
    matrices = [node.coef for node in [*planes, *leaves]]
    header = {
        "depth": state.depth,
        "history": [[*(None if value != value else value for value in vars(r).values())] for r in state.history],
    }  # fmt: skip
    arrays: dict[str, NDArray[Any]] = {
        "plane_bias": np.array([plane.bias for plane in planes], np.float64),
        "leaf_sizes": np.array([len(leaf.classes) for leaf in leaves], np.int64),
        "leaf_classes": np.concatenate([leaf.classes for leaf in leaves]),
        "leaf_bias": np.concatenate([leaf.bias for leaf in leaves]),
    }
    if not sp.issparse(matrices[0]):
        return header, {**arrays, "coef": np.concatenate(matrices)}
    coef: Any = sp.vstack(matrices, format="csr")
    entries = {"data": coef.data, "indices": coef.indices.astype(np.int64), "indptr": coef.indptr.astype(np.int64)}
    return header, {**arrays, **entries}


def state_from_parts(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_features: int, n_labels: int
) -> SoftmaxTreeState:
    """Restore a state from `state_parts`; raises ValueError if the parts are inconsistent."""
    depth = int(header["depth"])
    n_planes, sizes = len(arrays["plane_bias"]), np.asarray(arrays["leaf_sizes"], np.int64)
    n = n_planes + int(sizes.sum())
    fits = 0 <= depth < 31 and n_planes == 2**depth - 1 and len(sizes) == 2**depth and (sizes >= 0).all()
    fits = fits and (sizes <= len(arrays["leaf_classes"])).all()  # so that their sum cannot overflow
    classes, bias = np.array(arrays["leaf_classes"], np.int64), np.array(arrays["leaf_bias"], np.float32)
    if not fits or len(classes) != n - n_planes or len(bias) != n - n_planes:
        raise ValueError("the saved training state is incomplete")
    if (classes < 0).any() or (classes >= n_labels).any():
        raise ValueError("the classes of the leaves do not fit the labels")
    coef: Any
    if "coef" in arrays:
        coef = np.array(arrays["coef"], np.float32)
        if coef.shape != (n, n_features):
            raise ValueError(f"coef has shape {coef.shape}, expected {(n, n_features)}")
    else:
        names = ("data", "indices", "indptr")
        coef = sp.csr_matrix(tuple(np.array(arrays[name]) for name in names), shape=(n, n_features))
        coef.check_format()
    ends = n_planes + np.cumsum(sizes)
    planes = [Plane(coef[i : i + 1], float(arrays["plane_bias"][i])) for i in range(n_planes)]
    leaves = [
        Leaf(classes[a - n_planes : b - n_planes], coef[a:b], bias[a - n_planes : b - n_planes])
        for a, b in zip(ends - sizes, ends)
    ]
    history = [
        Record(int(i), int(d), *(float("nan") if v is None else v for v in rest)) for i, d, *rest in header["history"]
    ]
    return SoftmaxTreeState(depth, list(planes), list(leaves), history)
