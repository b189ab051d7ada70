"""TreeLanguageModel: a log-bilinear language model with a hierarchical softmax."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import treemax
from treemax import modelfile
from treemax.inputs.conversions import sparsified
from treemax.inputs.labels import LabelIndex
from treemax.memory import check_fits
from treemax.metrics import perplexity
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.base.hierarchies import parameter_parts, parameters_from_parts
from treemax.models.base.published import PublishedSettings
from treemax.models.base.thread_safety import SharedEstimator, read_access, snapshot_access
from treemax.models.language_model.model import LanguageModel
from treemax.models.language_model.training import FlatOutput, LanguageModelSettings, TokenStream, Training, TreeOutput
from treemax.models.language_model.words import END, WordVocabulary
from treemax.models.learned_tree.assignment import RULES
from treemax.models.learned_tree.model import LARGEST_FACTOR, padded
from treemax.models.learned_tree.quality import NodeQuality, described
from treemax.models.learned_tree.steps import OPTIMIZERS
from treemax.models.learned_tree.structure import Structure
from treemax.models.trained.parts import MOST_COUNTED, expect_counts, real_number, whole_number
from treemax.models.training.finite import check_learned
from treemax.numpy_only.topk import TopK
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number, is_auto
from treemax.text.vectorizers import TextInput
from treemax.trees import Tree, frequent_at_root_tree, huffman_tree, is_hierarchy, kmeans_tree, random_tree, tree_of

FIXED_TREES = ("clusters", "huffman", "random")
SCHEDULES = {"linear": 0.0, "hold": 0.5}  # fraction of the training with a constant rate, before the decay
RATES = {"adagrad": 1.0, "sgd": 10.0}  # chosen on the validation texts of the Penn Treebank
WORDS_AT_ONCE = 2**18  # bounds the memory of the contexts


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class TreeLanguageModel(PublishedSettings, SharedEstimator, TextInput, BaseEstimator):
    """Log-bilinear language model with a hierarchical softmax, whose tree can be learned.

    The context is represented by the sum of a matrix times the embedding of each of the `context` previous words; each
    position has its own matrix. The probability of a word is the product of the softmaxes along its path in the tree, so
    that a training step and the probability of a word take the nodes of a path, not all words. `as_published` gives the
    settings stated in the paper; it assigns words before every batch, for which `assign_every` depends on the number of
    words.

    Parameters
    ----------
    tree : "learned", "clusters", "huffman", "random", "flat", or a hierarchy
        "learned" starts with a random tree, except that the most frequent words are children of the root (`direct`),
        and reassigns the other words to the children of nodes during training. The others are fixed: balanced k-means
        over embeddings learned first, a Huffman tree, words in random order, one softmax over all words ("flat"), or your
        own hierarchy: pairs (parent, child), a nested dictionary, a dictionary from child to parent or a
        `treemax.trees.Tree`. Words missing in it become children of the root; "</s>" and "<unk>" are words too.
    arity : int
        Maximum number of children of a node. Wider trees are more accurate and slower to train.
    dimension : int
        Dimension of embeddings and representations.
    context : int
        Number of previous words that predict the next one.
    passes : int
        Epochs, each in a new random order.
    learning_rate : "auto" or float
        Initial learning rate; "auto" is 1 for AdaGrad, whose sums of squares start at one, and 10 for "sgd", where the
        gradient is the mean over a batch.
    dropout : float
        Dropout probability of the components of a context's representation.
    min_count : int
        Minimum frequency of a word in the training texts; rarer words are "<unk>".
    max_words : int or None
        Maximum size of the vocabulary, including "</s>" and "<unk>"; the most frequent words are kept.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads update the weights without locks, so results vary slightly.
    random_state : int, RandomState or None
        Seed of the embeddings, the tree and the order of words. One seed and one thread give the same model, bit for
        bit.
    verbose : int
        0 for no progress bar.

    For reproducing the paper
    -------------------------
    direct : "auto" or int
        Number of frequent words that are children of the root, in a tree that is learned, random or of clusters; "auto" is
        four fifths of the root's children if the tree is learned, and none otherwise.
    tied : bool
        Whether the output vectors of `tree="flat"` are the embeddings of the words, as in the paper.
    transitions : "full" or "diagonal"
        Matrices of the context positions: full, or diagonal, which is faster.
    schedule : "linear" or "hold"
        The learning rate decays linearly to zero, from the start or from the middle of the training.
    optimizer : "adagrad" or "sgd"
        AdaGrad with one sum of squares per vector, or plain SGD.
    batch_size : int
        Words per step.
    assign_every : float
        Passes between two assignments of words to children; may be fractional: less than a batch is every batch.
    assign_until : float
        Fraction of the training after which the tree is fixed.
    assign_by : "difference", "gradient" or "log-gradient"
        Score of a pair of word i and child j: q(1 - q)(p_j|i - p_j), or the gradient of the node's objective by p
        (equation 10) or by log p (equation 12).
    statistics : "means" or "running"
        Estimate of the probability of each child given a word, for the assignment: that for the mean of some of its
        contexts, or its running mean since the start of the training, as in Algorithm 1.

    Attributes
    ----------
    classes_ : array of str
        The vocabulary, the most frequent words first. "</s>" is the end of a text and "<unk>" any unknown word.
    label_counts_ : array of int
        Frequency of each word in the training texts.
    history_ : list of dict
        For each pass: the training loss, mean of -log p (`loss`), the perplexity of the validation texts, if any
        (`validation`), and the CPU time so far (`seconds`; in the output layer, `output_seconds`).

    Examples
    --------
    >>> import treemax
    >>> texts = ["the cat sat", "the dog sat", "a cat ran", "a dog ran"] * 25
    >>> model = treemax.TreeLanguageModel(arity=3, dimension=8, context=2, passes=10, dropout=0).fit(texts)
    >>> model.predict(["the cat", "a dog"]).tolist()
    ['sat', 'ran']

    References
    ----------
    Jernite, Choromanska, Sontag, "Simultaneous learning of trees and representations for extreme classification and
    density estimation", 2017, section 6.
    """

    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "tree": "learned",
        "arity": 65,
        "direct": 0,
        "transitions": "full",
        "learning_rate": 1.0,
        "optimizer": "sgd",
        "dropout": 0.0,
        "assign_until": 1.0,
        "assign_by": "log-gradient",
        "statistics": "running",
    }
    model_: LanguageModel = field(init=False)
    vocabulary_: WordVocabulary = field(init=False)
    n_texts_: int = field(init=False)
    n_examples_: int = field(init=False)
    history_: list[dict[str, float]] = field(init=False)

    tree: Any = "learned"
    arity: int = 640
    direct: int | str = "auto"
    dimension: int = 100
    context: int = 5
    transitions: str = "full"
    passes: int = 4
    learning_rate: float | str = "auto"
    schedule: str = "linear"
    optimizer: str = "adagrad"
    dropout: float = 0.3
    batch_size: int = 256
    assign_every: float = 0.1
    assign_until: float = 0.25
    min_count: int = 1
    max_words: int | None = None
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    assign_by: str = "difference"
    statistics: str = "means"
    tied: bool = False

    def _check_parameters(self) -> None:
        choices_of = {
            "transitions": ("full", "diagonal"),
            "schedule": tuple(SCHEDULES),
            "optimizer": tuple(OPTIMIZERS),
            "assign_by": tuple(RULES),
            "statistics": ("means", "running"),
        }
        for name, choices in choices_of.items():
            check_choice(name, getattr(self, name), choices)
        known = ("learned", *FIXED_TREES, "flat")
        if not is_hierarchy(self.tree) and self.tree not in known:
            raise ValueError(f"tree must be one of {', '.join(known)}, or a hierarchy, got {self.tree!r}.")
        check_number("arity", self.arity, whole=True, least=2, most=1024)
        check_number("direct", self.direct, whole=True, least=0, most=self.arity - 1, auto=True)
        check_flag("tied", self.tied)
        if self.tied and self._tree_name != "flat":
            raise ValueError(
                f"tied must be False unless tree is 'flat', got tree={self._tree_name!r}: other trees have nodes."
            )
        check_number("dimension", self.dimension, whole=True, least=1, most=4096)
        check_number("context", self.context, whole=True, least=1, most=256)
        check_number("passes", self.passes, whole=True, least=1)
        check_number("learning_rate", self.learning_rate, above=0, most=1000, auto=True)
        check_number("dropout", self.dropout, least=0, most=0.9)
        check_number("batch_size", self.batch_size, whole=True, least=1, most=65536)
        check_number("assign_every", self.assign_every, above=0)
        check_number("assign_until", self.assign_until, least=0, most=1)
        check_number("min_count", self.min_count, whole=True, least=1)
        check_number("max_words", self.max_words, whole=True, least=3, optional=True)

    # --- learning ---------------------------------------------------------------------------------------

    def fit(self, texts: Any, y: None = None, validation: Any = None) -> TreeLanguageModel:
        """Train a new model; a model trained before is replaced only when the new one is complete.

        Parameters
        ----------
        texts : iterable of texts
            A text is a string, which is split at white space, or a list of words. Its end is a word too.
        y : None
            Ignored; present for API consistency.
        validation : list of texts, optional
            Texts whose perplexity is recorded in `history_` after every pass.
        """
        self._check_when_used()
        vocabulary, ids = WordVocabulary.from_texts(texts, self.min_count, self.max_words)
        self._check_size(len(vocabulary), len(vocabulary))
        stream = TokenStream.of_texts(ids, len(vocabulary), self.context)
        held_out = None
        if validation is not None:
            held_out = TokenStream.of_texts(vocabulary.ids(validation), len(vocabulary), self.context)
            if not len(held_out):
                raise ValueError("There are no validation texts: the list is empty.")
        history: list[dict[str, float]] = []
        try:
            model = self._train(stream, vocabulary, held_out, history)
        except TrainingInterrupted as interruption:
            self._adopt(interruption.model, vocabulary, len(ids), len(stream), history)
            raise
        self._adopt(model, vocabulary, len(ids), len(stream), history)
        return self

    def _check_size(self, n_words: int, n_vectors: int) -> None:
        check_fits(
            4 * padded(self.dimension) * (n_words + n_vectors),
            f"TreeLanguageModel for {n_words:,} words at dimension {self.dimension}",
            "Use fewer words (min_count, max_words) or a smaller dimension.",
        )

    def _train(
        self,
        stream: TokenStream,
        vocabulary: WordVocabulary,
        held_out: TokenStream | None,
        history: list[dict[str, float]],
    ) -> LanguageModel:
        begin, random = time.process_time(), check_random_state(self.random_state)
        settings = self._settings(self.passes)
        training = Training(stream, len(vocabulary), settings, self._output(stream, vocabulary, random), random)
        every, until = 0.0, 0.0
        if self._tree_name == "learned":
            every, until = self.assign_every, self.assign_until * self.passes
        done, planned, validating = 0, self.passes * len(stream), 0.0
        with progress_bar(planned, f"language model, {self._tree_name}", "words", self.verbose) as bar:
            try:
                for n in training.run(thread_count(self.n_jobs), every, until, self.arity):
                    done += n
                    bar.update(n)
                    if len(training.losses) == len(history):
                        continue
                    now = time.process_time()
                    entry = {"loss": training.losses[-1], "seconds": now - begin - validating}
                    entry["output_seconds"] = training.output_seconds
                    if held_out is not None:
                        entry["validation"] = self._perplexity(training.model(), held_out)
                        bar.set_postfix(validation=f"{entry['validation']:.1f}")
                    history.append(entry)
                    validating += time.process_time() - now
            except KeyboardInterrupt:
                raise TrainingInterrupted(training.trained(), done / planned) from None
        return training.trained()

    @property
    def _tree_name(self) -> str:
        return self.tree if isinstance(self.tree, str) else "own tree"

    def _settings(self, passes: int) -> LanguageModelSettings:
        rate = RATES[self.optimizer] if is_auto(self.learning_rate) else float(self.learning_rate)
        return LanguageModelSettings(
            self.dimension, self.context, self.transitions == "full", rate, passes, SCHEDULES[self.schedule],
            self.optimizer, self.dropout, self.batch_size, self.assign_by, self.statistics == "running", self.tied,
        )  # fmt: skip

    def _output(self, stream: TokenStream, vocabulary: WordVocabulary, random: Any) -> FlatOutput | TreeOutput:
        width, optimizer = padded(self.dimension), OPTIMIZERS[self.optimizer]
        if self._tree_name == "flat" and len(vocabulary) > 2:
            return FlatOutput(len(vocabulary), width, optimizer)
        tree = self._first_tree(stream, vocabulary, random)
        learns = self._tree_name == "learned"
        structure = Structure.with_capacity(tree, self.arity) if learns else Structure.of_tree(tree)
        self._check_size(len(vocabulary), structure.n_vectors)
        return TreeOutput(structure, width, optimizer)

    def _first_tree(self, stream: TokenStream, vocabulary: WordVocabulary, random: Any) -> Tree:
        if is_hierarchy(self.tree):
            return tree_of(self.tree, vocabulary.index)
        n_words = len(vocabulary)
        if self.tree == "huffman":
            return huffman_tree(vocabulary.counts, self.arity)
        direct = self._n_direct(n_words)
        if self.tree == "learned" or (self.tree == "random" and direct):
            rest = direct + random.permutation(n_words - direct)
            return frequent_at_root_tree(np.concatenate([np.arange(direct), rest]), direct, self.arity)
        drawn = random_tree(n_words, self.arity, self.arity, random)
        if self.tree != "clusters":
            return drawn
        first = TreeOutput(Structure.of_tree(drawn), padded(self.dimension), OPTIMIZERS[self.optimizer])
        training = Training(stream, n_words, self._settings(1), first, random)
        with progress_bar(len(stream), "embeddings to cluster", "words", self.verbose) as bar:
            for n in training.run(thread_count(self.n_jobs)):
                bar.update(n)
        embeddings, threads = training.embeddings[direct:n_words, : self.dimension], thread_count(self.n_jobs)
        if not direct or n_words <= self.arity:
            return kmeans_tree(sparsified(embeddings), self.arity, self.arity, random, threads)
        arity = max(2, self.arity - direct)  # as many clusters as there are other children of the root
        found = kmeans_tree(sparsified(embeddings), arity, self.arity, random, threads)
        rest = direct + found.below(0)[0]
        return frequent_at_root_tree(np.concatenate([np.arange(direct), rest]), direct, self.arity)

    def _n_direct(self, n_words: int) -> int:
        """Return the number of words that are children of the root."""
        if is_auto(self.direct):
            return min(n_words, 4 * self.arity // 5) if self.tree == "learned" else 0
        return min(n_words, int(self.direct))

    def _adopt(
        self,
        model: LanguageModel,
        vocabulary: WordVocabulary,
        n_texts: int,
        n_examples: int,
        history: list[dict[str, float]],
    ) -> None:
        """Set all fitted attributes at once."""
        check_learned(model, type(self).__name__, LARGEST_FACTOR)
        learned = {"model_": model, "vocabulary_": vocabulary, "history_": history}
        self.__dict__.update(learned, n_texts_=n_texts, n_examples_=n_examples)

    # --- answering --------------------------------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[Any]:
        """The vocabulary in the order of word ids."""
        if "vocabulary_" not in self.__dict__:
            raise AttributeError("TreeLanguageModel has no classes_ before it is fitted")
        return self.vocabulary_.index.classes

    @property
    def label_counts_(self) -> NDArray[np.int64]:
        """Frequency of each word in the training texts."""
        if "vocabulary_" not in self.__dict__:
            raise AttributeError("TreeLanguageModel has no label_counts_ before it is fitted")
        return self.vocabulary_.counts

    @read_access
    def log_prob(self, texts: Any) -> list[NDArray[np.float32]]:
        """Return the natural log-probability of every word of each text and of its end, given the words before.

        Returns one array per text, with one entry more than the text has words.
        """
        self._check_ready()
        ids = self.vocabulary_.ids(texts)
        stream = TokenStream.of_texts(ids, len(self.vocabulary_), self.model_.length)
        found = self._log_probabilities(self.model_, stream)
        return np.split(found, np.cumsum([len(text) for text in ids])[:-1]) if ids else []

    def perplexity(self, texts: Any) -> float:
        """Return the perplexity: exp of the mean of -log p over all words of the texts and their ends."""
        self._check_ready()
        stream = TokenStream.of_texts(self.vocabulary_.ids(texts), len(self.vocabulary_), self.model_.length)
        if not len(stream):
            raise ValueError("There are no texts to evaluate: the list is empty.")
        return self._perplexity(self.model_, stream)

    def score(self, texts: Any, y: None = None) -> float:
        """Return the mean log-probability of all words of the texts and their ends; higher is better."""
        return -float(np.log(self.perplexity(texts)))

    def _perplexity(self, model: LanguageModel, stream: TokenStream) -> float:
        return perplexity(self._log_probabilities(model, stream), log=True).perplexity

    def _log_probabilities(self, model: LanguageModel, stream: TokenStream) -> NDArray[np.float32]:
        found = [np.empty(0, dtype=np.float32)]
        for at in range(0, len(stream), WORDS_AT_ONCE):
            part = slice(at, at + WORDS_AT_ONCE)
            contexts, targets = stream.contexts(part), stream.targets(part)
            found.append(model.log_probabilities(contexts, targets, thread_count(self.n_jobs)))
        return np.concatenate(found)

    def predict(self, contexts: Any) -> NDArray[Any]:
        """Return the most probable word after each context."""
        return self.predict_topk(contexts, 1).labels[:, 0]

    @read_access
    def predict_topk(self, contexts: Any, k: int = 5) -> TopK:
        """Return the k most probable words after each context and their probabilities, best first, by exact search.

        A context is the start of a text, as a string or as a list of words; its last `context` words are used.
        """
        check_number("k", k, whole=True, least=1)
        rows = self._contexts(contexts)
        ids, probabilities = self.model_.top_k(rows, min(int(k), len(self.vocabulary_)), thread_count(self.n_jobs))
        return TopK(self.vocabulary_.index.labels(ids), probabilities)

    @read_access
    def predict_proba(self, contexts: Any) -> NDArray[np.float32]:
        """Return the probability of every word, in the order of `classes_`, after each context."""
        rows = self._contexts(contexts)
        n_words = len(self.vocabulary_)
        check_fits(
            4 * len(rows) * n_words,
            f"predict_proba for {len(rows):,} contexts x {n_words:,} words",
            "Use predict_topk, or fewer contexts at a time.",
        )
        return self.model_.probabilities(rows, thread_count(self.n_jobs))

    def _check_ready(self) -> None:
        check_is_fitted(self, "model_")
        self._check_when_used()

    def _contexts(self, contexts: Any) -> NDArray[np.uint32]:
        """Return the last words of each context, in reverse order."""
        self._check_ready()
        length, n_words = self.model_.length, len(self.vocabulary_)
        rows = [text[::-1][:length] for text in self.vocabulary_.ids(contexts, with_end=False)]
        found = np.full((len(rows), length), n_words, dtype=np.uint32)
        for row, words in zip(found, rows):
            row[: len(words)] = words
        return found

    @read_access
    def sample(self, n: int = 1, beginning: str = "", max_words: int = 50, random_state: Any = None) -> list[str]:
        """Sample texts word by word from the model, up to their end or `max_words` words.

        Parameters
        ----------
        n : int
            Number of texts.
        beginning : str
            First words of every text.
        max_words : int
            Maximum number of words of a text, including the beginning.
        random_state : int, RandomState or None
            Seed of the sampling.
        """
        check_number("n", n, whole=True, least=1)
        check_number("max_words", max_words, whole=True, least=1)
        if not isinstance(beginning, str):
            raise ValueError(f"beginning must be a string, got {beginning!r:.60}.")
        random = check_random_state(random_state)
        texts = [beginning.split() for _ in range(n)]
        unfinished = texts if len(texts[0]) < max_words else []
        while unfinished:
            cumulative = np.cumsum(self.predict_proba(unfinished), axis=1, dtype=np.float64)
            drawn = random.uniform(size=len(cumulative)) * cumulative[:, -1]
            ids = [int(np.searchsorted(row, number)) for row, number in zip(cumulative, drawn)]
            words = self.vocabulary_.index.labels(ids).tolist()
            for text, word in zip(unfinished, words):
                text += [] if word == END else [word]
            unfinished = [text for text, word in zip(unfinished, words) if word != END and len(text) < max_words]
        return [" ".join(text) for text in texts]

    # --- inspection -------------------------------------------------------------------------------------

    @snapshot_access
    def label_tree(self) -> Tree:
        """Return the tree over the words; its leaves are indices into `classes_`."""
        check_is_fitted(self, "model_")
        return self.model_.tree

    @snapshot_access
    def node_quality(self) -> NodeQuality:
        """Return the quality of the split at each node of `label_tree()`: objective, balance and purity, 1 at best.

        From the end of the training, for the mean representation of at most 32 contexts of each word.
        """
        check_is_fitted(self, "model_")
        if self.model_.quality is None:
            raise ValueError("This model does not have the quality of its splits: it is flat, or of an older version.")
        return self.model_.quality

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary; `quality` has the means of `node_quality` if known."""
        check_is_fitted(self, "model_")
        model = self.model_
        depths = model.tree.level[model.tree.leaf_of]
        numbers = (model.embeddings, model.transitions, model.weights)
        rows = sum(len(array) for array in numbers)
        return {
            "model": type(self).__name__,
            "words": len(self.vocabulary_),
            "texts": self.n_texts_,
            "examples": self.n_examples_,
            "tree": self._tree_name,
            "nodes": int((model.tree.n_children > 0).sum()),
            "arity": int(model.tree.n_children.max()),
            "depth": model.tree.depth,
            "mean_depth": round(float(np.average(depths, weights=self.vocabulary_.counts)), 2),
            "dimension": model.dimension,
            "context": model.length,
            "weights": rows * model.dimension + len(model.biases),
            "loss": round(self.history_[-1]["loss"], 4) if self.history_ else None,
            **described(model.quality),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Save the model to a `.treemax` file, without pickle; load it with `treemax.load`."""
        check_is_fitted(self, "model_")
        modelfile.save(self, path)

    @snapshot_access
    def to_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the estimator as a JSON-serialisable header and named arrays."""
        self._check_ready()
        header, arrays = self.model_.to_parts()
        parameters, parameter_arrays = parameter_parts(self)
        return {
            "treemax": treemax.__version__,
            "parameters": parameters,
            "n_texts": self.n_texts_,
            "n_examples": self.n_examples_,
            "history": self.history_,
            "model": header,
        }, {
            **modelfile.prefixed("words", self.vocabulary_.index.arrays()),
            "counts": self.vocabulary_.counts,
            **modelfile.prefixed("model", arrays),
            **modelfile.prefixed("parameters", parameter_arrays),
        }

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: modelfile.Arrays) -> TreeLanguageModel:
        """Restore an estimator from `to_parts`."""
        parameters = modelfile.part("parameters", arrays)
        estimator = cls(**parameters_from_parts(header["parameters"], parameters))
        estimator._check_when_used()
        index = LabelIndex.from_arrays(modelfile.part("words", arrays), "O")
        most = MOST_COUNTED // max(1, len(index))
        counts = np.array(expect_counts(arrays, "counts", np.int64, (len(index),), most=most))
        model = LanguageModel.from_parts(header["model"], modelfile.part("model", arrays), len(index))
        history = [{name: real_number(name, value) for name, value in entry.items()} for entry in header["history"]]
        if not counts.any() or not all("loss" in entry for entry in history):
            raise ValueError("all word counts are zero, or a loss is missing")
        n_texts, n_examples = (whole_number(name, header[name]) for name in ("n_texts", "n_examples"))
        estimator._adopt(model, WordVocabulary(index, counts), n_texts, n_examples, history)
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__
