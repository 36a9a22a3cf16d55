"""Centre of mass, distances, posture and manipulability as functions of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms.center_of_mass import center_of_mass, com_jacobian
from jaxdyn.algorithms.kinematics import Kinematics
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.functions.attachments import (
    as_placement,
    attached_body,
    attached_pose,
    coordinate_mask,
    joints_between,
    motion_of,
    velocity_mask,
)
from jaxdyn.functions.function import DifferentiableFunction, RobotFunction, automatic_jacobian
from jaxdyn.functions.kinematic import KinematicFunction
from jaxdyn.functions.polygon import POLYGON, ConvexShape, as_shape
from jaxdyn.functions.spaces import ConfigurationSpace, Space
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.math.se3 import SE3
from jaxdyn.math.so3 import rotate_back
from jaxdyn.model.manifold import difference
from jaxdyn.model.model import Model, check_model


class CenterOfMass(RobotFunction, KinematicFunction):
    """Centre of mass of the robot in the world, or in one of its frames, m; rows x, y, z.

    **Arguments:** `model`; `reference`: name of a frame or joint, None for the world; `reference_placement`: pose, or
    origin (3,), in it; `mask`: bool for each row.

    **Raises:** `UnknownNameError`, `InputError`.
    """

    reference_placement: SE3
    reference: str | None = eqx.field(static=True)
    rows: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        reference: str | None = None,
        reference_placement: SE3 | FloatLike | None = None,
        *,
        mask: Sequence[bool] = (True, True, True),
        name: str = "",
        context: str = "",
    ) -> None:
        check_model(model)
        attached_body(model.tree, reference)
        if len(mask) != 3 or not any(mask):
            raise InputError(
                f"mask: the centre of mass has 3 rows, of which one at least must stay, given {tuple(mask)}."
            )
        self.model, self.reference = model, reference
        self.reference_placement = as_placement("reference_placement", reference_placement, model)
        self.rows = tuple(i for i in range(3) if mask[i])
        self.name = name or "centre of mass" + (f" in {reference}" if reference else "")
        self.context = context

    @property
    def output_space(self) -> LieSpace:
        """R^n with a number for each row."""
        return LieSpace.R(len(self.rows))

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, " rows"]:
        """The centre of mass at `q` (nq,)."""
        return self.value_and_jacobian_with(q, kin)[0]

    def value_and_jacobian_with(
        self, q: FloatLike, kin: Kinematics
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows nv"]]:
        """Both, from the motion axes of the joints, without differentiation."""
        there = attached_pose(self.model, kin, self.reference, self.reference_placement)
        center = center_of_mass(self.model, kin)
        body = attached_body(self.model.tree, self.reference)
        moved = com_jacobian(self.model, kin) - motion_of(self.model, kin, body, center)[:3]
        rows = np.asarray(self.rows, dtype=int)
        return there.apply_inverse(center)[rows], rotate_back(there.rotation, moved.T).T[rows]


class PointDistance(RobotFunction, KinematicFunction):
    """Distance between two points fixed to frames of the robot or to the world, m. (1,) Where it is zero, so is the
    derivative.

    **Arguments:** `model`; `frame`: name of a frame or joint; `point` (3,) in it; `other`: the same, or None for the
    world; `other_point` (3,).

    **Raises:** `UnknownNameError`, `InputError`.
    """

    point: Float[Array, "3"]
    other_point: Float[Array, "3"]
    frame: str = eqx.field(static=True)
    other: str | None = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        frame: str,
        point: FloatLike,
        other: str | None,
        other_point: FloatLike,
        *,
        name: str = "",
        context: str = "",
    ) -> None:
        check_model(model)
        attached_body(model.tree, frame)
        attached_body(model.tree, other)
        self.model, self.frame, self.other = model, frame, other
        self.point = check_shape("point", point, (3,), dtype=model.dtype)
        self.other_point = check_shape("other_point", other_point, (3,), dtype=model.dtype)
        self.name = name or f"distance between {frame} and {other or 'world'}"
        self.context = context

    @property
    def output_space(self) -> LieSpace:
        """R^1."""
        return LieSpace.R(1)

    @property
    def _bodies(self) -> tuple[int, int]:
        return attached_body(self.model.tree, self.frame), attached_body(self.model.tree, self.other)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, "1"]:
        """The distance at `q` (nq,)."""
        return self.value_and_jacobian_with(q, kin)[0]

    def value_and_jacobian_with(self, q: FloatLike, kin: Kinematics) -> tuple[Float[Array, "1"], Float[Array, "1 nv"]]:
        """Both, from the motion axes of the joints, without differentiation."""
        eye = jnp.eye(3, dtype=kin.origin.dtype)
        here = attached_pose(self.model, kin, self.frame, SE3(eye, self.point)).translation
        there = attached_pose(self.model, kin, self.other, SE3(eye, self.other_point)).translation
        body, other = self._bodies
        arm = here - there
        square = jnp.sum(arm * arm)
        apart = square > 0
        length = jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1)), 0)
        direction = jnp.where(apart, arm / jnp.where(apart, length, 1), 0)
        moved = motion_of(self.model, kin, body, here)[:3] - motion_of(self.model, kin, other, there)[:3]
        return length[None], jnp.matmul(direction[None], moved, precision="highest")

    @property
    def active_parameters(self) -> np.ndarray:
        """Coordinates of the joints between the two bodies."""
        return coordinate_mask(self.model.tree, joints_between(self.model.tree, *self._bodies))

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Degrees of freedom of the joints between the two bodies."""
        return velocity_mask(self.model.tree, joints_between(self.model.tree, *self._bodies))

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """The two bodies."""
        a, b = self._bodies
        return (min(a, b), max(a, b))


class CenterOfMassDistance(RobotFunction, KinematicFunction):
    """Signed distance, in the plane of a polygon, of the centre of mass from its outline, m (1,): negative inside.

    With a horizontal polygon that the feet span, `Implicit(f, Comparison.INFERIOR, [-0.02])` keeps the centre of mass above
    it, 2 cm from its edge at least.

    **Arguments:** `model`; `shape`: a polygon, or a pair (frame or None, corners).

    **Raises:** `UnknownNameError`, `InputError`.
    """

    shape: ConvexShape

    def __init__(self, model: Model, shape: ConvexShape | Sequence[Any], *, name: str = "", context: str = "") -> None:
        check_model(model)
        self.model = model
        self.shape = as_shape(shape, model.dtype)
        if self.shape.kind != POLYGON:
            raise InputError(f"shape: wanted a polygon, given a {self.shape.kind}.")
        attached_body(model.tree, self.shape.frame)
        self.name = name or "centre of mass from a polygon"
        self.context = context

    @property
    def output_space(self) -> LieSpace:
        """R^1."""
        return LieSpace.R(1)

    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, "1"]:
        """The distance at `q` (nq,)."""
        return self.value_and_jacobian_with(q, kin)[0]

    def value_and_jacobian_with(self, q: FloatLike, kin: Kinematics) -> tuple[Float[Array, "1"], Float[Array, "1 nv"]]:
        """Both, from the motion axes of the joints, without differentiation."""
        there = attached_pose(self.model, kin, self.shape.frame, SE3.identity(dtype=kin.origin.dtype))
        center = center_of_mass(self.model, kin)
        body = attached_body(self.model.tree, self.shape.frame)
        moved = com_jacobian(self.model, kin) - motion_of(self.model, kin, body, center)[:3]
        value, direction = jax.value_and_grad(self.shape.distance)(there.apply_inverse(center))
        inner = rotate_back(there.rotation, moved.T).T
        return value[None], jnp.matmul(direction[None], inner, precision="highest")


class Posture(RobotFunction):
    """By how much the joints differ from a posture: q minus `reference` in the tangent space, some rows of it.

    **Arguments:** `model`; `reference` (nq,): a leaf; `mask`: bool for each of the nv rows, by default those of all joints
    but floating ones.

    **Raises:** `InputError`.
    """

    reference: Float[Array, " nq"]
    rows: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        reference: FloatLike,
        *,
        mask: Sequence[bool] | None = None,
        name: str = "posture",
        context: str = "",
    ) -> None:
        check_model(model)
        self.model = model
        self.reference = check_shape("reference", reference, (model.nq,), dtype=model.dtype)
        if mask is None:
            tree = model.tree
            moving = tuple(i for i in range(tree.n_joints) if tree.joint_types[i] != "floating")
            mask = tuple(bool(m) for m in velocity_mask(tree, moving))
        if len(mask) != model.nv:
            raise InputError(f"mask: the robot has {model.nv} degrees of freedom, given {len(mask)} entries.")
        self.rows = tuple(i for i in range(model.nv) if mask[i])
        self.name, self.context = name, context

    @property
    def output_space(self) -> LieSpace:
        """R^n with a number for each row."""
        return LieSpace.R(len(self.rows))

    def value(self, q: FloatLike) -> Float[Array, " rows"]:
        """The difference at `q` (nq,)."""
        return difference(self.model, self.reference, q)[np.asarray(self.rows, dtype=int)]

    def jacobian(self, q: FloatLike) -> Float[Array, "rows nv"]:
        """Rows of the identity, where all rows are angles and shifts of single joints."""
        coordinates = ConfigurationSpace(self.model).coordinate_of
        if any(coordinates[i] < 0 for i in self.rows):
            return automatic_jacobian(self, q)
        return jnp.eye(self.model.nv, dtype=self.reference.dtype)[np.asarray(self.rows, dtype=int)]

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Degrees of freedom of the joints that the rows belong to."""
        tree = self.model.tree
        return velocity_mask(tree, tuple(sorted({tree.dof_body[i] for i in self.rows})))

    @property
    def active_parameters(self) -> np.ndarray:
        """Coordinates of the joints that the rows belong to."""
        tree = self.model.tree
        return coordinate_mask(tree, tuple(sorted({tree.dof_body[i] for i in self.rows})))


class Manipulability(DifferentiableFunction):
    """How freely a function's value can be moved: sqrt(det(J J^T)) of its Jacobian J, the volume of the image of the unit
    ball (1,). Where J has not full rank the value is zero, and the derivative is taken as zero (it has none).

    **Arguments:** `function`; `name`; `context`.

    Source: T. Yoshikawa, Manipulability of robotic mechanisms, 1985.
    """

    function: DifferentiableFunction

    def __init__(self, function: DifferentiableFunction, name: str = "", context: str = "") -> None:
        self.function = function
        self.name = name or f"manipulability of {function.name}"
        self.context = context

    @property
    def input_space(self) -> Space:
        """That of the function."""
        return self.function.input_space

    @property
    def output_space(self) -> LieSpace:
        """R^1."""
        return LieSpace.R(1)

    def value(self, q: FloatLike) -> Float[Array, "1"]:
        """The volume at `q` (nq,)."""
        jacobian = self.function.jacobian(q)
        gram = jnp.matmul(jacobian, jacobian.T, precision="highest")
        # Both uses of the matrix are guarded: the determinant's derivative is not finite where two ranks are missing.
        scale = jnp.prod(jnp.maximum(jnp.diagonal(gram), jnp.finfo(gram.dtype).tiny))
        regular = jnp.linalg.det(gram) > jnp.finfo(gram.dtype).eps * len(gram) * scale
        safe = jnp.where(regular, gram, jnp.eye(len(gram), dtype=gram.dtype))
        return jnp.where(regular, jnp.sqrt(jnp.linalg.det(safe)), 0)[None]

    @property
    def active_parameters(self) -> np.ndarray:
        """Those of the function."""
        return self.function.active_parameters

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """Those of the function."""
        return self.function.active_derivative_parameters

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """None: the joints between the bodies count one by one."""
        return None
