"""Frames and points fixed to bodies: where they are, how they move, and which joints decide it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms.jacobians import at_point
from jaxdyn.algorithms.kinematics import Kinematics, body_pose
from jaxdyn.errors import FloatLike, InputError, check_shape, unknown_name
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import rotate_back
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


def attachment(model: Model, name: str | None) -> tuple[int, SE3]:
    """The body (-1: the world) that carries a frame, and the frame's pose in it, for the name of a frame or, where no frame
    has it, of the joint that moves the body; None is the world.

    **Raises:** `UnknownNameError` with the nearest names of both kinds.
    """
    if name is None:
        return -1, SE3.identity(dtype=model.dtype)
    body = attached_body(model.tree, name)
    if name in model.tree.frame_names:
        i = model.tree.frame(name)
        return body, SE3(model.frame_placement.rotation[i], model.frame_placement.translation[i])
    return body, SE3.identity(dtype=model.dtype)


def attached_body(tree: Tree, name: str | None) -> int:
    """The body (-1: the world) that carries a frame; see `attachment`."""
    if name is None:
        return -1
    if not isinstance(name, str):
        raise InputError(f"frame: wanted the name of a frame or joint, or None for the world, given {name!r}.")
    if name in tree.frame_names:
        return tree.frame_bodies[tree.frame(name)]
    if name in tree.joint_names:
        return tree.joint(name)
    raise unknown_name(
        "frame or joint", name, [*tree.frame_names, *(n for n in tree.joint_names if n not in tree.frame_names)]
    )


def attached_pose(model: Model, kin: Kinematics, name: str | None, placement: SE3) -> SE3:
    """Pose in the world of what is placed at `placement` in a frame, joint or the world."""
    body, frame = attachment(model, name)
    inner = placement if name is None else frame @ placement
    return inner if body < 0 else body_pose(model, kin, body) @ inner


def motion_of(model: Model, kin: Kinematics, body: int, point: Float[Array, "3"]) -> Float[Array, "6 nv"]:
    """Jacobian, in world axes, of the point of a body (-1: the world) that is at `point` now."""
    if body < 0:
        return jnp.zeros((6, model.nv), kin.origin.dtype)
    return at_point(model, kin, body, point)


def relative_motion(
    model: Model, kin: Kinematics, body: int, reference: int, point: Float[Array, "3"], axes: Float[Array, "3 3"]
) -> Float[Array, "6 nv"]:
    """Jacobian of the point of `body` at `point`, as seen from the body `reference`: linear and angular velocity in `axes`
    (a rotation to world coordinates)."""
    if body == reference:
        return jnp.zeros((6, model.nv), kin.origin.dtype)
    moved = (motion_of(model, kin, body, point) - motion_of(model, kin, reference, point)).T
    return jnp.concatenate([rotate_back(axes, moved[:, :3]), rotate_back(axes, moved[:, 3:])], axis=1).T


def as_placement(name: str, placement: SE3 | FloatLike | None, model: Model) -> SE3:
    """A pose from a pose, a point (3,) or nothing.

    **Raises:** `InputError` for a wrong shape.
    """
    if placement is None:
        return SE3.identity(dtype=model.dtype)
    if isinstance(placement, SE3):
        check_shape(f"{name}.rotation", placement.rotation, (3, 3))
        check_shape(f"{name}.translation", placement.translation, (3,))
        return placement
    point = check_shape(name, placement, (3,), dtype=model.dtype)
    return SE3(jnp.eye(3, dtype=point.dtype), point)


def joints_between(tree: Tree, a: int, b: int) -> tuple[int, ...]:
    """The joints on the way between two bodies (-1: the world): those that move one and not the other; of joints that
    follow others, their leaders."""

    def above(body: int) -> set[int]:
        return set() if body < 0 else set(np.flatnonzero(tree.ancestors[body]).tolist())

    return tuple(sorted({tree.leading_joint[i] for i in above(a) ^ above(b)}))


def coordinate_mask(tree: Tree, joints: tuple[int, ...]) -> np.ndarray:
    """bool (nq,): the coordinates of some joints."""
    return _mask(joints, tree.q_offset, tree.joint_nq, tree.nq)


def velocity_mask(tree: Tree, joints: tuple[int, ...]) -> np.ndarray:
    """bool (nv,): the degrees of freedom of some joints."""
    return _mask(joints, tree.v_offset, tree.joint_nv, tree.nv)


def _mask(joints: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...], total: int) -> np.ndarray:
    mask = np.zeros(total, dtype=bool)
    for i in joints:
        mask[offsets[i] : offsets[i] + sizes[i]] = True
    return mask
