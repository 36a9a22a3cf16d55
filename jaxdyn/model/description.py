"""A robot as plain links and joints, before it is a `Model`: what every reader and the builder hand to
`build.build_model`. NumPy and strings only.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxdyn.errors import URDFError, suggestion, warn

DEFAULT_COLOR = (0.7, 0.7, 0.7, 1.0)
UNBOUNDED = (-math.inf, math.inf, math.inf, math.inf)
"""lower, upper, effort, velocity of a joint without limits."""


@dataclasses.dataclass(slots=True)
class Shape:
    """A visual or collision shape of a link; sizes as in `Model.shape_size`."""

    name: str
    role: str
    kind: str
    mesh: str
    placement: np.ndarray
    size: tuple[float, ...]
    color: tuple[float, ...]


@dataclasses.dataclass(slots=True)
class Link:
    """A link: inertia about the centre of mass in link axes (massless without `<inertial>`), and its shapes."""

    name: str
    line: int
    mass: float
    com: np.ndarray
    inertia: np.ndarray
    shapes: list[Shape]

    @staticmethod
    def massless(name: str) -> Link:
        """A link that only names a frame."""
        return Link(name, 0, 0.0, np.zeros(3), np.zeros((3, 3)), [])


@dataclasses.dataclass(slots=True)
class Joint:
    """A joint, fixed ones too. `placement`: pose (4, 4) of the child link in the parent link at zero. `parent` is ""
    for the free-flyer of a floating root. A joint with a `leader` stands at `ratio` times its coordinate plus
    `offset`. A spring of `stiffness` pulls to the coordinates `rest` (None: neutral).
    """

    name: str
    line: int
    kind: str
    parent: str
    child: str
    placement: np.ndarray
    axis: np.ndarray
    lower: float
    upper: float
    effort: float
    velocity: float
    damping: float = 0.0
    friction: float = 0.0
    leader: str | None = None
    ratio: float = 1.0
    offset: float = 0.0
    armature: float = 0.0
    stiffness: float = 0.0
    rest: np.ndarray | None = None

    @staticmethod
    def fixed(name: str, parent: str, child: str, placement: np.ndarray) -> Joint:
        """A joint that welds `child` to `parent`."""
        return Joint(name, 0, "fixed", parent, child, placement, np.array([1.0, 0.0, 0.0]), *UNBOUNDED)


@dataclasses.dataclass(slots=True)
class Robot:
    """The content of a file, in its order."""

    name: str
    links: dict[str, Link]
    joints: dict[str, Joint]


def at_line(line: int) -> str:
    """` (line 7)`, and nothing for what comes from no file."""
    return f" (line {line})" if line else ""


def unused_name(wanted: str, *taken: dict) -> str:
    """The name, with underscores appended until nothing has it."""
    while any(wanted in names for names in taken):
        wanted += "_"
    return wanted


def inverse_pose(pose: np.ndarray) -> np.ndarray:
    """Inverse of a rigid motion (4, 4)."""
    result = np.eye(4)
    result[:3, :3] = pose[:3, :3].T
    result[:3, 3] = -pose[:3, :3].T @ pose[:3, 3]
    return result


def with_frames(robot: Robot, frames: dict[str, tuple[str, np.ndarray]]) -> Robot:
    """The robot with named frames more: name -> (link, pose (4, 4) in the link).

    **Raises:** `URDFError` for a link that does not exist or a name that does.
    """
    links, joints = dict(robot.links), dict(robot.joints)
    for name, (link, pose) in frames.items():
        if name in links:
            raise URDFError(f"frames: {name!r} is the name of a link already.")
        if link not in links:
            raise URDFError(
                f"frames: {name!r} is to be fixed to link {link!r}, which does not exist{suggestion(link, list(links))}."
            )
        links[name] = Link.massless(name)
        joint = unused_name(f"{name}_joint", joints)
        joints[joint] = Joint.fixed(joint, link, name, pose)
    return Robot(robot.name, links, joints)


def reversed_rest(kind: str, rest):
    """Where the spring of a joint that points the other way is at rest, NumPy or JAX: the inverse rotation of a
    spherical joint. Other joints keep theirs (those with one coordinate) or lose their spring."""
    return rest * np.array([1, -1, -1, -1], rest.dtype) if kind == "spherical" else rest


def warn_of_lost_spring(joint: str, kind: str) -> None:
    """Says that a spring of another kind than `reversed_rest` knows is left out."""
    warn(f"the spring of joint {joint!r} ({kind}) has no like in the joint that points the other way and is left out.")


def rerooted(robot: Robot, base: str) -> Robot:
    """The same robot described from another base link: the joints between it and the old root point the other way.

    A joint with placement X and motion J(q) puts its child at X J(q) of its parent, so its parent at J(q)^-1 X^-1 of
    the child. Backwards it is a joint at the child's origin, with motion J(q)^-1: for one degree of freedom that of
    the opposite axis at the same q, for several of the same type at other coordinates. It carries a massless link
    `parent_at_joint`, to which the parent is fixed with placement X^-1.

    **Raises:** `URDFError` if there is no such link. **Warns:** of springs that cannot be told backwards.
    """
    if base not in robot.links:
        raise URDFError(f"base_link: link {base!r} does not exist{suggestion(base, list(robot.links))}.")
    above = {joint.child: joint for joint in robot.joints.values()}
    links, joints = dict(robot.links), dict(robot.joints)
    link = base
    while link in above:
        joint = above[link]
        back = inverse_pose(joint.placement)
        if joint.kind == "fixed":
            joints[joint.name] = dataclasses.replace(joint, parent=link, child=joint.parent, placement=back)
        else:
            at = unused_name(f"{joint.parent}_at_{joint.name}", links)
            links[at] = Link.massless(at)
            one = joint.kind in ("revolute", "continuous", "prismatic")
            rest = joint.rest if one or joint.rest is None else reversed_rest(joint.kind, joint.rest)
            soft = joint.stiffness != 0 and not one and joint.kind != "spherical"
            if soft:
                warn_of_lost_spring(joint.name, joint.kind)
            joints[joint.name] = dataclasses.replace(
                joint,
                parent=link,
                child=at,
                placement=np.eye(4),
                axis=-joint.axis if one else joint.axis,
                stiffness=0.0 if soft else joint.stiffness,
                rest=None if soft else rest,
            )
            weld = unused_name(f"{joint.parent}_behind_{joint.name}", joints)
            joints[weld] = Joint.fixed(weld, at, joint.parent, back)
        link = joint.parent
    return Robot(robot.name, links, joints)
