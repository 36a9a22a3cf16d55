"""Rigid motions: the group SE(3) as rotation and translation, its Lie algebra as twists ``[linear, angular]``.

Every function acts on one element and also takes leading batch axes, which broadcast as in NumPy where there
are two arguments.  The Jacobians and the exponential are those of SO(3) over the dual numbers: the
translation part is the derivative of the rotation part along the linear velocity, which is why the same
coefficients appear and why there is no branch here.
"""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxdyn.math import so3
from jaxdyn.math.arguments import check_leaves, checked
from jaxdyn.math.series import half_angle_quotient, stumpff


class SE3(eqx.Module):
    """Pose of one frame in another: ``p_A = rotation p_B + translation``.

    Named ``A_T_B``, it maps coordinates in ``B`` to coordinates in ``A``, and is the position and orientation
    of ``B`` in ``A``.
    """

    rotation: Float[Array, "*batch 3 3"]
    translation: Float[Array, "*batch 3"]

    def __check_init__(self) -> None:
        check_leaves(self, "SE3", {"rotation": (3, 3), "translation": (3,)})

    @staticmethod
    def identity(shape: tuple[int, ...] = (), dtype: DTypeLike | None = None) -> "SE3":
        """The identity, with batch axes ``shape``; ``dtype`` defaults to JAX's float."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return SE3(jnp.broadcast_to(jnp.eye(3, dtype=dtype), (*shape, 3, 3)), jnp.zeros((*shape, 3), dtype))

    @staticmethod
    @checked
    def from_quaternion(quaternion: Float[Array, "*batch 4"], translation: Float[Array, "*batch 3"]) -> "SE3":
        """From a quaternion ``(w, x, y, z)`` of any length and a translation."""
        return SE3(so3.from_quaternion(quaternion), translation)

    @staticmethod
    @checked
    def from_matrix(matrix: Float[Array, "*batch 4 4"]) -> "SE3":
        """From a homogeneous 4x4 matrix, whose last row is taken for granted."""
        return SE3(matrix[..., :3, :3], matrix[..., :3, 3])

    @staticmethod
    @checked
    def exp(xi: Float[Array, "*batch 6"]) -> "SE3":
        """Motion along the twist ``xi = [linear, angular]`` for one unit of time; see `exp`."""
        return exp(xi)

    def log(self) -> Float[Array, "*batch 6"]:
        """Twist ``[linear, angular]`` whose exponential is this pose; see `log`."""
        return log(self)

    def as_matrix(self) -> Float[Array, "*batch 4 4"]:
        """Homogeneous 4x4 matrix."""
        upper = jnp.concatenate([self.rotation, self.translation[..., None]], axis=-1)
        last = jnp.concatenate([jnp.zeros_like(upper[..., :1, :3]), jnp.ones_like(upper[..., :1, :1])], axis=-1)
        return jnp.concatenate([upper, last], axis=-2)

    def as_quaternion(self) -> Float[Array, "*batch 4"]:
        """Unit quaternion ``(w, x, y, z)`` of the rotation, ``w >= 0``."""
        return so3.to_quaternion(self.rotation)

    def compose(self, other: "SE3") -> "SE3":
        """``A_T_B`` composed with ``B_T_C`` is ``A_T_C``; also written ``self @ other``."""
        return SE3(so3.compose(self.rotation, other.rotation), self.apply(other.translation))

    def __matmul__(self, other: "SE3") -> "SE3":
        return self.compose(other)

    def inverse(self) -> "SE3":
        """``B_T_A`` of ``A_T_B``."""
        return SE3(so3.inverse(self.rotation), -so3.rotate_back(self.rotation, self.translation))

    @checked
    def apply(self, points: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
        """Points given in ``B``, in coordinates of ``A``.  One pose and many points, or the reverse, broadcast."""
        turned = so3.rotate(self.rotation, points)
        turned, translation = so3._align(turned, self.translation, 1, 1)
        return turned + translation

    @checked
    def apply_inverse(self, points: Float[Array, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
        """Points given in ``A``, in coordinates of ``B``."""
        points, translation = so3._align(points, self.translation, 1, 1)
        return so3.rotate_back(self.rotation, points - translation)

    def adjoint(self) -> Float[Array, "*batch 6 6"]:
        """6x6 matrix that maps twists ``[linear, angular]`` from ``B`` to ``A``: ``[[R, hat(p) R], [0, R]]``."""
        r = self.rotation
        return _upper_triangular(r, so3.compose(so3.hat(self.translation), r))

    @checked
    def action_on_twist(self, twist: Float[Array, "*#batch 6"]) -> Float[Array, "*#batch 6"]:
        """Twist given in ``B`` (axes and origin of ``B``), in ``A``: ``adjoint() @ twist``."""
        linear, angular = so3.rotate(self.rotation, twist[..., :3]), so3.rotate(self.rotation, twist[..., 3:])
        linear, shift = so3._align(linear, so3.cross(self.translation, angular), 1, 1)
        return jnp.concatenate([linear + shift, angular], axis=-1)

    @checked
    def action_on_wrench(self, wrench: Float[Array, "*#batch 6"]) -> Float[Array, "*#batch 6"]:
        """Wrench ``[force, moment]`` given in ``B``, in ``A``: the inverse transpose of `adjoint`, so that power is kept."""
        force, moment = so3.rotate(self.rotation, wrench[..., :3]), so3.rotate(self.rotation, wrench[..., 3:])
        moment, shift = so3._align(moment, so3.cross(self.translation, force), 1, 1)
        return jnp.concatenate([force, moment + shift], axis=-1)


def _upper_triangular(diagonal: Array, corner: Array) -> Array:
    """``[[diagonal, corner], [0, diagonal]]``."""
    upper = jnp.concatenate([diagonal, corner], axis=-1)
    lower = jnp.concatenate([jnp.zeros_like(diagonal), diagonal], axis=-1)
    return jnp.concatenate([upper, lower], axis=-2)


def identity(shape: tuple[int, ...] = (), dtype: DTypeLike | None = None) -> SE3:
    """The identity, with batch axes ``shape``; ``dtype`` defaults to JAX's float."""
    return SE3.identity(shape, dtype)


@checked
def exp(xi: Float[Array, "*batch 6"]) -> SE3:
    """Pose reached from the identity by the body twist ``xi = [linear, angular]`` held for one unit of time.

    The translation is the left Jacobian of SO(3) times the linear part: ``v + c_2 w x v + c_3 w x (w x v)``.
    """
    v, w = xi[..., :3], xi[..., 3:]
    x = jnp.sum(w * w, axis=-1, keepdims=True)
    wv = so3.cross(w, v)
    return SE3(so3.exp(w), v + stumpff(2, x) * wv + stumpff(3, x) * so3.cross(w, wv))


def log(pose: SE3) -> Float[Array, "*batch 6"]:
    """Twist ``[linear, angular]`` with ``exp(log(T)) = T`` and a rotation of at most pi (branch as in `so3.log`)."""
    w, p = so3.log(pose.rotation), pose.translation
    x = jnp.sum(w * w, axis=-1, keepdims=True)
    wp = so3.cross(w, p)
    return jnp.concatenate([p - 0.5 * wp + half_angle_quotient(x) * so3.cross(w, wp), w], axis=-1)


# Derivation.  A twist [v, w] is the dual vector w + e v with e^2 = 0, the adjoint action is the rotation by
# it, and every identity of SO(3) that is analytic holds over the dual numbers.  So the left Jacobian of SE(3)
# is J(w + e v) = J(w) + e D J(w)[v], and with J = I + c_2 hat(w) + c_3 hat(w)^2, x = w.w, dx = 2 w.v:
#   D J(w)[v] = c_2 hat(v) + c_3 (v w^T + w v^T - 2 w.v I) + 2 w.v (c_2' hat(w) + c_3' hat(w)^2),
#   2 c_2' = -(c_3 - 2 c_4),  2 c_3' = -(c_4 - 3 c_5).
# This is the matrix Q of Barfoot, State Estimation for Robotics, eq. 7.86, in six fewer matrix products.
@checked
def left_jacobian(xi: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """``J`` with ``exp(xi + d) = exp(J d) exp(xi)`` to first order: ``[[J_so3, Q], [0, J_so3]]``."""
    v, w = xi[..., :3], xi[..., 3:]
    x, d = so3._dot(w, w), so3._dot(w, v)
    c2, c3, c4, c5 = (stumpff(k, x) for k in (2, 3, 4, 5))
    skew = so3.hat(c2[..., None] * v + (d * (2.0 * c4 - c3))[..., None] * w)
    vw = so3._outer(v, w)
    c6 = d * (3.0 * c5 - c4)
    scalar = -2.0 * c3 * d - c6 * x
    corner = (
        skew
        + c3[..., None, None] * (vw + jnp.swapaxes(vw, -1, -2))
        + c6[..., None, None] * so3._outer(w, w)
        + scalar[..., None, None] * so3._identity_like(w)
    )
    return _upper_triangular(so3.left_jacobian(w), corner)


@checked
def right_jacobian(xi: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """``J`` with ``exp(xi + d) = exp(xi) exp(J d)`` to first order; ``J xi_dot`` is the twist in body axes."""
    return left_jacobian(-xi)


@checked
def left_jacobian_inverse(xi: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """Inverse of the left Jacobian; singular where the rotation is a full turn."""
    inner = so3.left_jacobian_inverse(xi[..., 3:])
    corner = left_jacobian(xi)[..., :3, 3:]
    return _upper_triangular(inner, -so3.compose(so3.compose(inner, corner), inner))


@checked
def right_jacobian_inverse(xi: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """Inverse of the right Jacobian; singular where the rotation is a full turn."""
    return left_jacobian_inverse(-xi)
