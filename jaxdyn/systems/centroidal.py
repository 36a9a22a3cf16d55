"""Centroidal dynamics: a robot as its mass, its centre of mass and its angular momentum, moved by forces at points."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, parameter
from jaxdyn.errors import FloatLike, InputError, is_concrete
from jaxdyn.math.arguments import check_core
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross
from jaxdyn.systems.first_order import VectorSystem, check_type

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


def _optional_wrench(wrench: FloatLike | None) -> Array | None:
    return None if wrench is None else check_core("wrench", wrench, (6,))


class CentroidalInput(eqx.Module):
    """Forces (k, 3) N at points (k, 3) m, both in the world (`corner_points` places the corners of contacts), and an
    external wrench (6,), N and N m, about the centre of mass, or None."""

    points: Float[Array, "... k 3"] = parameter("points", (None, 3))
    forces: Float[Array, "... k 3"] = parameter("forces", (None, 3))
    wrench: Float[Array, "... 6"] | None = eqx.field(default=None, converter=_optional_wrench, metadata={"rank": 1})

    def __check_init__(self) -> None:
        if self.points.shape != self.forces.shape:
            raise InputError(f"forces: wanted one per point, {self.points.shape}, given shape {self.forces.shape}.")


def corner_points(poses: SE3, corners: Float[Array, "contacts corners 3"]) -> Float[Array, "points 3"]:
    """World positions of the corners (c, m, 3), given in the frames of `c` contacts at `poses`: (c m, 3)."""
    corners = check_core("corners", corners, (3,))
    if corners.ndim != 3 or jnp.shape(poses.rotation) != (len(corners), 3, 3):
        raise InputError(
            f"corners: wanted shape (c, m, 3) and as many poses, given shape {corners.shape} and rotations {jnp.shape(poses.rotation)}."
        )
    turned = jnp.einsum("cij,cmj->cmi", poses.rotation, corners, precision="highest")
    return (turned + poses.translation[:, None]).reshape(-1, 3)


class CentroidalDynamics(VectorSystem):
    """`m p_ddot = m g + sum f + f_ext`, and the rate of angular momentum `sum (point - p) x f + moment_ext`.

    **Arguments:** `mass`, kg; `gravity` (3,) m/s^2. (bipedal-locomotion-framework adds an external force without
    dividing it by the mass.)

    **Raises:** `InputError` for a mass that is not positive; at a call for a state or an input of another kind.
    """

    mass: Scalar = parameter("mass", default=1.0)
    gravity: Float[Array, "... 3"] = parameter("gravity", (3,), default=STANDARD_GRAVITY)

    def __check_init__(self) -> None:
        if is_concrete(self.mass) and not bool(jnp.all(self.mass > 0)):
            raise InputError(f"mass: wanted a positive mass, given {self.mass}.")

    def __call__(self, x: CentroidalState, u: CentroidalInput | None, t: FloatLike = 0.0) -> CentroidalDerivative:
        check_type("x", x, CentroidalState)
        force, moment = jnp.zeros_like(x.com_velocity), jnp.zeros_like(x.com_velocity)
        if u is not None:
            check_type("u", u, CentroidalInput)
            force = force + jnp.sum(u.forces, axis=0)
            moment = moment + jnp.sum(cross(u.points - x.com_position[None], u.forces), axis=0)
            if u.wrench is not None:
                force, moment = force + u.wrench[:3], moment + u.wrench[3:]
        return CentroidalDerivative(x.com_velocity, self.gravity + force / self.mass, moment)

    @property
    def default_input(self) -> None:
        return None
