"""The scalar series behind rotations, against exact rational arithmetic."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.math import series

# Both sides of the switch at 1, small ones down to underflow of the square, and more than a full turn.
POINTS = [0.0, 1e-24, 1e-14, 1e-8, 1e-4, 0.1, 0.5, 1.0 - 1e-9, 1.0, 1.0 + 1e-9, 1.5, math.pi**2, 30.0, 60.0]


def exact_stumpff(k, x, order=0):
    """Derivative of c_k at the double ``x``, summed as fractions."""
    x, total = Fraction(x), Fraction(0)
    for i in range(order, order + 60):
        total += Fraction((-1) ** i * math.perm(i, order), math.factorial(k + 2 * i)) * x ** (i - order)
    return float(total)


def test_stumpff_functions_are_exact_to_rounding():
    f = jax.jit(lambda x: [series.stumpff(k, x) for k in range(7)])
    for k, values in enumerate(f(jnp.array(POINTS))):
        exact = [exact_stumpff(k, x) for x in POINTS]
        # c_5 and c_6 divide by x twice and three times on the far side of the switch.
        np.testing.assert_allclose(values, exact, rtol=1e-15 if k < 3 else 3e-13, atol=4e-16 / math.factorial(k))


def test_their_first_three_derivatives_are_exact_on_both_sides_of_the_switch():
    def derivatives(x):
        out = []
        for k in range(3):

            def f(x, k=k):
                return series.stumpff(k, x)

            first = jax.grad(f)
            second = jax.jvp(first, (x,), (jnp.ones_like(x),))[1]
            third = jax.grad(lambda x, first=first: jax.jvp(first, (x,), (jnp.ones_like(x),))[1])(x)
            out.append((first(x), second, third))
        return out

    found = jax.jit(jax.vmap(derivatives))(jnp.array(POINTS))
    for k, orders in enumerate(found):
        for order, values in enumerate(orders, 1):
            exact = [exact_stumpff(k, x, order) for x in POINTS]
            np.testing.assert_allclose(values, exact, rtol=1e-11, atol=1e-16, err_msg=f"c_{k}, derivative {order}")


def test_the_half_angle_quotient_is_smooth_at_zero_and_not_finite_at_a_full_turn():
    def exact(x):
        a = math.sqrt(x)
        return (1.0 - 0.5 * a / math.tan(0.5 * a)) / x

    # (1 - (a/2) cot(a/2)) / a^2 = sum |B_2n| x^(n-1) / (2n)!
    at_zero = [1 / 12, 1 / 720, 2 / 30240]
    f = series.half_angle_quotient
    found = jax.jit(lambda x: (f(x), jax.grad(f)(x), jax.grad(jax.grad(f))(x)))(jnp.array(0.0))
    np.testing.assert_allclose(found, at_zero, rtol=1e-14)
    x = np.array([0.5, 0.99, 1.01, 4.0, 9.0, 9.8696, 20.0])
    np.testing.assert_allclose(jax.jit(f)(jnp.asarray(x)), [exact(v) for v in x], rtol=3e-15)
    assert not np.isfinite(f(jnp.array((2 * math.pi) ** 2)))


def test_the_arctangent_quotient_and_its_derivatives_are_right_from_zero_to_a_right_angle():
    f = series.arctangent_quotient
    angle = np.concatenate([10.0 ** np.arange(-160, 0, 8.0), np.linspace(0.1, np.pi / 2, 20)])
    for length in (1.0, 3.0):
        w, n = length * np.cos(angle), length * np.sin(angle)
        w[-1] = 0.0
        found = jax.jit(f)(jnp.asarray(w), jnp.asarray(n * n))
        np.testing.assert_allclose(found, angle / n, rtol=4e-16)
    # At n = 0: atan2(n, w) / n = 1/w - n^2 / (3 w^3) + n^4 / (5 w^5).
    w, x = jnp.array(0.5), jnp.array(0.0)
    first = jax.jit(jax.grad(f, argnums=(0, 1)))(w, x)
    np.testing.assert_allclose(first, [-4.0, -8.0 / 3.0], rtol=1e-15)
    assert abs(jax.jit(jax.grad(jax.grad(f, argnums=1), argnums=1))(w, x) - 2 * 32 / 5) < 1e-13
    # At w = 0, n = 1: d/dw = -1 / (w^2 + x), d/dx = (w / (w^2 + x) - f) / (2 x).
    np.testing.assert_allclose(jax.grad(f, argnums=(0, 1))(0.0 * w, x + 1.0), [-1.0, -np.pi / 4], rtol=1e-14)


def test_single_precision_keeps_its_digits():
    x = np.array(POINTS, np.float32)
    found = jax.jit(lambda x: [series.stumpff(k, x) for k in range(5)])(jnp.asarray(x))
    for k, values in enumerate(found):
        assert values.dtype == jnp.float32
        exact = [exact_stumpff(k, float(v)) for v in x]
        np.testing.assert_allclose(values, exact, rtol=2e-6 * 3**k, atol=3e-7 / math.factorial(k))
