"""Motion of one frame as seen from another, which may move itself."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.coupled import check_kinematics, through_followers
from jaxdyn.algorithms.jacobians import at_point, bias_accelerations
from jaxdyn.algorithms.kinematics import (
    Kinematics,
    acceleration_from_bodies,
    frame_pose,
    frame_velocity,
    needed,
)
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross, rotate_back
from jaxdyn.math.spatial import Representation, convert_acceleration, convert_twist
from jaxdyn.model.model import Model

_MIXED = Representation.MIXED


def relative_pose(model: Model, kin: Kinematics, frame: str | int, reference: str | int) -> SE3:
    """Pose of `frame` in `reference`.

    **Raises:** `UnknownNameError`.
    """
    return frame_pose(model, kin, reference).inverse() @ frame_pose(model, kin, frame)


def relative_velocity(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    reference: str | int,
    representation: Representation = Representation.MIXED,
) -> Float[Array, "6"]:
    """Twist [linear, angular] of `frame` as an observer in `reference` sees it, m/s and rad/s. The reference plays the
    world's part: MIXED has its axes and the frame's origin, WORLD its axes and its origin, LOCAL those of the frame.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    pose = relative_pose(model, kin, frame, reference)
    return convert_twist(_mixed_velocity(model, kin, frame, reference), pose, _MIXED, representation)


def _mixed_velocity(model: Model, kin: Kinematics, frame: str | int, reference: str | int) -> Array:
    here, there = frame_pose(model, kin, frame), frame_pose(model, kin, reference)
    v, u = frame_velocity(model, kin, frame), frame_velocity(model, kin, reference)
    linear = v[:3] - u[:3] - cross(u[3:], here.translation - there.translation)
    return _turned_back(there, jnp.concatenate([linear, v[3:] - u[3:]]))


@through_followers(-1)
def relative_jacobian(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    reference: str | int,
    representation: Representation = Representation.MIXED,
) -> Float[Array, "6 nv"]:
    """Jacobian of `relative_velocity`. (6, nv) Joints that move both frames have zero columns.

    **Raises:** `UnknownNameError`.
    """
    here, there = frame_pose(model, kin, frame), frame_pose(model, kin, reference)
    difference = at_point(model, kin, frame, here.translation) - at_point(model, kin, reference, here.translation)
    mixed = jnp.concatenate([rotate_back(there.rotation, difference[i : i + 3].T) for i in (0, 3)], axis=1)
    return convert_twist(mixed, there.inverse() @ here, _MIXED, representation).T


def relative_acceleration(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    reference: str | int,
    representation: Representation = Representation.MIXED,
) -> Float[Array, "6"]:
    """Time derivative of `relative_velocity` in the same representation, m/s^2 and rad/s^2.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without accelerations.
    """
    check_kinematics(model, kin)
    accelerations = needed(kin.acceleration, "accelerations", "v, a")
    return _acceleration(model, kin, frame, reference, accelerations, representation)


@through_followers()
def relative_jacobian_dot_v(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    reference: str | int,
    representation: Representation = Representation.MIXED,
) -> Float[Array, "6"]:
    """`relative_acceleration` when all entries of `a` are zero. (6,)

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    return _acceleration(model, kin, frame, reference, bias_accelerations(model, kin), representation)


def _acceleration(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    reference: str | int,
    accelerations: Array,
    representation: Representation,
) -> Array:
    here, there = frame_pose(model, kin, frame), frame_pose(model, kin, reference)
    a = acceleration_from_bodies(model, kin, frame, accelerations, _MIXED)
    b = acceleration_from_bodies(model, kin, reference, accelerations, _MIXED)
    v, u = frame_velocity(model, kin, frame), frame_velocity(model, kin, reference)
    arm, moved = here.translation - there.translation, v[:3] - u[:3]
    linear = moved - cross(u[3:], arm)
    # derivative of R^T [linear, angular]: R^T (d[.] - w x [.])
    d_linear = a[:3] - b[:3] - cross(b[3:], arm) - cross(u[3:], moved) - cross(u[3:], linear)
    d_angular = a[3:] - b[3:] - cross(u[3:], v[3:] - u[3:])
    mixed = _turned_back(there, jnp.concatenate([d_linear, d_angular]))
    twist = _mixed_velocity(model, kin, frame, reference)
    return convert_acceleration(mixed, twist, there.inverse() @ here, _MIXED, representation)


def _turned_back(pose: SE3, x: Array) -> Array:
    return jnp.concatenate([rotate_back(pose.rotation, x[:3]), rotate_back(pose.rotation, x[3:])])
