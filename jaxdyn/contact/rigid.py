"""Rigid constraints: what they hold at zero, its rate, and the rows of their Jacobian.

A constraint holds an error e(q) at zero. Its velocity J(q) v is the rate of the error (of a pose: to first order at
e = 0), and its `bias` is J_dot v. `constraint_dynamics` asks for

    J a + J_dot v + damping J v + stiffness e = 0,

so that with `stiffness` = k^2 and `damping` = 2 k an error that numerical integration has let in decays like exp(-k t)
(Baumgarte, Stabilization of constraints and integrals of motion in dynamical systems, 1972). Both are leaves, 1/s^2 and
1/s, zero by default.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration, layout
from jaxdyn.algorithms.jacobians import jacobian_dot_v
from jaxdyn.algorithms.kinematics import Kinematics, frame_point, frame_pose, frame_velocity, needed
from jaxdyn.algorithms.relative import relative_jacobian_dot_v, relative_pose
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.algorithms.sparse_kinematics import (
    sparse_frame_jacobian,
    sparse_point_jacobian,
    sparse_relative_jacobian,
)
from jaxdyn.contact.fields import check_sign
from jaxdyn.errors import FloatLike, InputError, as_float_array
from jaxdyn.math import se3
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import cross, rotate
from jaxdyn.math.spatial import Representation
from jaxdyn.model.model import Model

_LOCAL = Representation.LOCAL


class RigidConstraint(eqx.Module):
    """Base of all rigid constraints; a new kind supplies the four methods and `rows`."""

    stiffness: eqx.AbstractVar[Array]
    damping: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def rows(self) -> int:
        """Number of numbers that it holds at zero."""

    @abc.abstractmethod
    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, " rows"]:
        """What is to be zero, m and rad."""

    @abc.abstractmethod
    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        """Its rows J (rows, nv)."""

    @abc.abstractmethod
    def bias(self, model: Model, kin: Kinematics) -> Float[Array, " rows"]:
        """J_dot v."""


def _gain(name: str, value: FloatLike, dtype) -> Array:
    gain = as_float_array(name, value, dtype)
    if gain.ndim:
        raise InputError(f"{name}: wanted one number, given shape {gain.shape}.")
    if name in ("stiffness", "damping"):
        check_sign(name, gain)
    return gain


def _vector(name: str, value: FloatLike, dtype=None) -> Array:
    vector = as_float_array(name, value, dtype)
    if vector.shape != (3,):
        raise InputError(f"{name}: wanted shape (3,), given shape {vector.shape}.")
    return vector


def _pose(name: str, value: SE3) -> SE3:
    if not isinstance(value, SE3):
        raise InputError(f"{name}: wanted an SE3(rotation, translation), given {type(value).__name__}.")
    return value


class FixedPoint(RigidConstraint):
    """A point of a frame stays where it is in the world: a foot that may turn about its tip. Three rows, world axes.

    **Arguments:** `frame` by name; `target` (3,) m in the world; `point` (3,) m in the frame, default its origin.
    """

    frame: str = eqx.field(static=True)
    target: Float[Array, "3"]
    point: Float[Array, "3"]
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def __init__(
        self,
        frame: str,
        target: FloatLike,
        point: FloatLike | None = None,
        *,
        stiffness: FloatLike = 0.0,
        damping: FloatLike = 0.0,
    ) -> None:
        self.frame, self.target = frame, _vector("target", target)
        dtype = self.target.dtype
        self.point = jnp.zeros(3, dtype) if point is None else _vector("point", point, dtype)
        self.stiffness, self.damping = _gain("stiffness", stiffness, dtype), _gain("damping", damping, dtype)

    @property
    def rows(self) -> int:
        return 3

    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, "3"]:
        return frame_point(model, kin, self.frame, self.point) - self.target

    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        return sparse_point_jacobian(model, kin, self.frame, self.point)

    def bias(self, model: Model, kin: Kinematics) -> Float[Array, "3"]:
        return _point_bias(model, kin, self.frame, self.point)


class FixedFrame(RigidConstraint):
    """A frame stays where it is in the world: a flat foot. Six rows, [linear, angular] in the frame's axes; the error
    is the logarithm of the pose relative to the target.

    **Arguments:** `frame` by name; `target`: its pose in the world.
    """

    frame: str = eqx.field(static=True)
    target: SE3
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def __init__(self, frame: str, target: SE3, *, stiffness: FloatLike = 0.0, damping: FloatLike = 0.0) -> None:
        self.frame, self.target = frame, _pose("target", target)
        dtype = target.translation.dtype
        self.stiffness, self.damping = _gain("stiffness", stiffness, dtype), _gain("damping", damping, dtype)

    @property
    def rows(self) -> int:
        return 6

    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, "6"]:
        return se3.log(self.target.inverse() @ frame_pose(model, kin, self.frame))

    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        return sparse_frame_jacobian(model, kin, self.frame, _LOCAL)

    def bias(self, model: Model, kin: Kinematics) -> Float[Array, "6"]:
        return jacobian_dot_v(model, kin, self.frame, _LOCAL)


class PointLoop(RigidConstraint):
    """A point of one frame and a point of another are one: a ball joint that closes a loop. Three rows, world axes.

    **Arguments:** `frame`, `other` by name; `point`, `other_point` (3,) m in their frames, default their origins.
    """

    frame: str = eqx.field(static=True)
    other: str = eqx.field(static=True)
    point: Float[Array, "3"]
    other_point: Float[Array, "3"]
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def __init__(
        self,
        frame: str,
        other: str,
        point: FloatLike = (0.0, 0.0, 0.0),
        other_point: FloatLike = (0.0, 0.0, 0.0),
        *,
        stiffness: FloatLike = 0.0,
        damping: FloatLike = 0.0,
    ) -> None:
        self.frame, self.other = frame, other
        self.point = _vector("point", point)
        self.other_point = _vector("other_point", other_point, self.point.dtype)
        dtype = self.point.dtype
        self.stiffness, self.damping = _gain("stiffness", stiffness, dtype), _gain("damping", damping, dtype)

    @property
    def rows(self) -> int:
        return 3

    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, "3"]:
        return frame_point(model, kin, self.frame, self.point) - frame_point(model, kin, self.other, self.other_point)

    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        here = sparse_point_jacobian(model, kin, self.frame, self.point)
        return here - sparse_point_jacobian(model, kin, self.other, self.other_point)

    def bias(self, model: Model, kin: Kinematics) -> Float[Array, "3"]:
        here = _point_bias(model, kin, self.frame, self.point)
        return here - _point_bias(model, kin, self.other, self.other_point)


class FrameLoop(RigidConstraint):
    """A frame stays where it is in another: a weld that closes a loop. Six rows, [linear, angular] in the axes of
    `frame`; the error is the logarithm of its pose in `other`, relative to `placement`.

    **Arguments:** `frame`, `other` by name; `placement`: pose of `frame` in `other`, default the identity.
    """

    frame: str = eqx.field(static=True)
    other: str = eqx.field(static=True)
    placement: SE3
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def __init__(
        self,
        frame: str,
        other: str,
        placement: SE3 | None = None,
        *,
        stiffness: FloatLike = 0.0,
        damping: FloatLike = 0.0,
    ) -> None:
        self.frame, self.other = frame, other
        self.placement = SE3(jnp.eye(3), jnp.zeros(3)) if placement is None else _pose("placement", placement)
        dtype = self.placement.translation.dtype
        self.stiffness, self.damping = _gain("stiffness", stiffness, dtype), _gain("damping", damping, dtype)

    @property
    def rows(self) -> int:
        return 6

    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, "6"]:
        return se3.log(self.placement.inverse() @ relative_pose(model, kin, self.frame, self.other))

    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        turn = frame_pose(model, kin, self.frame).rotation.T
        return sparse_relative_jacobian(model, kin, self.frame, self.other).rotate(turn)

    def bias(self, model: Model, kin: Kinematics) -> Float[Array, "6"]:
        return relative_jacobian_dot_v(model, kin, self.frame, self.other, _LOCAL)


class JointCoupling(RigidConstraint):
    """A joint is at `ratio` times another plus `offset`: a gear or belt as a constraint, with its force. One row, rad
    or m. (A `<mimic>` tag takes the coordinate away instead.)

    **Arguments:** `joint`, `leader`: names of two joints with one degree of freedom.

    **Raises:** `InputError` for what are no two names; where it is used, `UnknownNameError`, and `InputError` for joints with
    several degrees of freedom.
    """

    joint: str = eqx.field(static=True)
    leader: str = eqx.field(static=True)
    ratio: Float[Array, ""]
    offset: Float[Array, ""]
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def __init__(
        self,
        joint: str,
        leader: str,
        ratio: FloatLike = 1.0,
        offset: FloatLike = 0.0,
        *,
        stiffness: FloatLike = 0.0,
        damping: FloatLike = 0.0,
    ) -> None:
        for what, name in (("joint", joint), ("leader", leader)):
            if not isinstance(name, str):
                raise InputError(f"JointCoupling: {what}: wanted the name of a joint, given {name!r}.")
        if joint == leader:
            raise InputError(f"JointCoupling: joint {joint!r} cannot be coupled to itself.")
        self.joint, self.leader = joint, leader
        self.ratio = _gain("ratio", ratio, None)
        dtype = self.ratio.dtype
        self.offset = _gain("offset", offset, dtype)
        self.stiffness, self.damping = _gain("stiffness", stiffness, dtype), _gain("damping", damping, dtype)

    @property
    def rows(self) -> int:
        return 1

    def error(self, model: Model, kin: Kinematics, q: Configuration) -> Float[Array, "1"]:
        coordinate = list(layout(model.tree).coordinate)
        here, there = (
            coordinate.index(model.tree.q_offset[self._index(model, name)]) for name in (self.joint, self.leader)
        )
        return (q.coordinates[here] - self.ratio * q.coordinates[there] - self.offset)[None]

    def jacobian(self, model: Model, kin: Kinematics) -> SparseJacobian:
        columns = [model.tree.v_offset[self._index(model, name)] for name in (self.joint, self.leader)]
        values = jnp.stack([jnp.ones_like(self.ratio), -self.ratio])[None].astype(kin.origin.dtype)
        return SparseJacobian.from_values(values, columns, model.nv)

    def bias(self, model: Model, kin: Kinematics) -> Float[Array, "1"]:
        return jnp.zeros(1, kin.origin.dtype)

    @staticmethod
    def _index(model: Model, name: str) -> int:
        index = model.joint(name)
        if index not in model.tree.independent:
            raise InputError(f"joint {name!r} follows another and has no coordinate of its own.")
        if model.tree.joint_nv[index] != 1:
            raise InputError(
                f"joint {name!r}: wanted a joint with one degree of freedom, given a "
                f"{model.tree.joint_types[index]} joint."
            )
        return index


def _point_bias(model: Model, kin: Kinematics, frame: str, point: Float[Array, "3"]) -> Float[Array, "3"]:
    """Acceleration of a point of a frame when all entries of `a` are zero."""
    needed(kin.twist, "velocities", "v")
    arm = rotate(frame_pose(model, kin, frame).rotation, point)
    w, a = frame_velocity(model, kin, frame)[3:], jacobian_dot_v(model, kin, frame)
    return a[:3] + cross(a[3:], arm) + cross(w, cross(w, arm))
