"""TreeSoftmax: an output layer whose cost is sublinear in the number of classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor

from treemax.parameters import check_number
from treemax.torch.base import TreeLayer, check_indices
from treemax.torch.path_loss import path_loss
from treemax.torch.reassignment import Statistics, is_distributed, reassigned
from treemax.torch.structure import TreeShape

REASSIGN_FACTOR = 4  # examples between reassignments, relative to the number of classes


class TreeSoftmax(TreeLayer):
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

    sigmoid = False

    def __init__(
        self, in_features: int, n_classes: int, *, counts: Any = None, depth: int | None = None,
        arity: int | None = None, n_direct: int | None = None, structure: Any = "auto",
        reassign_every: int | None = None, bias: bool = True, ignore_index: int = -100, reduction: str = "mean",
        seed: int = 0, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        check_number("n_classes", n_classes, whole=True, least=2)
        super().__init__(
            in_features, n_classes, counts=counts, depth=depth, arity=arity, n_direct=n_direct, structure=structure,
            bias=bias, ignore_index=ignore_index, reduction=reduction, seed=seed, device=device, dtype=dtype,
        )  # fmt: skip
        if reassign_every is None:
            reassign_every = REASSIGN_FACTOR * n_classes if isinstance(structure, str) else 0
        check_number("reassign_every", reassign_every, whole=True, least=0)
        self.reassign_every = reassign_every
        self._statistics: Statistics | None = None
        self._examples_since = 0

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
        """Return log p of every class, with shape (..., n_classes), or of the targets only, with the shape of `target`.

        All classes cost as much as a flat softmax. Both are differentiable.
        """
        if target is not None:
            return -self._loss(hidden, target, "none", learn=False).view(target.shape)
        return self._log_prob_of_all(hidden)

    def predict(self, hidden: Tensor, beam: int | None = 16) -> Tensor:
        """Return the most probable class; see `topk`."""
        return self.topk(hidden, 1, beam)[1].squeeze(-1)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_classes}, shape={self.shape}, reassign_every={self.reassign_every}"

    # --- internals -------------------------------------------------------------------------------------

    def _loss(self, hidden: Tensor, target: Tensor, reduction: str, learn: bool) -> Tensor:
        rows = self._rows(hidden)
        if target.shape != hidden.shape[:-1]:
            raise ValueError(
                f"target must have the shape of hidden without its last dimension, {tuple(hidden.shape[:-1])}, got "
                f"{tuple(target.shape)}."
            )
        check_indices(target, self.n_classes, self.ignore_index, "to ignore a row")
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._statistics = None  # those of another tree


def _moved(shape: TreeShape, old: Tensor, new: Tensor) -> int:
    """Return the number of classes whose last node has changed."""
    return int((old // shape.arities[-1] != new // shape.arities[-1]).sum())
