"""A `Model` as a description in code, and as a URDF file."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxdyn.errors import InputError, is_concrete
from jaxdyn.model.builder import ModelBuilder
from jaxdyn.model.description import inverse_pose, unused_name
from jaxdyn.model.model import Model, check_model


def to_builder(model: Model, name: str = "robot") -> ModelBuilder:
    """A `ModelBuilder` that builds this model, to be added to or written as a file.

    A robot whose one root joint is floating, with nothing fixed to the world, is described without that joint:
    build it with `root="floating"`. Any other is described from a link that stands for the world. Bodies carry what was
    lumped into them; links without mass of their own stay as fixed frames. Of joints with several degrees of freedom
    the first one's damping, friction, armature and stiffness are taken for all. Numbers of a root joint that is left out
    (its spring, its damping) are not kept.

    **Raises:** `InputError` under `jit`, `vmap` or `grad`, where the numbers cannot be read.
    """
    check_model(model)
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves(model)):
        raise InputError("to_builder: the model's numbers cannot be read under jit, vmap or grad.")
    tree, builder = model.tree, ModelBuilder(name)
    frames = _poses(model.frame_placement)
    of_world = [i for i, body in enumerate(tree.frame_bodies) if body < 0]
    free = tree.parents.count(-1) == 1 and tree.joint_types[0] == "floating" and not of_world
    free = (
        free and all(s.body >= 0 for s in tree.geometry) and np.array_equal(_poses(model.joint_placement)[0], np.eye(4))
    )
    # the world: a link that is welded there at the origin, if there is one
    root = next((tree.frame_names[i] for i in of_world if np.array_equal(frames[i], np.eye(4))), None)
    if root is None:
        root = unused_name("world", dict.fromkeys(tree.frame_names))
    if not free:
        builder.add_link(root)
    mass, com, inertia = (np.asarray(x, float) for x in (model.inertia.mass, model.inertia.com, model.inertia.inertia))
    followers = {joint: (k, leader) for k, (joint, leader) in enumerate(tree.followers)}
    joint_poses = _poses(model.joint_placement)
    for i, body in enumerate(tree.body_names):
        massive = mass[i] != 0 or bool(np.any(inertia[i]))
        builder.add_link(body, *((mass[i], com[i], inertia[i]) if massive else ()))
        if free and i == 0:
            continue
        parent = root if tree.parents[i] < 0 else tree.body_names[tree.parents[i]]
        builder.add_joint(
            tree.joint_names[i],
            tree.joint_types[i],
            parent,
            body,
            joint_poses[i],
            np.asarray(model.joint_axis[i], float),
            mimic=_mimic(model, followers.get(i)),
            **_sides(model, i),
        )
    for i in range(tree.n_bodies, tree.n_frames):
        if tree.frame_names[i] != root:
            body = tree.frame_bodies[i]
            builder.add_frame(tree.frame_names[i], root if body < 0 else tree.body_names[body], frames[i])
    places = _poses(model.shape_placement)
    for i, info in enumerate(tree.geometry):
        known = info.link in tree.frame_names
        link = info.link if known else root if info.body < 0 else tree.body_names[info.body]
        place = inverse_pose(frames[tree.frame(info.link)]) @ places[i] if known else places[i]
        size = np.asarray(model.shape_size[i], float)[: {"sphere": 1, "cylinder": 2, "capsule": 2}.get(info.kind, 3)]
        color = np.asarray(model.shape_color[i], float)
        builder.add_shape(
            link, info.kind, size, place, mesh=info.mesh or None, roles=(info.role,), color=color, name=info.name
        )
    return builder


def to_urdf(model: Model, name: str = "robot") -> str:
    """The model as the text of a URDF file; see `to_builder`. URDF has no place for armature, gravity, springs (a
    warning), and joints of type spherical, which only this library reads."""
    return to_builder(model, name).to_urdf()


def _poses(stack) -> np.ndarray:
    return np.asarray(stack.as_matrix(), dtype=float)


def _mimic(model: Model, follower: tuple[int, int] | None) -> tuple[str, float, float] | None:
    if follower is None or model.follower_ratio is None or model.follower_offset is None:
        return None
    k, leader = follower
    return model.tree.joint_names[leader], float(model.follower_ratio[k]), float(model.follower_offset[k])


def _sides(model: Model, joint: int) -> dict[str, Any]:
    tree = model.tree
    q, v = tree.q_offset[joint], tree.v_offset[joint]
    if tree.joint_nv[joint] == 0:  # a follower's are part of its leader's
        return {}
    sides: dict[str, Any] = {name: float(getattr(model, name)[v]) for name in ("damping", "friction", "armature")}
    if model.stiffness is not None:
        sides["stiffness"] = float(model.stiffness[v])
    if model.spring_reference is not None:
        sides["spring_reference"] = np.asarray(model.spring_reference[q : q + tree.joint_nq[joint]], float)
    if tree.joint_nq[joint] == 1:
        sides |= {"lower": float(model.lower[q]), "upper": float(model.upper[q])}
        sides |= {"effort": float(model.effort_limit[v]), "velocity": float(model.velocity_limit[v])}
    return sides
