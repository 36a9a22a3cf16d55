"""`jaxdyn rollout`: many copies of a robot from perturbed states, under PD control that holds a posture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import jaxdyn
from jaxdyn.app import devices, scenario, tuning
from jaxdyn.app.output import Folder, add_common, seconds
from jaxdyn.app.robot import add_robot, describe, is_floating, load_robot, posture, robot_name
from jaxdyn.app.simulation import Simulation, simulate
from jaxdyn.app.terminal import count, interruptible, say

# Saved states of an environment, and numbers in the data file: more than these are thinned out.
SAVES, MOST_NUMBERS = 100, 50_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_robot(parser)
    add_simulation(parser)
    parser.add_argument("--envs", type=int, default=64, help="number of environments (default 64)")
    parser.add_argument("--steps", type=int, default=1000, help="number of time steps (default 1000)")
    parser.add_argument(
        "--perturb", type=float, default=1.0, help="scale of the perturbations of states (default 1; 0 for none)"
    )
    parser.add_argument(
        "--drop", type=float, default=0.05, metavar="M", help="height above the ground at first, m (default 0.05)"
    )
    parser.add_argument("--show", type=int, default=16, metavar="N", help="environments in the page (default 16)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what is done in DIR/checkpoint, and start from what is there: for long runs, which may be killed",
    )
    devices.add_devices(parser)
    add_common(parser)


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Arguments of everything that simulates."""
    parser.add_argument("--dt", type=float, default=0.001, help="time step, s (default 0.001)")
    parser.add_argument(
        "--substeps",
        type=int,
        default=None,
        help="steps of the integrator in a time step (default: as many as the contacts need)",
    )
    parser.add_argument(
        "--contacts",
        default=None,
        metavar="LINK,LINK",
        help="links that touch the ground (default: those that are lowest in the initial posture)",
    )
    parser.add_argument(
        "--armature",
        type=float,
        default=0.0,
        help="rotor inertia on every joint, kg m^2 or kg (default 0; URDF files have none)",
    )


def check_numbers(arguments: argparse.Namespace) -> None:
    """**Raises:** `InputError` for numbers that make no sense."""
    for name, least in (("envs", 1), ("steps", 1), ("substeps", 1), ("iterations", 0), ("knots", 2), ("show", 0)):
        value = getattr(arguments, name, None)
        if value is not None and value < least:
            raise jaxdyn.InputError(f"--{name}: wanted at least {least}, given {value}.")
    for name in ("dt", "duration", "hop"):
        value = getattr(arguments, name, None)
        if value is not None and not 0 < value < np.inf:
            raise jaxdyn.InputError(f"--{name}: wanted a positive number, given {value}.")
    for name in ("armature", "perturb", "drop"):
        value = getattr(arguments, name, None)
        if value is not None and not 0 <= value < np.inf:
            raise jaxdyn.InputError(f"--{name}: wanted a number that is not negative, given {value}.")


def prepare(arguments: argparse.Namespace, *, falls: bool = True) -> tuple[jaxdyn.Model, tuning.Plan]:
    """The robot that the arguments name, and the plan for it; says what was chosen."""
    check_numbers(arguments)
    model = load_robot(arguments)
    name = robot_name(arguments.path)
    q = posture(model, name, arguments.posture)
    model, singular = tuning.regular(model, q, arguments.armature)
    say(describe(model, name))
    if singular:
        say(
            f"   note: the mass matrix is singular in {', '.join(singular)}; these joints got rotor inertia (see --armature)"
        )
    names = None if arguments.contacts is None else [n for n in arguments.contacts.split(",") if n]
    plan = tuning.plan(model, q, arguments.dt, contacts=names, substeps=arguments.substeps, falls=falls)
    if plan.spots:
        listed = ", ".join(spot.frame for spot in plan.spots if spot.support)
        if more := ", ".join(spot.frame for spot in plan.spots if not spot.support):
            listed += f" (in a fall: {more})"
        g = plan.ground
        constants = (
            f"{g.stiffness:.3g} N/m and {g.damping:.3g} N s/m per point, slip velocity {g.slip_velocity:.2g} m/s"
        )
        say(f"   contacts: {listed}; {constants}")
    if plan.substeps > 1:
        say(f"   {plan.substeps} substeps of {1e3 * arguments.dt / plan.substeps:.3g} ms: the contacts need them")
    return model, plan


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; 1 if a state became infinite, 130 if it was interrupted."""
    check_numbers(arguments)
    mesh = devices.connect(arguments)
    with devices.silent_unless_first():
        return _run(arguments, mesh)


def _run(arguments: argparse.Namespace, mesh: Mesh | None) -> int:
    folder = Folder(arguments.out) if devices.is_first() else None
    model, plan = prepare(arguments)
    started = time.perf_counter()
    simulation = interruptible(lambda check: from_perturbed_states(model, plan, arguments, check, mesh))
    result = simulation.result
    if result.resumed:
        say(f"   resumed after {count(result.resumed)} of {count(arguments.steps)} steps")
    if not result.steps:
        say("Interrupted before anything was computed.")
        return 130
    if folder is not None:
        write(folder, model, plan, arguments, simulation, time.perf_counter() - started)
        folder.tell()
    say(
        f"Figures: {count(result.rate)} env-steps/s, compile time {seconds(result.compile_seconds)}, run time {seconds(result.seconds)}."
    )
    if result.status is jaxdyn.Status.NON_FINITE:
        raise jaxdyn.InputError(f"{result.message} The results hold what came before.")
    if result.status is jaxdyn.Status.INTERRUPTED:
        say(
            f"Interrupted after {result.steps} of {arguments.steps} steps: the results hold what had been computed until then."
        )
        return 130
    return 0


def from_perturbed_states(
    model: jaxdyn.Model,
    plan: tuning.Plan,
    arguments: argparse.Namespace,
    check: Callable[[], None],
    mesh: Mesh | None = None,
) -> Simulation:
    """The rollout; saves what the data file can hold."""
    n, steps = arguments.envs, arguments.steps
    where = "" if mesh is None else f" on {mesh.size} devices of {jax.process_count()} process(es)"
    say(f"   {count(n)} environments{where}, {count(steps)} steps of {1e3 * arguments.dt:g} ms; compiling ...")
    drop = arguments.drop if is_floating(model) else 0.0
    start = scenario.perturbed_states(model, plan, n, arguments.seed, scale=arguments.perturb, drop=drop)
    saves = min(SAVES, max(MOST_NUMBERS // (n * (model.nq + model.nv + 6 * len(plan.spots))), 2))
    kept = Path(arguments.out) / "checkpoint" if arguments.resume else None
    return simulate(model, plan, arguments, start, saves, check, mesh=mesh, checkpoint_dir=kept)


def write(
    folder: Folder,
    model: jaxdyn.Model,
    plan: tuning.Plan,
    arguments: argparse.Namespace,
    simulation: Simulation,
    total: float,
) -> None:
    """Page, plots, data and figures. What is not finite is left out of pictures."""
    result = simulation.result
    sound = np.isfinite(simulation.q).all(axis=2).all(axis=0)
    sound = np.flatnonzero(np.logical_and.accumulate(sound))
    times, q = simulation.times[sound], simulation.q[:, sound]
    name = robot_name(arguments.path)
    shown = min(arguments.show, len(q))
    if shown and len(sound):
        scene = jaxdyn.Scene(name, subtitle=f"{shown} of {len(q)} environments", speed=0.5)
        scene.add_robot(model, q[:shown], times=times, name=name, spacing=1.6 * plan.height)
        if plan.spots:
            points, forces = simulation.points[:shown, sound], simulation.forces[:shown, sound]
            scene.add_contact_forces(points, forces, robot=name)
            scene.add_ground()
        folder.page(scene)
    if is_floating(model):
        folder.plot("base_height.png", "height of the base", "plot_base_height", times, q[..., 2])
    if plan.spots:
        feet = [i for i, spot in enumerate(plan.spots) if spot.support]
        weight = float(np.sum(np.asarray(model.inertia.mass))) * float(np.linalg.norm(model.gravity))
        folder.plot(
            "contact_forces.png", "contact forces", "plot_contact_forces", times, simulation.forces[:, sound][:, :, feet],
            names=[plan.spots[i].frame for i in feet], weight=weight if is_floating(model) else None,
        )  # fmt: skip
    else:
        plot_joints(folder, model, times, q, plan)
    folder.data(
        "data.npz",
        "all of it as arrays",
        simulation.arrays()
        | {"joint_names": np.array(model.joint_names), "contact_names": np.array([s.frame for s in plan.spots], str)},
    )
    folder.figures(
        {
            "robot": name,
            "environments": len(q),
            "steps": result.steps,
            "status": result.status.name,
            "env_steps_per_second": round(result.rate),
            "compile_seconds": round(result.compile_seconds, 2),
            "run_seconds": round(result.seconds, 2),
            "total_seconds": round(total, 2),
            "substeps": plan.substeps,
            "resumed_steps": result.resumed,
        }
    )


def plot_joints(folder: Folder, model: jaxdyn.Model, times: np.ndarray, q: np.ndarray, plan: tuning.Plan) -> None:
    """Positions of the joints with one coordinate, at most 16 of them."""
    tree = model.tree
    chosen = [i for i, size in enumerate(tree.joint_nq) if size == 1][:16]
    if not chosen:
        return
    at = [tree.q_offset[i] for i in chosen]
    options: dict[str, Any] = {"names": [tree.joint_names[i] for i in chosen], "reference": plan.q[at]}
    limits = {"lower": np.asarray(model.lower)[at], "upper": np.asarray(model.upper)[at]}
    folder.plot(
        "joints.png", "positions of the joints", "plot_joint_trajectories", times, q[..., at], **options, **limits
    )
