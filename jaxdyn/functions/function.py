"""`DifferentiableFunction`: a function between spaces, with its Jacobian between their tangent spaces."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, check_shape, unknown_name
from jaxdyn.functions.spaces import ConfigurationSpace, Space
from jaxdyn.math.lie_space import LieElement, LieSpace
from jaxdyn.model.model import Model

T = TypeVar("T", bound=eqx.Module)

STEPS = ("absolute", "relative")


class DifferentiableFunction(eqx.Module):
    """A function from a space (often the configurations of a robot) to a `LieSpace`.

    Subclasses define `input_space`, `output_space` and `value`, and may define `jacobian`; without it, automatic
    differentiation serves. Numbers that a function depends on (a model, points, targets) are leaves: differentiate
    with respect to them, batch over them. `name` and `context` are static labels, keyword arguments of the constructor.

    | member | meaning |
    |---|---|
    | `value(q)` | coordinates of the value (nq_out,) |
    | `f(q)` | the same as a `LieElement` |
    | `jacobian(q)` | (nv_out, nv_in), from tangent to tangent, both in body axes: f(q + d) - f(q) = J d to first order |
    | `active_parameters`, `active_derivative_parameters` | bool (nq_in,), (nv_in,): what the value can depend on |
    | `relative_pose_bodies` | the pair of bodies whose relative pose alone decides the value, or None |

    Two functions are equal if their types, names and spaces are, and their numbers bit by bit; the context does not
    count. They are not hashable.

    Source: the class of the same name in hpp-constraints, whose members `docs/functions.md` maps one by one.
    """

    name: str = eqx.field(static=True, kw_only=True, default="")
    context: str = eqx.field(static=True, kw_only=True, default="")

    # What a subclass defines

    @property
    @abc.abstractmethod
    def input_space(self) -> Space:
        """Where the argument lives."""

    @property
    @abc.abstractmethod
    def output_space(self) -> LieSpace:
        """Where the value lives."""

    @abc.abstractmethod
    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The value (nq_out,) at `q` (nq_in,)."""

    # What a subclass may define

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out nv_in"]:
        """Jacobian (nv_out, nv_in) at `q` (nq_in,), from tangent to tangent, by automatic differentiation."""
        return automatic_jacobian(self, q)

    def value_and_jacobian(self, q: FloatLike) -> tuple[Float[Array, " nq_out"], Float[Array, "nv_out nv_in"]]:
        """Both, where they share work."""
        return self.value(q), self.jacobian(q)

    @property
    def active_parameters(self) -> np.ndarray:
        """bool (nq_in,): false for coordinates of the argument that the value does not depend on."""
        return np.ones(self.input_size, dtype=bool)

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """bool (nv_in,): false for columns of the Jacobian that are zero everywhere."""
        return np.ones(self.input_derivative_size, dtype=bool)

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """Two bodies in ascending order (-1: the world), if the value depends on the pose of one in the other and on
        nothing else; otherwise None."""
        return None

    def details(self) -> list[str]:
        """Lines for `print`, after the one with name and sizes."""
        return []

    # What every function has

    def __call__(self, q: FloatLike) -> LieElement:
        """The value at `q` (nq_in,) as an element of the output space."""
        return LieElement(self.output_space, self.value(q))

    @property
    def input_size(self) -> int:
        """Number of coordinates of the argument."""
        return self.input_space.nq

    @property
    def input_derivative_size(self) -> int:
        """Dimension of the argument's tangent space."""
        return self.input_space.nv

    @property
    def output_size(self) -> int:
        """Number of coordinates of the value."""
        return self.output_space.nq

    @property
    def output_derivative_size(self) -> int:
        """Dimension of the value's tangent space."""
        return self.output_space.nv

    def with_context(self: T, context: str) -> T:
        """The same function with another context (any text)."""
        return replaced(self, context=context)

    def with_name(self: T, name: str) -> T:
        """The same function with another name."""
        return replaced(self, name=name)

    def depends_on_rel_pose_between(self, model: Any = None) -> tuple[str | None, str | None]:
        """`relative_pose_bodies` as names of joints, None for the world. Ambiguous as in the original: (None, None) also
        stands for "no such pair"."""
        pair = self.relative_pose_bodies
        model = getattr(self.input_space, "model", model)
        if pair is None or model is None:
            return (None, None)
        first, second = (None if i < 0 else model.tree.joint_names[i] for i in pair)
        return first, second

    def finite_difference_forward(
        self, q: FloatLike, eps: float | None = None, step: str = "absolute"
    ) -> Float[Array, "nv_out nv_in"]:
        """Jacobian by one-sided differences; see `finite_differences`."""
        return finite_differences(self, q, eps, step, central=False)

    def finite_difference_central(
        self, q: FloatLike, eps: float | None = None, step: str = "absolute"
    ) -> Float[Array, "nv_out nv_in"]:
        """Jacobian by central differences; see `finite_differences`."""
        return finite_differences(self, q, eps, step, central=True)

    def is_equal(self, other: object) -> bool:
        """True if both have the same type, and all fields but the context are equal, numbers bit by bit."""
        return type(self) is type(other) and all(
            same(getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
            if field.name != "context"
        )

    def __eq__(self, other: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.is_equal(other)

    def __ne__(self, other: object) -> bool:
        return not self.is_equal(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.input_space} -> {self.output_space})"

    def __str__(self) -> str:
        lines = [repr(self), *self.details()]
        if self.context:
            lines.append(f"context: {self.context}")
        return "\n  ".join(lines)


class RobotFunction(DifferentiableFunction):
    """A function of the configuration of one robot."""

    model: Model

    @property
    def input_space(self) -> ConfigurationSpace:
        """Configurations of the model."""
        return ConfigurationSpace(self.model)


def check_function(what: str, given: Any) -> None:
    """Refuses what is no `DifferentiableFunction`.

    **Raises:** `InputError`.
    """
    if not isinstance(given, DifferentiableFunction):
        raise InputError(f"{what}: wanted a DifferentiableFunction, given {given!r:.80}.")


def replaced(module: T, **changes: Any) -> T:
    """A copy of a module with some fields changed, static ones too, and nothing checked."""
    new = object.__new__(type(module))
    for field in dataclasses.fields(module):  # pyright: ignore[reportArgumentType]
        object.__setattr__(new, field.name, changes.get(field.name, getattr(module, field.name)))
    return new


def same(a: Any, b: Any) -> bool:
    """Equality of fields: functions as functions, arrays bit by bit, pytrees by structure and leaves."""
    if isinstance(a, DifferentiableFunction):
        return a.is_equal(b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    x, y = (jax.tree.flatten(tree) for tree in (a, b))
    return x[1] == y[1] and all(map(_same_leaf, x[0], y[0]))


def _same_leaf(a: Any, b: Any) -> bool:
    if not (eqx.is_array_like(a) and eqx.is_array_like(b)):
        return bool(a == b)
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def automatic_jacobian(function: DifferentiableFunction, q: FloatLike) -> Float[Array, "nv_out nv_in"]:
    """Jacobian by automatic differentiation along the active columns; the others are zero."""
    source, target = function.input_space, function.output_space
    q = check_shape("q", q, (source.nq,))
    columns = np.flatnonzero(function.active_derivative_parameters)
    here = function.value(q)

    def along(moves: Array) -> Array:
        v = jnp.zeros(source.nv, q.dtype).at[columns].set(moves)
        return target.minus(function.value(source.plus(q, v)), here)

    dense = jax.jacfwd(along)(jnp.zeros(len(columns), q.dtype))
    return spread(dense, columns, source.nv)


def spread(dense: Float[Array, "rows columns"], columns: np.ndarray, width: int) -> Float[Array, "rows width"]:
    """The columns at their places in a matrix of zeros."""
    if len(columns) == width:
        return dense
    return jnp.zeros((dense.shape[0], width), dense.dtype).at[:, columns].set(dense)


def finite_differences(
    function: DifferentiableFunction,
    q: FloatLike,
    eps: float | None = None,
    step: str = "absolute",
    *,
    central: bool = True,
) -> Float[Array, "nv_out nv_in"]:
    """Jacobian of a function by finite differences of its values, on the manifold. (nv_out, nv_in)

    **Arguments:** `q` (nq_in,); `eps`: by default, with e the rounding unit, sqrt(e) for one-sided and e^(1/3) for
    central differences; `step`: "absolute": every step is `eps`; "relative": the original's rule, `eps |q_j|` for
    column j, or `eps` where `q_j` is zero, and sqrt(e) by default for both. That rule pairs coordinates with degrees of
    freedom by their number, which is meaningless after a quaternion, and rounding drowns the result where `q_j` is
    tiny: it is there for comparisons. Inactive columns are zero.

    **Raises:** `InputError` for a wrong shape or a step that is not positive, `UnknownNameError` for an unknown `step`.
    """
    if step not in STEPS:
        raise unknown_name("step", step, STEPS)
    source, target = function.input_space, function.output_space
    q = check_shape("q", q, (source.nq,))
    unit = float(jnp.finfo(q.dtype).eps)
    usual = unit ** (1 / 3) if central and step == "absolute" else unit**0.5
    width = usual if eps is None else float(eps)
    if not width > 0:
        raise InputError(f"eps: wanted a positive step, given {width}.")
    columns = np.flatnonzero(function.active_derivative_parameters)
    size = jnp.full(source.nv, width, q.dtype)
    if step == "relative":
        padded = jnp.zeros(max(source.nq, source.nv), q.dtype).at[: source.nq].set(q)[: source.nv]
        size = jnp.where(padded == 0, size, width * jnp.abs(padded))
    h = size[columns]
    moves = h[:, None] * jnp.eye(source.nv, dtype=q.dtype)[columns]
    values = jax.vmap(lambda v: function.value(source.plus(q, v)))
    here = function.value(q)

    def differences(sign: float) -> Array:
        return jax.vmap(lambda y: target.minus(y, here))(values(sign * moves))

    rise = differences(1.0) - differences(-1.0) if central else differences(1.0)
    run = 2 * h if central else h
    return spread((rise / run[:, None]).T, columns, source.nv)
