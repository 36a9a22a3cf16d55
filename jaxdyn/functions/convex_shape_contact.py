"""`ConvexShapeContact`: the nearest of some object surfaces lies on the nearest of some floor surfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.algorithms.kinematics import Kinematics, forward_kinematics
from jaxdyn.errors import FloatLike, InputError, NotDefinedError, check_shape, is_concrete, unknown_name
from jaxdyn.functions.attachments import attached_body, attachment, coordinate_mask, joints_between, velocity_mask
from jaxdyn.functions.function import RobotFunction, automatic_jacobian, replaced
from jaxdyn.functions.kinematic import KinematicFunction
from jaxdyn.functions.polygon import LINE, POINT, POLYGON, ConvexShape, ShapeGeometry, as_shape
from jaxdyn.functions.surfaces import (
    BodyMotions,
    Pairs,
    Surfaces,
    carriers,
    closest_pair,
    excess,
    is_kind,
    pairs,
    pick,
    rotation_vector,
    surfaces,
)
from jaxdyn.math import so3
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.math.se3 import SE3
from jaxdyn.model.model import Model, check_model

MODES = ("exact", "projected", "smooth")
ALIGNMENTS = ("log", "cross")


class ForceData(NamedTuple):
    """A contact of an object with a floor: names of the joint that carries the object and of the one that carries the floor
    (None: the world), the object's corners (n, 3) in the frame of the first, and the floor's normal (3,), which points into
    the floor's body, in the frame of the second."""

    joint: str | None
    support_joint: str | None
    points: Float[Array, "n 3"]
    normal: Float[Array, "3"]


class SurfaceContacts(eqx.Module):
    """All pairs of an object (outer order) and a floor, with a flag for those in contact: fixed shapes for any configuration.

    `active` (pairs,); `points` (pairs, n, 3): the object's corners in the frame of its body, of which `valid` (pairs, n)
    count; `normal` (pairs, 3): the floor's, into its body, in the frame of the floor's body; `bodies`, `supports`: the bodies
    of object and floor, -1 for the world (static).
    """

    active: Bool[Array, " pairs"]
    points: Float[Array, "pairs n 3"]
    valid: Bool[Array, "pairs n"]
    normal: Float[Array, "pairs 3"]
    bodies: tuple[int, ...] = eqx.field(static=True)
    supports: tuple[int, ...] = eqx.field(static=True)
    joint_names: tuple[str, ...] = eqx.field(static=True)

    def to_list(self) -> list[ForceData]:
        """The active contacts. Not under `jit`."""

        def name(body: int) -> str | None:
            return None if body < 0 else self.joint_names[body]

        return [
            ForceData(
                name(self.bodies[k]),
                name(self.supports[k]),
                self.points[k][np.flatnonzero(np.asarray(self.valid[k]))],
                self.normal[k],
            )
            for k in np.flatnonzero(np.asarray(self.active))
        ]


class Selection(eqx.Module):
    """The closest pair at a configuration: numbers of `floor` and `object`; whether the object's centre projects `inside` the
    floor; `is_point`: the object is a point; `pose`: of the object's own frame in the floor's; `rotation`: its rotation
    vector; `local`: the projection in the frame that carries the floor."""

    floor: Int[Array, ""]
    object: Int[Array, ""]
    inside: Bool[Array, ""]
    is_point: Bool[Array, ""]
    pose: SE3
    rotation: Float[Array, "3"]
    local: Float[Array, "3"]


class ConvexShapeContact(RobotFunction, KinematicFunction):
    """Contact of two planar surfaces: the nearest pair among objects and floors, as five numbers that vanish in contact.

    Floors are turned over when they are taken in, so that their normals point into the bodies that carry them, as those of
    the objects point out of theirs; in contact the two agree. The pair is the one whose object's centre is nearest to the
    floor (of equal ones the first floor, then the first object). With M the pose of the object's own frame in the floor's
    (x along the normal), (x, y, z) its translation and (rx, ry, rz) its rotation vector, the value is

    | object | centre projects inside the floor | on its outline, or outside |
    |---|---|---|
    | point | (x + margin, 0, 0, 0, 0) | (x + margin, y, z, 0, 0) |
    | segment, polygon | (x + margin, 0, 0, ry, rz) | (x + margin, y, z, ry, rz) |

    so an object in contact slides and turns freely within the floor, and one outside is drawn to the floor's centre.

    | mode | value | for |
    |---|---|---|
    | `"exact"` | as above; jumps where the pair changes and at the outline | checking; parity with the original |
    | `"projected"` | (y, z) is the way from the nearest point of the floor, shrunk by `inset`: no jump at the outline | optimisation |
    | `"smooth"` | mean over all pairs with weights softmax(-d^2 / tau), (y, z) times sigmoid(d_plane / gate) | gradients everywhere |

    `normal_align="cross"` replaces (ry, rz) by two components of the cross product of the normals, whose length does not
    depend on the choice of first edges, and which is smooth where an object is turned by pi about the normal; it also
    vanishes for opposite normals.

    **Arguments:** `model`; `floors`, `objects`: shapes, or pairs (frame or joint or None, corners); `margin`: height of the
    object's centre above the floor, m; `mode`; `inset`: part of the floor's size; `tau`: m^2; `gate`: m, both for the smooth
    mode; `normal_align`.

    **Raises:** `InputError` without floors or objects, for floors that are no polygons, and for shapes that are not convex;
    `UnknownNameError` for frames, modes.

    Source: the class of the same name in hpp-constraints; its members are mapped in `docs/functions.md`.
    """

    floors: tuple[ConvexShape, ...]
    objects: tuple[ConvexShape, ...]
    margin: Float[Array, ""]
    inset: Float[Array, ""]
    tau: Float[Array, ""]
    gate: Float[Array, ""]
    pair: Int[Array, "2"] | None
    mode: str = eqx.field(static=True)
    normal_align: str = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        floors: Sequence[Any],
        objects: Sequence[Any],
        *,
        margin: FloatLike = 0.0,
        mode: str = "exact",
        inset: FloatLike = 1e-3,
        tau: FloatLike = 1e-2,
        gate: FloatLike | None = None,
        normal_align: str = "log",
        name: str = "contact",
        context: str = "",
    ) -> None:
        check_model(model)
        for what, given in (("floors", floors), ("objects", objects)):
            if not isinstance(given, Sequence):
                raise InputError(f"{what}: wanted a list of shapes, given {given!r:.80}.")
            if len(given) == 0:
                raise InputError(f"{what}: a contact needs at least one floor and one object, given no {what}.")
        dtype = model.dtype
        shapes = tuple(as_shape(shape, dtype) for shape in floors)
        for i, shape in enumerate(shapes):
            if shape.kind != POLYGON:
                raise InputError(f"floors: floor {i} is a {shape.kind}; a floor needs at least three corners.")
        self.model = model
        self.floors = tuple(shape.reversed() for shape in shapes)
        self.objects = tuple(as_shape(shape, dtype) for shape in objects)
        for shape in (*self.floors, *self.objects):
            attached_body(model.tree, shape.frame)
        self.margin = check_shape("margin", _as_float(margin), (), dtype=dtype)
        self.inset = check_shape("inset", _as_float(inset), (), dtype=dtype)
        self.tau = check_shape("tau", _as_float(tau), (), dtype=dtype)
        # of the width over which neighbouring pairs are mixed
        self.gate = 0.1 * jnp.sqrt(self.tau) if gate is None else check_shape("gate", _as_float(gate), (), dtype=dtype)
        for what, width in (("tau", self.tau), ("gate", self.gate)):
            if is_concrete(width) and not width > 0:
                raise InputError(f"{what}: wanted a positive number, given {float(width)}.")
        self.pair = None
        self.mode = _known("mode", mode, MODES)
        self.normal_align = _known("normal_align", normal_align, ALIGNMENTS)
        self.name, self.context = name, context

    # Copies

    def with_mode(self, mode: str, normal_align: str | None = None) -> ConvexShapeContact:
        """The same contact in another mode.

        **Raises:** `InputError` for the smooth mode of a contact of one given pair.
        """
        if mode == "smooth" and self.pair is not None:
            raise InputError("mode: the smooth mode mixes all pairs, but this contact has a given pair.")
        align = self.normal_align if normal_align is None else _known("normal_align", normal_align, ALIGNMENTS)
        return replaced(self, mode=_known("mode", mode, MODES), normal_align=align)

    def with_margin(self, margin: FloatLike) -> ConvexShapeContact:
        """The same contact with another margin, m."""
        return replaced(self, margin=check_shape("margin", _as_float(margin), (), dtype=self.model.dtype))

    def with_pair(self, floor: Int[Array, ""] | int, thing: Int[Array, ""] | int) -> ConvexShapeContact:
        """The same contact of one floor and one object, given by their numbers (leaves), however far they are: its value does
        not jump. Not for the smooth mode, which mixes all pairs.

        **Raises:** `InputError` for a number that is known and out of range, and in the smooth mode.
        """
        if self.mode == "smooth":
            raise InputError("the smooth mode mixes all pairs; a contact of one given pair is exact or projected.")
        for what, given, count in (("floor", floor, len(self.floors)), ("object", thing, len(self.objects))):
            if is_concrete(given) and not 0 <= int(given) < count:
                raise InputError(f"{what}: wanted a number from 0 to {count - 1}, given {int(given)}.")
        return replaced(self, pair=jnp.stack([jnp.asarray(floor, jnp.int32), jnp.asarray(thing, jnp.int32)]))

    # Description

    @property
    def output_space(self) -> LieSpace:
        """R^5."""
        return LieSpace.R(5)

    @property
    def radius(self) -> Float[Array, ""]:
        """1 + the largest distance of a floor's corner from its centre: the unit of the pair's numbers in the complement."""
        return 1 + jnp.max(jnp.stack([floor.radius for floor in self.floors]))

    @property
    def floor_surfaces(self) -> tuple[ConvexShape, ...]:
        """The floors as kept: turned over."""
        return self.floors

    @property
    def object_surfaces(self) -> tuple[ConvexShape, ...]:
        """The objects."""
        return self.objects

    @property
    def active_parameters(self) -> np.ndarray:
        """Coordinates of the joints between any floor and any object."""
        return coordinate_mask(self.model.tree, self._joints)

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Degrees of freedom of the joints between any floor and any object."""
        return velocity_mask(self.model.tree, self._joints)

    @property
    def _joints(self) -> tuple[int, ...]:
        tree = self.model.tree
        pairs_of_bodies = [(a, b) for a in carriers(tree, self.floors) for b in carriers(tree, self.objects)]
        return tuple(sorted({joint for a, b in pairs_of_bodies for joint in joints_between(tree, a, b)}))

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """The body of all floors and that of all objects; None if there are several."""
        bodies = carriers(self.model.tree, self.floors), carriers(self.model.tree, self.objects)
        if any(len(each) > 1 for each in bodies):
            return None
        first, second = (min(each) for each in bodies)
        return (min(first, second), max(first, second))

    def details(self) -> list[str]:
        """Mode, active degrees of freedom, and the shapes."""
        lines = [f"mode {self.mode}, active degrees of freedom: {_intervals(self.active_derivative_parameters)}"]
        for kind, shapes in (("object", self.objects), ("floor", self.floors)):
            lines += [
                f"{kind} on {shape.frame or 'universe'}: {shape.kind}, {len(shape.points)} corners" for shape in shapes
            ]
        return lines

    # Evaluation

    def _surfaces(self, kin: Kinematics) -> tuple[Surfaces, Surfaces]:
        return surfaces(self.model, kin, self.floors), surfaces(self.model, kin, self.objects)

    def select(self, q: FloatLike) -> Selection:
        """The closest pair at `q` (nq,), and how the object lies in the floor's frame."""
        return self._select(*self._surfaces(forward_kinematics(self.model, q)))[0]

    def _select(self, floors: Surfaces, objects: Surfaces) -> tuple[Selection, SE3, SE3, ShapeGeometry]:
        """The selection, poses of the two shapes in the world, and the floor's geometry."""
        measured = pairs(floors, objects)
        f, o = closest_pair(measured.square) if self.pair is None else (self.pair[0], self.pair[1])
        here, there = pick(objects.poses, o), pick(floors.poses, f)
        pose = there.inverse() @ here
        selection = Selection(
            f,
            o,
            measured.plane_distance[f, o] < 0,
            is_kind(self.objects, POINT, o),
            pose,
            rotation_vector(pose.rotation),
            measured.local[f, o],
        )
        return selection, here, there, pick(floors.geometry, f)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, "5"]:
        """The five numbers at `q` (nq,)."""
        floors, objects = self._surfaces(kin)
        if self.mode == "smooth":
            return self._smooth(floors, objects)
        chosen, _, _, geometry = self._select(floors, objects)
        return self._value(chosen, geometry)

    def _value(self, chosen: Selection, geometry: ShapeGeometry) -> Array:
        if self.mode == "projected":
            sideways = excess(geometry, chosen.local, self.inset)
        else:
            sideways = jnp.where(chosen.inside, 0, chosen.pose.translation[1:])
        tilt = jnp.where(chosen.is_point, 0, _tilt(chosen.pose.rotation, chosen.rotation, self.normal_align))
        return jnp.concatenate([chosen.pose.translation[:1] + self.margin, sideways, tilt])

    def _all_pairs(self, floors: Surfaces, objects: Surfaces) -> tuple[Pairs, Array]:
        """Distances, and the five numbers of every pair (pairs, 5) with the side of the outline softened by `gate`."""
        measured = pairs(floors, objects)
        here, there = objects.poses, floors.poses

        def one(floor: SE3, thing: SE3) -> tuple[Array, Array]:
            pose = floor.inverse() @ thing
            return pose.translation, _tilt(pose.rotation, rotation_vector(pose.rotation), self.normal_align)

        move, tilt = jax.vmap(lambda f: jax.vmap(lambda o: one(f, o))(here))(there)
        gate = jax.nn.sigmoid(measured.plane_distance / self.gate)
        points = np.asarray([shape.kind == POINT for shape in self.objects])
        tilt = jnp.where(points[None, :, None], 0, tilt)
        rows = jnp.concatenate([move[..., :1] + self.margin, gate[..., None] * move[..., 1:], tilt], axis=-1)
        return measured, rows.reshape(-1, 5)

    def _smooth(self, floors: Surfaces, objects: Surfaces) -> Array:
        measured, rows = self._all_pairs(floors, objects)
        weight = jax.nn.softmax(-measured.square.reshape(-1) / self.tau)
        return jnp.sum(weight[:, None] * rows, axis=0)

    def soft_minimum(self, q: FloatLike) -> Float[Array, ""]:
        """A cost for gradient descent: -tau log sum exp(-c / tau) over all pairs, c half the squared length of a pair's five
        numbers with the side of the outline softened by `gate`. Smooth where the pair changes, and at most tau log(pairs)
        below the smallest c. Not a sum of squares: not for Gauss-Newton.
        """
        _, rows = self._all_pairs(*self._surfaces(forward_kinematics(self.model, q)))
        return -self.tau * jax.nn.logsumexp(-0.5 * jnp.sum(rows * rows, axis=1) / self.tau)

    def value_and_jacobian_with(self, q: FloatLike, kin: Kinematics) -> tuple[Float[Array, "5"], Float[Array, "5 nv"]]:
        """The five numbers, and their Jacobian with the chosen pair and the side of the outline held fixed.

        **Raises:** `NotDefinedError` for segments in the exact mode, as in the original: there (ry, rz) mixes in the
        rotation about the segment. `automatic_jacobian` gives the derivative all the same.
        """
        if self.mode == "exact" and any(shape.kind == LINE for shape in self.objects):
            raise NotDefinedError(
                f"the Jacobian of the exact contact {self.name!r} is not defined for segments; use the mode 'projected' or "
                "'smooth', or automatic_jacobian(contact, q)."
            )
        if self.mode == "smooth":
            return self.value_with(q, kin), automatic_jacobian(self, q)
        floors, objects = self._surfaces(kin)
        chosen, here, there, geometry = self._select(floors, objects)
        motion = self.relative_motion(kin, chosen, here, there)
        linear, angular = motion[:3], motion[3:]
        if self.mode == "projected":
            # The pair (y, z) moves the projection in the floor's plane; the way out of the floor follows it by a projector.
            axes = geometry.pose.rotation[:, 1:]

            def out(move: Array) -> Array:
                return excess(geometry, chosen.local + jnp.sum(axes * move[None], axis=1), self.inset)

            follow = jax.jacfwd(out)(jnp.zeros(2, linear.dtype))
            sideways = jnp.matmul(follow, linear[1:], precision="highest")
        else:
            sideways = jnp.where(chosen.inside, 0, linear[1:])
        if self.normal_align == "cross":
            r = chosen.pose.rotation
            # the object's normal n turns with w x n
            turned = so3.cross(angular.T, r[:, 0][None]).T
            tilt = jnp.stack([-turned[2], turned[1]])
        else:
            tilt = jnp.matmul(so3.left_jacobian_inverse(chosen.rotation)[1:], angular, precision="highest")
        tilt = jnp.where(chosen.is_point, 0, tilt)
        return self._value(chosen, geometry), jnp.concatenate([linear[:1], sideways, tilt])

    def relative_motion(self, kin: Kinematics, chosen: Selection, here: SE3, there: SE3) -> Float[Array, "6 nv"]:
        """Jacobian of the object's pose in the floor's frame: velocity of its centre, and angular velocity, in axes of the
        floor's own frame. Zero if both are carried by one body."""
        names = [shape.frame for shape in (*self.floors, *self.objects)]
        motions = BodyMotions(self.model, kin, names)
        first, a = motions.at(len(self.floors) + chosen.object, here.translation)
        second, b = motions.at(chosen.floor, here.translation)
        moved = jnp.where(a == b, 0, first - second).T
        turned = [so3.rotate_back(there.rotation, part) for part in (moved[:, :3], moved[:, 3:])]
        return jnp.concatenate(turned, axis=1).T

    def contact_points(self, q: FloatLike, margin: FloatLike) -> SurfaceContacts:
        """All pairs, with those marked whose object's centre projects into the floor (its outline included) and lies less than
        `margin`, m, inside the floor's body, or outside it at any height."""
        margin = check_shape("margin", _as_float(margin), (), dtype=self.model.dtype)
        floors, objects = self._surfaces(forward_kinematics(self.model, q))
        measured = pairs(floors, objects)
        active = (measured.plane_distance <= 0) & (measured.normal_distance < margin)
        n_f, n_o = len(self.floors), len(self.objects)
        n = max(len(shape.points) for shape in self.objects)
        padded = [shape.padded(n) for shape in self.objects]
        points = jnp.stack([attachment(self.model, s.frame)[1].apply(s.points) for s in padded])
        valid = jnp.stack([shape.mask for shape in padded])
        normal = jnp.stack([so3.rotate(attachment(self.model, s.frame)[1].rotation, s.normal) for s in self.floors])
        tree = self.model.tree
        each_object, each_floor = np.repeat(np.arange(n_o), n_f), np.tile(np.arange(n_f), n_o)
        return SurfaceContacts(
            active.T.reshape(-1),
            points[each_object],
            valid[each_object],
            normal[each_floor],
            tuple(attached_body(tree, self.objects[i].frame) for i in each_object),
            tuple(attached_body(tree, self.floors[i].frame) for i in each_floor),
            tree.joint_names,
        )


def _tilt(rotation: Array, vector: Array, align: str) -> Array:
    """The two numbers that vanish for equal normals, from the rotation of the object in the floor's frame and its vector.

    The object's normal is the first column n of the rotation, the floor's is e_x; e_x x n = (0, -n_z, n_y).
    """
    if align == "cross":
        return jnp.stack([-rotation[2, 0], rotation[1, 0]])
    return vector[1:]


def _as_float(x: FloatLike) -> FloatLike:
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def _known(what: str, given: str, existing: Sequence[str]) -> str:
    if given not in existing:
        raise unknown_name(what, given, existing)
    return given


def _intervals(mask: np.ndarray) -> str:
    """`[0, 5], [7, 7]` for the true entries of a mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return ", ".join(f"[{a}, {b - 1}]" for a, b in edges.reshape(-1, 2)) or "none"
