"""The kernels of `elimination` for a single state: full matrices and the compiler's linear algebra.

One state leaves nothing to vectorise over. Unrolled code then costs the same time as LAPACK's or more, and ten times
as much to compile, so kernels whose batch has length 1 come here, unless the robot is a forest: there unrolled code
is short, and a NaN of one root must not reach the others.

Reversing rows and columns turns the order of elimination round: the ordinary Cholesky factor of the reversed matrix is
U sqrt(D), reversed, and has the sparse pattern with exact zeros. Where it fails (M not positive definite), a loop
without square roots takes over.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.algorithms.elimination import plan
from jaxdyn.algorithms.topology import Topology
from jaxdyn.math.stacked import Stack

# Below this many degrees of freedom unrolled code compiles as fast.
SMALLEST = 8


def serves(topology: Topology, *arrays: Stack | None) -> bool:
    """Whether these arguments of a kernel are one state of a robot for which full matrices are better."""
    one = all(x is None or x.shape[-1] == 1 for x in arrays)
    return one and topology.nv >= SMALLEST and len(topology.roots) == 1


@functools.lru_cache(maxsize=256)
def upper_table(topology: Topology) -> tuple[np.ndarray, int]:
    """Where each entry of U is among the packed ones; two numbers after the last stand for 0 and 1."""
    order = plan(topology)
    count = order.entries.shape[1]
    table = np.full((topology.nv, topology.nv), count)
    table[tuple(order.entries[:, order.strict])] = order.strict
    np.fill_diagonal(table, count + 1)
    return table, count


@functools.lru_cache(maxsize=256)
def mass_table(topology: Topology) -> tuple[np.ndarray, int]:
    """Where each entry of M is among the packed ones; a number after the last stands for 0."""
    order = plan(topology)
    count = order.entries.shape[1]
    table = np.full((topology.nv, topology.nv), count)
    used = np.concatenate([order.strict, order.diagonal])
    rows, columns = order.entries[:, used]
    table[rows, columns] = table[columns, rows] = used
    return table, count


def unit_upper(topology: Topology, upper: Array) -> Array:
    """U (nv, nv) from its packed entries."""
    return jnp.concatenate([upper, jnp.asarray([0.0, 1.0], upper.dtype)])[upper_table(topology)[0]]


def symmetric(topology: Topology, mass: Array) -> Array:
    """M (nv, nv) from its packed entries."""
    return jnp.concatenate([mass, jnp.zeros(1, mass.dtype)])[mass_table(topology)[0]]


def dense_factor(topology: Topology, mass: Array) -> tuple[Array, Array]:
    """Packed U and 1 / D in the order of the columns; NaN unless M is positive definite."""
    order = plan(topology)
    lower = jax.lax.linalg.cholesky(symmetric(topology, mass)[::-1, ::-1], symmetrize_input=False)
    root = lower[::-1, ::-1]
    scale = jnp.diagonal(root)
    return (root / scale[None])[tuple(order.entries)], (1.0 / (scale * scale))[order.order]


def factor(topology: Topology, mass: Array, floor: Array | None) -> tuple[Array, Array, Array | None]:
    """`elimination.factor_kernel` without batch axis."""
    if floor is not None:
        return _loop(topology, mass, floor)
    upper, inverse = dense_factor(topology, mass)
    good = jnp.all(jnp.isfinite(inverse))
    upper, inverse = jax.lax.cond(good, lambda: (upper, inverse), lambda: _loop(topology, mass, None)[:2])
    return upper, inverse, None


def _loop(topology: Topology, mass: Array, floor: Array | None):
    order, nv = plan(topology), topology.nv
    related = jnp.asarray(topology.related)
    number = jnp.arange(nv)

    def step(k, state):
        rest, U, inverse, raised = state
        j = nv - 1 - k
        pivot = rest[j, j]
        if floor is not None:
            low = pivot < floor
            raised = raised.at[j].set(jnp.where(low, floor - pivot, jnp.zeros_like(pivot)))
            pivot = jnp.where(low, floor, pivot)
        above = related[:, j] & (number < j)
        column = jnp.where(above, rest[:, j], jnp.zeros_like(rest[:, j]))
        scaled = jnp.where(above, column / pivot, jnp.zeros_like(column))
        both = above[:, None] & above[None]
        rest = rest - jnp.where(both, column[:, None] * scaled[None], jnp.zeros_like(rest))
        return rest, U.at[:, j].set(scaled), inverse.at[j].set(1.0 / pivot), raised

    zeros = jnp.zeros(nv, mass.dtype)
    start = (symmetric(topology, mass), jnp.zeros((nv, nv), mass.dtype), zeros, zeros)
    _, U, inverse, raised = jax.lax.fori_loop(0, nv, step, start)
    return U[tuple(order.entries)], inverse[order.order], None if floor is None else raised[order.order]


def tangent(topology: Topology, upper: Array, inverse: Array, held: Array | None, dmass: Array):
    """`elimination.tangent_kernel` without batch axis, or `None` where a floor asks for the recursion.

    W = U^{-1} dM U^{-T} has the pattern of M: dD = diag W, dU = U triu(W D^{-1}, 1).
    """
    if held is not None:
        return None
    order = plan(topology)
    U, d = unit_upper(topology, upper), inverse[order.rank]
    half = triangular(U, symmetric(topology, dmass), False, True)
    W = triangular(U, half.T, False, True)
    strict = np.triu(topology.related, 1)
    dU = jnp.matmul(U, jnp.where(strict, W * d[None], jnp.zeros_like(W)), precision="highest")
    dU = jnp.where(strict, dU, jnp.zeros_like(dU))
    return dU[tuple(order.entries)], (-d * d * jnp.diagonal(W))[order.order], None


def triangular(U: Array, x: Array, transposed: bool, inverse: bool) -> Array:
    """U x, U^T x, U^{-1} x or U^{-T} x for x (nv,) or (nv, k)."""
    if not inverse:
        return jnp.matmul(U.T if transposed else U, x, precision="highest")
    columns = x[:, None] if x.ndim == 1 else x
    y = jax.lax.linalg.triangular_solve(
        U, columns, left_side=True, lower=False, transpose_a=transposed, unit_diagonal=True
    )
    return y.reshape(x.shape)


def solve(topology: Topology, upper: Array, inverse: Array, x: Array) -> Array:
    """`elimination.solve_kernel` without batch axis."""
    U, d = unit_upper(topology, upper), inverse[plan(topology).rank]
    y = triangular(U, x, False, True)
    return triangular(U, y * (d if x.ndim == 1 else d[:, None]), True, True)


def product(topology: Topology, upper: Array, inverse: Array, x: Array) -> Array:
    """`elimination.product_kernel` without batch axis."""
    U, d = unit_upper(topology, upper), inverse[plan(topology).rank]
    y = triangular(U, x, True, False)
    return triangular(U, y / (d if x.ndim == 1 else d[:, None]), False, False)
