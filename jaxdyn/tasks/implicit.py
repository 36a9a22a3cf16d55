"""Derivative of the solution of a quadratic program with respect to all its numbers.

At a solution (x, y, s_l, s_u, z_l, z_u) with s z = t for each side, differentiate the optimality conditions

    P x + q + A^T y + C^T (z_u - z_l) = 0,    A x = b,    s_u = upper - C x,    s_l = C x - lower,    s z = t.

With d_u = z_u / s_u, d_l = z_l / s_l, d = d_u + d_l, beta = d_u / d and z = z_u - z_l, the two sides of a row give

    C dx - dz / d = -dC x + beta dupper + (1 - beta) dlower
    dz_u = beta dz - h (dupper - dlower),    dz_l = dz_u - dz,    h = d_u d_l / d,    ds = -dz / d_{l, u}.

A row of G is scaled by sqrt(d / (1 + d)): entries stay of order one whether it is active (d near 1e12) or not (near
1e-12), so that second derivatives, which pass through the inverse once more, keep their digits:

    [P + diag(d_x),  A^T,  Gs^T       ] [dx ]
    [A,              0,    0          ] [dy ]     Gs = sqrt(d / (1 + d)) G,   dz = sqrt(d / (1 + d)) dz'
    [Gs,             0,   -1 / (1 + d)] [dz']

Large entries of d_x (active bounds of x) only scale variables. Everything but the inverse is plain JAX, and the
inverse has a rule of its own, so the derivative can be differentiated again, in both modes. Where the solution is not
unique (singular P) it is that of a minimiser regularised by `DELTA`; where a constraint is weakly active (s and z
both near zero) the derivative lies between the one-sided ones.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.math.stacked import join
from jaxdyn.tasks import kkt
from jaxdyn.tasks.interior_point import Data, Iterate, Result, apply_rows, scaled, scales, sides

REFINEMENTS = 2


def rule(_settings, arguments, tangents, output: Result) -> Result:
    """The rule of the kernel `interior_point.solve` (see `jaxdyn.math.batching.Rule`)."""
    data: Data = arguments[0]
    moved: Data = tangents[0]
    moved = Data(*(jnp.zeros_like(a) if t is None else t for a, t in zip(data, moved, strict=True)))
    finite_l, finite_u = sides(data)
    data = data._replace(lower=jnp.where(finite_l, data.lower, 0.0), upper=jnp.where(finite_u, data.upper, 0.0))
    moved = moved._replace(lower=jnp.where(finite_l, moved.lower, 0.0), upper=jnp.where(finite_u, moved.upper, 0.0))
    by = jax.tree.map(jax.lax.stop_gradient, scales(data))
    point = output.point
    d, p = scaled(data, by), scaled(moved, by)
    z_scale = by.cost / by.rows
    s_l, s_u = point.s_l * by.rows, point.s_u * by.rows
    z_l, z_u = point.z_l * z_scale, point.z_u * z_scale
    x, y = point.x, point.y * by.cost / by.A

    tiny = float(jnp.finfo(x.dtype).tiny) ** 0.5
    weight_u, weight_l = z_u / s_u, z_l / s_l
    weight = weight_u + weight_l + tiny
    beta = weight_u / weight
    both = weight_u * weight_l / weight

    n, r, m = data.P.shape[0], data.A.shape[0], data.G.shape[0]
    z = z_u - z_l
    row_change = kkt.times(p.G, x)
    right = beta * p.upper + (1.0 - beta) * p.lower
    r1 = -(kkt.times(p.P, x) + p.q + kkt.transposed_times(p.A, y) + kkt.transposed_times(p.G, z[:m]))
    free = r1
    r2 = p.b - kkt.times(p.A, x)
    # bounds of x are eliminated: d_x (dx - right_x) joins the first row
    bounded = d.lower.shape[0] > m
    zero = jnp.zeros((n, 1), x.dtype)
    weight_x = weight[m:] if bounded else zero
    shrink = 1.0 / jnp.sqrt(1.0 + weight_x)
    t = jnp.sqrt(weight[:m] / (1.0 + weight[:m]))
    Gs = t[:, None] * d.G
    r3 = t * (right[:m] - row_change)
    if bounded:
        r1 = r1 + weight_x * right[m:]

    delta = 30.0 * float(jnp.finfo(x.dtype).eps) ** (0.75 if x.dtype == jnp.float64 else 1.0)
    corner = 1.0 / (1.0 + weight[:m])
    top = (d.P * shrink[:, None]) * shrink[None]
    top = kkt.add_diagonal(top, weight_x * shrink**2)
    rows = join([d.A, Gs]) * shrink[None]
    corner = join([jnp.zeros((r, 1), x.dtype), corner])
    # Multiples `add` of the lower rows join the first, for elimination without pivoting: the coupling becomes
    # (1 - add corner) rows^T, and w' = (1 - add corner) w makes the matrix symmetric again.
    add = 1.0 - corner
    factor = 1.0 - add * (corner + delta)
    regular = kkt.add_diagonal(top + kkt.gram(rows, add), jnp.full((n, 1), delta, x.dtype))
    inverse = kkt.differentiable_inverse(kkt.assemble(regular, rows, (corner + delta) / factor))

    def approximate(a, c):
        out = kkt.times(inverse, join([a + kkt.transposed_times(rows, add * c), c]))
        return out[:n], out[n:] / factor

    def apply(u, w):
        return kkt.times(top, u) + kkt.transposed_times(rows, w), kkt.times(rows, u) - corner * w

    a, c = shrink * r1, join([r2, r3])
    u, w = approximate(a, c)
    for _ in range(REFINEMENTS):
        f, g = apply(u, w)
        e, h = approximate(a - f, c - g)
        u, w = u + e, w + h
    dx, dy = shrink * u, w[:r]
    dz = t * w[r:]
    if bounded:
        # active bounds: from the first condition, as the weight would magnify what rounding leaves of dx
        force = -(kkt.times(d.P, dx) + kkt.transposed_times(d.A, dy) + kkt.transposed_times(d.G, dz)) + free
        dz = join([dz, jnp.where(weight_x > 1.0, force, weight_x * (dx - right[m:]))])
    gap = p.upper - p.lower
    dz_u = jnp.where(finite_u, beta * dz - both * gap, 0.0)
    dz_l = jnp.where(finite_l, dz_u - dz, 0.0)
    change = apply_rows(d, dx) + join([row_change, jnp.zeros((d.lower.shape[0] - m, 1), x.dtype)])
    ds_u = jnp.where(finite_u, _slack_change(dz_u, s_u, z_u, p.upper - change), 0.0)
    ds_l = jnp.where(finite_l, _slack_change(dz_l, s_l, z_l, change - p.lower), 0.0)
    back = 1.0 / z_scale
    return Result(
        Iterate(dx, dy * by.A / by.cost, ds_l / by.rows, ds_u / by.rows, dz_l * back, dz_u * back),
        jnp.zeros_like(output.status),
        jnp.zeros_like(output.iterations),
        jnp.zeros_like(output.residual),
    )


def _slack_change(dz, s, z, direct):
    """ds = -(s / z) dz, or directly from the constraint where z is the small one."""
    active = z > s
    return jnp.where(active, -s / jnp.where(active, z, 1.0) * dz, direct)
