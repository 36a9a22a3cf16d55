"""What a robot looks like: its visual shapes; where it has none, its collision shapes; where it has neither, a skeleton
from joint to joint.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from jaxdyn.errors import InputError, JaxdynError, listing, warn
from jaxdyn.model.model import Model
from jaxdyn.viz.mesh_files import MeshPart, decimate, read_mesh
from jaxdyn.viz.values import quaternion

# For one robot; enough for a smooth outline at the size of a screen.
MOST_TRIANGLES = 60_000
LIKENESSES = ("visual", "collision", "skeleton")
# Links and joints of a skeleton
BONE, JOINT = (0.58, 0.62, 0.68, 1.0), (0.20, 0.42, 0.78, 1.0)
# A material that the file leaves out; the first one is what the URDF reader puts there.
PLAIN = ((0.7, 0.7, 0.7), (0.74, 0.76, 0.79))


@dataclasses.dataclass(frozen=True)
class Shape:
    """A solid that moves with a body (-1: the world). `kind`, `size` as in `Model`; `mesh`: the part of a mesh, whose scale is `size`."""

    body: int
    kind: str
    position: np.ndarray
    rotation: np.ndarray
    size: np.ndarray
    color: tuple[float, ...]
    mesh: MeshPart | None = None

    def entry(self, meshes: list[MeshPart]) -> dict:
        """For the page; a mesh is appended to `meshes` unless it is there."""
        result = {
            "body": self.body,
            "kind": self.kind,
            "position": _rounded(self.position),
            "quaternion": _rounded(quaternion(self.rotation)),
            "size": _rounded(self.size),
            "color": _rounded(self.color, 3),
        }
        if self.mesh is not None:
            known = next((i for i, mesh in enumerate(meshes) if mesh is self.mesh), None)
            if known is None:
                known = len(meshes)
                meshes.append(self.mesh)
            result["mesh"] = known
        return result

    def corners(self) -> np.ndarray:
        """(8, 3) corners of a box around the shape, in the frame of the body."""
        a, b, c = np.abs(self.size)
        if self.mesh is not None:
            low, high = self.mesh.vertices.min(axis=0) * self.size, self.mesh.vertices.max(axis=0) * self.size
        else:
            half = {
                "box": (a / 2, b / 2, c / 2),
                "sphere": (a, a, a),
                "cylinder": (a, a, b / 2),
                "capsule": (a, a, b / 2 + a),
            }[self.kind]
            low, high = -np.array(half), np.array(half)
        choice = np.array([[i & 1, i >> 1 & 1, i >> 2 & 1] for i in range(8)])
        return np.where(choice, high, low) @ self.rotation.T + self.position


def _rounded(values: object, digits: int = 6) -> list[float]:
    return [round(float(x), digits) for x in np.asarray(values, float)]


class MeshLibrary:
    """Meshes by path, each read once, and their coarser versions, so that robots that share a mesh share its data in the page."""

    def __init__(self) -> None:
        self.read: dict[str, list[MeshPart]] = {}
        self.coarse: dict[tuple[int, int], MeshPart] = {}
        self.faults: dict[str, str] = {}

    def parts(self, path: str) -> list[MeshPart]:
        """The parts of a mesh; none if it cannot be read, which `report` says."""
        if path not in self.read:
            self.read[path] = []
            if "://" in path:
                self.faults[path] = "not found (package_dirs= of from_urdf says where packages are)"
            else:
                try:
                    self.read[path] = read_mesh(path)
                except JaxdynError as error:
                    self.faults[path] = str(error) if Path(path).is_file() else "not found"
        return self.read[path]

    def fewer(self, mesh: MeshPart, most: int) -> MeshPart:
        """The mesh with at most about `most` triangles."""
        if len(mesh.triangles) <= most:
            return mesh
        key = (id(mesh), most)
        if key not in self.coarse:
            self.coarse[key] = decimate(mesh, most)
        return self.coarse[key]

    def report(self) -> None:
        """Warns of the meshes that could not be read since the last call."""
        if self.faults:
            first, reason = next(iter(self.faults.items()))
            others = len(self.faults) - 1
            more = f"; and {others} more mesh{'es' * (others > 1)}" if others else ""
            warn(f"mesh {first!r}: {reason}{more}. Other shapes or a skeleton stand in for what cannot be drawn.")
            self.faults = {}


def robot_shapes(model: Model, likeness: str = "visual", library: MeshLibrary | None = None) -> list[Shape]:
    """The solids of a robot.

    **Arguments:** `model`; `likeness`: `"visual"`, `"collision"` or `"skeleton"`. A body whose shapes of that kind
    cannot be drawn gets those of the other kind, and if there are none, bones; `library`: meshes that were read before.

    **Warns:** `JaxdynWarning`, once, that names the mesh files that cannot be read.
    """
    if likeness not in LIKENESSES:
        raise InputError(f"shapes: wanted one of {listing(LIKENESSES)}, given {likeness!r}.")
    tree = model.tree
    order = {"visual": ("visual", "collision"), "collision": ("collision", "visual"), "skeleton": ()}[likeness]
    library = MeshLibrary() if library is None else library
    result: list[Shape] = []
    bare = set(range(tree.n_bodies))
    missing = set()
    for body in range(-1, tree.n_bodies):
        for role in order:
            mine = [i for i, info in enumerate(tree.geometry) if info.body == body and info.role == role]
            shapes = [shape for i in mine for shape in _shape(model, i, library)]
            missing |= {body} if any(tree.geometry[i].kind == "mesh" for i in mine) and not shapes else set()
            if shapes:
                result.extend(shapes)
                bare.discard(body)
                break
    library.report()
    result = _upright(model, result)
    if len(bare) < tree.n_bodies:
        # links without any shape are meant to be invisible, unless their mesh was not found
        bare &= missing
    result.extend(_skeleton(model, bare))
    return _few_triangles(result, library)


def _shape(model: Model, index: int, library: MeshLibrary) -> list[Shape]:
    info = model.tree.geometry[index]
    position = np.asarray(model.shape_placement.translation[index], float)
    rotation = np.asarray(model.shape_placement.rotation[index], float)
    size, color = (
        np.asarray(model.shape_size[index], float),
        tuple(float(x) for x in np.clip(np.asarray(model.shape_color[index]), 0, 1)),
    )
    plain = np.allclose(color[:3], PLAIN[0], atol=1e-6)
    color = (*PLAIN[1], color[3]) if plain else color
    if info.kind != "mesh":
        if info.kind == "capsule" and size[1] <= 0:
            return [Shape(info.body, "sphere", position, rotation, size, color)]
        empty = max(size) <= 0 or (
            info.kind in ("box", "cylinder") and min(size[:3] if info.kind == "box" else size[:2]) <= 0
        )
        return [] if empty else [Shape(info.body, info.kind, position, rotation, size, color)]
    # exporters write black where the mesh has colours of its own
    own = plain or max(color[:3]) == 0
    return [
        Shape(info.body, "mesh", position, rotation, size, part.color if own and part.color else color, part)
        for part in library.parts(info.mesh)
    ]


def _upright(model: Model, shapes: list[Shape]) -> list[Shape]:
    """Decides on the meshes whose files say that y points up. Most robot descriptions rely on viewers that ignore
    this, some on viewers that turn the mesh. The masses tell: turned, if that brings the meshes clearly nearer to the
    centres of mass of their bodies.
    """
    lying = [shape for shape in shapes if shape.mesh is not None and shape.mesh.y_up and shape.body >= 0]
    if not lying:
        return shapes
    turn = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    centers = np.asarray(model.inertia.com, float)

    def distance(turned: np.ndarray) -> float:
        middles = [
            s.rotation @ turned @ (s.mesh.vertices.mean(axis=0) * s.size) + s.position
            for s in lying
            if s.mesh is not None
        ]
        return float(sum(np.linalg.norm(m - centers[s.body]) for m, s in zip(middles, lying, strict=True)))

    if distance(turn) > 0.6 * distance(np.eye(3)):
        return shapes
    return [
        dataclasses.replace(s, rotation=s.rotation @ turn) if s.mesh is not None and s.mesh.y_up else s for s in shapes
    ]


def _skeleton(model: Model, bodies: set[int]) -> list[Shape]:
    """Capsules from the origin of a body to the joints that it carries, or to its centre of mass if it is a last one;
    a ball at each joint.
    """
    tree = model.tree
    joints = np.asarray(model.joint_placement.translation, float).reshape(-1, 3)
    centers = np.asarray(model.inertia.com, float).reshape(-1, 3)
    ends = {body: [joints[child] for child in tree.children[body]] or [centers[body]] for body in sorted(bodies)}
    lengths = [float(np.linalg.norm(end)) for points in ends.values() for end in points]
    lengths = [length for length in lengths if length > 1e-6]
    radius = 0.09 * float(np.median(lengths)) if lengths else 0.03
    result = []
    for body, points in ends.items():
        hinge = radius * (1.0 if tree.joint_types[body] == "floating" else 1.35)
        result.append(Shape(body, "sphere", np.zeros(3), np.eye(3), np.array([hinge, 0, 0]), JOINT))
        for end in points:
            length = float(np.linalg.norm(end))
            if length > radius:
                result.append(
                    Shape(body, "capsule", end / 2, turn_z_to(end / length), np.array([0.62 * radius, length, 0]), BONE)
                )
    return result


def turn_z_to(direction: np.ndarray) -> np.ndarray:
    """(3, 3) some rotation that takes the z axis to a unit vector."""
    x = np.cross([0.0, 1.0, 0.0] if abs(direction[1]) < 0.9 else [1.0, 0.0, 0.0], direction)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(direction, x), direction], axis=1)


def _few_triangles(shapes: list[Shape], library: MeshLibrary) -> list[Shape]:
    """Meshes coarse enough that the robot keeps to its budget; small ones keep their triangles."""
    unique = {id(shape.mesh): shape.mesh for shape in shapes if shape.mesh is not None}
    sizes = [len(mesh.triangles) for mesh in unique.values()]
    if sum(sizes) <= MOST_TRIANGLES:
        return shapes
    floor = 2 * MOST_TRIANGLES // (3 * len(sizes))
    spare = MOST_TRIANGLES - sum(min(n, floor) for n in sizes)
    share = min(spare / max(sum(max(n - floor, 0) for n in sizes), 1), 1.0)

    def coarse(mesh: MeshPart) -> MeshPart:
        return library.fewer(mesh, floor + int(max(len(mesh.triangles) - floor, 0) * share))

    return [shape if shape.mesh is None else dataclasses.replace(shape, mesh=coarse(shape.mesh)) for shape in shapes]


def typical_color(shapes: list[Shape]) -> tuple[float, ...]:
    """That of the largest shape."""
    if not shapes:
        return (0.5, 0.5, 0.5)
    return max(shapes, key=lambda s: float(np.ptp(s.corners(), axis=0).prod())).color[:3]
