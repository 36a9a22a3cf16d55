"""Affine expressions y = M x + q of the unknowns x of a program, and named blocks of unknowns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_shape, unknown_name


class Affine(eqx.Module):
    """y = M x + q, with M (rows, n) and q (rows,).

    `a + b`, `a - b`, `-a`, `a + vector`, `scale * a`, `matrix @ a` and `a[2:5]` are affine again; `a / b` stacks them.
    """

    M: Float[Array, "rows n"]
    q: Float[Array, " rows"]

    __array_ufunc__ = None  # NumPy arrays leave `matrix @ affine` to us

    @staticmethod
    def identity(n: int, dtype: Any = None) -> Affine:
        """y = x."""
        return Affine(jnp.eye(n, dtype=dtype), jnp.zeros(n, dtype))

    @staticmethod
    def zero(rows: int, n: int, dtype: Any = None) -> Affine:
        """y = 0."""
        return Affine(jnp.zeros((rows, n), dtype), jnp.zeros(rows, dtype))

    @property
    def input_size(self) -> int:
        """Number of unknowns, n."""
        return self.M.shape[1]

    @property
    def size(self) -> int:
        """Number of rows of y."""
        return self.M.shape[0]

    def __call__(self, x: FloatLike) -> Float[Array, " rows"]:
        """The value at `x` (n,)."""
        return self.M @ check_shape("x", x, (self.input_size,), dtype=self.q.dtype) + self.q

    def __getitem__(self, rows: slice | int) -> Affine:
        if isinstance(rows, int):
            rows = slice(rows, rows + 1 or None)
        return Affine(self.M[rows], self.q[rows])

    def __add__(self, other: Affine | FloatLike) -> Affine:
        if isinstance(other, Affine):
            self._same_unknowns(other)
            if other.size != self.size:
                raise InputError(f"sum of affine expressions with {self.size} and {other.size} rows.")
            return Affine(self.M + other.M, self.q + other.q)
        return Affine(self.M, self.q + check_shape("vector", other, (self.size,), dtype=self.q.dtype))

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return Affine(-self.M, -self.q)

    def __sub__(self, other: Affine | FloatLike) -> Affine:
        return self + (-other if isinstance(other, Affine) else -as_float_array("vector", other, self.q.dtype))

    def __rsub__(self, other: FloatLike) -> Affine:
        return -self + other

    def __mul__(self, factor: FloatLike) -> Affine:
        factor = as_float_array("factor", float(factor) if isinstance(factor, int) else factor, self.q.dtype)
        if factor.ndim == 2:
            return self.__rmatmul__(factor)
        factor = check_shape("factor", factor, ())
        return Affine(factor * self.M, factor * self.q)

    __rmul__ = __mul__

    def __rmatmul__(self, matrix: FloatLike) -> Affine:
        matrix = as_float_array("matrix", matrix, self.q.dtype)
        if matrix.ndim != 2 or matrix.shape[1] != self.size:
            raise InputError(f"matrix: wanted shape (rows, {self.size}), given shape {matrix.shape}.")
        return Affine(matrix @ self.M, matrix @ self.q)

    def __truediv__(self, other: Affine) -> Affine:
        self._same_unknowns(other)
        return Affine(jnp.concatenate([self.M, other.M]), jnp.concatenate([self.q, other.q]))

    def _same_unknowns(self, other: Affine) -> None:
        if other.input_size != self.input_size:
            raise InputError(f"affine expressions of {self.input_size} and {other.input_size} unknowns do not combine.")


class Variables(eqx.Module):
    """Named blocks of the unknowns, one after the other: `Variables({"acceleration": 8, "force": 3})["force"]`."""

    blocks: tuple[tuple[str, int], ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True, default=None)

    def __init__(self, blocks: Mapping[str, int] | Iterable[tuple[str, int]], dtype: Any = None):
        pairs: Any = tuple(blocks.items() if isinstance(blocks, Mapping) else blocks)
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"variable {name!r} is given twice.")
        self.blocks = tuple((name, int(size)) for name, size in pairs)
        self.dtype = dtype

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return sum(size for _, size in self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks in their order."""
        return tuple(name for name, _ in self.blocks)

    def slice(self, name: str) -> slice:
        """Where a block stands; raises `UnknownNameError`."""
        if name not in self.names:
            raise unknown_name("variable", name, self.names)
        at = self.names.index(name)
        start = sum(size for _, size in self.blocks[:at])
        return slice(start, start + self.blocks[at][1])

    def __getitem__(self, name: str) -> Affine:
        """The block as an affine expression of all unknowns; raises `UnknownNameError`."""
        where = self.slice(name)
        return Affine.identity(self.size, self.dtype)[where]

    def split(self, x: FloatLike) -> dict[str, Array]:
        """The blocks of a point."""
        x = check_shape("x", x, (self.size,))
        return {name: x[self.slice(name)] for name in self.names}
