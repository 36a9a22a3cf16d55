"""Sparse Jacobians of points, bodies and frames, from the motion axes that `forward_kinematics` returns: only the
columns between the body and the world are computed."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxdyn.algorithms.coupled import check_kinematics
from jaxdyn.algorithms.jacobians import axis_rates
from jaxdyn.algorithms.kinematics import Kinematics, frame_index, frame_point, frame_pose, frame_velocity, needed
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.math.so3 import cross, rotate_back
from jaxdyn.math.spatial import Representation, check_representation
from jaxdyn.model.followers import free_model, projection
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


def sparse_frame_jacobian(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> SparseJacobian:
    """Jacobian of a frame, (6, nv) [linear, angular]: the columns of `frame_jacobian` that move the frame.

    **Raises:** `UnknownNameError`.
    """
    check_representation(representation)
    idx = _support(model, frame)
    if representation is Representation.WORLD:
        return _made(model, idx, *_about(kin, idx, jnp.zeros_like(kin.origin)))
    pose = frame_pose(model, kin, frame)
    linear, angular = _about(kin, idx, pose.translation)
    if representation is Representation.LOCAL:
        linear, angular = rotate_back(pose.rotation, linear), rotate_back(pose.rotation, angular)
    return _made(model, idx, linear, angular)


def sparse_point_jacobian(
    model: Model, kin: Kinematics, frame: str | int, point: FloatLike, *, in_world: bool = False
) -> SparseJacobian:
    """Jacobian (3, nv) of a point fixed to a frame, whose velocity in the world is J v. RaiSim: `getSparseJacobian`.

    **Arguments:** `point` (3,) m, in the frame, or with `in_world` where it is in the world now.

    **Raises:** `UnknownNameError`, `InputError`.
    """
    idx, at = _support(model, frame), _point(model, kin, frame, point, in_world)
    return _made(model, idx, _about(kin, idx, at)[0])


def sparse_rotational_jacobian(model: Model, kin: Kinematics, frame: str | int) -> SparseJacobian:
    """Jacobian (3, nv) of a frame's angular velocity in world axes. RaiSim: `getSparseRotationalJacobian`. Columns of
    joints that shift are zero, and stay.

    **Raises:** `UnknownNameError`.
    """
    idx = _support(model, frame)
    check_kinematics(model, kin)
    return _made(model, idx, kin.axes[_array(idx), 3:])


def sparse_relative_jacobian(
    model: Model, kin: Kinematics, frame: str | int, other: str | int, point: FloatLike | None = None
) -> SparseJacobian:
    """Jacobian (6, nv) of the motion of `frame` against `other`, in world axes, of the two points of their bodies that
    are at `point` (3,) in the world now (default: the origin of `frame`): what a loop closure holds at zero. Its
    columns are those that move either; ones that both share cancel to rounding.

    **Raises:** `UnknownNameError`, `InputError`.
    """
    at = frame_pose(model, kin, frame).translation
    if point is not None:
        at = check_shape("point", point, (3,), dtype=kin.origin.dtype)
    a, b = (_support(model, f) for f in (frame, other))
    return _made(model, a, *_about(kin, a, at)) - _made(model, b, *_about(kin, b, at))


def sparse_point_jacobian_dot(
    model: Model, kin: Kinematics, frame: str | int, point: FloatLike, *, in_world: bool = False
) -> SparseJacobian:
    """Time derivative of `sparse_point_jacobian`: the point's acceleration is J_dot v + J a. RaiSim:
    `getTimeDerivativeOfSparseJacobian`.

    **Raises:** `UnknownNameError`; `InputError`, also if `kin` was made without velocities.
    """
    idx, at = _support(model, frame), _point(model, kin, frame, point, in_world)
    twist = frame_velocity(model, kin, frame)
    arm = at - frame_pose(model, kin, frame).translation
    return _made(model, idx, _rates(model, kin, idx, at, twist[:3] + cross(twist[3:], arm))[0])


def sparse_rotational_jacobian_dot(model: Model, kin: Kinematics, frame: str | int) -> SparseJacobian:
    """Time derivative of `sparse_rotational_jacobian`. RaiSim: `getTimeDerivativeOfSparseRotationalJacobian`.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    idx = _support(model, frame)
    check_kinematics(model, kin)
    needed(kin.twist, "velocities", "v")
    if not idx:
        return _made(model, idx, kin.axes[:0, 3:])
    return _made(model, idx, axis_rates(free_model(model), kin)[_array(idx), 3:])


def sparse_body_jacobian(
    model: Model, kin: Kinematics, body: Int[Array, ""], point: FloatLike, *, rotational: bool = False
) -> SparseJacobian:
    """Jacobian (3, nv) of the point of a body that is at `point` (3,) in the world now, for a body chosen at run time
    (int32 (), -1: the world): indices are run-time, the capacity is that of the deepest body. With `rotational` (6,
    nv), angular velocity below.

    **Raises:** `InputError`.
    """
    check_kinematics(model, kin)
    point = check_shape("point", point, (3,), dtype=kin.origin.dtype)
    body = jnp.asarray(body)
    if body.ndim or not jnp.issubdtype(body.dtype, jnp.integer):
        raise InputError(
            f"body: wanted one integer, given {body.dtype} of shape {body.shape}; for names see sparse_point_jacobian."
        )
    table = _support_table(model.tree)
    body = jnp.clip(body.astype(jnp.int32), -1, model.n_bodies - 1)  # the last row, that of the world, is also at -1
    free, slot, idx, size = (jnp.asarray(part)[body] for part in table)
    axes = jnp.take(kin.axes, free, axis=0, mode="fill", fill_value=0)
    linear = axes[:, :3] + cross(axes[:, 3:], (point - kin.origin)[None])
    values = jnp.concatenate([linear, axes[:, 3:]], axis=1) if rotational else linear
    if model.tree.followers:
        ratio = jnp.sum(projection(model).astype(values.dtype), axis=1)  # each row has one entry
        values = values * jnp.take(ratio, free, mode="fill", fill_value=0)[:, None]
        values = jnp.zeros((len(idx), values.shape[1]), values.dtype).at[slot].add(values, mode="drop")
    return SparseJacobian.from_values(values.T, idx, model.nv, size=size)


@functools.lru_cache(maxsize=256)
def _support_table(tree: Tree) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each body, and in a last row for the world: the degrees of freedom that move it, of the robot with all joints
    free; which of its columns each adds to; the degrees of freedom of these columns, those of the leaders; their
    number. The first three are padded with numbers that are out of range."""
    support = [np.flatnonzero(row) for row in tree.free.dof_support]
    led = [[_leading_dof(tree, int(k)) for k in dofs] for dofs in support]
    columns = [list(dict.fromkeys(row)) for row in led]
    deepest = max((len(s) for s in support), default=0), max((len(c) for c in columns), default=0)
    rows = tree.n_bodies + 1
    free, slot = np.full((rows, deepest[0]), tree.free.nv, np.int32), np.full((rows, deepest[0]), deepest[1], np.int32)
    idx = np.full((rows, deepest[1]), tree.nv, np.int32)
    for body, dofs in enumerate(support):
        free[body, : len(dofs)] = dofs
        slot[body, : len(dofs)] = [columns[body].index(k) for k in led[body]]
        idx[body, : len(columns[body])] = columns[body]
    return free, slot, idx, np.asarray([*(len(c) for c in columns), 0], np.int32)


def _leading_dof(tree: Tree, dof: int) -> int:
    """The degree of freedom that moves one of the robot with all joints free."""
    joint = tree.free.dof_body[dof]
    return tree.v_offset[tree.leading_joint[joint]] + dof - tree.free.v_offset[joint]


def _support(model: Model, frame: str | int) -> tuple[int, ...]:
    """Degrees of freedom, of the robot with all joints free, that move a frame."""
    _, body = frame_index(model, frame)
    return () if body < 0 else tuple(int(k) for k in np.flatnonzero(model.tree.free.dof_support[body]))


def _array(idx: tuple[int, ...]) -> np.ndarray:
    return np.asarray(idx, dtype=int)


def _point(model: Model, kin: Kinematics, frame: str | int, point: FloatLike, in_world: bool) -> Float[Array, "3"]:
    if in_world:
        return check_shape("point", point, (3,), dtype=kin.origin.dtype)
    return frame_point(model, kin, frame, point)


def _about(kin: Kinematics, idx: tuple[int, ...], point: Float[Array, "3"]) -> tuple[Array, Array]:
    """Linear velocity at a point of the world, and angular velocity, per unit of each degree of freedom."""
    axes = kin.axes[_array(idx)]
    angular = axes[:, 3:]
    return axes[:, :3] + cross(angular, (point - kin.origin)[None]), angular


def _rates(
    model: Model, kin: Kinematics, idx: tuple[int, ...], point: Float[Array, "3"], velocity: Float[Array, "3"]
) -> tuple[Array, Array]:
    """Time derivatives of `_about` at a point that moves with `velocity`."""
    if not idx:
        return kin.axes[:0, :3], kin.axes[:0, 3:]
    rates, axes = axis_rates(free_model(model), kin)[_array(idx)], kin.axes[_array(idx)]
    arm = (point - kin.origin)[None]
    return rates[:, :3] + cross(rates[:, 3:], arm) + cross(axes[:, 3:], velocity[None]), rates[:, 3:]


def _made(model: Model, idx: tuple[int, ...], *parts: Array) -> SparseJacobian:
    """From columns of the robot with all joints free: those of joints that follow others go to their leaders."""
    values, tree = jnp.concatenate(parts, axis=1).T, model.tree
    if not tree.followers:
        return SparseJacobian.from_values(values, idx, model.nv)
    led_by = [_leading_dof(tree, k) for k in idx]
    ratio = projection(model).astype(values.dtype)[_array(idx), _array(tuple(led_by))]
    return SparseJacobian.from_values(values * ratio[None], led_by, model.nv).summed()
