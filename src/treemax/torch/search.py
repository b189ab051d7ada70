"""Answers of a tree softmax: the best classes by beam or exact search, and the probabilities of all."""

from __future__ import annotations

import torch
from torch import Tensor

from treemax.torch import grouped
from treemax.torch.path_loss import Layer, accumulated, plain_node_logits

ROWS_AT_ONCE = 2**24  # numbers in the logits of a level that are computed together


def all_log_probabilities(hidden: Tensor, layer: Layer) -> Tensor:
    """log p of every class, differentiable, in the type that logits are added up in."""
    kind = accumulated(hidden.dtype)
    root = torch.log_softmax((hidden @ layer.root_weight(hidden.dtype).T).to(kind) + layer.root_bias(), dim=1)
    n_direct = len(layer.direct)
    above = root[:, n_direct:]
    for level, table in enumerate(layer.children):
        weight, bias = layer.parameters_of(level)
        exists = table.flatten() >= 0
        at = table.flatten().clamp(min=0).long()
        logits = (hidden @ weight[at].to(hidden.dtype).T).to(kind)
        if bias is not None:
            logits = logits + bias[at].to(kind)
        logits = logits.masked_fill(~exists, torch.finfo(kind).min)  # not -inf: nodes without children have none
        within = torch.log_softmax(logits.view(len(hidden), *table.shape), dim=2)
        above = (above[:, :, None] + within).flatten(1)
    result = root.new_empty(len(hidden), len(layer.weight))
    result = result.index_copy(1, layer.direct, root[:, :n_direct])
    if layer.children:
        place = (layer.children[-1].flatten() >= 0).nonzero().flatten()
        result = result.index_copy(1, layer.children[-1].flatten()[place].long(), above[:, place])
    return result


def best_classes(hidden: Tensor, layer: Layer, k: int, beam: int | None) -> tuple[Tensor, Tensor]:
    """log p and ids of the k best classes of each row, best first, that a beam finds; of all, without one.

    Without a beam the search is widened, for the rows that need it, until nothing that was left out can be
    among the best.
    """
    if beam is not None:
        scores, classes, _ = _search(hidden, layer, k, beam)
        return scores, classes
    width = 16
    widest = max([table.shape[0] for table in layer.children], default=1)
    scores, classes, left_out = _search(hidden, layer, k, width)
    while width < widest:
        unsure = (left_out > scores[:, -1]).nonzero().flatten()
        if len(unsure) == 0:
            break
        width *= 4
        scores[unsure], classes[unsure], left_out[unsure] = _search(hidden[unsure], layer, k, width)
    return scores, classes


def _search(hidden: Tensor, layer: Layer, k: int, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best classes below the best `beam` nodes of each level, in pieces that fit; and the best log p of a
    node that was left out."""
    width = sum(table.shape[1] * min(beam, table.shape[0]) for table in layer.children) + len(layer.root_empty)
    rows = max(1, ROWS_AT_ONCE // width)
    parts = [_search_piece(piece, layer, k, beam) for piece in hidden.split(rows)]
    scores, classes, left_out = (torch.cat([part[i] for part in parts]) for i in range(3))
    return scores, classes, left_out


def _search_piece(hidden: Tensor, layer: Layer, k: int, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    kind = accumulated(hidden.dtype)
    root = torch.log_softmax((hidden @ layer.root_weight(hidden.dtype).T).to(kind) + layer.root_bias(), dim=1)
    n_direct = len(layer.direct)
    left_out = torch.full((len(hidden),), -torch.inf, dtype=kind, device=hidden.device)
    if not layer.children:
        scores, at = root.topk(k, dim=1)
        return scores, layer.direct[at], left_out
    below = root[:, n_direct:]
    nodes = torch.arange(below.shape[1], device=hidden.device).expand_as(below)
    for level, table in enumerate(layer.children):
        below, nodes, left_out = _widest(below, nodes, beam, left_out)
        within = torch.log_softmax(_logits_at(hidden, layer, level, nodes), dim=2)
        below = (below[:, :, None] + within).flatten(1)
        nodes = (nodes[:, :, None] * table.shape[1] + torch.arange(table.shape[1], device=nodes.device)).flatten(1)
    below = torch.nan_to_num(below, nan=-torch.inf)  # below a node without classes
    scores, at = torch.cat([root[:, :n_direct], below], dim=1).topk(k, dim=1)
    place = nodes.gather(1, (at - n_direct).clamp(min=0))
    found = layer.children[-1].flatten()[place].long()
    is_direct = at < n_direct
    if n_direct:
        found = torch.where(is_direct, layer.direct[at.clamp(max=n_direct - 1)], found)
    return scores, found, left_out


def _widest(score: Tensor, nodes: Tensor, beam: int, left_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The `beam` best nodes of each row, and the best of those left out so far."""
    score = torch.nan_to_num(score, nan=-torch.inf)
    if score.shape[1] <= beam:
        return score, nodes, left_out
    best, at = score.topk(beam + 1, dim=1)
    return best[:, :beam], nodes.gather(1, at[:, :beam]), torch.maximum(left_out, best[:, beam])


def _logits_at(hidden: Tensor, layer: Layer, level: int, nodes: Tensor) -> Tensor:
    """Logits of the children of several nodes for each row."""
    n_rows, n_beams = nodes.shape
    by_node, order = torch.sort(nodes.flatten())
    n_nodes = layer.children[level].shape[0]
    starts = torch.searchsorted(by_node, torch.arange(n_nodes + 1, device=nodes.device))
    fast = grouped.can_run(hidden, layer.weight)
    node_logits = grouped.node_logits if fast else plain_node_logits
    in_order = node_logits(hidden, layer, level, order // n_beams, starts)
    logits = torch.empty_like(in_order)
    logits[order] = in_order
    return logits.view(n_rows, n_beams, -1)
