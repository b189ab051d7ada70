"""Data of a search: held-out rows for validation, and nested training samples."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.formats.examples import keep_labels
from treemax.inputs.labels import LabelIndex, RaggedLabels, check_same_length, read_labels
from treemax.inputs.rows import Rows, SparseRows, as_rows, take_rows
from treemax.inputs.weights import check_known_labels, read_weights
from treemax.memory import available_bytes
from treemax.text.vectorizers import holds_texts, read_texts
from treemax.tuning.spaces import Setting

LEAST_ROWS = 20
HELD_SHARE, HELD_OF_FEW, MOST_HELD = 0.1, 2000, 5000  # of small data up to a fifth, for 2,000 rows
STEP = 3  # ratio of the sizes of consecutive samples
LEAST_SAMPLE = 1000  # rows: smaller samples are not representative
FIRST_SAMPLE = 20_000  # approximate limit of the smallest sample
CACHE_SHARE = 0.25  # fraction of the available memory for vectorised texts


class Vectorised(NamedTuple):
    """The features of the texts of a sample, the vectoriser and its time."""

    vectorizer: Any
    X: Any
    seconds: float


class TuningData:
    """X and y with one split: all settings share the held-out rows, and samples are nested."""

    def __init__(self, X: Any, y: Any, random_state: int, sample_weight: Any = None, class_weight: Any = None) -> None:
        self.X, self.y, self.sample_weight, self.class_weight = X, y, sample_weight, class_weight
        self.texts: list[str] | None = read_texts(X) if holds_texts(X) else None
        self.rows: Rows | None = None if self.texts is not None else as_rows(X)
        self.labels = read_labels(y)
        self.n_rows = len(self.labels)
        found = len(self.rows) if self.texts is None else len(self.texts)  # type: ignore[arg-type]
        check_same_length(found, self.n_rows)
        self.weights = read_weights(sample_weight, self.n_rows)
        if self.weights is not None and not self.weights.all():
            self._leave_out_weight_zero(np.flatnonzero(self.weights))
        if self.n_rows < LEAST_ROWS:
            raise ValueError(f"tune needs at least {LEAST_ROWS} rows, got {self.n_rows}.")
        if not len(self.labels.values):
            raise ValueError("y has no labels at all: every row's label list is empty.")
        check_known_labels(class_weight, self.index()[0])
        self._order = np.random.default_rng(random_state).permutation(self.n_rows)
        self._hold_out(0)

    def _leave_out_weight_zero(self, kept: NDArray[np.int64]) -> None:
        chosen, self.labels = self._chosen(kept)
        self.texts, self.rows = (chosen, None) if self.texts is not None else (None, chosen)
        assert self.weights is not None
        self.weights, self.n_rows = self.weights[kept], len(kept)

    def _hold_out(self, fold: int) -> None:
        n_held = min(max(int(HELD_SHARE * self.n_rows), min(self.n_rows // 5, HELD_OF_FEW)), MOST_HELD)
        place = slice(fold * n_held, (fold + 1) * n_held)
        self.held, self._others = np.sort(self._order[place]), np.delete(self._order, place)
        self.held_X, self.held_labels = self._chosen(self.held)
        self.sizes = sample_sizes(len(self._others))
        self._vectorised: OrderedDict[tuple[str, int], Vectorised] = OrderedDict()

    def fold(self, number: int) -> TuningData:
        """Return the data with another held-out fold: fold 0 is that of the search, 1 to 4 are disjoint from it."""
        twin = copy(self)
        twin._hold_out(number)
        return twin

    @property
    def n_train(self) -> int:
        """Number of training rows."""
        return len(self._others)

    @property
    def multi_label(self) -> bool:
        return self.labels.multi_label

    def index(self) -> tuple[LabelIndex, NDArray[np.int64]]:
        """Return the index of all labels and their numbers of rows."""
        index = LabelIndex()
        first, last = self.labels.indptr[0], self.labels.indptr[-1]
        dtype = None if self.labels.values.dtype == object else self.labels.values.dtype
        ids = index.add(self.labels.values[first:last], dtype)
        return index, np.bincount(ids, minlength=len(index)).astype(np.int64)

    def sample(self, size: int) -> tuple[Any, RaggedLabels]:
        """Return a random sample of `size` training rows or texts, in their original order."""
        return self._chosen(self._sampled(size))

    def sample_weights(self, size: int) -> NDArray[np.float32] | None:
        """Return the weights of `sample`."""
        return None if self.weights is None else self.weights[self._sampled(size)]

    def class_weight_of(self, labels: RaggedLabels) -> Any:
        """Return the class weights for training on a sample, which may not have all of their labels."""
        if not isinstance(self.class_weight, Mapping):
            return self.class_weight
        found = set(labels.values[labels.indptr[0] : labels.indptr[-1]].tolist())
        return {label: weight for label, weight in self.class_weight.items() if label in found}

    def _sampled(self, size: int) -> NDArray[np.int64]:
        return np.sort(self._others[:size])

    def vectorised(self, setting: Setting, size: int) -> Vectorised:
        """Return the features of the texts of a sample; cached, because many settings share a vectoriser."""
        key = (Setting("", {}, setting.text, setting.text_parameters).key, size)
        if key not in self._vectorised:
            start = time.perf_counter()
            vectorizer = setting.vectorizer()
            X = vectorizer.fit_transform(self.sample(size)[0])
            self._vectorised[key] = Vectorised(vectorizer, X, time.perf_counter() - start)
            self._evict()
        self._vectorised.move_to_end(key)
        return self._vectorised[key]

    def _evict(self) -> None:
        limit = CACHE_SHARE * available_bytes()
        while len(self._vectorised) > 1 and sum(_size(kept.X) for kept in self._vectorised.values()) > limit:
            self._vectorised.popitem(last=False)

    def fingerprint(self) -> str:
        """Return a hash of all rows and labels, to resume a study only with the same data."""
        digest = hashlib.blake2b(digest_size=16)
        if self.texts is not None:
            for text in self.texts:
                digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        elif isinstance(self.rows, SparseRows):
            first, last = self.rows.indptr[0], self.rows.indptr[-1]
            for part in (self.rows.indptr - first, self.rows.indices[first:last], self.rows.values[first:last]):
                digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(np.ascontiguousarray(self.rows).tobytes())
        values = self.labels.values[self.labels.indptr[0] : self.labels.indptr[-1]]
        digest.update(np.ascontiguousarray(self.labels.counts).tobytes())
        digest.update("\0".join(map(str, values.tolist())).encode("utf-8", "surrogatepass"))
        if self.weights is not None:
            digest.update(self.weights.tobytes())
        if self.class_weight is not None:
            own = self.class_weight
            digest.update(repr(sorted(own.items(), key=repr) if isinstance(own, Mapping) else own).encode())
        return digest.hexdigest()

    def _chosen(self, rows: NDArray[np.int64]) -> tuple[Any, RaggedLabels]:
        """Return the rows or texts with these sorted numbers, and their labels."""
        keep = np.zeros(self.n_rows, dtype=bool)
        keep[rows] = True
        labels = keep_labels(self.labels, keep)
        if self.texts is not None:
            return [self.texts[row] for row in rows.tolist()], labels
        assert self.rows is not None
        return take_rows(self.rows, rows), labels


def sample_sizes(n_rows: int) -> list[int]:
    """Return the sizes of the samples, smallest first: a ninth, a third and all; for many rows also smaller ones.

    >>> sample_sizes(90_000), sample_sizes(6_000), sample_sizes(1_000)
    ([10000, 30000, 90000], [2000, 6000], [1000])
    """
    sizes = [n_rows]
    while sizes[-1] >= STEP * LEAST_SAMPLE and (len(sizes) < 3 or sizes[-1] > FIRST_SAMPLE):
        sizes.append(sizes[-1] // STEP)
    return sizes[::-1]


def _size(X: Any) -> int:
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
