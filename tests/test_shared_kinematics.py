"""Functions of one robot share its kinematics, and give what they give alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import FOOT, SQUARE
from evaluations import quick_jit
from random_trees import random_model

from jaxdyn.functions import (
    CenterOfMass,
    ConvexShapeContact,
    ConvexShapeContactHold,
    FunctionSet,
    KinematicFunction,
    PointDistance,
    Position,
    kinematic,
    solve_newton,
)
from jaxdyn.math.lie_space import LieSpace

MODEL = random_model(1054, 6, types=("revolute",), fixed=0.0, dtype=jnp.float64)
LAST = MODEL.tree.joint_names[-1]
FUNCTIONS = [
    Position(MODEL, LAST),
    CenterOfMass(MODEL),
    PointDistance(MODEL, LAST, [0.0, 0.1, 0.0], None, [3.0, 0.0, 0.0]),
    ConvexShapeContactHold(ConvexShapeContact(MODEL, [(None, SQUARE)], [(LAST, FOOT)])),
]
Q = jnp.asarray(np.random.default_rng(3).normal(size=MODEL.nq))


@pytest.fixture
def calls(monkeypatch):
    """Robots whose kinematics have been computed."""
    seen = []
    compute = kinematic.forward_kinematics

    def counted(model, q):
        seen.append(model)
        return compute(model, q)

    monkeypatch.setattr(kinematic, "forward_kinematics", counted)
    return seen


class Shifted(Position):
    """A position with another value, defined from the configuration."""

    def value(self, q):
        return super().value(q) + 1


class Height(KinematicFunction):
    """Height of the centre of mass, by the least that a subclass must define."""

    inner: CenterOfMass

    @property
    def input_space(self):
        return self.inner.input_space

    @property
    def output_space(self):
        return LieSpace.R(1)

    def value_with(self, q, kin):
        return self.inner.value_with(q, kin)[2:]


def test_a_set_computes_kinematics_once(calls):
    together = FunctionSet(FUNCTIONS)
    value, jacobian = quick_jit(lambda q: together.value_and_jacobian(q))(Q)
    assert len(calls) == 1
    jax.eval_shape(lambda q: together.value(q), Q)
    assert len(calls) == 2
    alone = quick_jit(lambda q: [f.value_and_jacobian(q) for f in FUNCTIONS])(Q)
    np.testing.assert_allclose(value, np.concatenate([y for y, _ in alone]), rtol=0, atol=1e-14)
    np.testing.assert_allclose(jacobian, np.concatenate([j for _, j in alone]), rtol=0, atol=1e-14)


def test_robots_that_differ_in_a_number_have_kinematics_of_their_own(calls):
    moved = eqx.tree_at(lambda m: m.joint_placement.translation, MODEL, MODEL.joint_placement.translation + 0.1)
    other = Position(moved, LAST)
    values = kinematic.values_of([FUNCTIONS[0], other, FUNCTIONS[1]], Q)
    assert len(calls) == 2
    np.testing.assert_array_equal(values[1], other.value(Q))
    assert np.abs(values[1] - values[0]).max() > 0.01


def test_a_method_of_a_subclass_is_used(calls):
    a, b = kinematic.values_of([FUNCTIONS[0], Shifted(MODEL, LAST)], Q)
    np.testing.assert_array_equal(b, a + 1)


def test_the_least_that_a_function_must_define():
    height = Height(FUNCTIONS[1], name="height")
    together = FunctionSet([height, FUNCTIONS[1]])
    value, jacobian = quick_jit(lambda q: together.value_and_jacobian(q))(Q)
    np.testing.assert_array_equal(value[0], value[3])
    np.testing.assert_allclose(jacobian[0], jacobian[3], atol=1e-12)


def test_newton_computes_kinematics_as_often_for_two_functions_as_for_one(calls):
    targets = [Position(MODEL, LAST), CenterOfMass(MODEL, mask=(True, False, False))]

    def solved(q, model, which):
        constraints = [eqx.tree_at(lambda f: f.model, f, model) for f in targets[:which]]
        return solve_newton(constraints, q, max_iterations=5).q

    counts = []
    for which in (1, 2):
        calls.clear()
        jax.eval_shape(lambda q, m, which=which: jax.jvp(lambda p: solved(p, m, which), (q,), (q,)), Q, MODEL)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0
