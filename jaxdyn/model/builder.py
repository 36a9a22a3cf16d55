"""`ModelBuilder`: a robot described in code. It writes the elements of a URDF, so that they are read, checked and
refused as those of a file are.
"""

from __future__ import annotations

import dataclasses
import math
import xml.sax.saxutils
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdyn.errors import FloatLike, InputError, known_numbers, warn
from jaxdyn.model.build import GRAVITY, build_model, pose_matrix
from jaxdyn.model.model import Model
from jaxdyn.model.tree import JOINT_SIZES, QUATERNION_START, SHAPE_KINDS, SHAPE_ROLES
from jaxdyn.model.urdf_parse import parse_robot
from jaxdyn.model.urdf_xml import Element


class ModelBuilder:
    """A robot described link by link and joint by joint, in any order; `build` makes a `Model` of it.

        builder = ModelBuilder("pendulum")
        builder.add_link("base")
        builder.add_link("rod", mass=1.0, com=(0, 0, -0.5), inertia=(0.08, 0.08, 0.001))
        builder.add_joint("swing", "continuous", "base", "rod", axis=(0, 1, 0))
        model = builder.build()

    A placement is an `SE3`, a matrix (4, 4), or a position (3,); without one it is the identity. All is SI. What is
    wrong raises `URDFError` in `build`, with the words of the URDF reader (there are no lines to name); `to_urdf` is the
    file.
    """

    def __init__(self, name: str = "robot") -> None:
        self._root = Element("robot", {"name": name}, 0, "")
        # what has no place in a URDF
        self._unwritten: dict[str, dict[str, Any]] = {}

    def add_link(
        self,
        name: str,
        mass: FloatLike | None = None,
        com: FloatLike = (0.0, 0.0, 0.0),
        inertia: FloatLike | None = None,
    ) -> ModelBuilder:
        """Adds a link.

        **Arguments:** `mass`: kg, massless if left out; `com`: centre of mass (3,) in the link; `inertia`: about the
        centre of mass in axes of the link, the diagonal (3,) or the matrix (3, 3); zero if left out: a point mass.

        **Returns:** the builder itself, as every method here.
        """
        element = self._child(self._root, "link", {"name": name}, f"link {name!r}")
        if mass is None:
            if inertia is not None or np.any(known_numbers(f"add_link({name!r}): com", com)):
                raise InputError(f"add_link({name!r}): com and inertia need a mass.")
            return self
        inertial = self._child(element, "inertial", {})
        self._child(inertial, "origin", {"xyz": _text(com)})
        self._child(inertial, "mass", {"value": _text(mass)})
        matrix = np.zeros((3, 3)) if inertia is None else known_numbers(f"add_link({name!r}): inertia", inertia)
        if matrix.shape == (3,):
            matrix = np.diag(matrix)
        if matrix.shape != (3, 3) or not np.allclose(matrix, matrix.T, atol=1e-12, equal_nan=True):
            raise InputError(
                f"add_link({name!r}): inertia: wanted a diagonal (3,) or a symmetric (3, 3), given {inertia}."
            )
        entries = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
        self._child(inertial, "inertia", {key: _text(matrix[at]) for key, at in entries.items()})
        return self

    def add_joint(
        self,
        name: str,
        kind: str,
        parent: str,
        child: str,
        placement: Any = None,
        axis: FloatLike = (1.0, 0.0, 0.0),
        *,
        lower: FloatLike = -math.inf,
        upper: FloatLike = math.inf,
        effort: FloatLike = math.inf,
        velocity: FloatLike = math.inf,
        damping: FloatLike = 0.0,
        friction: FloatLike = 0.0,
        armature: FloatLike = 0.0,
        stiffness: FloatLike = 0.0,
        spring_reference: FloatLike | None = None,
        mimic: tuple[str, FloatLike, FloatLike] | None = None,
    ) -> ModelBuilder:
        """Adds a joint.

        **Arguments:** `kind`: "revolute", "continuous", "prismatic", "planar", "spherical", "floating" or "fixed";
        `parent`, `child`: links; `placement`: pose of the child in the parent at zero; `axis`: (3,) in the child, of
        any length but zero, normal of the plane if planar; limits, friction, and rotor inertia `armature` on the joint
        side; `stiffness`, `spring_reference`: of a spring at the joint, and the coordinates where it is at rest, a
        number or (nq,) of the joint, default neutral; `mimic`: leader, ratio, offset of a joint that follows another.
        """
        element = self._child(self._root, "joint", {"name": name, "type": kind}, f"joint {name!r}")
        self._origin(element, placement, f"add_joint({name!r}): placement")
        self._child(element, "parent", {"link": parent})
        self._child(element, "child", {"link": child})
        self._child(element, "axis", {"xyz": _text(axis)})
        sides = {"lower": lower, "upper": upper, "effort": effort, "velocity": velocity}
        self._child(element, "limit", {key: _text(value) for key, value in sides.items()})
        self._child(element, "dynamics", {"damping": _text(damping), "friction": _text(friction)})
        if mimic is not None:
            leader, ratio, offset = mimic
            self._child(element, "mimic", {"joint": leader, "multiplier": _text(ratio), "offset": _text(offset)})
        unwritten: dict[str, Any] = {}
        for key, value in (("armature", armature), ("stiffness", stiffness)):
            number = known_numbers(f"add_joint({name!r}): {key}", value)
            if number.ndim or not (math.isfinite(number) and number >= 0):
                raise InputError(f"add_joint({name!r}): {key}={value!r}: wanted a finite number, not negative.")
            unwritten[key] = float(number)
        unwritten["rest"] = None if spring_reference is None else _rest(name, kind, spring_reference)
        self._unwritten[name] = unwritten
        return self

    def add_frame(self, name: str, link: str, placement: Any = None) -> ModelBuilder:
        """Adds a named frame, fixed to a link: a massless link at a fixed joint `name_joint`."""
        return self.add_link(name).add_joint(f"{name}_joint", "fixed", link, name, placement)

    def add_shape(
        self,
        link: str,
        kind: str,
        size: FloatLike = (1.0, 1.0, 1.0),
        placement: Any = None,
        *,
        mesh: str | None = None,
        roles: Sequence[str] = SHAPE_ROLES,
        color: FloatLike | None = None,
        name: str = "",
    ) -> ModelBuilder:
        """Adds a shape to a link that has been added.

        **Arguments:** `kind`, `size`: "box" and full extents (3,); "sphere" and radius; "cylinder" or "capsule" and
        (radius, length), along z; "mesh" and scale (3,), with `mesh` the name of the file; `placement`: in the link;
        `roles`: "visual", "collision"; `color`: red, green, blue, opacity in 0 .. 1.
        """
        elements = [e for e in self._root.all("link") if e.attributes.get("name") == link]
        if not elements:
            raise InputError(f"add_shape: there is no link {link!r} yet; add it first.")
        if kind not in SHAPE_KINDS:
            raise InputError(f"add_shape({link!r}): kind: given {kind!r}, wanted one of {', '.join(SHAPE_KINDS)}.")
        values = np.atleast_1d(known_numbers(f"add_shape({link!r}): size", size))
        wanted = {"box": 3, "sphere": 1, "cylinder": 2, "capsule": 2, "mesh": 3}[kind]
        if values.shape != (wanted,):
            raise InputError(f"add_shape({link!r}): size of a {kind}: wanted {wanted} numbers, given {size}.")
        if kind in ("box", "mesh"):
            attributes = {"size" if kind == "box" else "scale": _text(values)}
        else:
            attributes = {k: _text(v) for k, v in zip(("radius", "length"), values, strict=False)}
        if kind == "mesh":
            attributes["filename"] = mesh or ""
        for role in roles:
            if role not in SHAPE_ROLES:
                raise InputError(f"add_shape({link!r}): roles: given {role!r}, wanted 'visual' or 'collision'.")
            element = self._child(elements[-1], role, {"name": name} if name else {})
            self._origin(element, placement, f"add_shape({link!r}): placement")
            self._child(self._child(element, "geometry", {}), kind, attributes)
            if color is not None:
                self._child(self._child(element, "material", {"name": ""}), "color", {"rgba": _text(color)})
        return self

    def build(
        self,
        *,
        root: str = "fixed",
        base_link: str | None = None,
        joints: Sequence[str] | None = None,
        locked: Mapping[str, FloatLike] | Sequence[str] | None = None,
        mimic: str = "reduce",
        package_dirs: Sequence[str] = (),
        dtype: Any = None,
        gravity: FloatLike = GRAVITY,
    ) -> Model:
        """The model; arguments, errors and warnings as of `from_urdf`."""
        robot = parse_robot(self._root)
        for name, values in self._unwritten.items():
            robot.joints[name] = dataclasses.replace(robot.joints[name], **values)
        return build_model(
            robot,
            root=root,
            base_link=base_link,
            joints=joints,
            locked=locked,
            mimic=mimic,
            package_dirs=package_dirs,
            dtype=dtype,
            gravity=gravity,
        )

    def to_urdf(self) -> str:
        """The robot as the text of a URDF file, which has no place for armatures and springs.

        **Warns:** of springs that are left out.
        """
        sprung = [repr(name) for name, values in self._unwritten.items() if values["stiffness"]]
        if sprung:
            warn(f"to_urdf: a URDF has no springs; those of these joints are left out: {', '.join(sprung)}.")
        lines = ['<?xml version="1.0"?>']

        def write(element: Element, indent: str) -> None:
            quoted = [f" {k}={xml.sax.saxutils.quoteattr(v)}" for k, v in element.attributes.items()]
            head = f"{indent}<{element.tag}{''.join(quoted)}"
            if not element.children:
                lines.append(head + "/>")
                return
            lines.append(head + ">")
            for child in element.children:
                write(child, indent + "  ")
            lines.append(f"{indent}</{element.tag}>")

        write(self._root, "")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _child(parent: Element, tag: str, attributes: dict[str, Any], owner: str | None = None) -> Element:
        for key, value in attributes.items():
            if not isinstance(value, str):
                raise InputError(f"<{tag}> {key}: wanted a name (a string), given {value!r}.")
        element = Element(tag, attributes, 0, parent.owner if owner is None else owner)
        parent.children.append(element)
        return element

    def _origin(self, element: Element, placement: Any, name: str) -> None:
        pose = pose_matrix(name, placement)
        self._child(element, "origin", {"xyz": _text(pose[:3, 3]), "rpy": _text(rpy_of(pose[:3, :3]))})


def _rest(name: str, kind: str, value: FloatLike) -> np.ndarray:
    """Coordinates of a joint where its spring is at rest."""
    label, size = f"add_joint({name!r}): spring_reference", JOINT_SIZES.get(kind, (None, None))[0]
    if size is None:  # fixed, or what `build` will refuse
        return np.zeros(0)
    values = np.atleast_1d(known_numbers(label, value))
    if values.shape != (size,) or not np.all(np.isfinite(values)):
        raise InputError(f"{label}: wanted {size} finite numbers for a {kind} joint, given {value!r}.")
    if kind in QUATERNION_START and not np.any(values[QUATERNION_START[kind] :]):
        raise InputError(f"{label}: the quaternion is zero and stands for no rotation.")
    return values.astype(float)


def _text(values: Any) -> str:
    """Numbers as a URDF writes them, to the last digit; anything else as it is, for the reader to refuse."""
    if isinstance(values, jax.Array):
        values = known_numbers("ModelBuilder", values)
    items = list(np.asarray(values).reshape(-1)) if not isinstance(values, str) else [values]
    try:
        return " ".join(repr(float(v)) for v in items)
    except (TypeError, ValueError):
        return " ".join(str(v) for v in items)


def rpy_of(rotation: np.ndarray) -> np.ndarray:
    """Roll, pitch, yaw of a rotation matrix, R = Rz(yaw) Ry(pitch) Rx(roll).

    The roll is that of Rz(-yaw) R, not of R alone: so the three give back R to rounding also at a pitch of 90 degrees,
    where yaw and roll turn about one axis.
    """
    r = rotation
    yaw = math.atan2(r[1, 0], r[0, 0])
    s, c = math.sin(yaw), math.cos(yaw)
    pitch = math.atan2(-r[2, 0], c * r[0, 0] + s * r[1, 0])
    roll = math.atan2(s * r[0, 2] - c * r[1, 2], c * r[1, 1] - s * r[0, 1])
    return np.array([roll, pitch, yaw])
