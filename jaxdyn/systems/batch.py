"""Rollouts of many environments at once, with progress, interruption, resumption and reports of what went wrong."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdyn.errors import FloatLike, InputError, Status
from jaxdyn.systems.environments import batch_controls, batched_leaves, count_environments
from jaxdyn.systems.integrators import AnySystem, Integrator
from jaxdyn.systems.resume import Chunk, Store, fingerprint
from jaxdyn.systems.rollout import (
    Advance,
    Clock,
    Controls,
    Lane,
    Trajectory,
    check_clock,
    check_save_every,
    check_stop,
    dtype_of_state,
    first_lane,
    first_nonfinite,
    is_finite,
    make_clock,
    steps_of_duration,
)
from jaxdyn.systems.sharding import (
    check_mesh,
    lay_out,
    of_all_processes,
    readable,
    split_over_devices,
    to_every_device,
    to_host,
)

# Environments in one tile on a CPU: the working set of a step then stays in the cache; see jaxdyn.math.batching.
TILE = 56

# Of a chunk of steps: states, records, which of the states are active.
Saved: TypeAlias = tuple[Any, Any, Any]


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

    `trajectory`: a `Trajectory` with the environments first, as NumPy arrays; `status`: `OK`, `INTERRUPTED`,
    `NON_FINITE` or, of an implicit integrator, `MAX_ITERATIONS`; `message`: a sentence; `steps`: control steps done; `finite`:
    (environments,), whose last states are finite; `rate`: environment steps per second; `seconds`: time to run;
    `compile_seconds`: time to trace and compile; `resumed`: how many of the steps were taken from `checkpoint_dir`.
    """

    trajectory: Trajectory
    status: Status
    message: str
    steps: int
    finite: np.ndarray
    rate: float
    seconds: float
    compile_seconds: float
    resumed: int = 0


def batch_rollout(
    system: AnySystem,
    integrator: Integrator,
    x0: Any,
    controls: Any,
    dt: FloatLike,
    steps: int | None = None,
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
    duration: FloatLike | None = None,
    stop: Callable | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    resume: bool = False,
) -> BatchResult:
    """Simulate many environments from the states `x0` for `steps` control steps of length `dt` (s), or for `duration` seconds.

    This function runs the loop itself, compiled piece by piece: it is not for use under `jit` or `grad` (there,
    `jax.vmap` of `rollout` is).

    **Arguments:**

    - `system`: one system, in which any leaf may have a leading axis for the environments: masses, friction, stiffness, gravity, ...;
      `randomize` makes such axes.
    - `x0`: states with a leading axis for the environments.
    - `controls`: a policy `policy(x, t)` of one environment; or an `Input` or torque array to hold, with a leading axis for the time, for
      the environments, or for environments and then time; or None. An axis as long as the number of steps and of
      environments alike is ambiguous and refused.
    - `substeps`, `record`, `t0`, `duration`, `stop`: as for `rollout`. Each environment stops by itself; once all have, so does the
      loop, and the trajectory ends there.
    - `save_every`: number of control steps between saved states; None, the default here, saves the end alone.
    - `system_axes`: a pytree prefix of `system` with 0 (one value per environment) or None (shared), if ranks do not tell.
    - `chunk`: steps between two looks at progress and finiteness; a multiple of `save_every`.
    - `tile`, `threads`: on a CPU the environments are run in tiles of this many, on so many threads; default: what fits the cache, all
      processors. Elsewhere all run at once.
    - `mesh`: a `jax.sharding.Mesh` with one axis, over whose devices the environments are split; then there are no tiles.
      The devices may be of several processes: see `environment_mesh` and `jax.distributed`. All call this function with the
      same arguments, and all get the whole result.
    - `progress`: called after each chunk with a `Progress`.
    - `stop_if_not_finite`: end the rollout after a chunk in which a state became NaN or infinite; else go on with the others.
    - `checkpoint_dir`: a folder into which every chunk is written once it is done. A process that is killed loses the one it was at.
      Several processes need a folder that all can read; the first one writes.
    - `resume`: continue from what the folder holds; nothing at all is allowed. `steps`, `chunk`, `mesh`, `tile` and `threads` may be
      others than before; everything else must be the same.

    **Returns:** a `BatchResult`. On Ctrl-C (`KeyboardInterrupt`, also raised by `progress`) it holds what was complete
    until then, with status `INTERRUPTED`. If a state is not finite, the message names the environment, the step, the
    time and the component.

    **Raises:** `InputError` for wrong shapes, and for a `checkpoint_dir` that holds another rollout, which is told by name.
    """
    dtype = dtype_of_state(system, x0)
    check_clock(dt, substeps)
    environments = count_environments(x0)
    steps = _steps(steps_of_duration(duration, dt, steps, dtype))
    save_every = check_save_every(save_every, steps)
    chunk = _chunk_length(steps, save_every or 1, chunk)
    clock = make_clock(dt, t0, duration, dtype)
    check_stop(stop, _row(x0, 0), clock)
    store = _open_store(
        checkpoint_dir, resume, system=system, integrator=integrator, x0=x0, controls=controls, record=record, stop=stop,
        dt=clock.dt, t0=clock.t0, duration=clock.duration, substeps=substeps, save_every=save_every,
    )  # fmt: skip

    controls, batched_controls = batch_controls(system, controls, environments, steps)
    world = (system, controls, integrator, record, stop)
    masks = batched_leaves(system, system_axes, environments), batched_controls, False, False, False
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
    # equal tiles are one program: repeat the last environment
    rows = None if tiles * size == environments else np.minimum(np.arange(tiles * size), environments - 1)

    def cut(tree: Any) -> list:
        tree = tree if rows is None else jax.tree.map(lambda a: jnp.asarray(a)[rows], tree)
        return [lay_out(jax.tree.map(lambda a, i=i: a[i * size : (i + 1) * size], tree), mesh) for i in range(tiles)]

    parts = cut(batched)
    shared, clock = to_every_device((shared, clock), mesh)
    options = substeps, save_every, mesh

    def piece(run: Callable, part: Any, lanes: Lane, first: int, count: int) -> Any:
        number = to_every_device(jnp.asarray(first, jnp.int32), mesh)
        return run(part, shared, lanes, number, clock, count, *options)

    def run(part: Any, lanes: Lane, first: int, count: int) -> tuple:
        lanes, *rest = piece(_run_chunk, part, lanes, first, count)
        return lanes, *to_host(rest, mesh)

    def whole_lanes() -> Lane:
        return _first(_join(to_host(lanes, mesh), 0), environments)

    def like(count: int) -> Chunk:
        """The shapes of a chunk on disk."""
        shapes = piece(functools.partial(eqx.filter_eval_shape, _run_chunk), parts[0], lanes[0], 0, count)[:-1]
        return Chunk(*jax.tree.map(lambda s: np.zeros((environments, *s.shape[1:]), s.dtype), tuple(shapes)))

    first_clock = make_clock(dt, t0, None, dtype)
    lanes = cut(jax.vmap(lambda x: first_lane(x, stop, first_clock))(x0))
    saved: list[Saved] = []
    finite = np.ones(environments, bool)
    status, message = Status.OK, Status.OK.remedy
    done = resumed = 0
    seconds = compile_seconds = 0.0
    if store is not None:
        kept = None
        for after, kept in store.chunks(like):
            resumed = after
            saved.append(kept[1:])
        if np.ptp(of_all_processes(resumed, mesh)):
            raise InputError(
                f"checkpoint_dir: wanted a folder that all processes can read; not all found {store.shown} the same."
            )
        if resumed > steps:
            raise InputError(f"checkpoint_dir: {store.shown} holds {resumed} steps, more than the {steps} wanted.")
        if kept is not None:
            done, lanes = resumed, cut(kept.lanes)
            finite = np.asarray(jax.vmap(is_finite)(kept.lanes.x))
            if not finite.all():
                status = Status.NON_FINITE
                message = f"environment {int(np.argmin(finite))}, in {store.shown}: {status.remedy}"

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            start = time.perf_counter()
            left = steps - done
            for count in sorted({min(chunk, left), left % chunk if left else 0} - {0}):
                piece(_run_chunk.lower, parts[0], lanes[0], done, count).compile()
            compile_seconds = time.perf_counter() - start
            while done < steps and not (status is Status.NON_FINITE and stop_if_not_finite):
                if stop is not None and all(stopped.all() for stopped in to_host([a.stopped for a in lanes], mesh)):
                    break
                count = min(chunk, steps - done)
                start = time.perf_counter()
                jobs = [pool.submit(run, part, at, done, count) for part, at in zip(parts, lanes, strict=True)]
                results = [job.result() for job in jobs]
                seconds += time.perf_counter() - start
                before, lanes = lanes, [r[0] for r in results]
                *pieces, ends = (_first(_join([r[k] for r in results], 0), environments) for k in (1, 2, 3, 4))
                saved.append(tuple(pieces))
                if store is not None:
                    kept = Chunk(whole_lanes(), *pieces)
                    if jax.process_index() == 0:
                        store.write(done, count, kept)
                was_finite, finite = finite, ends
                done += count
                if not finite.all() and was_finite.all():
                    status = Status.NON_FINITE
                    bad = int(np.argmin(finite))
                    tile_of, row = divmod(bad, size)
                    part, lane, whole = readable((parts[tile_of], before[tile_of], (shared, clock)), mesh)
                    found = _fault(_row(part, row), whole, _row(lane, row), done - count, count, substeps)
                    message = f"environment {bad}: {found}"
                if progress is not None:
                    rate = (done - resumed) * environments / max(seconds, 1e-9)
                    interrupted = False
                    try:
                        progress(Progress(done, steps, environments, seconds, rate))
                    except KeyboardInterrupt:
                        interrupted = True
                    # one process that went on alone would wait for the others for ever
                    if of_all_processes(interrupted, mesh).any():
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            status, message = Status.INTERRUPTED, Status.INTERRUPTED.remedy
    final = whole_lanes()
    if status is Status.OK and final.status.any():
        bad = int(np.argmax(final.status != 0))
        status = Status(int(final.status[bad]))
        message = f"environment {bad}: {status.remedy}"
    trajectory = _assemble(saved, final, finite, save_every, to_host(clock, mesh))
    rate = (done - resumed) * environments / max(seconds, 1e-9)
    return BatchResult(trajectory, status, message, done, finite, rate, seconds, compile_seconds, resumed)


# The compiled piece


@eqx.filter_jit
def _run_chunk(batched, shared, lanes, first, clock, steps, substeps, save_every, mesh):
    """`(lanes, saved states, records, which are active, which are finite)` of one tile over `steps` steps from number
    `first` on."""

    arrays, functions = eqx.partition((shared, first, clock), eqx.is_array)  # devices are given arrays alone

    def tile(split, arrays):
        whole = eqx.combine(arrays, functions)
        one = lambda part, lane: _run_one(part, whole, lane, steps, substeps, save_every)  # noqa: E731
        return jax.vmap(one)(*split)

    return split_over_devices(tile, mesh)((batched, lanes), arrays)


def _run_one(batched, whole, lane, steps, substeps, save_every):
    shared, first, clock = whole
    system, controls, integrator, record, stop = eqx.combine(batched, shared)
    # the controls of all steps are there; these steps take their piece
    piece = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, steps), controls.scanned)
    controls = Controls(controls.policy, piece, controls.held)
    advance = Advance(system, integrator, Clock(*clock), substeps, record, stop)
    lane, states, kept, active = advance(lane, controls, first, steps, save_every, "none")
    return lane, states, kept, active, is_finite(lane.x)


_run_one_jitted = eqx.filter_jit(_run_one)


def _fault(batched, whole, lane, first: int, steps: int, substeps: int) -> str:
    """What became non-finite first in an environment that starts from `lane` at step `first`."""
    shared, clock = whole
    number = jnp.asarray(first, jnp.int32)
    states = _run_one_jitted(batched, (shared, number, clock), lane, steps, substeps, 1)[1]
    found = first_nonfinite(Trajectory(np.zeros(0), states, None, None))
    if found is None:
        return "a state that is not finite; run alone, the environment stays finite."
    index, component = found
    number = first + index + 1
    at = float(Clock(*clock).at(jnp.asarray(number, jnp.int32)))
    return f"{component} after step {number} (t = {at:.6g} s). {Status.NON_FINITE.remedy}"


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


def _open_store(folder: str | os.PathLike | None, resume: bool, **parts: Any) -> Store | None:
    """Where chunks are kept; `parts`: what must be the same when they are taken up."""
    if folder is None:
        if resume:
            raise InputError("resume: wanted the folder to resume from, as checkpoint_dir.")
        return None
    return Store(folder, fingerprint(**parts), resume)


def _steps(steps: int | None) -> int:
    if steps is None or steps < 0:
        raise InputError(f"steps: wanted a number of steps, or a duration, given {steps}.")
    return steps


def _join(pieces: list, axis: int) -> Any:
    """Pytrees of NumPy arrays joined along an axis."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays, axis=axis), *pieces)


def _first(tree: Any, environments: int) -> Any:
    return jax.tree.map(lambda a: a[:environments], tree)


def _assemble(saved: list[Saved], final: Lane, finite: np.ndarray, save_every: int | None, clock: Clock) -> Trajectory:
    """One trajectory of the chunks."""
    status = np.where(final.status == 0, np.where(finite, int(Status.OK), int(Status.NON_FINITE)), final.status)
    end = {"status": status.astype(np.int32), "stopped": final.stopped, "steps": final.steps}
    if save_every is None or not saved:
        return Trajectory(np.zeros(0, clock.dt.dtype), None, None, final.x, **end)
    state, record, active = (_join([chunk[k] for chunk in saved], 1) for k in range(3))
    saves = jax.tree.leaves(state)[0].shape[1]
    times = np.asarray(clock.at((jnp.arange(1, saves + 1) * save_every).astype(jnp.int32)))
    return Trajectory(times, state, record, final.x, **end, active=active)
