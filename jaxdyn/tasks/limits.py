"""Limits of motion as constraints: joints, velocities, accelerations, torques, regions of space, collisions.

At velocity level they bound the displacement x of one control step, at acceleration level the joint accelerations; a
limit serves both where that makes sense (`RobotState.order`). `dt` is the control step, s.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn import algorithms as alg
from jaxdyn.algorithms.center_of_mass import center_of_mass
from jaxdyn.errors import InputError, check_shape
from jaxdyn.math import so3
from jaxdyn.model import Model
from jaxdyn.tasks.affine import Affine
from jaxdyn.tasks.constraint import Constraint
from jaxdyn.tasks.data import ConstraintData
from jaxdyn.tasks.leaves import each, float_leaf
from jaxdyn.tasks.state import RobotState, needs_robot


def _bounded(variable: Affine, lower: Array, upper: Array, is_x: bool) -> ConstraintData:
    """Bounds of x, or rows if the variable is not x itself."""
    if is_x:
        return ConstraintData(lower=lower, upper=upper)
    return ConstraintData(A_in=variable.M, b_lower=lower - variable.q, b_upper=upper - variable.q)


def _scalar_joints(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Where joints of one coordinate stand in q and v."""
    t = model.tree
    joints = [i for i in range(len(t.joint_nq)) if t.joint_nq[i] == 1]
    return np.asarray([t.q_offset[i] for i in joints], int), np.asarray([t.v_offset[i] for i in joints], int)


def joint_distances(state: RobotState) -> tuple[Float[Array, " nv"], Float[Array, " nv"]]:
    """Distances (nv) from the lower and to the upper limits; infinite where there is none."""
    at_q, at_v = _scalar_joints(state.model)
    none = jnp.full(state.model.nv, jnp.inf, state.q.dtype)
    below = none.at[at_v].set(state.q[at_q] - state.model.lower[at_q])
    above = none.at[at_v].set(state.model.upper[at_q] - state.q[at_q])
    return below, above


class JointLimits(Constraint):
    """Coordinates within the limits of the model.

    At velocity level x may use up the share `gain` of the distance to a limit: -gain (q - lower) <= x <= gain
    (upper - q). A joint that is outside already is asked to come back, by no more than `step` (nv,) per control step
    (0: it must not go further, as in OpenSoT; give dt times the velocity limits along with `VelocityLimits`, so that the
    two never contradict each other).

    At acceleration level (exponential control barrier): alpha_1 alpha_2 d - (alpha_1 + alpha_2) v bounds the
    acceleration towards a limit at distance d; `alpha` (2,), 1/s.
    """

    gain: Any = eqx.field(default=1.0, converter=float_leaf)
    step: Any = eqx.field(default=0.0, converter=float_leaf)
    alpha: Any = eqx.field(default=(10.0, 10.0), converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="joint_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        below, above = joint_distances(state)
        if state.acceleration is None:
            gain, step = self.gain.astype(below.dtype), self.step.astype(below.dtype)
            return ConstraintData(lower=-jnp.maximum(gain * below, -step), upper=jnp.maximum(gain * above, -step))
        a, b = self.alpha.astype(below.dtype)
        lower, upper = -a * b * below - (a + b) * state.v, a * b * above - (a + b) * state.v
        return _bounded(state.acceleration, lower, upper, False)


class VelocityLimits(Constraint):
    """Velocities within `limit` (nv,) (that of the model if None), those of a floating base too if the limit has them.

    Velocity level: |x| <= limit dt. Acceleration level: the limit is met after `horizon` control steps at the latest.
    """

    dt: Any = eqx.field(converter=float_leaf)
    limit: Any = eqx.field(default=None, converter=float_leaf)
    horizon: Any = eqx.field(default=1.0, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="velocity_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        dtype, nv = state.q.dtype, state.model.nv
        limit = each("limit", state.model.velocity_limit if self.limit is None else self.limit, nv, dtype)
        dt = self.dt.astype(dtype)
        if state.acceleration is None:
            return ConstraintData(lower=-limit * dt, upper=limit * dt)
        span = dt * self.horizon.astype(dtype)
        return _bounded(state.acceleration, (-limit - state.v) / span, (limit - state.v) / span, False)


class AccelerationLimits(Constraint):
    """Accelerations within `limit` (nv,) or a number. At velocity level, with `dt`: x within the last displacement v dt
    plus or minus limit dt^2."""

    limit: Any = eqx.field(converter=float_leaf)
    dt: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="acceleration_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        limit = each("limit", self.limit, state.model.nv, state.q.dtype)
        if state.acceleration is not None:
            return _bounded(state.acceleration, -limit, limit, False)
        if self.dt is None:
            raise InputError(f"{self.name}: give dt at velocity level.")
        dt = self.dt.astype(limit.dtype)
        return ConstraintData(lower=state.v * dt - limit * dt**2, upper=state.v * dt + limit * dt**2)


class TorqueLimits(Constraint):
    """Joint torques within `limit` (nv,) (the effort limits of the model if None). Inverse dynamics only."""

    limit: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="torque_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        if state.torque is None:
            raise InputError(f"{self.name}: joint torques are known in inverse dynamics only.")
        actuated = actuated_dofs(state.model)
        limit = state.model.effort_limit if self.limit is None else self.limit
        limit = each("limit", limit, state.model.nv, state.q.dtype)[actuated]
        y = Affine(state.torque.M[actuated], state.torque.q[actuated])
        return ConstraintData(A_in=y.M, b_lower=-limit - y.q, b_upper=limit - y.q)


def actuated_dofs(model: Model) -> np.ndarray:
    """Degrees of freedom of all joints but floating ones."""
    t = model.tree
    return np.asarray([
        t.v_offset[i] + k for i, kind in enumerate(t.joint_types) if kind != "floating" for k in range(t.joint_nv[i])
    ], int)  # fmt: skip


class _Rows(Constraint):
    """Rows A y with y the displacement, or at acceleration level the motion after `dt`: y = v dt + a dt^2 / 2."""

    def _rows(self, state: RobotState, A: Array, lower: Array | None, upper: Array | None, dt: Array | None):
        if state.acceleration is None:
            return ConstraintData(A_in=A, b_lower=lower, b_upper=upper)
        if dt is None:
            raise InputError(f"{self.name}: give dt, the look-ahead, at acceleration level.")
        h = dt.astype(A.dtype)
        drift = A @ state.v * h
        A = 0.5 * h**2 * A
        shift = A @ state.acceleration.q + drift
        return ConstraintData(
            A_in=A @ state.acceleration.M,
            b_lower=None if lower is None else lower - shift,
            b_upper=None if upper is None else upper - shift,
        )


class SupportPolygon(_Rows):
    """Centre of mass over a convex polygon: `vertices` (k, 2), m, counter-clockwise; `margin`, m, to the inside;
    `gain`: share of the distance that one step may use up; `dt`: look-ahead at acceleration level."""

    vertices: Any = eqx.field(converter=float_leaf)
    margin: Any = eqx.field(default=0.0, converter=float_leaf)
    gain: Any = eqx.field(default=1.0, converter=float_leaf)
    dt: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="support_polygon")

    def _data(self, state):
        state = needs_robot(state, self.name)
        P = self.vertices.astype(state.q.dtype)
        edge = jnp.roll(P, -1, axis=0) - P
        length = jnp.sqrt(jnp.sum(edge**2, axis=1, keepdims=True))
        normal = jnp.stack([edge[:, 1], -edge[:, 0]], axis=1) / jnp.where(length > 0, length, 1.0)
        com = center_of_mass(state.model, state.kin)[:2]
        room = jnp.sum(normal * (P - com[None]), axis=1) - self.margin.astype(P.dtype)
        A = normal @ alg.com_jacobian(state.model, state.kin)[:2]
        gain = self.gain.astype(P.dtype)
        return self._rows(state, A, None, jnp.where(state.order == 1, gain * room, room), self.dt)


class CartesianPositionLimits(_Rows):
    """The origin of a frame in a polyhedron: `normals` (k, 3) p <= `offsets` (k,); `gain`, `dt` as in
    `SupportPolygon`."""

    frame: str = eqx.field(static=True)
    normals: Any = eqx.field(converter=float_leaf)
    offsets: Any = eqx.field(converter=float_leaf)
    gain: Any = eqx.field(default=1.0, converter=float_leaf)
    dt: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="position_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        N = self.normals.astype(state.q.dtype)
        p = alg.frame_pose(state.model, state.kin, self.frame).translation
        room = self.gain.astype(N.dtype) * (self.offsets.astype(N.dtype) - N @ p)
        return self._rows(state, N @ alg.frame_jacobian(state.model, state.kin, self.frame)[:3], None, room, self.dt)


class CartesianVelocityLimits(Constraint):
    """The twist of a frame (MIXED) within `limit` (6,), m/s and rad/s, during a control step `dt`. Velocity level."""

    frame: str = eqx.field(static=True)
    limit: Any = eqx.field(converter=float_leaf)
    dt: Any = eqx.field(converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="twist_limits")

    def _data(self, state):
        state = needs_robot(state, self.name)
        if state.acceleration is not None:
            raise InputError(f"{self.name}: made for velocity level.")
        J = alg.frame_jacobian(state.model, state.kin, self.frame)
        most = check_shape("limit", self.limit, (6,)).astype(J.dtype) * self.dt.astype(J.dtype)
        return ConstraintData(A_in=J, b_lower=-most, b_upper=most)


class Capsule(eqx.Module):
    """A capsule fixed to a frame: all points within `radius` of the segment from `start` to `end` (3,), in the frame. A
    sphere if both are the same."""

    frame: str = eqx.field(static=True)
    start: Any = eqx.field(converter=float_leaf)
    end: Any = eqx.field(converter=float_leaf)
    radius: Any = eqx.field(converter=float_leaf)


class CollisionAvoidance(_Rows):
    """Pairs of capsules that keep apart.

    **Arguments:** `pairs` of `Capsule`; `distance`, m, to keep; `gain`: share of the surplus that one step may use up;
    `detection`, m: pairs farther apart have no row; `dt`: look-ahead at acceleration level.
    """

    pairs: tuple[tuple[Capsule, Capsule], ...]
    distance: Any = eqx.field(default=0.01, converter=float_leaf)
    gain: Any = eqx.field(default=1.0, converter=float_leaf)
    detection: Any = eqx.field(default=jnp.inf, converter=float_leaf)
    dt: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="collision")

    def distances(self, state: RobotState) -> Float[Array, " pairs"]:
        """Distances of the surfaces, m, negative in penetration."""
        return jnp.stack([_nearest(state, a, b)[0] for a, b in self.pairs])

    def _data(self, state):
        state = needs_robot(state, self.name)
        rows, room = [], []
        for a, b in self.pairs:
            d, p, r, n = _nearest(state, a, b)
            rows.append(n @ (_fixed_point(state, b.frame, r) - _fixed_point(state, a.frame, p)))
            far = d > self.detection.astype(d.dtype)
            room.append(jnp.where(far, -jnp.inf, -self.gain.astype(d.dtype) * (d - self.distance.astype(d.dtype))))
        # a step may close the gap, but a gap too small need not open at once: that could be impossible
        lower = jnp.minimum(jnp.stack(room), 0.0)
        return self._rows(state, jnp.stack(rows), lower, None, self.dt)


def _fixed_point(state: RobotState, frame: str, point: Array) -> Array:
    """Jacobian of the point of a frame's body that is at the world point now. (3, nv)"""
    pose = alg.frame_pose(state.model, state.kin, frame)
    return alg.point_jacobian(state.model, state.kin, frame, so3.rotate_back(pose.rotation, point - pose.translation))


def _nearest(state: RobotState, a: Capsule, b: Capsule) -> tuple[Array, Array, Array, Array]:
    """Distance of two capsules, the nearest points of their segments, and the unit vector from the first to the second.

    Source: Ericson, Real-Time Collision Detection, 2005, section 5.1.9.
    """
    dtype = state.q.dtype
    ends = [alg.frame_point(state.model, state.kin, c.frame, e.astype(dtype)) for c in (a, b) for e in (c.start, c.end)]
    p1, q1, p2, q2 = ends
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    tiny = jnp.asarray(float(jnp.finfo(dtype).eps) ** 2, dtype)
    aa, ee, f, c, bb = d1 @ d1, d2 @ d2, d2 @ r, d1 @ r, d1 @ d2
    safe_a, safe_e = jnp.maximum(aa, tiny), jnp.maximum(ee, tiny)
    denominator = aa * ee - bb * bb
    skew = denominator > tiny * (1.0 + aa * ee)
    s = jnp.where(skew, jnp.clip((bb * f - c * ee) / jnp.where(skew, denominator, 1.0), 0.0, 1.0), 0.0)
    t = (bb * s + f) / safe_e
    s = jnp.where(t < 0, jnp.clip(-c / safe_a, 0.0, 1.0), jnp.where(t > 1, jnp.clip((bb - c) / safe_a, 0.0, 1.0), s))
    t = jnp.clip(t, 0.0, 1.0)
    near, there = p1 + s * d1, p2 + t * d2
    line = there - near
    square = line @ line
    apart = square > tiny
    length = jnp.sqrt(jnp.where(apart, square, 1.0))
    up = jnp.asarray([0.0, 0.0, 1.0], dtype)
    normal = jnp.where(apart, line / length, up)
    gap = jnp.where(apart, length, 0.0) - a.radius.astype(dtype) - b.radius.astype(dtype)
    return gap, near, there, normal
