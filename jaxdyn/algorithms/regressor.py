"""Regressors: dynamics as linear functions of the bodies' inertial parameters.

Ten parameters per body, [m, m c (3), Ixx, Ixy, Iyy, Ixz, Iyz, Izz], the inertia about the origin of the body's frame
(`SpatialInertia.point_parameters`), bodies in the model's order. (Atkeson, An and Hollerbach, Estimation of inertial
parameters of manipulator loads and links, 1986.)
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.coupled import check_kinematics, through_followers
from jaxdyn.algorithms.kinematics import (
    Kinematics,
    acceleration_from_bodies,
    forward_kinematics,
    frame_pose,
    frame_velocity,
    needed,
)
from jaxdyn.errors import FloatLike
from jaxdyn.math.arguments import checked
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross, hat, rotate_back
from jaxdyn.math.spatial import Representation, convert_acceleration, convert_twist
from jaxdyn.model.model import Model, check_model

_LOCAL, _MIXED = Representation.LOCAL, Representation.MIXED


def inertial_parameters(model: Model) -> Float[Array, "bodies 10"]:
    """The parameters of all bodies, to be multiplied by regressors as `regressor @ parameters.reshape(-1)`.
    (n_bodies, 10)"""
    check_model(model)
    return model.inertia.point_parameters()


def _times_inertia(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 6"]:
    """L(w) with I w = L(w) [Ixx, Ixy, Iyy, Ixz, Iyz, Izz]."""
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    o = jnp.zeros_like(x)
    rows = ((x, y, o, z, o, o), (o, x, y, o, z, o), (o, o, o, x, y, z))
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


@checked
def body_regressor(
    twist: Float[Array, "*batch 6"], acceleration: Float[Array, "*batch 6"]
) -> Float[Array, "*batch 6 10"]:
    """Wrench on a body as a function of its parameters: `body_regressor(twist, acceleration) @ parameters`, LOCAL.

    **Arguments:** `twist` (6,) and `acceleration` (6,) of the body, LOCAL (so spatial); for a wrench that does not
    hold gravity, gravity is subtracted from the acceleration's linear part.

    **Returns:** (6, 10), [force, moment about the origin of the frame].
    """
    v, w = twist[..., :3], twist[..., 3:]
    dw = acceleration[..., 3:]
    d = acceleration[..., :3] + cross(w, v)
    wx = hat(w)
    # f = m d + (dw^ + w^ w^) h,    n = -d^ h + L(dw) I + w^ L(w) I    with h = m c
    by_moment = hat(dw) + jnp.matmul(wx, wx, precision="highest")
    by_inertia = _times_inertia(dw) + jnp.matmul(wx, _times_inertia(w), precision="highest")
    force = jnp.concatenate([d[..., None], by_moment, jnp.zeros_like(by_inertia)], -1)
    moment = jnp.concatenate([jnp.zeros_like(d[..., None]), -hat(d), by_inertia], -1)
    return jnp.concatenate([force, moment], -2)


def _without_gravity(model: Model, mixed: Array) -> Array:
    gravity = jnp.concatenate([model.gravity, jnp.zeros_like(model.gravity)])
    return mixed - jnp.broadcast_to(gravity, mixed.shape)


def frame_regressor(model: Model, kin: Kinematics, frame: str | int) -> Float[Array, "6 10"]:
    """Regressor of the wrench, gravity not counted, that a body needs which is fixed to a frame and whose parameters
    are given in it: that of a payload in the hand. LOCAL. (6, 10)

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without accelerations.
    """
    check_kinematics(model, kin)
    accelerations = needed(kin.acceleration, "accelerations", "v, a")
    pose = frame_pose(model, kin, frame)
    twist = frame_velocity(model, kin, frame)
    mixed = _without_gravity(model, acceleration_from_bodies(model, kin, frame, accelerations, _MIXED))
    acceleration = convert_acceleration(mixed, twist, pose, _MIXED, _LOCAL)
    return body_regressor(convert_twist(twist, pose, _MIXED, _LOCAL), acceleration)


@through_followers(0)
def joint_torque_regressor(
    model: Model, q: FloatLike | Configuration, v: FloatLike, a: FloatLike
) -> Float[Array, "nv parameters"]:
    """`rnea` as a linear function of the bodies' parameters: rnea(model, q, v, a) = regressor @
    inertial_parameters(model).reshape(-1) + armature a.

    **Arguments:** `model`, whose inertias are not used; `q` (nq,) or `Configuration`; `v`, `a` (nv,).

    **Returns:** (nv, 10 n_bodies).

    **Raises:** `InputError` for a wrong shape or dtype.
    """
    kin = forward_kinematics(model, q, v, a)
    tree = model.tree
    poses = SE3(kin.rotation, kin.translation)
    twist, mixed = needed(kin.twist, "velocities", "v"), needed(kin.acceleration, "accelerations", "v, a")
    acceleration = convert_acceleration(_without_gravity(model, mixed), twist, poses, _MIXED, _LOCAL)
    local = body_regressor(convert_twist(twist, poses, _MIXED, _LOCAL), acceleration)
    # to world axes about kin.origin, where the motion axes are
    force, moment = (jnp.matmul(kin.rotation, local[:, i : i + 3], precision="highest") for i in (0, 3))
    arm = jnp.matmul(hat(kin.translation - kin.origin[None]), force, precision="highest")
    wrench = jnp.concatenate([force, moment + arm], axis=1)
    torque = jnp.einsum("ik,bkp->ibp", kin.axes, wrench, precision="highest")
    moves = jnp.asarray(tree.dof_support.T, torque.dtype)
    return (torque * moves[..., None]).reshape(tree.nv, 10 * tree.n_bodies)


@through_followers()
def kinetic_energy_regressor(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, " parameters"]:
    """The bodies' kinetic energy as a linear function of their parameters (rotors do not count). (10 n_bodies,)"""
    kin = forward_kinematics(model, q, v)
    poses = SE3(kin.rotation, kin.translation)
    twist = convert_twist(needed(kin.twist, "velocities", "v"), poses, _MIXED, _LOCAL)
    v_b, w = twist[:, :3], twist[:, 3:]
    by_mass = 0.5 * jnp.sum(v_b * v_b, axis=1, keepdims=True)
    by_inertia = 0.5 * jnp.einsum("bi,bij->bj", w, _times_inertia(w), precision="highest")
    return jnp.concatenate([by_mass, cross(v_b, w), by_inertia], axis=1).reshape(-1)


@through_followers()
def potential_energy_regressor(model: Model, q: FloatLike | Configuration) -> Float[Array, " parameters"]:
    """`potential_energy` as a linear function of the bodies' parameters. (10 n_bodies,)"""
    kin = forward_kinematics(model, q)
    g = jnp.broadcast_to(model.gravity, kin.translation.shape)
    by_mass = -jnp.sum(kin.translation * g, axis=1, keepdims=True)
    by_moment = -rotate_back(kin.rotation, g)
    return jnp.concatenate([by_mass, by_moment, jnp.zeros((model.n_bodies, 6), g.dtype)], axis=1).reshape(-1)
