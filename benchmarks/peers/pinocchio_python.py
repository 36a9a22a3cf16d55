"""Pinocchio through its Python module, one call per state: the stand-in where no C++ compiler is at hand.

Each call costs about a microsecond of Python on top, so that these figures flatter whatever stands beside them.
"""

from collections.abc import Callable

import numpy as np
import pinocchio as pin

from benchmarks import robots
from benchmarks.peers.cases import Job, Loop


def cases(job: Job) -> Callable[[str], Loop]:
    model = robots.pinocchio_model(robots.Robot("robot", job.urdf, job.floating))
    data = model.createData()
    states = job.load_states()
    rows = list(zip(*(states[key] for key in ("q", "v", "a", "tau")), strict=True))
    solution = np.empty(model.nv)

    def mass_solve(q, tau):
        pin.crba(model, data, q)
        pin.cholesky.decompose(model, data)
        solution[:] = pin.cholesky.solve(model, data, tau)

    calls = {
        "rnea": lambda q, v, a, tau: pin.rnea(model, data, q, v, a),
        "crba": lambda q, v, a, tau: pin.crba(model, data, q),
        "aba": lambda q, v, a, tau: pin.aba(model, data, q, v, tau),
        "aba_derivatives": lambda q, v, a, tau: pin.computeABADerivatives(model, data, q, v, tau),
        "rnea_derivatives": lambda q, v, a, tau: pin.computeRNEADerivatives(model, data, q, v, a),
        "mass_solve": lambda q, v, a, tau: mass_solve(q, tau),
    }
    expected = robots.reference(model, states, job.checked)

    def make(name: str) -> Loop:
        algorithm = name.partition(":")[2]
        call = calls[algorithm]

        def run():
            for row in rows:
                call(*row)

        return Loop(run, len(rows), lambda: expected[algorithm])

    return make
