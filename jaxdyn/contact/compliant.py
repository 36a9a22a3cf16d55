"""`CompliantContact`: a surface with its anchor on a named frame of a robot."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import parameter
from jaxdyn.contact.laws import TractionLaw
from jaxdyn.contact.patch import ContactPoints, Matrices, Motion, Surface, Vectors
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.math.se3 import SE3
from jaxdyn.math.stacked import join, pile, take

_IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


class Anchor(eqx.Module):
    """Where a contact is held: `position` (3,), `rotation` (3, 3), the pose in the world in which a brush is unstressed;
    `slip` (n, 3), how far each point's own anchor has slid from there, or None if anchors do not slide; `held`, for a law
    that pulls, 1 while some point is below the ground and 0 once all are above, or None for a law that only pushes."""

    position: Float[Array, "... 3"] = parameter("position", (3,))
    rotation: Float[Array, "... 3 3"] = parameter("rotation", (3, 3))
    slip: Float[Array, "... n 3"] | None = eqx.field(default=None, metadata={"rank": 2})
    held: Float[Array, "..."] | None = eqx.field(default=None, metadata={"rank": 0})


class CompliantContact(eqx.Module):
    """A compliant contact between a frame of the robot and the ground.

    **Arguments:** `frame`: name of the frame; `law`: a `ContactPatch` or `ContactPoints`, or a traction law, which then
    acts on the frame's origin alone; `null_position`, `null_rotation`: the anchor, the pose in the world in which a
    brush is unstressed; `active`: the wrench is multiplied by it: 0 takes the contact away without compiling anew;
    `slip`: (n, 3), for a law with anchors that slide, how far the anchors of its n points are from their places on the
    anchored sole, world axes, m; default 0.

    All but `frame` are leaves: they can be differentiated, batched and changed without compiling anew. For a law with
    regularised friction (`Coulomb`, ...) the anchor only stands for the ground's plane, and not even that if the system
    has a terrain.
    """

    frame: str = eqx.field(static=True)
    law: Surface
    null_position: Float[Array, "... 3"] = parameter("null_position", (3,), default=(0.0, 0.0, 0.0))
    null_rotation: Float[Array, "... 3 3"] = parameter("null_rotation", (3, 3), default=_IDENTITY)
    active: Float[Array, "..."] = parameter("active", default=1.0)
    slip: Float[Array, "... n 3"] | None = eqx.field(default=None, metadata={"rank": 2})

    def __init__(
        self,
        frame,
        law: Surface | TractionLaw,
        null_position=(0.0, 0.0, 0.0),
        null_rotation=_IDENTITY,
        active=1.0,
        slip: FloatLike | None = None,
    ):
        if not isinstance(frame, str):
            raise InputError(f"frame: wanted the name of a frame, given {frame!r}.")
        if not isinstance(law, Surface | TractionLaw):
            raise InputError(
                f"law: wanted a ContactPatch, ContactPoints or a law such as SmoothCoulomb, given {law!r:.60}."
            )
        self.frame = frame
        self.law = ContactPoints(law) if isinstance(law, TractionLaw) else law
        self.null_position = null_position
        self.null_rotation = null_rotation
        self.active = active  # pyright: ignore (the field converts it)
        traction = getattr(self.law, "traction", None)
        if traction is not None and traction.slides:
            n = self.law.n_nodes
            hint = f"One row for each of the {n} points of the law."
            like = jax.tree.leaves(traction)[0]
            self.slip = jnp.zeros((n, 3), like.dtype) if slip is None else check_shape("slip", slip, (n, 3), hint)
        elif slip is not None:
            raise InputError("slip: only a law with anchors that slide has one, such as StickSlip.")
        else:
            self.slip = None

    @property
    def null(self) -> SE3:
        """The anchor as a pose."""
        return SE3(self.null_rotation, self.null_position)

    def anchored(self, pose: SE3) -> CompliantContact:
        """The same contact with another anchor, for instance that of `touchdown_anchor`."""
        return eqx.tree_at(lambda c: (c.null_position, c.null_rotation), self, (pose.translation, pose.rotation))

    @property
    def anchor(self) -> Anchor:
        """All that the contact remembers of where it is held."""
        traction = getattr(self.law, "traction", None)
        held = jnp.ones_like(self.active) if traction is not None and traction.pulls else None
        return Anchor(self.null_position, self.null_rotation, self.slip, held)

    def with_anchor(self, anchor: Anchor) -> CompliantContact:
        """The same contact with its springs tied where `anchor` says, whether it is held or not."""
        new = self.anchored(SE3(anchor.rotation, anchor.position))
        return new if self.slip is None else eqx.tree_at(lambda c: c.slip, new, anchor.slip)

    def wrench(self, pose: SE3, twist: Float[Array, "6"], terrain: Terrain | None = None) -> Float[Array, "6"]:
        """Wrench `[force, moment]` on the frame at `pose` with MIXED `twist`: world axes, moment about the frame's origin."""
        return self.active * self.law.wrench(pose, twist, self.null, terrain, self.slip)


def grouped(
    contacts: tuple[CompliantContact, ...], frames: tuple[Matrices, Vectors, Vectors, Vectors]
) -> list[tuple[list[int], CompliantContact, Motion]]:
    """Contacts with the same kind of law, stacked: their numbers, the stack, and how it moves."""
    groups: dict[object, list[int]] = {}
    for i, contact in enumerate(contacts):
        leaves, structure = jax.tree.flatten(contact.law)
        shapes = tuple((leaf.shape[:-1], leaf.dtype) for leaf in leaves)
        groups.setdefault((structure, shapes), []).append(i)
    result = []
    for members in groups.values():
        # The frames' names are static and differ: stack the leaves only. Nothing below reads the name.
        columns = zip(*(jax.tree.leaves(contacts[i]) for i in members), strict=True)
        stacked = jax.tree.structure(contacts[members[0]]).unflatten([pile(column) for column in columns])
        rows = np.asarray(members)
        r, p, v, w = frames if len(groups) == 1 else (take(x, rows) for x in frames)
        motion = Motion(r, p, v, w, stacked.null_rotation, stacked.null_position, stacked.slip)
        result.append((members, stacked, motion))
    return result


def contact_forces(
    contacts: tuple[CompliantContact, ...],
    rotation: Matrices,
    position: Vectors,
    linear: Vectors,
    angular: Vectors,
    terrain: Terrain | None,
) -> tuple[Vectors, Vectors]:
    """Forces and moments of the ground on the frames of all contacts, stacked along the first axis.

    World axes, moments about the frames' origins. Every leaf, of the contacts too, has the batch's axis at the end, of length
    one where it is shared; `terrain` is as `Terrain.query` wants it. Contacts with the same kind of law are stacked
    and computed together, kind by kind.
    """
    parts, order = [], []
    for members, stacked, motion in grouped(contacts, (rotation, position, linear, angular)):
        force, moment = stacked.law.forces(motion, terrain)
        active = stacked.active[:, None]
        parts.append((active * force, active * moment))
        order += members
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(np.asarray(order))
    force, moment = (take(join(column), back) for column in zip(*parts, strict=True))
    return force, moment


def contact_wrenches(
    contacts: tuple[CompliantContact, ...],
    poses: SE3,
    twists: Float[Array, "contacts 6"],
    terrain: Terrain | None = None,
) -> Float[Array, "contacts 6"]:
    """Wrenches of all contacts on their frames at `poses` (stacked) with MIXED `twists`: world axes, moments about the
    frames' origins."""
    contacts, frames = jax.tree.map(lambda leaf: leaf[..., None], (contacts, (poses, twists)))
    pose, twist = frames
    ground = jax.tree.map(lambda leaf: leaf[None, ..., None], terrain)
    forces = contact_forces(contacts, pose.rotation, pose.translation, twist[:, :3], twist[:, 3:], ground)
    return join(forces, 1)[..., 0]
