"""What each joint type is: its motion, and the operations on its coordinates. All functions act on a stack of
joints of one type.

| type | coordinates | velocities, in axes of the child |
|---|---|---|
| revolute, continuous | angle about the axis | its rate |
| prismatic | shift along the axis | its rate |
| planar | x, y along the in-plane axes u, w of the joint frame; angle about the normal | vx, vy along u, w; omega |
| spherical | quaternion wxyz | angular velocity |
| floating | position in the joint frame, quaternion wxyz | linear and angular velocity at the child's origin |

So the motion subspace of every joint is constant in the child's axes. In-plane axes of the normal n: with k
the index of the largest |n|, u is the coordinate axis (k + 1) mod 3 made orthogonal to n, and w = n x u; n =
z gives u = x and w = y, n = y gives u = z and w = x.

Quaternions need not be of unit length: they are normalised where a rotation is meant, and zero counts as
identity.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3
from jaxdyn.math.series import stumpff
from jaxdyn.model.tree import JOINT_SIZES, QUATERNION_START, Tree

# Coordinates that are angles without limits: differences go the short way round
WRAPPED = {"continuous": 0, "planar": 2}


def neutral_of(kind: str) -> np.ndarray:
    """Neutral coordinates (nq) of one joint: zero, and the identity quaternion."""
    q = np.zeros(JOINT_SIZES[kind][0])
    if kind in QUATERNION_START:
        q[QUATERNION_START[kind]] = 1.0
    return q


def neutral_coordinates(tree: Tree) -> np.ndarray:
    """Neutral coordinates (nq) of the whole robot, as NumPy."""
    return np.concatenate([np.zeros(0), *(neutral_of(tree.joint_types[i]) for i in tree.independent)])


def planar_axes(normal: Float[Array, "*batch 3"]) -> tuple[Float[Array, "*batch 3"], Float[Array, "*batch 3"]]:
    """In-plane axes (u, w) of unit normals; right-handed with the normal: u x w = n."""
    k = (jnp.argmax(jnp.abs(normal), axis=-1) + 1) % 3
    e = jax.nn.one_hot(k, 3, dtype=normal.dtype)
    u = e - normal * jnp.sum(normal * e, axis=-1, keepdims=True)
    u = u / jnp.sqrt(jnp.sum(u * u, axis=-1, keepdims=True))
    return u, jnp.cross(normal, u)


def axis_rotation(axis: Float[Array, "*batch 3"], angle: Float[Array, " *batch"]) -> Float[Array, "*batch 3 3"]:
    """Rotation about a unit axis by an angle (Rodrigues): exact and smooth at every angle, unlike `exp(axis *
    angle)`.
    """
    s, c = jnp.sin(angle)[..., None, None], jnp.cos(angle)[..., None, None]
    outer = axis[..., :, None] * axis[..., None, :]
    eye = jnp.broadcast_to(jnp.eye(3, dtype=axis.dtype), outer.shape)
    return outer + c * (eye - outer) + s * so3.hat(axis)


def joint_pose(kind: str, axis: Float[Array, "*batch 3"], q: Float[Array, "*batch nq"]) -> SE3:
    """Pose of the child frame in the joint frame, for a stack of joints of one type."""
    if kind in ("revolute", "continuous"):
        return SE3(axis_rotation(axis, q[..., 0]), jnp.zeros_like(axis))
    if kind == "prismatic":
        return SE3(jnp.broadcast_to(jnp.eye(3, dtype=axis.dtype), (*axis.shape, 3)), axis * q[..., :1])
    if kind == "planar":
        u, w = planar_axes(axis)
        return SE3(axis_rotation(axis, q[..., 2]), u * q[..., :1] + w * q[..., 1:2])
    if kind == "spherical":
        return SE3(so3.from_quaternion(q), jnp.zeros_like(axis))
    return SE3(so3.from_quaternion(q[..., 3:]), q[..., :3])


def motion_subspace(kind: str, axis: Float[Array, "*batch 3"]) -> Float[Array, "*batch 6 nv"]:
    """Twist of the child in its own axes, [linear, angular], per unit of each velocity, for a stack of joints
    of one type.
    """
    zero = jnp.zeros_like(axis)
    if kind in ("revolute", "continuous"):
        columns = [(zero, axis)]
    elif kind == "prismatic":
        columns = [(axis, zero)]
    elif kind == "planar":
        u, w = planar_axes(axis)
        columns = [(u, zero), (w, zero), (zero, axis)]
    else:
        eye = np.eye(6)[:, 3:] if kind == "spherical" else np.eye(6)
        return jnp.broadcast_to(jnp.asarray(eye, axis.dtype), (*axis.shape[:-1], *eye.shape))
    return jnp.stack([jnp.concatenate(column, axis=-1) for column in columns], axis=-1)


# Operations on the coordinates: q (..., nq), v (..., nv). They are those of the group R^n, SO(2), SE(2),
# SO(3) or SE(3), acting from the right, so v is in axes of the child as above.


def nearest_turn(angle: Float[Array, "..."]) -> Float[Array, "..."]:
    """The angle plus whole turns, in -pi .. pi."""
    turn = 2 * np.pi
    return angle - turn * jnp.round(angle / turn)


def _rotate2(angle: Float[Array, " *batch"], xy: Float[Array, "*batch 2"]) -> Float[Array, "*batch 2"]:
    s, c = jnp.sin(angle), jnp.cos(angle)
    return jnp.stack([c * xy[..., 0] - s * xy[..., 1], s * xy[..., 0] + c * xy[..., 1]], axis=-1)


def _half_turn_factors(omega: Float[Array, " *batch"]) -> tuple[Float[Array, " *batch"], Float[Array, " *batch"]]:
    """sin(w)/w and (1 - cos(w))/w, the entries of the left Jacobian of SO(2), smooth at zero."""
    square = omega * omega
    return stumpff(1, square), omega * stumpff(2, square)


def integrate_joint(kind: str, q: Float[Array, "*batch nq"], v: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
    """Coordinates after moving with constant `v`, in axes of the child, for unit time."""
    if kind == "planar":
        a, b = _half_turn_factors(v[..., 2])
        local = jnp.stack([a * v[..., 0] - b * v[..., 1], b * v[..., 0] + a * v[..., 1]], axis=-1)
        return jnp.concatenate([q[..., :2] + _rotate2(q[..., 2], local), q[..., 2:] + v[..., 2:]], axis=-1)
    if kind == "spherical":
        return so3.quaternion_normalize(so3.quaternion_multiply(so3.quaternion_normalize(q), so3.quaternion_exp(v)))
    if kind == "floating":
        rotation = so3.from_quaternion(q[..., 3:])
        local = so3.rotate(so3.left_jacobian(v[..., 3:]), v[..., :3])
        quaternion = so3.quaternion_multiply(so3.quaternion_normalize(q[..., 3:]), so3.quaternion_exp(v[..., 3:]))
        return jnp.concatenate(
            [q[..., :3] + so3.rotate(rotation, local), so3.quaternion_normalize(quaternion)], axis=-1
        )
    return q + v


def difference_joint(
    kind: str, q0: Float[Array, "*batch nq"], q1: Float[Array, "*batch nq"]
) -> Float[Array, "*batch nv"]:
    """The shortest constant velocity, in axes of the child, that moves `q0` to `q1` in unit time."""
    if kind == "continuous":
        return nearest_turn(q1 - q0)
    if kind == "planar":
        omega = nearest_turn(q1[..., 2] - q0[..., 2])
        local = _rotate2(-q0[..., 2], q1[..., :2] - q0[..., :2])
        # the inverse of [[a, -b], [b, a]] at omega is [[h, omega/2], [-omega/2, h]] with h = (omega/2)
        # cot(omega/2) = a/(a^2 + b^2) omega-free
        a, b = _half_turn_factors(omega)
        square = a * a + b * b  # > 0 for |omega| <= pi
        x = (a * local[..., 0] + b * local[..., 1]) / square
        y = (a * local[..., 1] - b * local[..., 0]) / square
        return jnp.stack([x, y, omega], axis=-1)
    if kind == "spherical":
        return _quaternion_difference(q0, q1)
    if kind == "floating":
        omega = _quaternion_difference(q0[..., 3:], q1[..., 3:])
        rotation = so3.from_quaternion(q0[..., 3:])
        local = so3.rotate_back(rotation, q1[..., :3] - q0[..., :3])
        return jnp.concatenate([so3.rotate(so3.left_jacobian_inverse(omega), local), omega], axis=-1)
    return q1 - q0


def normalize_joint(kind: str, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch nq"]:
    """Quaternions at unit length (zero becomes identity); other coordinates as they are."""
    if kind == "spherical":
        return so3.quaternion_normalize(q)
    if kind == "floating":
        return jnp.concatenate([q[..., :3], so3.quaternion_normalize(q[..., 3:])], axis=-1)
    return q


def rates_joint(kind: str, q: Float[Array, "*batch nq"], v: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
    """Time derivative of the coordinates; a quaternion keeps its length."""
    if kind == "planar":
        return jnp.concatenate([_rotate2(q[..., 2], v[..., :2]), v[..., 2:]], axis=-1)
    if kind == "spherical":
        return _quaternion_rate(q, v)
    if kind == "floating":
        return jnp.concatenate(
            [so3.rotate(so3.from_quaternion(q[..., 3:]), v[..., :3]), _quaternion_rate(q[..., 3:], v[..., 3:])], axis=-1
        )
    return v


def velocity_joint(
    kind: str, q: Float[Array, "*batch nq"], rates: Float[Array, "*batch nq"]
) -> Float[Array, "*batch nv"]:
    """Velocity of the joint from the time derivative of its coordinates; the part that changes a quaternion's
    length is ignored.
    """
    if kind == "planar":
        return jnp.concatenate([_rotate2(-q[..., 2], rates[..., :2]), rates[..., 2:]], axis=-1)
    if kind == "spherical":
        return _quaternion_velocity(q, rates)
    if kind == "floating":
        linear = so3.rotate_back(so3.from_quaternion(q[..., 3:]), rates[..., :3])
        return jnp.concatenate([linear, _quaternion_velocity(q[..., 3:], rates[..., 3:])], axis=-1)
    return rates


def _quaternion_difference(q0: Float[Array, "*batch 4"], q1: Float[Array, "*batch 4"]) -> Float[Array, "*batch 3"]:
    # the logarithm is equal for q and -q and does not depend on their length
    return so3.quaternion_log(so3.quaternion_multiply(so3.quaternion_conjugate(q0), q1))


def _quaternion_rate(q: Float[Array, "*batch 4"], omega: Float[Array, "*batch 3"]) -> Float[Array, "*batch 4"]:
    return so3.quaternion_multiply(q, jnp.concatenate([jnp.zeros_like(omega[..., :1]), omega / 2], axis=-1))


def _quaternion_velocity(q: Float[Array, "*batch 4"], rates: Float[Array, "*batch 4"]) -> Float[Array, "*batch 3"]:
    square = jnp.sum(q * q, axis=-1, keepdims=True)
    zero = square == 0
    vector = 2 * so3.quaternion_multiply(so3.quaternion_conjugate(q), rates)[..., 1:]
    return jnp.where(zero, 0, vector / jnp.where(zero, 1, square))
