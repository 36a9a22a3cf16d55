"""`Topology`: which degrees of freedom stand above which, and what follows from it for the mass matrix.

Degree of freedom j has one parent p(j) < j, or -1. Its ancestors A(j) are found by following p. Entry (i, j) of the
mass matrix, and of the factor U of M = U D U^T, can differ from zero only where one of i, j is the other or an
ancestor of it (Featherstone, Rigid Body Dynamics Algorithms, 6.4). Everything here works with ancestor *sets*, never
with ranges of indices, so that any numbering with parents first will do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from jaxdyn.errors import InputError
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """The tree of the degrees of freedom: `parents[j]` is the one above j, or -1 (a forest is allowed, and so is no
    degree of freedom at all). Frozen and hashable; made by `from_parents`, `from_tree` or `full`.

    **Raises:** `InputError` unless -1 <= parents[j] < j.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for j, parent in enumerate(self.parents):
            if not -1 <= parent < j:
                raise InputError(
                    f"parents: wanted -1 <= parents[j] < j (parents are numbered before their children), given "
                    f"parents[{j}] = {parent}."
                )

    @classmethod
    def from_parents(cls, parents: Sequence[int] | np.ndarray) -> Topology:
        """From the parent of each degree of freedom, -1 for none (Featherstone's expanded parent array)."""
        array = np.asarray(parents)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InputError(f"parents: wanted one integer per degree of freedom, given {parents!r}.")
        return cls(tuple(int(p) for p in array))

    @classmethod
    def full(cls, n: int) -> Topology:
        """One chain: nothing is known to be zero. For matrices without branches, such as G^T M G of coupled joints."""
        return cls(tuple(range(-1, n - 1)))

    @classmethod
    def from_tree(cls, tree: Tree) -> Topology:
        """Of a robot. A joint that follows another couples branches: then nothing is assumed to be zero between the
        degrees of freedom of the robot's parts that are connected so."""
        if not tree.followers:
            return cls(tree.dof_parent)
        return cls(_coupled_parents(tree))

    # Equality and hash: both run at every call of a jitted function.

    @cached_property
    def _hash(self) -> int:
        return hash(self.parents)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Topology):
            return NotImplemented
        return self.parents == other.parents

    def __getstate__(self) -> dict:
        return {"parents": self.parents}

    def __repr__(self) -> str:
        return f"Topology(nv={self.nv}, depth={max(self.depth, default=0)}, entries={self.entries})"

    # Sets

    @property
    def nv(self) -> int:
        """Number of degrees of freedom."""
        return len(self.parents)

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """For each degree of freedom itself and its ancestors, outermost last: its support."""
        chains: list[tuple[int, ...]] = []
        for j, parent in enumerate(self.parents):
            chains.append((*(chains[parent] if parent >= 0 else ()), j))
        return tuple(chains)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Length of each degree of freedom's chain; 1 for a root."""
        return tuple(len(chain) for chain in self.chains)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Degrees of freedom directly below each one."""
        children: list[list[int]] = [[] for _ in self.parents]
        for j, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(j)
        return tuple(tuple(c) for c in children)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Degrees of freedom without a parent."""
        return tuple(j for j, parent in enumerate(self.parents) if parent < 0)

    @cached_property
    def related(self) -> np.ndarray:
        """bool (nv, nv), read-only: `[i, j]` is true where i is j or an ancestor of j: the upper triangle's pattern."""
        matrix = np.zeros((self.nv, self.nv), dtype=bool)
        for j, chain in enumerate(self.chains):
            matrix[list(chain), j] = True
        matrix.flags.writeable = False
        return matrix

    # Counts

    @cached_property
    def entries(self) -> int:
        """N: entries strictly above the diagonal that can differ from zero."""
        return sum(d - 1 for d in self.depth)

    @cached_property
    def factor_cost(self) -> int:
        """Multiply-adds of the factorisation, sum of d (d - 1) / 2 over the depths d; (nv^3 - nv) / 6 without branches."""
        return sum(d * (d - 1) // 2 for d in self.depth)

    @property
    def solve_cost(self) -> int:
        """Multiplications of one solve, 2 N + nv; nv^2 without branches."""
        return 2 * self.entries + self.nv

    # Parts

    def restricted(self, support: Sequence[int]) -> Topology:
        """Of a sorted subset that holds the ancestors of its members.

        **Raises:** `InputError` if an ancestor is missing.
        """
        place = {j: k for k, j in enumerate(support)}
        parents = []
        for j in support:
            parent = self.parents[j]
            if parent >= 0 and place.get(parent, len(support)) >= place[j]:
                raise InputError(f"support: it holds {j}, and must hold its ancestor {parent} before it.")
            parents.append(place[parent] if parent >= 0 else -1)
        return Topology(tuple(parents))

    def closure(self, dofs: Sequence[int]) -> tuple[int, ...]:
        """The sorted union of the chains of some degrees of freedom."""
        return tuple(sorted({i for j in dofs for i in self.chains[j]}))


TopologyLike: TypeAlias = Topology | Tree | Model | Sequence[int] | np.ndarray
"""What says how degrees of freedom hang on each other: a robot, its tree, a topology, or the parents of each."""


def topology_of(what: TopologyLike) -> Topology:
    """The topology of a model, a tree, an array of parents, or itself.

    **Raises:** `InputError`.
    """
    if isinstance(what, Topology):
        return what
    if isinstance(what, Model):
        return _of_tree(what.tree)
    if isinstance(what, Tree):
        return _of_tree(what)
    if isinstance(what, Sequence | np.ndarray) and not isinstance(what, str):
        return Topology.from_parents(what)
    raise InputError(
        f"wanted a Model, Tree, Topology or the parents of the degrees of freedom, given {type(what).__name__}."
    )


@functools.lru_cache(maxsize=256)
def _of_tree(tree: Tree) -> Topology:
    return Topology.from_tree(tree)


def _coupled_parents(tree: Tree) -> tuple[int, ...]:
    """Chains through all degrees of freedom that share a root or are coupled by a follower."""
    part = list(range(tree.n_joints))

    def find(i: int) -> int:
        while part[i] != i:
            i = part[i]
        return i

    for i, parent in enumerate(tree.parents):
        if parent >= 0:
            part[find(i)] = find(parent)
    for joint, leader in tree.followers:
        part[find(joint)] = find(leader)
    last: dict[int, int] = {}
    parents = []
    for i, size in enumerate(tree.joint_nv):
        for _ in range(size):
            parents.append(last.get(find(i), -1))
            last[find(i)] = len(parents) - 1
    return tuple(parents)
