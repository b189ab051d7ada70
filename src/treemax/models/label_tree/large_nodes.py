"""Training of a node whose rows do not fit in memory.

The same updates in the same order as in `kernels.train_siblings`, with the same bits. For every pass, the rows are
grouped on disk into partitions by the time of their visit; each partition is loaded, sorted and visited sequentially.
Only the dual variables of the rows are kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows, take_sparse_rows
from treemax.kernels import sparse_rows
from treemax.models.label_tree import kernels, solver_kernels
from treemax.models.label_tree.nodes import (
    LOSSES,
    SMALL,
    Common,
    NodeProblem,
    empty_statistics,
    pack_result,
    siblings_of,
)
from treemax.models.label_tree.packed_tree import NodeWeights
from treemax.models.training.stored_rows import Partitions, StoredRows
from treemax.parallel.pools import Arrays

WIDTH = 16  # siblings trained together
ROW_BYTES = 180  # memory for each row of such a node, in all arrays together


class LargeNode:
    """Training of one node on rows on disk, with at most `most` entries of its rows in memory, twice."""

    def __init__(self, stored: StoredRows, common: Common, problem: NodeProblem, most: int) -> None:
        self.stored, self.common, self.problem, self.most = stored, common, problem, most
        settings = common.settings
        self.n = len(problem.rows)
        self.n_children = problem.n_children
        self.seed = common.seed + problem.node
        self.solver = solver_kernels.Solver(LOSSES[settings.loss], np.float32(problem.cost), SMALL)
        self.order = kernels.shuffled(self.n, np.uint64(self.seed))
        self.place_of = np.empty(self.n, dtype=np.uint32)  # inverse of `order`
        self.place_of[self.order] = np.arange(self.n, dtype=np.uint32)
        self.held = kernels.held_places(problem.rows, self.order, settings.held_share)
        self.join_at = kernels.join_pass(settings.passes, settings.held_share)
        self.weighted = len(problem.row_weights) > 0 or len(problem.pair_weights) > 0
        self.siblings = siblings_of(problem)
        self.inverse = np.empty(self.n, dtype=np.float32)
        self.features = self._scan_features()
        self.local_of = np.zeros(stored.n_features, dtype=np.uint32)
        self.local_of[self.features] = np.arange(len(self.features), dtype=np.uint32)

    def _scan_features(self) -> NDArray[np.uint32]:
        """Return the features of the node's rows in order of first appearance; set `inverse`, the step lengths."""
        first_at = np.full(self.stored.n_features, self.n, dtype=np.int64)
        rows = self.problem.rows
        for start, stop in self.stored.windows():
            low, high = np.searchsorted(rows, [start, stop])
            if low == high:
                continue
            window = take_sparse_rows(self.stored.part(start, stop), rows[low:high] - np.uint32(start))
            kernels.look_over(
                window.arrays, self.place_of[low:high].astype(np.int64), self.order, np.float32(self.common.length),
                self.siblings, self.solver, self.inverse, first_at,
            )  # fmt: skip
        found = np.flatnonzero(first_at < self.n)
        return found[np.argsort(first_at[found], kind="stable")].astype(np.uint32)

    def train(self) -> Arrays:
        """Train the node; return the same as `nodes.train_node`."""
        siblings, statistics = self.siblings, empty_statistics()
        n_local, blocks = len(self.features), (self.n_children + WIDTH - 1) // WIDTH
        weights = kernels.aligned((n_local + 1) * WIDTH)
        alphas = kernels.aligned(self.n * WIDTH)
        positive = kernels.positive_bits(self.order, siblings)
        held_scores = np.empty(blocks * len(self.held) * WIDTH, dtype=np.float32)
        final = _KeptWeights(self, np.ones(n_local, dtype=bool))
        holdout = _KeptWeights(self, self.common.calibration_features[self.features])
        for block in range(blocks):
            in_block = min(WIDTH, self.n_children - WIDTH * block)
            valid = np.uint32((1 << in_block) - 1)
            positive_of_block = positive[block * self.n : (block + 1) * self.n]
            size = len(self.held) * WIDTH
            scores = held_scores[block * size : (block + 1) * size]
            for _ in self._train_block(block, positive_of_block, valid, weights, alphas, scores):
                holdout.add(block, valid, weights)
            final.add(block, valid, weights)
        kernels.calibrate(self.order[self.held], siblings, held_scores, statistics)
        return pack_result(final.merged(), holdout.merged(), self.common, statistics)

    def _train_block(
        self,
        number_of_block: int,
        positive: NDArray[np.uint32],
        valid: np.uint32,
        weights: NDArray[np.float32],
        alphas: NDArray[np.float32],
        held_scores: NDArray[np.float32],
    ) -> Iterator[None]:
        """Train sixteen siblings as `kernels.train_siblings` does; yield before the held-out rows are added."""
        weights[:], alphas[:] = 0, 0
        resting = np.empty(self.n, dtype=np.int32)
        solver_kernels.start_resting(positive, self.held, self.join_at, SMALL, resting)
        constant = np.float32(solver_kernels.step_constant(self.solver.loss, self.solver.cost))
        least = np.float32(solver_kernels.least_move(self.solver, self.weighted))
        starts, steps = solver_kernels.visits(self.n, self.common.settings.passes, self.seed)
        done = False
        for number in range(self.common.settings.passes):
            if number == self.join_at:
                if self.join_at > 0:
                    self._score_held(weights, held_scores)
                    yield
                done = False
            if done:
                continue
            moving = 0
            active = resting[self.place_of] <= number
            for places, rows in self._visited(active, int(starts[number]), int(steps[number])):
                part = kernels.aligned(len(places) * WIDTH)
                part.reshape(-1, WIDTH)[:] = alphas.reshape(-1, WIDTH)[places]
                rests = resting[places]
                costs = self._costs(places, number_of_block)
                block = solver_kernels.Block(positive[places], valid, self.inverse[places], costs, weights, part, rests)
                scratch = np.empty(len(places), dtype=np.uint32)
                moving += solver_kernels.one_pass(
                    number, 0, 1, rows.arrays, block, scratch, self.solver.loss, constant, least
                )
                alphas.reshape(-1, WIDTH)[places] = part.reshape(-1, WIDTH)
                resting[places] = rests
            done = solver_kernels.is_settled(moving, self.n, SMALL)

    def _costs(self, places: NDArray[np.int64], block: int) -> NDArray[np.float32]:
        """Return the costs of rows, or of rows and siblings, as `kernels.write_costs` does, or none without weights."""
        costs = kernels.empty_costs(len(places), self.siblings)
        kernels.write_costs(self.order[places], self.solver.cost, self.siblings, block, costs)
        return costs

    def _score_held(self, weights: NDArray[np.float32], held_scores: NDArray[np.float32]) -> None:
        """Compute the scores of sixteen siblings for the held-out rows."""
        if len(self.held) == 0:
            return
        is_held = np.zeros(self.n, dtype=bool)
        is_held[self.held] = True
        for places, rows in self._visited(is_held[self.place_of], 0, 1):
            scores = np.empty(len(places) * WIDTH, dtype=np.float32)
            solver_kernels.score_held(np.arange(len(places)), rows.arrays, weights, scores)
            at = np.searchsorted(self.held, places)
            held_scores.reshape(-1, WIDTH)[at] = scores.reshape(-1, WIDTH)

    def _visited(
        self, chosen: NDArray[np.bool_], start: int, step: int
    ) -> Iterator[tuple[NDArray[np.int64], SparseRows]]:
        """Yield the chosen rows in the order of a pass with this start and step, by partitions.

        Each item has their places in `order`, and the rows with local features.
        """
        rows = self.problem.rows[chosen]
        back = pow(step, -1, self.n) if self.n > 1 else 0
        times = (self.place_of[chosen].astype(np.int64) - start) * back % self.n
        starts = self.stored.indptr
        entries = int((starts[rows.astype(np.int64) + 1] - starts[rows]).sum())
        n_partitions = max(1, math.ceil(entries / self.most))
        partition_of = (times * n_partitions // self.n).astype(np.uint32)
        partitions = Partitions(self.stored, rows, partition_of, n_partitions)
        for partition in range(n_partitions):
            members, part = partitions.load(partition)
            if len(members) == 0:
                continue
            order = np.argsort(times[members])
            places = (start + step * times[members[order]]) % self.n
            yield places, self._reordered(part, order)

    def _reordered(self, rows: SparseRows, order: NDArray[np.int64]) -> SparseRows:
        indptr = np.empty(len(order) + 1, dtype=np.int64)
        indices = np.empty(rows.nnz, dtype=np.uint32)
        values = np.empty(rows.nnz, dtype=np.float32)
        sparse_rows.copy_local_rows(
            rows.indptr, rows.indices, rows.values, order, self.local_of, indptr, indices, values
        )
        values /= np.float32(self.common.length)
        return SparseRows(indptr, indices, values, len(self.features))


class _KeptWeights:
    """The weights of a node that are large enough and of wanted features, added block by block."""

    def __init__(self, node: LargeNode, wanted: NDArray[np.bool_]) -> None:
        self.features, self.wanted = node.features, wanted
        self.blocks = (node.n_children + WIDTH - 1) // WIDTH
        self.least = np.float32(node.common.settings.threshold)
        self.biases = np.zeros(node.n_children, dtype=np.float32)
        self.masks = np.zeros(self.blocks * len(wanted), dtype=np.uint32)
        self.kept, self.n_kept = np.empty(1024, dtype=np.float32), 0

    def add(self, block: int, valid: np.uint32, weights: NDArray[np.float32]) -> None:
        n_local = len(self.wanted)
        masks = self.masks[block * n_local : (block + 1) * n_local]
        self.kept, self.n_kept = kernels.keep_large(
            weights, self.least, valid, self.wanted, masks, self.kept, self.n_kept
        )
        biases = self.biases[WIDTH * block : WIDTH * (block + 1)]
        biases[:] = weights[n_local * WIDTH :][: len(biases)]

    def merged(self) -> NodeWeights:
        features, starts, children, weights = kernels.merged(
            self.features, self.masks, self.kept, self.n_kept, self.blocks
        )
        return NodeWeights(features, starts, children, weights, self.biases)
