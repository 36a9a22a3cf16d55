"""Limits of contact wrenches as constraints: friction, unilateral forces, centre of pressure, magnitudes.

All are for inverse dynamics, name a contact, and speak the axes of that contact: those of its frame, turned by
`rotation` (3, 3) if given; z is the normal, out of the ground. Forces are those of the environment on the robot.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxdyn.contact.wrench_cone import center_of_pressure_rows, friction_rows, normal_torque_rows
from jaxdyn.errors import check_shape
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
        C = center_of_pressure_rows(self.lower.astype(state.q.dtype), self.upper.astype(state.q.dtype))
        return self._below_zero(state, C, self.rotation)


class NormalTorqueLimits(_WrenchRows):
    """The torque about the normal that a rectangle of half lengths `size` (2,), m, can bear with `friction`. 8 rows.

    Source: Caron, Pham and Nakamura, Stability of surface contacts for humanoid robots, ICRA 2015.
    """

    size: Any = eqx.field(converter=float_leaf)
    friction: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="normal_torque")

    def _data(self, state):
        C = normal_torque_rows(self.size.astype(state.q.dtype), self.friction.astype(state.q.dtype))
        return self._below_zero(state, C, self.rotation)


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
