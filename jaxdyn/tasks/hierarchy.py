"""Solvers of stacks: strict priorities, soft ones, and mixtures.

Strict (the iHQP of OpenSoT): level i minimises its cost under the shared constraints, its own, and A_j x = A_j x_j* for
all levels j above it, so that no level disturbs a higher one. A level with a linear cost keeps that cost too,
c_j^T x = c_j^T x_j*. Rank-deficient levels, redundant rows and levels that are switched off are ordinary cases.

All levels are programs of one shape, with the rows that do not bind switched off, so that one compiled solver runs
them in a loop.

Source: Kanoun, Lamiraux and Wieber, Kinematic control of redundant manipulators: generalizing the task-priority
framework to inequality task, IEEE T-RO 2011.

Without inequalities a level takes one Newton step: its optimality conditions are one linear system in the null space
of the levels above it.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.errors import FloatLike, Status, check_shape, unknown_name
from jaxdyn.tasks.data import TaskData
from jaxdyn.tasks.qp import QP, solve_qp
from jaxdyn.tasks.stack import Stack, StackData
from jaxdyn.tasks.state import RobotState

MODES = ("strict", "soft")


class HierarchySolution(eqx.Module):
    """Solution of a stack.

    `x` (n,); `levels` (levels, n): the solution after each level (in soft mode the same everywhere); `status` (levels,)
    of each program, as `jaxdyn.Status`; `iterations` (levels,); `cost` (levels,): (A x - b)^T W (A x - b) of each level
    at `x`; `violation`: largest violation of a shared constraint at `x`.
    """

    x: Float[Array, " n"]
    levels: Float[Array, "levels n"]
    status: Int[Array, " levels"]
    iterations: Int[Array, " levels"]
    cost: Float[Array, " levels"]
    violation: Float[Array, ""]

    @property
    def success(self) -> Bool[Array, ""]:
        """True if every level has been solved."""
        return jnp.all(self.status == int(Status.OK))


def solve_hierarchy(
    stack: Any,
    state: RobotState | None = None,
    *,
    mode: str = "strict",
    epsilon: FloatLike | None = None,
    elastic: FloatLike | None = None,
    tolerance: FloatLike | None = None,
    smoothing: FloatLike = 0.0,
    max_iterations: int = 60,
) -> HierarchySolution:
    """Solve a stack of tasks in one situation. Differentiable, and batched by `jax.vmap`.

    **Main arguments:** `stack`: a `Stack`, a task (one level), or a `StackData`; `state`: see `robot_state`, None if no
    task needs a robot; `mode`: `"strict"`: each level exactly before the next; `"soft"`: one program whose cost is the
    sum of all levels, weighed by their W. Tasks added with `+` share a level and are weighed in every mode.

    **Other arguments:** `epsilon`: added to the diagonal of every Hessian (default 4.4e-11 in float64, 1e-6 in
    float32): chooses the smallest x where tasks leave x free; `elastic`, `tolerance`, `smoothing`, `max_iterations`: see `solve_qp`.

    **Returns:** `HierarchySolution`. If a level fails, `status` says why, and lower levels start from what the level
    above it gave.

    **Raises:** `InputError`; `UnknownNameError` for another mode.

    With all tasks feasible together, weights change nothing: they only divide what cannot all be had.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if not isinstance(stack, StackData):
        stack = (stack if isinstance(stack, Stack) else Stack((stack,))).evaluate(state)
    n, dtype = stack.n, stack.levels[0].A.dtype
    if epsilon is None:
        epsilon = 4.44e-11 if dtype == jnp.float64 else 1e-6
    epsilon = check_shape("epsilon", epsilon, (), dtype=dtype)
    options = {"elastic": elastic, "tolerance": tolerance, "smoothing": smoothing, "max_iterations": max_iterations}
    if mode == "soft":
        return _soft(stack, n, dtype, epsilon, options)
    return _strict(stack, n, dtype, epsilon, options)


def _bounds(stack: StackData, n: int, dtype: Any) -> tuple[Array | None, Array | None]:
    lower, upper = stack.shared.lower, stack.shared.upper
    return lower, upper


def _result(stack: StackData, x, levels, status, iterations) -> HierarchySolution:
    cost = jnp.stack([level.cost(x) for level in stack.levels])
    shared = stack.shared
    empty = not (shared.has_bounds or shared.is_constraint)
    violation = jnp.zeros((), x.dtype) if empty else shared.violation(x)
    return HierarchySolution(x, levels, status, iterations, cost, violation)


def _regularised(level: TaskData, extra: TaskData | None, epsilon, n: int) -> tuple[Array, Array]:
    H = level.H + epsilon * jnp.eye(n, dtype=level.A.dtype)
    return (H, level.g) if extra is None else (H + extra.H, level.g + extra.g)


def _soft(stack: StackData, n: int, dtype: Any, epsilon, options) -> HierarchySolution:
    H, g = epsilon * jnp.eye(n, dtype=dtype), jnp.zeros(n, dtype)
    for one, on in zip(stack.levels, stack.active, strict=True):
        H, g = H + jnp.where(on, one.H, 0.0), g + jnp.where(on, one.g, 0.0)
    if stack.regularisation is not None:
        H, g = H + stack.regularisation.H, g + stack.regularisation.g
    A, b, G, lower, upper = [], [], [], [], []
    for i, data in enumerate((stack.shared, *stack.local)):
        on = jnp.asarray(True) if i == 0 else stack.active[i - 1]
        if data.is_equality:
            A.append(jnp.where(on, data.A_eq, 0.0))
            b.append(jnp.where(on, data.b_eq, 0.0))
        if data.is_inequality:
            G.append(data.A_in)
            lower.append(jnp.where(on, data.b_lower, -jnp.inf))
            upper.append(jnp.where(on, data.b_upper, jnp.inf))
    x_lower, x_upper = _bounds(stack, n, dtype)
    for data, on in zip(stack.local, stack.active, strict=True):
        if data.lower is not None:
            low = jnp.where(on, data.lower, -jnp.inf)
            x_lower = low if x_lower is None else jnp.maximum(x_lower, low)
        if data.upper is not None:
            high = jnp.where(on, data.upper, jnp.inf)
            x_upper = high if x_upper is None else jnp.minimum(x_upper, high)
    A, b, G, lower, upper = (jnp.concatenate(p) if p else None for p in (A, b, G, lower, upper))
    s = solve_qp(QP(H, g, A, b, G, lower, upper, x_lower, x_upper), **options)
    count = len(stack.levels)
    return _result(
        stack, s.x, jnp.broadcast_to(s.x, (count, n)), jnp.broadcast_to(s.status, (count,)),
        jnp.broadcast_to(s.iterations, (count,)),
    )  # fmt: skip


class _Rows:
    """Rows of all levels in one matrix, and which of them bind at which level (static)."""

    def __init__(self):
        self.parts: list[Array] = []
        self.sides: list[tuple] = []
        self.binds: list[Any] = []

    def add(self, rows, sides, binds):
        self.parts.append(rows)
        self.sides.append(sides)
        self.binds += [binds] * rows.shape[0]

    def matrix(self) -> Any:
        return jnp.concatenate(self.parts) if self.parts else None

    def side(self, k: int) -> Any:
        return jnp.concatenate([s[k] for s in self.sides]) if self.sides else None


def _strict(stack: StackData, n: int, dtype: Any, epsilon, options) -> HierarchySolution:
    count = len(stack.levels)
    costs = [_regularised(data, stack.regularisation, epsilon, n) for data in stack.levels]
    H, g = jnp.stack([c[0] for c in costs]), jnp.stack([c[1] for c in costs])

    # what a level claims of those below it: rows of A, and c where it is not zero
    claims = _Rows()
    for i, data in enumerate(stack.levels[:-1]):
        claims.add(jnp.concatenate([data.A, data.c[None]]), (), np.arange(count) > i)
    equalities, rows = _Rows(), _Rows()
    x_lower, x_upper = _bounds(stack, n, dtype)
    eye = jnp.eye(n, dtype=dtype)
    for i, data in enumerate((stack.shared, *stack.local)):
        binds = np.ones(count, bool) if i == 0 else np.arange(count) == i - 1
        if data.is_equality:
            equalities.add(data.A_eq, (data.b_eq,), binds)
        if data.is_inequality:
            rows.add(data.A_in, (data.b_lower, data.b_upper), binds)
        if i and data.has_bounds:
            none = jnp.full(n, jnp.inf, dtype)
            rows.add(
                eye, (-none if data.lower is None else data.lower, none if data.upper is None else data.upper), binds
            )

    A_claims, A_eq, b_eq = claims.matrix(), equalities.matrix(), equalities.side(0)
    G, lower, upper = rows.matrix(), rows.side(0), rows.side(1)

    def masks(r: _Rows):
        return jnp.asarray(np.asarray(r.binds, bool).reshape(-1, count).T)

    def level(carry, this):
        x, usable = carry
        H, g, on, claim, equal, bound = this
        A, b = [], []
        if A_claims is not None:
            kept = jnp.where(claim[:, None], A_claims, 0.0)
            A.append(kept)
            b.append(kept @ x)
        if A_eq is not None:
            A.append(jnp.where(equal[:, None], A_eq, 0.0))
            b.append(jnp.where(equal, b_eq, 0.0))
        low = None if G is None else jnp.where(bound, lower, -jnp.inf)
        high = None if G is None else jnp.where(bound, upper, jnp.inf)
        program = QP(
            H, g, jnp.concatenate(A) if A else None, jnp.concatenate(b) if b else None, G, low, high, x_lower, x_upper
        )
        s = solve_qp(program, **options)
        status = jnp.where(on, s.status, int(Status.OK))
        # the first answer is taken in any case: the best there is
        take = on & ((s.status == int(Status.OK)) | ~usable)
        x = jnp.where(take, s.x, x)
        return (x, usable | on), (x, status, jnp.where(on, s.iterations, 0))

    # a level that is off claims nothing
    claim = masks(claims)
    if A_claims is not None:
        owner = np.concatenate([np.full(lv.A.shape[0] + 1, i) for i, lv in enumerate(stack.levels[:-1])])
        claim = claim & stack.active[owner][None]
    each = (H, g, stack.active, claim, masks(equalities), masks(rows))
    start = (jnp.zeros(n, dtype), jnp.asarray(False))
    if count == 1:
        (x, _), out = level(start, jax.tree.map(lambda a: a[0], each))
        out = jax.tree.map(lambda a: a[None], out)
    else:
        (x, _), out = jax.lax.scan(level, start, each)
    return _result(stack, x, *out)
