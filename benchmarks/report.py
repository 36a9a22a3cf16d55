"""From records to tables."""

from collections.abc import Iterable, Sequence

from benchmarks import bar, table
from benchmarks.run import Record
from benchmarks.timing import Statistics, seconds_per_evaluation, speed_ratio, summarise

OURS = "jaxdyn"
CPP_PEERS = ("pinocchio", "pinocchio_python")
JAX_PEERS = ("frax",)
TITLES = {
    "rnea": "inverse dynamics",
    "crba": "mass matrix",
    "crba_kept": "mass matrices, all kept",
    "aba": "forward dynamics",
    "aba_derivatives": "d FD / d(q, v, tau)",
    "rnea_derivatives": "d ID / d(q, v, a)",
    "mass_solve": "mass matrix, factor, solve",
    "factor_solve": "factor, solve",
    "factor_delassus": "factor, Delassus matrix",
    "steps": "contact rollout, env-steps",
    "gradient_base": "cost of 100 steps",
    "gradient": "gradient of 100 steps / rollout",
    "memory": "memory of a gradient, plain / nested",
}
LABELS = {
    "pinocchio": "Pinocchio C++",
    "pinocchio_python": "Pinocchio, Python loop",
    "mujoco": "MuJoCo C",
}


def label(peer: str) -> str:
    return LABELS.get(peer, peer)


def clock(record: Record) -> str:
    """On one pinned core the processor time, which other people's work cannot touch; else the time by the clock."""
    return "cpu" if record.threads == 1 and record.kind in ("batch", "rollout") else "wall"


def _groups(records: Iterable[Record], kind: str) -> dict[tuple[str, str, str], dict[str, Record]]:
    """By robot, threads (with the setting of XLA, if not the usual one) and algorithm; then by library."""
    groups: dict[tuple[str, str, str], dict[str, Record]] = {}
    for record in records:
        if record.kind == kind and record.samples:
            threads = f"{record.threads}, {record.setting}" if record.setting else str(record.threads)
            groups.setdefault((record.robot, threads, record.algorithm), {})[record.peer] = record
    return groups


def _title(algorithm: str) -> str:
    return TITLES.get(algorithm, algorithm)


def measured(records: Sequence[Record]) -> str:
    """Everything that was timed: per evaluation by processor and by clock, and the rate."""
    rows = []
    for kind, what in (("batch", "batch"), ("single", "one call"), ("rollout", "batch")):
        for (robot, threads, algorithm), peers in _groups(records, kind).items():
            for peer, record in peers.items():
                cpu, wall = (seconds_per_evaluation(record.samples, name) for name in ("cpu", "wall"))
                chosen = cpu if clock(record) == "cpu" else wall
                rows.append(
                    [
                        _title(algorithm), what, robot, threads, label(peer), table.seconds(cpu.median),
                        table.seconds(wall.median), table.spread(chosen), table.rate(1.0 / chosen.median),
                        "" if record.error is None else f"{record.error:.0e}",
                    ]
                )  # fmt: skip
    header = ["figure", "of", "robot", "threads", "library", "cpu", "wall", "spread", "rate", "error"]
    return table.render(header, rows, right=(3, 5, 6, 7, 8, 9)) if rows else ""


def compiled(records: Sequence[Record]) -> str:
    rows = []
    for (robot, _, algorithm), peers in _groups(records, "compile").items():
        for peer, record in peers.items():
            name, _, shape = algorithm.partition(", ")
            wall, cpu = (seconds_per_evaluation(record.samples, which) for which in ("wall", "cpu"))
            rows.append(
                [_title(name), shape, robot, label(peer), table.seconds(wall.median), table.spread(wall), table.seconds(cpu.median)]
            )  # fmt: skip
    header = ["compile time of", "of", "robot", "library", "wall", "spread", "cpu"]
    return table.render(header, rows, right=(4, 5, 6)) if rows else ""


def _row(figure: str, robot: str, threads: str, peer: str, value: Statistics, limit: bar.Bar | None) -> list[str]:
    if limit is None:
        return [figure, robot, threads, peer, table.ratio(value), "", "", ""]
    sign = "" if limit.better == "higher" else "≤ "
    return [
        figure, robot, threads, peer, table.ratio(value), sign + f"{limit.must:g}",
        sign + f"{limit.aim:g}", limit.verdict(value.median),
    ]  # fmt: skip


def _throughput(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for (robot, threads, algorithm), peers in _groups(records, "batch").items():
        if OURS not in peers:
            continue
        ours = peers[OURS]
        counts = robot in bar.BAR_ROBOTS
        for peer in CPP_PEERS:
            if peer in peers:
                ratio = speed_ratio(ours.samples, peers[peer].samples, clock(ours))
                limit = bar.CPP.get(algorithm) if counts and peer == "pinocchio" else None
                rows.append(_row(_title(algorithm) + ", throughput", robot, threads, label(peer), ratio, limit))
        others = [peers[peer] for peer in JAX_PEERS if peer in peers]
        if others:
            best = min(others, key=lambda r: seconds_per_evaluation(r.samples, clock(r)).median)
            ratio = speed_ratio(ours.samples, best.samples, clock(ours))
            limit = bar.JAX.get(algorithm) if counts else None
            rows.append(_row(_title(algorithm) + ", throughput", robot, threads, label(best.peer), ratio, limit))
    return rows


def _inverse(value: Statistics) -> Statistics:
    return Statistics(1.0 / value.median, 1.0 / value.high, 1.0 / value.low, value.count)


def _latency(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for (robot, threads, algorithm), peers in _groups(records, "single").items():
        if OURS in peers and "frax" in peers:
            ratio = _inverse(speed_ratio(peers[OURS].samples, peers["frax"].samples, "wall"))
            limit = bar.LATENCY if robot in bar.BAR_ROBOTS else None
            rows.append(_row(f"{_title(algorithm)}, latency", robot, threads, "frax", ratio, limit))
    return rows


def _compile(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for (robot, threads, algorithm), peers in _groups(records, "compile").items():
        if OURS not in peers:
            continue
        name, _, shape = algorithm.partition(", ")
        seconds = seconds_per_evaluation(peers[OURS].samples, "wall")
        limit = bar.COMPILE.get(name) if robot == bar.COMPILE_ROBOT else None
        rows.append(_row(f"{_title(name)}, compile in s ({shape})", robot, threads, "", seconds, limit))
        if "frax" in peers:
            ratio = _inverse(speed_ratio(peers[OURS].samples, peers["frax"].samples, "wall"))
            rows.append(_row(f"{_title(name)}, compile ({shape})", robot, threads, "frax", ratio, None))
    return rows


def _rollout(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for (robot, threads, algorithm), peers in _groups(records, "rollout").items():
        if algorithm == "steps" and OURS in peers and "mujoco" in peers:
            ratio = speed_ratio(peers[OURS].samples, peers["mujoco"].samples, clock(peers[OURS]))
            rows.append(_row(_title(algorithm), robot, threads, label("mujoco"), ratio, bar.ROLLOUT))
        if algorithm == "gradient" and OURS in peers:
            plain = _groups(records, "rollout").get((robot, threads, "gradient_base"), {}).get(OURS)
            if plain is not None:
                ratio = speed_ratio(plain.samples, peers[OURS].samples, clock(plain))
                rows.append(_row(_title(algorithm), robot, threads, "itself", ratio, bar.GRADIENT))
    for record in records:
        if record.kind == "memory" and record.values:
            value = summarise([record.values["plain"] / record.values["nested"]])
            rows.append(_row(_title("memory"), record.robot, "", "itself", value, bar.MEMORY))
    return rows


def against_bar(records: Sequence[Record]) -> str:
    """The ratios, ours over theirs, with the quartiles of the pairs of repeats, beside the bar."""
    rows = _throughput(records) + _latency(records) + _compile(records) + _rollout(records)
    header = ["figure", "robot", "threads", "against", "ratio (quartiles)", "must", "aim", "reached"]
    return table.render(header, rows, right=(2, 4, 5, 6)) if rows else ""
