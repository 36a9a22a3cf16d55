"""Limits of joints that take braking into account: whoever keeps them can keep them at the next step too."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.errors import check_shape
from jaxdyn.tasks.constraint import Constraint
from jaxdyn.tasks.data import ConstraintData
from jaxdyn.tasks.leaves import each, float_leaf, not_negative, positive
from jaxdyn.tasks.limits import joint_distances
from jaxdyn.tasks.state import needs_robot


def _root(square: Array) -> Array:
    """Root of what is not negative, with a finite derivative at zero; infinite stays infinite."""
    some = square > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, square, 1.0)), 0.0)


def largest_acceleration(
    distance: Float[Array, " n"], v: Float[Array, " n"], speed: Float[Array, " n"], most: Float[Array, " n"], dt: Array
) -> Float[Array, " n"]:
    """The largest acceleration towards a limit at `distance`, held for `dt`, after which braking by at most `most` (1/s^2)
    still stops before the limit, which `speed` allows, and during which the limit is not crossed.

    Between -most and most. From a state that cannot be stopped in time it is -most.
    """
    stop = -v / dt  # comes to rest at the end of the step
    known = jnp.isfinite(distance)
    d = jnp.where(known, distance, 1.0)
    # at the end of the step
    end = 2.0 * (d - dt * v) / dt**2
    # the way turns back within the step: its crest counts
    ahead = d > 0
    crest = jnp.where(ahead, -(v**2) / (2.0 * jnp.where(ahead, d, 1.0)), -most)
    position = jnp.where((v > 0) & (end < stop), jnp.minimum(stop, crest), end)
    # (v + dt a)^2 <= 2 most (d - dt v - dt^2 a / 2)
    p = 2.0 * v * dt + most * dt**2
    discriminant = p**2 - 4.0 * dt**2 * (v**2 + 2.0 * most * (dt * v - d))
    braking = jnp.maximum(stop, (_root(discriminant) - p) / (2.0 * dt**2))
    bound = jnp.where(known, jnp.minimum(position, braking), jnp.inf)
    return jnp.clip(jnp.minimum(bound, (speed - v) / dt), -most, most)


def largest_displacement(
    distance: Float[Array, " n"], v: Float[Array, " n"], speed: Float[Array, " n"], most: Float[Array, " n"], dt: Array
) -> Float[Array, " n"]:
    """The largest displacement of one step towards a limit, after which steps that shrink by at most `most` dt^2 each stop
    before it. Not below what one step of braking leaves of the last displacement `v` dt."""
    known = jnp.isfinite(distance)
    d = jnp.where(known, jnp.maximum(distance, 0.0), 0.0)
    reach = most * dt**2
    bound = jnp.where(known, reach * (_root(1.0 + 2.0 * d / reach) - 1.0), jnp.inf)
    last = v * dt
    return jnp.maximum(jnp.minimum(bound, jnp.minimum(speed * dt, last + reach)), last - reach)


class ViabilityLimits(Constraint):
    """Position, velocity and acceleration limits of the joints that never contradict each other: a motion that may go on
    now may go on for ever, as the way to brake is kept free.

    **Main arguments:** `dt`, s, the control step; `acceleration` (nv,) or a number, 1/s^2: what every joint can do at
    any time.

    **Other arguments:** `velocity` (nv,) or a number, 1/s: that of the model if None; `margin`, rad or m, kept from the
    position limits.

    At acceleration level accelerations are meant to be held for one step; at velocity level the state needs the velocity
    of the last step (`robot_state(model, q, v)`). Outside of what can be kept, the limits brake as hard as they may.

    Source: Del Prete, Joint position and velocity bounds in discrete-time acceleration/torque control of robot arms,
    RA-L 2018.
    """

    dt: Any = eqx.field(converter=float_leaf)
    acceleration: Any = eqx.field(converter=float_leaf)
    velocity: Any = eqx.field(default=None, converter=float_leaf)
    margin: Any = eqx.field(default=0.0, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="viability_limits")

    def __check_init__(self):
        positive(f"{self.name}: dt", self.dt)
        positive(f"{self.name}: acceleration", self.acceleration)
        if self.velocity is not None:
            not_negative(f"{self.name}: velocity", self.velocity)

    def _data(self, state):
        state = needs_robot(state, self.name)
        dtype, nv = state.q.dtype, state.model.nv
        allowed = state.model.velocity_limit if self.velocity is None else self.velocity
        speed, most = each("velocity", allowed, nv, dtype), each("acceleration", self.acceleration, nv, dtype)
        dt = check_shape("dt", self.dt, ()).astype(dtype)
        below, above = (d - self.margin.astype(dtype) for d in joint_distances(state))
        rule = largest_displacement if state.acceleration is None else largest_acceleration
        upper, lower = rule(above, state.v, speed, most, dt), -rule(below, -state.v, speed, most, dt)
        # both sides lost at once, in a range too narrow: the upper one is kept
        lower = jnp.minimum(lower, upper)
        a = state.acceleration
        if a is None:
            return ConstraintData(lower=lower, upper=upper)
        return ConstraintData(A_in=a.M, b_lower=lower - a.q, b_upper=upper - a.q)
