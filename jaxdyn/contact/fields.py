"""How the small classes of contacts and systems hold their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import FloatLike, as_float_array, check_shape


def parameter(name: str, shape: tuple[int, ...] | None = (), **options: Any) -> Any:
    """A field of an `eqx.Module` that holds one floating array of a known shape, and is a leaf.

    **Arguments:** `name`: for messages; `shape`: without batch axes; None for any; `options`: `default=` and others of
    `eqx.field`.

    Python numbers, integers too (2000 is a stiffness), and lists become arrays of JAX's default float; arrays keep
    their dtype. What the array has before `shape` are batch axes. The rank is kept beside the field, so that
    `batch_rollout` can tell which leaves are batched.
    """
    rank = None if shape is None else len(shape)
    return eqx.field(converter=_converter(name, shape), metadata={"rank": rank}, **options)


def _converter(name: str, shape: tuple[int, ...] | None) -> Callable[[FloatLike], jax.Array]:
    def convert(value: FloatLike) -> jax.Array:
        if (
            not isinstance(value, (jax.Array, np.ndarray, np.generic))
            and np.asarray(value, dtype=object).dtype == object
        ):
            value = _integers_to_floats(value)
        array = as_float_array(name, value)
        array = jnp.asarray(array, array.dtype)  # no weak type: it would make the first step of a rollout compile twice
        if shape is not None and array.shape[max(0, array.ndim - len(shape)) :] != shape:
            array = check_shape(name, array, shape)
        return array

    return convert


def _integers_to_floats(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_integers_to_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def cast(tree: Any, dtype: Any) -> Any:
    """The pytree with every floating array in `dtype`, none of them weakly typed."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if eqx.is_inexact_array_like(leaf) else leaf, tree)
