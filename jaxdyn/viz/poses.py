"""Poses of all bodies of a robot along a trajectory, as positions and quaternions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.kinematics import forward_kinematics
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.model.model import Model
from jaxdyn.viz.layers import Clock
from jaxdyn.viz.values import check_rotations, numbers, quaternion

# Configurations go through the compiled function in pieces of this size, so that scenes share it whatever their length.
CHUNK = 128


@eqx.filter_jit
def _placements(model: Model, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(q: jax.Array) -> tuple[jax.Array, jax.Array]:
        kinematics = forward_kinematics(model, q)
        return kinematics.rotation, kinematics.translation

    return jax.vmap(one)(q)


def from_configurations(model: Model, q: np.ndarray) -> np.ndarray:
    """(k, n_bodies, 7) poses [position, quaternion] of configurations (k, nq)."""
    k = len(q)
    padded = np.concatenate([q, np.repeat(q[-1:], -k % CHUNK, axis=0)])
    pieces = [_placements(model, jnp.asarray(padded[i : i + CHUNK], model.dtype)) for i in range(0, len(padded), CHUNK)]
    rotation = np.concatenate([np.asarray(r, np.float64) for r, _ in pieces])[:k]
    translation = np.concatenate([np.asarray(p, np.float64) for _, p in pieces])[:k]
    return np.concatenate([translation, quaternion(rotation)], axis=-1)


def trajectory(
    model: Model,
    q: FloatLike | None,
    poses: Any,
    times: FloatLike | None,
    timestep: FloatLike | None,
    rate: float,
    name: str,
) -> tuple[np.ndarray, Clock]:
    """What `Scene.add_robot` was given, as poses (steps, environments, n_bodies, 7) of the steps that are kept, and
    its clock.
    """
    n = model.n_bodies
    rotation = None
    if q is not None:
        array = numbers(f"q of {name!r}", q, (model.nq,), ("steps", model.nq), ("environments", "steps", model.nq))
        array = array.reshape((1,) * (3 - array.ndim) + array.shape)
    else:
        try:
            rotation, translation = (poses.rotation, poses.translation) if hasattr(poses, "rotation") else poses
        except (TypeError, ValueError):
            raise InputError(
                f"poses of {name!r}: wanted an SE3, a Kinematics or a pair (rotation, translation), given {type(poses).__name__}."
            ) from None
        shapes = ((n, 3), ("steps", n, 3), ("environments", "steps", n, 3))
        array = numbers(f"translation of {name!r}", translation, *shapes)
        rotation = numbers(f"rotation of {name!r}", rotation, (*array.shape, 3))
        check_rotations(f"rotation of {name!r}", rotation)
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        rotation = rotation.reshape(*array.shape, 3)
    clock = Clock.of(f"robot {name!r}", array.shape[1], times, timestep, rate)
    array = array[:, clock.keep]
    if rotation is None:
        samples = from_configurations(model, array.reshape(-1, model.nq)).reshape(*array.shape[:2], n, 7)
    else:
        samples = np.concatenate([array, quaternion(rotation[:, clock.keep])], axis=-1)
    return samples.swapaxes(0, 1), clock
