"""Inverses of symmetric quasi-definite matrices and the small products around them, batch last.

A symmetric matrix [[H, A^T], [A, -R]] with H and R positive definite is quasi-definite: every principal submatrix is
regular, so that elimination needs no pivoting (Vanderbei 1995). The inverse itself is computed, by the sweep operator
(Goodnight 1979) on blocks of pivots: one loop whose body is the same at every step, so that programs stay short, and
solves are products without a loop, so that they can be transposed and repeated for refinement. No LAPACK is called.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack, spd_inverse, total, widest

# Pivots of one step of the sweep. The matrix passes through memory once per step; larger blocks cost compile time.
BLOCK = 4


def times(matrix: Stack, vector: Stack) -> Stack:
    """(r, n, B), (n, B) -> (r, B)."""
    if widest(matrix, vector) == 1:
        return (matrix[..., 0] @ vector[..., 0])[..., None]
    return jnp.sum(matrix * vector[None], axis=1)


def transposed_times(matrix: Stack, vector: Stack) -> Stack:
    """(r, n, B), (r, B) -> (n, B)."""
    if widest(matrix, vector) == 1:
        return (vector[..., 0] @ matrix[..., 0])[..., None]
    return jnp.sum(matrix * vector[:, None], axis=0)


def gram(matrix: Stack, weight: Stack) -> Stack:
    """M^T diag(w) M: (r, n, B), (r, B) -> (n, n, B)."""
    rows, n, _ = matrix.shape
    width = widest(matrix, weight)
    if width == 1:
        m = matrix[..., 0]
        return ((m.T * weight[..., 0][None]) @ m)[..., None]
    if rows <= 2 * BLOCK:
        zero = jnp.zeros((n, n, width), matrix.dtype)
        return total([zero, *(_outer(matrix[k] * weight[k][None], matrix[k]) for k in range(rows))])
    count = -(-rows // BLOCK)
    weighted = _padded_rows(matrix * weight[:, None], count * BLOCK)
    matrix = _padded_rows(matrix, count * BLOCK)

    def body(i, sum_):
        a = jax.lax.dynamic_slice_in_dim(weighted, i * BLOCK, BLOCK)
        m = jax.lax.dynamic_slice_in_dim(matrix, i * BLOCK, BLOCK)
        return sum_ + total([_outer(a[k], m[k]) for k in range(BLOCK)])

    return jax.lax.fori_loop(0, count, body, jnp.zeros((n, n, width), matrix.dtype))


def _outer(a: Stack, b: Stack) -> Stack:
    return a[:, None] * b[None, :]


def _padded_rows(stack: Stack, rows: int) -> Stack:
    return jnp.pad(stack, ((0, rows - stack.shape[0]), *((0, 0),) * (stack.ndim - 1)))


def inverse(matrix: Stack) -> Stack:
    """Inverse of symmetric quasi-definite matrices, positive pivots first: (n, n, B) -> (n, n, B)."""
    n = matrix.shape[0]
    if n <= 2 * BLOCK:
        return spd_inverse(matrix[None])[0]
    count = -(-n // BLOCK)
    size = count * BLOCK
    extra = size - n
    if extra:  # pivots of 1 that touch nothing
        matrix = jnp.pad(matrix, ((0, extra), (0, extra), (0, 0)))
        ones = jnp.asarray([0.0] * n + [1.0] * extra, matrix.dtype)
        matrix = matrix + jnp.diag(ones)[..., None]

    def body(i, k):
        start = i * BLOCK
        panel = jax.lax.dynamic_slice_in_dim(k, start, BLOCK, 1)  # (size, BLOCK, B)
        pivot = batching.materialize(spd_inverse(jax.lax.dynamic_slice_in_dim(panel, start, BLOCK, 0)[None])[0])
        w = batching.materialize(total([panel[:, c, None] * pivot[None, c, :] for c in range(BLOCK)]))
        k = k - total([_outer(w[:, c], panel[:, c]) for c in range(BLOCK)])
        k = jax.lax.dynamic_update_slice_in_dim(k, w, start, 1)
        k = jax.lax.dynamic_update_slice_in_dim(k, jnp.swapaxes(w, 0, 1), start, 0)
        return jax.lax.dynamic_update_slice(k, -pivot, (start, start, jnp.zeros_like(start)))

    return -jax.lax.fori_loop(0, count, body, matrix)[:n, :n]


def assemble(top: Stack, rows: Stack, corner: Stack) -> Stack:
    """[[top, rows^T], [rows, -diag(corner)]], (n, n, B), (r, n, B), (r, B)."""
    n, r = top.shape[0], rows.shape[0]
    width = widest(top, rows, corner)
    if r == 0:
        return jnp.broadcast_to(top, (n, n, width))
    diagonal = jnp.where(jnp.eye(r, dtype=bool)[..., None], -corner[None], 0.0)
    parts = [jnp.broadcast_to(p, (*p.shape[:2], width)) for p in (top, jnp.swapaxes(rows, 0, 1), rows, diagonal)]
    return jnp.concatenate(
        [jnp.concatenate(parts[:2], axis=1), jnp.concatenate(parts[2:], axis=1)],
        axis=0,
    )


def add_diagonal(matrix: Stack, diagonal: Stack) -> Stack:
    """(n, n, B) + diag of (n, B)."""
    eye = jnp.eye(matrix.shape[0], dtype=bool)[..., None]
    return matrix + jnp.where(eye, diagonal[None], 0.0)


def _inverse_kernel(_static, matrix):
    return inverse(matrix)


def _inverse_rule(_static, arguments, tangents, output):
    """X = K^-1: dX = -X dK X."""
    (moved,) = tangents
    left = jnp.einsum("ijb,jkb->ikb", *_same(output, moved))
    return -jnp.einsum("ijb,jkb->ikb", *_same(left, output))


def _same(*stacks):
    width = widest(*stacks)
    return [jnp.broadcast_to(s, (*s.shape[:-1], width)) for s in stacks]


def differentiable_inverse(matrix: Stack) -> Stack:
    """`inverse` with a derivative of every order, for use in the rules of other kernels: (n, n, B)."""
    return batching.call(_inverse_kernel, _inverse_rule, None, matrix)
