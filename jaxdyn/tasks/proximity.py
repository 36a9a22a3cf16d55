"""Tasks of what touches or should keep its distance: distances of two points, wheels that roll."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError, check_shape
from jaxdyn.math import so3
from jaxdyn.tasks.leaves import float_leaf, not_negative, not_zero
from jaxdyn.tasks.motion import RateTask, unit
from jaxdyn.tasks.state import RobotState


class DistanceTask(RateTask):
    """The distance of two points, one row, m.

    **Arguments:** `frame`, the first point's; `reference`, m; `other`: the second point's frame, None for the world;
    `point`, `other_point` (3,) in these frames, their origins if None. Where the points meet, the direction means nothing
    and the row is zero.
    """

    frame: str = eqx.field(static=True)
    reference: Any = eqx.field(converter=float_leaf)
    other: str | None = eqx.field(static=True, default=None)
    point: Any = eqx.field(default=None, converter=float_leaf)
    other_point: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"reference": (), "point": (3,), "other_point": (3,)}

    def __post_init__(self):
        self.name = self.name or f"distance_{self.frame}_{self.other or 'world'}"

    def _line(self, state: RobotState) -> tuple[Array, Array, Array]:
        """Unit vector from the second point to the first, the distance, and the Jacobian of the difference."""
        model, kin, dtype = state.model, state.kin, state.q.dtype
        here = self._feed("point", self.point, 3, dtype)
        there = self._feed("other_point", self.other_point, 3, dtype)
        line, J = alg.frame_point(model, kin, self.frame, here), alg.point_jacobian(model, kin, self.frame, here)
        if self.other is None:
            line = line - there
        else:
            line = line - alg.frame_point(model, kin, self.other, there)
            J = J - alg.point_jacobian(model, kin, self.other, there)
        square = jnp.sum(line * line)
        length = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
        return unit(line), length, J

    def error(self, state):
        reference = check_shape(f"{self.name}: reference", self.reference, ())
        return (reference.astype(state.q.dtype) - self._line(state)[1])[None]

    def jacobian(self, state):
        n, _, J = self._line(state)
        return (n @ J)[None]

    def reset(self, state):
        return dataclasses.replace(self, reference=self._line(state)[1])


class RollingTask(RateTask):
    """A wheel that rolls without slipping: its point on the ground has no velocity. 3 rows, m/s or m per step.

    **Main arguments:** `frame`, which turns with the wheel and has its origin at the centre; `radius`, m; `axle` (3,) in
    the frame.

    **Other arguments:** `normal` (3,) of the ground, in the world, up if None; `along` (3,) in the axes of `carrier`, a
    frame that does not turn with the wheel: of omnidirectional and mecanum wheels, the axle of the roller that touches
    the ground; only the velocity along it is held, one row. The reference is rest; at acceleration level what slips is
    asked to die out at `rate_gain`, 1/s.

    A wheel whose axle stands upright touches with no single point: its rows hold the centre.
    """

    frame: str = eqx.field(static=True)
    radius: Any = eqx.field(converter=float_leaf)
    axle: Any = eqx.field(converter=float_leaf)
    normal: Any = eqx.field(default=None, converter=float_leaf)
    along: Any = eqx.field(default=None, converter=float_leaf)
    carrier: str | None = eqx.field(static=True, default=None)
    rate_gain: Any = eqx.field(kw_only=True, default=0.0, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"radius": (), "axle": (3,), "normal": (3,), "along": (3,)}

    def __post_init__(self):
        self.name = self.name or f"rolling_{self.frame}"
        if (self.along is None) != (self.carrier is None):
            raise InputError(f"{self.name}: along and carrier go together.")

    def __check_init__(self):
        not_negative(f"{self.name}: radius", self.radius)
        for direction in ("axle", "normal", "along"):
            not_zero(f"{self.name}: {direction}", getattr(self, direction))

    def error(self, state):
        return jnp.zeros(3 if self.along is None else 1, state.q.dtype)

    def jacobian(self, state):
        model, kin, dtype = state.model, state.kin, state.q.dtype
        up = jnp.asarray([0.0, 0.0, 1.0], dtype) if self.normal is None else self._feed("normal", self.normal, 3, dtype)
        axle = so3.rotate(
            alg.frame_pose(model, kin, self.frame).rotation, unit(self._feed("axle", self.axle, 3, dtype))
        )
        # the direction of the disc that points down most
        down = unit((axle @ unit(up)) * axle - unit(up))
        J = alg.frame_jacobian(model, kin, self.frame)
        radius = check_shape(f"{self.name}: radius", self.radius, ()).astype(dtype)
        # v + omega x r
        rows = J[:3] - radius * so3.hat(down) @ J[3:]
        if self.along is None or self.carrier is None:
            return rows
        along = unit(self._feed("along", self.along, 3, dtype))
        return (so3.rotate(alg.frame_pose(model, kin, self.carrier).rotation, along) @ rows)[None]
