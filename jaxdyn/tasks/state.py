"""The situation in which tasks and constraints are evaluated."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms import Kinematics, forward_kinematics
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.model import Model
from jaxdyn.model.manifold import check_configuration
from jaxdyn.tasks.affine import Affine


class RobotState(eqx.Module):
    """A robot in one configuration, with its kinematics computed once for all tasks, and what the unknowns mean.

    At velocity level (`acceleration` is None) the unknowns x are the displacement (nv,) of one control step. At
    acceleration level `acceleration` and `wrenches` give the joint accelerations and the contact wrenches as affine
    expressions of x. Made by `robot_state`, and by `inverse_dynamics`.
    """

    model: Model
    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    kin: Kinematics
    acceleration: Any = None  # Affine or None
    wrenches: dict[str, Affine] = eqx.field(default_factory=dict)
    torque: Any = None  # Affine or None

    @property
    def order(self) -> int:
        """1 at velocity level, 2 at acceleration level."""
        return 1 if self.acceleration is None else 2

    @property
    def motion(self) -> Affine:
        """The displacement, or the accelerations, as an expression of the unknowns."""
        return Affine.identity(self.model.nv, self.q.dtype) if self.acceleration is None else self.acceleration


def robot_state(
    model: Model,
    q: FloatLike,
    v: FloatLike | None = None,
    *,
    acceleration: Affine | None = None,
    wrenches: dict[str, Affine] | None = None,
) -> RobotState:
    """The situation for tasks: configuration `q` (nq,) and velocity `v` (nv,), zero if left out.

    **Other arguments:** `acceleration`: expression of the joint accelerations in the unknowns, or None for velocity
    level; `wrenches`: expressions (6 rows, MIXED, environment on robot) of the contact wrenches by name.

    **Raises:** `InputError`.
    """
    q = check_configuration(model, q)
    v = jnp.zeros(model.nv, q.dtype) if v is None else check_shape("v", v, (model.nv,), dtype=q.dtype)
    return RobotState(model, q, v, forward_kinematics(model, q, v), acceleration, wrenches or {})


def needs_robot(state: RobotState | None, what: str) -> RobotState:
    """The state, or an `InputError` that says how to get one."""
    if state is None:
        raise InputError(f"{what} needs a robot: pass robot_state(model, q).")
    return state
