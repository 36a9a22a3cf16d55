"""Vectors, or matrices of columns, as arguments of linear maps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.errors import FloatLike, InputError, as_float_array


def wider(a: Any, b: Any) -> Any:
    """The floating dtype of the two that has more bits, also where JAX refuses to promote by itself."""
    return a if jnp.finfo(a).bits >= jnp.finfo(b).bits else b


def as_columns(name: str, x: FloatLike, rows: int, dtype: Any) -> Array:
    """A vector (rows,) or a matrix (rows, k) in the wider of its own dtype and the given one; integers become floats.

    **Raises:** `InputError` for a wrong shape, or complex numbers.
    """
    if not isinstance(x, jax.Array | np.ndarray):
        x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        x = x.astype(dtype)
    x = as_float_array(name, x, dtype)
    if x.ndim not in (1, 2) or x.shape[0] != rows:
        raise InputError(
            f"{name}: wanted shape ({rows},) or ({rows}, k), given shape {x.shape}. Batches go through jax.vmap."
        )
    return x.astype(wider(x.dtype, dtype))
