"""Classifiers from model files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.light.calibration import RowCalibration
from treemax.light.rows import Row, is_sparse, renumbered, rows_of, take
from treemax.light.text import NeedsLibrary, check_analysis, hashing, tfidf
from treemax.light.trees import (
    LabelTree,
    LearnedTree,
    OnlineTree,
    SearchTree,
    best_labels,
    check_tree,
    labels_above,
    logistic,
    softmax,
)
from treemax.modelfile import AnyPath, Arrays, ModelFileError, part, read_checked, read_header
from treemax.numpy_only.calibration import LEADING
from treemax.numpy_only.frequencies import empty_row_frequencies, label_frequencies, most_frequent
from treemax.numpy_only.storage import Strings
from treemax.numpy_only.topk import TopK as TopK
from treemax.numpy_only.topk import check_k

Result = TypeVar("Result")
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
DAMAGES = (LookupError, TypeError, ValueError, ArithmeticError)  # with arrays that do not match
MODELS = ("LabelTree", "LearnedTree", "OneVsAll", "OnlineLabelTree")
VECTORIZERS = ("HashingText", "TfidfText")


class Scorer(Protocol):
    """A trained model without calibration."""

    n_trees: int  # that are searched for every row

    def best(self, row: Row, k: int) -> tuple[Ids, Floats]:
        """Return the k best labels and their scores, best first; fewer if fewer were found."""

    def above(self, row: Row, least: float) -> tuple[Ids, Floats]:
        """Return the labels with at least this score."""

    def all(self, row: Row) -> Floats:
        """Return the scores of all labels."""


def load(path: AnyPath, verify: bool | None = None) -> LightModel:
    """Load a model that `save` of a classifier or of a `TextModel` has written; `verify` as in `treemax.load`.

    Raises `ValueError` for models, vectorisers and label changes that need the whole library.
    """
    header, arrays = read_checked(path, verify)
    try:
        _check_supported(header)
        if header["class"] != "TextModel":
            return LightModel(header, arrays)
        vectorizer = _vectorizer(header["state"]["vectorizer"], part("vectorizer", arrays))
        return LightModel(header["state"]["estimator"], part("estimator", arrays), vectorizer)
    except NeedsLibrary:
        raise
    except (*DAMAGES, AttributeError, re.error) as error:
        raise _damaged(error, f"{path}") from error


def supports(path: AnyPath) -> bool:
    """Return whether `load` supports the model, judging by the header of its file."""
    try:
        _check_supported(read_header(path)["header"])
    except (*DAMAGES, AttributeError):
        return False
    return True


def _check_supported(header: dict[str, Any]) -> None:
    """Raise NeedsLibrary for models, vectorisers and label changes that need the whole library."""
    state = header["state"]
    if header["class"] == "TextModel":
        vectorizer = state["vectorizer"]
        if vectorizer["class"] not in VECTORIZERS:
            raise NeedsLibrary(f"treemax.light has no {vectorizer['class']}: use treemax.load.")
        if vectorizer["class"] == "TfidfText":
            check_analysis(vectorizer["state"]["parameters"])
        header, state = state["estimator"], state["estimator"]["state"]
    if header["class"] not in MODELS:
        raise NeedsLibrary(f"treemax.light has no {header['class']}: use treemax.load.")
    if state.get("label_changes", {}).get("merged"):
        raise NeedsLibrary("treemax.light cannot answer for merged labels: use treemax.load.")


def _damaged(error: Exception, what: str) -> ModelFileError:
    return ModelFileError(f"{what}: is damaged ({type(error).__name__}: {error}).")


def _vectorizer(header: dict[str, Any], arrays: Arrays) -> Callable[[str], Row]:
    state = header["state"]
    if header["class"] == "TfidfText":
        return tfidf(state["parameters"], _strings(part("terms", arrays)).all(), arrays["idf"])
    return hashing(state["parameters"])


class LightModel:
    """A classifier for prediction; see `treemax.light`.

    `X` is a list of texts for a `TextModel`; else a dense matrix, a SciPy CSR matrix or a list of dictionaries from
    column to value.
    """

    def __init__(self, header: dict[str, Any], arrays: Arrays, vectorizer: Callable[[str], Row] | None = None) -> None:
        state = header["state"]
        self.multi_label_ = state["label_form"] != "vector"
        self._labels = Labels(part("labels", arrays), state["label_dtype"])
        if len(self._labels) == 0:
            raise NeedsLibrary("treemax.light cannot answer for a model without labels: use treemax.load.")
        self._vectorize = vectorizer
        self._scorer = _scorer(header["class"], state, part("model", arrays), len(self._labels))
        self._calibration = RowCalibration.checked(state["calibration"])
        self._thresholds = arrays.get("label_thresholds")
        self._frequencies = _frequencies(state, arrays, self.multi_label_, len(self._labels))
        self._if_unknown = _frequencies_if_unknown(self._frequencies, arrays)
        self._n_features, self._sparse = int(state["n_features"]), bool(state["sparse_input"])
        self._direct, self._feature_ids = state.get("direct_features"), arrays.get("feature_ids")
        self._unit_length = header["class"] == "OnlineLabelTree" and bool(state["parameters"]["normalize"])

    @property
    def classes_(self) -> NDArray[Any]:
        """All labels."""
        return self._of_file(self._labels.of, np.arange(len(self._labels)))

    @property
    def n_trees(self) -> int:
        """The number of trees that are searched for every row."""
        return self._scorer.n_trees

    @property
    def takes_text(self) -> bool:
        """Whether `X` is a list of texts."""
        return self._vectorize is not None

    def predict_topk(self, X: Any, k: int = 5) -> TopK:
        """Predict the k most probable labels of each row, best first, with their probabilities."""
        check_k(k)
        k = min(int(k), len(self._labels))
        rows = self._rows(X)
        ids, scores = np.full((len(rows), k), -1), np.zeros((len(rows), k), dtype=np.float32)
        for i, row in enumerate(rows):
            found, probabilities = self._of_file(self._top, row, k)
            ids[i, : len(found)], scores[i, : len(found)] = found, probabilities
        labels = self._of_file(self._labels.of, np.maximum(ids, 0))
        if (ids < 0).any():
            labels = labels.astype(object)
            labels[ids < 0] = None
        return TopK(labels, scores)

    def predict(self, X: Any) -> Any:
        """Predict the label of each row; of a multi-label model a list of labels."""
        rows = self._rows(X)
        if not self.multi_label_:
            ids = np.array([self._of_file(self._top, row, 1)[0][0] for row in rows], dtype=np.int64)
            return self._of_file(self._labels.of, ids)
        found = [self._of_file(self._above_threshold, row) for row in rows]
        return [self._of_file(self._labels.of, ids).tolist() for ids in found]

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Predict the probability of every label, in the order of `classes_`."""
        rows = self._rows(X)
        return np.array([self._of_file(self._all, row) for row in rows], dtype=np.float32).reshape(
            len(rows), len(self._labels)
        )

    def _of_file(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return what `work` returns for an input that is valid; it fails if the arrays do not match."""
        try:
            return work(*arguments)
        except DAMAGES as error:
            raise _damaged(error, "The model file") from error

    def _rows(self, X: Any) -> list[Row]:
        if self._vectorize is not None:
            if isinstance(X, str | bytes) or not all(isinstance(text, str) for text in X):
                raise ValueError("Expected a list of texts.")
            return [self._of_file(self._vectorize, text) for text in X]
        rows = rows_of(X)
        if is_sparse(X):
            return [self._numbered(row) for row in rows]
        width = np.shape(X)[1]
        if width != self._n_features:
            raise ValueError(f"X has {width} features, but the model is expecting {self._n_features}.")
        return rows

    def _numbered(self, row: Row) -> Row:
        """Return the features of a sparse row as the model numbers them."""
        if self._feature_ids is None or self._direct is None:
            return row
        direct = row.indices < self._direct
        order = np.argsort(self._feature_ids)
        place, values = renumbered(take(row, ~direct), self._feature_ids[order])
        indices = np.concatenate([row.indices[direct], self._direct + order[place]])
        sorted_order = np.argsort(indices)
        return Row(indices[sorted_order], np.concatenate([row.values[direct], values])[sorted_order])

    def _known(self, row: Row) -> Row | None:
        """Return the known features of a row, scaled as the model takes them; None if a sparse row has none."""
        row = take(row, row.indices < self._n_features)
        if self._sparse and len(row.indices) == 0:
            return None
        if self._unit_length:
            length = np.sqrt(np.sum(row.values.astype(np.float64) ** 2))
            row = Row(row.indices, (row.values / (length or 1.0)).astype(np.float32))
        return row

    def _top(self, row: Row, k: int) -> tuple[Ids, Floats]:
        known = self._known(row)
        if known is None:
            ids = most_frequent(self._if_unknown, k)
            return ids, self._if_unknown[ids]
        if self.multi_label_ or not self._calibration.changes_scores:
            ids, scores = self._scorer.best(known, k)
            return ids, self._calibration.probabilities(scores)
        ids, leading = self._scorer.best(known, min(max(k, LEADING), len(self._labels)))
        probabilities = self._calibration.multiclass_probabilities(leading, leading[:LEADING], np.arange(len(ids)) == 0)
        return ids[:k], probabilities[:k]

    def _above_threshold(self, row: Row) -> Ids:
        common, known = self._calibration.threshold, self._known(row)
        lowest = common if self._thresholds is None else min(common, float(self._thresholds.min(initial=1.0)))
        if known is None:
            ids = np.flatnonzero(self._if_unknown >= np.float32(lowest))
            probabilities = self._if_unknown[ids]
        else:
            ids, scores = self._scorer.above(known, self._calibration.lowest_score(lowest))
            probabilities = self._calibration.probabilities(scores)
        least = np.full(len(self._labels), common, dtype=np.float32)
        if self._thresholds is not None:
            least[: len(self._thresholds)] = self._thresholds
        ids = np.sort(ids[probabilities >= least[ids]])
        if len(ids) == 0 and self._calibration.one_at_least:
            return self._top(row, 1)[0]
        return ids

    def _all(self, row: Row) -> Floats:
        known = self._known(row)
        if known is None:
            return self._if_unknown
        scores = self._scorer.all(known)
        if self.multi_label_ or not self._calibration.changes_scores:
            return self._calibration.probabilities(scores)
        leading = -np.sort(-scores)[:LEADING]
        is_first = np.arange(len(scores)) == scores.argmax()
        answer = self._calibration.multiclass_probabilities(scores, leading, is_first)
        return answer / answer.sum() if answer.sum() > 0 else self._frequencies


class Labels:
    """The labels by id; strings are decoded when they are answered."""

    def __init__(self, arrays: Arrays, dtype: str | None) -> None:
        self._values = arrays["integers"] if "integers" in arrays else _strings(arrays)
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._values)

    def of(self, ids: Ids) -> NDArray[Any]:
        """Return the labels of ids, in the type of those of training."""
        if isinstance(self._values, Strings):
            labels = np.empty(ids.shape, dtype=object)
            labels.ravel()[:] = [self._values[number] for number in ids.ravel().tolist()]
        else:
            labels = self._values[ids]
        return labels if self._dtype is None else labels.astype(self._dtype)


def _strings(arrays: Arrays) -> Strings:
    """Return the strings of a model file, whose offsets are validated."""
    offsets = arrays["offsets"]
    lengths = np.diff(offsets.astype(np.float64), prepend=0.0, append=float(len(arrays["bytes"])))
    if offsets.ndim != 1 or (lengths < 0).any():
        raise ValueError("the offsets of strings are not in order")
    return Strings(arrays["bytes"], offsets)


def _frequencies(state: dict[str, Any], arrays: Arrays, multi_label: bool, n_labels: int) -> Floats:
    """Return the share of the training rows that have each label."""
    counts, total = arrays["label_counts"], state["n_examples"]
    if "label_weights" in arrays:
        counts, total = arrays["label_weights"][:-1], arrays["label_weights"][-1]
    if counts.shape != (n_labels,) or not counts.min(initial=0.0) >= 0:
        raise ValueError("the numbers of rows are not those of the labels")
    return label_frequencies(counts, total, multi_label)


def _frequencies_if_unknown(frequencies: Floats, arrays: Arrays) -> Floats:
    """Return the probabilities of labels for a row without known features; see `treemax.models.base.empty_rows.EmptyRows`."""
    if "empty_rows" not in arrays:
        return frequencies
    return empty_row_frequencies(arrays["empty_rows"][:-1], float(arrays["empty_rows"][-1]), frequencies)


def _scorer(name: str, state: dict[str, Any], arrays: Arrays, n_labels: int) -> Scorer:
    """Return the trained model of a class."""
    header, parameters, one_label = state["model"], state["parameters"], state["label_form"] == "vector"
    if name == "OneVsAll":
        return Linear(arrays, header["layout"], header["settings"]["loss"], one_label)
    trees: list[SearchTree]
    labels_a_row = 1.0
    if name == "LabelTree":
        trees = [LabelTree(part(str(number), arrays), link) for number, link in enumerate(header["links"])]
    elif name == "LearnedTree":
        trees, labels_a_row = [LearnedTree(header, arrays)], float(header["labels_a_row"])
    else:
        scale_siblings = header["settings"].get("scale_siblings", True)  # not in files of earlier versions
        trees = [OnlineTree(part("tree", arrays), one_label, scale_siblings)]
    for tree in trees:
        check_tree(tree, n_labels)
    width = None if parameters["search"] == "exact" else int(parameters["beam"])
    return Trees(trees, width, n_labels, labels_a_row)


class Trees:
    """Trees over the same labels, whose scores are averaged."""

    def __init__(self, trees: list[SearchTree], width: int | None, n_labels: int, labels_a_row: float) -> None:
        self._trees, self._width, self._n_labels, self._labels_a_row = trees, width, n_labels, labels_a_row
        self.n_trees = len(trees)

    def best(self, row: Row, k: int) -> tuple[Ids, Floats]:
        found = [best_labels(tree, row, k, self._width) for tree in self._trees]
        if len(found) == 1:
            return self._one_tree(dict(found[0]))
        candidates = np.unique([label for labels in found for label, _ in labels])
        scores = self._mean(row, candidates)[candidates]
        order = np.lexsort((candidates, -scores))[:k]
        return candidates[order], scores[order]

    def above(self, row: Row, least: float) -> tuple[Ids, Floats]:
        found = [labels_above(tree, row, least / self._labels_a_row) for tree in self._trees]
        if len(found) == 1:
            return self._one_tree(found[0])
        ids = np.unique([label for labels in found for label in labels]).astype(np.int64)
        scores = self._mean(row, ids)[ids]
        return ids[scores >= np.float32(least)], scores[scores >= np.float32(least)]

    def all(self, row: Row) -> Floats:
        return self._per_row(self._mean(row))

    def _one_tree(self, found: dict[int, float]) -> tuple[Ids, Floats]:
        scores = np.array(list(found.values()), dtype=np.float32)
        return np.array(list(found), dtype=np.int64), self._per_row(scores)

    def _mean(self, row: Row, ids: Ids | None = None) -> Floats:
        """Return the mean scores of all labels, or of those with these ids, where those of others are too low."""
        scores = np.zeros(self._n_labels, dtype=np.float32)
        for tree in self._trees:
            paths = tree.paths_to(ids) if ids is not None and isinstance(tree, LabelTree) else None
            found = labels_above(tree, row, 0.0, paths)
            scores[list(found)] += np.array(list(found.values()), dtype=np.float32)
        return scores / np.float32(len(self._trees))

    def _per_row(self, scores: Floats) -> Floats:
        return scores if self._labels_a_row == 1.0 else np.minimum(scores * np.float32(self._labels_a_row), 1.0)


class Linear:
    """One linear classifier for each label."""

    n_trees = 1

    def __init__(self, arrays: Arrays, layout: str, loss: str, one_label: bool) -> None:
        self._arrays, self._layout, self._loss, self._one_label = arrays, layout, loss, one_label

    def best(self, row: Row, k: int) -> tuple[Ids, Floats]:
        scores = self._scores(row)  # several may have the same probability
        ids = np.argsort(-scores.astype(np.float32), kind="stable")[:k]
        return ids, self._linked(scores)[ids]

    def above(self, row: Row, least: float) -> tuple[Ids, Floats]:
        scores = self.all(row)
        ids = np.flatnonzero(scores >= least)
        return ids, scores[ids]

    def all(self, row: Row) -> Floats:
        return self._linked(self._scores(row))

    def _linked(self, scores: NDArray[np.float64]) -> Floats:
        """Return the probabilities of scores."""
        if self._loss == "softmax":
            return softmax(scores)
        if self._loss == "logistic":
            chances = logistic(scores)
        else:
            chances = np.clip((1.0 + scores) / 2, 1e-6, 1.0).astype(np.float32)
        return chances / chances.sum() if self._one_label else chances

    def _scores(self, row: Row) -> NDArray[np.float64]:
        arrays, values = self._arrays, row.values.astype(np.float64)
        bias = arrays["bias"].astype(np.float64)
        if self._layout == "feature-major":
            for column, value in zip(row.indices.tolist(), values.tolist()):
                bias += value * arrays["weights"][column]
            return bias
        if self._layout == "packed-features":
            for column, value in zip(row.indices.tolist(), values.tolist()):
                place = slice(int(arrays["indptr"][column]), int(arrays["indptr"][column + 1]))
                bias[arrays["labels"][place]] += value * arrays["weights"][place]
            return bias
        dense = np.zeros(arrays["weights"].shape[1])
        dense[row.indices] = values
        if "mean" in arrays:
            dense = (dense - arrays["mean"]) * arrays["factor"]
        return arrays["weights"] @ dense.astype(np.float32) + bias  # a copy in double precision may be too large
