"""How twists and accelerations of frames change with q, v and a, in closed form.

About a point fixed in the world, and with p the parent of j's body and b the body of the frame (at or below j's): a
change of q_j carries along, by S_j, all axes of b's chain from j's joint on, so that

    d V_b / dq_j = S_j x (V_b - V_p)
    d A_b / dq_j = S_j x (A_b - A_p) - (S_j x V_p) x (V_b - V_p)
    d A_b / dv_j = V_j x S_j + S_j x (V_b - V_p)

(Carpentier and Mansard, Analytical derivatives of rigid body dynamics algorithms, 2018, in other words.)
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.jacobians import frame_jacobian
from jaxdyn.algorithms.kinematics import Kinematics, frame_index, frame_pose, needed
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import compose, cross, hat
from jaxdyn.math.spatial import Representation, convert_acceleration, convert_twist, motion_cross
from jaxdyn.model.model import Model


class VelocityDerivatives(NamedTuple):
    """Derivatives (6, nv) of a frame's twist by q (in tangent space) and by v, the Jacobian."""

    dq: Float[Array, "6 nv"]
    dv: Float[Array, "6 nv"]


class AccelerationDerivatives(NamedTuple):
    """Derivatives (6, nv) of a frame's acceleration by q (in tangent space), v, and a, the Jacobian."""

    dq: Float[Array, "6 nv"]
    dv: Float[Array, "6 nv"]
    da: Float[Array, "6 nv"]


class _Chain(NamedTuple):
    """About `kin.origin`: what the frame's twist and acceleration do when one coordinate changes, (nv, 6) each."""

    twist: Array
    acceleration: Array | None
    axes: Array
    twist_dq: Array
    acceleration_dq: Array | None
    acceleration_dv: Array | None


def _about_origin(kin: Kinematics) -> tuple[Array, Array | None]:
    """Twists and spatial accelerations of all bodies about `kin.origin`, and of the world as last row."""
    twist = needed(kin.twist, "velocities", "v")
    arm, w = kin.translation - kin.origin[None], twist[:, 3:]
    still = jnp.zeros((1, 6), twist.dtype)
    moved = jnp.concatenate([jnp.concatenate([twist[:, :3] - cross(w, arm), w], axis=1), still])
    if kin.acceleration is None:
        return moved, None
    a, dw = kin.acceleration, kin.acceleration[:, 3:]
    linear = a[:, :3] - cross(w, twist[:, :3]) - cross(dw, arm)
    return moved, jnp.concatenate([jnp.concatenate([linear, dw], axis=1), still])


def _chain(model: Model, kin: Kinematics, body: int) -> _Chain:
    tree = model.tree
    twists, accelerations = _about_origin(kin)
    bodies = jnp.asarray(tree.dof_body, dtype=int)
    parents = jnp.asarray([tree.parents[b] % (tree.n_bodies + 1) for b in tree.dof_body], dtype=int)
    moves = jnp.asarray(tree.dof_support[body][:, None], kin.origin.dtype)
    s = moves * kin.axes
    since = twists[body][None] - twists[parents]
    twist_dq = motion_cross(s, since)
    if accelerations is None:
        return _Chain(twists[body], None, s, twist_dq, None, None)
    carried = motion_cross(s, accelerations[body][None] - accelerations[parents])
    by_q = carried - motion_cross(motion_cross(s, twists[parents]), since)
    by_v = motion_cross(twists[bodies], s) + twist_dq
    return _Chain(twists[body], accelerations[body], s, twist_dq, by_q, by_v)


@through_followers(-1)
def frame_velocity_derivatives(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> VelocityDerivatives:
    """Derivatives of `frame_velocity`: each entry of the twist by q and by v.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    _, body = frame_index(model, frame)
    jacobian = frame_jacobian(model, kin, frame, representation)
    if body < 0 or model.nv == 0:
        needed(kin.twist, "velocities", "v")
        return VelocityDerivatives(jnp.zeros_like(jacobian), jacobian)
    pose, c = frame_pose(model, kin, frame), _chain(model, kin, body)
    twist = lambda moved, change: _frame_twist(kin, *_displaced(kin, pose, moved), change, representation)  # noqa: E731

    def column(s, change):
        return jax.jvp(twist, (jnp.zeros(6, s.dtype), c.twist), (s, change))[1]

    return VelocityDerivatives(jax.vmap(column, (0, 0), 1)(c.axes, c.twist_dq), jacobian)


@through_followers(-1)
def frame_acceleration_derivatives(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> AccelerationDerivatives:
    """Derivatives of `frame_acceleration`: each entry by q, v and a.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without accelerations.
    """
    needed(kin.acceleration, "accelerations", "v, a")
    _, body = frame_index(model, frame)
    jacobian = frame_jacobian(model, kin, frame, representation)
    if body < 0 or model.nv == 0:
        zero = jnp.zeros_like(jacobian)
        return AccelerationDerivatives(zero, zero, jacobian)
    pose, c = frame_pose(model, kin, frame), _chain(model, kin, body)

    def acceleration(moved, twist, spatial):
        rotation, translation = _displaced(kin, pose, moved)
        arm, w = translation - kin.origin, twist[3:]
        v = twist[:3] + cross(w, arm)
        classical = spatial[:3] + cross(spatial[3:], arm) + cross(w, v)
        mixed = jnp.concatenate([classical, spatial[3:]])
        at = SE3(rotation, translation)
        return convert_acceleration(mixed, jnp.concatenate([v, w]), at, Representation.MIXED, representation)

    here = (jnp.zeros(6, kin.origin.dtype), c.twist, c.acceleration)

    def by_q(s, change, d_acceleration):
        return jax.jvp(acceleration, here, (s, change, d_acceleration))[1]

    def by_v(s, d_acceleration):
        return jax.jvp(acceleration, here, (jnp.zeros_like(s), s, d_acceleration))[1]

    dq = jax.vmap(by_q, (0, 0, 0), 1)(c.axes, c.twist_dq, c.acceleration_dq)
    return AccelerationDerivatives(dq, jax.vmap(by_v, (0, 0), 1)(c.axes, c.acceleration_dv), jacobian)


def _displaced(kin: Kinematics, pose: SE3, motion: Float[Array, "6"]) -> tuple[Array, Array]:
    """The frame after a small motion of its body (about `kin.origin`), to first order."""
    turn = motion[3:]
    rotation = pose.rotation + compose(hat(turn), pose.rotation)
    return rotation, pose.translation + motion[:3] + cross(turn, pose.translation - kin.origin)


def _frame_twist(
    kin: Kinematics, rotation: Array, translation: Array, twist: Array, representation: Representation
) -> Array:
    """Twist of a frame from that of its body about `kin.origin`."""
    linear = twist[:3] + cross(twist[3:], translation - kin.origin)
    mixed = jnp.concatenate([linear, twist[3:]])
    return convert_twist(mixed, SE3(rotation, translation), Representation.MIXED, representation)
