"""Entire and analytic scalar functions behind the exponential and logarithm of rotations.

Every coefficient that appears in the exponential of SO(3) and SE(3) and in their Jacobians is one of the
Stumpff functions ``c_k``, or a quotient of them without a removable singularity.  They are functions of the
*squared* angle, so that no square root is differentiated at zero, and their derivatives are Stumpff functions
again, so that no derivative of any order cancels digits.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Below this squared angle the series is used, above it the closed form.  At 1 the series needs nine terms for
# double precision (1/19! = 8e-18), and the closed forms, which divide by the squared angle once for each step
# of two in k, lose nothing by it.  The usual switch at 1e-8 or so with two terms was rejected: the value is
# right there, but the closed form's first and second derivatives have lost 8 and 16 digits at the same place.
_SWITCH = 1.0
_TERMS = 9


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def stumpff(k: int, x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Stumpff function ``c_k(x) = sum_i (-x)^i / (k + 2 i)!`` for ``x >= 0``.

    With ``x`` the square of an angle: ``c_0 = cos``, ``c_1 = sin / angle``, ``c_2 = (1 - cos) / angle^2``,
    ``c_3 = (angle - sin) / angle^3``.  ``k`` is static.  Accurate to rounding, with all its derivatives.
    """
    safe = jnp.where(x < _SWITCH, _SWITCH, x)
    angle = jnp.sqrt(safe)
    closed = jnp.sin(angle) / angle if k % 2 else jnp.cos(angle)
    for j in range(k % 2, k, 2):  # c_{j+2} = (1/j! - c_j) / x
        closed = (1.0 / math.factorial(j) - closed) / safe
    near = jnp.where(x < _SWITCH, x, 0.0)
    taylor = jnp.zeros_like(x)
    for i in reversed(range(_TERMS)):
        taylor = (-1.0) ** i / math.factorial(k + 2 * i) + near * taylor
    return jnp.where(x < _SWITCH, taylor, closed)


# Derivation of the rule.  Term by term,
#   c_k'(x) = sum_i (-1)^{i+1} (i+1) x^i / (k+2+2i)!,   and   i+1 = ((k+2+2i) - k) / 2,
# so that c_k' = -(c_{k+1} - k c_{k+2}) / 2.
@stumpff.defjvp
def _stumpff_jvp(k, primals, tangents):
    (x,), (x_dot,) = primals, tangents
    slope = stumpff(k + 1, x)
    if k:
        slope = slope - float(k) * stumpff(k + 2, x)
    return stumpff(k, x), -0.5 * slope * x_dot


def half_angle_quotient(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""``(1 - (a/2) cot(a/2)) / a^2`` with ``x = a^2``: the coefficient of the inverse Jacobian of SO(3).

    1/12 at zero, not finite at a full turn, where the Jacobian is singular.  It equals ``(c_3 - 2 c_4) / (2
    c_2)`` because ``(a/2) cot(a/2) = c_1 / (2 c_2)`` and ``2 c_2 - c_1 = x (c_3 - 2 c_4)``.
    """
    return (stumpff(3, x) - 2.0 * stumpff(4, x)) / (2.0 * stumpff(2, x))


# Three halvings bring an angle from [0, pi/2] to [0, pi/16], where tan^2 <= 0.0396: thirteen terms of the
# arctangent leave 0.0396^13 / 27 = 2e-20, and 8e-16 in the third derivative.
_HALVINGS = 3
_ARCTANGENT_TERMS = 13


def arctangent_quotient(w: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""``atan2(n, w) / n`` with ``x = n^2``, for ``w >= 0`` and ``w^2 + x > 0``: smooth at ``n = 0`` and at ``w = 0``.

    Half angles without trigonometry: ``tan(a/2) = n / (w + sqrt(w^2 + n^2))`` for ``tan(a) = n / w``.  Only
    positive numbers are added, so nothing cancels, no branch is taken, and derivatives of any order are right
    everywhere. (Rejected: ``atan2`` with a Taylor branch, whose derivatives lose digits on the far side of
    the switch.)
    """
    for _ in range(_HALVINGS):
        w = w + jnp.sqrt(w * w + x)
    t = x / (w * w)
    total = jnp.zeros_like(t)
    for i in reversed(range(_ARCTANGENT_TERMS)):
        total = (-1.0) ** i / (2 * i + 1) + t * total
    return 2.0**_HALVINGS * total / w
