"""Inference of the output layers: the top classes by beam or exact search, those above a threshold, and all probabilities.

The probabilities of a node's children are a softmax, or independent sigmoids (`sigmoid`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from treemax.torch import grouped, plain
from treemax.torch.layer import Layer, accumulation_dtype

AT_ONCE = 2**26  # logits per block, to bound the memory
FIRST_BEAM = 16  # initial beam width of the exact search


def all_log_probabilities(hidden: Tensor, layer: Layer, sigmoid: bool) -> Tensor:
    """Return log p of every class, differentiable, in the accumulation type."""
    kind = accumulation_dtype(hidden.dtype)
    root = _log_probabilities(plain.root_logits(hidden, layer), sigmoid)
    n_direct = len(layer.direct)
    above = root[:, n_direct : n_direct + layer.n_top]
    for level, table in enumerate(layer.children):
        weight, bias = layer.parameters_of(level)
        exists = table.flatten() >= 0
        at = table.flatten().clamp(min=0).long()
        logits = (hidden @ weight[at].to(hidden.dtype).T).to(kind)
        if bias is not None:
            logits = logits + bias[at].to(kind)
        logits = logits.masked_fill(~exists, torch.finfo(kind).min)  # not -inf: some nodes have no children at all
        within = _log_probabilities(logits.view(len(hidden), *table.shape), sigmoid)
        above = (above[:, :, None] + within).flatten(1)
    result = root.new_empty(len(hidden), len(layer.weight)).index_copy(1, layer.direct, root[:, :n_direct])
    if layer.children:
        classes = layer.children[-1].flatten()
        taken = (classes >= 0).nonzero().flatten()
        result = result.index_copy(1, classes[taken].long(), above[:, taken])
    return result


def _log_probabilities(logits: Tensor, sigmoid: bool) -> Tensor:
    """Return log p of the children of a node, which are in the last dimension."""
    return logsigmoid(logits) if sigmoid else torch.log_softmax(logits, dim=-1)


def best_classes(hidden: Tensor, layer: Layer, k: int, beam: int | None, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """Return log p and indices of the k best classes of each row, by beam search, or exact if `beam` is None.

    The exact search widens the beam until no discarded node can have a class among the best k.
    """
    scores, classes, left_out = _search(hidden, layer, k, beam or max(FIRST_BEAM, k), sigmoid)
    if beam is not None:
        return scores, classes
    width, widest = max(FIRST_BEAM, k), max([table.shape[0] for table in layer.children], default=1)
    unsure = (left_out > scores[:, -1]).nonzero().flatten()
    while width < widest and len(unsure):
        width *= 4
        scores[unsure], classes[unsure], left_out[unsure] = _search(hidden[unsure], layer, k, width, sigmoid)
        unsure = (left_out > scores[:, -1]).nonzero().flatten()
    return scores, classes


def _search(hidden: Tensor, layer: Layer, k: int, beam: int, sigmoid: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Beam search in blocks: log p and indices of the best classes, and the highest log p of a discarded node."""
    width = sum(table.shape[1] * min(beam, table.shape[0]) for table in layer.children) + len(layer.root_empty)
    pieces = hidden.split(max(1, AT_ONCE // width))
    parts = [_search_piece(piece, layer, k, beam, sigmoid) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    scores, classes, left_out = (torch.cat([part[i] for part in parts]) for i in range(3))
    return scores, classes, left_out


def _search_piece(hidden: Tensor, layer: Layer, k: int, beam: int, sigmoid: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not layer.children:
        scores, at = _log_probabilities(plain.root_logits(hidden, layer), sigmoid).topk(k, dim=1)
        return scores, layer.direct[at], torch.full_like(scores[:, 0], -torch.inf)
    hidden = hidden.contiguous()
    beam = min(beam, max(table.shape[0] for table in layer.children))
    fast = grouped.can_find_best(hidden, layer, k, beam)
    scores, classes, below, nodes, left_out = (_root_candidates_fast if fast else _root_candidates)(
        hidden, layer, k, beam, sigmoid
    )
    last = len(layer.children) - 1
    for level in range(last):
        logits, order = _logits_at(hidden, layer, level, nodes)
        below, nodes = _children_of(logits, order, below, nodes, sigmoid)
        below, nodes, left_out = _top_nodes(below, nodes, beam, left_out)
    logits, order = _logits_at(hidden, layer, last, nodes)
    if fast:
        best = grouped.best_below(logits, order, nodes, below, layer.children[last], k, sigmoid)
        found, found_classes = (part.view(len(hidden), nodes.shape[1] * k) for part in best)
    else:
        found, places = _children_of(logits, order, below, nodes, sigmoid)
        found_classes = layer.children[last].flatten()[places].long()
    scores, at = torch.cat([scores, found], dim=1).topk(k, dim=1)
    return scores, torch.cat([classes, found_classes], dim=1).gather(1, at), left_out


def _root_candidates(
    hidden: Tensor, layer: Layer, k: int, beam: int, sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return log p and indices of direct classes and of the best top nodes, and the highest discarded log p."""
    root = _log_probabilities(plain.root_logits(hidden, layer), sigmoid)
    n_direct = len(layer.direct)
    scores, below = root[:, :n_direct], root[:, n_direct : n_direct + layer.n_top]
    nodes = torch.arange(below.shape[1], device=hidden.device).expand_as(below)
    nothing = torch.full_like(root[:, 0], -torch.inf)
    return scores, layer.direct.expand_as(scores), *_top_nodes(below, nodes, beam, nothing)


def _root_candidates_fast(
    hidden: Tensor, layer: Layer, k: int, beam: int, sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`_root_candidates` by one kernel, with only the best direct classes."""
    width = min(beam, layer.n_top)
    scores, classes, below, nodes = grouped.best_at_root(hidden, layer, k, width, sigmoid)
    return scores, classes, below[:, :width].contiguous(), nodes[:, :width].contiguous(), below[:, width]


def _top_nodes(score: Tensor, nodes: Tensor, beam: int, left_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `beam` best nodes of each row, and the highest log p of a discarded node."""
    if score.shape[1] <= beam:
        return score, nodes, left_out
    best, at = score.topk(beam + 1, dim=1)
    return best[:, :beam], nodes.gather(1, at[:, :beam]), torch.maximum(left_out, best[:, beam])


def _logits_at(hidden: Tensor, layer: Layer, level: int, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits of the children of several nodes for each row, sorted by node, and the order of the pairs."""
    by_node, order = torch.sort(nodes.flatten())
    return _logits_of_pairs(hidden, layer, level, order // nodes.shape[1], by_node), order


def _logits_of_pairs(hidden: Tensor, layer: Layer, level: int, rows: Tensor, nodes: Tensor) -> Tensor:
    """Return logits of the children of each row's node, for pairs of row and node sorted by node."""
    n_nodes = layer.children[level].shape[0]
    starts = torch.searchsorted(nodes, torch.arange(n_nodes + 1, device=nodes.device))
    backend = grouped if grouped.can_run(hidden, layer) else plain
    return backend.node_logits(hidden, layer, level, rows, starts)


def _children_of(logits: Tensor, order: Tensor, above: Tensor, nodes: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """Return log p and indices of all children of several nodes for each row."""
    within = torch.empty_like(logits)
    within[order] = _log_probabilities(logits, sigmoid)
    arity = logits.shape[1]
    score = above[:, :, None] + within.view(*nodes.shape, arity)
    children = nodes[:, :, None] * arity + torch.arange(arity, device=nodes.device)
    score = torch.nan_to_num(score, nan=-torch.inf)  # NaN below a node without classes
    return score.flatten(1), children.flatten(1)


def classes_above(hidden: Tensor, layer: Layer, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, classes and log p of all classes with log p of at least `threshold`, of layers with sigmoids.

    Exact, because the probability of a child is never above that of its parent: nodes below the threshold are discarded.
    """
    hidden = hidden.contiguous()
    root = logsigmoid((grouped if grouped.can_run(hidden, layer) else plain).root_logits(hidden, layer))
    n_direct = len(layer.direct)
    rows, at = (root[:, :n_direct] >= threshold).nonzero(as_tuple=True)
    found = [(rows, layer.direct[at], root[rows, at])]
    rows, nodes = (root[:, n_direct : n_direct + layer.n_top] >= threshold).nonzero(as_tuple=True)
    scores = root[rows, n_direct + nodes]
    for level, table in enumerate(layer.children):
        nodes, order = torch.sort(nodes, stable=True)
        size = max(1, AT_ONCE // table.shape[1])
        pieces = zip(rows[order].split(size), nodes.split(size), scores[order].split(size))
        parts = [_children_above(hidden, layer, level, *piece, threshold) for piece in pieces]
        rows, nodes, scores = (torch.cat([part[i] for part in parts]) for i in range(3))
    if layer.children:
        found.append((rows, layer.children[-1].flatten()[nodes].long(), scores))
    rows, classes, scores = (torch.cat([part[i] for part in found]) for i in range(3))
    return rows, classes, scores


def _children_above(
    hidden: Tensor, layer: Layer, level: int, rows: Tensor, nodes: Tensor, above: Tensor, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, indices and log p of the children of at least `threshold`, below pairs of row and node."""
    score = above[:, None] + logsigmoid(_logits_of_pairs(hidden, layer, level, rows, nodes))
    pair, child = (score >= threshold).nonzero(as_tuple=True)
    return rows[pair], nodes[pair] * score.shape[1] + child, score[pair, child]
