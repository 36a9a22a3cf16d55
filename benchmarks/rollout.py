"""The contact rollout against MuJoCo, its gradient against itself, and the memory of a long gradient."""

from collections.abc import Sequence

from benchmarks import machine, robots, rollout_task
from benchmarks.run import Contest, Plan, Record, Results, interleave, say
from benchmarks.timing import loops_for, repeats_for
from benchmarks.workers import Failed

# The mass of the robot in MuJoCo is checked through its free forward dynamics before its steps count.
CHECK_FIRST = {"mujoco": "aba"}


def _turns(contest: Contest, entries: Sequence[tuple[str, str]], results: Results) -> None:
    """Lets (peer, case) pairs take turns; the records are of kind "rollout"."""
    ready: list[tuple[Record, int, float]] = []
    for peer, case in entries:
        if peer not in contest.workers:
            continue
        try:
            error = (
                contest.check(peer, f"batch:{CHECK_FIRST[peer]}", CHECK_FIRST[peer]) if peer in CHECK_FIRST else None
            )
            seconds, _ = contest.workers[peer].prepare(f"rollout:{case}")
        except Failed as problem:
            results.remark(f"{peer}, rollout:{case}: {problem}")
            continue
        loops = loops_for(contest.plan.target, seconds)
        record = Record("rollout", contest.robot.name, case, peer, contest.threads, case, error)
        ready.append((record, loops, seconds * loops))
    turns = repeats_for(contest.plan.repeats, sum(once for _, _, once in ready), contest.plan.budget)
    measure = [
        lambda r=record, n=loops: contest.workers[r.peer].measure(f"rollout:{r.variant}", n)
        for record, loops, _ in ready
    ]
    interleave([record for record, _, _ in ready], measure, turns, results)


def _memory(contest: Contest, results: Results) -> None:
    say(f"{contest.robot.name}: memory of a gradient over 10 000 steps")
    record = Record("memory", contest.robot.name, "memory", "jaxdyn", contest.threads)
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
        with Contest(robot, model, len(used), used, plan, results, peers) as contest:
            if "rollout" in wanted:
                say(f"{robot.name}, {len(used)} thread(s): contact rollout")
                _turns(contest, [(peer, "steps") for peer in peers], results)
            if "jaxdyn" not in contest.workers:
                continue
            if "gradient" in wanted:
                say(f"{robot.name}, {len(used)} thread(s): gradient of a rollout")
                _turns(contest, [("jaxdyn", "gradient_base"), ("jaxdyn", "gradient")], results)
            if "memory" in wanted and used is widths[0]:
                _memory(contest, results)
