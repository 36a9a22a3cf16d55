"""Forward dynamics and impacts of a robot that rigid constraints hold.

Accelerations a and forces f of the constraints (environment on robot) solve

    [ M   -J^T ] [ a ]   [ tau - h ]
    [ -J   -R  ] [ f ] = [    d    ]       d = J_dot v + damping J v + stiffness e,

with a compliance R >= 0, zero by default. Rows that depend on each other leave f open, while a is still unique. So f is
sought by proximal iterations, each a solve with R made larger by a little P,

    (J M^{-1} J^T + R + P) f_{k+1} = -d - J M^{-1} (tau - h) + P f_k,

which converge to a solution if there is one, and to the least violation of the constraints if not. Derivatives of every
order come from the equations themselves (implicit function theorem), not from the iterations. (Carpentier, Budhiraja
and Mansard, Proximal and sparse resolution of constrained dynamic equations, 2021.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxdyn.algorithms import cholesky
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.algorithms.inverse_dynamics import generalized_force, nonlinear_effects
from jaxdyn.algorithms.kinematics import Kinematics, forward_kinematics
from jaxdyn.algorithms.mass_matrix import crba
from jaxdyn.algorithms.operational_space import delassus
from jaxdyn.algorithms.topology import Topology
from jaxdyn.contact.fields import check_sign
from jaxdyn.contact.rigid import RigidConstraint
from jaxdyn.errors import FloatLike, InputError, Status, as_float_array, check_shape, is_concrete
from jaxdyn.model.model import Model


class ConstrainedMotion(NamedTuple):
    """Result of `constraint_dynamics`.

    `a` (nv,): accelerations. `forces`: of each constraint, along its rows, environment on robot, N and N m. `residual`
    (): largest entry of J a + d + R f, m/s^2 and rad/s^2. `status`: `Status.OK`; `Status.DEPENDENT_CONSTRAINTS` if only
    the accelerations are unique; `Status.INFEASIBLE` if no accelerations satisfy all constraints;
    `Status.SINGULAR_MASS_MATRIX`; `Status.NON_FINITE`.
    """

    a: Float[Array, " nv"]
    forces: tuple[Float[Array, " rows"], ...]
    residual: Float[Array, ""]
    status: Int[Array, ""]


class Impact(NamedTuple):
    """Result of `impulse_dynamics`: velocity `v` (nv,) after it, `impulses` of each constraint, N s and N m s, and
    `residual`, `status` as of `ConstrainedMotion`."""

    v: Float[Array, " nv"]
    impulses: tuple[Float[Array, " rows"], ...]
    residual: Float[Array, ""]
    status: Int[Array, ""]


def constraint_error(
    model: Model, q: FloatLike | Configuration, constraints: RigidConstraint | Sequence[RigidConstraint]
) -> Float[Array, " rows"]:
    """How far the constraints are violated, all rows on top of each other, m and rad."""
    q = as_configuration(model, q)
    kin = forward_kinematics(model, q)
    return _stacked(model, [c.error(model, kin, q) for c in _checked(constraints)])


def constraint_jacobian(
    model: Model, kin: Kinematics, constraints: RigidConstraint | Sequence[RigidConstraint]
) -> Float[Array, "rows nv"]:
    """All rows of J on top of each other. (rows, nv)"""
    parts = [c.jacobian(model, kin).to_dense() for c in _checked(constraints)]
    return jnp.concatenate(parts) if parts else jnp.zeros((0, model.nv), model.dtype)


def constraint_dynamics(
    model: Model,
    q: FloatLike | Configuration,
    v: FloatLike,
    tau: FloatLike,
    constraints: RigidConstraint | Sequence[RigidConstraint],
    *,
    wrenches: FloatLike | None = None,
    compliance: FloatLike = 0.0,
    iterations: int | None = None,
) -> ConstrainedMotion:
    """Forward dynamics under rigid constraints.

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v`, `tau` (nv,); `constraints`, whose violation now is
    corrected as their `stiffness` and `damping` say; `wrenches` (n_bodies, 6), see `aba`; `compliance` R: one number or
    one per row, m/s^2 per N and so on; `iterations` of the proximal method (default 6 in float64, 12 in float32; many
    rows that nearly depend on each other may want more).

    **Returns:** `ConstrainedMotion`.

    **Raises:** `InputError` for wrong shapes and dtypes; `UnknownNameError` for a frame or joint that does not exist.
    """
    constraints = _checked(constraints)
    q = as_configuration(model, q)
    v, tau = check_shape("v", v, (model.nv,)), check_shape("tau", tau, (model.nv,))
    if wrenches is not None:
        tau = tau + generalized_force(model, q, wrenches)
    kin = forward_kinematics(model, q, v)
    system = _System(model, q, kin, constraints, compliance, iterations)
    drift = _stacked(
        model,
        [
            c.bias(model, kin) + c.damping * (c.jacobian(model, kin) @ v) + c.stiffness * c.error(model, kin, q)
            for c in constraints
        ],
    )
    force = tau - nonlinear_effects(model, q, v)
    a, f = system.solve(force, drift)
    residual, status = system.outcome(a, f, force, drift)
    return ConstrainedMotion(a, _split(f, constraints), residual, status)


def impulse_dynamics(
    model: Model,
    q: FloatLike | Configuration,
    v: FloatLike,
    constraints: RigidConstraint | Sequence[RigidConstraint],
    *,
    restitution: FloatLike = 0.0,
    compliance: FloatLike = 0.0,
    iterations: int | None = None,
) -> Impact:
    """Velocity after an impact in which the constraints take hold: M (v' - v) = J^T p, J v' = -restitution J v - R p.

    **Arguments:** as of `constraint_dynamics`; `restitution`: one number or one per row, 0 (rows come to rest) to 1.

    **Raises:** as `constraint_dynamics`, and for a restitution outside 0 .. 1.
    """
    constraints = _checked(constraints)
    q = as_configuration(model, q)
    v = check_shape("v", v, (model.nv,))
    kin = forward_kinematics(model, q)
    system = _System(model, q, kin, constraints, compliance, iterations)
    before = _stacked(model, [c.jacobian(model, kin) @ v for c in constraints])
    share = _per_row("restitution", restitution, before)
    if is_concrete(share) and not np.all((np.asarray(share) >= 0) & (np.asarray(share) <= 1)):
        raise InputError(f"restitution: wanted numbers from 0 to 1, given {restitution}.")
    wanted = share * before
    momentum = _times(system.mass, v)
    after, p = system.solve(momentum, wanted)
    residual, status = system.outcome(after, p, momentum, wanted)
    return Impact(after, _split(p, constraints), residual, status)


class _System:
    """The equations above at one configuration."""

    def __init__(
        self,
        model: Model,
        q: Configuration,
        kin: Kinematics,
        constraints: tuple[RigidConstraint, ...],
        compliance: FloatLike,
        iterations: int | None,
    ) -> None:
        self.mass = crba(model, q)
        jacobians = [c.jacobian(model, kin) for c in constraints]
        rows = jnp.zeros(sum(c.rows for c in constraints), self.mass.dtype)
        self.compliance = _per_row("compliance", compliance, rows)
        check_sign("compliance", self.compliance)
        eps = float(jnp.finfo(rows.dtype).eps)
        self.eps, self.weight = eps, eps**0.5
        if iterations is None:
            iterations = 6 if eps < 1e-10 else 12
        if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
            raise InputError(f"iterations: wanted a whole number from 1 on, given {iterations!r}.")
        self.iterations = iterations
        self.factor = cholesky.decompose(model, self.mass)
        if not rows.size:
            return
        self.rows = jnp.concatenate([j.to_dense() for j in jacobians])
        inverse = delassus(self.factor, jacobians, self.compliance)
        # a row that nothing moves has no size of its own
        size = jnp.abs(jnp.diagonal(inverse))
        self.proximal = self.weight * jnp.where(size > 0, size, jnp.ones_like(size))
        self.held = cholesky.decompose(Topology.full(len(rows)), inverse + jnp.diag(self.proximal))

    def solve(self, force: Array, drift: Array) -> tuple[Array, Array]:
        """(a, f) with M a - J^T f = force and J a + drift = -R f."""
        if not drift.size:
            return cholesky.solve(self.factor, force), drift

        def apply(z):
            a, f = z
            return _times(self.mass, a) - _times(self.rows.T, f), -_times(self.rows, a) - self.compliance * f

        def solve(_, rhs):
            force, drift = rhs
            free = cholesky.solve(self.factor, force)
            wanted = -drift - _times(self.rows, free)
            step = lambda _, f: cholesky.solve(self.held, wanted + self.proximal * f)  # noqa: E731
            f = jax.lax.fori_loop(0, self.iterations, step, jnp.zeros_like(drift))
            return free + cholesky.solve(self.factor, _times(self.rows.T, f)), f

        return jax.lax.custom_linear_solve(apply, (force, drift), solve, symmetric=True)

    def outcome(self, a: Array, f: Array, force: Array, drift: Array) -> tuple[Array, Array]:
        """Residual and status."""
        a, f, force, drift = jax.lax.stop_gradient((a, f, force, drift))
        code = lambda status: jnp.int32(status)  # noqa: E731
        status = jnp.where(self.factor.status == 0, code(Status.OK), self.factor.status)
        residual = jnp.zeros((), a.dtype)
        if drift.size:
            made = _times(self.rows, a)
            residual = jnp.max(jnp.abs(made + drift + self.compliance * f))
            # of what the rows would do by themselves, for a sum may cancel
            free = jnp.abs(cholesky.solve(self.factor, force))
            scale = jnp.max(jnp.abs(drift)) + jnp.max(_times(jnp.abs(self.rows), jnp.abs(a) + free))
            dependent = jnp.any(self.held.D <= 4 * drift.size * self.proximal)
            status = jnp.where((status == 0) & dependent, code(Status.DEPENDENT_CONSTRAINTS), status)
            violated = residual > 30 * self.weight * scale
            status = jnp.where(violated & (self.factor.status == 0), code(Status.INFEASIBLE), status)
        finite = jnp.all(jnp.isfinite(a)) & jnp.all(jnp.isfinite(f))
        status = jnp.where(~finite & (self.factor.status == 0), code(Status.NON_FINITE), status)
        return residual, status


def _times(matrix: Array, vector: Array) -> Array:
    return jnp.matmul(matrix, vector, precision="highest")


def _checked(constraints: RigidConstraint | Sequence[RigidConstraint]) -> tuple[RigidConstraint, ...]:
    given = (constraints,) if isinstance(constraints, RigidConstraint) else tuple(constraints)
    for i, constraint in enumerate(given):
        if not isinstance(constraint, RigidConstraint):
            raise InputError(f"constraints[{i}]: wanted a RigidConstraint, given {type(constraint).__name__}.")
    return given


def _stacked(model: Model, parts: list[Array]) -> Array:
    return jnp.concatenate(parts) if parts else jnp.zeros(0, model.dtype)


def _split(rows: Array, constraints: tuple[RigidConstraint, ...]) -> tuple[Array, ...]:
    parts, at = [], 0
    for constraint in constraints:
        parts.append(rows[at : at + constraint.rows])
        at += constraint.rows
    return tuple(parts)


def _per_row(name: str, value: FloatLike, rows: Array) -> Array:
    x = as_float_array(name, value, rows.dtype)
    if x.shape not in ((), rows.shape):
        raise InputError(f"{name}: wanted one number or one for each of {rows.shape[0]} rows, given shape {x.shape}.")
    return jnp.broadcast_to(x, rows.shape).astype(rows.dtype)
