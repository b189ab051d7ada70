"""The backend `treemax` of Annif: a label tree, and an online label tree for documents that are learned later."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import scipy.sparse as sp
from annif.backend import backend, hyperopt, mixins
from annif.exception import (
    ConfigurationException,
    NotInitializedException,
    NotSupportedException,
    OperationFailedException,
)
from annif.suggestion import SuggestionBatch
from annif.util import atomic_save

import treemax
from treemax.annif.optimizer import TreemaxOptimizer
from treemax.annif.words import Vectorizer, Words
from treemax.formats import Examples, read_examples, write_examples
from treemax.inputs.labels import read_labels
from treemax.inputs.rows import as_rows
from treemax.models import LabelTree, OnlineLabelTree


def _auto_or(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that converts an option which may be "auto"."""
    return lambda given: given if given == "auto" else kind(given)


class TreemaxBackend(mixins.TfidfVectorizerMixin, backend.AnnifLearningBackend, hyperopt.AnnifHyperoptBackend):
    """Subject indexing with probabilistic label trees, for `backend=treemax` in a project of Annif.

    `train` fits a `LabelTree`. `learn` updates an `OnlineLabelTree`, which its first call fits to the stored training
    data; the score of a subject is then the mean of both, weighted by the number of its documents that were trained
    and learned. Options of a project: `min_df`, `ngram`, `limit`, and `MODEL_PARAMETERS`, the parameters of `LabelTree`.
    """

    name = "treemax"

    VECTORIZER_FILE = "vectorizer"
    TRAIN_FILE = "treemax-train.npz"
    MODEL_FILE = "treemax-model"
    BATCH_FILE = "label-tree.treemax"
    ONLINE_FILE = "online-label-tree.treemax"

    DEFAULT_PARAMETERS: ClassVar[dict[str, Any]] = {"min_df": 1, "ngram": 1}
    MODEL_PARAMETERS: ClassVar[dict[str, Any]] = {
        "n_trees": int,
        "max_leaf": _auto_or(int),
        "loss": str,
        "cost": _auto_or(float),
        "passes": int,
        "threshold": float,
        "precision": str,
        "temperature": float,
        "beam": int,
    }

    _model: LabelTree | None = None
    _online: OnlineLabelTree | None = None

    def get_hp_optimizer(self, corpus: Any, metric: str) -> TreemaxOptimizer:
        """Return the optimizer of `annif hyperopt`."""
        return TreemaxOptimizer(self, corpus, metric)

    def initialize(self, parallel: bool = False) -> None:
        """Load vectoriser and models."""
        self.initialize_vectorizer()
        if self._model is not None:
            return
        path = self._model_path(self.BATCH_FILE)
        self.debug(f"loading model from {path}")
        if not path.exists():
            raise NotInitializedException(f"model {path} not found", backend_id=self.backend_id)
        self._model = treemax.load(path)
        if self._model_path(self.ONLINE_FILE).exists():
            self._online = treemax.load(self._model_path(self.ONLINE_FILE))

    def _model_path(self, name: str) -> Path:
        return Path(self.datadir, self.MODEL_FILE, name)

    # --- training -----------------------------------------------------------------------------------------

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus == "cached":
            self.info("Reusing cached training data from previous run.")
            examples = self.read_train_file()
        else:
            if corpus.is_empty():
                raise NotSupportedException("Cannot train treemax project with no documents")
            vecparams = {
                "min_df": int(params["min_df"]),
                "tokenizer": Words(self.project.analyzer),
                "ngram_range": (1, int(params["ngram"])),
                "sublinear_tf": True,
                "dtype": np.float32,
            }
            subjects: list[list[int]] = []
            veccorpus = self.create_vectorizer(_texts(corpus, subjects), vecparams)
            examples = self._create_train_file(veccorpus, subjects)
        self.info("creating model")
        model = self.trained_model(examples, params, jobs)
        shutil.rmtree(self._model_path(""), ignore_errors=True)
        self._model_path("").mkdir()
        model.save(self._model_path(self.BATCH_FILE))
        self._model, self._online = model, None

    def create_vectorizer(self, input: Iterable[str], params: dict[str, Any] | None = None) -> sp.csr_matrix:
        """Fit a vectoriser to texts, save it and return their tf-idf weights."""
        self.info("creating vectorizer")
        self.vectorizer = Vectorizer(**(params or {}), token_pattern=None)
        weights = self.vectorizer.fit_transform(input)
        atomic_save(self.vectorizer, self.datadir, self.VECTORIZER_FILE, method=joblib.dump)
        return weights

    def _create_train_file(self, veccorpus: sp.csr_matrix, subjects: list[list[int]]) -> Examples:
        """Store the documents that have words and subjects."""
        self.info("creating train file")
        kept = np.flatnonzero(np.array(list(map(bool, subjects))) & (np.diff(veccorpus.indptr) > 0))
        if not len(kept):
            raise NotSupportedException("Cannot train treemax project: no document has both words and subjects")
        counts = [len(subjects[row]) for row in kept]
        ids = [subject for row in kept for subject in subjects[row]]
        indicator = sp.csr_matrix(
            (np.ones(len(ids), dtype=np.int8), ids, np.concatenate([[0], np.cumsum(counts)])),
            shape=(len(kept), len(self.project.subjects)),
        )
        examples = Examples(read_labels(indicator), as_rows(veccorpus[kept].astype(np.float32)))
        write_examples(self._train_path, examples, "npz")
        return examples

    @property
    def _train_path(self) -> Path:
        return Path(self.datadir, self.TRAIN_FILE)

    def read_train_file(self) -> Examples:
        """Return the documents of the last training."""
        if not self._train_path.exists():
            raise NotInitializedException(
                f"training data {self._train_path} not found; run annif train", backend_id=self.backend_id
            )
        return read_examples(self._train_path, "npz")

    def trained_model(self, examples: Examples, params: dict[str, Any], jobs: int) -> LabelTree:
        """Return a label tree with the parameters of a project."""
        given = {name: read for name, read in self.MODEL_PARAMETERS.items() if name in params}
        try:
            model = LabelTree(
                **{name: read(params[name]) for name, read in given.items()}, n_jobs=jobs or -1, verbose=0
            )
            model._check_parameters()
        except ValueError as error:
            raise ConfigurationException(str(error), backend_id=self.backend_id) from None
        return model.fit(examples.X, list(examples.labels))

    # --- learning -----------------------------------------------------------------------------------------

    def _learn(self, corpus: Any, params: dict[str, Any]) -> None:
        self.initialize()
        documents = [doc for doc in corpus.documents if len(doc.subject_set)]
        if not documents:
            return
        if self._online is None:
            self.info("training the online model on the stored training data, before the first documents are learned")
            examples = self.read_train_file()
            self._online = OnlineLabelTree().fit(examples.X, list(examples.labels))
        self._online.partial_fit(self.features(documents), [list(doc.subject_set) for doc in documents])
        self._online.save(self._model_path(self.ONLINE_FILE), resume=True)

    # --- suggestions --------------------------------------------------------------------------------------

    def features(self, documents: list[Any]) -> sp.csr_matrix:
        """Return the tf-idf weights of the words of documents."""
        return self.vectorizer.transform([doc.text for doc in documents])

    def _suggest_batch(self, documents: list[Any], params: dict[str, Any]) -> SuggestionBatch:
        if self._model is None:
            raise OperationFailedException("the model is not loaded", backend_id=self.backend_id)
        features, limit = self.features(documents), int(params["limit"])
        found = self.suggestions(self._model, features, limit)
        if self._online is None:
            return found
        learned = self._shares_learned(self._model, self._online)
        later = self.suggestions(self._online, features, limit)
        both = found.array.multiply(1 - learned) + later.array.multiply(learned)
        return SuggestionBatch(sp.csr_array(both, dtype=np.float32)).filter(limit)

    def suggestions(self, model: Any, features: sp.csr_matrix, limit: int) -> SuggestionBatch:
        """Return the most probable subjects of each document; none for documents without known words."""
        n_documents, n_subjects = features.shape[0], len(self.project.subjects)
        labels, scores = model.predict_topk(features, limit)
        labels = np.array([[-1 if label is None else label for label in row] for row in labels.tolist()])
        has_words = np.diff(features.indptr) > 0
        active = np.isin(labels, [subject for subject in np.unique(labels).tolist() if self._is_active(subject)])
        rows, places = np.nonzero(active & has_words[:, None] & (scores > 0))
        found = (np.minimum(scores[rows, places], 1.0), (rows, labels[rows, places]))
        return SuggestionBatch(sp.csr_array(found, shape=(n_documents, n_subjects), dtype=np.float32))

    def _is_active(self, subject: int) -> bool:
        """Return whether a subject is in the vocabulary and not deprecated."""
        try:
            return subject >= 0 and self.project.subjects[subject] is not None
        except IndexError:
            return False

    def _shares_learned(self, trained: LabelTree, learned: OnlineLabelTree) -> Any:
        """Return the share of the documents of each subject that were learned after training."""
        n_trained, n_all = np.zeros((2, 1, len(self.project.subjects)))
        for model, counts in ((trained, n_trained), (learned, n_all)):
            known = model.classes_ < counts.shape[1]
            counts[0, model.classes_[known]] = model.label_counts_[known]
        return np.where(n_all > 0, 1 - n_trained / np.maximum(n_all, 1), 0.0)


def _texts(corpus: Any, subjects: list[list[int]]) -> Iterator[str]:
    """Yield the texts of a corpus, which is read once, and append the subjects of each."""
    for document in corpus.documents:
        subjects.append(list(document.subject_set))
        yield document.text
