"""What all algorithms share: poses, motion axes, velocities and inertias in world axes, batch last, level order.

Everything spatial is expressed in world axes about one point O, the origin of the first body's frame at this instant,
taken as fixed in space. Then

- the motion axis of a degree of freedom is one 6-vector S_k for its whole subtree, and no transform is left in any
  recursion: velocities, accelerations, forces and composite inertias are plain sums along the tree;
- a base far from the world's origin costs no digits, as only differences of positions occur.

All stacks are in the order of `Schedule` and carry the batch in the trailing axis. A joint's motion subspace is
constant in the child's axes, so its axes change at the rate V_b x S_k with V_b the twist of its body. (Featherstone,
Rigid Body Dynamics Algorithms, chapters 2 and 3; Carpentier and Mansard, Analytical derivatives of rigid body
dynamics algorithms, 2018.)
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.bodies import Bodies
from jaxdyn.algorithms.configuration import Configuration, layout
from jaxdyn.math.batching import materialize
from jaxdyn.math.stacked import (
    Stack,
    constant,
    cross,
    dot,
    hat,
    join,
    matmul,
    matmul_transposed,
    matvec,
    motion_cross,
    take,
    transposed_matvec,
    widen,
    widest,
)  # fmt: skip
from jaxdyn.model.joints import planar_axes
from jaxdyn.model.schedule import Level, schedule
from jaxdyn.model.tree import Tree


class Geometry(NamedTuple):
    """Pose of each body and motion axis of each degree of freedom.

    `rotation` (n, 3, 3, B); `position` (n, 3, B) from O; `arm` (n, 3, B) from the parent's origin; `origin` (3, B) of
    O in the world; `axes` (nv, 6, B) [linear, angular] about O; `own_axes` (nv, 6, B) the same about the origin of the
    body that the joint moves.
    """

    rotation: Stack
    position: Stack
    arm: Stack
    origin: Stack
    axes: Stack
    own_axes: Stack


class _JointTable:
    """Static tables of the joints in level order."""

    def __init__(self, tree: Tree) -> None:
        order, where = schedule(tree), layout(tree)
        kinds = [tree.joint_types[b] for b in order.bodies]
        self.turning = [i for i, k in enumerate(kinds) if k in ("spherical", "floating")]
        self.angular = [i for i, k in enumerate(kinds) if k not in ("spherical", "floating")]
        self.rotation = [where.rotation_of[int(order.bodies[i])] for i in self.turning]
        first = [where.first_coordinate[int(order.bodies[i])] for i in range(order.n)]
        self.angle = [first[i] + (2 if kinds[i] == "planar" else 0) for i in self.angular]
        self.is_angle = np.asarray([kinds[i] != "prismatic" for i in self.angular], dtype=bool)
        self.pieces = np.argsort(np.asarray(self.turning + self.angular, dtype=int))
        self.prismatic = [(i, first[i]) for i, k in enumerate(kinds) if k == "prismatic"]
        self.planar = [(i, first[i]) for i, k in enumerate(kinds) if k == "planar"]
        self.floating = [(i, first[i]) for i, k in enumerate(kinds) if k == "floating"]
        still = [i for i in range(order.n) if kinds[i] in ("revolute", "continuous", "spherical")]
        self.shifts = np.argsort([i for i, _ in (*self.prismatic, *self.planar, *self.floating)] + still)
        self.n_still = len(still)

        # Each degree of freedom is a unit direction in its body's axes, either of turning or of shifting.
        direction, turns = [], []
        for i, kind in enumerate(kinds):
            if kind in ("revolute", "continuous", "prismatic"):
                direction.append(i)
                turns.append(kind != "prismatic")
            elif kind == "planar":
                extra = order.n + 3 + 2 * [j for j, _ in self.planar].index(i)
                direction += [extra, extra + 1, i]
                turns += [False, False, True]
            else:
                direction += [order.n, order.n + 1, order.n + 2] * (len(turns_of(kind)) // 3)
                turns += turns_of(kind)
        self.direction = np.asarray(direction, dtype=int)
        self.turns = np.asarray(turns, dtype=bool)


def turns_of(kind: str) -> list[bool]:
    """Which velocities of a spherical or floating joint turn rather than shift."""
    return [True] * 3 if kind == "spherical" else [False] * 3 + [True] * 3


@functools.lru_cache(maxsize=256)
def _table(tree: Tree) -> _JointTable:
    return _JointTable(tree)


def geometry(bodies: Bodies, q: Configuration) -> Geometry:
    """Poses and motion axes. All leaves of `bodies` and `q` carry a trailing batch axis."""
    tree = bodies.tree
    order, table = schedule(tree), _table(tree)
    if order.n == 0:
        zero = jnp.zeros((3, 1), bodies.gravity.dtype)
        none, axes = zero[None][:0], jnp.zeros((0, 6, 1), zero.dtype)
        return Geometry(jnp.zeros((0, 3, 3, 1), zero.dtype), none, none, zero, axes, axes)
    r0 = take(bodies.joint_placement.rotation, order.bodies)
    p0 = take(bodies.joint_placement.translation, order.bodies)
    axis = take(bodies.joint_axis, order.bodies)
    width = widest(q.rotations, q.coordinates, r0, p0, axis)

    # Joint placement times joint motion. About a unit axis: R0 + sin R0 K + (1 - cos) R0 K^2.
    pieces = []
    if table.turning:
        pieces.append(matmul(take(r0, table.turning), take(q.rotations, table.rotation)))
    if table.angular:
        k = hat(take(axis, table.angular))
        base = take(r0, table.angular)
        first = matmul(base, k)
        second = matmul(first, k)
        angle = take(q.coordinates, table.angle)
        sine, versine = materialize(jnp.sin(angle)), materialize(1.0 - jnp.cos(angle))
        if not table.is_angle.all():
            mask = constant(table.is_angle.astype(float), sine)
            sine, versine = sine * mask, versine * mask
        pieces.append(base + sine[:, None, None] * first + versine[:, None, None] * second)
    local = take(join(pieces), table.pieces)

    shifts = [take(axis, [i]) * q.coordinates[c][None, None] for i, c in table.prismatic]
    basis = []
    for i, c in table.planar:
        u, w = (jnp.moveaxis(x, 0, -1)[None] for x in planar_axes(jnp.moveaxis(axis[i], -1, 0)))
        basis += [u, w]
        shifts.append(u * q.coordinates[c][None, None] + w * q.coordinates[c + 1][None, None])
    shifts += [q.coordinates[None, c : c + 3] for _, c in table.floating]
    if shifts:
        rest = [jnp.zeros((table.n_still, 3, 1), p0.dtype)] if table.n_still else []
        moved = take(join([*shifts, *rest]), table.shifts)
        offset = p0 + matvec(r0, moved)
    else:
        offset = p0

    origin = offset[0]

    def step(level: Level, above):
        r, p = widen(level.of(local), width), level.of(offset)
        if above is None:
            start = widen(p - origin[None] if level.stop > 1 else jnp.zeros_like(p), width)
            return r, start, start
        arm = matvec(above[0], p)
        # Without a boundary here all levels become one kernel, which computes the rotations above again for each entry.
        return materialize(matmul(above[0], r)), above[1] + arm, arm

    states = order.scan_down(step)
    rotation = join([s[0] for s in states])
    arm = materialize(join([s[2] for s in states]))
    # The mean of the bodies' origins as O: the inertia of a light body far from O is a small difference of large numbers.
    position = join([s[1] for s in states])
    center = jnp.mean(position, axis=0)
    position, origin = materialize(position - center[None]), origin + center

    directions = join([axis, constant(np.eye(3), axis), *basis])
    w = matvec(take(rotation, order.dof_body), take(directions, table.direction))
    if table.turns.all():
        angular, shift = w, jnp.zeros_like(w)
    else:
        angular = constant(table.turns.astype(float), w)[:, None] * w
        shift = w - angular
    axes = join([cross(take(position, order.dof_body), angular) + shift, angular], 1)
    own_axes = join([shift, angular], 1)
    return Geometry(rotation, position, arm, origin, materialize(widen(axes, width)), widen(own_axes, width))


def velocities(tree: Tree, at: Geometry, v: Stack) -> tuple[Stack, Stack]:
    """Twist of each body about O and its joint's share of it: (n, 6, B), (n, 6, B); `v` in the order of the tree."""
    order = schedule(tree)
    own = materialize(order.sum_dofs(at.axes * take(v, order.dofs)[:, None]))
    return materialize(order.sum_down(own)), own


def spatial_accelerations(
    tree: Tree, at: Geometry, twist: Stack, own: Stack, a: Stack | None, extra: Stack | None = None
) -> Stack:
    """Spatial acceleration of each body about O: (n, 6, B). Without `a`: with all joint accelerations zero; `extra`
    (n, 6, B) is added to each joint's share."""
    order = schedule(tree)
    total = motion_cross(twist, own)
    if a is not None:
        total = total + order.sum_dofs(at.axes * take(a, order.dofs)[:, None])
    if extra is not None:
        total = total + extra
    return materialize(order.sum_down(total))


def accelerations(bodies: Bodies, at: Geometry, twist: Stack, own: Stack, a: Stack | None) -> Stack:
    """Spatial acceleration of each body about O minus gravity: (n, 6, B)."""
    return spatial_accelerations(bodies.tree, at, twist, own, a, gravity_of_roots(bodies, at))


def gravity_of_roots(bodies: Bodies, at: Geometry) -> Stack:
    """Minus gravity for the bodies that hang on the world, zero for the others: (n, 6, B)."""
    roots = constant((schedule(bodies.tree).parents < 0).astype(float), at.axes)
    return -roots[:, None] * join([bodies.gravity, jnp.zeros_like(bodies.gravity)])[None]


class Inertias(NamedTuple):
    """Rigid bodies: `mass` (n, B), centre of mass from O `com` (n, 3, B), inertia about it `about_com` (n, 3, 3, B),
    world axes."""

    mass: Stack
    com: Stack
    about_com: Stack


def inertias(bodies: Bodies, at: Geometry) -> Inertias:
    """The bodies' inertias in world axes."""
    order = schedule(bodies.tree)
    com = at.position + matvec(at.rotation, take(bodies.inertia.com, order.bodies))
    half = materialize(matmul(at.rotation, take(bodies.inertia.inertia, order.bodies)))
    return Inertias(take(bodies.inertia.mass, order.bodies), materialize(com), matmul_transposed(half, at.rotation))


def arms_of_centers(bodies: Bodies, at: Geometry) -> Stack:
    """From each body's origin to its centre of mass, in world axes: (n, 3, B)."""
    return materialize(matvec(at.rotation, take(bodies.inertia.com, schedule(bodies.tree).bodies)))


def body_forces(bodies: Bodies, at: Geometry, twist: Stack, acceleration: Stack) -> Stack:
    """Force that gives each body its acceleration (minus gravity), about O: (n, 6, B). Newton and Euler at the centre
    of mass."""
    order = schedule(bodies.tree)
    inertia = take(bodies.inertia.inertia, order.bodies)
    com = materialize(at.position + matvec(at.rotation, take(bodies.inertia.com, order.bodies)))
    w, dw = twist[:, 3:], acceleration[:, 3:]
    at_com = acceleration[:, :3] + cross(dw, com) + cross(w, twist[:, :3] + cross(w, com))
    force = materialize(take(bodies.inertia.mass, order.bodies)[:, None] * at_com)
    w_body, dw_body = materialize(transposed_matvec(at.rotation, w)), materialize(transposed_matvec(at.rotation, dw))
    moment = materialize(matvec(inertia, dw_body) + cross(w_body, matvec(inertia, w_body)))
    return join([force, matvec(at.rotation, moment) + cross(com, force)], 1)


def joint_forces(tree: Tree, at: Geometry, wrench: Stack) -> Stack:
    """Generalised force (nv, B), in the order of the tree, of the wrench that each joint transmits, (n, 6, B) about
    O."""
    order = schedule(tree)
    return take(dot(at.axes, take(wrench, order.dof_body)), order.dof_rank)


def wrench_about_origin(tree: Tree, at: Geometry, wrenches: Stack) -> Stack:
    """Wrenches (n, 6, B) given in the order of the tree, MIXED at the bodies' frames, moved to O and to level
    order."""
    order = schedule(tree)
    w = take(wrenches, order.bodies)
    return join([w[:, :3], w[:, 3:] + cross(at.position, w[:, :3])], 1)


def rnea_kernel(tree: Tree, bodies: Bodies, q: Configuration, v: Stack, a: Stack | None) -> Stack:
    """Recursive Newton-Euler; `a` None stands for zero."""
    at = geometry(bodies, q)
    twist, own = velocities(tree, at, v)
    acceleration = accelerations(bodies, at, twist, own, a)
    total = schedule(tree).sum_up(body_forces(bodies, at, twist, acceleration))
    tau = joint_forces(tree, at, total)
    return tau if a is None else tau + bodies.armature * a
