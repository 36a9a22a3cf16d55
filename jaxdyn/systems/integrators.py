"""One step in time.

| integrator | order | rotation | use it for |
|---|---|---|---|
| `SemiImplicitEuler` | 1 | `Exp(h omega+) R` | simulation with contacts: the default |
| `LieEuler` | 1 | `Exp(h omega) R` | comparisons; it feeds energy to a spring |
| `LieMidpoint` | 2 | stage at `h / 2` by `Exp` | smooth motion, cheap |
| `RKMK4` | 4 | Runge-Kutta in the Lie algebra | smooth motion, accurate |
| `LinearlyImplicit` | 1 | as `SemiImplicitEuler` | stiff contacts with long steps |
| `ImplicitMidpoint` | 2 | `Exp(h omega)` with `omega` in the middle | long motions without drift of the energy; reversible |
| `EmbeddedEuler` | 1 | `R + h R_dot` | parity with bipedal-locomotion-framework |
| `EmbeddedRK4` | 4 | Runge-Kutta on the matrix | the same |

The Lie integrators keep the rotation orthonormal up to rounding. The embedded ones do not: with `EmbeddedEuler` it
grows off by about `h |omega|^2 t`, unless `project=True`. Averaging the angular velocities of four stages and taking
one exponential looks like a fourth method; it is of order 2, since rotations do not commute.

Explicit methods are unstable when a step is long for the contact's stiffness; see `stable_dt` and `check_step`. Explicit
Euler (`LieEuler`, `EmbeddedEuler`) makes an undamped bounce higher at every contact whatever the step.
"""

from __future__ import annotations

import abc
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxdyn.errors import FloatLike, InputError
from jaxdyn.systems.first_order import (
    FirstOrderSystem,
    euler_step,
    implicit_step,
    midpoint_step,
    runge_kutta_step,
)
from jaxdyn.systems.system import Input, System, boxminus, boxplus, strong

AnySystem: TypeAlias = System | FirstOrderSystem
"""A mechanical system, whose state has a velocity, or one whose state moves itself."""


class Integrator(eqx.Module):
    """A way to advance a state by one step."""

    @abc.abstractmethod
    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        """The state at `t + dt`, of the state `x` at `t`, under the input `u` held over the step.

        `t` and `dt` are scalars of the state's dtype; `step` (the function) converts what a user has.
        """

    def step_with_status(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> tuple[Any, Int[Array, ""]]:
        """As `step`, and a `Status` as an integer: `OK`, always so for integrators that solve no equation."""
        return self.step(system, x, u, t, dt), jnp.zeros((), jnp.int32)


def step(
    system: AnySystem, integrator: Integrator, x: Any, u: Any, dt: FloatLike, t: FloatLike = 0.0, substeps: int = 1
) -> Any:
    """One step of length `dt` (s) from `x` at time `t`, in `substeps` equal parts, under the input `u` held over it.

    **Arguments:** `u`: an `Input`, or a bare torque vector. **Returns:** a state of the same shapes and dtypes.

    **Raises:** `InputError` for wrong shapes.

    It is compiled as a whole, once for each system and integrator, whatever their numbers.
    """
    return step_with_status(system, integrator, x, u, dt, t, substeps)[0]


def step_with_status(
    system: AnySystem, integrator: Integrator, x: Any, u: Any, dt: FloatLike, t: FloatLike = 0.0, substeps: int = 1
) -> tuple[Any, Int[Array, ""]]:
    """As `step`, and a `Status` as an integer: `MAX_ITERATIONS` if an implicit integrator did not solve its equations in
    one of the substeps, else `OK`.

    **Raises:** `InputError` for wrong shapes.
    """
    if substeps < 1:
        raise InputError(f"substeps: wanted at least 1, given {substeps}.")
    dtype = jax.tree.leaves(x)[0].dtype
    return _step(system, integrator, x, u, jnp.asarray(dt, dtype), jnp.asarray(t, dtype), substeps)


@eqx.filter_jit
def _step(system: AnySystem, integrator: Integrator, x: Any, u: Any, dt: Array, t: Array, substeps: int) -> tuple:
    if substeps == 1:
        new, status = integrator.step_with_status(system, x, u, t, dt)
        return strong(_settled(system, new, u, t), x), status
    part = dt / substeps

    def body(carry: tuple, i: Array) -> tuple[tuple, None]:
        x, status = carry
        begin = t + i.astype(dt.dtype) * part
        new, now = integrator.step_with_status(system, x, u, begin, part)
        return (strong(_settled(system, new, u, begin), x), first_fault(status, now)), None

    start = x, jnp.zeros((), jnp.int32)
    return jax.lax.scan(body, start, jnp.arange(substeps, dtype=jnp.int32))[0]


def _settled(system: AnySystem, x: Any, u: Any, t: Array) -> Any:
    """The state at the end of a step that began at `t`, with what the system does there besides moving."""
    return system.settle(x, u, t) if isinstance(system, System) else x


def first_fault(before: Array, now: Array) -> Array:
    """The first of two statuses that is not `OK`."""
    return jnp.where(before == 0, now, before)


class SemiImplicitEuler(Integrator):
    """The velocity first, then the configuration with the new velocity: order 1, stable on stiff springs below
    `stable_dt`, keeps the energy of an undamped spring bounded. Damping in proportion to `dt` is added to what the
    contact has."""

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        if isinstance(system, FirstOrderSystem):
            return euler_step(system, x, u, t, dt)
        v = system.velocity(x) + dt * system.acceleration(x, u, t)
        return system.displace(x, dt * v, v)


class LieEuler(Integrator):
    """Explicit Euler on the manifold, order 1. A spring gains energy at every step; use `SemiImplicitEuler` for
    contacts."""

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        if isinstance(system, FirstOrderSystem):
            return euler_step(system, x, u, t, dt)
        v = system.velocity(x)
        return system.displace(x, dt * v, v + dt * system.acceleration(x, u, t))


class LieMidpoint(Integrator):
    """Explicit midpoint rule on the manifold, order 2."""

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        if isinstance(system, FirstOrderSystem):
            return midpoint_step(system, x, u, t, dt)
        v = system.velocity(x)
        half = 0.5 * dt
        middle = system.displace(x, half * v, v + half * system.acceleration(x, u, t))
        a = system.acceleration(middle, u, t + half)
        return system.displace(x, dt * system.velocity(middle), v + dt * a)


# Stages of the classical Runge-Kutta method: each starts from the slope before, this far along, and counts with this weight.
_FRACTIONS = np.array([0.0, 0.5, 0.5, 1.0])
_WEIGHTS = np.array([1.0, 2.0, 2.0, 1.0]) / 6


class RKMK4(Integrator):
    """The classical Runge-Kutta method in the Lie algebra, order 4 (Munthe-Kaas).

    The configuration is `x_0` displaced by `u`, with `u_dot` the inverse of the exponential's derivative applied to the
    velocity: `omega - u x omega / 2 + u x (u x omega) / 12` for a rotation from the left. The stages run in a `scan`,
    so that the dynamics are compiled once and not four times.

    Source: Hairer, Lubich and Wanner, Geometric Numerical Integration, IV.8.
    """

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        if isinstance(system, FirstOrderSystem):
            return runge_kutta_step(system, x, u, t, dt, _FRACTIONS, _WEIGHTS)
        v0 = system.velocity(x)
        zero = jnp.zeros_like(v0)

        def stage(carry: tuple, table: tuple) -> tuple[tuple, None]:
            (slope, slope_v), (total, total_v) = carry
            fraction, weight = table
            h = fraction * dt
            displacement, v = h * slope, v0 + h * slope_v
            a = system.acceleration(system.displace(x, displacement, v), u, t + h)
            slope = system.chart_rate(displacement, v)
            return ((slope, a), (total + weight * slope, total_v + weight * a)), None

        tables = jnp.asarray(_FRACTIONS, v0.dtype), jnp.asarray(_WEIGHTS, v0.dtype)
        (_, (total, total_v)), _ = jax.lax.scan(stage, ((zero, zero), (zero, zero)), tables)
        return system.displace(x, dt * total, v0 + dt * total_v)


class EmbeddedEuler(Integrator):
    """Explicit Euler with the rotation matrix as nine numbers, as bipedal-locomotion-framework does it; order 1.

    **Arguments:** `project`: make the rotation orthonormal after the step.
    """

    project: bool = eqx.field(static=True, default=False)

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        x = _along(x, dt, system(x, u, t))
        return system.project(x) if self.project else x


class EmbeddedRK4(Integrator):
    """The classical Runge-Kutta method with the rotation matrix as nine numbers; order 4.

    **Arguments:** `project`: make the rotation orthonormal after the step.
    """

    project: bool = eqx.field(static=True, default=False)

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        shape = jax.eval_shape(system, x, u, t)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

        def stage(carry: tuple, table: tuple) -> tuple[tuple, None]:
            slope, total = carry
            fraction, weight = table
            h = fraction * dt
            slope = strong(system(_along(x, h, slope), u, t + h), zero)
            return (slope, jax.tree.map(lambda sum_, k: sum_ + weight * k, total, slope)), None

        tables = jnp.asarray(_FRACTIONS, dt.dtype), jnp.asarray(_WEIGHTS, dt.dtype)
        (_, total), _ = jax.lax.scan(stage, (zero, zero), tables)
        x = _along(x, dt, total)
        return system.project(x) if self.project else x


def _along(x: Any, h: Array, derivative: Any) -> Any:
    """`x + h x_dot`, element by element in the embedding space."""
    leaves, structure = jax.tree.flatten(x)
    slopes = jax.tree.leaves(derivative)
    return structure.unflatten([leaf + h * slope for leaf, slope in zip(leaves, slopes, strict=True)])


class LinearlyImplicit(Integrator):
    """Semi-implicit Euler with the forces linearised at the end of the step: order 1, stable at any stiffness.

    The change of velocity solves `(I - h da/dv - h^2 da/dq) dv = h (a + h da/dq v)`. A step costs the derivatives of
    the dynamics and a dense solve, some tens of explicit steps; it is for contacts whose `stable_dt` is shorter than
    that. It damps what it cannot resolve, and so does its derivative: gradients through stiff contacts do not grow.
    """

    def step(self, system: AnySystem, x: Any, u: Any, t: Array, dt: Array) -> Any:
        if isinstance(system, FirstOrderSystem):
            return implicit_step(system, x, u, t, dt)
        v = system.velocity(x)
        n = v.size

        def acceleration(tangent: Array) -> Array:
            return system.acceleration(system.displace(x, tangent[:n], v + tangent[n:]), u, t)

        zero = jnp.zeros(2 * n, v.dtype)
        a = acceleration(zero)
        slopes = jax.jacfwd(acceleration)(zero)
        by_position, by_velocity = slopes[:, :n], slopes[:, n:]
        matrix = jnp.eye(n, dtype=v.dtype) - dt * by_velocity - dt * dt * by_position
        right = dt * (a + dt * jnp.sum(by_position * v[None], axis=-1))
        v = v + jnp.linalg.solve(matrix, right)
        return system.displace(x, dt * v, v)


def linearize(
    system: System, integrator: Integrator, x: Any, u: Any, dt: FloatLike, t: FloatLike = 0.0, substeps: int = 1
) -> tuple[Float[Array, "two_nv two_nv"], Float[Array, "two_nv n"]]:
    """Matrices `A`, `B` of a step about `x`, `u`: the tangent of the new state is `A tangent + B change of torque`, to
    first order.

    Tangents are those of `boxplus` and `boxminus`, `[dp, dphi, ds, change of velocity]` for a floating base: (2 nv).
    """
    u = u if isinstance(u, Input) else Input(jnp.zeros(system.n, system.velocity(x).dtype) if u is None else u)
    after = step(system, integrator, x, u, dt, t, substeps)

    def moved(tangent: Array, torque: Array) -> Array:
        changed = eqx.tree_at(lambda u: u.torque, u, u.torque + torque)
        new = step(system, integrator, boxplus(system, x, tangent), changed, dt, t, substeps)
        return boxminus(system, new, after)

    zero = jnp.zeros(2 * system.velocity(x).size, u.torque.dtype)
    return jax.jacfwd(moved, argnums=(0, 1))(zero, jnp.zeros_like(u.torque))
