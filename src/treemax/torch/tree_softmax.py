"""TreeSoftmax: an output layer whose cost is sublinear in the number of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from treemax.parameters import check_number
from treemax.torch.layer import Layer
from treemax.torch.path_loss import path_loss
from treemax.torch.reassignment import Statistics, is_distributed, reassigned
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

REASSIGN_FACTOR = 4  # examples between reassignments, relative to the number of classes
REDUCTIONS = ("mean", "sum", "none")
STRUCTURES = ("auto", "random", "frequency")


class TreeSoftmax(nn.Module):
    """Hierarchical softmax with a learned tree of bounded depth; replaces a large `nn.Linear` and
    `nn.CrossEntropyLoss`.

    Each node has a softmax over its children, and the probability of a class is the product along its path. A training
    step computes only the nodes on the paths of the batch's classes. Frequent classes can be children of the root
    (`n_direct`). The other classes are reassigned to nodes during training by the rule of Jernite, Choromanska and
    Sontag (2017): a class moves to the child to which its examples are already sent.

    Every class has its own row in `weight`, independent of its place in the tree, so weights may be tied to an
    embedding, and the state of an optimizer stays valid when the tree changes.

    Parameters
    ----------
    in_features : int
        Size of the hidden vectors.
    n_classes : int
        Number of classes.
    counts : array of shape (n_classes,), optional
        Frequencies of the classes, which select the `n_direct` direct classes.
    depth : int, optional
        Decisions from the root to a class. By default 2 up to half a million classes, else 3.
    arity : int, optional
        Children of every node; by default the smallest number that fits the classes. `arity=65, depth=3` is the tree
        of the paper.
    n_direct : int, optional
        Number of classes that are children of the root. By default four times the square root of `n_classes` with
        `counts`, else 0.
    structure : "auto", "random", "frequency" or array
        Initial tree. "frequency" groups classes of similar frequency; "auto" is "random". An array of shape
        (n_classes,) or (n_classes, depth - 1) has the groups of each class from the root down, -1 for a direct class;
        then `depth`, `arity` and `n_direct` are ignored.
    reassign_every : int, optional
        Training examples between two reassignments of classes, 0 for never. By default four times `n_classes`, or never
        if `structure` is an array. The statistics need 4 bytes x `n_classes` x nodes below the root (with more than two
        levels, plus 4 bytes x `n_classes` x arity for each further level).
    bias : bool
        Whether classes and nodes have biases.
    ignore_index : int
        Rows with this target have no loss and no gradient.
    reduction : "mean", "sum" or "none"
        Reduction of the losses of the rows in `forward`.
    seed : int
        Seed of the random structure. Weights are drawn from PyTorch's default generator.
    device, dtype
        Device and type of the parameters.

    Attributes
    ----------
    weight, bias : parameters of the classes, of shape (n_classes, in_features) and (n_classes,).
    node_weight, node_bias : parameters of the nodes.
    shape : numbers of direct classes, nodes and children.
    places : place of every class in the tree, from left to right; that of direct classes is the number of places.

    Examples
    --------
    >>> import torch
    >>> from treemax.torch import TreeSoftmax
    >>> _ = torch.manual_seed(0)
    >>> layer = TreeSoftmax(8, 1000)
    >>> hidden, target = torch.randn(16, 8), torch.randint(1000, (16,))
    >>> layer(hidden, target).backward()
    >>> log_probability, classes = layer.topk(hidden, 5)
    >>> classes.shape, layer.log_prob(hidden).shape
    (torch.Size([16, 5]), torch.Size([16, 1000]))
    """

    places: Tensor
    tree_shape: Tensor

    def __init__(
        self, in_features: int, n_classes: int, *, counts: Any = None, depth: int | None = None,
        arity: int | None = None, n_direct: int | None = None, structure: Any = "auto",
        reassign_every: int | None = None, bias: bool = True, ignore_index: int = -100, reduction: str = "mean",
        seed: int = 0, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_number("in_features", in_features, whole=True, least=1)
        check_number("n_classes", n_classes, whole=True, least=2)
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}.")
        own = not isinstance(structure, str)
        if reassign_every is None:
            reassign_every = 0 if own else REASSIGN_FACTOR * n_classes
        check_number("reassign_every", reassign_every, whole=True, least=0)
        self.in_features, self.n_classes = in_features, n_classes
        self.ignore_index, self.reduction, self.reassign_every = ignore_index, reduction, reassign_every
        frequency = _checked_counts(counts, n_classes)
        if own:
            shape, places = custom_structure(structure, n_classes)
        else:
            shape = choose_shape(n_classes, depth, arity, n_direct, frequency is not None)
            places = spread_evenly(shape, _order(structure, frequency, shape, seed))
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(n_classes, in_features, device=device, dtype=dtype))
        self.node_weight = nn.Parameter(torch.empty(shape.n_nodes, in_features, device=device, dtype=dtype))
        for name, rows in (("bias", n_classes), ("node_bias", shape.n_nodes)):
            parameter = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(name, parameter)
        self.register_buffer("places", places.to(device))
        self.register_buffer("tree_shape", torch.tensor([shape.n_direct, shape.n_top, *shape.arities]))
        self._tables: TreeTables | None = None
        self._statistics: Statistics | None = None
        self._examples_since = 0
        self._update_tables()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights as `nn.Linear` does; the tree is unchanged."""
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    # --- training --------------------------------------------------------------------------------------

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return the loss, -log p of the targets: their mean, their sum or one per row (`reduction`).

        `hidden` has the shape (..., in_features), `target` the shape (...). In training mode the outputs of nodes are
        added to the statistics, and every `reassign_every` examples the tree is updated before the loss is computed.
        """
        loss = self._loss(hidden, target, self.reduction, learn=self.training and self.reassign_every > 0)
        return loss.view(target.shape) if self.reduction == "none" else loss

    def reassign(self) -> int:
        """Reassign classes to nodes by the statistics collected in training; returns the number of moved classes.

        Called by `forward` every `reassign_every` examples. In distributed training all processes must call it
        together; they share their statistics.
        """
        if self._statistics is None or self._statistics.counts.device != self.places.device:
            raise RuntimeError(
                "there are no statistics to assign classes by: call the layer in training mode first, with "
                "reassign_every above 0 and a tree that has nodes."
            )
        self._examples_since = 0
        with torch.no_grad():
            self._statistics.all_reduce()
            places = reassigned(self.shape, self.places, self._statistics)
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.broadcast(places, 0)
            self._statistics.decay(self.shape, self.places, places)
            moved = _moved(self.shape, self.places, places)
            self.places = places  # not in place: a pending backward pass may need the old places
            self._update_tables()
        return moved

    # --- inference -------------------------------------------------------------------------------------

    def log_prob(self, hidden: Tensor, target: Tensor | None = None) -> Tensor:
        """log p of every class, with shape (..., n_classes), or of the targets only, with the shape of `target`.

        All classes cost as much as a flat softmax. Both are differentiable.
        """
        if target is not None:
            return -self._loss(hidden, target, "none", learn=False).view(target.shape)
        rows = self._rows(hidden)
        return all_log_probabilities(rows, self._layer()).view(*hidden.shape[:-1], self.n_classes)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int = 5, beam: int | None = 16) -> tuple[Tensor, Tensor]:
        """log p and indices of the k most probable classes, best first, each of shape (..., k).

        Beam search of width `beam`, which may miss better classes below other nodes. `beam=None` is exact: it widens the
        beam for the rows that need it.
        """
        check_number("k", k, whole=True, least=1, most=self.n_classes)
        if beam is not None:
            check_number("beam", beam, whole=True, least=1)
            beam = max(beam, k)  # k nodes have at least k classes
        rows = self._rows(hidden)
        with torch.cuda.device_of(rows):
            scores, classes = best_classes(rows, self._layer(), k, beam)
        return scores.view(*hidden.shape[:-1], k), classes.view(*hidden.shape[:-1], k)

    def predict(self, hidden: Tensor, beam: int | None = 16) -> Tensor:
        """Return the most probable class; see `topk`."""
        return self.topk(hidden, 1, beam)[1].squeeze(-1)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_classes}, shape={self.shape}, reassign_every={self.reassign_every}"

    # --- internals -------------------------------------------------------------------------------------

    def _loss(self, hidden: Tensor, target: Tensor, reduction: str, learn: bool) -> Tensor:
        rows = self._rows(hidden)
        _check_target(hidden, target, self.n_classes, self.ignore_index)
        target = target if target.dim() == 1 else target.reshape(-1)
        if learn and self.shape.arities:
            return self._loss_and_statistics(rows, target, reduction)
        return path_loss(rows, target, self._layer(), self.ignore_index, reduction)

    @torch.compiler.disable
    def _loss_and_statistics(self, rows: Tensor, target: Tensor, reduction: str) -> Tensor:
        """Return the loss in training: reassigns classes if due, and adds the outputs to the statistics."""
        if self._examples_since >= self.reassign_every:
            self.reassign()
        processes = torch.distributed.get_world_size() if is_distributed() else 1
        self._examples_since += rows.shape[0] * processes
        if self._statistics is None or self._statistics.counts.device != target.device:
            self._statistics = Statistics(self.shape, target.device)
        return path_loss(rows, target, self._layer(), self.ignore_index, reduction, self._statistics)

    def _rows(self, hidden: Tensor) -> Tensor:
        """Hidden vectors as a matrix, in the autocast type if enabled."""
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

    def _apply(self, fn: Any, recurse: bool = True) -> TreeSoftmax:
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
        self._statistics = None
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


def _check_target(hidden: Tensor, target: Tensor, n_classes: int, ignore_index: int) -> None:
    if target.shape != hidden.shape[:-1]:
        raise ValueError(
            f"target must have the shape of hidden without its last dimension, {tuple(hidden.shape[:-1])}, got "
            f"{tuple(target.shape)}."
        )
    if target.dtype != torch.int64:
        raise ValueError(f"target must be of type torch.int64, got {target.dtype}.")
    if target.device.type != "cpu" or torch.compiler.is_compiling() or target.numel() == 0:
        return  # checking would synchronise with the device, which reports a wrong index itself
    wrong = ((target < 0) | (target >= n_classes)) & (target != ignore_index)
    if wrong.any():
        raise ValueError(
            f"target must be classes from 0 to {n_classes - 1}, or {ignore_index} to ignore a row, got "
            f"{int(target[wrong][0])}."
        )


def _moved(shape: TreeShape, old: Tensor, new: Tensor) -> int:
    """Return the number of classes whose last node has changed."""
    return int((old // shape.arities[-1] != new // shape.arities[-1]).sum())
