"""The measured process: `python -m benchmarks.peers.server LIBRARY JOB.json`.

Reads one request per line (JSON) and answers with one line of JSON, so that the driver can let several
libraries take turns. Between requests it sleeps.

    {"op": "prepare", "case": C}              compile and run once; seconds and evaluations of one more run
    {"op": "check", "case": C, "file": F}     write the results at the first states to F (.npy)
    {"op": "measure", "case": C, "loops": n}  wall and cpu seconds, evaluations
    {"op": "compile", "case": C}              compile from nothing
    {"op": "memory", "case": C}               bytes that the compiled function needs
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.cases import Case, Job, timed


class Server:
    def __init__(self, make: Callable[[str], Any]):
        self._make = make
        self._cases: dict[str, Any] = {}

    def _case(self, name: str) -> Any:
        if name not in self._cases:
            self._cases[name] = self._make(name)
        return self._cases[name]

    def answer(self, request: dict) -> dict:
        operation = request["op"]
        case: Case = self._case(request["case"])
        if operation == "prepare":
            case.run()
            return {"seconds": timed(case.run)["wall"], "evaluations": case.evaluations}
        if operation == "check":
            np.save(request["file"], case.result())
            return {}
        if operation == "measure":
            loops = request["loops"]

            def repeat():
                for _ in range(loops):
                    case.run()

            return {**timed(repeat), "evaluations": loops * case.evaluations}
        if operation in ("compile", "memory"):
            method = getattr(case, operation, None)
            if method is None:
                raise NotImplementedError(f"this library has nothing to {operation}")
            return method()
        raise ValueError(f"no operation {operation!r}")


def main(library: str, job_file: str) -> None:
    # What the libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        module = importlib.import_module(f"benchmarks.peers.{library}")
        server = Server(module.cases(Job.read(job_file)))
    except Exception as problem:
        traceback.print_exc()
        reply({"error": f"{type(problem).__name__}: {problem}"})
        return
    reply({})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            return
        try:
            reply(server.answer(request))
        except NotImplementedError as problem:
            reply({"error": str(problem)})
        except Exception as problem:
            traceback.print_exc()
            reply({"error": f"{type(problem).__name__}: {problem}"})


if __name__ == "__main__":
    main(*sys.argv[1:])
