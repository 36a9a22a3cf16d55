"""Constraints: bounds of x, equalities and inequalities, their parts, unions and conversions.

A constraint is an immutable pytree like a task. `evaluate(state)` gives `ConstraintData`.

    bounds(lower, upper)             lower <= x <= upper; either side may be left out
    equality(A, b)                   A x = b
    inequality(A, lower, upper)      lower <= A x <= upper; either side may be left out
    constrain(variable, lo, hi)      bounds of an affine expression of the unknowns
    as_constraint(task)              A x = b of a task; with errors, b + e_lower <= A x <= b + e_upper
    c % [0, 2]                       some rows
    AggregatedConstraint((c, d))     both
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import FloatLike, InputError, is_concrete
from jaxdyn.tasks.affine import Affine
from jaxdyn.tasks.data import ConstraintData
from jaxdyn.tasks.leaves import bool_leaf, checked_rows, float_leaf, ranges
from jaxdyn.tasks.state import RobotState


class Constraint(eqx.Module):
    """What all constraints share. Subclasses give `_data`.

    **Fields:** `name`; `active`: an inactive constraint bounds nothing.
    """

    name: str = eqx.field(static=True, kw_only=True, default="constraint")
    active: Any = eqx.field(kw_only=True, default=True, converter=bool_leaf)

    @abc.abstractmethod
    def _data(self, state: Any) -> ConstraintData:
        """The constraint in numbers as it is when active."""

    def evaluate(self, state: RobotState | None = None) -> ConstraintData:
        """The constraint in numbers, in this situation. An inactive equality becomes 0 x = 0, the rest infinite."""
        d, on = self._data(state), self.active

        def off(value, instead):
            return None if value is None else jnp.where(on, value, instead)

        return ConstraintData(
            off(d.lower, -jnp.inf), off(d.upper, jnp.inf), off(d.A_eq, 0.0), off(d.b_eq, 0.0),
            d.A_in, off(d.b_lower, -jnp.inf), off(d.b_upper, jnp.inf),
        )  # fmt: skip

    def with_active(self, active: Any) -> Constraint:
        """The constraint switched on or off."""
        return dataclasses.replace(self, active=active)

    def check(self, state: RobotState | None = None, n: int | None = None) -> None:
        """Raise `InputError` if the constraint is inconsistent."""
        faults = self.evaluate(state).faults(n)
        if faults:
            raise InputError("; ".join(f"{self.name}: {f}" for f in faults) + ".")

    def diagnostics(self, state: RobotState | None = None) -> dict[str, Any]:
        """Numbers worth logging, by name."""
        data = self.evaluate(state)
        values = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
        return {f"{self.name}_{key}": value for key, value in values.items() if value is not None}

    def __mod__(self, rows: Sequence[int]) -> SubConstraint:
        return SubConstraint(self, tuple(rows), name=f"{self.name}_{ranges(rows)}")


class LinearConstraint(Constraint):
    """The constraint of given numbers; made by `bounds`, `equality`, `inequality`."""

    lower: Any = eqx.field(default=None, converter=float_leaf)
    upper: Any = eqx.field(default=None, converter=float_leaf)
    A_eq: Any = eqx.field(default=None, converter=float_leaf)
    b_eq: Any = eqx.field(default=None, converter=float_leaf)
    A_in: Any = eqx.field(default=None, converter=float_leaf)
    b_lower: Any = eqx.field(default=None, converter=float_leaf)
    b_upper: Any = eqx.field(default=None, converter=float_leaf)

    def _data(self, state):
        return ConstraintData(self.lower, self.upper, self.A_eq, self.b_eq, self.A_in, self.b_lower, self.b_upper)


def bounds(lower: FloatLike | None = None, upper: FloatLike | None = None, *, name: str = "bounds") -> LinearConstraint:
    """lower <= x <= upper."""
    return _checked(LinearConstraint(lower, upper, name=name))


def equality(A: FloatLike, b: FloatLike, *, name: str = "equality") -> LinearConstraint:
    """A x = b."""
    return _checked(LinearConstraint(A_eq=A, b_eq=b, name=name))


def inequality(
    A: FloatLike, lower: FloatLike | None = None, upper: FloatLike | None = None, *, name: str = "inequality"
) -> LinearConstraint:
    """lower <= A x <= upper."""
    return _checked(LinearConstraint(A_in=A, b_lower=lower, b_upper=upper, name=name))


def _checked(constraint: LinearConstraint) -> LinearConstraint:
    constraint.check()
    return constraint


class GenericConstraint(Constraint):
    """lower <= M x + q <= upper for an affine expression of the unknowns; made by `constrain`."""

    variable: Affine
    lower: Any = eqx.field(default=None, converter=float_leaf)
    upper: Any = eqx.field(default=None, converter=float_leaf)

    def _data(self, state):
        y, n = self.variable, self.variable.size
        lower = jnp.full(n, -jnp.inf, y.q.dtype) if self.lower is None else jnp.broadcast_to(self.lower, (n,))
        upper = jnp.full(n, jnp.inf, y.q.dtype) if self.upper is None else jnp.broadcast_to(self.upper, (n,))
        return ConstraintData(A_in=y.M, b_lower=lower - y.q, b_upper=upper - y.q)


def constrain(
    variable: Affine, lower: FloatLike | None = None, upper: FloatLike | None = None, *, name: str = "generic"
) -> GenericConstraint:
    """lower <= variable <= upper; raises `InputError` if the sides are crossed or both missing."""
    lower, upper = float_leaf(lower), float_leaf(upper)
    if lower is None and upper is None:
        raise InputError(f"{name}: give lower, upper or both.")
    if lower is not None and upper is not None and is_concrete(lower) and is_concrete(upper):
        if bool(jnp.any(lower > upper)):
            raise InputError(f"{name}: lower is above upper.")
    return GenericConstraint(variable, lower, upper, name=name)


class TaskConstraint(Constraint):
    """b + lower_error <= A x <= b + upper_error of a task, an equality if no error is given.

    The weight of the task plays no part: the rows of W A x = W b say the same for every positive definite W. An
    inactive task constrains nothing.
    """

    task: Any
    lower_error: Any = eqx.field(default=None, converter=float_leaf)
    upper_error: Any = eqx.field(default=None, converter=float_leaf)

    def __check_init__(self):
        if self.lower_error is None or self.upper_error is None:
            return
        if is_concrete(self.lower_error) and is_concrete(self.upper_error):
            if bool(jnp.any(self.upper_error < self.lower_error)):
                raise InputError(f"{self.name}: upper_error is below lower_error.")

    def _data(self, state):
        data, on = self.task.evaluate(state), self.task.active
        b = jnp.where(on, data.b, 0.0)
        if self.lower_error is None and self.upper_error is None:
            return ConstraintData(A_eq=data.A, b_eq=b)
        low = 0.0 if self.lower_error is None else self.lower_error.astype(b.dtype)
        high = 0.0 if self.upper_error is None else self.upper_error.astype(b.dtype)
        return ConstraintData(
            A_in=data.A, b_lower=jnp.where(on, b + low, -jnp.inf), b_upper=jnp.where(on, b + high, jnp.inf)
        )


def as_constraint(thing: Any, lower_error: FloatLike | None = None, upper_error: FloatLike | None = None) -> Constraint:
    """A constraint from a task; a constraint stays what it is."""
    if isinstance(thing, Constraint):
        return thing
    if not hasattr(thing, "size_in"):
        raise InputError(f"wanted a Constraint or a Task, given {type(thing).__name__}.")
    return TaskConstraint(thing, lower_error, upper_error, name=thing.name)


class SubConstraint(Constraint):
    """Some rows of a constraint. Bounds of x become rows that select."""

    constraint: Constraint
    rows: tuple[int, ...] = eqx.field(static=True)

    def _data(self, state):
        d = self.constraint.evaluate(state)

        def pick(value):
            return None if value is None else value[np.asarray(rows)]

        if d.is_equality:
            rows = checked_rows(self.name, self.rows, d.A_eq.shape[0])
            return ConstraintData(A_eq=pick(d.A_eq), b_eq=pick(d.b_eq))
        if d.is_inequality:
            rows = checked_rows(self.name, self.rows, d.A_in.shape[0])
            return ConstraintData(A_in=pick(d.A_in), b_lower=pick(d.b_lower), b_upper=pick(d.b_upper))
        rows = checked_rows(self.name, self.rows, d.n)
        eye = jnp.eye(d.n, dtype=(d.lower if d.lower is not None else d.upper).dtype)
        return ConstraintData(A_in=pick(eye), b_lower=pick(d.lower), b_upper=pick(d.upper))


class AggregatedConstraint(Constraint):
    """Several constraints as one: bounds of x intersected, rows stacked.

    By default equalities become rows with equal sides and a missing side an infinite one; with
    `equalities_to_inequalities=False` equalities stay, with `unilateral_to_bilateral=False` rows with a lower side alone
    are turned round and no rows have two sides.
    """

    constraints: tuple[Constraint, ...]
    equalities_to_inequalities: bool = eqx.field(static=True, default=True)
    unilateral_to_bilateral: bool = eqx.field(static=True, default=True)

    def _data(self, state):
        return aggregate(
            [c.evaluate(state) for c in self.constraints], self.equalities_to_inequalities, self.unilateral_to_bilateral
        )


def aggregate(
    parts: Sequence[ConstraintData], equalities_to_inequalities: bool = False, unilateral_to_bilateral: bool = True
) -> ConstraintData:
    """The union of constraints in numbers; see `AggregatedConstraint`."""
    lower = [p.lower for p in parts if p.lower is not None]
    upper = [p.upper for p in parts if p.upper is not None]
    low = None
    for x in lower:
        low = x if low is None else jnp.maximum(low, x)
    high = None
    for x in upper:
        high = x if high is None else jnp.minimum(high, x)
    A_eq, b_eq, A_in, b_lower, b_upper = [], [], [], [], []

    def inequality_rows(A, lo, hi):
        inf = jnp.full(A.shape[0], jnp.inf, A.dtype)
        if unilateral_to_bilateral:
            A_in.append(A)
            b_lower.append(-inf if lo is None else lo)
            b_upper.append(inf if hi is None else hi)
            return
        for matrix, side in ((A, hi), (-A, None if lo is None else -lo)):
            if side is not None:
                A_in.append(matrix)
                b_upper.append(side)

    for p in parts:
        if p.is_equality and equalities_to_inequalities:
            inequality_rows(p.A_eq, p.b_eq, p.b_eq)
        elif p.is_equality:
            A_eq.append(p.A_eq)
            b_eq.append(p.b_eq)
        if p.is_inequality:
            inequality_rows(p.A_in, p.b_lower, p.b_upper)

    def joined(values):
        return jnp.concatenate(values) if values else None

    return ConstraintData(low, high, joined(A_eq), joined(b_eq), joined(A_in), joined(b_lower), joined(b_upper))
