"""Carries out the measurements: starts the libraries, checks their results, lets their repeats take turns."""

import dataclasses
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, robots
from benchmarks.peers import pinocchio
from benchmarks.timing import Sample, loops_for, repeats_for
from benchmarks.workers import Failed, Worker, start

ALGORITHMS = ("rnea", "crba", "aba", "aba_derivatives", "rnea_derivatives", "mass_solve", "factor_solve")
# The names under which a library offers an algorithm, where there are several; the fastest is kept.
VARIANTS = {
    ("pinocchio", "crba"): ("crba_local", "crba_world"),
    ("pinocchio", "aba"): ("aba_local", "aba_world"),
    ("frax", "aba_derivatives"): ("aba_derivatives_reverse", "aba_derivatives_forward"),
}
OFFERS = {
    "pinocchio": ALGORITHMS,
    "pinocchio_python": ("rnea", "crba", "aba", "aba_derivatives", "rnea_derivatives", "mass_solve"),
    "frax": ("rnea", "crba", "aba", "aba_derivatives"),
    "jaxdyn": ALGORITHMS,
}
MODULES = {
    "pinocchio": "pinocchio",
    "pinocchio_python": "pinocchio",
    "frax": "frax",
    "jaxdyn": "jaxdyn",
    "mujoco": "mujoco",
}
COMPILED = ("jaxdyn", "frax")  # those whose compile time and latency are of interest
LATENCY = ("rnea", "aba", "aba_derivatives")
COMPILE = ("aba", "aba_derivatives")
# The mass matrix itself is checked with crba; what a bare factorisation returns depends on which one was made.
UNCHECKED = ("factor_solve",)
TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure, and how long."""

    robots: tuple[str, ...]
    only: tuple[str, ...]
    peers: tuple[str, ...]
    batch: int = 1024
    repeats: int = 9
    target: float = 0.2  # seconds of one repeat
    budget: float = 60.0  # seconds for the repeats of one comparison
    compiles: int = 3
    all_cores: bool = True


@dataclasses.dataclass
class Record:
    """One library's samples of one thing."""

    kind: str  # batch, single, compile, rollout, gradient, memory
    robot: str
    algorithm: str
    peer: str
    threads: int
    variant: str = ""
    error: float | None = None  # relative, against Pinocchio
    samples: list[Sample] = dataclasses.field(default_factory=list)
    values: dict[str, float] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Results:
    records: list[Record] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)
            say(f"  note: {text}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def with_available_peers(plan: Plan, results: Results) -> Plan:
    """Without the libraries that are not installed; with Pinocchio's Python module where there is no compiler."""
    peers = []
    for peer in plan.peers:
        module = MODULES[peer]
        if importlib.util.find_spec(module) is None:
            results.remark(f"{peer} is left out: the package {module} is not installed")
            continue
        if peer == "pinocchio":
            say("Pinocchio C++: compiling the timing program (about a minute, kept for later runs)")
            try:
                pinocchio.build()
            except robots.Unavailable as problem:
                results.remark(f"no Pinocchio C++: {problem}; its Python module stands in, one call per state")
                peer = "pinocchio_python"
        if peer not in peers:
            peers.append(peer)
    return dataclasses.replace(plan, peers=tuple(peers))


class Contest:
    """The workers for one robot on so many threads."""

    def __init__(
        self,
        robot: robots.Robot,
        model,
        threads: int,
        cores: list[int],
        plan: Plan,
        results: Results,
        peers: Sequence[str],
    ):
        self.robot = robot
        self.threads = threads
        self.plan = plan
        self.results = results
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        states = robots.random_states(model, robot.floating, plan.batch)
        self._reference = robots.reference(model, states, min(robots.CHECKED, plan.batch))
        np.savez(folder / "states.npz", **states)
        job = {
            "urdf": robot.path,
            "floating": robot.floating,
            "joint_names": robots.joint_names(model, robot.floating),
            "states": str(folder / "states.npz"),
            "checked": min(robots.CHECKED, plan.batch),
            "threads": threads,
            "gravity": robots.GRAVITY,
            "options": {},
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        self.workers: dict[str, Worker | pinocchio.CppWorker] = {}
        for peer in peers:
            try:
                if peer == "pinocchio":
                    program = pinocchio.build()
                    pinocchio.write_model(model, folder / "model.txt")
                    pinocchio.write_states(model, states, folder / "states.bin")
                    self.workers[peer] = pinocchio.CppWorker(
                        program, folder / "model.txt", folder / "states.bin", threads, cores
                    )
                else:
                    self.workers[peer] = start(peer, str(folder / "job.json"), threads, cores)
            except (Failed, robots.Unavailable) as problem:
                results.remark(f"{peer} on {robot.name}: {problem}")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._folder.cleanup()

    def __enter__(self) -> "Contest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, peer: str, case: str, algorithm: str) -> float | None:
        if algorithm in UNCHECKED:
            return None
        wanted = self._reference[algorithm]
        file = str(Path(self._folder.name) / "result.npy")
        worker = self.workers[peer]
        if isinstance(worker, pinocchio.CppWorker):
            worker.check(case, file, len(wanted), wanted.shape[1:])
        else:
            worker.check(case, file)
        result = np.load(file)
        error = robots.relative_error(result, wanted[: len(result)])
        if error > TOLERANCE:
            raise Failed(f"{case} differs from Pinocchio by {error:.1e} (relative), so it is not timed")
        return error

    def _enter(self, peer: str, kind: str, algorithm: str) -> tuple[Record, float, int] | None:
        """The fastest right variant of a library: its record, seconds and evaluations of one run."""
        best = None
        for variant in VARIANTS.get((peer, algorithm), (algorithm,)):
            case = f"{kind}:{variant}"
            try:
                seconds, evaluations = self.workers[peer].prepare(case)
                error = self.check(peer, case, algorithm)
            except Failed as problem:
                self.results.remark(f"{peer}, {self.robot.name}, {case}: {problem}")
                continue
            if best is None or seconds < best[1]:
                record = Record(kind, self.robot.name, algorithm, peer, self.threads, variant, error)
                best = (record, seconds, evaluations)
        return best

    def compare(self, kind: str, algorithm: str, peers: Sequence[str]) -> list[Record]:
        """Times an algorithm in all libraries that have it, repeat by repeat in turn."""
        say(f"{self.robot.name}, {self.threads} thread(s): {kind} {algorithm}")
        entered = []
        for peer in peers:
            if peer in self.workers and algorithm in OFFERS.get(peer, ()):
                entry = self._enter(peer, kind, algorithm)
                if entry is not None:
                    entered.append(entry)
        if not entered:
            return []
        loops = [loops_for(self.plan.target, seconds) for _, seconds, _ in entered]
        once = sum(seconds * n for (_, seconds, _), n in zip(entered, loops, strict=True))
        turns = repeats_for(self.plan.repeats, once, self.plan.budget)
        measure = [
            lambda r=record, n=n: self.workers[r.peer].measure(f"{kind}:{r.variant}", n)
            for (record, _, _), n in zip(entered, loops, strict=True)
        ]
        records = [record for record, _, _ in entered]
        interleave(records, measure, turns, self.results)
        return records

    def compile(self, algorithm: str, variants: dict[str, str]) -> list[Record]:
        """Compile times, from nothing; `variants` names the one to compile per library."""
        say(f"{self.robot.name}: compile {algorithm}")
        records, measure = [], []
        for peer, variant in variants.items():
            for shape in ("single", "batch"):
                record = Record("compile", self.robot.name, f"{algorithm}, {shape}", peer, self.threads, variant)
                records.append(record)
                measure.append(lambda p=peer, c=f"{shape}:{variant}": self.workers[p].compile(c))
        interleave(records, measure, self.plan.compiles, self.results)
        return records


def interleave(records: list[Record], measure: list[Callable[[], Sample]], turns: int, results: Results) -> None:
    """A B C, B C A, C A B ...: whatever disturbs the machine, and whoever comes after whom, hits all alike."""
    results.records.extend(records)
    broken: set[int] = set()
    for turn in range(turns):
        for place in range(len(records)):
            i = (turn + place) % len(records)
            if i in broken:
                continue
            try:
                records[i].samples.append(measure[i]())
            except Failed as problem:
                broken.add(i)
                results.remark(f"{records[i].peer}, {records[i].robot}, {records[i].algorithm}: {problem}")


def dynamics(plan: Plan, results: Results) -> None:
    """Throughput, latency and compile time of the algorithms on each robot."""
    cores = machine.cores()
    contenders = [peer for peer in plan.peers if peer in OFFERS]
    algorithms = [name for name in ALGORITHMS if name in plan.only]
    for name in plan.robots:
        try:
            robot = robots.find(name)
            model = robots.pinocchio_model(robot)
        except robots.Unavailable as problem:
            results.remark(str(problem))
            continue
        if algorithms:
            with Contest(robot, model, 1, cores[-1:], plan, results, contenders) as contest:
                for algorithm in algorithms:
                    contest.compare("batch", algorithm, contenders)
        wide = algorithms if plan.all_cores and len(cores) > 1 else []
        if not wide and not {"latency", "compile"} & set(plan.only):
            continue
        with Contest(robot, model, len(cores), cores, plan, results, contenders) as contest:
            for algorithm in wide:
                contest.compare("batch", algorithm, contenders)
            compiled = [peer for peer in COMPILED if peer in plan.peers]
            chosen: dict[str, dict[str, str]] = {}
            for algorithm in LATENCY if "latency" in plan.only else ():
                records = contest.compare("single", algorithm, compiled)
                chosen[algorithm] = {record.peer: record.variant for record in records}
            for algorithm in COMPILE if "compile" in plan.only else ():
                variants = chosen.get(algorithm) or {
                    peer: VARIANTS.get((peer, algorithm), (algorithm,))[0]
                    for peer in compiled
                    if peer in contest.workers
                }
                contest.compile(algorithm, variants)
