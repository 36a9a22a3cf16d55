"""Robots from URDF: `from_urdf` for any file, `load` also for the robots that come with the library."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdyn.errors import FloatLike, UnknownNameError, listing, nearest, suggestion
from jaxdyn.model.build import GRAVITY, build_model
from jaxdyn.model.model import Model
from jaxdyn.model.urdf_parse import parse_robot
from jaxdyn.model.urdf_xml import parse_xml, read_source

ROBOTS = Path(__file__).parent / "robots"


def from_urdf(
    path_or_text: str | bytes | os.PathLike,
    *,
    root: str = "fixed",
    base_link: str | None = None,
    joints: Sequence[str] | None = None,
    locked: Mapping[str, FloatLike] | Sequence[str] | None = None,
    frames: Mapping[str, tuple[str, Any]] | None = None,
    mimic: str = "reduce",
    package_dirs: Sequence[str | os.PathLike] = (),
    dtype: Any = None,
    gravity: FloatLike = GRAVITY,
) -> Model:
    """A robot from a URDF file or from XML text.

    Main argument: `path_or_text`: path, XML text or XML as bytes.

    Other arguments:

    - `root`: `"fixed"` welds the root link to the world, `"floating"` puts a free-flyer joint `root_joint` before it.
    - `base_link`: the link to take as root instead of the file's. Joints between the two point the other way: those
      with one degree of freedom keep the meaning of their coordinate, those with several get that of the inverse
      motion. Such a joint carries a body `link_at_joint`, the link itself is a frame on it.
    - `joints`: the joints to keep, all others are frozen. They are numbered in the given order, in which a joint must
      come after those between it and the root. Without it: parents first, depth first, in the order of the file.
    - `locked`: joints to freeze, and the value at which: a number, or the coordinates of a joint with several; or
      names alone, for joints at zero. A
      joint that is frozen for not being in `joints` stands at its value here, else at zero. Links behind a frozen
      joint become part of the body before it, exactly.
    - `frames`: frames to add, name -> (link, pose), the pose an `SE3`, a matrix (4, 4) or a position (3,).
    - `mimic`: `"reduce"` solves `<mimic>` exactly: a follower moves with its leader and has no coordinate of its own
      (`Model` says what becomes of its limits and friction). One that is locked stays where it is locked; the
      followers of a frozen joint stand where that puts them. `"independent"` leaves each joint its own coordinate,
      with a warning that names the followers.
    - `package_dirs`: folders in which `package://name/...` is looked for, before the folders above the file and those
      of the environment (`ROS_PACKAGE_PATH`, `AMENT_PREFIX_PATH`, `GZ_SIM_RESOURCE_PATH`). A mesh that is not found
      keeps its name; no mesh is read.
    - `dtype`: of the leaves; default JAX's default float.
    - `gravity`: acceleration of free fall in world axes, m/s^2.

    All seven joint types and `spherical` are supported. Fixed joints vanish; their links stay as frames, their
    inertia joins that of the body they are welded to. What a URDF leaves out has the default of the URDF pages: axis
    (1, 0, 0), origin identity, no inertial: massless. Joints without limits are unbounded, with a warning.
    `<transmission>`, `<gazebo>`, `<safety_controller>` and `<calibration>` are not read. Armature is zero: URDF has
    none.

    **Raises:** `URDFError` for a file that cannot be read or is no tree, `UnknownNameError` for a joint that is not
    in the file, `InputError` for an impossible selection. **Warns:** `JaxdynWarning`.
    """
    content, path = read_source(path_or_text)
    robot = parse_robot(parse_xml(content))
    return build_model(
        robot,
        root=root,
        base_link=base_link,
        joints=joints,
        locked=locked,
        frames=frames,
        mimic=mimic,
        package_dirs=package_dirs,
        folder=None if path is None else path.parent,
        dtype=dtype,
        gravity=gravity,
    )


_OPTIONS = tuple(inspect.signature(from_urdf).parameters)[1:]


def robot_names() -> tuple[str, ...]:
    """Names of the robots that come with the library, for `load`."""
    return tuple(sorted(path.stem for path in ROBOTS.glob("*.urdf")))


def load(name_or_path: str | os.PathLike, **options: Any) -> Model:
    """A robot that comes with the library, by name, or any URDF by path (or text).

    **Arguments:** `name_or_path`: one of `robot_names()`, or what `from_urdf` takes; `options`: those of `from_urdf`.

    **Raises:** `UnknownNameError` for a name without a dot or slash that is no robot of the library; `TypeError` for an
    option that `from_urdf` has not; else as `from_urdf`.
    """
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"load: there is no option {option!r}{suggestion(option, _OPTIONS)}.")
    if isinstance(name_or_path, str):
        if name_or_path in robot_names():
            return from_urdf(ROBOTS / f"{name_or_path}.urdf", **options)
        plain = name_or_path.strip()
        if plain and not any(c in plain for c in "<./\\\n") and not Path(plain).exists():
            names = robot_names()
            close = nearest(plain, names)
            near = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UnknownNameError(
                f"unknown robot {name_or_path!r}.{near} Built-in robots: {listing(names)}. Any other robot: give the path of its URDF file."
            )
    return from_urdf(name_or_path, **options)
