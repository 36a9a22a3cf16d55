"""Starts the processes that are measured, and talks to them: one line of JSON each way per request."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.timing import Sample

ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Failed(Exception):
    """A measured process could not do what it was asked; the message says why."""


class Dead(Failed):
    """... and it is no longer there."""


def environment(one_thread: bool, flags: str) -> dict[str, str]:
    """For a measured process: float64, no cached compilations, no virtual devices, one BLAS thread; XLA's `flags`."""
    env = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    env["JAX_ENABLE_X64"] = "true"
    env["JAX_PLATFORMS"] = "cpu"
    env["OPENBLAS_NUM_THREADS"] = env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = "1"
    env["XLA_FLAGS"] = f"{ONE_THREAD if one_thread else ''} {flags}".strip()
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    return env


class Process:
    """A child that answers each line on its standard input with one line on its standard output."""

    def __init__(self, command: list[str], env: dict[str, str], cores: list[int]):
        # Kept: the last lines tell why a child died.
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        pin = (lambda: os.sched_setaffinity(0, cores)) if hasattr(os, "sched_setaffinity") else None
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
            cwd=ROOT,
            preexec_fn=pin,
        )

    def ask(self, line: str, timeout: float) -> dict[str, Any]:
        if line:
            try:
                self._child.stdin.write(line + "\n")
                self._child.stdin.flush()
            except OSError:
                raise Dead(self._last_words()) from None
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        # A blocking read with a timer that ends the child: works the same everywhere.
        timer = threading.Timer(timeout, self._child.kill)
        timer.start()
        try:
            answer = self._child.stdout.readline()
        finally:
            expired = not timer.is_alive()
            timer.cancel()
        if expired:
            raise Dead(f"no answer within {timeout:.0f} s")
        if not answer:
            raise Dead(self._last_words())
        message = json.loads(answer)
        if "error" in message:
            raise Failed(message["error"])
        return message

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=5)
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return f"the process ended ({self._child.returncode}): {lines[-1] if lines else 'without a word'}"

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            with contextlib.suppress(OSError):  # what it never read cannot be delivered any more
                pipe.close()


class Worker:
    """A library in its process, as the driver sees it."""

    def __init__(self, process: Process, patience: float):
        self._process = process
        self._patience = patience
        self._process.ask("", 120.0)

    def _ask(self, **request: Any) -> dict[str, Any]:
        return self._process.ask(json.dumps(request), self._patience)

    def prepare(self, case: str) -> tuple[float, int]:
        """Seconds and evaluations of one run."""
        answer = self._ask(op="prepare", case=case)
        return answer["seconds"], answer["evaluations"]

    def check(self, case: str, file: str) -> None:
        self._ask(op="check", case=case, file=file)

    def measure(self, case: str, loops: int) -> Sample:
        answer = self._ask(op="measure", case=case, loops=loops)
        return Sample(answer["wall"], answer["cpu"], answer["evaluations"])

    def compile(self, case: str) -> Sample:
        answer = self._ask(op="compile", case=case)
        return Sample(answer["wall"], answer["cpu"])

    def memory(self, case: str) -> dict[str, int]:
        return self._ask(op="memory", case=case)

    def close(self) -> None:
        self._process.close()


def start(library: str, job: str, cores: list[int], flags: str = "", patience: float = 240.0) -> Worker:
    """`cores` are those that the process may use; on one of them XLA is told to use one thread.

    `patience` is how long, in seconds, an answer may take.
    """
    command = [sys.executable, "-m", "benchmarks.peers.server", library, job]
    process = Process(command, environment(len(cores) == 1, flags), cores)
    try:
        return Worker(process, patience)
    except BaseException:
        process.close()
        raise
