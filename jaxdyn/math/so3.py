"""Rotations: the group SO(3) as 3x3 matrices, its Lie algebra as rotation vectors, and unit quaternions.

A rotation matrix maps body to world coordinates.  A rotation vector is axis times angle in radians.
Quaternions are ``(w, x, y, z)``; ``q`` and ``-q`` are the same rotation.  Every function acts on one element
and also takes leading batch axes; where it takes two arguments, their batch axes broadcast as in NumPy.
Values and derivatives of every order, forward and reverse, are finite and right at the identity, near it, and
at rotations by pi (there on the branch that the value takes).

Products of small matrices are written as multiply and sum: a matrix unit's reduced precision on an
accelerator must not change a rotation, and XLA on a CPU neither vectorises a 3x3 ``dot`` nor fuses around it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxdyn.errors import check_key
from jaxdyn.math.arguments import checked
from jaxdyn.math.series import arctangent_quotient, half_angle_quotient, stumpff


def _align(a: Array, b: Array, a_core: int, b_core: int) -> tuple[Array, Array]:
    """Give two arrays the same number of batch axes, by leading axes of length one."""
    a_batch, b_batch = a.ndim - a_core, b.ndim - b_core
    if a_batch < b_batch:
        a = jnp.reshape(a, (1,) * (b_batch - a_batch) + a.shape)
    elif b_batch < a_batch:
        b = jnp.reshape(b, (1,) * (a_batch - b_batch) + b.shape)
    return a, b


def _identity_like(x: Array) -> Array:
    """3x3 identity with the dtype of ``x`` and the batch axes of the vectors ``x``, all of length one."""
    return jnp.reshape(jnp.eye(3, dtype=x.dtype), (1,) * (x.ndim - 1) + (3, 3))


def _dot(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, axis=-1)


def _outer(a: Array, b: Array) -> Array:
    return a[..., :, None] * b[..., None, :]


# --- vectors and matrices -------------------------------------------------------------------------------------------


@checked
def cross(a: Float[Array, "*#batch 3"], b: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
    """Cross product ``a x b``."""
    a, b = _align(a, b, 1, 1)
    a0, a1, a2 = a[..., 0], a[..., 1], a[..., 2]
    b0, b1, b2 = b[..., 0], b[..., 1], b[..., 2]
    return jnp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=-1)


@checked
def rotate(rotation: Float[Array, "*#batch 3 3"], vector: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
    """Matrix times vector: coordinates of a body vector in world axes."""
    rotation, vector = _align(rotation, vector, 2, 1)
    return jnp.sum(rotation * vector[..., None, :], axis=-1)


@checked
def rotate_back(rotation: Float[Array, "*#batch 3 3"], vector: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
    """Transposed matrix times vector: coordinates of a world vector in body axes."""
    rotation, vector = _align(rotation, vector, 2, 1)
    return jnp.sum(rotation * vector[..., :, None], axis=-2)


@checked
def compose(a: Float[Array, "*#batch 3 3"], b: Float[Array, "*#batch 3 3"]) -> Float[Array, "*#batch 3 3"]:
    """Matrix product ``a b``: rotation ``b`` first, then ``a``."""
    a, b = _align(a, b, 2, 2)
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


@checked
def inverse(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3 3"]:
    """Inverse rotation: the transpose."""
    return jnp.swapaxes(rotation, -1, -2)


@checked
def hat(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Skew matrix of a vector: ``hat(w) u = w x u``."""
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    zero = jnp.zeros_like(x)
    flat = jnp.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1)
    return jnp.reshape(flat, (*w.shape, 3))


@checked
def vee(matrix: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Vector of the skew part of a matrix: ``vee(hat(w)) = w``, and zero for a symmetric matrix."""
    pairs = matrix - jnp.swapaxes(matrix, -1, -2)
    return 0.5 * jnp.stack([pairs[..., 2, 1], pairs[..., 0, 2], pairs[..., 1, 0]], axis=-1)


# --- exponential, logarithm, Jacobians ------------------------------------------------------------------------------


def _polynomial(w: Array, scalar: Array, linear: Array, square: Array) -> Array:
    """``scalar I + linear hat(w) + square w w^T``."""
    s, a, b = (c[..., None, None] for c in (scalar, linear, square))
    return s * _identity_like(w) + a * hat(w) + b * _outer(w, w)


@checked
def exp(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Rotation by ``|w|`` radians about ``w``: ``exp(hat(w))`` (Rodrigues).

    ``cos I + c_1 hat(w) + c_2 w w^T`` with the Stumpff functions of ``|w|^2``.  (Rejected: a custom rule from
    ``left_jacobian``; its Hessian took half as long again to compile.)
    """
    x = _dot(w, w)
    return _polynomial(w, stumpff(0, x), stumpff(1, x), stumpff(2, x))


@checked
def log(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Rotation vector of a rotation matrix, of length at most pi: ``exp(log(R)) = R``.

    At a rotation by pi both signs are right; the one returned has its largest component positive, unless
    rounding in ``rotation`` decides otherwise.  Matrices that are orthonormal up to rounding are fine (trace
    above 3 included).

    It is the logarithm of the quaternion.  Rejected: ``acos`` of the trace (undefined above 3, derivative
    infinite at 0 and pi) and the skew part with its sine (zero at pi).  A custom rule from the inverse
    Jacobian is right too, but neither compiles nor runs faster than differentiating this (measured, gradient
    and Hessian).
    """
    return quaternion_log(_quaternion_column(rotation))


@checked
def left_jacobian(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """``J`` with ``exp(w + dw) = exp(J dw) exp(w)`` to first order; ``J w_dot`` is the angular velocity in world axes.

    ``I + c_2 hat(w) + c_3 hat(w)^2`` (Barfoot, State Estimation for Robotics, eq. 7.77).
    """
    x = _dot(w, w)
    return _polynomial(w, stumpff(1, x), stumpff(2, x), stumpff(3, x))


@checked
def right_jacobian(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """``J`` with ``exp(w + dw) = exp(w) exp(J dw)`` to first order; ``J w_dot`` is the angular velocity in body axes."""
    return left_jacobian(-w)


@checked
def left_jacobian_inverse(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Inverse of the left Jacobian; singular where ``|w|`` is a full turn (it does not exist there)."""
    x = _dot(w, w)
    d = half_angle_quotient(x)
    return _polynomial(w, 1.0 - d * x, jnp.full_like(x, -0.5), d)


@checked
def right_jacobian_inverse(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Inverse of the right Jacobian; singular where ``|w|`` is a full turn (it does not exist there)."""
    return left_jacobian_inverse(-w)


# --- quaternions ----------------------------------------------------------------------------------------------------


def _well_scaled(q: Array) -> Array:
    """``q`` times a positive number, so that its largest component is one; the identity for a zero quaternion.

    What follows does not depend on the length of ``q``, so the factor is a constant to differentiation,
    exactly.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(q), axis=-1, keepdims=True))
    is_zero = largest == 0.0
    unit = jnp.reshape(jnp.asarray(np.array([1.0, 0.0, 0.0, 0.0]), q.dtype), (1,) * (q.ndim - 1) + (4,))
    return jnp.where(is_zero, unit, q / jnp.where(is_zero, 1.0, largest))


def _quaternion_column(rotation: Array) -> Array:
    """The largest column of ``4 q q^T``: a multiple of the quaternion of ``rotation``, of length 2 at least.

    The four columns are linear in the matrix; the one with the largest diagonal entry is never small
    (Shepperd 1978). It is picked by a mask, so that derivatives flow through it alone.
    """
    r = [[rotation[..., i, j] for j in range(3)] for i in range(3)]
    (a, b, c), (d, e, f), (g, h, i) = r
    x, y, z = h - f, c - g, d - b
    xy, xz, yz = b + d, c + g, f + h
    diagonal = (1.0 + a + e + i, 1.0 + a - e - i, 1.0 - a + e - i, 1.0 - a - e + i)
    rows = (
        (diagonal[0], x, y, z),
        (x, diagonal[1], xy, xz),
        (y, xy, diagonal[2], yz),
        (z, xz, yz, diagonal[3]),
    )
    first = diagonal[0] >= jnp.maximum(jnp.maximum(diagonal[1], diagonal[2]), diagonal[3])
    second = diagonal[1] >= jnp.maximum(diagonal[2], diagonal[3])
    third = diagonal[2] >= diagonal[3]
    column = [jnp.where(first, row[0], jnp.where(second, row[1], jnp.where(third, row[2], row[3]))) for row in rows]
    return jnp.stack(column, axis=-1)


def _upper_half(q: Array) -> Array:
    """The one of ``q`` and ``-q`` with a scalar part that is not negative."""
    return jnp.where(q[..., :1] < 0.0, -q, q)


@checked
def from_quaternion(q: Float[Array, "*batch 4"]) -> Float[Array, "*batch 3 3"]:
    """Rotation matrix of a quaternion ``(w, x, y, z)`` of any length; a zero quaternion gives the identity.

    The length never matters: the derivative with respect to it is zero.
    """
    q = _well_scaled(q)
    w, v = q[..., 0], q[..., 1:]
    s = 2.0 / _dot(q, q)
    return _polynomial(v, 1.0 - s * _dot(v, v), s * w, s)


@checked
def to_quaternion(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 4"]:
    """Unit quaternion ``(w, x, y, z)`` of a rotation matrix, with ``w >= 0``."""
    return _upper_half(quaternion_normalize(_quaternion_column(rotation)))


@checked
def quaternion_normalize(q: Float[Array, "*batch 4"]) -> Float[Array, "*batch 4"]:
    """Quaternion of length one; the identity for a zero quaternion."""
    q = _well_scaled(q)
    return q / jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True))


@checked
def quaternion_conjugate(q: Float[Array, "*batch 4"]) -> Float[Array, "*batch 4"]:
    """Conjugate ``(w, -x, -y, -z)``: the inverse of a unit quaternion."""
    return jnp.concatenate([q[..., :1], -q[..., 1:]], axis=-1)


@checked
def quaternion_multiply(a: Float[Array, "*#batch 4"], b: Float[Array, "*#batch 4"]) -> Float[Array, "*#batch 4"]:
    """Hamilton product: ``from_quaternion(a b) = from_quaternion(a) from_quaternion(b)``."""
    a, b = _align(a, b, 1, 1)
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    w = aw * bw - jnp.sum(av * bv, axis=-1, keepdims=True)
    return jnp.concatenate([w, aw * bv + bw * av + cross(av, bv)], axis=-1)


@checked
def quaternion_exp(w: Float[Array, "*batch 3"]) -> Float[Array, "*batch 4"]:
    """Unit quaternion of the rotation vector ``w``: ``(cos(|w|/2), sin(|w|/2) w/|w|)``."""
    x = 0.25 * jnp.sum(w * w, axis=-1, keepdims=True)
    return jnp.concatenate([stumpff(0, x), 0.5 * stumpff(1, x) * w], axis=-1)


@checked
def quaternion_log(q: Float[Array, "*batch 4"]) -> Float[Array, "*batch 3"]:
    """Rotation vector, of length at most pi, of a quaternion of any length; equal for ``q`` and ``-q``, zero for zero."""
    q = _upper_half(_well_scaled(q))
    w, v = q[..., 0], q[..., 1:]
    return 2.0 * arctangent_quotient(w, _dot(v, v))[..., None] * v


# --- angles, vectors, repair ----------------------------------------------------------------------------------------


@checked
def from_rpy(rpy: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """``Rz(yaw) Ry(pitch) Rx(roll)`` from ``(roll, pitch, yaw)`` in radians: the convention of URDF."""
    (cr, cp, cy), (sr, sp, sy) = (tuple(f(rpy)[..., i] for i in range(3)) for f in (jnp.cos, jnp.sin))
    entries = [
        cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr,
        sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr,
        -sp, cp * sr, cp * cr,
    ]  # fmt: skip
    return jnp.reshape(jnp.stack(entries, axis=-1), (*rpy.shape, 3))


@checked
def to_rpy(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """``(roll, pitch, yaw)`` of a rotation, pitch in ``[-pi/2, pi/2]``: ``from_rpy(to_rpy(R)) = R`` everywhere.

    At a pitch of ``+-pi/2`` only one combination of roll and yaw is defined: yaw is zero there, and so is its
    derivative and that of pitch, which has a fold there.  Roll is read after yaw has been undone (and not
    from the last row, which vanishes there), so that the pair is right together.
    """
    r = rotation
    x, y = r[..., 0, 0], r[..., 1, 0]
    square = x * x + y * y
    locked = square < (8.0 * float(jnp.finfo(r.dtype).eps)) ** 2
    x, y = jnp.where(locked, 1.0, x), jnp.where(locked, 0.0, y)
    length = jnp.sqrt(x * x + y * y)
    cos_yaw, sin_yaw = x / length, y / length
    yaw = jnp.arctan2(y, x)
    pitch = jnp.arctan2(-r[..., 2, 0], jnp.where(locked, 0.0, length))
    roll = jnp.arctan2(sin_yaw * r[..., 0, 2] - cos_yaw * r[..., 1, 2], cos_yaw * r[..., 1, 1] - sin_yaw * r[..., 0, 1])
    return jnp.stack([roll, pitch, yaw], axis=-1)


@checked
def project(matrix: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3 3"]:
    """Nearest rotation to a matrix that is almost one: two Newton-Schulz steps ``X (3 I - X^T X) / 2`` of the polar factor.

    An error ``E`` in orthonormality becomes about ``E^4``; starting with singular values within 1e-4 of 1, the result is a rotation to
    double precision.  (Rejected: singular value decomposition, whose derivative is infinite at equal singular
    values.)
    """
    eye = _identity_like(matrix[..., 0])
    for _ in range(2):
        matrix = compose(matrix, 1.5 * eye - 0.5 * compose(inverse(matrix), matrix))
    return matrix


@checked
def from_two_vectors(a: Float[Array, "*#batch 3"], b: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3 3"]:
    """Smallest rotation that turns the direction of ``a`` into the direction of ``b`` (vectors of any length).

    Opposite directions: a rotation by pi about one of the perpendicular axes, with the derivative of that
    choice (the true one is infinite).  A zero vector: the identity, with derivative zero.
    """
    a, b = _align(a, b, 1, 1)
    a, b = jnp.broadcast_arrays(_unit(a), _unit(b))
    # With s = a + b, the quaternion is proportional to (a . s, a x s), and a . s = |s|^2 / 2 does not cancel.
    s = a + b
    square = _dot(s, s)
    q = jnp.concatenate([0.5 * square[..., None], cross(a, s)], axis=-1)
    # Any axis perpendicular to a, far from degenerate: a x (the base vector that a is farthest from).
    smallest = jnp.argmin(jnp.abs(a), axis=-1)
    perpendicular = cross(a, jax.nn.one_hot(smallest, 3, dtype=a.dtype))
    half_turn = jnp.concatenate([jnp.zeros_like(perpendicular[..., :1]), perpendicular], axis=-1)
    opposite = (square < (4.0 * float(jnp.finfo(a.dtype).eps)) ** 2)[..., None]
    undefined = ((_dot(a, a) == 0.0) | (_dot(b, b) == 0.0))[..., None]
    q = jnp.where(opposite, half_turn, q)
    return from_quaternion(jnp.where(undefined, 0.0, q))


def _unit(v: Array) -> Array:
    """Unit vector; zero, with derivative zero, for a zero vector."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(v), axis=-1, keepdims=True))
    is_zero = largest == 0.0
    v = v / jnp.where(is_zero, 1.0, largest)
    square = jnp.sum(v * v, axis=-1, keepdims=True)
    return jnp.where(is_zero, jnp.zeros_like(v), v / jnp.sqrt(jnp.where(is_zero, 1.0, square)))


def random(key: PRNGKeyArray, shape: tuple[int, ...] = (), dtype: DTypeLike | None = None) -> Float[Array, "... 3 3"]:
    """Rotations drawn uniformly (Haar measure), with batch axes ``shape``; ``dtype`` defaults to JAX's float."""
    check_key("key", key)
    dtype = jnp.result_type(float) if dtype is None else dtype
    return from_quaternion(jax.random.normal(key, (*shape, 4), dtype))
