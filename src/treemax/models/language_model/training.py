"""Joint training of a hierarchical log-bilinear language model: embeddings, transitions, node vectors and tree.

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017, section 6: a context is represented by
r_x = sum_k R_k U_w(k) over the previous words w(k), and the probability of a word is the product of the softmaxes along
its path. Mini-batch gradient steps maximise log p; words are reassigned to the children of nodes by Algorithm 2.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.models.language_model import kernels
from treemax.models.language_model.model import Floats, LanguageModel, Words, represent
from treemax.models.learned_tree.assignment import assign_labels, assignment_scores
from treemax.models.learned_tree.kernels import Vectors
from treemax.models.learned_tree.model import aligned, padded
from treemax.models.learned_tree.quality import quality_from_means
from treemax.models.learned_tree.steps import OPTIMIZERS
from treemax.models.learned_tree.structure import Structure
from treemax.models.learned_tree.training import ranges_between_assignments
from treemax.parallel.threads import for_each, one_blas_thread
from treemax.trees import Tree

INITIAL_SQUARES = np.float32(1.0)  # initial sums of AdaGrad: shortens the first steps of rare words
CONTEXTS_PER_WORD = 32  # maximum number of contexts in the mean representation of a word
CONTEXTS_AT_ONCE = 2048
SLACK = 1.25  # maximum size of a node relative to the mean of its siblings


@dataclass(frozen=True)
class LanguageModelSettings:
    """Training settings. `hold` is the fraction of the training with a constant rate, before it decays to zero."""

    dimension: int
    length: int  # of a context
    full: bool  # full transition matrices, not diagonal ones
    rate: float
    passes: int
    hold: float = 0.0
    optimizer: str = "adagrad"
    dropout: float = 0.0  # of the components of a representation
    batch: int = 256
    assign_by: str = "difference"
    running: bool = False  # assign by running sums of probabilities
    tied: bool = False  # the output vectors of the flat softmax are the embeddings


@dataclass(frozen=True)
class TokenStream:
    """Texts as one array of word ids, each text preceded by `length` padding ids."""

    ids: Words
    places: NDArray[np.int64]  # indices of the words to predict
    length: int

    @classmethod
    def of_texts(cls, texts: list[NDArray[np.int64]], n_words: int, length: int) -> TokenStream:
        """Make a stream from the ids of each text; the padding id is `n_words`."""
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        places = np.arange(sizes.sum()) + np.repeat(np.arange(1, len(texts) + 1) * length, sizes)
        ids = np.full(sizes.sum() + len(texts) * length, n_words, dtype=np.uint32)
        if len(places):
            ids[places] = np.concatenate(texts)
        return cls(ids, places, length)

    def __len__(self) -> int:
        return len(self.places)

    def contexts(self, chosen: Any) -> Words:
        """Return the words before the chosen ones, in reverse order."""
        return self.ids[self.places[chosen][:, None] - np.arange(1, self.length + 1)]

    def targets(self, chosen: Any = slice(None)) -> Words:
        return self.ids[self.places[chosen]]


class OutputVectors:
    """The vectors of an output layer."""

    def __init__(self, n_vectors: int, width: int, optimizer: int) -> None:
        self.width, self.optimizer = width, optimizer
        self.weights = aligned((n_vectors, width))
        self.biases = np.zeros(n_vectors, dtype=np.float32)
        self.squares = np.full(n_vectors, INITIAL_SQUARES)

    def vectors(self) -> Vectors:
        """Return the arrays that kernels take."""
        return Vectors(self.weights.ravel(), self.biases, self.squares, np.uint64(self.width))


class FlatOutput(OutputVectors):
    """A softmax over all words."""

    def learn(self, hidden: Floats, targets: Words, rate: float, gradient: Floats) -> float:
        """One step; returns the sum of log p, and writes its gradient by the representations to `gradient`."""
        errors, likelihoods = hidden @ self.weights.T, np.empty(len(hidden), dtype=np.float32)
        kernels.flat_errors(errors, self.biases, targets, likelihoods)
        np.matmul(errors, self.weights, out=gradient)
        gradients = (errors.T @ hidden).ravel(), errors.sum(axis=0)
        kernels.move_all(*gradients, rate, self.optimizer, self.vectors())
        return float(likelihoods.sum(dtype=np.float64))

    def packed(self) -> tuple[Tree, Floats, Floats]:
        """Return the tree, its vectors and their biases."""
        n_words = len(self.biases)
        parents, labels = np.zeros(n_words + 1, dtype=np.int64), np.arange(-1, n_words)
        parents[0] = -1
        return Tree.from_parents(parents, labels), self.weights.copy(), self.biases.copy()


class RunningShares:
    """SumProbas and Counts of Algorithm 1, at the nodes that have inner nodes as children."""

    def __init__(self, n_words: int) -> None:
        self.n_words = n_words
        self.rows: dict[int, NDArray[np.int64]] = {}  # the row of each word at a node, -1 if it has none
        self.sums: dict[int, NDArray[np.float64]] = {}
        self.seen: dict[int, NDArray[np.int64]] = {}

    def add(self, node: int, words: Words, shares: NDArray[np.float64]) -> None:
        """Add the probabilities of the children of a node."""
        if node not in self.rows:
            self.rows[node] = np.full(self.n_words, -1)
            self.sums[node], self.seen[node] = np.zeros((0, shares.shape[1])), np.zeros(0, dtype=np.int64)
        rows, sums = self.rows[node], self.sums[node]
        new = np.unique(words[rows[words] < 0])
        if len(new):
            rows[new] = len(sums) + np.arange(len(new))
            self.sums[node] = np.concatenate([sums, np.zeros((len(new), sums.shape[1]))])
            self.seen[node] = np.concatenate([self.seen[node], np.zeros(len(new), dtype=np.int64)])
        np.add.at(self.sums[node], rows[words], shares)
        np.add.at(self.seen[node], rows[words], 1)

    def at(self, node: int, words: NDArray[np.int64], n_children: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return how often each word was seen at a node, and its mean probabilities; zeros if never."""
        counts, means = np.zeros(len(words), dtype=np.int64), np.zeros((len(words), n_children))
        if node in self.rows:
            rows = self.rows[node][words]
            known = rows >= 0
            counts[known] = self.seen[node][rows[known]]
            means[known] = self.sums[node][rows[known]] / counts[known][:, None]
        return counts, means


class TreeOutput(OutputVectors):
    """Hierarchical softmax, with the interface of `FlatOutput`. Words can be reassigned, except for children of the
    root."""

    def __init__(self, structure: Structure, width: int, optimizer: int) -> None:
        super().__init__(structure.n_vectors, width, optimizer)
        self.structure, self.paths = structure, structure.paths()
        self.running: RunningShares | None = None
        self._lock = threading.Lock()

    def note(self, hidden: Floats, targets: Words) -> None:
        """Add the probabilities of a batch to the running sums, at all nodes of its paths whose children are not all words."""
        assert self.running is not None
        starts, ends = self.paths.starts[targets], self.paths.starts[targets + 1]
        per_node = self.structure.n_vectors // len(self.structure.n_children)
        with self._lock:
            for level in range(int((ends - starts).max()) - 1):
                deep = np.flatnonzero(ends - starts > level + 1)
                nodes = self.paths.firsts[starts[deep] + level].astype(np.int64) // per_node
                for node in np.unique(nodes).tolist():
                    rows = deep[nodes == node]
                    self.running.add(node, targets[rows], self._child_probabilities(node, hidden[rows]))

    def learn(self, hidden: Floats, targets: Words, rate: float, gradient: Floats) -> float:
        rows, words = read_only(hidden.ravel()), read_only(targets)
        optimizer, gradient = self.optimizer, gradient.ravel()
        return kernels.learn_paths(rows, words, self.paths, self.vectors(), rate, optimizer, gradient)

    def packed(self) -> tuple[Tree, Floats, Floats]:
        tree, vectors = self.structure.as_tree()
        weights = aligned((len(vectors), self.width))
        weights[:] = self.weights[vectors]
        return tree, weights, self.biases[vectors]

    # --- the assignment of words ------------------------------------------------------------------------

    def assign(self, counts: NDArray[np.int64], means: Floats, arity: int, assign_by: str = "difference") -> None:
        """Algorithm 2 at every node, from the root down, by the mean representation of each word's contexts.

        The vectors of words move with them, and AdaGrad's sums of squares are halved, because they belong to another
        tree.
        """
        at, had_own_vector = self._word_vectors()
        own = self.weights[at], self.biases[at], self.squares[at]
        waiting = [(0, np.arange(len(counts)))]
        while waiting:
            waiting += self._assign_at_node(*waiting.pop(), counts, means, arity, assign_by)
        self.paths = self.structure.paths()
        to, has_own_vector = self._word_vectors()
        moved = had_own_vector & has_own_vector
        for array, learned in zip((self.weights, self.biases, self.squares), own):
            array[to[moved]] = learned[moved]
        self.squares *= 0.5
        np.maximum(self.squares, INITIAL_SQUARES, out=self.squares)

    def _word_vectors(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the vector of every word, and whether it is its own: two siblings share one."""
        last = self.paths.starts[1:] - 1
        has_own_vector = self.paths.counts[last] > 2
        return self.paths.firsts[last].astype(np.int64) + np.where(
            has_own_vector, self.paths.slots[last], 0
        ), has_own_vector

    def _assign_at_node(
        self, node: int, words: NDArray[np.int64], counts: NDArray[np.int64], means: Floats, arity: int, assign_by: str
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Assign the words of a node to its children; returns the children that are inner nodes, and their words."""
        structure = self.structure
        begin = int(structure.starts[node])
        children = structure.children[begin : begin + structure.n_children[node]]
        if (children < 0).all():
            structure.children[begin : begin + len(words)] = -1 - words
            structure.n_children[node] = len(words)
            return []
        slots = np.arange(len(children))
        if node == 0:
            slots, words = slots[children >= 0], np.setdiff1d(words, -1 - children[children < 0])
        counts_here, probabilities = self._statistics(node, words, counts, means)
        shares, probabilities = counts_here / max(1, counts_here.sum()), probabilities[:, slots]
        more = probabilities - shares @ probabilities
        least, most = np.array([self._capacity(child, arity) for child in children[slots].tolist()]).T
        even = np.clip(math.ceil(SLACK * len(words) / len(slots)), least, most)
        if assign_by == "difference":
            scores = (shares * (1.0 - shares))[:, None] * more
        else:
            scores = assignment_scores(counts_here, probabilities, assign_by)
        if len(slots) == 1:
            slot_of_word = np.zeros(len(words), dtype=np.int64)
        else:
            slot_of_word = assign_labels(scores, even if even.sum() >= len(words) else most)
        _fill_slots(slot_of_word, more, least)
        below = []
        for place, slot in enumerate(slots.tolist()):
            own = words[slot_of_word == place]
            if children[slot] < 0:
                children[slot] = -1 - own[0]
            else:
                below.append((int(children[slot]), own))
        return below

    def _statistics(
        self, node: int, words: NDArray[np.int64], counts: NDArray[np.int64], means: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the examples of words at a node and their probabilities of its children."""
        if self.running is not None:
            return self.running.at(node, words, int(self.structure.n_children[node]))
        return counts[words], self._child_probabilities(node, means[words])

    def _child_probabilities(self, node: int, hidden: Floats) -> NDArray[np.float64]:
        """Return the probabilities of a node's children given representations."""
        n = int(self.structure.n_children[node])
        first = int(self.structure.first_vectors[node])
        vectors = slice(first, first + (n if n > 2 else n - 1))
        scores = (hidden @ self.weights[vectors].T + self.biases[vectors]).astype(np.float64)
        if n == 2:
            scores = np.hstack([np.zeros_like(scores), scores])
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores

    def _capacity(self, node: int, arity: int) -> tuple[int, int]:
        """Return minimum and maximum number of words below a node; a negative node is a word."""
        if node < 0:
            return 1, 1
        begin = int(self.structure.starts[node])
        children = self.structure.children[begin : begin + self.structure.n_children[node]]
        if (children < 0).all():
            return 1, arity
        least, most = zip(*(self._capacity(child, arity) for child in children.tolist()))
        return sum(least), sum(most)


def _fill_slots(slot_of_word: NDArray[np.int64], more: NDArray[np.float64], least: NDArray[np.int64]) -> None:
    """Fill slots with too few words by the words with the best scores from slots with more than they need."""
    held = np.bincount(slot_of_word, minlength=len(least))
    for slot in np.flatnonzero(held < least):
        while held[slot] < least[slot]:
            preference = np.where((held > least)[slot_of_word], more[:, slot], -np.inf)
            word = int(np.argmax(preference))
            held[slot_of_word[word]] -= 1
            held[slot] += 1
            slot_of_word[word] = slot


@dataclass
class Training:
    """State of the training: words, settings and parameters."""

    stream: TokenStream
    n_words: int
    settings: LanguageModelSettings
    output: FlatOutput | TreeOutput
    random: np.random.RandomState
    losses: list[float] = field(default_factory=list)  # training loss of each pass, mean of -log p
    output_seconds: float = 0.0  # CPU time of the output layer and the assignment of words
    _is_fixed: bool = False  # no more assignments
    _threads: int = 1

    def __post_init__(self) -> None:
        settings = self.settings
        dimension, length = settings.dimension, settings.length
        width = padded(dimension)
        self.embeddings = aligned((self.n_words + 1, width))
        self.embeddings[:, :dimension] = self.random.normal(
            0.0, 1.0 / math.sqrt(dimension), (self.n_words + 1, dimension)
        )
        self.embedding_squares = np.full(self.n_words + 1, INITIAL_SQUARES)
        if settings.full:
            self.transitions = aligned((length * width, width))
            at = np.arange(dimension)
            for k in range(length):
                self.transitions[k * width + at, at] = 1.0 / length
        else:
            self.transitions = aligned((length, width))
            self.transitions[:, :dimension] = 1.0 / length
        self.transition_squares = np.full(len(self.transitions), INITIAL_SQUARES)
        if settings.tied and isinstance(self.output, FlatOutput):
            self.output.weights = self.embeddings[: self.n_words]
            self.output.squares = self.embedding_squares[: self.n_words]
        if settings.running and isinstance(self.output, TreeOutput):
            self.output.running = RunningShares(self.n_words)

    # --- steps ------------------------------------------------------------------------------------------

    def run(self, threads: int, assign_every: float = 0.0, assign_until: float = 0.0, arity: int = 2) -> Iterator[int]:
        """Run all passes; yields the size of each batch, and 0 after each pass. Words are reassigned after every
        `assign_every` passes, until `assign_until`."""
        n, size, planned, self._threads = len(self.stream), self.settings.batch, self.settings.passes, threads
        n_batches = -(-n // size)
        every, until = max(1, round(assign_every * n_batches)), round(assign_until * n_batches)
        for number in range(planned):
            order, seed = self.random.permutation(n), int(self.random.randint(2**31))
            likelihoods: list[float] = []

            def work(batch: int, number: int = number, order: Any = order, seed: int = seed) -> None:
                share = (number + batch / n_batches) / planned
                chosen = order[batch * size : (batch + 1) * size]
                likelihoods.append(self._learn(chosen, self.rate(share), seed + batch))  # noqa: B023

            with one_blas_thread():
                for part in ranges_between_assignments(n_batches, number * n_batches, every if assign_every else 0):
                    done = number * n_batches + part.start
                    self._is_fixed = done >= until
                    if assign_every and 0 < done <= until and done % every == 0:
                        self.assign(arity)
                    for batch in for_each(part, work, threads):
                        yield min(size, n - batch * size)
            self.losses.append(-sum(likelihoods) / n)
            yield 0

    def rate(self, share: float) -> float:
        """Return the learning rate after the given fraction of the training."""
        return self.settings.rate * min(1.0, (1.0 - share) / max(1e-9, 1.0 - self.settings.hold))

    def _learn(self, chosen: NDArray[np.int64], rate: float, seed: int) -> float:
        """One step on a batch; returns the sum of log p before it."""
        settings = self.settings
        contexts, targets = self.stream.contexts(chosen), self.stream.targets(chosen)
        words = self.embeddings[contexts.ravel()].reshape(*contexts.shape, -1)
        hidden = represent(words, self.transitions)
        mask, gradient = np.ones_like(hidden), np.empty_like(hidden)
        if settings.dropout:
            kernels.drop(hidden.ravel(), settings.dropout, np.uint64(seed), mask.ravel())
        if settings.optimizer == "sgd":  # the gradient of the mean; AdaGrad takes that of the sum
            rate = rate / len(chosen)
        start = time.thread_time()
        if isinstance(self.output, TreeOutput) and self.output.running is not None and not self._is_fixed:
            self.output.note(hidden, targets)
        likelihood = self.output.learn(hidden, targets, rate, gradient)
        self.output_seconds += time.thread_time() - start
        self._update_contexts(contexts, words, gradient * mask, rate)
        return likelihood

    def _update_contexts(self, contexts: Words, words: Floats, gradient: Floats, rate: float) -> None:
        """Update the transitions and the embeddings of the contexts' words."""
        (n, length, width), optimizer = words.shape, OPTIMIZERS[self.settings.optimizer]
        if self.settings.full:
            of_words = gradient @ self.transitions.T
            of_transitions = words.reshape(n, length * width).T @ gradient
        else:
            of_words = gradient[:, None] * self.transitions
            of_transitions = np.einsum("ntw,nw->tw", words, gradient)
        none = np.empty(0, dtype=np.float32)  # without biases
        transitions = Vectors(self.transitions.ravel(), none, self.transition_squares, np.uint64(width))
        kernels.move_all(of_transitions.ravel(), none, rate, optimizer, transitions)
        embeddings = Vectors(self.embeddings.ravel(), none, self.embedding_squares, np.uint64(width))
        kernels.move_embeddings(contexts.ravel(), of_words.ravel(), rate, optimizer, embeddings)

    # --- the tree ---------------------------------------------------------------------------------------

    def assign(self, arity: int) -> None:
        """Reassign words to the children of nodes."""
        assert isinstance(self.output, TreeOutput)
        start = time.thread_time()
        counts = np.bincount(self.stream.targets(), minlength=self.n_words)
        means = (
            np.zeros((0, 0), dtype=np.float32)
            if self.output.running is not None
            else self._mean_representations(counts)
        )
        self.output.assign(counts, means, arity, self.settings.assign_by)
        self.output_seconds += time.thread_time() - start

    def _mean_representations(self, counts: NDArray[np.int64]) -> Floats:
        """Return the mean representation of a sample of each word's contexts; zeros where there are none."""
        targets = self.stream.targets()
        order = self.random.permutation(len(targets))
        keys = targets.astype(
            np.uint16 if self.n_words <= 2**16 else np.uint32
        )  # short ones are sorted by their digits
        order = order[np.argsort(keys[order], kind="stable")]
        ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen, taken = order[ranks < CONTEXTS_PER_WORD], np.minimum(counts, CONTEXTS_PER_WORD)
        width = self.embeddings.shape[1]
        means = np.zeros((self.n_words, width), dtype=np.float32)
        sums: dict[int, tuple[Words, Floats]] = {}

        def work(at: int) -> None:
            part = chosen[at : at + CONTEXTS_AT_ONCE]
            words = self.embeddings[self.stream.contexts(part).ravel()].reshape(len(part), -1, width)
            first = np.flatnonzero(np.diff(targets[part], prepend=self.n_words + 1))
            sums[at] = targets[part[first]], np.add.reduceat(represent(words, self.transitions), first, axis=0)

        with one_blas_thread():
            for at in for_each(range(0, len(chosen), CONTEXTS_AT_ONCE), work, self._threads):
                of_words, summed = sums.pop(at)
                means[of_words] += summed
        means /= np.maximum(taken, 1)[:, None]
        return means

    def trained(self) -> LanguageModel:
        """Return the trained model, with the quality of its splits for the mean representation of each word."""
        model = self.model()
        if isinstance(self.output, FlatOutput):
            return model
        counts = np.bincount(self.stream.targets(), minlength=self.n_words)
        means = self._mean_representations(counts)
        return replace(model, quality=quality_from_means(model.learned_tree(means), counts, means))

    def model(self) -> LanguageModel:
        """Return the model as it is now."""
        tree, weights, biases = self.output.packed()
        embeddings = aligned(self.embeddings.shape)
        embeddings[:] = self.embeddings
        dimension, length = self.settings.dimension, self.settings.length
        return LanguageModel(tree, dimension, embeddings, self.transitions.copy(), length, weights, biases)
