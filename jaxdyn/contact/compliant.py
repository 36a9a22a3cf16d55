"""`CompliantContact`: a surface with its anchor on a named frame of a robot."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import parameter
from jaxdyn.contact.laws import TractionLaw
from jaxdyn.contact.patch import ContactPoints, Surface
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import InputError
from jaxdyn.math.se3 import SE3

_IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


class CompliantContact(eqx.Module):
    """A compliant contact between a frame of the robot and the ground.

    **Arguments:** `frame`: name of the frame; `law`: a `ContactPatch` or `ContactPoints`, or a traction law, which then
    acts on the frame's origin alone; `null_position`, `null_rotation`: the anchor, the pose in the world in which a
    brush is unstressed; `active`: the wrench is multiplied by it: 0 takes the contact away without compiling anew.

    All but `frame` are leaves: they can be differentiated, batched and changed without compiling anew. For a law with
    regularised friction (`Coulomb`, ...) the anchor only stands for the ground's plane, and not even that if the system
    has a terrain.
    """

    frame: str = eqx.field(static=True)
    law: Surface
    null_position: Float[Array, "... 3"] = parameter("null_position", (3,), default=(0.0, 0.0, 0.0))
    null_rotation: Float[Array, "... 3 3"] = parameter("null_rotation", (3, 3), default=_IDENTITY)
    active: Float[Array, "..."] = parameter("active", default=1.0)

    def __init__(
        self, frame, law: Surface | TractionLaw, null_position=(0.0, 0.0, 0.0), null_rotation=_IDENTITY, active=1.0
    ):
        if not isinstance(frame, str):
            raise InputError(f"frame: wanted the name of a frame, given {frame!r}.")
        self.frame = frame
        self.law = ContactPoints(law) if isinstance(law, TractionLaw) else law
        self.null_position = null_position
        self.null_rotation = null_rotation
        self.active = active

    @property
    def null(self) -> SE3:
        """The anchor as a pose."""
        return SE3(self.null_rotation, self.null_position)

    def anchored(self, pose: SE3) -> CompliantContact:
        """The same contact with another anchor, for instance that of `touchdown_anchor`."""
        return eqx.tree_at(lambda c: (c.null_position, c.null_rotation), self, (pose.translation, pose.rotation))

    def wrench(self, pose: SE3, twist: Float[Array, "6"], terrain: Terrain | None = None) -> Float[Array, "6"]:
        """Wrench `[force, moment]` on the frame at `pose` with MIXED `twist`: world axes, moment about the frame's origin."""
        return self.active * self.law.wrench(pose, twist, self.null, terrain)


def contact_wrenches(
    contacts: tuple[CompliantContact, ...],
    poses: SE3,
    twists: Float[Array, "contacts 6"],
    terrain: Terrain | None = None,
) -> Float[Array, "contacts 6"]:
    """Wrenches of all contacts on their frames at `poses` (stacked) with MIXED `twists`.

    Contacts with the same kind of law are stacked and computed together, kind by kind.
    """
    groups: dict[object, list[int]] = {}
    for i, contact in enumerate(contacts):
        leaves, structure = jax.tree.flatten(contact.law)
        groups.setdefault((structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)), []).append(i)
    wrench = jax.vmap(CompliantContact.wrench, in_axes=(0, 0, 0, None))
    parts, order = [], []
    for members in groups.values():
        # The frames' names are static and differ: stack the leaves only. Nothing below reads the name.
        leaves = [jax.tree.leaves(contacts[i]) for i in members]
        structure = jax.tree.structure(contacts[members[0]])
        stacked = structure.unflatten([jnp.stack(column) for column in zip(*leaves, strict=True)])
        state = (poses, twists) if len(groups) == 1 else _rows((poses, twists), members)
        parts.append(wrench(stacked, *state, terrain))
        order += members
    if len(parts) == 1:
        return parts[0]
    return jnp.concatenate(parts)[np.argsort(np.asarray(order))]


def _rows(tree: Any, rows: list[int]) -> Any:
    index = np.asarray(rows)
    return jax.tree.map(lambda x: x[index], tree)
