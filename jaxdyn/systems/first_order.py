"""Systems without a velocity in their state: `x_dot = f(x, u, t)` on a vector space, a Lie group or a product of them.

What acts moves the state itself: kinematics driven by velocities, linear systems, filters. The integrators take them as
they take mechanical systems; `SemiImplicitEuler`, which has no velocity to update first, is then explicit Euler.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, as_float_array


class FirstOrderSystem(eqx.Module):
    """A system `x_dot = f(x, u, t)`: the equations, and the manifold that its states live on. A *tangent* is a vector (m,)
    along which `move` displaces a state."""

    @abc.abstractmethod
    def __call__(self, x: Any, u: Any, t: FloatLike = 0.0) -> Any:
        """Time derivative of the state `x` under the input `u` at time `t` (s), element by element."""

    @abc.abstractmethod
    def rate(self, x: Any, u: Any, t: FloatLike = 0.0) -> Float[Array, " m"]:
        """The same as a tangent."""

    @abc.abstractmethod
    def move(self, x: Any, tangent: Float[Array, " m"]) -> Any:
        """The state displaced along a tangent."""

    @abc.abstractmethod
    def between(self, x0: Any, x1: Any) -> Float[Array, " m"]:
        """The tangent that leads from `x0` to `x1`: the inverse of `move`."""

    def chart_rate(self, tangent: Float[Array, " m"], rate: Float[Array, " m"]) -> Float[Array, " m"]:
        """Rate of the tangent from a fixed state to one that moves with `rate`, to third order in the former. In a vector
        space it is `rate`."""
        return rate

    def project(self, x: Any) -> Any:
        """The state with its rotations made orthonormal."""
        return x

    @property
    @abc.abstractmethod
    def default_input(self) -> Any:
        """The input that stands for none."""

    def with_derivatives(self, kind: str) -> FirstOrderSystem:
        """The same system: there is one way to differentiate it."""
        return self


class VectorSystem(FirstOrderSystem):
    """Base of systems whose states are pytrees of vectors: a tangent is all their numbers one after another."""

    def rate(self, x: Any, u: Any, t: FloatLike = 0.0) -> Float[Array, " m"]:
        return _flat(self(x, u, t))

    def move(self, x: Any, tangent: Float[Array, " m"]) -> Any:
        leaves, structure = jax.tree.flatten(x)
        parts, at = [], 0
        for leaf in leaves:
            leaf = as_float_array("x", leaf)  # an integer state would stay one, and lose what is added to it
            parts.append(leaf + tangent[at : at + leaf.size].reshape(leaf.shape))
            at += leaf.size
        return structure.unflatten(parts)

    def between(self, x0: Any, x1: Any) -> Float[Array, " m"]:
        return _flat(x1) - _flat(x0)


def _flat(x: Any) -> Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(x)])


# Steps; the integrators call them. Methods on a manifold: see `RKMK4`.


def euler_step(system: FirstOrderSystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
    """Explicit Euler, order 1."""
    return system.move(x, dt * system.rate(x, u, t))


def midpoint_step(system: FirstOrderSystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
    """Explicit midpoint rule, order 2."""
    middle = system.move(x, 0.5 * dt * system.rate(x, u, t))
    return system.move(x, dt * system.rate(middle, u, t + 0.5 * dt))


def runge_kutta_step(
    system: FirstOrderSystem, x: Any, u: Any, t: Array, dt: Array, fractions: np.ndarray, weights: np.ndarray
) -> Any:
    """Runge-Kutta in the algebra: stage k starts `fractions[k]` along the slope before and counts with `weights[k]`."""
    zero = jnp.zeros_like(system.rate(x, u, t))

    def stage(carry: tuple, table: tuple) -> tuple[tuple, None]:
        slope, total = carry
        fraction, weight = table
        tangent = fraction * dt * slope
        slope = system.chart_rate(tangent, system.rate(system.move(x, tangent), u, t + fraction * dt))
        return (slope, total + weight * slope), None

    tables = jnp.asarray(fractions, zero.dtype), jnp.asarray(weights, zero.dtype)
    (_, total), _ = jax.lax.scan(stage, (zero, zero), tables)
    return system.move(x, dt * total)


def implicit_step(system: FirstOrderSystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
    """Linearly implicit Euler, order 1: the tangent solves `(I - h df/dx) d = h f`."""
    rate = system.rate(x, u, t)
    slope = jax.jacfwd(lambda tangent: system.rate(system.move(x, tangent), u, t))(jnp.zeros_like(rate))
    matrix = jnp.eye(rate.size, dtype=rate.dtype) - dt * slope
    return system.move(x, jnp.linalg.solve(matrix, dt * rate))


def check_vector(name: str, value: FloatLike, size: int, meaning: str) -> Array:
    """`value` as a floating array (size,). Raises `InputError` for another shape or dtype."""
    array = as_float_array(name, value)
    if array.shape != (size,):
        raise InputError(f"{name}: wanted shape ({size},), {meaning}; given shape {array.shape}.")
    return array


def check_type(name: str, value: Any, kind: type) -> None:
    """Raises `InputError` unless `value` is of a class."""
    if not isinstance(value, kind):
        raise InputError(f"{name}: wanted a {kind.__name__}, given a {type(value).__name__}.")
