"""The order of things: whether links and joints form a tree, which joints move and how they are numbered, and where
each link ends up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdyn.errors import (
    FloatLike,
    InputError,
    URDFError,
    check_shape,
    known_numbers,
    listing,
    suggestion,
    unknown_name,
)
from jaxdyn.model.description import UNBOUNDED, Joint, Robot, at_line
from jaxdyn.model.joints import neutral_of
from jaxdyn.model.mimic import Follower, check_kept_followers, frozen_followers
from jaxdyn.model.tree import JOINT_SIZES, QUATERNION_START

ROOT_JOINT = "root_joint"


class Placed(NamedTuple):
    """Where a link is: the body that carries it (-1: the world) and its pose (4, 4) in that body."""

    body: int
    pose: np.ndarray


def link_order(robot: Robot) -> list[tuple[Joint | None, str]]:
    """(joint above, link) for all links, depth first, children in the order of their joints in the file; the root
    comes first, without a joint.

    **Raises:** `URDFError` that names the culprits if the links and joints are no tree.
    """
    above: dict[str, Joint] = {}
    below: dict[str, list[Joint]] = {name: [] for name in robot.links}
    for joint in robot.joints.values():
        for role, link in (("parent", joint.parent), ("child", joint.child)):
            if link not in robot.links:
                raise URDFError(
                    f"joint {joint.name!r}{at_line(joint.line)}: {role} link {link!r} does not exist{suggestion(link, list(robot.links))}."
                )
        if joint.parent == joint.child:
            raise URDFError(
                f"joint {joint.name!r}{at_line(joint.line)} joins link {joint.child!r} to itself: the joints form a loop."
            )
    for joint in robot.joints.values():
        other = above.setdefault(joint.child, joint)
        if other is not joint:
            raise URDFError(
                f"link {joint.child!r} has two parents: it is the child of joint {other.name!r}{at_line(other.line)} "
                f"and of joint {joint.name!r}{at_line(joint.line)}. A URDF is a tree; close loops with constraints instead."
            )
        below[joint.parent].append(joint)
    roots = [name for name in robot.links if name not in above]
    order: list[tuple[Joint | None, str]] = []
    stack: list[tuple[Joint | None, str]] = [(None, root) for root in reversed(roots)]
    while stack:
        joint, link = stack.pop()
        order.append((joint, link))
        stack.extend((child, child.child) for child in reversed(below[link]))
    if len(order) < len(robot.links):
        reached = {link for _, link in order}
        link = next(name for name in robot.links if name not in reached)
        ring: list[Joint] = []
        seen: dict[str, int] = {}
        while link not in seen:  # upwards, until a link comes again
            seen[link] = len(ring)
            ring.append(above[link])
            link = above[link].parent
        names = [joint.name for joint in reversed(ring[seen[link] :])]
        raise URDFError(f"the joints {listing(names)} form a loop; a URDF is a tree.")
    if len(roots) > 1:
        raise URDFError(
            f"the robot has {len(roots)} root links, wanted one: {listing(roots)} are no joint's child. Join them with fixed joints."
        )
    return order


def moving_joints(
    robot: Robot,
    order: list[tuple[Joint | None, str]],
    root: str,
    selected: Sequence[str] | None,
    locked: Mapping[str, FloatLike] | Sequence[str] | None,
    followers: Mapping[str, Follower],
) -> tuple[list[Joint], dict[str, np.ndarray]]:
    """The joints of the model in their order (with the free-flyer, if any, and with joints that follow others), and
    the coordinates of all frozen joints. A follower that is not locked itself is frozen where its leader is.

    **Raises:** `UnknownNameError`, `InputError`.
    """
    movable = [joint for joint, _ in order if joint is not None and joint.kind != "fixed"]
    by_name = {joint.name: joint for joint in movable}
    root_joint = _free_flyer(robot, order) if root == "floating" else None
    values: dict[str, np.ndarray] = {}
    check_locked(locked)
    for name in locked or ():
        joint = _movable("locked", name, robot, by_name)
        named_only = not isinstance(locked, Mapping)
        values[name] = neutral_of(joint.kind) if named_only else _frozen_coordinates(joint, locked[name])
    if selected is None:
        chosen = [joint for joint in movable if joint.name not in values and joint.name not in followers]
    else:
        if isinstance(selected, str | bytes):
            raise InputError(f"joints: wanted a sequence of joint names, given the single string {selected!r}.")
        names = list(selected)
        if root_joint is not None and names[:1] == [root_joint.name]:
            names = names[1:]
        chosen = [_movable("joints", name, robot, by_name) for name in names]
        _check_selection(robot, order, names, values)
        check_kept_followers(names, followers, {joint.name for joint in chosen})
        chosen = [joint for joint in chosen if joint.name not in followers]
    kept = {joint.name for joint in chosen}
    for joint in movable:
        if joint.name not in kept and joint.name not in followers:
            values.setdefault(joint.name, neutral_of(joint.kind))
    values.update(frozen_followers(dict(followers), values))
    moving = [joint for joint in movable if joint.name not in values]
    if selected is not None:
        moving = _in_given_order(order, chosen, moving)
    return ([root_joint] if root_joint is not None else []) + moving, values


def check_locked(locked: Any) -> None:
    """**Raises:** `InputError` for what is neither a mapping from joint names to values, nor a sequence of names, nor None."""
    names = isinstance(locked, Mapping | Sequence) and not isinstance(locked, str | bytes)
    if locked is not None and not (names and all(isinstance(name, str) for name in locked)):
        raise InputError(f"locked: wanted a mapping from joint names to values, or names alone, given {locked!r:.80}.")


def _in_given_order(order: list[tuple[Joint | None, str]], chosen: list[Joint], moving: list[Joint]) -> list[Joint]:
    """The chosen joints in their order, and each other one of `moving` before the first that hangs on it."""
    above = {link: joint for joint, link in order}
    others = {joint.name for joint in moving} - {joint.name for joint in chosen}
    result: list[Joint] = []
    for joint in [*chosen, *(joint for joint in moving if joint.name in others)]:
        before: list[Joint] = []
        at: Joint | None = joint
        while at is not None:
            if at.name in others:
                before.append(at)
                others.discard(at.name)
            at = above[at.parent]
        result += reversed(before)
        if not any(joint is done for done in result):
            result.append(joint)
    return result


def _free_flyer(robot: Robot, order: list[tuple[Joint | None, str]]) -> Joint:
    name = ROOT_JOINT
    while name in robot.joints:  # a file may have a joint of that name
        name += "_"
    return Joint(name, 0, "floating", "", order[0][1], np.eye(4), np.array([1.0, 0.0, 0.0]), *UNBOUNDED)


def _movable(argument: str, name: str, robot: Robot, by_name: dict[str, Joint]) -> Joint:
    if name in by_name:
        return by_name[name]
    if name in robot.joints:
        raise InputError(f"{argument}: joint {name!r} is fixed in the file and cannot move.")
    error = unknown_name("joint", name, by_name)
    error.args = (f"{argument}: {error}",)
    raise error


def _check_selection(
    robot: Robot, order: list[tuple[Joint | None, str]], names: list[str], values: dict[str, np.ndarray]
) -> None:
    rank = {name: i for i, name in enumerate(names)}
    twice = [name for i, name in enumerate(names) if rank[name] != i]
    if twice:
        raise InputError(f"joints: {listing(twice)} given more than once.")
    both = [name for name in names if name in values]
    if both:
        raise InputError(f"joints and locked both name {listing(both)}: a joint is either kept or frozen.")
    nearest_kept: dict[str, str | None] = {}  # link -> the last kept joint above it
    for joint, link in order:
        if joint is None:
            nearest_kept[link] = None
            continue
        before = nearest_kept[joint.parent]
        if joint.name in rank:
            if before is not None and rank[before] > rank[joint.name]:
                raise InputError(
                    f"joints: {joint.name!r} is given before {before!r}, but {before!r} stands between it and the root; "
                    "parents come first, so exchange them."
                )
            before = joint.name
        nearest_kept[link] = before


def _frozen_coordinates(joint: Joint, value: FloatLike) -> np.ndarray:
    size = JOINT_SIZES[joint.kind][0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value)
    shape = () if size == 1 and np.ndim(value) == 0 else (size,)
    array = known_numbers(f"locked[{joint.name!r}]", check_shape(f"locked[{joint.name!r}]", value, shape)).reshape(size)
    if isinstance(value, float):
        array = np.full(size, value)  # JAX may have rounded it to float32
    if not np.all(np.isfinite(array)):
        raise InputError(f"locked[{joint.name!r}]: wanted finite numbers, given {value!r}.")
    if joint.kind in QUATERNION_START and not array[QUATERNION_START[joint.kind] :].any():
        raise InputError(f"locked[{joint.name!r}]: the quaternion is zero and stands for no rotation.")
    return array


def frozen_pose(joint: Joint, q: np.ndarray) -> np.ndarray:
    """Pose (4, 4) of the child link in the parent link of a joint frozen at coordinates `q`; as `joints.joint_pose`,
    in NumPy.
    """
    pose, axis = np.eye(4), joint.axis
    if joint.kind in ("revolute", "continuous"):
        pose[:3, :3] = _rotation(axis, q[0])
    elif joint.kind == "prismatic":
        pose[:3, 3] = axis * q[0]
    elif joint.kind == "planar":
        u = np.eye(3)[(np.argmax(np.abs(axis)) + 1) % 3]
        u = u - axis * (axis @ u)
        u = u / np.linalg.norm(u)
        pose[:3, :3] = _rotation(axis, q[2])
        pose[:3, 3] = u * q[0] + np.cross(axis, u) * q[1]
    else:
        w, x, y, z = q[-4:] / np.linalg.norm(q[-4:])
        pose[:3, :3] = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        if joint.kind == "floating":
            pose[:3, 3] = q[:3]
    return joint.placement @ pose


def _rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    s, c = math.sin(angle), math.cos(angle)
    x, y, z = axis
    return np.outer(axis, axis) * (1 - c) + c * np.eye(3) + s * np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def place_links(
    robot: Robot,
    order: list[tuple[Joint | None, str]],
    moving: list[Joint],
    values: dict[str, np.ndarray],
    *,
    floating: bool,
) -> dict[str, Placed]:
    """Body and pose of every link, in depth-first order: a moving joint starts a body, any other carries its link
    on.
    """
    number = {joint.name: i for i, joint in enumerate(moving)}
    placed: dict[str, Placed] = {}
    for joint, link in order:
        if joint is None:
            placed[link] = Placed(0 if floating else -1, np.eye(4))
        elif joint.name in number:
            placed[link] = Placed(number[joint.name], np.eye(4))
        else:
            before = placed[joint.parent]
            step = frozen_pose(joint, values[joint.name]) if joint.name in values else joint.placement
            placed[link] = Placed(before.body, before.pose @ step)
    return placed
