"""Functions between spaces: members, masks, differences, equality, sets, parts, and constraints made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import tree
from evaluations import quick_jit

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.functions import (
    AlongLine,
    Comparison,
    ConfigurationSpace,
    DifferentiableFunction,
    Explicit,
    FunctionSet,
    Implicit,
    OfParameterSubset,
    Position,
    RelativePosition,
    SelectedRows,
    automatic_jacobian,
    restrict,
)
from jaxdyn.math.lie_space import LieElement, LieSpace

IN = LieSpace.R(2) * LieSpace.SO2()
OUT = LieSpace.SO2() * LieSpace.R(2)


class Twisted(DifferentiableFunction):
    """(x, angle) -> (angle + k x_0, k x_1^2, 1): of x_0, x_1 and the angle, not of the length of (cos, sin)."""

    k: jax.Array

    @property
    def input_space(self):
        return IN

    @property
    def output_space(self):
        return OUT

    def value(self, q):
        q = jnp.asarray(q)
        turn = LieSpace.SO2().plus(q[2:], self.k * q[:1])
        return jnp.concatenate([turn, jnp.stack([self.k * q[1] ** 2, jnp.ones_like(self.k)])])


class Wave(DifferentiableFunction):
    """t -> (sin t, t^2)."""

    @property
    def input_space(self):
        return LieSpace.R(1)

    @property
    def output_space(self):
        return LieSpace.R(2)

    def value(self, q):
        return jnp.concatenate([jnp.sin(q), jnp.asarray(q) ** 2])


class Half(DifferentiableFunction):
    """The first coordinate alone, doubled; the mask says so."""

    @property
    def input_space(self):
        return IN

    @property
    def output_space(self):
        return LieSpace.R(1)

    def value(self, q):
        return 2.0 * jnp.asarray(q)[:1]

    @property
    def active_parameters(self):
        return np.arange(IN.nq) == 0

    @property
    def active_derivative_parameters(self):
        return np.arange(IN.nv) == 0


F = Twisted(jnp.asarray(0.7), name="twisted")
Q = np.array([0.4, -1.3, np.cos(2.5), np.sin(2.5)])


def test_sizes_spaces_names_and_the_value_as_an_element():
    assert (F.input_size, F.input_derivative_size, F.output_size, F.output_derivative_size) == (4, 3, 4, 3)
    assert F.active_parameters.all()
    assert F.active_derivative_parameters.shape == (3,)
    element = F(Q)
    assert isinstance(element, LieElement)
    assert element.space == OUT
    np.testing.assert_array_equal(element.value, F.value(Q))
    other = F.with_context("gait 3")
    assert (other.context, F.context, other.name) == ("gait 3", "", "twisted")
    assert repr(F) == "Twisted('twisted': R^2 x SO(2) -> SO(2) x R^2)"
    assert "context: gait 3" in str(other)
    assert F.relative_pose_bodies is None
    assert F.depends_on_rel_pose_between() == (None, None)


def test_the_default_jacobian_and_differences():
    @quick_jit
    def everything(q):
        exact = F.jacobian(q)
        return exact, *(
            getattr(F, f"finite_difference_{way}")(q, step=step)
            for way in ("central", "forward")
            for step in ("absolute", "relative")
        )

    exact, *numeric = everything(Q)
    np.testing.assert_allclose(exact, [(0.7, 0, 1), (0, 2 * 0.7 * -1.3, 0), (0, 0, 0)], atol=1e-14)
    for got, tolerance in zip(numeric, (1e-9, 1e-6, 1e-6, 1e-6), strict=True):
        np.testing.assert_allclose(got, exact, atol=tolerance)
    with pytest.raises(UnknownNameError, match="relative"):
        F.finite_difference_central(Q, step="relativ")


def test_steps_of_the_reference_scale_with_the_coordinate():
    # h = eps |x_j|, or eps where x_j = 0: the error of the one-sided difference of t^2 is h
    wave = Wave()
    for t, h in ((3.0, 3e-4), (0.0, 1e-4), (-2.0, 2e-4)):
        got = wave.finite_difference_forward(np.array([t]), eps=1e-4, step="relative")
        assert float(got[1, 0]) - 2 * t == pytest.approx(h, rel=1e-6)


def test_inactive_columns_are_skipped():
    exact, differences = quick_jit(lambda q: (Half().jacobian(q), Half().finite_difference_central(q)))(Q)
    np.testing.assert_array_equal(exact, [[2, 0, 0]])
    np.testing.assert_allclose(differences, [[2, 0, 0]], atol=1e-9)


def test_equality_is_structural_and_there_is_no_hash():
    assert F == Twisted(jnp.asarray(0.7), name="twisted")
    assert F == F.with_context("other")
    assert F != Twisted(jnp.asarray(0.7000001), name="twisted")
    assert F != Twisted(jnp.asarray(0.7, jnp.float32), name="twisted")
    assert F != F.with_name("other")
    assert F != Wave()
    assert F != 3
    assert FunctionSet([F.with_context("a"), Half()]) == FunctionSet([F, Half()])
    assert FunctionSet([F, Half()]) != FunctionSet([Half(), F])
    with pytest.raises(TypeError):
        hash(F)


def test_a_set_stacks_values_jacobians_and_masks():
    both = FunctionSet([Half(), F], name="two")
    assert both.output_space == LieSpace.R(1) * OUT

    @quick_jit
    def everything(q):
        parts = jnp.concatenate([Half().value(q), F.value(q)])
        return *both.value_and_jacobian(q), both.jacobian(q), parts, F.jacobian(q)

    value, jacobian, again, parts, inner = everything(Q)
    np.testing.assert_array_equal(value, parts)
    np.testing.assert_allclose(again, jacobian)
    np.testing.assert_allclose(jacobian[1:], inner, atol=1e-15)
    assert both.active_parameters.all()
    np.testing.assert_array_equal(FunctionSet([Half(), Half()]).active_parameters, Half().active_parameters)
    assert "Half" in str(both)
    assert both.name == "two"
    with pytest.raises(InputError, match="at least one"):
        FunctionSet([])
    with pytest.raises(InputError, match="one argument"):
        FunctionSet([F, Wave()])


def test_the_pair_of_a_set_is_the_one_that_all_share():
    model = tree()
    a, b = RelativePosition(model, "a3", "b2"), RelativePosition(model, "b2", "a3")
    assert FunctionSet([a, b]).depends_on_rel_pose_between() == ("ja3", "jb2")
    assert FunctionSet([a, Position(model, "a3")]).relative_pose_bodies is None


def test_a_function_of_one_number_on_an_interval():
    wave = Wave()
    assert restrict(wave, 0.0, 2.0) is wave
    forward, back = restrict(wave, 1.0, 3.0), restrict(wave, 3.0, 1.0)
    s = np.array([0.25])
    np.testing.assert_allclose(forward.value(s), wave.value(s + 1), atol=1e-15)
    np.testing.assert_allclose(back.value(s), wave.value(3 - s), atol=1e-15)
    np.testing.assert_allclose(back.jacobian(s), -wave.jacobian(3 - s), atol=1e-15)
    np.testing.assert_allclose(back.jacobian(s), automatic_jacobian(back, s), atol=1e-15)
    assert restrict(wave, 0.0, -1.0) is not wave
    with pytest.raises(InputError, match="one number"):
        restrict(F, 0.0, 1.0)


def test_a_function_along_a_line():
    v = np.array([0.3, -0.2, 0.5])
    line = AlongLine(F, Q, v)
    s = np.array([0.8])

    @quick_jit
    def everything(v):
        slope = jax.grad(lambda v: AlongLine(F, Q, v).value(s)[2])(v)
        return line.value(s), F.value(IN.plus(Q, 0.8 * v)), line.jacobian(s), automatic_jacobian(line, s), slope

    value, wanted, jacobian, automatic, slope = everything(jnp.asarray(v))
    np.testing.assert_allclose(value, wanted, atol=1e-15)
    np.testing.assert_allclose(jacobian, automatic, atol=1e-13)
    assert np.isfinite(slope).all()


def test_a_function_of_some_coordinates():
    space = LieSpace.R(3) * IN * LieSpace.R(1)
    part = OfParameterSubset(F, space, 3, 3)
    q = np.concatenate([[1.0, 2, 3], Q, [4.0]])
    value, wanted, jacobian, automatic = quick_jit(
        lambda q: (part.value(q), F.value(Q), part.jacobian(q), automatic_jacobian(part, q))
    )(q)
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_allclose(jacobian, automatic, atol=1e-14)
    assert part.active_parameters.tolist() == [False] * 3 + [True] * 4 + [False]
    assert OfParameterSubset(Half(), space, 3, 3).active_derivative_parameters.sum() == 1
    with pytest.raises(InputError, match="do not fit"):
        OfParameterSubset(F, space, 5, 3)


def test_some_rows_of_a_function():
    rows = SelectedRows(F, [2, 1])
    np.testing.assert_array_equal(rows.value(Q), np.asarray(F.value(Q))[[3, 2]])
    np.testing.assert_allclose(rows.jacobian(Q), np.asarray(F.jacobian(Q))[[2, 1]])
    with pytest.raises(InputError, match="part of a rotation"):
        SelectedRows(F, [0])
    with pytest.raises(InputError, match="rows 0 to 2, given 3"):
        SelectedRows(F, [3])
    with pytest.raises(InputError, match="once"):
        SelectedRows(F, [1, 1])


# --- constraints ----------------------------------------------------------------------------------------------------


def test_comparisons_decide_which_rows_count():
    rhs = OUT.plus(F.value(Q), jnp.array([0.1, 0.5, 0.5]))
    constraint = Implicit(F, [Comparison.EQUALITY, Comparison.SUPERIOR, Comparison.INFERIOR], rhs)

    @quick_jit
    def everything(q):
        exact = jax.jacfwd(lambda d: constraint.residual(IN.plus(q, d)))(jnp.zeros(3))
        return *constraint.residual_and_jacobian(q), constraint.residual(q), exact

    residual, jacobian, again, exact = everything(Q)
    # the second row is below what it should exceed, the third below what it should not
    np.testing.assert_allclose(residual, (-0.1, -0.5, 0), atol=1e-12)
    np.testing.assert_allclose(residual, again, atol=1e-15)
    assert not np.asarray(jacobian)[2].any()
    np.testing.assert_allclose(jacobian, exact, atol=1e-12)
    assert constraint.parameter_rows.tolist() == [True, False, False]
    assert constraint.parameter_size == 1
    assert not bool(constraint.is_satisfied(Q))
    assert bool(Implicit(F, Comparison.EQUALITY, F.value(Q)).is_satisfied(Q))


def test_the_right_hand_side_can_be_taken_from_a_configuration():
    free = Implicit(F, Comparison.EQUALITY)
    held = free.right_hand_side_from(Q)
    np.testing.assert_allclose(held.residual(Q), 0, atol=1e-15)
    fixed = Implicit(F, [Comparison.EQUALITY] + [Comparison.EQUAL_TO_ZERO] * 2).right_hand_side_from(Q)
    np.testing.assert_allclose(fixed.residual(Q), (0, 0.7 * 1.69, 1), atol=1e-12)
    np.testing.assert_allclose(held.with_right_hand_side(OUT.neutral()).right_hand_side, OUT.neutral())
    assert held == Implicit(F, Comparison.EQUALITY, held.right_hand_side)
    assert held != free
    with pytest.raises(InputError, match="3 rows, given 2"):
        Implicit(F, [Comparison.EQUALITY] * 2)
    with pytest.raises(InputError, match="3 rows, given 4"):
        Implicit(F, mask=[True] * 4)


def test_masked_rows_do_not_count():
    residual, jacobian = Implicit(F, mask=[False, True, True]).residual_and_jacobian(Q)
    assert float(residual[0]) == 0
    assert not np.asarray(jacobian)[0].any()
    assert float(residual[2]) == 1


def test_an_explicit_constraint_is_solved_by_its_rule():
    space = LieSpace.R(1) * LieSpace.R(2) * LieSpace.R(1)
    explicit = Explicit.from_function(Wave(), space, [3], [1, 2])
    q = np.array([5.0, 1.0, 1.0, 0.4])
    solved = explicit.solve(q)
    np.testing.assert_allclose(solved, (5, np.sin(0.4), 0.16, 0.4), atol=1e-15)
    np.testing.assert_allclose(explicit.residual(solved), 0, atol=1e-15)
    shifted = explicit.solve(q, np.array([0.1, 0.2]))
    np.testing.assert_allclose(shifted[1:3], (np.sin(0.4) + 0.1, 0.36), atol=1e-15)
    np.testing.assert_allclose(explicit.implicit.with_right_hand_side([0.1, 0.2]).residual(shifted), 0, atol=1e-15)
    assert explicit.implicit.function.active_parameters.tolist() == [False, True, True, True]
    with pytest.raises(InputError, match="cannot be both"):
        Explicit.from_function(Wave(), space, [1], [1, 2])
    with pytest.raises(InputError, match="different indices"):
        Explicit.from_function(Wave(), space, [3], [1])


def test_configurations_are_a_space():
    model = tree()
    space = ConfigurationSpace(model)
    assert (space.nq, space.nv) == (6, 6)
    assert not space.is_vector_space
    assert space.coordinate_of == (0, 1, 2, 3, 4, 5)
    q = space.random(jax.random.key(0))
    np.testing.assert_allclose(space.minus(space.plus(q, 0.1 * np.ones(6)), q), 0.1, atol=1e-14)
    assert space.neutral(jnp.float32).dtype == jnp.float32
    assert str(space) == "configurations (nq=6, nv=6)"


def test_a_step_of_zero_is_refused():
    with pytest.raises(InputError, match="positive step"):
        F.finite_difference_central(np.zeros(F.input_size), eps=0.0)
