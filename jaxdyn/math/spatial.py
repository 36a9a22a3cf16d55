"""Spatial algebra in the order ``[linear, angular]``: representations, cross products, rigid-body inertia.

``pose`` is always that of the frame in the world, ``(R, p)``.  With ``v = p_dot`` and ``w`` the angular
velocity, both in world axes, the three representations of a twist, its conjugate wrench and its acceleration
are

===== ================== ====================== =======================================
      twist              wrench                 acceleration
===== ================== ====================== =======================================
LOCAL ``[R^T v, R^T w]`` ``[R^T f, R^T m]``     ``[R^T (p_ddot - w x v), R^T w_dot]``
MIXED ``[v, w]``         ``[f, m]``, m about p  ``[p_ddot, w_dot]``
WORLD ``[v + p x w, w]`` ``[f, m + p x f]``     ``[p_ddot + v x w + p x w_dot, w_dot]``
===== ================== ====================== =======================================

The acceleration in each representation is the time derivative of the entries of the twist in the same
representation.  In MIXED it is the classical one.  LOCAL and WORLD accelerations are spatial accelerations
(Featherstone, Rigid Body Dynamics Algorithms, 2.11) and map to each other by the adjoint of the pose, like
twists.  `classical_acceleration` gives ``R^T p_ddot``.
"""

import enum

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.math.arguments import check_leaves, checked
from jaxdyn.math.se3 import SE3


class Representation(enum.Enum):
    """Where a twist, wrench, Jacobian or acceleration of a frame is expressed; see the module's table."""

    LOCAL = "local"
    """Axes and origin of the frame."""
    MIXED = "mixed"
    """Axes of the world, origin of the frame.  The default everywhere."""
    WORLD = "world"
    """Axes and origin of the world."""


_LOCAL, _MIXED, _WORLD = Representation.LOCAL, Representation.MIXED, Representation.WORLD


def check_representation(*given: object) -> None:
    """Refuses what is no `Representation`: a string, compared with the members, would pass for one of them.

    **Raises:** `InputError`.
    """
    for value in given:
        if not isinstance(value, Representation):
            members = ", ".join(f"Representation.{member.name}" for member in Representation)
            raise InputError(f"representation: wanted one of {members}, given {value!r}.")


def _split(x: Array) -> tuple[Array, Array]:
    return x[..., :3], x[..., 3:]


def _join(linear: Array, angular: Array) -> Array:
    return jnp.concatenate([linear, angular], axis=-1)


def _plus(a: Array, b: Array) -> Array:
    a, b = so3._align(a, b, 1, 1)
    return a + b


def _turn(x: Array, rotation: Array) -> Array:
    return _join(*(so3.rotate(rotation, part) for part in _split(x)))


def _turn_back(x: Array, rotation: Array) -> Array:
    return _join(*(so3.rotate_back(rotation, part) for part in _split(x)))


@checked
def convert_twist(
    twist: Float[Array, "*#batch 6"], pose: SE3, source: Representation, target: Representation
) -> Float[Array, "*#batch 6"]:
    """Twist ``[linear, angular]`` of the frame at ``pose``, from one representation to another."""
    if source is target:
        return twist
    check_representation(source, target)
    if source is _LOCAL:
        twist = _turn(twist, pose.rotation)
    elif source is _WORLD:
        linear, angular = _split(twist)
        twist = _join(_plus(linear, -so3.cross(pose.translation, angular)), angular)
    if target is _LOCAL:
        return _turn_back(twist, pose.rotation)
    if target is _WORLD:
        linear, angular = _split(twist)
        return _join(_plus(linear, so3.cross(pose.translation, angular)), angular)
    return twist


@checked
def convert_wrench(
    wrench: Float[Array, "*#batch 6"], pose: SE3, source: Representation, target: Representation
) -> Float[Array, "*#batch 6"]:
    """Wrench ``[force, moment]`` on the frame at ``pose``, from one representation to another; power is kept."""
    if source is target:
        return wrench
    check_representation(source, target)
    if source is _LOCAL:
        wrench = _turn(wrench, pose.rotation)
    elif source is _WORLD:
        force, moment = _split(wrench)
        wrench = _join(force, _plus(moment, -so3.cross(pose.translation, force)))
    if target is _LOCAL:
        return _turn_back(wrench, pose.rotation)
    if target is _WORLD:
        force, moment = _split(wrench)
        return _join(force, _plus(moment, so3.cross(pose.translation, force)))
    return wrench


@checked
def convert_acceleration(
    acceleration: Float[Array, "*#batch 6"],
    twist: Float[Array, "*#batch 6"],
    pose: SE3,
    source: Representation,
    target: Representation,
) -> Float[Array, "*#batch 6"]:
    """Acceleration of the frame at ``pose``, from one representation to another.

    In each representation it is the time derivative of the twist's entries (see the module's table):
    classical in MIXED, spatial in LOCAL and WORLD.  ``twist`` is the frame's twist in the representation
    ``source``.
    """
    if source is target:
        return acceleration
    check_representation(source, target)
    if _MIXED not in (source, target):  # spatial to spatial: the adjoint, no velocity terms
        return convert_twist(acceleration, pose, source, target)
    if target is _MIXED:
        converted = convert_twist(acceleration, pose, source, _MIXED)
        v, w = _split(convert_twist(twist, pose, source, _MIXED))
        # LOCAL: p_ddot = R a + w x v.  WORLD: p_ddot = a - p x w_dot - v x w.  The same term in both.
        return _join(_plus(converted[..., :3], so3.cross(w, v)), converted[..., 3:])
    v, w = _split(twist)
    spatial = _join(_plus(acceleration[..., :3], -so3.cross(w, v)), acceleration[..., 3:])
    return convert_twist(spatial, pose, _MIXED, target)


@checked
def classical_acceleration(
    acceleration: Float[Array, "*#batch 6"],
    twist: Float[Array, "*#batch 6"],
    pose: SE3,
    source: Representation = Representation.MIXED,
) -> Float[Array, "*#batch 6"]:
    """``[R^T p_ddot, R^T w_dot]``: classical acceleration of the frame's origin, and angular, in body axes.

    An accelerometer at the origin reads the linear part less gravity (also in body axes).

    ``acceleration`` and ``twist`` are in the representation ``source``.
    """
    return _turn_back(convert_acceleration(acceleration, twist, pose, source, _MIXED), pose.rotation)


@checked
def motion_cross(twist: Float[Array, "*#batch 6"], motion: Float[Array, "*#batch 6"]) -> Float[Array, "*#batch 6"]:
    """``twist x motion``: rate of a motion vector that is fixed in a body moving with ``twist``."""
    (v, w), (a, b) = _split(twist), _split(motion)
    return _join(so3.cross(w, a) + so3.cross(v, b), so3.cross(w, b))


@checked
def force_cross(twist: Float[Array, "*#batch 6"], wrench: Float[Array, "*#batch 6"]) -> Float[Array, "*#batch 6"]:
    """``twist x* wrench``: rate of a wrench or momentum fixed in a body moving with ``twist``."""
    (v, w), (f, m) = _split(twist), _split(wrench)
    return _join(so3.cross(w, f), so3.cross(w, m) + so3.cross(v, f))


@checked
def motion_cross_matrix(twist: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """6x6 matrix of `motion_cross`: ``[[hat(w), hat(v)], [0, hat(w)]]``."""
    v, w = (so3.hat(part) for part in _split(twist))
    return _blocks(w, v, jnp.zeros_like(v), w)


@checked
def force_cross_matrix(twist: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6 6"]:
    """6x6 matrix of `force_cross`: ``[[hat(w), 0], [hat(v), hat(w)]]``, minus the transpose of `motion_cross_matrix`."""
    v, w = (so3.hat(part) for part in _split(twist))
    return _blocks(w, jnp.zeros_like(v), v, w)


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    return jnp.concatenate([jnp.concatenate([a, b], axis=-1), jnp.concatenate([c, d], axis=-1)], axis=-2)


def _parallel_axis(r: Array) -> Array:
    """``|r|^2 I - r r^T``: inertia about the origin of a unit mass at ``r``."""
    return so3._dot(r, r)[..., None, None] * so3._identity_like(r) - so3._outer(r, r)


class SpatialInertia(eqx.Module):
    """Inertia of a rigid body in a frame: mass, centre of mass in the frame, rotational inertia about the centre of mass.

    Of the values nothing is checked on construction, so that a solver or a gradient step may pass through any;
    `is_physical` and `consistency_report` check on demand.
    """

    mass: Float[Array, "*batch"]
    com: Float[Array, "*batch 3"]
    inertia: Float[Array, "*batch 3 3"]

    def __check_init__(self) -> None:
        check_leaves(self, "SpatialInertia", {"mass": (), "com": (3,), "inertia": (3, 3)})

    @staticmethod
    def zero(shape: tuple[int, ...] = (), dtype: DTypeLike | None = None) -> "SpatialInertia":
        """No mass, with batch axes ``shape``; ``dtype`` defaults to JAX's float."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return SpatialInertia(*(jnp.zeros((*shape, *core), dtype) for core in ((), (3,), (3, 3))))

    @staticmethod
    @checked
    def from_matrix(matrix: Float[Array, "*batch 6 6"]) -> "SpatialInertia":
        """From the 6x6 matrix of `as_matrix`; a massless one gets its centre of mass at the origin."""
        mass = matrix[..., 0, 0]
        return _about_origin(mass, so3.vee(matrix[..., 3:, :3]), matrix[..., 3:, 3:])

    @staticmethod
    @checked
    def from_point_parameters(parameters: Float[Array, "*batch 10"]) -> "SpatialInertia":
        """From ``[m, m c (3), Ixx, Ixy, Iyy, Ixz, Iyz, Izz]`` about the frame's origin; inverse of `point_parameters`."""
        return _about_origin(parameters[..., 0], parameters[..., 1:4], _symmetric(parameters[..., 4:]))

    def as_matrix(self) -> Float[Array, "*batch 6 6"]:
        """6x6 matrix that maps the LOCAL twist ``[linear, angular]`` to the momentum about the frame's origin."""
        m = self.mass[..., None, None]
        mc = m * so3.hat(self.com)
        return _blocks(m * so3._identity_like(self.com), -mc, mc, self.inertia_about_origin())

    def inertia_about_origin(self) -> Float[Array, "*batch 3 3"]:
        """Rotational inertia about the frame's origin, in its axes."""
        return self.inertia + self.mass[..., None, None] * _parallel_axis(self.com)

    def point_parameters(self) -> Float[Array, "*batch 10"]:
        """``[m, m c (3), Ixx, Ixy, Iyy, Ixz, Iyz, Izz]`` about the frame's origin: dynamics are linear in these."""
        m, i = self.mass[..., None], self.inertia_about_origin()
        six = [i[..., r, c] for r, c in zip(_ROW, _COLUMN, strict=True)]
        return jnp.concatenate([m, m * self.com, jnp.stack(six, axis=-1)], axis=-1)

    def transform(self, pose: SE3) -> "SpatialInertia":
        """The same body in frame ``A``, given the pose ``A_T_B`` of the frame ``B`` that it is given in now."""
        r = pose.rotation
        turned = so3.compose(so3.compose(r, self.inertia), so3.inverse(r))
        return SpatialInertia(self.mass, pose.apply(self.com), turned)

    @checked
    def apply(self, twist: Float[Array, "*batch 6"]) -> Float[Array, "*batch 6"]:
        """Momentum ``[linear, angular about the frame's origin]`` of the body moving with the LOCAL ``twist``."""
        v, w = _split(twist)
        p = self.mass[..., None] * (v + so3.cross(w, self.com))
        return _join(p, so3.rotate(self.inertia, w) + so3.cross(self.com, p))

    @checked
    def kinetic_energy(self, twist: Float[Array, "*batch 6"]) -> Float[Array, "*batch"]:
        """Kinetic energy of the body moving with the LOCAL ``twist``."""
        return 0.5 * so3._dot(twist, self.apply(twist))

    def __add__(self, other: "SpatialInertia") -> "SpatialInertia":
        """Two bodies in the same frame, welded together; two massless ones keep no centre of mass (it is the origin)."""
        mass = self.mass + other.mass
        safe = jnp.where(mass == 0.0, 1.0, mass)  # a massless pair: no division by zero, forwards or backwards
        first, second = self.mass / safe, other.mass / safe
        com = first[..., None] * self.com + second[..., None] * other.com
        reduced = (first * other.mass)[..., None, None] * _parallel_axis(self.com - other.com)
        return SpatialInertia(mass, com, self.inertia + other.inertia + reduced)

    def is_physical(self, tolerance: float | None = None) -> Bool[Array, "*batch"]:
        """True where some distribution of mass has this inertia; see `consistency_margins` for the conditions."""
        margins = self.consistency_margins()
        tolerance = _default_tolerance(self.mass.dtype) if tolerance is None else tolerance
        return jnp.all(margins >= -tolerance, axis=-1)

    def consistency_margins(self) -> Float[Array, "*batch 3"]:
        """``[mass, least principal moment, least triangle margin]``: none is negative for a real body.

        The last two are divided by half the trace of the inertia, if that is positive.  The triangle
        inequality says that no principal moment exceeds the sum of the other two (Traversaro et al., 2016,
        Identification of fully physical consistent inertial parameters); a symmetric part is taken of
        ``inertia``.
        """
        symmetric = 0.5 * (self.inertia + so3.inverse(self.inertia))
        moments = jnp.linalg.eigvalsh(symmetric)
        half_trace = 0.5 * jnp.sum(moments, axis=-1)
        scale = jnp.where(half_trace > 0.0, half_trace, 1.0)
        least, triangle = moments[..., 0] / scale, (half_trace - moments[..., 2]) / scale
        return jnp.stack([self.mass, least, triangle], axis=-1)


_ROW, _COLUMN = (0, 0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2)


def _symmetric(six: Array) -> Array:
    """3x3 matrix of ``[xx, xy, yy, xz, yz, zz]``."""
    order = (0, 1, 3, 1, 2, 4, 3, 4, 5)
    return jnp.reshape(jnp.stack([six[..., k] for k in order], axis=-1), (*six.shape[:-1], 3, 3))


def _about_origin(mass: Array, first_moment: Array, inertia: Array) -> SpatialInertia:
    safe = jnp.where(mass == 0.0, 1.0, mass)[..., None]
    com = first_moment / safe
    return SpatialInertia(mass, com, inertia - mass[..., None, None] * _parallel_axis(com))


def _default_tolerance(dtype: DTypeLike) -> float:
    return 64.0 * float(jnp.finfo(dtype).eps)


def consistency_report(
    inertia: SpatialInertia, names: tuple[str, ...] | None = None, tolerance: float | None = None
) -> tuple[str, ...]:
    """One sentence for each way in which a body cannot exist, by name; empty if all is well.  Not for use under ``jit``."""
    margins = np.atleast_2d(np.asarray(inertia.consistency_margins()))
    margins = margins.reshape(-1, 3)
    names = tuple(f"body {i}" for i in range(len(margins))) if names is None else names
    tolerance = _default_tolerance(inertia.mass.dtype) if tolerance is None else tolerance
    text = (
        "mass {:.6g} is negative",
        "rotational inertia about the centre of mass is not positive semidefinite (relative margin {:.3g})",
        "principal moments violate the triangle inequality (relative margin {:.3g})",
    )
    return tuple(
        f"{name}: {sentence.format(value)}"
        for name, row in zip(names, margins, strict=True)
        for sentence, value in zip(text, row, strict=True)
        if not value >= -tolerance
    )
