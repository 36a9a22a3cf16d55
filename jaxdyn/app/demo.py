"""`jaxdyn demo`: many quadrupeds drop on the ground, then one learns to hop."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn.app import optimisation, scenario, tuning
from jaxdyn.app.output import Folder, add_common, seconds
from jaxdyn.app.robot import describe, load_robot, posture
from jaxdyn.app.rollout import check_numbers
from jaxdyn.app.simulation import Simulation, simulate
from jaxdyn.app.terminal import count, interruptible, say

ROBOT = "quadruped"
# Inertia of the rotors as the joints feel it, kg m^2: 1e-4 kg m^2 behind a gear of 10, usual for a robot of this size.
ARMATURE = 0.01
# Depth over which the ground sets in where it is differentiated, m: above half the impact speed times the time step.
SMOOTHING = 2e-3
DROP_HEIGHT = 0.12
SAVES = 100
# Of the optimisation: the first step of Adam, in units of a usual torque.
RATE = 0.04
# s, until which the hop is simulated, its landing included.
LANDED = 1.0
# In the page: between the quadrupeds, m; length of the arrows, m/N.
SPACING, FORCE_SCALE = 0.72, 0.002


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--envs", type=int, default=256, help="quadrupeds that drop (default 256)")
    parser.add_argument("--steps", type=int, default=1000, help="time steps of the drop (default 1000)")
    parser.add_argument("--dt", type=float, default=0.001, help="time step, s (default 0.001)")
    parser.add_argument(
        "--hop", type=float, default=0.5, metavar="HEIGHT", help="of the base at the top, m (default 0.5)"
    )
    parser.add_argument("--duration", type=float, default=0.4, help="of the motion that is optimised, s (default 0.4)")
    parser.add_argument("--iterations", type=int, default=150, help="of the optimisation (default 150)")
    parser.add_argument("--show", type=int, default=40, metavar="N", help="dropped quadrupeds in the page (default 40)")
    add_common(parser)


class Hop(NamedTuple):
    """Result of the second part: the motion with its landing after the optimisation, and before."""

    outcome: optimisation.Outcome
    names: tuple[str, ...]
    times: np.ndarray
    q: np.ndarray
    q_first: np.ndarray
    torque: np.ndarray
    points: np.ndarray
    forces: np.ndarray


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; 130 if it was interrupted."""
    started = time.perf_counter()
    check_numbers(arguments)
    folder = Folder(arguments.out)
    arguments.path, arguments.base, arguments.package_dir = ROBOT, "floating", []
    model = load_robot(arguments)
    q = posture(model, ROBOT, [])
    model, _ = tuning.regular(model, q, ARMATURE)
    say(describe(model, ROBOT))
    plan = tuning.plan(model, q, arguments.dt, substeps=1)

    drop: Simulation | None = None
    hop: Hop | None = None
    interrupted = False
    try:
        drop = interruptible(lambda check: drop_many(model, plan, arguments, check))
        interrupted = drop.result.status is jaxdyn.Status.INTERRUPTED
        if not interrupted:
            hop = interruptible(lambda check: learn_to_hop(model, plan, arguments, check))
            interrupted = hop.outcome.interrupted
    except KeyboardInterrupt:
        interrupted = True
    if drop is None or not drop.result.steps:
        say("Interrupted before anything was computed.")
        return 130
    figures = write(folder, model, plan, arguments, drop, hop, interrupted)
    figures["total_seconds"] = round(time.perf_counter() - started, 1)
    folder.figures(figures)
    say()
    folder.tell()
    say(
        f"Figures: {count(figures['env_steps_per_second'])} env-steps/s; compile time {figures['drop_compile_seconds']:.1f} s (drop)"
        + (
            f", {figures['hop_compile_seconds']:.1f} s (gradient); cost {figures['cost_before']:.4g} before, "
            f"{figures['cost_after']:.4g} after; top at {figures['height_reached']:.3f} m, wanted {arguments.hop:g} m"
            if "cost_after" in figures
            else ""
        )
        + f"; {figures['total_seconds']:.0f} s in all."
    )
    if interrupted:
        say("Interrupted: the results hold what had been computed until then.")
    return 130 if interrupted else 0


def drop_many(
    model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace, check: Callable[[], None]
) -> Simulation:
    """Drops perturbed quadrupeds, each with a friction of its own, on compliant ground under PD control."""
    n, steps = arguments.envs, arguments.steps
    say(
        f"\n1  Drop: {count(n)} quadrupeds from {DROP_HEIGHT:g} m, {count(steps)} steps of {1e3 * arguments.dt:g} ms; compiling ..."
    )
    start = scenario.perturbed_states(model, plan, n, arguments.seed, drop=DROP_HEIGHT)
    drop = simulate(model, plan, arguments, start, SAVES, check)
    result = drop.result
    if result.steps:
        standing = float(np.mean(drop.q[:, -1, 2] > 0.7 * plan.q[2]))
        say(
            f"   {100 * standing:.0f} % stand at the end; {count(result.rate)} env-steps/s, compiled in {seconds(result.compile_seconds)}"
        )
    if result.status is jaxdyn.Status.NON_FINITE:
        say(f"   {result.message}")
    return drop


def learn_to_hop(
    model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace, check: Callable[[], None]
) -> Hop:
    """Optimises the joint torques of a hop, and simulates the landing that follows."""
    steps = max(round(arguments.duration / arguments.dt), 1)
    say(
        f"\n2  Hop: torques of {arguments.duration:g} s that bring the base to {arguments.hop:g} m, by the gradient through "
        "the contacts; compiling ..."
    )
    plan = optimisation.gentle(plan)
    system = scenario.make_system(model, plan, smoothing=SMOOTHING)
    control = scenario.posture_control(system, plan, model)
    start = optimisation.start_state(model, plan)
    top = jnp.asarray([plan.q[0], plan.q[1], arguments.hop], model.dtype)
    goal = optimisation.Goal("base", None, top, jnp.asarray(0.03, model.dtype), start)
    motion = optimisation.motion_of(system, control, plan, goal, arguments.dt, steps, plan.substeps)
    knots = np.zeros((max(round(arguments.duration / 0.025), 2) + 1, model.nv - 6))
    report = optimisation.CostTable(arguments.iterations)
    outcome = optimisation.minimise(motion, knots, arguments.iterations, RATE, report, check)
    say(
        f"   cost {outcome.costs[0]:.4g} -> {outcome.best:.4g} in {seconds(outcome.seconds)}, "
        f"compiled in {seconds(outcome.compile_seconds)}"
    )
    # The landing is simulated too: the torques of the hop end, PD control stays.
    every = max(d for d in range(1, 11) if steps % d == 0)
    total = every * round(max(LANDED, arguments.duration) / arguments.dt / every)

    def states(knots: np.ndarray) -> tuple[jaxdyn.Trajectory, Any]:
        trajectory = motion.rollout(jnp.asarray(knots, model.dtype), total, every)
        return trajectory, scenario.with_start(start, trajectory.state, 0)

    first = scenario.coordinates(model, states(knots)[1])[0]
    trajectory, after = states(outcome.knots)
    one = lambda tree: jax.tree.map(lambda leaf: leaf[None], tree)  # noqa: E731
    points, forces = scenario.contact_forces(system, None, one(after))
    times = np.concatenate([[0.0], np.asarray(trajectory.time)])
    q = scenario.coordinates(model, after)[0]
    names = tuple(contact.frame for contact in system.contacts)
    return Hop(outcome, names, times, q, first, np.asarray(trajectory.record), points[0], forces[0])


def write(
    folder: Folder,
    model: jaxdyn.Model,
    plan: tuning.Plan,
    arguments: argparse.Namespace,
    drop: Simulation,
    hop: Hop | None,
    interrupted: bool,
) -> dict[str, Any]:
    """Writes page, plots, data and figures; returns the figures."""
    result = drop.result
    feet = [i for i, spot in enumerate(plan.spots) if spot.support]
    names = [plan.spots[i].frame for i in feet]
    weight = float(np.sum(np.asarray(model.inertia.mass))) * float(np.linalg.norm(model.gravity))
    data = {f"drop_{name}": array for name, array in drop.arrays().items()} | {
        "contact_names": np.array([spot.frame for spot in plan.spots]),
        "joint_names": np.array(model.joint_names),
    }
    figures: dict[str, Any] = {
        "interrupted": interrupted,
        "environments": len(drop.q),
        "steps": result.steps,
        "env_steps_per_second": round(result.rate),
        "drop_compile_seconds": round(result.compile_seconds, 2),
        "drop_seconds": round(result.seconds, 2),
    }
    folder.page(make_page(model, plan, arguments, drop, hop))
    folder.plot(
        "base_height.png", "height of the base of all that drop", "plot_base_height", drop.times, drop.q[..., 2]
    )
    folder.plot(
        "contact_forces.png",
        "forces on the feet of all that drop",
        "plot_contact_forces",
        drop.times,
        drop.forces[:, :, feet],
        names=names,
        weight=weight,
    )
    if hop is not None and len(hop.outcome.costs):
        data |= {
            "hop_time": hop.times,
            "hop_q": hop.q,
            "hop_q_before": hop.q_first,
            "hop_torque": hop.torque,
            "hop_knots": hop.outcome.knots,
            "hop_contact_points": hop.points,
            "hop_contact_forces": hop.forces,
            "cost": np.array(hop.outcome.costs),
        }
        figures |= {
            "iterations": len(hop.outcome.costs) - 1,
            "cost_before": hop.outcome.costs[0],
            "cost_after": hop.outcome.best,
            "height_wanted": arguments.hop,
            "height_reached": float(hop.q[:, 2].max()),
            "hop_compile_seconds": round(hop.outcome.compile_seconds, 2),
            "hop_seconds": round(hop.outcome.seconds, 2),
        }
        folder.plot("cost.png", "cost of the hop as it falls", "plot_cost", np.minimum.accumulate(hop.outcome.costs))
        folder.plot(
            "hop_height.png",
            "height of the base in the hop",
            "plot_base_height",
            hop.times,
            hop.q[:, 2],
            target=arguments.hop,
        )
    folder.data("data.npz", "all of it as arrays", data)
    return figures


def make_page(
    model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace, drop: Simulation, hop: Hop | None
) -> jaxdyn.Scene:
    """The hop in front, some of the drops behind it."""
    shown = min(arguments.show, len(drop.q))
    columns = max(int(np.ceil(np.sqrt(1.6 * shown))), 1)
    row, column = np.divmod(np.arange(shown), columns)
    offsets = np.stack([-SPACING * (row + 2), SPACING * (column - (columns - 1) / 2), np.zeros(shown)], axis=1)
    scene = jaxdyn.Scene(
        "Quadrupeds: a drop and a hop",
        subtitle=f"Behind: {shown} of {len(drop.q)} that drop on compliant ground. In front: a hop, torques by gradient descent "
        "through the contacts; pale: before.",
        speed=0.5,
    )
    if hop is not None:
        scene.add_robot(model, hop.q, times=hop.times, name="hop")
        scene.add_robot(model, hop.q_first, times=hop.times, name="before", color="blue", opacity=0.2)
        scene.add_contact_forces(hop.points, hop.forces, robot="hop", name="forces on the feet", scale=FORCE_SCALE)
        scene.add_trace(robot="hop", body=model.body_names[0], name="path of the base")
        scene.add_readout("height of the base", hop.q[:, 2], times=hop.times, unit="m")
        scene.add_time_stamp(arguments.duration, "end of the optimised torques")
        scene.set_camera(azimuth=26, elevation=16, distance=2.9, target=(-0.4, 0.12, 0.16))
    if shown:
        scene.add_robot(model, drop.q[:shown], times=drop.times, name="drop", offset=offsets)
        points, forces = drop.points[:shown], drop.forces[:shown]
        scene.add_contact_forces(
            points, forces, robot="drop", name="forces of the drop", color="teal", scale=FORCE_SCALE
        )
    scene.add_ground()
    return scene
