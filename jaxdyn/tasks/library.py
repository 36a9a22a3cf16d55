"""More tasks: directions, effort, manipulability, damping, coupling, capture point, and tasks of contact wrenches."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn import algorithms as alg
from jaxdyn.algorithms.center_of_mass import center_of_mass
from jaxdyn.errors import InputError, check_shape, unknown_name
from jaxdyn.math import so3
from jaxdyn.math.arguments import check_core
from jaxdyn.model import integrate
from jaxdyn.tasks.affine import Affine
from jaxdyn.tasks.data import HessianType
from jaxdyn.tasks.leaves import float_leaf
from jaxdyn.tasks.motion import MotionTask, RateTask, unit
from jaxdyn.tasks.state import RobotState, needs_robot
from jaxdyn.tasks.task import Task


class AxisTask(MotionTask):
    """An axis of a frame along a direction of the world; turning about it is free. 3 rows of rank 2.

    **Arguments:** `frame`; `axis` (3,) in the frame; `reference` (3,), direction in the world. Error: axis x reference.
    """

    frame: str = eqx.field(static=True)
    axis: Any = eqx.field(converter=float_leaf)
    reference: Any = eqx.field(converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"axis": (3,), "reference": (3,)}

    def __post_init__(self):
        self.name = self.name or f"axis_{self.frame}"

    def _axis(self, state: RobotState) -> Array:
        rotation = alg.frame_pose(state.model, state.kin, self.frame).rotation
        return so3.rotate(rotation, unit(self._feed("axis", self.axis, 3, state.q.dtype)))

    def error(self, state):
        return so3.cross(self._axis(state), unit(self._feed("reference", self.reference, 3, state.q.dtype)))

    def jacobian(self, state):
        a = self._axis(state)
        across = jnp.eye(3, dtype=a.dtype) - a[:, None] * a[None]
        return across @ alg.frame_jacobian(state.model, state.kin, self.frame)[3:]

    def bias(self, state):
        a = self._axis(state)
        w = alg.frame_velocity(state.model, state.kin, self.frame)[3:]
        spin, turn = a @ w, so3.cross(w, a)
        rate = alg.jacobian_dot_v(state.model, state.kin, self.frame)[3:]
        return rate - a * (a @ rate + turn @ w) - turn * spin


class GazeTask(RateTask):
    """An axis of a frame towards a point of the world (look at). 3 rows of rank 2.

    **Arguments:** `frame`; `reference` (3,), the point; `axis` (3,) in the frame, x if None; `nearest`: a target nearer
    than this (m) is ignored, as its direction means nothing. The motion of the frame's origin is part of the Jacobian.
    """

    frame: str = eqx.field(static=True)
    reference: Any = eqx.field(converter=float_leaf)
    axis: Any = eqx.field(default=None, converter=float_leaf)
    nearest: Any = eqx.field(default=0.2, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"reference": (3,), "axis": (3,)}

    def __post_init__(self):
        self.name = self.name or f"gaze_{self.frame}"

    def _geometry(self, state: RobotState):
        pose = alg.frame_pose(state.model, state.kin, self.frame)
        dtype = state.q.dtype
        axis = jnp.asarray([1.0, 0.0, 0.0], dtype) if self.axis is None else self._feed("axis", self.axis, 3, dtype)
        a = so3.rotate(pose.rotation, unit(axis))
        line = self._feed("reference", self.reference, 3, dtype) - pose.translation
        square = jnp.sum(line * line)
        far = square > self.nearest.astype(dtype) ** 2
        distance = jnp.sqrt(jnp.where(far, square, 1.0))
        return a, line / distance, distance, far

    def error(self, state):
        a, d, _, far = self._geometry(state)
        return jnp.where(far, so3.cross(a, d), 0.0)

    def jacobian(self, state):
        a, d, distance, far = self._geometry(state)
        J = alg.frame_jacobian(state.model, state.kin, self.frame)
        across = jnp.eye(3, dtype=a.dtype) - a[:, None] * a[None]
        # the direction turns with d x d_dot, d_dot = -(I - d d^T) p_dot / distance
        return jnp.where(far, across @ (J[3:] + so3.hat(d) @ J[:3] / distance), 0.0)


class _GradientTask(MotionTask):
    """Moves down (or up) the slope of a function of the configuration. nv rows."""

    @abc.abstractmethod
    def slope(self, state: RobotState) -> Float[Array, " nv"]:
        """Where to move."""

    def error(self, state):
        return self.slope(state)

    def jacobian(self, state):
        return jnp.eye(state.model.nv, dtype=state.q.dtype)

    def bias(self, state):
        return jnp.zeros(state.model.nv, state.q.dtype)


def _gradient(function, state: RobotState) -> Array:
    return jax.grad(lambda d: function(integrate(state.model, state.q, d)))(jnp.zeros_like(state.v))


class MinimumEffortTask(_GradientTask):
    """Down the slope of the squared gravity torque, each joint relative to its effort limit (1 where there is none)."""

    name: str = eqx.field(static=True, kw_only=True, default="minimum_effort")
    hessian: HessianType = eqx.field(static=True, kw_only=True, default=HessianType.POSDEF)

    def slope(self, state):
        limit = state.model.effort_limit
        known = jnp.isfinite(limit) & (limit > 0)
        scale = jnp.where(known, 1.0 / jnp.where(known, limit, 1.0), 1.0)
        return -_gradient(lambda q: jnp.sum((scale * alg.gravity_torque(state.model, q)) ** 2), state)


class ManipulabilityTask(_GradientTask):
    """Up the slope of Yoshikawa's manipulability sqrt(det(J W J^T)) of a frame; `joint_weight` (nv,) is the diagonal of
    W; `rows` of the Jacobian that count, all if None. Where the manipulability is zero, so is the slope."""

    frame: str = eqx.field(static=True)
    rows: tuple[int, ...] | None = eqx.field(static=True, default=None)
    joint_weight: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    def __post_init__(self):
        self.name = self.name or f"manipulability_{self.frame}"

    def manipulability(self, state: RobotState, q: Float[Array, " nq"] | None = None) -> Float[Array, ""]:
        """sqrt(det(J W J^T)) at `q`, or where the robot is."""
        q = state.q if q is None else q
        J = alg.frame_jacobian(state.model, alg.forward_kinematics(state.model, q), self.frame)
        J = J if self.rows is None else J[jnp.asarray(self.rows)]
        W = 1.0 if self.joint_weight is None else self.joint_weight.astype(J.dtype)[None]
        det = jnp.linalg.det((J * W) @ J.T)
        return jnp.sqrt(jnp.where(det > 0, det, 0.0) + float(jnp.finfo(J.dtype).tiny) ** 0.5)

    def slope(self, state):
        slope = _gradient(lambda q: self.manipulability(state, q), state)
        return jnp.where(jnp.isfinite(slope), slope, 0.0)


class DampingTask(MotionTask):
    """As little motion as possible: x = 0, or at acceleration level a = -k_v v. nv rows."""

    name: str = eqx.field(static=True, kw_only=True, default="damping")

    def stiffness(self):
        return 1.0

    def error(self, state):
        return jnp.zeros(state.model.nv, state.q.dtype)

    def jacobian(self, state):
        return jnp.eye(state.model.nv, dtype=state.q.dtype)

    def bias(self, state):
        return jnp.zeros(state.model.nv, state.q.dtype)


class KineticEnergyTask(DampingTask):
    """`DampingTask` with the mass matrix as metric: redundancy is resolved by the least kinetic energy."""

    name: str = eqx.field(static=True, kw_only=True, default="kinetic_energy")

    def _weight(self, rows, dtype, state):
        return self.weight.astype(dtype) * alg.crba(state.model, state.q)


class JointCouplingTask(MotionTask):
    """Joints that keep to ratios: C q = offset, for joints of one coordinate.

    **Arguments:** `joints`: names; `ratios` (rows, joints) or (joints,) for one row; `reference` (rows,): the offset,
    zero if None.
    """

    joints: tuple[str, ...] = eqx.field(static=True)
    ratios: Any = eqx.field(converter=float_leaf)
    reference: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="coupling")

    def __post_init__(self):
        self.joints = tuple(self.joints)

    def __check_init__(self) -> None:
        check_core(f"{self.name}: ratios", self.ratios, (len(self.joints),))

    def _where(self, model) -> tuple[list[int], list[int]]:
        t, at_q, at_v = model.tree, [], []
        for joint in self.joints:
            i = model.joint(joint)
            if t.joint_nq[i] != 1:
                raise InputError(f"{self.name}: joint {joint!r} has {t.joint_nq[i]} coordinates, wanted one.")
            at_q.append(t.q_offset[i])
            at_v.append(t.v_offset[i])
        return at_q, at_v

    def _ratios(self, state):
        ratios = self.ratios.astype(state.q.dtype)
        return ratios[None] if ratios.ndim == 1 else ratios

    def error(self, state):
        C = self._ratios(state)
        offset = self._feed("reference", self.reference, C.shape[0], C.dtype)
        return offset - C @ state.q[jnp.asarray(self._where(state.model)[0])]

    def jacobian(self, state):
        C = self._ratios(state)
        return jnp.zeros((C.shape[0], state.model.nv), C.dtype).at[:, jnp.asarray(self._where(state.model)[1])].set(C)

    def bias(self, state):
        return jnp.zeros(self._ratios(state).shape[0], state.q.dtype)


class CapturePointTask(MotionTask):
    """The capture point c + c_dot / omega, horizontal (x, y): where to step, or what to hold over the feet.

    **Arguments:** `reference` (2,), m; `omega`: sqrt(g / height), 1/s. At acceleration level its rate is set to
    k (reference - point), k = 3 / s unless the gain is given; at velocity level it is the centre of mass that moves.

    Source: Pratt, Carff, Drakunov and Goswami, Capture point: a step toward humanoid push recovery, 2006.
    """

    reference: Any = eqx.field(converter=float_leaf)
    omega: Any = eqx.field(converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="capture_point")

    cores: ClassVar = {"reference": (2,)}

    def error(self, state):
        com = center_of_mass(state.model, state.kin)[:2]
        speed = (alg.com_jacobian(state.model, state.kin) @ state.v)[:2]
        return self._feed("reference", self.reference, 2, com.dtype) - com - speed / self.omega.astype(com.dtype)

    def jacobian(self, state):
        return alg.com_jacobian(state.model, state.kin)[:2]

    def bias(self, state):
        return alg.com_jacobian_dot_v(state.model, state.kin)[:2]

    def _terms(self, state):
        state = needs_robot(state, self.name)
        if state.acceleration is None:
            return MotionTask._terms(self, state)
        J, e = self.jacobian(state), self.error(state)
        k = jnp.asarray(3.0 if self.gain is None else self.gain, e.dtype)
        b = self.omega.astype(e.dtype) * (k * e - J @ state.v) - self.bias(state)
        return J @ state.acceleration.M, b - J @ state.acceleration.q


# -- tasks of contact wrenches, for inverse dynamics


def wrench_variable(state: Any, contact: str, what: str) -> Affine:
    """The wrench of a contact as an expression of the unknowns; raises `InputError`, `UnknownNameError`."""
    state = needs_robot(state, what)
    if state.acceleration is None:
        raise InputError(f"{what}: contact wrenches are unknowns of inverse dynamics only.")
    if contact not in state.wrenches:
        raise unknown_name("contact", contact, state.wrenches)
    return state.wrenches[contact]


def local_wrench(state: Any, contact: str, rotation: Any, what: str) -> Affine:
    """The wrench of a contact in the axes of the contact: those of its frame, turned by `rotation` (3, 3) if given."""
    world = wrench_variable(state, contact, what)
    R = alg.frame_pose(state.model, state.kin, contact).rotation
    if rotation is not None:
        R = R @ rotation.astype(R.dtype)
    zero = jnp.zeros((3, 3), R.dtype)
    return jnp.concatenate([jnp.concatenate([R.T, zero], 1), jnp.concatenate([zero, R.T], 1)]) @ world


class WrenchTask(Task):
    """The wrench (6,) of a contact near a reference, zero if None: world axes, or those of the frame if `local`."""

    contact: str = eqx.field(static=True)
    reference: Any = eqx.field(default=None, converter=float_leaf)
    local: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"reference": (6,)}

    def __post_init__(self):
        self.name = self.name or f"wrench_{self.contact}"

    def _terms(self, state):
        if self.local:
            y = local_wrench(state, self.contact, None, self.name)
        else:
            y = wrench_variable(state, self.contact, self.name)
        wanted = jnp.zeros(6, y.q.dtype) if self.reference is None else self.reference.astype(y.q.dtype)
        return y.M, check_shape(f"{self.name}: reference", wanted, (6,)) - y.q

    def size_in(self, state):
        return 6


class CenterOfPressureTask(Task):
    """The centre of pressure of a contact at `reference` (2,), m, in the axes of the contact: moments that are zero
    there. 2 rows, N m."""

    contact: str = eqx.field(static=True)
    reference: Any = eqx.field(converter=float_leaf)
    rotation: Any = eqx.field(default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    cores: ClassVar = {"reference": (2,), "rotation": (3, 3)}

    def __post_init__(self):
        self.name = self.name or f"cop_{self.contact}"

    def _terms(self, state):
        w = local_wrench(state, self.contact, self.rotation, self.name)
        x, y = check_shape(f"{self.name}: reference", self.reference, (2,)).astype(w.q.dtype)
        rows = (w[4:5] + x * w[2:3]) / (w[3:4] - y * w[2:3])
        return rows.M, -rows.q

    def size_in(self, state):
        return 2
