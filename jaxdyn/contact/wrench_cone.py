"""Which contact wrenches dry friction and a sole can bear: as rows of inequalities, and as margins.

A wrench here is `[force, moment]` of the ground on the robot. The rows `C w <= 0` and everything else speak of it in axes of the
contact: origin in the middle of the sole, z the normal, out of the ground. The functions that take a `rotation` (3, 3),
those axes in the world, take the MIXED wrench: world axes, moment about the same origin. Without one the wrench is in
axes of the contact already.

| function | inside if | unit |
|---|---|---|
| `friction_margin` | `mu f_z - sqrt(f_x^2 + f_y^2) >= 0` | N |
| `center_of_pressure` | `(-m_y, m_x) / f_z` in the sole | m |
| `wrench_margins(wrench, wrench_cone(...))` | all rows `>= 0` | N and N m, row by row |
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import in_dtype_of, in_one_dtype
from jaxdyn.errors import FloatLike, InputError, check_shape, is_concrete
from jaxdyn.math import so3

# Rows. `C w <= 0` in axes of the contact.


def friction_rows(friction: FloatLike, sides: int = 4, inside: bool = True) -> Float[Array, "sides_and_one 3"]:
    """Rows C with C f <= 0 for the forces f in a pyramid, and pushing: the last row says f_z >= 0.

    **Arguments:** `friction`: mu, (); `sides`: 3 or more; `inside`: the pyramid lies inside the friction cone; otherwise
    around it.

    Four sides inside: (+-1, 0, -mu / sqrt(2)), (0, +-1, -mu / sqrt(2)), (0, 0, -1). More come nearer to the cone: 16 leave less than 2 %
    of it out.
    """
    if sides < 3:
        raise InputError(f"sides: wanted 3 or more, given {sides}.")
    friction = _number("friction", friction)
    angle = 2.0 * np.pi * np.arange(sides) / sides
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if sides == 4:
        directions = np.asarray([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    planar = jnp.asarray(directions, friction.dtype)
    # an inscribed polygon: its edges are at cos(pi / sides) of the radius
    inner = friction * float(np.cos(np.pi / sides)) if inside else friction
    cone = jnp.concatenate([planar, jnp.broadcast_to(-inner, (sides, 1))], axis=1)
    return jnp.concatenate([cone, jnp.asarray([[0.0, 0.0, -1.0]], friction.dtype)])


def center_of_pressure_rows(lower: Float[Array, "2"], upper: Float[Array, "2"]) -> Float[Array, "4 6"]:
    """Rows C with C w <= 0 where the centre of pressure is between `lower` and `upper` (2,), m, along x and y of the
    contact."""
    (xl, yl), (xu, yu) = lower, upper
    o, i = jnp.zeros_like(xl), jnp.ones_like(xl)
    rows = [[o, o, xl, o, i, o], [o, o, -xu, o, -i, o], [o, o, yl, -i, o, o], [o, o, -yu, i, o, o]]
    return jnp.stack([jnp.stack(r) for r in rows])


def normal_torque_rows(size: Float[Array, "2"], friction: Float[Array, ""]) -> Float[Array, "8 6"]:
    """Rows C with C w <= 0 where the torque about the normal is one that a rectangle can bear.

    **Arguments:** `size`: (2,), half lengths along x and y, m; `friction`: (), of the pyramid `|f_x|, |f_y| <= mu f_z`.

    With half lengths X, Y: `m_z >= -mu (X + Y) f_z + |Y f_x - mu m_x| + |X f_y - mu m_y|`, and
    `m_z <= mu (X + Y) f_z - |Y f_x + mu m_x| - |X f_y + mu m_y|`.

    Source: Caron, Pham and Nakamura, Stability of surface contacts for humanoid robots, ICRA 2015.
    """
    (x, y), mu = size, friction
    one, rows = jnp.ones_like(mu), []
    for turn in (1.0, -1.0):
        for a in (1.0, -1.0):
            for b in (1.0, -1.0):
                rows.append(jnp.stack([a * y, b * x, -mu * (x + y), -turn * a * mu, -turn * b * mu, -turn * one]))
    return jnp.stack(rows)


def wrench_cone(length: FloatLike, width: FloatLike, friction: FloatLike, inside: bool = True) -> Float[Array, "17 6"]:
    """The contact wrench cone of a rectangular sole, linearised: C with C w <= 0 for the wrenches that forces in its four
    corners can make, each in a pyramid of friction with sides along x and y.

    **Arguments:** `length`, `width`: of the sole along x and y, m; `friction`: coefficient mu; `inside`: the pyramid lies
    inside the friction cone (half width `mu / sqrt(2)`), so that every wrench of the cone can be borne; otherwise around
    it (half width mu), so that no other can.

    **Returns:** (17, 6), rows for a wrench in axes of the contact: 4 of the friction pyramid and `f_z >= 0`, 4 of the
    centre of pressure, 8 of the torque about the normal. All numbers may be traced.

    **Raises:** `InputError` for a length or width that is not positive, or a negative friction, if the numbers can be read.
    """
    given = in_one_dtype(length, width, friction)
    length, width, friction = (_number(n, x) for n, x in zip(("length", "width", "friction"), given, strict=True))
    for name, value, low in (("length", length, 0.0), ("width", width, 0.0), ("friction", friction, None)):
        if is_concrete(value) and not (value > low if low is not None else value >= 0):
            wanted = "a positive number" if low is not None else "a number that is not negative"
            raise InputError(f"{name}: wanted {wanted}, given {float(value):g}.")
    half = jnp.stack([length, width]) / 2
    pyramid = friction * float(np.cos(np.pi / 4)) if inside else friction
    force = friction_rows(pyramid, inside=False)
    force = jnp.concatenate([force, jnp.zeros_like(force)], axis=1)
    return jnp.concatenate([force, center_of_pressure_rows(-half, half), normal_torque_rows(half, pyramid)])


# Evaluators


def wrench_in_contact_axes(wrench: FloatLike, rotation: FloatLike | None = None) -> Float[Array, "6"]:
    """A MIXED wrench in axes of the contact, `rotation` (3, 3) in the world; about the same point."""
    wrench = check_shape("wrench", wrench, (6,), "It is [force, moment].")
    if rotation is None:
        return wrench
    rotation = check_shape("rotation", rotation, (3, 3), "Axes of the contact in the world.")
    return jnp.concatenate([so3.rotate_back(rotation, wrench[:3]), so3.rotate_back(rotation, wrench[3:])])


def friction_margin(wrench: FloatLike, friction: FloatLike, rotation: FloatLike | None = None) -> Float[Array, ""]:
    """`mu f_z - sqrt(f_x^2 + f_y^2)` (N): how much more tangential force the contact bears. Negative outside of the cone,
    and where the contact pulls.

    Where there is no tangential force its derivative with respect to that is zero.
    """
    w = wrench_in_contact_axes(wrench, rotation)
    square = w[0] ** 2 + w[1] ** 2
    some = square > 0
    tangential = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 0)
    return _number("friction", in_dtype_of(friction, w)) * w[2] - tangential


def center_of_pressure(
    wrench: FloatLike, rotation: FloatLike | None = None, smallest: float = 1e-3
) -> Float[Array, "2"]:
    """Where on the sole the normal forces act together: `(-m_y, m_x) / f_z` (m) from the contact's origin, along its x and y.

    **Arguments:** `smallest`: normal force, N, below which there is none to speak of: it divides in place of f_z, so that
    an unloaded contact has its centre at the origin and all derivatives are finite.
    """
    w = wrench_in_contact_axes(wrench, rotation)
    loaded = w[2] > smallest
    return jnp.stack([-w[4], w[3]]) / jnp.where(loaded, w[2], smallest)


def wrench_margins(
    wrench: FloatLike, cone: Float[Array, "rows 6"], rotation: FloatLike | None = None
) -> Float[Array, " rows"]:
    """`-C w` for the rows of a cone such as `wrench_cone`: the wrench is inside if none is negative."""
    w = wrench_in_contact_axes(wrench, rotation)
    return -jnp.sum(cone * w[None], axis=1)


def _number(name: str, value: FloatLike) -> Float[Array, ""]:
    return check_shape(name, float(value) if isinstance(value, int) else value, ())
