"""M = U D U^T on structural entries alone, batch last: the kernels behind `cholesky`.

**Storage.** Degrees of freedom without a branch between them form a *limb*; limbs that start at the same depth, have
the same length and carry equal limbs are stacked in one `Group`, leaves first. Column i of a group is an array
(limbs, rows, batch): row r stands for the ancestor at depth r, the same number for all limbs. Columns of all groups,
one after the other, make the *packed* form, of N rows for U (strictly above the diagonal) and N + nv for M.

**Factorisation**, children before parents. With c_k column k of what is left of M when all below k is eliminated,

    D_k = last entry of c_k,   u_k = c_k / D_k,   entry (i, j) of the rest, i and j above k:  minus c_jk u_ik.

Nothing else changes, as two ancestors of k are always related: no fill-in, whatever the numbering of the tree.
Within a limb each column gathers what the later ones subtract from it; what a whole limb subtracts from its ancestors
is summed once and handed on to the limb above.

**Derivative.** The congruence by the elimination steps E_k = 1 - u_k e_k^T applied to dM instead of M: with w column
k of what is left of dM and delta its last entry,

    dD_k = delta,   du_k = (w - u_k delta) / D_k,   minus (u_i y_j + y_i u_j) from entry (i, j), y = w - u_k delta / 2

since D du = w - u delta makes d(u D u^T) = u y^T + y u^T. It reads U and D alone and is linear in dM: its transpose is
the reverse rule, and its own derivatives are the higher ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.topology import Topology
from jaxdyn.math.batching import materialize
from jaxdyn.math.stacked import Stack, join, take, total

# Rows of ancestors that one kernel of a limb's hand-over covers: it computes a block of columns down to its longest.
CHUNK = 3


@dataclass(frozen=True)
class Group:
    """Equal limbs: `limbs[k]` are the degrees of freedom of one, outermost last; their first hangs at depth `start`.

    `parent[k]` is the (group, limb) above, none for roots; `slots` are the limbs that hang on these, as pairs of a group and
    the index of one of its limbs for each of ours. `dof` is where the group starts among the reordered degrees of
    freedom (column by column).
    """

    index: int
    limbs: tuple[tuple[int, ...], ...]
    start: int
    parent: tuple[tuple[int, int], ...]
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    dof: int

    @property
    def count(self) -> int:
        return len(self.limbs)

    @property
    def length(self) -> int:
        return len(self.limbs[0])

    def rows(self, column: int) -> int:
        """Ancestors of the column's degrees of freedom."""
        return self.start + column

    @property
    def stop(self) -> int:
        """Depth below the last column."""
        return self.start + self.length

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Its own columns, in chunks."""
        return _chunks(self.start, self.stop)


@dataclass(frozen=True)
class Chunk:
    """Columns at depths `first` .. `stop - 1`, stored down to depth `stop - 1`: (columns, limbs, rows, B)."""

    first: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.first


def _chunks(start: int, stop: int) -> tuple[Chunk, ...]:
    """Cut at the same depths in all limbs."""
    cuts = [start, *(d for d in range(start + 1, stop) if d % CHUNK == 0), stop]
    return tuple(Chunk(a, b) for a, b in itertools.pairwise(cuts) if a < b)


class Plan:
    """Order of elimination and layout of the packed form of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.groups = _groups(topology)
        order, entries, own = [], [], []
        for group in self.groups:
            for chunk in group.chunks:
                for depth in range(chunk.first, chunk.stop):
                    for limb in group.limbs:
                        j, chain = limb[depth - group.start], topology.chains[limb[-1]]
                        order.append(j)
                        for row in range(chunk.stop):
                            own.append((row < depth, row == depth))
                            entries.append((chain[min(row, depth)], chain[max(row, depth)]))
        self.order = np.asarray(order, dtype=int)
        """Degrees of freedom in the order of the columns."""
        self.rank = np.argsort(self.order)
        self.entries = np.asarray(entries, dtype=int).reshape(len(entries), 2).T
        """Row and column of each packed entry. The rows of a chunk below a column's own diagonal repeat others."""
        above = np.asarray(own, dtype=bool).reshape(len(own), 2)
        self.strict = np.flatnonzero(above[:, 0])
        """Where the entries strictly above the diagonal are."""
        self.diagonal = np.flatnonzero(above[:, 1])
        """Where the diagonal is; its degrees of freedom are in the order of the columns."""

    def blocks(self, packed: Stack) -> list[list[Stack]]:
        """Split a packed stack into the chunks (columns, limbs, rows, B) of each group."""
        result, at = [], 0
        for group in self.groups:
            parts = []
            for chunk in group.chunks:
                shape = (chunk.width, group.count, chunk.stop)
                part = jax.lax.slice_in_dim(packed, at, at + math.prod(shape))
                parts.append(part.reshape(*shape, *packed.shape[1:]))
                at += math.prod(shape)
            result.append(parts)
        return result

    def columns(self, packed: Stack) -> list[list[Stack]]:
        """Split a packed stack into columns (limbs, rows, B), of which the first rows, down to the diagonal, count."""
        return [[part[i] for part in parts for i in range(part.shape[0])] for parts in self.blocks(packed)]

    def split(self, x: Stack) -> list[list[Stack]]:
        """Split a stack of degrees of freedom, in their own order, into those of each column (limbs, ..., B)."""
        x = take(x, self.order)
        return [
            [
                jax.lax.slice_in_dim(x, group.dof + i * group.count, group.dof + (i + 1) * group.count)
                for i in range(group.length)
            ]
            for group in self.groups
        ]

    def merge(self, parts: list[list[Stack]]) -> Stack:
        """The inverse of `split`."""
        return take(join([part for group in parts for part in group]), self.rank)


@functools.lru_cache(maxsize=256)
def plan(topology: Topology) -> Plan:
    """The plan of a topology, computed once."""
    return Plan(topology)


def _groups(topology: Topology) -> tuple[Group, ...]:
    """Limbs by height above the leaves, equal ones together."""
    limbs: dict[int, tuple[int, ...]] = {}
    for j, parent in enumerate(topology.parents):
        if parent < 0 or len(topology.children[parent]) > 1:
            limb = [j]
            while len(topology.children[limb[-1]]) == 1:
                limb.append(topology.children[limb[-1]][0])
            limbs[j] = tuple(limb)
    below = {first: topology.children[limb[-1]] for first, limb in limbs.items()}
    height: dict[int, int] = {}
    for first in sorted(limbs, reverse=True):
        height[first] = 1 + max((height[child] for child in below[first]), default=-1)
    place: dict[int, tuple[int, int]] = {}  # first degree of freedom of a limb -> its group and number there
    found: list[tuple[tuple, list[int]]] = []
    for level in range(1 + max(height.values(), default=-1)):
        alike: dict[tuple, list[int]] = {}
        for first, limb in limbs.items():
            if height[first] == level:
                hanging = tuple(sorted(place[child][0] for child in below[first]))
                alike.setdefault((-len(limb), topology.depth[first] - 1, hanging), []).append(first)
        for key in sorted(alike):
            place |= {first: (len(found), k) for k, first in enumerate(alike[key])}
            found.append((key, alike[key]))
    groups: list[Group] = []
    dof = 0
    above = {child: place[first] for first, children in below.items() for child in children}
    for index, ((_, start, hanging), members) in enumerate(found):
        carried = [sorted(place[child] for child in below[first]) for first in members]
        slots = tuple((group, tuple(c[s][1] for c in carried)) for s, group in enumerate(hanging))
        parent = tuple(above[first] for first in members) if start else ()
        group = Group(index, tuple(limbs[first] for first in members), start, parent, slots, dof)
        dof += group.count * group.length
        groups.append(group)
    return tuple(groups)


Columns: TypeAlias = list[list[Stack]]
"""One stack (limbs, ..., B) per column, by group."""


def _stored(x: Stack) -> Stack:
    """A large argument of a batch: copied once, since reading it in place from the whole batch, with strides of its
    length, costs more (a fifth of the time at a batch of 1024)."""
    return materialize(x) if x.shape[-1] > 1 else x


def _flat(part: Stack) -> Stack:
    return part.reshape(part.shape[0] * part.shape[1], *part.shape[2:])


# -- factorisation and its tangent
# ---------------------------------------------------------------------------------------------------------------


def _eliminate(order: Plan, mass: Stack, finish: Callable, products: Callable) -> None:
    """The elimination of a packed matrix, shared by the factorisation and its tangent.

    `finish(group, i, column)` takes what is left of column i; `products(group, i)` gives pairs (x, y) of columns such
    that the sum of x_j y_i over the pairs is subtracted from entry (i, j) above.
    """
    sources = order.blocks(_stored(mass))
    handed: list[dict[int, Stack]] = []  # by group and depth of the first column
    for group in order.groups:
        for chunk, source in reversed(list(zip(group.chunks, sources[group.index], strict=True))):
            below = [jnp.swapaxes(_handed(handed[g], chunk, limbs), 0, 1) for g, limbs in group.slots]
            later = [
                jnp.swapaxes(x[:, chunk.first : chunk.stop], 0, 1)[:, :, None] * y[None, :, : chunk.stop]
                for k in range(chunk.stop, group.stop)
                for x, y in products(group, k - group.start)
            ]
            # the one boundary for the compiler: without it columns would be computed again for each of their uses
            block = materialize(source - total([*below, *later])) if below or later else source
            for depth in range(chunk.stop - 1, chunk.first - 1, -1):
                terms = [
                    x[:, depth, None] * y[:, : chunk.stop]
                    for k in range(depth + 1, chunk.stop)
                    for x, y in products(group, k - group.start)
                ]
                column = block[depth - chunk.first]
                finish(group, depth - group.start, column - total(terms) if terms else column)
        sums = {}
        for chunk in _chunks(0, group.start):
            terms = [_handed(handed[g], chunk, limbs) for g, limbs in group.slots]
            for i in range(group.length):
                terms += [
                    x[:, chunk.first : chunk.stop, None] * y[:, None, : chunk.stop] for x, y in products(group, i)
                ]
            sums[chunk.first] = total(terms)
        handed.append(sums)


def _handed(sums: dict[int, Stack], chunk: Chunk, limbs: tuple[int, ...]) -> Stack:
    """What limbs subtract from the columns of a chunk: (limbs, columns, rows, B)."""
    first = max(f for f in sums if f <= chunk.first)
    return take(sums[first], limbs)[:, chunk.first - first : chunk.stop - first, : chunk.stop]


def factor_kernel(topology: Topology, mass: Stack, floor: Stack | None) -> tuple[Stack, Stack, Stack | None]:
    """Packed M (entries, B) -> packed U (entries, B), 1 / D (nv, B) in the order of the columns and, with a floor (B)
    for the pivots, what each was raised by (nv, B)."""
    order = plan(topology)
    rest, scaled, inverses, raised = _Table(order), _Table(order), _Table(order), _Table(order)

    def finish(group: Group, i: int, column: Stack) -> None:
        pivot = column[:, group.rows(i)]
        if floor is not None:
            low = pivot < floor[None]
            raised.put(group, i, jnp.where(low, floor[None] - pivot, jnp.zeros_like(pivot)))
            pivot = jnp.where(low, floor[None], pivot)
        inverse = 1.0 / pivot
        inverses.put(group, i, inverse)
        rest.put(group, i, column)
        scaled.put(group, i, column * inverse[:, None])

    def products(group: Group, i: int) -> list[tuple[Stack, Stack]]:
        return [(rest.get(group, i), scaled.get(group, i))]

    _eliminate(order, mass, finish, products)
    none = mass[:0]
    return scaled.packed(none), inverses.joined(none), None if floor is None else raised.joined(none)


def tangent_kernel(
    topology: Topology, upper: Stack, inverse: Stack, held: Stack | None, dmass: Stack
) -> tuple[Stack, Stack, Stack | None]:
    """The tangent (du, d(1 / D)) of the factor along a change of the packed M, linear in it; with `held` (nv, B), 1 for the
    pivots that a floor raised and else 0, that of what they were raised by."""
    order = plan(topology)
    u, d = order.columns(_stored(upper)), _in_columns(order, inverse)
    h = None if held is None else _in_columns(order, held)
    y, du, dd, de = _Table(order), _Table(order), _Table(order), _Table(order)

    def finish(group: Group, i: int, column: Stack) -> None:
        w, delta, at = column, column[:, group.rows(i)], u[group.index][i]
        if h is not None:
            up = h[group.index][i]
            de.put(group, i, -up * delta)
            delta = delta - up * delta
        moved = at * delta[:, None]
        scale = d[group.index][i]
        dd.put(group, i, -scale * scale * delta)
        du.put(group, i, (w - moved) * scale[:, None])
        y.put(group, i, w - 0.5 * moved)

    def products(group: Group, i: int) -> list[tuple[Stack, Stack]]:
        a, b = u[group.index][i], y.get(group, i)
        return [(a, b), (b, a)]

    _eliminate(order, dmass, finish, products)
    none = dmass[:0]
    return du.packed(none), dd.joined(none), None if h is None else de.joined(none)


class _Table:
    """One stack per column, filled from the leaves inwards."""

    def __init__(self, order: Plan) -> None:
        self._groups = order.groups
        self._parts: list[list[Stack | None]] = [[None] * g.length for g in order.groups]

    def put(self, group: Group, i: int, part: Stack) -> None:
        self._parts[group.index][i] = part

    def get(self, group: Group, i: int) -> Stack:
        return _given(self._parts[group.index][i])

    def joined(self, none: Stack) -> Stack:
        parts = [_given(part) for parts in self._parts for part in parts]
        return join(parts) if parts else none

    def packed(self, none: Stack) -> Stack:
        parts = []
        for group in self._groups:
            for chunk in group.chunks:
                columns = [self.get(group, depth - group.start) for depth in range(chunk.first, chunk.stop)]
                parts.append(_flat(_flat(jnp.stack(columns))))
        return join(parts) if parts else none


def _in_columns(order: Plan, x: Stack) -> list[list[Stack]]:
    """Split a stack of degrees of freedom in the order of the columns."""
    return [
        [jax.lax.slice_in_dim(x, g.dof + i * g.count, g.dof + (i + 1) * g.count) for i in range(g.length)]
        for g in order.groups
    ]


# -- products and substitutions; x (nv, B) or (nv, columns, B), in the order of the topology
# ---------------------------------------------------------------------------------------------------------------


def _like(column: Stack, x: Stack) -> Stack:
    """A column (limbs, rows, B), to be multiplied with parts (limbs, B) or (limbs, columns, B) of a vector."""
    return column[:, :, None] if x.ndim == 3 else column


def _inwards(order: Plan, columns: Columns, x: Columns, start: Columns, solve: bool = False) -> Columns:
    """`start` plus the product of the strictly upper matrix with x, leaves first: each limb hands the sum of its
    columns times its entries on to its ancestors. With `solve`, `start` minus the product with the result."""
    handed: list[Stack | None] = []
    results: Columns = []
    for group, u, own, first in zip(order.groups, columns, x, start, strict=True):
        arrived = [take(_given(handed[g]), limbs) for g, limbs in group.slots]
        below = materialize(total(arrived)) if len(arrived) > 1 else arrived[0] if arrived else None
        y: list[Stack] = list(first)
        source = y if solve else own
        for i in range(group.length - 1, -1, -1):
            at = group.rows(i)
            terms = [_like(u[k], own[k])[:, at] * source[k] for k in range(i + 1, group.length)]
            if below is not None:
                terms.append(below[:, at])
            if terms:
                y[i] = first[i] - total(terms) if solve else first[i] + total(terms)
        up = None
        if group.start:
            terms = [_like(u[i], own[i])[:, : group.start] * source[i][:, None] for i in range(group.length)]
            if below is not None:
                terms.append(below[:, : group.start])
            up = materialize(total(terms))
        handed.append(up)
        results.append(y)
    return results


def _outwards(order: Plan, columns: Columns, x: Columns, start: Columns, solve: bool = False) -> Columns:
    """The same with the transposed matrix, roots first: each limb passes the entries of its ancestors and its own on
    to the limbs below."""
    paths: dict[int, Stack] = {}
    results: Columns = [[] for _ in order.groups]
    for group in reversed(order.groups):
        u, own, y = columns[group.index], x[group.index], list(start[group.index])
        source = y if solve else own
        above = None
        if group.start:
            sources = sorted({g for g, _ in group.parent})
            offset = dict(
                zip(sources, np.cumsum([0, *(order.groups[g].count for g in sources)]).tolist(), strict=False)
            )
            above = take(join([paths[g] for g in sources]), [offset[g] + limb for g, limb in group.parent])
        for i in range(group.length):
            column = _like(u[i], own[i])
            terms = [column[:, group.start + k] * source[k] for k in range(i)]
            if above is not None:
                terms.append(jnp.sum(column[:, : group.start] * above, axis=1))
            if terms:
                y[i] = y[i] - total(terms) if solve else y[i] + total(terms)
        if group.slots:
            own_path = [part[:, None] for part in source]
            paths[group.index] = materialize(join(own_path if above is None else [above, *own_path], axis=1))
        results[group.index] = y
    return results


def _given(part: Stack | None) -> Stack:
    if part is None:
        raise RuntimeError("a limb hangs on one that is not above it")
    return part


def triangular_kernel(static: tuple[Topology, bool, bool], upper: Stack, x: Stack) -> Stack:
    """U x; `static` is (topology, transposed, inverse): U^T x, U^{-1} x, U^{-T} x."""
    topology, transposed, inverse = static
    order = plan(topology)
    if x.size == 0:
        return x
    parts = order.split(x)
    sweep = _outwards if transposed else _inwards
    return order.merge(sweep(order, order.columns(_stored(upper)), parts, parts, inverse))


def solve_kernel(topology: Topology, upper: Stack, inverse: Stack, x: Stack) -> Stack:
    """M^{-1} x = U^{-T} D^{-1} U^{-1} x; `inverse` is 1 / D."""
    order = plan(topology)
    if x.size == 0:
        return x
    return order.merge(_solve(order, order.columns(_stored(upper)), inverse, order.split(x)))


def _solve(order: Plan, u: Columns, inverse: Stack, parts: Columns) -> Columns:
    y = _inwards(order, u, parts, parts, solve=True)
    z = _scaled(_in_columns(order, inverse), y)
    return _outwards(order, u, z, z, solve=True)


def product_kernel(topology: Topology, upper: Stack, inverse: Stack, x: Stack) -> Stack:
    """M x = U D U^T x."""
    order = plan(topology)
    if x.size == 0:
        return x
    u, parts = order.columns(_stored(upper)), order.split(x)
    y = _outwards(order, u, parts, parts)
    z = _scaled(_in_columns(order, 1.0 / inverse), y)
    return order.merge(_inwards(order, u, z, z))


def factor_solve_kernel(topology: Topology, mass: Stack, x: Stack) -> Stack:
    """M^{-1} x from the packed M, without keeping the factor."""
    if x.size == 0:
        return x
    order = plan(topology)
    upper, inverse, _ = factor_kernel(topology, mass, None)
    return order.merge(_solve(order, order.columns(upper), inverse, order.split(x)))


def mass_kernel(topology: Topology, mass: Stack, x: Stack) -> Stack:
    """M x from the packed M."""
    order = plan(topology)
    if x.size == 0:
        return x
    m, parts = order.columns(_stored(mass)), order.split(x)
    diagonal = [[m[g.index][i][:, g.rows(i)] for i in range(g.length)] for g in order.groups]
    own = _scaled(diagonal, parts)
    return order.merge(_outwards(order, m, parts, _inwards(order, m, parts, own)))


def _scaled(factors: Columns, x: Columns) -> Columns:
    return [
        [(f[:, None] if part.ndim == 3 else f) * part for f, part in zip(fs, parts, strict=True)]
        for fs, parts in zip(factors, x, strict=True)
    ]
