"""Centroidal dynamics: a robot as its mass, its centre of mass and its angular momentum, moved by forces at points."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, parameter
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross
from jaxdyn.systems.first_order import VectorSystem

STANDARD_GRAVITY = (0.0, 0.0, -9.80665)


class CentroidalState(eqx.Module):
    """`com_position` (3,) m, `com_velocity` (3,) m/s, `angular_momentum` (3,) about the centre of mass, N m s; world
    axes."""

    com_position: Float[Array, "... 3"] = parameter("com_position", (3,))
    com_velocity: Float[Array, "... 3"] = parameter("com_velocity", (3,))
    angular_momentum: Float[Array, "... 3"] = parameter("angular_momentum", (3,))


class CentroidalDerivative(eqx.Module):
    """Time derivative of a `CentroidalState`, element by element."""

    com_velocity: Float[Array, "... 3"]
    com_acceleration: Float[Array, "... 3"]
    angular_momentum_rate: Float[Array, "... 3"]


class CentroidalInput(eqx.Module):
    """Forces (k, 3) N at points (k, 3) m, both in the world (`corner_points` places the corners of contacts), and an
    external wrench (6,), N and N m, about the centre of mass, or None."""

    points: Float[Array, "... k 3"] = parameter("points", (None, 3))
    forces: Float[Array, "... k 3"] = parameter("forces", (None, 3))
    wrench: Float[Array, "... 6"] | None = eqx.field(default=None, metadata={"rank": 1})


def corner_points(poses: SE3, corners: Float[Array, "contacts corners 3"]) -> Float[Array, "points 3"]:
    """World positions of the corners (c, m, 3), given in the frames of `c` contacts at `poses`: (c m, 3)."""
    turned = jnp.einsum("cij,cmj->cmi", poses.rotation, corners, precision="highest")
    return (turned + poses.translation[:, None]).reshape(-1, 3)


class CentroidalDynamics(VectorSystem):
    """`m p_ddot = m g + sum f + f_ext`, and the rate of angular momentum `sum (point - p) x f + moment_ext`.

    **Arguments:** `mass`, kg; `gravity` (3,) m/s^2. (bipedal-locomotion-framework adds an external force without
    dividing it by the mass.)

    **Raises:** `InputError` at a call for points and forces of different number.
    """

    mass: Scalar = parameter("mass", default=1.0)
    gravity: Float[Array, "... 3"] = parameter("gravity", (3,), default=STANDARD_GRAVITY)

    def __call__(self, x: CentroidalState, u: CentroidalInput | None, t: FloatLike = 0.0) -> CentroidalDerivative:
        force, moment = jnp.zeros_like(x.com_velocity), jnp.zeros_like(x.com_velocity)
        if u is not None:
            if u.points.shape != u.forces.shape:
                raise InputError(f"forces: wanted one per point, {u.points.shape}, given shape {u.forces.shape}.")
            force = force + jnp.sum(u.forces, axis=0)
            moment = moment + jnp.sum(cross(u.points - x.com_position[None], u.forces), axis=0)
            if u.wrench is not None:
                force, moment = force + u.wrench[:3], moment + u.wrench[3:]
        return CentroidalDerivative(x.com_velocity, self.gravity + force / self.mass, moment)

    @property
    def default_input(self) -> None:
        return None
