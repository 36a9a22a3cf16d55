"""Newton's method for sets of constraints on a manifold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxdyn.errors import FloatLike, InputError, Status, check_key, check_shape, is_concrete, unknown_name
from jaxdyn.functions.function import DifferentiableFunction
from jaxdyn.functions.implicit import Implicit
from jaxdyn.functions.kinematic import OneOfEachModel, values_and_jacobians_of, values_of
from jaxdyn.functions.spaces import ConfigurationSpace, Space, same_space

METHODS = ("levenberg_marquardt", "gauss_newton")
Levels = tuple[tuple[Implicit, ...], ...]


class NewtonResult(eqx.Module):
    """What `solve_newton` returns.

    `q` (nq,): the last iterate, or the best of all starts; `errors` (levels,): length of the residual of each level; `status`:
    a `Status`; `iterations`: number of steps tried; `residual`: of all levels in a row. Only `q` has a derivative.
    """

    q: Float[Array, " nq"]
    errors: Float[Array, " levels"]
    status: Int[Array, ""]
    iterations: Int[Array, ""]
    residual: Float[Array, " rows"]

    @property
    def success(self) -> Array:
        """True where the status is OK."""
        return self.status == Status.OK.value


class _Options(eqx.Module):
    tolerance: Array
    lower: Array | None
    upper: Array | None
    max_iterations: int = eqx.field(static=True)
    method: str = eqx.field(static=True)
    optional: bool = eqx.field(static=True)


def solve_newton(
    constraints: DifferentiableFunction | Implicit | Sequence[Any],
    q: FloatLike,
    *,
    method: str = "levenberg_marquardt",
    tolerance: FloatLike | None = None,
    max_iterations: int = 60,
    lower: FloatLike | None = None,
    upper: FloatLike | None = None,
    limits: bool = False,
    optional: bool = False,
    restarts: int = 0,
    key: PRNGKeyArray | UInt32[Array, "2"] | None = None,
) -> NewtonResult:
    """A point near `q` that satisfies constraints: q <- q plus d with d the step of `method` in the tangent space.

    ```python
    result = solve_newton([Implicit(contact), Implicit(posture)], q)
    Status(int(result.status)).remedy
    ```

    **Arguments:** `constraints`: functions (to vanish) or `Implicit`s, or a sequence of them; a sequence of sequences gives
    levels of priority, the most important first: a later level moves only where the earlier ones, to first order, do not
    notice; `q` (nq,): the start;
    `method`: "gauss_newton": full steps J^+ r, halved while they do not help; "levenberg_marquardt": damped steps, the
    damping adapted; `tolerance`: length of the residual of each level, 1e-9 in doubles and 1e-5 in singles by default;
    `lower`, `upper` (nq,): box limits for coordinates that change at unit rate with one degree of freedom (others are not
    limited), the start is moved inside; `limits`: take them from the model; `optional`: the last level need not reach the
    tolerance, it is only brought as low as it gets; `restarts`: number of random starts besides `q`, all solved at once,
    drawn with `key`; the first success counts, or the smallest error.

    **Returns:** `NewtonResult`; statuses OK, MAX_ITERATIONS, STALLED (no step helps: the constraints contradict each other
    here, or the limits stop it), NON_FINITE.

    Differentiable, in both modes and to any order: with respect to the numbers in the constraints, q changes by the smallest
    tangent vector that keeps them satisfied, -J^+ dr; with respect to the start, by the part of its change that they allow.
    A batch goes through `jax.vmap`; lanes that are done stop changing.

    **Raises:** `InputError` for wrong shapes or constraints of different arguments, `UnknownNameError` for a method.

    Source: J. Nocedal, S. Wright, Numerical Optimization, 2006, chapter 10; for priorities, B. Siciliano, J.-J. Slotine, A
    general framework for managing multiple tasks in highly redundant robotic systems, 1991.
    """
    levels = _levels(constraints)
    space = levels[0][0].function.input_space
    q = check_shape("q", q, (space.nq,))
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if optional and len(levels) < 2:
        raise InputError("optional: the last level can be optional only if there is another before it.")
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, (int, np.integer)) or max_iterations < 0:
        raise InputError(f"max_iterations: wanted a number of steps that is not negative, given {max_iterations!r}.")
    if tolerance is None:
        tolerance = 1e-9 if jnp.finfo(q.dtype).bits == 64 else 1e-5
    options = _Options(
        check_shape("tolerance", tolerance, (), dtype=q.dtype),
        *_box(space, q.dtype, lower, upper, limits),
        max_iterations,
        method,
        optional,
    )
    if restarts < 0 or (restarts and key is None):
        raise InputError("restarts: wanted a number that is not negative, and with it a key.")
    if not restarts:
        return _solved(levels, options, space, q)
    check_key("key", key)
    keys = jax.random.split(key, restarts)  # pyright: ignore[reportArgumentType]
    drawn = jax.vmap(lambda k: space.random(k))(keys).astype(q.dtype)
    starts = jnp.concatenate([q[None], drawn])
    results = jax.vmap(lambda start: _solved(levels, options, space, start))(starts)
    needed = results.errors[:, :-1] if optional else results.errors
    score = jnp.where(results.success, -1.0, jnp.max(needed, axis=1).astype(results.errors.dtype))
    best = jnp.argmin(jnp.where(jnp.isnan(score), jnp.inf, score))
    return jax.tree.map(lambda leaf: leaf[best], results)


def _levels(constraints: Any) -> Levels:
    def one(x: Any) -> Implicit:
        if isinstance(x, Implicit):
            return x
        if isinstance(x, DifferentiableFunction):
            return Implicit(x)
        raise InputError(f"constraints: wanted functions or Implicits, or sequences of them, given {x!r}.")

    if isinstance(constraints, (Implicit, DifferentiableFunction)):
        constraints = [constraints]
    if not isinstance(constraints, Sequence) or len(constraints) == 0:
        raise InputError("constraints: wanted at least one.")
    if all(isinstance(x, Sequence) for x in constraints):
        levels = tuple(tuple(one(c) for c in level) for level in constraints)
    else:
        levels = (tuple(one(c) for c in constraints),)
    if not all(levels):
        raise InputError("constraints: a level of priority is empty.")
    first = levels[0][0].function
    for constraint in (c for level in levels for c in level):
        if not same_space(constraint.function.input_space, first.input_space):
            raise InputError(
                f"constraints: {first.name!r} takes {first.input_space}, {constraint.function.name!r} takes "
                f"{constraint.function.input_space}; all must have one argument."
            )
    return levels


def _box(
    space: Space, dtype: Any, lower: FloatLike | None, upper: FloatLike | None, limits: bool
) -> tuple[Array | None, Array | None]:
    if limits:
        if lower is not None or upper is not None:
            raise InputError("limits: give either limits=True or lower and upper.")
        if not isinstance(space, ConfigurationSpace):
            raise InputError(f"limits: {space} has none; give lower and upper.")
        lower, upper = space.model.lower, space.model.upper
    if lower is None and upper is None:
        return None, None
    low = jnp.full(space.nq, -jnp.inf, dtype) if lower is None else check_shape("lower", lower, (space.nq,))
    high = jnp.full(space.nq, jnp.inf, dtype) if upper is None else check_shape("upper", upper, (space.nq,))
    if is_concrete(low) and is_concrete(high) and (crossed := np.flatnonzero(np.asarray(low) > np.asarray(high))).size:
        i = crossed[0]
        raise InputError(f"lower, upper: the limits of coordinate {i} are crossed: {float(low[i])} > {float(high[i])}.")
    return low, high


# --- one start ----------------------------------------------------------------------------------------------------


def _evaluate(levels: Levels, q: Array) -> list[tuple[Array, Array]]:
    """Residual and Jacobian of each level."""
    functions = [constraint.function for level in levels for constraint in level]
    known = iter(values_and_jacobians_of(functions, q))
    result = []
    for level in levels:
        parts = [constraint.residual_and_jacobian_of(*next(known)) for constraint in level]
        result.append((jnp.concatenate([r for r, _ in parts]), jnp.concatenate([j for _, j in parts])))
    return result


def _mv(matrix: Array, vector: Array) -> Array:
    return jnp.sum(matrix * vector[None], axis=1)


def _damped_inverse(jacobian: Array, damping: Array) -> Array:
    """J^T (J J^T + damping I)^-1, or the same as (J^T J + damping I)^-1 J^T, whichever is smaller. (nv, rows)"""
    rows, columns = jacobian.shape
    small = jacobian if rows <= columns else jacobian.T
    gram = jnp.matmul(small, small.T, precision="highest")
    factor = jax.scipy.linalg.cho_factor(gram + damping * jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    solved = jax.scipy.linalg.cho_solve(factor, small)
    return solved.T if rows <= columns else solved


def _least_damping(jacobian: Array) -> Array:
    """What keeps the Cholesky factor of a rank-deficient J J^T finite, and does not show in regular directions."""
    info = jnp.finfo(jacobian.dtype)
    scale = jnp.max(jnp.sum(jacobian * jacobian, axis=1), initial=0.0)
    return float(info.eps) ** 0.75 * scale + float(info.tiny) ** 0.5


def _direction(evaluated: list[tuple[Array, Array]], damping: Array, free: Array) -> Array:
    """Step (nv,) along the free degrees of freedom: each level's damped step within the null space of those before."""
    step, null = jnp.zeros_like(free), jnp.zeros((0, 0), free.dtype)
    for k, (residual, jacobian) in enumerate(evaluated):
        within = jnp.matmul(jacobian, null, precision="highest") if k else jacobian * free[None]
        least = _least_damping(jacobian)
        inverse = _damped_inverse(within, jnp.maximum(damping, least))
        step = step - _mv(inverse, residual + _mv(jacobian, step))
        if k + 1 < len(evaluated):
            used = jnp.matmul(_damped_inverse(within, least), within, precision="highest")
            null = (null if k else jnp.diag(free)) - used
    return step * free


class _Box:
    """Limits of degrees of freedom, for those that one coordinate belongs to."""

    def __init__(self, options: _Options, space: Space) -> None:
        self._lower, self._upper = options.lower, options.upper
        index = np.asarray(space.coordinate_of, dtype=int)
        self._boxed, self._at = index >= 0, np.maximum(index, 0)
        self._limited = np.zeros(space.nq, dtype=bool)
        self._limited[index[self._boxed]] = True

    @property
    def exists(self) -> bool:
        return self._lower is not None

    def into(self, q: Array) -> Array:
        """The configuration, moved into the box."""
        if self._lower is None or self._upper is None:
            return q
        return jnp.where(self._limited, jnp.clip(q, self._lower, self._upper), q)

    def free(self, q: Array, step: Array | None = None) -> Array:
        """1 for degrees of freedom that can move (along the step, if one is given), 0 for those at a limit. (nv,)"""
        if self._lower is None or self._upper is None:
            return jnp.ones(len(self._at), q.dtype)
        x, low, high = q[self._at], self._lower[self._at], self._upper[self._at]
        blocked = (x <= low) | (x >= high) if step is None else ((x <= low) & (step < 0)) | ((x >= high) & (step > 0))
        return jnp.where(self._boxed & blocked, 0, 1).astype(q.dtype)


class _State(eqx.Module):
    q: Array
    evaluated: list[tuple[Array, Array]]
    errors: Array
    candidate: Array
    damping: Array
    status: Array
    iterations: Array


# How much more the error of a level counts than that of the next when a step is judged. The sum of lengths is an exact
# penalty: a later level cannot buy a lasting error of an earlier one, as it could with squares.
_PRIORITY = 100.0


def _iterate(levels: Levels, options: _Options, space: Space, q: Array) -> _State:
    box = _Box(options, space)
    marquardt = options.method == "levenberg_marquardt"
    weights = jnp.asarray(_PRIORITY ** np.arange(len(levels))[::-1], q.dtype)
    rows = [sum(c.function.output_derivative_size for c in level) for level in levels]
    eps = float(jnp.finfo(q.dtype).eps)
    # where a level keeps an error, steps shrink only by a factor each time: what is left of them soon does not matter
    small, smallest = eps**0.5, 4 * eps

    def met(errors: Array) -> Array:
        return jnp.all((errors[:-1] if options.optional else errors) <= options.tolerance)

    def going(state: _State) -> Array:
        return (state.status == Status.MAX_ITERATIONS.value) & (state.iterations <= options.max_iterations)

    def advance(state: _State) -> _State:
        """Judges the candidate, and makes the next one from the better of the two points."""
        evaluated = _evaluate(levels, state.candidate)
        errors = jnp.sqrt(jnp.stack([jnp.sum(r * r) for r, _ in evaluated]))
        finite = jnp.all(jnp.isfinite(errors))
        first = state.iterations == 0
        accept = finite & (first | (jnp.sum(weights * errors) < jnp.sum(weights * state.errors)))
        new = (state.candidate, evaluated, errors)
        old = (state.q, state.evaluated, state.errors)
        q, evaluated, errors = jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, old)
        if marquardt:
            changed = jnp.where(accept, jnp.maximum(state.damping / 5, 1e-12), state.damping * 8)
            stuck = changed > 1e12
        else:
            changed = jnp.where(accept, 0.0, state.damping + 1)
            stuck = changed > 30
        damping = jnp.where(first, state.damping, changed).astype(q.dtype)
        # Levenberg-Marquardt: the damping follows the residual, so that the last steps are Newton's.
        scaled = damping * jnp.minimum(jnp.max(errors), 1.0) if marquardt else jnp.zeros_like(damping)
        step = _direction(evaluated, scaled, box.free(q, jnp.zeros(space.nv, q.dtype)))
        if box.exists:
            step = _direction(evaluated, scaled, box.free(q, step))
        if not marquardt:
            step = step * 0.5**damping
        length = jnp.max(jnp.abs(step), initial=0.0)
        ended = (stuck & ~first) | (length <= smallest) | (met(errors) & (length <= small))
        good = met(errors) & (ended | (not options.optional))
        status = jnp.where(
            first & ~finite,
            Status.NON_FINITE.value,
            jnp.where(good, Status.OK.value, jnp.where(ended, Status.STALLED.value, state.status)),
        )
        candidate = box.into(space.plus(q, step))
        return _State(q, evaluated, errors, candidate, damping, status.astype(jnp.int32), state.iterations + 1)

    q = box.into(space.normalize(q))
    nothing = [(jnp.zeros(n, q.dtype), jnp.zeros((n, space.nv), q.dtype)) for n in rows]
    state = _State(
        q,
        nothing,
        jnp.full(len(levels), jnp.inf, q.dtype),
        q,
        jnp.full((), 1e-2 if marquardt else 0.0, q.dtype),
        jnp.full((), Status.MAX_ITERATIONS.value, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    state = jax.lax.while_loop(going, advance, state)
    enough = (state.status == Status.MAX_ITERATIONS.value) & met(state.errors)
    return eqx.tree_at(lambda s: s.status, state, jnp.where(enough, Status.OK.value, state.status).astype(jnp.int32))


class _Outcome(eqx.Module):
    q: Array
    errors: Array
    residual: Array
    status: Array
    iterations: Array


# The rule of differentiation. At a solution r(q, p) = 0 with parameters p, a change dp is answered by the smallest dq with
# J dq + r_p dp = 0, that is dq = -J^+ r_p dp, and the start's change dq0 is projected on what keeps J dq = 0:
#   dq = (I - J^+ J) dq0 - J^+ r_p dp,
# both within the degrees of freedom that are not at a limit. The formula is itself differentiable, and its q is the output
# of the same rule, so that higher derivatives follow. The rows of several levels count together.
@eqx.filter_custom_jvp
def _solution(problem: OneOfEachModel, options: _Options, q: Array) -> _Outcome:
    levels, space = problem.tree()
    state = _iterate(levels, options, space, q)
    residual = jnp.concatenate([r for r, _ in state.evaluated])
    return _Outcome(state.q, state.errors, residual, state.status, state.iterations - 1)


@_solution.def_jvp
def _solution_jvp(primals, tangents):
    problem, options, q = primals
    d_problem, _, d_q = tangents
    levels, space = problem.tree()
    outcome = _solution(problem, options, q)
    solution = outcome.q
    free = _Box(options, space).free(solution)
    jacobian = jnp.concatenate([j for _, j in _evaluate(levels, solution)]) * free[None]
    inverse = _damped_inverse(jacobian, _least_damping(jacobian))

    def residuals(problem):
        constraints = [c for level in problem.tree()[0] for c in level]
        values = values_of([c.function for c in constraints], solution)
        return jnp.concatenate([c.residual_of(y) for c, y in zip(constraints, values, strict=True)])

    change = jnp.zeros(space.nv, q.dtype)
    if jax.tree.leaves(d_problem):
        change = change - _mv(inverse, eqx.filter_jvp(residuals, (problem,), (d_problem,))[1])
    if d_q is not None:
        start = space.normalize(q)
        moved = free * jax.jvp(lambda x: space.minus(x, start), (q,), (d_q,))[1]
        change = change + moved - _mv(inverse, _mv(jacobian, moved))
    d_solution = jax.jvp(lambda v: space.plus(solution, v), (jnp.zeros_like(change),), (change,))[1]
    still = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else None, outcome)
    return outcome, eqx.tree_at(lambda s: s.q, still, d_solution)


def _solved(levels: Levels, options: _Options, space: Space, q: Array) -> NewtonResult:
    end = _solution(OneOfEachModel((levels, space)), options, q)
    return NewtonResult(end.q, end.errors, end.status, end.iterations, end.residual)
