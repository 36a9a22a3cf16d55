"""The implicit midpoint rule on the manifold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxdyn.errors import InputError, Status
from jaxdyn.systems.first_order import FirstOrderSystem
from jaxdyn.systems.integrators import AnySystem, Integrator


class ImplicitMidpoint(Integrator):
    """The implicit midpoint rule, order 2, stable at any stiffness and without numerical damping.

    The velocity in the middle solves `w = v + h/2 a(q moved by h/2 w, w, t + h/2)`; then `q` is moved by `h w` and the
    velocity becomes `2 w - v`. The rule looks the same from both ends of a step, so it goes back along the way that it
    came, and the energy of an undamped motion swings instead of drifting. What it cannot resolve it keeps ringing:
    `LinearlyImplicit` damps that.

    **Arguments:** `iterations`: of Newton's method, each with the whole Jacobian of the dynamics; a fixed number, so that
    reverse mode can cross it. Where they do not suffice, `step_with_status` and the `status` of a rollout say
    `MAX_ITERATIONS`.

    The derivative is that of the equation's solution, not of the iterations: `dw = -(dF/dw)^-1 dF`, by `jax.lax.custom_root`,
    to any order.

    Source: Hairer, Lubich and Wanner, Geometric Numerical Integration, II.1 and IV.8.
    """

    iterations: int = eqx.field(static=True, default=4)

    def __check_init__(self) -> None:
        if self.iterations < 1:
            raise InputError(f"iterations: wanted at least 1, given {self.iterations}.")

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        return self.step_with_status(system, x, u, t, dt)[0]

    def step_with_status(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> tuple[Any, Int[Array, ""]]:
        system, half = system.with_derivatives("dense"), 0.5 * dt
        if isinstance(system, FirstOrderSystem):
            zero = jnp.zeros_like(system.rate(x, u, t))

            def residual(tangent: Array) -> Array:
                return tangent - half * system.rate(system.move(x, tangent), u, t + half)

            tangent, status = _newton(residual, zero, self.iterations, half)
            return system.move(x, 2 * tangent), status
        v = system.velocity(x)

        def imbalance(w: Array) -> Array:
            return w - v - half * system.acceleration(system.displace(x, half * w, w), u, t + half)

        w, status = _newton(imbalance, v, self.iterations, dt)
        return system.displace(x, dt * w, 2 * w - v), status


def _newton(residual: Callable, start: Array, iterations: int, least: Array) -> tuple[Array, Array]:
    """`(root, status)` after a fixed number of Newton's steps; converged if the last one moved the root by less than the
    square root of the dtype's precision, relative to the root, the start and `least`: what was left is of the square of that.
    """

    def solve(f: Callable, root: Array) -> tuple[Array, Array]:
        def body(carry: tuple, _: None) -> tuple[tuple, None]:
            root, _ = carry
            slope, value = jax.jacfwd(lambda w: (f(w),) * 2, has_aux=True)(root)
            change = jnp.linalg.solve(slope, value)
            return (root - change, change), None

        return jax.lax.scan(body, (root, jnp.zeros_like(root)), None, length=iterations)[0]

    def tangent_solve(linear: Callable, right: Array) -> Array:
        return jnp.linalg.solve(jax.jacfwd(linear)(jnp.zeros_like(right)), right)

    root, change = jax.lax.custom_root(residual, jax.lax.stop_gradient(start), solve, tangent_solve, has_aux=True)
    largest = lambda a: jnp.max(jnp.abs(a), initial=0)  # noqa: E731
    precision = np.sqrt(np.finfo(start.dtype).eps).astype(start.dtype)
    # not `<=` the other way round: a NaN has not converged
    converged = largest(change) <= precision * (largest(root) + largest(start) + least)
    return root, jnp.where(converged, int(Status.OK), int(Status.MAX_ITERATIONS)).astype(jnp.int32)
