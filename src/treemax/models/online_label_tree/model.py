"""The model of an online label tree: its nodes, their classifiers, and searches."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import modelfile
from treemax.explanations import Trace
from treemax.inputs.labels import ALL_ONE
from treemax.inputs.rows import Rows, read_only
from treemax.models.calibration import Calibration
from treemax.models.online_label_tree import file_kernels, kernels, rounding, search_kernels
from treemax.models.online_label_tree.kernels import LANES, Blocks, Nodes, Scratch, Store
from treemax.models.online_label_tree.removal import without_labels
from treemax.models.online_label_tree.rounding import restore_rounded, rounded_records
from treemax.models.online_label_tree.stream_summary import StreamSummary
from treemax.models.online_label_tree.tracing import trace_labels
from treemax.models.trained.parts import expect_squares, whole_number
from treemax.models.trained.searching import (
    Arguments,
    SparseProbabilities,
    TopKAllowed,
    empty_top_k,
    largest_weights,
    search_above,
    search_rows,
)

LINE_WORDS = kernels.LINE_BYTES // 2
CHUNK_LINES = 1 << kernels.CHUNK_BITS
WIDTHS = np.array([2, 4, 8, LANES])  # lanes of blocks
INITIAL_CAPACITY = 64  # nodes and blocks
SPARE_SLOTS, SPARE_SLOTS_IN_BOUND = 1.25, 1.125  # slots of the array of tables, times those of all tables
SMALLEST_BYTES = (CHUNK_LINES + 1) * kernels.LINE_BYTES + 2**17  # of a chunk, and of the other arrays at first
INFINITE_BFLOAT = 0x7F80  # above it are those that are no numbers, and negative ones


class OnlineTree:
    """A tree over labels with trainable node classifiers.

    `kernels` describes the arrays. Records are in chunks of memory that are never moved, so that growth copies no
    weights. With `one_label`, rows have exactly one label: the root needs no classifier and, with `scale_siblings`, the
    probabilities of the children of a node sum to its own.
    """

    def __init__(self, one_label: bool, seed: int = 0) -> None:
        self.one_label, self.scale_siblings = one_label, True
        self.has_squares = True  # AdaGrad's sums; False after loading a file without them
        self.nodes = Nodes(*[np.zeros(0, dtype=np.int64) for _ in Nodes._fields])
        self.blocks = _empty_blocks()
        self.store = Store(np.zeros(0, dtype=np.uint64), np.full(64, -1, dtype=np.int64), np.zeros(0, dtype=np.uint64))
        self.chunks: list[NDArray[np.uint16]] = []
        self.scratch: list[Scratch] = []  # of earlier calls, for reuse
        self.leaf_of = np.zeros(0, dtype=np.int64)
        self._last_weights: Any = None  # of `largest_weights`; set here, since the attributes must not change in a copy
        self.counts = np.zeros(kernels.N_COUNTS, dtype=np.int64)
        self.counts[kernels.SELECTED] = -1
        self.counts[kernels.RANDOM_STATE] = seed
        self.counts[kernels.MOST_BYTES] = kernels.NO_BOUND
        self.n_dropped = 0  # weights, within the bound on memory
        self.stream = StreamSummary()
        self.placement: Any = None  # of the labels of a hierarchy, see `placement.py`
        self.reserve(nodes=INITIAL_CAPACITY, blocks=INITIAL_CAPACITY, lines=1, slots=1024)

    def __getstate__(self) -> dict[str, Any]:
        without_addresses = self.store._replace(chunks=np.zeros(0, dtype=np.uint64))
        return {**self.__dict__, "store": without_addresses, "scratch": [], "placement": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the chunks, whose addresses change, and memory-mapped arrays, so that they are writeable."""
        self.__dict__.update(state)
        self.chunks = [_aligned_copy(chunk) for chunk in self.chunks]
        self.leaf_of, self.counts = _enlarged(self.leaf_of, 0), _enlarged(self.counts, 0)
        self.store = self.store._replace(free=_enlarged(self.store.free, 0))
        self.reserve()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays as kernels take them that change the tree."""
        return self.nodes, self.blocks, self.store, self.leaf_of, self.counts

    # --- capacity ---------------------------------------------------------------------------------------

    def reserve(self, nodes: int = 0, blocks: int = 0, lines: int = 0, slots: int = 0) -> None:
        """Reserve capacity for so many more nodes, blocks, lines of records and slots."""
        spare = not self.is_bounded
        self.nodes = Nodes(*[_enlarged(array, self.n_nodes + nodes, spare) for array in self.nodes])
        need, lanes = self.n_blocks + blocks, ("child", "bias", "bias_squares")
        self.blocks = Blocks(
            *[
                _enlarged(array, need * LANES if name in lanes else need, spare)
                for name, array in zip(Blocks._fields, self.blocks, strict=True)
            ]
        )
        most = 2**32 * int(self.blocks.width[: self.n_blocks].min(initial=LANES)) // LANES
        while len(self.chunks) * CHUNK_LINES < self.n_lines + lines:
            if len(self.chunks) * CHUNK_LINES >= most:
                raise MemoryError(f"the tree has {self.n_lines:,} lines of weights, the maximum")
            self.chunks.append(_aligned((CHUNK_LINES + 1) * LINE_WORDS))  # vectors reach behind the last small record
        addresses = np.array([chunk.ctypes.data for chunk in self.chunks], dtype=np.uint64)
        if self.n_slots + slots > len(self.store.slots):
            self._move_tables(slots)
        self.store = Store(_enlarged(self.store.slots, 0), self.store.free, addresses)

    def bound_memory(self, n_bytes: float | None) -> None:
        """Set the most bytes of all arrays; None for no bound."""
        most = kernels.NO_BOUND if n_bytes is None else int(min(n_bytes, kernels.NO_BOUND)) - SMALLEST_BYTES
        self.counts[kernels.MOST_BYTES] = most

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound on memory."""
        return bool(self.counts[kernels.MOST_BYTES] < kernels.NO_BOUND)

    def release_spare(self, lines: int, slots: int) -> None:
        """Release capacity beyond what so many more lines and slots need."""
        n_chunks = -(-(self.n_lines + lines) // CHUNK_LINES)
        self.store = self.store._replace(chunks=self.store.chunks[:n_chunks])
        self.chunks = self.chunks[:n_chunks]
        self._move_tables(slots)

    def _move_tables(self, slots: int) -> None:
        """Move the tables to a larger array, close together; searches may still read the old arrays."""
        table = self.blocks.table[: self.n_blocks]
        n_slots = int((1 << (table & 63)).sum())
        spare = SPARE_SLOTS_IN_BOUND if self.is_bounded else SPARE_SLOTS
        moved = np.zeros(int(spare * n_slots) + slots, dtype=np.uint64)
        places, counts = np.zeros_like(self.blocks.table), self.counts.copy()
        counts[kernels.SLOTS] = kernels.move_tables(self.n_blocks, table, self.store.slots, places, moved)
        blocks = self.blocks._replace(table=places)
        store = Store(moved, np.full_like(self.store.free, -1), self.store.chunks)
        self.__dict__.update(counts=counts, blocks=blocks, store=store)  # at once: Ctrl-C may come between two steps

    def reserve_labels(self, n_labels: int) -> None:
        """Extend `leaf_of` to this number of labels; labels without a leaf have -1."""
        new = max(0, n_labels - len(self.leaf_of))
        self.leaf_of = np.concatenate([self.leaf_of, np.full(new, -1, dtype=np.int64)])

    @property
    def n_nodes(self) -> int:
        return int(self.counts[kernels.NODES])

    @property
    def n_blocks(self) -> int:
        return int(self.counts[kernels.BLOCKS])

    @property
    def n_lines(self) -> int:
        return int(self.counts[kernels.LINES])

    @property
    def n_slots(self) -> int:
        return int(self.counts[kernels.SLOTS])

    @property
    def random_state(self) -> int:
        """State of the random number generator of the random policy."""
        return int(self.counts[kernels.RANDOM_STATE])

    @property
    def nbytes(self) -> int:
        """Memory of the model, including spare capacity."""
        arrays = [*self.nodes, *self.blocks, *self.store, self.leaf_of, *self.chunks]
        return sum(array.nbytes for array in arrays)

    # --- the tree ---------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Edges from the root to the deepest leaf."""
        depth, nodes = 0, np.flatnonzero(self.nodes.label[: self.n_nodes] >= 0)
        while len(nodes := np.unique(self.nodes.parent[nodes])) and nodes[-1] >= 0:
            depth, nodes = depth + 1, nodes[nodes >= 0]
        return depth

    def shape(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the parent (-1 for the root) and the label (-1 for inner nodes) of every node."""
        return self.nodes.parent[: self.n_nodes].copy(), self.nodes.label[: self.n_nodes].copy()

    def classifier(self, node: int) -> tuple[dict[int, float], float]:
        """Return the weights of a node's classifier by feature, and its bias; slow, for inspection."""
        block, lane = divmod(int(self.nodes.place[node]), LANES)
        packed = self._packed_records(with_squares=False)
        filled, widths = self.blocks.filled[: self.n_blocks], self._stored_lanes()
        first, start = int(filled[:block].sum()), int((filled * widths)[:block].sum())
        features = packed["features"][first : first + int(filled[block])]
        rows = packed["weights"][start : start + int(filled[block] * widths[block])]
        weights = rows.reshape(-1, int(widths[block]))[:, lane]
        named = {int(f): float(w) for f, w in zip(features, weights, strict=True) if w != 0.0}
        return named, float(self.blocks.bias[block * LANES + lane])

    # --- model file -------------------------------------------------------------------------------------

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the model as a JSON-able header and arrays; with `resume`, including the optimiser state."""
        summary = modelfile.prefixed("stream", self.stream.arrays()) if resume else {}
        return self._header(resume), {**modelfile.prefixed("tree", self._arrays(resume)), **summary}

    def to_rounded_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the model as `to_parts` does, with weights of one byte, without those close to zero."""
        arrays = {**self._tree_arrays(), **rounded_records(self, self._stored_lanes())}
        return self._header(False), modelfile.prefixed("tree", arrays)

    def _header(self, resume: bool) -> dict[str, Any]:
        header = {"random_state": self.random_state, "stream": self.stream.counts(resume)}
        return {**header, "n_dropped": self.n_dropped} if self.n_dropped else header

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: modelfile.Arrays, n_labels: int) -> OnlineTree:
        """Restore the model from its parts, with `one_label` and `growth` added to the header.

        Raise ValueError if they are inconsistent.
        """
        seed = whole_number("random_state", header["random_state"], -(2**63), 2**63 - 1)
        one_label = header["one_label"]
        tree = cls._from_arrays(modelfile.part("tree", arrays), one_label, n_labels, seed, header["growth"])
        tree.stream = StreamSummary.from_parts(header["stream"], modelfile.part("stream", arrays), one_label)
        tree.n_dropped = whole_number("n_dropped", header.get("n_dropped", 0))
        return tree

    def without_labels(self, kept: NDArray[np.bool_]) -> OnlineTree:
        """Return the model of the `kept` labels, renumbered; nodes without labels below them are removed."""
        arrays = without_labels(self._arrays(self.has_squares), kept)
        tree = self._from_arrays(arrays, self.one_label, int(kept.sum()), self.random_state, None)
        tree.stream, tree.scale_siblings = copy.deepcopy(self.stream), self.scale_siblings
        tree.counts[kernels.MOST_BYTES], tree.n_dropped = self.counts[kernels.MOST_BYTES], self.n_dropped
        return tree

    def _arrays(self, resume: bool) -> dict[str, NDArray[Any]]:
        """Return the arrays of the model file; with `resume`, including AdaGrad's sums of squares.

        Free lanes of a block are identical, so that only one of them is stored.
        """
        arrays = {**self._tree_arrays(), "filled": self.blocks.filled[: self.n_blocks]}
        if resume:
            arrays["bias_squares"] = self.blocks.bias_squares[: self.n_blocks * LANES]
        width = self.blocks.width[: self.n_blocks]
        if resume and self.is_bounded and (width != _widths(arrays["used"], arrays["lanes"])).any():
            arrays["width"] = width  # what is dropped next depends on it
        return {**arrays, **self._packed_records(resume)}

    def _tree_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the tree and the biases."""
        n_blocks, n_nodes = self.n_blocks, self.n_nodes
        used = self.blocks.used[:n_blocks]
        in_use = np.arange(LANES) < used[:, None]
        child = self.blocks.child[: n_blocks * LANES].reshape(-1, LANES)
        owner = np.full(n_blocks, -1, dtype=np.int64)
        with_children = used > 0
        owner[with_children] = self.nodes.parent[child[with_children, 0]]
        for node in np.flatnonzero(self.nodes.first_block[:n_nodes] >= 0):
            owner[self.nodes.last_block[node]] = node  # it may have no child yet
        return {
            "label": self.nodes.label[:n_nodes],
            "owner": owner,
            "used": used,
            "lanes": self.blocks.lanes[:n_blocks],
            "child": child[in_use],
            "bias": self.blocks.bias[: n_blocks * LANES],
        }

    @property
    def calibration(self) -> Calibration | None:
        """The calibration fitted to predictions for rows before they were learned."""
        return self.stream.calibration(len(self.leaf_of), not self.one_label)

    def _stored_lanes(self) -> NDArray[np.int64]:
        used = self.blocks.used[: self.n_blocks]
        return used + _grows(used, self.blocks.lanes[: self.n_blocks])

    def _packed_records(self, with_squares: bool) -> dict[str, NDArray[Any]]:
        filled = self.blocks.filled[: self.n_blocks]
        n_values = int((filled * self._stored_lanes()).sum())
        features, weights = np.empty(filled.sum(), np.uint32), np.empty(n_values, np.uint16)
        squares = np.empty(n_values if with_squares else 0, dtype=np.uint16)
        file_kernels.pack_records(self.n_blocks, self.blocks, self.store, features, weights, squares)
        packed = {"features": features, "weights": weights.view(np.float16)}
        return {**packed, "squares": squares} if with_squares else packed

    @classmethod
    def _from_arrays(
        cls,
        arrays: dict[str, NDArray[Any]],
        one_label: bool,
        n_labels: int,
        seed: int,
        growth: tuple[int, int, int, float, bool] | None,
    ) -> OnlineTree:
        """Restore the model from its arrays.

        Raise ValueError if they are inconsistent, or if the tree cannot be extended with the settings `growth`.
        """
        _check_types(arrays)
        label, owner, used, child = (arrays[name] for name in ("label", "owner", "used", "child"))
        n_nodes, n_blocks = len(label), len(owner)
        self = cls(one_label, seed)
        filled, lanes = arrays["filled"], arrays["lanes"]
        _check_shape(label, owner, used, child, n_labels)
        n_records = len(arrays["masks"] if "masks" in arrays else arrays["features"])
        if filled.min() < 0 or filled.max() > n_records or filled.sum() != n_records:
            raise ValueError("the features do not fit the tree")
        width = _widths(used, lanes)
        if "width" in arrays:
            if not np.isin(arrays["width"], WIDTHS).all() or (arrays["width"] < width).any():
                raise ValueError("the tree is damaged: blocks have too few lanes")
            width = arrays["width"]
        slots = int(_table_sizes(filled).sum())
        self.reserve(n_nodes, n_blocks, int((-(-filled * width // LANES)).sum()), slots)
        self.counts[kernels.NODES], self.counts[kernels.BLOCKS] = n_nodes, n_blocks
        _fill_nodes(self.nodes, self.blocks, label, owner, used, child)
        self.counts[kernels.WIDEST] = int(self.nodes.n_children[:n_nodes].max())
        self.reserve_labels(n_labels)
        self.leaf_of[label[label >= 0]] = np.flatnonzero(label >= 0)
        self.blocks.lanes[:n_blocks], self.blocks.width[:n_blocks], self.blocks.newest[:n_blocks] = lanes, width, -1
        followed = self.blocks.following[:n_blocks] >= 0
        if (used[followed] != width[followed]).any() or not (growth is None or self.can_grow(growth)):
            raise ValueError("the tree is damaged: a node has no lane free for its next child")
        self.blocks.bias[: n_blocks * LANES] = arrays["bias"]
        self.has_squares = "squares" in arrays
        if self.has_squares:
            self.blocks.bias_squares[: n_blocks * LANES] = arrays["bias_squares"]
        if "codes" in arrays:
            restore_rounded(self, filled, arrays)
        else:
            self._restore_records(filled, arrays)
        return self

    def _restore_records(self, filled: NDArray[np.int64], arrays: dict[str, NDArray[Any]]) -> None:
        n_values = int((filled * self._stored_lanes()).sum())
        squares = arrays.get("squares", np.empty(0, dtype=np.uint16))
        if len(arrays["weights"]) != n_values or len(squares) != n_values * self.has_squares:
            raise ValueError("the weights do not fit the tree")
        if not file_kernels.unpack_records(
            self.n_blocks, filled, arrays["features"], arrays["weights"].view(np.uint16), squares, self.blocks,
            self.store, self.counts,
        ):  # fmt: skip
            raise ValueError("a feature occurs twice in one block of weights")

    # --- prediction -------------------------------------------------------------------------------------

    def top_k(
        self, rows: Rows, k: int, search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids (-1 where fewer were found) and probabilities of the k best labels, by a beam of width `search`.

        None is exact, by uniform-cost search.
        """
        if k == 0:  # no label is known yet
            return empty_top_k(len(rows), k)
        return self.top_k_allowed(rows, 0, k, ALL_ONE, search, threads)[:2]

    def top_k_weighted(
        self, rows: Rows, k: int, weights: NDArray[np.float32], search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k labels with the largest products of probability and weight, without subtrees of weight 0."""
        ids, probabilities = empty_top_k(len(rows), k)
        width = self.n_nodes if search is None else min(search, self.n_nodes)
        of_nodes = largest_weights(self, self.nodes.parent, self.leaf_of, weights, self.n_nodes).values
        options = (width, of_nodes)
        search_rows(search_kernels.weighted_search, self._arguments(), rows, threads, options, ids, probabilities)
        return ids, probabilities

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: int | None, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best of those with a weight, in one search."""
        found = TopKAllowed.empty(len(rows), n_first, k)
        width = self.n_nodes if search is None else min(search, self.n_nodes)
        of_nodes = ALL_ONE
        if k:
            of_nodes = largest_weights(self, self.nodes.parent, self.leaf_of, weights, self.n_nodes).values
        search_rows(search_kernels.allowed_search, self._arguments(), rows, threads, (width, of_nodes), *found)
        return found

    def probabilities(self, rows: Rows, search: int | None = None, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label."""
        return self._all_probabilities(self._arguments(), rows, threads)

    def path_probabilities(self, rows: Rows, threads: int = 1) -> NDArray[np.float32]:
        """Return the product of the classifiers on the path to every label (equation 2), siblings not scaled."""
        return self._all_probabilities(self._arguments(scaled=False), rows, threads)

    def root_probabilities(self, rows: Rows, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability that a row has any label at all."""
        out = np.empty((len(rows), 1), dtype=np.float32)
        search_rows(search_kernels.root_probabilities, self._arguments(), rows, threads, (), out)
        return out[:, 0]

    def _all_probabilities(self, arguments: Arguments, rows: Rows, threads: int) -> NDArray[np.float32]:
        out = np.empty((len(rows), len(self.leaf_of)), dtype=np.float32)
        search_rows(search_kernels.all_probabilities, arguments, rows, threads, (), out)
        return out

    def of_labels(
        self, rows: Rows, ids: NDArray[np.int64], search: int | None = None, threads: int = 1
    ) -> NDArray[np.float32]:
        """Return the probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""
        out = np.empty(ids.shape, dtype=np.float32)
        options = (read_only(self.leaf_of),)
        search_rows(search_kernels.probabilities_of, self._arguments(), rows, threads, options, read_only(ids), out)
        return out

    def above(self, rows: Rows, threshold: float, search: int | None = None, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability."""
        return search_above(search_kernels.labels_above, self._arguments(), rows, threshold, threads)

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: int | None = None) -> Trace:
        """Return the paths to labels, for `explain`."""
        return trace_labels(self, row, ids)

    def can_grow(self, growth: tuple[int, int, int, float, bool]) -> bool:
        """Return whether the tree can be extended with the settings `growth`."""
        return bool(file_kernels.can_grow(growth, self.n_nodes, self.nodes, self.blocks))

    @property
    def scaled(self) -> bool:
        """Whether the probabilities of siblings are divided by their sum."""
        return self.one_label and self.scale_siblings

    def _arguments(self, scaled: bool | None = None) -> Arguments:
        """Return the function that builds the first arguments of a search kernel."""
        tree = (
            self.one_label,
            self.scaled if scaled is None else scaled,
            self.n_nodes,
            int(self.counts[kernels.WIDEST]),
            Nodes(*map(read_only, self.nodes)),
            Blocks(*map(read_only, self.blocks)),
            Store(*map(read_only, self.store)),
        )
        return lambda rows: (rows.indptr, rows.indices, rows.values, tree)


def _grows(used: NDArray[np.int64], lanes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return whether each block has free lanes, which learn."""
    return (used < LANES) & ((lanes >> np.minimum(used, LANES - 1).astype(np.uint32)) & 1 > 0)


def _table_sizes(filled: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of tables with so many records."""
    sizes = np.full(len(filled), 1 << kernels.SMALLEST_TABLE_BITS)
    while (small := 3 * sizes < 4 * filled).any():
        sizes[small] *= 2
    return sizes


def _widths(used: NDArray[np.int64], lanes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the lanes of blocks that are loaded: all that learn, or as many as their children need."""
    grows, last = _grows(used, lanes), len(WIDTHS) - 1
    place = np.where(grows, np.searchsorted((1 << WIDTHS) - 1, lanes), np.searchsorted(WIDTHS, used))
    widths: NDArray[np.int64] = WIDTHS[np.minimum(place, last)]
    if (lanes != (1 << np.where(grows, widths, used)) - 1).any() or (lanes == 0).any():
        raise ValueError("the tree is damaged: a block has lanes without a child")
    return widths


def _empty_blocks() -> Blocks:
    kinds = {"lanes": np.uint32, "bias": np.float32, "bias_squares": np.float32}
    return Blocks(*[np.zeros(0, dtype=kinds.get(name, np.int64)) for name in Blocks._fields])


def _enlarged(array: NDArray[Any], need: int, spare: bool = True) -> NDArray[Any]:
    """Return the array, or a larger copy if it is too small or read-only; searches may still read the old one."""
    if need <= len(array) and array.flags.writeable:
        return array
    capacity = len(array) if need <= len(array) else max(need, 2 * len(array) if spare else 0)
    larger = np.zeros(capacity, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _aligned_copy(array: NDArray[np.uint16]) -> NDArray[np.uint16]:
    copy = _aligned(len(array))
    copy[:] = array
    return copy


def _aligned(n: int) -> NDArray[np.uint16]:
    """Return zeros aligned to a cache line."""
    buffer = np.zeros(n + 32, dtype=np.uint16)
    skip = -buffer.ctypes.data % 64 // 2
    return buffer[skip : skip + n]


_TYPES = {
    "label": np.int64, "owner": np.int64, "used": np.int64, "lanes": np.uint32, "child": np.int64,
    "filled": np.int64, "bias": np.float32,
}  # fmt: skip
_EXACT = {"features": np.uint32, "weights": np.float16}
_OPTIMISER = {"bias_squares": np.float32, "squares": np.uint16}
_OPTIONAL = {"width": np.int64}


def _check_types(arrays: dict[str, NDArray[Any]]) -> None:
    resume = bool(set(_OPTIMISER) & set(arrays))
    types = {**_TYPES, **(rounding.TYPES if "codes" in arrays else _EXACT), **(_OPTIMISER if resume else {})}
    missing = set(types) - set(arrays)
    if missing:
        raise ValueError(f"the model has no {', '.join(sorted(missing))}")
    types |= _OPTIONAL
    for name, array in arrays.items():
        if name not in types or array.dtype != types[name] or array.ndim != 1:
            raise ValueError(f"the model has an array {name} of {array.ndim} dimensions and type {array.dtype}")
    if resume:
        expect_squares(arrays, "bias_squares", arrays["bias_squares"].shape)
        if (arrays["squares"] > INFINITE_BFLOAT).any():
            raise ValueError("the model has sums of squares that are negative or no numbers")
    n_blocks = len(arrays["owner"])
    lengths = {"used": 1, "lanes": 1, "filled": 1, "width": 1, "bias": LANES, "bias_squares": LANES}
    for name, length in lengths.items():
        if name in arrays and len(arrays[name]) != length * n_blocks:
            raise ValueError(f"the model has {len(arrays[name])} numbers of {name} for {n_blocks} blocks")


def _check_shape(
    label: NDArray[np.int64], owner: NDArray[np.int64], used: NDArray[np.int64], child: NDArray[np.int64], n_labels: int
) -> None:
    """Raise ValueError unless everything holds that training and searches assume without checking."""
    n_nodes = len(label)
    valid = n_nodes > 0 and len(owner) > 0 and owner[0] == -1 and used[0] == 1
    valid = valid and bool(((used >= 0) & (used <= LANES)).all())
    valid = valid and len(child) == used.sum() and np.array_equal(np.sort(child), np.arange(n_nodes))
    valid = valid and child[0] == 0 and bool(((owner[1:] >= 0) & (owner[1:] < n_nodes)).all())
    leaves = label[label >= 0]
    valid = valid and len(np.unique(leaves)) == len(leaves) and label.max(initial=-1) < n_labels
    if not valid:
        raise ValueError("the tree is damaged: its nodes and blocks do not fit together")


def _fill_nodes(
    nodes: Nodes,
    blocks: Blocks,
    label: NDArray[np.int64],
    owner: NDArray[np.int64],
    used: NDArray[np.int64],
    child: NDArray[np.int64],
) -> None:
    """Fill the arrays of the tree from the stored owner and children of each block."""
    n_nodes, n_blocks = len(label), len(owner)
    lane = np.arange(len(child)) - np.repeat(np.cumsum(used) - used, used)
    place = np.repeat(np.arange(n_blocks) * LANES, used) + lane
    nodes.place[child] = place
    blocks.child[: n_blocks * LANES] = -1
    blocks.child[place] = child
    blocks.used[:n_blocks] = used
    nodes.parent[child] = np.repeat(owner, used)
    nodes.label[:n_nodes] = label
    nodes.first_block[:n_nodes] = nodes.last_block[:n_nodes] = -1
    block = np.arange(n_blocks)
    nodes.last_block[owner[1:]] = block[1:]
    nodes.first_block[owner[:0:-1]] = block[:0:-1]
    blocks.following[:n_blocks] = -1
    by_owner = np.argsort(owner, kind="stable")  # the blocks of a node are chained in ascending order
    same = owner[by_owner[1:]] == owner[by_owner[:-1]]
    blocks.following[by_owner[:-1][same]] = by_owner[1:][same]
    _fill_counts(nodes, n_nodes)


def _fill_counts(nodes: Nodes, n_nodes: int) -> None:
    """Set the number of children, inner children and leaves of every node, bottom-up."""
    parent, label = nodes.parent[:n_nodes], nodes.label[:n_nodes]
    below = parent >= 0
    nodes.n_children[:n_nodes] = np.bincount(parent[below], minlength=n_nodes)
    nodes.n_inner[:n_nodes] = np.bincount(parent[below & (label < 0)], minlength=n_nodes)
    has_both_or_neither = (nodes.n_children[:n_nodes] > 0) == (label >= 0)
    if has_both_or_neither[1:].any() or (has_both_or_neither[0] and label[0] >= 0):
        raise ValueError("the tree is damaged: an inner node has a label, or a leaf has none")
    nodes.n_leaves[:n_nodes] = 0
    at, steps = np.flatnonzero(label >= 0), 0
    while len(at):
        np.add.at(nodes.n_leaves, at, 1)
        at, steps = parent[at], steps + 1
        at = at[at >= 0]
        if steps > n_nodes:
            raise ValueError("the tree is damaged: its nodes form a cycle")
