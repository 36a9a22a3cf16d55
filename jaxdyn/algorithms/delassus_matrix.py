"""The Delassus matrix G = J M^{-1} J^T as a kernel, batch last.

Each Jacobian's support, completed with ancestors, is a small tree of its own; the supports of all Jacobians side by
side are a forest, in which equal ones are stacked (`elimination.Group`), and one substitution on it gives Y^T = U^{-1}
J^T. Blocks of G that sum over equally many common degrees of freedom are computed together.

Derivative, with X = M^{-1} J^T: dG = dJ X + (dJ X)^T - X^T dM X.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms import cholesky
from jaxdyn.algorithms.cholesky import MassCholesky
from jaxdyn.algorithms.columns import wider
from jaxdyn.algorithms.elimination import plan, triangular_kernel
from jaxdyn.algorithms.single_state import symmetric
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.algorithms.topology import Topology
from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack, join, take, total


@dataclass(frozen=True)
class Rows:
    """What is static of a list of Jacobians: for each one its row count and its columns."""

    topology: Topology
    rows: tuple[int, ...]
    idx: tuple[tuple[int, ...], ...]


class _Blocks:
    """Index tables of the kernel."""

    def __init__(self, static: Rows) -> None:
        topology = static.topology
        supports = [topology.closure(idx) for idx in static.idx]
        self.sizes = [len(s) for s in supports]
        starts = np.cumsum([0, *self.sizes]).tolist()
        self.dofs = np.asarray([j for s in supports for j in s], dtype=int)
        parents: list[int] = []
        for start, support in zip(starts, supports, strict=False):
            parents += [p + start if p >= 0 else -1 for p in topology.restricted(support).parents]
        self.forest = Topology(tuple(parents))
        entry = {(int(i), int(j)): k for k, (i, j) in enumerate(plan(topology).entries.T)}
        for k in plan(topology).strict.tolist():
            i, j = plan(topology).entries[:, k].tolist()
            entry[i, j] = k
        of_forest = plan(self.forest).entries
        self.upper = np.asarray([entry[int(self.dofs[i]), int(self.dofs[j])] for i, j in of_forest.T], dtype=int)
        self.pivots = plan(topology).rank[self.dofs] if topology.nv else self.dofs
        # where each support finds its columns among those given; one more stands for zero
        offsets = np.cumsum([0, *(len(i) for i in static.idx)]).tolist()
        self.values = []
        for k, (idx, support) in enumerate(zip(static.idx, supports, strict=True)):
            place = {j: offsets[k] + c for c, j in enumerate(idx)}
            self.values.append([place.get(j, offsets[-1]) for j in support])
        common: dict[int, list[tuple[int, int, list[int], list[int]]]] = {}
        for a in range(len(supports)):
            for b in range(a, len(supports)):
                both = sorted(set(supports[a]) & set(supports[b]))
                if both:
                    of_a, of_b = ([starts[k] + supports[k].index(j) for j in both] for k in (a, b))
                    common.setdefault(len(both), []).append((a, b, of_a, of_b))
        self.common = common
        first = np.cumsum([0, *static.rows]).tolist()
        self.count = first[-1]
        self.widest = max(static.rows, default=0)
        # entry (r, s) of G comes from block (a, b) with a <= b, or is zero
        self.table = np.full((self.count, self.count), -1)
        at, square = 0, self.widest * self.widest
        for pairs in common.values():
            for a, b, *_ in pairs:
                block = at + np.arange(square).reshape(self.widest, self.widest)[: static.rows[a], : static.rows[b]]
                if a == b:
                    block = np.where(np.triu(np.ones(block.shape, bool)), block, block.T)
                self.table[first[a] : first[a + 1], first[b] : first[b + 1]] = block
                self.table[first[b] : first[b + 1], first[a] : first[a + 1]] = block.T
                at += square
        self.table[self.table < 0] = at


@functools.lru_cache(maxsize=256)
def _blocks(static: Rows) -> _Blocks:
    return _Blocks(static)


def _kernel(static: Rows, upper: Stack, inverse: Stack, values: Stack) -> Stack:
    """`values` (columns of all Jacobians, widest row count, B), shorter ones filled up with zeros -> G (m, m, B)."""
    blocks = _blocks(static)
    zero = jnp.zeros((1, *values.shape[1:]), values.dtype)
    columns = take(join([values, zero]), [c for at in blocks.values for c in at])
    y = triangular_kernel((blocks.forest, False, True), take(upper, blocks.upper), columns)
    z = y * take(inverse, blocks.pivots)[:, None]
    parts = []
    for length, pairs in blocks.common.items():
        a = take(y, [c for pair in pairs for c in pair[2]]).reshape(len(pairs), length, *y.shape[1:])
        b = take(z, [c for pair in pairs for c in pair[3]]).reshape(len(pairs), length, *z.shape[1:])
        product = total(a[:, k, :, None] * b[:, k, None] for k in range(length))
        parts.append(product.reshape(len(pairs) * blocks.widest**2, product.shape[-1]))
    flat = join([*parts, jnp.zeros((1, y.shape[-1]), y.dtype)])
    return take(flat, blocks.table).reshape(blocks.count, blocks.count, flat.shape[-1])


_delassus_p = batching.batch_last(_kernel)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _delassus(static: Rows, factor: MassCholesky, values: tuple[Array, ...]) -> Array:
    widest = max(static.rows, default=0)
    columns = jnp.concatenate([jnp.pad(v.T, ((0, 0), (0, widest - v.shape[0]))) for v in values])
    return _delassus_p(static, factor.upper, factor.inverse, columns)


@_delassus.defjvp
def _delassus_jvp(static, primals, tangents):
    (factor, values), (d_factor, d_values) = primals, tangents
    full, d_full = (_full(static, v) for v in (values, d_values))
    x = cholesky.solve(factor, full.T)
    moved = jnp.matmul(d_full, x, precision="highest")
    change = jnp.matmul(symmetric(static.topology, d_factor.mass), x, precision="highest")
    return _delassus(static, factor, values), moved + moved.T - jnp.matmul(x.T, change, precision="highest")


def _full(static: Rows, values: tuple[Array, ...]) -> Array:
    nv = static.topology.nv
    return jnp.concatenate(
        [
            jnp.zeros((v.shape[0], nv), v.dtype).at[:, np.asarray(idx, dtype=int)].add(v)
            for v, idx in zip(values, static.idx, strict=True)
        ]
    )


def delassus_matrix(factor: MassCholesky, jacobians: Sequence[SparseJacobian]) -> Float[Array, "rows rows"]:
    """J M^{-1} J^T of Jacobians on top of each other."""
    static, values = [], []
    for J in jacobians:
        J = _static(J)
        static.append(J.idx)
        values.append(J.values)
    rows = tuple(v.shape[0] for v in values)
    dtype = functools.reduce(wider, (v.dtype for v in values), factor.dtype)
    if sum(rows) == 0 or factor.nv == 0:
        return jnp.zeros((sum(rows), sum(rows)), dtype)
    factor = jax.tree.map(lambda x: x.astype(dtype), factor)
    return _delassus(Rows(factor.topology, rows, tuple(static)), factor, tuple(v.astype(dtype) for v in values))


def _static(J: SparseJacobian) -> SparseJacobian:
    """Static ascending columns, each index once. Run-time indices become all columns: their support is not known."""
    if not J.is_static:
        return SparseJacobian.from_values(J.to_dense(), range(J.nv), J.nv)
    ascending = all(i < j for i, j in zip(J.idx, J.idx[1:], strict=False))
    return J if ascending and J.size == J.capacity else J.summed()
