"""Many copies of a robot under posture control, simulated with a progress bar: what `rollout` and `demo` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

import jaxdyn
from jaxdyn.app import scenario
from jaxdyn.app.terminal import Bar, count
from jaxdyn.app.tuning import Plan


class Simulation(NamedTuple):
    """What came out, for n environments and the saved times, the start included.

    `friction` (n,); `times` (saves,); `q` (n, saves, nq); `v` (n, saves, nv); `points`, `forces` (n, saves, contacts, 3)
    as of `scenario.contact_forces`. All empty if not a step was done.
    """

    result: jaxdyn.BatchResult
    friction: np.ndarray
    times: np.ndarray
    q: np.ndarray
    v: np.ndarray
    points: np.ndarray
    forces: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays under the names that they have in data files."""
        arrays = {"time": self.times, "q": self.q, "v": self.v, "friction": self.friction}
        if self.forces.size:
            arrays |= {"contact_points": self.points, "contact_forces": self.forces}
        return arrays


def simulate(
    model: jaxdyn.Model,
    plan: Plan,
    arguments: argparse.Namespace,
    start: tuple[Any, Array],
    saves: int,
    check: Callable[[], None],
    *,
    mesh: Mesh | None = None,
    checkpoint_dir: Path | None = None,
) -> Simulation:
    """Simulates `arguments.steps` steps of `arguments.dt` seconds.

    **Arguments:** `start`: states and coefficients of friction, as of `scenario.perturbed_states`; `saves`: about how many
    states of an environment are kept; `check`: called now and then, may raise `KeyboardInterrupt`; `mesh`: the devices to
    run on; `checkpoint_dir`: where to keep what is done, and to resume from.
    """
    x0, friction = start
    system = scenario.make_system(model, plan)
    every = max(d for d in range(1, max(arguments.steps // saves, 1) + 1) if arguments.steps % d == 0)
    bar = Bar("  ", arguments.steps)

    def progress(now: jaxdyn.Progress) -> None:
        bar.update(now.done, f"{count(now.rate)} env-steps/s", now.seconds)
        check()

    result = jaxdyn.batch_rollout(
        scenario.with_friction(system, friction),
        jaxdyn.SemiImplicitEuler(),
        x0,
        scenario.posture_control(system, plan, model),
        arguments.dt,
        arguments.steps,
        substeps=plan.substeps,
        save_every=every,
        progress=progress,
        mesh=mesh,
        checkpoint_dir=checkpoint_dir,
        resume=checkpoint_dir is not None,
    )
    bar.close()
    if not result.steps:
        return Simulation(result, *[np.zeros(0)] * 6)
    states = scenario.with_start(x0, result.trajectory.state, 1)
    times = np.concatenate([[0.0], result.trajectory.time])
    contacts = scenario.contact_forces(system, friction, states) if plan.spots else (np.zeros(0), np.zeros(0))
    return Simulation(result, np.asarray(friction), times, *scenario.coordinates(model, states), *contacts)
