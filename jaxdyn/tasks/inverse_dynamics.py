"""Inverse dynamics by programs: accelerations and contact wrenches that serve a stack of tasks, and their torques."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdyn import algorithms as alg
from jaxdyn.errors import FloatLike, InputError, unknown_name
from jaxdyn.model import Model
from jaxdyn.tasks.affine import Affine, Variables
from jaxdyn.tasks.constraint import TaskConstraint, equality
from jaxdyn.tasks.hierarchy import HierarchySolution, solve_hierarchy
from jaxdyn.tasks.leaves import float_leaf
from jaxdyn.tasks.limits import actuated_dofs
from jaxdyn.tasks.motion import MotionTask
from jaxdyn.tasks.stack import Stack
from jaxdyn.tasks.state import RobotState, robot_state
from jaxdyn.tasks.task import GenericTask


class Contact(eqx.Module):
    """A contact of a frame with the world in inverse dynamics.

    **Fields:** `frame`; `kind`: `"surface"` (wrench of 6, the frame does not move) or `"point"` (force of 3, its origin
    does not move); `damping`, 1/s: a motion that is there all the same is asked to die out at this rate; `active`: a
    contact that is not has no wrench, and its frame is free.
    """

    frame: str = eqx.field(static=True)
    kind: str = eqx.field(static=True, default="surface")
    damping: Any = eqx.field(default=0.0, converter=float_leaf)
    active: Any = eqx.field(default=True, converter=lambda x: jnp.asarray(x, bool))

    def __check_init__(self):
        if self.kind not in ("surface", "point"):
            raise unknown_name("kind of contact", self.kind, ("surface", "point"))

    @property
    def size(self) -> int:
        """Unknowns of the contact."""
        return 6 if self.kind == "surface" else 3


class ContactTask(MotionTask):
    """A frame that does not move: J a + J_dot v = -rate_gain J v; 6 rows, 3 for a point. At velocity level J x = 0."""

    frame: str = eqx.field(static=True)
    kind: str = eqx.field(static=True, default="surface")
    rate_gain: Any = eqx.field(kw_only=True, default=0.0, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="contact")

    def _rows(self) -> int:
        return 6 if self.kind == "surface" else 3

    def error(self, state):
        return jnp.zeros(self._rows(), state.q.dtype)

    def jacobian(self, state):
        return alg.frame_jacobian(state.model, state.kin, self.frame)[: self._rows()]

    def bias(self, state):
        return alg.jacobian_dot_v(state.model, state.kin, self.frame)[: self._rows()]


class IDSolution(eqx.Module):
    """Result of `inverse_dynamics`: joint `torque` (nv,), N m or N, zero for floating joints; `acceleration` (nv,);
    contact `wrenches` (6,) by frame, MIXED, environment on robot; `residual`: largest force or moment that a floating
    base would lack (0 when solved); `solution` of the stack, with its statuses."""

    torque: Float[Array, " nv"]
    acceleration: Float[Array, " nv"]
    wrenches: dict[str, Float[Array, "6"]]
    residual: Float[Array, ""]
    solution: HierarchySolution

    @property
    def success(self) -> Bool[Array, ""]:
        """True if every level has been solved."""
        return self.solution.success


def dynamics_state(
    model: Model, q: FloatLike, v: FloatLike, contacts: Sequence[Contact] = ()
) -> tuple[RobotState, Variables]:
    """The situation of tasks in inverse dynamics and its unknowns: `"acceleration"` and one block per contact."""
    names = [c.frame for c in contacts]
    if len(set(names)) != len(names):
        raise InputError(f"contacts: one per frame, given {names}.")
    state = robot_state(model, q, v)
    dtype = state.q.dtype
    blocks = Variables([("acceleration", model.nv), *((c.frame, c.size) for c in contacts)], dtype)
    acceleration = blocks["acceleration"]
    wrenches, force = {}, Affine.zero(model.nv, blocks.size, dtype)
    for c in contacts:
        on = c.active.astype(dtype)
        y = blocks[c.frame]
        wrench = y if c.kind == "surface" else y / Affine.zero(3, blocks.size, dtype)
        wrenches[c.frame] = on * wrench
        J = alg.frame_jacobian(model, state.kin, c.frame)
        force = force + J.T @ wrenches[c.frame]
    M, h = alg.crba(model, state.q), alg.nonlinear_effects(model, state.q, state.v)
    torque = M @ acceleration - force + h
    return RobotState(model, state.q, state.v, state.kin, acceleration, wrenches, torque), blocks


def inverse_dynamics(
    stack: Any,
    model: Model,
    q: FloatLike,
    v: FloatLike,
    contacts: Sequence[Contact] = (),
    *,
    mode: str = "strict",
    regularisation: FloatLike = 1e-6,
    elastic: FloatLike | None = None,
    tolerance: FloatLike | None = None,
    max_iterations: int = 60,
) -> IDSolution:
    """Accelerations, contact wrenches and torques that serve a stack of tasks best: whole-body control.

    Unknowns are the accelerations (nv) and one wrench per contact. Shared constraints besides those of the stack: the
    contacts do not move, and joints of a floating base bear no torque, M a + h - sum J^T w = 0 in their rows. The
    torques follow from M a + h - sum J^T w; joint damping and friction are not part of h.

    **Main arguments:** `stack` of motion and wrench tasks with limits (`TorqueLimits`, `FrictionCone`, ...), which name
    contacts by their frames; `model`; `q` (nq,), `v` (nv,); `contacts`.

    **Other arguments:** `mode`: see `solve_hierarchy`; `regularisation`: weight of the squares of all
    unknowns, added to the cost of every level: shares the load where it is not determined, and keeps high levels from
    asking for accelerations that no one needs; `elastic`, `tolerance`, `max_iterations`: see `solve_qp`.

    **Returns:** `IDSolution`. Batch with `jax.vmap`; differentiable in the state, the model, and all numbers of tasks.

    **Raises:** `InputError`, `UnknownNameError`.
    """
    stack = stack if isinstance(stack, Stack) else Stack((stack,))
    state, blocks = dynamics_state(model, q, v, contacts)
    dtype, n = state.q.dtype, blocks.size
    for c in contacts:
        still = ContactTask(c.frame, c.kind, rate_gain=c.damping, active=c.active, name=f"contact_{c.frame}")
        stack = stack << TaskConstraint(still, name=still.name)
    free = np.setdiff1d(np.arange(model.nv), actuated_dofs(model))
    if len(free):
        stack = stack << equality(state.torque.M[free], -state.torque.q[free], name="floating_base")
    small = float_leaf(regularisation).astype(dtype)
    small = GenericTask(jnp.eye(n, dtype=dtype), jnp.zeros(n, dtype), weight=small, name="regularisation")
    extra = stack.regularisation
    stack = stack.with_regularisation(small if extra is None else extra + small)
    solution = solve_hierarchy(
        stack, state, mode=mode, elastic=elastic, tolerance=tolerance, max_iterations=max_iterations
    )
    x = solution.x
    torque = state.torque(x)
    missing = jnp.max(jnp.abs(torque[free]), initial=0.0)
    torque = torque.at[free].set(0.0) if len(free) else torque
    wrenches = {name: w(x) for name, w in state.wrenches.items()}
    return IDSolution(torque, state.acceleration(x), wrenches, missing, solution)
