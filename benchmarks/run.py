"""Carries out the measurements: starts the libraries, checks their results, lets their repeats take turns."""

import dataclasses
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, robots
from benchmarks.peers import pinocchio
from benchmarks.timing import Sample, loops_for, repeats_for
from benchmarks.workers import Dead, Failed, Worker, start

ALGORITHMS = (
    "rnea",
    "crba",
    "crba_kept",
    "aba",
    "aba_derivatives",
    "rnea_derivatives",
    "mass_solve",
    "factor_solve",
    "factor_delassus",
)
# The names under which a library offers an algorithm, where there are several; the fastest is kept.
VARIANTS = {
    ("pinocchio", "crba"): ("crba_local", "crba_world"),
    # In a loop of C++ each matrix overwrites the last; "kept" ones are whole and all there at the end, as ours are.
    ("pinocchio", "crba_kept"): ("crba_kept_local", "crba_kept_world"),
    ("jaxdyn", "crba_kept"): ("crba",),
    ("pinocchio", "aba"): ("aba_local", "aba_world"),
    ("frax", "aba_derivatives"): ("aba_derivatives_reverse", "aba_derivatives_forward"),
}
CLOSED = "_closed"  # jaxdyn's single calls also with the model as a constant, which frax's robot always is
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
# What the README of frax asks for. Thunks then run one after the other, without the cost of handing them out.
SCHEDULER = "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
FRAX_FLAGS = f"--xla_cpu_multi_thread_eigen=false {SCHEDULER}"
# For throughput each library has what it asks its users to set. (The other flag would keep frax on one core.)
OWN_FLAGS = {"frax": SCHEDULER}
TUNED = "frax's flags"  # the setting in which all of them have these
UNCHECKED = ("factor_delassus",)  # its rows come in the order of the library's own bodies
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
    setting: str = ""  # of XLA, if not the usual one

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What takes part in a comparison, and the seconds of one run of it."""

    record: Record
    seconds: float


@dataclasses.dataclass
class Results:
    records: list[Record] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)
    # The fastest variant of (robot, library, kind, algorithm): the others are not compiled again.
    fastest: dict[tuple[str, str, str, str], str] = dataclasses.field(default_factory=dict)

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


def variants_of(peer: str, kind: str, algorithm: str) -> tuple[str, ...]:
    if (peer, kind) == ("jaxdyn", "single"):
        return algorithm, algorithm + CLOSED
    return VARIANTS.get((peer, algorithm), (algorithm,))


class Contest:
    """The workers for one robot on some cores, with the same XLA flags or each with its own."""

    def __init__(
        self,
        robot: robots.Robot,
        model,
        cores: list[int],
        plan: Plan,
        results: Results,
        peers: Sequence[str],
        flags: Mapping[str, str] = OWN_FLAGS,
        setting: str = "",
    ):
        self.robot = robot
        self.threads = len(cores)
        self.plan = plan
        self.results = results
        self.setting = setting
        self._cores = cores
        self._flags = flags
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
            "threads": self.threads,
            "gravity": robots.GRAVITY,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        self.workers: dict[str, Worker | pinocchio.CppWorker] = {}
        for peer in peers:
            try:
                if peer == "pinocchio":
                    pinocchio.write_model(model, folder / "model.txt")
                    pinocchio.write_states(model, states, folder / "states.bin")
                self._start(peer)
            except (Failed, robots.Unavailable) as problem:
                results.remark(f"{peer} on {robot.name}: {problem}")

    def _start(self, peer: str) -> None:
        folder = Path(self._folder.name)
        if peer == "pinocchio":
            self.workers[peer] = pinocchio.CppWorker(
                pinocchio.build(), folder / "model.txt", folder / "states.bin", self._cores
            )
        else:
            self.workers[peer] = start(peer, str(folder / "job.json"), self._cores, self._flags.get(peer, ""))

    def restart(self, peer: str) -> None:
        """A new process in place of one that died; what was prepared in it has to be prepared anew."""
        self.workers.pop(peer).close()
        try:
            self._start(peer)
        except Failed as problem:
            self.results.remark(f"{peer} on {self.robot.name}: {problem}")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._folder.cleanup()

    def __enter__(self) -> "Contest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, kind: str, algorithm: str, peer: str, variant: str, error: float | None = None) -> Record:
        return Record(kind, self.robot.name, algorithm, peer, self.threads, variant, error, setting=self.setting)

    def result(self, peer: str, case: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """What the case computed, in Pinocchio's convention; `shape` is needed for the C++ program."""
        file = str(Path(self._folder.name) / "result.npy")
        worker = self.workers[peer]
        if isinstance(worker, pinocchio.CppWorker):
            worker.check(case, file, shape)
        else:
            worker.check(case, file)
        return np.load(file)

    def check(self, peer: str, case: str, algorithm: str) -> float | None:
        """The error against Pinocchio's Python module, which must be small."""
        if algorithm in UNCHECKED:
            return None
        wanted = self._reference[algorithm]
        result = self.result(peer, case, wanted.shape)
        error = robots.relative_error(result, wanted[: len(result)])
        if error > TOLERANCE:
            raise Failed(f"{case} differs from Pinocchio by {error:.1e} (relative), so it is not timed")
        return error

    def enter(
        self, peer: str, kind: str, algorithm: str, variants: Sequence[str], check: Callable[[str], float | None]
    ) -> Entry | None:
        """Prepares the fastest right variant of a library; `check(case)` gives its error or raises."""
        best = None
        key = (self.robot.name, peer, kind, algorithm)
        known = self.results.fastest.get(key)
        for variant in [known] if known else variants:
            case = f"{kind}:{variant}"
            try:
                seconds, _ = self.workers[peer].prepare(case)
                error = check(case)
            except Failed as problem:
                self.results.remark(f"{peer}, {self.robot.name}, {case}: {problem}")
                if isinstance(problem, Dead):
                    self.restart(peer)
                    if peer not in self.workers:
                        return best
                continue
            if best is None or seconds < best.seconds:
                best = Entry(self.record(kind, algorithm, peer, variant, error), seconds)
                self.results.fastest[key] = variant
        return best

    def take_turns(self, entries: Sequence[Entry]) -> list[Record]:
        """Times what was entered, repeat by repeat in turn."""
        loops = [loops_for(self.plan.target, entry.seconds) for entry in entries]
        once = sum(entry.seconds * n for entry, n in zip(entries, loops, strict=True))
        turns = repeats_for(self.plan.repeats, once, self.plan.budget)
        records = [entry.record for entry in entries]

        def measurement(record: Record, n: int) -> Callable[[], Sample]:
            return lambda: self.workers[record.peer].measure(f"{record.kind}:{record.variant}", n)

        measure = [measurement(record, n) for record, n in zip(records, loops, strict=True)]
        self._restart_all(interleave(records, measure, turns, self.results))
        return records

    def _restart_all(self, died: set[str]) -> None:
        for peer in died:
            self.restart(peer)

    def compare(self, kind: str, algorithm: str, peers: Sequence[str]) -> list[Record]:
        """Times an algorithm in all libraries that have it."""
        say(f"{self.robot.name}, {self.threads} thread(s){', ' * bool(self.setting)}{self.setting}: {kind} {algorithm}")
        entries = []
        for peer in peers:
            if peer in self.workers and algorithm in OFFERS.get(peer, ()):
                variants = variants_of(peer, kind, algorithm)
                entry = self.enter(
                    peer, kind, algorithm, variants, lambda case, peer=peer: self.check(peer, case, algorithm)
                )
                if entry is not None:
                    entries.append(entry)
        return self.take_turns(entries) if entries else []

    def compile(self, algorithm: str, variants: Mapping[str, str]) -> None:
        """Compile times, from nothing; `variants` names the one to compile per library."""
        say(f"{self.robot.name}: compile {algorithm}")
        records, measure = [], []

        def measurement(peer: str, case: str) -> Callable[[], Sample]:
            return lambda: self.workers[peer].compile(case)

        for peer, variant in variants.items():
            if peer not in self.workers:
                continue
            for shape in ("single", "batch"):
                records.append(self.record("compile", f"{algorithm}, {shape}", peer, variant))
                measure.append(measurement(peer, f"{shape}:{variant}"))
        self._restart_all(interleave(records, measure, self.plan.compiles, self.results))


def interleave(records: list[Record], measure: list[Callable[[], Sample]], turns: int, results: Results) -> set[str]:
    """A B C, B C A, C A B ...: whatever disturbs the machine, and whoever comes after whom, hits all alike.

    Returns the libraries whose processes died.
    """
    results.records.extend(records)
    broken: set[int] = set()
    died: set[str] = set()
    for turn in range(turns):
        for place in range(len(records)):
            i = (turn + place) % len(records)
            if i in broken:
                continue
            try:
                records[i].samples.append(measure[i]())
            except Failed as problem:
                results.remark(f"{records[i].peer}, {records[i].robot}, {records[i].algorithm}: {problem}")
                broken.add(i)
                if isinstance(problem, Dead):
                    died.add(records[i].peer)
                    broken |= {k for k, record in enumerate(records) if record.peer in died}
    return died


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
        widths = [cores[-1:], *([cores] if plan.all_cores and len(cores) > 1 else [])]
        for used in widths if algorithms else ():
            with Contest(robot, model, used, plan, results, contenders) as contest:
                for algorithm in algorithms:
                    contest.compare("batch", algorithm, contenders)
        if {"latency", "compile"} & set(plan.only):
            _single_calls(robot, model, cores, plan, results)


def _single_calls(robot: robots.Robot, model, cores: list[int], plan: Plan, results: Results) -> None:
    compiled = [peer for peer in COMPILED if peer in plan.peers]
    chosen: dict[str, dict[str, str]] = {}
    if "latency" in plan.only:
        with Contest(robot, model, cores, plan, results, compiled, dict.fromkeys(compiled, FRAX_FLAGS), TUNED) as tuned:
            for algorithm in LATENCY:
                records = tuned.compare("single", algorithm, compiled)
                chosen[algorithm] = {record.peer: record.variant.removesuffix(CLOSED) for record in records}
    with Contest(robot, model, cores, plan, results, compiled, {}) as plain:
        for algorithm in LATENCY if "latency" in plan.only else ():
            plain.compare("single", algorithm, compiled)
        for algorithm in COMPILE if "compile" in plan.only else ():
            first = {peer: variants_of(peer, "batch", algorithm)[0] for peer in compiled}
            plain.compile(algorithm, chosen.get(algorithm) or first)
