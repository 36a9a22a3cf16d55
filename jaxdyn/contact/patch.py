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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, parameter
from jaxdyn.contact.laws import Brush, Nodes, TractionLaw
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.math.batching import materialize
from jaxdyn.math.se3 import SE3
from jaxdyn.math.stacked import constant, cross, dot, join, pile, total

PROJECTED_AREA = ("abs_r33", "none")

Vector3 = Float[Array, "3"]
Vector6 = Float[Array, "6"]
Vectors = Float[Array, "contacts 3 #batch"]
Matrices = Float[Array, "contacts 3 3 #batch"]


class Motion(eqx.Module):
    """Where contact frames are and how they move, stacked: first the contacts, last the batch of robots.

    `rotation`, `position`: of the frames in the world; `linear`, `angular`: their MIXED twists; `null_rotation`, `null_position`: anchors;
    `slip`: how far the anchor of each point has slid from its place there, if anchors slide.
    """

    rotation: Matrices
    position: Vectors
    linear: Vectors
    angular: Vectors
    null_rotation: Matrices
    null_position: Vectors
    slip: Float[Array, "contacts n 3 #batch"] | None = None

    @staticmethod
    def of(pose: SE3, twist: Vector6, null: SE3, slip: Float[Array, "n 3"] | None = None) -> Motion:
        """One contact as a stack."""
        arrays = pose.rotation, pose.translation, twist[:3], twist[3:], null.rotation, null.translation
        return Motion(*(a[None, ..., None] for a in arrays), slip=None if slip is None else slip[None, ..., None])


class Surface(eqx.Module):
    """A part of a robot that touches the ground. Its frame has the origin in the middle of the sole, x forward, z up."""

    @abc.abstractmethod
    def forces(self, motion: Motion, terrain: Terrain | None) -> tuple[Vectors, Vectors]:
        """Forces and moments of the ground on stacked contacts, whose leaves in `self` are stacked in the same way.

        World axes, moments about the frames' origins. `terrain` is as `Terrain.query` wants it, or None.
        """

    @abc.abstractmethod
    def nodes(self) -> tuple[Float[Array, "contacts n 3 #batch"], Float[Array, "contacts n #batch"]]:
        """The points (m, axes of the sole) over which stresses are summed, and their weights (m^2); stacked, as in
        `forces`."""

    @property
    @abc.abstractmethod
    def n_nodes(self) -> int:
        """Number of these points."""

    def wrench(
        self,
        pose: SE3,
        twist: Vector6,
        null: SE3,
        terrain: Terrain | None = None,
        slip: Float[Array, "n 3"] | None = None,
    ) -> Vector6:
        """Wrench `[force, moment]` that the ground exerts, world axes, moment about the origin of the sole.

        **Arguments:** `pose`: of the sole in the world; `twist`: its MIXED twist; `null`: its anchor; `terrain`: the ground,
        if it is not the anchor's plane; `slip`: of each point's anchor from its place on the anchored sole, world axes, m.
        """
        return join(_one(self).forces(Motion.of(pose, twist, null, slip), _one(terrain)), 1)[0, :, 0]


def _one(tree: Any) -> Any:
    """A stack of one, in a batch of one."""
    return jax.tree.map(lambda leaf: leaf[None, ..., None], tree)


def _check_projected_area(value: str) -> None:
    if value not in PROJECTED_AREA:
        raise InputError(f"projected_area: wanted one of {PROJECTED_AREA}, given {value!r}.")


def _projection(projected_area: str, rotation: Matrices) -> Float[Array, "contacts #batch"]:
    return jnp.abs(rotation[:, 2, 2]) if projected_area == "abs_r33" else jnp.ones_like(rotation[:, 2, 2])


def _turn(rotation: Matrices, points: Float[Array, "contacts n 3 #batch"]) -> Float[Array, "contacts n 3 #batch"]:
    """`R r` for the points of each contact."""
    return total(rotation[:, None, :, k] * points[:, :, k, None] for k in range(3))


def _flatten(stack: Float[Array, "contacts n *rest"]) -> Float[Array, "points *rest"]:
    return stack.reshape(-1, *stack.shape[2:])


def _per_point(stack: Float[Array, "contacts *rest"], n: int) -> Float[Array, "points *rest"]:
    """Each contact's entry, for each of its n points."""
    return stack if n == 1 else _flatten(jnp.broadcast_to(stack[:, None], (stack.shape[0], n, *stack.shape[1:])))


def node_states(
    points: Float[Array, "contacts n 3 #batch"], motion: Motion, terrain: Terrain | None
) -> tuple[Nodes, Float[Array, "points 3 #batch"]]:
    """What a traction law needs to know of `points` (in axes of the sole), and the arms `R r` in world axes."""
    n = points.shape[1]
    arms = materialize(_flatten(_turn(motion.rotation, points)))
    displacement = materialize(displacements(points, motion))
    velocity = materialize(_per_point(motion.linear, n) + cross(_per_point(motion.angular, n), arms))
    if terrain is None:
        normal = _per_point(motion.null_rotation[:, :, 2], n)
        return Nodes(displacement, velocity, dot(displacement, normal), normal), arms
    depth, normal = terrain.query(_per_point(motion.position, n) + arms)
    return Nodes(displacement, velocity, depth, normal), arms


def displacements(points: Float[Array, "contacts n 3 #batch"], motion: Motion) -> Float[Array, "points 3 #batch"]:
    """From each point to its anchor."""
    stretch = _flatten(_turn(motion.null_rotation - motion.rotation, points))
    displacement = _per_point(motion.null_position - motion.position, points.shape[1]) + stretch
    return displacement if motion.slip is None else displacement + _flatten(motion.slip)


def surface_forces(
    law: TractionLaw,
    points: Float[Array, "contacts n 3 #batch"],
    weights: Float[Array, "contacts n #batch"],
    motion: Motion,
    terrain: Terrain | None,
) -> tuple[Vectors, Vectors]:
    """The sums over nodes, without the factor `c`. All laws and surfaces come through here."""
    contacts, n = points.shape[:2]
    nodes, arms = node_states(points, motion, terrain)
    law = law_per_point(law, n)
    force = materialize(_flatten(weights)[:, None] * law.traction(nodes))
    moment = cross(arms, force)
    if n == 1:
        return force, moment
    force, moment = (x.reshape(contacts, n, *x.shape[1:]) for x in (force, moment))
    return jnp.sum(force, axis=1), jnp.sum(moment, axis=1)


def law_per_point(law: TractionLaw, n: int) -> TractionLaw:
    """The constants of each contact's law, for each of its n points."""
    return jax.tree.map(lambda leaf: _per_point(leaf, n), law)


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
    length: Scalar = parameter("length")
    width: Scalar = parameter("width")
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

    @property
    def n_nodes(self) -> int:
        return self.quadrature**2

    def nodes(self) -> tuple[Float[Array, "contacts n 3 #batch"], Float[Array, "contacts n #batch"]]:
        """Quadrature nodes in axes of the sole (m) and their weights (m^2)."""
        grid, weights = _gauss(self.quadrature)
        like = self.length
        half = 0.5 * pile([like, self.width, jnp.zeros_like(like)], 1)
        points = constant(grid[None], like) * half[:, None]
        return points, constant(weights[None], like) * self.area[:, None]

    def forces(self, motion: Motion, terrain: Terrain | None) -> tuple[Vectors, Vectors]:
        if isinstance(self.traction, Brush):
            return _brush_forces(self, motion)
        return self._forces_by_quadrature(motion, terrain)

    def _forces_by_quadrature(self, motion: Motion, terrain: Terrain | None) -> tuple[Vectors, Vectors]:
        force, moment = surface_forces(self.traction, *self.nodes(), motion, terrain)
        factor = _projection(self.projected_area, motion.rotation)[:, None]
        return factor * force, factor * moment

    def wrench_by_quadrature(self, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
        """As `wrench`, never by the closed form."""
        return join(_one(self)._forces_by_quadrature(Motion.of(pose, twist, null), _one(terrain)), 1)[0, :, 0]

    def density(
        self, xy: Float[Array, "2"], pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None
    ) -> tuple[Vector3, Vector3]:
        """Force and moment (about the sole's origin) per area of the sole at its point `(x, y, 0)`, world axes; zero
        outside, edges included.

        Neither the area nor the factor `c` is in it.
        """
        point = jnp.concatenate([xy, jnp.zeros_like(xy[:1])])[None, None, :, None]
        nodes, arms = node_states(point, Motion.of(pose, twist, null), _one(terrain))
        inside = (jnp.abs(xy[0]) <= self.length / 2) & (jnp.abs(xy[1]) <= self.width / 2)
        force = jnp.where(inside, _one(self.traction).traction(nodes)[0, :, 0], 0)
        return force, so3.cross(arms[0, :, 0], force)


class ContactPoints(Surface):
    """Points that touch the ground: a point foot, or the corners of a box.

    **Arguments:** `traction`: the law; `points`: (n, 3) in axes of the frame, m; default one point in its origin;
    `areas`: (n,), the weight of each point; default 1, so that the constants of the law are those of one spring (N/m).
    """

    traction: TractionLaw
    points: Float[Array, "..."] = parameter("points", (None, 3))
    areas: Float[Array, "..."] = parameter("areas", (None,))

    def __init__(self, traction: TractionLaw, points=((0.0, 0.0, 0.0),), areas=None):
        self.traction = traction
        self.points = points
        self.areas = jnp.ones(np.shape(points)[:-1], getattr(points, "dtype", None)) if areas is None else areas

    def __check_init__(self) -> None:
        if self.points.shape[:-1] != self.areas.shape:
            raise InputError(f"areas: wanted shape {self.points.shape[:-1]} as points, given {self.areas.shape}.")

    @property
    def n_nodes(self) -> int:
        return self.points.shape[-2]

    def nodes(self) -> tuple[Float[Array, "contacts n 3 #batch"], Float[Array, "contacts n #batch"]]:
        return self.points, self.areas

    def forces(self, motion: Motion, terrain: Terrain | None) -> tuple[Vectors, Vectors]:
        return surface_forces(self.traction, self.points, self.areas, motion, terrain)


# The brush in closed form. Over the rectangle the integrals of x, y and xy vanish, those of x^2 and y^2 are A l^2 / 12 and A w^2 / 12, and
# (R r) x (R r) = 0, so that with e_i, e0_i the columns of R, R0 and S(e) = hat(e)
#     f = c A (k (p0 - p) - b v)
#     m = c A / 12 sum_i l_i^2 (k e_i x e0_i + b S(e_i)^2 w),      S(e)^2 w = e (e . w) - w (e . e)


def _brush_columns(
    patch: ContactPatch, motion: Motion
) -> tuple[tuple[Vectors, Vectors], tuple[Vectors, Vectors], Array]:
    """What stiffness and damping multiply in the force and in the moment, and the factor `c A` before it all."""
    w = motion.angular
    spring, damper = [], []
    for i, length in enumerate((patch.length, patch.width)):
        e, square = motion.rotation[:, :, i], (length**2 / 12)[:, None]
        spring.append(square * cross(e, motion.null_rotation[:, :, i]))
        damper.append(square * (e * dot(e, w)[:, None] - w * dot(e, e)[:, None]))
    factor = _projection(patch.projected_area, motion.rotation) * patch.area
    linear = motion.null_position - motion.position, -motion.linear
    return linear, (total(spring), total(damper)), factor


def _brush_forces(patch: ContactPatch, motion: Motion) -> tuple[Vectors, Vectors]:
    linear, angular, factor = _brush_columns(patch, motion)
    k, b = patch.traction.stiffness[:, None], patch.traction.damping[:, None]  # pyright: ignore
    force, moment = (factor[:, None] * (k * spring + b * damper) for spring, damper in (linear, angular))
    return force, moment


# Functions on any surface


def contact_wrench(surface: Surface, pose: SE3, twist: Vector6, null: SE3, terrain: Terrain | None = None) -> Vector6:
    """Wrench `[force, moment]` of the ground on a surface; see `Surface.wrench`."""
    return surface.wrench(pose, twist, null, terrain)


def contact_regressor(surface: Surface, pose: SE3, twist: Vector6, null: SE3) -> Float[Array, "6 2"]:
    """The matrix that the wrench of a brush is linear in: `wrench = Phi [stiffness, damping]`; for identification by
    least squares.

    **Raises:** `InputError` for other laws, which are not linear in their constants.
    """
    if not (isinstance(surface, ContactPatch) and isinstance(surface.traction, Brush)):
        raise InputError("surface: wanted a ContactPatch with a Brush; other laws are not linear in their constants.")
    linear, angular, factor = _brush_columns(_one(surface), Motion.of(pose, twist, null))
    return factor[0, 0] * jnp.concatenate([jnp.concatenate(part, axis=-1)[0] for part in (linear, angular)])


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
