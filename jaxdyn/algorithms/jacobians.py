"""Jacobians of frames and points, from the motion axes that `forward_kinematics` returns."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.kinematics import (
    Kinematics,
    acceleration_from_bodies,
    frame_index,
    frame_point,
    frame_pose,
    frame_velocity,
    needed,
)
from jaxdyn.errors import FloatLike
from jaxdyn.math.so3 import cross, rotate_back
from jaxdyn.math.spatial import Representation, check_representation, motion_cross
from jaxdyn.model.model import Model


@through_followers(-1)
def frame_jacobian(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6 nv"]:
    """Jacobian of a frame: its twist [linear, angular] in the given representation is J v. (6, nv)

    **Raises:** `UnknownNameError`.
    """
    check_representation(representation)
    pose = frame_pose(model, kin, frame)
    if representation is Representation.WORLD:
        return at_point(model, kin, frame, jnp.zeros_like(kin.origin))
    mixed = at_point(model, kin, frame, pose.translation)
    if representation is Representation.MIXED:
        return mixed
    return jnp.concatenate([rotate_back(pose.rotation, mixed[i : i + 3].T).T for i in (0, 3)])


@through_followers(-1)
def at_point(model: Model, kin: Kinematics, frame: str | int, point: Float[Array, "3"]) -> Float[Array, "6 nv"]:
    """Jacobian, in world axes, of the point fixed to the frame's body that is at `point` now."""
    _, body = frame_index(model, frame)
    if body < 0:
        return jnp.zeros((6, model.nv), kin.origin.dtype)
    moves = jnp.asarray(model.tree.dof_support[body][:, None], kin.origin.dtype)
    angular = moves * kin.axes[:, 3:]
    linear = moves * kin.axes[:, :3] + cross(angular, (point - kin.origin)[None])
    return jnp.concatenate([linear, angular], axis=1).T


@through_followers(-1)
def point_jacobian(model: Model, kin: Kinematics, frame: str | int, point: FloatLike) -> Float[Array, "3 nv"]:
    """Jacobian of a point (3,) given in and fixed to a frame: its world velocity is J v. (3, nv)

    **Raises:** `UnknownNameError`, `InputError`.
    """
    return at_point(model, kin, frame, frame_point(model, kin, frame, point))[:3]


@through_followers()
def jacobian_dot_v(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6"]:
    """J_dot v: the acceleration of a frame when all entries of `a` are zero, in the given representation. (6,)

    For a floating base that means a constant LOCAL base twist: a base that turns then has an accelerated origin.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    return acceleration_from_bodies(model, kin, frame, bias_accelerations(model, kin), representation)


@through_followers(-1)
def frame_jacobian_dot(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6 nv"]:
    """Time derivative of `frame_jacobian` in the same representation. (6, nv)

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    check_representation(representation)
    pose, velocity = frame_pose(model, kin, frame), frame_velocity(model, kin, frame)
    _, body = frame_index(model, frame)
    if body < 0 or model.nv == 0:
        return jnp.zeros((6, model.nv), kin.origin.dtype)
    moves = jnp.asarray(model.tree.dof_support[body][:, None], kin.origin.dtype)
    axes, rates = moves * kin.axes, moves * axis_rates(model, kin)
    if representation is Representation.WORLD:
        linear = rates[:, :3] - cross(rates[:, 3:], kin.origin[None])
        return jnp.concatenate([linear, rates[:, 3:]], axis=1).T
    arm = (pose.translation - kin.origin)[None]
    d_linear = rates[:, :3] + cross(rates[:, 3:], arm) + cross(axes[:, 3:], velocity[None, :3])
    if representation is Representation.MIXED:
        return jnp.concatenate([d_linear, rates[:, 3:]], axis=1).T
    # of R^T x: R^T (dx/dt - w x x)
    w = velocity[None, 3:]
    linear = axes[:, :3] + cross(axes[:, 3:], arm)
    turned = (d_linear - cross(w, linear), rates[:, 3:] - cross(w, axes[:, 3:]))
    return jnp.concatenate([rotate_back(pose.rotation, x) for x in turned], axis=1).T


def axis_rates(model: Model, kin: Kinematics) -> Float[Array, "nv 6"]:
    """Rates of `kin.axes` in the world, about `kin.origin` held fixed: each axis is carried by its body. (nv, 6)"""
    about_origin = _twists_about_origin(kin)
    return motion_cross(about_origin[jnp.asarray(model.tree.dof_body, dtype=int)], kin.axes)


def _twists_about_origin(kin: Kinematics) -> Float[Array, "bodies 6"]:
    twist = needed(kin.twist, "velocities", "v")
    arm = kin.translation - kin.origin[None]
    return jnp.concatenate([twist[:, :3] - cross(twist[:, 3:], arm), twist[:, 3:]], axis=1)


@through_followers()
def bias_accelerations(model: Model, kin: Kinematics) -> Float[Array, "bodies 6"]:
    """MIXED acceleration of every body when all entries of `a` are zero. (n_bodies, 6)"""
    tree = model.tree
    if tree.nv == 0:
        return jnp.zeros((tree.n_bodies, 6), kin.origin.dtype)
    twist, velocity = needed(kin.twist, "velocities", "v"), needed(kin.velocity, "velocities", "v")
    w, arm = twist[:, 3:], kin.translation - kin.origin[None]
    rates = axis_rates(model, kin) * velocity[:, None]
    spatial = jnp.matmul(jnp.asarray(tree.dof_support, rates.dtype), rates, precision="highest")
    dw = spatial[:, 3:]
    linear = spatial[:, :3] + cross(dw, arm) + cross(w, twist[:, :3])
    return jnp.concatenate([linear, dw], axis=1)
