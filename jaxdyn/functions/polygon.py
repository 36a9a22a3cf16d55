"""`ConvexShape`: a point, a segment or a convex planar polygon fixed to a frame, with distances and projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

from jaxdyn.errors import FloatLike, InputError, check_key, check_shape, is_concrete
from jaxdyn.functions.function import replaced, same
from jaxdyn.functions.outline import check_outline, split_outline
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross

POINT, LINE, POLYGON = "point", "line", "polygon"


class ShapeGeometry(eqx.Module):
    """What follows from the corners of a shape, all in its frame; n edges, of which `edges` marks those that count.

    `center` (3,): mean of the corners; `normal` (3,); `corners` (n, 3): where each edge starts; `directions` (n, 3) and
    `lengths` (n,) of the edges; `outward` (n, 3): their normals in the plane, away from the shape; `pose`: the shape's own
    frame, origin at the centre, axes x = normal, y = outward normal of the first edge, z = direction of the first edge.
    """

    center: Float[Array, "*batch 3"]
    normal: Float[Array, "*batch 3"]
    corners: Float[Array, "*batch n 3"]
    directions: Float[Array, "*batch n 3"]
    lengths: Float[Array, "*batch n"]
    outward: Float[Array, "*batch n 3"]
    edges: Bool[Array, "*batch n"]
    pose: SE3


def _dot(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, axis=-1)


def _length(x: Array) -> Array:
    """Length of vectors (..., 3); zero, with derivative zero, for a zero vector."""
    square = _dot(x, x)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _unit(x: Array) -> Array:
    """Unit vectors; zero, with derivative zero, for zero vectors."""
    length = _length(x)
    positive = (length > 0)[..., None]
    return jnp.where(positive, x / jnp.where(positive, length[..., None], 1), 0)


def geometry_of(points: Float[Array, "n 3"], valid: Bool[Array, " n"], kind: str) -> ShapeGeometry:
    """Geometry of one shape from its corners: the first `sum(valid)` of `points`, the others are padding.

    Normal: the area vector (Newell); it agrees with the cross product of the first two edges where that is not zero, and
    does not mind corners on a straight edge.
    """
    dtype = points.dtype
    count = jnp.maximum(jnp.sum(valid.astype(dtype)), 1)
    center = jnp.sum(jnp.where(valid[:, None], points, 0), axis=0) / count
    n = len(points)
    following = jnp.where(jnp.roll(valid, -1)[:, None], jnp.roll(points, -1, axis=0), points[:1]) if n > 1 else points
    edge = jnp.where(valid[:, None], following - points, 0)
    lengths, directions = _length(edge), _unit(edge)
    if kind == POLYGON:
        arms = jnp.where(valid[:, None], points - center[None], 0)
        ends = jnp.where(valid[:, None], following - center[None], 0)
        normal = _unit(jnp.sum(cross(arms, ends), axis=0))
        edges = valid & (lengths > 0)
    elif kind == LINE:
        u = directions[0]
        flat = u[0] != 0
        # across u and, if u is not in the plane of y and z, horizontal
        zero = jnp.zeros_like(u[0])
        normal = _unit(
            jnp.where(flat, jnp.stack([-u[1], jnp.where(flat, u[0], 1), zero]), jnp.stack([zero, -u[2], u[1]]))
        )
        edges = jnp.asarray(np.arange(n) == 0) & valid
    else:
        normal = jnp.asarray(np.array([1.0, 0.0, 0.0]), dtype)
        directions = jnp.broadcast_to(jnp.asarray(np.array([0.0, 0.0, 1.0]), dtype), points.shape)
        lengths = jnp.zeros_like(lengths)
        edges = jnp.asarray(np.arange(n) == 0) & valid
    outward = cross(directions, jnp.broadcast_to(normal, directions.shape))
    rotation = jnp.stack([normal, outward[0], directions[0]], axis=-1)
    return ShapeGeometry(center, normal, points, directions, lengths, outward, edges, SE3(rotation, center))


class ConvexShape(eqx.Module):
    """A planar contact surface: one point, a segment, or a convex polygon with its inside, fixed to a frame of a robot or to
    the world.

    The order of the corners gives the normal by the right-hand rule. Corners are checked when the shape is made (see the
    table at `check_outline`), unless they are traced.

    **Arguments:** `points` (n, 3): corners in the frame, m; `frame`: name of the frame or joint, None for the world (static);
    `convex_hull`: take the hull of the corners; `simplify`: leave out corners on straight edges; `dtype`: of the numbers.

    **Raises:** `InputError` for corners that make no convex shape.
    """

    points: Float[Array, "n 3"]
    valid: Bool[Array, " n"] | None
    frame: str | None = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __init__(
        self,
        points: FloatLike,
        frame: str | None = None,
        *,
        convex_hull: bool = False,
        simplify: bool = False,
        dtype: Any = None,
    ) -> None:
        if is_concrete(points) and not _holds_tracers(points):
            corners = check_outline(points, hull=convex_hull, simplify=simplify)
            given = getattr(points, "dtype", None)
            if dtype is None and given is not None and jnp.issubdtype(given, jnp.floating):
                dtype = jax.dtypes.canonicalize_dtype(given)
            self.points = jnp.asarray(corners, jnp.result_type(float) if dtype is None else dtype)
        else:
            traced = jnp.asarray(points)
            self.points = check_shape("points", traced, (traced.shape[0] if traced.ndim else 0, 3))
            if not len(self.points):
                raise InputError("points: a shape needs at least one corner, given none.")
        self.valid = None
        self.frame = frame
        self.kind = {1: POINT, 2: LINE}.get(len(self.points), POLYGON)

    @staticmethod
    def split(points: FloatLike, frame: str | None = None, dtype: Any = None) -> list[ConvexShape]:
        """Shapes that cover a polygon (n, 3) that need not be convex; see `split_outline`."""
        return [ConvexShape(_good_start(piece), frame, dtype=dtype) for piece in split_outline(points)]

    # Copies

    def padded(self, n: int) -> ConvexShape:
        """The same shape stored with `n` corners, so that shapes with different numbers of corners share one compiled
        program and can be stacked. The number of corners that count becomes a leaf.

        **Raises:** `InputError` if it has more corners.
        """
        missing = n - len(self.points)
        if missing < 0:
            raise InputError(f"n: the shape has {len(self.points)} corners, wanted at most {n}.")
        points = jnp.concatenate([self.points, jnp.broadcast_to(self.points[:1], (missing, 3))])
        valid = jnp.concatenate([self.mask, jnp.zeros(missing, dtype=bool)])
        return replaced(self, points=points, valid=valid)

    def reversed(self) -> ConvexShape:
        """The shape with its corners in reverse order: the normal turns round, and the first edge, which the shape's frame
        follows, becomes the one before last, backwards."""
        n = len(self.points)
        if self.valid is None:
            return replaced(self, points=self.points[::-1])
        # corners that count stay in front
        index = (jnp.sum(self.mask) - 1 - jnp.arange(n)) % n
        return replaced(self, points=self.points[index])

    def astype(self, dtype: Any) -> ConvexShape:
        """The shape with numbers of another dtype."""
        return replaced(self, points=self.points.astype(dtype))

    def transformed(self, pose: SE3, frame: str | None = None) -> ConvexShape:
        """The shape moved by a pose and fixed to another frame: with the pose of its frame in the world, the shape in the
        world."""
        return replaced(self, points=pose.apply(self.points), frame=frame)

    # Description

    @property
    def mask(self) -> Bool[Array, " n"]:
        """(n,) which of the stored corners count."""
        return jnp.ones(len(self.points), dtype=bool) if self.valid is None else self.valid

    def geometry(self) -> ShapeGeometry:
        """Centre, normal, edges and frame."""
        return geometry_of(self.points, self.mask, self.kind)

    @property
    def center(self) -> Float[Array, "3"]:
        """Mean of the corners, m (not the centroid of the area)."""
        return self.geometry().center

    @property
    def normal(self) -> Float[Array, "3"]:
        """Unit normal by the right-hand rule."""
        return self.geometry().normal

    @property
    def pose(self) -> SE3:
        """The shape's own frame in the frame that carries it: x along the normal, z along the first edge, y = z x x, which
        points away from the polygon."""
        return self.geometry().pose

    @property
    def radius(self) -> Float[Array, ""]:
        """Largest distance of a corner from the centre, m."""
        return jnp.max(jnp.where(self.mask, _length(self.points - self.center[None]), 0))

    @property
    def area(self) -> Float[Array, ""]:
        """Area of the polygon, m^2; zero for a point or a segment."""
        g = self.geometry()
        heights = -_dot(g.outward, g.center[None] - g.corners)
        return jnp.sum(jnp.where(g.edges, 0.5 * g.lengths * heights, 0))

    # Points

    def project(self, point: FloatLike) -> Float[Array, "3"]:
        """The point (3,) of the shape's plane below `point`."""
        return _project(self.geometry(), check_shape("point", point, (3,), dtype=self.points.dtype))

    def distance(self, point: FloatLike) -> Float[Array, ""]:
        """Signed distance, in the shape's plane, of the projection of `point` (3,) from the outline, m: positive outside,
        negative inside, zero on it. From a point or a segment: the distance in space.
        """
        point = check_shape("point", point, (3,), dtype=self.points.dtype)
        g = self.geometry()
        if self.kind == POLYGON:
            return signed_distance(g, _project(g, point))
        return _length(point - closest_on_edges(g, point))

    def closest_point(self, point: FloatLike) -> Float[Array, "3"]:
        """The point (3,) of the shape, inside included, that is nearest to `point`."""
        point = check_shape("point", point, (3,), dtype=self.points.dtype)
        g = self.geometry()
        if self.kind != POLYGON:
            return closest_on_edges(g, point)
        below = _project(g, point)
        return jnp.where(inside(g, below), below, closest_on_edges(g, below))

    def contains(self, point: FloatLike) -> Bool[Array, ""]:
        """True if the projection of `point` (3,) on the plane is inside the polygon or on its outline; never for a point or
        a segment."""
        point = check_shape("point", point, (3,), dtype=self.points.dtype)
        if self.kind != POLYGON:
            return jnp.zeros((), dtype=bool)
        return inside(self.geometry(), point)

    def pierced_by(self, point: FloatLike, direction: FloatLike) -> Bool[Array, ""]:
        """True if the line through `point` along `direction` (3,) meets the polygon."""
        g = self.geometry()
        at, crosses = intersect(point, direction, g.center, g.normal)
        return crosses & self.contains(at)

    def sample(self, key: PRNGKeyArray | UInt32[Array, "2"], count: int) -> Float[Array, "count 3"]:
        """`count` points (count, 3) drawn uniformly from the shape."""
        check_key("key", key)
        g = self.geometry()
        s = jax.random.uniform(key, (3, count), self.points.dtype)
        if self.kind == POINT:
            return jnp.broadcast_to(self.points[0], (count, 3))
        if self.kind == LINE:
            return self.points[:1] + s[0][:, None] * (g.lengths[0] * g.directions[0])[None]
        heights = -_dot(g.outward, g.center[None] - g.corners)
        ends = jnp.cumsum(jnp.where(g.edges, g.lengths * heights, 0))
        # a triangle of the fan from the centre, as often as its area says, then a point in it
        i = jnp.sum(s[2][:, None] * ends[-1] >= ends[None, :-1], axis=1)
        start, along = g.corners[i], (g.lengths[:, None] * g.directions)[i]
        root = jnp.sqrt(s[0])[:, None]
        edge = start + s[1][:, None] * along
        return g.center[None] + root * (edge - g.center[None])

    def outline(self) -> Float[Array, "m 3"]:
        """The corners in order and the first once more (m, 3), for drawing. Not under `jit` if the shape is padded."""
        points = self.points if self.valid is None else self.points[np.flatnonzero(np.asarray(self.valid))]
        return jnp.concatenate([points, points[:1]])

    def __eq__(self, other: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return isinstance(other, ConvexShape) and all(
            same(getattr(self, field), getattr(other, field)) for field in ("points", "valid", "frame", "kind")
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"ConvexShape({self.kind} with {len(self.points)} corners on {self.frame or 'world'!r})"


def _holds_tracers(points: Any) -> bool:
    return any(not is_concrete(x) for x in jax.tree.leaves(points))


def _good_start(corners: np.ndarray) -> np.ndarray:
    """The outline from another corner on, so that its first two edges are not on one line."""
    before, after = corners - np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0) - corners
    sine = np.linalg.norm(np.cross(before, after), axis=1)
    return np.roll(corners, 1 - int(sine.argmax()), axis=0)


def _project(g: ShapeGeometry, point: Array) -> Array:
    return point - _dot(g.normal, point - g.center)[..., None] * g.normal


def inside(g: ShapeGeometry, point: Float[Array, "3"]) -> Bool[Array, ""]:
    """True if the projection of a point on the plane is in the polygon or on its outline."""
    return jnp.all(jnp.where(g.edges, _dot(g.outward, point[None] - g.corners), 0) <= 0)


def closest_on_edges(g: ShapeGeometry, point: Float[Array, "3"]) -> Float[Array, "3"]:
    """The point of the outline that is nearest to `point`."""
    along = jnp.clip(_dot(g.directions, point[None] - g.corners), 0, g.lengths)
    feet = g.corners + along[:, None] * g.directions
    arm = point[None] - feet
    return feet[jnp.argmin(jnp.where(g.edges, _dot(arm, arm), jnp.inf))]


def signed_distance(g: ShapeGeometry, point: Float[Array, "3"]) -> Float[Array, ""]:
    """Signed distance of a point of the plane from the outline of a polygon.

    For each edge, with t the height over it: t beside the edge, else the distance from its nearer end with the sign of t
    (minus for t = 0). If any is positive, the smallest of those, else the largest of all.
    """
    arm = point[None] - g.corners
    along, height = _dot(g.directions, arm), _dot(g.outward, arm)
    end = jnp.clip(along, 0, g.lengths)
    beside = (along > 0) & (along < g.lengths)
    corner = _length(arm - end[:, None] * g.directions)
    d = jnp.where(beside, height, jnp.where(height > 0, corner, -corner))
    outside = g.edges & (d > 0)
    nearest = jnp.min(jnp.where(outside, d, jnp.inf))
    within = jnp.max(jnp.where(g.edges, d, -jnp.inf))
    return jnp.where(jnp.any(outside), nearest, within)


def intersect(
    point: FloatLike, direction: FloatLike, plane_point: FloatLike, normal: FloatLike
) -> tuple[Float[Array, "3"], Bool[Array, ""]]:
    """Where a line meets a plane (3,), and whether it does. A line along the plane: `point` itself, and False.

    **Arguments:** all (3,): a point and the direction of the line, a point and the normal of the plane.
    """
    p, u, a, n = (
        check_shape(name, x, (3,))
        for name, x in (("point", point), ("direction", direction), ("plane_point", plane_point), ("normal", normal))
    )
    slope = _dot(n, u)
    crosses = jnp.abs(slope) > jnp.finfo(slope.dtype).eps * _length(n) * _length(u)
    step = jnp.where(crosses, _dot(n, a - p) / jnp.where(crosses, slope, 1), 0)
    return p + step * u, crosses


def as_shape(given: ConvexShape | Sequence[Any], dtype: Any) -> ConvexShape:
    """A shape from a shape, or from a pair of a frame's name (or None) and corners; numbers of the given dtype."""
    if isinstance(given, ConvexShape):
        return given if given.points.dtype == dtype else given.astype(dtype)
    if isinstance(given, Sequence) and len(given) == 2 and (given[0] is None or isinstance(given[0], str)):
        return ConvexShape(given[1], given[0], dtype=dtype)
    raise InputError(
        f"wanted a ConvexShape, or a pair of a frame's name (None: the world) and corners, given {given!r}."
    )
