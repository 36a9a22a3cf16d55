"""From links and joints to a `Model`: checks that they form a tree, freezes and lumps what does not move, numbers
what does.

All arithmetic is NumPy; each leaf goes to JAX once, at the end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import FloatLike, InputError, check_shape, suggestion, warn
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.model import Model, float_dtype
from jaxdyn.model.tree import JOINT_SIZES, ShapeInfo, Tree
from jaxdyn.model.urdf_order import Placed, link_order, moving_joints, place_links
from jaxdyn.model.urdf_parse import Joint, Link, Robot

GRAVITY = (0.0, 0.0, -9.80665)
ROOTS = ("fixed", "floating")


def build_model(
    robot: Robot,
    *,
    root: str,
    joints: Sequence[str] | None,
    locked: Mapping[str, FloatLike] | None,
    package_dirs: Sequence[str | os.PathLike],
    folder: Path | None,
    dtype: Any,
    gravity: FloatLike,
) -> Model:
    """The model of a parsed robot; arguments as of `from_urdf`, `folder` is that of the file."""
    if root not in ROOTS:
        raise InputError(f"root: given {root!r}, wanted 'fixed' or 'floating'{suggestion(root, ROOTS)}.")
    dtype = float_dtype(dtype)
    gravity = np.asarray(
        check_shape("gravity", list(map(float, gravity)) if isinstance(gravity, tuple | list) else gravity, (3,))
    )
    order = link_order(robot)
    moving, values = moving_joints(robot, order, root, joints, locked)
    _report_followers(robot, moving)
    placed = place_links(robot, order, moving, values, floating=root == "floating")
    if root == "floating":
        base = order[0][1]
        if sum(robot.links[name].mass for name, at in placed.items() if at.body == 0) == 0:
            warn(
                f"the body {base!r} behind the free-flyer has no mass; its mass matrix may be singular (is root='fixed' meant?)"
            )
    return _assemble(robot, moving, placed, Resolver(package_dirs, folder), dtype, gravity)


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
        warn(f"<mimic> is not solved; these joints move on their own unless they are locked: {', '.join(followers)}.")


class Resolver:
    """Turns the file names of meshes into paths where they can be found; elsewhere the name stays as it is in the
    file.
    """

    def __init__(self, package_dirs: Sequence[str | os.PathLike], folder: Path | None) -> None:
        if isinstance(package_dirs, str | os.PathLike):
            package_dirs = [package_dirs]
        self.package_dirs = [Path(d).expanduser() for d in package_dirs]
        self.folder = folder
        self.known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name and name not in self.known:
            found = next((path for path in self._candidates(name) if path.is_file()), None)
            self.known[name] = name if found is None else str(found)
        return self.known.get(name, "")

    def _candidates(self, name: str) -> list[Path]:
        scheme, separator, rest = name.partition("://")
        if not separator:
            path = Path(name)
            return [path] if path.is_absolute() else [self.folder / path] if self.folder else []
        if scheme == "file":
            return [Path(rest)]
        if scheme not in ("package", "model"):
            return []
        package, _, inside = rest.partition("/")
        return [d / rest for d in self.package_dirs] + [d / inside for d in self.package_dirs if d.name == package]


def _assemble(
    robot: Robot, moving: list[Joint], placed: dict[str, Placed], resolve: Resolver, dtype: Any, gravity: np.ndarray
) -> Model:
    n = len(moving)
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
    )
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
        sizes = [JOINT_SIZES[joint.kind][0] for joint in moving]
        values = [getattr(joint, attribute) if size == 1 else free for joint, size in zip(moving, sizes, strict=True)]
        return leaf(np.repeat(np.asarray(values, dtype=float), sizes), tree.nq)

    def velocities(attribute: str) -> Any:
        return leaf(
            np.repeat(np.asarray([getattr(joint, attribute) for joint in moving], dtype=float), tree.joint_nv), tree.nv
        )

    return Model(
        tree=tree,
        joint_placement=poses(joint_poses),
        joint_axis=leaf([joint.axis for joint in moving], n, 3),
        inertia=SpatialInertia(
            leaf([mass for mass, _, _ in inertias], n),
            leaf([com for _, com, _ in inertias], n, 3),
            leaf([inertia for _, _, inertia in inertias], n, 3, 3),
        ),
        gravity=leaf(gravity, 3),
        armature=leaf(np.zeros(tree.nv), tree.nv),
        damping=velocities("damping"),
        friction=velocities("friction"),
        lower=coordinates("lower", -np.inf),
        upper=coordinates("upper", np.inf),
        velocity_limit=velocities("velocity"),
        effort_limit=velocities("effort"),
        frame_placement=poses([placed[name].pose for name in frames]),
        shape_placement=poses(shape_poses),
        shape_size=leaf(sizes, len(sizes), 3),
        shape_color=leaf(colors, len(colors), 4),
    )


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
