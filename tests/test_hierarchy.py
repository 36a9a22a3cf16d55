"""Priorities: what OpenSoT's iHQP answers, derivatives, and the properties that make them priorities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import Status, UnknownNameError
from jaxdyn.tasks import GenericTask, Stack, bounds, equality, linear_task, solve_hierarchy

INF = np.inf
L1, L2, T3 = ([[1, 1]], [1]), (np.eye(2), [0, 0]), ([[1, -1]], [4])
BOX, SMALL = ([-1, -1], [0.2, 1]), ([-0.3, -0.3], [0.3, 0.3])
X1 = ([[1, 0]], [0.9])


def build(levels, box=((-INF, -INF), (INF, INF)), shared=None, local=(None, None, None), weights=(1, 1, 1), ridge=0.0):
    """Three levels of two rows in two unknowns; what is missing is switched off: one program serves all cases."""

    def fill(rows):
        A, b = np.zeros((2, 2)), np.zeros(2)
        if rows is not None:
            A[: len(rows[0])], b[: len(rows[1])] = rows
        return A, b

    tasks = []
    for i in range(3):
        A, b = fill(levels[i] if i < len(levels) else None)
        t = GenericTask(A, b, weight=np.broadcast_to(np.asarray(weights[i], float), (2,)), name=f"l{i}")
        tasks.append(t << equality(*fill(local[i])))
    on = [i < len(levels) and levels[i] is not None for i in range(3)]
    extra = GenericTask(np.eye(2), np.zeros(2), weight=float(ridge))
    return Stack(
        tuple(tasks), (bounds(*(np.asarray(s, float) for s in box)), equality(*fill(shared))), extra, np.asarray(on)
    )


CASES = {
    "l1/l2": (build([L1, L2]), (0.5, 0.5)),
    "l1/l2 in a box": (build([L1, L2], BOX), (0.2, 0.8)),
    "l1/l2 in a small box": (build([L1, L2], SMALL), (0.3, 0.3)),
    "three": (build([L1, T3, L2]), (2.5, -1.5)),
    "three in a box": (build([L1, T3, L2], BOX), (0.2, 0.8)),
    "three in a small box": (build([L1, T3, L2], SMALL), (0.3, 0.3)),
    "shared x1 = 0.9": (build([L1, L2], shared=X1), (0.9, 0.1)),
    "x1 = 0.9 at level 1 only": (build([L1, L2], local=(X1, None, None)), (0.5, 0.5)),
    "x1 = 0.9 at level 2 only": (build([L1, L2], local=(None, X1, None)), (0.9, 0.1)),
    "l1 off": (build([None, L2]), (0.0, 0.0)),
    "all off": (build([None, None, None]), (0.0, 0.0)),
    "ridge": (build([L1, L2], ridge=0.01), (0.4975124378, 0.4975124378)),
    "rank-deficient": (build([([[1, 1], [1, 1]], [1, 3]), L2], weights=([1, 3], 1, 1)), (1.25, 1.25)),
    "scaled weights": (build([L1, T3, L2], BOX, weights=(1e3, 1e-3, 10)), (0.2, 0.8)),
}


@functools.cache
def answers():
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[c[0].evaluate() for c in CASES.values()])
    return quick_jit(jax.vmap(solve_hierarchy))(stacked)


@pytest.mark.parametrize("name", CASES)
def test_strict_priorities(name):
    solution, i = answers(), list(CASES).index(name)
    np.testing.assert_allclose(solution.x[i], CASES[name][1], atol=1e-8)
    assert (solution.status[i] == Status.OK).all()


def test_a_level_costs_what_it_says():
    i = list(CASES).index("three in a box")
    np.testing.assert_allclose(answers().cost[i], [0, (0.2 - 0.8 - 4) ** 2, 0.2**2 + 0.8**2], atol=1e-7)
    assert abs(answers().violation[i]) < 1e-9


SOFT = jnp.asarray([[1.0, 1.0]])


def soft(w, u):
    stack = GenericTask(SOFT, [1.0], weight=w) + GenericTask(np.eye(2), [0.0, 0.0])
    limit = bounds([-1.0, -1.0], jnp.stack([u, jnp.ones_like(u)]))
    return solve_hierarchy(Stack((stack,), (limit,)), mode="soft").x


def test_soft_priorities_and_their_derivatives():
    w, u = jnp.full(2, 100.0), jnp.asarray([1.0, 0.2])
    x, (dw, du) = quick_jit(jax.vmap(lambda *a: (soft(*a), jax.jacrev(soft, (0, 1))(*a))))(w, u)
    np.testing.assert_allclose(x, [[100 / 201] * 2, [0.2, 80 / 101]], atol=1e-8)
    np.testing.assert_allclose(dw[0], [2.475186257765897e-05] * 2, atol=1e-9)
    np.testing.assert_allclose(dw[1], [0, 7.842368e-5], atol=1e-9)
    np.testing.assert_allclose(du[1], [1, -100 / 101], atol=1e-7)


def test_derivatives_of_strict_priorities():
    def strict(b, u):
        stack = GenericTask(SOFT, b[None]) / GenericTask(np.eye(2), [0.0, 0.0])
        return solve_hierarchy(stack << bounds([-1.0, -1.0], jnp.stack([u, jnp.ones_like(u)]))).x

    b, u = jnp.ones(2), jnp.asarray([1.0, 0.2])
    db, du = quick_jit(jax.vmap(jax.jacfwd(strict, (0, 1))))(b, u)
    np.testing.assert_allclose(db[0], [0.5, 0.5], atol=1e-7)
    np.testing.assert_allclose(du[1], [1, -1], atol=1e-7)


def test_linear_costs_keep_their_rank():
    box = bounds([-1.0, -1.0], [1.0, 1.0])
    mixed = linear_task([1.0, 0.0]) / GenericTask([[1.0, 1.0]], [2.0]) << box
    np.testing.assert_allclose(solve_hierarchy(mixed).x, [-1, 1], atol=1e-8)


def test_contradictions_have_a_status_and_leave_a_finite_result():
    stack = GenericTask(np.eye(2), [0.0, 0.0]) << equality([[1.0, 1.0], [1.0, 1.0]], [0.0, 1.0])
    solution = solve_hierarchy(stack)
    assert solution.status[0] == Status.INFEASIBLE and not solution.success and np.isfinite(solution.x).all()


def test_mistakes_are_named():
    task = GenericTask(np.eye(2), [0.0, 0.0])
    with pytest.raises(UnknownNameError, match="unknown mode 'strickt'"):
        solve_hierarchy(task, mode="strickt")


# -- properties, on a random arm of seven joints with three levels

N, BATCH = 7, 24


def random_stack(seed):
    r = np.random.default_rng(seed)
    A = [r.normal(size=(k, N)) for k in (3, 2, N)]
    A[2] = np.eye(N)
    b = [r.normal(size=3), 2 * r.normal(size=2), np.zeros(N)]
    W = []
    for a in A:
        root = r.normal(size=(len(a), len(a)))
        W.append(root @ root.T + np.eye(len(a)))
    limit = r.uniform(0.5, 1.5, size=N)
    return A, b, W, limit


RANDOM = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *[random_stack(s) for s in range(BATCH)])
WIDE = (*RANDOM[:3], jnp.full((BATCH, N), 1e3))


def strict(A, b, W, limit, scale=1.0):
    levels = tuple(GenericTask(a, v, weight=scale * w) for a, v, w in zip(A, b, W, strict=True))
    return solve_hierarchy(Stack(levels, (bounds(-limit, limit),)))


@functools.cache
def strict_batch():
    return quick_jit(jax.vmap(strict, (0, 0, 0, 0, None)))


@functools.cache
def tight():
    return strict_batch()(*RANDOM, 1.0)


def test_lower_levels_do_not_disturb_higher_ones():
    s, A = tight(), RANDOM[0]
    assert (s.status == Status.OK).mean() > 0.97
    for level in range(2):
        claims = jnp.einsum("bij,bkj->bki", A[level], s.levels)
        good = np.asarray((s.status == Status.OK).all(axis=1))
        assert np.abs(claims[good, level + 1 :] - claims[good, level : level + 1]).max() < 1e-7
    assert s.violation.max() < 1e-8


def test_weights_between_levels_change_nothing():
    np.testing.assert_allclose(strict_batch()(*RANDOM, 1e2).x, tight().x, atol=1e-5)


def test_one_step_per_level_without_inequalities():
    i = list(CASES).index("three")
    assert (answers().iterations[i] <= 2).all()


def test_without_active_bounds_the_levels_are_least_squares_in_null_spaces():
    s = strict_batch()(*WIDE, 1.0)
    A, b, W, _ = (jax.tree.map(np.asarray, part) for part in RANDOM)
    for i in range(BATCH):
        x, null = np.zeros(N), np.eye(N)
        for a, v, w in ((A[k][i], b[k][i], W[k][i]) for k in range(3)):
            root = np.linalg.cholesky(w).T @ a @ null
            if null.shape[1]:
                x = x + null @ np.linalg.lstsq(root, np.linalg.cholesky(w).T @ (v - a @ x), rcond=None)[0]
                _, sv, vt = np.linalg.svd(root)
                null = null @ vt[(sv > 1e-9).sum() :].T
        np.testing.assert_allclose(s.x[i], x, atol=1e-6)


def test_derivatives_match_finite_differences():
    r = np.random.default_rng(5)
    directions = [jnp.asarray(r.normal(size=a.shape)) for a in RANDOM[1]]

    def along(A, b, W, limit, d):
        at = lambda t: strict(A, [x + t * y for x, y in zip(b, d, strict=True)], W, limit).x  # noqa: E731
        return jax.jvp(at, (jnp.asarray(0.0),), (jnp.asarray(1.0),))[1]

    exact = quick_jit(jax.vmap(along))(*RANDOM, directions)
    h = 1e-5
    ends = [
        strict_batch()(
            RANDOM[0], [x + s * h * y for x, y in zip(RANDOM[1], directions, strict=True)], *RANDOM[2:], 1.0
        ).x
        for s in (1, -1)
    ]
    error = np.abs(exact - (ends[0] - ends[1]) / (2 * h)).max(axis=1)
    assert np.isfinite(exact).all()
    # where a bound comes or goes within the step, or the last level has no freedom left, the derivative has sides
    assert np.median(error) < 1e-5
