"""The recursion over the tree, written once: level by level, away from the root (`scan_down`) or towards it
(`scan_up`).

A `Schedule` numbers bodies and degrees of freedom level by level, so that each level is one slice of a stack. Bodies
of a level whose joints have equally many degrees of freedom are neighbours (a *group*).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.math.stacked import Stack, join, take, total
from jaxdyn.model.tree import Tree


@dataclass(frozen=True)
class Group:
    """Bodies of one level whose joints have `size` degrees of freedom: slices into the level's bodies and into all
    degrees of freedom."""

    size: int
    first: int
    count: int
    dof: int

    def bodies(self, level: Stack) -> Stack:
        """The group's part of a stack of the level's bodies."""
        return jax.lax.slice_in_dim(level, self.first, self.first + self.count)

    def dofs(self, stack: Stack) -> Stack:
        """The group's part of a stack over all degrees of freedom, as (bodies, size, ...)."""
        part = jax.lax.slice_in_dim(stack, self.dof, self.dof + self.count * self.size)
        return part.reshape(self.count, self.size, *stack.shape[1:])


@dataclass(frozen=True)
class Level:
    """Bodies `start .. stop` at a depth; `parent[i]` indexes the level above, `children[j]` lists this level's bodies
    that hang on body j of the level above."""

    depth: int
    start: int
    stop: int
    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    groups: tuple[Group, ...]

    def of(self, stack: Stack) -> Stack:
        """The level's part of a stack of bodies."""
        return jax.lax.slice_in_dim(stack, self.start, self.stop)

    def by_group(self, function: Callable[[Group], Any]) -> Any:
        """Apply a function to each group and join the results along the bodies."""
        results = [function(group) for group in self.groups]
        return results[0] if len(results) == 1 else jax.tree.map(lambda *parts: join(parts), *results)


class Schedule:
    """Level order of a tree. `bodies[i]` is the tree's number of body i here, `dofs[k]` that of degree of freedom k;
    `body_rank`, `dof_rank` are the inverses."""

    def __init__(self, tree: Tree) -> None:
        order, levels, rank = [], [], {}
        dof = 0
        for depth, members in enumerate(tree.levels):
            above = levels[-1] if levels else None
            members = sorted(members, key=lambda b: (-tree.joint_nv[b], rank[tree.parents[b]] if depth else 0, b))
            start = len(order)
            groups, first = [], 0
            while first < len(members):
                size = tree.joint_nv[members[first]]
                count = sum(tree.joint_nv[b] == size for b in members)
                groups.append(Group(size, first, count, dof))
                dof += size * count
                first += count
            parent = tuple(rank[tree.parents[b]] - above.start for b in members) if above else ()
            children = tuple(
                tuple(i for i, p in enumerate(parent) if p == j)
                for j in range(above.stop - above.start if above else 0)
            )
            for b in members:
                rank[b] = len(order)
                order.append(b)
            levels.append(Level(depth, start, len(order), parent, children, tuple(groups)))
        self.levels: tuple[Level, ...] = tuple(levels)
        self.bodies = np.asarray(order, dtype=int)
        self.body_rank = np.argsort(self.bodies)
        starts = np.asarray(tree.v_offset, dtype=int)
        self.dofs = np.asarray([starts[b] + k for b in order for k in range(tree.joint_nv[b])], dtype=int)
        self.dof_rank = np.argsort(self.dofs)
        self.dof_body = self.body_rank[np.asarray(tree.dof_body, dtype=int)[self.dofs]]
        """Body (in this order) of each degree of freedom (in this order)."""
        self.parents = np.asarray([rank[p] if (p := tree.parents[b]) >= 0 else -1 for b in order], dtype=int)
        below = tree.ancestors[np.ix_(self.bodies, self.bodies)]
        self.below = below[np.ix_(self.dof_body, self.dof_body)]
        """[i, j]: the body of dof i is that of dof j or hangs, however deep, on it."""
        self.strictly_above = self.below.T & ~self.below
        self.dof_ancestors = tree.dof_ancestors[np.ix_(self.dofs, self.dofs)]
        self.runs = _runs([tree.joint_nv[b] for b in order])

    @property
    def n(self) -> int:
        """Number of bodies."""
        return len(self.bodies)

    def scan_down(self, step: Callable[[Level, Any], Any]) -> list:
        """`step(level, state of the parents or None) -> state` from the root outwards; returns the states, one per
        level."""
        states: list = []
        for level in self.levels:
            above = jax.tree.map(lambda x, level=level: take(x, level.parent), states[-1]) if states else None
            states.append(step(level, above))
        return states

    def scan_up(self, step: Callable[[Level, Any], tuple[Any, Any]]) -> list:
        """`step(level, sum of the children's messages or None) -> (message to the parents, output)` from the leaves
        inwards; returns the outputs, level 0 first."""
        outputs: list = []
        below = None
        for depth in range(len(self.levels) - 1, -1, -1):
            level = self.levels[depth]
            message, output = step(level, below)
            outputs.append(output)
            below = jax.tree.map(lambda x, level=level: _child_sum(x, level.children), message) if depth else None
        return outputs[::-1]

    def sum_down(self, stack: Stack) -> Stack:
        """Each body's sum over itself and its ancestors."""
        return (
            join(self.scan_down(lambda level, above: level.of(stack) if above is None else level.of(stack) + above))
            if self.n
            else stack
        )

    def sum_up(self, stack: Stack) -> Stack:
        """Each body's sum over itself and its descendants."""

        def step(level: Level, below: Stack | None) -> tuple[Stack, Stack]:
            sums = level.of(stack) if below is None else level.of(stack) + below
            return sums, sums

        return join(self.scan_up(step)) if self.n else stack

    def sum_dofs(self, stack: Stack) -> Stack:
        """Sum over the degrees of freedom of each body: (nv, ...) -> (bodies, ...)."""
        parts, dof = [], 0
        for size, count in self.runs:
            part = jax.lax.slice_in_dim(stack, dof, dof + size * count)
            dof += size * count
            if size > 1:
                part = part.reshape(count, size, *stack.shape[1:])
                part = total(part[:, k] for k in range(size))
            parts.append(part)
        return join(parts) if parts else stack


@functools.lru_cache(maxsize=256)
def schedule(tree: Tree) -> Schedule:
    """The level order of a tree, computed once. Raises `InputError` if joints follow others: recursions need a `free`
    tree."""
    tree.require_independent()
    return Schedule(tree)


def _runs(sizes: list[int]) -> list[tuple[int, int]]:
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return [(size, count) for size, count in runs]


def _child_sum(stack: Stack, children: tuple[tuple[int, ...], ...]) -> Stack:
    """Sum of the children's items for each parent; zero for a parent without children."""
    if all(len(c) == 1 for c in children):
        return take(stack, [c[0] for c in children])
    if len(children) == 1:
        return jnp.sum(stack, axis=0, keepdims=True)
    most = max(len(c) for c in children)
    n = stack.shape[0]
    padded = jnp.concatenate([stack, jnp.zeros_like(stack[:1])]) if any(len(c) < most for c in children) else stack
    return total(take(padded, [c[k] if k < len(c) else n for c in children]) for k in range(most))
