"""Convex quadratic programs: `QP`, `solve_qp`.

A dense primal-dual interior point of our own, for the sizes of robotics (up to some hundred unknowns): batched, in
both precisions, differentiable in both modes to every order. See `interior_point` for the method, `implicit` for the
derivative.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.errors import FloatLike, InputError, Status, as_float_array, check_shape
from jaxdyn.math.batching import batch_last
from jaxdyn.tasks import implicit, interior_point
from jaxdyn.tasks.interior_point import Data, Iterate, Settings

_kernel = batch_last(interior_point.solve, implicit.rule)


class QP(eqx.Module):
    """minimise 1/2 x^T P x + q^T x  subject to  A x = b,  lower <= G x <= upper,  x_lower <= x <= x_upper.

    **Main arguments:** `P`: (n, n), positive semidefinite; its symmetric part is used; `q`: (n,).

    **Other arguments:** `A`: (rows, n), `b`: (rows,): equalities; `G`: (rows, n) with `lower`, `upper`: (rows,):
    inequalities, either side may be missing; `x_lower`, `x_upper`: (n,): bounds, either may be missing. Infinite bounds
    (and those beyond 1e19) are no bounds; no rows, equal bounds and repeated rows are allowed.

    **Raises:** `InputError`.
    """

    P: Float[Array, "n n"]
    q: Float[Array, " n"]
    A: Float[Array, "equalities n"]
    b: Float[Array, " equalities"]
    G: Float[Array, "rows n"]
    lower: Float[Array, " rows"]
    upper: Float[Array, " rows"]
    x_lower: Float[Array, " bounds"]
    x_upper: Float[Array, " bounds"]

    def __init__(
        self,
        P: FloatLike,
        q: FloatLike,
        A: FloatLike | None = None,
        b: FloatLike | None = None,
        G: FloatLike | None = None,
        lower: FloatLike | None = None,
        upper: FloatLike | None = None,
        x_lower: FloatLike | None = None,
        x_upper: FloatLike | None = None,
    ):
        P = as_float_array("P", P)
        if P.ndim != 2 or P.shape[0] != P.shape[1]:
            raise InputError(f"P: wanted a square matrix, given shape {P.shape}. Batches go through jax.vmap.")
        n, dtype = P.shape[0], P.dtype
        self.P = 0.5 * (P + P.T)
        self.q = _as(dtype, check_shape("q", q, (n,), dtype=dtype))
        self.A, self.b = _rows("A", A, n, dtype), _side("b", b, A, 0.0, dtype)
        self.G = _rows("G", G, n, dtype)
        if G is not None and lower is None and upper is None:
            raise InputError("G: rows without bounds; give lower, upper or both.")
        self.lower, self.upper = _side("lower", lower, G, -jnp.inf, dtype), _side("upper", upper, G, jnp.inf, dtype)
        bounded = None if x_lower is None and x_upper is None else P
        self.x_lower = _side("x_lower", x_lower, bounded, -jnp.inf, dtype)
        self.x_upper = _side("x_upper", x_upper, bounded, jnp.inf, dtype)

    @property
    def n(self) -> int:
        """Number of unknowns."""
        return self.q.shape[0]

    def objective(self, x: FloatLike) -> Float[Array, ""]:
        """1/2 x^T P x + q^T x."""
        x = check_shape("x", x, (self.n,), dtype=self.q.dtype)
        return 0.5 * x @ self.P @ x + self.q @ x


def _as(dtype: Any, array: Array) -> Array:
    return array if array.dtype == dtype else array.astype(dtype)


def _rows(name: str, matrix: FloatLike | None, n: int, dtype: Any) -> Array:
    if matrix is None:
        return jnp.zeros((0, n), dtype)
    matrix = as_float_array(name, matrix, dtype)
    return _as(dtype, check_shape(name, matrix, (matrix.shape[0] if matrix.ndim else 0, n), dtype=dtype))


def _side(name: str, value: FloatLike | None, of: FloatLike | None, default: float, dtype: Any) -> Array:
    if of is None:
        if value is not None:
            raise InputError(f"{name}: given without its rows.")
        return jnp.zeros(0, dtype)
    rows = as_float_array("rows", of).shape[0]
    if value is None:
        if name == "b":
            raise InputError("A: rows without b.")
        return jnp.full(rows, default, dtype)
    return _as(dtype, check_shape(name, value, (rows,), dtype=dtype))


class QPSolution(eqx.Module):
    """Solution of a `QP`.

    Multipliers are those of L = cost + y^T (A x - b) + z^T (G x) + z_x^T x: positive where an upper bound holds x back,
    negative where a lower one does. `slack_*` are the distances to the bounds (1 where there is none).

    `status` is a `Status` as an integer, `residual` the largest relative violation of the optimality conditions,
    `violation` the largest violation of a constraint in its own units.
    """

    x: Float[Array, " n"]
    y: Float[Array, " equalities"]
    z: Float[Array, " rows"]
    z_x: Float[Array, " bounds"]
    slack_lower: Float[Array, " all"]
    slack_upper: Float[Array, " all"]
    status: Int[Array, ""]
    iterations: Int[Array, ""]
    residual: Float[Array, ""]
    violation: Float[Array, ""]
    point: Iterate

    @property
    def success(self) -> Bool[Array, ""]:
        """True if `status` is `Status.OK`."""
        return self.status == int(Status.OK)


def solve_qp(
    qp: QP,
    *,
    initial: QPSolution | None = None,
    elastic: FloatLike | None = None,
    tolerance: FloatLike | None = None,
    smoothing: FloatLike = 0.0,
    max_iterations: int = 60,
) -> QPSolution:
    """Solve a convex quadratic program.

    **Main argument:** `qp`: the program; batch it with `jax.vmap`, each lane stops by itself.

    **Other arguments:** `initial`: the solution of a similar program, to start from; `elastic`: weight of the sum of
    violations, which may then be positive: a set of constraints that no point satisfies gets the point that violates
    them least, one that can be satisfied is, if the weight exceeds the multipliers (1e3 is a good value for a cost of
    order one); `tolerance` of the relative optimality conditions to stop at (default: 2e-12 in float64, 6e-6 in
    float32; 1.5e-8 and 3e-4 count as success where rounding stops progress before); `smoothing`: leave s z at this
    value instead of 0 (of the scaled program), which smooths the derivative where the active set changes;
    `max_iterations`.

    **Returns:** `QPSolution`. Its `status` is `OK`, `INFEASIBLE` or `UNBOUNDED` (with a certificate), `MAX_ITERATIONS`,
    `STALLED` or `NON_FINITE`. The result is finite whenever the data are.

    Derivatives with respect to every number of the program, forward and reverse, of any order: see `implicit`.
    """
    if elastic is not None:
        return _solve_elastic(qp, elastic, tolerance, smoothing, max_iterations)
    dtype = qp.q.dtype
    eps = float(jnp.finfo(dtype).eps)
    tolerance = _scalar("tolerance", eps**0.75 if tolerance is None else tolerance, dtype)
    smoothing = _scalar("smoothing", smoothing, dtype)
    data = Data(
        qp.P, qp.q, qp.A, qp.b, qp.G,
        jnp.concatenate([qp.lower, qp.x_lower]), jnp.concatenate([qp.upper, qp.x_upper]),
    )  # fmt: skip
    settings = Settings(max_iterations, 2)
    start = None if initial is None else jax.tree.map(jax.lax.stop_gradient, initial.point)
    result = _kernel(settings, data, start, jax.lax.stop_gradient(tolerance), jax.lax.stop_gradient(smoothing))
    return _solution(qp, result)


def _solution(qp: QP, result: interior_point.Result) -> QPSolution:
    p = result.point
    z, m = p.z_u - p.z_l, qp.G.shape[0]
    status, iterations = (jax.lax.stop_gradient(a).astype(jnp.int32) for a in (result.status, result.iterations))
    return QPSolution(
        p.x, p.y, z[:m], z[m:], p.s_l, p.s_u, status, iterations, result.residual, violation(qp, p.x), p
    )  # fmt: skip


def violation(qp: QP, x: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest violation of a constraint at `x`."""
    equality = jnp.abs(qp.A @ x - qp.b)
    rows = jnp.maximum(qp.G @ x - qp.upper, qp.lower - qp.G @ x)
    bounds = jnp.maximum(x - qp.x_upper, qp.x_lower - x) if qp.x_lower.shape[0] else jnp.zeros(0, x.dtype)
    everything = jnp.concatenate([equality, rows, bounds])
    return jax.lax.stop_gradient(jnp.max(everything, initial=0.0))


def _scalar(name: str, value: FloatLike, dtype: Any) -> Float[Array, ""]:
    if isinstance(value, int):
        value = float(value)
    return _as(dtype, check_shape(name, value, (), dtype=dtype))


def _solve_elastic(qp: QP, weight: FloatLike, tolerance, smoothing, max_iterations: int) -> QPSolution:
    """The program with t >= 0 added to every side of every constraint, at the cost of `weight` times their sum."""
    n, r, m, k = qp.n, qp.A.shape[0], qp.G.shape[0], qp.x_lower.shape[0]
    dtype = qp.q.dtype
    weight = _scalar("elastic", weight, dtype)
    rows = jnp.concatenate([qp.A, qp.G, jnp.eye(n, dtype=dtype)[:k]])
    lower = jnp.concatenate([qp.b, qp.lower, qp.x_lower])
    upper = jnp.concatenate([qp.b, qp.upper, qp.x_upper])
    c = r + m + k
    P = jnp.pad(qp.P, ((0, c), (0, c)))
    q = jnp.concatenate([qp.q, jnp.broadcast_to(weight, (c,))])
    eye = jnp.eye(c, dtype=dtype)
    none = jnp.full(c, jnp.inf, dtype)
    G = jnp.concatenate([jnp.concatenate([rows, -eye], axis=1), jnp.concatenate([rows, eye], axis=1)])
    x_lower = jnp.concatenate([jnp.full(n, -jnp.inf, dtype), jnp.zeros(c, dtype)])
    big = QP(P, q, None, None, G, jnp.concatenate([-none, lower]), jnp.concatenate([upper, none]), x_lower)
    full = solve_qp(big, tolerance=tolerance, smoothing=smoothing, max_iterations=max_iterations)
    x, z = full.x[:n], full.z[:c] + full.z[c:]
    s_u, s_l = full.slack_upper[:c], full.slack_lower[c : 2 * c]
    z_u, z_l = jnp.maximum(z, 0.0), jnp.maximum(-z, 0.0)
    point = Iterate(x, z[:r], s_l[r:], s_u[r:], z_l[r:], z_u[r:])
    return QPSolution(
        x, z[:r], z[r : r + m], z[r + m :], s_l[r:], s_u[r:], full.status, full.iterations, full.residual,
        violation(qp, x), point,
    )  # fmt: skip
