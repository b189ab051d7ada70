"""A vectoriser and an estimator as one classifier of raw texts."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_is_fitted

from treemax.explanations import Explanation
from treemax.formats.training_rows import training_chunks
from treemax.inputs.labels import check_same_length, read_labels
from treemax.inputs.rows import as_rows
from treemax.inputs.weights import read_weights
from treemax.modelfile import (
    AnyPath,
    Arrays,
    object_from_parts,
    object_parts,
    part,
    prefixed,
    save,
    saveable,
    without_changes,
)
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.base.explaining import explanation_of_text
from treemax.models.base.thread_safety import SharedEstimator
from treemax.models.label_tree.estimator import LabelTree
from treemax.models.training.stored_examples import Source, stored_rows
from treemax.parallel.locks import fork_safe
from treemax.text.vectorizers import HashingText, TextInput, TfidfText, holds_texts, read_texts

Result = TypeVar("Result")

_REPLACING = fork_safe(threading.Lock())


def _register_transformers() -> None:
    """Register the transformers of scikit-learn, whose imports take a while, for model files."""
    import treemax.models.transformers  # noqa: F401


def _estimator_has(name: str) -> Callable[[TextModel], bool]:
    """Return the condition that the estimator has a method, for `available_if`."""
    return lambda model: hasattr(model.estimator, name)


def _with_weight(texts: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return texts, y and weights without the texts of weight zero."""
    labels = read_labels(y)
    check_same_length(_num_samples(texts), len(labels))
    weights = read_weights(sample_weight, len(labels))
    if weights is None or weights.all() or not weights.any():
        return texts, labels, weights
    kept = np.flatnonzero(weights)
    return _safe_indexing(texts, kept), labels.take(kept), weights[kept]


@saveable
class TextModel(TextInput, ClassifierMixin, BaseEstimator):
    """A vectoriser and an estimator as one classifier of raw texts, saved as one model.

    Both may be positional arguments, and are fitted in place, as in a scikit-learn pipeline. The learned attributes of
    the estimator (`classes_`, `label_index_`, ...) are also attributes of the model.

    Parameters
    ----------
    vectorizer
        `TfidfText()` by default; `HashingText`, or any transformer. Of scikit-learn's, `save` knows the vectorisers of
        texts, the common scalers, and pipelines and unions of them (`treemax.models.transformers`).
    estimator
        Any Treemax classifier, `LabelTree()` by default.

    Examples
    --------
    >>> from treemax import TextModel
    >>> model = TextModel().fit(["red apple", "green pear", "fast car"], ["fruit", "fruit", "vehicle"])
    >>> model.predict(["apple"]).tolist()
    ['fruit']
    """

    _version = 0  # incremented before and after `fit` replaces vectoriser and estimator, so odd in between

    def __init__(self, vectorizer: Any = None, estimator: Any = None) -> None:
        self.vectorizer: Any = TfidfText() if vectorizer is None else vectorizer
        self.estimator: Any = LabelTree() if estimator is None else estimator

    def fit(self, texts: Any, y: Any, label_texts: Any = None, **options: Any) -> TextModel:
        """Fit the vectoriser to the texts and the estimator to the features and `y`.

        `label_texts`, a dictionary from labels to names or descriptions, become the `label_features` of `LabelTree`; the
        vectoriser learns their words, too. With `add_unseen=True`, labels that are only there can be answered. `options`
        (such as `label_share` of `LabelTree`) are passed to the estimator's `fit`. The vectoriser counts every text once,
        whatever its `sample_weight`; texts of weight zero are left out.
        """
        if not hasattr(self.vectorizer, "transform"):
            raise ValueError(
                f"TextModel takes a vectorizer first, and {self.vectorizer!r} is none: it has no transform. "
                f"Write TextModel(estimator={self.vectorizer!r})."
            )
        vectorizer = clone(self.vectorizer)
        if options.get("sample_weight") is not None:
            texts, y, options["sample_weight"] = _with_weight(texts, y, options["sample_weight"])
        X = vectorizer.fit_transform(texts)
        if label_texts is not None:
            if not isinstance(label_texts, Mapping):
                raise ValueError(f"label_texts must be a dictionary from labels to texts, got {label_texts!r:.80}.")
            if isinstance(vectorizer, TfidfText):
                vectorizer = vectorizer.with_words_of(list(label_texts.values()))
                X = vectorizer.transform(texts)
            options["label_features"] = list(label_texts), vectorizer.transform(list(label_texts.values()))
        self._train(vectorizer, lambda estimator: estimator.fit(X, y, **options))
        return self

    def _train(self, vectorizer: Any, train: Callable[[Any], object]) -> None:
        """Train a copy of the estimator, then replace estimator and vectoriser together.

        An error leaves the model unchanged.
        """
        estimator = self.estimator
        trainee = estimator._snapshot() if isinstance(estimator, SharedEstimator) else estimator
        before = dict(vars(trainee))
        try:
            train(trainee)
        except TrainingInterrupted:  # the partially trained estimator is kept
            self._replace(vectorizer, trainee, before)
            raise
        self._replace(vectorizer, trainee, before)

    def _replace(self, vectorizer: Any, trainee: Any, before: dict[str, Any]) -> None:
        with _REPLACING:
            self._version += 1
            try:
                if trainee is not self.estimator:
                    self.estimator._update_from(trainee, before)
                vars(self.vectorizer).update(vars(vectorizer))
            finally:
                self._version += 1

    def _consistently(self, work: Callable[..., Result], *args: Any) -> Result:
        """Call `work`, again if `fit` has replaced vectoriser and estimator meanwhile, so that both are of one `fit`."""
        while True:
            version, error = self._version, None
            try:
                result = work(*args)
            except Exception as failed:
                error = failed
            if version == self._version and version % 2 == 0:
                if error is not None:
                    raise error
                return result
            time.sleep(0.001)

    def _snapshot(self) -> TextModel:
        """Return a copy, which does not change when `fit` replaces vectoriser and estimator."""
        vectorizer = copy.copy(self.vectorizer)
        return TextModel(vectorizer, without_changes(self.estimator, lambda estimator: estimator))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, **vars(self._consistently(self._snapshot)), "_version": 0}

    @available_if(_estimator_has("fit_file"))
    def fit_file(
        self, source: Any, *, memory: int | str = "2GB", folder: Any = None, label_features: Any = None, **reading: Any
    ) -> TextModel:
        """Train on texts that may be larger than memory; see `LabelTree.fit_file`.

        The vocabulary of `TfidfText` is kept in memory.
        """
        limit = self.estimator._check_fit_file(memory)
        data = Source(source, self.estimator.verbose, reading)
        if not data.overview.texts:
            raise ValueError(f"{data.name} holds features, not texts: call fit_file of the estimator.")
        vectorizer = clone(self.vectorizer)
        rows_of = vectorizer.fit_transform
        if hasattr(vectorizer, "fit_chunks"):
            rows_of = vectorizer.fit_chunks(chunk.texts for chunk in data.chunks("counting words"))
        elif getattr(vectorizer.__sklearn_tags__(), "requires_fit", True):
            raise ValueError(f"fit_file takes TfidfText or HashingText as vectorizer, not {type(vectorizer).__name__}.")
        stored = stored_rows(data, lambda texts: as_rows(rows_of(texts)), 1, folder)
        self._train(vectorizer, lambda estimator: estimator._fit_stored(stored, data, limit, label_features))
        return self

    @available_if(_estimator_has("partial_fit"))
    def partial_fit(self, texts: Any, y: Any, **options: Any) -> TextModel:
        """Update the estimator with more texts; the vectoriser must be stateless or fitted, and does not change.

        `options` are passed to the estimator's `partial_fit`.
        """
        try:
            check_is_fitted(self.vectorizer)
        except NotFittedError:
            raise NotFittedError(
                f"partial_fit cannot begin with an unfitted {type(self.vectorizer).__name__}: its vocabulary must be "
                "known first. Fit the vectorizer (or the model) first, or use HashingText, which needs no fitting."
            ) from None
        self.estimator.partial_fit(self.vectorizer.transform(texts), y, **options)
        return self

    @available_if(_estimator_has("partial_fit"))
    def fit_stream(
        self, source: Any, *, chunk_rows: int = 1000, multi_label: bool = False, **reading: Any
    ) -> TextModel:
        """Update the estimator with a stream of texts, chunk by chunk; see `OnlineLabelTree.fit_stream`."""
        multi_label = multi_label or bool(getattr(self.estimator, "multi_label_", False))
        for texts, y, weights in training_chunks(source, chunk_rows, multi_label, **reading):
            self.partial_fit(texts, y, **({} if weights is None else {"sample_weight": weights}))
        return self

    def predict(self, texts: Any) -> Any:
        """Predict the labels of each text; see `predict` of the estimator."""
        return self._consistently(lambda: self.estimator.predict(self._rows(texts)))

    def predict_topk(self, texts: Any, k: int = 5, **options: Any) -> Any:
        """Predict the k most probable labels of each text, best first, with their probabilities.

        `options` (such as `labels` or `exclude`) are passed to the estimator's `predict_topk`.
        """
        return self._consistently(lambda: self.estimator.predict_topk(self._rows(texts), k, **options))

    @available_if(_estimator_has("predict_proba"))
    def predict_for_utility(self, texts: Any, k: int = 5, utility: str = "macro-f1", **options: Any) -> Any:
        """Predict the k labels of each text that maximise an expected utility; see the same method of the estimator."""
        return self._consistently(lambda: self.estimator.predict_for_utility(self._rows(texts), k, utility, **options))

    def make_label_weights(self, **options: Any) -> Any:
        """Return weights of all labels for `predict_topk`; see `make_label_weights` of the estimator."""
        return self.estimator.make_label_weights(**options)

    @available_if(_estimator_has("set_taxonomy"))
    def set_taxonomy(self, taxonomy: Any) -> TextModel:
        """Set the taxonomy of the labels; see `set_taxonomy` of the estimator."""
        self.estimator.set_taxonomy(taxonomy)
        return self

    @available_if(_estimator_has("set_taxonomy"))
    def predict_levels(self, texts: Any, k: int = 5, **options: Any) -> Any:
        """Predict the k most probable nodes of each level of the taxonomy; see `predict_levels` of the estimator."""
        return self._consistently(lambda: self.estimator.predict_levels(self._rows(texts), k, **options))

    @available_if(_estimator_has("set_taxonomy"))
    def predict_backoff(self, texts: Any, confidence: float = 0.8, **options: Any) -> Any:
        """Predict the most specific node with at least this probability; see `predict_backoff` of the estimator."""
        return self._consistently(lambda: self.estimator.predict_backoff(self._rows(texts), confidence, **options))

    @available_if(_estimator_has("forget"))
    def add_labels(self, texts: Any, y: Any, **options: Any) -> TextModel:
        """Add labels to the trained model from a few texts of each; see `add_labels` of the estimator.

        Words that `TfidfText` does not know are added to its vocabulary by the rules of `fit`, with the idf of its rarest
        words; known words keep theirs. Other vectorisers do not change, nor do those of models that learn online.
        """
        check_is_fitted(self)
        if hasattr(self.estimator, "partial_fit"):
            self.estimator.add_labels(self.vectorizer.transform(texts), y, **options)
            return self
        vectorizer = self.vectorizer
        if isinstance(vectorizer, TfidfText):
            vectorizer = vectorizer.with_words_of(texts)
        X = vectorizer.transform(texts)
        self._train(vectorizer, lambda estimator: estimator.add_labels(X, y, **options))
        return self

    @available_if(_estimator_has("forget"))
    def forget(self, labels: Any) -> TextModel:
        """Never answer these labels again; see `forget` of the estimator."""
        self.estimator.forget(labels)
        return self

    @available_if(_estimator_has("forget"))
    def rename(self, names: Any) -> TextModel:
        """Give labels new names, from a dictionary of old to new names; see `rename` of the estimator."""
        self.estimator.rename(names)
        return self

    @available_if(_estimator_has("forget"))
    def merge(self, labels: Any) -> TextModel:
        """Make labels parts of others, from a dictionary; see `merge` of the estimator."""
        self.estimator.merge(labels)
        return self

    @available_if(_estimator_has("forget"))
    def compact(self) -> TextModel:
        """Remove forgotten labels from the estimator."""
        self.estimator.compact()
        return self

    def choose_thresholds(
        self, texts: Any, y: Any, metric: str = "macro-f1", precision: float | None = None
    ) -> TextModel:
        """Choose thresholds of multi-label `predict` on validation texts; see `choose_thresholds` of the estimator."""
        self._consistently(lambda: self.estimator.choose_thresholds(self._rows(texts), y, metric, precision))
        return self

    @available_if(_estimator_has("predict_proba"))
    def predict_above(self, texts: Any, threshold: float = 0.5, scores: bool = False) -> Any:
        """Predict all labels of each text whose probability is at least `threshold`."""
        return self._consistently(lambda: self.estimator.predict_above(self._rows(texts), threshold, scores))

    @available_if(_estimator_has("predict_proba"))
    def predict_proba_of(self, texts: Any, labels: Any) -> Any:
        """Predict the probabilities of given labels for each text."""
        return self._consistently(lambda: self.estimator.predict_proba_of(self._rows(texts), labels))

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, texts: Any) -> Any:
        """Predict the probability of every label for each text."""
        return self._consistently(lambda: self.estimator.predict_proba(self._rows(texts)))

    @available_if(_estimator_has("explain"))
    def explain(self, texts: Any, label: Any = None, k: int = 5) -> Any:
        """Explain why `label`, or by default the answer, has its probability; see `Explanation`.

        Returns one explanation for one text, which may be a string, and a list for several. `k` is the number of
        candidates to list.
        """
        return self._consistently(self._explained, [texts] if isinstance(texts, str) else texts, label, k)

    def _explained(self, texts: Any, label: Any, k: int) -> Any:
        found = self.estimator.explain(self._rows(texts), label, k)
        if not holds_texts(texts):
            return found
        if isinstance(found, Explanation):
            return explanation_of_text(found, self.vectorizer, read_texts(texts)[0])
        return [explanation_of_text(own, self.vectorizer, text) for own, text in zip(found, read_texts(texts))]

    def score(self, texts: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the estimator's score on these texts."""
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return self._consistently(lambda: self.estimator.score(self._rows(texts), y, **weights))

    def describe(self) -> dict[str, Any]:
        """Return the main properties of the estimator, and the class of the vectoriser."""
        return {**self.estimator.describe(), "vectorizer": type(self.vectorizer).__name__}

    def save(self, path: AnyPath, **options: Any) -> None:
        """Save vectoriser and estimator in one file; `treemax.load` restores the model.

        `options` (such as `resume=True`) are passed to the estimator.
        """
        check_is_fitted(self)
        save(self, path, **options)

    def _with_snapshot(self, work: Callable[[TextModel], Any]) -> Any:
        """Call `work` with a snapshot of the model, while the estimator does not change."""
        snapshot = self._consistently(self._snapshot)
        return without_changes(snapshot.estimator, lambda estimator: work(TextModel(snapshot.vectorizer, estimator)))

    def to_parts(self, **options: Any) -> tuple[dict[str, Any], Arrays]:
        """Return the model as a JSON-able header and arrays, with the prefixes `vectorizer/` and `estimator/`."""
        if not isinstance(self.vectorizer, TfidfText | HashingText):
            _register_transformers()
        vectorizer, vectorizer_arrays = object_parts(self.vectorizer)
        estimator, estimator_arrays = object_parts(self.estimator, **options)
        arrays = {**prefixed("vectorizer", vectorizer_arrays), **prefixed("estimator", estimator_arrays)}
        return {"vectorizer": vectorizer, "estimator": estimator}, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> TextModel:
        """Restore the model from its parts."""
        if str(header["vectorizer"]["class"]).startswith("sklearn."):
            _register_transformers()
        vectorizer = object_from_parts(header["vectorizer"], part("vectorizer", arrays))
        estimator = object_from_parts(header["estimator"], part("estimator", arrays))
        if not hasattr(vectorizer, "transform") or not hasattr(estimator, "predict"):
            raise ValueError(f"{type(vectorizer).__name__} and {type(estimator).__name__} do not go together")
        return cls(vectorizer, estimator)

    @property
    def threshold_(self) -> float:
        """The probability from which a multi-label `predict` returns a label."""
        return self.estimator.threshold_

    @threshold_.setter
    def threshold_(self, value: float) -> None:
        self.estimator.threshold_ = value

    def __getattr__(self, name: str) -> Any:
        is_learned = name.endswith("_") and not name.startswith("_")
        if is_learned and "estimator" in vars(self):
            return getattr(self.estimator, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        try:
            check_is_fitted(self.vectorizer)
            check_is_fitted(self.estimator)
        except NotFittedError:
            return False
        return True

    def _rows(self, texts: Any) -> Any:
        check_is_fitted(self)
        return self.vectorizer.transform(texts)
