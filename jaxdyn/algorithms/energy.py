"""Energies and power of the whole robot. Bodies welded to the world do not count."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.center_of_mass import body_centers, center_velocities
from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.inverse_dynamics import generalized_force
from jaxdyn.algorithms.kinematics import forward_kinematics, needed
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math.so3 import rotate, rotate_back
from jaxdyn.model.model import Model, check_model


@through_followers()
def kinetic_energy(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, ""]:
    """Kinetic energy 1/2 v^T M v, J, that of the rotors (armature) included."""
    kin = forward_kinematics(model, q, v)
    w = needed(kin.twist, "velocities", "v")[:, 3:]
    linear = center_velocities(model, kin)
    local = rotate_back(kin.rotation, w)
    spin = jnp.sum(local * rotate(model.inertia.inertia, local), axis=1)
    bodies = jnp.sum(model.inertia.mass * jnp.sum(linear * linear, axis=1) + spin)
    return 0.5 * (bodies + jnp.sum(model.armature * needed(kin.velocity, "velocities", "v") ** 2))


def potential_energy(model: Model, q: FloatLike | Configuration) -> Float[Array, ""]:
    """Potential energy in gravity, J; zero where the centre of mass is at the world's origin. Springs: `spring_energy`."""
    kin = forward_kinematics(model, q)
    return -jnp.sum(model.inertia.mass * jnp.sum(body_centers(model, kin) * model.gravity[None], axis=1))


def mechanical_energy(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, ""]:
    """Kinetic plus potential energy, J; constant in free motion, changed by `mechanical_power`."""
    return kinetic_energy(model, q, v) + potential_energy(model, q)


def mechanical_power(
    model: Model,
    q: FloatLike | Configuration,
    v: FloatLike,
    tau: FloatLike,
    wrenches: FloatLike | None = None,
) -> Float[Array, ""]:
    """Power of joint torques and wrenches, W: the rate of `mechanical_energy` in the motion that `aba` gives.

    **Arguments:** as of `aba`.
    """
    check_model(model)
    v, tau = check_shape("v", v, (model.nv,)), check_shape("tau", tau, (model.nv,))
    force = tau if wrenches is None else tau + generalized_force(model, q, wrenches)
    return jnp.sum(force * v)
