"""Where a frame of a robot is, in the world or in another frame, as functions of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms.kinematics import Kinematics
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.functions.attachments import (
    as_placement,
    attached_body,
    attached_pose,
    coordinate_mask,
    joints_between,
    relative_motion,
    velocity_mask,
)
from jaxdyn.functions.function import RobotFunction
from jaxdyn.functions.kinematic import KinematicFunction
from jaxdyn.math import so3
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.math.se3 import SE3
from jaxdyn.model.model import Model, check_model


class PoseFunction(RobotFunction, KinematicFunction):
    """The pose M of one frame (with its `placement` in a frame of the robot) in another (with its `reference_placement` in a
    frame of the robot, or in the world): abstract base of `Position`, `Orientation`, `Transformation` and their relative
    versions.

    The value holds the translation of M, m, and the rotation vector of M, rad, or those `rows` of them that the mask
    leaves; or M itself as an element (translation, quaternion) if `as_element`.
    """

    placement: SE3
    reference_placement: SE3
    frame: str = eqx.field(static=True)
    reference: str | None = eqx.field(static=True)
    rows: tuple[int, ...] = eqx.field(static=True)
    as_element: bool = eqx.field(static=True)

    parts: ClassVar[tuple[int, ...]] = (0, 1, 2, 3, 4, 5)
    """Rows of (translation, rotation) before masking."""

    @property
    def output_space(self) -> LieSpace:
        """R^n with a number for each row, or the group."""
        if not self.as_element:
            return LieSpace.R(len(self.rows))
        return LieSpace.SO3() if self.parts == (3, 4, 5) else LieSpace.R3xSO3()

    @property
    def bodies(self) -> tuple[int, int]:
        """The body that carries the frame and the one that carries the reference (-1: the world)."""
        return attached_body(self.model.tree, self.frame), attached_body(self.model.tree, self.reference)

    def _poses(self, kin: Kinematics) -> tuple[SE3, SE3]:
        """Pose of the frame and pose of the reference."""
        here = attached_pose(self.model, kin, self.frame, self.placement)
        return here, attached_pose(self.model, kin, self.reference, self.reference_placement)

    def _coordinates(self, pose: SE3) -> Array:
        """The value from the pose M."""
        if self.as_element:
            parts = [pose.translation] if 0 in self.parts else []
            return jnp.concatenate([*parts, so3.to_quaternion(pose.rotation)])
        parts = []
        if any(i < 3 for i in self.rows):
            parts.append(pose.translation[np.asarray([i for i in self.rows if i < 3], dtype=int)])
        if any(i >= 3 for i in self.rows):
            parts.append(so3.log(pose.rotation)[np.asarray([i - 3 for i in self.rows if i >= 3], dtype=int)])
        return jnp.concatenate(parts)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, " nq_out"]:
        """Translation and rotation vector of M, the rows of the mask; or M as an element."""
        here, there = self._poses(kin)
        return self._coordinates(there.inverse() @ here)

    # In axes of the reference the frame's origin moves with v = J_lin dq and turns with w = J_ang dq. The translation of M
    # has rate v. Its rotation R turns as R' = hat(w) R, so that the rate of its rotation vector r is the inverse left
    # Jacobian at r times w, and its tangent in body axes is R^T w.
    def value_and_jacobian_with(
        self, q: FloatLike, kin: Kinematics
    ) -> tuple[Float[Array, " nq_out"], Float[Array, "nv_out nv_in"]]:
        """Both, from the motion axes of the joints, without differentiation."""
        here, there = self._poses(kin)
        pose = there.inverse() @ here
        body, reference = self.bodies
        motion = relative_motion(self.model, kin, body, reference, here.translation, there.rotation)
        linear, angular = motion[:3], motion[3:]
        if any(i >= 3 for i in self.rows):
            turn = so3.inverse(pose.rotation) if self.as_element else so3.left_jacobian_inverse(so3.log(pose.rotation))
            angular = jnp.matmul(turn, angular, precision="highest")
        full = jnp.concatenate([linear, angular])
        return self._coordinates(pose), full[np.asarray(self.rows, dtype=int)]

    @property
    def active_parameters(self) -> np.ndarray:
        """Coordinates of the joints between the two bodies."""
        return coordinate_mask(self.model.tree, joints_between(self.model.tree, *self.bodies))

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Degrees of freedom of the joints between the two bodies."""
        return velocity_mask(self.model.tree, joints_between(self.model.tree, *self.bodies))

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """The two bodies."""
        a, b = self.bodies
        return (min(a, b), max(a, b))

    def details(self) -> list[str]:
        """The frames and the rows."""
        names = ("x", "y", "z", "rx", "ry", "rz")
        shown = "element" if self.as_element else ", ".join(names[i] for i in self.rows)
        return [f"frame {self.frame!r} in {self.reference or 'world'!r}: {shown}"]


def _fill(
    self: PoseFunction,
    model: Model,
    frame: str,
    reference: str | None,
    placement: SE3 | FloatLike | None,
    reference_placement: SE3 | FloatLike | None,
    mask: Sequence[bool] | None,
    as_element: bool,
    name: str,
    context: str,
) -> None:
    """Sets the fields; every constructor ends here."""
    check_model(model)
    kind = type(self).__name__
    attached_body(model.tree, frame)
    attached_body(model.tree, reference)
    mask = (True,) * len(self.parts) if mask is None else tuple(bool(m) for m in mask)
    if len(mask) != len(self.parts):
        raise InputError(f"mask: {kind} has {len(self.parts)} rows, given {len(mask)} entries.")
    if not any(mask):
        raise InputError(f"mask: at least one row of {kind} must stay.")
    if as_element and (not all(mask) or self.parts == (0, 1, 2)):
        raise InputError("as_element: only for a whole orientation or transformation, without a mask.")
    self.model, self.frame, self.reference = model, frame, reference
    self.placement = as_placement("placement", placement, model)
    self.reference_placement = as_placement("reference_placement", reference_placement, model)
    self.rows = tuple(i for i, keep in zip(self.parts, mask, strict=True) if keep)
    self.as_element = as_element
    self.name = name or f"{kind} of {frame}" + (f" in {reference}" if reference else "")
    self.context = context


class _InWorld(PoseFunction):
    """The pose of a frame in a frame that is fixed to the world."""

    def __init__(
        self,
        model: Model,
        frame: str,
        placement: SE3 | FloatLike | None = None,
        target: SE3 | FloatLike | None = None,
        *,
        mask: Sequence[bool] | None = None,
        as_element: bool = False,
        name: str = "",
        context: str = "",
    ) -> None:
        _fill(self, model, frame, None, placement, target, mask, as_element, name, context)


class _InRobot(PoseFunction):
    """The pose of a frame in another of the robot."""

    def __init__(
        self,
        model: Model,
        frame: str,
        reference: str | None,
        placement: SE3 | FloatLike | None = None,
        reference_placement: SE3 | FloatLike | None = None,
        *,
        mask: Sequence[bool] | None = None,
        as_element: bool = False,
        name: str = "",
        context: str = "",
    ) -> None:
        _fill(self, model, frame, reference, placement, reference_placement, mask, as_element, name, context)


class Position(_InWorld):
    """Position of a point of the robot in a frame fixed to the world, m; rows x, y, z.

    **Arguments:** `model`; `frame`: name of a frame or joint; `placement`: the point (3,) in that frame, or a pose;
    `target`: pose, or origin (3,), of the fixed frame; `mask`: bool for each row.

    **Raises:** `UnknownNameError`, `InputError`.
    """

    parts: ClassVar[tuple[int, ...]] = (0, 1, 2)


class Orientation(_InWorld):
    """Orientation of a frame of the robot in a frame fixed to the world, as a rotation vector, rad (or a quaternion).

    **Arguments:** `model`; `frame`: name of a frame or joint; `placement`: pose in that frame; `target`: pose of the
    fixed frame; `mask`: bool for each row; `as_element`: the value is an element of SO(3).

    **Raises:** `UnknownNameError`, `InputError`.
    """

    parts: ClassVar[tuple[int, ...]] = (3, 4, 5)


class Transformation(_InWorld):
    """Pose of a frame of the robot in a frame fixed to the world: translation, m, and rotation vector, rad, each in the
    fixed frame's axes (not the logarithm of SE(3)); or an element of R^3 x SO(3).

    **Arguments:** `model`; `frame`: name of a frame or joint; `placement`: pose in that frame; `target`: pose of the
    fixed frame; `mask`: bool for each of the six rows; `as_element`.

    **Raises:** `UnknownNameError`, `InputError`.
    """


class RelativePosition(_InRobot):
    """Position of a point of the robot in a frame of the robot, m; rows x, y, z.

    **Arguments:** `model`; `frame`, `reference`: names of frames or joints; `placement`: the point (3,) in `frame`, or a
    pose; `reference_placement`: pose, or origin (3,), in `reference`; `mask`: bool for each row.

    **Raises:** `UnknownNameError`, `InputError`.
    """

    parts: ClassVar[tuple[int, ...]] = (0, 1, 2)


class RelativeOrientation(_InRobot):
    """Orientation of a frame of the robot in another, as a rotation vector, rad (or a quaternion).

    **Arguments:** as for `RelativeTransformation`.

    **Raises:** `UnknownNameError`, `InputError`.
    """

    parts: ClassVar[tuple[int, ...]] = (3, 4, 5)


class RelativeTransformation(_InRobot):
    """Pose of a frame of the robot in another: translation, m, and rotation vector, rad, in the other's axes; or an element
    of R^3 x SO(3).

    **Arguments:** `model`; `frame`, `reference`: names of frames or joints (None: the world); `placement`,
    `reference_placement`: poses in them; `mask`: bool for each of the six rows; `as_element`.

    **Raises:** `UnknownNameError`, `InputError`.
    """
