"""The parts that the output layers share: structure, parameters, tables, state and the search for the top k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treemax.parameters import check_number
from treemax.torch.layer import Layer
from treemax.torch.search import all_log_probabilities, best_classes
from treemax.torch.structure import (
    TreeShape,
    TreeTables,
    check_places,
    choose_shape,
    custom_structure,
    make_tables,
    shape_from_numbers,
    spread_evenly,
)

REDUCTIONS = ("mean", "sum", "none")
STRUCTURES = ("auto", "random", "frequency")


class TreeLayer(nn.Module):
    """Parameters of classes and nodes, and the tree. Subclasses define the probabilities of a node's children."""

    sigmoid: bool  # whether a node has a sigmoid for each child, instead of a softmax
    places: Tensor
    tree_shape: Tensor

    def __init__(
        self, in_features: int, n_classes: int, *, counts: Any, depth: int | None, arity: int | None,
        n_direct: int | None, structure: Any, bias: bool, ignore_index: int, reduction: str, seed: int, device: Any,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_number("in_features", in_features, whole=True, least=1)
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}.")
        self.in_features, self.n_classes = in_features, n_classes
        self.ignore_index, self.reduction = ignore_index, reduction
        self._counts = _checked_counts(counts, n_classes)
        if isinstance(structure, str):
            shape = choose_shape(n_classes, depth, arity, n_direct, self._counts is not None)
            places = spread_evenly(shape, _order(structure, self._counts, shape, seed))
        else:
            shape, places = custom_structure(structure, n_classes)
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(n_classes, in_features, device=device, dtype=dtype))
        self.node_weight = nn.Parameter(torch.empty(shape.n_nodes, in_features, device=device, dtype=dtype))
        for name, rows in (("bias", n_classes), ("node_bias", shape.n_nodes)):
            parameter = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(name, parameter)
        self.register_buffer("places", places.to(device))
        self.register_buffer("tree_shape", torch.tensor([shape.n_direct, shape.n_top, *shape.arities]))
        self._tables: TreeTables | None = None
        self._update_tables()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights as `nn.Linear` does; the tree is unchanged."""
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int = 5, beam: int | None = 16) -> tuple[Tensor, Tensor]:
        """Return log p and indices of the k most probable classes, best first, each of shape (..., k).

        Beam search of width `beam`, which may miss better classes below other nodes. `beam=None` is exact: it widens the
        beam for the rows that need it.
        """
        check_number("k", k, whole=True, least=1, most=self.n_classes)
        if beam is not None:
            check_number("beam", beam, whole=True, least=1)
            beam = max(beam, k)  # k nodes have at least k classes
        rows = self._rows(hidden)
        with torch.cuda.device_of(rows):
            scores, classes = best_classes(rows, self._layer(), k, beam, self.sigmoid)
        return scores.view(*hidden.shape[:-1], k), classes.view(*hidden.shape[:-1], k)

    def _log_prob_of_all(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every class, differentiable."""
        found = all_log_probabilities(self._rows(hidden), self._layer(), self.sigmoid)
        return found.view(*hidden.shape[:-1], self.n_classes)

    def _rows(self, hidden: Tensor) -> Tensor:
        """Return hidden vectors as a matrix, in the autocast type if enabled."""
        if hidden.dim() < 1 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"hidden must have {self.in_features} numbers in its last dimension (in_features), got shape "
                f"{tuple(hidden.shape)}."
            )
        if not hidden.is_floating_point():
            raise ValueError(f"hidden must have floating-point numbers, got {hidden.dtype}.")
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if dtype is None and hidden.dtype != self.weight.dtype:
            raise ValueError(
                f"hidden has type {hidden.dtype}, but the layer {self.weight.dtype}: convert one, or use torch.autocast."
            )
        rows = hidden if hidden.dim() == 2 else hidden.reshape(-1, self.in_features)
        return rows if dtype is None else rows.to(dtype)

    def _layer(self) -> Layer:
        tables = self._tables
        if tables is None:
            raise RuntimeError("the layer has no tree yet: load a state dictionary into it.")
        return Layer(
            weight=self.weight, bias=self.bias, node_weight=self.node_weight, node_bias=self.node_bias,
            root_child=tables.root_child, place=tables.place, direct=tables.direct, root_empty=tables.root_empty,
            bounds=tables.bounds, children=tables.children,
        )  # fmt: skip

    def _update_tables(self) -> None:
        """Recompute the lookup tables. They are not buffers, because DistributedDataParallel would overwrite buffers
        between a forward pass and its backward pass."""
        self._tables = None if self.places.is_meta else make_tables(self.shape, self.places)

    def _apply(self, fn: Any, recurse: bool = True) -> TreeLayer:
        super()._apply(fn, recurse)
        try:
            self._update_tables()
        except ValueError:  # after `to_empty` the places are undefined until a state is loaded
            self._tables = None
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        numbers, places = state_dict.get(f"{prefix}tree_shape"), state_dict.get(f"{prefix}places")
        if numbers is not None and places is not None:
            shape = shape_from_numbers(self.n_classes, numbers.tolist())
            if shape != self.shape:
                errors.append(
                    f"the tree of the state has the shape {shape}, but the layer {self.shape}: create the layer with "
                    "the same counts, depth, arity, n_direct and structure."
                )
                return
            try:
                check_places(shape, places)
            except ValueError as error:
                errors.append(str(error))
                return
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._update_tables()


def _checked_counts(counts: Any, n_classes: int) -> Tensor | None:
    if counts is None:
        return None
    array = np.asarray(counts.detach().cpu() if isinstance(counts, Tensor) else counts, dtype=np.float64)
    if array.shape != (n_classes,):
        raise ValueError(f"counts must have one number for each of the {n_classes} classes, got shape {array.shape}.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise ValueError("counts must be finite numbers and not negative.")
    return torch.from_numpy(array)


def _order(structure: str, counts: Tensor | None, shape: TreeShape, seed: int) -> Tensor:
    """Return the initial order of the classes in the tree, direct ones first."""
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise ValueError(
            f"structure must be one of {names}, or an array with the groups of each class, got {structure!r}."
        )
    if counts is None:
        if structure == "frequency" or (shape.n_direct and shape.arities):
            raise ValueError("structure='frequency' and n_direct need counts, the frequencies of the classes.")
        counts = torch.zeros(shape.n_classes, dtype=torch.float64)
    order = torch.argsort(counts, descending=True, stable=True)
    if structure == "frequency":
        return order
    tail = order[shape.n_direct :].sort().values
    shuffled = tail[torch.randperm(len(tail), generator=torch.Generator().manual_seed(seed))]
    return torch.cat([order[: shape.n_direct], shuffled])


def check_indices(target: Tensor, n_classes: int, ignore_index: int, meaning: str) -> None:
    """Raise ValueError unless the target has indices of classes, or `ignore_index`, whose meaning the message names."""
    if target.dtype != torch.int64:
        raise ValueError(f"target must be of type torch.int64, got {target.dtype}.")
    if target.device.type != "cpu" or torch.compiler.is_compiling() or target.numel() == 0:
        return  # checking would synchronise with the device, which reports a wrong index itself
    wrong = ((target < 0) | (target >= n_classes)) & (target != ignore_index)
    if wrong.any():
        raise ValueError(
            f"target must be classes from 0 to {n_classes - 1}, or {ignore_index} {meaning}, got {int(target[wrong][0])}."
        )
