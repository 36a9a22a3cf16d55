"""Terrain: the shape of the ground, for contact laws that do not carry their ground with them."""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, parameter
from jaxdyn.math.se3 import SE3
from jaxdyn.math.stacked import cross, dot


class Terrain(eqx.Module):
    """The shape of the ground.

    `query` and `height` are written for stacks: the first axis is that of the points, the second that of the coordinates,
    the last that of a batch of robots; leaves of the terrain then have a first axis of length one and a last one for the
    batch, both added by the caller. `at` is for users: one robot, points only.
    """

    @abc.abstractmethod
    def query(self, points: Float[Array, "n 3 #batch"]) -> tuple[Float[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        """Depth of points (world axes, m) below the ground, negative above it, and the ground's unit normal there."""

    @abc.abstractmethod
    def height(self, xy: Float[Array, "n 2 #batch"]) -> Float[Array, "n #batch"]:
        """Height of the ground (m) over points of the horizontal plane."""

    def at(self, points: Float[Array, "n 3"]) -> tuple[Float[Array, " n"], Float[Array, "n 3"], Float[Array, " n"]]:
        """Depth (n,) of points, normal (n, 3) and height (n,) of the ground there, for world coordinates (n, 3) in m."""
        stacked = jax.tree.map(lambda leaf: leaf[None, ..., None], self)
        points = points[..., None]
        depth, normal = stacked.query(points)
        return depth[..., 0], normal[..., 0], stacked.height(points[:, :2])[..., 0]

    def grid(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Coordinates x (n,) and y (m,) of lines at which a drawing shows the ground well; None if any do."""
        return None


class FlatTerrain(Terrain):
    """A horizontal plane. **Arguments:** `level`: its height, m."""

    level: Scalar = parameter("level", default=0.0)

    def query(self, points: Float[Array, "n 3 #batch"]) -> tuple[Float[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        one = jnp.ones_like(points[:, 2])
        return self.level - points[:, 2], jnp.stack([0 * one, 0 * one, one], axis=1)

    def height(self, xy: Float[Array, "n 2 #batch"]) -> Float[Array, "n #batch"]:
        return self.level + jnp.zeros_like(xy[:, 0])


class PlaneTerrain(Terrain):
    """A slope.

    **Arguments:** `normal`: (3,), away from the ground, of any length, not horizontal; `point`: (3,), a point of the plane, m.
    """

    normal: Float[Array, "..."] = parameter("normal", (3,))
    point: Float[Array, "..."] = parameter("point", (3,), default=(0.0, 0.0, 0.0))

    def _unit(self) -> Float[Array, "..."]:
        return self.normal / jnp.sqrt(dot(self.normal, self.normal))[:, None]

    def query(self, points: Float[Array, "n 3 #batch"]) -> tuple[Float[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        normal = self._unit() + jnp.zeros_like(points)
        return dot(self.point - points, normal), normal

    def height(self, xy: Float[Array, "n 2 #batch"]) -> Float[Array, "n #batch"]:
        normal = self._unit()
        return self.point[:, 2] - dot(xy - self.point[:, :2], normal[:, :2]) / normal[:, 2]


def touchdown_anchor(pose: SE3, terrain: Terrain | None = None) -> SE3:
    """Anchor (null pose) for a sole that touches down at `pose`: its vertical projection on the ground, turned flat on
    it with its heading kept.

    **Arguments:** `pose`: of the sole in the world; `terrain`: default flat ground at height zero.

    **Returns:** the pose with z along the ground's normal and x along the sole's own x axis projected on the ground. A
    sole whose x axis is within a thousandth of the normal has no heading: its y axis is turned flat instead.
    """
    terrain = FlatTerrain(jnp.zeros((), pose.translation.dtype)) if terrain is None else terrain
    position = pose.translation
    position = position.at[2].set(terrain.at(position[None])[2][0])
    z = terrain.at(position[None])[1][0]
    axes = standing_axes(pose.rotation[None, ..., None], z[None, :, None])[0, ..., 0]
    return SE3(axes, position)


def standing_axes(
    rotation: Float[Array, "n 3 3 #batch"], normal: Float[Array, "n 3 #batch"]
) -> Float[Array, "n 3 3 #batch"]:
    """Axes with z along the normal and x along the projection of `rotation`'s x axis, batch last; where that is none, of
    `y x normal`."""
    x, y = rotation[:, :, 0], rotation[:, :, 1]
    flat = x - dot(x, normal)[:, None] * normal
    has_heading = dot(flat, flat) > 1e-6
    flat = jnp.where(has_heading[:, None], flat, cross(y, normal))
    forward = flat / jnp.sqrt(dot(flat, flat))[:, None]
    up = normal + jnp.zeros_like(forward)
    return jnp.stack([forward, cross(up, forward), up], axis=2)
