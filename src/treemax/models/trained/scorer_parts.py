"""Linear scorers to and from the arrays of a model file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.feature_tables import SparseScorers
from treemax.kernels.scorers import EMPTY, DenseScorers, SparseGroups
from treemax.models.trained.hash_tables import table_from_arrays
from treemax.models.trained.parts import expect, expect_squares
from treemax.models.trained.scorers import Scorers, dense_scorers, frozen_scorers, prediction_scorers, trainable_scorers
from treemax.models.trained.sparse_scorers import restored_sparse, stored_sparse


def scorer_arrays(scorers: Scorers, n: int, resume: bool) -> dict[str, NDArray[Any]]:
    """Return the first n scorers as arrays to save; with `resume` including AdaGrad's squares."""
    out = {"bias": scorers.bias[:n]}
    if isinstance(scorers, DenseScorers):
        prediction_scorers(scorers)
        if not resume:
            return {**out, "halves": scorers.halves[:n].view(np.float16), "scale": scorers.scale[:n]}
        scorers = trainable_scorers(scorers)
        kept = {name: getattr(scorers, name)[:n] for name in ("bias_squares", "weights", "squares")}
        return {**out, **kept}
    if resume:
        out["bias_squares"] = scorers.bias_squares[:n]
    if isinstance(scorers, SparseScorers):
        return {**out, **stored_sparse(scorers, resume)}
    taken = scorers.keys != EMPTY
    cells = scorers.cells[taken]
    return {**out, "keys": scorers.keys[taken], "cells": cells if resume else cells[:, : cells.shape[1] // 2]}


def scorers_from_arrays(
    arrays: dict[str, NDArray[Any]], name: str, n_groups: int, width: int, n_features: int, sparse: bool, resume: bool
) -> Scorers:
    """Restore the scorers saved by `scorer_arrays`."""
    n = n_groups * width
    bias = np.array(expect(arrays, f"{name}/bias", np.float32, (n,)))
    squares = np.zeros(n, np.float32)
    if not sparse and not resume:
        halves = np.array(expect(arrays, f"{name}/halves", np.float16, (n, n_features)))
        return frozen_scorers(halves, np.array(expect(arrays, f"{name}/scale", np.float32, (n,))), bias)
    if resume:
        squares = np.array(expect_squares(arrays, f"{name}/bias_squares", (n,)))
    if not sparse:
        shape = (n, n_features)
        weights = np.array(expect(arrays, f"{name}/weights", np.float32, shape))
        weight_squares = np.array(expect_squares(arrays, f"{name}/squares", shape))
        return dense_scorers(weights, weight_squares, bias, squares)
    if width == 1:
        n_weights = len(arrays[f"{name}/owners"])
        return restored_sparse(
            expect(arrays, f"{name}/entries", np.uint32, (n_features,)),
            expect(arrays, f"{name}/owners", np.uint32, (n_weights,)),
            expect(arrays, f"{name}/weights", np.float32, (n_weights,)),
            expect_squares(arrays, f"{name}/squares", (n_weights,)) if resume else None,
            bias, squares,
        )  # fmt: skip
    keys, cells = table_from_arrays(arrays, f"{name}/", 2 * width, True, stored=2 * width if resume else width)
    return SparseGroups(keys, cells, np.array([(keys != EMPTY).sum(), 0]), bias, squares)


def regressors_without(arrays: dict[str, NDArray[Any]], kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the saved regressors of the `kept` labels."""
    saved = {name: array for name, array in arrays.items() if name.startswith("regressors/")}
    if "regressors/owners" not in saved:
        return {name: array[kept] for name, array in saved.items()}
    entries, owners = saved["regressors/entries"], saved["regressors/owners"]
    stays = kept[owners]
    feature = np.repeat(np.arange(len(entries)), entries)[stays]
    left = {name: array[kept if "bias" in name else stays] for name, array in saved.items() if array is not entries}
    left["regressors/owners"] = (np.cumsum(kept) - 1)[owners[stays]].astype(np.uint32)
    return {**left, "regressors/entries": np.bincount(feature, minlength=len(entries)).astype(np.uint32)}
