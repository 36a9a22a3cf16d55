"""Anchors as state: how they are set at touch-down, slide, and are set anew.

| contact at the end of a step | `position`, `rotation` of its anchor |
|---|---|
| off, or no point below the ground | those of the sole, projected on the ground |
| some point below the ground | stay |

| point of a law with anchors that slide | its `slip` |
|---|---|
| off, or above the ground | leaves it unstressed |
| below the ground, friction inside the cone | stays |
| below the ground, friction at the cone | what the return mapping of the law says |

So the anchor of a foot in the air travels with it, and where the foot lands it is left behind. Of a law that pulls
(`Brush`), `held` says whether some point is below the ground, be the contact off or not.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxdyn.contact.compliant import CompliantContact, grouped
from jaxdyn.contact.laws import Nodes
from jaxdyn.contact.patch import Matrices, Motion, Surface, Vectors, displacements, law_per_point, node_states
from jaxdyn.contact.terrain import Terrain, standing_axes
from jaxdyn.math.stacked import dot


def settled_anchors(
    contacts: tuple[CompliantContact, ...],
    rotation: Matrices,
    position: Vectors,
    linear: Vectors,
    angular: Vectors,
    terrain: Terrain | None,
) -> tuple[tuple[Array, Array, Array | None, Array | None], ...]:
    """Position, rotation, slip and `held` of the anchors that contacts have at the end of a step; see the module's text.

    Arguments as of `contact_forces`, everything batch last. A contact with `active` 0 is off.
    """
    anchors: dict[int, tuple[Array, Array, Array | None, Array | None]] = {}
    for members, stacked, motion in grouped(contacts, (rotation, position, linear, angular)):
        r, p, slip, held = _settled(stacked.law, motion, stacked.active > 0, terrain)
        for k, i in enumerate(members):
            anchors[i] = p[k], r[k], None if slip is None else slip[k], None if held is None else held[k]
    return tuple(anchors[i] for i in range(len(contacts)))


def _settled(
    surface: Surface, motion: Motion, on: Bool[Array, "contacts #batch"], terrain: Terrain | None
) -> tuple[Matrices, Vectors, Float[Array, "contacts n 3 #batch"] | None, Float[Array, "contacts #batch"] | None]:
    points, _ = surface.nodes()
    contacts, n = points.shape[:2]
    nodes, _ = node_states(points, motion, terrain)
    below = (nodes.depth > 0).reshape(contacts, n, -1)
    touching = below & on[:, None]
    held = jnp.any(touching, axis=1)
    traction = getattr(surface, "traction", None)
    grip = jnp.any(below, axis=1).astype(nodes.depth.dtype) if traction is not None and traction.pulls else None
    below_rotation, below_position = _below(motion, terrain)
    null_rotation = jnp.where(held[:, None, None], motion.null_rotation, below_rotation)
    null_position = jnp.where(held[:, None], motion.null_position, below_position)
    if motion.slip is None:
        return null_rotation, null_position, None, grip

    def per_contact(stack: Array) -> Array:
        return stack.reshape(contacts, n, *stack.shape[1:])

    # from each point to where its anchor would be, had it not slid
    bare = displacements(
        points, Motion(motion.rotation, motion.position, motion.linear, motion.angular, null_rotation, null_position)
    )
    bare = bare - dot(bare, nodes.normal)[:, None] * nodes.normal
    sticks, kept = law_per_point(surface.traction, n).kept(  # pyright: ignore (surfaces with slip have a law)
        Nodes(nodes.displacement, nodes.velocity, nodes.depth, nodes.normal)
    )
    slid = jnp.where(per_contact(sticks)[:, :, None], motion.slip, per_contact(kept - bare))
    return null_rotation, null_position, jnp.where(touching[:, :, None], slid, -per_contact(bare)), grip


def _below(motion: Motion, terrain: Terrain | None) -> tuple[Matrices, Vectors]:
    """The poses of soles set down where they are: as `touchdown_anchor`, on the plane of the anchor if there is no
    terrain."""
    if terrain is None:
        normal = motion.null_rotation[:, :, 2]
        rise = dot(motion.null_position - motion.position, normal)
        position = motion.position + rise[:, None] * normal
    else:
        xy = motion.position[:, :2]
        position = jnp.concatenate([xy, (terrain.height(xy) + jnp.zeros_like(xy[:, 0]))[:, None]], axis=1)
        normal = terrain.query(position)[1]
    return standing_axes(motion.rotation, normal), position
