"""Surfaces that touch the ground: a rectangle or a set of points, over which a traction law is integrated to a wrench.

A material point `r` of the sole is at `p + R r` and moves with `v + w x R r`; its anchor is at `p0 + R0 r`, where `(R0,
p0)` is the null pose. The displacement to the anchor is formed as `(p0 - p) + (R0 - R) r`, which keeps its digits far
from the world's origin. The ground is the terrain if there is one, else the plane of the anchored sole, with normal `R0
e_z`.

    f = c sum_j W_j t_j        m = c sum_j W_j (R r_j) x t_j        about the origin of the sole, world axes

with the traction `t_j` of the law at node `r_j` and quadrature weights `W_j`. The factor `c` is `|R_33|` with
`projected_area="abs_r33"`: the sole's area is projected on the horizontal plane, as in bipedal-locomotion-framework.
Such a contact does not conserve energy even without damping (tilt a pressed foot, lift it, tilt it back), vanishes for
a vertical foot and has a kink there. With `"none"` the factor is 1, and an undamped `Brush` conserves energy.
"""

from __future__ import annotations

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import parameter
from jaxdyn.contact.laws import Brush, Nodes, TractionLaw
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3

PROJECTED_AREA = ("abs_r33", "none")

Vector3 = Float[Array, "3"]
Vector6 = Float[Array, "6"]


class Surface(eqx.Module):
    """A part of a robot that touches the ground. Its frame has the origin in the middle of the sole, x forward, z up."""

    @abc.abstractmethod
    def wrench(self, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
        """Wrench `[force, moment]` that the ground exerts, world axes, moment about the origin of the sole.

        **Arguments:** `pose`: of the sole in the world; `twist`: its MIXED twist; `null`: its anchor; `terrain`: the
        ground, if it is not the anchor's plane.
        """


def _check_projected_area(value: str) -> None:
    if value not in PROJECTED_AREA:
        raise InputError(f"projected_area: wanted one of {PROJECTED_AREA}, given {value!r}.")


def _projection(projected_area: str, rotation: Array) -> Array:
    return jnp.abs(rotation[2, 2]) if projected_area == "abs_r33" else jnp.ones_like(rotation[2, 2])


def node_states(
    points: Float[Array, "n 3"], pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None
) -> tuple[Nodes, Float[Array, "n 3"]]:
    """What a traction law needs to know of `points` (in axes of the sole), and the arms `R r` in world axes."""
    arms = so3.rotate(pose.rotation, points)
    displacement = (null.translation - pose.translation)[None] + so3.rotate(null.rotation - pose.rotation, points)
    velocity = twist[None, :3] + so3.cross(twist[3:], arms)
    if terrain is None:
        normal = jnp.broadcast_to(null.rotation[:, 2], arms.shape)
        depth = jnp.sum(displacement * normal, axis=-1)
    else:
        depth, normal = terrain.query(pose.translation[None] + arms)
    return Nodes(displacement, velocity, depth, normal), arms


def surface_wrench(
    law: TractionLaw,
    points: Float[Array, "n 3"],
    weights: Float[Array, " n"],
    pose: SE3,
    twist: Vector6,
    null: SE3,
    terrain: Terrain | None = None,
) -> Vector6:
    """The sum over nodes, without the factor `c`. All laws and surfaces come through here."""
    nodes, arms = node_states(points, pose, twist, null, terrain)
    force = weights[:, None] * law.traction(nodes)
    return jnp.concatenate([jnp.sum(force, axis=0), jnp.sum(so3.cross(arms, force), axis=0)])


@functools.lru_cache
def _gauss(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (order^2, 3) in the square [-1, 1]^2 and weights that sum to 1."""
    x, w = np.polynomial.legendre.leggauss(order)
    grid = np.stack([*(g.ravel() for g in np.meshgrid(x, x, indexing="ij")), np.zeros(order * order)], axis=-1)
    return grid, np.outer(w, w).ravel() / 4


class ContactPatch(Surface):
    """A rectangular sole.

    **Arguments:** `traction`: the law; `length`: along x of the sole, m; `width`: along y, m; `quadrature`:
    Gauss-Legendre nodes per side. Two are exact for `Brush` (for which a closed form is used anyway); while a part of
    the sole is lifted, each more costs time and buys accuracy; `projected_area`: `"abs_r33"` or `"none"`, see the
    module's text.
    """

    traction: TractionLaw
    length: Float[Array, "..."] = parameter("length")
    width: Float[Array, "..."] = parameter("width")
    quadrature: int = eqx.field(static=True, default=4)
    projected_area: str = eqx.field(static=True, default="abs_r33")

    def __check_init__(self) -> None:
        _check_projected_area(self.projected_area)
        if self.quadrature < 1:
            raise InputError(f"quadrature: wanted at least one node per side, given {self.quadrature}.")

    @property
    def area(self) -> Float[Array, "..."]:
        """Area of the sole, m^2."""
        return self.length * self.width

    def nodes(self) -> tuple[Float[Array, "n 3"], Float[Array, " n"]]:
        """Quadrature nodes in axes of the sole (m) and their weights (m^2)."""
        grid, weights = _gauss(self.quadrature)
        dtype = self.length.dtype
        half = 0.5 * jnp.stack([self.length, self.width, jnp.zeros_like(self.length)])
        return jnp.asarray(grid, dtype) * half[None], jnp.asarray(weights, dtype) * self.area

    def wrench(self, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
        if isinstance(self.traction, Brush):
            return brush_wrench(self, pose, twist, null)
        return self.wrench_by_quadrature(pose, twist, null, terrain)

    def wrench_by_quadrature(self, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
        """As `wrench`, never by the closed form."""
        wrench = surface_wrench(self.traction, *self.nodes(), pose, twist, null, terrain)
        return _projection(self.projected_area, pose.rotation) * wrench

    def density(
        self, xy: Float[Array, "2"], pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None
    ) -> tuple[Vector3, Vector3]:
        """Force and moment (about the sole's origin) per area of the sole at its point `(x, y, 0)`, world axes; zero
        outside, edges included.

        Neither the area nor the factor `c` is in it.
        """
        point = jnp.concatenate([xy, jnp.zeros_like(xy[:1])])[None]
        nodes, arms = node_states(point, pose, twist, null, terrain)
        inside = (jnp.abs(xy[0]) <= self.length / 2) & (jnp.abs(xy[1]) <= self.width / 2)
        force = jnp.where(inside, self.traction.traction(nodes)[0], 0)
        return force, so3.cross(arms[0], force)


class ContactPoints(Surface):
    """Points that touch the ground: a point foot, or the corners of a box.

    **Arguments:** `traction`: the law; `points`: (n, 3) in axes of the frame, m; default one point in its origin;
    `areas`: (n,), the weight of each point; default 1, so that the constants of the law are those of one spring (N/m).
    """

    traction: TractionLaw
    points: Float[Array, "... n 3"] = parameter("points", (None, 3))
    areas: Float[Array, "... n"] = parameter("areas", (None,))

    def __init__(self, traction: TractionLaw, points=((0.0, 0.0, 0.0),), areas=None):
        self.traction = traction
        self.points = points
        self.areas = jnp.ones(np.shape(points)[:-1], getattr(points, "dtype", None)) if areas is None else areas

    def __check_init__(self) -> None:
        if self.points.shape[:-1] != self.areas.shape:
            raise InputError(f"areas: wanted shape {self.points.shape[:-1]} as points, given {self.areas.shape}.")

    def wrench(self, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
        return surface_wrench(self.traction, self.points, self.areas, pose, twist, null, terrain)


# The brush in closed form. Over the rectangle the integrals of x, y and xy vanish, those of x^2 and y^2 are A l^2 / 12 and A w^2 / 12, and
# (R r) x (R r) = 0, so that with e_i, e0_i the columns of R, R0 and S(e) = hat(e)
#     f = c A (k (p0 - p) - b v)
#     m = c A / 12 sum_i l_i^2 (k e_i x e0_i + b S(e_i)^2 w),      S(e)^2 w = e (e . w) - w (e . e)


def _brush_columns(
    patch: ContactPatch, pose: SE3, twist: Vector6, null: SE3
) -> tuple[Float[Array, "6 2"], Float[Array, ""]]:
    """Matrix of the constants, and the factor `c A` before it."""
    w = twist[3:]
    e, e0 = pose.rotation[:, :2].T, null.rotation[:, :2].T
    squares = jnp.stack([patch.length, patch.width])[:, None] ** 2 / 12
    spring = jnp.sum(squares * so3.cross(e, e0), axis=0)
    double_cross = e * jnp.sum(e * w[None], axis=-1, keepdims=True) - w[None] * jnp.sum(e * e, axis=-1, keepdims=True)
    damper = jnp.sum(squares * double_cross, axis=0)
    linear = jnp.stack([null.translation - pose.translation, -twist[:3]], axis=-1)
    angular = jnp.stack([spring, damper], axis=-1)
    return jnp.concatenate([linear, angular]), _projection(patch.projected_area, pose.rotation) * patch.area


def brush_wrench(patch: ContactPatch, pose: SE3, twist: Vector6, null: SE3) -> Vector6:
    """Wrench of a `ContactPatch` with a `Brush`, in closed form."""
    columns, factor = _brush_columns(patch, pose, twist, null)
    # The factor comes last: spring and damper that cancel then do so exactly.
    constants = jnp.stack([patch.traction.stiffness, patch.traction.damping])
    return factor * jnp.sum(columns * constants[None], axis=-1)


def brush_regressor(patch: ContactPatch, pose: SE3, twist: Vector6, null: SE3) -> Float[Array, "6 2"]:
    """Matrix `Phi` with `wrench = Phi [stiffness, damping]` for a `ContactPatch` with a `Brush`: for identification by
    least squares."""
    columns, factor = _brush_columns(patch, pose, twist, null)
    return factor * columns


# Functions on any surface


def contact_wrench(surface: Surface, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
    """Wrench `[force, moment]` of the ground on a surface; see `Surface.wrench`."""
    return surface.wrench(pose, twist, null, terrain)


def contact_regressor(surface: Surface, pose: SE3, twist: Vector6, null: SE3) -> Float[Array, "6 2"]:
    """The matrix that the wrench of a brush is linear in: `wrench = Phi [stiffness, damping]`.

    **Raises:** `InputError` for other laws, which are not linear in their constants.
    """
    if not (isinstance(surface, ContactPatch) and isinstance(surface.traction, Brush)):
        raise InputError("surface: wanted a ContactPatch with a Brush; other laws are not linear in their constants.")
    return brush_regressor(surface, pose, twist, null)


def contact_rate(
    surface: Surface, pose: SE3, twist: Vector6, acceleration: Vector6, null: SE3, terrain: Terrain | None = None
) -> Vector6:
    """Time derivative of the wrench, given the MIXED `acceleration` of the sole; the anchor stands still."""

    def wrench(rotation: Array, position: Array, twist: Array) -> Array:
        return surface.wrench(SE3(rotation, position), twist, null, terrain)

    at = (pose.rotation, pose.translation, twist)
    along = (so3.compose(so3.hat(twist[3:]), pose.rotation), twist[:3], acceleration)
    return jax.jvp(wrench, at, along)[1]


def contact_rate_terms(
    surface: Surface, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None
) -> tuple[Vector6, Float[Array, "6 6"]]:
    """`(a, G)` with `rate of the wrench = a + G acceleration`: for controllers that have the wrench as state."""
    still = contact_rate(surface, pose, twist, jnp.zeros_like(twist), null, terrain)
    return still, jax.jacfwd(lambda twist: surface.wrench(pose, twist, null, terrain))(twist)
