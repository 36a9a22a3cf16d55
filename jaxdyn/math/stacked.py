"""Small products on stacks: arrays `(items, ..., batch)` whose trailing axis, of length 1 or B, is the batch.

The inside language of the algorithms (`batching` tells why the batch is last). Products are spelled out as sums of
products of slices: the compiler vectorises those along the batch, where a contraction of axes of length 3 runs one
number at a time (five times slower on a CPU).
"""

import functools
import math
import operator
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.math.batching import broadcast_width

Stack: TypeAlias = Float[Array, "..."]


def constant(values, like: Stack) -> Stack:
    """A NumPy constant with the dtype of `like` and a trailing batch axis of length 1."""
    return jnp.asarray(np.asarray(values)[..., None], dtype=like.dtype)


def widest(*stacks: Stack) -> int:
    """Length of the batch of stacks, some of which may be shared (length 1)."""
    return broadcast_width(x.shape[-1] for x in stacks)


def widen(stack: Stack, width: int) -> Stack:
    """The stack with a batch axis of the given length."""
    return stack if stack.shape[-1] == width else jnp.broadcast_to(stack, (*stack.shape[:-1], width))


def join(parts, axis: int = 0) -> Stack:
    """Concatenate stacks along an axis; shared ones are widened."""
    parts = [p for p in parts if p.shape[axis] != 0] or list(parts)[:1]
    if len(parts) == 1:
        return parts[0]
    width = widest(*parts)
    return jnp.concatenate([widen(p, width) for p in parts], axis)


def pile(parts, axis: int = 0) -> Stack:
    """Stack along a new axis; shared ones are widened."""
    width = widest(*parts)
    return jnp.stack([widen(p, width) for p in parts], axis)


def flat(stack: Stack) -> Stack:
    """All axes but the batch as one. (`reshape(-1, B)` cannot tell how many items an empty batch has.)"""
    return stack.reshape(math.prod(stack.shape[:-1]), stack.shape[-1])


def take(stack: Stack, index) -> Stack:
    """Items by a static index; a slice or a broadcast where one serves, since a gather is a kernel of its own."""
    index = np.asarray(index, dtype=int).reshape(-1)
    n = stack.shape[0]
    if len(index) == n and np.array_equal(index, np.arange(n)):
        return stack
    if len(index) == 0:
        return stack[:0]
    if np.array_equal(index, np.arange(index[0], index[0] + len(index))):
        return jax.lax.slice_in_dim(stack, int(index[0]), int(index[0]) + len(index))
    if (index == index[0]).all():
        one = jax.lax.slice_in_dim(stack, int(index[0]), int(index[0]) + 1)
        return jnp.broadcast_to(one, (len(index), *stack.shape[1:]))
    return jnp.take(
        stack, jnp.asarray(index, jnp.int32), axis=0, mode="clip", unique_indices=len(set(index.tolist())) == len(index)
    )


def total(terms) -> Stack:
    """Sum of at least one term. (`sum` would start from 0: one more operation for the compiler each time.)"""
    return functools.reduce(operator.add, terms)


def matmul(a: Stack, b: Stack) -> Stack:
    """(n, i, k, B), (n, k, j, B) -> (n, i, j, B)."""
    return total(a[:, :, k, None] * b[:, k, None] for k in range(a.shape[2]))


def matmul_transposed(a: Stack, b: Stack) -> Stack:
    """a b^T: (n, i, k, B), (n, j, k, B) -> (n, i, j, B)."""
    return total(a[:, :, k, None] * b[:, None, :, k] for k in range(a.shape[2]))


def matvec(a: Stack, x: Stack) -> Stack:
    """(n, i, k, B), (n, k, B) -> (n, i, B)."""
    return total(a[:, :, k] * x[:, k, None] for k in range(a.shape[2]))


def transposed_matvec(a: Stack, x: Stack) -> Stack:
    """a^T x: (n, k, i, B), (n, k, B) -> (n, i, B)."""
    return total(a[:, k] * x[:, k, None] for k in range(a.shape[1]))


def dot(a: Stack, b: Stack) -> Stack:
    """(n, k, B), (n, k, B) -> (n, B)."""
    return total(a[:, k] * b[:, k] for k in range(a.shape[1]))


def pairs(a: Stack, b: Stack) -> Stack:
    """All products between the items of two stacks, batch first: (n, k, B), (m, k, B) -> (B, n, m).

    Quadratically many numbers leave the batch-last world here: one turn of the small operands beats a turn of the
    large result, and the batched product of the compiler's library beats spelled-out sums from about 20 items on.
    """
    return products(first(a), jnp.swapaxes(first(b), 1, 2))


def products(a: Stack, b: Stack) -> Stack:
    """Matrix products, batch first: (B, n, k), (B, k, m) -> (B, n, m). Shared operands (length 1) are widened."""
    width = broadcast_width((a.shape[0], b.shape[0]))
    a, b = (x if x.shape[0] == width else jnp.broadcast_to(x, (width, *x.shape[1:])) for x in (a, b))
    return jnp.matmul(a, b, precision="highest")


def first(stack: Stack) -> Stack:
    """Batch first: (..., B) -> (B, ...)."""
    return jnp.moveaxis(stack, -1, 0)


def last(array: Stack) -> Stack:
    """Batch last again: (B, ...) -> (..., B)."""
    return jnp.moveaxis(array, 0, -1)


def cross(a: Stack, b: Stack) -> Stack:
    """Cross product along the axis before the batch: (..., 3, B), (..., 3, B) -> (..., 3, B)."""
    ax, ay, az = a[..., 0, :], a[..., 1, :], a[..., 2, :]
    bx, by, bz = b[..., 0, :], b[..., 1, :], b[..., 2, :]
    return jnp.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], -2)


def hat(a: Stack) -> Stack:
    """(n, 3, B) -> (n, 3, 3, B), the matrix of `cross(a, .)`."""
    x, y, z = a[:, 0], a[:, 1], a[:, 2]
    o = jnp.zeros_like(x)
    return jnp.stack([jnp.stack([o, -z, y], 1), jnp.stack([z, o, -x], 1), jnp.stack([-y, x, o], 1)], 1)


def motion_cross(v: Stack, m: Stack) -> Stack:
    """Cross product of motion vectors [linear, angular]: (n, 6, B), (n, 6, B) -> (n, 6, B)."""
    return join([cross(v[:, 3:], m[:, :3]) + cross(v[:, :3], m[:, 3:]), cross(v[:, 3:], m[:, 3:])], 1)


def force_cross(v: Stack, f: Stack) -> Stack:
    """Cross product of a motion with a force vector, v x* f: (n, 6, B), (n, 6, B) -> (n, 6, B)."""
    return join([cross(v[:, 3:], f[:, :3]), cross(v[:, :3], f[:, :3]) + cross(v[:, 3:], f[:, 3:])], 1)


def moved_force(force: Stack, arm: Stack) -> Stack:
    """Forces (..., 6, B) about a point, about another from which the first is reached by `arm` (..., 3, B)."""
    linear = force[..., :3, :]
    return join([linear, force[..., 3:, :] + cross(arm, linear)], -2)


def moved_motion(motion: Stack, arm: Stack) -> Stack:
    """Motions (..., 6, B) of a point, as motions of another that is reached from it by `arm` (..., 3, B)."""
    angular = motion[..., 3:, :]
    return join([motion[..., :3, :] + cross(angular, arm), angular], -2)


def spd_inverse(a: Stack) -> Stack:
    """Inverse of symmetric positive definite (n, k, k, B) for k = 1, 2, 3 or even, by L D L^T in halves: no pivoting,
    stable in float32.

    A cofactor formula would lose as many digits again as the condition number costs. A matrix that is not positive
    definite gives infinities or NaN.
    """
    k = a.shape[1]
    if k == 0:
        return a
    if k == 1:
        return 1.0 / a
    h = (k + 1) // 2 if k != 3 else 1
    p, q, r = a[:, :h, :h], a[:, :h, h:], a[:, h:, h:]
    p_inverse = spd_inverse(p)
    x = matmul(p_inverse, q)
    schur = spd_inverse(r - matmul(jnp.swapaxes(q, 1, 2), x))
    y = matmul(x, schur)
    top = join([p_inverse + matmul_transposed(y, x), -y], 2)
    return join([top, join([-jnp.swapaxes(y, 1, 2), schur], 2)], 1)
