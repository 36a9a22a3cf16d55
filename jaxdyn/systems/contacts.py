"""Contacts of a robot: from its state to the forces that the ground exerts on it.

Frames, laws and the way back to joint torques run in one kernel, batch last (see `jaxdyn.math.batching`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies, bodies_of
from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.contact.anchors import settled_anchors
from jaxdyn.contact.compliant import Anchor, CompliantContact, contact_forces
from jaxdyn.contact.fields import cast
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import SE3, batching
from jaxdyn.math.batching import materialize
from jaxdyn.math.stacked import Stack, cross, join, matmul, matvec, take, total, transposed_matvec
from jaxdyn.model import Model
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import Tree

Contacts = tuple[CompliantContact, ...]


def checked_contacts(model: Model, contacts: Any) -> Contacts:
    """The contacts, in the dtype of the model.

    **Raises:** `InputError` if one is not a `CompliantContact`, or its frame does not exist or is fixed to the world.
    """
    contacts = (contacts,) if isinstance(contacts, CompliantContact) else tuple(contacts)
    for contact in contacts:
        if not isinstance(contact, CompliantContact):
            raise InputError(f"contacts: wanted CompliantContact objects, given {type(contact).__name__}.")
        try:
            frame = model.frame(contact.frame)
        except UnknownNameError as error:
            raise InputError(f"contacts: {error}") from None
        if model.tree.frame_bodies[frame] < 0:
            raise InputError(
                f"contacts: the frame {contact.frame!r} is fixed to the world; no force there moves the robot."
            )
    return cast(contacts, model.dtype)


class Base(NamedTuple):
    """Where the axes in which a robot is computed lie in the world: rotation, its cofactors (see `floating_base`), and
    position."""

    rotation: Array
    cofactors: Array
    position: Array


class Frames(NamedTuple):
    """Contact frames in the world, stacked: (c, 3, 3), (c, 3), and their MIXED twists (c, 3), (c, 3)."""

    rotation: Array
    position: Array
    linear: Array
    angular: Array


def _in_the_world(
    tree: Tree, bodies: np.ndarray, at: world.Geometry, twist: Stack, placement: SE3, base: Base | tuple[()]
) -> tuple[Stack, Frames]:
    """The frames' positions from the point O in the robot's axes, and the frames in the world."""
    ranks = schedule(tree).body_rank[bodies]
    rotation, speed = take(at.rotation, ranks), take(twist, ranks)
    arm = materialize(take(at.position, ranks) + matvec(rotation, placement.translation))
    rotation = matmul(rotation, placement.rotation)
    linear, angular = speed[:, :3] + cross(speed[:, 3:], arm), speed[:, 3:]
    position = arm + at.origin[None]
    if not base:
        return arm, Frames(rotation, position, linear, angular)
    turn = base.rotation[None]
    linear, rotation = materialize(linear), materialize(rotation)
    return arm, Frames(
        materialize(matmul(turn, rotation)),
        materialize(base.position[None] + matvec(turn, position)),
        materialize(matvec(turn, linear)),
        materialize(matvec(turn, angular)),
    )


def _frames_kernel(
    static, bodies: Bodies, q: Configuration, v: Stack, placement: SE3, base: Base | tuple[()]
) -> Frames:
    tree, carriers = static
    at = world.geometry(bodies, q)
    twist, _ = world.velocities(tree, at, v)
    return _in_the_world(tree, np.asarray(carriers, int), at, twist, placement, base)[1]


def generalized_contact_force(
    tree: Tree,
    carriers: tuple[int, ...],
    at: world.Geometry,
    twist: Stack,
    placement: SE3,
    base: Base | tuple[()],
    contacts: Contacts,
    terrain: Terrain | tuple[()],
) -> Stack:
    """Generalised force (nv, B) of all contacts, inside a kernel.

    `carriers`: body of each contact; `at`, `twist`: the robot in its own axes; `placement`: of the frames in their bodies;
    `base`: those axes in the world, () if they are the world's; `terrain`: the ground, () if each contact has its own.
    """
    arm, frames = _in_the_world(tree, np.asarray(carriers, int), at, twist, placement, base)
    ground = jax.tree.map(lambda leaf: leaf[None], terrain) if isinstance(terrain, Terrain) else None
    force, moment = contact_forces(contacts, *frames, ground)
    if base:
        moment = transposed_matvec(base.rotation[None], moment)
        push = total(force[i] for i in range(len(contacts)))
        push = transposed_matvec((base.rotation - base.cofactors)[None], push[None])[0]
        force = transposed_matvec(base.cofactors[None], force)
    force = materialize(force)
    wrench = join([force, moment + cross(arm, force)], 1)
    result = world.joint_forces(tree, at, schedule(tree).sum_up(_on_bodies(tree, carriers, wrench)))
    if base:  # zero for a rotation
        result = join([result[:3] + push, result[3:]])
    return result


def _on_bodies(tree: Tree, carriers: tuple[int, ...], wrench: Stack) -> Stack:
    """The sum of the wrenches on each body, in the order of the schedule."""
    order = schedule(tree)
    members = {body: [i for i, c in enumerate(carriers) if c == body] for body in sorted(set(carriers))}
    if len(members) < len(carriers):
        wrench = jnp.stack([total(wrench[i] for i in m) for m in members.values()])
    else:
        wrench = take(wrench, [m[0] for m in members.values()])
    row = {body: i for i, body in enumerate(members)}
    padded = join([wrench, jnp.zeros_like(wrench[:1])])
    return take(padded, [row.get(int(body), len(row)) for body in order.bodies])


def _settle_kernel(static, contacts: Contacts, frames: Frames, terrain: Terrain | tuple[()]) -> tuple:
    ground = jax.tree.map(lambda leaf: leaf[None], terrain) if isinstance(terrain, Terrain) else None
    return settled_anchors(contacts, *frames, ground)


_frames = batching.batch_last(_frames_kernel)
_settle = batching.batch_last(_settle_kernel)


def settled(
    contacts: Contacts, poses: SE3, twists: Float[Array, "contacts 6"], terrain: Terrain | None
) -> tuple[Anchor, ...]:
    """The anchors of contacts at the end of a step, their frames at `poses` with MIXED `twists`."""
    frames = Frames(poses.rotation, poses.translation, twists[:, :3], twists[:, 3:])
    return tuple(Anchor(*parts) for parts in _settle((), contacts, frames, () if terrain is None else terrain))


def contact_placements(model: Model, contacts: Contacts) -> tuple[tuple[Tree, tuple[int, ...]], SE3]:
    """The tree with the body of each contact, both static; and the contacts' frames in these bodies."""
    frames = np.asarray([model.frame(c.frame) for c in contacts], dtype=int)
    carriers = tuple(model.tree.frame_bodies[i] for i in frames)
    placement = jax.tree.map(lambda leaf: leaf[frames], model.frame_placement)
    return (model.tree, carriers), placement


@through_followers()
def contact_frames(
    model: Model, contacts: Contacts, q: Configuration, v: Float[Array, " nv"], base: Base | None
) -> Frames:
    """The contacts' frames in the world."""
    static, placement = contact_placements(model, contacts)
    return _frames(static, bodies_of(model), q, v, placement, base or ())
