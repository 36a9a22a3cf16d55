"""Whether a time step is short enough for a robot, its contacts and its controller."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import FloatLike, InputError, Status, is_concrete, warn
from jaxdyn.systems.integrators import AnySystem, Integrator, step
from jaxdyn.systems.rollout import as_controls, check_clock
from jaxdyn.systems.system import System, boxminus, boxplus

# Numbers of substeps that are tried: 1, 2, 4, ...
TRIES = 11


def stable_substeps(
    system: AnySystem, integrator: Integrator, x: Any, controls: Any, dt: FloatLike, t: FloatLike = 0.0
) -> int | None:
    """The smallest of 1, 2, 4, ... 1024 substeps of a step of `dt` (s) with which no mode of the motion about the state `x` grows
    that does not grow by itself; None if there is none, as for explicit Euler and an undamped spring.

    **Arguments:** `controls`: a policy `policy(x, t)`, whose gains count as springs and dampers do; an input to hold; or None.
    `x`: a state that is typical of the motion, with the contacts closed: an open one has no stiffness.

    **Raises:** `InputError` for traced numbers: this is for planning, not for tracing. A number, once found, is static.

    A step is linearised, `tangent+ = A tangent`, and so is the motion, `tangent' = F tangent`. Stable is a step with
    `|A| <= exp(dt max(0, Re F))` for the eigenvalues largest in size.
    """
    return _growths(system, integrator, x, controls, dt, t)[0]


def check_step(
    system: AnySystem,
    integrator: Integrator,
    x: Any,
    controls: Any,
    dt: FloatLike,
    substeps: int = 1,
    t: FloatLike = 0.0,
) -> Status:
    """Warns (`JaxdynWarning`) if `dt / substeps` (s) is too long a step for the motion about `x`, and says how many substeps would do.

    **Returns:** `OK` or `UNSTABLE_STEP`. Arguments and errors as of `stable_substeps`.
    """
    check_clock(dt, substeps)
    enough, growth = _growths(system, integrator, x, controls, float(dt) / substeps, t)
    if enough == 1:
        return Status.OK
    advice = "no number of substeps up to 1024 helps; use another integrator"
    if enough is not None:
        advice = f"substeps={enough * substeps} would do"
    warn(
        f"a step of {float(dt) / substeps:.3g} s is too long for {type(integrator).__name__}: something grows by {growth:.3g} in "
        f"each that should not; {advice}. {Status.UNSTABLE_STEP.remedy}"
    )
    return Status.UNSTABLE_STEP


def _growths(
    system: AnySystem, integrator: Integrator, x: Any, controls: Any, dt: FloatLike, t: FloatLike
) -> tuple[int | None, float]:
    """The number of substeps, and the growth in a step without any."""
    if not isinstance(system, System):
        raise InputError(f"system: wanted a mechanical system, given {type(system).__name__}.")
    check_clock(dt, 1)
    controls = as_controls(system, controls)
    if jax.tree.leaves(controls.scanned):
        raise InputError("controls: wanted a policy or an input to hold, given one with a time axis.")
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((dt, t, x, eqx.filter((system, controls), eqx.is_array)))):
        raise InputError("stable_substeps, check_step: wanted numbers, given values that are being traced.")
    dtype = jax.tree.leaves(x)[0].dtype
    lengths = jnp.asarray(float(dt) * 0.5 ** np.arange(TRIES), dtype)
    steps, rates = _linear(system, integrator, x, controls, lengths, jnp.asarray(t, dtype))
    if not (np.isfinite(steps[-1]).all() and np.isfinite(rates).all()):
        raise InputError("x: the dynamics or their derivatives are not finite there.")
    # defective eigenvalues, such as those of a body that coasts, are off by the cube root of the precision
    slack = 10 * float(jnp.finfo(dtype).eps) ** (1 / 3)
    fastest = max(0.0, float(np.linalg.eigvals(np.asarray(rates, float)).real.max(initial=0)))
    finite = [np.nan_to_num(np.asarray(a, float), posinf=1e30, neginf=-1e30) for a in steps]
    growths = [float(np.abs(np.linalg.eigvals(a)).max(initial=0)) for a in finite]
    stable = [g <= np.exp(fastest * float(h)) * (1 + slack) for g, h in zip(growths, lengths, strict=True)]
    return next((2**k for k in range(TRIES) if stable[k]), None), growths[0]


@eqx.filter_jit
def _linear(system: System, integrator: Integrator, x: Any, controls: Any, lengths: Any, t: Any) -> tuple:
    """The matrices of steps of these lengths, and that of the motion."""
    v = system.velocity(x)
    zero = jnp.zeros(2 * v.size, v.dtype)

    def of_step(h: Any) -> Any:
        def new(x: Any) -> Any:
            return step(system, integrator, x, controls.at(controls.held, x, t), h, t)

        after = new(x)
        return jax.jacfwd(lambda tangent: boxminus(system, new(boxplus(system, x, tangent)), after))(zero)

    def rate(tangent: Any) -> Any:
        at = boxplus(system, x, tangent)
        moving = system.chart_rate(tangent[: v.size], system.velocity(at))
        return jnp.concatenate([moving, system.acceleration(at, controls.at(controls.held, at, t), t)])

    return jax.vmap(of_step)(lengths), jax.jacfwd(rate)(zero)
