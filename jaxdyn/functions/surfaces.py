"""Many shapes at once: their geometry as one batch, where they are in the world, and which pair of them is closest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.algorithms.kinematics import Kinematics
from jaxdyn.functions.attachments import attached_body, motion_of
from jaxdyn.functions.polygon import ConvexShape, ShapeGeometry, closest_on_edges, geometry_of, inside, signed_distance
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree

T = TypeVar("T", SE3, ShapeGeometry)


class Surfaces(eqx.Module):
    """Shapes in the world at one configuration: `geometry` in their own frames, and the `frames`' poses in the world, both
    with one leading axis over the shapes."""

    geometry: ShapeGeometry
    frames: SE3

    @property
    def center(self) -> Float[Array, "shapes 3"]:
        """Centres in the world, m."""
        return self.frames.apply(self.geometry.center)

    @property
    def normal(self) -> Float[Array, "shapes 3"]:
        """Unit normals in the world."""
        return so3.rotate(self.frames.rotation, self.geometry.normal)

    @property
    def poses(self) -> SE3:
        """The shapes' own frames (x along the normal) in the world."""
        return self.frames @ self.geometry.pose


class Pairs(eqx.Module):
    """Every floor with every object. `normal_distance` (floors, objects): of the object's centre, along the floor's normal,
    positive when it is inside the floor's body; `plane_distance`: signed distance of its projection from the floor's
    outline; `square`: squared distance of the centre from the floor; `local` (floors, objects, 3): the projection in the
    frame that carries the floor."""

    normal_distance: Float[Array, "floors objects"]
    plane_distance: Float[Array, "floors objects"]
    square: Float[Array, "floors objects"]
    local: Float[Array, "floors objects 3"]


def stacked_geometry(shapes: Sequence[ConvexShape]) -> ShapeGeometry:
    """Geometry of all shapes, padded to the largest number of corners. Shapes of one kind are handled together."""
    n = max(len(shape.points) for shape in shapes)
    padded = [shape if len(shape.points) == n else shape.padded(n) for shape in shapes]
    points = jnp.stack([shape.points for shape in padded])
    valid = jnp.stack([shape.mask for shape in padded])
    parts, order = [], []
    for kind in sorted({shape.kind for shape in shapes}):
        members = [i for i, shape in enumerate(shapes) if shape.kind == kind]
        every = len(members) == len(shapes)
        index = np.asarray(members)
        chosen = (points, valid) if every else (points[index], valid[index])
        parts.append(jax.vmap(lambda p, v, kind=kind: geometry_of(p, v, kind))(*chosen))
        order += members
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(order)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *parts)


def frame_poses(model: Model, kin: Kinematics, names: Sequence[str | None]) -> SE3:
    """Poses in the world of frames by name (None: the world), with one leading axis."""
    tree = model.tree
    bodies = np.asarray([attached_body(tree, name) for name in names])
    placed = np.asarray([tree.frame(n) if n is not None and n in tree.frame_names else tree.n_frames for n in names])
    # the world comes last among the bodies, so that index -1 finds it; likewise the identity among the placements
    world = SE3.identity((1,), kin.origin.dtype)
    carriers = SE3(
        jnp.concatenate([kin.rotation, world.rotation])[bodies],
        jnp.concatenate([kin.translation, world.translation])[bodies],
    )
    inner = SE3(
        jnp.concatenate([model.frame_placement.rotation, world.rotation])[placed],
        jnp.concatenate([model.frame_placement.translation, world.translation])[placed],
    )
    return carriers @ inner


def surfaces(model: Model, kin: Kinematics, shapes: Sequence[ConvexShape]) -> Surfaces:
    """The shapes at the configuration of `kin`."""
    return Surfaces(stacked_geometry(shapes), frame_poses(model, kin, [shape.frame for shape in shapes]))


def pairs(floors: Surfaces, objects: Surfaces) -> Pairs:
    """Distances of all objects' centres from all floors."""
    normal, center = floors.normal, floors.center
    points = objects.center
    arm = points[None] - center[:, None]
    along = jnp.sum(normal[:, None] * arm, axis=-1)
    below = points[None] - along[..., None] * normal[:, None]
    local = jax.vmap(lambda frame, p: frame.apply_inverse(p))(floors.frames, below)
    beside = jax.vmap(lambda g, each: jax.vmap(lambda p: signed_distance(g, p))(each))(floors.geometry, local)
    square = along**2 + jnp.where(beside < 0, 0, beside**2)
    return Pairs(along, beside, square, local)


def closest_pair(square: Float[Array, "floors objects"]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The floor and the object with the smallest distance; of equal ones the first floor, then the first object. A NaN is
    never chosen."""
    flat = jnp.where(jnp.isnan(square), jnp.inf, square).reshape(-1)
    k = jnp.argmin(flat)
    return k // square.shape[1], k % square.shape[1]


def pick(tree: T, index: Int[Array, ""]) -> T:
    """One item of a batch."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def rotation_vector(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Logarithm of a rotation; at exactly half a turn the one whose largest component is negative, as in the original.

    `so3.log` returns the positive one, where the matrix is symmetric to the last bit; elsewhere the matrix decides.
    """
    r = so3.log(rotation)
    trace = rotation[..., 0, 0] + rotation[..., 1, 1] + rotation[..., 2, 2]
    symmetric = jnp.all(so3.vee(jax.lax.stop_gradient(rotation)) == 0, axis=-1)
    return jnp.where((symmetric & (trace < 0))[..., None], -r, r)


def excess(geometry: ShapeGeometry, local: Float[Array, "3"], inset: Float[Array, ""]) -> Float[Array, "2"]:
    """From the nearest point of the floor, shrunk towards its centre by the fraction `inset`, to a point `local` of its
    plane, along the axes y and z of the floor's own frame; zero inside.

    **Arguments:** `local` (3,): in the frame that carries the floor.
    """
    keep = 1 - inset
    shrunk = eqx.tree_at(
        lambda g: (g.corners, g.lengths),
        geometry,
        (geometry.center[None] + keep * (geometry.corners - geometry.center[None]), keep * geometry.lengths),
    )
    out = jnp.where(inside(shrunk, local), 0, local - closest_on_edges(shrunk, local))
    return so3.rotate_back(geometry.pose.rotation, out)[1:]


class BodyMotions:
    """Jacobians of the bodies that carry some shapes, so that one of them can be chosen by a number that is only known when
    the program runs."""

    def __init__(self, model: Model, kin: Kinematics, names: Sequence[str | None]) -> None:
        of_shape = [attached_body(model.tree, name) for name in names]
        bodies = sorted(set(of_shape))
        self._index = np.asarray([bodies.index(body) for body in of_shape])
        self._bodies = np.asarray(bodies)
        self._origin = kin.origin
        self._about_origin = jnp.stack([motion_of(model, kin, body, kin.origin) for body in bodies])

    def at(self, shape: Int[Array, ""], point: Float[Array, "3"]) -> tuple[Float[Array, "6 nv"], Int[Array, ""]]:
        """Jacobian, in world axes, of the point at `point` fixed to the body that carries the shape, and the body's number."""
        which = jnp.asarray(self._index)[shape]
        motion = self._about_origin[which].T
        linear, angular = motion[:, :3], motion[:, 3:]
        moved = linear + so3.cross(angular, (point - self._origin)[None])
        return jnp.concatenate([moved, angular], axis=1).T, jnp.asarray(self._bodies)[which]


def carriers(tree: Tree, shapes: Sequence[ConvexShape]) -> tuple[int, ...]:
    """The bodies (-1: the world) that carry the shapes, each once, in ascending order."""
    return tuple(sorted({attached_body(tree, shape.frame) for shape in shapes}))


def is_kind(shapes: Sequence[ConvexShape], kind: str, index: Int[Array, ""]) -> Bool[Array, ""]:
    """True if the shape of that number is of the kind."""
    return jnp.asarray(np.asarray([shape.kind == kind for shape in shapes]))[index]
