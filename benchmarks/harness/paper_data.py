"""The data sets of the four papers, read in the form in which they are published.

None of them comes with the project. Each is a suite like the others once its files are in the data folder; where they
come from is in `SOURCES`, and a suite whose files are missing says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.recipes import Part, Reader

ALOI_FEATURES, ALOI_TEST_SHARE = 128, 0.1
HASH_BITS = 22  # of the names of features in files of Vowpal Wabbit

SOURCES = {
    "aloi": "aloi.scale.bz2 of the LIBSVM multiclass collection (csie.ntu.edu.tw/~cjlin/libsvmtools/datasets)",
    "odp": "hunch.net/~vw/odp_train.vw.gz and odp_test.vw.gz",
    "ltcb": "mattmahoney.net/dc/enwik9.zip, made into enwik9.*.vw.gz by demo/recall_tree/ltcb of Vowpal Wabbit",
    "ltcb-in-order": "mattmahoney.net/dc/enwik9.zip, made into enwik9.inorder.*.vw.gz by demo/recall_tree/ltcb of Vowpal Wabbit",
    "wiki-small": "the subset of LSHTC of Joshi et al. (2017), one label a row, in the svmlight format",
    "eurlex": "EURLex-4K, bag of words, of the Extreme Classification Repository",
    "wiki10": "Wiki10-31K, bag of words, of the Extreme Classification Repository",
    "amazoncat": "AmazonCat-13K, bag of words, of the Extreme Classification Repository",
    "yfcc100m": "the tags of YFCC100M that fastText's authors publish, compressed with gzip",
}


def aloi(folder: Path, parts: Sequence[str]) -> list[Part]:
    """One file, of which a random tenth is the test part, as in the paper on LOMtrees."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(folder / "aloi/aloi.scale.bz2", n_features=ALOI_FEATURES)
    whole = Part(X.toarray().astype(np.float32), [[int(label)] for label in y])
    order = np.random.default_rng(0).permutation(len(y))
    n_test = round(ALOI_TEST_SHARE * len(y))
    rows = {"test": order[:n_test], "train": order[n_test:]}
    return [whole.take(np.sort(rows[part])) for part in parts]


def examples(file: str, format: str, **options: Any) -> Reader:
    """A file for each part, in a format that the library reads; rows are scaled to unit length."""

    def read(folder: Path, parts: Sequence[str]) -> list[Part]:
        from sklearn.preprocessing import normalize

        from treemax.formats import open_examples

        found = []
        for part in parts:
            with open_examples(folder / file.format(part=part), format=format, **options) as reader:
                found.append(reader.read_all())
        width = max(one.X.shape[1] for one in found)  # a file in the svmlight format does not say how wide it is
        return [Part(normalize(widened(one.X, width)), list(one.labels)) for one in found]

    return read


def widened(X: Any, n_features: int) -> Any:
    """The matrix with columns of zeros at its right."""
    from scipy.sparse import csr_matrix

    return csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], n_features))
