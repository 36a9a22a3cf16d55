"""The project's own bar: which comparisons count, what must be reached and what is aimed at.

All figures say how many times as good we are as the peer, except where `better` is "lower".
"""

import dataclasses

BAR_ROBOTS = ("quadruped", "humanoid")


@dataclasses.dataclass(frozen=True)
class Bar:
    must: float
    aim: float
    better: str = "higher"  # or "lower"

    def verdict(self, value: float) -> str:
        def reached(limit: float) -> bool:
            return value >= limit if self.better == "higher" else value <= limit

        return "aim" if reached(self.aim) else "must" if reached(self.must) else "below"


# Throughput on a batch over that of Pinocchio's C++ loop on as many threads.
CPP = {
    "rnea": Bar(1.0, 3.0),
    "crba": Bar(0.5, 2.0),
    "aba": Bar(0.5, 2.0),
    "aba_derivatives": Bar(0.3, 2.0),
    "mass_solve": Bar(0.5, 2.0),
    "factor_solve": Bar(0.5, 2.0),
    "factor_delassus": Bar(0.5, 2.0),
}
# ... and over that of the best library on JAX.
JAX = {
    "rnea": Bar(3.0, 15.0),
    "crba": Bar(3.0, 15.0),
    "aba": Bar(3.0, 15.0),
    "aba_derivatives": Bar(30.0, 200.0),
}
# Latency of a single call over that of frax.
LATENCY = Bar(1.0, 0.5, "lower")
# Seconds, on the humanoid.
COMPILE = {"aba": Bar(5.0, 2.0, "lower"), "aba_derivatives": Bar(12.0, 5.0, "lower")}
COMPILE_ROBOT = "humanoid"
# Environment steps per second over those of MuJoCo on as many threads.
ROLLOUT = Bar(0.7, 3.0)
# Time of the reverse-mode gradient of a rollout over that of the rollout.
GRADIENT = Bar(6.0, 4.0, "lower")
# Memory of the gradient with everything stored over that with nested checkpoints.
MEMORY = Bar(50.0, 80.0)
