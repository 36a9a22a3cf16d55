"""What tasks and constraints are when evaluated: numbers of a least-squares problem and rows of a program."""

from __future__ import annotations

import enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, check_shape


class HessianType(enum.IntEnum):
    """What is known of A^T W A: a note for readers and other solvers, ours needs none."""

    ZERO = 0
    IDENTITY = 1
    POSDEF = 2
    POSDEF_NULLSPACE = 3
    SEMIDEF = 4
    UNKNOWN = 5


class TaskData(eqx.Module):
    """A task in numbers: 1/2 (A x - b)^T W (A x - b) + c^T x, in n unknowns.

    `W` is a number, a diagonal (rows,) or a matrix (rows, rows); a matrix need not be symmetric, as W and its symmetric
    part are the same cost.
    """

    # sizes that do not fit each other are found by `faults`
    A: Float[Array, "rows columns"]
    b: Float[Array, " b_rows"]
    c: Float[Array, " n"]
    W: Any = None
    hessian: HessianType = eqx.field(static=True, default=HessianType.UNKNOWN)

    @property
    def AT(self) -> Float[Array, "n rows"]:
        """A^T."""
        return self.A.T

    @property
    def weight(self) -> Float[Array, "rows rows"]:
        """W as a matrix."""
        eye = jnp.eye(self.A.shape[0], dtype=self.A.dtype)
        return self.W if self.W.ndim == 2 else self.W * eye if self.W.ndim == 0 else eye * self.W[:, None]

    def weigh(self, matrix: Float[Array, "rows *k"]) -> Float[Array, "rows *k"]:
        """W times a matrix or vector."""
        if self.W.ndim == 2:
            return self.W @ matrix
        if self.W.ndim == 1 and matrix.ndim == 2:
            return self.W[:, None] * matrix
        return self.W * matrix

    @property
    def WA(self) -> Float[Array, "rows n"]:
        """W A."""
        return self.weigh(self.A)

    @property
    def Wb(self) -> Float[Array, " rows"]:
        """W b."""
        return self.weigh(self.b)

    @property
    def H(self) -> Float[Array, "n n"]:
        """A^T W A, its symmetric part: the Hessian of the objective."""
        H = self.A.T @ self.WA
        return 0.5 * (H + H.T)

    @property
    def g(self) -> Float[Array, " n"]:
        """Gradient of the objective at x = 0."""
        if self.W.ndim < 2:
            return self.c - self.A.T @ self.Wb
        return self.c - 0.5 * self.A.T @ (self.W @ self.b + self.W.T @ self.b)

    def cost(self, x: FloatLike) -> Float[Array, ""]:
        """(A x - b)^T W (A x - b): without 1/2 and without c, as in OpenSoT."""
        e = self.A @ self._point(x) - self.b
        return e @ self.weigh(e)

    def objective(self, x: FloatLike) -> Float[Array, ""]:
        """1/2 (A x - b)^T W (A x - b) + c^T x: what a solver minimises."""
        return 0.5 * self.cost(x) + self.c @ self._point(x)

    def residual(self, x: FloatLike) -> Float[Array, " rows"]:
        """A x - b."""
        return self.A @ self._point(x) - self.b

    def _point(self, x: FloatLike) -> Array:
        return check_shape("x", x, (self.A.shape[1],), dtype=self.A.dtype)

    def faults(self) -> tuple[str, ...]:
        """What is inconsistent, in words; empty if nothing is. Reads shapes, and values only for `HessianType.ZERO`."""
        A, b, W, n = self.A, self.b, self.W, self.c.shape[0]
        empty = A.size == 0
        out = []
        if self.hessian is HessianType.ZERO:
            if not empty and bool(jnp.any(A != 0.0)):
                out.append("A is not zero, but hessian is ZERO")
            if bool(jnp.any(b != 0.0)):
                out.append("b is not zero, but hessian is ZERO")
        elif empty or b.size == 0:
            out.append("A or b is empty")
        rows = A.shape[0]
        if b.shape[0] != rows:
            out.append(f"A has {rows} rows, b {b.shape[0]}")
        if A.shape[1] != n:
            out.append(f"A has {A.shape[1]} columns, c {n} entries")
        if rows and W is None:
            out.append("no weight")
        elif rows and W.ndim and W.shape not in ((rows,), (rows, rows)):
            out.append(f"the weight has shape {W.shape}, A {rows} rows")
        return tuple(out)

    @property
    def consistent(self) -> bool:
        """True if `faults()` is empty."""
        return not self.faults()


class ConstraintData(eqx.Module):
    """A constraint in numbers, of one of three kinds: bounds `lower <= x <= upper`; equality `A_eq x = b_eq`;
    inequality `b_lower <= A_in x <= b_upper`. What is absent is None; infinities are no bounds. Shapes: (n,), (rows, n), (rows,).
    """

    lower: Any = None
    upper: Any = None
    A_eq: Any = None
    b_eq: Any = None
    A_in: Any = None
    b_lower: Any = None
    b_upper: Any = None

    @property
    def is_equality(self) -> bool:
        """It has rows A_eq."""
        return self.A_eq is not None and self.A_eq.shape[0] > 0

    @property
    def is_inequality(self) -> bool:
        """It has rows A_in."""
        return self.A_in is not None and self.A_in.shape[0] > 0

    @property
    def is_unilateral(self) -> bool:
        """An inequality with one side."""
        return self.is_inequality and (self.b_lower is None or self.b_upper is None)

    @property
    def is_bilateral(self) -> bool:
        """An inequality with both sides."""
        return self.is_inequality and not self.is_unilateral

    @property
    def has_bounds(self) -> bool:
        """It bounds x itself."""
        return self.lower is not None or self.upper is not None

    @property
    def is_constraint(self) -> bool:
        """It has rows."""
        return self.is_equality or self.is_inequality

    @property
    def is_bound(self) -> bool:
        """It bounds x itself and has no rows."""
        return self.has_bounds and not self.is_constraint

    def faults(self, n: int | None = None) -> tuple[str, ...]:
        """What is inconsistent, in words; a bound with one side is not. `n`: number of unknowns, if known."""
        out = []
        kinds = self.has_bounds + self.is_equality + self.is_inequality
        if kinds != 1:
            out.append(f"wanted one kind of constraint, given {kinds}")
        if self.is_equality and (self.b_eq is None or self.b_eq.shape[0] != self.A_eq.shape[0]):
            out.append(f"A_eq has {self.A_eq.shape[0]} rows, b_eq {0 if self.b_eq is None else self.b_eq.shape[0]}")
        sides = [b for b in (self.b_lower, self.b_upper) if b is not None]
        if self.is_inequality:
            if not sides:
                out.append("A_in without b_lower and b_upper")
            out += [f"A_in has {self.A_in.shape[0]} rows, b {b.shape[0]}" for b in sides if len(b) != len(self.A_in)]
        widths = [m.shape[-1] for m in (self.lower, self.upper, self.A_eq, self.A_in) if m is not None and m.size]
        if len({*widths, *([n] if n is not None else [])}) > 1:
            out.append(f"sizes differ: {widths}{'' if n is None else f', unknowns: {n}'}")
        return tuple(out)

    @property
    def consistent(self) -> bool:
        """True if `faults()` is empty."""
        return not self.faults()

    @property
    def n(self) -> int:
        """Number of unknowns."""
        for part in (self.lower, self.upper, self.A_eq, self.A_in):
            if part is not None:
                return part.shape[-1]
        raise InputError("an empty constraint has no size.")

    def violation(self, x: FloatLike) -> Float[Array, ""]:
        """The largest amount by which `x` is outside."""
        x = check_shape("x", x, (self.n,))
        parts = [jnp.zeros(1, x.dtype)]
        if self.lower is not None:
            parts.append(self.lower - x)
        if self.upper is not None:
            parts.append(x - self.upper)
        if self.is_equality:
            parts.append(jnp.abs(self.A_eq @ x - self.b_eq))
        if self.is_inequality and self.b_lower is not None:
            parts.append(self.b_lower - self.A_in @ x)
        if self.is_inequality and self.b_upper is not None:
            parts.append(self.A_in @ x - self.b_upper)
        return jnp.max(jnp.concatenate(parts))
