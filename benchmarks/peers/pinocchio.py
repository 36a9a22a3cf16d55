"""Pinocchio in C++: builds the timing program from the headers of the `pin` wheel, and talks to it."""

import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np

from benchmarks import robots
from benchmarks.timing import Sample
from benchmarks.workers import ROOT, Failed, Process

SOURCE = Path(__file__).resolve().parent.parent / "cpp" / "pinocchio_loop.cpp"
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-DNDEBUG", "-w", "-pthread",
    # What Pinocchio's own CMake target sets for those who compile its headers.
    "-DBOOST_MPL_LIMIT_LIST_SIZE=30", "-DBOOST_MPL_LIMIT_VECTOR_SIZE=30",
    "-DBOOST_MPL_CFG_NO_PREPROCESSED_HEADERS", "-DBOOST_FUSION_INVOKE_MAX_ARITY=12",
)  # fmt: skip
CHECK_KINDS = ("RX", "RY", "RZ", "PX", "PY", "PZ", "RevoluteUnaligned", "PrismaticUnaligned", "FreeFlyer")


def _include_folders() -> list[Path]:
    """Folders with the headers of Pinocchio, Eigen and Boost, from the Python packages or else the system."""
    prefixes = [Path(sysconfig.get_path(name)) / "cmeel.prefix" for name in ("purelib", "platlib")]
    prefixes += [Path("/usr/local"), Path("/usr")]
    wanted = {
        "pinocchio/multibody.hpp": (("include",), "pin"),
        "boost/variant.hpp": (("include",), "cmeel-boost"),
        "Eigen/Core": (("include/eigen3", "include"), "cmeel-eigen"),
    }
    folders: list[Path] = []
    for header, (places, package) in wanted.items():
        found = [p / place for p in prefixes for place in places if (p / place / header).is_file()]
        if not found:
            raise robots.Unavailable(f"header {header} not found ('pip install {package}' brings it)")
        if found[0] not in folders:
            folders.append(found[0])
    return folders


@functools.cache
def build() -> Path:
    """The timing program, compiled (about a minute, once: it is kept in build/benchmarks/)."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise robots.Unavailable("g++ is not installed")
    folders = _include_folders()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    config = next(f / "pinocchio" / "config.hpp" for f in folders if (f / "pinocchio").is_dir())
    native = subprocess.run(
        [compiler, "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=False
    ).stdout
    parts = [
        SOURCE.read_text(encoding="utf-8"),
        *FLAGS,
        *map(str, folders),
        version,
        native,
        config.read_text(),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    program = ROOT / "build" / "benchmarks" / f"pinocchio_loop-{key}"
    if program.is_file():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(f".{os.getpid()}")
    command = [compiler, *FLAGS]
    for folder in folders:
        command += ["-isystem", str(folder)]
    command += [str(SOURCE), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise robots.Unavailable(f"g++ could not compile the timing program: {(errors or ['no message'])[0]}")
    unfinished.replace(program)
    return program


def write_model(model, path: Path) -> None:
    """The text file that the program reads: gravity, then a line per joint."""
    lines = [" ".join(repr(float(x)) for x in model.gravity.linear)]
    for i in range(1, model.njoints):
        joint, placement, inertia = model.joints[i], model.jointPlacements[i], model.inertias[i]
        kind = joint.shortname().removeprefix("JointModel")
        if kind not in CHECK_KINDS:
            raise robots.Unavailable(f"joint kind {kind} is not in the C++ timing program")
        subspace = np.asarray(joint.createData().S).reshape(6, -1)
        axis = subspace[:3, 0] + subspace[3:, 0] if joint.nv == 1 else np.zeros(3)
        about = inertia.inertia
        numbers = [
            *axis, *placement.rotation.ravel(), *placement.translation, inertia.mass, *inertia.lever,
            about[0, 0], about[0, 1], about[1, 1], about[0, 2], about[1, 2], about[2, 2],
        ]  # fmt: skip
        lines.append(f"{kind} {model.parents[i]} " + " ".join(repr(float(x)) for x in numbers))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_states(model, states: dict[str, np.ndarray], path: Path) -> None:
    rows = np.concatenate([states[key] for key in ("q", "v", "a", "tau")], axis=1)
    with path.open("wb") as file:
        np.array([len(rows), model.nq, model.nv], dtype=np.int64).tofile(file)
        rows.astype(np.float64).tofile(file)


class CppWorker:
    """The same methods as `workers.Worker`, for the C++ program. Cases are named `batch:NAME`."""

    def __init__(self, program: Path, model_file: Path, states_file: Path, cores: list[int]):
        self._threads = len(cores)
        self._process = Process([str(program), str(model_file), str(states_file)], dict(os.environ), cores)
        try:
            self.facts = self._process.ask("", 60.0)
        except BaseException:
            self._process.close()
            raise

    def prepare(self, case: str) -> tuple[float, int]:
        self.measure(case, 1)
        sample = self.measure(case, 1)
        return sample.wall, sample.evaluations

    def measure(self, case: str, loops: int) -> Sample:
        name = case.partition(":")[2]
        answer = self._process.ask(f"measure {name} {loops} {self._threads}", 600.0)
        return Sample(answer["wall"], answer["cpu"], answer["evaluations"])

    def check(self, case: str, file: str, shape: tuple[int, ...]) -> None:
        """`shape` of the results at the first states, stacked."""
        name = case.partition(":")[2]
        raw = file + ".raw"
        self._process.ask(f"check {name} {shape[0]} {raw}", 60.0)
        np.save(file, np.fromfile(raw).reshape(shape))

    def compile(self, case: str) -> Sample:
        raise Failed("compiled ahead of time")

    def close(self) -> None:
        self._process.close()
