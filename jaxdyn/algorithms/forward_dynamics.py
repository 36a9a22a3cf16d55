"""Forward dynamics and the inverse of the mass matrix."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxdyn.algorithms.articulated import (
    forward_dynamics_derivatives,
    forward_dynamics_kernel,
    mass_inverse_kernel,
    pivots_kernel,
)  # fmt: skip
from jaxdyn.algorithms.bodies import bodies_of
from jaxdyn.algorithms.configuration import Configuration, as_configuration, tangent_of
from jaxdyn.algorithms.coupled_dynamics import coupled_accelerations, coupled_inverse, coupled_pivots
from jaxdyn.algorithms.gradients import contract_all, without
from jaxdyn.algorithms.inverse_dynamics import generalized_force
from jaxdyn.algorithms.world import rnea_kernel
from jaxdyn.errors import FloatLike, Status, check_shape, is_concrete, listing, warn
from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


def _aba_rule(tree: Tree, arguments, tangents, a: Stack) -> Stack | None:
    """a = FD(model, q, v, tau) solves ID(model, q, v, a) = tau, so da = dFD/dq dq + dFD/dv dv + M^{-1} (d tau - dID
    of the model's change)."""
    bodies, q, v, _ = arguments
    dq, dv, d_tau = tangent_of(tree, q, tangents[1]), tangents[2], tangents[3]
    by_q, by_v, inverse = batching.call(forward_dynamics_derivatives, None, tree, bodies, q, v, a)
    of_model = batching.push_forward(rnea_kernel, tree, (bodies, q, v, a), (tangents[0], without(q), None, None))
    if of_model is not None:
        d_tau = -of_model if d_tau is None else d_tau - of_model
    return contract_all(((by_q, dq), (by_v, dv), (inverse, d_tau)))


_aba = batching.batch_last(forward_dynamics_kernel, _aba_rule)
_minv = batching.batch_last(mass_inverse_kernel)
_pivots = batching.batch_last(pivots_kernel)


def aba(
    model: Model, q: FloatLike | Configuration, v: FloatLike, tau: FloatLike, wrenches: FloatLike | None = None
) -> Float[Array, " nv"]:
    """Forward dynamics: the accelerations a = M(q)^{-1} (tau - h(q, v) + sum of J_b^T w_b).

    **Arguments:** `model`; `q` (nq,) or `Configuration`; `v` (nv,); `tau` (nv,) N m or N, the first six entries, the
    wrench on a floating base, included; `wrenches` (n_bodies, 6): environment on robot, MIXED (see
    `generalized_force`).

    **Returns:** `a` (nv,), rad/s^2 or m/s^2 (floating joint: time derivative of the LOCAL body twist). Armature
    counts, joint damping and dry friction do not (`joint_friction_torque`). Where the mass matrix is singular
    (massless leaves without armature) entries are infinite, NaN, or, by rounding, huge and meaningless: `mass_matrix_status`
    tells, under `jit` and `vmap` too, and outside of them a `JaxdynWarning` names the joints.

    **Raises:** `InputError` for a wrong shape or dtype.

    Source: articulated body algorithm, Featherstone, Rigid Body Dynamics Algorithms, 7.3; here in world axes.
    Derivatives are analytical (see `aba_derivatives`).
    """
    q = as_configuration(model, q)
    v, tau = check_shape("v", v, (model.nv,)), check_shape("tau", tau, (model.nv,))
    if wrenches is not None:
        tau = tau + generalized_force(model, q, wrenches)
    if model.tree.followers:
        a = coupled_accelerations(model, q, v, tau)
    else:
        a = _aba(model.tree, bodies_of(model), q, v, tau)
    if is_concrete(a) and not bool(jnp.all(jnp.abs(a) < 1 / _noise(a.dtype))):
        _warn_if_singular(model, q, a)
    return a


def _noise(dtype: DTypeLike) -> float:
    """The pivot below which rounding may be all there is. Not eps itself: what cancels in a pivot has been divided by
    those before it. The lightest joints of real robots have pivots of a few thousandths."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)


def _warn_if_singular(model: Model, q: Configuration, a: Array) -> None:
    pivots = _pivots_of(model, q)
    if not is_concrete(pivots):
        return
    dofs = [int(k) for k in jnp.flatnonzero(~_regular(pivots))]
    joints = sorted({model.tree.joint_names[model.tree.dof_body[k]] for k in dofs})
    if joints:
        warn(
            "aba: the accelerations mean nothing, as the mass matrix is singular at joints "
            f"{listing(joints)}: give their links mass, or the joints armature. Under jit, mass_matrix_status(model, q) tells."
        )
    elif not bool(jnp.all(jnp.isfinite(a))):
        warn(
            "aba: the accelerations are not finite; the mass matrix is regular, so look at q, v, tau and the model's numbers."
        )


def _pivots_of(model: Model, q: Configuration) -> Float[Array, " nv"]:
    return coupled_pivots(model, q) if model.tree.followers else _pivots(model.tree, bodies_of(model), q)


def _regular(pivots: Float[Array, " nv"]) -> Array:
    return pivots > _noise(pivots.dtype)


def mass_matrix_status(model: Model, q: FloatLike | Configuration) -> Int[Array, ""]:
    """Whether forward dynamics has an answer: `Status.OK` or `Status.SINGULAR_MASS_MATRIX`, as an int32 that `jit`
    and `vmap` can return.

    Singular means: some joint, with all that it carries left free, feels no more inertia than rounding may explain.
    `Status(int(status)).remedy` says what to do. Accelerations of such a robot may be finite and yet mean nothing: ask
    once for each robot and posture, as `aba` itself, which must not cost more, cannot tell.
    """
    pivots = _pivots_of(model, as_configuration(model, q))
    ok = jnp.all(_regular(pivots))
    return jnp.where(ok, jnp.int32(Status.OK), jnp.int32(Status.SINGULAR_MASS_MATRIX))


def forward_dynamics(
    model: Model, q: FloatLike | Configuration, v: FloatLike, tau: FloatLike, wrenches: FloatLike | None = None
) -> Float[Array, " nv"]:
    """Another name of `aba`."""
    return aba(model, q, v, tau, wrenches)


def compute_minv(model: Model, q: FloatLike | Configuration) -> Float[Array, "nv nv"]:
    """Inverse of the joint-space inertia matrix without forming that matrix. (nv, nv)."""
    q = as_configuration(model, q)
    return coupled_inverse(model, q) if model.tree.followers else _minv(model.tree, bodies_of(model), q)
