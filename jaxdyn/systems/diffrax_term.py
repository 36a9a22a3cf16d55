"""A bridge to diffrax, for adaptive step sizes and stiff solvers. It is optional: the extra `solvers` installs it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxdyn.errors import FloatLike, InputError
from jaxdyn.systems.integrators import AnySystem
from jaxdyn.systems.rollout import Controls, as_controls, check_clock
from jaxdyn.systems.system import strong


def diffrax_term(system: AnySystem, controls: Any = None, *, dt: FloatLike | None = None, t0: FloatLike = 0.0) -> Any:
    """The system as a `diffrax.ODETerm`, whose states `y` are those of the system: `diffrax.diffeqsolve(term, solver, ..., y0=x0)`.

    **Arguments:**

    - `controls`: as for `rollout`: a policy `policy(x, t)`, inputs to hold, or None. Inputs with a time axis are held for `dt` (s)
      each, from `t0` on, the last one for ever; give the switches to diffrax, as `ClipStepSizeController` takes them:
      `jump_ts=t0 + dt * jnp.arange(1, n)`.
      If `diffeqsolve` is given `args`, these take the place of `controls`: a policy, or inputs to hold.

    Rotations are nine numbers in diffrax, which adds `Exp` as little as any solver for vectors does: they stay orthonormal up to
    the tolerance, and `rho` pulls them back. For long times `system.project` the state between calls.

    Derivatives of every kind pass: `RecursiveCheckpointAdjoint`, diffrax's default, for reverse mode; `ForwardMode` for
    `jax.jacfwd`; with `BacksolveAdjoint`, of `args` and the state alone. A second at 1 kHz needs more than the default
    `max_steps=4096` in four seconds. For stiff contacts: `Kvaerno3`, `Kvaerno5`, `KenCarp4`.

    **Raises:** `ImportError` without diffrax; `InputError` for wrong controls, and for a time axis without `dt`.
    """
    try:
        import diffrax
    except ImportError:
        raise ImportError(
            "diffrax_term needs diffrax, which the extra 'solvers' installs: pip install 'jaxdyn[solvers]'"
        ) from None
    controls = as_controls(system, controls)
    if jax.tree.leaves(controls.scanned) and dt is None:
        raise InputError("dt: wanted the time for which each of the controls is held, as they have a time axis.")
    if dt is not None:
        check_clock(dt, 1)
    return diffrax.ODETerm(_VectorField(system.with_derivatives("products"), controls, dt, t0))


class _VectorField(eqx.Module):
    """`f(t, y, args)`: the derivative with the structure of the state, as diffrax wants it."""

    system: AnySystem
    controls: Controls
    dt: FloatLike | None
    t0: FloatLike

    def __call__(self, t: FloatLike, y: Any, args: Any) -> Any:
        controls = self.controls if args is None else as_controls(self.system, args)
        leaves, structure = jax.tree.flatten(y)
        time = jnp.asarray(t, leaves[0].dtype)
        u = controls.at(_piece(controls.scanned, time, self.dt, self.t0), y, time)
        rates = jax.tree.leaves(self.system(y, u, time))
        return strong(structure.unflatten(rates), y)


def _piece(scanned: Any, t: Array, dt: FloatLike | None, t0: FloatLike) -> Any:
    """The inputs of the interval that holds `t`; at a switch, those of the later one."""
    if not jax.tree.leaves(scanned) or dt is None:
        return scanned
    count = len(jax.tree.leaves(scanned)[0])
    # the times of the switches as a user writes them for diffrax, which steps up to just before and from just after them
    switches = jnp.asarray(t0, t.dtype) + jnp.asarray(dt, t.dtype) * jnp.arange(1, count).astype(t.dtype)
    number = jnp.sum((t >= switches).astype(jnp.int32))
    return jax.tree.map(lambda a: a[number], scanned)
