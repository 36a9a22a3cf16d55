"""Closed-form derivatives of inverse and forward dynamics, batch last, and small tools for
derivative rules.

With S_j a motion axis, V and A the twist and (minus gravity) acceleration of a body about O, p the parent of j's
body, and composite quantities (superscript c) summed over the body and all that hangs on it:

    P_j = V_p x S_j          Q_j = A_p x S_j + V_p x P_j          D_j = V_b x S_j         (b the body of j)

    row i at or below j's body:       d tau_i / dq_j = (2B_i^c)^T S_i . P_j + I_i^c S_i . Q_j
                                      d tau_i / dv_j = (2B_i^c)^T S_i . S_j + I_i^c S_i . (P_j + D_j)
    row i strictly above j's body:    d tau_i / dq_j = S_i . (2B_j^c P_j + I_j^c Q_j + S_j x* f_j^c)
                                      d tau_i / dv_j = S_i . (2B_j^c S_j + I_j^c (P_j + D_j))

where 2B x = V x* (I x) - I (V x x) + x x* (I V) is a body's velocity-product matrix (Singh, Russell and Wensing,
Efficient analytical derivatives of rigid-body dynamics using spatial vector algebra, 2022). About a common point and
in world axes its columns for linear x vanish. With l and k the linear and angular momentum, h = m c the first moment,
J the inertia about O, v and w the parts of V:

    2B x = [-2 l x x_a, N x_a],      N = 2 (v.h) 1 - v h^T - h v^T + w^ J + (w^ J)^T - k^

(expand with the Jacobi identity), so that B^c is twelve sums: l, k and the symmetric part of N.

d FD follows from d ID: at tau = ID(q, v, a), da = M^{-1} (d tau - dID/dq dq - dID/dv dv).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies
from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.world import Geometry, Inertias
from jaxdyn.math.batching import materialize
from jaxdyn.math.stacked import (
    Stack,
    cross,
    dot,
    first,
    force_cross,
    join,
    last,
    motion_cross,
    moved_force,
    moved_motion,
    pairs,
    pile,
    take,
    total,
)  # fmt: skip
from jaxdyn.model.schedule import Level, Schedule, schedule
from jaxdyn.model.tree import Tree

# the six entries of a symmetric 3 x 3 matrix, and where each entry of the matrix is among them
_ROWS, _COLS = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)
_SIX = ((0, 1, 2), (1, 3, 4), (2, 4, 5))


def without(tree):
    """The same pytree with every leaf `None`: nothing of it varies."""
    return jax.tree.map(lambda _: None, tree)


def contract_all(terms: Sequence[tuple[Stack, Stack | None]], start: Stack | None = None) -> Stack | None:
    """`start` plus each matrix (n, m, B) times its vector (m, B); `None` where nothing varies."""
    parts = [] if start is None else [start]
    parts += [jnp.sum(matrix * vector[None], axis=1) for matrix, vector in terms if vector is not None]
    return total(parts) if parts else None


class Composite(NamedTuple):
    """Sums over bodies: `mass` (n, B), first moment (n, 3, B), inertia about O as six entries (n, 6, B)."""

    mass: Stack
    moment: Stack
    inertia: Stack

    def apply(self, x: Stack) -> Stack:
        """Momentum of the composite body at a twist about O: (n, 6, B) -> (n, 6, B)."""
        linear, angular = x[:, :3], x[:, 3:]
        momentum = self.mass[:, None] * linear - cross(self.moment, angular)
        return join([momentum, symmetric_matvec(self.inertia, angular) + cross(self.moment, linear)], 1)


def symmetric_matvec(six: Stack, x: Stack) -> Stack:
    """(n, 6, B) entries of a symmetric matrix, (n, 3, B) -> (n, 3, B)."""
    return jnp.stack([total(six[:, _SIX[i][j]] * x[:, j] for j in range(3)) for i in range(3)], 1)


def inertia_about_origin(body: Inertias) -> Stack:
    """Six entries of each body's inertia about O."""
    c, m = body.com, body.mass
    square = dot(c, c)
    entries = [
        body.about_com[:, i, j] + m * ((square - c[:, i] * c[:, i]) if i == j else -c[:, i] * c[:, j])
        for i, j in zip(_ROWS, _COLS, strict=True)
    ]
    return pile(entries, 1)


def composite(tree: Tree, body: Inertias) -> Composite:
    """Composite inertias: of each body and all that hangs on it."""
    flat = join([body.mass[:, None], body.mass[:, None] * body.com, inertia_about_origin(body)], 1)
    sums = materialize(schedule(tree).sum_up(materialize(flat)))
    return Composite(sums[:, 0], sums[:, 1:4], sums[:, 4:10])


def of_dofs(tree: Tree, per_body):
    """Spread stacks over bodies to their degrees of freedom, in the order of the tree."""
    order = schedule(tree)
    return jax.tree.map(lambda x: take(x, order.dof_body[order.dof_rank]), per_body)


def mass_matrix_kernel(tree: Tree, bodies: Bodies, q: Configuration) -> Stack:
    """Composite rigid body algorithm: M_kj = (I_k^c S_k) . S_j for j at or above k; exact zeros between branches."""
    at = world.geometry(bodies, q)
    axes = take(at.axes, schedule(tree).dof_rank)
    momentum = of_dofs(tree, composite(tree, world.inertias(bodies, at))).apply(axes)
    lower = pairs(momentum, axes)
    return last(_with_armature(bodies, _assemble(tree, lower, jnp.swapaxes(lower, 1, 2))))


def _with_armature(bodies: Bodies, matrix: Stack) -> Stack:
    """(B, nv, nv) with the armature added to the diagonal."""
    return matrix + jnp.eye(matrix.shape[1], dtype=matrix.dtype)[None] * first(bodies.armature)[:, None]


def _assemble(tree: Tree, lower: Stack, upper: Stack) -> Stack:
    """(B, nv, c nv): `lower` where the body of the row is at or below that of the column, `upper` where it is
    strictly above, else zero."""
    below, above = (np.tile(m, (1, lower.shape[2] // max(tree.nv, 1)))[None] for m in _masks(tree))
    return jnp.where(below, lower, jnp.where(above, upper, jnp.zeros((), lower.dtype)))


def _masks(tree: Tree):
    """In the order of the tree: [i, j] body of i at or below that of j; body of i strictly above that of j."""
    order = schedule(tree)
    index = (order.dof_rank[:, None], order.dof_rank[None])
    return order.below[index], order.strictly_above[index]


class MotionSums(NamedTuple):
    """Per degree of freedom, in the order of the tree, sums over its body and all that hangs on it, about one point:
    `inertia`; momentum, `linear` l and `angular` k (nv, 3, B); the symmetric part of N, `product` (nv, 6, B); `force`
    (nv, 6, B) that causes the motion, or (nv, 0, B)."""

    inertia: Composite
    linear: Stack
    angular: Stack
    product: Stack
    force: Stack

    def coriolis(self, x: Stack) -> Stack:
        """2B x."""
        angular = x[:, 3:]
        turned = symmetric_matvec(self.product, angular) - cross(self.angular, angular)
        return join([-2.0 * cross(self.linear, angular), turned], 1)

    def transposed_coriolis(self, y: Stack) -> Stack:
        """The angular part of (2B)^T y; its linear part is zero."""
        turned = symmetric_matvec(self.product, y[:, 3:]) + cross(self.angular, y[:, 3:])
        return -2.0 * cross(y[:, :3], self.linear) + turned


def motion_sums(
    tree: Tree, body: Inertias, twist: Stack, acceleration: Stack | None = None, arm: Stack | None = None
) -> MotionSums:
    """The composite quantities of a motion; without `acceleration` no force.

    Everything is about O; or, with `arm` (n, 3, B) from the parent's origin, about each body's own origin.
    """
    order = schedule(tree)
    mass, moment, six = body.mass, body.mass[:, None] * body.com, inertia_about_origin(body)
    v, w = twist[:, :3], twist[:, 3:]
    six = materialize(six)
    single = Composite(mass, moment, six)
    momentum = materialize(single.apply(twist))

    # symmetric part of N
    wj = [[_cross_entry(w, six, i, j) for j in range(3)] for i in range(3)]
    vh = 2.0 * dot(v, moment)
    entries = []
    for i, j in zip(_ROWS, _COLS, strict=True):
        e = wj[i][j] + wj[j][i] - v[:, i] * moment[:, j] - moment[:, i] * v[:, j]
        entries.append(e + vh if i == j else e)
    parts = [mass[:, None], moment, momentum, six, pile(entries, 1)]
    if acceleration is not None:
        parts.insert(3, single.apply(acceleration) + force_cross(twist, momentum))
    of_bodies = materialize(join(parts, 1))
    sums = order.sum_up(of_bodies) if arm is None else _moving_sum_up(order, of_bodies, arm)
    sums = of_dofs(tree, materialize(sums))
    inertia = Composite(sums[:, 0], sums[:, 1:4], sums[:, -12:-6])
    return MotionSums(inertia, sums[:, 4:7], sums[:, 7:10], sums[:, -6:], sums[:, 10:-12])


def _moving_sum_up(order: Schedule, of_bodies: Stack, arm: Stack) -> Stack:
    """Each body's sum over itself and its descendants of the quantities of `motion_sums`, each about its body's own
    origin.

    When the point moves by -r: h' = h + m r, k' = k + r x l, and J and the symmetric part of N each change by
    2 (g.r) 1 - g r^T - r g^T, with g = h + m r / 2 for J and g = l for N (from 2B x being a wrench of x's angular part).
    """

    def step(level: Level, below: Stack | None):
        sums = level.of(of_bodies) if below is None else materialize(level.of(of_bodies) + below)
        if not level.depth:
            return None, sums
        r, m, h = level.of(arm), sums[:, :1], sums[:, 1:4]
        n, width = sums.shape[0], sums.shape[-1]
        wrenches, symmetric = sums[:, 4:16].reshape(n, 2, 6, width), sums[:, 16:].reshape(n, 2, 6, width)
        r_twice = r[:, None]
        moved = moved_force(wrenches, r_twice)
        symmetric = symmetric + _change_of_symmetric(pile([h + 0.5 * m * r, wrenches[:, 0, :3]], 1), r_twice)
        whole = [m, h + m * r, moved.reshape(n, 12, width), symmetric.reshape(n, 12, width)]
        return materialize(join(whole, 1)), sums

    return join(order.scan_up(step))


def _change_of_symmetric(g: Stack, r: Stack) -> Stack:
    """Six entries of 2 (g.r) 1 - g r^T - r g^T."""
    at = [[g[..., i, :] * r[..., j, :] for j in range(3)] for i in range(3)]
    diagonal = [2.0 * (at[i - 2][i - 2] + at[i - 1][i - 1]) for i in range(3)]
    entries = [diagonal[i] if i == j else -(at[i][j] + at[j][i]) for i, j in zip(_ROWS, _COLS, strict=True)]
    return pile(entries, -2)


class Columns(NamedTuple):
    """Per degree of freedom, in the order of the tree, 6-vectors about one point: motion axis, and P, Q (nv, 6, B) and
    P + D of the formulas above; the wrench on the composite body per unit of q, of v and of acceleration, its motion
    axes held where they are."""

    axes: Stack
    p: Stack
    q: Stack
    rate: Stack
    by_q: Stack
    by_v: Stack
    by_a: Stack


def columns(tree: Tree, axes: Stack, twist: Stack, own: Stack, of_parent: Stack, sums: MotionSums) -> Columns:
    """What a change of one coordinate does to the motion of its subtree, and the wrench that takes, from the twist of
    each body, its joint's share of it, and the acceleration of its parent (n, 6, B)."""
    order = schedule(tree)
    s = take(axes, order.dof_rank)
    v_body, own_body, a_parent = of_dofs(tree, (twist, own, of_parent))
    v_parent = v_body - own_body
    p = materialize(motion_cross(v_parent, s))
    sweep = materialize(motion_cross(a_parent, s) + motion_cross(v_parent, p))
    rate = materialize(p + motion_cross(v_body, s))
    c = sums.inertia
    i_s = materialize(c.apply(s))
    by_q = sums.coriolis(p) + c.apply(sweep) + force_cross(s, sums.force)
    by_v = sums.coriolis(s) + c.apply(rate)
    return Columns(s, p, sweep, rate, by_q, by_v, i_s)


def accelerations_of_parents(tree: Tree, acceleration: Stack, of_world: Stack) -> Stack:
    """(n, 6, B) from those of the bodies and that of the world (6, B), minus gravity where they are."""
    order = schedule(tree)
    rooted = join([acceleration, of_world[None]])
    return take(rooted, [int(p) if p >= 0 else order.n for p in order.parents])


def _needs_own_origins(dtype) -> bool:
    """Of a light body of size l at a distance r from O, sums about O are good to eps (r / l)^2; those about its own
    origin, whose wrenches alone are moved to O, to eps r / l. That takes longer, and double precision has digits to
    spare."""
    return bool(jnp.finfo(dtype).eps > 1e-10)


def _moved_together(moved, stacks: tuple[Stack, ...], arm: Stack) -> list[Stack]:
    """Each of the stacks (n, 6, B) moved by the same arms, in one kernel."""
    together = materialize(moved(pile(stacks), arm[None]))
    return [together[i] for i in range(len(stacks))]


def derivatives_at(
    tree: Tree, bodies: Bodies, at: Geometry, twist: Stack, own: Stack, acceleration: Stack
) -> tuple[Stack, Stack]:
    """[d tau/dq, d tau/dv] (B, nv, 2 nv) and M (B, nv, nv) of a motion."""
    gravity = join([-bodies.gravity, jnp.zeros_like(bodies.gravity)])
    of_parent = accelerations_of_parents(tree, acceleration, gravity)
    body = world.inertias(bodies, at)
    if not _needs_own_origins(twist.dtype):
        sums = motion_sums(tree, body, twist, acceleration)
        c = columns(tree, at.axes, twist, own, of_parent, sums)
        b_s = sums.transposed_coriolis(c.axes)
    else:
        twist, own, acceleration, of_parent = _moved_together(
            moved_motion, (twist, own, acceleration, of_parent), at.position
        )
        body = body._replace(com=world.arms_of_centers(bodies, at))
        sums = motion_sums(tree, body, twist, acceleration, at.arm)
        c = columns(tree, at.own_axes, twist, own, of_parent, sums)
        b_s = sums.transposed_coriolis(c.axes)
        p, axes = of_dofs(tree, at.position), take(at.axes, schedule(tree).dof_rank)
        motions = _moved_together(moved_motion, (c.p, c.q, c.rate), -p)
        wrenches = _moved_together(moved_force, (c.by_q, c.by_v, c.by_a), p)
        c = Columns(axes, motions[0], motions[1], motions[2], wrenches[0], wrenches[1], wrenches[2])

    # Below: 9 terms, three of (2B)^T S and six of I S, against the columns of all three matrices; above: 6 terms.
    left = join([b_s, c.by_a], 1)
    right = [
        join([c.p[:, 3:], c.q], 1),
        join([c.axes[:, 3:], c.rate], 1),
        join([jnp.zeros_like(b_s), c.axes], 1),
    ]
    lower, upper = pairs(left, join(right)), pairs(c.axes, join([c.by_q, c.by_v, c.by_a]))
    both = materialize(_assemble(tree, lower, upper))
    n = tree.nv
    return both[:, :, : 2 * n], _with_armature(bodies, both[:, :, 2 * n :])


def coriolis_kernel(tree: Tree, bodies: Bodies, q: Configuration, v: Stack) -> Stack:
    """C (nv, nv, B) with C_ij = S_i . (I^c D_j + B^c S_j), composite quantities of the lower one of the two bodies.

    dI/dt = V x* I - I V x, so that dI/dt - 2B takes x to -x x* (I V), which is skew; and with it dM/dt - 2C.
    """
    if tree.nv == 0:
        return jnp.zeros((0, 0, 1), bodies.gravity.dtype)
    at = world.geometry(bodies, q)
    twist, _ = world.velocities(tree, at, v)
    sums = motion_sums(tree, world.inertias(bodies, at), twist)
    s = take(at.axes, schedule(tree).dof_rank)
    d = materialize(motion_cross(of_dofs(tree, twist), s))
    left = join([0.5 * sums.transposed_coriolis(s), sums.inertia.apply(s)], 1)
    lower = pairs(left, join([s[:, 3:], d], 1))
    upper = pairs(s, 0.5 * sums.coriolis(s) + sums.inertia.apply(d))
    return last(_assemble(tree, lower, upper))


def inverse_dynamics_derivatives(
    tree: Tree, bodies: Bodies, q: Configuration, v: Stack, a: Stack | None
) -> tuple[Stack, Stack, Stack]:
    """d tau/dq, d tau/dv and M at the joint accelerations `a` (None: zero): (nv, nv, B) each, q in tangent space."""
    at = world.geometry(bodies, q)
    twist, own = world.velocities(tree, at, v)
    acceleration = world.accelerations(bodies, at, twist, own, a)
    by_state, mass = derivatives_at(tree, bodies, at, twist, own, acceleration)
    return last(by_state[:, :, : tree.nv]), last(by_state[:, :, tree.nv :]), last(mass)


def _cross_entry(w: Stack, six: Stack, i: int, j: int) -> Stack:
    """Entry (i, j) of w^ J with J given by six entries."""
    a, b = (i + 1) % 3, (i + 2) % 3
    return w[:, a] * six[:, _SIX[b][j]] - w[:, b] * six[:, _SIX[a][j]]
