"""A model in pieces, for editing: `take_apart`, change, `put_together`. Every number stays a JAX array, so what the
edit computes can be differentiated and compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import InputError, listing
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.joints import neutral_of
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.tree import JOINT_SIZES, ShapeInfo, Tree

OF_COORDINATES = ("lower", "upper")
OF_VELOCITIES = ("armature", "damping", "friction", "velocity_limit", "effort_limit")
OF_SPRINGS = ("stiffness", "spring_reference")
"""Leaves, of velocities and of coordinates, that a model may lack."""


@dataclasses.dataclass(slots=True)
class Body:
    """A body with the joint that moves it; `sides`: the joint's parts of the leaves `OF_COORDINATES`,
    `OF_VELOCITIES` and, if the model has them, `OF_SPRINGS`, empty for a follower; `follows`: name of its leader,
    ratio, offset."""

    name: str
    joint: str
    kind: str
    parent: int
    placement: SE3
    axis: jax.Array
    inertia: SpatialInertia
    sides: dict[str, jax.Array]
    follows: tuple[str, jax.Array, jax.Array] | None = None


@dataclasses.dataclass(slots=True)
class Frame:
    """A named frame on a body (-1: the world)."""

    name: str
    body: int
    placement: SE3


@dataclasses.dataclass(slots=True)
class Solid:
    """A shape; `placement` is its pose in its body."""

    info: ShapeInfo
    placement: SE3
    size: jax.Array
    color: jax.Array


@dataclasses.dataclass(slots=True)
class Parts:
    """Bodies with parents first, frames other than the bodies' own, shapes, gravity."""

    bodies: list[Body]
    frames: list[Frame]
    shapes: list[Solid]
    gravity: jax.Array


def _item(stack, i: int):
    return jax.tree.map(lambda leaf: leaf[i], stack)


def take_apart(model: Model) -> Parts:
    """The pieces of a model."""
    check_model(model)
    tree = model.tree
    number = {joint: (k, leader) for k, (joint, leader) in enumerate(tree.followers)}
    bodies = []
    for i in range(tree.n_bodies):
        q, v = tree.q_offset[i], tree.v_offset[i]
        sides = {name: getattr(model, name)[q : q + tree.joint_nq[i]] for name in OF_COORDINATES}
        sides |= {name: getattr(model, name)[v : v + tree.joint_nv[i]] for name in OF_VELOCITIES}
        if model.stiffness is not None:
            sides["stiffness"] = model.stiffness[v : v + tree.joint_nv[i]]
        if model.spring_reference is not None:
            sides["spring_reference"] = model.spring_reference[q : q + tree.joint_nq[i]]
        follows = None
        if i in number and model.follower_ratio is not None and model.follower_offset is not None:
            k, leader = number[i]
            follows = tree.joint_names[leader], model.follower_ratio[k], model.follower_offset[k]
        bodies.append(
            Body(
                tree.body_names[i],
                tree.joint_names[i],
                tree.joint_types[i],
                tree.parents[i],
                _item(model.joint_placement, i),
                model.joint_axis[i],
                _item(model.inertia, i),
                sides,
                follows,
            )
        )
    frames = [
        Frame(tree.frame_names[i], tree.frame_bodies[i], _item(model.frame_placement, i))
        for i in range(tree.n_bodies, tree.n_frames)
    ]
    shapes = [
        Solid(info, _item(model.shape_placement, i), model.shape_size[i], model.shape_color[i])
        for i, info in enumerate(tree.geometry)
    ]
    return Parts(bodies, frames, shapes, model.gravity)


def put_together(parts: Parts) -> Model:
    """The model of the pieces.

    **Raises:** `InputError` if two joints or two frames have one name.
    """
    bodies, dtype = parts.bodies, parts.gravity.dtype
    frames = [Frame(body.name, i, SE3.identity(dtype=dtype)) for i, body in enumerate(bodies)] + parts.frames
    for kind, names in (("joints", [b.joint for b in bodies]), ("frames", [f.name for f in frames])):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"two {kind} would have the same name: {listing(twice)}; a prefix keeps them apart.")
    index = {body.joint: i for i, body in enumerate(bodies)}
    couplings = [(i, index[b.follows[0]], *b.follows[1:]) for i, b in enumerate(bodies) if b.follows is not None]
    tree = Tree(
        joint_names=tuple(b.joint for b in bodies),
        joint_types=tuple(b.kind for b in bodies),
        parents=tuple(b.parent for b in bodies),
        body_names=tuple(b.name for b in bodies),
        frame_names=tuple(f.name for f in frames),
        frame_bodies=tuple(f.body for f in frames),
        geometry=tuple(s.info for s in parts.shapes),
        followers=tuple((joint, leader) for joint, leader, _, _ in couplings),
    )

    def stacked(items: Sequence, *shape: int) -> jax.Array:
        return jnp.stack([jnp.asarray(x, dtype) for x in items]) if items else jnp.zeros((0, *shape), dtype)

    def poses(items: Sequence[SE3]) -> SE3:
        return SE3(stacked([p.rotation for p in items], 3, 3), stacked([p.translation for p in items], 3))

    def side(name: str) -> jax.Array:
        return jnp.concatenate([jnp.zeros(0, dtype), *(b.sides[name].astype(dtype) for b in bodies)])

    def spring(name: str) -> jax.Array | None:
        if not any(name in b.sides for b in bodies):
            return None
        none = {
            b.joint: np.zeros(JOINT_SIZES[b.kind][1]) if name == "stiffness" else neutral_of(b.kind) for b in bodies
        }
        own = [b.sides.get(name, none[b.joint]) for b in bodies if b.follows is None]
        return jnp.concatenate([jnp.asarray(x, dtype) for x in own])

    return Model(
        tree=tree,
        joint_placement=poses([b.placement for b in bodies]),
        joint_axis=stacked([b.axis for b in bodies], 3),
        inertia=SpatialInertia(
            stacked([b.inertia.mass for b in bodies]),
            stacked([b.inertia.com for b in bodies], 3),
            stacked([b.inertia.inertia for b in bodies], 3, 3),
        ),
        gravity=parts.gravity,
        frame_placement=poses([f.placement for f in frames]),
        shape_placement=poses([s.placement for s in parts.shapes]),
        shape_size=stacked([s.size for s in parts.shapes], 3),
        shape_color=stacked([s.color for s in parts.shapes], 4),
        follower_ratio=stacked([ratio for _, _, ratio, _ in couplings]) if couplings else None,
        follower_offset=stacked([offset for _, _, _, offset in couplings]) if couplings else None,
        **{name: spring(name) for name in OF_SPRINGS},
        **{name: side(name) for name in (*OF_COORDINATES, *OF_VELOCITIES)},
    )


def moved(parts: Parts, poses: dict[int, tuple[int, SE3]]) -> tuple[list[Frame], list[Solid]]:
    """Frames and shapes after their bodies became part of others: old body -> (new body, its pose there). Bodies that
    are not in `poses` keep number and frame."""

    def at(body: int, placement: SE3) -> tuple[int, SE3]:
        if body not in poses:
            return body, placement
        new, pose = poses[body]
        return new, pose @ placement

    frames = [Frame(f.name, *at(f.body, f.placement)) for f in parts.frames]
    shapes = []
    for s in parts.shapes:
        body, placement = at(s.info.body, s.placement)
        shapes.append(Solid(dataclasses.replace(s.info, body=body), placement, s.size, s.color))
    return frames, shapes
