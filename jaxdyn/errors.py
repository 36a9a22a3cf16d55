"""Everything that jaxdyn raises, warns of, or returns as a status.

Two kinds of error exist. A mistake that the shapes, names or files reveal is an exception, raised while JAX
traces (so also under `jit` and `vmap`); its text names what was given, what was expected, what exists and the
nearest match. A fault that only the numbers reveal is a `Status`, returned as an integer array, because
compiled code cannot raise.
"""

from __future__ import annotations

import difflib
import enum
import sys
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# What public functions accept where a float array is meant: arrays, tracers, NumPy arrays, Python floats,
# (nested) lists of them.
FloatLike = Any


class JaxdynError(Exception):
    """Base class of all exceptions of this library."""


class InputError(JaxdynError, ValueError):
    """An argument has a wrong shape, dtype or value."""


class UnknownNameError(JaxdynError, KeyError):
    """A name (frame, joint, body, robot) does not exist. Also a `KeyError`."""

    def __str__(self) -> str:  # KeyError prints the repr of its argument, with quotes and escaped line ends
        return str(self.args[0]) if self.args else ""


class OutOfRangeError(InputError, IndexError):
    """An index is outside of what exists. Also an `IndexError`."""


class NotDefinedError(JaxdynError, NotImplementedError):
    """An operation has no meaning for this object, such as resetting the reference of a task without one. Also a
    `NotImplementedError`."""


class URDFError(JaxdynError, ValueError):
    """A robot description cannot be read; the text names the element, the attribute, what stands there and
    the line."""


class JaxdynWarning(UserWarning):
    """Something was understood, but perhaps not as its author meant it."""


class Status(enum.IntEnum):
    """Outcome of a computation whose failure only the numbers reveal. 0 means success.

    `Status(code).remedy` is what to do about it. Functions return the integer (an `int32` array under `jit`).
    """

    OK = 0
    MAX_ITERATIONS = 1
    NON_FINITE = 2
    ZERO_QUATERNION = 3
    SINGULAR_MASS_MATRIX = 4
    UNSTABLE_STEP = 5
    INFEASIBLE = 6
    UNBOUNDED = 7
    LINE_SEARCH_FAILED = 8
    STALLED = 9
    OUT_OF_LIMITS = 10
    INTERRUPTED = 11
    DEPENDENT_CONSTRAINTS = 12

    @property
    def remedy(self) -> str:
        """What happened and what to do about it, in one sentence."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.OK: "finished as asked.",
    Status.MAX_ITERATIONS: "stopped at the largest number of iterations: allow more, loosen the tolerance, or start nearer.",
    Status.NON_FINITE: "a NaN or infinity appeared: look at the inputs first, then try a smaller step or float64.",
    Status.ZERO_QUATERNION: "a quaternion of the configuration is zero and stands for no rotation: start from neutral(model).",
    Status.SINGULAR_MASS_MATRIX: "the mass matrix is singular: give the massless links mass or the joints armature.",
    Status.UNSTABLE_STEP: "the time step is too long for the stiffness: shorten it, soften the contact, or use LinearlyImplicit.",
    Status.INFEASIBLE: "no point satisfies all constraints: drop or soften one of them.",
    Status.UNBOUNDED: "the cost falls without end: add a regularisation or a bound.",
    Status.LINE_SEARCH_FAILED: "no step along the search direction lowers the cost: check the derivatives or raise the regularisation.",
    Status.STALLED: "progress ended before the tolerance was met: rescale the problem, or accept the result.",
    Status.OUT_OF_LIMITS: "a joint is outside its limits: move it inside or widen the limits.",
    Status.INTERRUPTED: "stopped from outside: the result holds what had been computed until then.",
    Status.DEPENDENT_CONSTRAINTS: "rows of the constraints depend on each other: drop some of them, or give damping.",
}


# What stands between a user's line and a warning: this library, what it is built on, and what compilation and shape
# checks put in between.
_NOT_THE_USER = {"jaxdyn", "jax", "jaxlib", "equinox", "jaxtyping", "beartype", "contextlib", "functools", "importlib"}


def _is_of_the_user(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package not in _NOT_THE_USER and not frame.f_code.co_filename.startswith("<@beartype")


def warn(message: str) -> None:
    """Issues a `JaxdynWarning` that points at the nearest line outside of this library and of JAX: the user's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_of_the_user(frame):
        frame = frame.f_back
    # not by `stacklevel`: from where that counts depends on the version of Python
    warnings.warn_explicit(
        message,
        JaxdynWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def nearest(given: object, existing: Iterable[str], n: int = 3, cutoff: float = 0.5) -> list[str]:
    """Up to `n` of the `existing` names that look like `given`, best first; letter case is ignored."""
    by_lower: dict[str, list[str]] = {}
    for name in existing:
        by_lower.setdefault(name.lower(), []).append(name)
    close = difflib.get_close_matches(str(given).lower(), list(by_lower), n=n, cutoff=cutoff)
    return [name for key in close for name in by_lower[key]][:n]


def listing(names: Sequence[str], most: int = 12) -> str:
    """Names in quotes, at most `most` of them: `'a', 'b' and 3 more`."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def suggestion(given: object, existing: Sequence[str]) -> str:
    """`; nearest: 'x', 'y'` or, where nothing is near, `; there are: ...`."""
    close = nearest(given, existing)
    if close:
        return f"; nearest: {listing(close)}"
    return f"; there are: {listing(list(existing))}" if existing else "; there are none"


def unknown_name(kind: str, given: object, existing: Iterable[str]) -> UnknownNameError:
    """The exception for a name that does not exist, to be raised by the caller.

    **Arguments:** `kind`: what the name should be, such as `"frame"`; `given`: the name that was given;
    `existing`: the names that exist.
    """
    names = list(existing)
    close = nearest(given, names)
    near = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    there = f" Existing {kind} names: {listing(names)}." if names else f" There is no {kind} at all."
    return UnknownNameError(f"unknown {kind} {given!r}.{near}{there}")


def as_float_array(name: str, array: FloatLike, dtype: Any = None) -> jax.Array:
    """`array` as a floating JAX array; integers, bools and complex numbers are refused, as they would be
    truncated or mixed up.

    **Arguments:** `name`: of the argument, for the message; `array`: array, tracer, number or (nested) list
    of floats; `dtype`: dtype for numbers and lists, which have none of their own (default: JAX's default
    float).

    **Raises:** `InputError`.
    """
    if not isinstance(array, (jax.Array, np.ndarray, np.generic)):
        try:
            plain = np.asarray(array)
        except (ValueError, TypeError) as error:
            # a list that holds tracers or arrays
            try:
                return as_float_array(name, jnp.asarray(array), dtype)
            except (ValueError, TypeError):
                raise InputError(f"{name}: cannot be read as an array of numbers: {error}") from None
        if plain.dtype.kind == "f" or plain.size == 0:
            return jnp.asarray(plain, dtype=dtype or jnp.result_type(float))
        if plain.dtype.kind not in "biuc":
            raise InputError(f"{name}: wanted an array of floating-point numbers, given {array!r:.80}.")
        array = plain
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(
            f"{name}: wanted floating-point numbers, given dtype {array.dtype}; write 1.0 instead of 1, or convert it with .astype(float)."
        )
    return jnp.asarray(array)


def known_numbers(name: str, values: Any) -> np.ndarray:
    """`values` in NumPy, float64: what has to be known before anything is traced.

    **Raises:** `InputError` for values that are traced (by `jit`, `grad`, `vmap`), or no numbers.
    """
    try:
        return np.asarray(values, dtype=float)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise InputError(
            f"{name}: wanted numbers, given values that are being traced (by jit, grad or vmap). Build the model outside, and change it "
            "inside: with reduce, add_frame, attach and the other functions that edit a model, or by equinox.tree_at."
        ) from None
    except (TypeError, ValueError):
        raise InputError(f"{name}: wanted numbers, given {values!r:.80}.") from None


def check_shape(
    name: str, array: FloatLike, expected_shape: Sequence[int], hint: str = "", *, dtype: Any = None
) -> jax.Array:
    """The argument as a floating JAX array of exactly the expected shape; nothing is broadcast.

    **Arguments:** `name`: of the argument; `array`: what the user gave; `expected_shape`: for one robot,
    without batch axes; `hint`: one sentence more for the message; `dtype`: for Python numbers and lists.

    **Raises:** `InputError` with the argument's name, the wanted and the given shape; also for integers and
    bools.
    """
    result = as_float_array(name, array, dtype)
    expected = tuple(expected_shape)
    if result.shape != expected:
        batch = ""
        if len(expected) < result.ndim and result.shape[result.ndim - len(expected) :] == expected:
            batch = " Batches go through jax.vmap."
        raise InputError(
            f"{name}: wanted shape {expected}, given shape {result.shape}.{batch}{' ' + hint if hint else ''}"
        )
    return result


def check_key(name: str, key: Any) -> None:
    """Refuses what is no random key, such as a plain seed.

    **Raises:** `InputError` that says how to make one.
    """
    dtype = getattr(key, "dtype", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == ()
    old = dtype == np.uint32 and len(key.shape) == 1
    if not (new or old):
        what = repr(key) if dtype is None else f"an array of dtype {dtype} and shape {key.shape}"
        raise InputError(f"{name}: wanted one random key, as jax.random.key(0) makes it, given {what:.80}.")


def is_concrete(array: FloatLike) -> bool:
    """True if the numbers can be read now, that is outside of `jit`, `vmap` and `grad`."""
    return not isinstance(array, Tracer)
