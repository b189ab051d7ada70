"""Learning the tree of an output layer: statistics of classes at nodes, and classes given to children anew.

Algorithms 1 and 2 of Jernite, Choromanska and Sontag (2017) under a bound on the depth, in the form for
densities (equation 12). The rule is that of `treemax.models.learned_tree.assignment`, which these functions are tested
against; here it is for tensors on any device and all nodes of a level at once.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor

from treemax.torch.structure import TreeShape

AT_ONCE = 2**24  # scores that are looked at together
MEMORY = 0.5  # what is kept of the statistics after the tree has changed: outputs were those of older weights


class Statistics:
    """SumProbas and Counts: for each class, the sum of the children's probabilities at the nodes of its path.

    Only nodes whose children are nodes: below those of the last level a class is at home. The forward pass adds the
    outputs of a batch; rows whose class is a direct one do not count.
    """

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        widths = (shape.n_top, *shape.arities)[:-1]
        self.n_direct = shape.n_direct
        self.counts = torch.zeros(shape.n_classes, device=device)
        self.sums = [torch.zeros(shape.n_classes, width, device=device) for width in widths]

    def gather(self) -> None:
        """Add up what the processes of a distributed training have seen."""
        if _is_distributed():
            for tensor in (self.counts, *self.sums):
                torch.distributed.all_reduce(tensor)

    def age(self, shape: TreeShape, old: Tensor, new: Tensor) -> None:
        """Forget a part; and all of what a class did at a node that is no longer above it."""
        if _is_distributed():  # each process keeps its share
            for tensor in (self.counts, *self.sums):
                tensor.div_(torch.distributed.get_world_size())
        for tensor in (self.counts, *self.sums):
            tensor.mul_(MEMORY)
        for level, sums in enumerate(self.sums[1:]):
            below = shape.places_below(level)
            sums[old // below != new // below] = 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def reassigned(shape: TreeShape, place: Tensor, statistics: Statistics) -> Tensor:
    """Places by Algorithm 2 from the root down; direct classes stay."""
    tail = (place < shape.n_places).nonzero().flatten()
    old, node = place[tail], torch.zeros_like(tail)
    counts = statistics.counts[tail]
    for level, sums in enumerate(statistics.sums):
        below = shape.places_below(level)
        arity = sums.shape[1]
        # What is known of a class at its node is of use only while it is there.
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


NOWHERE = -1e30  # the score of a child that a class never seen has no reason to go to


def preferences(sums: Tensor, counts: Tensor, node: Tensor, current: Tensor) -> Tensor:
    """Equation 12 for each class and child of its node, up to the factor 2 / M, which changes no order.

    A class without statistics wants to stay with its `current` child.
    """
    total = sums.new_zeros(int(node.max()) + 1).index_add_(0, node, counts)
    share = counts / total[node].clamp(min=1)
    known = counts > 0
    of_child = sums.new_zeros(len(total), sums.shape[1]).index_add_(0, node[known], sums[known])
    of_child /= total.clamp(min=1)[:, None]
    scores = torch.full_like(sums, NOWHERE).scatter_(1, current[:, None], 0.0)
    for some in known.nonzero().flatten().split(_rows_at_once(sums)):
        mean = sums[some] / counts[some, None]
        sign = torch.sign(mean - of_child[node[some]])
        scores[some] = mean.mul_(sign).mul_((share * (1 - share))[some, None])
    return scores


def _rows_at_once(scores: Tensor) -> int:
    """How many classes to look at together, so that it takes little memory."""
    return max(1, AT_ONCE // scores.shape[1])


def assign_greedily(scores: Tensor, node: Tensor, room: Tensor) -> Tensor:
    """The child of each class, as if pairs of class and child were taken from the best score to the worst.

    The greedy choice is the only one in which no class and child would both rather have each other, so it can
    be found in rounds: every open class asks the best child that would have it, and a child keeps the best that
    asked. Among equal scores the lower class, then the lower child comes first.
    """
    n_classes, arity = scores.shape
    first = node * arity
    choice = torch.full((n_classes,), -1, device=scores.device)
    worst = scores.new_full((len(room),), -torch.inf)  # of those that a full child keeps
    worst_class = torch.full((len(room),), n_classes, device=scores.device)
    worst[room == 0] = torch.inf
    open_classes = torch.arange(n_classes, device=scores.device)
    while len(open_classes):
        for some in open_classes.split(_rows_at_once(scores)):
            choice[some] = _best_that_would_have(scores[some], some, first[some], worst, worst_class)
        open_classes = _keep_the_best(scores, choice, first, room, worst, worst_class)
    return _fill_rest(choice, node, room, arity)


def _best_that_would_have(
    scores: Tensor, classes: Tensor, first: Tensor, worst: Tensor, worst_class: Tensor
) -> Tensor:
    """The child that each of some classes asks; -1 if there is none that it has a reason to ask."""
    asked = first[:, None] + torch.arange(scores.shape[1], device=scores.device)
    limit = worst[asked]
    welcome = (scores > limit) | ((scores == limit) & (classes[:, None] < worst_class[asked]))
    welcome &= scores > NOWHERE
    best = torch.where(welcome, scores, -torch.inf).argmax(dim=1)
    return torch.where(welcome.any(dim=1), best, -1)


def _keep_the_best(
    scores: Tensor, choice: Tensor, first: Tensor, room: Tensor, worst: Tensor, worst_class: Tensor
) -> Tensor:
    """Send away what is beyond the room of a child, note the worst that a full one keeps; who was sent away."""
    chosen = (choice >= 0).nonzero().flatten()
    score = scores[chosen, choice[chosen]]
    by_score = torch.argsort(score, descending=True, stable=True)
    child, by_child = torch.sort((first[chosen] + choice[chosen])[by_score], stable=True)
    order = by_score[by_child]
    rank = torch.arange(len(child), device=child.device) - torch.searchsorted(child, child)
    last = rank == room[child] - 1
    worst[child[last]] = score[order[last]]
    worst_class[child[last]] = chosen[order[last]]
    sent_away = chosen[order[rank >= room[child]]]
    choice[sent_away] = -1
    return sent_away.sort().values


def _fill_rest(choice: Tensor, node: Tensor, room: Tensor, arity: int) -> Tensor:
    """Classes that nothing is known of, and whose place was taken, get what is left of their node's room."""
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
