"""Momentum of the whole robot about its centre of mass, its rate and their derivatives. Bodies welded to the world do
not count, nor do rotors (armature)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies, bodies_of
from jaxdyn.algorithms.center_of_mass import (
    body_centers,
    center_accelerations,
    center_of_mass,
    center_velocities,
    first_moments,
    per_mass,
)
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.algorithms.coupled import check_kinematics, through_followers
from jaxdyn.algorithms.gradients import accelerations_of_parents, columns, motion_sums
from jaxdyn.algorithms.jacobians import axis_rates, bias_accelerations
from jaxdyn.algorithms.kinematics import Kinematics, needed
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math import batching
from jaxdyn.math.so3 import cross, rotate, rotate_back
from jaxdyn.math.stacked import Stack, join, total, widen, widest
from jaxdyn.math.stacked import cross as stacked_cross
from jaxdyn.math.stacked import force_cross as stacked_force_cross
from jaxdyn.model.model import Model
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import Tree


def centroidal_momentum(model: Model, kin: Kinematics) -> Float[Array, "6"]:
    """Momentum [linear, angular] of the robot about its centre of mass, world axes, N s and N m s. (6,)

    **Raises:** `InputError` if `kin` was made without velocities.

    Source: Orin, Goswami and Lee, Centroidal dynamics of a humanoid robot, 2013.
    """
    check_kinematics(model, kin)
    w = needed(kin.twist, "velocities", "v")[:, 3:]
    linear = model.inertia.mass[:, None] * center_velocities(model, kin)
    return _about_com(model, kin, linear, _turned(model, kin, w))


@through_followers()
def centroidal_momentum_rate(model: Model, kin: Kinematics) -> Float[Array, "6"]:
    """Rate of the centroidal momentum in the motion that `kin` describes, N and N m: what gravity, contacts and the
    like must supply. (6,)

    **Raises:** `InputError` if `kin` was made without accelerations.
    """
    return _rate(model, kin, needed(kin.acceleration, "accelerations", "v, a"))


@through_followers()
def centroidal_bias(model: Model, kin: Kinematics) -> Float[Array, "6"]:
    """A_dot v: rate of the centroidal momentum when all entries of `a` are zero, N and N m. (6,)

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    return _rate(model, kin, bias_accelerations(model, kin))


def _rate(model: Model, kin: Kinematics, accelerations: Array) -> Array:
    w, dw = needed(kin.twist, "velocities", "v")[:, 3:], accelerations[:, 3:]
    linear = model.inertia.mass[:, None] * center_accelerations(model, kin, accelerations)
    return _about_com(model, kin, linear, _turned(model, kin, dw) + cross(w, _turned(model, kin, w)))


def _turned(model: Model, kin: Kinematics, w: Array) -> Array:
    """Each body's inertia about its centre of mass times a vector, world axes."""
    return rotate(kin.rotation, rotate(model.inertia.inertia, rotate_back(kin.rotation, w)))


def _about_com(model: Model, kin: Kinematics, linear: Array, angular: Array) -> Array:
    """Sum of wrench-like vectors, each given about its body's centre of mass, about that of the robot."""
    from_com = body_centers(model, kin) - center_of_mass(model, kin)[None]
    return jnp.sum(jnp.concatenate([linear, angular + cross(from_com, linear)], axis=1), axis=0)


@through_followers(-1)
def centroidal_map(model: Model, kin: Kinematics) -> Float[Array, "6 nv"]:
    """Matrix that takes v to the centroidal momentum. (6, nv)"""
    below = jnp.asarray(model.tree.dof_support.T, kin.origin.dtype)
    linear, _, moment = first_moments(model, kin)
    c = body_centers(model, kin) - kin.origin[None]
    r = kin.rotation
    about_com = jnp.einsum("nij,njk,nlk->nil", r, model.inertia.inertia, r, precision="highest")
    square = jnp.sum(c * c, axis=1)[:, None, None] * jnp.eye(3, dtype=c.dtype)[None]
    about_origin = about_com + model.inertia.mass[:, None, None] * (square - c[:, :, None] * c[:, None])
    inertia = jnp.einsum("kn,nij->kij", below, about_origin, precision="highest")
    angular = rotate(inertia, kin.axes[:, 3:]) + cross(moment, kin.axes[:, :3])
    com = center_of_mass(model, kin) - kin.origin
    return jnp.concatenate([linear, angular - cross(com[None], linear)], axis=1).T


@through_followers(-1)
def centroidal_map_dot(model: Model, kin: Kinematics) -> Float[Array, "6 nv"]:
    """Time derivative of `centroidal_map`. (6, nv)

    **Raises:** `InputError` if `kin` was made without velocities.
    """
    w = needed(kin.twist, "velocities", "v")[:, None, 3:]
    axes, rates = kin.axes[None], axis_rates(model, kin)[None]
    below = jnp.asarray(model.tree.dof_support[:, :, None], kin.origin.dtype)
    velocities = center_velocities(model, kin)
    arm = (body_centers(model, kin) - kin.origin[None])[:, None]
    from_com = (body_centers(model, kin) - center_of_mass(model, kin)[None])[:, None]
    spread = (velocities - per_mass(model, model.inertia.mass @ velocities)[None])[:, None]
    # per body and degree of freedom: momentum about the body's centre of mass, and its rate
    mass = model.inertia.mass[:, None, None]
    linear = mass * (axes[..., :3] + cross(axes[..., 3:], arm))
    d_linear = mass * (rates[..., :3] + cross(rates[..., 3:], arm) + cross(axes[..., 3:], velocities[:, None]))
    rotation = kin.rotation[:, None]
    turned = lambda x: rotate(rotation, rotate(model.inertia.inertia[:, None], rotate_back(rotation, x)))  # noqa: E731
    spin = jnp.broadcast_to(axes[..., 3:], linear.shape)
    d_angular = cross(w, turned(spin)) + turned(rates[..., 3:] - cross(w, spin))
    moment = d_angular + cross(spread, linear) + cross(from_com, d_linear)
    return jnp.sum(below * jnp.concatenate([d_linear, moment], axis=-1), axis=0).T


class CentroidalDerivatives(NamedTuple):
    """Momentum h (6,) and its rate (6,), and their derivatives (6, nv): dh/dq, dh/dv (the `centroidal_map`), and the
    rate's by q, v and a (again the map). Changes of q are tangent vectors: q moves to `integrate(model, q, dq)`."""

    momentum: Float[Array, "6"]
    rate: Float[Array, "6"]
    momentum_dq: Float[Array, "6 nv"]
    momentum_dv: Float[Array, "6 nv"]
    rate_dq: Float[Array, "6 nv"]
    rate_dv: Float[Array, "6 nv"]
    rate_da: Float[Array, "6 nv"]


def _derivatives_kernel(tree: Tree, bodies: Bodies, q: Configuration, v: Stack, a: Stack):
    """About a point fixed in the world the momentum of the subtree changes with q_j by S_j x* h + I P, its rate by
    the columns of `gradients`; both are then moved to the centre of mass, which moves itself."""
    at = world.geometry(bodies, q)
    twist, own = world.velocities(tree, at, v)
    acceleration = world.spatial_accelerations(tree, at, twist, own, a)
    sums = motion_sums(tree, world.inertias(bodies, at), twist, acceleration)
    of_parent = accelerations_of_parents(tree, acceleration, jnp.zeros_like(acceleration[0]))
    c = columns(tree, at.axes, twist, own, of_parent, sums)
    subtree = join([sums.linear, sums.angular], 1)
    momentum_dq = stacked_force_cross(c.axes, subtree) + sums.inertia.apply(c.p)
    roots = [int(k) for k, parent in enumerate(schedule(tree).parents) if parent < 0]
    first_dofs = [tree.v_offset[int(schedule(tree).bodies[k])] for k in roots]
    # any one degree of freedom of a root stands for all of its subtree
    whole = lambda x: total([x[k] for k in first_dofs])  # noqa: E731
    h, f, mass, moment = (whole(x) for x in (subtree, sums.force, sums.inertia.mass, sums.inertia.moment))
    has = mass > 0
    inverse = jnp.where(has, 1.0 / jnp.where(has, mass, jnp.ones_like(mass)), jnp.zeros_like(mass))
    com = moment * inverse[None]
    d_com = c.by_a[:, :3] * inverse[None, None]

    def moved(x: Stack, change: Stack | None = None, of: Stack = h) -> Stack:
        arm = jnp.broadcast_to(com, x[..., :3, :].shape)
        angular = x[..., 3:, :] - stacked_cross(arm, x[..., :3, :])
        if change is not None:
            angular = angular - stacked_cross(change, jnp.broadcast_to(of[:3], change.shape))
        return join([x[..., :3, :], angular], -2)

    matrices = [moved(momentum_dq, d_com, h), moved(c.by_a), moved(c.by_q, d_com, f), moved(c.by_v)]
    width = widest(*matrices)
    return moved(h), moved(f), *(jnp.swapaxes(widen(m, width), 0, 1) for m in matrices)


_derivatives = batching.batch_last(_derivatives_kernel)


@through_followers(-1, rank=2)
def centroidal_derivatives(
    model: Model, q: FloatLike | Configuration, v: FloatLike, a: FloatLike
) -> CentroidalDerivatives:
    """Derivatives of the centroidal momentum and of its rate in closed form.

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v`, `a` (nv,).

    **Raises:** `InputError` for a wrong shape or dtype.
    """
    q = as_configuration(model, q)
    v, a = check_shape("v", v, (model.nv,)), check_shape("a", a, (model.nv,))
    if model.nv == 0:
        none, six = jnp.zeros((6, 0), model.dtype), jnp.zeros(6, model.dtype)
        return CentroidalDerivatives(six, six, none, none, none, none, none)
    h, f, h_dq, h_dv, f_dq, f_dv = _derivatives(model.tree, bodies_of(model), q, v, a)
    return CentroidalDerivatives(h, f, h_dq, h_dv, f_dq, f_dv, h_dv)
