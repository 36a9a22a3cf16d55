"""Admittance: measured forces become offsets of references."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, as_float_array, check_shape
from jaxdyn.tasks.leaves import each, float_leaf, not_negative


class AdmittanceState(eqx.Module):
    """Offset of a reference (rows,) and its velocity (rows,)."""

    position: Float[Array, " rows"]
    velocity: Float[Array, " rows"]


class Admittance(eqx.Module):
    """A virtual mass, damper and spring that measured forces push: mass a + damping v + stiffness x = force.

    The state is explicit: `start(rows)`, then `step(state, force)` once per control step. The offset goes into a task of
    motion: at velocity level `task.with_feed_forward(dt * state.velocity)`, at acceleration level `state.velocity` there,
    or added to the reference.

    **Arguments:** `damping`, not negative; `dt`, s; `mass`, 0 for a filter of first order; `stiffness`, 0 for an offset that
    stays; `deadzone`: forces smaller than this count as zero, larger ones by their excess. Numbers, or one per row (rows,).
    With neither mass, damping nor stiffness nothing moves.

    **Raises:** `InputError` for negative numbers and wrong shapes.
    """

    damping: Any = eqx.field(converter=float_leaf)
    dt: Any = eqx.field(converter=float_leaf)
    mass: Any = eqx.field(default=0.0, converter=float_leaf)
    stiffness: Any = eqx.field(default=0.0, converter=float_leaf)
    deadzone: Any = eqx.field(default=0.0, converter=float_leaf)

    def __check_init__(self):
        for name in ("damping", "dt", "mass", "stiffness", "deadzone"):
            not_negative(name, getattr(self, name))

    def start(self, rows: int, dtype: Any = None) -> AdmittanceState:
        """No offset, at rest."""
        zero = jnp.zeros(rows, dtype or self.damping.dtype)
        return AdmittanceState(zero, zero)

    def step(self, state: AdmittanceState, force: FloatLike) -> AdmittanceState:
        """The state one control step later, under `force` (rows,). By implicit Euler: stable for every step and stiffness,
        mass 0 too."""
        x, v = state.position, state.velocity
        dtype = x.dtype
        f = check_shape("force", as_float_array("force", force, dtype), x.shape, dtype=dtype)
        names = ("mass", "damping", "stiffness", "dt", "deadzone")
        m, d, k, h, dead = (each(name, getattr(self, name), len(x), dtype) for name in names)
        f = jnp.where(f > dead, f - dead, jnp.where(f < -dead, f + dead, 0.0))
        resists = m + h * d + h**2 * k
        # with nothing that resists, no velocity would do
        v = jnp.where(resists > 0, (m * v + h * (f - k * x)) / jnp.where(resists > 0, resists, 1.0), 0.0)
        return AdmittanceState(x + h * v, v)
