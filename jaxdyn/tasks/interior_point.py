"""The kernel of the quadratic-program solver: Mehrotra's predictor and corrector, batch last.

    minimise 1/2 x^T P x + q^T x   subject to   A x = b,   lower <= C x <= upper,   C = [G; I]

With slacks s_u = upper - C x, s_l = C x - lower and multipliers z_u, z_l of the two sides (absent where infinite), a
Newton step for s z = t eliminates all but x and y:

    [P + C^T diag(d) C,  A^T] [dx]          d = z_u / s_u + z_l / s_l
    [A,                  0  ] [dy] = ...

The matrix that is inverted has rho on the diagonal of P, -delta in place of 0 and A^T A added to its first block. The
last changes no solution of the system (it adds multiples of the second row to the first) and makes elimination
without pivoting stable when P is singular along A. What rho and delta change, refinement takes back, and what it
leaves the next Newton step takes back: both vanish from the result (a proximal method). So doubled equality rows,
singular P and rows of zeros are ordinary cases. Lanes of a batch that have finished are frozen.

Sources: Mehrotra, On the implementation of a primal-dual interior point method, 1992; Friedlander and Orban, A
primal-dual regularized interior-point method for convex quadratic programs, 2012.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdyn.errors import Status
from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack, join, widen, widest
from jaxdyn.tasks import kkt

Mask = Bool[Array, "..."]

#: Bounds at least this large count as infinite, as in most solvers.
INFINITE = 1e19


class Data(NamedTuple):
    """The numbers of a program, batch last: bounds are those of the rows of G, then those of x if it has any."""

    P: Stack
    q: Stack
    A: Stack
    b: Stack
    G: Stack
    lower: Stack
    upper: Stack


class Iterate(NamedTuple):
    """Unknowns of the optimality conditions."""

    x: Stack
    y: Stack
    s_l: Stack
    s_u: Stack
    z_l: Stack
    z_u: Stack


class Result(NamedTuple):
    """What the kernel returns; floats all, so that its derivative rule has one dtype."""

    point: Iterate
    status: Stack
    iterations: Stack
    residual: Stack


class Scales(NamedTuple):
    """Factors that make the cost and the rows of order one."""

    cost: Stack
    A: Stack
    rows: Stack


def scales(data: Data) -> Scales:
    """Cost by its largest coefficient, rows by their length; rows of zeros stay."""
    n = data.P.shape[0]
    cost = jnp.maximum(_largest(jnp.max(jnp.abs(data.P), axis=1, initial=0.0)), _largest(data.q))
    cost = jnp.where(cost > 0, 1.0 / jnp.where(cost > 0, cost, 1.0), 1.0)
    rows = _row_scale(data.G)
    if data.lower.shape[0] > data.G.shape[0]:
        rows = join([rows, jnp.ones((n, 1), rows.dtype)])
    return Scales(cost, _row_scale(data.A), rows)


def _row_scale(matrix: Stack) -> Stack:
    norm = jnp.sqrt(jnp.sum(matrix * matrix, axis=1))
    return jnp.where(norm > 0, 1.0 / jnp.where(norm > 0, norm, 1.0), 1.0)


def scaled(data: Data, by: Scales) -> Data:
    """The program with its cost and rows multiplied by the factors."""
    m = data.G.shape[0]
    return Data(
        data.P * by.cost[None], data.q * by.cost, data.A * by.A[:, None], data.b * by.A, data.G * by.rows[:m][:, None],
        data.lower * by.rows, data.upper * by.rows,
    )  # fmt: skip


def sides(data: Data) -> tuple[Mask, Mask]:
    """Which sides bound something: finite ones, but not 0 x <= u with u >= 0, which would have no inside if u is 0."""
    zero = jnp.max(jnp.abs(data.G), axis=1, initial=0.0) == 0.0
    bounds = data.lower.shape[0] - data.G.shape[0]
    zero = jnp.concatenate([zero, jnp.zeros((bounds, zero.shape[-1]), bool)])
    lower = (data.lower > -INFINITE) & ~(zero & (data.lower <= 0.0))
    return lower, (data.upper < INFINITE) & ~(zero & (data.upper >= 0.0))


def apply_rows(data: Data, x: Stack) -> Stack:
    """C x."""
    rows = kkt.times(data.G, x)
    return join([rows, x]) if data.lower.shape[0] > data.G.shape[0] else rows


def apply_rows_transposed(data: Data, z: Stack) -> Stack:
    """C^T z."""
    m = data.G.shape[0]
    out = kkt.transposed_times(data.G, z[:m])
    return out + z[m:] if data.lower.shape[0] > m else out


def _largest(x: Stack) -> Stack:
    """(n, B) -> (1, B): numbers of a lane keep an axis, for products with vectors."""
    return jnp.max(jnp.abs(x), axis=0, initial=0.0, keepdims=True)


def _sum(x: Stack) -> Stack:
    return jnp.sum(x, axis=0, keepdims=True)


def _count(has_l: Mask, has_u: Mask, dtype) -> Stack:
    """Number of finite sides, at least 1: (1, B)."""
    return jnp.maximum(_sum(has_l.astype(dtype)) + _sum(has_u.astype(dtype)), 1.0)


class _System(NamedTuple):
    """One Newton matrix with an approximate inverse: of P dx + A^T dy + C^T dz = a, A dx = e, C dx - w dz = f.

    The weights 1 / w of active rows reach 1e12, next to which what P says about other directions would be lost in
    rounding. So the inverse is made with w + sqrt(eps), and refinement with dz as an unknown takes that back.
    """

    inverse: Stack
    compliance: Stack
    weight: Stack
    data: Data

    def solve(self, a, e, f, refinements: int):
        d, n = self.data, a.shape[0]

        def refine(_, point):
            dx, dy, dz = point
            left = a - kkt.times(d.P, dx) - kkt.transposed_times(d.A, dy) - apply_rows_transposed(d, dz)
            left_e = e - kkt.times(d.A, dx)
            left_f = self.weight * (f - apply_rows(d, dx) + self.compliance * dz)
            right = left + apply_rows_transposed(d, left_f) + kkt.transposed_times(d.A, left_e)
            change = kkt.times(self.inverse, join([right, left_e]))
            more = self.weight * apply_rows(d, change[:n]) - left_f
            return dx + change[:n], dy + change[n:], dz + more

        start = (jnp.zeros_like(a), jnp.zeros_like(e), jnp.zeros_like(f))
        return jax.lax.fori_loop(0, 1 + refinements, refine, start)


def _system(data: Data, weight: Stack, rho: float, delta: float, softest: float) -> _System:
    """`weight`: z / s of the rows, both sides together; 0 where neither is finite."""
    m, n = data.G.shape[0], data.P.shape[0]
    there = weight > 0
    compliance = jnp.where(there, 1.0 / jnp.where(there, weight, 1.0), 0.0)
    weight = jnp.where(there, 1.0 / (compliance + softest), 0.0)
    top = data.P + kkt.gram(data.G, weight[:m]) + kkt.gram(data.A, jnp.ones_like(data.b))
    ridge = jnp.full((n, 1), rho, top.dtype)
    top = kkt.add_diagonal(top, weight[m:] + ridge if data.lower.shape[0] > m else ridge)
    # symmetric scaling: active bounds are large numbers on the diagonal
    t = 1.0 / jnp.sqrt(jnp.maximum(jnp.diagonal(top).T, 1.0))
    k = kkt.assemble(top * t[:, None] * t[None], data.A * t[None], jnp.full_like(data.b, delta))
    t = join([t, jnp.ones_like(data.b)])
    inverse = batching.materialize(kkt.inverse(batching.materialize(k)) * t[:, None] * t[None])
    return _System(inverse, compliance, weight, data)


class _Residuals(NamedTuple):
    dual: Stack
    equality: Stack
    l: Stack
    u: Stack
    gap: Stack
    largest: Stack


class _Carry(NamedTuple):
    point: Iterate
    best: Iterate
    best_residual: Stack
    since_best: Stack
    running: Mask
    iterations: Stack
    residuals: _Residuals
    impossible: Mask
    step: Stack


def _residuals(data: Data, has_l, has_u, p: Iterate, smoothing) -> _Residuals:
    px, ay, cz = kkt.times(data.P, p.x), kkt.transposed_times(data.A, p.y), apply_rows_transposed(data, p.z_u - p.z_l)
    ax, cx = kkt.times(data.A, p.x), apply_rows(data, p.x)
    dual = px + data.q + ay + cz
    equality = ax - data.b
    l = jnp.where(has_l, cx - p.s_l - data.lower, 0.0)
    u = jnp.where(has_u, cx + p.s_u - data.upper, 0.0)
    pairs_l, pairs_u = jnp.where(has_l, p.s_l * p.z_l, 0.0), jnp.where(has_u, p.s_u * p.z_u, 0.0)
    count = _count(has_l, has_u, dual.dtype)
    gap = (_sum(pairs_l) + _sum(pairs_u)) / count
    off_l = jnp.where(has_l, pairs_l - smoothing, 0.0)
    off_u = jnp.where(has_u, pairs_u - smoothing, 0.0)
    size_dual = 1.0 + _largest(px) + _largest(ay) + _largest(cz) + _largest(data.q)
    size_primal = 1.0 + _largest(ax) + _largest(p.x)
    largest = jnp.maximum(
        jnp.maximum(_largest(dual) / size_dual, _largest(equality) / size_primal),
        jnp.maximum(jnp.maximum(_largest(l), _largest(u)) / size_primal, jnp.maximum(_largest(off_l), _largest(off_u))),
    )
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.inf)
    return _Residuals(dual, equality, l, u, gap, largest)


def _impossible(data: Data, has_l: Mask, has_u: Mask, p: Iterate) -> Mask:
    """True if the multipliers are a ray that proves that there is no point (Farkas).

    A ray with an error proves it for a ball; here one of a hundred times the size of the iterate.
    """
    ray = apply_rows_transposed(data, p.z_u - p.z_l) + kkt.transposed_times(data.A, p.y)
    support = _sum(data.b * p.y)
    support = support + _sum(jnp.where(has_u, data.upper * p.z_u, 0.0) - jnp.where(has_l, data.lower * p.z_l, 0.0))
    size = jnp.maximum(_largest(p.y), jnp.maximum(_largest(p.z_l), _largest(p.z_u)))
    return (1e2 * jnp.maximum(_largest(p.x), 1.0) * _sum(jnp.abs(ray)) <= -support) & (size > 30.0)


class Settings(NamedTuple):
    """Static choices of the kernel."""

    max_iterations: int
    refinements: int


def solve(settings: Settings, data: Data, start: Iterate | None, tolerance: Stack, smoothing: Stack) -> Result:
    """The kernel: all arrays batch last; `tolerance` and `smoothing` (1,) or (B,) in the units of the scaled program."""
    tolerance, smoothing = tolerance[None], smoothing[None]
    leaves = jax.tree.leaves((data, start, tolerance, smoothing))
    width, dtype = widest(*leaves), data.P.dtype
    eps = float(jnp.finfo(dtype).eps)
    rho = delta = 10.0 * eps**0.625  # 1.7e-9 in float64, 3e-4 in float32
    if dtype != jnp.float64:
        rho = delta = 30.0 * eps
    by = scales(data)
    finite_l, finite_u = sides(data)
    data = data._replace(lower=jnp.where(finite_l, data.lower, 0.0), upper=jnp.where(finite_u, data.upper, 0.0))
    data = scaled(data, by)
    has_l, has_u = (jnp.broadcast_to(f, (f.shape[0], width)) for f in (finite_l, finite_u))
    n, r, m = data.P.shape[0], data.A.shape[0], data.lower.shape[0]

    def full(rows, value):
        return jnp.full((rows, width), value, dtype)

    # start
    if start is None:
        # From zero: with no inequalities the first step is exact, with some the first steps are for the slacks.
        floor, z_l, z_u = 1.0, full(m, 1.0), full(m, 1.0)
        x, y = full(n, 0.0), full(r, 0.0)
    else:
        x = widen(start.x, width)
        y = widen(start.y * by.cost / by.A, width)
        floor = 1e-3 if dtype == jnp.float64 else 1e-2
        z_l = jnp.maximum(start.z_l * by.cost / by.rows, floor)
        z_u = jnp.maximum(start.z_u * by.cost / by.rows, floor)
        z_l, z_u = widen(z_l, width), widen(z_u, width)
    cx = apply_rows(data, x)
    s_l = jnp.where(has_l, jnp.maximum(cx - data.lower, floor), 1.0)
    s_u = jnp.where(has_u, jnp.maximum(data.upper - cx, floor), 1.0)
    p = Iterate(x, y, s_l, s_u, jnp.where(has_l, z_l, 0.0), jnp.where(has_u, z_u, 0.0))
    p = Iterate(*(widen(leaf, width) for leaf in p))

    def cond(carry: _Carry):
        return jnp.any(carry.running)

    def body(carry: _Carry) -> _Carry:
        p = carry.point
        res = carry.residuals
        weight = p.z_u / p.s_u + p.z_l / p.s_l
        share = (p.z_u / p.s_u) / jnp.where(weight > 0, weight, 1.0)
        system = _system(data, weight, rho, delta, eps**0.5)

        def direction(target_l, target_u):
            """Newton direction for s z + ds dz terms = target, given as s z - target."""
            v_u = jnp.where(has_u, (p.z_u * res.u - target_u) / p.s_u, 0.0)
            v_l = jnp.where(has_l, (p.z_l * res.l + target_l) / p.s_l, 0.0)
            v = v_u + v_l
            dx, dy, dz = system.solve(-res.dual, -res.equality, -v * system.compliance, settings.refinements)
            cdx = apply_rows(data, dx)
            ds_u = jnp.where(has_u, -res.u - cdx, 0.0)
            ds_l = jnp.where(has_l, res.l + cdx, 0.0)
            # shares of the two sides in dz = d C dx + v
            dz_u = jnp.where(has_u, share * (dz - v) + v_u, 0.0)
            dz_l = jnp.where(has_l, dz_u - dz, 0.0)
            return Iterate(dx, dy, ds_l, ds_u, dz_l, dz_u)

        def longest(d: Iterate):
            def one(value, change):
                ratio = jnp.where(change < 0, -value / jnp.where(change < 0, change, -1.0), jnp.inf)
                return jnp.min(ratio, axis=0, initial=jnp.inf, keepdims=True)

            primal = jnp.minimum(one(p.s_l, d.s_l), one(p.s_u, d.s_u))
            dual = jnp.minimum(one(p.z_l, d.z_l), one(p.z_u, d.z_u))
            return primal, dual

        pair_l, pair_u = p.s_l * p.z_l, p.s_u * p.z_u
        affine = direction(pair_l, pair_u)
        alpha = jnp.minimum(jnp.minimum(*longest(affine)), 1.0)
        ahead = (p.s_l + alpha * affine.s_l) * (p.z_l + alpha * affine.z_l)
        ahead = _sum(jnp.where(has_l, ahead, 0.0)) + _sum(
            jnp.where(has_u, (p.s_u + alpha * affine.s_u) * (p.z_u + alpha * affine.z_u), 0.0)
        )
        count = _count(has_l, has_u, dtype)
        sigma = (ahead / count / jnp.maximum(res.gap, eps**2)) ** 3
        # After a short step the pairs s z are far from equal: first bring them together.
        sigma = jnp.where(carry.step < 0.2, 0.8, jnp.clip(sigma, 0.0, 1.0))
        target = jnp.maximum(sigma * res.gap, smoothing)
        # Complementarity below the tolerance serves nobody, and its square is what the matrix suffers from.
        target = jnp.maximum(target, 0.1 * tolerance)
        much = jnp.where(carry.step < 0.2, 0.0, res.gap)
        corrector_l = jnp.clip(affine.s_l * affine.z_l, -much, much)
        corrector_u = jnp.clip(affine.s_u * affine.z_u, -much, much)
        step = direction(pair_l - target + corrector_l, pair_u - target + corrector_u)
        # One length keeps the dual residual falling; but a set without a point holds it at zero, and two lengths let
        # the multipliers grow into a certificate.
        primal, dual = (jnp.minimum(1.0, jnp.maximum(0.995, 1.0 - res.gap) * length) for length in longest(step))
        stuck = jnp.minimum(primal, dual) < 0.05
        primal, dual = (jnp.where(stuck, length, jnp.minimum(primal, dual)) for length in (primal, dual))
        lengths = Iterate(primal, dual, primal, primal, dual, dual)
        good = jnp.isfinite(primal + dual)
        for leaf in step:
            good = good & jnp.all(jnp.isfinite(leaf), axis=0, keepdims=True)
        move = carry.running & good
        moved = Iterate(*(jnp.where(move, a + t * d, a) for a, t, d in zip(p, lengths, step, strict=True)))
        after = _residuals(data, has_l, has_u, moved, smoothing)
        better = carry.running & (after.largest < carry.best_residual)
        much_better = carry.running & (after.largest < 0.9 * carry.best_residual)
        best = Iterate(*(jnp.where(better, a, b) for a, b in zip(moved, carry.best, strict=True)))
        since = jnp.where(much_better, 0, carry.since_best + 1)
        iterations = carry.iterations + carry.running.astype(jnp.int32)
        best_residual = jnp.where(better, after.largest, carry.best_residual)
        running = carry.running & good & (after.largest > tolerance) & (iterations < settings.max_iterations)
        # nearly there and no nearer for some steps: rounding has the last word
        close = (best_residual < eps**0.5) & (since >= 3)
        running = running & ~close & (since < 15)
        impossible = running & (best_residual > eps**0.375) & _impossible(data, has_l, has_u, moved)
        running = running & ~impossible
        impossible = impossible | carry.impossible
        return _Carry(
            moved, best, best_residual, since, running, iterations, after, impossible, jnp.minimum(primal, dual)
        )

    first = _Residuals(*(widen(leaf, width) for leaf in _residuals(data, has_l, has_u, p, smoothing)))
    zero = jnp.zeros((1, width), jnp.int32)
    running = jnp.broadcast_to(first.largest > tolerance, (1, width))
    carry = _Carry(p, p, widen(first.largest, width), zero, running, zero, first, zero > 0, jnp.ones((1, width), dtype))
    carry = jax.lax.while_loop(cond, body, carry)

    status = _status(settings, data, carry, has_l, has_u, tolerance, eps)
    best = carry.best
    point = Iterate(
        best.x, best.y * by.A / by.cost, best.s_l / by.rows, best.s_u / by.rows, best.z_l * by.rows / by.cost,
        best.z_u * by.rows / by.cost,
    )  # fmt: skip
    return Result(point, status[0].astype(dtype), carry.iterations[0].astype(dtype), carry.best_residual[0])


def _status(settings, data, carry, has_l, has_u, tolerance, eps):
    """OK, or what the last iterate certifies: a ray of multipliers that no point can satisfy (Farkas), or a ray of
    points along which the cost falls for ever."""
    acceptable = jnp.maximum(tolerance, eps**0.5)
    done = carry.best_residual <= acceptable
    last = carry.point

    small = eps**0.375  # 1e-6 in float64, 3e-3 in float32
    crossed = jnp.any(
        has_l & has_u & (data.lower > data.upper + 10 * eps * (1 + jnp.abs(data.upper))), axis=0, keepdims=True
    )
    reach = jnp.maximum(_largest(last.x), 1.0)
    cx = apply_rows(data, last.x) / reach
    allowed = jnp.all(jnp.where(has_u, cx <= small, True) & jnp.where(has_l, cx >= -small, True), axis=0, keepdims=True)
    falls = (
        (_largest(kkt.times(data.P, last.x)) <= small * reach)
        & (_largest(kkt.times(data.A, last.x)) <= small * reach)
        & (_sum(data.q * last.x) < -small * reach)
        & allowed
        & (reach > 1e3)
    )
    broken = ~jnp.isfinite(carry.best_residual)
    stopped = jnp.where(carry.iterations >= settings.max_iterations, int(Status.MAX_ITERATIONS), int(Status.STALLED))
    status = jnp.where(broken, int(Status.NON_FINITE), stopped)
    status = jnp.where(falls, int(Status.UNBOUNDED), status)
    status = jnp.where(carry.impossible, int(Status.INFEASIBLE), status)
    status = jnp.where(done, int(Status.OK), status)
    return jnp.where(crossed, int(Status.INFEASIBLE), status)
