"""`Tree`: the static structure of a robot, and everything that follows from it alone.

The tree holds names and integers, never a number that has a unit: it is hashable, so it can be a static field of a
pytree, and two robots that differ in masses or lengths alone share it, and with it every compiled function.

Numbering: body `i` is moved by joint `i`; a parent stands before its children (`parents[i] < i`); -1 is the world.
Frames `0 .. n_bodies - 1` are the bodies' own frames, in order; after them come the links that a fixed joint welds to
a body or to the world.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from jaxdyn.errors import InputError, unknown_name

# type: (number of coordinates, number of velocities)
JOINT_SIZES = {
    "revolute": (1, 1),
    "continuous": (1, 1),
    "prismatic": (1, 1),
    "spherical": (4, 3),
    "planar": (3, 3),
    "floating": (7, 6),
}
# where the quaternion starts among the coordinates of a joint
QUATERNION_START = {"spherical": 0, "floating": 3}

SHAPE_KINDS = ("box", "sphere", "cylinder", "capsule", "mesh")
SHAPE_ROLES = ("visual", "collision")


@dataclasses.dataclass(frozen=True)
class ShapeInfo:
    """What is static of a shape: names, kind and the body it moves with. Its numbers are leaves of `Model`.

    `name`: of the shape ("" if the file gives none); `link`: the file's link it belongs to; `body`: index of the body
    that carries it, -1 for the world; `kind`: one of `SHAPE_KINDS`; `role`: "visual" or "collision"; `mesh`: file of
    a mesh, else "".
    """

    name: str
    link: str
    body: int
    kind: str
    role: str
    mesh: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """Names, joint types and connections of a robot (a forest is allowed, and so is a robot without joints).

    `joint_names`, `joint_types` (keys of `JOINT_SIZES`), `parents` (index of the body that carries the joint, -1 =
    world), `body_names` (link that the joint moves), `frame_names`, `frame_bodies` (-1 = world), `geometry` (one
    `ShapeInfo` per shape), `followers` (pairs of a joint and the joint that it follows, which may follow another).

    A follower has no coordinate of its own: its `joint_nq` and `joint_nv` are 0, and `nq`, `nv` are those of the
    other joints. What only makes sense where each joint moves alone (`dof_parent`, `dof_support`, ...) raises
    `InputError` for such a robot; `free` is the tree without the couplings.

    **Raises:** `InputError` if the tuples do not fit together, a name occurs twice, a parent does not stand before
    its child, or joints cannot follow each other.
    """

    joint_names: tuple[str, ...]
    joint_types: tuple[str, ...]
    parents: tuple[int, ...]
    body_names: tuple[str, ...]
    frame_names: tuple[str, ...]
    frame_bodies: tuple[int, ...]
    geometry: tuple[ShapeInfo, ...] = ()
    followers: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.joint_names)
        for field in ("joint_types", "parents", "body_names"):
            if len(getattr(self, field)) != n:
                raise InputError(f"Tree: {field} has {len(getattr(self, field))} entries, but there are {n} joints.")
        if len(self.frame_names) != len(self.frame_bodies):
            raise InputError(f"Tree: {len(self.frame_names)} frame_names, but {len(self.frame_bodies)} frame_bodies.")
        if self.frame_names[:n] != self.body_names or self.frame_bodies[:n] != tuple(range(n)):
            raise InputError("Tree: the first frames must be the frames of the bodies, in their order.")
        for i, (kind, parent) in enumerate(zip(self.joint_types, self.parents, strict=True)):
            if kind not in JOINT_SIZES:
                raise unknown_name("joint type", kind, JOINT_SIZES)
            if not -1 <= parent < i:
                raise InputError(
                    f"Tree: joint {self.joint_names[i]!r} (number {i}) hangs on body {parent}; wanted -1 <= parent < {i}."
                )
        for what, bodies in (("frame", self.frame_bodies), ("shape", tuple(s.body for s in self.geometry))):
            if any(not -1 <= body < n for body in bodies):
                raise InputError(f"Tree: a {what} is fixed to a body that does not exist (there are {n}).")
        for field in ("joint_names", "frame_names"):
            names = getattr(self, field)
            if len(set(names)) != len(names):
                twice = sorted({name for name in names if names.count(name) > 1})
                raise InputError(f"Tree: {field} must differ, but {twice} occur more than once.")
        self._check_followers()

    def _check_followers(self) -> None:
        leader = dict(self.followers)
        if len(leader) != len(self.followers) or list(leader) != sorted(leader):
            raise InputError("Tree: followers must be sorted by joint, and each follows one joint.")
        for joint, led_by in self.followers:
            for i in (joint, led_by):
                if not 0 <= i < self.n_joints or JOINT_SIZES[self.joint_types[i]] != (1, 1):
                    raise InputError(f"Tree: joints of one coordinate can follow each other, joint {i} is none.")
            seen = [joint]
            while led_by in leader:
                if led_by in seen:
                    names = [self.joint_names[i] for i in seen]
                    raise InputError(f"Tree: the joints {names} follow each other in a ring.")
                seen.append(led_by)
                led_by = leader[led_by]

    # Equality and hash. Both run at every call of a jitted function, so the hash is computed once, and is compared
    # first.

    @cached_property
    def _key(self) -> tuple:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Tree):
            return NotImplemented
        return self._hash == other._hash and self._key == other._key

    def __getstate__(self) -> dict:
        # Python salts the hashes of strings anew in each process: a pickled cache would be wrong elsewhere
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        return f"Tree(n_joints={self.n_joints}, nq={self.nq}, nv={self.nv}, n_frames={self.n_frames}, n_shapes={len(self.geometry)})"

    # Counts and offsets

    @property
    def n_joints(self) -> int:
        """Number of moving joints, equal to the number of bodies."""
        return len(self.joint_names)

    @property
    def n_bodies(self) -> int:
        """Number of bodies that a joint moves."""
        return len(self.joint_names)

    @property
    def n_frames(self) -> int:
        """Number of named frames, those of the bodies included."""
        return len(self.frame_names)

    @cached_property
    def joint_nq(self) -> tuple[int, ...]:
        """Number of coordinates of each joint; 0 for one that follows another."""
        return tuple(0 if self._leader[i] >= 0 else JOINT_SIZES[kind][0] for i, kind in enumerate(self.joint_types))

    @cached_property
    def joint_nv(self) -> tuple[int, ...]:
        """Number of velocities of each joint; 0 for one that follows another."""
        return tuple(0 if self._leader[i] >= 0 else JOINT_SIZES[kind][1] for i, kind in enumerate(self.joint_types))

    @cached_property
    def nq(self) -> int:
        """Number of coordinates of the robot."""
        return sum(self.joint_nq)

    @cached_property
    def nv(self) -> int:
        """Number of degrees of freedom of the robot."""
        return sum(self.joint_nv)

    @cached_property
    def q_offset(self) -> tuple[int, ...]:
        """Where the coordinates of each joint start in `q`."""
        return _offsets(self.joint_nq)

    @cached_property
    def v_offset(self) -> tuple[int, ...]:
        """Where the velocities of each joint start in `v`."""
        return _offsets(self.joint_nv)

    # Followers

    @cached_property
    def _leader(self) -> tuple[int, ...]:
        leader = dict(self.followers)
        return tuple(leader.get(i, -1) for i in range(self.n_joints))

    @cached_property
    def independent(self) -> tuple[int, ...]:
        """The joints that follow no other: those with coordinates."""
        return tuple(i for i in range(self.n_joints) if self._leader[i] < 0)

    @cached_property
    def leading_joint(self) -> tuple[int, ...]:
        """For each joint the independent joint that moves it: itself, or the one at the end of the chain it follows."""
        result = []
        for i in range(self.n_joints):
            while self._leader[i] >= 0:
                i = self._leader[i]
            result.append(i)
        return tuple(result)

    @cached_property
    def free(self) -> Tree:
        """The same tree with every joint independent."""
        return dataclasses.replace(self, followers=()) if self.followers else self

    def require_independent(self, what: str = "this function") -> None:
        """Raises `InputError`, naming the joints, if some joint follows another."""
        if self.followers:
            names = ", ".join(repr(self.joint_names[joint]) for joint, _ in self.followers[:6])
            more = f" and {len(self.followers) - 6} more" if len(self.followers) > 6 else ""
            raise InputError(
                f"{what} is not for robots with joints that follow others ({names}{more}); "
                "load the robot with mimic='independent', or lock these joints."
            )

    # Names

    def joint(self, name: str) -> int:
        """Index of the joint of this name; raises `UnknownNameError`."""
        return _find("joint", name, self._joint_index)

    def body(self, name: str) -> int:
        """Index of the body that carries this name; raises `UnknownNameError`."""
        return _find("body", name, self._body_index)

    def frame(self, name: str) -> int:
        """Index of the frame (any link of the file) of this name; raises `UnknownNameError`."""
        return _find("frame", name, self._frame_index)

    @cached_property
    def _joint_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.joint_names)}

    @cached_property
    def _body_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.body_names)}

    @cached_property
    def _frame_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.frame_names)}

    # Structure, bodies

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Number of bodies between each body and the world."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Bodies by depth: `levels[0]` hang on the world, `levels[k + 1]` on bodies of `levels[k]`."""
        return _group(self.depth)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Bodies that hang on each body."""
        children: list[list[int]] = [[] for _ in self.parents]
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(i)
        return tuple(tuple(c) for c in children)

    @cached_property
    def last_dof(self) -> tuple[int, ...]:
        """Last degree of freedom of each body's joint."""
        self.require_independent("what uses Tree.last_dof")
        return tuple(start + size - 1 for start, size in zip(self.v_offset, self.joint_nv, strict=True))

    # Structure, degrees of freedom: as if each were a joint of its own

    @cached_property
    def dof_body(self) -> tuple[int, ...]:
        """Body whose joint each degree of freedom belongs to."""
        return tuple(i for i, size in enumerate(self.joint_nv) for _ in range(size))

    @cached_property
    def dof_parent(self) -> tuple[int, ...]:
        """The degree of freedom before: of the same joint, else the last one of the parent body, else -1."""
        self.require_independent("what uses Tree.dof_parent")
        parents: list[int] = []
        for i, parent in enumerate(self.parents):
            before = -1 if parent < 0 else self.last_dof[parent]
            for k in range(self.joint_nv[i]):
                parents.append(before if k == 0 else self.v_offset[i] + k - 1)
        return tuple(parents)

    @cached_property
    def dof_depth(self) -> tuple[int, ...]:
        """Number of degrees of freedom between each one and the world."""
        depth: list[int] = []
        for parent in self.dof_parent:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def dof_levels(self) -> tuple[tuple[int, ...], ...]:
        """Degrees of freedom by depth."""
        return _group(self.dof_depth)

    # Structure as matrices, read-only

    @cached_property
    def ancestors(self) -> np.ndarray:
        """bool (n_bodies, n_bodies): entry `[i, j]` is true if body `j` is body `i` or an ancestor of it."""
        return _ancestors(self.parents)

    @cached_property
    def dof_ancestors(self) -> np.ndarray:
        """bool (nv, nv): entry `[k, j]` is true if dof `j` is dof `k` or stands between it and the world."""
        return _ancestors(self.dof_parent)

    @cached_property
    def dof_support(self) -> np.ndarray:
        """bool (n_bodies, nv): entry `[i, k]` is true if dof `k` moves body `i`."""
        self.require_independent("what uses Tree.dof_support")
        matrix = self.ancestors[:, np.asarray(self.dof_body, dtype=int)]
        matrix.flags.writeable = False
        return matrix


def _offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += size
    return tuple(offsets)


def _group(depth: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    groups: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i, d in enumerate(depth):
        groups[d].append(i)
    return tuple(tuple(g) for g in groups)


def _ancestors(parents: tuple[int, ...]) -> np.ndarray:
    n = len(parents)
    matrix = np.eye(n, dtype=bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            matrix[i] |= matrix[parent]
    matrix.flags.writeable = False
    return matrix


def _find(kind: str, name: str, index: dict[str, int]) -> int:
    if not isinstance(name, str):
        raise InputError(f"{kind}: wanted a name (a string), given {name!r}.")
    if name not in index:
        raise unknown_name(kind, name, index)
    return index[name]
