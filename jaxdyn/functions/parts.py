"""Functions made from one other function: along a line, on an interval, of some coordinates, some rows."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, check_shape, is_concrete
from jaxdyn.functions.function import DifferentiableFunction, spread
from jaxdyn.functions.spaces import Space
from jaxdyn.math.lie_space import LieSpace


class AlongLine(DifferentiableFunction):
    """A function restricted to the line through `q` along the tangent `v`: s -> f(q exp(s v)), s in R^1.

    **Arguments:** `function`; `q` (nq_in,) and `v` (nv_in,): leaves; `name`; `context`.
    """

    function: DifferentiableFunction
    q: Float[Array, " nq"]
    v: Float[Array, " nv"]

    def __init__(
        self, function: DifferentiableFunction, q: FloatLike, v: FloatLike, name: str = "", context: str = ""
    ) -> None:
        self.function = function
        self.q = check_shape("q", q, (function.input_size,))
        self.v = check_shape("v", v, (function.input_derivative_size,))
        self.name = name or f"{function.name} along a line"
        self.context = context

    @property
    def input_space(self) -> Space:
        """R^1."""
        return LieSpace.R(1)

    @property
    def output_space(self) -> LieSpace:
        """That of the function."""
        return self.function.output_space

    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The value at the parameter `q` (1,) of the line."""
        return self.function.value(self._point(q))

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out 1"]:
        """The function's Jacobian times `v`, which is the line's velocity everywhere on it."""
        return jnp.matmul(self.function.jacobian(self._point(q)), self.v[:, None], precision="highest")

    def _point(self, s: FloatLike) -> Array:
        s = check_shape("q", s, (1,), dtype=self.q.dtype)
        return self.function.input_space.plus(self.q, s[0] * self.v)


class OnInterval(DifferentiableFunction):
    """A function of one number from a start, forwards or backwards: s -> f(start + direction s).

    **Arguments:** `function`: of R^1; `start`, `direction`: numbers (leaves), the latter 1 or -1; `name`; `context`.
    """

    function: DifferentiableFunction
    start: Float[Array, ""]
    direction: Float[Array, ""]

    def __init__(
        self,
        function: DifferentiableFunction,
        start: FloatLike,
        direction: FloatLike = 1.0,
        name: str = "",
        context: str = "",
    ) -> None:
        _require_line(function)
        self.function = function
        self.start = check_shape("start", start, ())
        self.direction = check_shape("direction", direction, (), dtype=self.start.dtype)
        self.name = name or f"{function.name} on an interval"
        self.context = context

    @property
    def input_space(self) -> Space:
        """R^1."""
        return LieSpace.R(1)

    @property
    def output_space(self) -> LieSpace:
        """That of the function."""
        return self.function.output_space

    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The value at `start + direction q`, `q` (1,)."""
        return self.function.value(self._point(q))

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out 1"]:
        """The function's derivative at that point, times the direction."""
        return self.direction * self.function.jacobian(self._point(q))

    def _point(self, s: FloatLike) -> Array:
        return self.start + self.direction * check_shape("q", s, (1,), dtype=self.start.dtype)


def _require_line(function: DifferentiableFunction) -> None:
    if (function.input_size, function.input_derivative_size) != (1, 1):
        raise InputError(f"wanted a function of one number, but {function.name!r} takes {function.input_space}.")


def restrict(function: DifferentiableFunction, t1: FloatLike, t2: FloatLike) -> DifferentiableFunction:
    """A function of one number on the interval from `t1` to `t2`, as a function of the way gone from `t1`: s -> f(t1 + s),
    or f(t1 - s) if `t2 < t1`, for s from 0 to |t2 - t1|.

    It is the function itself if `t1` is 0 and `t2` is positive (and both can be read, that is outside of `jit`).

    **Raises:** `InputError` if the function does not take one number.
    """
    _require_line(function)
    start = check_shape("t1", t1, ())
    end = check_shape("t2", t2, (), dtype=start.dtype)
    if is_concrete(start) and is_concrete(end) and bool(start == 0) and bool(end > 0):
        return function
    return OnInterval(function, start, jnp.where(end >= start, jnp.ones_like(start), -jnp.ones_like(start)))


class OfParameterSubset(DifferentiableFunction):
    """A function of some neighbouring coordinates, as a function of all: q -> f(q[q_start : q_start + nq_f]).

    **Arguments:** `function`; `space`: of the whole argument; `q_start`, `v_start`: where the function's coordinates and
    degrees of freedom start (static); `name`; `context`.

    **Raises:** `InputError` if they do not fit into the space.
    """

    function: DifferentiableFunction
    space: Space
    q_start: int = eqx.field(static=True)
    v_start: int = eqx.field(static=True)

    def __init__(
        self,
        function: DifferentiableFunction,
        space: Space,
        q_start: int,
        v_start: int,
        name: str = "",
        context: str = "",
    ) -> None:
        for what, start, size, all_of_it in (
            ("q_start", q_start, function.input_size, space.nq),
            ("v_start", v_start, function.input_derivative_size, space.nv),
        ):
            if not 0 <= start <= all_of_it - size:
                raise InputError(f"{what}: {size} entries from {start} on do not fit into {all_of_it}.")
        self.function, self.space, self.q_start, self.v_start = function, space, q_start, v_start
        self.name = name or function.name
        self.context = context

    @property
    def input_space(self) -> Space:
        """The whole argument's."""
        return self.space

    @property
    def output_space(self) -> LieSpace:
        """That of the function."""
        return self.function.output_space

    def _part(self, q: FloatLike) -> Array:
        q = check_shape("q", q, (self.space.nq,))
        return q[self.q_start : self.q_start + self.function.input_size]

    @property
    def _columns(self) -> np.ndarray:
        return np.arange(self.function.input_derivative_size) + self.v_start

    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The function's value at its part of `q`."""
        return self.function.value(self._part(q))

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out nv_in"]:
        """The function's Jacobian in its columns, zero elsewhere."""
        return spread(self.function.jacobian(self._part(q)), self._columns, self.space.nv)

    @property
    def active_parameters(self) -> np.ndarray:
        """Those of the function, at their places."""
        mask = np.zeros(self.space.nq, dtype=bool)
        mask[self.q_start : self.q_start + self.function.input_size] = self.function.active_parameters
        return mask

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Those of the function, at their places."""
        mask = np.zeros(self.space.nv, dtype=bool)
        mask[self._columns] = self.function.active_derivative_parameters
        return mask


class SelectedRows(DifferentiableFunction):
    """Some components of a function's value, in the order given. They must be coordinates of vector spaces.

    **Arguments:** `function`; `rows`: tangent indices of the output (static), each once; `name`; `context`.

    **Raises:** `InputError` for an index out of range, a repeated one, or one that belongs to a rotation.
    """

    function: DifferentiableFunction
    rows: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, function: DifferentiableFunction, rows: Sequence[int], name: str = "", context: str = ""
    ) -> None:
        rows = tuple(int(i) for i in rows)
        coordinates = function.output_space.coordinate_of
        if len(set(rows)) != len(rows):
            raise InputError(f"rows: each may occur once, given {rows}.")
        for i in rows:
            if not 0 <= i < len(coordinates):
                raise InputError(f"rows: {function.name!r} has rows 0 to {len(coordinates) - 1}, given {i}.")
            if coordinates[i] < 0:
                raise InputError(
                    f"rows: row {i} of {function.name!r} is part of a rotation in {function.output_space}."
                )
        self.function, self.rows = function, rows
        self.name = name or f"{function.name}[{', '.join(map(str, rows))}]"
        self.context = context

    @property
    def input_space(self) -> Space:
        """That of the function."""
        return self.function.input_space

    @property
    def output_space(self) -> LieSpace:
        """R^n, n the number of rows."""
        return LieSpace.R(len(self.rows))

    def value(self, q: FloatLike) -> Float[Array, " rows"]:
        """The chosen components."""
        coordinates = np.asarray(self.function.output_space.coordinate_of, dtype=int)
        return self.function.value(q)[coordinates[list(self.rows)]]

    def jacobian(self, q: FloatLike) -> Float[Array, "rows nv_in"]:
        """The chosen rows."""
        return self.function.jacobian(q)[np.asarray(self.rows, dtype=int)]

    @property
    def active_parameters(self) -> np.ndarray:
        """Those of the function."""
        return self.function.active_parameters

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Those of the function."""
        return self.function.active_derivative_parameters

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """That of the function."""
        return self.function.relative_pose_bodies
