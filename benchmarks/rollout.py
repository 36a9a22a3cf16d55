"""The contact rollout against MuJoCo, its gradient against itself, and the memory of a long gradient."""

from collections.abc import Sequence

import numpy as np

from benchmarks import machine, robots, rollout_task
from benchmarks.run import Contest, Plan, Results, say
from benchmarks.workers import Failed

# The ways in which a library offers a case, where there are several; the fastest is kept.
VARIANTS = {
    ("jaxdyn", "steps"): ("steps_vmap", "steps_batch_rollout"),
    ("jaxdyn", "gradient"): ("gradient_none", "gradient_step"),
}

# Heights of the trunk, in m, between which a quadruped that was dropped onto its feet is at the end.
LOWEST, HIGHEST = 0.25, 0.31


def _check(contest: Contest, peer: str, case: str) -> float | None:
    """The robot must be the same, as its free forward dynamics tell, and must stand at the end."""
    error = contest.check(peer, "batch:aba", "aba")
    result = contest.result(peer, case)
    if "steps" in case and not np.all((result > LOWEST) & (result < HIGHEST)):
        raise Failed(f"{case}: trunks at {result.min():.3f} to {result.max():.3f} m, so it is not timed")
    if not np.all(np.isfinite(result)):
        raise Failed(f"{case}: results that are not finite, so it is not timed")
    return error


def _turns(contest: Contest, cases: Sequence[tuple[str, str]]) -> None:
    """Lets (library, case) pairs take turns."""
    entries = []
    for peer, case in cases:
        if peer in contest.workers:
            variants = VARIANTS.get((peer, case), (case,))
            entry = contest.enter(peer, "rollout", case, variants, lambda name, peer=peer: _check(contest, peer, name))
            if entry is not None:
                entries.append(entry)
    if entries:
        contest.take_turns(entries)


def _memory(contest: Contest, results: Results) -> None:
    say(f"{contest.robot.name}: memory of a gradient over 10 000 steps")
    record = contest.record("memory", "memory", "jaxdyn", "")
    try:
        for way in ("plain", "nested"):
            record.values[way] = contest.workers["jaxdyn"].memory(f"memory:{way}")["temporary"]
    except Failed as problem:
        results.remark(f"jaxdyn, memory of a gradient: {problem}")
        return
    results.records.append(record)


def measure(plan: Plan, results: Results) -> None:
    wanted = {"rollout", "gradient", "memory"} & set(plan.only)
    peers = tuple(peer for peer in ("jaxdyn", "mujoco") if peer in plan.peers)
    if not wanted or not peers:
        return
    try:
        robot = robots.find(rollout_task.ROBOT)
        model = robots.pinocchio_model(robot)
    except robots.Unavailable as problem:
        results.remark(str(problem))
        return
    cores = machine.cores()
    widths = [cores[-1:]] + ([cores] if plan.all_cores and len(cores) > 1 else [])
    for used in widths:
        with Contest(robot, model, used, plan, results, peers) as contest:
            if "rollout" in wanted:
                say(f"{robot.name}, {len(used)} thread(s): contact rollout")
                _turns(contest, [(peer, "steps") for peer in peers])
            if "jaxdyn" not in contest.workers:
                continue
            if "gradient" in wanted:
                say(f"{robot.name}, {len(used)} thread(s): gradient of a rollout")
                _turns(contest, [("jaxdyn", "gradient_base"), ("jaxdyn", "gradient")])
            if "memory" in wanted and used is widths[0]:
                _memory(contest, results)
