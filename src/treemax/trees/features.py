"""Label vectors given by the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from treemax.inputs.labels import LabelIndex, read_labels
from treemax.inputs.numbering import numbered
from treemax.inputs.rows import Rows, SparseRows, as_rows, take_rows
from treemax.trees.kmeans import unit_rows


def given_vectors(label_features: Any, labels: LabelIndex) -> SparseRows:
    """Return the given features of the labels, one row per label in order of ids, with unit norm.

    `label_features` is a mapping from label to features, or a pair (labels, matrix) with one row per label.
    Labels outside the index are ignored.
    """
    row_of, matrix = _read(label_features)
    matrix = numbered(matrix)
    wanted = labels.classes.tolist()
    missing = [label for label in wanted if label not in row_of]
    if missing:
        raise ValueError(
            f"label_features has no row for {len(missing)} of the {len(wanted)} labels of y, such as {missing[0]!r}. "
            "Give every label a row (zeros if its features are unknown)."
        )
    return unit_rows(_taken(matrix, [row_of[label] for label in wanted]))


def combined_vectors(examples: SparseRows, given: SparseRows, share: float) -> SparseRows:
    """Return label vectors from those of examples and given ones, which have a share of the cosine similarity.

    They are added if both have the same number of features, else the features of both are put side by side.
    """
    if examples.n_features == given.n_features:
        both = (1 - share) * examples.to_scipy() + share * given.to_scipy()
    else:
        parts = [np.sqrt(1 - share) * examples.to_scipy(), np.sqrt(share) * given.to_scipy()]
        both = sp.hstack(parts, format="csr")
    rows = as_rows(sp.csr_matrix(both, dtype=np.float32), "label_features")
    assert isinstance(rows, SparseRows)
    return unit_rows(rows)


def unseen_labels(label_features: Any, known: LabelIndex) -> tuple[list[Any], Rows]:
    """Return the labels of `label_features` that are not known, and their features."""
    row_of, matrix = _read(label_features)
    unseen = [label for label in row_of if label not in known]
    return unseen, take_rows(matrix, np.array([row_of[label] for label in unseen], dtype=np.int64))


def _read(label_features: Any) -> tuple[dict[Any, int], Rows]:
    """Return the row of each label, and the rows."""
    names, features = _names_and_features(label_features)
    given = read_labels(names, "the labels of label_features")
    matrix = as_rows(features, "label_features")
    if given.multi_label or len(given) != len(matrix):
        raise ValueError(
            f"label_features has {len(given)} labels and {len(matrix)} rows; expected one row for each label."
        )
    row_of = dict(zip(given.values.tolist(), range(len(given))))
    if len(row_of) < len(given):
        raise ValueError("label_features has two rows for one label.")
    return row_of, matrix


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
