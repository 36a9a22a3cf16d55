"""Articulated-body recursion, batch last: a factor of the inverse mass matrix that costs O(nv), its solves, and the
dense inverse.

In world axes the recursion has no rotations; each articulated inertia and its joint's axes are taken about the body's
own origin, and moved to the parent's when they are handed on. (About one common point nothing would move, but a light
body far from it then loses digits: ten times as many in float32.) Featherstone, Rigid Body Dynamics Algorithms,
chapter 7. For the joint of a body with axes S (6 x k), articulated inertia I^A of body and subtree, armature R:

    U = I^A S,   D = S^T U + R,   K = D^{-1} U^T,   contribution to the parent:  I^A - U K

The joint-space inertia matrix is then M = L^T blkdiag(D) L with L unit lower triangular by joints and L_ij = K_i S_j
for j above i; L^{-1} follows by carrying the accelerations that unit motions cause outwards: a motion of dof j moves
body i by alpha_ij, and L^{-1}_ij = -K_i alpha_pj with p the parent of i.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies
from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.gradients import composite, derivatives_at, of_dofs
from jaxdyn.algorithms.world import Geometry, Inertias
from jaxdyn.math.batching import materialize
from jaxdyn.math.stacked import (
    Stack,
    cross,
    dot,
    first,
    flat,
    hat,
    join,
    last,
    moved_force,
    moved_motion,
    products,
    spd_inverse,
    take,
    total,
    widen,
    widest,
)
from jaxdyn.model.schedule import Level, Schedule, schedule
from jaxdyn.model.tree import Tree


class JointFactor(NamedTuple):
    """For a group of m bodies with k degrees of freedom each: axes S, U (m, k, 6, B), D^{-1} (m, k, k, B) and K (m,
    k, 6, B)."""

    axes: Stack
    u: Stack
    d_inverse: Stack
    k: Stack


Factor: TypeAlias = list[list[JointFactor]]
"""One list of groups per level."""


def spatial_matrices(bodies: Bodies, at: Geometry, body: Inertias) -> Stack:
    """Inertias about the bodies' own origins, in world axes, as (n, 6, 6, B)."""
    m = body.mass
    c = world.arms_of_centers(bodies, at)
    eye = jnp.eye(3, dtype=c.dtype)[None, :, :, None]
    mass = m[:, None, None] * eye
    cx = hat(c)
    moment = m[:, None, None] * cx
    square = total(c[:, i] * c[:, i] for i in range(3))
    about = body.about_com + (m * square)[:, None, None] * eye - m[:, None, None] * (c[:, :, None] * c[:, None])
    width = widest(about, moment, mass)
    top = join([widen(mass, width), -moment], 2)
    return join([top, join([moment, about], 2)], 1)


def factor(bodies: Bodies, at: Geometry, matrices: Stack) -> Factor:
    """The articulated factor from the bodies' inertia matrices (n, 6, 6, B)."""
    order = schedule(bodies.tree)
    armature = take(bodies.armature, order.dofs)
    kinds = bodies.tree.joint_types
    turning = [
        all(kinds[b] in ("revolute", "continuous", "spherical") for b in order.bodies[level.start : level.stop])
        for level in order.levels
    ]

    def step(level: Level, below: Stack | None):
        inertia = level.of(matrices) if below is None else level.of(matrices) + below
        parts, messages = [], []
        for group in level.groups:
            i_a, s = group.bodies(inertia), group.dofs(at.own_axes)
            # a joint that only turns has no linear axis at its own origin
            used = range(3, 6) if turning[level.depth] else range(6)
            u = materialize(total(i_a[:, None, :, j] * s[:, :, None, j] for j in used))
            d = total(s[:, :, None, j] * u[:, None, :, j] for j in used)
            eye = jnp.eye(group.size, dtype=d.dtype)[None, :, :, None]
            d_inverse = spd_inverse(d + eye * group.dofs(armature)[:, :, None])
            if group.size > 1:
                d_inverse = materialize(d_inverse)
            k = materialize(total(d_inverse[:, :, None, j] * u[:, None, j] for j in range(group.size)))
            parts.append(JointFactor(s, u, d_inverse, k))
            if level.depth:
                messages.append(i_a - total(u[:, j, :, None] * k[:, j, None] for j in range(group.size)))
        if not level.depth:
            return None, parts
        return materialize(moved_inertia(materialize(join(messages)), level.of(at.arm))), parts

    return order.scan_up(step)


def moved_inertia(inertia: Stack, arm: Stack) -> Stack:
    """Inertia matrices (n, 6, 6, B) about a point, about another from which the first is reached by `arm` (n, 3, B).

    With blocks A, B, C the new ones are A, B' = B - A r^ and C' = C + r^ B' - B^T r^.
    """
    a, b, c = inertia[:, :3, :3], inertia[:, :3, 3:], inertia[:, 3:, 3:]
    r = arm[:, None]
    b_moved = b - cross(a, r)  # a row x of A goes to x^T r^ = (x cross r)^T
    # r^ B' and B^T r^ = -(r^ B)^T, by columns
    turned = jnp.swapaxes(cross(r, jnp.swapaxes(b_moved, 1, 2)), 1, 2)
    c_moved = c + turned + cross(r, jnp.swapaxes(b, 1, 2))
    return join([join([a, b_moved], 2), join([jnp.swapaxes(b_moved, 1, 2), c_moved], 2)], 1)


def solve(tree: Tree, at: Geometry, parts: Factor, tau: Stack) -> Stack:
    """M^{-1} tau: (nv, B) -> (nv, B), both in the order of the tree."""
    order = schedule(tree)
    if order.n == 0:
        return tau
    loads = _inwards(order, at, parts, take(tau, order.dofs))
    results: list[Stack] = []

    def step(level: Level, above: Stack | None) -> Stack:
        motions = []
        above = None if above is None else moved_motion(above, level.of(at.arm))
        for part, group, a in zip(parts[level.depth], level.groups, loads[level.depth], strict=True):
            moved = None if above is None else group.bodies(above)
            if moved is not None:
                # here and below a reduction, not a sum spelled out: a boundary for the compiler at no extra kernel
                a = a - jnp.sum(part.k * moved[:, None], axis=2)
            own = total(part.axes[:, j] * a[:, j, None] for j in range(group.size))
            motions.append(own if moved is None else moved + own)
            results.append(flat(a))
        return join(motions)

    order.scan_down(step)
    return take(join(results), order.dof_rank)


def _inwards(order: Schedule, at: Geometry, parts: Factor, tau: Stack) -> list[list[Stack]]:
    """D^{-1} (tau - S^T p) of each group, p the force that the subtree hands on."""

    def step(level: Level, below: Stack | None):
        loads, messages = [], []
        for part, group in zip(parts[level.depth], level.groups, strict=True):
            t = group.dofs(tau)
            p = None if below is None else group.bodies(below)
            if p is not None:
                t = t - jnp.sum(part.axes * p[:, None], axis=2)
            loads.append(total(part.d_inverse[:, :, j] * t[:, j, None] for j in range(group.size)))
            handed = total(part.k[:, j] * t[:, j, None] for j in range(group.size))
            messages.append(handed if p is None else p + handed)
        return moved_force(join(messages), level.of(at.arm)) if level.depth else None, loads

    return order.scan_up(step)


def inverse_factor(tree: Tree, at: Geometry, parts: Factor) -> tuple[Stack, Stack]:
    """L^{-1} and L^{-1} blkdiag(D)^{-1}: (B, nv, nv) each, rows in the order of the tree, columns in that of its
    `Schedule`.

    Only motions of a body's ancestors reach it: each level carries one slot per ancestor, not one per column.
    """
    order = schedule(tree)
    n = tree.nv
    width, dtype = parts[0][0].k.shape[-1], parts[0][0].k.dtype
    rows: list[Stack] = []
    where = np.full((n, n), -1)
    used = 0
    # columns[b]: degrees of freedom that the slots of body b of the level above stand for, -1 for padding
    columns: list[list[int]] = []
    motions: Stack | None = None
    for level in order.levels:
        above = None if motions is None else moved_motion(take(motions, level.parent), level.of(at.arm)[:, None])
        inherited = [columns[p] for p in level.parent] if level.depth else [[]] * (level.stop - level.start)
        columns, states = [], []
        for part, group in zip(parts[level.depth], level.groups, strict=True):
            k, slots = group.size, len(inherited[0])
            own = part.axes
            if above is not None:
                moved = group.bodies(above)
                row = materialize(-total(part.k[:, :, None, j] * moved[:, None, :, j] for j in range(6)))
                own = join([moved + total(own[:, j, None] * row[:, j, :, None] for j in range(k)), own], 1)
                rows.append(flat(row))
            states.append(own)
            for b in range(group.count):
                start = group.dof + b * k
                for j in range(k):
                    for slot, column in enumerate(inherited[group.first + b]):
                        if column >= 0:
                            where[start + j, column] = used + (b * k + j) * slots + slot
                columns.append([*inherited[group.first + b], *range(start, start + k)])
            used += group.count * k * slots
        wide = max(x.shape[1] for x in states)
        motions = materialize(join([_pad_slots(x, wide) for x in states]))
        columns = [[-1] * (wide - len(c)) + c for c in columns]
    where[where < 0] = used
    np.fill_diagonal(where, used + 1)
    pool = join([*rows, jnp.zeros((1, width), dtype), jnp.ones((1, width), dtype)])
    lower = materialize(materialize(pool.T)[:, where[order.dof_rank]])
    scaled = []
    for level in order.levels:
        for part, group in zip(parts[level.depth], level.groups, strict=True):
            m, k = group.count, group.size
            block = lower[:, :, group.dof : group.dof + m * k].reshape(width, n, m, k)
            d_inverse = first(part.d_inverse)[:, None]
            result = total(block[..., j, None] * d_inverse[:, :, :, j] for j in range(k))
            scaled.append(result.reshape(width, n, m * k))
    return lower, jnp.concatenate(scaled, 2)


def _pad_slots(motions: Stack, slots: int) -> Stack:
    missing = slots - motions.shape[1]
    return motions if not missing else jnp.pad(motions, ((0, 0), (missing, 0), (0, 0), (0, 0)))


def mass_inverse(tree: Tree, at: Geometry, parts: Factor) -> Stack:
    """M^{-1} = L^{-1} blkdiag(D)^{-1} L^{-T}: (B, nv, nv), in the order of the tree."""
    lower, scaled = inverse_factor(tree, at, parts)
    return products(scaled, jnp.swapaxes(lower, 1, 2))


def forward_dynamics_kernel(tree: Tree, bodies: Bodies, q: Configuration, v: Stack, tau: Stack) -> Stack:
    """Accelerations (nv, B): the bias by Newton-Euler, then the articulated factor and one solve."""
    at = world.geometry(bodies, q)
    twist, own = world.velocities(tree, at, v)
    bias_acceleration = world.accelerations(bodies, at, twist, own, None)
    bias = world.joint_forces(tree, at, schedule(tree).sum_up(world.body_forces(bodies, at, twist, bias_acceleration)))
    parts = factor(bodies, at, spatial_matrices(bodies, at, world.inertias(bodies, at)))
    return solve(tree, at, parts, tau - bias)


def mass_inverse_kernel(tree: Tree, bodies: Bodies, q: Configuration) -> Stack:
    """M^{-1} (nv, nv, B)."""
    if tree.nv == 0:
        return jnp.zeros((0, 0, 1), bodies.gravity.dtype)
    at = world.geometry(bodies, q)
    return last(mass_inverse(tree, at, factor(bodies, at, spatial_matrices(bodies, at, world.inertias(bodies, at)))))


def pivots_kernel(tree: Tree, bodies: Bodies, q: Configuration) -> Stack:
    """For each degree of freedom, in the order of the tree, the part of its inertia that is left when all below it
    moves freely, D_kk / M_kk: (nv, B).

    It is in (0, 1]; rounding alone leaves something like the machine epsilon of a singular one, exact cancellation
    zero or, of 0 / 0, NaN.
    """
    order = schedule(tree)
    if tree.nv == 0:
        return jnp.zeros((0, 1), bodies.gravity.dtype)
    at = world.geometry(bodies, q)
    body = world.inertias(bodies, at)
    parts = factor(bodies, at, spatial_matrices(bodies, at, body))
    free = join([1.0 / flat(jnp.einsum("miib->mib", part.d_inverse)) for level in parts for part in level])
    axes = take(at.axes, order.dof_rank)
    whole = dot(of_dofs(tree, composite(tree, body)).apply(axes), axes) + bodies.armature
    return take(free, order.dof_rank) / whole


def forward_dynamics_derivatives(
    tree: Tree, bodies: Bodies, q: Configuration, v: Stack, a: Stack
) -> tuple[Stack, Stack, Stack]:
    """da/dq, da/dv and M^{-1} = da/dtau at the accelerations `a`: (nv, nv, B) each, q in tangent space."""
    if tree.nv == 0:
        empty = jnp.zeros((0, 0, 1), bodies.gravity.dtype)
        return empty, empty, empty
    at = world.geometry(bodies, q)
    twist, own = world.velocities(tree, at, v)
    acceleration = world.accelerations(bodies, at, twist, own, a)
    by_state, _ = derivatives_at(tree, bodies, at, twist, own, acceleration)
    inverse = mass_inverse(tree, at, factor(bodies, at, spatial_matrices(bodies, at, world.inertias(bodies, at))))
    d_a = -products(inverse, by_state)
    return last(d_a[:, :, : tree.nv]), last(d_a[:, :, tree.nv :]), last(inverse)
