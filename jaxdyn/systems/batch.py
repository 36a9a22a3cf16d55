"""Rollouts of many environments at once, with progress, interruption and reports of what went wrong."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdyn.contact.fields import leaf_ranks
from jaxdyn.errors import FloatLike, InputError, Status
from jaxdyn.systems.first_order import FirstOrderSystem
from jaxdyn.systems.integrators import AnySystem, Integrator
from jaxdyn.systems.rollout import (
    Advance,
    Controls,
    Trajectory,
    check_save_every,
    dtype_of_state,
    first_nonfinite,
    input_ranks,
)
from jaxdyn.systems.sharding import check_mesh, lay_out, split_over_devices
from jaxdyn.systems.system import Input

# Environments in one tile on a CPU: the working set of a step then stays in the cache; see jaxdyn.math.batching.
TILE = 56


class Progress(NamedTuple):
    """How far a batch rollout has come.

    `done` of `steps` control steps of `environments`; `seconds` of running, compilation not counted; `rate`:
    environment steps per second.
    """

    done: int
    steps: int
    environments: int
    seconds: float
    rate: float


class BatchResult(NamedTuple):
    """Result of a batch rollout.

    `trajectory`: a `Trajectory` with the environments first, as NumPy arrays; `status`: `OK`, `INTERRUPTED` or
    `NON_FINITE`; `message`: a sentence; `steps`: control steps done; `finite`: (environments,), whose last states are
    finite; `rate`: environment steps per second; `seconds`: time to run; `compile_seconds`: time to trace and compile.
    """

    trajectory: Trajectory
    status: Status
    message: str
    steps: int
    finite: np.ndarray
    rate: float
    seconds: float
    compile_seconds: float


def batch_rollout(
    system: AnySystem,
    integrator: Integrator,
    x0: Any,
    controls: Any,
    dt: FloatLike,
    steps: int,
    *,
    substeps: int = 1,
    save_every: int | None = None,
    record: Callable | None = None,
    t0: FloatLike = 0.0,
    system_axes: Any = None,
    chunk: int | None = None,
    tile: int | None = None,
    threads: int | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[Progress], object] | None = None,
    stop_if_not_finite: bool = True,
) -> BatchResult:
    """Simulate many environments from the states `x0` for `steps` control steps of length `dt` (s).

    This function runs the loop itself, compiled piece by piece: it is not for use under `jit` or `grad` (there,
    `jax.vmap` of `rollout` is).

    **Arguments:**

    - `system`: one system, in which any leaf may have a leading axis for the environments: masses, friction, stiffness, gravity, ...
    - `x0`: states with a leading axis for the environments.
    - `controls`: a policy `policy(x, t)` of one environment; or an `Input` or torque array to hold, with a leading axis for the time, for
      the environments, or for environments and then time; or None. An axis as long as the number of steps and of
      environments alike is ambiguous and refused.
    - `substeps`, `record`, `t0`: as for `rollout`.
    - `save_every`: number of control steps between saved states; None, the default here, saves the end alone.
    - `system_axes`: a pytree prefix of `system` with 0 (one value per environment) or None (shared), if ranks do not tell.
    - `chunk`: steps between two looks at progress and finiteness; a multiple of `save_every`.
    - `tile`, `threads`: on a CPU the environments are run in tiles of this many, on so many threads; default: what fits the cache, all
      processors. Elsewhere all run at once.
    - `mesh`: a `jax.sharding.Mesh` with one axis, over whose devices the environments are split; then there are no tiles.
    - `progress`: called after each chunk with a `Progress`.
    - `stop_if_not_finite`: end the rollout after a chunk in which a state became NaN or infinite; else go on with the others.

    **Returns:** a `BatchResult`. On Ctrl-C (`KeyboardInterrupt`, also raised by `progress`) it holds what was complete
    until then, with status `INTERRUPTED`. If a state is not finite, the message names the environment, the step, the
    time and the component.

    **Raises:** `InputError` for wrong shapes.
    """
    dtype = dtype_of_state(system, x0)
    environments = _count(x0)
    save_every = check_save_every(save_every, steps)
    controls, batched_controls = _batch_controls(system, controls, environments, steps)
    world = (system, controls, integrator, record)
    masks = _batched_leaves(system, system_axes, environments), batched_controls, False, False
    batched, shared = eqx.partition(world, masks)

    if mesh is not None:
        devices, tiles, threads = check_mesh(mesh).size, 1, 1
    elif jax.default_backend() == "cpu":
        devices, threads = 1, threads or _processors()
        tiles = _tiles(environments, tile, threads)
    else:
        devices, threads = 1, 1
        tiles = -(-environments // tile) if tile else 1
    size = -(-environments // (tiles * devices)) * devices
    if tiles * size != environments:  # equal tiles are one program: repeat the last environment
        rows = np.minimum(np.arange(tiles * size), environments - 1)
        batched, x0 = jax.tree.map(lambda a: jnp.asarray(a)[rows], (batched, x0))

    def cut(tree: Any, i: int) -> Any:
        return lay_out(jax.tree.map(lambda a: a[i * size : (i + 1) * size], tree), mesh)

    parts = [cut(batched, i) for i in range(tiles)]
    states = [cut(x0, i) for i in range(tiles)]
    clock = jnp.asarray(dt, dtype), jnp.asarray(t0, dtype)
    chunk = _chunk_length(steps, save_every or 1, chunk)

    def run(part: Any, x: Any, first: int, count: int) -> tuple:
        number = jnp.asarray(first, jnp.int32)
        result = _run_chunk(part, shared, x, number, clock, count, substeps, save_every, mesh)
        return result[0], *jax.tree.map(np.asarray, result[1:])

    saved: list[tuple] = []
    finite = np.ones(environments, bool)
    status, message = Status.OK, Status.OK.remedy
    done, seconds, compile_seconds = 0, 0.0, 0.0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            start = time.perf_counter()
            for count in sorted({min(chunk, steps), steps % chunk if steps else 0} - {0}):
                number = jnp.asarray(0, jnp.int32)
                _run_chunk.lower(
                    parts[0], shared, states[0], number, clock, count, substeps, save_every, mesh
                ).compile()
            compile_seconds = time.perf_counter() - start
            while done < steps:
                count = min(chunk, steps - done)
                start = time.perf_counter()
                jobs = [pool.submit(run, part, x, done, count) for part, x in zip(parts, states, strict=True)]
                results = [job.result() for job in jobs]
                seconds += time.perf_counter() - start
                before, states = states, [r[0] for r in results]
                saved.append(tuple(zip(*(r[1:3] for r in results), strict=True)))
                was_finite, finite = finite, np.concatenate([r[3] for r in results])[:environments]
                done += count
                if not finite.all() and was_finite.all():
                    status = Status.NON_FINITE
                    bad = int(np.argmin(finite))
                    part, x = _row(parts[bad // size], bad % size), _row(before[bad // size], bad % size)
                    message = f"environment {bad}: {_fault(part, shared, x, done - count, clock, count, substeps)}"
                if progress is not None:
                    rate = done * environments / max(seconds, 1e-9)
                    progress(Progress(done, steps, environments, seconds, rate))
                if status is Status.NON_FINITE and stop_if_not_finite:
                    break
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            status, message = Status.INTERRUPTED, Status.INTERRUPTED.remedy
    trajectory = _assemble(saved, states, environments, save_every, clock)
    rate = done * environments / max(seconds, 1e-9)
    return BatchResult(trajectory, status, message, done, finite, rate, seconds, compile_seconds)


# The compiled piece


@eqx.filter_jit
def _run_chunk(batched, shared, x, first, clock, steps, substeps, save_every, mesh):
    """`(last states, saved states, records, which are finite)` of one tile over `steps` steps from number `first` on."""

    def tile(split, whole):
        one = lambda part, x: _run_one(part, whole, x, steps, substeps, save_every)  # noqa: E731
        return jax.vmap(one)(*split)

    return split_over_devices(tile, mesh)((batched, x), (shared, first, clock))


def _run_one(batched, whole, x, steps, substeps, save_every):
    shared, first, clock = whole
    system, controls, integrator, record = eqx.combine(batched, shared)
    # the controls of all steps are there; these steps take their piece
    piece = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, steps), controls.scanned)
    controls = Controls(controls.policy, piece, controls.held)
    advance = Advance(system, integrator, clock[0], clock[1], substeps, record)
    final, states, kept = advance(x, controls, first, steps, save_every, "none")
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(final)]))
    return final, states, kept, finite


_run_one_jitted = eqx.filter_jit(_run_one)


def _fault(batched, shared, x, first: int, clock, steps: int, substeps: int) -> str:
    """What became non-finite first in an environment that starts from `x` at step `first`."""
    number = jnp.asarray(first, jnp.int32)
    _, states, _, _ = _run_one_jitted(batched, (shared, number, clock), x, steps, substeps, 1)
    empty = np.zeros(0)
    found = first_nonfinite(Trajectory(empty, states, None, None))
    if found is None:
        return "a state that is not finite; run alone, the environment stays finite."
    index, component = found
    dt, t0 = (float(c) for c in clock)
    step_number = first + index + 1
    return f"{component} after step {step_number} (t = {t0 + step_number * dt:.6g} s). {Status.NON_FINITE.remedy}"


# Who has an axis for the environments


def _count(x0: Any) -> int:
    """Number of environments, from the states."""
    leaves = jax.tree.leaves(x0)
    sizes = set()
    for leaf, rank in zip(leaves, leaf_ranks(x0), strict=True):
        if rank is not None and leaf.ndim != rank + 1:
            raise InputError(
                f"x0: wanted states with one leading axis for the environments, given a leaf of shape {leaf.shape}."
            )
        sizes.add(leaf.shape[0])
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"x0: wanted the same number of environments, at least one, in all leaves, given {sorted(sizes)}."
        )
    return sizes.pop()


def _batched_leaves(tree: Any, axes: Any, environments: int) -> Any:
    """A pytree of bools: which leaves have an axis for the environments; told by `axes`, else by the ranks."""
    structure = jax.tree.structure(tree)
    if axes is not None:
        flat = jax.tree.map(lambda axis, part: jax.tree.map(lambda _: axis == 0, part), axes, tree, is_leaf=_is_none)
        return structure.unflatten(jax.tree.leaves(flat))
    flags = []
    for (path, leaf), rank in zip(jax.tree_util.tree_flatten_with_path(tree)[0], leaf_ranks(tree), strict=True):
        extra = 0 if rank is None or not eqx.is_array(leaf) else leaf.ndim - rank
        if extra not in (0, 1) or (extra and leaf.shape[0] != environments):
            raise InputError(
                f"system{jax.tree_util.keystr(path)}: wanted rank {rank}, or one leading axis of {environments} environments "
                f"more, given shape {leaf.shape}."
            )
        flags.append(extra == 1)
    return structure.unflatten(flags)


def _is_none(x: Any) -> bool:
    return x is None


def _batch_controls(system: AnySystem, controls: Any, environments: int, steps: int) -> tuple[Controls, Any]:
    """The controls, and which of their leaves have an axis for the environments."""
    if controls is None or (callable(controls) and not isinstance(controls, Input)):
        controls = Controls(controls, None, None)
        return controls, _batched_leaves(controls, None, environments)
    if not isinstance(controls, eqx.Module) and not isinstance(system, FirstOrderSystem):
        controls = Input(controls)
    leaves, structure = jax.tree.flatten(controls)
    in_time, in_batch = [], []
    for leaf, rank in zip(leaves, input_ranks(controls), strict=True):
        extra = leaf.shape[: leaf.ndim - (rank or 0)]
        if extra in ((), (environments,), (steps,), (environments, steps)):
            if extra == (steps,) == (environments,):
                raise InputError(f"controls: an axis of length {steps} may be time or environments; give both axes.")
        else:
            raise InputError(
                f"controls: wanted leading axes (), ({steps},) for the time, ({environments},) for the environments or "
                f"({environments}, {steps}), given shape {leaf.shape}."
            )
        in_time.append(extra in ((steps,), (environments, steps)))
        in_batch.append(extra in ((environments,), (environments, steps)))
    time_mask, batch_mask = structure.unflatten(in_time), structure.unflatten(in_batch)
    scanned, held = eqx.partition(controls, time_mask)
    return Controls(None, scanned, held), Controls(None, *eqx.partition(batch_mask, time_mask))


def _row(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda a: a[i], tree)


# Sizes


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tiles(environments: int, tile: int | None, threads: int) -> int:
    """Number of tiles: equal ones, not larger than asked for, and as many as keep all threads busy."""
    if tile is not None:
        return -(-environments // tile)
    tiles = -(-environments // TILE)
    return min(-(-tiles // threads) * threads, max(1, environments // 8))


def _chunk_length(steps: int, save_every: int, chunk: int | None) -> int:
    """A twentieth of the steps: a multiple of `save_every`, and a divisor of `steps` if there is one near."""
    if chunk is not None:
        if chunk < 1 or chunk % save_every:
            raise InputError(f"chunk: wanted a multiple of save_every = {save_every}, given {chunk}.")
        return chunk
    wish = max(1, steps // 20)
    near = [c for c in range(save_every, 4 * wish + save_every, save_every) if steps % c == 0 and c >= wish / 3]
    return min(near, key=lambda c: abs(math.log(c / wish)), default=-(-wish // save_every) * save_every)


def _assemble(saved: list[tuple], states: list, environments: int, save_every: int | None, clock: tuple) -> Trajectory:
    """One trajectory of the pieces: tiles along the environments, chunks along the time."""

    def join(pieces: list, axis: int) -> Any:
        return jax.tree.map(lambda *a: np.concatenate([np.asarray(x) for x in a], axis=axis), *pieces)

    final = jax.tree.map(lambda a: a[:environments], join(states, 0))
    if save_every is None or not saved:
        return Trajectory(np.zeros(0, clock[0].dtype), None, None, final)
    state, record = (
        jax.tree.map(lambda a: a[:environments], join([join(list(chunk[k]), 0) for chunk in saved], 1)) for k in (0, 1)
    )
    saves = jax.tree.leaves(state)[0].shape[1]
    times = np.asarray(clock[1]) + np.asarray(clock[0]) * (np.arange(1, saves + 1) * save_every).astype(clock[0].dtype)
    return Trajectory(times, state, record, final)
