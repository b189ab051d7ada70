"""Conversion of multi-label targets, in any of the usual forms, to padded lists of label indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def label_lists(target: Any, rows: torch.Size, n_labels: int, ignore_index: int) -> Tensor:
    """Return the labels of each row as a matrix of indices, filled up with `ignore_index`; at least one column.

    `target` is such a tensor of shape (*rows, most labels), a pair of indices and offsets as `nn.EmbeddingBag` has
    them, or a multi-hot tensor of shape (*rows, n_labels): bool or floating point, dense or sparse.
    """
    if isinstance(target, tuple):
        lists = _from_offsets(*_checked_pair(target, rows), ignore_index)
    elif not isinstance(target, Tensor):
        raise ValueError(f"target must be a tensor, or a pair of indices and offsets, got {type(target).__name__}.")
    elif target.dim() < 1 or target.shape[:-1] != rows:
        raise ValueError(
            f"target must have the shape {tuple(rows)} of the rows of hidden and one more dimension, for the labels of "
            f"a row, got {tuple(target.shape)}."
        )
    elif target.layout == torch.strided and target.dtype == torch.int64:
        lists = target.reshape(rows.numel(), target.shape[-1])
    elif target.shape[-1] != n_labels or not (target.dtype == torch.bool or target.is_floating_point()):
        raise ValueError(
            f"target must have indices of type torch.int64, or be multi-hot, of type bool or floating point with "
            f"{n_labels} columns, got {target.dtype} and shape {tuple(target.shape)}."
        )
    else:
        lists = _from_multi_hot(target, rows, ignore_index)
    return lists if lists.shape[1] else lists.new_full((len(lists), 1), ignore_index)


def padded(row: Tensor, label: Tensor, n_rows: int, ignore_index: int) -> Tensor:
    """Label lists from pairs of row and label, sorted by row."""
    counts = torch.bincount(row, minlength=n_rows)
    most = int(counts.max()) if n_rows else 0
    lists = label.new_full((n_rows, most), ignore_index)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    lists[row, position] = label
    return lists


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


def _from_offsets(labels: Tensor, bounds: Tensor, ignore_index: int) -> Tensor:
    row = torch.repeat_interleave(bounds.diff())
    return padded(row, labels, len(bounds) - 1, ignore_index)


def _from_multi_hot(target: Tensor, rows: torch.Size, ignore_index: int) -> Tensor:
    if target.layout == torch.strided:
        row, label = target.reshape(-1, target.shape[-1]).nonzero(as_tuple=True)
        return padded(row, label, rows.numel(), ignore_index)
    if len(rows) != 1:
        raise ValueError(f"a sparse target must have two dimensions, got shape {tuple(target.shape)}.")
    entries = target.to_sparse_coo().coalesce()
    row, label = entries.indices()[:, entries.values() != 0]
    return padded(row, label, rows[0], ignore_index)
