"""Where a robot touches the ground: points chosen from its shapes.

The rule, for a robot in its initial posture, upright on flat ground:

1. Every body (what moves with one joint) has a cloud of points: the corners of its collision boxes, the vertices of
   its collision meshes, points on the rims of cylinders, the lowest points of spheres and capsules. A body without
   collision shapes takes its visual ones; one without any (or whose meshes are not found) takes the origins of its
   frames.
2. *Supports* are the bodies whose lowest point is at most 1 % of the robot's height above the lowest point of all, at
   most eight of them. Of each, up to four of its lowest points are taken, the outermost ones. The contact bears the
   name of the link of that body whose origin is nearest to them.
3. So that a robot that falls does not sink in, the corners of its root body and of its heaviest one are added, and of
   each body at the end of a chain the point that is farthest from its joint.

Links given by name (`--contacts`) replace the supports; of each, the lowest points of its own shapes are taken, or its
origin if it has none.
"""

from __future__ import annotations

import dataclasses

import numpy as np

import jaxdyn
from jaxdyn.viz.shapes import MeshLibrary

MOST_SUPPORTS = 8
NEAR_LOWEST = 0.01


@dataclasses.dataclass(frozen=True)
class Spot:
    """Points that may touch the ground: `points` (n, 3) in axes of the link `frame`. `support`: it does so in the initial posture."""

    frame: str
    points: np.ndarray
    support: bool


@dataclasses.dataclass(frozen=True)
class Cloud:
    """Points of a body: in its frame, (n, 3), in the world, (n, 3), and the links that they belong to."""

    body: int
    local: np.ndarray
    world: np.ndarray
    links: tuple[str, ...]

    @property
    def low(self) -> float:
        """Height of the lowest point."""
        return float(self.world[:, 2].min())

    def of_link(self, name: str) -> Cloud:
        """The points of one link."""
        mine = np.array([link == name for link in self.links], bool)
        return Cloud(self.body, self.local[mine], self.world[mine], (name,) * int(mine.sum()))


def clouds(model: jaxdyn.Model, rotation: np.ndarray, translation: np.ndarray) -> list[Cloud]:
    """The clouds of all bodies, which are at (n_bodies, 3, 3), (n_bodies, 3)."""
    tree, library = model.tree, MeshLibrary()
    result = []
    for body in range(model.n_bodies):
        down = -rotation[body][2]
        parts: list[np.ndarray] = []
        links: list[str] = []
        for role in ("collision", "visual"):
            for i, info in enumerate(tree.geometry):
                if info.body == body and info.role == role:
                    parts.append(_shape_points(model, i, down, library))
                    links += [info.link] * len(parts[-1])
            if links:
                break
        if not links:
            links = [name for name, owner in zip(tree.frame_names, tree.frame_bodies, strict=True) if owner == body]
            parts = [
                np.asarray(model.frame_placement.translation[model.frame(name)], np.float64)[None] for name in links
            ]
        local = np.concatenate(parts)
        result.append(Cloud(body, local, local @ rotation[body].T + translation[body], tuple(links)))
    return result


def height(all_clouds: list[Cloud]) -> float:
    """Height of the robot, m."""
    if not all_clouds:
        return 1.0
    top = max(float(cloud.world[:, 2].max()) for cloud in all_clouds)
    return max(top - min(cloud.low for cloud in all_clouds), 1e-3)


def choose(
    model: jaxdyn.Model,
    rotation: np.ndarray,
    translation: np.ndarray,
    names: list[str] | None = None,
    *,
    falls: bool = True,
) -> list[Spot]:
    """The spots of a robot, by the rule of the module's text.

    **Arguments:** poses of the bodies in the initial posture; `names`: links to use as supports; `falls`: whether
    the points of rule 3 are added.

    **Raises:** `UnknownNameError` for a link that does not exist, `InputError` for one that does not move.
    """
    every = clouds(model, rotation, translation)
    size = height(every)
    if names is None:
        lowest = min((cloud.low for cloud in every), default=0.0)
        near = [c for c in every if c.low <= lowest + NEAR_LOWEST * size]
        near = sorted(sorted(near, key=lambda c: c.low)[:MOST_SUPPORTS], key=lambda c: c.body)
        spots = [_spot(model, c.body, _lowest(c, size), True) for c in near]
    else:
        spots = [_named(model, name, every, size) for name in names]
    bodies = [model.tree.frame_bodies[model.frame(spot.frame)] for spot in spots]
    if not falls or not every:
        return spots
    heaviest = int(np.argmax(np.asarray(model.inertia.mass)))
    for body in sorted({0, heaviest} - set(bodies)):
        local = every[body].local
        spots.append(_spot(model, body, local[_outermost(local, _CORNERS, 0.02 * size)], False))
    tips = [i for i, children in enumerate(model.tree.children) if not children and i not in {0, heaviest, *bodies}]
    for body in tips[:MOST_SUPPORTS]:
        local = every[body].local
        spots.append(_spot(model, body, local[[int(np.argmax(np.linalg.norm(local, axis=1)))]], False))
    return spots


def _spot(model: jaxdyn.Model, body: int, local: np.ndarray, support: bool, name: str | None = None) -> Spot:
    """A spot of points that are given in the frame of the body; named after the link that is nearest to them."""
    tree = model.tree
    origins = np.asarray(model.frame_placement.translation, np.float64)
    if name is None:
        own = [i for i, owner in enumerate(tree.frame_bodies) if owner == body]
        middle = local.mean(axis=0) if support else np.zeros(3)
        name = tree.frame_names[min(own, key=lambda i: float(np.linalg.norm(origins[i] - middle)))]
    i = model.frame(name)
    return Spot(name, (local - origins[i]) @ np.asarray(model.frame_placement.rotation[i], np.float64), support)


def _named(model: jaxdyn.Model, name: str, every: list[Cloud], size: float) -> Spot:
    i = model.frame(name)
    body = model.tree.frame_bodies[i]
    if body < 0:
        raise jaxdyn.InputError(f"--contacts: the link {name!r} is fixed to the world; no force there moves the robot.")
    own = every[body].of_link(name)
    local = _lowest(own, size) if len(own.local) else np.asarray(model.frame_placement.translation[i], np.float64)[None]
    return _spot(model, body, local, True, name)


def _lowest(cloud: Cloud, size: float) -> np.ndarray:
    """Up to four points, (n, 3) in the frame of the body: the outermost of the lowest ones."""
    z = cloud.world[:, 2]
    low = np.flatnonzero(z <= cloud.low + 0.5 * NEAR_LOWEST * size)
    at = _outermost(cloud.world[low], _DIAGONALS, 0.035 * size)
    return cloud.local[low[at]] if len(at) > 1 else cloud.local[[int(np.argmin(z))]]


_DIAGONALS = np.array([[1.0, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
_CORNERS = np.array([[x, y, z] for x in (1.0, -1) for y in (1.0, -1) for z in (1.0, -1)])


def _outermost(points: np.ndarray, directions: np.ndarray, apart: float) -> list[int]:
    """Indices of the points that are farthest along the directions and not nearer to each other than `apart`."""
    extent = np.ptp(points, axis=0)
    scaled = (points - points.mean(axis=0)) / np.where(extent > 1e-9, extent, 1)
    found: list[int] = []
    for direction in directions:
        i = int(np.argmax(scaled @ direction))
        if all(np.linalg.norm(points[i] - points[k]) > apart for k in found):
            found.append(i)
    return found


def _shape_points(model: jaxdyn.Model, index: int, down: np.ndarray, library: MeshLibrary) -> np.ndarray:
    """Points of a shape in the frame of its body, (n, 3); `down`: the world's downward direction in that frame."""
    info = model.tree.geometry[index]
    rotation = np.asarray(model.shape_placement.rotation[index], np.float64)
    translation = np.asarray(model.shape_placement.translation[index], np.float64)
    a, b, c = (float(x) for x in model.shape_size[index])
    toward = rotation.T @ down
    if info.kind == "box":
        points = 0.5 * np.array([a, b, c]) * _CORNERS
    elif info.kind == "sphere":
        points = a * toward[None]
    elif info.kind == "capsule":
        points = np.array([[0, 0, b / 2], [0, 0, -b / 2]]) + a * toward
    elif info.kind == "cylinder":
        angle = np.arange(8) * (np.pi / 4) + np.arctan2(toward[1], toward[0])
        rim = np.stack([a * np.cos(angle), a * np.sin(angle), np.full(8, b / 2)], axis=1)
        points = np.concatenate([rim, rim * [1, 1, -1]])
    else:
        parts = library.parts(info.mesh)
        points = np.concatenate([np.zeros((0, 3)), *(np.asarray(part.vertices, np.float64) for part in parts)])
        points = points * np.array([a, b, c])
    return points @ rotation.T + translation
