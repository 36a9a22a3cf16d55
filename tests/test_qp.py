"""Quadratic programs: answers known by hand, the optimality conditions, derivatives, other solvers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import InputError, Status
from jaxdyn.tasks import QP, solve_qp

INF = np.inf
EYE = np.eye(2)


def both(x):
    """A program of two unknowns as six equal-shaped arrays: one compiled function serves all."""
    return jnp.asarray(x)


def padded(P, q, A=(), b=(), G=(), lower=(), upper=(), x_lower=(-INF, -INF), x_upper=(INF, INF), dtype=np.float64):
    """Two unknowns, two equality rows and four others; what is missing is rows of zeros without bounds."""

    def fill(values, shape, value=0.0):
        out = np.full(shape, value)
        values = np.asarray(values, float)
        if values.size:
            out[: len(values)] = values
        return out

    parts = (
        np.asarray(P, float), np.asarray(q, float), fill(A, (2, 2)), fill(b, 2), fill(G, (4, 2)),
        fill(lower, 4, -INF), fill(upper, 4, INF), np.asarray(x_lower, float), np.asarray(x_upper, float),
    )  # fmt: skip
    return tuple(p.astype(dtype) for p in parts)


CASES = {
    # trial T48: infinite bounds, no rows, no linear term, a doubled equality with a singular P
    "infinite": (
        padded([[6, 1], [1, 4]], [-3, 2], G=[[-1, 0], [0, -1], [1, 1], [1, 0]], upper=[0, -0.1, INF, INF]),
        (0.4833333333, 0.1),
    ),
    "free": (padded([[6, 1], [1, 4]], [-3, 2]), (0.6086956522, -0.652173913)),
    "no_linear": (padded([[4, 1], [1, 2]], [0, 0], [[1, 1]], [1]), (0.25, 0.75)),
    "doubled": (padded([[1, 0], [0, 0]], [-1, 0], [[1, 1], [2, 2]], [1, 2]), (1.0, 0.0)),
    # T17
    "box": (padded(EYE, [-1, -2], x_lower=[-0.5] * 2, x_upper=[0.5] * 2), (0.5, 0.5)),
    "box_and_row": (padded(EYE, [-1, -2], [[1, 1]], [1], x_upper=[0.5, 0.8]), (0.2, 0.8)),
    "redundant": (padded(EYE, [0, 0], [[1, 1], [2, 2]], [1, 2]), (0.5, 0.5)),
    "linear": (padded(0 * EYE, [1, -1], x_lower=[-1, -1], x_upper=[1, 1]), (-1.0, 1.0)),
    # a bound that is an equality, OpenSoT's large numbers for infinity
    "pinned": (padded(EYE, [-1, -2], x_lower=[0.3, -1e20], x_upper=[0.3, 1e20]), (0.3, 2.0)),
    "row_pinned": (padded(EYE, [0, 0], G=[[1, 1]], lower=[1], upper=[1]), (0.5, 0.5)),
}
INFEASIBLE = {
    "rows": padded(EYE, [-1, -2], G=[[1, 0], [1, 0]], lower=[-INF, 1], upper=[-1, INF]),
    "bounds": padded(EYE, [-1, -2], x_lower=[1, 0], x_upper=[-1, 1]),
    "equalities": padded(EYE, [-1, -2], [[1, 1], [1, 1]], [0, 1]),
    "equality_and_box": padded(EYE, [0, 0], [[2, 2]], [18], x_lower=[0, 0], x_upper=[1, 1]),
}
UNBOUNDED = padded(0 * EYE, [-1, -2], G=[[1, 0]], upper=[1])


def solve(*parts):
    return solve_qp(QP(*parts))


solve_batch = quick_jit(jax.vmap(solve))


@functools.cache
def solved(dtype=np.float64):
    programs = [c[0] for c in CASES.values()] + [*INFEASIBLE.values(), UNBOUNDED]
    stacked = [np.stack(p).astype(dtype) for p in zip(*programs, strict=True)]
    return jax.tree.map(np.asarray, solve_batch(*stacked))


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-9), (np.float32, 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_answers_known_by_hand_in_one_mixed_batch(name, dtype, tolerance):
    solution, i = solved(dtype), list(CASES).index(name)
    assert solution.x.dtype == dtype
    assert solution.status[i] == Status.OK
    np.testing.assert_allclose(solution.x[i], CASES[name][1], atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_cannot_be_satisfied_says_so_and_stays_finite(dtype):
    solution = solved(dtype)
    start = len(CASES)
    assert list(solution.status[start:-1]) == [Status.INFEASIBLE] * len(INFEASIBLE)
    assert solution.status[-1] == Status.UNBOUNDED
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(solution))
    assert (solution.violation[start:-1] > 0.1).all()


def test_a_lane_is_solved_as_it_is_alone():
    alone = quick_jit(solve)(*CASES["box_and_row"][0])
    i = list(CASES).index("box_and_row")
    np.testing.assert_allclose(alone.x, solved().x[i], atol=1e-11)
    np.testing.assert_allclose(alone.z_x, [0.6, 1.0 + 0.0 - 0.0], atol=2.0)  # finite multipliers
    assert alone.iterations == solved().iterations[i]


def test_programs_without_any_row_or_bound():
    empty = solve_qp(QP([[2.0, 0.0], [0.0, 1.0]], [-2.0, 1.0]))
    np.testing.assert_allclose(empty.x, [1.0, -1.0], atol=1e-12)
    assert empty.success and empty.y.shape == empty.z.shape == empty.z_x.shape == (0,)
    gradient = jax.grad(lambda q: solve_qp(QP(jnp.asarray([[2.0, 0.0], [0.0, 1.0]]), q)).x.sum())(
        jnp.array([-2.0, 1.0])
    )
    np.testing.assert_allclose(gradient, [-0.5, -1.0], atol=1e-9)


def random_program(seed, n=5, equalities=2, rows=4, rank=None):
    r = np.random.default_rng(seed)
    x = r.normal(size=n)
    M, A, G = r.normal(size=(n, rank or n)), r.normal(size=(equalities, n)), r.normal(size=(rows, n))
    return (
        M @ M.T, 3 * r.normal(size=n), A, A @ x, G, G @ x - r.uniform(0.05, 1, rows), G @ x + r.uniform(0.05, 1, rows),
        x - r.uniform(0.05, 0.5, n), x + r.uniform(0.05, 0.5, n),
    )  # fmt: skip


RANDOM = [
    np.stack(p) for p in zip(*[random_program(seed, rank=5 if seed % 3 else 3) for seed in range(48)], strict=True)
]
# equalities that repeat each other in every third
RANDOM[2][::3, 1], RANDOM[3][::3, 1] = 2 * RANDOM[2][::3, 0], 2 * RANDOM[3][::3, 0]


@functools.cache
def random_solution():
    """Two threads and a batch: what LAPACK in a compiled loop does not survive everywhere."""
    return jax.tree.map(np.asarray, solve_batch(*RANDOM))


def test_optimality_conditions_hold_on_random_programs():
    P, q, A, b, G, lower, upper, x_lower, x_upper = RANDOM
    s = random_solution()
    assert (s.status == Status.OK).all() and (s.iterations <= 25).all()
    times = functools.partial(np.einsum, "bij,bj->bi")
    stationary = times(P, s.x) + q + np.einsum("bij,bi->bj", A, s.y) + np.einsum("bij,bi->bj", G, s.z) + s.z_x
    assert np.abs(stationary).max() < 1e-8
    assert np.abs(times(A, s.x) - b).max() < 1e-8 and s.violation.max() < 1e-8
    for value, low, high, z in ((times(G, s.x), lower, upper, s.z), (s.x, x_lower, x_upper, s.z_x)):
        assert np.abs(np.minimum(high - value, np.maximum(z, 0))).max() < 1e-6
        assert np.abs(np.minimum(value - low, np.maximum(-z, 0))).max() < 1e-6


@pytest.mark.parametrize("name", ["quadprog", "daqp", "clarabel", "proxqp"])
def test_other_solvers_agree(name):
    qpsolvers = pytest.importorskip("qpsolvers", reason="the solvers of other people are in the extra [bench]")
    if name not in qpsolvers.available_solvers:
        pytest.skip(f"{name} is not installed")
    import scipy.sparse

    options = {"eps_abs": 1e-9} if name == "proxqp" else {}
    s, compared = random_solution(), 0
    for i in range(48):
        P, q, A, b, G, lower, upper, x_lower, x_upper = (p[i] for p in RANDOM)
        if i % 3 == 0:
            continue  # not unique, or refused by some
        P, G2, A = P, np.vstack([G, -G]), A
        if name == "clarabel":
            P, G2, A = (scipy.sparse.csc_matrix(m) for m in (P, G2, A))
        x = qpsolvers.solve_qp(
            P, q, G2, np.concatenate([upper, -lower]), A, b, x_lower, x_upper, solver=name, **options
        )
        np.testing.assert_allclose(s.x[i], x, atol=1e-5)
        compared += 1
    assert compared >= 10


def outputs(parts):
    s = solve(*parts)
    return jnp.concatenate([s.x, s.y, s.z, s.z_x, s.slack_lower, s.slack_upper])


@functools.cache
def derivatives():
    """Along two random directions of all data: tangents, cotangents, second derivatives and their differences."""
    r = np.random.default_rng(3)
    keep = [i for i in range(48) if i % 3][:12]
    parts = [jnp.asarray(p[np.asarray(keep)]) for p in RANDOM]
    u, w = ([jnp.asarray(r.normal(size=p.shape)) for p in parts] for _ in range(2))
    weight = jnp.asarray(r.normal(size=(5 + 2 + 4 + 5 + 9 + 9)))

    def along(parts, u, w):
        """Everything at parts + s u + t w for scalars s, t."""

        def at(st):
            return outputs([p + st[0] * a + st[1] * c for p, a, c in zip(parts, u, w, strict=True)])

        zero = jnp.zeros(2)
        forward = jax.jacfwd(at)
        return (
            at(zero),
            forward(zero),
            jax.jacrev(at)(zero),
            jax.jacfwd(forward)(zero),
            jax.hessian(lambda st: at(st) @ weight)(zero),
        )

    def differences(parts, u, w, h):
        at = lambda s, t: outputs([p + s * a + t * c for p, a, c in zip(parts, u, w, strict=True)])  # noqa: E731
        first = jnp.stack([(at(h, 0.0) - at(-h, 0.0)) / (2 * h), (at(0.0, h) - at(0.0, -h)) / (2 * h)], axis=1)
        return first

    def second(parts, u, w, h):
        def forward(s):
            return jax.jvp(
                lambda t: outputs([p + s * a + t * c for p, a, c in zip(parts, u, w, strict=True)]), (0.0,), (1.0,)
            )[1]

        return (forward(h) - forward(-h)) / (2 * h)

    exact = quick_jit(jax.vmap(along))(parts, u, w)
    first = quick_jit(jax.vmap(functools.partial(differences, h=1e-5)))(parts, u, w)
    mixed = quick_jit(jax.vmap(functools.partial(second, h=1e-5)))(parts, u, w)
    return jax.tree.map(np.asarray, (*exact, first, mixed, weight))


def error(a, b):
    axes = tuple(range(1, a.ndim))
    return np.abs(a - b).max(axis=axes) / (1 + np.abs(b).max(axis=axes))


def test_both_modes_agree_and_match_finite_differences():
    _, forward, reverse, _, _, first, _, _ = derivatives()
    assert error(forward, reverse).max() < 1e-9
    # a change of the active set within the step leaves outliers
    assert np.median(error(forward, first)) < 1e-7 and np.sort(error(forward, first))[-3] < 1e-5


def test_second_derivatives_match_finite_differences_of_first_ones():
    _, _, _, second, hessian, _, mixed, weight = derivatives()
    assert np.median(error(second[:, :, 0, 1], mixed)) < 1e-6 and np.sort(error(second[:, :, 0, 1], mixed))[-3] < 1e-4
    assert error(np.einsum("bkij,k->bij", second, weight), hessian).max() < 1e-7


def test_gradients_are_finite_with_infinite_bounds_and_repeated_rows():
    programs = [c[0] for c in CASES.values()] + list(INFEASIBLE.values())
    parts = [jnp.asarray(np.stack(p)) for p in zip(*programs, strict=True)]
    gradients = quick_jit(jax.vmap(jax.grad(lambda parts: solve(*parts).x.sum())))(parts)
    assert all(np.isfinite(g).all() for g in gradients)
    i = list(CASES).index("redundant")
    np.testing.assert_allclose(gradients[1][i], 0.0, atol=1e-8)  # x is fixed along (1, 1), q moves it along (1, -1)
    i = list(CASES).index("infinite")
    np.testing.assert_allclose(gradients[1][i], [-1 / 6, 0.0], atol=1e-8)


def test_elastic_finds_the_least_violation_and_leaves_feasible_programs_alone():
    programs = [INFEASIBLE["equality_and_box"], CASES["box_and_row"][0]]
    stacked = [np.stack(p) for p in zip(*programs, strict=True)]
    s = quick_jit(jax.vmap(lambda *parts: solve_qp(QP(*parts), elastic=100.0)))(*stacked)
    assert (s.status == Status.OK).all()
    np.testing.assert_allclose(s.x[1], [0.2, 0.8], atol=1e-7)
    # moving x out of the box costs half of what missing 2 x1 + 2 x2 = 18 does
    np.testing.assert_allclose(s.x[0], [4.5, 4.5], atol=1e-6)
    np.testing.assert_allclose(s.violation, [3.5, 0.0], atol=1e-6)


def test_a_warm_start_saves_iterations():
    moved = [p.copy() for p in RANDOM]
    moved[1] += 1e-4
    cold = random_solution()
    again = quick_jit(jax.vmap(lambda s, *parts: solve_qp(QP(*parts), initial=s)))(cold, *moved)
    assert (again.status == Status.OK).all()
    assert np.asarray(again.iterations).mean() < cold.iterations.mean() - 1


def test_mistakes_are_named():
    with pytest.raises(InputError, match="P: wanted a square matrix"):
        QP([[1.0, 2.0]], [1.0])
    with pytest.raises(InputError, match="q: wanted shape"):
        QP([[1.0]], [1.0, 2.0])
    with pytest.raises(InputError, match="A: rows without b"):
        QP([[1.0]], [1.0], [[1.0]])
    with pytest.raises(InputError, match="G: rows without bounds"):
        QP([[1.0]], [1.0], G=[[1.0]])
    with pytest.raises(InputError, match="upper: given without"):
        QP([[1.0]], [1.0], upper=[1.0])
