"""Logistic and softmax regression with an L1 penalty: the solvers of the nodes of a softmax tree.

Both minimise the weighted log loss of a softmax plus `alpha` times the absolute weights and half of `ridge` times the
squared weights; logistic regression has one output and a reference class with a score of zero. Dense rows are solved by
Newton's method (`logistic_newton_kernels`) or a quasi-Newton method (`owlqn_kernels`), sparse rows by coordinate descent
(`logistic_descent_kernels`, `softmax_descent_kernels`). Biases are not penalised by default.

LIBLINEAR in scikit-learn minimises |w| + C sum(loss), so that C is 1 / alpha, and penalises the bias too (divided by
`intercept_scaling`), as does `penalise_bias=True`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from treemax.models.softmax_tree.penalties import Penalties
from treemax.models.softmax_tree.softmax_descent_kernels import Coefficients, Columns
from treemax.parallel.threads import one_blas_thread

WORK_AT_ONCE = 4_000_000_000  # multiply-adds per kernel call: about a tenth of a second
NEWTON_FEATURES = 1024  # logistic regression of wider rows uses the quasi-Newton method
NEGLIGIBLE = 1e-9  # a loss below this fraction of the weights of the rows has converged

Matrix: TypeAlias = "NDArray[np.float32] | sp.csr_matrix"


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of a solver.

    `coef` is [outputs, features], a CSR matrix if the rows are sparse; `objective` is computed in double precision and
    never above `start_objective` (both NaN without `check_objective`). `iterations` counts (quasi-)Newton steps for dense rows and sweeps over the weights
    for sparse rows.
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
    """Rows with positive weights, their targets and weights, and the penalties."""

    rows: Rows
    indices: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    weights: NDArray[np.float32]
    outputs: int
    reference: bool
    alpha: float
    bias_alpha: float
    ridge: float
    newton: bool = True

    @property
    def penalties(self) -> Penalties:
        """The penalties in double precision."""
        return Penalties(self.alpha, self.bias_alpha, self.ridge)

    @property
    def single_penalties(self) -> Penalties:
        """The penalties in single precision."""
        single: Any = np.float32  # what kernels take
        return Penalties(*map(single, self.penalties))

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
    check_objective: bool = True,
    newton: bool = True,
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
        L1 penalty.
    weights : array of non-negative numbers, optional
        Weight of each row, one by default. Rows of weight zero are ignored.
    start : Solution or (coef, bias), optional
        Initial solution; the result never has a higher objective.
    tolerance : float
        The solver stops when the relative decrease of the objective over its last few iterations is less than half of
        this.
    max_iterations : int
        Maximum number of iterations.
    penalise_bias : bool
        Whether `alpha` applies to the bias too.
    ridge : float
        L2 penalty; never applied to the bias.
    check_objective : bool
        Whether to compute the objectives in double precision, which takes as long as a few iterations, and to return the
        initial solution if rounding errors have made the result worse. Otherwise they are NaN.
    newton : bool
        Whether to use Newton's method for dense rows of moderate width. The steps of the quasi-Newton method are less
        accurate and an order of magnitude faster.

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
    return _solve(replace(problem, newton=newton), start, tolerance, max_iterations, check_objective)


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
    check_objective: bool = True,
) -> Solution:
    """Minimise sum_i -weights_i log softmax(W x_i + b)[classes_i] + alpha |W|_1 + ridge / 2 |W|_2^2 over the
    rows `indices`.

    `classes` has a class from 0 to `n_classes` - 1 for each of `indices`; for the other parameters see `l1_logistic`.

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
    return _solve(problem, start, tolerance, max_iterations, check_objective)


def _problem(
    rows: Rows, indices: NDArray[Any], targets: NDArray[np.uint32], outputs: int, reference: bool,
    costs: tuple[float, float], weights: NDArray[Any] | None, penalise_bias: bool,
) -> _Problem:  # fmt: skip
    """Validate a problem, and drop rows of weight zero."""
    indices = np.asarray(indices)
    if indices.size and not (indices.min() >= 0 and indices.max() < len(rows)):
        raise ValueError(f"indices must be rows from 0 to {len(rows) - 1}, got {indices.min()} to {indices.max()}.")
    if targets.shape != indices.shape:
        raise ValueError(f"{len(indices)} indices need as many targets, got {len(targets)}.")
    for name, cost in zip(("alpha", "ridge"), costs):
        if not cost >= 0:
            raise ValueError(f"{name} must not be below zero, got {cost!r}.")
    alpha, ridge = map(float, costs)
    counts = np.ones(len(indices), dtype=np.float32) if weights is None else np.asarray(weights, dtype=np.float32)
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
    """Return the penalty of weights in double precision: alpha |w|_1 + ridge / 2 |w|_2^2.

    >>> penalty(np.array([[3.0, -1.0]], dtype=np.float32), alpha=0.5, ridge=0.2)
    3.0
    """
    any_coef: Any = coef
    entries = any_coef.data if sp.issparse(coef) else any_coef
    cost = alpha * float(np.abs(entries).sum(dtype=np.float64))
    return cost + 0.5 * ridge * float(np.square(entries, dtype=np.float64).sum()) if ridge else cost


def _solve(
    problem: _Problem, start: Start | None, tolerance: float, max_iterations: int, check_objective: bool
) -> Solution:
    coef, bias = _start(problem, start)
    if not len(problem.indices):
        return _without_rows(problem, coef, bias)
    solve = _solve_sparse if isinstance(problem.rows, SparseRows) else _solve_dense
    return solve(problem, coef, bias, tolerance, max_iterations, check_objective)


def _start(problem: _Problem, start: Start | None) -> tuple[Matrix, NDArray[np.float32]]:
    """Return the initial solution, validated and in the format of the rows."""
    shape = (problem.outputs, problem.rows.shape[1])
    sparse = isinstance(problem.rows, SparseRows)
    if start is None:
        nothing = sp.csr_matrix(shape, dtype=np.float32) if sparse else np.zeros(shape, dtype=np.float32)
        return nothing, np.zeros(problem.outputs, dtype=np.float32)
    coef: Any
    coef, bias = (start.coef, start.bias) if isinstance(start, Solution) else start
    bias = np.asarray(bias, dtype=np.float32)
    if coef.shape != shape or bias.shape != shape[:1]:
        raise ValueError(f"start must have weights {shape} and {shape[0]} biases, got {coef.shape} and {bias.shape}.")
    if sparse:
        given = sp.csr_matrix(coef, dtype=np.float32)
        if not given.has_canonical_format:
            given = given.copy()
            given.sum_duplicates()
        return given, bias
    return np.asarray(coef.toarray() if sp.issparse(coef) else coef, dtype=np.float32), bias


def _without_rows(problem: _Problem, coef: Matrix, bias: NDArray[np.float32]) -> Solution:
    """Return the solution without rows: zero weights, and the initial biases unless they are penalised."""
    before = penalty(coef, problem.alpha, problem.ridge) + problem.bias_alpha * float(abs(bias).sum())
    nothing, _ = _start(problem, None)
    return Solution(nothing, bias * np.float32(problem.bias_alpha == 0), 0.0, before, 0, True)


# --- dense rows ----------------------------------------------------------------------------------------


def _solve_dense(
    problem: _Problem, coef: NDArray[np.float32], bias: NDArray[np.float32], tolerance: float, max_iterations: int,
    check_objective: bool,
) -> Solution:  # fmt: skip
    began = np.concatenate([coef.T.ravel(), bias])
    parameters = began.copy()
    narrow = problem.reference and problem.rows.shape[1] <= NEWTON_FEATURES
    minimise = _newton if narrow and problem.newton else _quasi_newton
    with one_blas_thread():
        start_objective = _dense_objective(problem, parameters) if check_objective else math.nan
        iterations, converged = minimise(problem, parameters, tolerance, max_iterations)
        objective = _dense_objective(problem, parameters) if check_objective else math.nan
    if check_objective and not objective <= start_objective:
        parameters, objective = began, start_objective
    n_weights = parameters.size - problem.outputs
    found = np.ascontiguousarray(parameters[:n_weights].reshape(-1, problem.outputs).T)
    return Solution(found, parameters[n_weights:].copy(), objective, start_objective, iterations, converged)


def _newton(
    problem: _Problem, parameters: NDArray[np.float32], tolerance: float, max_iterations: int
) -> tuple[int, bool]:
    """Solve logistic regression by Newton's method, in place; return the number of iterations and whether it converged."""
    rows: Any = problem.rows
    data = logistic_newton.Data(rows, problem.indices, problem.targets, problem.weights)
    penalties = problem.single_penalties
    gradient = np.empty(parameters.size, dtype=np.float32)
    curvatures = np.empty(len(problem.indices), dtype=np.float32)
    value = logistic_newton.evaluate(data, penalties, parameters, gradient, curvatures)
    for iteration in range(max_iterations):
        value, predicted = logistic_newton.newton_step(
            data, penalties, parameters, gradient, curvatures, value, iteration
        )
        if predicted <= tolerance * value or value <= problem.least:
            return iteration + 1, True
    return max_iterations, False


def _quasi_newton(
    problem: _Problem, parameters: NDArray[np.float32], tolerance: float, max_iterations: int
) -> tuple[int, bool]:
    """Solve for any number of outputs by OWL-QN, in place; return the number of iterations and whether it converged."""
    penalties = problem.single_penalties
    centre = owlqn.mean_of(problem.rows, problem.indices, problem.weights)
    if problem.bias_alpha:
        centre[:] = 0  # centring changes the problem if biases are penalised
    _shift_biases(parameters, centre, problem.outputs, 1)
    rows: Any = problem.rows
    data = owlqn.Data(rows, problem.indices, centre, problem.targets, problem.weights, problem.reference)
    counters, past = np.zeros(3, dtype=np.int64), np.zeros(owlqn.WINDOW)
    steps, changes = np.empty((2, owlqn.MEMORY, parameters.size), dtype=np.float32)
    history = owlqn.History(steps, changes, counters, past)
    gradient = np.empty(parameters.size, dtype=np.float32)
    work = 2 * len(problem.indices) * parameters.size
    value = owlqn.evaluate(data, penalties, parameters, gradient)
    end = owlqn.RUNNING
    while end == owlqn.RUNNING and counters[owlqn.DONE] < max_iterations:
        count = min(max(1, WORK_AT_ONCE // work), max_iterations - int(counters[owlqn.DONE]))
        value, end = owlqn.advance(
            data, penalties, tolerance, problem.least, count, parameters, gradient, history, value
        )
    _shift_biases(parameters, centre, problem.outputs, -1)
    return int(counters[owlqn.DONE]), end == owlqn.CONVERGED


def _shift_biases(parameters: NDArray[np.float32], centre: NDArray[np.float32], outputs: int, sign: int) -> None:
    """Convert the biases to those of centred rows (sign 1), or back (sign -1)."""
    weights = parameters[:-outputs].reshape(-1, outputs).astype(np.float64)
    parameters[-outputs:] += (sign * (centre.astype(np.float64) @ weights)).astype(np.float32)


def _dense_objective(problem: _Problem, parameters: NDArray[np.float32]) -> float:
    loss = owlqn.exact_loss(
        problem.rows, problem.indices, problem.targets, problem.weights, problem.reference, parameters
    )
    cost = owlqn.penalty(parameters, parameters.size - problem.outputs, problem.penalties)
    return float(loss + cost)


# --- sparse rows ---------------------------------------------------------------------------------------


def _solve_sparse(
    problem: _Problem, coef: sp.csr_matrix, bias: NDArray[np.float32], tolerance: float, max_iterations: int,
    check_objective: bool,
) -> Solution:  # fmt: skip
    rows: Any = problem.rows
    scratch = np.zeros(rows.n_features, dtype=np.uint32)
    features, starts, column_rows, column_values = local_columns(
        rows.indptr, rows.indices, rows.values, problem.indices, scratch
    )
    facts = descent.column_facts(starts[:-1], column_rows, column_values, problem.weights)
    columns = Columns(starts[:-1], column_rows, column_values, problem.targets, problem.weights, *facts)
    local, used = np.zeros((len(features), problem.outputs), np.float32), np.zeros(len(features), bool)
    elsewhere = np.empty(coef.nnz, np.float32)
    n_elsewhere = descent.local_weights(
        coef.indptr.astype(np.int64), coef.indices.astype(np.uint32), coef.data, features, scratch, local, used, elsewhere
    )  # fmt: skip
    elsewhere, model = elsewhere[:n_elsewhere], Coefficients(local, used, bias.copy())

    def exact() -> float:
        if not check_objective:
            return math.nan
        loss = descent.exact_loss(columns, problem.reference, model)
        return float(loss + descent.penalty(model, problem.penalties))

    start_objective = exact() + penalty(elsewhere, problem.alpha, problem.ridge)
    descend = _logistic_round if problem.reference else _softmax_round
    one_round = descend(problem, columns, tolerance, model)
    iterations, converged = 0, False
    while iterations < max_iterations and not converged:
        before, taken, sweeps = one_round(min(descent.SWEEPS, max_iterations - iterations - 1))
        iterations += sweeps
        converged = taken <= max(0.5 * tolerance * before, problem.least)
    objective = exact()
    if check_objective and not objective <= start_objective:
        return Solution(coef, bias, start_objective, start_objective, iterations, converged)
    found = _scattered_weights(local, features, used, coef.shape)
    return Solution(found, model.bias, objective, start_objective, iterations, converged)


Round: TypeAlias = Callable[[int], tuple[float, float, int]]


def _softmax_round(problem: _Problem, columns: Columns, tolerance: float, model: Coefficients) -> Round:
    """One round of coordinate descent, with a number of sweeps over the nonzero weights."""
    n = len(problem.indices)
    exponentials = np.empty((n, problem.outputs), dtype=np.float32)
    scores = descent.Scores(exponentials, np.empty(n), np.empty(n, dtype=np.float32))

    def one_round(sweeps: int) -> tuple[float, float, int]:
        return descent.one_round(columns, problem.penalties, tolerance, sweeps, model, scores)

    return one_round


def _logistic_round(problem: _Problem, columns: Columns, tolerance: float, model: Coefficients) -> Round:
    """One round of coordinate descent for one output and a reference class."""
    n = len(problem.indices)
    rows = logistic_descent.RowScores(np.empty(n, dtype=np.float32), np.empty((n, 2), dtype=np.float32))
    single = model._replace(weights=model.weights[:, 0])

    def one_round(sweeps: int) -> tuple[float, float, int]:
        return logistic_descent.one_round(columns, problem.penalties, tolerance, sweeps, single, rows)

    return one_round


def _scattered_weights(
    local: NDArray[np.float32], features: NDArray[np.uint32], used: NDArray[np.bool_], shape: tuple[int, int]
) -> sp.csr_matrix:
    """Return local weights as a CSR matrix over all features."""
    columns = np.flatnonzero(used)
    columns = columns[np.argsort(features[columns])].astype(np.uint32)
    indptr = np.empty(shape[0] + 1, np.int64)
    descent.class_sizes(local, columns, indptr)
    indices, values = np.empty(indptr[-1], np.int64), np.empty(indptr[-1], np.float32)
    descent.by_class(local, columns, features, indptr, indices, values)
    return sp.csr_matrix((values, indices, indptr), shape=shape)
