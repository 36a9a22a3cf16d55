"""Jacobians of frames, points and the centre of mass, from the motion axes that `forward_kinematics` returns."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.kinematics import (
    Kinematics,
    acceleration_from_bodies,
    frame_index,
    frame_point,
    frame_pose,
    needed,
)
from jaxdyn.errors import FloatLike
from jaxdyn.math.so3 import cross, rotate_back
from jaxdyn.math.spatial import Representation, motion_cross
from jaxdyn.model.model import Model


def frame_jacobian(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6 nv"]:
    """Jacobian of a frame: its twist [linear, angular] in the given representation is J v. (6, nv)

    **Raises:** `UnknownNameError`.
    """
    pose = frame_pose(model, kin, frame)
    if representation is Representation.WORLD:
        return _at_point(model, kin, frame, jnp.zeros_like(kin.origin))
    mixed = _at_point(model, kin, frame, pose.translation)
    if representation is Representation.MIXED:
        return mixed
    return jnp.concatenate([rotate_back(pose.rotation, mixed[i : i + 3].T).T for i in (0, 3)])


def _at_point(model: Model, kin: Kinematics, frame: str | int, point: Float[Array, "3"]) -> Float[Array, "6 nv"]:
    """Jacobian, in world axes, of the point fixed to the frame's body that is at `point` now."""
    _, body = frame_index(model, frame)
    if body < 0:
        return jnp.zeros((6, model.nv), kin.origin.dtype)
    moves = jnp.asarray(model.tree.dof_support[body][:, None], kin.origin.dtype)
    angular = moves * kin.axes[:, 3:]
    linear = moves * kin.axes[:, :3] + cross(angular, (point - kin.origin)[None])
    return jnp.concatenate([linear, angular], axis=1).T


def point_jacobian(model: Model, kin: Kinematics, frame: str | int, point: FloatLike) -> Float[Array, "3 nv"]:
    """Jacobian of a point (3,) given in and fixed to a frame: its world velocity is J v. (3, nv)

    **Raises:** `UnknownNameError`, `InputError`.
    """
    return _at_point(model, kin, frame, frame_point(model, kin, frame, point))[:3]


def jacobian_dot_v(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6"]:
    """J_dot v: the acceleration of a frame when all entries of `a` are zero, in the given representation. (6,)

    For a floating base that means a constant LOCAL base twist: a base that turns then has an accelerated origin.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    return acceleration_from_bodies(model, kin, frame, bias_accelerations(model, kin), representation)


def bias_accelerations(model: Model, kin: Kinematics) -> Float[Array, "bodies 6"]:
    """MIXED acceleration of every body when all entries of `a` are zero. (n_bodies, 6)"""
    tree = model.tree
    if tree.nv == 0:
        return jnp.zeros((tree.n_bodies, 6), kin.origin.dtype)
    twist, velocity = needed(kin.twist, "velocities", "v"), needed(kin.velocity, "velocities", "v")
    w, arm = twist[:, 3:], kin.translation - kin.origin[None]
    about_origin = jnp.concatenate([twist[:, :3] - cross(w, arm), w], axis=1)
    rates = motion_cross(about_origin[jnp.asarray(tree.dof_body)], kin.axes * velocity[:, None])
    spatial = jnp.matmul(jnp.asarray(tree.dof_support, rates.dtype), rates, precision="highest")
    dw = spatial[:, 3:]
    linear = spatial[:, :3] + cross(dw, arm) + cross(w, twist[:, :3])
    return jnp.concatenate([linear, dw], axis=1)
