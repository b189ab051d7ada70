"""TreeSigmoid: an output layer for rows with several labels, whose cost is sublinear in the number of labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from treemax.parameters import check_number
from treemax.torch.base import TreeLayer, check_indices
from treemax.torch.label_lists import label_lists, padded
from treemax.torch.layer import accumulation_dtype
from treemax.torch.path_loss import path_loss
from treemax.torch.search import classes_above

LEAST_SHARE = 1e-6  # of a child among its siblings, for its initial bias


class TreeSigmoid(TreeLayer):
    """Probabilistic label tree for rows with several labels; replaces a large `nn.Linear` and `nn.BCEWithLogitsLoss`.

    Every child of a node has a logistic classifier, and the probability of a label is the product of the sigmoids along
    its path (Jasinska et al., 2016). The loss of a row is the binary cross-entropy, summed over the children of the root
    and of every node that has a label of the row below it. So a training step computes only the nodes on the paths of
    the batch's labels. The tree is fixed, random by default; `structure` may be a clustering of the labels.

    Parameters
    ----------
    in_features : int
        Size of the hidden vectors.
    n_labels : int
        Number of labels.
    counts : array of shape (n_labels,), optional
        Frequencies of the labels, which select the `n_direct` direct labels, and by which biases are initialised.
    depth, arity, n_direct, structure
        The tree, as in `TreeSoftmax`: decisions from the root to a label, children of every node, number of labels that
        are children of the root, and "auto", "random", "frequency" or an array with the groups of each label.
    bias : bool
        Whether labels and nodes have biases.
    ignore_index : int
        Fills up the labels of a row in targets.
    reduction : "mean", "sum" or "none"
        Reduction of the losses of the rows in `forward`. Unlike that of `nn.BCEWithLogitsLoss`, the mean is over rows.
    seed : int
        Seed of the random structure. Weights are drawn from PyTorch's default generator.
    device, dtype
        Device and type of the parameters.

    Attributes
    ----------
    weight, bias : parameters of the labels, of shape (n_labels, in_features) and (n_labels,).
    node_weight, node_bias : parameters of the nodes.
    shape : numbers of direct labels, nodes and children.
    places : place of every label in the tree, from left to right; that of direct labels is the number of places.

    Examples
    --------
    >>> import torch
    >>> from treemax.torch import TreeSigmoid
    >>> _ = torch.manual_seed(0)
    >>> layer = TreeSigmoid(8, 1000)
    >>> hidden = torch.randn(3, 8)
    >>> target = torch.tensor([[3, 141], [59, -100], [-100, -100]])  # two labels, one and none
    >>> layer(hidden, target).backward()
    >>> log_probability, labels = layer.topk(hidden, 5)
    >>> labels.shape, layer.log_prob(hidden).shape, layer.log_prob(hidden, target).shape
    (torch.Size([3, 5]), torch.Size([3, 1000]), torch.Size([3, 2]))
    """

    sigmoid = True

    def __init__(
        self, in_features: int, n_labels: int, *, counts: Any = None, depth: int | None = None,
        arity: int | None = None, n_direct: int | None = None, structure: Any = "auto", bias: bool = True,
        ignore_index: int = -100, reduction: str = "mean", seed: int = 0, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        check_number("n_labels", n_labels, whole=True, least=2)
        super().__init__(
            in_features, n_labels, counts=counts, depth=depth, arity=arity, n_direct=n_direct, structure=structure,
            bias=bias, ignore_index=ignore_index, reduction=reduction, seed=seed, device=device, dtype=dtype,
        )  # fmt: skip
        self.n_labels = n_labels

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reinitialise the weights as `nn.Linear` does, and every bias as the log-odds of the child among its siblings.

        They follow from the frequencies of the labels, by default all equal. With biases of zero, a node would begin
        with half of its children probable. The tree is unchanged.
        """
        super().reset_parameters()
        if self.bias is None or self.node_bias is None or self._tables is None:
            return
        shape, places = self.shape, self.places.cpu()
        counts = torch.ones(self.n_classes, dtype=torch.float64) if self._counts is None else self._counts
        of_places = counts.new_zeros(shape.n_places + 1).index_add_(0, places, counts)[:-1]
        of_parents = counts.sum().expand(max(1, shape.n_top))
        for level in range(len(shape.arities)):
            of_nodes = of_places.view(shape.nodes(level), -1).sum(dim=1)
            first = shape.first_row(level)
            self.node_bias[first : first + len(of_nodes)] = _log_odds(of_nodes, of_parents)
            of_parents = of_nodes.repeat_interleave(shape.arities[level])
        of_parents = torch.cat([of_parents if shape.arities else counts[:0], counts.sum()[None]])
        self.bias.copy_(_log_odds(counts, of_parents[places]))

    def forward(self, hidden: Tensor, target: Any) -> Tensor:
        """Return the loss: its mean over the rows, its sum or one number per row (`reduction`).

        `hidden` has the shape (..., in_features). `target` has the labels of each row: indices of shape (..., m), filled
        up with `ignore_index`; or a pair (indices, offsets), two vectors as for `nn.EmbeddingBag`; or a multi-hot
        tensor of shape (..., n_labels), of type bool or floating point, dense or sparse. All but the first are checked
        or converted, which on a GPU waits for the device. The pair needs least memory where few rows have many labels. A
        row may have no labels; repeated labels count once.
        """
        rows = self._rows(hidden)
        lists = label_lists(target, hidden.shape[:-1], self.n_labels, self.ignore_index)
        check_indices(lists.labels, self.n_labels, self.ignore_index, "to fill up a row")
        loss = path_loss(rows, lists.labels, self._layer(), self.ignore_index, self.reduction, offsets=lists.offsets)
        return loss.view(hidden.shape[:-1]) if self.reduction == "none" else loss

    def log_prob(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return log p of every label, with shape (..., n_labels), or of given labels, with shape (..., m).

        All labels cost as much as a flat layer. Entries that are `ignore_index` get 0. Both are differentiable.
        """
        if labels is None:
            return self._log_prob_of_all(hidden)
        rows = self._rows(hidden)
        if labels.dim() < 1 or labels.shape[:-1] != hidden.shape[:-1]:
            raise ValueError(
                f"labels must have the shape {tuple(hidden.shape[:-1])} of the rows of hidden and one more dimension, "
                f"got {tuple(labels.shape)}."
            )
        check_indices(labels, self.n_labels, self.ignore_index, "to fill up a row")
        lists = labels.reshape(len(rows), labels.shape[-1])
        return self._log_prob_of(rows, lists).view(labels.shape)

    @torch.no_grad()
    def predict(self, hidden: Tensor, threshold: float = 0.5) -> Tensor:
        """Return the labels whose probability is at least `threshold`, most probable first, of shape (..., m).

        Exact: nodes below the threshold have no such labels. Rows are filled up with `ignore_index`, as in targets.
        """
        check_number("threshold", threshold, above=0, most=1)
        rows = self._rows(hidden)
        with torch.cuda.device_of(rows):
            row, label, score = classes_above(rows, self._layer(), math.log(threshold))
        order = torch.argsort(score, descending=True, stable=True)
        order = order[torch.argsort(row[order], stable=True)]
        lists = padded(row[order], label[order], len(rows), self.ignore_index)
        return lists.view(*hidden.shape[:-1], lists.shape[1])

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_labels}, shape={self.shape}"

    def _log_prob_of(self, rows: Tensor, lists: Tensor) -> Tensor:
        layer, shape = self._layer(), self.shape
        used = lists != self.ignore_index
        known = lists.masked_fill(~used, 0)
        total = _log_sigmoid(rows, self.weight, self.bias, known)
        place = layer.place[known].long()
        is_direct = place == shape.n_places
        for level in range(len(shape.arities)):
            node = shape.first_row(level) + place.masked_fill(is_direct, 0) // shape.places_below(level)
            part = _log_sigmoid(rows, self.node_weight, self.node_bias, node)
            total = total + part.masked_fill(is_direct, 0)
        return total.masked_fill(~used, 0)


def _log_odds(counts: Tensor, of_parents: Tensor) -> Tensor:
    """Return log-odds of shares; those of almost nothing or almost all are limited."""
    return torch.logit(counts / of_parents.clamp(min=1e-30), eps=LEAST_SHARE)


def _log_sigmoid(hidden: Tensor, weight: Tensor, bias: Tensor | None, at: Tensor) -> Tensor:
    """Return log p of some logistic classifiers for each row."""
    logits = (weight[at].to(hidden.dtype) @ hidden[:, :, None]).squeeze(2).to(accumulation_dtype(hidden.dtype))
    return logsigmoid(logits if bias is None else logits + bias[at])
