"""Poses of all bodies of a robot along a trajectory, as positions and quaternions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.kinematics import forward_kinematics
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.model.model import Model
from jaxdyn.viz.layers import Clock
from jaxdyn.viz.values import check_rotations, numbers, quaternion

# Configurations go through the compiled function in pieces of this size, so that scenes share it whatever their length.
CHUNK = 128


@eqx.filter_jit
def _placements(model: Model, q: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    def one(q: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        kinematics = forward_kinematics(model, q[0] if len(q) == 1 else Configuration(*q))
        return kinematics.rotation, kinematics.translation

    return jax.vmap(one)(q)


def from_configurations(model: Model, q: tuple[np.ndarray, ...]) -> np.ndarray:
    """(k, n_bodies, 7) poses [position, quaternion] of configurations: `q` holds (k, nq), or the two arrays of a
    `Configuration`.
    """
    k = len(q[0])
    if model.n_bodies == 0:
        return np.zeros((k, 0, 7))
    padded = [np.concatenate([x, np.repeat(x[-1:], -k % CHUNK, axis=0)]) for x in q]
    pieces = [
        _placements(model, tuple(jnp.asarray(x[i : i + CHUNK], model.dtype) for x in padded))
        for i in range(0, k, CHUNK)
    ]
    rotation = np.concatenate([np.asarray(r, np.float64) for r, _ in pieces])[:k]
    translation = np.concatenate([np.asarray(p, np.float64) for _, p in pieces])[:k]
    return np.concatenate([translation, quaternion(rotation)], axis=-1)


def trajectory(
    model: Model,
    q: FloatLike | Configuration | None,
    poses: Any,
    times: FloatLike | None,
    timestep: FloatLike | None,
    rate: float,
    name: str,
) -> tuple[np.ndarray, Clock]:
    """What `Scene.add_robot` was given, as poses (steps, environments, n_bodies, 7) of the steps that are kept, and
    its clock.
    """
    given = _configurations(model, q, name) if q is not None else _poses(model.n_bodies, poses, name)
    clock = Clock.of(f"robot {name!r}", given[0].shape[1], times, timestep, rate)
    kept = tuple(x[:, clock.keep] for x in given)
    environments, steps = kept[0].shape[:2]
    if q is not None:
        flat = tuple(x.reshape(environments * steps, *x.shape[2:]) for x in kept)
        samples = from_configurations(model, flat).reshape(environments, steps, model.n_bodies, 7)
    else:
        samples = np.concatenate([kept[1], quaternion(kept[0])], axis=-1)
    return samples.swapaxes(0, 1), clock


def _leading(*size: int) -> tuple[tuple[str | int, ...], ...]:
    """The shapes that a robot's numbers may have: one state, steps of one, environments."""
    return size, ("steps", *size), ("environments", "steps", *size)


def _two_axes(array: np.ndarray, own: int) -> np.ndarray:
    """(environments, steps, ...) from an array that may lack them; `own`: its other axes."""
    return array.reshape((1,) * (own + 2 - array.ndim) + array.shape)


def _configurations(model: Model, q: FloatLike | Configuration, name: str) -> tuple[np.ndarray, ...]:
    if not isinstance(q, Configuration):
        return (_two_axes(numbers(f"q of {name!r}", q, *_leading(model.nq)), 1),)
    kinds = model.tree.joint_types
    turning = sum(kind in ("floating", "spherical") for kind in kinds)
    coordinates = numbers(f"coordinates of {name!r}", q.coordinates, *_leading(model.nq - 4 * turning))
    rotations = numbers(f"rotations of {name!r}", q.rotations, (*coordinates.shape[:-1], turning, 3, 3))
    if turning:
        check_rotations(f"rotations of {name!r}", rotations)
    return _two_axes(rotations, 3), _two_axes(coordinates, 1)


def _poses(n: int, poses: Any, name: str) -> tuple[np.ndarray, ...]:
    try:
        rotation, translation = (poses.rotation, poses.translation) if hasattr(poses, "rotation") else poses
    except (TypeError, ValueError):
        raise InputError(
            f"poses of {name!r}: wanted an SE3, a Kinematics or a pair (rotation, translation), given {type(poses).__name__}."
        ) from None
    p = numbers(f"translation of {name!r}", translation, *_leading(n, 3))
    R = numbers(f"rotation of {name!r}", rotation, (*p.shape, 3))
    check_rotations(f"rotation of {name!r}", R)
    return _two_axes(R, 3), _two_axes(p, 2)
