"""Forward kinematics of bodies and frames."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms import world
from jaxdyn.algorithms.bodies import Bodies, bodies_of
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.algorithms.coupled import check_kinematics, through_followers
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.math import batching
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross, rotate
from jaxdyn.math.spatial import Representation, convert_acceleration, convert_twist
from jaxdyn.math.stacked import Stack, join, take
from jaxdyn.math.stacked import cross as stacked_cross
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import Tree


class Kinematics(eqx.Module):
    """Where everything is and how it moves, in the order of the model's bodies and degrees of freedom; made by
    `forward_kinematics`.

    `rotation` (n_bodies, 3, 3) body to world; `translation` (n_bodies, 3) m; `twist` (n_bodies, 6) MIXED, or None;
    `acceleration` (n_bodies, 6) MIXED, that is the time derivative of `twist`, or None; `velocity` (nv,) as given, or
    None; `origin` (3,) and `axes` (nv, 6): the motion axis of each degree of freedom in world axes about the point
    `origin`.
    """

    rotation: Float[Array, "bodies 3 3"]
    translation: Float[Array, "bodies 3"]
    twist: Float[Array, "bodies 6"] | None
    acceleration: Float[Array, "bodies 6"] | None
    velocity: Float[Array, " nv"] | None
    origin: Float[Array, "3"]
    axes: Float[Array, "nv 6"]


def _kernel(tree: Tree, bodies: Bodies, q: Configuration, v: Stack | None, a: Stack | None):
    order = schedule(tree)
    at = world.geometry(bodies, q)
    result = {
        "rotation": take(at.rotation, order.body_rank),
        "translation": take(at.position + at.origin[None], order.body_rank),
        "origin": at.origin,
        "axes": take(at.axes, order.dof_rank),
    }
    if v is not None:
        twist, own = world.velocities(tree, at, v)
        w = twist[:, 3:]
        linear = twist[:, :3] + stacked_cross(w, at.position)
        result["twist"] = take(join([linear, w], 1), order.body_rank)
        if a is not None:
            spatial = world.spatial_accelerations(tree, at, twist, own, a)
            dw = spatial[:, 3:]
            classical = spatial[:, :3] + stacked_cross(dw, at.position) + stacked_cross(w, linear)
            result["acceleration"] = take(join([classical, dw], 1), order.body_rank)
    return result


_forward_kinematics = batching.batch_last(_kernel)


@through_followers()
def forward_kinematics(
    model: Model, q: FloatLike | Configuration, v: FloatLike | None = None, a: FloatLike | None = None
) -> Kinematics:
    """Poses, velocities (if `v` is given) and accelerations (if `a` is given too) of all bodies.

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v`, `a` (nv,) rad/s, m/s and their rates.

    **Raises:** `InputError` for a wrong shape or dtype, or `a` without `v`.
    """
    q = as_configuration(model, q)
    if v is not None:
        v = check_shape("v", v, (model.nv,))
    if a is not None:
        if v is None:
            raise InputError("a: accelerations need velocities: forward_kinematics(model, q, v, a).")
        a = check_shape("a", a, (model.nv,))
    parts = _forward_kinematics(model.tree, bodies_of(model), q, v, a)
    return Kinematics(
        parts["rotation"],
        parts["translation"],
        parts.get("twist"),
        parts.get("acceleration"),
        v,
        parts["origin"],
        parts["axes"],
    )


def frame_index(model: Model, frame: str | int | np.integer) -> tuple[int, int]:
    """Index of a frame given by name or index, and of the body that carries it (-1: the world).

    **Raises:** `UnknownNameError` with the nearest names; `InputError` for an index out of range.
    """
    check_model(model)
    if isinstance(frame, str):
        index = model.frame(frame)
    elif isinstance(frame, int | np.integer) and not isinstance(frame, bool):
        if not 0 <= frame < model.n_frames:
            raise InputError(f"frame: wanted a name or an index from 0 to {model.n_frames - 1}, given {frame}.")
        index = int(frame)
    else:
        raise InputError(f"frame: wanted a name or an index, given {frame!r}.")
    return index, model.tree.frame_bodies[index]


def body_pose(model: Model, kin: Kinematics, body: int) -> SE3:
    """Pose of a body's frame in the world; -1 is the world itself."""
    if body < 0:
        return SE3(jnp.eye(3, dtype=kin.origin.dtype), jnp.zeros(3, kin.origin.dtype))
    return SE3(kin.rotation[body], kin.translation[body])


def frame_pose(model: Model, kin: Kinematics, frame: str | int) -> SE3:
    """Pose of a frame in the world: rotation (3, 3) frame to world, translation (3,) m.

    **Raises:** `UnknownNameError`.
    """
    index, body = frame_index(model, frame)
    check_kinematics(model, kin)
    placement = SE3(model.frame_placement.rotation[index], model.frame_placement.translation[index])
    return placement if body < 0 else body_pose(model, kin, body) @ placement


def frame_velocity(
    model: Model, kin: Kinematics, frame: str | int, representation: Representation = Representation.MIXED
) -> Float[Array, "6"]:
    """Twist [linear, angular] of a frame, m/s and rad/s.

    **Raises:** `UnknownNameError`; `InputError` if `kin` was made without velocities.
    """
    check_kinematics(model, kin)
    twists = needed(kin.twist, "velocities", "v")
    _, body = frame_index(model, frame)
    pose = frame_pose(model, kin, frame)
    if body < 0:
        return jnp.zeros(6, kin.origin.dtype)
    twist = twists[body]
    arm = pose.translation - kin.translation[body]
    mixed = jnp.concatenate([twist[:3] + cross(twist[3:], arm), twist[3:]])
    return convert_twist(mixed, pose, Representation.MIXED, representation)


def frame_acceleration(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    representation: Representation = Representation.MIXED,
    kind: str = "rate",
) -> Float[Array, "6"]:
    """Acceleration [linear, angular] of a frame, m/s^2 and rad/s^2.

    **Arguments:** `kind`: `"rate"` is the time derivative of the twist's entries in the same representation (MIXED:
    that of a point's velocity, LOCAL and WORLD: spatial); `"spatial"` the spatial acceleration, `"classical"` that of
    the point of the body at the representation's origin, both in the representation's axes.

    **Raises:** `UnknownNameError`; `InputError` for an unknown kind or if `kin` was made without accelerations.
    """
    if kind not in ("rate", "spatial", "classical"):
        raise InputError(f"kind: wanted 'rate', 'spatial' or 'classical', given {kind!r}.")
    check_kinematics(model, kin)
    accelerations = needed(kin.acceleration, "accelerations", "v, a")
    if kind == "rate" or frame_index(model, frame)[1] < 0:
        return acceleration_from_bodies(model, kin, frame, accelerations, representation)
    local = acceleration_from_bodies(model, kin, frame, accelerations, Representation.LOCAL)
    spatial = convert_twist(local, frame_pose(model, kin, frame), Representation.LOCAL, representation)
    if kind == "spatial":
        return spatial
    twist = frame_velocity(model, kin, frame, representation)
    return jnp.concatenate([spatial[:3] + cross(twist[3:], twist[:3]), spatial[3:]])


def acceleration_from_bodies(
    model: Model,
    kin: Kinematics,
    frame: str | int,
    accelerations: Float[Array, "bodies 6"],
    representation: Representation,
) -> Float[Array, "6"]:
    """Acceleration of a frame from MIXED accelerations of all bodies."""
    _, body = frame_index(model, frame)
    if body < 0:
        return jnp.zeros(6, kin.origin.dtype)
    pose = frame_pose(model, kin, frame)
    a, w = accelerations[body], needed(kin.twist, "velocities", "v")[body, 3:]
    arm = pose.translation - kin.translation[body]
    mixed = jnp.concatenate([a[:3] + cross(a[3:], arm) + cross(w, cross(w, arm)), a[3:]])
    twist = frame_velocity(model, kin, frame)
    return convert_acceleration(mixed, twist, pose, Representation.MIXED, representation)


def frame_point(model: Model, kin: Kinematics, frame: str | int, point: FloatLike) -> Float[Array, "3"]:
    """World coordinates of a point (3,) fixed to a frame, m."""
    pose = frame_pose(model, kin, frame)
    return pose.translation + rotate(pose.rotation, check_shape("point", point, (3,), dtype=kin.origin.dtype))


def needed(part: Array | None, what: str, arguments: str) -> Array:
    """A part of `Kinematics` that may be missing; raises `InputError` if it is."""
    if part is None:
        raise InputError(f"kin holds no {what}: make it with forward_kinematics(model, q, {arguments}).")
    return part
