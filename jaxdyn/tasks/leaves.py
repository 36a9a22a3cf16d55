"""Numbers and flags of tasks as leaves of pytrees, and lists of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_shape, is_concrete


def float_leaf(value: FloatLike | None) -> Any:
    """A number or array as a leaf; integers of Python are meant as numbers."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return as_float_array("value", value)


def bool_leaf(value: Any) -> Any:
    """A flag or mask as a leaf."""
    return None if value is None else jnp.asarray(value, bool)


def ranges(rows: Sequence[int]) -> str:
    """Indices as text: `0plus2to3`."""
    parts: list[list[int]] = []
    for row in sorted(set(rows)):
        if parts and row == parts[-1][-1] + 1:
            parts[-1].append(row)
        else:
            parts.append([row])
    return "plus".join(f"{p[0]}" if len(p) == 1 else f"{p[0]}to{p[-1]}" for p in parts)


def checked_rows(name: str, rows: Sequence[int], size: int) -> tuple[int, ...]:
    """Sorted rows without repetitions, all in 0 .. size - 1; or an `InputError`."""
    rows = tuple(int(r) for r in rows)
    if len(set(rows)) != len(rows):
        raise InputError(f"{name}: rows are given twice: {rows}.")
    if any(not 0 <= r < size for r in rows):
        raise InputError(f"{name}: rows {rows} of {size}.")
    return tuple(sorted(rows))


def not_negative(name: str, value: Array) -> None:
    """Refuse negative numbers where they can be read now."""
    if is_concrete(value) and bool(jnp.any(value < 0.0)):
        raise InputError(f"{name}: wanted a number that is not negative, given {np.asarray(value)}.")


def positive(name: str, value: Array) -> None:
    """Refuse numbers that are not positive where they can be read now."""
    if is_concrete(value) and not bool(jnp.all(value > 0.0)):
        raise InputError(f"{name}: wanted a positive number, given {np.asarray(value)}.")


def not_zero(name: str, value: Array | None) -> None:
    """Refuse a direction of length zero where it can be read now."""
    if value is not None and is_concrete(value) and not np.any(np.asarray(value)):
        raise InputError(f"{name}: wanted a direction of any length but zero, given {np.asarray(value)}.")


def each(name: str, value: Array, size: int, dtype: Any) -> Array:
    """One number for all, or `size` of them, as an array (size,); nothing else is stretched."""
    value = value.astype(dtype)
    return jnp.broadcast_to(value, (size,)) if value.ndim == 0 else check_shape(name, value, (size,))
