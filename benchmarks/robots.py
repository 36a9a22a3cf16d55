"""The robots, random states of them, and what Pinocchio computes at the first few: the reference for all peers.

States are kept in Pinocchio's convention (position, quaternion x y z w; body twist in body axes; joints in
Pinocchio's order). Each peer converts them to its own, and its results back, by joint name.
"""

import dataclasses
import importlib
import importlib.util
import os
from pathlib import Path

import numpy as np

# frax has this value built in, so all of them get it.
GRAVITY = 9.81
CHECKED = 8  # states at which results are compared


@dataclasses.dataclass(frozen=True)
class Robot:
    name: str
    path: str
    floating: bool


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a robot comes from: a file of jaxdyn, or a name in example-robot-data."""

    floating: bool
    foreign: str | None = None


SOURCES = {
    "quadruped": Source(floating=True),
    "humanoid": Source(floating=True),
    "arm7": Source(floating=False),
    "solo12": Source(floating=True, foreign="solo12"),
    "talos_reduced": Source(floating=True, foreign="talos"),
    "g1": Source(floating=True, foreign="g1"),
    "go2": Source(floating=True, foreign="go2"),
    "panda": Source(floating=False, foreign="panda"),
}
DEFAULT = ("quadruped", "humanoid", "arm7")


class Unavailable(Exception):
    """A robot or a peer is not there; the message says what to install."""


def find(name: str) -> Robot:
    source = SOURCES[name]
    if source.foreign is None:
        # Found without importing jaxdyn: the process that starts the peers stays free of JAX.
        spec = importlib.util.find_spec("jaxdyn")
        if spec is None or spec.submodule_search_locations is None:
            raise Unavailable(f"{name}: the package jaxdyn is not installed")
        path = Path(next(iter(spec.submodule_search_locations))) / "model" / "robots" / f"{name}.urdf"
    else:
        path = _foreign_path(source.foreign)
    if not path.is_file():
        raise Unavailable(f"{name}: there is no file {path}")
    return Robot(name, str(path), source.floating)


def _foreign_path(name: str) -> Path:
    if importlib.util.find_spec("example_robot_data") is None:
        raise Unavailable(f"{name}: needs 'pip install example-robot-data-loaders'")
    loaders = importlib.import_module("example_robot_data.robots_loader")
    robots = importlib.import_module("example_robot_data").ROBOTS
    loader = robots[name]
    inside = os.path.join(loader.path, loader.urdf_subpath, loader.urdf_filename)
    return Path(loaders.getModelPath(inside)) / inside


def pinocchio_model(robot: Robot):
    pin = importlib.import_module("pinocchio")
    root = (pin.JointModelFreeFlyer(),) if robot.floating else ()
    model = pin.buildModelFromUrdf(robot.path, *root)
    model.gravity.linear = np.array([0.0, 0.0, -GRAVITY])
    # Rotor inertia is no part of a URDF; what Pinocchio makes of other files must not slip in.
    model.armature = np.zeros(model.nv)
    if model.nq != model.nv + (1 if robot.floating else 0):
        raise Unavailable(f"{robot.name}: joints with more coordinates than freedoms are not supported here")
    return model


def joint_names(model, floating: bool) -> list[str]:
    """One name per freedom that is not of the free-flyer."""
    return list(model.names)[2 if floating else 1 :]


def random_states(model, floating: bool, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Joint angles over their ranges (at most half a turn to each side), everything else normal."""
    rng = np.random.default_rng(seed)
    n = model.nv - (6 if floating else 0)
    lower = np.maximum(model.lowerPositionLimit[model.nq - n :], -np.pi)
    upper = np.minimum(model.upperPositionLimit[model.nq - n :], np.pi)
    q = np.empty((count, model.nq))
    if floating:
        q[:, :3] = rng.uniform(-1.0, 1.0, (count, 3))
        quaternion = rng.normal(size=(count, 4))
        q[:, 3:7] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    q[:, model.nq - n :] = lower + (upper - lower) * rng.random((count, n))
    v, a, tau = (rng.normal(size=(count, model.nv)) for _ in range(3))
    return {"q": q, "v": v, "a": a, "tau": tau}


def reference(model, states: dict[str, np.ndarray], count: int = CHECKED) -> dict[str, np.ndarray]:
    """Results at the first states, by Pinocchio's Python module, stacked over the states."""
    pin = importlib.import_module("pinocchio")
    data = model.createData()
    out: dict[str, list[np.ndarray]] = {}

    def keep(name, value):
        out.setdefault(name, []).append(np.array(value))

    for q, v, a, tau in zip(*(states[key][:count] for key in ("q", "v", "a", "tau")), strict=True):
        keep("rnea", pin.rnea(model, data, q, v, a))
        mass = pin.crba(model, data, q)
        mass = np.triu(mass) + np.triu(mass, 1).T
        keep("crba", mass)
        keep("crba_kept", mass)
        keep("mass_solve", np.linalg.solve(mass, tau))
        keep("factor_solve", np.linalg.solve(mass, tau))
        keep("aba", pin.aba(model, data, q, v, tau))
        dq, dv, inverse = pin.computeABADerivatives(model, data, q, v, tau)
        keep("aba_derivatives", np.stack([dq, dv, np.triu(inverse) + np.triu(inverse, 1).T]))
        dq, dv, da = pin.computeRNEADerivatives(model, data, q, v, a)
        keep("rnea_derivatives", np.stack([dq, dv, np.triu(da) + np.triu(da, 1).T]))
    return {name: np.stack(values) for name, values in out.items()}


def relative_error(result: np.ndarray, wanted: np.ndarray) -> float:
    """Largest error of each state over the largest value of that state; the worst state counts."""
    if result.shape != wanted.shape:
        raise ValueError(f"result of shape {result.shape}, expected {wanted.shape}")
    axes = tuple(range(1, wanted.ndim))
    scale = np.maximum(np.abs(wanted).max(axes), 1e-300)
    error = np.abs(result - wanted).max(axes) / scale
    return float(np.nan_to_num(error, nan=np.inf).max())
