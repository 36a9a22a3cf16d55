"""From links and joints to a `Model`: checks that they form a tree, freezes and lumps what does not move, numbers
what does.

All arithmetic is NumPy; each leaf goes to JAX once, at the end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.errors import FloatLike, InputError, check_shape, known_numbers, suggestion, warn
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.description import Joint, Link, Robot, rerooted, with_frames
from jaxdyn.model.joints import neutral_of
from jaxdyn.model.mimic import MIMIC, Follower, Sides, combined_sides, find_followers
from jaxdyn.model.model import Model, float_dtype
from jaxdyn.model.order import Placed, link_order, moving_joints, place_links
from jaxdyn.model.resolve import Resolver
from jaxdyn.model.tree import ShapeInfo, Tree

GRAVITY = (0.0, 0.0, -9.80665)
ROOTS = ("fixed", "floating")


def build_model(
    robot: Robot,
    *,
    root: str = "fixed",
    base_link: str | None = None,
    joints: Sequence[str] | None = None,
    locked: Mapping[str, FloatLike] | Sequence[str] | None = None,
    frames: Mapping[str, tuple[str, Any]] | None = None,
    mimic: str = "reduce",
    package_dirs: Sequence[str | os.PathLike] = (),
    folder: Path | None = None,
    dtype: Any = None,
    gravity: FloatLike = GRAVITY,
) -> Model:
    """The model of a described robot; arguments as of `from_urdf`, `folder` is that of the file.

    Under `jit` too the numbers of the file are read and worked out while tracing; only `gravity` may be traced.
    """
    if root not in ROOTS:
        other = f" To start from link {root!r}, write base_link={root!r}." if root in robot.links else ""
        raise InputError(f"root: given {root!r}, wanted 'fixed' or 'floating'{suggestion(root, ROOTS)}.{other}")
    if mimic not in MIMIC:
        raise InputError(f"mimic: given {mimic!r}, wanted 'reduce' or 'independent'{suggestion(mimic, MIMIC)}.")
    dtype = float_dtype(dtype)
    if isinstance(gravity, tuple | list):
        gravity = [float(g) if isinstance(g, int) else g for g in gravity]
    gravity = check_shape("gravity", gravity, (3,), dtype=dtype).astype(dtype)
    with jax.ensure_compile_time_eval():
        return _build(
            robot, root, base_link, joints, locked, frames, mimic, Resolver(package_dirs, folder), dtype, gravity
        )


def _build(
    robot: Robot,
    root: str,
    base_link: str | None,
    joints: Sequence[str] | None,
    locked: Mapping[str, FloatLike] | Sequence[str] | None,
    frames: Mapping[str, tuple[str, Any]] | None,
    mimic: str,
    resolve: Resolver,
    dtype: Any,
    gravity: Array,
) -> Model:
    order = link_order(robot)
    if base_link is not None:
        robot = rerooted(robot, base_link)
    if frames:
        robot = with_frames(robot, _frame_poses(frames))
    if base_link is not None or frames:
        order = link_order(robot)
    movable = [joint for joint, _ in order if joint is not None and joint.kind != "fixed"]
    followers = find_followers(robot, movable) if mimic == "reduce" else {}
    moving, values = moving_joints(robot, order, root, joints, locked, followers)
    if mimic == "independent":
        _report_followers(robot, moving)
    placed = place_links(robot, order, moving, values, floating=root == "floating")
    if root == "floating":
        base = order[0][1]
        if sum(robot.links[name].mass for name, at in placed.items() if at.body == 0) == 0:
            warn(
                f"the body {base!r} behind the free-flyer has no mass; its mass matrix may be singular (is root='fixed' meant?)"
            )
    return _assemble(robot, moving, followers, placed, resolve, dtype, gravity)


def _report_followers(robot: Robot, moving: list[Joint]) -> None:
    followers = []
    for joint in moving:
        if joint.leader is not None:
            missing = ""
            if joint.leader not in robot.joints:
                missing = ", which does not exist" + suggestion(
                    joint.leader, [j for j in robot.joints if j != joint.name]
                )
            followers.append(f"{joint.name!r} (follows {joint.leader!r}{missing})")
    if followers:
        warn(f"mimic='independent': these joints move on their own unless they are locked: {', '.join(followers)}.")


def _frame_poses(frames: Mapping[str, tuple[str, Any]] | None) -> dict[str, tuple[str, np.ndarray]]:
    if frames is not None and not isinstance(frames, Mapping):
        raise InputError(f"frames: wanted a mapping from names to (link, pose), given {type(frames).__name__}.")
    result = {}
    for name, value in (frames or {}).items():
        if not (isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)):
            raise InputError(f"frames[{name!r}]: wanted (link, pose), given {value!r}.")
        result[name] = (value[0], pose_matrix(f"frames[{name!r}]", value[1]))
    return result


def pose_matrix(name: str, pose: Any) -> np.ndarray:
    """A pose as a NumPy matrix (4, 4), from an `SE3`, such a matrix, a position (3,) or None for the identity.

    **Raises:** `InputError` for another shape or a matrix that is no rigid motion.
    """
    if pose is None:
        return np.eye(4)
    array = known_numbers(name, pose.as_matrix() if isinstance(pose, SE3) else pose)
    matrix = np.eye(4)
    if array.shape == (3,):
        matrix[:3, 3] = array
    elif array.shape == (4, 4):
        matrix = array
    else:
        raise InputError(f"{name}: wanted an SE3, a matrix (4, 4) or a position (3,), given shape {array.shape}.")
    rotation = matrix[:3, :3]
    rigid = np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-5) and np.linalg.det(rotation) > 0
    if not (np.all(np.isfinite(matrix)) and rigid and np.array_equal(matrix[3], [0, 0, 0, 1])):
        raise InputError(f"{name}: wanted a rigid motion, given {array.tolist()}.")
    return matrix


def _assemble(
    robot: Robot,
    moving: list[Joint],
    followers: Mapping[str, Follower],
    placed: dict[str, Placed],
    resolve: Resolver,
    dtype: Any,
    gravity: Array,
) -> Model:
    n = len(moving)
    number = {joint.name: i for i, joint in enumerate(moving)}
    body_links = [joint.child for joint in moving]
    bodies = set(body_links)
    frames = body_links + [name for name in robot.links if name not in bodies]
    geometry, shape_poses, sizes, colors = [], [], [], []
    for name, link in robot.links.items():
        at = placed[name]
        for shape in link.shapes:
            geometry.append(ShapeInfo(shape.name, name, at.body, shape.kind, shape.role, resolve(shape.mesh)))
            shape_poses.append(at.pose @ shape.placement)
            sizes.append(shape.size)
            colors.append(shape.color)
    tree = Tree(
        joint_names=tuple(joint.name for joint in moving),
        joint_types=tuple(joint.kind for joint in moving),
        parents=tuple(-1 if not joint.parent else placed[joint.parent].body for joint in moving),
        body_names=tuple(body_links),
        frame_names=tuple(frames),
        frame_bodies=tuple(placed[name].body for name in frames),
        geometry=tuple(geometry),
        followers=tuple((i, number[followers[j.name].leader]) for i, j in enumerate(moving) if j.name in followers),
    )
    coupled = [followers[tree.joint_names[i]] for i, _ in tree.followers]
    sides = _sides(tree, moving, coupled)
    kinds, springs = [tree.joint_types[i] for i in tree.independent], any(side.stiffness for side in sides)
    joint_poses = [
        joint.placement if not joint.parent else placed[joint.parent].pose @ joint.placement for joint in moving
    ]
    carried: list[list[tuple[Link, np.ndarray]]] = [[] for _ in range(n)]
    for name, at in placed.items():
        if at.body >= 0:
            carried[at.body].append((robot.links[name], at.pose))
    inertias = [composite_inertia(parts) for parts in carried]

    def leaf(values: Any, *shape: int) -> Any:
        return jnp.asarray(np.asarray(values, dtype=dtype).reshape(shape))

    def poses(matrices: Any) -> SE3:
        stack = np.asarray(matrices, dtype=float).reshape(len(matrices), 4, 4)
        return SE3(leaf(stack[:, :3, :3], len(stack), 3, 3), leaf(stack[:, :3, 3], len(stack), 3))

    def coordinates(attribute: str, free: float) -> Any:
        # the coordinates of joints with several have no limits
        sizes = [tree.joint_nq[i] for i in tree.independent]
        values = [getattr(side, attribute) if size == 1 else free for side, size in zip(sides, sizes, strict=True)]
        return leaf(np.repeat(np.asarray(values, dtype=float), sizes), tree.nq)

    def velocities(attribute: str, of: Sequence[Any] = sides) -> Any:
        sizes = [tree.joint_nv[i] for i in tree.independent]
        return leaf(np.repeat(np.asarray([getattr(side, attribute) for side in of], dtype=float), sizes), tree.nv)

    return Model(
        tree=tree,
        joint_placement=poses(joint_poses),
        joint_axis=leaf([joint.axis for joint in moving], n, 3),
        inertia=SpatialInertia(
            leaf([mass for mass, _, _ in inertias], n),
            leaf([com for _, com, _ in inertias], n, 3),
            leaf([inertia for _, _, inertia in inertias], n, 3, 3),
        ),
        gravity=gravity,
        armature=velocities("armature"),
        damping=velocities("damping"),
        friction=velocities("friction"),
        lower=coordinates("lower", -np.inf),
        upper=coordinates("upper", np.inf),
        velocity_limit=velocities("velocity"),
        effort_limit=velocities("effort", [moving[i] for i in tree.independent]),
        frame_placement=poses([placed[name].pose for name in frames]),
        shape_placement=poses(shape_poses),
        shape_size=leaf(sizes, len(sizes), 3),
        shape_color=leaf(colors, len(colors), 4),
        follower_ratio=leaf([f.ratio for f in coupled], len(coupled)) if coupled else None,
        follower_offset=leaf([f.offset for f in coupled], len(coupled)) if coupled else None,
        stiffness=velocities("stiffness") if springs else None,
        spring_reference=leaf(np.concatenate([_rest(*pair) for pair in zip(kinds, sides, strict=True)]), tree.nq)
        if springs
        else None,
    )


def _rest(kind: str, side: Sides) -> np.ndarray:
    return neutral_of(kind) if side.rest is None else side.rest


def _sides(tree: Tree, moving: list[Joint], coupled: list[Follower]) -> list[Sides]:
    """Limits and friction of the independent joints, with their followers'."""
    step = {i: (leader, f.ratio, f.offset) for (i, leader), f in zip(tree.followers, coupled, strict=True)}
    behind: dict[int, list[tuple[Joint, float, float]]] = {i: [] for i in tree.independent}
    for i in step:
        at, ratio, offset = i, 1.0, 0.0
        while at in step:
            at, a, b = step[at]
            ratio, offset = ratio * a, ratio * b + offset
        behind[at].append((moving[i], ratio, offset))
    return [combined_sides(moving[i], behind[i]) for i in tree.independent]


def composite_inertia(parts: Sequence[tuple[Link, np.ndarray]]) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre of mass and inertia about it, in body axes, of links that are rigidly joined at the given poses
    (4, 4).
    """
    if len(parts) == 1 and np.array_equal(parts[0][1], np.eye(4)):
        link = parts[0][0]
        return link.mass, link.com, link.inertia
    mass = sum(link.mass for link, _ in parts)
    centers = [pose[:3, :3] @ link.com + pose[:3, 3] for link, pose in parts]
    com = np.zeros(3)  # stays there if the composite is massless
    for (link, _), center in zip(parts, centers, strict=True):
        com = com + (link.mass / mass * center if mass else 0.0)
    total = np.zeros((3, 3))
    for (link, pose), center in zip(parts, centers, strict=True):
        d = center - com
        rotated = pose[:3, :3] @ link.inertia @ pose[:3, :3].T
        total += rotated + link.mass * (d @ d * np.eye(3) - np.outer(d, d))
    return mass, com, (total + total.T) / 2
