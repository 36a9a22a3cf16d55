"""From XML elements to plain links and joints: the meaning and the defaults of each element of URDF.

Sources: the URDF pages of ROS (wiki.ros.org/urdf/XML: link, joint, model). Read on purpose by nobody here:
`<transmission>`, `<gazebo>`, `<sensor>`, `<safety_controller>`, `<calibration>` and elements unknown to URDF; they
say nothing about a rigid body. An unknown element or attribute that looks like a misspelling of a known one is
reported.
"""

from __future__ import annotations

import math

import numpy as np

from jaxdyn.errors import URDFError, listing, nearest, suggestion, warn
from jaxdyn.model.description import DEFAULT_COLOR, UNBOUNDED, Joint, Link, Robot, Shape, at_line
from jaxdyn.model.urdf_xml import Element

# type in the file -> type in Tree
JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "floating", "planar", "spherical")

_KNOWN = {
    "robot": ("link", "joint", "material", "transmission", "gazebo", "sensor"),
    "link": ("inertial", "visual", "collision", "sensor"),
    "joint": ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic", "calibration", "safety_controller"),
    "inertial": ("origin", "mass", "inertia"),
    "visual": ("origin", "geometry", "material"),
    "collision": ("origin", "geometry", "material"),
}
# how alike a misspelling is: gear_velocity beside velocity is none
_SIMILAR = 0.8
_ATTRIBUTES = {
    "origin": ("xyz", "rpy", "quat_xyzw"),
    "axis": ("xyz",),
    "limit": ("lower", "upper", "effort", "velocity"),
    "dynamics": ("damping", "friction"),
    "mimic": ("joint", "multiplier", "offset"),
}


def parse_robot(root: Element) -> Robot:
    """Links and joints of the `<robot>` element. Raises `URDFError`; collects like remarks into one `JaxdynWarning`
    each.
    """
    notes = _Notes()
    _spelling(root, notes)
    materials = _materials(root)
    links: dict[str, Link] = {}
    joints: dict[str, Joint] = {}
    for element in root.children:
        if element.tag == "link":
            link = _link(element, materials, notes)
            if link.name in links:
                raise URDFError(f"two links have the name {link.name!r}{_lines(links[link.name], link)}.")
            links[link.name] = link
        elif element.tag == "joint":
            joint = _joint(element, notes)
            if joint.name in joints:
                raise URDFError(f"two joints have the name {joint.name!r}{_lines(joints[joint.name], joint)}.")
            joints[joint.name] = joint
    if not links:
        other = nearest("link", [child.tag for child in root.children], 1)
        hint = f"; is <{other[0]}> meant? Tags are written in lower case" if other else ""
        raise URDFError(f"the robot {root.text('name', '')!r} has no <link>{hint}.")
    notes.issue()
    return Robot(root.text("name", ""), links, joints)


def _lines(first: Link | Joint, second: Link | Joint) -> str:
    return f" (lines {first.line} and {second.line})" if first.line else ""


class _Notes:
    """Remarks of one kind are issued as one warning, so that a robot of forty joints does not print forty lines."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str]] = {}

    def add(self, kind: str, item: str) -> None:
        self.kinds.setdefault(kind, []).append(item)

    def issue(self) -> None:
        for kind, items in self.kinds.items():
            warn(f"{kind}: {', '.join(items)}.")


def _spelling(element: Element, notes: _Notes) -> None:
    known = _KNOWN.get(element.tag, ())
    attributes = _ATTRIBUTES.get(element.tag, ())
    for child in element.children if known else ():
        if child.tag in known:
            _spelling(child, notes)
        elif child.tag in _KNOWN["robot"][:2] and element.tag != "robot":
            notes.add("elements that belong directly into <robot> are ignored elsewhere", child.where)
        elif close := nearest(child.tag, known, 1, _SIMILAR):
            notes.add("unknown elements are ignored", f"{child.where}, perhaps meant as <{close[0]}>")
    for attribute in element.attributes if attributes else ():
        if attribute not in attributes and (close := nearest(attribute, attributes, 1, _SIMILAR)):
            notes.add(
                "unknown attributes are ignored",
                f"{element.where} {attribute}={element.attributes[attribute]!r}, perhaps meant as {close[0]!r}",
            )


def rotation_from_rpy(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """R = Rz(yaw) Ry(pitch) Rx(roll), with the plain library functions: NumPy is slow on scalars."""
    cr, sr, cp, sp, cy, sy = (
        math.cos(roll),
        math.sin(roll),
        math.cos(pitch),
        math.sin(pitch),
        math.cos(yaw),
        math.sin(yaw),
    )
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def _origin(element: Element) -> np.ndarray:
    """Pose (4, 4) of `<origin>`, identity where it or a part of it is absent."""
    pose = np.eye(4)
    origin = element.one("origin")
    if origin is not None:
        pose[:3, 3] = origin.numbers("xyz", 3, (0.0, 0.0, 0.0))
        rpy = origin.numbers("rpy", 3, (0.0, 0.0, 0.0))
        if "quat_xyzw" in origin.attributes:
            if "rpy" in origin.attributes:
                raise URDFError(f"{origin.where} has both rpy and quat_xyzw, one is meant.")
            pose[:3, :3] = _rotation_from_quaternion(origin)
        elif any(rpy):
            pose[:3, :3] = rotation_from_rpy(*rpy)
    return pose


def _rotation_from_quaternion(origin: Element) -> np.ndarray:
    """Since version 1.2 of the format an origin may turn by a quaternion."""
    values = origin.numbers("quat_xyzw", 4)
    length = math.hypot(*values)
    if length == 0:
        raise URDFError(f"{origin.where}: quat_xyzw={origin.text('quat_xyzw')!r}: zero stands for no rotation.")
    x, y, z, w = (value / length for value in values)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _link(element: Element, materials: dict[str, tuple], notes: _Notes) -> Link:
    name = element.name()
    mass, com, inertia = 0.0, np.zeros(3), np.zeros((3, 3))
    inertial = element.one("inertial")
    if inertial is not None:
        pose = _origin(inertial)
        mass_element = inertial.need("mass")
        mass = mass_element.number("value")
        if mass < 0:
            raise URDFError(f"{mass_element.where}: value={mass_element.text('value')!r}: a mass is not negative.")
        tensor = inertial.need("inertia")
        xx, xy, xz, yy, yz, zz = (tensor.number(a) for a in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
        inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        moments = np.linalg.eigvalsh(inertia)
        if moments[0] < -1e-9 * np.max(np.abs(moments)):
            notes.add("links have negative moments of inertia, as no body has", repr(name))
        rotation = pose[:3, :3]
        inertia = rotation @ inertia @ rotation.T
        inertia = (inertia + inertia.T) / 2
        com = pose[:3, 3].copy()
    shapes = []
    for role in ("visual", "collision"):
        for child in element.all(role):
            shape = _shape(child, role, materials, notes)
            if shape is not None:
                shapes.append(shape)
    return Link(name, element.line, mass, com, inertia, shapes)


def _shape(element: Element, role: str, materials: dict[str, tuple], notes: _Notes) -> Shape | None:
    name = element.text("name", "")
    geometry = element.one("geometry")
    label = f"{element.owner} {role} {name!r}{at_line(element.line)}"
    if geometry is None or not geometry.children:
        notes.add("shapes without geometry are left out", label)
        return None
    solid = geometry.children[0]
    if len(geometry.children) > 1:
        notes.add("only the first shape of a <geometry> is read", label)
    mesh, kind = "", solid.tag
    if kind == "box":
        size = tuple(solid.numbers("size", 3))
    elif kind == "sphere":
        size = (solid.number("radius"), 0.0, 0.0)
    elif kind in ("cylinder", "capsule"):
        size = (solid.number("radius"), solid.number("length"), 0.0)
    elif kind == "mesh":
        size = tuple(solid.numbers("scale", 3, (1.0, 1.0, 1.0)))
        mesh = solid.name("filename")
    else:
        notes.add("shapes of unknown geometry are left out", f"{label} <{kind}>")
        return None
    if kind != "mesh" and min(size) < 0:
        raise URDFError(f"{solid.where}: a size is not negative, given {size}.")
    color = DEFAULT_COLOR
    material = element.one("material")
    if material is not None:
        color = _color(material) or materials.get(material.text("name", ""), DEFAULT_COLOR)
        if not all(0 <= part <= 1 for part in color):
            notes.add("colours outside of 0 .. 1 are clipped", label)
            color = tuple(min(max(part, 0.0), 1.0) for part in color)
    return Shape(name, role, kind, mesh, _origin(element), size, color)


def _color(material: Element) -> tuple | None:
    color = material.one("color")
    return None if color is None else tuple(color.numbers("rgba", 4))


def _materials(root: Element) -> dict[str, tuple]:
    """Colours by name: those of the robot, and those that a shape defines on the way."""
    found: dict[str, tuple] = {}
    for element in root.all("material"):
        if (color := _color(element)) is not None:
            found[element.text("name", "")] = color
    for link in root.all("link"):
        for shape in link.children:
            if shape.tag in ("visual", "collision") and (material := shape.one("material")) is not None:
                if (color := _color(material)) is not None:
                    found.setdefault(material.text("name", ""), color)
    return found


def _joint(element: Element, notes: _Notes) -> Joint:
    name = element.name()
    kind = element.text("type")
    if kind not in JOINT_TYPES:
        raise URDFError(
            f"{element.where}: unknown joint type {kind!r}{suggestion(kind, JOINT_TYPES)} (known: {listing(JOINT_TYPES)})."
        )
    parent, child = element.need("parent").name("link"), element.need("child").name("link")
    axis = np.array([1.0, 0.0, 0.0])
    axis_element = element.one("axis")
    if axis_element is not None and kind not in ("fixed", "floating", "spherical"):
        axis = np.array(axis_element.numbers("xyz", 3, (1.0, 0.0, 0.0)))
        length = math.hypot(*axis)
        if length == 0:
            raise URDFError(
                f"{axis_element.where}: xyz={axis_element.text('xyz')!r}: an axis of length zero has no direction."
            )
        axis = axis / length
    lower, upper, effort, velocity = _limits(element, name, kind, notes)
    damping = friction = 0.0
    dynamics = element.one("dynamics")
    if dynamics is not None:
        damping, friction = dynamics.number("damping", 0.0), dynamics.number("friction", 0.0)
        if min(damping, friction) < 0 and kind != "fixed":
            notes.add("negative damping or friction feeds energy into the joint", repr(name))
    leader, ratio, offset = None, 1.0, 0.0
    mimic = element.one("mimic")
    if mimic is not None:
        leader = mimic.name("joint")
        ratio, offset = mimic.number("multiplier", 1.0), mimic.number("offset", 0.0)
    return Joint(
        name,
        element.line,
        kind,
        parent,
        child,
        _origin(element),
        axis,
        lower,
        upper,
        effort,
        velocity,
        damping,
        friction,
        leader,
        ratio,
        offset,
    )


def _limits(element: Element, name: str, kind: str, notes: _Notes) -> tuple[float, float, float, float]:
    """lower, upper, effort, velocity. What is missing is unbounded, and said so where URDF requires it."""
    free = UNBOUNDED
    limit = element.one("limit")
    bounded = kind in ("revolute", "prismatic")
    if limit is None:
        if bounded:
            notes.add("joints without <limit> are taken as unbounded", repr(name))
        return free
    values, missing = [], []
    for attribute, default in zip(("lower", "upper", "effort", "velocity"), free, strict=True):
        if attribute in limit.attributes:
            values.append(limit.number(attribute, infinite=True))
            continue
        values.append(default)
        if bounded or (kind == "continuous" and attribute in ("effort", "velocity")):
            missing.append(attribute)
    if missing:
        notes.add("joints are taken as unbounded in what their <limit> lacks", f"{name!r} ({', '.join(missing)})")
    lower, upper, effort, velocity = values
    if not bounded:
        lower, upper = free[:2]
    if kind in ("floating", "planar", "spherical"):
        effort = velocity = math.inf  # one number cannot bound both metres and radians
    if min(effort, velocity) < 0:
        notes.add("limits of effort and velocity are magnitudes, negative ones lose their sign", repr(name))
        effort, velocity = abs(effort), abs(velocity)
    if lower > upper:
        notes.add("limits with lower > upper are exchanged", f"{name!r} (lower {lower:g}, upper {upper:g})")
        lower, upper = upper, lower
    return lower, upper, effort, velocity
