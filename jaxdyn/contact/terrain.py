"""Terrain: the shape of the ground, for contact laws that do not carry their ground with them."""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import parameter
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3


class Terrain(eqx.Module):
    """The shape of the ground."""

    @abc.abstractmethod
    def query(self, points: Float[Array, "n 3"]) -> tuple[Float[Array, " n"], Float[Array, "n 3"]]:
        """Depth of points (world axes, m) below the ground, negative above it, and the ground's unit normal there."""

    @abc.abstractmethod
    def height(self, xy: Float[Array, "n 2"]) -> Float[Array, " n"]:
        """Height of the ground (m) over points of the horizontal plane."""


class FlatTerrain(Terrain):
    """A horizontal plane. **Arguments:** `level`: its height, m."""

    level: Float[Array, "..."] = parameter("level", default=0.0)

    def query(self, points: Float[Array, "n 3"]) -> tuple[Float[Array, " n"], Float[Array, "n 3"]]:
        up = jnp.broadcast_to(jnp.eye(3, dtype=points.dtype)[2], points.shape)
        return self.level - points[:, 2], up

    def height(self, xy: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(self.level, xy.shape[:1])


class PlaneTerrain(Terrain):
    """A slope. **Arguments:** `normal`: (3,), away from the ground, of any length, not horizontal; `point`: (3,), a
    point of the plane, m."""

    normal: Float[Array, "... 3"] = parameter("normal", (3,))
    point: Float[Array, "... 3"] = parameter("point", (3,), default=(0.0, 0.0, 0.0))

    def _unit(self) -> Float[Array, "3"]:
        return self.normal / jnp.sqrt(jnp.sum(self.normal * self.normal))

    def query(self, points: Float[Array, "n 3"]) -> tuple[Float[Array, " n"], Float[Array, "n 3"]]:
        normal = jnp.broadcast_to(self._unit(), points.shape)
        return jnp.sum((self.point[None] - points) * normal, axis=-1), normal

    def height(self, xy: Float[Array, "n 2"]) -> Float[Array, " n"]:
        normal = self._unit()
        return self.point[2] - jnp.sum((xy - self.point[None, :2]) * normal[None, :2], axis=-1) / normal[2]


def touchdown_anchor(pose: SE3, terrain: Terrain | None = None) -> SE3:
    """Anchor (null pose) for a sole that touches down at `pose`: its vertical projection on the ground, turned flat on
    it with its heading kept.

    **Arguments:** `pose`: of the sole in the world; `terrain`: default flat ground at height zero.

    **Returns:** the pose with z along the ground's normal and x along the sole's own x axis projected on the ground. A
    sole whose x axis is along the normal has no heading: the derivative is not finite there.
    """
    terrain = FlatTerrain(jnp.zeros((), pose.translation.dtype)) if terrain is None else terrain
    position = pose.translation
    position = position.at[2].set(terrain.height(position[None, :2])[0])
    _, normal = terrain.query(position[None])
    z = normal[0]
    x = pose.rotation[:, 0]
    x = x - jnp.sum(x * z) * z
    x = x / jnp.sqrt(jnp.sum(x * x))
    return SE3(jnp.stack([x, so3.cross(z, x), z], axis=-1), position)
