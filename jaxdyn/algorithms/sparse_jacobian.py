"""`SparseJacobian`: the columns of a Jacobian that are not zero, and which columns these are.

A point of a body is moved by the degrees of freedom between the body and the world alone. Row count m (3 for a point,
6 for a frame, 1 for a scalar) and columns are stored as `values` (m, capacity), of which the first `size` count;
column c stands for column `idx[c]` of the full matrix (m, nv). Columns may come in any order; of two with the same
index the sum counts.

Indices are *static* (Python integers: known when JAX traces; nothing is paid for them) or *run-time* (integer arrays:
the body may be chosen by the numbers, and differ within a batch). Both kinds have the same methods, and every method
returns a new object. The members of `raisim::SparseJacobian` are here under their own names, in functional form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.algorithms.columns import as_columns, wider
from jaxdyn.algorithms.topology import TopologyLike, topology_of
from jaxdyn.errors import FloatLike, InputError, OutOfRangeError, as_float_array, check_shape


class StaticColumns(eqx.Module):
    """Column indices known when JAX traces; slots that were never set hold nv."""

    idx: tuple[int, ...] = eqx.field(static=True)
    size: int = eqx.field(static=True)


class RuntimeColumns(eqx.Module):
    """Column indices as numbers: int32 (capacity,) and (); slots from `size` on do not count."""

    idx: Int[Array, " capacity"]
    size: Int[Array, ""]


class SparseJacobian(eqx.Module):
    """A Jacobian (m, nv) without its zero columns. Make one with `sparse_point_jacobian`, `sparse_frame_jacobian`, ...,
    or with `from_values`, `from_dense`, `empty`.

    `values` (m, capacity); `columns` holds the indices; `nv` is static.
    """

    values: Float[Array, "rows capacity"]
    columns: StaticColumns | RuntimeColumns
    nv: int = eqx.field(static=True)

    # Making one

    @classmethod
    def empty(cls, nv: int, capacity: int = 0, *, rows: int = 3, dtype: Any = None) -> SparseJacobian:
        """No columns yet, room for `capacity`. RaiSim: the default constructor."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(jnp.zeros((rows, _whole("capacity", capacity)), dtype), StaticColumns((nv,) * capacity, 0), nv)

    @classmethod
    def from_values(
        cls, values: FloatLike, idx: Sequence[int] | Int[Array, " capacity"], nv: int, *, size: Any = None
    ) -> SparseJacobian:
        """From columns and their indices: Python integers make static ones, an integer array makes run-time ones, of
        which `size` (all) count; the others are set to zero.

        **Raises:** `InputError` if the numbers of columns differ or a static index is not among 0 .. nv - 1.
        """
        values = as_float_array("values", values)
        if values.ndim != 2:
            raise InputError(f"values: wanted shape (rows, columns), given shape {values.shape}.")
        if isinstance(idx, jax.Array):
            if idx.shape != values.shape[1:] or not jnp.issubdtype(idx.dtype, jnp.integer):
                raise InputError(f"idx: wanted {values.shape[1]} integers, given {idx.dtype} of shape {idx.shape}.")
            size = jnp.asarray(values.shape[1] if size is None else size, jnp.int32)
            used = jnp.arange(values.shape[1], dtype=jnp.int32) < size
            return cls(
                jnp.where(used[None], values, jnp.zeros_like(values)),
                RuntimeColumns(jnp.where(used, idx.astype(jnp.int32), jnp.int32(nv)), size),
                nv,
            )
        idx = tuple(int(i) for i in idx)
        if len(idx) != values.shape[1] or size not in (None, len(idx)):
            raise InputError(f"idx: wanted one index for each of {values.shape[1]} columns, given {len(idx)}.")
        return cls(values, StaticColumns(_checked(idx, nv), len(idx)), nv)

    @classmethod
    def from_dense(
        cls,
        J: FloatLike,
        idx: Sequence[int] | Int[Array, " capacity"] | None = None,
        *,
        topology: TopologyLike | None = None,
        dof: int | None = None,
    ) -> SparseJacobian:
        """The given columns of a full matrix (m, nv), or those between degree of freedom `dof` and the world. What
        else stands in the matrix is dropped.

        **Raises:** `InputError`.
        """
        J = as_float_array("J", J)
        if J.ndim != 2:
            raise InputError(f"J: wanted shape (rows, nv), given shape {J.shape}.")
        if (idx is None) == (topology is None or dof is None):
            raise InputError("wanted either idx, or topology and dof.")
        if idx is None:
            found = topology_of(topology)  # type: ignore[arg-type]
            check_shape("J", J, (J.shape[0], found.nv))
            if not -1 <= dof < found.nv:  # type: ignore[operator]
                raise InputError(f"dof: wanted -1 (the world) to {found.nv - 1}, given {dof}.")
            idx = found.chains[dof] if dof != -1 else ()  # type: ignore[index]
        if isinstance(idx, jax.Array):
            return cls.from_values(jnp.take(J, idx, axis=1, mode="fill", fill_value=0), idx, J.shape[1])
        return cls.from_values(J[:, list(_checked(tuple(idx), J.shape[1]))], idx, J.shape[1])

    # What is stored

    @property
    def rows(self) -> int:
        """m."""
        return self.values.shape[0]

    @property
    def capacity(self) -> int:
        """Columns for which there is room."""
        return self.values.shape[1]

    @property
    def size(self) -> Any:
        """Columns that count: an `int`, or int32 () for run-time indices."""
        return self.columns.size

    @property
    def idx(self) -> Any:
        """Index of each column: a tuple, or int32 (capacity,). From `size` on they mean nothing."""
        return self.columns.idx

    @property
    def is_static(self) -> bool:
        """Whether the indices are Python integers."""
        return isinstance(self.columns, StaticColumns)

    @property
    def dtype(self) -> Any:
        """Floating-point type of the values."""
        return self.values.dtype

    @property
    def block(self) -> Float[Array, "rows size"]:
        """The columns that count; with run-time indices all, unused ones zero. RaiSim: `e()`."""
        return self.values[:, : self.size] if self.is_static else self.values

    @property
    def data(self) -> Float[Array, " entries"]:
        """The same column by column, a copy. RaiSim: `data()`, `ptr()` (there to be written to; see `set_flat`)."""
        return self.block.T.reshape(-1)

    def __getitem__(self, at: Any) -> Float[Array, ""]:
        """`J[r, c]`: row r of stored column c; `J[i]`: entry i counted column by column. A traced index out of range
        gives NaN. RaiSim: `operator()`, `operator[]`.

        **Raises:** `OutOfRangeError` (an `IndexError`).
        """
        row, column = self._place(at)
        value = self.values.at[row, column].get(mode="fill", fill_value=jnp.nan)
        return value if self._inside(row, column) is None else jnp.where(self._inside(row, column), value, jnp.nan)

    # Changing it

    def at_set(self, row: Any, column: Any, value: FloatLike) -> SparseJacobian:
        """With entry (row, stored column) set; a traced index out of range changes nothing.

        **Raises:** `OutOfRangeError`.
        """
        row, column = self._place((row, column))
        changed = self.values.at[row, column].set(jnp.asarray(value, self.dtype), mode="drop")
        inside = self._inside(row, column)
        return self._with(changed if inside is None else jnp.where(inside, changed, self.values))

    def set_flat(self, index: Any, value: FloatLike) -> SparseJacobian:
        """With entry `index`, counted column by column, set. RaiSim: `operator[]`.

        **Raises:** `OutOfRangeError`.
        """
        row, column = self._place(index)
        return self.at_set(row, column, value)

    def with_block(self, block: FloatLike) -> SparseJacobian:
        """With the columns that count replaced. RaiSim: writing to `e()`.

        **Raises:** `InputError` for a wrong shape.
        """
        block = check_shape("block", block, self.block.shape, dtype=self.dtype).astype(self.dtype)
        if self.is_static:
            return self._with(self.values.at[:, : self.size].set(block))
        return self._with(jnp.where(self._used()[None], block, jnp.zeros_like(block)))

    def with_idx(self, idx: Sequence[int]) -> SparseJacobian:
        """With the indices of the columns that count replaced; makes them static. RaiSim: writing to `idx`.

        **Raises:** `InputError`.
        """
        if not self.is_static:
            return SparseJacobian.from_values(self.values, idx, self.nv)
        if len(idx) != self.size:
            raise InputError(f"idx: wanted {self.size} indices, given {len(idx)}.")
        rest = self.columns.idx[self.size :]
        return SparseJacobian(self.values, StaticColumns((*_checked(tuple(idx), self.nv), *rest), self.size), self.nv)

    def resize(self, columns: Any) -> SparseJacobian:
        """With that many columns, all zero; indices stay, those of new columns are unset (nv). The capacity grows if it
        must, and never falls. With run-time indices `columns` may be traced, and cannot exceed the capacity.

        **Raises:** `InputError`.
        """
        if not self.is_static:
            if isinstance(columns, int) and not 0 <= columns <= self.capacity:
                raise InputError(f"columns: wanted 0 to {self.capacity} (the capacity), given {columns}.")
            size = jnp.clip(jnp.asarray(columns, jnp.int32), 0, self.capacity)
            return SparseJacobian(jnp.zeros_like(self.values), RuntimeColumns(self.idx, size), self.nv)
        columns = _whole("columns", columns)
        capacity = max(self.capacity, columns)
        idx = self.idx + (self.nv,) * (capacity - self.capacity)
        return SparseJacobian(jnp.zeros((self.rows, capacity), self.dtype), StaticColumns(idx, columns), self.nv)

    def fill_sub(self, row: int, column: int, block: FloatLike) -> SparseJacobian:
        """With a block of any shape written, its first entry to (row, stored column). RaiSim: `fillSub`.

        **Raises:** `InputError` if it does not fit; nothing is moved to make it fit.
        """
        block = as_float_array("block", block, self.dtype).astype(self.dtype)
        width = self.size if self.is_static else self.capacity
        if (
            block.ndim != 2
            or row < 0
            or column < 0
            or row + block.shape[0] > self.rows
            or column + block.shape[1] > width
        ):
            raise InputError(
                f"block: of shape {block.shape} at row {row}, column {column} it does not fit into ({self.rows}, {width})."
            )
        changed = self.values.at[row : row + block.shape[0], column : column + block.shape[1]].set(block)
        return self._with(
            changed if self.is_static else jnp.where(self._used()[None], changed, jnp.zeros_like(changed))
        )

    def assign(self, other: SparseJacobian) -> SparseJacobian:
        """The columns of `other` in at least our own capacity: shapes stay what they are, so that a state restored
        from elsewhere fits into the same `jax.lax.scan`. RaiSim: `operator=`.

        **Raises:** `InputError` if rows or nv differ, or one has static and the other run-time indices.
        """
        self.check_alike(other)
        if self.is_static is not other.is_static:
            raise InputError("other: static and run-time indices cannot be assigned to each other; see `padded`.")
        missing = max(self.capacity - other.capacity, 0)
        values = jnp.pad(other.values, ((0, 0), (0, missing)))
        if other.is_static:
            values = values.at[:, other.size :].set(0.0)
            return SparseJacobian(values, StaticColumns(other.idx + (self.nv,) * missing, other.size), self.nv)
        idx = jnp.pad(other.idx, (0, missing), constant_values=self.nv)
        return SparseJacobian(values, RuntimeColumns(idx, other.size), self.nv)

    def padded(self, capacity: int | None = None) -> SparseJacobian:
        """With run-time indices, and at least that capacity.

        **Raises:** `InputError`.
        """
        capacity = self.capacity if capacity is None else max(_whole("capacity", capacity), self.capacity)
        missing = capacity - self.capacity
        idx, size = jnp.asarray(self.idx, jnp.int32).reshape(self.capacity), jnp.asarray(self.size, jnp.int32)
        grown = jnp.pad(idx, (0, missing), constant_values=self.nv)
        return SparseJacobian.from_values(jnp.pad(self.values, ((0, 0), (0, missing))), grown, self.nv, size=size)

    def sort(self) -> SparseJacobian:
        """The same matrix with ascending indices, unused room dropped (run-time indices: moved to the end)."""
        if self.is_static:
            order = sorted(range(self.size), key=lambda c: self.idx[c])
            return SparseJacobian.from_values(self.values[:, order], [self.idx[c] for c in order], self.nv)
        order = jnp.argsort(self.effective_idx, stable=True)
        return SparseJacobian(self.values[:, order], RuntimeColumns(self.effective_idx[order], self.size), self.nv)

    def summed(self) -> SparseJacobian:
        """The same matrix with each index once, ascending. (Run-time indices: sorted; equal ones stay apart.)"""
        return self + SparseJacobian.empty(self.nv, rows=self.rows, dtype=self.dtype)

    # Algebra

    def scale(self, factor: FloatLike) -> SparseJacobian:
        """All values times a number. RaiSim: `operator*=`.

        **Raises:** `InputError` unless it is one number.
        """
        factor = jnp.asarray(factor)
        if factor.ndim:
            raise InputError(f"factor: wanted one number, given shape {factor.shape}.")
        return self._with(self.values * factor.astype(self.dtype))

    def __mul__(self, factor: FloatLike) -> SparseJacobian:
        return self.scale(factor)

    def __rmul__(self, factor: FloatLike) -> SparseJacobian:
        return self.scale(factor)

    def __neg__(self) -> SparseJacobian:
        return self._with(-self.values)

    def __add__(self, other: SparseJacobian) -> SparseJacobian:
        """Sum over the union of the columns, ascending. Columns that cancel stay."""
        self.check_alike(other)
        if not (self.is_static and other.is_static):
            a, b = self.padded(), other.padded()
            idx = jnp.concatenate([a.effective_idx, b.effective_idx])
            columns = RuntimeColumns(idx, a.size + b.size)
            return SparseJacobian(jnp.concatenate([a.values, b.values], axis=1), columns, self.nv)._compacted()
        idx = tuple(sorted({*self.idx[: self.size], *other.idx[: other.size]}))
        place = {j: c for c, j in enumerate(idx)}
        values = jnp.zeros((self.rows, len(idx)), wider(self.dtype, other.dtype))
        for part in (self, other):
            at = np.asarray([place[j] for j in part.idx[: part.size]], dtype=int)
            values = values.at[:, at].add(part.block.astype(values.dtype))
        return SparseJacobian.from_values(values, idx, self.nv)

    def __sub__(self, other: SparseJacobian) -> SparseJacobian:
        """The relative Jacobian of two points, bodies or frames: a loop or a contact of the robot with itself."""
        return self + (-other)

    def __matmul__(self, u: FloatLike) -> Float[Array, "rows *columns"]:
        """J u with u (nv,) or (nv, k). RaiSim: `getVelocity`."""
        u = as_columns("u", u, self.nv, self.dtype)
        if self.is_static:
            picked = u[np.asarray(self.idx[: self.size], dtype=int)]
        else:
            picked = jnp.take(u, self.effective_idx, axis=0, mode="fill", fill_value=0)
        return jnp.matmul(self.block.astype(u.dtype), picked, precision="highest")

    @property
    def T(self) -> TransposedJacobian:
        """J^T, for `J.T @ f`."""
        return TransposedJacobian(self)

    def rotate(self, R: FloatLike) -> SparseJacobian:
        """R J, each three rows by R (3, 3): with `contact_rotation(normal)` in the contact's axes.

        **Raises:** `InputError` if the number of rows is no multiple of 3.
        """
        R = check_shape("R", R, (3, 3), dtype=self.dtype).astype(self.dtype)
        if self.rows % 3:
            raise InputError(f"wanted a Jacobian of 3 or 6 rows to rotate, given {self.rows}.")
        parts = [jnp.matmul(R, self.values[i : i + 3], precision="highest") for i in range(0, self.rows, 3)]
        return self._with(jnp.concatenate(parts))

    def gram(self, other: SparseJacobian | None = None) -> Float[Array, "rows rows2"]:
        """J_a J_b^T, from the columns that both have; without `other` J J^T. (m, m)"""
        other = self if other is None else other
        self.check_columns(other)
        if self.is_static and other.is_static:
            ours, theirs = self.summed(), other.summed()
            common = [j for j in ours.idx if j in set(theirs.idx)]
            a, b = (x.values[:, [x.idx.index(j) for j in common]] for x in (ours, theirs))
            return jnp.matmul(a, b.T, precision="highest")
        return jnp.matmul(self.to_dense(), other.to_dense().T, precision="highest")

    def to_dense(self) -> Float[Array, "rows nv"]:
        """The full matrix (m, nv)."""
        zeros = jnp.zeros((self.rows, self.nv), self.dtype)
        if self.is_static:
            return zeros.at[:, np.asarray(self.idx[: self.size], dtype=int)].add(self.block)
        return zeros.at[:, self.effective_idx].add(self.values, mode="drop")

    def reindex(self, permutation: Sequence[int], nv: int | None = None) -> SparseJacobian:
        """The same in another numbering: what was degree of freedom j is `permutation[j]` of `nv` now.

        **Raises:** `InputError`.
        """
        nv = self.nv if nv is None else nv
        if len(permutation) != self.nv:
            raise InputError(f"permutation: wanted {self.nv} numbers, given {len(permutation)}.")
        if self.is_static:
            idx = tuple(int(permutation[j]) for j in self.idx[: self.size])
            return SparseJacobian.from_values(self.block, idx, nv)
        table = jnp.asarray([*permutation, nv], jnp.int32)
        return SparseJacobian(self.values, RuntimeColumns(table[self.effective_idx], self.size), nv)

    def allclose(self, other: SparseJacobian, rtol: float = 1e-9, atol: float = 0.0) -> Bool[Array, ""]:
        """Whether both stand for the same matrix, whatever the order of their columns."""
        self.check_alike(other)
        return jnp.allclose(self.to_dense(), other.to_dense(), rtol=rtol, atol=atol)

    def same_structure(self, other: SparseJacobian) -> bool:
        """Whether both are static and hold the same columns in the same order."""
        if not (self.is_static and other.is_static):
            return False
        return self.nv == other.nv and self.idx[: self.size] == other.idx[: other.size]

    # Inside

    def _with(self, values: Array) -> SparseJacobian:
        return SparseJacobian(values, self.columns, self.nv)

    def _used(self) -> Array:
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.size

    @property
    def effective_idx(self) -> Int[Array, " capacity"]:
        """Indices as numbers with nv, which no gather and no scatter takes, in unused slots. (-1 would mean the last.)"""
        if self.is_static:
            unused = (self.nv,) * (self.capacity - self.size)
            return jnp.asarray((*self.idx[: self.size], *unused), jnp.int32).reshape(self.capacity)
        return jnp.where(self._used(), self.idx, jnp.int32(self.nv))

    def _compacted(self) -> SparseJacobian:
        order = jnp.argsort(self.idx, stable=True)
        return SparseJacobian(self.values[:, order], RuntimeColumns(self.idx[order], self.size), self.nv)

    def _place(self, at: Any) -> tuple[Any, Any]:
        if not isinstance(at, tuple):
            self._check_range("index", at, self.rows * (self.size if self.is_static else self.capacity))
            return at % self.rows, at // self.rows
        row, column = at
        self._check_range("row", row, self.rows)
        self._check_range("column", column, self.size if self.is_static else self.capacity)
        return row, column

    def _check_range(self, name: str, index: Any, stop: int) -> None:
        if isinstance(index, int | np.integer) and not 0 <= index < stop:
            raise OutOfRangeError(f"{name}: wanted 0 to {stop - 1}, given {index}.")

    def _inside(self, row: Any, column: Any) -> Any:
        """Whether a place counts, or `None` where Python knows that it does."""
        if self.is_static and isinstance(row, int | np.integer) and isinstance(column, int | np.integer):
            return None
        inside = (jnp.asarray(column) >= 0) & (jnp.asarray(column) < self.size)
        return inside & (jnp.asarray(row) >= 0) & (jnp.asarray(row) < self.rows)

    def check_columns(self, other: SparseJacobian) -> None:
        if self.nv != other.nv:
            raise InputError(f"other: wanted nv = {self.nv}, given nv = {other.nv}.")

    def check_alike(self, other: SparseJacobian) -> None:
        self.check_columns(other)
        if self.rows != other.rows:
            raise InputError(f"other: wanted {self.rows} rows, given {other.rows}.")


class TransposedJacobian(eqx.Module):
    """`J.T`, to be multiplied with a force."""

    jacobian: SparseJacobian

    @property
    def T(self) -> SparseJacobian:
        """J."""
        return self.jacobian

    def to_dense(self) -> Float[Array, "nv rows"]:
        """The full matrix (nv, m)."""
        return self.jacobian.to_dense().T

    def __matmul__(self, f: FloatLike) -> Float[Array, "nv *columns"]:
        """J^T f, the generalised force of a force f (m,) or of the columns of f (m, k)."""
        J = self.jacobian
        f = as_columns("f", f, J.rows, J.dtype)
        force = jnp.matmul(J.block.T.astype(f.dtype), f, precision="highest")
        zeros = jnp.zeros((J.nv, *f.shape[1:]), f.dtype)
        if J.is_static:
            return zeros.at[np.asarray(J.idx[: J.size], dtype=int)].add(force)
        return zeros.at[J.effective_idx].add(force, mode="drop")


def _checked(idx: tuple, nv: int) -> tuple[int, ...]:
    for j in idx:
        if isinstance(j, bool) or not isinstance(j, int | np.integer) or not 0 <= j < nv:
            raise InputError(f"idx: wanted integers from 0 to {nv - 1}, given {j!r}.")
    return tuple(int(j) for j in idx)


def _whole(name: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
        raise InputError(f"{name}: wanted an integer that is not negative, given {number!r}.")
    return int(number)
