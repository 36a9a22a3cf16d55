"""All first derivatives of inverse and forward dynamics at once, as matrices in tangent space."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.articulated import forward_dynamics_derivatives
from jaxdyn.algorithms.bodies import bodies_of
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.forward_dynamics import aba, compute_minv
from jaxdyn.algorithms.gradients import inverse_dynamics_derivatives
from jaxdyn.algorithms.inverse_dynamics import generalized_force
from jaxdyn.algorithms.wrench_gradients import generalized_force_by_q
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math import batching
from jaxdyn.model.model import Model

_inverse = batching.batch_last(inverse_dynamics_derivatives)
_forward = batching.batch_last(forward_dynamics_derivatives)


class InverseDynamicsDerivatives(NamedTuple):
    """d tau/dq, d tau/dv and d tau/da = M, (nv, nv) each. Changes of q are tangent vectors: q moves to
    `integrate(model, q, dq)`."""

    dq: Float[Array, "nv nv"]
    dv: Float[Array, "nv nv"]
    da: Float[Array, "nv nv"]


class ForwardDynamicsDerivatives(NamedTuple):
    """Acceleration (nv,) and da/dq, da/dv and da/dtau = M^{-1}, (nv, nv) each. Changes of q are tangent vectors: q
    moves to `integrate(model, q, dq)`."""

    a: Float[Array, " nv"]
    dq: Float[Array, "nv nv"]
    dv: Float[Array, "nv nv"]
    dtau: Float[Array, "nv nv"]


@through_followers(0, 1)
def rnea_derivatives(
    model: Model, q: FloatLike | Configuration, v: FloatLike, a: FloatLike, wrenches: FloatLike | None = None
) -> InverseDynamicsDerivatives:
    """Derivatives of `rnea` in closed form, with the wrenches held constant. Arguments and errors as for `rnea`.

    Source: Singh, Russell and Wensing, Efficient analytical derivatives of rigid-body dynamics using spatial vector
    algebra, 2022.
    """
    q = as_configuration(model, q)
    v, a = check_shape("v", v, (model.nv,)), check_shape("a", a, (model.nv,))
    dq, dv, mass = _inverse(model.tree, bodies_of(model), q, v, a)
    if wrenches is not None:
        dq = dq - generalized_force_by_q(model, q, wrenches)
    return InverseDynamicsDerivatives(dq, dv, mass)


def aba_derivatives(
    model: Model, q: FloatLike | Configuration, v: FloatLike, tau: FloatLike, wrenches: FloatLike | None = None
) -> ForwardDynamicsDerivatives:
    """Acceleration and derivatives of `aba` in closed form, with the wrenches held constant. Arguments and errors as
    for `aba`.

    `jax.jacobian(aba, ...)` uses the same matrices; asking for all of them here saves its products with unit vectors.
    Source: as `rnea_derivatives`, and da = M^{-1} (d tau - d rnea).
    """
    q = as_configuration(model, q)
    v, tau = check_shape("v", v, (model.nv,)), check_shape("tau", tau, (model.nv,))
    if wrenches is not None:
        tau = tau + generalized_force(model, q, wrenches)
    a = aba(model, q, v, tau)
    if model.tree.followers:
        inverse = compute_minv(model, q)
        by_q, by_v, _ = rnea_derivatives(model, q, v, a)
        dq, dv = (-jnp.matmul(inverse, by, precision="highest") for by in (by_q, by_v))
    else:
        dq, dv, inverse = _forward(model.tree, bodies_of(model), q, v, a)
    if wrenches is not None:
        dq = dq + inverse @ generalized_force_by_q(model, q, wrenches)
    return ForwardDynamicsDerivatives(a, dq, dv, inverse)
