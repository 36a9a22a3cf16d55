"""What belongs to a `ConvexShapeContact`: the numbers that it leaves free, both together, and the pose solved for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxdyn.algorithms.kinematics import Kinematics, forward_kinematics
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.functions.attachments import attachment
from jaxdyn.functions.convex_shape_contact import ConvexShapeContact, Selection
from jaxdyn.functions.implicit import Comparison, Explicit, Implicit
from jaxdyn.functions.kinematic import KinematicFunction
from jaxdyn.functions.spaces import ConfigurationSpace
from jaxdyn.functions.surfaces import carriers, frame_poses, pick, surfaces
from jaxdyn.math import so3
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.math.se3 import SE3
from jaxdyn.model.model import Model


class _OfContact(KinematicFunction):
    """A function that depends on what its contact depends on."""

    contact: ConvexShapeContact

    @property
    def input_space(self) -> ConfigurationSpace:
        """Configurations of the model."""
        return self.contact.input_space

    @property
    def active_parameters(self) -> np.ndarray:
        """Those of the contact (the original takes all)."""
        return self.contact.active_parameters

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Those of the contact (the original takes all)."""
        return self.contact.active_derivative_parameters

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """Those of the contact."""
        return self.contact.relative_pose_bodies


class ConvexShapeContactComplement(_OfContact):
    """What a contact leaves free, and which pair it is: with (x, y, z, rx, ry, rz) and the pair (i, j) of floor and object as
    in `ConvexShapeContact`, and its radius M,

    | inside the floor | outside |
    |---|---|
    | (y + 2 i M, z + 2 j M, rx) | (2 i M, 2 j M, rx) |

    Inside, |y| and |z| are less than M, so that pair and place can be read from the numbers.

    **Arguments:** `contact`; `name`: by default the contact's and "/complement".
    """

    def __init__(self, contact: ConvexShapeContact, name: str = "", context: str = "") -> None:
        self.contact = contact
        self.name = name or f"{contact.name}/complement"
        self.context = context

    @property
    def output_space(self) -> LieSpace:
        """R^3."""
        return LieSpace.R(3)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, "3"]:
        """The three numbers at `q` (nq,)."""
        return _complement(self.contact, self.contact._select(*self.contact._surfaces(kin))[0])

    def value_and_jacobian_with(self, q: FloatLike, kin: Kinematics) -> tuple[Float[Array, "3"], Float[Array, "3 nv"]]:
        """The three numbers, and their Jacobian with the chosen pair and the side of the outline held fixed."""
        chosen, here, there, _ = self.contact._select(*self.contact._surfaces(kin))
        motion = self.contact.relative_motion(kin, chosen, here, there)
        turn = jnp.matmul(so3.left_jacobian_inverse(chosen.rotation)[:1], motion[3:], precision="highest")
        return _complement(self.contact, chosen), jnp.concatenate([jnp.where(chosen.inside, motion[1:3], 0), turn])


def _complement(contact: ConvexShapeContact, chosen: Selection) -> Array:
    pair = 2 * contact.radius * jnp.stack([chosen.floor, chosen.object]).astype(contact.model.dtype)
    return jnp.concatenate([jnp.where(chosen.inside, chosen.pose.translation[1:], 0) + pair, chosen.rotation[:1]])


class ConvexShapeContactHold(_OfContact):
    """A contact and its complement in one: the five numbers, then the three. Held constant, they hold the object.

    **Arguments:** `contact`; `name`: by default the contact's and "/hold".
    """

    def __init__(self, contact: ConvexShapeContact, name: str = "", context: str = "") -> None:
        self.contact = contact
        self.name = name or f"{contact.name}/hold"
        self.context = context

    @property
    def complement(self) -> ConvexShapeContactComplement:
        """The second part."""
        return ConvexShapeContactComplement(self.contact)

    @property
    def output_space(self) -> LieSpace:
        """R^8."""
        return LieSpace.R(8)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, "8"]:
        """The eight numbers at `q` (nq,)."""
        return jnp.concatenate([self.contact.value_with(q, kin), self.complement.value_with(q, kin)])

    def value_and_jacobian_with(self, q: FloatLike, kin: Kinematics) -> tuple[Float[Array, "8"], Float[Array, "8 nv"]]:
        """Those of both, stacked."""
        value, jacobian = self.contact.value_and_jacobian_with(q, kin)
        more, more_rows = self.complement.value_and_jacobian_with(q, kin)
        return jnp.concatenate([value, more]), jnp.concatenate([jacobian, more_rows])


def create_pair(
    name: str, model: Model, floors: Sequence[Any], objects: Sequence[Any], **options: Any
) -> tuple[ConvexShapeContact, ConvexShapeContactComplement]:
    """A contact and its complement. Arguments as for `ConvexShapeContact`."""
    contact = ConvexShapeContact(model, floors, objects, name=name, **options)
    return contact, ConvexShapeContactComplement(contact)


class PlacedPose(NamedTuple):
    """A placement read from the eight numbers of a hold: numbers of floor and object, and the pose of the object's own frame
    in the floor's as an element of R^3 x SO(3), (x, y, z, quaternion)."""

    floor: Int[Array, ""]
    object: Int[Array, ""]
    pose: Float[Array, "7"]


def relative_pose_from(contact: ConvexShapeContact, right_hand_side: FloatLike) -> PlacedPose:
    """The pair and the relative pose that the eight numbers of a `ConvexShapeContactHold` stand for.

    The place is taken from the complement if the second and third number of the contact are exactly zero (inside), and from
    these two otherwise. The x of the pose is the first number less the margin, so that it is the value of a hold at which the
    object lies in that pose.

    **Arguments:** `right_hand_side` (8,).
    """
    rhs = check_shape("right_hand_side", right_hand_side, (8,), dtype=contact.model.dtype)
    pair = rhs[5:7] / (2 * contact.radius)
    whole = jnp.floor(pair + 0.5)
    inside = (rhs[1] == 0) & (rhs[2] == 0)
    sideways = jnp.where(inside, rhs[5:7] - 2 * contact.radius * whole, rhs[1:3])
    turn = jnp.stack([rhs[7], rhs[3], rhs[4]])
    pose = jnp.concatenate([rhs[:1] - contact.margin, sideways, so3.quaternion_exp(turn)])
    number = whole.astype(jnp.int32)
    last = np.asarray([len(contact.floors) - 1, len(contact.objects) - 1], dtype=np.int32)
    number = jnp.clip(number, 0, last)
    return PlacedPose(number[0], number[1], pose)


class _Place(eqx.Module):
    """Coordinates of the free-flyer that carries all objects, from the eight numbers and where the floor is."""

    contact: ConvexShapeContact
    joint: int = eqx.field(static=True)

    def __call__(self, q: Array, right_hand_side: Array) -> Array:
        contact, model = self.contact, self.contact.model
        kin = forward_kinematics(model, q)
        floor, thing, element = relative_pose_from(contact, right_hand_side)
        pose = SE3.from_quaternion(element[3:], element[:3])
        there = pick(surfaces(model, kin, contact.floors).poses, floor)
        shapes = surfaces(model, kin, contact.objects)
        own = pick(shapes.geometry.pose, thing)
        frames = [attachment(model, shape.frame)[1] for shape in contact.objects]
        frame = SE3(jnp.stack([f.rotation for f in frames])[thing], jnp.stack([f.translation for f in frames])[thing])
        body = there @ pose @ (frame @ own).inverse()
        parent = model.tree.parents[self.joint]
        carrier = frame_poses(model, kin, [None if parent < 0 else model.tree.body_names[parent]])
        at = SE3(model.joint_placement.rotation[self.joint], model.joint_placement.translation[self.joint])
        moved = (SE3(carrier.rotation[0], carrier.translation[0]) @ at).inverse() @ body
        return jnp.concatenate([moved.translation, so3.to_quaternion(moved.rotation)])


def explicit_hold(contact: ConvexShapeContact) -> Explicit:
    """The hold of a contact as a constraint solved for the pose of the objects: five numbers equal to zero, three free.

    **Raises:** `InputError` if the objects are not all on one body that a floating joint moves, or a floor hangs on it.
    """
    tree = contact.model.tree
    bodies = carriers(tree, contact.objects)
    if len(bodies) != 1 or bodies[0] < 0 or tree.joint_types[bodies[0]] != "floating":
        kinds = ["world" if b < 0 else f"{tree.joint_names[b]} ({tree.joint_types[b]})" for b in bodies]
        raise InputError(f"objects: all must be on one body that a floating joint moves, given joints {kinds}.")
    joint = bodies[0]
    for body in carriers(tree, contact.floors):
        if body >= 0 and tree.ancestors[body][joint]:
            raise InputError(
                f"floors: the body {tree.body_names[body]!r} moves with the objects, so it cannot decide where they are."
            )
    comparison = 5 * [Comparison.EQUAL_TO_ZERO] + 3 * [Comparison.EQUALITY]
    hold = Implicit(ConvexShapeContactHold(contact), comparison)
    start = tree.q_offset[joint]
    return Explicit(hold, tuple(range(start, start + 7)), _Place(contact, joint))


def create_constraint_and_complement(
    name: str, model: Model, floors: Sequence[Any], objects: Sequence[Any], **options: Any
) -> tuple[Implicit, Implicit, Explicit]:
    """The contact (equal to zero), its complement (with a right-hand side), and the hold solved for the objects' pose.

    **Arguments:** as for `ConvexShapeContact`.

    **Raises:** as `ConvexShapeContact` and `explicit_hold`.
    """
    contact, complement = create_pair(name, model, floors, objects, **options)
    return Implicit(contact), Implicit(complement, Comparison.EQUALITY), explicit_hold(contact)
