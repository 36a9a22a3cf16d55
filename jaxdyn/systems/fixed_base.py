"""Dynamics of a robot in its own coordinates: `M(q) v_dot = tau - h(q, v)`, for robots that are fixed to the world.

The base stands still, in the world's frame; gravity is in world axes. (The state's order is positions, then velocities,
as the names say. In bipedal-locomotion-framework the elements are read in the other order than they are named.)
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import as_configuration
from jaxdyn.algorithms.inverse_dynamics import generalized_force, joint_friction_torque, nonlinear_effects
from jaxdyn.algorithms.mass_matrix import crba
from jaxdyn.algorithms.springs import joint_spring_torque
from jaxdyn.contact.fields import cast
from jaxdyn.contact.schedule import ContactSchedule
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.math import SE3
from jaxdyn.model import Model, normalize
from jaxdyn.model.model import check_model
from jaxdyn.systems.contacts import Contacts, checked_contacts, contact_frames
from jaxdyn.systems.dynamics import contact_dynamics, contact_torque
from jaxdyn.systems.robot import RobotDynamics, adapted, checked_schedule
from jaxdyn.systems.system import (
    FixedBaseDerivative,
    FixedBaseState,
    check_regularization,
    has_floating_root,
    is_flat,
    joint_chart_rate,
    joint_displacement,
    joint_rates,
    move_joints,
)


class FixedBaseDynamics(RobotDynamics):
    """`x_dot = f(x, u, t)` of a robot fixed to the world, with `FixedBaseState`.

    **Arguments:**

    - `model`: loaded with a fixed root.
    - `contacts`: compliant contacts with the ground, if any.
    - `gravity`: (3,), world axes, m/s^2; default: the model's.
    - `mass_regularization`: (nv, nv), symmetric, added to the mass matrix.
    - `terrain`: the ground for contacts that do not carry it with them; default: the plane of each anchor.
    - `armature`: (nv,), rotor inertia of the joints, in place of the model's.
    - `joint_friction`: whether the model's joint damping and friction act. Default: they do not, only `torque` does.
    - `joint_springs`: whether the springs at the model's joints act. Default: they do not.
    - `schedule`: when which contact is on; default: always, as far as its `active` says so.

    **Raises:** `InputError` at construction for a model with a floating root, a gravity that is not a vector, a frame
    that does not exist, or a wrong shape; at a call for vectors of a wrong length.
    """

    model: Model
    contacts: Contacts
    terrain: Terrain | None
    schedule: ContactSchedule | None
    mass_regularization: Float[Array, "... nv nv"] | None = eqx.field(metadata={"rank": 2})
    joint_friction: bool = eqx.field(static=True)
    joint_springs: bool = eqx.field(static=True)
    derivatives: str = eqx.field(static=True)
    _state_type: ClassVar[type] = FixedBaseState

    def __init__(
        self,
        model: Model,
        contacts: Any = (),
        *,
        gravity: FloatLike | None = None,
        mass_regularization: FloatLike | None = None,
        terrain: Terrain | None = None,
        armature: FloatLike | None = None,
        joint_friction: bool = False,
        joint_springs: bool = False,
        schedule: Any = None,
    ):
        check_model(model)
        if has_floating_root(model):
            raise InputError('model: its root is floating; use FloatingBaseDynamics, or load it with root="fixed".')
        model, dtype = adapted(model, gravity, armature, model.nv), model.dtype
        if mass_regularization is not None:
            mass_regularization = check_regularization(mass_regularization, model.nv, dtype)
        self.model = model
        self.contacts = checked_contacts(model, contacts)
        self.terrain = None if terrain is None else cast(terrain, dtype)
        self.schedule = checked_schedule(schedule, self.contacts, dtype)
        self.mass_regularization = mass_regularization
        self.joint_friction = joint_friction
        self.joint_springs = joint_springs
        self.derivatives = "dense"

    @property
    def n(self) -> int:
        """Number of joint velocities."""
        return self.model.nv

    def __call__(self, x: FixedBaseState, u: Any, t: FloatLike = 0.0) -> FixedBaseDerivative:
        """Time derivative of `x` under `u` (an `Input`, or a bare torque vector) at time `t`, on which only a schedule
        depends."""
        acceleration = self.acceleration(x, u, t)
        return FixedBaseDerivative(joint_rates(self.model, x.joint_position, x.joint_velocity), acceleration)

    def acceleration(self, x: FixedBaseState, u: Any, t: FloatLike = 0.0) -> Float[Array, " nv"]:
        u = self._checked(x, u, t)
        q, v, torque = x.joint_position, x.joint_velocity, u.torque
        if self.joint_friction:
            torque = torque + joint_friction_torque(self.model, v)
        robot = as_configuration(self.model, q), v
        if self.joint_springs:
            torque = torque + joint_spring_torque(self.model, robot[0])
        if u.wrenches is not None:
            torque = torque + generalized_force(self.model, robot[0], u.wrenches)
        if self.mass_regularization is None:
            return contact_dynamics(self.model, *robot, torque, None, u.contacts or (), self.terrain, self.derivatives)
        if u.contacts:
            torque = torque + contact_torque(self.model, *robot, None, u.contacts or (), self.terrain)
        right = torque - nonlinear_effects(self.model, q, v)
        factor = jax.scipy.linalg.cho_factor(crba(self.model, q) + self.mass_regularization, lower=True)
        return jax.scipy.linalg.cho_solve(factor, right)

    def velocity(self, x: FixedBaseState) -> Float[Array, " nv"]:
        return x.joint_velocity

    def displace(
        self, x: FixedBaseState, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]
    ) -> FixedBaseState:
        return FixedBaseState(move_joints(self.model, x.joint_position, displacement), velocity)

    def displacement(self, x0: FixedBaseState, x1: FixedBaseState) -> Float[Array, " nv"]:
        return joint_displacement(self.model, x0.joint_position, x1.joint_position)

    def chart_rate(self, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Float[Array, " nv"]:
        return joint_chart_rate(self.model, displacement, velocity)

    def project(self, x: FixedBaseState) -> FixedBaseState:
        if is_flat(self.model):
            return x
        return FixedBaseState(normalize(self.model, x.joint_position), x.joint_velocity)

    def contact_states(self, x: FixedBaseState, u: Any = None) -> tuple[SE3, Float[Array, "contacts 6"]]:
        """World poses and MIXED twists of the contacts' frames, stacked in the order of the contacts."""
        u = self._checked(x, u)
        configuration = as_configuration(self.model, x.joint_position)
        frames = contact_frames(self.model, u.contacts, configuration, x.joint_velocity, None)
        return SE3(frames.rotation, frames.position), jnp.concatenate([frames.linear, frames.angular], axis=1)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"joint_position": (self.model.nq,), "joint_velocity": (self.model.nv,)}
