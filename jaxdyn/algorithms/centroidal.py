"""Centre of mass, momentum and energies of the whole robot. Bodies welded to the world do not count."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.kinematics import Kinematics, forward_kinematics, needed
from jaxdyn.errors import FloatLike
from jaxdyn.math.so3 import cross, rotate, rotate_back
from jaxdyn.model.model import Model


def body_centers(model: Model, kin: Kinematics) -> Float[Array, "bodies 3"]:
    """Centre of mass of each body in the world, m. (n_bodies, 3)"""
    return kin.translation + rotate(kin.rotation, model.inertia.com)


def _per_mass(model: Model, x: Array) -> Array:
    """x / total mass; zero for a robot without mass, with zero derivatives."""
    mass = model.total_mass
    has = mass > 0
    return jnp.where(has, x / jnp.where(has, mass, jnp.ones_like(mass)), jnp.zeros_like(x))


def center_of_mass(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Centre of mass in the world, m. (3,) A robot without mass: the first body's origin."""
    offset = body_centers(model, kin) - kin.origin[None]
    return kin.origin + _per_mass(model, jnp.sum(model.inertia.mass[:, None] * offset, axis=0))


def com_jacobian(model: Model, kin: Kinematics) -> Float[Array, "3 nv"]:
    """Jacobian of the centre of mass: its velocity is J v. (3, nv)"""
    return _per_mass(model, _moments(model, kin)[0].T)


def com_velocity(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Velocity of the centre of mass in the world, m/s. (3,)"""
    return _per_mass(model, centroidal_momentum(model, kin)[:3])


def _moments(model: Model, kin: Kinematics) -> tuple[Array, Array, Array]:
    """Linear momentum per degree of freedom (nv, 3), its subtree's mass (nv,) and first moment about `kin.origin`
    (nv, 3)."""
    below = jnp.asarray(model.tree.dof_support.T, kin.origin.dtype)
    m = model.inertia.mass
    weighted = m[:, None] * (body_centers(model, kin) - kin.origin[None])
    mass = jnp.matmul(below, m, precision="highest")
    moment = jnp.matmul(below, weighted, precision="highest")
    linear = mass[:, None] * kin.axes[:, :3] + cross(kin.axes[:, 3:], moment)
    return linear, mass, moment


def centroidal_momentum(model: Model, kin: Kinematics) -> Float[Array, "6"]:
    """Momentum [linear, angular] of the robot about its centre of mass, world axes, N s and N m s. (6,)

    **Raises:** `InputError` if `kin` was made without velocities.

    Source: Orin, Goswami and Lee, Centroidal dynamics of a humanoid robot, 2013.
    """
    twist = needed(kin.twist, "velocities", "v")
    w = twist[:, 3:]
    arm = rotate(kin.rotation, model.inertia.com)
    linear = model.inertia.mass[:, None] * (twist[:, :3] + cross(w, arm))
    spin = rotate(kin.rotation, rotate(model.inertia.inertia, rotate_back(kin.rotation, w)))
    from_com = kin.translation + arm - center_of_mass(model, kin)[None]
    return jnp.sum(jnp.concatenate([linear, spin + cross(from_com, linear)], axis=1), axis=0)


def centroidal_map(model: Model, kin: Kinematics) -> Float[Array, "6 nv"]:
    """Matrix that takes v to the centroidal momentum. (6, nv)"""
    below = jnp.asarray(model.tree.dof_support.T, kin.origin.dtype)
    linear, _, moment = _moments(model, kin)
    c = body_centers(model, kin) - kin.origin[None]
    r = kin.rotation
    about_com = jnp.einsum("nij,njk,nlk->nil", r, model.inertia.inertia, r, precision="highest")
    square = jnp.sum(c * c, axis=1)[:, None, None] * jnp.eye(3, dtype=c.dtype)[None]
    about_origin = about_com + model.inertia.mass[:, None, None] * (square - c[:, :, None] * c[:, None])
    inertia = jnp.einsum("kn,nij->kij", below, about_origin, precision="highest")
    angular = rotate(inertia, kin.axes[:, 3:]) + cross(moment, kin.axes[:, :3])
    com = center_of_mass(model, kin) - kin.origin
    return jnp.concatenate([linear, angular - cross(com[None], linear)], axis=1).T


def kinetic_energy(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, ""]:
    """Kinetic energy 1/2 v^T M v, J, that of the rotors (armature) included."""
    kin = forward_kinematics(model, q, v)
    twist = needed(kin.twist, "velocities", "v")
    w = twist[:, 3:]
    linear = twist[:, :3] + cross(w, rotate(kin.rotation, model.inertia.com))
    local = rotate_back(kin.rotation, w)
    spin = jnp.sum(local * rotate(model.inertia.inertia, local), axis=1)
    bodies = jnp.sum(model.inertia.mass * jnp.sum(linear * linear, axis=1) + spin)
    return 0.5 * (bodies + jnp.sum(model.armature * needed(kin.velocity, "velocities", "v") ** 2))


def potential_energy(model: Model, q: FloatLike | Configuration) -> Float[Array, ""]:
    """Potential energy in gravity, J; zero where the centre of mass is at the world's origin."""
    kin = forward_kinematics(model, q)
    return -jnp.sum(model.inertia.mass * jnp.sum(body_centers(model, kin) * model.gravity[None], axis=1))
