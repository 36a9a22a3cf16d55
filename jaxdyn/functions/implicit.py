"""Constraints made of a function, a comparison for each row of its value, and a right-hand side."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.functions.function import DifferentiableFunction, check_function, replaced, same
from jaxdyn.functions.spaces import ConfigurationSpace, Space
from jaxdyn.math.lie_space import LieSpace


class Comparison(enum.Enum):
    """How a row of f(q) - right-hand side, in the output's tangent space, is compared with zero.

    | member | satisfied if | right-hand side |
    |---|---|---|
    | EQUALITY | row = 0 | any, often set from a configuration |
    | EQUAL_TO_ZERO | row = 0 | that of the neutral element, fixed |
    | SUPERIOR | row >= 0 | any |
    | INFERIOR | row <= 0 | any |
    """

    EQUALITY = "equality"
    EQUAL_TO_ZERO = "equal to zero"
    SUPERIOR = "superior"
    INFERIOR = "inferior"


class Implicit(eqx.Module):
    """The constraint f(q) = right-hand side, or >=, <=, row by row in the tangent space of f's value.

    **Arguments:** `function`; `comparison`: one for all rows, or one for each (static); `right_hand_side` (nq_out,):
    element of the output space, by default the neutral one (a leaf); `mask`: bool for each row, false switches it off
    (static).

    **Raises:** `InputError` for wrong lengths.
    """

    function: DifferentiableFunction
    right_hand_side: Float[Array, " nq_out"]
    comparison: tuple[Comparison, ...] = eqx.field(static=True)
    mask: tuple[bool, ...] = eqx.field(static=True)

    def __init__(
        self,
        function: DifferentiableFunction,
        comparison: Comparison | Sequence[Comparison] = Comparison.EQUAL_TO_ZERO,
        right_hand_side: FloatLike | None = None,
        mask: Sequence[bool] | None = None,
    ) -> None:
        check_function("function", function)
        space = function.output_space
        if isinstance(comparison, str):
            raise InputError(
                f"comparison: wanted a Comparison, such as Comparison.EQUALITY, given the text {comparison!r}."
            )
        given = (comparison,) * space.nv if isinstance(comparison, Comparison) else tuple(comparison)
        active = (True,) * space.nv if mask is None else tuple(bool(m) for m in mask)
        for what, values in (("comparison", given), ("mask", active)):
            if len(values) != space.nv:
                raise InputError(
                    f"{what}: {function.name!r} has {space.nv} rows, given {len(values)} entries. "
                    "One comparison stands for all rows."
                )
        if wrong := [c for c in given if not isinstance(c, Comparison)]:
            raise InputError(f"comparison: wanted a Comparison, such as Comparison.EQUALITY, given {wrong[0]!r}.")
        self.function, self.comparison, self.mask = function, given, active
        if right_hand_side is None:
            self.right_hand_side = space.neutral(_dtype(function))
        else:
            self.right_hand_side = check_shape("right_hand_side", right_hand_side, (space.nq,))

    @property
    def parameter_rows(self) -> np.ndarray:
        """bool (nv_out,): rows whose right-hand side is free, that is those compared by EQUALITY."""
        return np.asarray([c is Comparison.EQUALITY for c in self.comparison], dtype=bool)

    @property
    def parameter_size(self) -> int:
        """Number of rows whose right-hand side is free."""
        return int(self.parameter_rows.sum())

    def with_right_hand_side(self, right_hand_side: FloatLike) -> Implicit:
        """The same constraint with another right-hand side (nq_out,)."""
        return replaced(
            self, right_hand_side=check_shape("right_hand_side", right_hand_side, self.right_hand_side.shape)
        )

    def right_hand_side_from(self, q: FloatLike) -> Implicit:
        """The same constraint with the right-hand side that makes `q` (nq_in,) satisfy its EQUALITY rows; other rows keep
        theirs."""
        space = self.function.output_space
        here = space.minus(self.function.value(q), self.right_hand_side)
        return self.with_right_hand_side(
            space.plus(self.right_hand_side, jnp.where(self.parameter_rows, here, jnp.zeros_like(here)))
        )

    def residual(self, q: FloatLike) -> Float[Array, " nv_out"]:
        """By how much each row misses (nv_out,): zero where it is satisfied or switched off."""
        return self.residual_of(self.function.value(q))

    def residual_of(self, value: FloatLike) -> Float[Array, " nv_out"]:
        """`residual` where the function's value is `value` (nq_out,)."""
        error = self.function.output_space.minus(value, self.right_hand_side)
        return jnp.where(self._counts(error), error, jnp.zeros_like(error))

    def residual_and_jacobian(self, q: FloatLike) -> tuple[Float[Array, " nv_out"], Float[Array, "nv_out nv_in"]]:
        """`residual` and its Jacobian, whose rows are zero where the residual's are (an inequality on its limit too)."""
        return self.residual_and_jacobian_of(*self.function.value_and_jacobian(q))

    def residual_and_jacobian_of(
        self, value: Float[Array, " nq_out"], jacobian: Float[Array, "nv_out nv_in"]
    ) -> tuple[Float[Array, " nv_out"], Float[Array, "nv_out nv_in"]]:
        """`residual_and_jacobian` where those of the function are `value` and `jacobian`."""
        space = self.function.output_space
        error = space.minus(value, self.right_hand_side)
        if not space.is_vector_space:
            inner, _ = space.minus_jacobians(value, self.right_hand_side)
            jacobian = jnp.matmul(inner, jacobian, precision="highest")
        counts = self._counts(error)
        return jnp.where(counts, error, jnp.zeros_like(error)), jnp.where(
            counts[:, None], jacobian, jnp.zeros_like(jacobian)
        )

    def is_satisfied(self, q: FloatLike, tolerance: FloatLike = 1e-6) -> Bool[Array, ""]:
        """True if the length of the residual is at most `tolerance`."""
        residual = self.residual(q)
        return jnp.sum(residual**2) <= jnp.asarray(tolerance, residual.dtype) ** 2

    def _counts(self, error: Array) -> Array:
        superior = np.asarray([c is Comparison.SUPERIOR for c in self.comparison])
        inferior = np.asarray([c is Comparison.INFERIOR for c in self.comparison])
        violated = jnp.where(superior, error < 0, jnp.where(inferior, error > 0, jnp.ones_like(error, dtype=bool)))
        return violated & np.asarray(self.mask, dtype=bool)

    def __eq__(self, other: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return isinstance(other, Implicit) and all(
            same(getattr(self, field), getattr(other, field))
            for field in ("function", "right_hand_side", "comparison", "mask")
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __str__(self) -> str:
        return f"{self.function}\n  rows: {', '.join(c.value for c in self.comparison)}"


def _dtype(function: DifferentiableFunction) -> Any:
    """dtype of the numbers that a function holds; None if it holds none."""
    numbers = [leaf for leaf in jax.tree.leaves(function) if eqx.is_inexact_array(leaf)]
    return numbers[0].dtype if numbers else None


class Gap(DifferentiableFunction):
    """By how much some coordinates differ from a function of others: q -> q_out minus f(q_in), in the tangent space of
    f's value; it vanishes where q_out = f(q_in).

    **Arguments:** `function`; `space`: of q; `inputs`, `outputs`: indices of the coordinates q_in and q_out (static);
    `name`; `context`.

    **Raises:** `InputError` if their numbers do not fit the function, or a coordinate is in both.
    """

    function: DifferentiableFunction
    space: Space
    inputs: tuple[int, ...] = eqx.field(static=True)
    outputs: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        function: DifferentiableFunction,
        space: Space,
        inputs: Sequence[int],
        outputs: Sequence[int],
        name: str = "",
        context: str = "",
    ) -> None:
        self.inputs, self.outputs = tuple(map(int, inputs)), tuple(map(int, outputs))
        for what, indices, size in (
            ("inputs", self.inputs, function.input_size),
            ("outputs", self.outputs, function.output_size),
        ):
            if len(indices) != size or len(set(indices)) != size or not all(0 <= i < space.nq for i in indices):
                raise InputError(f"{what}: wanted {size} different indices below {space.nq}, given {indices}.")
        if set(self.inputs) & set(self.outputs):
            raise InputError("inputs, outputs: a coordinate cannot be both.")
        self.function, self.space = function, space
        self.name = name or f"{function.name} (explicit)"
        self.context = context

    @property
    def input_space(self) -> Space:
        """That of q."""
        return self.space

    @property
    def output_space(self) -> LieSpace:
        """R^n with the dimension of the function's output space."""
        return LieSpace.R(self.function.output_derivative_size)

    def value(self, q: FloatLike) -> Float[Array, " nv_out"]:
        """The difference, along the shortest way from f(q_in) to q_out."""
        q = check_shape("q", q, (self.space.nq,))
        wanted = self.function.value(q[np.asarray(self.inputs, dtype=int)])
        return self.function.output_space.minus(q[np.asarray(self.outputs, dtype=int)], wanted)

    @property
    def active_parameters(self) -> np.ndarray:
        """The coordinates q_in and q_out."""
        mask = np.zeros(self.space.nq, dtype=bool)
        mask[list(self.inputs)] = self.function.active_parameters
        mask[list(self.outputs)] = True
        return mask


class _Apply(eqx.Module):
    """q_out = f(q_in) moved by the right-hand side, a tangent vector."""

    gap: Gap

    def __call__(self, q: Array, right_hand_side: Array) -> Array:
        f = self.gap.function
        return f.output_space.plus(f.value(q[np.asarray(self.gap.inputs, dtype=int)]), right_hand_side)


class Explicit(eqx.Module):
    """A constraint that is solved for some coordinates: q_out = rule(q, right-hand side), which is the same as its
    `implicit` form.

    **Arguments:** `implicit`; `outputs`: indices of the coordinates that the rule gives (static); `rule`: a callable (a
    module if it holds numbers) `(q, right_hand_side) -> q_out`, which must not look at q_out.
    """

    implicit: Implicit
    outputs: tuple[int, ...] = eqx.field(static=True)
    rule: Callable[[Array, Array], Array]

    @staticmethod
    def from_function(
        function: DifferentiableFunction, space: Space, inputs: Sequence[int], outputs: Sequence[int], name: str = ""
    ) -> Explicit:
        """The constraint q_out = f(q_in), whose implicit form is q_out minus f(q_in) = right-hand side; see `Gap`."""
        gap = Gap(function, space, inputs, outputs, name)
        return Explicit(Implicit(gap, Comparison.EQUALITY), gap.outputs, _Apply(gap))

    def solve(self, q: FloatLike, right_hand_side: FloatLike | None = None) -> Float[Array, " nq"]:
        """`q` (nq,) with its output coordinates replaced, so that the constraint holds.

        **Arguments:** `right_hand_side`: by default that of the implicit form.
        """
        q = check_shape("q", q, (self.implicit.function.input_size,))
        rhs = self.implicit.right_hand_side if right_hand_side is None else right_hand_side
        rhs = check_shape("right_hand_side", rhs, self.implicit.right_hand_side.shape)
        return q.at[np.asarray(self.outputs, dtype=int)].set(self.rule(q, rhs))

    def residual(self, q: FloatLike) -> Float[Array, " nv_out"]:
        """That of the implicit form."""
        return self.implicit.residual(q)


def configuration_space(function: DifferentiableFunction) -> ConfigurationSpace:
    """The input space of a function of a robot's configuration; raises `InputError` for any other function."""
    space = function.input_space
    if not isinstance(space, ConfigurationSpace):
        raise InputError(f"{function.name!r} takes {space}, wanted a function of a robot's configuration.")
    return space
