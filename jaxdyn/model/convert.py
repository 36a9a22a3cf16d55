"""States of the same robot in Pinocchio, MuJoCo and iDynTree, joint by joint, by name.

| | free-flyer `q` | its `v` [linear, angular] | one angle without limits |
|---|---|---|---|
| jaxdyn | position, quaternion wxyz | body axes (LOCAL) | the angle |
| Pinocchio | position, quaternion xyzw | body axes | cosine and sine |
| MuJoCo | position, quaternion wxyz | linear in world axes, angular in body axes | the angle |
| iDynTree | transform of the base | world axes (MIXED) | the angle |

The libraries' models are only asked for names and offsets: none is imported here. `to_...` return NumPy arrays in double
precision, `from_...` JAX arrays in the model's dtype. States may have leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, is_concrete, listing, suggestion
from jaxdyn.model.followers import free_coordinates, free_velocity
from jaxdyn.model.mjcf import joint_name
from jaxdyn.model.model import Model, check_model


class _Joint(NamedTuple):
    """A joint there: what its coordinates are, and where they start."""

    name: str
    style: str
    q: int
    nq: int
    v: int
    nv: int


class _There(NamedTuple):
    """Another library's robot."""

    library: str
    joints: list[_Joint]
    nq: int
    nv: int


# Pinocchio


def from_pinocchio(
    model: Model, pin_model: Any, q: FloatLike, v: FloatLike | None = None
) -> Float[Array, "..."] | tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The state (`q`, `v`), or `q` alone, of a `pinocchio.Model`, in the coordinates of `model`.

    Joints are matched by name; a floating root of either by its type. Joints that only Pinocchio has are left out,
    followers stand where their leaders put them.

    **Raises:** `InputError` for a joint that is missing there or of another type, or a wrong shape.
    """
    return _from(model, _pinocchio(pin_model), q, v)


def to_pinocchio(
    model: Model, pin_model: Any, q: FloatLike, v: FloatLike | None = None
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The state in the coordinates of a `pinocchio.Model`: the inverse of `from_pinocchio`.

    **Raises:** `InputError`; also for a joint that only Pinocchio has.
    """
    return _to(model, _pinocchio(pin_model), q, v)


def _pinocchio(pin_model: Any) -> _There:
    joints = []
    for name, joint in zip(list(pin_model.names)[1:], list(pin_model.joints)[1:], strict=True):
        short = joint.shortname().removeprefix("JointModel")
        if joint.nq == 0:  # a follower of a model read with mimic
            continue
        style = {
            "FreeFlyer": "free xyzw",
            "Spherical": "ball xyzw",
            "Planar": "planar",
        }.get(
            short, "circle" if (joint.nq, joint.nv) == (2, 1) else "line" if (joint.nq, joint.nv) == (1, 1) else short
        )
        joints.append(_Joint(name, style, joint.idx_q, joint.nq, joint.idx_v, joint.nv))
    return _There("Pinocchio", joints, pin_model.nq, pin_model.nv)


# MuJoCo


def from_mujoco(
    model: Model, mj_model: Any, q: FloatLike, v: FloatLike | None = None
) -> Float[Array, "..."] | tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The state (`qpos`, `qvel`), or `qpos` alone, of a `mujoco.MjModel`, in the coordinates of `model`.

    Arguments and errors as for `from_pinocchio`.
    """
    return _from(model, _mujoco(mj_model), q, v)


def to_mujoco(
    model: Model, mj_model: Any, q: FloatLike, v: FloatLike | None = None
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The state as `qpos` and `qvel` of a `mujoco.MjModel`: the inverse of `from_mujoco`.

    **Raises:** `InputError`; also for a joint that only MuJoCo has.
    """
    return _to(model, _mujoco(mj_model), q, v)


def _mujoco(mj_model: Any) -> _There:
    styles = (("free mujoco", 7, 6), ("ball wxyz", 4, 3), ("line", 1, 1), ("line", 1, 1))
    joints = []
    for j in range(mj_model.njnt):
        style, nq, nv = styles[int(mj_model.jnt_type[j])]
        at = int(mj_model.jnt_qposadr[j]), nq, int(mj_model.jnt_dofadr[j]), nv
        joints.append(_Joint(joint_name(mj_model, j), style, *at))
    return _There("MuJoCo", joints, mj_model.nq, mj_model.nv)


def keyframes(model: Model, mj_model: Any) -> dict[str, tuple[Float[Array, " nq"], Float[Array, " nv"]]]:
    """The keyframes of a `mujoco.MjModel` as states (`q`, `v`) of `model`, by name (`key0`, ... for those without)."""
    found = {}
    for k in range(mj_model.nkey):
        state = from_mujoco(model, mj_model, np.array(mj_model.key_qpos[k]), np.array(mj_model.key_qvel[k]))
        found[mj_model.key(k).name or f"key{k}"] = state
    return found


# iDynTree


def from_idyntree(
    model: Model,
    idyn_model: Any,
    base_pose: FloatLike,
    joint_position: FloatLike,
    base_twist: FloatLike | None = None,
    joint_velocity: FloatLike | None = None,
) -> Float[Array, "..."] | tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The state of an `idyntree.Model` in the coordinates of `model`: `q`, or (`q`, `v`) if velocities are given.

    **Arguments:** `base_pose` (4, 4) and `base_twist` (6,) MIXED of the default base link, which must be the root link
    of `model` (of a robot with a fixed root they are not looked at); `joint_position`, `joint_velocity` in the order
    of iDynTree's degrees of freedom.

    **Raises:** `InputError` as `from_pinocchio`, or for another base link.
    """
    check_model(model)
    there = _idyntree(model, idyn_model)
    pose = _numbers("base_pose", base_pose)
    _check(pose, (4, 4), "base_pose")
    s = _numbers("joint_position", joint_position)
    q = np.concatenate([pose[..., :3, 3], _quaternion(pose[..., :3, :3]), s], -1)
    if base_twist is None and joint_velocity is None:
        return _from(model, there, q, None)
    batch = s.shape[:-1]
    twist = np.zeros((*batch, 6)) if base_twist is None else _numbers("base_twist", base_twist)
    speed = np.zeros((*batch, s.shape[-1])) if joint_velocity is None else _numbers("joint_velocity", joint_velocity)
    _check(twist, (6,), "base_twist")
    return _from(model, there, q, np.concatenate([twist, speed], -1))


def to_idyntree(
    model: Model, idyn_model: Any, q: FloatLike, v: FloatLike | None = None
) -> tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The state for an `idyntree.Model`: `base_pose` (4, 4) and `joint_position`, with velocities also `base_twist` (6,)
    MIXED and `joint_velocity`: the inverse of `from_idyntree`. The base of a fixed root stands at the origin.

    **Raises:** `InputError`.
    """
    check_model(model)
    there = _idyntree(model, idyn_model)
    state = _to(model, there, q, v)
    position = state if v is None else state[0]
    pose = np.zeros((*position.shape[:-1], 4, 4))
    pose[..., :3, :3], pose[..., :3, 3], pose[..., 3, 3] = _rotation(position[..., 3:7]), position[..., :3], 1.0
    if v is None:
        return pose, position[..., 7:]
    return pose, position[..., 7:], state[1][..., :6], state[1][..., 6:]


def _idyntree(model: Model, idyn_model: Any) -> _There:
    floating = _floating_root(model)
    base = idyn_model.getLinkName(idyn_model.getDefaultBaseLink())
    if floating is not None and base != model.body_names[floating]:
        raise InputError(
            f"the base link of the iDynTree model is {base!r}, the root link here {model.body_names[floating]!r}: make them "
            "one with setDefaultBaseLink there, or with base_link= on loading here."
        )
    joints = [_Joint(model.joint_names[0] if floating is not None else "", "free mixed", 0, 7, 0, 6)]
    for i in range(idyn_model.getNrOfJoints()):
        joint = idyn_model.getJoint(i)
        if joint.getNrOfDOFs() == 0:
            continue
        name, at = idyn_model.getJointName(i), joint.getDOFsOffset()
        style = "line" if joint.getNrOfDOFs() == 1 else f"joint with {joint.getNrOfDOFs()} degrees of freedom"
        joints.append(_Joint(name, style, 7 + at, joint.getNrOfPosCoords(), 6 + at, joint.getNrOfDOFs()))
    return _There("iDynTree", joints, 7 + idyn_model.getNrOfPosCoords(), 6 + idyn_model.getNrOfDOFs())


# One engine for all. Coordinates in between are ours, of all joints taken as free.


def _floating_root(model: Model) -> int | None:
    roots = [i for i, kind in enumerate(model.tree.joint_types) if kind == "floating" and model.tree.parents[i] < 0]
    return roots[0] if roots == [0] else None


def _pairs(model: Model, there: _There) -> list[tuple[int, _Joint]]:
    """Our joints (followers left out) with those there."""
    tree = model.tree
    by_name = {joint.name: joint for joint in there.joints}
    root = _floating_root(model)
    free = [joint for joint in there.joints if joint.style.startswith("free")]
    pairs = []
    for i in range(tree.n_joints):
        name = tree.joint_names[i]
        joint = by_name.get(name)
        if joint is None and i == root and len(free) == 1:
            joint = free[0]
        if joint is None and i not in tree.independent:
            continue
        if joint is None:
            raise InputError(f"joint {name!r} is not in the {there.library} model{suggestion(name, list(by_name))}.")
        wanted = {
            "floating": ("free",),
            "spherical": ("ball",),
            "planar": ("planar",),
            "prismatic": ("line",),
            "revolute": ("line", "circle"),
            "continuous": ("line", "circle"),
        }[tree.joint_types[i]]
        if not joint.style.startswith(wanted):
            raise InputError(
                f"joint {name!r} is {tree.joint_types[i]} here, in the {there.library} model: {joint.style}."
            )
        if joint.style == "planar" and not np.array_equal(np.asarray(model.joint_axis[i]), [0, 0, 1]):
            raise InputError(f"joint {name!r}: planar joints of {there.library} turn about z, this one does not.")
        pairs.append((i, joint))
    return pairs


def _numbers(name: str, x: FloatLike) -> np.ndarray:
    if not is_concrete(x):
        raise InputError(f"{name}: states of other libraries are converted outside of jit, vmap and grad.")
    try:
        array = np.asarray(x)
        if array.dtype.kind in "fiu":
            return array.astype(float)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{name}: cannot be read as an array of numbers.")


def _check(array: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    if array.shape[array.ndim - len(shape) :] != shape or array.ndim < len(shape):
        raise InputError(f"{name}: wanted shape (..., {', '.join(map(str, shape))}), given {array.shape}.")


def _spread(function: Callable[..., Array], array: np.ndarray, size: int) -> np.ndarray:
    """A function of one state, on a batch."""
    flat = array.reshape(-1, array.shape[-1])
    rows = [np.asarray(function(jnp.asarray(row)), dtype=float) for row in flat]
    return np.stack(rows).reshape(*array.shape[:-1], size) if rows else np.zeros((*array.shape[:-1], size))


def _to(model: Model, there: _There, q: FloatLike, v: FloatLike | None) -> Any:
    check_model(model)
    tree = model.tree.free
    ours = _numbers("q", q)
    _check(ours, (model.nq,), "q")
    pairs = _pairs(model, there)
    missing = sorted({j.name for j in there.joints if j.name} - {j.name for _, j in pairs})
    if missing:
        raise InputError(f"the {there.library} model has the joints {listing(missing)} too, which are not here.")
    if model.tree.followers:
        ours = _spread(lambda x: free_coordinates(model, x), ours, tree.nq)
    result = np.zeros((*ours.shape[:-1], there.nq))
    if there.library == "iDynTree":
        result[..., 3] = 1.0
    for i, joint in pairs:
        part = ours[..., tree.q_offset[i] : tree.q_offset[i] + tree.joint_nq[i]]
        result[..., joint.q : joint.q + joint.nq] = _coordinates_to(joint.style, part)
    if v is None:
        return result
    speed = _numbers("v", v)
    _check(speed, (model.nv,), "v")
    if model.tree.followers:
        speed = _spread(lambda x: free_velocity(model, x), speed, tree.nv)
    velocity = np.zeros((*speed.shape[:-1], there.nv))
    for i, joint in pairs:
        part = speed[..., tree.v_offset[i] : tree.v_offset[i] + tree.joint_nv[i]]
        at = ours[..., tree.q_offset[i] : tree.q_offset[i] + tree.joint_nq[i]]
        velocity[..., joint.v : joint.v + joint.nv] = _velocity(joint.style, part, at, back=False)
    return result, velocity


def _from(model: Model, there: _There, q: FloatLike, v: FloatLike | None) -> Any:
    check_model(model)
    tree = model.tree.free
    theirs = _numbers("q", q)
    _check(theirs, (there.nq,), "q")
    pairs = _pairs(model, there)
    result = np.zeros((*theirs.shape[:-1], tree.nq))
    for i, joint in pairs:
        part = theirs[..., joint.q : joint.q + joint.nq]
        result[..., tree.q_offset[i] : tree.q_offset[i] + tree.joint_nq[i]] = _coordinates_from(joint.style, part)
    ours = _only_independent(model, result, "q")
    if v is None:
        return jnp.asarray(ours, model.dtype)
    speed = _numbers("v", v)
    _check(speed, (there.nv,), "v")
    velocity = np.zeros((*speed.shape[:-1], tree.nv))
    for i, joint in pairs:
        part = speed[..., joint.v : joint.v + joint.nv]
        at = result[..., tree.q_offset[i] : tree.q_offset[i] + tree.joint_nq[i]]
        velocity[..., tree.v_offset[i] : tree.v_offset[i] + tree.joint_nv[i]] = _velocity(
            joint.style, part, at, back=True
        )
    return jnp.asarray(ours, model.dtype), jnp.asarray(_only_independent(model, velocity, "v"), model.dtype)


def _only_independent(model: Model, array: np.ndarray, space: str) -> np.ndarray:
    tree = model.tree
    if not tree.followers:
        return array
    offsets, sizes = (
        (tree.free.q_offset, tree.free.joint_nq) if space == "q" else (tree.free.v_offset, tree.free.joint_nv)
    )
    return array[..., [offsets[i] + k for i in tree.independent for k in range(sizes[i])]]


def _coordinates_to(style: str, q: np.ndarray) -> np.ndarray:
    if style == "circle":
        return np.concatenate([np.cos(q), np.sin(q)], -1)
    if style == "planar":
        return np.concatenate([q[..., :2], np.cos(q[..., 2:]), np.sin(q[..., 2:])], -1)
    if style.startswith(("free", "ball")):
        head, quaternion = q[..., :-4], q[..., -4:]
        quaternion = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
        return np.concatenate([head, np.roll(quaternion, -1, -1) if style.endswith("xyzw") else quaternion], -1)
    return q


def _coordinates_from(style: str, q: np.ndarray) -> np.ndarray:
    if style == "circle":
        return np.arctan2(q[..., 1:], q[..., :1])
    if style == "planar":
        return np.concatenate([q[..., :2], np.arctan2(q[..., 3:], q[..., 2:3])], -1)
    if style.endswith("xyzw"):
        return np.concatenate([q[..., :-4], np.roll(q[..., -4:], 1, -1)], -1)
    return q


def _velocity(style: str, v: np.ndarray, q: np.ndarray, *, back: bool) -> np.ndarray:
    """Velocity of a joint there (`back`: here) from that here (there), at our coordinates `q`."""
    if style not in ("free mujoco", "free mixed"):
        return v
    turn = _rotation(q[..., 3:7])
    turn = np.swapaxes(turn, -1, -2) if back else turn
    linear = np.einsum("...ij,...j->...i", turn, v[..., :3])
    angular = np.einsum("...ij,...j->...i", turn, v[..., 3:]) if style == "free mixed" else v[..., 3:]
    return np.concatenate([linear, angular], -1)


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    q = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    w, x, y, z = (q[..., k] for k in range(4))
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, -1) for row in rows], -2)


def _quaternion(rotation: np.ndarray) -> np.ndarray:
    """Quaternion wxyz of rotation matrices: the largest column of q q^T (Bar-Itzhack, 2000), good at every angle."""
    r = rotation
    xx, yy, zz = r[..., 0, 0], r[..., 1, 1], r[..., 2, 2]
    rows = (
        (1 + xx + yy + zz, r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]),
        (r[..., 2, 1] - r[..., 1, 2], 1 + xx - yy - zz, r[..., 0, 1] + r[..., 1, 0], r[..., 0, 2] + r[..., 2, 0]),
        (r[..., 0, 2] - r[..., 2, 0], r[..., 0, 1] + r[..., 1, 0], 1 - xx + yy - zz, r[..., 1, 2] + r[..., 2, 1]),
        (r[..., 1, 0] - r[..., 0, 1], r[..., 0, 2] + r[..., 2, 0], r[..., 1, 2] + r[..., 2, 1], 1 - xx - yy + zz),
    )
    product = np.stack([np.stack(row, -1) for row in rows], -2)
    best = np.argmax(np.einsum("...ii->...i", product), -1)
    q = np.take_along_axis(product, best[..., None, None], -2)[..., 0, :]
    return q / np.linalg.norm(q, axis=-1, keepdims=True)
