"""Training of online label trees: tree growth, learning rates and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.memory import available_bytes, format_bytes
from treemax.models.online_label_tree import growth_kernels, kernels, learning_kernels
from treemax.models.online_label_tree.dropping import drop_smallest
from treemax.models.online_label_tree.kernels import LANES, Scratch
from treemax.models.online_label_tree.model import CHUNK_LINES, OnlineTree
from treemax.models.online_label_tree.placement import Placement
from treemax.models.online_label_tree.stream_summary import LABELS, StreamSummary
from treemax.parallel.threads import run_all
from treemax.trees import Tree

POLICIES = {
    "best-greedy": kernels.BEST_GREEDY,
    "best-greedy-printed": kernels.BEST_GREEDY_PRINTED,
    "random": kernels.RANDOM,
    "complete": kernels.COMPLETE,
    "complete-kary": kernels.COMPLETE,
    "one-level": kernels.ONE_LEVEL,
}
NO_GROWTH = "none"
SCHEDULES = ("adagrad", "constant", "inverse-root")
ROWS_AT_ONCE = 2048
FEWEST_ROWS, PARTS = 64, 4  # of a part of a piece; parts of each thread, which even out the threads' times
LOOK_AHEAD = 1 / 16  # several threads: rows of a piece, as a share of the stream before it, up to ROWS_AT_ONCE
RATE, POWER, FEWEST_REPEATS, MOST_REPEATS = 4.2, -0.2, 5.0, 200.0
STREAM_RATE, LABEL_POWER, ENTRY_POWER = 3.2, -0.25, -0.2


def rate_of(rows: SparseRows, targets: Targets, passes: int) -> float:
    """Return the rate for passes over all of these rows (`benchmarks.experiments.defaults`).

    Longer rows have smaller entries, for which AdaGrad makes larger steps; more rows of a label average out its noise
    with smaller steps.
    """
    entries = float(rows.indptr[-1] - rows.indptr[0]) / max(1, len(rows))
    ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
    repeats = passes * len(ids) / max(1, int(np.count_nonzero(np.bincount(ids))))
    return RATE * (max(entries, 1.0) * min(max(repeats, FEWEST_REPEATS), MOST_REPEATS)) ** POWER


def stream_rate(labels: NDArray[np.float64], entries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rate after rows with these mean numbers of labels and entries: a stream does not tell how many rows a
    label will have."""
    return STREAM_RATE * np.maximum(labels, 1.0) ** LABEL_POWER * np.maximum(entries, 1.0) ** ENTRY_POWER


@dataclass(frozen=True)
class OnlineTreeSettings:
    """Settings of tree growth and training; see `OnlineLabelTree`."""

    policy: str
    arity: int  # children of an inner node
    max_leaf: int  # leaves below one node
    alpha: float  # of the best-greedy policy: 1 uses the balance only
    together: bool  # insert all new labels of a row below the same node
    schedule: str
    rate: float | None  # None: `fitted_rate`
    epsilon: float
    least_gradient: float
    scale_siblings: bool = True  # in files of earlier versions, too
    fitted_rate: float | None = None  # computed by `fit`; None: from the rows seen so far

    @property
    def fixed_rate(self) -> float | None:
        """The rate, if it does not depend on the rows seen so far."""
        return self.fitted_rate if self.rate is None else self.rate

    def rates(
        self, stream: StreamSummary, labels: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the learning rate of each of the next rows, given their numbers of labels and entries."""
        rows = stream.rows + np.arange(1, len(labels) + 1)
        if self.fixed_rate is None:
            mean_labels = (stream.labels + np.cumsum(labels)) / rows
            rates = stream_rate(mean_labels, (stream.entries + np.cumsum(entries)) / rows)
        else:
            rates = np.full(len(rows), self.fixed_rate)
        if self.schedule == "inverse-root":
            rates /= np.sqrt(rows)
        return rates.astype(np.float32)

    def rate_after(self, stream: StreamSummary) -> float:
        """Return the current rate, before the schedule is applied."""
        if self.fixed_rate is not None:
            return self.fixed_rate
        rows = max(1, stream.rows)
        return float(stream_rate(np.array(stream.labels / rows), np.array(stream.entries / rows)))

    @property
    def constants(self) -> tuple[np.float32, np.float32, np.float32]:
        adaptive = float(self.schedule == "adagrad")
        return np.float32(self.epsilon), np.float32(self.least_gradient), np.float32(adaptive)

    @property
    def growth(self) -> tuple[int, int, int, float, bool]:
        """The settings for the kernels, as Python numbers; NumPy scalars would compile another version."""
        policy = kernels.NO_GROWTH if self.policy == NO_GROWTH else POLICIES[self.policy]
        arity = 2 if self.policy == "complete" else int(self.arity)
        return policy, arity, int(self.max_leaf), float(self.alpha), bool(self.together)

    @property
    def follows_hierarchy(self) -> bool:
        """Whether the policy can begin at any node, and not only at the root."""
        return self.growth[0] in (kernels.BEST_GREEDY, kernels.BEST_GREEDY_PRINTED, kernels.RANDOM)


def empty_tree(one_label: bool, settings: OnlineTreeSettings, seed: int = 0) -> OnlineTree:
    """Algorithm 2, OPLT.Init: return a root without a label, with both its classifiers."""
    return _new_tree(np.ones(1, np.int64), np.zeros(1, np.int64), np.full(1, -1), one_label, settings, seed)


def tree_with_structure(
    tree: Tree, one_label: bool, settings: OnlineTreeSettings, seed: int = 0, ids: NDArray[Any] | None = None
) -> OnlineTree:
    """Return an untrained model with the structure of a given tree (Algorithm 1, IPLT; warm start of OPLT).

    `ids` maps the labels of the tree to label ids, if it has only some of the labels.
    """
    label = tree.label if ids is None else np.where(tree.label < 0, -1, ids[tree.label].astype(np.int64))
    return _new_tree(tree.first_child, tree.n_children, label, one_label, settings, seed)


def _new_tree(
    first_child: NDArray[np.int64],
    n_children: NDArray[np.int64],
    label: NDArray[np.int64],
    one_label: bool,
    settings: OnlineTreeSettings,
    seed: int,
) -> OnlineTree:
    online = OnlineTree(one_label, seed)
    online.scale_siblings = settings.scale_siblings
    n_blocks = 2 + len(label) + int((n_children // LANES).sum())
    online.reserve(nodes=len(label), blocks=n_blocks, slots=n_blocks << int(kernels.SMALLEST_TABLE_BITS))
    online.reserve_labels(int(label.max()) + 1)
    growth_kernels.plant(
        first_child, n_children, label, settings.growth, online.nodes, online.blocks, online.store, online.leaf_of,
        online.counts,
    )  # fmt: skip
    return online


def add_missing_leaves(tree: OnlineTree, settings: OnlineTreeSettings, placement: Placement | None = None) -> None:
    """Add leaves for known labels that had no row yet."""
    if tree.nodes.n_leaves[0] == len(tree.leaf_of) or settings.policy == NO_GROWTH:
        return
    missing = np.flatnonzero(tree.leaf_of < 0)
    if len(missing):
        empty_rows = SparseRows(
            np.zeros(len(missing) + 1, np.int64), np.empty(0, np.uint32), np.empty(0, np.float32), 0
        )
        order = np.arange(len(missing), dtype=np.uint32)
        targets = Targets(np.arange(len(missing) + 1), missing.astype(np.uint32))
        if placement is None:
            _grow(tree, empty_rows, targets, order, settings, 0)
            return
        for row in order.tolist():
            _place(tree, empty_rows, targets, row, settings, placement)


def learn(
    tree: OnlineTree,
    rows: SparseRows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: OnlineTreeSettings,
    width: int,
    threads: int = 1,
    placement: Placement | None = None,
) -> Iterator[int]:
    """Algorithm 3, OPLT.Train: train in place on the rows in the given orders; yield the number of rows of each piece.

    Some rows of the first order are predicted before they are learned, by a beam of this `width`, to calibrate the
    probabilities. With several threads, the new labels of a piece get their leaves first; then the threads update the
    weights without locks, and predict such rows of the next piece. `placement` tells where the new labels of a hierarchy
    belong.
    """
    n_entries, n_labels = np.diff(rows.indptr), np.diff(targets.indptr)
    longest = int(n_entries.max(initial=0))
    ahead = threads if placement is None else 1  # pieces also end before new labels of a hierarchy
    with_new_labels = _rows_with_new_labels(tree, targets) if placement is not None else None
    for number, order in enumerate(orders):
        start = predicted = 0
        while start < len(order):
            stop = start + ROWS_AT_ONCE
            if number == 0:
                stop = min(stop, start + _piece_length(tree.stream, tree.stream.rows, ahead))
                if predicted <= start:
                    _predict_first(tree, rows, targets, order[start:stop], tree.stream.rows, width)
            if placement is not None and with_new_labels is not None and number == 0:
                if with_new_labels[order[start]]:
                    _place(tree, rows, targets, int(order[start]), settings, placement)
                following = np.flatnonzero(with_new_labels[order[start + 1 : stop]])
                stop = start + 1 + int(following[0]) if len(following) else stop
            piece = order[start:stop]
            rates = settings.rates(tree.stream, n_labels[piece], n_entries[piece])
            if threads > 1:
                _grow(tree, rows, targets, piece, settings, longest)
            also = None
            if number == 0 and ahead > 1:
                seen = tree.stream.rows + len(piece)
                predicted = stop + min(ROWS_AT_ONCE, _piece_length(tree.stream, seen, ahead))
                also = partial(_predict_first, tree, rows, targets, order[stop:predicted], seen, width)
            _learn_piece(tree, rows, targets, piece, rates, settings, longest, threads, also)
            tree.stream.rows += len(piece)
            tree.stream.labels += int(n_labels[piece].sum())
            tree.stream.entries += int(n_entries[piece].sum())
            start += len(piece)
            yield len(piece)


def _piece_length(stream: StreamSummary, seen: int, threads: int) -> int:
    """Return how many rows to learn after so many, before the next prediction; more with several threads."""
    until_next = stream.next_validation_row(seen + 1) - seen
    return until_next if threads == 1 else max(until_next, int(LOOK_AHEAD * seen))


def _predict_first(
    tree: OnlineTree, rows: SparseRows, targets: Targets, order: NDArray[np.uint32], seen: int, width: int
) -> None:
    """Predict the validation rows of a piece, which comes after so many rows."""
    numbers, number = [], tree.stream.next_validation_row(seen)
    while number < seen + len(order):
        numbers.append(number)
        number = tree.stream.next_validation_row(number + 1)
    if not numbers or tree.nodes.n_leaves[0] == 0:
        return
    chosen = order[np.array(numbers) - seen].tolist()
    k = min(LABELS, len(tree.leaf_of))
    ids, scores = tree.top_k(_joined([rows[row : row + 1] for row in chosen]), k, min(width, tree.n_nodes))
    for place, row in enumerate(chosen):
        truth = targets.ids[targets.indptr[row] : targets.indptr[row + 1]]
        weight = 1.0 if targets.weights is None else float(targets.weights[row])
        tree.stream.add_prediction(numbers[place], scores[place], ids[place], truth, weight)


def _joined(parts: list[SparseRows]) -> SparseRows:
    """Return the rows of all parts, one part after the other (`take_sparse_rows` looks at all rows, and sorted ones)."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    entries = [slice(int(part.indptr[0]), int(part.indptr[-1])) for part in parts]
    indices = np.concatenate([part.indices[own] for part, own in zip(parts, entries, strict=True)])
    values = np.concatenate([part.values[own] for part, own in zip(parts, entries, strict=True)])
    return SparseRows(np.concatenate([[0], np.cumsum(lengths)]), indices, values, parts[0].n_features)


def _rows_with_new_labels(tree: OnlineTree, targets: Targets) -> NDArray[np.bool_]:
    """Return whether each row has a label without a leaf."""
    is_new = tree.leaf_of[targets.ids[targets.indptr[0] : targets.indptr[-1]]] < 0
    new_before = np.concatenate([[0], np.cumsum(is_new)])
    starts = targets.indptr - targets.indptr[0]
    return new_before[starts[1:]] > new_before[starts[:-1]]


def _place(
    tree: OnlineTree, rows: SparseRows, targets: Targets, row: int, settings: OnlineTreeSettings, placement: Placement
) -> None:
    """Add a leaf for every new label of a row, each below its category in the hierarchy."""
    first = np.zeros(1, dtype=np.uint32)
    for label in targets.ids[targets.indptr[row] : targets.indptr[row + 1]]:
        if tree.leaf_of[label] < 0:
            tree.counts[kernels.START] = placement.start(tree, int(label))
            one = rows[row : row + 1]
            _grow(tree, one, Targets(np.arange(2), np.array([label])), first, settings, one.nnz)
            placement.update(tree, int(label))
    tree.counts[kernels.START] = 0


def _grow(
    tree: OnlineTree,
    rows: SparseRows,
    targets: Targets,
    order: NDArray[np.uint32],
    settings: OnlineTreeSettings,
    longest: int,
) -> None:
    """Add a leaf for every new label of the rows, none of which has more than `longest` entries."""
    found, done = np.empty(longest, dtype=np.uint64), 0
    while done < len(order):
        done = growth_kernels.grow_tree(
            tuple(rows.arrays), _arrays(targets), order, done, settings.growth, tree.arrays, found
        )
        if done < len(order):
            _reserve_wanted(tree)


def _learn_piece(
    tree: OnlineTree,
    rows: SparseRows,
    targets: Targets,
    order: NDArray[np.uint32],
    rates: NDArray[np.float32],
    settings: OnlineTreeSettings,
    longest: int,
    threads: int,
    also: Callable[[], None] | None = None,
) -> None:
    """Learn the rows of a piece; a thread does what else there is to do."""
    parts = 1 if threads == 1 else max(1, min(PARTS * threads, len(order) // FEWEST_ROWS))
    cuts = np.linspace(0, len(order), parts + 1).astype(int)
    done = cuts[:-1].copy()  # how far each part has come

    def work(part: int) -> None:
        if part < 0 and also is not None:
            also()
            return
        stop, scratch = cuts[part + 1], _scratch(tree, longest)
        done[part] = learning_kernels.learn(
            tuple(rows.arrays), _arrays(targets), order[:stop], done[part], not tree.one_label, rates,
            (settings.constants, settings.growth), tree.arrays, scratch,
        )  # fmt: skip
        tree.scratch.append(scratch)

    others = [-1] if also is not None else []
    tree.counts[kernels.SHARED] = threads > 1
    while (done < cuts[1:]).any():
        run_all([*others, *np.flatnonzero(done < cuts[1:]).tolist()], work, threads)
        others = []
        if (done < cuts[1:]).any():
            _reserve_wanted(tree)


def _reserve_wanted(tree: OnlineTree) -> None:
    """Reserve the capacity that a kernel found missing, and some more; raise MemoryError if it does not fit in memory."""
    lines, slots = (int(tree.counts[number]) for number in (kernels.LINES_WANTED, kernels.SLOTS_WANTED))
    if kernels.bytes_needed(lines, slots, tree.counts) > tree.counts[kernels.MOST_BYTES]:
        drop_smallest(tree, lines, slots)
    lines += 0 if tree.is_bounded else CHUNK_LINES // 2
    needed, available = lines * kernels.LINE_BYTES + 8 * slots, available_bytes()
    if needed > 0.9 * available:
        raise MemoryError(
            f"The tree has grown to {format_bytes(tree.nbytes)}, and the next row may need {format_bytes(needed)} more, but "
            f"{format_bytes(available)} is available. Use a larger least_gradient, fewer features (hashing with fewer "
            "bits) or a policy other than 'one-level'."
        )
    tree.reserve(2 + tree.n_nodes // 8, 4 + tree.n_blocks // 8, lines, slots)


def _scratch(tree: OnlineTree, longest: int) -> Scratch:
    """Return scratch memory, that of an earlier piece if it is large enough, since zeroing it is linear in the tree."""
    n_nodes, n_blocks = len(tree.nodes.parent), len(tree.blocks.following)
    with suppress(IndexError):  # threads take from the list at the same time
        scratch = tree.scratch.pop()
        fits = len(scratch.positive) >= n_nodes and len(scratch.targets) >= n_blocks
        if fits and len(scratch.found) >= longest:
            return scratch
    return Scratch(
        np.empty(n_nodes, dtype=np.int64),
        np.zeros(n_nodes, dtype=np.bool_),
        np.zeros(n_blocks, dtype=np.uint32),
        np.empty(longest, dtype=np.uint64),
    )


def _arrays(targets: Targets) -> tuple[Any, ...]:
    return targets.indptr, targets.ids, targets.row_weights
