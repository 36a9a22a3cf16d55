"""Torques of a motion by gradient descent through the simulation."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import jaxdyn
from jaxdyn.app.robot import base_sizes, is_floating
from jaxdyn.app.scenario import PostureControl, make_state
from jaxdyn.app.terminal import say
from jaxdyn.app.tuning import Plan

GOALS = ("base", "frame", "joints")


class Torques(eqx.Module):
    """Torques in time, about a posture: `limit tanh((PD control + scale * knots(t)) / limit)`, linear between knots and
    from the last one to nothing.

    A policy `(x, t) -> torque`. `knots`: (knots, joints), what is optimised; `scale`: (joints,) N m, size of a usual
    torque; `duration`: s, from the first to the last knot.
    """

    control: PostureControl
    knots: Float[Array, "knots joints"]
    scale: Float[Array, " joints"]
    duration: Float[Array, ""]

    def __call__(self, x: Any, t: Array) -> Float[Array, " joints"]:
        last = self.knots.shape[0] - 1
        place = t / self.duration * last
        # hat functions instead of an index: their derivative is a product, not a scatter
        weight = jax.nn.relu(1 - jnp.abs(place - jnp.arange(last + 1).astype(place.dtype)))
        forward = self.scale * jnp.sum(weight[:, None] * self.knots, axis=0)
        limit = self.control.limit
        return limit * jnp.tanh((self.control.wish(x) + forward) / limit)


class CostTable:
    """Prints the cost as it falls: the first and the last iteration, and about twelve between."""

    def __init__(self, iterations: int):
        self.iterations, self.every = iterations, max(iterations // 12, 1)
        say("   iteration      cost     reach      stop    effort      rest")

    def __call__(self, i: int, cost: float, terms: dict[str, float]) -> None:
        if i % self.every == 0 or i == self.iterations:
            rest = sum(terms.values()) - terms["reach"] - terms["stop"] - terms["effort"]
            parts = "".join(f"{value:10.3g}" for value in (terms["reach"], terms["stop"], terms["effort"], rest))
            say(f"   {i:9d} {cost:10.4g}{parts}")


class Goal(eqx.Module):
    """What the motion is to reach at its end, at rest.

    `kind`: `"base"` (position of the base), `"frame"` (position of the origin of `frame`, which is None else) or `"joints"` (their
    positions); `target`: (3,) m, or (joint coordinates,); `unit`: miss that costs 1, m or rad; `start`: the state that
    the motion starts from.
    """

    kind: str = eqx.field(static=True)
    frame: str | None = eqx.field(static=True)
    target: Float[Array, " n"]
    unit: Float[Array, ""]
    start: Any

    def miss(self, system: Any, x: Any) -> tuple[Array, Array]:
        """What is missing at the state `x`, and the velocity there: each (n,)."""
        if self.frame is not None:
            at, velocity = _frame_motion(system, x, self.frame)
            return at - self.target, velocity
        if self.kind == "base":
            return x.position - self.target, x.twist[:3]
        there = eqx.tree_at(lambda s: s.joint_position, x, self.target)
        return -system.displacement(x, there)[-system.n :], x.joint_velocity


def _frame_motion(system: Any, x: Any, frame: str) -> tuple[Array, Array]:
    """World position and velocity of the origin of a frame."""
    model = system.model
    if is_floating(model):
        q, v = jaxdyn.systems.configuration_from_state(model, x)
    else:
        q, v = x.joint_position, x.joint_velocity
    kin = jaxdyn.forward_kinematics(model, q, v)
    return jaxdyn.frame_pose(model, kin, frame).translation, jaxdyn.frame_velocity(model, kin, frame)[:3]


# Misses that cost 1
SPEED, TILT, SPIN, POSTURE, MARGIN = 0.3, 0.1, 1.0, 0.3, 0.1


def cost_terms(system: Any, goal: Goal, policy: Torques, trajectory: jaxdyn.Trajectory) -> dict[str, Array]:
    """The terms of the cost, each in units of a miss that costs 1: reach, stop, upright, posture, effort, limits."""
    x, model = trajectory.final, system.model
    miss, velocity = goal.miss(system, x)
    speed = SPIN if goal.kind == "joints" else SPEED
    terms = {
        "reach": jnp.sum((miss / goal.unit) ** 2),
        "stop": jnp.sum((velocity / speed) ** 2),
        "effort": 0.2 * jnp.mean((trajectory.record / policy.scale[None]) ** 2),
    }
    if is_floating(model):
        tilt = jaxdyn.so3.log(jaxdyn.so3.compose(x.rotation, jaxdyn.so3.inverse(goal.start.rotation)))
        terms["upright"] = jnp.sum((tilt / TILT) ** 2) + jnp.sum((x.twist[3:] / SPIN) ** 2)
    if goal.kind == "base":
        bend = system.displacement(goal.start, x)[-system.n :]
        terms["posture"] = jnp.mean((bend / POSTURE) ** 2) if system.n else jnp.zeros((), miss.dtype)
    q = trajectory.state.joint_position
    nq = base_sizes(model)[0]
    lower, upper = model.lower[nq:] + MARGIN, model.upper[nq:] - MARGIN
    over = jax.nn.relu(q - upper[None]) + jax.nn.relu(lower[None] - q)
    # joints whose limits leave no room, or that start outside, are not driven away from there
    inside = (goal.start.joint_position > lower) & (goal.start.joint_position < upper)
    terms["limits"] = 10 * jnp.mean(jnp.where(inside[None], over / MARGIN, 0) ** 2)
    return terms


class Motion(eqx.Module):
    """The motion whose torques are optimised; every number of it is a leaf."""

    system: Any
    control: PostureControl
    goal: Goal
    scale: Float[Array, " joints"]
    dt: Float[Array, ""]
    steps: int = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    def policy(self, knots: Array) -> Torques:
        """The policy with these knots."""
        return Torques(self.control, knots, self.scale, self.dt * self.steps)

    def rollout(self, knots: Array, steps: int | None = None, save_every: int = 1) -> jaxdyn.Trajectory:
        """Simulates it, with the torques as records."""
        return jaxdyn.rollout(
            self.system,
            jaxdyn.SemiImplicitEuler(),
            self.goal.start,
            self.policy(knots),
            self.dt,
            steps or self.steps,
            substeps=self.substeps,
            # All values of a short motion fit in memory, which saves the time to compute them twice.
            checkpoint="none" if self.steps * self.substeps <= 2000 else "nested",
            save_every=save_every,
            record=_torque,
        )

    def cost(self, knots: Array) -> tuple[Array, dict[str, Array]]:
        """The cost, and its terms."""
        every = max(d for d in range(1, 11) if self.steps % d == 0)
        terms = cost_terms(self.system, self.goal, self.policy(knots), self.rollout(knots, save_every=every))
        return sum(terms.values()), terms  # type: ignore[return-value]


def _torque(x: Any, u: Any, t: Array) -> Array:
    return u


@dataclasses.dataclass
class Outcome:
    """Result of an optimisation: the best `knots`, the `costs` of all iterations, the terms before and after."""

    knots: np.ndarray
    costs: list[float]
    first: dict[str, float]
    last: dict[str, float]
    best: float
    compile_seconds: float
    seconds: float
    interrupted: bool


def minimise(
    motion: Motion,
    knots: np.ndarray,
    iterations: int,
    rate: float,
    report: Callable[[int, float, dict[str, float]], None],
    check: Callable[[], None],
) -> Outcome:
    """Adam with a rate that falls to a tenth (cosine), on the norm of a clipped gradient.

    After a cost that is not finite or more than twice the best one, it goes back to the best and halves the rate: through
    contact, a step too long leads to another landing. `report(iteration, cost, terms)` is called after each evaluation;
    `check()` raises `KeyboardInterrupt` if it is to stop, and the best so far is returned.
    """
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))

    @eqx.filter_jit
    def evaluate(motion: Motion, knots: Array, state: Any) -> Any:
        (cost, terms), slope = jax.value_and_grad(motion.cost, has_aux=True)(knots)
        sound = jnp.isfinite(cost) & jnp.all(jnp.isfinite(slope))
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of a counter
            change, state = optimiser.update(jnp.where(sound, slope, 0), state)
        return jnp.where(sound, cost, jnp.inf), terms, change, state

    x = jnp.asarray(knots, motion.scale.dtype)
    state = fresh = optimiser.init(x)
    start = time.perf_counter()
    program = evaluate.lower(motion, x, state).compile()
    compile_seconds = time.perf_counter() - start
    outcome = Outcome(np.asarray(x), [], {}, {}, np.inf, compile_seconds, 0.0, False)
    best, factor, start = x, 1.0, time.perf_counter()
    try:
        for i in range(iterations + 1):
            check()
            cost, terms, change, state = program(motion, x, state)
            cost, terms = float(cost), {name: float(value) for name, value in terms.items()}
            outcome.costs.append(cost)
            outcome.first = outcome.first or terms
            if cost < outcome.best:
                best, outcome.best, outcome.last = x, cost, terms
            report(i, cost, terms)
            if cost > 2 * outcome.best or not np.isfinite(cost):
                x, state, factor = best, fresh, 0.5 * factor
                if not np.isfinite(outcome.best):
                    break
                continue
            x = x - rate * factor * (0.55 + 0.45 * math.cos(math.pi * i / max(iterations, 1))) * change
    except KeyboardInterrupt:
        outcome.interrupted = True
    outcome.knots, outcome.seconds = np.asarray(best), time.perf_counter() - start
    return outcome


def motion_of(
    system: Any, control: PostureControl, plan: Plan, goal: Goal, dt: float, steps: int, substeps: int
) -> Motion:
    """A motion with torques in units of what the joints usually bear: those of the stiffness `kp`
    at a radian, a third of the limit at most."""
    dtype = control.kp.dtype
    scale = np.minimum(np.maximum((2 if is_floating(system.model) else 10) * plan.kp, 1e-3), plan.limit / 3)
    return Motion(system, control, goal, jnp.asarray(scale, dtype), jnp.asarray(dt, dtype), steps, substeps)


def gentle(plan: Plan, floating: bool = True) -> Plan:
    """A plan to differentiate: PD control half as stiff, a tenth for a fixed base, which the torques then need not fight;
    and friction that grows over twice the slip velocity, so that its derivative stays tame under the peak loads of a
    push-off."""
    ground = dataclasses.replace(plan.ground, slip_velocity=2 * plan.ground.slip_velocity)
    return dataclasses.replace(plan, ground=ground, kp=(0.5 if floating else 0.1) * plan.kp)


def start_state(model: jaxdyn.Model, plan: Plan) -> Any:
    """The state in which the plan stands."""
    return make_state(model, jnp.asarray(plan.q, model.dtype))
