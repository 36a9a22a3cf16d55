"""Forward dynamics of robots whose joints follow others: their mass matrix `G^T M G` has no tree's pattern, so it is
factored as a dense matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.inverse_dynamics import nonlinear_effects
from jaxdyn.algorithms.mass_matrix import crba
from jaxdyn.model.model import Model


def coupled_accelerations(
    model: Model, q: Configuration, v: Float[Array, " nv"], tau: Float[Array, " nv"]
) -> Float[Array, " nv"]:
    """M^{-1} (tau - h)."""
    if model.nv == 0:
        return tau
    return jax.scipy.linalg.cho_solve((_factor(crba(model, q)), True), tau - nonlinear_effects(model, q, v))


def coupled_inverse(model: Model, q: Configuration) -> Float[Array, "nv nv"]:
    """M^{-1}."""
    mass = crba(model, q)
    if model.nv == 0:
        return mass
    inverse = jax.scipy.linalg.cho_solve((_factor(mass), True), jnp.eye(model.nv, dtype=mass.dtype))
    return 0.5 * (inverse + inverse.T)


def coupled_pivots(model: Model, q: Configuration) -> Float[Array, " nv"]:
    """For each degree of freedom the part of its inertia that is left when all others move freely."""
    mass = crba(model, q)
    if model.nv == 0:
        return jnp.zeros(0, mass.dtype)
    # eigenvalues, not a factor: that of a singular matrix is NaN throughout and names no joint
    scale = jnp.sqrt(jnp.diagonal(mass))
    safe = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    values, vectors = jnp.linalg.eigh(mass / (safe[:, None] * safe[None]))
    least = jnp.maximum(values, jnp.finfo(mass.dtype).tiny ** 0.5)
    return jnp.where(scale > 0, 1.0 / jnp.sum(vectors**2 / least[None], axis=1), jnp.zeros_like(scale))


def _factor(mass: Float[Array, "nv nv"]) -> Float[Array, "nv nv"]:
    return jnp.linalg.cholesky(mass)
