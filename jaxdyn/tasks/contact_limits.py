"""Limits of contact wrenches as constraints: friction, unilateral forces, centre of pressure, magnitudes.

All are for inverse dynamics, name a contact, and speak the axes of that contact: those of its frame, turned by
`rotation` (3, 3) if given; z is the normal, out of the ground. Forces are those of the environment on the robot.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.errors import InputError, check_shape
from jaxdyn.tasks.constraint import Constraint
from jaxdyn.tasks.data import ConstraintData
from jaxdyn.tasks.leaves import float_leaf
from jaxdyn.tasks.library import local_wrench


class _WrenchRows(Constraint):
    """Rows C w <= 0 of the local wrench."""

    contact: str = eqx.field(static=True)

    def _below_zero(self, state, C: Array, rotation) -> ConstraintData:
        y = C @ local_wrench(state, self.contact, rotation, self.name)
        return ConstraintData(A_in=y.M, b_lower=jnp.full(y.size, -jnp.inf, y.q.dtype), b_upper=-y.q)


def friction_rows(friction: Array, sides: int = 4) -> Array:
    """Rows C with C f <= 0 for forces f in a pyramid inside the friction cone; the last says f_z >= 0. (sides + 1, 3)

    Four sides: (+-1, 0, -mu / sqrt(2)), (0, +-1, -mu / sqrt(2)), (0, 0, -1). More come nearer to the cone.
    """
    if sides < 3:
        raise InputError(f"sides: wanted 3 or more, given {sides}.")
    angle = 2.0 * np.pi * np.arange(sides) / sides
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if sides == 4:
        directions = np.asarray([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    planar = jnp.asarray(directions, friction.dtype)
    # an inscribed polygon: its edges are at cos(pi / sides) of the radius
    inner = friction * float(np.cos(np.pi / sides))
    cone = jnp.concatenate([planar, jnp.broadcast_to(-inner, (sides, 1))], axis=1)
    return jnp.concatenate([cone, jnp.asarray([[0.0, 0.0, -1.0]], friction.dtype)])


class FrictionCone(_WrenchRows):
    """The force of a contact within a pyramid inside its friction cone, and pushing: `friction` mu, `sides`.

    A second-order cone is no constraint of a quadratic program; 16 sides leave less than 2 % of it out.
    """

    friction: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    sides: int = eqx.field(static=True, default=4)
    name: str = eqx.field(static=True, kw_only=True, default="friction_cone")

    def _data(self, state):
        C = friction_rows(self.friction.astype(state.q.dtype), self.sides)
        return self._below_zero(state, jnp.concatenate([C, jnp.zeros_like(C)], axis=1), self.rotation)


class CenterOfPressureLimits(_WrenchRows):
    """The centre of pressure in a rectangle: `lower`, `upper` (2,), m, along x and y of the contact."""

    lower: Any = eqx.field(converter=float_leaf)
    upper: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="center_of_pressure")

    def _data(self, state):
        dtype = state.q.dtype
        (xl, yl), (xu, yu) = self.lower.astype(dtype), self.upper.astype(dtype)
        o, i = jnp.zeros((), dtype), jnp.ones((), dtype)
        rows = [[o, o, xl, o, i, o], [o, o, -xu, o, -i, o], [o, o, yl, -i, o, o], [o, o, -yu, i, o, o]]
        return self._below_zero(state, jnp.stack([jnp.stack(r) for r in rows]), self.rotation)


class NormalTorqueLimits(_WrenchRows):
    """The torque about the normal that a rectangle of half lengths `size` (2,), m, can bear with `friction`. 8 rows.

    Source: Caron, Pham and Nakamura, Stability of surface contacts for humanoid robots, ICRA 2015.
    """

    size: Any = eqx.field(converter=float_leaf)
    friction: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="normal_torque")

    def _data(self, state):
        dtype = state.q.dtype
        (X, Y), mu = self.size.astype(dtype), self.friction.astype(dtype)
        one, rows = jnp.ones((), dtype), []
        for turn in (1.0, -1.0):
            for a in (1.0, -1.0):
                for b in (1.0, -1.0):
                    # -mu (X + Y) fz + |Y fx - mu tx| + |X fy - mu ty| <= tz, and the like for -tz
                    signs = [a * Y, b * X, -mu * (X + Y), -turn * a * mu, -turn * b * mu, -turn * one]
                    rows.append(jnp.stack(signs))
        return self._below_zero(state, jnp.stack(rows), self.rotation)


class WrenchLimits(_WrenchRows):
    """The wrench of a contact between `lower` and `upper` (6,), in its axes: `released=True` sets it to zero."""

    lower: Any = eqx.field(converter=float_leaf)
    upper: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    released: Any = eqx.field(default=False, converter=lambda x: jnp.asarray(x, bool))
    name: str = eqx.field(static=True, kw_only=True, default="wrench_limits")

    def _data(self, state):
        y = local_wrench(state, self.contact, self.rotation, self.name)
        lower, upper = (
            jnp.where(self.released, 0.0, check_shape(n, b, (6,)).astype(y.q.dtype)) - y.q
            for n, b in (("lower", self.lower), ("upper", self.upper))
        )
        return ConstraintData(A_in=y.M, b_lower=lower, b_upper=upper)
