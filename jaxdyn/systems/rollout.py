"""Rollouts: many steps in time, by `scan`, so that what is compiled does not depend on how many.

Reverse mode needs the intermediate values of all steps. `checkpoint` chooses what is kept and what is computed again:

| `checkpoint` | kept for N steps | forward passes in a gradient |
|---|---|---|
| `"none"` | all values of N steps | 1 |
| `"step"` | N states | 2 |
| `"nested"` | sqrt(N) states and all values of sqrt(N) steps | 2 |

Forward mode (`jax.jacfwd`, for up to about ten parameters) needs none of it. What `save_every` saves is kept besides:
save the end alone (`save_every=None`) where memory counts.

A rollout that stops early has the same loop: from then on its state is frozen. So every derivative exists, and in a
batch each environment stops by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.contact.fields import leaf_ranks
from jaxdyn.errors import FloatLike, InputError, Status, is_concrete, unknown_name
from jaxdyn.systems.first_order import FirstOrderSystem
from jaxdyn.systems.integrators import AnySystem, Integrator, first_fault, step_with_status
from jaxdyn.systems.system import Input, strong

CHECKPOINTS = ("none", "step", "nested")

# Times that differ by so many roundings of a duration are the same.
ROUNDING = 16


class Trajectory(eqx.Module):
    """What a rollout saved.

    `time`: (saves,), s; `state`: the states at these times, stacked along a leading axis; `record`: what `record` gave
    there, stacked, or None; `final`: the last state, saved or not. The initial state is not among them. Batched
    trajectories have the environments first.

    `status`: a `Status` as an integer, `OK`, `MAX_ITERATIONS` if a step of an implicit integrator did not converge, or
    `NON_FINITE`. With `stop`: `stopped`, whether it fired; `steps`, the number of control steps until then, or of all;
    `active`, (saves,), which of the saved states were reached by moving: the others repeat the one in which it stopped.
    """

    time: Float[Array | np.ndarray, "... saves"]
    state: Any
    record: Any
    final: Any
    status: Int[Array | np.ndarray, "..."] | None = None
    stopped: Bool[Array | np.ndarray, "..."] | None = None
    steps: Int[Array | np.ndarray, "..."] | None = None
    active: Bool[Array | np.ndarray, "... saves"] | None = None


def rollout(
    system: AnySystem,
    integrator: Integrator,
    x0: Any,
    controls: Any,
    dt: FloatLike,
    steps: int | None = None,
    *,
    substeps: int = 1,
    checkpoint: str = "step",
    save_every: int | None = 1,
    record: Callable | None = None,
    t0: FloatLike = 0.0,
    duration: FloatLike | None = None,
    stop: Callable | None = None,
) -> Trajectory:
    """Simulate from `x0` for `steps` control steps of length `dt` (s), or for `duration` seconds.

    **Arguments:**

    - `system`, `integrator`, `x0`: one system, one state; batches go through `jax.vmap` or `batch_rollout`.
    - `controls`: one of: a policy `policy(x, t)` that returns an input; an `Input` or torque vector to hold; an `Input` or torque
      array with a leading time axis of length `steps`; None for no torque. In an `Input` with such a torque, those
      numbers of the contacts that have one axis more than one contact needs change in time too.
    - `steps`: may be left out if `controls` has a time axis, or with `duration`.
    - `substeps`: integrator steps of length `dt / substeps` per control step, the input held.
    - `checkpoint`: `"none"`, `"step"` or `"nested"`, see the module's text.
    - `save_every`: number of control steps between saved states, a divisor of `steps`; None saves nothing but the end.
    - `record`: a function `record(x, u, t)` of a saved state, the input that led to it, and its time, whose result is saved with it.
    - `t0`: time at the start.
    - `duration`: time (s) after which the rollout ends, exactly: the last of the `ceil(duration / dt)` steps is as short as
      need be. Derivatives with respect to it exist; where it is traced, give `steps` too: enough of them, what is too many
      take no time.
    - `stop`: a function `stop(x, t)` that returns one bool, asked before the first step and after every control step. Once it
      is true the state stays as it is: see `Trajectory`.

    **Returns:** a `Trajectory`; with `steps=0`, an empty one whose `final` is `x0`.

    **Raises:** `InputError` for wrong shapes or numbers of steps, `UnknownNameError` for another `checkpoint`.

    The function is compiled as a whole; different numbers in any leaf of `system`, `x0`, `controls`, `dt`, `duration` do
    not compile it anew. A policy that is a plain function does so when it is another object; make it an `eqx.Module` to
    change its parameters.
    """
    if checkpoint not in CHECKPOINTS:
        raise unknown_name("checkpoint", checkpoint, CHECKPOINTS)
    check_clock(dt, substeps)
    controls = as_controls(system, controls)
    dtype = dtype_of_state(system, x0)
    steps = number_of_steps(controls, steps_of_duration(duration, dt, steps, dtype))
    save_every = check_save_every(save_every, steps)
    clock = make_clock(dt, t0, duration, dtype)
    check_stop(stop, x0, clock)
    return _rollout(system, integrator, x0, controls, clock, steps, substeps, checkpoint, save_every, record, stop)


def dtype_of_state(system: AnySystem, x0: Any) -> Any:
    # first-order systems bring states of their own; a robot's has velocities and is no q, no (q, v), no None
    leaves = jax.tree.leaves(x0)
    if not leaves or (not isinstance(system, FirstOrderSystem) and not isinstance(x0, eqx.Module)):
        raise InputError(
            f"x0: wanted a state of {type(system).__name__}, given {type(x0).__name__}; a `State` is made by "
            "state_from_configuration(model, q, v), a `FixedBaseState` from joint velocities and positions."
        )
    return leaves[0].dtype


@eqx.filter_jit
def _rollout(
    system, integrator, x0, controls, clock, steps, substeps, checkpoint, save_every, record, stop
) -> Trajectory:
    advance = Advance(system.with_derivatives("products"), integrator, clock, substeps, record, stop)
    lane, state, kept, active = advance(
        first_lane(x0, stop, clock), controls, jnp.zeros((), jnp.int32), steps, save_every, checkpoint
    )
    saves = steps // save_every if save_every else 0
    time = clock.at((jnp.arange(1, saves + 1) * (save_every or 1)).astype(jnp.int32))
    status = first_fault(lane.status, jnp.where(is_finite(lane.x), int(Status.OK), int(Status.NON_FINITE)))
    return Trajectory(time, state, kept, lane.x, status.astype(jnp.int32), lane.stopped, lane.steps, active)


class Clock(NamedTuple):
    """Times of a rollout: length of a control step, start, and the duration where one was given."""

    dt: Array
    t0: Array
    duration: Array | None

    def at(self, number: Array) -> Array:
        """The time after `number` steps."""
        time = self.dt * number.astype(self.dt.dtype)
        if self.duration is not None:
            time = jnp.where(self.duration - time > self._slack(), time, self.duration)
        return self.t0 + time

    def length(self, number: Array) -> Array:
        """The length of step `number`: what is left of the duration, if that is less than a whole one; then none."""
        if self.duration is None:
            return self.dt
        left = self.duration - self.dt * number.astype(self.dt.dtype)
        # by `where`: at the end of a duration that is a multiple of dt, the minimum of two equal numbers would have half a derivative
        last = jnp.where(left > self._slack(), left, jnp.zeros_like(left))
        return jnp.where(left > self.dt + self._slack(), self.dt, last)

    def _slack(self) -> Array:
        return ROUNDING * jnp.finfo(self.dt.dtype).eps * jnp.asarray(self.duration)


def make_clock(dt: FloatLike, t0: FloatLike, duration: FloatLike | None, dtype: Any) -> Clock:
    """The clock, in the dtype of the state."""
    end = None if duration is None else jnp.asarray(duration, dtype)
    return Clock(jnp.asarray(dt, dtype), jnp.asarray(t0, dtype), end)


def check_clock(dt: FloatLike, substeps: int) -> None:
    """Raises `InputError` for a step that is not positive, and for no substeps."""
    if is_concrete(dt) and not np.all(np.asarray(dt) > 0):
        raise InputError(f"dt: wanted a positive time step, given {dt}.")
    if substeps < 1:
        raise InputError(f"substeps: wanted at least 1, given {substeps}.")


def steps_of_duration(duration: FloatLike | None, dt: FloatLike, steps: int | None, dtype: Any) -> int | None:
    """The number of steps, checked against the duration if both are known."""
    if duration is None:
        return steps
    if not (is_concrete(duration) and is_concrete(dt)):
        return steps
    if not 0 <= float(duration) < math.inf:
        raise InputError(f"duration: wanted a time that is not negative, given {duration}.")
    # a step less than by rounding: 1.1 / 0.1 is 11.000000000000002
    count = math.ceil(float(duration) / float(dt) * (1 - ROUNDING * float(jnp.finfo(dtype).eps)))
    if steps is not None and steps != count:
        raise InputError(f"steps: a duration of {duration} s takes {count} steps of at most {dt} s, given {steps}.")
    return count


def check_stop(stop: Callable | None, x0: Any, clock: Clock) -> None:
    """Raises `InputError` unless `stop` returns one bool."""
    if stop is None:
        return
    found = jax.eval_shape(stop, x0, clock.t0)
    if getattr(found, "shape", None) != () or found.dtype != bool:
        shown = f"{found.dtype}{found.shape}" if hasattr(found, "shape") else type(found).__name__
        raise InputError(f"stop: wanted a function (x, t) that returns one bool, given one that returns {shown}.")


class Lane(NamedTuple):
    """What the loop carries of one robot: its state, the status so far, and with `stop`: whether it fired, and the number
    of steps until then."""

    x: Any
    status: Array
    stopped: Array | None
    steps: Array | None


def first_lane(x0: Any, stop: Callable | None, clock: Clock) -> Lane:
    """The lane before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return Lane(x0, zero, None, None) if stop is None else Lane(x0, zero, jnp.asarray(stop(x0, clock.t0)), zero)


def is_finite(x: Any) -> Array:
    """Whether all numbers of a state are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x)]))


class Controls(eqx.Module):
    """Inputs in the forms that `rollout` takes: a policy, or leaves of which those in `scanned` have a time axis."""

    policy: Callable | None
    scanned: Any
    held: Any

    def at(self, scanned: Any, x: Any, t: Array) -> Any:
        """The input for the state `x` at time `t`, given this step's slice of `scanned`."""
        if self.policy is not None:
            return self.policy(x, t)
        return eqx.combine(scanned, self.held)


def as_controls(system: AnySystem, controls: Any) -> Controls:
    """Sort what a user gives as controls."""
    if isinstance(controls, Controls):
        return controls
    if callable(controls) and not isinstance(controls, Input):
        return Controls(controls, None, None)
    if controls is None:
        return Controls(None, None, None)
    if isinstance(system, FirstOrderSystem) or (not hasattr(controls, "torque") and isinstance(controls, eqx.Module)):
        return _other_controls(controls)
    controls = controls if isinstance(controls, Input) else Input(controls)
    if controls.torque.shape[-1] != system.n or controls.torque.ndim > 2:
        raise InputError(
            f"controls: wanted torques of shape ({system.n},) to hold or (steps, {system.n}), "
            f"given {controls.torque.shape}."
        )
    leaves, structure = jax.tree.flatten(controls)
    moving = controls.torque.ndim == 2
    mask = [
        moving and rank is not None and leaf.ndim == rank + 1
        for leaf, rank in zip(leaves, leaf_ranks(controls), strict=True)
    ]
    return Controls(None, *eqx.partition(controls, structure.unflatten(mask)))


def input_ranks(controls: Any) -> list[int | None]:
    """The rank of each leaf without axes of time and environments; a bare array is a vector."""
    return [1] if isinstance(controls, jax.Array | np.ndarray) else leaf_ranks(controls)


def _other_controls(controls: Any) -> Controls:
    """Inputs that are no torques: a bare vector, or a class of leaves that know their rank."""
    leaves, structure = jax.tree.flatten(controls)
    extra = [leaf.ndim - (rank or 0) for leaf, rank in zip(leaves, input_ranks(controls), strict=True)]
    if any(e not in (0, 1) for e in extra):
        shapes = [leaf.shape for leaf in leaves]
        raise InputError(f"controls: wanted inputs to hold, or with one axis more for the time, given shapes {shapes}.")
    return Controls(None, *eqx.partition(controls, structure.unflatten([e == 1 for e in extra])))


def number_of_steps(controls: Controls, steps: int | None) -> int:
    """The number of steps, from the argument or from the time axis of the controls."""
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(controls.scanned)}
    if len(lengths) > 1:
        raise InputError(f"controls: the time axes differ: {sorted(lengths)}.")
    if steps is None and not lengths:
        raise InputError(
            "steps: wanted a number of steps, as the controls have no time axis, and there is no duration, or one that is traced."
        )
    if steps is None:
        return lengths.pop()
    if steps < 0 or (lengths and lengths != {steps}):
        raise InputError(f"steps: given {steps}, but the controls have a time axis of length {sorted(lengths)}.")
    return steps


def check_save_every(save_every: int | None, steps: int) -> int | None:
    """None, or a divisor of `steps`."""
    if save_every is None or steps == 0:
        return None if save_every is None else 1
    if save_every < 1 or steps % save_every:
        raise InputError(f"save_every: wanted a divisor of the {steps} steps, given {save_every}.")
    return save_every


class Advance(eqx.Module):
    """The loop of a rollout, from any step on; `rollout` runs all of it, `batch_rollout` piece by piece."""

    system: AnySystem
    integrator: Integrator
    clock: Clock
    substeps: int = eqx.field(static=True)
    record: Callable | None
    stop: Callable | None = None

    def __call__(
        self, lane: Lane, controls: Controls, first: Array, steps: int, save_every: int | None, checkpoint: str
    ) -> tuple[Lane, Any, Any, Any]:
        """`(last lane, saved states, records, which of them are active)` of `steps` control steps, the first of which has
        number `first`."""
        xs = (first + jnp.arange(steps, dtype=jnp.int32), controls.scanned)
        record, start = self.record, lane.x

        def one(carry: tuple, now: tuple) -> tuple[tuple, None]:
            lane, u = carry
            return self._step(lane, u, start, controls, now), None

        def several(carry: tuple, now: tuple, inside: str) -> tuple[tuple, tuple]:
            lane, u = carry = _scan(one, carry, now, len(now[0]), inside)[0]
            end = now[0][-1] + 1
            kept = record(lane.x, u, self.clock.at(end)) if record else None
            return carry, (lane.x, kept, None if lane.steps is None else lane.steps == end)

        u = None
        if record and steps:
            shape = jax.eval_shape(
                lambda: controls.at(jax.tree.map(lambda a: a[0], controls.scanned), start, self.clock.at(first))
            )
            u = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
        if save_every is None:
            (lane, _), _ = _scan(one, (lane, u), xs, steps, checkpoint)
            return lane, None, None, None
        # With "nested", the longer of the two loops is the one that is split.
        outside = inside = checkpoint
        if checkpoint == "nested":
            outside, inside = ("none", "nested") if save_every**2 >= steps else ("nested", "none")
        groups = jax.tree.map(lambda a: a.reshape(steps // save_every, save_every, *a.shape[1:]), xs)
        body = lambda carry, now: several(carry, now, inside)  # noqa: E731
        if outside == "step":
            outside = "none"  # the steps inside are checkpointed one by one
        elif outside == "none" and inside == "nested":
            body = jax.checkpoint(body, prevent_cse=False)
        (lane, _), (states, kept, active) = _scan(body, (lane, u), groups, steps // save_every, outside)
        return lane, states, kept, active

    def _step(self, lane: Lane, u: Any, start: Any, controls: Controls, now: tuple) -> tuple[Lane, Any]:
        """One control step, unless the lane has stopped; `u`: the last input, kept for `record`."""
        number, scanned = now
        t, dt = self.clock.at(number), self.clock.length(number)

        def advance(x: Any) -> tuple[Any, Any, Array]:
            now = controls.at(scanned, x, t)
            x, status = step_with_status(self.system, self.integrator, x, now, dt, t, self.substeps)
            return x, strong(now, u) if self.record else None, first_fault(lane.status, status)

        if self.stop is None or lane.stopped is None or lane.steps is None:
            x, u, status = advance(lane.x)
            return Lane(x, status, None, None), u
        stopped = lane.stopped
        # A frozen lane takes no step. Under vmap it does, for nothing: from the start of the rollout, where the dynamics have
        # finite derivatives, and not from where it stopped, where 0 times an infinite one would be NaN.
        x, u, status = jax.lax.cond(
            stopped,
            lambda: (lane.x, u, lane.status),
            lambda: advance(jax.tree.map(lambda a, b: jnp.where(stopped, a, b), start, lane.x)),
        )
        fired = self.stop(x, self.clock.at(number + 1))
        return Lane(x, status, stopped | fired, lane.steps + (~stopped).astype(jnp.int32)), u


def _scan(body: Callable, carry: Any, xs: Any, length: int, checkpoint: str) -> tuple[Any, Any]:
    """`jax.lax.scan` that keeps for reverse mode what `checkpoint` says."""
    if length == 1:
        once = body if checkpoint == "none" else jax.checkpoint(body, prevent_cse=False)
        carry, y = once(carry, jax.tree.map(lambda a: a[0], xs))
        return carry, jax.tree.map(lambda a: a[None], y)
    if checkpoint == "none":
        return jax.lax.scan(body, carry, xs, length)
    if checkpoint == "step":
        return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), carry, xs, length)
    inner = _near_root(length)
    outer = length // inner
    split = outer * inner
    head = jax.tree.map(lambda a: a[:split].reshape(outer, inner, *a.shape[1:]), xs)
    block = jax.checkpoint(lambda carry, xs: jax.lax.scan(body, carry, xs, inner), prevent_cse=False)
    carry, ys = jax.lax.scan(block, carry, head, outer)
    ys = jax.tree.map(lambda a: a.reshape(split, *a.shape[2:]), ys)
    if length > split:
        carry, rest = jax.lax.scan(body, carry, jax.tree.map(lambda a: a[split:], xs), length - split)
        ys = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ys, rest)
    return carry, ys


def _near_root(length: int) -> int:
    """A divisor of `length` near its square root, within a factor of two, or else the root itself."""
    root = max(1, math.isqrt(length))
    near = [d for d in range(max(1, root // 2), 2 * root + 1) if length % d == 0]
    return min(near, key=lambda d: abs(math.log(d / root)), default=root)


def first_nonfinite(trajectory: Trajectory) -> tuple[int, str] | None:
    """Index of the first saved state of one robot with a NaN or infinity, and the name of its first such component;
    else None.

    Not for use under `jit`. Save every step (`save_every=1`) to find where a fault began.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(trajectory.state)]
    bad = np.any([~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves], axis=0)
    if not bad.any():
        return None
    k = int(np.argmax(bad))
    return k, nonfinite_component(jax.tree.map(lambda a: a[k], trajectory.state)) or ""


def nonfinite_component(x: Any) -> str | None:
    """Name of the first component of a state (or any pytree) that is not finite, such as `twist[2] = nan`; None if all are.

    Velocities are looked at first: a step spoils them first. Not for use under `jit`.
    """
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]]
    for name, leaf in sorted(named, key=lambda item: "velocity" not in item[0] and "twist" not in item[0]):
        numbers = np.asarray(leaf)
        if np.issubdtype(numbers.dtype, np.inexact) and not np.isfinite(numbers).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
            place = f"[{', '.join(map(str, index))}]" if index else ""
            return f"{name.lstrip('.')}{place} = {numbers[index]}"
    return None
