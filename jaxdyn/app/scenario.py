"""From a plan to what is simulated: the system, the controllers, the states to start from."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import jaxdyn
from jaxdyn.app.robot import is_floating
from jaxdyn.app.tuning import LARGEST_FRICTION, Plan
from jaxdyn.viz.values import quaternion

FRICTION = 0.8


def make_system(
    model: jaxdyn.Model, plan: Plan, *, smoothing: float | None = None, friction: float = FRICTION
) -> jaxdyn.FloatingBaseDynamics | jaxdyn.FixedBaseDynamics:
    """The robot on flat ground; `smoothing`: m, of contacts that are to be differentiated."""
    g = plan.ground
    constants = {
        "stiffness": g.stiffness,
        "damping": g.damping,
        "friction": friction,
        "slip_velocity": g.slip_velocity,
    }
    law = jaxdyn.Coulomb(**constants) if smoothing is None else jaxdyn.SmoothCoulomb(**constants, smoothing=smoothing)
    contacts = tuple(
        jaxdyn.CompliantContact(s.frame, jaxdyn.ContactPoints(law, jnp.asarray(s.points, model.dtype)))
        for s in plan.spots
    )
    # without it the ground would be, for each point, the plane through where it is in its anchor: as high as in its link
    ground = jaxdyn.FlatTerrain() if contacts else None
    if is_floating(model):
        return jaxdyn.FloatingBaseDynamics(model, contacts, terrain=ground)
    return jaxdyn.FixedBaseDynamics(model, contacts, terrain=ground)


def with_friction(system: Any, friction: Array) -> Any:
    """The system with another coefficient of friction in all contacts; (environments,) gives one to each."""
    if not system.contacts:
        return system
    laws = lambda s: [contact.law.traction.friction for contact in s.contacts]  # noqa: E731
    return eqx.tree_at(laws, system, [friction] * len(system.contacts))


def make_state(model: jaxdyn.Model, q: Array, v: Array | None = None) -> Any:
    """State of the system at configuration `q` (nq,) and velocity `v` (nv,)."""
    v = jnp.zeros(model.nv, q.dtype) if v is None else v
    if is_floating(model):
        return jaxdyn.state_from_configuration(model, q, v)
    return jaxdyn.FixedBaseState(q, v)


class PostureControl(eqx.Module):
    """PD control about a posture, with the torque that holds it: `hold + kp (goal - s) - kd s_dot`, within the limits.

    A policy `(x, t) -> torque`. `goal`: a state whose joint positions are to be held.
    """

    system: Any
    goal: Any
    kp: Float[Array, " joints"]
    kd: Float[Array, " joints"]
    hold: Float[Array, " joints"]
    limit: Float[Array, " joints"]

    def __call__(self, x: Any, t: Array) -> Float[Array, " joints"]:
        return jnp.clip(self.wish(x), -self.limit, self.limit)

    def wish(self, x: Any) -> Float[Array, " joints"]:
        """The torque before the limits."""
        n = self.system.n
        return self.hold + self.kp * self.system.displacement(x, self.goal)[-n:] - self.kd * x.joint_velocity


def posture_control(system: Any, plan: Plan, model: jaxdyn.Model) -> PostureControl:
    """PD control with the gains of the plan."""
    goal = make_state(model, jnp.asarray(plan.q, model.dtype))
    gains = (jnp.asarray(a, model.dtype) for a in (plan.kp, plan.kd, plan.hold, plan.limit))
    return PostureControl(system, goal, *gains)


def perturbed_states(
    model: jaxdyn.Model, plan: Plan, environments: int, seed: int, *, scale: float = 1.0, drop: float = 0.0
) -> tuple[Any, Array]:
    """States about the initial one with their lowest point `drop` m above the ground, and coefficients of friction.

    With `scale` 1 the standard deviations are: attitude 0.08 rad, joints 0.1 rad; velocities 0.3 m/s, 0.5 rad/s, joints
    0.5 rad/s (or m, m/s: a tenth of that). Friction is uniform in 0.4 .. 1.

    **Returns:** a state with leading axis (environments,), and (environments,).
    """
    dtype = model.dtype
    spread, speed = _spreads(model, scale)
    points = [(model.frame(s.frame), jnp.asarray(s.points, dtype)) for s in plan.spots]
    q0 = jnp.asarray(plan.q, dtype)
    keys = jax.random.split(jax.random.key(seed), environments + 1)

    @eqx.filter_jit
    def states(model: jaxdyn.Model, q0: Array, keys: Array, spread: Array, speed: Array, drop: Array) -> Any:
        def one(key: Array) -> Any:
            first, second = jax.random.split(key)
            q = jaxdyn.integrate(model, q0, spread * jax.random.normal(first, (model.nv,), dtype))
            v = speed * jax.random.normal(second, (model.nv,), dtype)
            if is_floating(model) and points:
                kin = jaxdyn.forward_kinematics(model, q)
                lows = []
                for i, local in points:
                    pose = jaxdyn.frame_pose(model, kin, i)
                    lows.append(jnp.min(pose.translation[2] + jnp.sum(local * pose.rotation[2][None], axis=-1)))
                q = q.at[2].add(drop - jnp.min(jnp.stack(lows)))
            return make_state(model, q, v)

        return jax.vmap(one)(keys)

    x0 = states(model, q0, keys[1:], spread, speed, jnp.asarray(drop, dtype))
    friction = jax.random.uniform(keys[0], (environments,), dtype, 0.4, LARGEST_FRICTION)
    return x0, friction


def _spreads(model: jaxdyn.Model, scale: float) -> tuple[Array, Array]:
    """(nv,) standard deviations of the configuration and of the velocity."""
    tree, spread, speed = model.tree, np.zeros(model.nv), np.zeros(model.nv)
    for kind, at, size in zip(tree.joint_types, tree.v_offset, tree.joint_nv, strict=True):
        if kind == "floating":
            spread[at + 3 : at + 5] = 0.08
            spread[at + 5] = 0.5
            speed[at : at + 6] = [0.3, 0.3, 0.1, 0.5, 0.5, 0.5]
        else:
            small = kind in ("prismatic", "planar")
            spread[at : at + size], speed[at : at + size] = (0.01, 0.05) if small else (0.1, 0.5)
    return jnp.asarray(scale * spread, model.dtype), jnp.asarray(scale * speed, model.dtype)


# From states to arrays of numbers, in NumPy: nothing is compiled for it


def coordinates(model: jaxdyn.Model, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """`q` (..., nq) and `v` (..., nv) of states with any leading axes."""
    if not is_floating(model):
        return np.asarray(x.joint_position), np.asarray(x.joint_velocity)
    rotation, twist = np.asarray(x.rotation), np.asarray(x.twist)
    local = np.concatenate(
        [np.einsum("...ji,...j->...i", rotation, part) for part in (twist[..., :3], twist[..., 3:])], axis=-1
    )
    turned = quaternion(rotation).astype(rotation.dtype)
    q = np.concatenate([np.asarray(x.position), turned, np.asarray(x.joint_position)], axis=-1)
    return q, np.concatenate([local, np.asarray(x.joint_velocity)], axis=-1)


def with_start(x0: Any, states: Any, axis: int) -> Any:
    """Saved states, preceded by the one they started from, along the axis of the time; NumPy."""

    def join(first: Any, rest: Any) -> np.ndarray:
        return np.concatenate([np.expand_dims(np.asarray(first), axis), np.asarray(rest)], axis=axis)

    return jax.tree.map(join, x0, states)


def contact_forces(system: Any, friction: Array | None, states: Any) -> tuple[np.ndarray, np.ndarray]:
    """Forces on each contact and where they act, of states (environments, steps, ...).

    **Arguments:** `friction`: (environments,), or None for that of the system.

    **Returns:** points and forces, each (environments, steps, contacts, 3), world axes, m and N. The point is where the
    line of the force meets the ground; without force, the origin of the frame.
    """

    @eqx.filter_jit
    def evaluate(system: Any, friction: Any, states: Any) -> Any:
        def one(friction: Any, x: Any) -> Any:
            now = system if friction is None else with_friction(system, friction)
            pose = now.contact_states(x)[0]
            return pose.translation, now.contact_wrenches(x)

        return jax.vmap(lambda f, xs: jax.vmap(lambda x: one(f, x))(xs))(friction, states)

    origins, wrenches = (np.asarray(a) for a in evaluate(system, friction, states))
    force, moment = wrenches[..., :3], wrenches[..., 3:]
    square = np.sum(force**2, axis=-1, keepdims=True)
    pressed = force[..., 2:] > 1e-3 * np.sqrt(square.max(initial=1e-12))
    foot = origins + np.cross(force, moment) / np.where(square > 0, square, 1)
    foot = foot - force * foot[..., 2:] / np.where(pressed, force[..., 2:], 1)
    return np.where(pressed, foot, origins), force
