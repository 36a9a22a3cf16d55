"""How the small classes of contacts and systems hold their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, as_float_array, is_concrete
from jaxdyn.model import Model

if TYPE_CHECKING:
    Scalar: TypeAlias = Any
else:
    Scalar = Float[Array, "..."]
"""Annotation of a `parameter` with shape (): any number is taken, an array is kept. A type checker sees no converters, and
would refuse the number."""


def parameter(name: str, shape: tuple[int | None, ...] = (), **options: Any) -> Any:
    """A field of an `eqx.Module` that holds one floating array of a known shape, and is a leaf.

    **Arguments:** `name`: for messages; `shape`: without batch axes, None where any length is right; `options`:
    `default=` and others of `eqx.field`.

    Python numbers, integers too (2000 is a stiffness), and lists become arrays of JAX's default float; arrays keep
    their dtype. What the array has before `shape` are batch axes. The rank is kept beside the field, so that
    `batch_rollout` can tell which leaves are batched.
    """
    return eqx.field(converter=_converter(name, shape), metadata={"rank": len(shape)}, **options)


def _converter(name: str, shape: tuple[int | None, ...]) -> Callable[[FloatLike], jax.Array]:
    def convert(value: FloatLike) -> jax.Array:
        array = as_float_array(name, _integers_to_floats(value))
        given = array.shape[array.ndim - len(shape) :] if array.ndim >= len(shape) else ()
        if len(given) != len(shape) or any(want not in (None, got) for want, got in zip(shape, given, strict=True)):
            wanted = str(tuple("n" if n is None else n for n in shape)).replace("'", "")
            raise InputError(f"{name}: wanted shape {wanted}, given shape {array.shape}.")
        return jnp.asarray(array, array.dtype)  # not weakly typed: that would make the first step compile twice

    return convert


def in_dtype_of(value: FloatLike, like: Any) -> FloatLike:
    """Numbers and lists as an array with the dtype of `like`, if that is a floating array; what is an array stays."""
    dtype = getattr(like, "dtype", None)
    if hasattr(value, "dtype") or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return value
    return as_float_array("value", _integers_to_floats(value), dtype)


def in_one_dtype(*values: FloatLike) -> list[FloatLike]:
    """As `in_dtype_of` the first of the values that is a floating array, if one is."""
    arrays = [v for v in values if hasattr(v, "dtype") and jnp.issubdtype(v.dtype, jnp.floating)]
    return [in_dtype_of(v, arrays[0] if arrays else None) for v in values]


def _integers_to_floats(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_integers_to_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_sign(name: str, value: Any, *, positive: bool = False) -> None:
    """Refuses negative numbers, with `positive` zero too, where they can be read now: tracers pass, and what a solver or a
    gradient step makes by replacing leaves.

    **Raises:** `InputError`.
    """
    if isinstance(value, jax.Array) and is_concrete(value):
        numbers = np.asarray(value)
        if np.any(numbers <= 0) if positive else np.any(numbers < 0):
            wanted = "a positive number" if positive else "a number that is not negative"
            raise InputError(f"{name}: wanted {wanted}, given {numbers}.")


def leaf_ranks(tree: Any) -> list[int | None]:
    """The rank without batch axes of each leaf of a pytree, in the order of `jax.tree.leaves`; None where no field tells."""
    return [_rank(tree, path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _rank(node: Any, path: tuple) -> int | None:
    for i, key in enumerate(path):
        if isinstance(node, Model):
            return _MODEL_RANKS[".".join(k.name for k in path[i:])]
        if isinstance(node, eqx.Module):
            if i == len(path) - 1:
                fields = {field.name: field for field in dataclasses.fields(node)}
                return fields[key.name].metadata.get("rank")
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            node = node[key.key]
        else:
            return None
    return None


_MODEL_RANKS = {
    "joint_placement.rotation": 3,
    "joint_placement.translation": 2,
    "joint_axis": 2,
    "inertia.mass": 1,
    "inertia.com": 2,
    "inertia.inertia": 3,
    "gravity": 1,
    "armature": 1,
    "damping": 1,
    "friction": 1,
    "lower": 1,
    "upper": 1,
    "velocity_limit": 1,
    "effort_limit": 1,
    "frame_placement.rotation": 3,
    "frame_placement.translation": 2,
    "shape_placement.rotation": 3,
    "shape_placement.translation": 2,
    "shape_size": 2,
    "shape_color": 2,
    "follower_ratio": 1,
    "follower_offset": 1,
    "stiffness": 1,
    "spring_reference": 1,
}


def cast(tree: Any, dtype: Any) -> Any:
    """The pytree with every floating array in `dtype`, none of them weakly typed."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, (jax.Array, np.ndarray)) else leaf, tree
    )
