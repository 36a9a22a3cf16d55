"""What a measured process offers: named cases, each of which can be run in a loop, checked and compiled anew."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class Job:
    """What a process is told at its start (a JSON file written by the driver)."""

    urdf: str
    floating: bool
    joint_names: tuple[str, ...]
    states: str  # .npz: q, v, a, tau in Pinocchio's convention
    checked: int
    threads: int
    gravity: float

    @staticmethod
    def read(path: str) -> "Job":
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        return Job(**{**fields, "joint_names": tuple(fields["joint_names"])})

    def load_states(self) -> dict[str, np.ndarray]:
        with np.load(self.states) as file:
            return dict(file)


class Case(Protocol):
    """`run` is called once before anything is timed; `result` at any time, it runs the case if nobody has."""

    evaluations: int  # of the function, per run

    def run(self) -> None: ...

    def result(self) -> np.ndarray:
        """Results at the first states, in Pinocchio's convention, stacked over the states."""
        ...


class Loop:
    """A case around a plain Python function, for libraries that are called state by state."""

    def __init__(self, run: Callable[[], None], evaluations: int, result: Callable[[], np.ndarray] | None = None):
        self.run = run
        self.evaluations = evaluations
        self._result = result

    def result(self) -> np.ndarray:
        if self._result is None:
            raise NotImplementedError("there is nothing to compare for this case")
        return self._result()


def timed(function: Callable[[], Any]) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
