"""Parameterisations of a rigid body's inertia, for identification and design.

| name | numbers | physical when |
|---|---|---|
| standard | `[m, m c (3), Ixx, Ixy, Iyy, Ixz, Iyz, Izz]`, about the frame's origin | its pseudo-inertia is |
| pseudo-inertia | symmetric 4 x 4: second moments of the mass distribution, `[[S, m c], [m c^T, m]]` | positive semidefinite |
| log-Cholesky | `[alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3]` | always |

With I the inertia about the origin and S the second moments, I = tr(S) 1 - S and S = tr(I)/2 1 - I. Dynamics are linear
in the standard parameters and in the pseudo-inertia; the log-Cholesky parameters run over all of R^10 and reach exactly
the bodies whose mass fills a volume, so an optimiser needs no constraint.

All functions act on one body and on leading axes. (Wensing, Kim and Slotine, Linear matrix inequalities for physically
consistent inertial parameter identification, 2018; Rucker and Wensing, Smooth parameterization of rigid-body inertia,
2022.)
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_shape
from jaxdyn.math.spatial import SpatialInertia, consistency_report
from jaxdyn.model.model import Model, check_model

# entries of a symmetric 3 x 3 matrix among Ixx, Ixy, Iyy, Ixz, Iyz, Izz
_ORDER = ((0, 1, 3), (1, 2, 4), (3, 4, 5))
_ROW, _COLUMN = (0, 0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2)


def _parameters(name: str, values: FloatLike, shape: tuple[int, ...]) -> Array:
    array = as_float_array(name, values)
    if array.shape[array.ndim - len(shape) :] != shape or array.ndim < len(shape):
        raise InputError(f"{name}: wanted shape (..., {', '.join(map(str, shape))}), given shape {array.shape}.")
    return array


def pseudo_inertia(parameters: FloatLike) -> Float[Array, "*batch 4 4"]:
    """Pseudo-inertia (..., 4, 4) of standard parameters (..., 10)."""
    p = _parameters("parameters", parameters, (10,))
    inertia = jnp.stack([jnp.stack([p[..., 4 + k] for k in row], -1) for row in _ORDER], -2)
    half = 0.5 * (p[..., 4] + p[..., 6] + p[..., 9])
    eye = jnp.broadcast_to(jnp.eye(3, dtype=p.dtype), inertia.shape)
    second = half[..., None, None] * eye - inertia
    first = p[..., 1:4]
    upper = jnp.concatenate([second, first[..., None]], -1)
    lower = jnp.concatenate([first, p[..., :1]], -1)
    return jnp.concatenate([upper, lower[..., None, :]], -2)


def from_pseudo_inertia(matrix: FloatLike) -> Float[Array, "*batch 10"]:
    """Standard parameters (..., 10) of a pseudo-inertia (..., 4, 4); its symmetric part is taken."""
    m = _parameters("matrix", matrix, (4, 4))
    m = 0.5 * (m + jnp.swapaxes(m, -1, -2))
    trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
    six = [(trace if i == j else 0.0 * trace) - m[..., i, j] for i, j in zip(_ROW, _COLUMN, strict=True)]
    return jnp.concatenate([m[..., 3, 3:], m[..., :3, 3], jnp.stack(six, -1)], -1)


def from_log_cholesky(theta: FloatLike) -> Float[Array, "*batch 10"]:
    """Standard parameters (..., 10) of log-Cholesky parameters (..., 10): those of a body that can exist, always.

    The pseudo-inertia is U U^T with the upper triangular

        U = e^alpha [e^d1 s12 s13 t1; 0 e^d2 s23 t2; 0 0 e^d3 t3; 0 0 0 1].
    """
    x = _parameters("theta", theta, (10,))
    alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3 = (x[..., k] for k in range(10))
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    rows = (
        (jnp.exp(d1), s12, s13, t1),
        (zero, jnp.exp(d2), s23, t2),
        (zero, zero, jnp.exp(d3), t3),
        (zero, zero, zero, one),
    )
    upper = jnp.exp(alpha)[..., None, None] * jnp.stack([jnp.stack(row, -1) for row in rows], -2)
    return from_pseudo_inertia(jnp.matmul(upper, jnp.swapaxes(upper, -1, -2), precision="highest"))


def log_cholesky(parameters: FloatLike) -> Float[Array, "*batch 10"]:
    """Log-Cholesky parameters (..., 10) of standard parameters (..., 10): the inverse of `from_log_cholesky`.

    A body without volume (a point, a rod of no thickness, no mass) has none: NaN or infinite entries.
    """
    m = pseudo_inertia(parameters)
    # m = U U^T with U upper triangular: the factor of the matrix read backwards
    upper = jnp.flip(jnp.linalg.cholesky(jnp.flip(m, (-2, -1))), (-2, -1))
    corner = upper[..., 3, 3]
    scaled = upper / corner[..., None, None]
    logs = [jnp.log(corner), *(jnp.log(scaled[..., k, k]) for k in range(3))]
    others = [scaled[..., i, j] for i, j in ((0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3))]
    return jnp.stack([*logs, *others], -1)


def inertia_divergence(parameters: FloatLike, reference: FloatLike) -> Float[Array, "*batch"]:
    """How far a body (..., 10) is from a reference (..., 10), both standard parameters: zero if equal, else positive, and
    the same in all frames and units.

    It is tr(R^-1 P) - log det(R^-1 P) - 4 of their pseudo-inertias P, R: a regulariser for identification. (Lee,
    Wensing and Park, Geometric robot dynamic identification: a convex programming approach, 2020.)
    """
    p, r = pseudo_inertia(parameters), pseudo_inertia(reference)
    ratio = jnp.linalg.solve(r, p)
    _, logarithm = jnp.linalg.slogdet(ratio)
    return jnp.trace(ratio, axis1=-2, axis2=-1) - logarithm - 4.0


def with_inertial_parameters(model: Model, parameters: FloatLike) -> Model:
    """The model with the inertias of its bodies replaced: standard parameters (n_bodies, 10), each about the origin of
    the body's frame. (`inertial_parameters(model)` are those it has.)

    **Raises:** `InputError` for a wrong shape.
    """
    check_model(model)
    p = check_shape("parameters", parameters, (model.n_bodies, 10), "One row per body.", dtype=model.dtype)
    return dataclasses.replace(model, inertia=SpatialInertia.from_point_parameters(p.astype(model.dtype)))


def inertia_report(model: Model, tolerance: float | None = None) -> tuple[str, ...]:
    """One sentence for each body that cannot exist, and why: negative mass, moments that are not positive, the triangle
    inequality; empty if all is well. Not for use under `jit`.

    **Arguments:** `tolerance`: relative violation that counts as rounding.
    """
    check_model(model)
    return consistency_report(model.inertia, model.body_names, tolerance) if model.n_bodies else ()


def is_physical(parameters: FloatLike, tolerance: float = 1e-9) -> bool:
    """Whether the pseudo-inertia of all bodies (..., 10) is positive semidefinite, to a tolerance relative to its
    largest eigenvalue. Not for use under `jit`."""
    values = np.linalg.eigvalsh(np.asarray(pseudo_inertia(parameters)))
    return bool(np.all(values[..., 0] >= -tolerance * np.maximum(values[..., -1], 0.0)))
