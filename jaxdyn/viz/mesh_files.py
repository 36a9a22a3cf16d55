"""Meshes from STL, OBJ and COLLADA files, and a coarser version of a mesh.

Only what a picture needs is read: triangles, the colour of a material, the unit of length. Pictures on the surface (textures) are not.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np

from jaxdyn.errors import InputError


@dataclasses.dataclass(frozen=True)
class MeshPart:
    """Triangles of one colour.

    `vertices`: (n, 3) in the file's frame; `triangles`: (m, 3) indices; `color`: (r, g, b, a) in 0 .. 1, None where
    the file gives none; `y_up`: the file says that its y axis points up, which is not applied here.
    """

    vertices: np.ndarray
    triangles: np.ndarray
    color: tuple[float, float, float, float] | None = None
    y_up: bool = False


def read_mesh(path: str | Path) -> list[MeshPart]:
    """The parts of a mesh file, by its ending: `.stl` (binary or text), `.obj` (with `.mtl`), `.dae`.

    **Raises:** `InputError` if the file is not there, of another kind or broken.
    """
    path = Path(path)
    readers = {".stl": _read_stl, ".obj": _read_obj, ".dae": _read_dae}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"mesh {path.name!r}: wanted a file that ends in {', '.join(readers)}.")
    try:
        parts = [_tidy(part) for part in reader(path)]
    except InputError:
        raise
    except (OSError, ValueError, IndexError, KeyError, ElementTree.ParseError) as error:
        raise InputError(f"mesh {path.name!r} cannot be read: {error}") from None
    parts = [part for part in parts if len(part.triangles)]
    if not parts:
        raise InputError(f"mesh {path.name!r} holds no triangles.")
    return parts


def _tidy(part: MeshPart) -> MeshPart:
    """Equal vertices joined, empty triangles dropped."""
    vertices, triangles = (
        np.asarray(part.vertices, float).reshape(-1, 3),
        np.asarray(part.triangles, np.int64).reshape(-1, 3),
    )
    if triangles.size and (triangles.min() < 0 or triangles.max() >= len(vertices)):
        raise InputError(f"a triangle names vertex {int(triangles.max())}, but there are {len(vertices)}")
    if not np.isfinite(vertices).all():
        raise InputError("a vertex is not finite")
    unique, where = np.unique(vertices, axis=0, return_inverse=True)
    triangles = where.reshape(-1)[triangles]
    distinct = (
        (triangles[:, 0] != triangles[:, 1])
        & (triangles[:, 1] != triangles[:, 2])
        & (triangles[:, 2] != triangles[:, 0])
    )
    return dataclasses.replace(part, vertices=unique, triangles=triangles[distinct])


# STL


def _read_stl(path: Path) -> list[MeshPart]:
    content = path.read_bytes()
    count = int.from_bytes(content[80:84], "little") if len(content) >= 84 else -1
    if (
        count >= 0
        and len(content) >= 84 + 50 * count
        and not (content[:5] == b"solid" and len(content) != 84 + 50 * count)
    ):
        record = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
        corners = np.frombuffer(content, record, count, 84)["corners"].reshape(-1, 3)
    elif content.lstrip()[:5] == b"solid":
        numbers = re.findall(rb"vertex\s+(\S+)\s+(\S+)\s+(\S+)", content)
        corners = np.array(numbers, dtype="S").astype(float).reshape(-1, 3)
    else:
        raise InputError(
            f"mesh {path.name!r} is no STL file: neither 84 + 50 n bytes long nor text that starts with 'solid'."
        )
    return [MeshPart(corners, np.arange(len(corners) // 3 * 3).reshape(-1, 3))]


# OBJ


def _read_obj(path: Path) -> list[MeshPart]:
    vertices: list[list[float]] = []
    faces: dict[str, list[tuple[int, int, int]]] = {}
    colors: dict[str, tuple[float, float, float, float]] = {}
    material = ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            vertices.append([float(x) for x in words[1:4]])
        elif words[0] == "f":
            corners = [int(word.split("/")[0]) for word in words[1:]]
            corners = [i - 1 if i > 0 else len(vertices) + i for i in corners]
            fan = faces.setdefault(material, [])
            fan.extend((corners[0], b, c) for b, c in itertools.pairwise(corners))
        elif words[0] == "usemtl":
            material = " ".join(words[1:])
        elif words[0] == "mtllib":
            colors.update(_read_mtl(path.parent / " ".join(words[1:])))
    points = np.array(vertices).reshape(-1, 3)
    return [MeshPart(points, np.array(f), colors.get(name)) for name, f in faces.items()]


def _read_mtl(path: Path) -> dict[str, tuple[float, float, float, float]]:
    colors: dict[str, tuple[float, float, float, float]] = {}
    if path.is_file():
        name = ""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if words[:1] == ["newmtl"]:
                name = " ".join(words[1:])
            elif words[:1] == ["Kd"] and len(words) >= 4:
                colors[name] = (float(words[1]), float(words[2]), float(words[3]), 1.0)
    return colors


# COLLADA


class _Collada:
    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        if b"<!ENTITY" in content:
            raise InputError(f"mesh {path.name!r} defines entities, which are refused.")
        self.root = ElementTree.fromstring(content)
        for node in self.root.iter():
            node.tag = node.tag.rpartition("}")[2]
        self.ids = {node.get("id"): node for node in self.root.iter() if node.get("id")}
        unit = self.root.find("asset/unit")
        # the default of the format
        self.y_up = (self.root.findtext("asset/up_axis") or "Y_UP").strip() == "Y_UP"
        self.unit = float(unit.get("meter", "1")) if unit is not None else 1.0
        self.colors: dict[str, tuple[float, float, float, float] | None] = {}

    def target(self, node: ElementTree.Element, attribute: str = "url") -> ElementTree.Element | None:
        return self.ids.get(node.get(attribute, "").lstrip("#"))

    def color(self, name: str) -> tuple[float, float, float, float] | None:
        """Diffuse colour of a material, None for a texture."""
        if name not in self.colors:
            self.colors[name] = None
            link = self.ids[name].find("instance_effect") if name in self.ids else None
            effect = self.target(link) if link is not None else None
            color = effect.find(".//diffuse/color") if effect is not None else None
            if color is not None and color.text:
                r, g, b = [min(max(float(x), 0.0), 1.0) for x in color.text.split()[:3]]
                self.colors[name] = (r, g, b, 1.0)
        return self.colors[name]

    def scene(self) -> list[MeshPart]:
        start = self.root.find("scene/instance_visual_scene")
        scene = self.target(start) if start is not None else self.root.find("library_visual_scenes/visual_scene")
        parts: list[MeshPart] = []
        if scene is not None:
            for node in scene.findall("node"):
                self.node(node, np.diag([self.unit] * 3 + [1.0]), parts)
        return parts

    def node(self, node: ElementTree.Element, pose: np.ndarray, parts: list[MeshPart], depth: int = 0) -> None:
        if depth > 60:
            raise InputError("nodes nest deeper than 60")
        for child in node:
            values = (
                np.array((child.text or "").split(), dtype=float)
                if child.tag in ("matrix", "translate", "rotate", "scale")
                else None
            )
            if values is not None:
                pose = pose @ _transform(child.tag, values)
        for child in node:
            if child.tag == "node":
                self.node(child, pose, parts, depth + 1)
            elif child.tag == "instance_node" and (target := self.target(child)) is not None:
                self.node(target, pose, parts, depth + 1)
            elif child.tag == "instance_geometry" and (geometry := self.target(child)) is not None:
                materials = {
                    m.get("symbol", ""): m.get("target", "").lstrip("#") for m in child.iter("instance_material")
                }
                parts.extend(self.geometry(geometry, pose, materials))

    def geometry(self, geometry: ElementTree.Element, pose: np.ndarray, materials: dict[str, str]) -> list[MeshPart]:
        parts = []
        for kind in ("triangles", "polylist", "polygons"):
            for primitive in geometry.findall(f"mesh/{kind}"):
                inputs = primitive.findall("input")
                stride = 1 + max((int(i.get("offset", "0")) for i in inputs), default=0)
                source = next((i for i in inputs if i.get("semantic") == "VERTEX"), None)
                positions = self.positions(source) if source is not None else None
                if source is None or positions is None:
                    continue
                corners = [self.corners(p, stride, int(source.get("offset", "0"))) for p in primitive.findall("p")]
                if kind == "triangles":
                    triangles = (
                        np.concatenate([c[: len(c) // 3 * 3].reshape(-1, 3) for c in corners])
                        if corners
                        else np.zeros((0, 3), int)
                    )
                elif kind == "polylist":
                    counts = np.array((primitive.findtext("vcount") or "").split(), dtype=int)
                    triangles = _fans(corners[0] if corners else np.zeros(0, int), counts)
                else:
                    triangles = (
                        np.concatenate([_fans(c, np.array([len(c)])) for c in corners])
                        if corners
                        else np.zeros((0, 3), int)
                    )
                name = materials.get(primitive.get("material", ""), primitive.get("material", ""))
                parts.append(MeshPart(positions @ pose[:3, :3].T + pose[:3, 3], triangles, self.color(name), self.y_up))
        return parts

    def positions(self, vertex_input: ElementTree.Element) -> np.ndarray | None:
        vertices = self.target(vertex_input, "source")
        link = (
            None
            if vertices is None
            else next((i for i in vertices.findall("input") if i.get("semantic") == "POSITION"), None)
        )
        source = None if link is None else self.target(link, "source")
        text = None if source is None else source.findtext("float_array")
        return None if not text else np.array(text.split(), dtype=float).reshape(-1, 3)

    @staticmethod
    def corners(p: ElementTree.Element, stride: int, offset: int) -> np.ndarray:
        numbers = np.array((p.text or "").split(), dtype=int)
        return numbers[: len(numbers) // stride * stride].reshape(-1, stride)[:, offset]


def _fans(corners: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Triangles of polygons whose corners follow one another."""
    triangles, start = [], 0
    for count in counts:
        polygon = corners[start : start + count]
        triangles.extend((polygon[0], b, c) for b, c in itertools.pairwise(polygon))
        start += count
    return np.array(triangles, dtype=int).reshape(-1, 3)


def _transform(kind: str, values: np.ndarray) -> np.ndarray:
    if kind == "matrix":
        return values.reshape(4, 4)
    result = np.eye(4)
    if kind == "translate":
        result[:3, 3] = values
    elif kind == "scale":
        result[:3, :3] = np.diag(values)
    else:
        x, y, z = values[:3] / (np.linalg.norm(values[:3]) or 1.0)
        K = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        angle = np.deg2rad(values[3])
        result[:3, :3] += np.sin(angle) * K + (1 - np.cos(angle)) * K @ K
    return result


def _read_dae(path: Path) -> list[MeshPart]:
    return _Collada(path).scene()


# Fewer triangles


def decimate(part: MeshPart, most: int) -> MeshPart:
    """At most about `most` triangles: vertices that share a cell of a grid become one, at the place that lies nearest to the planes of the
    triangles around them (P. Lindstrom, Out-of-core simplification of large polygonal models, 2000).
    """
    if len(part.triangles) <= most:
        return part
    low = part.vertices.min(axis=0)
    corners = part.vertices[part.triangles]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    # a surface of area A crosses about A / h^2 cells of size h, and a cell gives about two triangles
    h = np.sqrt(2 * area / most) + 1e-12
    best = part
    for _ in range(8):
        best = _cluster(part, low, h)
        if len(best.triangles) <= most:
            break
        h *= max(1.05, np.sqrt(len(best.triangles) / most))
    return best


def _cluster(part: MeshPart, low: np.ndarray, h: float) -> MeshPart:
    cells = np.floor((part.vertices - low) / h).astype(np.int64)
    _, cell = np.unique(cells, axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    n = int(cell.max()) + 1
    corners = part.vertices[part.triangles]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    offset = np.einsum("ij,ij->i", normal, corners[:, 0])
    mean = np.zeros((n, 3))
    np.add.at(mean, cell, part.vertices)
    mean /= np.bincount(cell, minlength=n)[:, None]
    A, b = np.zeros((n, 3, 3)), np.zeros((n, 3))
    for k in range(3):
        where = cell[part.triangles[:, k]]
        np.add.at(A, where, normal[:, :, None] * normal[:, None, :])
        np.add.at(b, where, normal * offset[:, None])
    # pull towards the mean, which alone decides where the planes leave a direction open
    weight = 1e-3 * np.trace(A, axis1=1, axis2=2) + 1e-30
    A += weight[:, None, None] * np.eye(3)
    b += weight[:, None] * mean
    place = np.linalg.solve(A, b[..., None])[..., 0]
    place = np.clip(place, mean - h, mean + h)
    triangles = cell[part.triangles]
    distinct = (
        (triangles[:, 0] != triangles[:, 1])
        & (triangles[:, 1] != triangles[:, 2])
        & (triangles[:, 2] != triangles[:, 0])
    )
    triangles = triangles[distinct]
    _, first = np.unique(np.sort(triangles, axis=1), axis=0, return_index=True)
    return dataclasses.replace(part, vertices=place, triangles=triangles[np.sort(first)])
