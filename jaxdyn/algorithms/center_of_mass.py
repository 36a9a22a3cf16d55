"""Centre of mass of the robot and of its subtrees. Bodies welded to the world do not count."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.coupled import check_kinematics, through_followers
from jaxdyn.algorithms.jacobians import axis_rates, bias_accelerations
from jaxdyn.algorithms.kinematics import Kinematics, needed
from jaxdyn.math.so3 import cross, rotate
from jaxdyn.model.model import Model


def body_centers(model: Model, kin: Kinematics) -> Float[Array, "bodies 3"]:
    """Centre of mass of each body in the world, m. (n_bodies, 3)"""
    return kin.translation + rotate(kin.rotation, model.inertia.com)


def per_mass(model: Model, x: Array) -> Array:
    """x / total mass; zero for a robot without mass, with zero derivatives."""
    return _divided(x, model.total_mass)


def _divided(x: Array, mass: Array) -> Array:
    has = mass > 0
    return jnp.where(has, x / jnp.where(has, mass, jnp.ones_like(mass)), jnp.zeros_like(x))


def center_of_mass(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Centre of mass in the world, m. (3,) A robot without mass: the first body's origin."""
    check_kinematics(model, kin)
    offset = body_centers(model, kin) - kin.origin[None]
    return kin.origin + per_mass(model, jnp.sum(model.inertia.mass[:, None] * offset, axis=0))


@through_followers(-1)
def com_jacobian(model: Model, kin: Kinematics) -> Float[Array, "3 nv"]:
    """Jacobian of the centre of mass: its velocity is J v. (3, nv)"""
    return per_mass(model, first_moments(model, kin)[0].T)


def first_moments(model: Model, kin: Kinematics) -> tuple[Array, Array, Array]:
    """Linear momentum per degree of freedom (nv, 3), its subtree's mass (nv,) and first moment about `kin.origin`
    (nv, 3)."""
    below = jnp.asarray(model.tree.dof_support.T, kin.origin.dtype)
    m = model.inertia.mass
    weighted = m[:, None] * (body_centers(model, kin) - kin.origin[None])
    mass = jnp.matmul(below, m, precision="highest")
    moment = jnp.matmul(below, weighted, precision="highest")
    linear = mass[:, None] * kin.axes[:, :3] + cross(kin.axes[:, 3:], moment)
    return linear, mass, moment


def center_velocities(model: Model, kin: Kinematics) -> Float[Array, "bodies 3"]:
    """Velocity of each body's centre of mass in the world, m/s. (n_bodies, 3)"""
    twist = needed(kin.twist, "velocities", "v")
    return twist[:, :3] + cross(twist[:, 3:], rotate(kin.rotation, model.inertia.com))


def center_accelerations(
    model: Model, kin: Kinematics, accelerations: Float[Array, "bodies 6"]
) -> Float[Array, "bodies 3"]:
    """Acceleration of each body's centre of mass in the world, m/s^2, from MIXED accelerations of the bodies.
    (n_bodies, 3)"""
    w = needed(kin.twist, "velocities", "v")[:, 3:]
    arm = rotate(kin.rotation, model.inertia.com)
    return accelerations[:, :3] + cross(accelerations[:, 3:], arm) + cross(w, cross(w, arm))


def com_velocity(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Velocity of the centre of mass in the world, m/s. (3,)

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    check_kinematics(model, kin)
    return per_mass(model, jnp.sum(model.inertia.mass[:, None] * center_velocities(model, kin), axis=0))


def com_acceleration(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Acceleration of the centre of mass in the world, m/s^2. (3,)

    **Raises:** `InputError` if `kin` was made without accelerations.
    """
    check_kinematics(model, kin)
    return _mean(model, kin, needed(kin.acceleration, "accelerations", "v, a"))


@through_followers()
def com_jacobian_dot_v(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Acceleration of the centre of mass when all entries of `a` are zero, m/s^2. (3,)

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    return _mean(model, kin, bias_accelerations(model, kin))


@through_followers(-1)
def com_jacobian_dot(model: Model, kin: Kinematics) -> Float[Array, "3 nv"]:
    """Time derivative of `com_jacobian`. (3, nv)

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    rates = axis_rates(model, kin)
    _, mass, moment = first_moments(model, kin)
    momentum = model.inertia.mass[:, None] * center_velocities(model, kin)
    below = jnp.asarray(model.tree.dof_support.T, momentum.dtype)
    momentum = jnp.matmul(below, momentum, precision="highest")
    linear = mass[:, None] * rates[:, :3] + cross(rates[:, 3:], moment) + cross(kin.axes[:, 3:], momentum)
    return per_mass(model, linear.T)


def _mean(model: Model, kin: Kinematics, accelerations: Array) -> Array:
    return per_mass(
        model, jnp.sum(model.inertia.mass[:, None] * center_accelerations(model, kin, accelerations), axis=0)
    )


@through_followers()
def subtree_masses(model: Model) -> Float[Array, " bodies"]:
    """Mass of each body and all that hangs on it, kg. (n_bodies,)"""
    return jnp.matmul(_below(model, model.inertia.mass), model.inertia.mass, precision="highest")


@through_followers()
def subtree_centers_of_mass(model: Model, kin: Kinematics) -> Float[Array, "bodies 3"]:
    """Centre of mass, in the world, of each body with all that hangs on it, m. (n_bodies, 3) A subtree without mass:
    its body's origin."""
    offset = body_centers(model, kin)[None] - kin.translation[:, None]
    weighted = _below(model, kin.origin)[..., None] * model.inertia.mass[None, :, None] * offset
    return kin.translation + _divided(jnp.sum(weighted, axis=1), subtree_masses(model)[:, None])


@through_followers()
def subtree_com_velocities(model: Model, kin: Kinematics) -> Float[Array, "bodies 3"]:
    """Velocity of each of the `subtree_centers_of_mass`, m/s. (n_bodies, 3) A subtree without mass: zero.

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    momentum = model.inertia.mass[:, None] * center_velocities(model, kin)
    total = jnp.matmul(_below(model, momentum), momentum, precision="highest")
    return _divided(total, subtree_masses(model)[:, None])


def _below(model: Model, like: Array) -> Array:
    """[i, j] 1 where body j is i or hangs on it."""
    return jnp.asarray(model.tree.ancestors.T, like.dtype)
