"""Training of MACH: a flat linear model for the buckets of each repetition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.models.one_vs_all.model import FeatureMajor, LabelMajor, LinearModel, PackedFeatures


def default_buckets(n_labels: int) -> int:
    """Return the default number of buckets: twice the square root of the number of labels."""
    return max(2, math.ceil(2 * math.sqrt(n_labels)))


def bucket_targets(targets: Targets, buckets: NDArray[np.uint32]) -> Targets:
    """Return the buckets of the labels of each row, sorted and without repetition.

    The relevance of a bucket is that of its most relevant label.
    """
    row = np.repeat(np.arange(len(targets), dtype=np.int64), np.diff(targets.indptr))
    ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
    n_buckets = int(buckets.max(initial=0)) + 1
    keys = row * n_buckets + buckets[ids]
    pairs = np.unique(keys)
    indptr = np.zeros(len(targets) + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs // n_buckets, minlength=len(targets)), out=indptr[1:])
    relevance = None
    if targets.relevance is not None:
        relevance = np.zeros(len(pairs), dtype=np.float32)
        of_labels = targets.relevance[targets.indptr[0] : targets.indptr[-1]]
        np.maximum.at(relevance, np.searchsorted(pairs, keys), of_labels)
    return Targets(indptr, (pairs % n_buckets).astype(np.uint32), targets.weights, relevance)


def side_by_side(models: Sequence[LinearModel]) -> LinearModel:
    """Return one linear model with the scores of all, for prediction."""
    bias = np.concatenate([model.bias for model in models])
    first = models[0]
    if isinstance(first, LabelMajor):
        weights = np.concatenate([model.weights for model in models])
        return LabelMajor(weights, bias, mean=first.mean, factor=first.factor)
    table = sp.hstack([_sparse_weights(model) for model in models], format="csr")
    indptr, columns = table.indptr.astype(np.int64), table.indices.astype(np.uint32)
    return PackedFeatures(indptr, columns, table.data.astype(np.float32), bias)


def _sparse_weights(model: LinearModel) -> sp.csr_matrix:
    if isinstance(model, PackedFeatures):
        parts = (model.weights, model.labels.astype(np.int64), model.indptr)
        return sp.csr_matrix(parts, shape=(model.n_features, model.n_labels))
    assert isinstance(model, FeatureMajor)
    return sp.csr_matrix(model.weights[:, : model.n_labels])
