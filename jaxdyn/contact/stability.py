"""The longest stable time step of a stiff contact."""

from __future__ import annotations

import math

import numpy as np

from jaxdyn.errors import InputError, unknown_name


def _explicit_euler(h: float, pole: complex) -> float:
    return abs(1 + h * pole)


def _midpoint(h: float, pole: complex) -> float:
    z = h * pole
    return abs(1 + z + z**2 / 2)


def _runge_kutta_4(h: float, pole: complex) -> float:
    z = h * pole
    return abs(1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24)


# growth per step of a mode exp(pole t), by integrator
_GROWTH = {
    "LieEuler": _explicit_euler,
    "EmbeddedEuler": _explicit_euler,
    "LieMidpoint": _midpoint,
    "RKMK4": _runge_kutta_4,
    "EmbeddedRK4": _runge_kutta_4,
}
_ALWAYS_STABLE = ("LinearlyImplicit", "ImplicitMidpoint")
_INTEGRATORS = ("SemiImplicitEuler", *_GROWTH, *_ALWAYS_STABLE)


def stable_dt(
    stiffness: float, damping: float, area: float, effective_mass: float, integrator: str = "SemiImplicitEuler"
) -> float:
    """The longest time step (s) at which a mass on the contact's spring and damper does not blow up; a safe step is a
    third of it.

    **Arguments:** `stiffness`: N/m^3 (or N/m for a point with `area=1`); `damping`: N s/m^3; `area`: m^2;
    `effective_mass`: kg, that the contact feels: about the mass of the foot plus what the leg passes on, and never more
    than the robot's; `integrator`: name of its class.

    **Returns:** infinity for `LinearlyImplicit` and `ImplicitMidpoint`; 0 for explicit Euler without damping, which is never stable.

    **Raises:** `UnknownNameError`, and `InputError` for a value that is not positive. Python numbers only: this is for
    planning, not for tracing. `check_step` looks at a whole robot instead, with its controller.

    With `w = sqrt(k A / m)` and `zeta = b A / (2 m w)`: semi-implicit Euler is stable below `(2 / w) (sqrt(1 + zeta^2)
    - zeta)`; for the others it is the step at which the growth of one of the two modes first reaches 1.
    """
    if integrator not in _INTEGRATORS:
        raise unknown_name("integrator", integrator, _INTEGRATORS)
    for name, value in (("stiffness", stiffness), ("area", area), ("effective_mass", effective_mass)):
        if not value > 0:
            raise InputError(f"{name}: wanted a positive number, given {value}.")
    if not damping >= 0:
        raise InputError(f"damping: wanted a number that is not negative, given {damping}.")
    frequency = math.sqrt(stiffness * area / effective_mass)
    zeta = damping * area / (2 * effective_mass * frequency)
    if integrator in _ALWAYS_STABLE:
        return math.inf
    if integrator == "SemiImplicitEuler":
        return 2 / frequency * (math.sqrt(1 + zeta**2) - zeta)
    poles = [complex(p) for p in frequency * (-zeta + np.array([1, -1]) * np.sqrt(complex(zeta**2 - 1)))]
    growth = _GROWTH[integrator]

    def stable(h: float) -> bool:
        return all(growth(h, pole) <= 1 + 1e-12 for pole in poles)

    # Both modes decay; the stable steps are an interval from 0 on, if there are any. No scheme here reaches |h pole| = 4.
    fastest = max(abs(pole) for pole in poles)
    low, high = 0.0, 4 / fastest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low
