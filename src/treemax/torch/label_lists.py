"""Conversion of multi-label targets, in any of the usual forms, to flat lists of label indices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class LabelLists(NamedTuple):
    """The labels of row i are labels[offsets[i] : offsets[i + 1]]; those that are `ignore_index` do not count."""

    labels: Tensor
    offsets: Tensor


def label_lists(target: Any, rows: torch.Size, n_labels: int, ignore_index: int) -> LabelLists:
    """Return the labels of each row.

    `target` has indices of shape (*rows, most labels), filled up with `ignore_index`; or it is a pair of indices and
    offsets as `nn.EmbeddingBag` has them, or a multi-hot tensor of shape (*rows, n_labels): bool or floating point, dense
    or sparse.
    """
    if isinstance(target, tuple):
        return _filled_up(*_checked_pair(target, rows), ignore_index)
    if not isinstance(target, Tensor):
        raise ValueError(f"target must be a tensor, or a pair of indices and offsets, got {type(target).__name__}.")
    if target.dim() < 1 or target.shape[:-1] != rows:
        raise ValueError(
            f"target must have the shape {tuple(rows)} of the rows of hidden and one more dimension, for the labels of "
            f"a row, got {tuple(target.shape)}."
        )
    if target.layout == torch.strided and target.dtype == torch.int64:
        lists = target if target.shape[-1] else target.new_full((*rows, 1), ignore_index)
        return LabelLists(lists.reshape(-1), torch.arange(rows.numel() + 1, device=lists.device) * lists.shape[-1])
    if target.shape[-1] != n_labels or not (target.dtype == torch.bool or target.is_floating_point()):
        raise ValueError(
            f"target must have indices of type torch.int64, or be multi-hot, of type bool or floating point with "
            f"{n_labels} columns, got {target.dtype} and shape {tuple(target.shape)}."
        )
    row, label = _entries(target, rows)
    counts = torch.bincount(row, minlength=rows.numel())
    return _filled_up(label, torch.nn.functional.pad(counts.cumsum(0), (1, 0)), ignore_index)


def padded(row: Tensor, label: Tensor, n_rows: int, ignore_index: int) -> Tensor:
    """Return lists of equal length from pairs of row and label, sorted by row."""
    counts = torch.bincount(row, minlength=n_rows)
    most = int(counts.max()) if n_rows else 0
    lists = label.new_full((n_rows, most), ignore_index)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    lists[row, position] = label
    return lists


def _filled_up(labels: Tensor, offsets: Tensor, ignore_index: int) -> LabelLists:
    """Fill up the labels to at least one, unless there are no rows; on a GPU to one of eight numbers for each power of
    two, because programs are cached by the number of labels."""
    number = max(len(labels), min(1, len(offsets) - 1))
    step = 1 << max(0, number.bit_length() - 4) if labels.is_cuda else 1
    more = -(-number // step) * step - len(labels)
    return LabelLists(torch.nn.functional.pad(labels, (0, more), value=ignore_index), offsets)


def _checked_pair(target: tuple[Any, ...], rows: torch.Size) -> tuple[Tensor, Tensor]:
    if len(target) != 2 or not all(
        isinstance(part, Tensor) and part.dim() == 1 and part.dtype == torch.int64 for part in target
    ):
        raise ValueError("target must be a pair of indices and offsets, two vectors of type torch.int64.")
    labels, offsets = target
    if len(rows) != 1 or len(offsets) != rows[0]:
        raise ValueError(
            f"target must have an offset for each of the rows of hidden, {tuple(rows)}, got {len(offsets)}."
        )
    bounds = torch.cat([offsets, offsets.new_tensor([len(labels)])])
    if (bounds[0] != 0) | (bounds.diff() < 0).any():
        raise ValueError(f"the offsets of target must begin with 0 and rise to at most {len(labels)}, its indices.")
    return labels, bounds


def _entries(target: Tensor, rows: torch.Size) -> tuple[Tensor, Tensor]:
    """Return row and label of each entry of a multi-hot target, sorted by row."""
    if target.layout == torch.strided:
        row, label = target.reshape(-1, target.shape[-1]).nonzero(as_tuple=True)
        return row, label
    if len(rows) != 1:
        raise ValueError(f"a sparse target must have two dimensions, got shape {tuple(target.shape)}.")
    entries = target.to_sparse_coo().coalesce()
    row, label = entries.indices()[:, entries.values() != 0]
    return row, label
