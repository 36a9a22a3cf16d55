"""Several sparse Jacobians together: on top of each other, or side by side along a batch axis; contact axes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.errors import FloatLike, InputError, check_shape


def stack_rows(*jacobians: SparseJacobian) -> SparseJacobian:
    """Jacobians on top of each other, over the union of their columns: linear and angular ones make a spatial one.

    **Raises:** `InputError` if there is none, nv differ, or static and run-time indices are mixed.
    """
    first = _first(jacobians)
    rows = sum(j.rows for j in jacobians)
    total, done = SparseJacobian.empty(first.nv, rows=rows, dtype=first.dtype), 0
    for j in jacobians:
        values = jnp.pad(j.values, ((done, rows - done - j.rows), (0, 0)))
        total, done = total + SparseJacobian(values, j.columns, j.nv), done + j.rows
    return total


def concat(jacobians: Sequence[SparseJacobian]) -> SparseJacobian:
    """Jacobians of equally many rows as one object with a leading axis, for `jax.vmap`: run-time indices, the largest
    capacity.

    **Raises:** `InputError` if there is none, or they do not fit together.
    """
    first = _first(jacobians)
    for j in jacobians:
        first.check_alike(j)
    capacity = max(j.capacity for j in jacobians)
    return jax.tree.map(lambda *x: jnp.stack(x), *(j.padded(capacity) for j in jacobians))


def transposed_sum(stacked: SparseJacobian, forces: FloatLike) -> Float[Array, " nv"]:
    """Sum of J_i^T f_i over the jacobians of `concat`, `forces` (count, m), by one scatter. (nv,)

    **Raises:** `InputError`.
    """
    count, rows, _ = stacked.values.shape
    forces = check_shape("forces", forces, (count, rows), dtype=stacked.values.dtype)
    parts = jnp.einsum("imc,im->ic", stacked.values, forces, precision="highest")
    idx = jax.vmap(lambda j: j.effective_idx)(stacked)
    return jnp.zeros(stacked.nv, parts.dtype).at[idx.reshape(-1)].add(parts.reshape(-1), mode="drop")


def contact_rotation(normal: FloatLike) -> Float[Array, "3 3"]:
    """Rotation from world to contact axes: its rows are these axes, z = the unit `normal` (3,), x horizontal along
    (n_y, -n_x, 0), or (1, 0, 0) where the normal is vertical, y = z cross x. A force f in contact axes is R^T f in the
    world. RaiSim: `getContactFrame`. Derivatives at the vertical, where the axes jump, are finite: x is held.

    **Raises:** `InputError`.
    """
    n = check_shape("normal", normal, (3,))
    square = n[0] * n[0] + n[1] * n[1]
    vertical = square < 16 * jnp.finfo(n.dtype).eps ** 2
    length = jnp.sqrt(jnp.where(vertical, jnp.ones_like(square), square))
    zero, one = jnp.zeros_like(square), jnp.ones_like(square)
    x = jnp.stack([jnp.where(vertical, one, n[1] / length), jnp.where(vertical, zero, -n[0] / length), zero])
    return jnp.stack([x, jnp.cross(n, x), n])


def _first(jacobians: Sequence[SparseJacobian]) -> SparseJacobian:
    if not jacobians:
        raise InputError("jacobians: wanted at least one, given none.")
    return jacobians[0]
