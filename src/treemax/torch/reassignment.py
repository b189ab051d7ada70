"""Learning the tree of an output layer: statistics of classes at nodes, and the reassignment of classes.

Algorithms 1 and 2 of Jernite, Choromanska and Sontag (2017) with bounded depth, for density estimation (equation 12).
`treemax.models.learned_tree.assignment.assign_labels` makes the same assignment at one node, and is the reference of the
tests: it sorts all pairs of class and child on a CPU. The rounds here run on any device and for all nodes of a level.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor

from treemax.torch.structure import TreeShape

AT_ONCE = 2**24  # scores per block, to bound the memory
MEMORY = 0.5  # decay of the statistics at a reassignment: they are of older weights


class Statistics:
    """SumProbas and Counts of Algorithm 1: for each class, the sum of the children's probabilities on its path.

    Only for nodes whose children are nodes, since classes do not move within a last node. The forward pass adds the
    outputs of a batch, except for rows with a direct class.
    """

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        widths = (shape.n_top, *shape.arities)[:-1]
        self.n_direct = shape.n_direct
        self.counts = torch.zeros(shape.n_classes, device=device)
        self.sums = [torch.zeros(shape.n_classes, width, device=device) for width in widths]

    def all_reduce(self) -> None:
        """Sum the statistics of all processes of a distributed training."""
        if is_distributed():
            for tensor in (self.counts, *self.sums):
                torch.distributed.all_reduce(tensor)

    def decay(self, shape: TreeShape, old: Tensor, new: Tensor) -> None:
        """Decay the statistics, and reset those of a class at nodes that are no longer on its path."""
        if is_distributed():  # each process keeps its share
            for tensor in (self.counts, *self.sums):
                tensor.div_(torch.distributed.get_world_size())
        for tensor in (self.counts, *self.sums):
            tensor.mul_(MEMORY)
        for level, sums in enumerate(self.sums[1:]):
            below = shape.places_below(level)
            sums[old // below != new // below] = 0


def is_distributed() -> bool:
    """Return whether this is one of several processes that train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def reassigned(shape: TreeShape, place: Tensor, statistics: Statistics) -> Tensor:
    """Return new places of the classes by Algorithm 2 from the root down; direct classes stay."""
    tail = (place < shape.n_places).nonzero().flatten()
    old, node = place[tail], torch.zeros_like(tail)
    counts = statistics.counts[tail]
    for level, sums in enumerate(statistics.sums):
        below = shape.places_below(level)
        arity = sums.shape[1]
        # The statistics of a class at a node are valid only if it stays below that node.
        known = (counts > 0) & (old // (below * arity) == node) if level else counts > 0
        scores = preferences(sums[tail], counts * known, node, old // below % arity)
        room = torch.full((shape.nodes(level),), below, device=place.device)
        node = node * arity + assign_greedily(scores, node, room)
    new = place.clone()
    new[tail] = _places_within(node, old, shape.arities[-1])
    return new


def _places_within(node: Tensor, old: Tensor, arity: int) -> Tensor:
    """Number the classes of each last node, in their old order."""
    order = torch.argsort(old)
    by_node, within = torch.sort(node[order], stable=True)
    rank = torch.arange(len(node), device=node.device) - torch.searchsorted(by_node, by_node)
    place = torch.empty_like(node)
    place[order[within]] = by_node * arity + rank
    return place


UNKNOWN_SCORE = -1e30  # score of a class without statistics for every child but its current one


def preferences(sums: Tensor, counts: Tensor, node: Tensor, current: Tensor) -> Tensor:
    """Equation 12 for each class and child of its node, without the constant factor 2 / M, as `assignment_scores` has it.

    A class without statistics prefers its `current` child.
    """
    total = sums.new_zeros(int(node.max()) + 1).index_add_(0, node, counts)
    share = counts / total[node].clamp(min=1)
    known = counts > 0
    of_child = sums.new_zeros(len(total), sums.shape[1]).index_add_(0, node[known], sums[known])
    of_child /= total.clamp(min=1)[:, None]
    scores = torch.full_like(sums, UNKNOWN_SCORE).scatter_(1, current[:, None], 0.0)
    for some in known.nonzero().flatten().split(_rows_at_once(sums)):
        mean = sums[some] / counts[some, None]
        sign = torch.sign(mean - of_child[node[some]])
        scores[some] = mean.mul_(sign).mul_((share * (1 - share))[some, None])
    return scores


def _rows_at_once(scores: Tensor) -> int:
    """Return the number of classes per block, to bound the memory."""
    return max(1, AT_ONCE // scores.shape[1])


def assign_greedily(scores: Tensor, node: Tensor, room: Tensor) -> Tensor:
    """Return the child of each class: pairs of class and child are taken greedily in descending order of score.

    The greedy assignment is the only stable matching, because both sides rank by the same scores. So it is found by
    deferred acceptance: in each round, every unassigned class proposes to the best child that would accept it, and a
    child keeps the best proposals. Ties are broken by the lower class, then by the lower child.
    """
    n_classes, arity = scores.shape
    first = node * arity
    choice = torch.full((n_classes,), -1, device=scores.device)
    worst = scores.new_full((len(room),), -torch.inf)  # lowest accepted score of a full child
    worst_class = torch.full((len(room),), n_classes, device=scores.device)
    worst[room == 0] = torch.inf
    open_classes = torch.arange(n_classes, device=scores.device)
    while len(open_classes):
        for some in open_classes.split(_rows_at_once(scores)):
            choice[some] = _best_open_child(scores[some], some, first[some], worst, worst_class)
        open_classes = _reject_excess(scores, choice, first, room, worst, worst_class)
    return _fill_remaining(choice, node, room, arity)


def _best_open_child(scores: Tensor, classes: Tensor, first: Tensor, worst: Tensor, worst_class: Tensor) -> Tensor:
    """Return the best child of each of some classes that would accept it; -1 if there is none with a known score."""
    asked = first[:, None] + torch.arange(scores.shape[1], device=scores.device)
    limit = worst[asked]
    accepts = (scores > limit) | ((scores == limit) & (classes[:, None] < worst_class[asked]))
    accepts &= scores > UNKNOWN_SCORE
    best = torch.where(accepts, scores, -torch.inf).argmax(dim=1)
    return torch.where(accepts.any(dim=1), best, -1)


def _reject_excess(
    scores: Tensor, choice: Tensor, first: Tensor, room: Tensor, worst: Tensor, worst_class: Tensor
) -> Tensor:
    """Reject the worst proposals beyond the capacity of each child, and update the lowest accepted scores of full
    children; returns the rejected classes."""
    chosen = (choice >= 0).nonzero().flatten()
    score = scores[chosen, choice[chosen]]
    by_score = torch.argsort(score, descending=True, stable=True)
    child, by_child = torch.sort((first[chosen] + choice[chosen])[by_score], stable=True)
    order = by_score[by_child]
    rank = torch.arange(len(child), device=child.device) - torch.searchsorted(child, child)
    last = rank == room[child] - 1
    worst[child[last]] = score[order[last]]
    worst_class[child[last]] = chosen[order[last]]
    rejected = chosen[order[rank >= room[child]]]
    choice[rejected] = -1
    return rejected.sort().values


def _fill_remaining(choice: Tensor, node: Tensor, room: Tensor, arity: int) -> Tensor:
    """Put unassigned classes without statistics into the remaining places of their node."""
    rest = (choice < 0).nonzero().flatten()
    if len(rest) == 0:
        return choice
    chosen = (choice >= 0).nonzero().flatten()
    taken = torch.bincount(node[chosen] * arity + choice[chosen], minlength=len(room))
    free = torch.repeat_interleave(torch.arange(len(room), device=room.device), room - taken)
    rest_node, by_node = torch.sort(node[rest], stable=True)
    rank = torch.arange(len(rest), device=rest.device) - torch.searchsorted(rest_node, rest_node)
    first_free = torch.searchsorted(free // arity, rest_node)
    choice[rest[by_node]] = free[first_free + rank] % arity
    return choice
