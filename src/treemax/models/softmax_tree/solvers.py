"""Logistic regression and softmax with an L1 penalty: the problems that the nodes of a softmax tree solve.

Both are the same problem, the weighted loss of a softmax plus `alpha` times the absolute values of its
weights and, if asked for, half of `ridge` times their squares; logistic regression has one output, and a
second class whose score is always zero. Dense rows are solved by a quasi-Newton method on products of matrices
(`kernels.owlqn`), sparse ones by coordinate descent (`kernels.softmax_descent`). The biases are not penalised, unless that is asked for.

scikit-learn's LIBLINEAR minimises |w| + C sum(loss), so that its C is 1 / alpha, and penalises the bias as
the other weights (`intercept_scaling` times as little): `penalise_bias=True` is its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels.columns import local_columns
from treemax.models.softmax_tree import logistic_descent_kernels as logistic_descent
from treemax.models.softmax_tree import logistic_newton_kernels as logistic_newton
from treemax.models.softmax_tree import owlqn_kernels as owlqn
from treemax.models.softmax_tree import softmax_descent_kernels as descent
from treemax.parallel.threads import one_blas_thread

WORK_AT_ONCE = 4_000_000_000  # multiply-adds of one kernel call: about a tenth of a second
NEWTON_FEATURES = 1024  # logistic regression of rows wider than this is left to the quasi-Newton method
NEGLIGIBLE = 1e-9  # of the weights of the rows: a loss below this is none

Matrix: TypeAlias = "NDArray[np.float32] | sp.csr_matrix"


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    `coef` is [outputs, features], a CSR matrix where the rows are sparse; `objective` is that of exactly
    these numbers, in double precision, and never above `start_objective`. `iterations` are quasi-Newton
    steps for dense rows and sweeps over the weights for sparse ones.
    """

    coef: Matrix
    bias: NDArray[np.float32]
    objective: float
    start_objective: float
    iterations: int
    converged: bool


Start: TypeAlias = "Solution | tuple[Matrix, NDArray[np.float32]]"


@dataclass(frozen=True, eq=False)
class _Problem:
    """Rows of weight above zero, their targets and weights, and how much to penalise."""

    rows: Rows
    indices: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    weights: NDArray[np.float32]
    outputs: int
    reference: bool
    alpha: float
    bias_alpha: float
    ridge: float

    @property
    def penalties(self) -> tuple[float, float, float]:
        """As the kernels take them."""
        return self.alpha, self.bias_alpha, self.ridge

    @property
    def single_penalties(self) -> tuple[np.float32, np.float32, np.float32]:
        """The same for kernels that work in single precision."""
        return np.float32(self.alpha), np.float32(self.bias_alpha), np.float32(self.ridge)

    @property
    def least(self) -> float:
        return NEGLIGIBLE * float(self.weights.sum(dtype=np.float64))


def l1_logistic(
    rows: Rows,
    indices: NDArray[Any],
    signs: NDArray[Any] | Sequence[int],
    alpha: float,
    weights: NDArray[Any] | None = None,
    *,
    start: Start | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
    penalise_bias: bool = False,
    ridge: float = 0.0,
) -> Solution:
    """Minimise sum_i weights_i log(1 + exp(-signs_i (w.x_i + b))) + alpha |w|_1 + ridge / 2 |w|_2^2 over the
    rows `indices`.

    Parameters
    ----------
    rows : float32 matrix or SparseRows
        All rows; none are copied.
    indices : array of row numbers
        The rows of this problem.
    signs : array of -1 and 1
        One for each of `indices`, as are the weights.
    alpha : float
        How much a weight costs.
    weights : array of numbers not below zero, optional
        How much each row counts; one each without it. Rows of weight zero take no part.
    start : Solution or (coef, bias), optional
        Where to begin; nothing with a higher objective is returned.
    tolerance : float
        The solver ends when its last few iterations together took off less than half of this share of the
        objective.
    max_iterations : int
        The solver also ends after these.
    penalise_bias : bool
        Whether the bias costs `alpha` as a weight does.
    ridge : float
        The square of a weight costs half of this; biases are never in it.

    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
    >>> found = l1_logistic(X, np.arange(4), [-1, 1, -1, 1], alpha=0.1)
    >>> found.coef.shape, found.converged
    ((1, 1), True)
    """
    chosen = np.asarray(signs)
    if not np.isin(chosen, (-1, 1)).all():
        wrong = chosen[~np.isin(chosen, (-1, 1))][0]
        raise ValueError(f"signs must be -1 or 1, got {wrong!r}.")
    targets = (chosen < 0).astype(np.uint32)  # class 0 has the one output, class 1 is the reference
    problem = _problem(rows, indices, targets, 1, True, (alpha, ridge), weights, penalise_bias)
    return _solve(problem, start, tolerance, max_iterations)


def l1_softmax(
    rows: Rows,
    indices: NDArray[Any],
    classes: NDArray[Any] | Sequence[int],
    n_classes: int,
    alpha: float,
    weights: NDArray[Any] | None = None,
    *,
    start: Start | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
    penalise_bias: bool = False,
    ridge: float = 0.0,
) -> Solution:
    """Minimise sum_i -weights_i log softmax(W x_i + b)[classes_i] + alpha |W|_1 + ridge / 2 |W|_2^2 over the
    rows `indices`.

    `classes` has a number from 0 to `n_classes` - 1 for each of `indices`; the rest is as in `l1_logistic`.

    >>> X = np.eye(3, dtype=np.float32)
    >>> found = l1_softmax(X, np.arange(3), [0, 1, 2], 3, alpha=0.01)
    >>> found.coef.shape, bool((found.coef.argmax(axis=0) == [0, 1, 2]).all())
    ((3, 3), True)
    """
    targets = np.asarray(classes)
    if n_classes < 1:
        raise ValueError(f"n_classes must be at least 1, got {n_classes!r}.")
    if targets.size and not (targets.min() >= 0 and targets.max() < n_classes):
        wrong = targets[(targets < 0) | (targets >= n_classes)][0]
        raise ValueError(f"classes must be from 0 to {n_classes - 1}, got {wrong!r}.")
    problem = _problem(
        rows, indices, targets.astype(np.uint32), n_classes, False, (alpha, ridge), weights, penalise_bias
    )
    return _solve(problem, start, tolerance, max_iterations)


def _problem(
    rows: Rows, indices: NDArray[Any], targets: NDArray[np.uint32], outputs: int, reference: bool,
    costs: tuple[float, float], weights: NDArray[Any] | None, penalise_bias: bool,
) -> _Problem:  # fmt: skip
    """The problem with its parts checked, and without rows that count for nothing."""
    indices = np.asarray(indices)
    if indices.size and not (indices.min() >= 0 and indices.max() < len(rows)):
        raise ValueError(
            f"indices must be rows from 0 to {len(rows) - 1}, got {indices.min()} to {indices.max()}."
        )
    if targets.shape != indices.shape:
        raise ValueError(f"{len(indices)} indices need as many targets, got {len(targets)}.")
    for name, cost in zip(("alpha", "ridge"), costs):
        if not cost >= 0:
            raise ValueError(f"{name} must not be below zero, got {cost!r}.")
    alpha, ridge = map(float, costs)
    counts = (
        np.ones(len(indices), dtype=np.float32) if weights is None else np.asarray(weights, dtype=np.float32)
    )
    if counts.shape != indices.shape:
        raise ValueError(f"{len(indices)} indices need as many weights, got {len(counts)}.")
    if not (counts >= 0).all() or not np.isfinite(counts).all():
        raise ValueError("weights must be finite and not below zero.")
    kept = np.flatnonzero(counts) if weights is not None else slice(None)
    return _Problem(
        rows if isinstance(rows, SparseRows) else read_only(rows),
        read_only(indices[kept].astype(np.uint32)), read_only(targets[kept]), read_only(counts[kept]),
        outputs, reference, alpha, alpha if penalise_bias else 0.0, ridge,
    )  # fmt: skip


def penalty(coef: Matrix, alpha: float, ridge: float = 0.0) -> float:
    """What weights cost, in double precision: alpha |w|_1 + ridge / 2 |w|_2^2.

    >>> penalty(np.array([[3.0, -1.0]], dtype=np.float32), alpha=0.5, ridge=0.2)
    3.0
    """
    any_coef: Any = coef
    entries = any_coef.data if sp.issparse(coef) else any_coef
    cost = alpha * float(np.abs(entries).sum(dtype=np.float64))
    return cost + 0.5 * ridge * float(np.square(entries, dtype=np.float64).sum()) if ridge else cost


def _solve(problem: _Problem, start: Start | None, tolerance: float, max_iterations: int) -> Solution:
    coef, bias = _start(problem, start)
    if not len(problem.indices):
        return _without_rows(problem, coef, bias)
    solve = _solve_sparse if isinstance(problem.rows, SparseRows) else _solve_dense
    return solve(problem, coef, bias, tolerance, max_iterations)


def _start(problem: _Problem, start: Start | None) -> tuple[Matrix, NDArray[np.float32]]:
    """Where to begin, in the form that suits the rows."""
    shape = (problem.outputs, problem.rows.shape[1])
    sparse = isinstance(problem.rows, SparseRows)
    if start is None:
        nothing = sp.csr_matrix(shape, dtype=np.float32) if sparse else np.zeros(shape, dtype=np.float32)
        return nothing, np.zeros(problem.outputs, dtype=np.float32)
    coef: Any
    coef, bias = (start.coef, start.bias) if isinstance(start, Solution) else start
    bias = np.asarray(bias, dtype=np.float32)
    if coef.shape != shape or bias.shape != shape[:1]:
        raise ValueError(
            f"start must have weights {shape} and {shape[0]} biases, got {coef.shape} and {bias.shape}."
        )
    if sparse:
        return sp.csr_matrix(coef, dtype=np.float32), bias
    return np.asarray(coef.toarray() if sp.issparse(coef) else coef, dtype=np.float32), bias


def _without_rows(problem: _Problem, coef: Matrix, bias: NDArray[np.float32]) -> Solution:
    """Nothing to explain: weights of zero, and the biases of the start, unless they cost something."""
    before = penalty(coef, problem.alpha, problem.ridge) + problem.bias_alpha * float(abs(bias).sum())
    nothing, _ = _start(problem, None)
    return Solution(nothing, bias * np.float32(problem.bias_alpha == 0), 0.0, before, 0, True)


# --- dense rows ----------------------------------------------------------------------------------------


def _solve_dense(
    problem: _Problem, coef: NDArray[np.float32], bias: NDArray[np.float32], tolerance: float, max_iterations: int
) -> Solution:  # fmt: skip
    began = np.concatenate([coef.T.ravel(), bias])
    parameters = began.copy()
    narrow = problem.reference and problem.rows.shape[1] <= NEWTON_FEATURES
    minimise = _newton if narrow else _quasi_newton
    with one_blas_thread():
        start_objective = _dense_objective(problem, parameters)
        iterations, converged = minimise(problem, parameters, tolerance, max_iterations)
        objective = _dense_objective(problem, parameters)
    if not objective <= start_objective:
        parameters, objective = began, start_objective
    n_weights = parameters.size - problem.outputs
    found = np.ascontiguousarray(parameters[:n_weights].reshape(-1, problem.outputs).T)
    return Solution(found, parameters[n_weights:].copy(), objective, start_objective, iterations, converged)


def _newton(
    problem: _Problem, parameters: NDArray[np.float32], tolerance: float, max_iterations: int
) -> tuple[int, bool]:
    """Logistic regression; moves the parameters, and returns the iterations made and whether it got there."""
    data = (problem.rows, problem.indices, problem.targets, problem.weights)
    penalties = problem.single_penalties
    gradient = np.empty(parameters.size, dtype=np.float32)
    curvatures = np.empty(len(problem.indices), dtype=np.float32)
    value = logistic_newton.evaluate(*data, *penalties, parameters, gradient, curvatures)
    for iteration in range(max_iterations):
        value, promised = logistic_newton.newton_step(
            *data, *penalties, parameters, gradient, curvatures, value, iteration
        )
        if promised <= tolerance * value or value <= problem.least:
            return iteration + 1, True
    return max_iterations, False


def _quasi_newton(
    problem: _Problem, parameters: NDArray[np.float32], tolerance: float, max_iterations: int
) -> tuple[int, bool]:
    """The same for any number of outputs, in calls that take a fraction of a second each."""
    penalties = problem.single_penalties
    centre = owlqn.mean_of(problem.rows, problem.indices, problem.weights)
    if problem.bias_alpha:
        centre[:] = 0  # biases that cost something cannot take up the mean of the rows
    _shift_biases(parameters, centre, problem.outputs, 1)
    data = (problem.rows, problem.indices, centre, problem.targets, problem.weights, problem.reference)
    counters, past = np.zeros(3, dtype=np.int64), np.zeros(owlqn.WINDOW)
    history = np.empty((2, owlqn.MEMORY, parameters.size), dtype=np.float32)
    gradient = np.empty(parameters.size, dtype=np.float32)
    work = 2 * len(problem.indices) * parameters.size
    value = owlqn.evaluate(*data, *penalties, parameters, gradient)
    end = owlqn.RUNNING
    while end == owlqn.RUNNING and counters[owlqn.DONE] < max_iterations:
        count = min(max(1, WORK_AT_ONCE // work), max_iterations - int(counters[owlqn.DONE]))
        value, end = owlqn.advance(
            *data, *penalties, tolerance, problem.least, count,
            parameters, gradient, history[0], history[1], counters, past, value,
        )  # fmt: skip
    _shift_biases(parameters, centre, problem.outputs, -1)
    return int(counters[owlqn.DONE]), end == owlqn.CONVERGED


def _shift_biases(
    parameters: NDArray[np.float32], centre: NDArray[np.float32], outputs: int, sign: int
) -> None:
    """Biases for rows around a centre, from those for the rows themselves; or back."""
    weights = parameters[:-outputs].reshape(-1, outputs).astype(np.float64)
    parameters[-outputs:] += (sign * (centre.astype(np.float64) @ weights)).astype(np.float32)


def _dense_objective(problem: _Problem, parameters: NDArray[np.float32]) -> float:
    loss = owlqn.exact_loss(
        problem.rows, problem.indices, problem.targets, problem.weights, problem.reference, parameters
    )
    cost = owlqn.penalty(parameters, parameters.size - problem.outputs, *problem.penalties)
    return float(loss + cost)


# --- sparse rows ---------------------------------------------------------------------------------------


def _solve_sparse(
    problem: _Problem, coef: sp.csr_matrix, bias: NDArray[np.float32], tolerance: float, max_iterations: int
) -> Solution:  # fmt: skip
    rows: Any = problem.rows
    scratch = np.zeros(rows.n_features, dtype=np.uint32)
    features, starts, column_rows, column_values = local_columns(
        rows.indptr, rows.indices, rows.values, problem.indices, scratch
    )
    columns = (starts[:-1], column_rows, column_values, problem.targets, problem.weights, problem.reference)
    facts = descent.column_facts(starts[:-1], column_rows, column_values, problem.weights)
    local, elsewhere = _local_weights(coef, features, problem.outputs)
    used, moving = np.asarray(local.any(axis=1)), bias.copy()

    def exact() -> float:
        loss = descent.exact_loss(*columns, local, used, moving)
        return float(loss + descent.penalty(local, used, moving, *problem.penalties))

    start_objective = exact() + penalty(elsewhere, problem.alpha, problem.ridge)
    descend = _round_of_logistic if problem.reference else _round_of_softmax
    one_round = descend(problem, columns[:5], facts, tolerance, local, used, moving)
    iterations, converged = 0, False
    while iterations < max_iterations and not converged:
        before, taken, sweeps = one_round(min(descent.SWEEPS, max_iterations - iterations - 1))
        iterations += sweeps
        converged = taken <= max(0.5 * tolerance * before, problem.least)
    objective = exact()
    if not objective <= start_objective:
        return Solution(coef, bias, start_objective, start_objective, iterations, converged)
    return Solution(
        _spread(local, features, used, coef.shape), moving, objective, start_objective, iterations, converged
    )


Columns: TypeAlias = tuple[Any, Any, Any, Any, Any]  # starts, rows, values; targets and weights of the rows
Round: TypeAlias = Callable[[int], tuple[float, float, int]]


def _round_of_softmax(
    problem: _Problem, columns: Columns, facts: tuple[Any, Any], tolerance: float,
    local: NDArray[np.float32], used: NDArray[np.bool_], bias: NDArray[np.float32],
) -> Round:  # fmt: skip
    """One round of coordinate descent with a number of sweeps over the weights that are not zero."""
    n = len(problem.indices)
    exponentials = np.empty((n, problem.outputs), dtype=np.float32)
    totals, shares = np.empty(n), np.empty(n, dtype=np.float32)

    def one_round(sweeps: int) -> tuple[float, float, int]:
        return descent.one_round(
            *columns, *facts, *problem.penalties, tolerance, sweeps,
            local, used, bias, exponentials, totals, shares,
        )  # fmt: skip

    return one_round


def _round_of_logistic(
    problem: _Problem, columns: Columns, facts: tuple[Any, Any], tolerance: float,
    local: NDArray[np.float32], used: NDArray[np.bool_], bias: NDArray[np.float32],
) -> Round:  # fmt: skip
    """The same for one output and a reference."""
    n = len(problem.indices)
    exponentials, derivatives = np.empty(n, dtype=np.float32), np.empty((n, 2), dtype=np.float32)

    def one_round(sweeps: int) -> tuple[float, float, int]:
        return logistic_descent.one_round(
            *columns, *facts, *problem.penalties, tolerance, sweeps,
            local[:, 0], used, bias, exponentials, derivatives,
        )  # fmt: skip

    return one_round


def _local_weights(
    coef: sp.csr_matrix, features: NDArray[np.uint32], outputs: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights [features of the rows, outputs], and those of other features, in no order."""
    weights = np.zeros((len(features), outputs), dtype=np.float32)
    if not coef.nnz:
        return weights, coef.data
    order = np.argsort(features)
    entries = coef.tocoo()
    entries.sum_duplicates()
    place = np.searchsorted(features, entries.col, sorter=order)
    found = place < len(features)
    at = order[np.minimum(place, max(0, len(features) - 1))] if len(features) else place
    found[found] = features[at[found]] == entries.col[found]
    weights[at[found], entries.row[found]] = entries.data[found]
    return weights, entries.data[~found]


def _spread(
    local: NDArray[np.float32], features: NDArray[np.uint32], used: NDArray[np.bool_], shape: tuple[int, int]
) -> sp.csr_matrix:
    """Local weights back among all features."""
    columns = np.flatnonzero(used)
    at, output = np.nonzero(local[columns])
    values = local[columns][at, output]
    found = sp.csr_matrix(
        (values, (output, features[columns[at]].astype(np.int64))), shape=shape, dtype=np.float32
    )
    found.sort_indices()
    return found
