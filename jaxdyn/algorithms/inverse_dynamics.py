"""Inverse dynamics: recursive Newton-Euler, its parts, and generalised forces of wrenches."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies, bodies_of
from jaxdyn.algorithms.configuration import Configuration, as_configuration, tangent_of
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.gradients import contract_all, coriolis_kernel, inverse_dynamics_derivatives, without
from jaxdyn.algorithms.world import rnea_kernel
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import Tree


def _rnea_rule(tree: Tree, arguments, tangents, _) -> Stack | None:
    """tau = ID(model, q, v, a): d tau = dID/dq dq + dID/dv dv + M da, the matrices in closed form; what varies of the
    model by the kernel's own tangent."""
    bodies, q, v, a = arguments
    dq, dv, da = tangent_of(tree, q, tangents[1]), tangents[2], tangents[3]
    total = batching.push_forward(rnea_kernel, tree, arguments, (tangents[0], without(q), None, None))
    if dq is None and dv is None and da is None:
        return total
    by_q, by_v, mass = batching.call(inverse_dynamics_derivatives, None, tree, bodies, q, v, a)
    return contract_all(((by_q, dq), (by_v, dv), (mass, da)), total)


_rnea = batching.batch_last(rnea_kernel, _rnea_rule)


def _force_kernel(tree: Tree, bodies: Bodies, q: Configuration, wrenches: Stack) -> Stack:
    at = world.geometry(bodies, q)
    return world.joint_forces(tree, at, schedule(tree).sum_up(world.wrench_about_origin(tree, at, wrenches)))


_force = batching.batch_last(_force_kernel)
_coriolis = batching.batch_last(coriolis_kernel)


@through_followers(0)
def generalized_force(model: Model, q: FloatLike | Configuration, wrenches: FloatLike) -> Float[Array, " nv"]:
    """Generalised force of wrenches on the bodies: the sum of J_b^T w_b.

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `wrenches` (n_bodies, 6): [force, moment] that the
    environment exerts on each body, N and N m, in world axes, the moment about the origin of the body's frame
    (MIXED).

    **Returns:** (nv,), N m or N.

    **Raises:** `InputError` for a wrong shape or dtype.
    """
    q = as_configuration(model, q)
    wrenches = check_shape("wrenches", wrenches, (model.n_bodies, 6))
    return _force(model.tree, bodies_of(model), q, wrenches)


@through_followers(0)
def rnea(
    model: Model, q: FloatLike | Configuration, v: FloatLike, a: FloatLike, wrenches: FloatLike | None = None
) -> Float[Array, " nv"]:
    """Inverse dynamics: the joint torques that give accelerations `a` in state (`q`, `v`). tau = M(q) a + h(q, v) -
    sum of J_b^T w_b.

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v`, `a` (nv,): velocity and acceleration, rad/s, m/s and so
    on (floating joint: of the body twist, LOCAL); `wrenches` (n_bodies, 6): environment on robot, MIXED (see
    `generalized_force`).

    **Returns:** `tau` (nv,), N m or N. Armature counts, joint damping, dry friction and springs do not
    (`joint_friction_torque`, `joint_spring_torque`).

    **Raises:** `InputError` for a wrong shape or dtype.

    Source: Featherstone, Rigid Body Dynamics Algorithms, 5.3; here in world axes. Derivatives are analytical (see
    `rnea_derivatives`).
    """
    q = as_configuration(model, q)
    v, a = check_shape("v", v, (model.nv,)), check_shape("a", a, (model.nv,))
    tau = _rnea(model.tree, bodies_of(model), q, v, a)
    return tau if wrenches is None else tau - generalized_force(model, q, wrenches)


@through_followers(0)
def nonlinear_effects(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, " nv"]:
    """Bias torque h(q, v): Coriolis, centrifugal and gravity; `rnea` with zero acceleration. (nv,), N m or N."""
    q = as_configuration(model, q)
    return _rnea(model.tree, bodies_of(model), q, check_shape("v", v, (model.nv,)), None)


@through_followers(0)
def gravity_torque(model: Model, q: FloatLike | Configuration) -> Float[Array, " nv"]:
    """Torque that holds the robot against gravity at rest: `rnea` with zero velocity and acceleration. (nv,), N m or
    N."""
    q = as_configuration(model, q)
    return _rnea(model.tree, bodies_of(model), q, jnp.zeros(model.nv, model.gravity.dtype), None)


def static_torque(model: Model, q: FloatLike | Configuration, wrenches: FloatLike | None = None) -> Float[Array, " nv"]:
    """Torque that keeps the robot at rest under gravity and under `wrenches` (n_bodies, 6) on its bodies (see
    `generalized_force`). (nv,), N m or N."""
    torque = gravity_torque(model, q)
    return torque if wrenches is None else torque - generalized_force(model, q, wrenches)


@through_followers(0, 1)
def coriolis_matrix(model: Model, q: FloatLike | Configuration, v: FloatLike) -> Float[Array, "nv nv"]:
    """The matrix C(q, v) with C v = `nonlinear_effects` - `gravity_torque` for which dM/dt - 2C is skew-symmetric
    (that of the Christoffel symbols, for joints with one degree of freedom). (nv, nv)

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v` (nv,).

    **Raises:** `InputError` for a wrong shape or dtype.

    Source: Echeandia and Wensing, Numerical methods to compute the Coriolis matrix and Christoffel symbols for
    rigid-body systems, 2021.
    """
    q = as_configuration(model, q)
    return _coriolis(model.tree, bodies_of(model), q, check_shape("v", v, (model.nv,)))


def joint_friction_torque(model: Model, v: FloatLike, smoothing: float = 1e-3) -> Float[Array, " nv"]:
    """Torque of the joints' own friction, opposing `v`: -damping v - friction tanh(v / smoothing). (nv,), N m or N.

    **Arguments:** `smoothing`: speed at which dry friction has reached 76 % of its value, rad/s or m/s; the sign
    function is replaced by a smooth one, so that it can be differentiated and simulated.
    """
    check_model(model)
    v = check_shape("v", v, (model.nv,))
    return -model.damping * v - model.friction * jnp.tanh(v / smoothing)
