"""Tasks of motion: an error, its Jacobian and its bias make a task at velocity and at acceleration level.

With error e(q) (reference minus robot), Jacobian J (e falls at the rate J v), gain k, feed-forward v_ref and a_ref:

    velocity level        J x = v_ref + k e                              x: displacement of one control step
    acceleration level    J a = a_ref + k_v (v_ref - J v) + k e - J_dot v,     k_v = 2 sqrt(k) unless given

The same task serves both: the solver says which (`RobotState.order`). The default gain is 1 for displacements (the whole
error in one step) and a stiffness in 1/s^2 for accelerations, which each kind of task names. As a nonlinear cost, for
trajectory optimisation, a task is 1/2 e^T W e: `task.nonlinear_cost(state)`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn import algorithms as alg
from jaxdyn.algorithms.center_of_mass import center_of_mass
from jaxdyn.errors import FloatLike, InputError, NotDefinedError, check_shape, unknown_name
from jaxdyn.math import se3, so3
from jaxdyn.math.arguments import check_core
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import Representation
from jaxdyn.model import difference, integrate
from jaxdyn.tasks.data import HessianType
from jaxdyn.tasks.leaves import float_leaf
from jaxdyn.tasks.state import RobotState, needs_robot
from jaxdyn.tasks.task import Task

LOCAL, MIXED = Representation.LOCAL, Representation.MIXED


def unit(x: Array) -> Array:
    """A vector over its length; zero if it is zero."""
    square = jnp.sum(x * x)
    return jnp.where(square > 0, x / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


class MotionTask(Task):
    """What tasks of motion share. Subclasses give `error`, `jacobian`, `bias` and `rows`.

    **Fields** besides those of `Task`: `velocity`: v_ref (rows,), per control step at velocity level; `acceleration`:
    a_ref (rows,); `rate_gain`: k_v in 1/s.
    """

    velocity: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)
    acceleration: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)
    rate_gain: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)

    @abc.abstractmethod
    def error(self, state: RobotState) -> Float[Array, " rows"]:
        """Reference minus robot."""

    @abc.abstractmethod
    def jacobian(self, state: RobotState) -> Float[Array, "rows nv"]:
        """Derivative of what the robot does with respect to its displacement."""

    @abc.abstractmethod
    def bias(self, state: RobotState) -> Float[Array, " rows"]:
        """J_dot v."""

    def stiffness(self) -> float:
        """Default gain at acceleration level, 1/s^2."""
        return 100.0

    def _terms(self, state):
        state = needs_robot(state, self.name)
        J, e = self.jacobian(state), self.error(state)
        dtype, rows = e.dtype, e.shape[0]
        gain = 1.0 if state.order == 1 else self.stiffness()
        k = jnp.asarray(gain if self.gain is None else self.gain, dtype)
        v_ref = self._feed("velocity", self.velocity, rows, dtype)
        if state.acceleration is None:
            return J, v_ref + k * e
        a_ref = self._feed("acceleration", self.acceleration, rows, dtype)
        # twice where the derivative of a root at zero would be infinite
        root = jnp.where(k > 0, jnp.sqrt(jnp.where(k > 0, k, 1.0)), 0.0)
        k_v = 2.0 * root if self.rate_gain is None else self.rate_gain.astype(dtype)
        b = a_ref + k_v * (v_ref - J @ state.v) + k * e - self.bias(state)
        return J @ state.acceleration.M, b - J @ state.acceleration.q

    def _feed(self, name: str, value: Array | None, rows: int, dtype: Any) -> Array:
        if value is None:
            return jnp.zeros(rows, dtype)
        return check_shape(f"{self.name}: {name}", value, (rows,)).astype(dtype)

    def size_in(self, state):
        return jax.eval_shape(self.error, state).shape[0]

    def nonlinear_cost(self, state: RobotState) -> Float[Array, ""]:
        """1/2 e^T W e: zero when inactive. Differentiable in q, for optimisation without linearisation."""
        e = self.error(state)
        W = self._weight(e.shape[0], e.dtype, state)
        cost = 0.5 * e @ (W @ e if W.ndim == 2 else W * e)
        return jnp.where(self.active, cost, 0.0)

    def with_reference(self, reference: Any) -> MotionTask:
        """The task with another reference; `NotDefinedError` if it has none."""
        if "reference" not in {f.name for f in dataclasses.fields(self)}:
            raise NotDefinedError(f"{self.name}: a {type(self).__name__} has no reference.")
        return dataclasses.replace(self, reference=reference)

    def with_feed_forward(self, velocity: FloatLike | None = None, acceleration: FloatLike | None = None) -> MotionTask:
        """The task with feed-forward terms v_ref and a_ref."""
        return dataclasses.replace(self, velocity=velocity, acceleration=acceleration)

    def diagnostics(self, state=None):
        out = Task.diagnostics(self, state)
        if state is not None:
            out[f"{self.name}_error"] = self.error(state)
        return out


class RateTask(MotionTask):
    """A task whose bias comes from the derivative of its Jacobian along the motion, by forward mode."""

    def bias(self, state):
        def rate(t):
            q = integrate(state.model, state.q, t * state.v)
            kin = alg.forward_kinematics(state.model, q, state.v)
            return self.jacobian(dataclasses.replace(state, q=q, kin=kin)) @ state.v

        zero = jnp.zeros((), state.q.dtype)
        return jax.jvp(rate, (zero,), (jnp.ones_like(zero),))[1]


class FunctionTask(RateTask):
    """The task that a function of the configuration be zero: `residual(model, q) -> (rows,)`.

    Its Jacobian comes from forward mode on the configuration manifold. `reference` is passed on as third argument if
    it is given.
    """

    residual: Callable = eqx.field(static=True)
    reference: Any = None

    def _value(self, state: RobotState, q: Array) -> Array:
        if self.reference is None:
            return self.residual(state.model, q)
        return self.residual(state.model, q, self.reference)

    def error(self, state):
        return -self._value(state, state.q)

    def jacobian(self, state):
        zero = jnp.zeros_like(state.v)
        return jax.jacfwd(lambda d: self._value(state, integrate(state.model, state.q, d)))(zero)


ORIENTATION_ERRORS = ("quaternion", "log", "log6")


class CartesianTask(MotionTask):
    """Pose of a frame, seen from the world or from another frame. 6 rows: linear, then angular.

    **Main arguments:** `frame`: name; `reference`: `SE3` in the base.

    **Other arguments:** `base`: name of the frame whose axes and motion count, None for the world; `local`: rows in the
    axes of the frame instead of those of the base; `orientation_error`: `"quaternion"`: sin(theta / 2) axis, as OpenSoT;
    `"log"`: theta axis; `"log6"`: the logarithm of the pose error in the axes of the frame, as pink and mink (with its
    own Jacobian, `local` is then meant); `orientation_gain`: factor of the angular error.

    Position or orientation alone: `task % [0, 1, 2]`, `task % [3, 4, 5]`.
    """

    frame: str = eqx.field(static=True)
    reference: SE3
    base: str | None = eqx.field(static=True, default=None)
    local: bool = eqx.field(static=True, default=False)
    orientation_error: str = eqx.field(static=True, default="quaternion")
    orientation_gain: Any = eqx.field(default=1.0, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")
    hessian: HessianType = eqx.field(static=True, kw_only=True, default=HessianType.SEMIDEF)

    def __post_init__(self):
        if not isinstance(self.reference, SE3):
            given = type(self.reference).__name__
            raise InputError(f"reference: wanted an SE3(rotation, translation), given a {given}; see SE3.from_matrix.")
        if self.orientation_error not in ORIENTATION_ERRORS:
            raise unknown_name("orientation error", self.orientation_error, ORIENTATION_ERRORS)
        self.name = self.name or f"cartesian_{self.frame}"

    def pose(self, state: RobotState) -> SE3:
        """Pose of the frame in the base."""
        if self.base is None:
            return alg.frame_pose(state.model, state.kin, self.frame)
        return alg.relative_pose(state.model, state.kin, self.frame, self.base)

    def _representation(self) -> Representation:
        return LOCAL if self.local or self.orientation_error == "log6" else MIXED

    def error(self, state):
        pose, goal = self.pose(state), self.reference
        if self.orientation_error == "log6":
            return se3.log(pose.inverse() @ goal)
        turn = goal.rotation @ pose.rotation.T
        if self.orientation_error == "log":
            angular = so3.log(turn)
        else:
            q = so3.to_quaternion(turn)
            angular = jnp.where(q[0] < 0, -q[1:], q[1:])
        linear = goal.translation - pose.translation
        angular = self.orientation_gain.astype(angular.dtype) * angular
        if self.local:
            linear, angular = (so3.rotate_back(pose.rotation, x) for x in (linear, angular))
        return jnp.concatenate([linear, angular])

    def jacobian(self, state):
        rep = self._representation()
        if self.base is None:
            J = alg.frame_jacobian(state.model, state.kin, self.frame, rep)
        else:
            J = alg.relative_jacobian(state.model, state.kin, self.frame, self.base, rep)
        if self.orientation_error == "log6" and state.order == 1:
            # log(exp(-d) T) = xi - Jl^-1(xi) d
            return se3.left_jacobian_inverse(self.error(state)) @ J
        return J

    def bias(self, state):
        if self.base is None:
            return alg.jacobian_dot_v(state.model, state.kin, self.frame, self._representation())
        return alg.relative_jacobian_dot_v(state.model, state.kin, self.frame, self.base, self._representation())

    def reset(self, state):
        return dataclasses.replace(self, reference=self.pose(state))

    def with_base(self, base: str | None, state: RobotState) -> CartesianTask:
        """The same goal in space, seen from another base."""
        goal = self.reference
        if self.base is not None:
            goal = alg.frame_pose(state.model, state.kin, self.base) @ goal
        if base is not None:
            goal = alg.frame_pose(state.model, state.kin, base).inverse() @ goal
        return dataclasses.replace(self, base=base, reference=goal)


class PositionTask(MotionTask):
    """World position (3,) of a point fixed to a frame. **Arguments:** `frame`; `reference` (3,); `point` (3,) in the
    frame, its origin if None."""

    frame: str = eqx.field(static=True)
    reference: Any = eqx.field(converter=float_leaf)
    point: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"reference": (3,), "point": (3,)}

    def __post_init__(self):
        self.name = self.name or f"position_{self.frame}"

    def _point(self, state):
        return jnp.zeros(3, state.q.dtype) if self.point is None else self.point.astype(state.q.dtype)

    def _position(self, state):
        return alg.frame_point(state.model, state.kin, self.frame, self._point(state))

    def error(self, state):
        return self._feed("reference", self.reference, 3, state.q.dtype) - self._position(state)

    def jacobian(self, state):
        return alg.point_jacobian(state.model, state.kin, self.frame, self._point(state))

    def bias(self, state):
        model, kin = state.model, state.kin
        if self.point is None:
            return alg.jacobian_dot_v(model, kin, self.frame)[:3]
        mixed = alg.jacobian_dot_v(model, kin, self.frame)
        arm = self._position(state) - alg.frame_pose(model, kin, self.frame).translation
        w = alg.frame_velocity(model, kin, self.frame)[3:]
        return mixed[:3] + so3.cross(mixed[3:], arm) + so3.cross(w, so3.cross(w, arm))

    def reset(self, state):
        return dataclasses.replace(self, reference=self._position(state))


class PosturalTask(MotionTask):
    """The whole configuration (nq): nv rows, the error on the manifold, the short way round. Use `with_mask` for some
    joints."""

    reference: Any = eqx.field(converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="postural")
    hessian: HessianType = eqx.field(static=True, kw_only=True, default=HessianType.IDENTITY)

    def stiffness(self):
        return 10.0

    def error(self, state):
        return difference(state.model, state.q, self._feed("reference", self.reference, state.model.nq, state.q.dtype))

    def jacobian(self, state):
        return jnp.eye(state.model.nv, dtype=state.q.dtype)

    def bias(self, state):
        return jnp.zeros(state.model.nv, state.q.dtype)

    def reset(self, state):
        return dataclasses.replace(self, reference=state.q)


class CoMTask(MotionTask):
    """World position (3,) of the centre of mass."""

    reference: Any = eqx.field(converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="com")
    hessian: HessianType = eqx.field(static=True, kw_only=True, default=HessianType.SEMIDEF)

    cores: ClassVar = {"reference": (3,)}

    def error(self, state):
        return self._feed("reference", self.reference, 3, state.q.dtype) - center_of_mass(state.model, state.kin)

    def jacobian(self, state):
        return alg.com_jacobian(state.model, state.kin)

    def bias(self, state):
        return alg.com_jacobian_dot_v(state.model, state.kin)

    def reset(self, state):
        return dataclasses.replace(self, reference=center_of_mass(state.model, state.kin))


class MomentumTask(MotionTask):
    """Momentum about the centre of mass: `part` `"linear"`, `"angular"` or `"both"`; `reference` (3,) or (6,), N s and
    N m s, zero if None; per control step at velocity level. The gain plays no part there; at acceleration level the rate
    gain is 1/s (default 1), and the bias A_dot v is part of it.
    """

    part: str = eqx.field(static=True, default="angular")
    reference: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    def __post_init__(self):
        if self.part not in ("linear", "angular", "both"):
            raise unknown_name("part", self.part, ("linear", "angular", "both"))
        self.name = self.name or f"{self.part}_momentum"

    def __check_init__(self) -> None:
        if self.reference is not None:
            check_core(f"{self.name}: reference", self.reference, (6 if self.part == "both" else 3,))

    def _rows(self):
        return {"linear": slice(0, 3), "angular": slice(3, 6), "both": slice(0, 6)}[self.part]

    def _terms(self, state):
        state = needs_robot(state, self.name)
        J = self.jacobian(state)
        wanted = self._feed("reference", self.reference, J.shape[0], J.dtype)
        if state.acceleration is None:
            return J, wanted
        k = jnp.asarray(1.0, J.dtype) if self.rate_gain is None else self.rate_gain.astype(J.dtype)
        rate = self._feed("acceleration", self.acceleration, J.shape[0], J.dtype)
        b = rate + k * (wanted - J @ state.v) - self.bias(state)
        return J @ state.acceleration.M, b - J @ state.acceleration.q

    def error(self, state):
        J = self.jacobian(state)
        return self._feed("reference", self.reference, J.shape[0], J.dtype) - J @ state.v

    def jacobian(self, state):
        return alg.centroidal_map(state.model, state.kin)[self._rows()]

    def bias(self, state):
        return alg.centroidal_bias(state.model, state.kin)[self._rows()]


def rejected(what: str, why: str) -> InputError:
    """An error of a task in a situation that it is not made for."""
    return InputError(f"{what}: {why}.")
