"""`jaxdyn optimize`: the torques of a motion of any robot that reaches a goal, by the gradient through the simulation."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn.app import optimisation, scenario, tuning
from jaxdyn.app.output import Folder, add_common, seconds
from jaxdyn.app.robot import add_robot, assign, base_sizes, is_floating, numbers, robot_name
from jaxdyn.app.rollout import add_simulation, plot_joints, prepare
from jaxdyn.app.terminal import interruptible, say

# Depth over which the ground sets in, m: above half the impact speed times the time step.
SMOOTHING = 2e-3

# Standard deviation of the torques that the optimisation starts from, in units of a usual one.
START = 1e-3


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_robot(parser)
    add_simulation(parser)
    goal = parser.add_argument_group(
        "goal",
        "Without any of these: a floating base goes forward (along x) by 4 % of the robot's height; a robot with a fixed base goes to "
        "joint positions near those at the start, chosen by --seed.",
    )
    goal.add_argument(
        "--frame",
        metavar="LINK",
        help="the link whose origin is to reach a point (default: the base; of a fixed robot the outermost)",
    )
    goal.add_argument("--to", type=float, nargs=3, metavar=("X", "Y", "Z"), help="that point, world axes, m")
    goal.add_argument(
        "--by", type=float, nargs=3, metavar=("X", "Y", "Z"), help="the same, counted from where it is at the start"
    )
    goal.add_argument(
        "--joints", nargs="+", metavar="JOINT=VALUE", help="joint positions to reach; the others as at the start"
    )
    parser.add_argument("--duration", type=float, default=0.4, help="of the motion, s (default 0.4)")
    parser.add_argument("--knots", type=int, default=None, help="of the torques in time (default: one each 25 ms)")
    parser.add_argument("--iterations", type=int, default=100, help="of the optimisation (default 100)")
    parser.add_argument(
        "--rate", type=float, default=0.04, help="first step, in units of a usual torque (default 0.04)"
    )
    add_common(parser)


class Result(NamedTuple):
    """The optimised motion, with the state at the start, and the one before the optimisation."""

    outcome: optimisation.Outcome
    times: np.ndarray
    q: np.ndarray
    q_first: np.ndarray
    v: np.ndarray
    torque: np.ndarray
    points: np.ndarray
    forces: np.ndarray
    miss_before: float
    miss_after: float


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; 130 if it was interrupted."""
    folder = Folder(arguments.out)
    chosen = [name for name in ("to", "by", "joints") if getattr(arguments, name) is not None]
    if len(chosen) > 1:
        raise jaxdyn.InputError(f"the goal is one of --to, --by and --joints, given --{' and --'.join(chosen)}.")
    if arguments.frame is not None and not set(chosen) & {"to", "by"}:
        raise jaxdyn.InputError("--frame: say where it is to go, with --to or --by.")
    model, plan = prepare(arguments, falls=False)
    if model.nv == base_sizes(model)[1]:
        raise jaxdyn.InputError("the robot has no joints: there are no torques to optimise.")
    plan = optimisation.gentle(plan, is_floating(model))
    goal = make_goal(model, plan, arguments)
    result = interruptible(lambda check: optimise(model, plan, goal, arguments, check))
    if result is None:
        say("Interrupted before anything was computed.")
        return 130
    write(folder, model, plan, goal, arguments, result)
    folder.tell()
    outcome = result.outcome
    unit = "rad" if goal.kind == "joints" else "m"
    say(
        f"Figures: cost {outcome.costs[0]:.4g} before, {outcome.best:.4g} after; miss {result.miss_before:.3g} {unit} before, "
        f"{result.miss_after:.3g} {unit} after; compile time {seconds(outcome.compile_seconds)}, run time {seconds(outcome.seconds)}."
    )
    if outcome.interrupted:
        say("Interrupted: the results hold the best motion until then.")
        return 130
    return 0


def make_goal(model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace) -> optimisation.Goal:
    """The goal that the arguments ask for; says what it is."""
    start = optimisation.start_state(model, plan)
    kind, frame, unit = "base", None, max(0.01 * min(plan.height, 1.0), 1e-3)
    if arguments.joints is not None or (not is_floating(model) and not (arguments.to or arguments.by)):
        kind, unit = "joints", 0.05
        q = _joint_goal(model, plan, arguments)
        target = q[base_sizes(model)[0] :]
        say(f"   goal: joint positions {' '.join(f'{x:.3g}' for x in target)}")
    else:
        if arguments.frame is not None or not is_floating(model):
            kind, frame = "frame", arguments.frame or _outermost(model)
        here = plan.q[:3] if frame is None else _frame_position(model, plan.q, frame)
        if arguments.to is not None:
            target = numbers(arguments.to, 3, "--to")
        else:
            forward = [0.04 * plan.height, 0.0, 0.0]
            target = here + numbers(arguments.by if arguments.by is not None else forward, 3, "--by")
        what = "base" if frame is None else frame
        say(
            f"   goal: {what} from ({', '.join(f'{x:.3f}' for x in here)}) to ({', '.join(f'{x:.3f}' for x in target)}) m"
        )
    dtype = model.dtype
    return optimisation.Goal(kind, frame, jnp.asarray(target, dtype), jnp.asarray(unit, dtype), start)


def _joint_goal(model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace) -> np.ndarray:
    """(nq,) configuration with the joint positions to reach: those that were given, or some that are 0.4 rad away at most."""
    if arguments.joints is not None:
        return assign(model, plan.q, arguments.joints, "--joints")
    nv = base_sizes(model)[1]
    share = jax.random.uniform(jax.random.key(arguments.seed), (model.nv - nv,), model.dtype, -1, 1)
    step = jnp.concatenate([jnp.zeros(nv, model.dtype), 0.4 * share])
    q = np.asarray(jaxdyn.integrate(model, jnp.asarray(plan.q, model.dtype), step), np.float64)
    margin = 2 * optimisation.MARGIN
    lower, upper = np.asarray(model.lower, np.float64) + margin, np.asarray(model.upper, np.float64) - margin
    return np.where(lower < upper, np.clip(q, np.minimum(lower, upper), upper), plan.q)


def _outermost(model: jaxdyn.Model) -> str:
    """The last link of the longest chain of joints."""
    tree = model.tree
    depths = [tree.depth[body] if body >= 0 else -1 for body in tree.frame_bodies]
    return max(zip(depths, range(len(depths)), tree.frame_names, strict=True))[2]


def _frame_position(model: jaxdyn.Model, q: np.ndarray, frame: str) -> np.ndarray:
    """(3,) position of the origin of a frame."""
    i = model.frame(frame)
    body = model.tree.frame_bodies[i]
    local = np.asarray(model.frame_placement.translation[i], np.float64)
    if body < 0:
        raise jaxdyn.InputError(f"--frame: the link {frame!r} is fixed to the world and cannot go anywhere.")
    rotation, translation = tuning.still_poses(model, q)
    return rotation[body] @ local + translation[body]


def optimise(
    model: jaxdyn.Model,
    plan: tuning.Plan,
    goal: optimisation.Goal,
    arguments: argparse.Namespace,
    check: Callable[[], None],
) -> Result | None:
    """Runs the optimisation; None if it was interrupted before the first cost."""
    steps = max(round(arguments.duration / arguments.dt), 1)
    say(f"   {model.nv - base_sizes(model)[1]} torques, {steps} steps of {1e3 * arguments.dt:g} ms; compiling ...")
    system = scenario.make_system(model, plan, smoothing=SMOOTHING)
    control = scenario.posture_control(system, plan, model)
    motion = optimisation.motion_of(system, control, plan, goal, arguments.dt, steps, plan.substeps)
    knots = _first_knots(arguments, system.n)
    report = optimisation.CostTable(arguments.iterations)
    outcome = optimisation.minimise(motion, knots, arguments.iterations, arguments.rate, report, check)
    if not outcome.costs:
        return None
    if not np.isfinite(outcome.best):
        raise jaxdyn.InputError("the motion becomes infinite: try a smaller --dt, more --substeps or some --armature.")
    every = max(d for d in range(1, 6) if steps % d == 0)

    def motion_with(knots: np.ndarray) -> tuple[jaxdyn.Trajectory, Any, float]:
        trajectory = motion.rollout(jnp.asarray(knots, model.dtype), None, every)
        miss = goal.miss(system, trajectory.final)[0]
        return trajectory, scenario.with_start(goal.start, trajectory.state, 0), float(jnp.sqrt(jnp.sum(miss**2)))

    _, first, before = motion_with(knots)
    trajectory, states, after = motion_with(outcome.knots)
    times = np.concatenate([[0.0], np.asarray(trajectory.time)])
    q, v = scenario.coordinates(model, states)
    points = forces = np.zeros((len(times), 0, 3))
    if plan.spots:
        points, forces = (
            a[0] for a in scenario.contact_forces(system, None, jax.tree.map(lambda leaf: leaf[None], states))
        )
    torque = np.asarray(trajectory.record)
    return Result(outcome, times, q, scenario.coordinates(model, first)[0], v, torque, points, forces, before, after)


def _first_knots(arguments: argparse.Namespace, joints: int) -> np.ndarray:
    """(knots, joints) torques to start from, in units of a usual torque: next to nothing, but not the same for all seeds."""
    count = arguments.knots or max(round(arguments.duration / 0.025), 2) + 1
    return START * np.asarray(jax.random.normal(jax.random.key(arguments.seed), (count, joints)))


def write(
    folder: Folder,
    model: jaxdyn.Model,
    plan: tuning.Plan,
    goal: optimisation.Goal,
    arguments: argparse.Namespace,
    result: Result,
) -> None:
    """Page, plots, data and figures."""
    name, outcome = robot_name(arguments.path), result.outcome
    scene = jaxdyn.Scene(name, subtitle="a motion by gradient descent; pale: before", speed=0.25)
    scene.add_robot(model, result.q, times=result.times, name=name)
    scene.add_robot(
        model, result.q_first, times=result.times, name="before the optimisation", color="grey", opacity=0.25
    )
    if plan.spots:
        scene.add_contact_forces(result.points, result.forces, robot=name)
        scene.add_ground()
    if goal.kind != "joints":
        scene.add_spheres(np.asarray(goal.target)[None], 0.02 * min(plan.height, 1.5), name="goal")
    folder.page(scene)
    folder.plot("cost.png", "cost as it falls", "plot_cost", np.minimum.accumulate(outcome.costs))
    if is_floating(model):
        folder.plot("base_height.png", "height of the base", "plot_base_height", result.times, result.q[:, 2])
    else:
        plot_joints(folder, model, result.times, result.q, plan)
    if plan.spots:
        names = [spot.frame for spot in plan.spots]
        folder.plot(
            "contact_forces.png", "contact forces", "plot_contact_forces", result.times, result.forces, names=names
        )
    arrays = {
        "time": result.times,
        "q": result.q,
        "q_before": result.q_first,
        "v": result.v,
        "torque": result.torque,
        "knots": outcome.knots,
        "cost": np.array(outcome.costs),
        "contact_points": result.points,
        "contact_forces": result.forces,
        "joint_names": np.array(model.joint_names),
        "contact_names": np.array([spot.frame for spot in plan.spots], str),
        "goal": np.asarray(goal.target),
    }
    folder.data("data.npz", "all of it as arrays", arrays)
    folder.figures(
        {
            "robot": name,
            "interrupted": outcome.interrupted,
            "iterations": len(outcome.costs) - 1,
            "cost_before": outcome.costs[0],
            "cost_after": outcome.best,
            "miss_before": result.miss_before,
            "miss_after": result.miss_after,
            "compile_seconds": round(outcome.compile_seconds, 2),
            "run_seconds": round(outcome.seconds, 2),
            **{f"cost_of_{key}": value for key, value in outcome.last.items()},
        }
    )
