"""Label vectors given by the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from treemax.inputs.labels import LabelIndex, read_labels
from treemax.inputs.numbering import numbered
from treemax.inputs.rows import Rows, SparseRows, as_rows
from treemax.trees.kmeans import unit_rows


def given_vectors(label_features: Any, labels: LabelIndex) -> SparseRows:
    """Return the given features of the labels, one row per label in order of ids, with unit norm.

    `label_features` is a mapping from label to features, or a pair (labels, matrix) with one row per label.
    Labels outside the index are ignored.
    """
    names, features = _names_and_features(label_features)
    given = read_labels(names, "the labels of label_features")
    matrix = numbered(as_rows(features, "label_features"))
    if given.multi_label or len(given) != len(matrix):
        raise ValueError(
            f"label_features has {len(given)} labels and {len(matrix)} rows; expected one row for each label."
        )
    row_of = dict(zip(given.values.tolist(), range(len(given))))
    if len(row_of) < len(given):
        raise ValueError("label_features has two rows for one label.")
    wanted = labels.classes.tolist()
    missing = [label for label in wanted if label not in row_of]
    if missing:
        raise ValueError(
            f"label_features has no row for {len(missing)} of the {len(wanted)} labels of y, such as {missing[0]!r}. "
            "Give every label a row (zeros if its features are unknown)."
        )
    return unit_rows(_taken(matrix, [row_of[label] for label in wanted]))


def _names_and_features(label_features: Any) -> tuple[Any, Any]:
    if isinstance(label_features, Mapping):
        rows = list(label_features.values())
        sparse = bool(rows) and all(map(sp.issparse, rows))
        return list(label_features), sp.vstack(rows, format="csr") if sparse else rows
    if isinstance(label_features, tuple) and len(label_features) == 2:
        return label_features
    raise ValueError(
        "label_features must be a mapping from label to features, or a pair (labels, matrix), got "
        f"{type(label_features).__name__}."
    )


def _taken(matrix: Rows, rows: list[int]) -> SparseRows:
    whole = matrix.to_scipy() if isinstance(matrix, SparseRows) else sp.csr_matrix(matrix)
    taken = as_rows(whole[np.array(rows)], "label_features")
    assert isinstance(taken, SparseRows)
    return taken
