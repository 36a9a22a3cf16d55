"""Rollouts: many steps in time, by `scan`, so that what is compiled does not depend on how many.

Reverse mode needs the intermediate values of all steps. `checkpoint` chooses what is kept and what is computed again:

| `checkpoint` | kept for N steps | forward passes in a gradient |
|---|---|---|
| `"none"` | all values of N steps | 1 |
| `"step"` | N states | 2 |
| `"nested"` | sqrt(N) states and all values of sqrt(N) steps | 2 |

Forward mode (`jax.jacfwd`, for up to about ten parameters) needs none of it. What `save_every` saves is kept besides:
save the end alone (`save_every=None`) where memory counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import leaf_ranks
from jaxdyn.errors import FloatLike, InputError, is_concrete, unknown_name
from jaxdyn.systems.first_order import FirstOrderSystem
from jaxdyn.systems.integrators import AnySystem, Integrator, step
from jaxdyn.systems.system import Input, strong

CHECKPOINTS = ("none", "step", "nested")


class Trajectory(eqx.Module):
    """What a rollout saved.

    `time`: (saves,), s; `state`: the states at these times, stacked along a leading axis; `record`: what `record` gave
    there, stacked, or None; `final`: the last state, saved or not. The initial state is not among them. Batched
    trajectories have the environments first.
    """

    time: Float[Array | np.ndarray, "... saves"]
    state: Any
    record: Any
    final: Any


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
) -> Trajectory:
    """Simulate from `x0` for `steps` control steps of length `dt` (s).

    **Arguments:**

    - `system`, `integrator`, `x0`: one system, one state; batches go through `jax.vmap` or `batch_rollout`.
    - `controls`: one of: a policy `policy(x, t)` that returns an input; an `Input` or torque vector to hold; an `Input` or torque
      array with a leading time axis of length `steps`; None for no torque. In an `Input` with such a torque, those
      numbers of the contacts that have one axis more than one contact needs change in time too.
    - `steps`: may be left out if `controls` has a time axis.
    - `substeps`: integrator steps of length `dt / substeps` per control step, the input held.
    - `checkpoint`: `"none"`, `"step"` or `"nested"`, see the module's text.
    - `save_every`: number of control steps between saved states, a divisor of `steps`; None saves nothing but the end.
    - `record`: a function `record(x, u, t)` of a saved state, the input that led to it, and its time, whose result is saved with it.
    - `t0`: time at the start.

    **Returns:** a `Trajectory`; with `steps=0`, an empty one whose `final` is `x0`.

    **Raises:** `InputError` for wrong shapes or numbers of steps, `UnknownNameError` for another `checkpoint`.

    The function is compiled as a whole; different numbers in any leaf of `system`, `x0`, `controls`, `dt` do not
    compile it anew. A policy that is a plain function does so when it is another object; make it an `eqx.Module` to
    change its parameters.
    """
    if checkpoint not in CHECKPOINTS:
        raise unknown_name("checkpoint", checkpoint, CHECKPOINTS)
    if is_concrete(dt) and not np.all(np.asarray(dt) > 0):
        raise InputError(f"dt: wanted a positive time step, given {dt}.")
    if substeps < 1:
        raise InputError(f"substeps: wanted at least 1, given {substeps}.")
    controls = as_controls(system, controls)
    steps = number_of_steps(controls, steps)
    save_every = check_save_every(save_every, steps)
    dtype = dtype_of_state(system, x0)
    dt, t0 = jnp.asarray(dt, dtype), jnp.asarray(t0, dtype)
    return _rollout(system, integrator, x0, controls, dt, t0, steps, substeps, checkpoint, save_every, record)


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
def _rollout(system, integrator, x0, controls, dt, t0, steps, substeps, checkpoint, save_every, record) -> Trajectory:
    advance = Advance(system.with_derivatives("products"), integrator, dt, t0, substeps, record)
    final, state, kept = advance(x0, controls, jnp.zeros((), jnp.int32), steps, save_every, checkpoint)
    saves = steps // save_every if save_every else 0
    time = t0 + dt * (jnp.arange(1, saves + 1) * (save_every or 1)).astype(dt.dtype)
    return Trajectory(time, state, kept, final)


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
        raise InputError("steps: wanted a number of steps, as the controls have no time axis.")
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
    dt: Array
    t0: Array
    substeps: int = eqx.field(static=True)
    record: Callable | None

    def __call__(
        self, x: Any, controls: Controls, first: Array, steps: int, save_every: int | None, checkpoint: str
    ) -> tuple[Any, Any, Any]:
        """`(final state, saved states, records)` of `steps` control steps, the first of which has number `first`."""
        xs = (first + jnp.arange(steps, dtype=jnp.int32), controls.scanned)
        record = self.record

        def one(carry: tuple, now: tuple) -> tuple[tuple, None]:
            number, scanned = now
            t = self._time(number)
            u = controls.at(scanned, carry[0], t)
            x = step(self.system, self.integrator, carry[0], u, self.dt, t, self.substeps)
            return (x, strong(u, carry[1]) if record else None), None

        def several(carry: tuple, now: tuple, inside: str) -> tuple[tuple, tuple]:
            x, u = carry = _scan(one, carry, now, len(now[0]), inside)[0]
            kept = record(x, u, self._time(now[0][-1] + 1)) if record else None
            return carry, (x, kept)

        u = None
        if record and steps:
            shape = jax.eval_shape(
                lambda: controls.at(jax.tree.map(lambda a: a[0], controls.scanned), x, self._time(first))
            )
            u = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
        if save_every is None:
            (x, _), _ = _scan(one, (x, u), xs, steps, checkpoint)
            return x, None, None
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
        (x, _), (states, kept) = _scan(body, (x, u), groups, steps // save_every, outside)
        return x, states, kept

    def _time(self, number: Array) -> Array:
        return self.t0 + number.astype(self.dt.dtype) * self.dt


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
