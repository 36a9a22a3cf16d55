"""Tasks, constraints and stacks in numbers: what OpenSoT answers to the same questions, and the algebra."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.tasks import (
    Affine,
    AggregatedConstraint,
    AggregatedTask,
    ConstraintData,
    GenericTask,
    HessianType,
    LinearConstraint,
    Stack,
    TaskConstraint,
    TaskData,
    Variables,
    as_constraint,
    bounds,
    constrain,
    equality,
    friction_rows,
    inequality,
    linear_task,
    minimize_variable,
)

A, B, X = np.array([[1.0, 2, 3], [0, 1, -1]]), np.array([1.0, 2]), np.array([0.5, -1, 2])
FULL, SKEW = np.array([[2.0, 1], [1, 3]]), np.array([[2.0, 1], [0, 3]])
exactly = dict(rtol=1e-12, atol=1e-12)


def task(**options):
    return GenericTask(A, B, name="t", **options)


@pytest.mark.parametrize(
    "weight, cost", [(1.0, 37.25), ([2.0, 0.5], 37.0), (FULL, 64.5), (SKEW, 82.0), (4.0, 149.0)], ids=str
)
def test_cost_with_numbers_diagonals_and_matrices_as_weight(weight, cost):
    data = task(weight=weight).evaluate()
    np.testing.assert_allclose(data.cost(X), cost, **exactly)
    # the cost and the quadratic program agree, for a weight that is not symmetric too
    quadratic = 2 * (0.5 * X @ data.H @ X + data.g @ X) + B @ data.weight @ B
    np.testing.assert_allclose(quadratic, cost, **exactly)


def test_products_with_the_weight():
    data = task(weight=FULL).evaluate()
    np.testing.assert_allclose(data.WA, [[2, 5, 5], [1, 5, 0]], **exactly)
    np.testing.assert_allclose(data.Wb, [4, 7], **exactly)
    np.testing.assert_allclose(data.AT, A.T)
    diagonal = task(weight=np.diag(FULL)).evaluate()
    np.testing.assert_allclose(diagonal.WA, [[2, 4, 6], [0, 3, -3]], **exactly)
    np.testing.assert_allclose(diagonal.Wb, [2, 6], **exactly)


def test_gradients_of_the_cost():
    def cost(x, W, b, a):
        return GenericTask(a, b, weight=W).evaluate().cost(x)

    dx, dW, db, dA = jax.grad(cost, (0, 1, 2, 3))(*(jnp.asarray(v) for v in (X, FULL, B, A)))
    np.testing.assert_allclose(dx, [4, -15, 35], **exactly)
    np.testing.assert_allclose(dW, [[12.25, -17.5], [-17.5, 25]], **exactly)
    np.testing.assert_allclose(db, [-4, 23], **exactly)
    np.testing.assert_allclose(dA, [[2, -4, 8], [-11.5, 23, -46]], **exactly)
    np.testing.assert_allclose(
        jax.grad(cost)(jnp.asarray(X), jnp.asarray(SKEW), jnp.asarray(B), jnp.asarray(A)), [9, -8.5, 53.5]
    )


def test_an_inactive_task_has_no_rows_but_keeps_b():
    t = task()
    off = t.with_active(False)
    np.testing.assert_array_equal(off.evaluate().A, np.zeros((2, 3)))
    np.testing.assert_array_equal(off.evaluate().b, B)
    np.testing.assert_allclose(off.cost(X), 5.0)
    np.testing.assert_array_equal(off.with_active(True).evaluate().A, A)


def test_the_mask_selects_columns():
    np.testing.assert_array_equal(task().with_mask([True, False, True]).evaluate().A, [[1, 0, 3], [0, 0, -1]])
    with pytest.raises(InputError, match=r"mask: wanted shape \(3,\), given shape \(2,\)"):
        task().with_mask([True, False]).evaluate()


def test_gain_is_not_negative_and_no_part_of_given_numbers():
    t = task().with_gain(0.5)
    np.testing.assert_array_equal(t.evaluate().b, B)
    with pytest.raises(InputError, match="gain: wanted a number that is not negative"):
        t.with_gain(-1)
    with pytest.raises(InputError, match="weight: wanted a number that is not negative"):
        t.with_weight(-1.0)
    assert t.gain == 0.5


I2 = np.eye(2)
CONSISTENCY = {
    "fresh": (np.zeros((0, 3)), np.zeros(0), None, 3, HessianType.UNKNOWN, False),
    "A only": (A, np.zeros(0), None, 3, HessianType.UNKNOWN, False),
    "A and b without W": (A, B, None, 3, HessianType.UNKNOWN, False),
    "W of 2 x 3": (A, B, np.ones((2, 3)), 3, HessianType.UNKNOWN, False),
    "W of 3 x 3": (A, B, np.eye(3), 3, HessianType.UNKNOWN, False),
    "right": (A, B, I2, 3, HessianType.UNKNOWN, True),
    "c of 2": (A, B, I2, 2, HessianType.UNKNOWN, False),
    "ZERO, A is not": (A, B, I2, 3, HessianType.ZERO, False),
    "ZERO, A is": (0 * A, 0 * B, I2, 3, HessianType.ZERO, True),
    "ZERO, empty": (np.zeros((0, 3)), np.zeros(0), None, 3, HessianType.ZERO, True),
    "SEMIDEF, empty": (np.zeros((0, 3)), np.zeros(0), None, 3, HessianType.SEMIDEF, False),
}


@pytest.mark.parametrize("name", CONSISTENCY)
def test_consistency(name):
    *parts, n, hessian, right = CONSISTENCY[name]
    a, b, W = (None if p is None else jnp.asarray(p, float) for p in parts)
    assert TaskData(a, b, jnp.zeros(n), W, hessian).consistent is right


def test_constraints_of_another_size_are_found():
    t = task() << bounds([0.0, 0.0], [1.0, 1.0])
    with pytest.raises(InputError, match="sizes differ"):
        t.check()
    task().check()


def test_a_subtask_has_exactly_its_rows():
    A4, b4 = np.arange(1.0, 13).reshape(4, 3), np.arange(1.0, 5)
    W = np.array([[10 * i + j for j in range(1, 5)] for i in range(1, 5)], float)
    sub = GenericTask(A4, b4, weight=W, name="t") % [0, 2, 3]
    assert sub.name == "t_0plus2to3" and sub.size_in(None) == 3
    data = sub.evaluate()
    np.testing.assert_array_equal(data.A, A4[[0, 2, 3]])
    np.testing.assert_array_equal(data.weight, [[11, 13, 14], [31, 33, 34], [41, 43, 44]])
    np.testing.assert_array_equal(data.b, [1, 3, 4])
    np.testing.assert_array_equal(sub.with_gain(0.5).evaluate().b, [0.5, 1.5, 2])
    r = b4[[0, 2, 3]] - A4[[0, 2, 3]] @ X
    np.testing.assert_allclose(sub.cost(X), r @ data.weight @ r)  # its own A, b and W
    np.testing.assert_array_equal((2.0 * sub).evaluate().weight, 2 * data.weight)
    with pytest.raises(InputError, match="twice"):
        _ = task() % [1, 1]
    with pytest.raises(InputError, match="rows"):
        (task() % [2]).evaluate()
    long = GenericTask(np.zeros((20, 1)), np.zeros(20), name="t") % [1, 2, 3, 7, 8, 10, 13, 17, 18, 19, 11]
    assert long.name == "t_1to3plus7to8plus10to11plus13plus17to19"


def test_a_sum_of_tasks():
    a, b = task(linear=[1.0, 1, 1]), GenericTask([[1.0, 0, 0]], [5.0], weight=3.0, linear=[0.0, 2, 0], name="b")
    both = a + b
    data = both.evaluate()
    assert both.name == "t+b" and both.size_in(None) == 3
    np.testing.assert_array_equal(data.weight, np.diag([1, 1, 3]))
    np.testing.assert_allclose(data.cost(X), 98.0, **exactly)
    np.testing.assert_allclose(data.cost(X), a.cost(X) + b.cost(X))
    np.testing.assert_array_equal(data.c, [1, 3, 1])
    coupled = 2 * np.eye(3)
    coupled[0, 2] = coupled[2, 0] = 0.5
    np.testing.assert_allclose(both.with_weight(coupled).cost(X), 99.25, **exactly)
    np.testing.assert_array_equal((2 * both.with_weight(coupled)).evaluate().weight, 2 * coupled)
    np.testing.assert_array_equal((2 * both).evaluate().weight, np.diag([2, 2, 6]))
    assert len((both + both).tasks) == 4 and len((both + 2 * both).tasks) == 3
    assert all(t.gain == 0.3 for t in both.with_gain(0.3).tasks)


@pytest.mark.parametrize(
    "types, expected", [((2, 5), 2), ((5, 2), 5), ((0, 0), 0), ((1, 1), 4), ((1,), 1), ((4, 0), 4)], ids=str
)
def test_hessian_type_of_a_sum(types, expected):
    assert AggregatedTask(tuple(task(hessian=HessianType(k)) for k in types)).hessian == expected


def test_products_change_the_weight():
    t = task(weight=FULL)
    np.testing.assert_allclose((2 * t).evaluate().weight, 2 * FULL)
    np.testing.assert_allclose((np.diag([1.0, 10]) * t).evaluate().weight, np.diag([1.0, 10]) @ FULL)
    np.testing.assert_allclose(t.with_cost(3.0).evaluate().weight, 9 * I2)
    with pytest.raises(InputError, match="factor"):
        _ = np.eye(3) * t
    assert (2 * t).evaluate().weight.dtype == jnp.float64


def test_the_cost_does_not_depend_on_the_basis_of_the_rows():
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    mixed = GenericTask(Q @ A, Q @ B, weight=Q @ FULL @ Q.T)
    np.testing.assert_allclose(mixed.cost(X), task(weight=FULL).cost(X), **exactly)
    np.testing.assert_allclose((3.0 * task(weight=FULL)).cost(X), 3 * task(weight=FULL).cost(X), **exactly)


def test_changing_a_leaf_compiles_nothing_anew():
    traces = []

    @eqx.filter_jit
    def cost(t):
        traces.append(1)
        return t.cost(X)

    t = task()
    values = [cost(s) for s in (t, t.with_weight(4.0), t.with_active(False), dataclasses.replace(t, b=B + 1.0))]
    np.testing.assert_allclose(values[:3], [37.25, 149.0, 5.0])
    assert len(traces) == 1


# -- constraints

KINDS = {
    "both bounds": (dict(lower=[0.0], upper=[1.0]), "is_bound has_bounds", True),
    "lower bound": (dict(lower=[0.0]), "is_bound has_bounds", True),
    "upper bound": (dict(upper=[0.0]), "is_bound has_bounds", True),
    "equality": (dict(A_eq=[[1.0]], b_eq=[1.0]), "is_equality is_constraint", True),
    "equality with a wrong b": (dict(A_eq=[[1.0]], b_eq=[1.0, 2.0]), "is_equality is_constraint", False),
    "upper side": (dict(A_in=[[1.0]], b_upper=[1.0]), "is_inequality is_unilateral is_constraint", True),
    "lower side": (dict(A_in=[[1.0]], b_lower=[1.0]), "is_inequality is_unilateral is_constraint", True),
    "both sides": (dict(A_in=[[1.0]], b_lower=[1.0], b_upper=[1.0]), "is_inequality is_bilateral is_constraint", True),
    "no side": (dict(A_in=[[1.0]]), "is_inequality is_unilateral is_constraint", False),
    "empty": ({}, "", False),
    "two kinds": (
        dict(A_in=[[1.0]], b_upper=[1.0], A_eq=[[1.0]], b_eq=[1.0]),
        "is_equality is_inequality is_unilateral is_constraint", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_constraints(name):
    parts, predicates, consistent = KINDS[name]
    data = ConstraintData(**{k: jnp.asarray(v) for k, v in parts.items()})
    names = [p for p in dir(ConstraintData) if p.startswith(("is_", "has_"))]
    assert {p for p in names if getattr(data, p)} == set(predicates.split())
    assert data.consistent is consistent


def test_bounds_are_intersected_and_rows_stacked():
    b1, b2 = bounds([-1.0, -2, -3], [1.0, 2, 3], name="b1"), bounds([-2.0, -1, -4], [0.5, 5, 2], name="b2")
    eq = equality([[1.0, 1, 1]], [1.0])
    upper, lower = inequality([[1.0, 0, 0]], upper=[4.0]), inequality([[0.0, 1, 0]], lower=[-4.0])
    d = AggregatedConstraint((b1, b2, eq, upper, lower)).evaluate()
    np.testing.assert_array_equal(d.lower, [-1, -1, -3])
    np.testing.assert_array_equal(d.upper, [0.5, 2, 2])
    np.testing.assert_array_equal(d.A_in, [[1, 1, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(d.b_lower, [1, -np.inf, -4])
    np.testing.assert_array_equal(d.b_upper, [1, 4, np.inf])
    assert d.has_bounds and not d.is_bound and d.is_constraint
    kept = AggregatedConstraint((eq, lower), equalities_to_inequalities=False, unilateral_to_bilateral=False).evaluate()
    np.testing.assert_array_equal(kept.A_eq, [[1, 1, 1]])
    np.testing.assert_array_equal(kept.A_in, [[0, -1, 0]])  # -y <= 4
    np.testing.assert_array_equal(kept.b_upper, [4])


def test_some_rows_of_a_constraint():
    sub = bounds([-1.0, -2, -3], [1.0, 2, 3], name="b1") % [0, 2]
    d = sub.evaluate()
    assert sub.name == "b1_0plus2"
    np.testing.assert_array_equal(d.A_in, [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(d.b_lower, [-1, -3])
    np.testing.assert_array_equal(d.b_upper, [1, 3])
    np.testing.assert_array_equal((inequality(A, B) % [1]).evaluate().A_in, A[1:])


def test_a_task_as_a_constraint():
    t = task()
    np.testing.assert_array_equal(as_constraint(t).evaluate().A_eq, A)
    d = as_constraint(t, [-0.1, -0.2], [0.1, 0.3]).evaluate()
    np.testing.assert_allclose(d.b_lower, [0.9, 1.8], **exactly)
    np.testing.assert_allclose(d.b_upper, [1.1, 2.3], **exactly)
    off = as_constraint(t.with_active(False), [-0.1, -0.2], [0.1, 0.3]).evaluate()
    assert np.isneginf(off.b_lower).all() and np.isposinf(off.b_upper).all()
    np.testing.assert_array_equal(as_constraint(t.with_active(False)).evaluate().b_eq, [0, 0])  # 0 x = 0
    weighed = as_constraint(t.with_weight(FULL)).evaluate()  # rows of W A x = W b say the same
    np.testing.assert_array_equal(weighed.A_eq, A)
    with pytest.raises(InputError, match="upper_error"):
        TaskConstraint(t, [1.0, 1.0], [0.0, 0.0])
    with pytest.raises(InputError, match="wanted a Constraint or a Task"):
        _ = t << 3.0


def test_the_friction_pyramid():
    C = np.asarray(friction_rows(jnp.asarray(0.6)))
    np.testing.assert_allclose(-C[0, 2], 0.6 / np.sqrt(2), rtol=1e-15)
    assert C.shape == (5, 3)
    assert (C @ [0.42, 0, 1] <= 0).all() and not (C @ [0.43, 0, 1] <= 0).all() and not (C @ [0, 0, -0.1] <= 0).all()
    many = np.asarray(friction_rows(jnp.asarray(0.6), 16))
    angle = np.linspace(0, 2 * np.pi, 100)
    edge = np.stack([0.6 * 0.98 * np.cos(angle), 0.6 * 0.98 * np.sin(angle), 1 + 0 * angle])
    assert (many @ edge <= 0).all()
    assert (many @ (edge * [[1.03], [1.03], [1]]) > 0).any(axis=0).all()


# -- affine expressions


def test_affine_expressions():
    v = Variables({"a": 2, "f": 3})
    f = v["f"]
    z = np.array([[1.0, 2, 3]]) @ f + np.array([4.0])
    x = np.arange(1.0, 6)
    np.testing.assert_array_equal(z(x), [30])
    np.testing.assert_array_equal((v["a"] / z).M, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 2, 3]])
    d = GenericTask([[2.0]], [3.0], variable=z).evaluate()
    np.testing.assert_array_equal(d.A, [[0, 0, 2, 4, 6]])
    np.testing.assert_array_equal(d.b, [-5])
    m = minimize_variable(z).evaluate()
    np.testing.assert_array_equal(m.A, z.M)
    np.testing.assert_array_equal(m.b, [-4])
    c = constrain(z, [-10.0], [10.0]).evaluate()
    np.testing.assert_array_equal([c.b_lower[0], c.b_upper[0]], [-14, 6])
    np.testing.assert_array_equal((2 * z - z)(x), z(x))
    np.testing.assert_array_equal((1.0 * f - x[2:])(x), [0, 0, 0])
    np.testing.assert_array_equal(f[1:](x), [4, 5])
    np.testing.assert_array_equal(Affine.zero(2, 5)(x), [0, 0])
    np.testing.assert_array_equal(v.split(x)["f"], [3, 4, 5])
    with pytest.raises(UnknownNameError, match="unknown variable 'g'"):
        _ = v["g"]
    with pytest.raises(InputError, match="twice"):
        Variables([("a", 1), ("a", 2)])
    with pytest.raises(InputError, match="5 and 3 unknowns"):
        _ = f / Affine.identity(3)
    with pytest.raises(InputError, match="lower is above upper"):
        constrain(z, [1.0], [0.0])


# -- stacks


def test_operators_build_stacks():
    a, b, c = (GenericTask(np.eye(2), np.zeros(2), name=n) for n in "abc")
    limit = bounds([0.0, 0.0], [1.0, 1.0])
    stack = a / (b + 0.1 * c) << limit << limit << a
    assert [level.name for level in stack.levels] == ["a", "b+c"] and len(stack.constraints) == 2
    assert stack.task("c").name == "c" and len(stack.tasks) == 3
    with pytest.raises(UnknownNameError, match="unknown task 'd'"):
        stack.task("d")
    assert [t.name for t in (a / b / c).levels] == list("abc")
    joined = (a / b << limit) / (c / a << limit)
    assert len(joined.levels) == 4 and len(joined.constraints) == 1
    assert [t.name for t in (a / (b / c)).levels] == list("abc")
    stack.check()
    assert {"a_A", "b_b", "c_W", "bounds_lower"} <= set(stack.diagnostics())
    with pytest.raises(InputError, match="wanted tasks, given float"):
        Stack((3.0,))
    with pytest.raises(InputError, match="different numbers of unknowns"):
        (a / task()).evaluate()
    assert linear_task([1.0, -1.0]).evaluate().consistent


def test_a_task_without_reference_says_so():
    with pytest.raises(NotImplementedError, match="no reference"):
        task().reset(None)
    assert LinearConstraint(lower=[0.0]).evaluate().has_bounds
