"""The robot that a command is given: its options, its file, its posture."""

from __future__ import annotations

import argparse
import fnmatch
import os
from pathlib import Path
from typing import Any

import numpy as np

import jaxdyn
from jaxdyn.errors import unknown_name

# Postures to start from, as the comments in the robots' files give them; of any other robot it is the neutral one.
POSTURES = {
    "quadruped": {"*_hip_pitch": 0.8, "*_knee": -1.6},
    "humanoid": {"*_hip_pitch": -0.4, "*_knee": 0.8, "*_ankle_pitch": -0.4},
    "arm7": {"joint2": 0.6, "joint4": 1.4, "joint6": 1.1},
}
# Postures by the names of joints: families of robots that would kneel in the middle of their limits.
FAMILIES = ({"*_thigh_joint": 0.8, "*_calf_joint": -1.6},)
FLOATING = ("quadruped", "humanoid", "box")


def add_robot(parser: argparse.ArgumentParser) -> None:
    """Arguments that say which robot, and how it stands."""
    names = ", ".join(jaxdyn.robot_names())
    parser.add_argument("path", metavar="PATH", help=f"a URDF file, or one of the built-in robots: {names}")
    parser.add_argument(
        "--base",
        choices=("fixed", "floating"),
        help="whether the root link is welded to the world (default, but for the built-in quadruped, humanoid and box)",
    )
    parser.add_argument(
        "--posture",
        metavar="JOINT=VALUE",
        nargs="+",
        default=[],
        help="joint positions to start from and to hold, in rad or m; JOINT may be a pattern: '*_knee=-1.6'. "
        "Default: zero, or the middle of the limits where zero is outside",
    )
    parser.add_argument(
        "--package-dir",
        metavar="DIR",
        action="append",
        default=[],
        help="folder in which package://NAME/... is looked for (may be repeated); the folders around the file, "
        "ROS_PACKAGE_PATH and AMENT_PREFIX_PATH are searched too",
    )


def package_folders(path: str, given: list[str]) -> list[str]:
    """Where packages of meshes may be: the given folders, those around the file, those of ROS."""
    around = [str(folder) for folder in Path(path).resolve().parents] if Path(path).is_file() else []
    ros = [folder for folder in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep) if folder]
    ament = [os.path.join(f, "share") for f in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if f]
    return [*given, *around, *ros, *ament]


def load_robot(arguments: argparse.Namespace) -> jaxdyn.Model:
    """The model that the arguments name, in JAX's default float."""
    path = arguments.path
    base = arguments.base or ("floating" if path in FLOATING else "fixed")
    return jaxdyn.load(path, root=base, package_dirs=package_folders(path, arguments.package_dir))


def robot_name(path: str) -> str:
    """Short name of a robot, for titles."""
    return Path(path).stem


def is_floating(model: jaxdyn.Model) -> bool:
    """Whether the first joint is a floating one."""
    return bool(model.tree.joint_types) and model.tree.joint_types[0] == "floating"


def base_sizes(model: jaxdyn.Model) -> tuple[int, int]:
    """How many entries of `q` and `v` belong to a floating base."""
    return (7, 6) if is_floating(model) else (0, 0)


def posture(model: jaxdyn.Model, name: str, assignments: list[str]) -> np.ndarray:
    """Configuration to start from: (nq,).

    Zero, or the middle of the limits for coordinates whose limits exclude zero; then what is known of a built-in
    robot, or of all robots with such joints; then the `JOINT=VALUE` assignments, see `assign`.
    """
    q = np.asarray(jaxdyn.neutral(model), np.float64).copy()
    lower, upper = np.asarray(model.lower, np.float64), np.asarray(model.upper, np.float64)
    outside = np.isfinite(lower) & np.isfinite(upper) & ((q < lower) | (q > upper)) & (lower <= upper)
    q[outside] = 0.5 * (lower[outside] + upper[outside])
    for known in (*FAMILIES, POSTURES.get(name, {})):
        if all(_matching(model, pattern) for pattern in known):
            for pattern, value in known.items():
                _assign(model, q, pattern, value)
    return assign(model, q, assignments, "--posture")


def assign(model: jaxdyn.Model, q: np.ndarray, assignments: list[str], option: str) -> np.ndarray:
    """The configuration with `JOINT=VALUE` assignments applied, JOINT being a name or a pattern.

    **Raises:** `UnknownNameError` for a pattern that fits no joint with one coordinate, `InputError` for a value that
    is no number.
    """
    q = np.array(q)
    for text in assignments:
        pattern, sign, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not sign or not np.isfinite(value):
            raise jaxdyn.InputError(f"{option}: wanted JOINT=VALUE with a number, given {text!r}.")
        if not _assign(model, q, pattern, value):
            names = [n for n, size in zip(model.tree.joint_names, model.tree.joint_nq, strict=True) if size == 1]
            raise unknown_name("joint", pattern, names)
    return q


def _assign(model: jaxdyn.Model, q: np.ndarray, pattern: str, value: float) -> int:
    found = _matching(model, pattern)
    q[found] = value
    return len(found)


def _matching(model: jaxdyn.Model, pattern: str) -> list[int]:
    """Indices in `q` of the joints with one coordinate whose names fit a pattern."""
    tree = model.tree
    return [
        at
        for name, at, size in zip(tree.joint_names, tree.q_offset, tree.joint_nq, strict=True)
        if size == 1 and fnmatch.fnmatchcase(name, pattern)
    ]


def joint_coordinates(model: jaxdyn.Model) -> list[int]:
    """Indices in `q` of the joints with one coordinate."""
    return [at for at, size in zip(model.tree.q_offset, model.tree.joint_nq, strict=True) if size == 1]


def describe(model: jaxdyn.Model, name: str) -> str:
    """One line about a robot."""
    base = "floating base" if is_floating(model) else "fixed base"
    joints = model.n_joints - is_floating(model)
    mass = float(np.sum(np.asarray(model.inertia.mass, np.float64)))
    return (
        f"{name}: {joints} joints, {model.nv} degrees of freedom, {base}, {mass:.4g} kg, {np.dtype(model.dtype).name}"
    )


def numbers(text: Any, size: int, option: str) -> np.ndarray:
    """(size,) finite numbers given on the command line."""
    array = np.asarray(text, np.float64)
    if array.shape != (size,) or not np.isfinite(array).all():
        raise jaxdyn.InputError(f"{option}: wanted {size} finite numbers, given {list(text)}.")
    return array
