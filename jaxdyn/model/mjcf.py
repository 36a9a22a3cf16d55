"""Robots from MuJoCo: MJCF files and text, `MjSpec`, `MjModel`. The package `mujoco` (extra `mjcf`) compiles them; what
is read here is the compiled model, where defaults, includes and automatic inertias are settled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdyn.errors import FloatLike, InputError, warn
from jaxdyn.model.build import build_model
from jaxdyn.model.description import DEFAULT_COLOR, UNBOUNDED, Joint, Link, Robot, Shape, inverse_pose, unused_name
from jaxdyn.model.model import Model
from jaxdyn.model.tree import JOINT_SIZES

# the type in the compiled module of MuJoCo, which type checkers cannot look into
MjModel = Any

WORLD = "world"
_X = np.array([1.0, 0.0, 0.0])
# numbers of mjtJoint, mjtGeom, mjtTrn, mjtEq
_FREE, _BALL, _SLIDE, _HINGE = range(4)
_KINDS = {_FREE: "floating", _BALL: "spherical", _SLIDE: "prismatic", _HINGE: "revolute"}
_SPHERE, _CAPSULE, _CYLINDER, _BOX, _MESH = 2, 3, 5, 6, 7
_OTHER_GEOMS = {0: "plane", 1: "hfield", 4: "ellipsoid", 8: "sdf"}
_IN_JOINT, _IN_PARENT = 0, 1
_CONSTRAINTS = ("connect", "weld", "joint", "tendon", "flex", "flexvert", "flexstrain", "distance")
_JOINT_EQUALITY = 2


def from_mjcf(
    source: Any,
    *,
    joints: Sequence[str] | None = None,
    locked: Mapping[str, FloatLike] | Sequence[str] | None = None,
    frames: Mapping[str, tuple[str, Any]] | None = None,
    mimic: str = "independent",
    dtype: Any = None,
    gravity: FloatLike | None = None,
    assets: Mapping[str, bytes] | None = None,
) -> Model:
    """A robot from MJCF.

    Main argument: `source`: path of a file, XML text, `mujoco.MjSpec` or `mujoco.MjModel`.

    Other arguments:

    - `joints`, `locked`, `frames`, `dtype`: as of `from_urdf`.
    - `mimic`: `"reduce"` makes a joint that an equality couples linearly to another (`polycoef="a b"`) a follower,
      exactly; MuJoCo itself holds it by a soft constraint. `"independent"` leaves it out, with a warning.
    - `gravity`: default that of the file.
    - `assets`: contents of the files that the text refers to, by name.

    | MJCF | here |
    |---|---|
    | body, inertial | a link; without joints, a frame on the body before it |
    | free, ball, slide, hinge | floating, spherical, prismatic, revolute; several joints in a body: a chain of massless bodies |
    | `ref`, `pos` of a joint | taken into the placements: `q` is `qpos` |
    | site | a frame |
    | armature, damping, frictionloss, range, actuatorfrcrange | the leaves of that meaning |
    | stiffness, springref | `stiffness`, `spring_reference`: see `joint_spring_torque` |
    | actuator at a joint | its gear times its force (or control) range limits the effort; its armature times gear^2 adds up |
    | geom | a shape: "collision" if it collides, else "visual"; meshes by name of the file |

    In MuJoCo's `qvel` a free joint's linear velocity is in world axes: convert with `from_mujoco`. Tendons,
    equalities, springs of higher order, gravity compensation, fluids, unsupported shapes and actuators that act elsewhere are reported by
    name in one warning.

    **Raises:** `InputError` if MuJoCo is not installed or refuses the source. **Warns:** `JaxdynWarning`.
    """
    compiled = compiled_mjcf(source, assets)
    robot = _Reader(compiled, mimic).robot()
    return build_model(
        robot,
        joints=joints,
        locked=locked,
        frames=frames,
        mimic=mimic,
        dtype=dtype,
        gravity=np.asarray(compiled.opt.gravity, dtype=float) if gravity is None else gravity,
    )


def compiled_mjcf(source: Any, assets: Mapping[str, bytes] | None = None) -> MjModel:
    """The `MjModel` of what `from_mjcf` takes. Raises `InputError`."""
    try:
        import mujoco as package
    except ImportError:
        raise InputError("from_mjcf needs the package mujoco: pip install 'jaxdyn[mjcf]'.") from None
    mujoco: Any = package
    if isinstance(source, mujoco.MjModel):
        return source
    try:
        if isinstance(source, mujoco.MjSpec):
            return source.compile()
        if isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<"):
            return mujoco.MjModel.from_xml_string(source.lstrip("\ufeff \t\r\n"), dict(assets or {}))
        if isinstance(source, str | os.PathLike):
            return mujoco.MjModel.from_xml_path(os.fspath(source), dict(assets or {}))
    except (ValueError, mujoco.FatalError) as error:
        raise InputError(f"MuJoCo cannot read this model: {error}.") from None
    raise InputError(f"source: wanted a path, XML text, MjSpec or MjModel, given {type(source).__name__}.")


def joint_name(model: MjModel, index: int) -> str:
    """The name of a joint; one without is `body_free` or `body_joint`, with a number where a body has several."""
    name = model.joint(index).name
    if name:
        return name
    body = int(model.jnt_bodyid[index])
    if model.jnt_type[index] == _FREE:
        return f"{body_name(model, body)}_free"
    first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    return f"{body_name(model, body)}_joint" + (str(index - first + 1) if count > 1 else "")


def body_name(model: MjModel, index: int) -> str:
    """The name of a body, `body3` for one without."""
    return (model.body(index).name or f"body{index}") if index else WORLD


def _pose(position: np.ndarray, quaternion: np.ndarray | None = None) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, 3] = position
    if quaternion is not None:
        w, x, y, z = np.asarray(quaternion, dtype=float) / np.linalg.norm(quaternion)
        pose[:3, :3] = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    return pose


class _Reader:
    """One pass over a compiled model; `notes` collects what has no place in a `Model`."""

    def __init__(self, model: MjModel, mimic: str) -> None:
        self.model = model
        self.mimic = mimic
        self.notes: list[str] = []
        self.links: dict[str, Link] = {WORLD: Link.massless(WORLD)}
        self.joints: dict[str, Joint] = {}

    def robot(self) -> Robot:
        m = self.model
        efforts, rotors = self._actuators()
        for body in range(1, m.nbody):
            self._body(body, efforts, rotors)
        for site in range(m.nsite):
            name = unused_name(m.site(site).name or f"site{site}", self.links)
            self.links[name] = Link.massless(name)
            weld = unused_name(f"{name}_site", self.joints)
            parent = body_name(m, int(m.site_bodyid[site]))
            self.joints[weld] = Joint.fixed(weld, parent, name, _pose(m.site_pos[site], m.site_quat[site]))
        for geom in range(m.ngeom):
            self._geom(geom)
        self._equalities()
        self._others()
        if self.notes:
            warn("from_mjcf: not part of the model: " + "; ".join(self.notes) + ".")
        return Robot("", self.links, self.joints)

    def _body(self, body: int, efforts: np.ndarray, rotors: np.ndarray) -> None:
        m = self.model
        name, parent = body_name(m, body), body_name(m, int(m.body_parentid[body]))
        turn = _pose(np.zeros(3), m.body_iquat[body])[:3, :3]
        inertia = turn @ np.diag(m.body_inertia[body]) @ turn.T
        link = Link(name, 0, float(m.body_mass[body]), np.array(m.body_ipos[body], dtype=float), inertia, [])
        if name in self.links:
            raise InputError(f"from_mjcf: two bodies have the name {name!r}.")
        place = _pose(m.body_pos[body], m.body_quat[body])
        first, count = int(m.body_jntadr[body]), int(m.body_jntnum[body])
        above = parent
        for j in range(first, first + count):
            kind = int(m.jnt_type[j])
            joint = joint_name(m, j)
            anchor = np.zeros(3) if kind in (_FREE, _SLIDE) else np.array(m.jnt_pos[j], dtype=float)
            placement = np.eye(4) if kind == _FREE else place @ _pose(anchor)
            last = j == first + count - 1
            child = name if last and not np.any(anchor) else unused_name(f"{name}_at_{joint}", self.links)
            if child != name:
                self.links[child] = Link.massless(child)
            self.joints[joint] = self._joint(j, joint, above, child, placement, efforts[j], rotors[j])
            above, place = child, _pose(-anchor)
        self.links[name] = link
        if above != name:
            weld = unused_name(f"{name}_fixed", self.joints)
            self.joints[weld] = Joint.fixed(weld, above, name, place)

    def _joint(
        self, j: int, name: str, parent: str, child: str, placement: np.ndarray, effort: float, rotor: float
    ) -> Joint:
        m = self.model
        kind, dof, at = int(m.jnt_type[j]), int(m.jnt_dofadr[j]), int(m.jnt_qposadr[j])
        lower, upper = -math.inf, math.inf
        axis = _X
        if kind in (_SLIDE, _HINGE):
            axis = np.array(m.jnt_axis[j], dtype=float)
            axis = axis / np.linalg.norm(axis)
            ref = float(m.qpos0[at])  # the pose in the file is that at qpos0
            if m.jnt_limited[j]:
                lower, upper = map(float, m.jnt_range[j])
            back = np.eye(4)
            if kind == _SLIDE:
                back[:3, 3] = -ref * axis
            else:
                back = _pose(np.zeros(3), np.array([math.cos(ref / 2), *(-math.sin(ref / 2) * axis)]))
            placement = placement @ back if ref else placement
        elif m.jnt_limited[j]:
            self.notes.append(f"range of joint {name!r}")
        if np.any(getattr(m, "jnt_stiffnesspoly", np.zeros((j + 1, 1)))[j]):
            self.notes.append(f"spring of higher order of joint {name!r}")
        if np.any(getattr(m, "jnt_springyield", np.zeros(j + 1))[j]):
            self.notes.append(f"yield of the spring of joint {name!r}")
        if hasattr(m, "dof_dampingpoly") and np.any(m.dof_dampingpoly[dof]):
            self.notes.append(f"damping of higher order of joint {name!r}")
        return Joint(
            name,
            0,
            _KINDS[kind],
            parent,
            child,
            placement,
            axis,
            lower,
            upper,
            float(effort),
            math.inf,
            float(m.dof_damping[dof]),
            float(m.dof_frictionloss[dof]),
            armature=float(m.dof_armature[dof]) + float(rotor),
            stiffness=float(m.jnt_stiffness[j]),
            rest=np.array(m.qpos_spring[at : at + JOINT_SIZES[_KINDS[kind]][0]], dtype=float),
        )

    def _actuators(self) -> tuple[np.ndarray, np.ndarray]:
        """Effort limits and rotor inertias that the actuators give the joints."""
        m = self.model
        sums, rotors = np.zeros(m.njnt), np.zeros(m.njnt)
        driven = np.zeros(m.njnt, dtype=bool)
        armature = getattr(m, "actuator_armature", np.zeros(m.nu))
        elsewhere = []
        for a in range(m.nu):
            j = int(m.actuator_trnid[a, 0])
            one = m.actuator_trntype[a] in (_IN_JOINT, _IN_PARENT) and m.jnt_type[j] in (_SLIDE, _HINGE)
            if not one:
                elsewhere.append(repr(m.actuator(a).name or f"actuator{a}"))
                continue
            gear = abs(float(m.actuator_gear[a, 0]))
            sums[j] += gear * _largest_force(m, a)
            rotors[j] += gear**2 * float(armature[a])
            driven[j] = True
        if elsewhere:
            self.notes.append(f"actuators that do not act on one hinge or slide: {', '.join(elsewhere)}")
        efforts = np.where(driven, sums, np.inf)
        for j in range(m.njnt):
            if m.jnt_actfrclimited[j]:
                efforts[j] = min(efforts[j], float(np.max(np.abs(m.jnt_actfrcrange[j]))))
        return efforts, rotors

    def _geom(self, geom: int) -> None:
        m = self.model
        body, kind, size = body_name(m, int(m.geom_bodyid[geom])), int(m.geom_type[geom]), m.geom_size[geom]
        name = m.geom(geom).name
        pose = _pose(m.geom_pos[geom], m.geom_quat[geom])
        mesh = ""
        if kind == _SPHERE:
            shape, sizes = "sphere", (float(size[0]), 0.0, 0.0)
        elif kind in (_CAPSULE, _CYLINDER):
            shape, sizes = "capsule" if kind == _CAPSULE else "cylinder", (float(size[0]), 2 * float(size[1]), 0.0)
        elif kind == _BOX:
            shape, sizes = "box", tuple(2 * float(s) for s in size)
        elif kind == _MESH:
            i = int(m.geom_dataid[geom])
            shape, sizes, mesh = "mesh", tuple(map(float, m.mesh_scale[i])), _mesh_file(m, i)
            # the compiler moves a mesh to its centre and main axes; back to the axes of the file
            pose = pose @ inverse_pose(_pose(m.mesh_pos[i], m.mesh_quat[i]))
        else:
            self.notes.append(f"{_OTHER_GEOMS.get(kind, 'geom')} {name or geom!r} of {body!r}")
            return
        role = "collision" if m.geom_contype[geom] or m.geom_conaffinity[geom] else "visual"
        material = int(m.geom_matid[geom])
        color = m.mat_rgba[material] if material >= 0 else m.geom_rgba[geom]
        rgba = tuple(map(float, color)) if len(color) == 4 else DEFAULT_COLOR
        self.links[body].shapes.append(Shape(name, role, shape, mesh, pose, sizes, rgba))

    def _equalities(self) -> None:
        m = self.model
        for e in range(m.neq):
            kind, name = int(m.eq_type[e]), m.equality(e).name
            label = f"equality {_CONSTRAINTS[kind] if kind < len(_CONSTRAINTS) else kind} {name or e!r}"
            one, two = int(m.eq_obj1id[e]), int(m.eq_obj2id[e])
            linear = kind == _JOINT_EQUALITY and not np.any(m.eq_data[e, 2:5])
            if not (linear and self.mimic == "reduce" and m.eq_active0[e]):
                self.notes.append(label if m.eq_active0[e] else f"{label} (inactive)")
                continue
            # y - y0 = a + b (x - x0), without a second joint y - y0 = a
            a, b = map(float, m.eq_data[e, :2])
            y0 = float(m.qpos0[m.jnt_qposadr[one]])
            follower = self.joints[joint_name(m, one)]
            if two < 0:
                follower.leader, follower.ratio, follower.offset = WORLD_JOINT, 0.0, y0 + a
                self.joints.setdefault(WORLD_JOINT, _world_joint(self.links))
            else:
                follower.leader, follower.ratio = joint_name(m, two), b
                follower.offset = y0 + a - b * float(m.qpos0[m.jnt_qposadr[two]])

    def _others(self) -> None:
        m = self.model
        for count, what in (
            ("ntendon", "tendons"),
            ("nflex", "flexible bodies"),
            ("nplugin", "plugins"),
            ("nmocap", "motion of mocap bodies"),
        ):
            if getattr(m, count, 0):
                self.notes.append(f"{getattr(m, count)} {what}")
        lifted = [repr(body_name(m, b)) for b in range(1, m.nbody) if m.body_gravcomp[b]]
        if lifted:
            self.notes.append(f"gravity compensation of {', '.join(lifted)}")
        if m.opt.density or m.opt.viscosity:
            self.notes.append("forces of the surrounding fluid")


WORLD_JOINT = "world_joint"


def _world_joint(links: dict[str, Link]) -> Joint:
    """A fixed joint for what an equality holds at a constant to follow."""
    name = unused_name("world_frame", links)
    links[name] = Link.massless(name)
    return Joint(WORLD_JOINT, 0, "fixed", WORLD, name, np.eye(4), _X, *UNBOUNDED)


def _largest_force(m: MjModel, a: int) -> float:
    """Largest force of an actuator: its force range, or that of a plain motor's control."""
    if m.actuator_forcelimited[a]:
        return float(np.max(np.abs(m.actuator_forcerange[a])))
    plain = int(m.actuator_gaintype[a]) == 0 and int(m.actuator_biastype[a]) == 0
    if plain and m.actuator_ctrllimited[a]:
        return abs(float(m.actuator_gainprm[a, 0])) * float(np.max(np.abs(m.actuator_ctrlrange[a])))
    return math.inf


def _mesh_file(m: MjModel, mesh: int) -> str:
    start = int(m.mesh_pathadr[mesh])
    if start < 0:
        return m.mesh(mesh).name
    return bytes(m.paths[start:]).split(b"\0", 1)[0].decode(errors="replace")
