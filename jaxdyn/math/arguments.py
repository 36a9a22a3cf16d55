"""Arguments of the functions on rotations, motions and twists: arrays of a core shape with any batch axes before it.

The core shape is that of the annotation, which says it once: `Float[Array, "*batch 3 3"]` wants (..., 3, 3).
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax.numpy as jnp

from jaxdyn.errors import InputError, as_float_array

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function refuse arrays whose last axes or dtype are not those of its annotations. Lists of floats become
    arrays.

    It costs a microsecond while tracing and nothing in compiled code.

    **Raises:** `InputError` with the name of the argument, the wanted and the given shape.
    """
    parameters = inspect.signature(function).parameters
    cores = _cores({name: parameter.annotation for name, parameter in parameters.items()})
    order = tuple(parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        values = list(args)
        for i, name in enumerate(order[: len(values)]):
            if name in cores:
                values[i] = check_core(name, values[i], cores[name])
        named = {name: check_core(name, x, cores[name]) if name in cores else x for name, x in kwargs.items()}
        return function(*values, **named)  # pyright: ignore[reportCallIssue]

    return call


def _cores(annotations: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The fixed axes at the end of each annotated array."""
    found = {}
    for name, annotation in annotations.items():
        if isinstance(annotation, str):  # of a module with postponed evaluation
            quoted = re.fullmatch(r"""Float\[Array, ["']([^"']*)["']\]""", annotation)
            text = quoted and quoted.group(1)
        else:
            text = getattr(annotation, "dim_str", None)
        if text is not None:
            found[name] = tuple(int(part) for part in text.split() if part.isdigit())
    return found


def check_core(name: str, value: Any, core: tuple[int, ...]) -> Any:
    """`value` as a floating array of shape (..., *core).

    **Raises:** `InputError`.
    """
    array = as_float_array(name, value)
    if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
        wanted = ", ".join(["...", *map(str, core)])
        raise InputError(f"{name}: wanted shape ({wanted}), given shape {array.shape}.")
    return array


def check_leaves(thing: Any, owner: str, cores: Mapping[str, tuple[int, ...]]) -> None:
    """For `__check_init__`: leaves are floating arrays of the core shapes, with the same batch axes.

    What stands in for an array, such as an axis for `vmap`, a sharding or None, passes.

    **Raises:** `InputError`.
    """
    batches = {}
    for name, core in cores.items():
        value = getattr(thing, name)
        where = f"{owner}: {name}"
        if isinstance(value, list | tuple):
            raise InputError(f"{where}: wanted an array, given a {type(value).__name__}; jax.numpy.asarray makes one.")
        if hasattr(value, "dtype"):
            _check_leaf(where, value, core)
            batches[name] = value.shape[: len(value.shape) - len(core)]
    if len(set(batches.values())) > 1:
        raise InputError(f"{owner}: wanted the same batch axes in all parts, given {batches}.")


def _check_leaf(name: str, value: Any, core: tuple[int, ...]) -> None:
    # not through `as_float_array`: leaves may be abstract, such as `jax.ShapeDtypeStruct`
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            f"{name}: wanted floating-point numbers, given dtype {value.dtype}; convert it with .astype(float)."
        )
    if len(value.shape) < len(core) or tuple(value.shape[len(value.shape) - len(core) :]) != core:
        wanted = ", ".join(["...", *map(str, core)])
        raise InputError(f"{name}: wanted shape ({wanted}), given shape {tuple(value.shape)}.")
