"""TreeSoftmax: an output layer over many classes whose cost does not grow with their number."""

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
from treemax.torch.reassignment import Statistics, reassigned
from treemax.torch.search import all_log_probabilities, best_classes
from treemax.torch.structure import (
    TreeShape,
    TreeTables,
    check_places,
    choose_shape,
    make_tables,
    own_structure,
    shape_from_numbers,
    spread_evenly,
)

REASSIGN_FACTOR = 4  # examples between two assignments, in classes: most classes should have been seen
REDUCTIONS = ("mean", "sum", "none")
STRUCTURES = ("auto", "random", "frequency")


class TreeSoftmax(nn.Module):
    """Softmax over many classes by a tree of bounded depth, in the place of a large `nn.Linear` and
    `nn.CrossEntropyLoss`.

    Each node has a softmax over its children, and the probability of a class is the product along its path. A
    training step looks at the nodes on the paths of the batch's classes only. Frequent classes can be children of
    the root (`n_direct`). The others are given to nodes anew while the layer learns, by the rule of Jernite,
    Choromanska and Sontag (2017): a class goes where the node above sends its examples anyway.

    Every class has its own row in `weight`, wherever it is in the tree, so weights may be tied to an embedding,
    and the state of an optimiser stays valid when the tree changes.

    Parameters
    ----------
    in_features : int
        Size of the hidden vectors.
    n_classes : int
    counts : array of shape (n_classes,), optional
        How often each class occurs, or any number that grows with it. With it, the `n_direct` most frequent
        classes are direct.
    depth : int, optional
        Decisions from the root to a class. Chosen by the number of classes: 2 up to half a million, else 3.
    arity : int, optional
        Children of every node; chosen so that the tree is just large enough. `arity=65, depth=3` is the tree of
        the paper.
    n_direct : int, optional
        Classes directly below the root. Four times the square root of `n_classes` with `counts`, else 0.
    structure : "auto", "random", "frequency" or array
        Where classes are at first. "frequency" puts those of similar frequency together, "random" anyone;
        "auto" is "random". An array of shape (n_classes,) or (n_classes, depth - 1) has the groups of each class from
        the root down, -1 for a direct class: a tree of your own. Then `depth`, `arity` and `n_direct` are not used.
    reassign_every : int, optional
        Classes are assigned anew after so many training examples, 0 for never. Four times `n_classes` by default, or
        never for a structure of your own. Statistics for it need 4 bytes x `n_classes` x the nodes below the root
        (for more than two levels, x the arity at each further one).
    bias : bool
        Whether children of nodes have biases.
    ignore_index : int
        Rows with this target have no loss and no gradient.
    reduction : "mean", "sum" or "none"
        What `forward` makes of the losses of the rows.
    seed : int
        For the random structure. Weights are drawn from PyTorch's own generator.
    device, dtype
        Of the parameters, as usual.

    Attributes
    ----------
    weight, bias : the parameters of the classes, of shape (n_classes, in_features) and (n_classes,).
    node_weight, node_bias : those of the nodes.
    shape : how many direct classes, nodes and children there are.
    places : the place of every class in the tree, from left to right; direct classes have the number of places.

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
            shape, places = own_structure(structure, n_classes)
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
        self._look_up()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as `nn.Linear` does; the tree stays."""
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    # --- training --------------------------------------------------------------------------------------

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The loss, -log p of the targets: their mean, their sum or all of them (`reduction`).

        `hidden` has the shape (..., in_features), `target` the shape (...). In training the outputs of nodes are
        noted, and every `reassign_every` examples the tree changes before the loss is computed.
        """
        loss = self._loss(hidden, target, self.reduction, learn=self.training and self.reassign_every > 0)
        return loss.view(target.shape) if self.reduction == "none" else loss

    def reassign(self) -> int:
        """Assign classes to nodes anew by what was noted since the last time; the number of classes that moved.

        Called by `forward` every `reassign_every` examples. In distributed training all processes must call it
        together; they use what all of them have seen.
        """
        if self._statistics is None or self._statistics.counts.device != self.places.device:
            raise RuntimeError(
                "there are no statistics to assign classes by: call the layer in training mode first, with "
                "reassign_every above 0 and a tree that has nodes."
            )
        self._examples_since = 0
        with torch.no_grad():
            self._statistics.gather()
            places = reassigned(self.shape, self.places, self._statistics)
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.broadcast(places, 0)
            self._statistics.age(self.shape, self.places, places)
            moved = _moved(self.shape, self.places, places)
            self.places = places  # not in place: a backward pass to come may need the old ones
            self._look_up()
        return moved

    # --- answers ---------------------------------------------------------------------------------------

    def log_prob(self, hidden: Tensor, target: Tensor | None = None) -> Tensor:
        """log p of every class, with shape (..., n_classes); of the targets alone, with that of `target`.

        All classes cost as much as a flat softmax. Both are differentiable.
        """
        if target is not None:
            return -self._loss(hidden, target, "none", learn=False).view(target.shape)
        rows = self._rows(hidden)
        return all_log_probabilities(rows, self._layer()).view(*hidden.shape[:-1], self.n_classes)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int = 5, beam: int | None = 16) -> tuple[Tensor, Tensor]:
        """log p and numbers of the k best classes, best first, each of shape (..., k).

        The search goes down into the `beam` best nodes of each level; a class elsewhere is not found, even if it
        should be better. `beam=None` makes the answer exact, by looking further for the rows that need it.
        """
        check_number("k", k, whole=True, least=1, most=self.n_classes)
        if beam is not None:
            check_number("beam", beam, whole=True, least=1)
            beam = max(beam, k)  # as many nodes have as many classes
        rows = self._rows(hidden)
        with torch.cuda.device_of(rows):
            scores, classes = best_classes(rows, self._layer(), k, beam)
        return scores.view(*hidden.shape[:-1], k), classes.view(*hidden.shape[:-1], k)

    def predict(self, hidden: Tensor, beam: int | None = 16) -> Tensor:
        """The most probable class; see `topk`."""
        return self.topk(hidden, 1, beam)[1].squeeze(-1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.n_classes}, shape={self.shape}, reassign_every={self.reassign_every}"
        )

    # --- inside ----------------------------------------------------------------------------------------

    def _loss(self, hidden: Tensor, target: Tensor, reduction: str, learn: bool) -> Tensor:
        rows = self._rows(hidden)
        _check_target(hidden, target, self.n_classes, self.ignore_index)
        target = target if target.dim() == 1 else target.reshape(-1)
        if learn and self.shape.arities:
            return self._loss_and_statistics(rows, target, reduction)
        return path_loss(rows, target, self._layer(), self.ignore_index, reduction)

    @torch.compiler.disable
    def _loss_and_statistics(self, rows: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The same while the tree is learned: classes are assigned anew when it is time, and outputs are noted."""
        if self._examples_since >= self.reassign_every:
            self.reassign()
        processes = torch.distributed.get_world_size() if _is_distributed() else 1
        self._examples_since += rows.shape[0] * processes
        if self._statistics is None or self._statistics.counts.device != target.device:
            self._statistics = Statistics(self.shape, target.device)
        return path_loss(rows, target, self._layer(), self.ignore_index, reduction, self._statistics)

    def _rows(self, hidden: Tensor) -> Tensor:
        """Hidden vectors as a matrix, in the type to compute in."""
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
            self.weight, self.bias, self.node_weight, self.node_bias, tables.root_child, tables.place, tables.direct,
            tables.root_empty, tables.bounds, tables.children,
        )  # fmt: skip

    def _look_up(self) -> None:
        """Make the tables anew. They are no buffers: DistributedDataParallel would overwrite those between a
        forward pass and its backward pass."""
        self._tables = None if self.places.is_meta else make_tables(self.shape, self.places)

    def _apply(self, fn: Any, recurse: bool = True) -> TreeSoftmax:
        super()._apply(fn, recurse)
        try:
            self._look_up()
        except ValueError:  # `to_empty` leaves anything in the places, until a state is loaded
            self._tables = None
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        numbers, places = state_dict.get(f"{prefix}tree_shape"), state_dict.get(f"{prefix}places")
        if numbers is not None and places is not None:
            shape = shape_from_numbers(self.n_classes, numbers.tolist())
            if shape != self.shape:
                errors.append(
                    f"the tree of the state has the shape {shape}, that of the layer {self.shape}: make the layer with "
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
        self._look_up()


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _checked_counts(counts: Any, n_classes: int) -> Tensor | None:
    if counts is None:
        return None
    array = np.asarray(counts.detach().cpu() if isinstance(counts, Tensor) else counts, dtype=np.float64)
    if array.shape != (n_classes,):
        raise ValueError(
            f"counts must have one number for each of the {n_classes} classes, got shape {array.shape}."
        )
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise ValueError("counts must be finite numbers and not negative.")
    return torch.from_numpy(array)


def _order(structure: str, counts: Tensor | None, shape: TreeShape, seed: int) -> Tensor:
    """Classes as they come into the tree: direct ones first, then neighbours together."""
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise ValueError(
            f"structure must be one of {names}, or an array with the groups of each class, got {structure!r}."
        )
    if counts is None:
        if structure == "frequency" or (shape.n_direct and shape.arities):
            raise ValueError("counts are needed to know which classes are frequent (structure, n_direct).")
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
        return  # looking would wait for the device, which refuses a wrong index by itself
    wrong = ((target < 0) | (target >= n_classes)) & (target != ignore_index)
    if wrong.any():
        raise ValueError(
            f"target must be classes from 0 to {n_classes - 1}, or {ignore_index} to ignore a row, got "
            f"{int(target[wrong][0])}."
        )


def _moved(shape: TreeShape, old: Tensor, new: Tensor) -> int:
    """Classes whose last node has changed."""
    return int((old // shape.arities[-1] != new // shape.arities[-1]).sum())
