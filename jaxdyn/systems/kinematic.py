"""Kinematics of a floating base and its joints, driven by velocities or accelerations, and of a rotation alone.

There is no robot in them: joints are numbers with one degree of freedom each. Twists are MIXED, rotations map base to
world, and rotations stay on the manifold: there is no Baumgarte term to choose.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import parameter
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.math import so3
from jaxdyn.systems.first_order import FirstOrderSystem, check_type, check_vector
from jaxdyn.systems.floating_base import turned
from jaxdyn.systems.system import State, StateDerivative, System, check_leaves


class PoseState(eqx.Module):
    """Where a floating base and its joints are: `position` (3,) m, `rotation` (3, 3) base to world, `joint_position`
    (n,)."""

    position: Float[Array, "... 3"] = parameter("position", (3,))
    rotation: Float[Array, "... 3 3"] = parameter("rotation", (3, 3))
    joint_position: Float[Array, "... n"] = parameter("joint_position", (None,))


class PoseDerivative(eqx.Module):
    """Time derivative of a `PoseState`, element by element."""

    position_rate: Float[Array, "... 3"]
    rotation_rate: Float[Array, "... 3 3"]
    joint_rate: Float[Array, "... n"]


class VelocityInput(eqx.Module):
    """`twist` (6,) of the base, `[p_dot, omega]` in world axes, and `joint_velocity` (n,)."""

    twist: Float[Array, "... 6"] = parameter("twist", (6,))
    joint_velocity: Float[Array, "... n"] = parameter("joint_velocity", (None,))


class AccelerationInput(eqx.Module):
    """`twist_rate` (6,) of the base, `[p_ddot, omega_dot]` in world axes, and `joint_acceleration` (n,)."""

    twist_rate: Float[Array, "... 6"] = parameter("twist_rate", (6,))
    joint_acceleration: Float[Array, "... n"] = parameter("joint_acceleration", (None,))


def _check_count(name: str, n: Any) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise InputError(f"{name}: wanted the number of joints, given {n!r}.")


def _left_rate(u: Array, omega: Array) -> Array:
    """Rate of u in R = Exp(u) R_0, omega in world axes (Hairer, Lubich and Wanner, Geometric Numerical Integration, III.4)."""
    once = so3.cross(u, omega)
    return omega - once / 2 + so3.cross(u, once) / 12


def _spin(rotation: Array, omega: Array) -> Array:
    return so3.cross(omega[None], rotation.T).T


class FloatingBaseVelocityKinematics(FirstOrderSystem):
    """A base and `n` joints that move with the velocities of a `VelocityInput`.

    (bipedal-locomotion-framework: `FloatingBaseSystemVelocityKinematics`.)
    """

    n: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_count("n", self.n)

    def __call__(self, x: PoseState, u: VelocityInput | None, t: FloatLike = 0.0) -> PoseDerivative:
        rate = self.rate(x, u, t)
        return PoseDerivative(rate[:3], _spin(x.rotation, rate[3:6]), rate[6:])

    def rate(self, x: PoseState, u: VelocityInput | None, t: FloatLike = 0.0) -> Float[Array, " m"]:
        check_leaves(x, {"position": (3,), "rotation": (3, 3), "joint_position": (self.n,)})
        u = self.default_input if u is None else u
        check_type("u", u, VelocityInput)
        check_vector("joint_velocity", u.joint_velocity, self.n, "one entry per joint")
        return jnp.concatenate([u.twist, u.joint_velocity]).astype(x.position.dtype)

    def move(self, x: PoseState, tangent: Float[Array, " m"]) -> PoseState:
        rotation = turned(x.rotation, tangent[3:6])
        return PoseState(x.position + tangent[:3], rotation, x.joint_position + tangent[6:])

    def between(self, x0: PoseState, x1: PoseState) -> Float[Array, " m"]:
        turn = so3.log(so3.compose(x1.rotation, so3.inverse(x0.rotation)))
        return jnp.concatenate([x1.position - x0.position, turn, x1.joint_position - x0.joint_position])

    def chart_rate(self, tangent: Float[Array, " m"], rate: Float[Array, " m"]) -> Float[Array, " m"]:
        return rate.at[3:6].set(_left_rate(tangent[3:6], rate[3:6]))

    def project(self, x: PoseState) -> PoseState:
        return PoseState(x.position, so3.project(x.rotation), x.joint_position)

    @property
    def default_input(self) -> VelocityInput:
        return VelocityInput(jnp.zeros(6), jnp.zeros(self.n))


class FloatingBaseAccelerationKinematics(System):
    """A base and `n_joints` joints that move with the accelerations of an `AccelerationInput`: a double integrator.

    (bipedal-locomotion-framework: `FloatingBaseSystemAccelerationKinematics`.)
    """

    n_joints: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_count("n_joints", self.n_joints)

    @property
    def n(self) -> int:
        """Number of joints."""
        return self.n_joints

    def __call__(self, x: State, u: AccelerationInput | None, t: FloatLike = 0.0) -> StateDerivative:
        a = self.acceleration(x, u, t)
        return StateDerivative(a[:6], a[6:], x.twist[:3], _spin(x.rotation, x.twist[3:]), x.joint_velocity)

    def acceleration(self, x: State, u: AccelerationInput | None, t: FloatLike = 0.0) -> Float[Array, " nv"]:
        n = self.n_joints
        shapes = {"twist": (6,), "joint_velocity": (n,), "position": (3,), "rotation": (3, 3), "joint_position": (n,)}
        check_leaves(x, shapes)
        if u is None:
            return jnp.zeros(6 + n, x.twist.dtype)
        check_type("u", u, AccelerationInput)
        check_vector("joint_acceleration", u.joint_acceleration, n, "one entry per joint")
        return jnp.concatenate([u.twist_rate, u.joint_acceleration]).astype(x.twist.dtype)

    def velocity(self, x: State) -> Float[Array, " nv"]:
        return jnp.concatenate([x.twist, x.joint_velocity])

    def displace(self, x: State, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> State:
        rotation = turned(x.rotation, displacement[3:6])
        joints = x.joint_position + displacement[6:]
        return State(velocity[:6], velocity[6:], x.position + displacement[:3], rotation, joints)

    def displacement(self, x0: State, x1: State) -> Float[Array, " nv"]:
        turn = so3.log(so3.compose(x1.rotation, so3.inverse(x0.rotation)))
        return jnp.concatenate([x1.position - x0.position, turn, x1.joint_position - x0.joint_position])

    def chart_rate(self, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Float[Array, " nv"]:
        return velocity.at[3:6].set(_left_rate(displacement[3:6], velocity[3:6]))

    def project(self, x: State) -> State:
        return eqx.tree_at(lambda x: x.rotation, x, so3.project(x.rotation))


class SO3Dynamics(FirstOrderSystem):
    """A rotation (3, 3) that turns with the angular velocity (3,) in world axes that is its input: `R_dot = omega^ R`."""

    def __call__(self, x: Float[Array, "3 3"], u: Float[Array, "3"] | None, t: FloatLike = 0.0) -> Float[Array, "3 3"]:
        return _spin(x, self.rate(x, u, t))

    def rate(self, x: Float[Array, "3 3"], u: Any, t: FloatLike = 0.0) -> Float[Array, "3"]:
        u = self.default_input if u is None else u
        if jnp.shape(x) != (3, 3):
            raise InputError(f"x: wanted a rotation matrix (3, 3), given shape {jnp.shape(x)}.")
        return check_vector("u", u, 3, "an angular velocity").astype(x.dtype)

    def move(self, x: Float[Array, "3 3"], tangent: Float[Array, "3"]) -> Float[Array, "3 3"]:
        return turned(x, tangent)

    def between(self, x0: Float[Array, "3 3"], x1: Float[Array, "3 3"]) -> Float[Array, "3"]:
        return so3.log(so3.compose(x1, so3.inverse(x0)))

    def chart_rate(self, tangent: Float[Array, "3"], rate: Float[Array, "3"]) -> Float[Array, "3"]:
        return _left_rate(tangent, rate)

    def project(self, x: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
        return so3.project(x)

    @property
    def default_input(self) -> Float[Array, "3"]:
        return jnp.zeros(3)
