"""Robots whose joints follow others, at the door of the public functions.

Each of them runs on the robot with all joints free; `through_followers` takes the arguments there and the result back
(`jaxdyn.model.followers` has the equations). Without followers it only calls on. A function that is not decorated so
refuses such a robot: the recursions and the tables of degrees of freedom of its tree raise `InputError`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.algorithms.configuration import Configuration, as_configuration, layout
from jaxdyn.errors import InputError, check_shape
from jaxdyn.model.followers import along_chains, free_model, free_velocity, projection
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.tree import Tree

P = ParamSpec("P")
R = TypeVar("R")


def check_kinematics(model: Model, kin: Any) -> None:
    """Refuses what is no robot, and what are no `Kinematics` of it, such as a configuration, or those of a batch.

    **Raises:** `InputError`.
    """
    check_model(model)
    if not (hasattr(kin, "axes") and hasattr(kin, "origin")):
        raise InputError(
            f"kin: wanted Kinematics, as forward_kinematics(model, q, ...) makes them, given a {type(kin).__name__}."
        )
    shape, wanted = jnp.shape(kin.rotation), (model.n_bodies, 3, 3)
    if shape != wanted:
        batch = " Batches go through jax.vmap." if shape[-3:] == wanted else " Are they those of another robot?"
        raise InputError(f"kin.rotation: wanted shape {wanted}, given shape {shape}.{batch}")


def through_followers(
    *axes: int, rank: int | None = None, tangents: tuple[str, ...] = ("v", "a")
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a public function `f(model, ...)` right for robots with followers.

    Its argument `q`, if any, and those named in `tangents` are taken to the free robot; `axes` are the axes of each
    array of the result (of those of `rank` axes, if that is given) that run over degrees of freedom, taken back by
    `G^T`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        takes_kin = list(signature.parameters)[1:2] == ["kin"]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            model: Any = args[0] if args else kwargs.get("model")
            if not takes_kin:
                check_model(model)
            else:
                check_kinematics(model, args[1] if len(args) > 1 else kwargs.get("kin"))
            if not model.tree.followers:
                return function(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            given["model"] = free_model(model)
            if "q" in given:
                given["q"] = free_configuration(model, as_configuration(model, given["q"]))
            for name in tangents:
                if given.get(name) is not None:
                    given[name] = free_velocity(model, check_shape(name, given[name], (model.nv,)))
            result = function(**given)  # pyright: ignore[reportCallIssue]
            back = lambda x: contracted(model, x, axes) if rank in (None, x.ndim) else x  # noqa: E731
            return jax.tree.map(back, result) if axes else result

        return call

    return decorate


@functools.lru_cache(maxsize=64)
def _sources(tree: Tree) -> tuple[np.ndarray, np.ndarray]:
    """Where each coordinate of a free `Configuration` comes from, and which ones are the followers'."""
    ours, free = layout(tree), layout(tree.free)
    where = {int(c): i for i, c in enumerate(ours.coordinate)}
    source = []
    for joint in range(tree.n_joints):
        start = tree.q_offset[tree.leading_joint[joint]]
        until = free.first_coordinate[joint + 1] if joint + 1 < tree.n_joints else len(free.coordinate)
        source += [where[start + k] for k in range(until - free.first_coordinate[joint])]
    following = [free.first_coordinate[joint] for joint, _ in tree.followers]
    return np.asarray(source, dtype=int), np.asarray(following, dtype=int)


def free_configuration(model: Model, q: Configuration) -> Configuration:
    """The configuration of the robot with all joints free: `G q + g`."""
    source, following = _sources(model.tree)
    return Configuration(q.rotations, along_chains(model, q.coordinates[source], following))


def contracted(model: Model, x: Array, axes: tuple[int, ...]) -> Array:
    """`x` with each of the axes, over the degrees of freedom of the free robot, taken back by `G^T`."""
    matrix = projection(model).astype(x.dtype)
    for axis in axes:
        x = jnp.moveaxis(jnp.tensordot(x, matrix, axes=(axis, 0), precision="highest"), -1, axis)
    return x
