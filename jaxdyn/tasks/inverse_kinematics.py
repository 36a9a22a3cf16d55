"""Inverse kinematics: stacks of tasks of motion, solved step by step until the errors are gone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.errors import FloatLike, InputError, Status, check_key, check_shape
from jaxdyn.model import Model, integrate, random_configuration
from jaxdyn.model.manifold import check_configuration
from jaxdyn.tasks.hierarchy import HierarchySolution, solve_hierarchy
from jaxdyn.tasks.stack import Stack
from jaxdyn.tasks.state import RobotState, robot_state
from jaxdyn.tasks.task import GenericTask, Task


class IKSolution(eqx.Module):
    """Result of `inverse_kinematics`.

    `q` (nq,); `error`: norm of the nonlinear errors of the tasks of the first level; `success`: it is below the
    tolerance; `status`: `Status` of the last program, or `MAX_ITERATIONS`; `steps` taken by the winning start; `last`:
    solution of the last step.
    """

    q: Float[Array, " nq"]
    error: Float[Array, ""]
    success: Bool[Array, ""]
    status: Int[Array, ""]
    steps: Int[Array, ""]
    last: HierarchySolution


def _errors(stack: Stack, state: RobotState, levels: int) -> Float[Array, ""]:
    """Root of the summed squares of A-weighted errors b / gain of the first levels: what is left to do."""
    parts = []
    for level in stack.levels[:levels]:
        data = level.evaluate(state)
        on = jnp.any(data.A != 0.0, axis=1)
        parts.append(jnp.where(on, data.b, 0.0))
    e = jnp.concatenate(parts)
    return jnp.sqrt(jnp.sum(e * e))


def inverse_kinematics(
    stack: Any,
    model: Model,
    q: FloatLike,
    *,
    steps: int = 50,
    tolerance: FloatLike | None = None,
    max_step: FloatLike = 0.5,
    damping: FloatLike = 1e-6,
    restarts: int = 0,
    key: Array | None = None,
    mode: str = "strict",
    levels: int = 1,
    max_iterations: int = 30,
) -> IKSolution:
    """Configuration that satisfies a stack of tasks within its constraints, by repeated steps of `solve_hierarchy` from
    `q` and, for a global search, from random configurations.

    **Main arguments:** `stack`: a `Stack` or task of motion tasks, with limits (`JointLimits`) as constraints; `model`;
    `q` (nq,): the start. Batch with `jax.vmap`.

    **Other arguments:** `steps`: most steps of each start; `tolerance`: of the norm of the errors of the first `levels`
    levels (default 1e-8 in float64, 1e-4 in float32); `max_step`: longest step in each coordinate, rad or m; `damping`:
    of a step, times the squared error (Levenberg-Marquardt): keeps steps short near singular configurations and is
    nothing at the goal; `restarts`: number of random starts besides `q`, all at once, the best wins; they need `key`;
    `mode`: see `solve_hierarchy`.

    **Returns:** `IKSolution`. One step alone, as a controller at velocity level needs it, is
    `solve_hierarchy(stack, robot_state(model, q)).x`: a displacement.

    The derivative of the result is that of the last step, which is the implicit derivative of a solution that
    satisfies its tasks with gain 1; the way there is not differentiated.

    **Raises:** `InputError`.
    """
    stack = stack if isinstance(stack, Stack) else Stack((stack,))
    q = check_configuration(model, q)
    dtype = q.dtype
    if tolerance is None:
        tolerance = 1e-8 if dtype == jnp.float64 else 1e-4
    tolerance = check_shape("tolerance", tolerance, (), dtype=dtype)
    limit = check_shape("max_step", max_step, (), dtype=dtype)
    damping = check_shape("damping", damping, (), dtype=dtype)
    if restarts and key is None:
        raise InputError("restarts need a random key: pass key=jax.random.key(0).")
    if restarts:
        check_key("key", key)

    def advance(stack: Stack, q, damp) -> tuple[Array, HierarchySolution, Array]:
        state = robot_state(model, q)
        error = _errors(stack, state, levels)
        x, solution = _step(stack, state, damp * error**2, limit, mode, max_iterations)
        return integrate(model, q, x), solution, error

    frozen = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, stack)

    def search(start):
        def cond(carry):
            _, error, count = carry
            return (count < steps) & (error > tolerance)

        def body(carry):
            q, _, count = carry
            q, _, _ = advance(frozen, q, damping)
            return q, _errors(frozen, robot_state(model, q), levels), count + 1

        first = _errors(frozen, robot_state(model, start), levels)
        return jax.lax.while_loop(cond, body, (start, first, jnp.asarray(0, jnp.int32)))

    start = jax.lax.stop_gradient(q)
    if restarts:
        keys = jax.random.split(jnp.asarray(key), restarts)
        random = jax.vmap(lambda k: random_configuration(model, k))(keys)
        starts = jnp.concatenate([start[None], random.astype(dtype)])
        found, errors, counts = jax.vmap(search)(starts)
        best = jnp.argmin(jnp.where(jnp.isfinite(errors), errors, jnp.inf))
        found, count = found[best], counts[best]
    else:
        found, _, count = search(start)
    found = jax.lax.stop_gradient(found)
    q, solution, _ = advance(stack, found, jnp.zeros((), dtype))
    error = _errors(frozen, robot_state(model, jax.lax.stop_gradient(q)), levels)
    success = error <= tolerance
    worst = jnp.max(solution.status)
    status = jnp.where((worst == int(Status.OK)) & ~success, int(Status.MAX_ITERATIONS), worst)
    return IKSolution(q, error, success, status, count, solution)


def _step(stack: Stack, state: RobotState, damping, limit, mode: str, max_iterations: int):
    """One step, cut to the longest allowed. A damped one has the least displacement in the cost of every level."""
    nv, dtype = state.model.nv, state.q.dtype
    extra: Task = GenericTask(jnp.eye(nv, dtype=dtype), jnp.zeros(nv, dtype), weight=damping, name="damping")
    if stack.regularisation is not None:
        extra = stack.regularisation + extra
    damped = stack.with_regularisation(extra)
    solution = solve_hierarchy(damped, state, mode=mode, max_iterations=max_iterations)
    largest = jnp.max(jnp.abs(solution.x), initial=0.0)
    return jnp.where(largest > limit, limit / jnp.where(largest > 0, largest, 1.0), 1.0) * solution.x, solution
