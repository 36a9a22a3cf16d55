"""Newton's method: convergence, statuses, priorities, limits, restarts, batches, derivatives."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import InputError, Status, UnknownNameError
from jaxdyn.functions import Comparison, DifferentiableFunction, Implicit, Position, Posture, SelectedRows, solve_newton
from jaxdyn.math import so3
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.model import difference, load


class Curves(DifferentiableFunction):
    """Of the plane and a rotation: (|x|^2 - r^2, x_0 - a x_1, R): a circle, a line, and the rotation itself."""

    radius: jax.Array
    slope: jax.Array

    @property
    def input_space(self):
        return LieSpace.R(2) * LieSpace.SO3()

    @property
    def output_space(self):
        return LieSpace.R(2) * LieSpace.SO3()

    def value(self, q):
        x = q[:2]
        rows = jnp.stack([jnp.sum(x * x) - self.radius**2, x[0] - self.slope * x[1]])
        return jnp.concatenate([rows, so3.quaternion_normalize(q[2:])])


class Circle(DifferentiableFunction):
    """|x|^2 - r^2 in the plane."""

    radius: jax.Array

    @property
    def input_space(self):
        return LieSpace.R(2)

    @property
    def output_space(self):
        return LieSpace.R(1)

    def value(self, q):
        return (jnp.sum(q * q) - self.radius**2)[None]


CURVES = Curves(jnp.asarray(2.0), jnp.asarray(0.5))
START = np.array([1.0, 3.0, 0.5, 0.5, -0.5, 0.5])
TURN = np.array([0.3, -0.4, 0.5])


def constraint(curves=CURVES, **options):
    target = LieSpace.R(2).neutral(), so3.quaternion_exp(jnp.asarray(TURN))
    return Implicit(curves, Comparison.EQUALITY, jnp.concatenate(target), **options)


@functools.cache
def solved(method):
    starts = jnp.asarray(np.stack([START, -START, np.full(6, np.nan), np.array([1e-9, 2e-9, 1, 0, 0, 0])]))
    run = quick_jit(jax.vmap(lambda c, q: solve_newton(c, q, method=method), (None, 0)))
    return run(constraint(), starts)


@pytest.mark.parametrize("method", ["gauss_newton", "levenberg_marquardt"])
def test_it_finds_the_solution_on_the_manifold(method):
    result = solved(method)
    y = 2 / np.sqrt(1.25)
    wanted = np.concatenate([[0.5 * y, y], so3.quaternion_exp(jnp.asarray(TURN))])
    assert np.asarray(result.status)[:2].tolist() == [Status.OK.value] * 2
    same_sign = np.asarray(result.q[0]) * np.where(np.arange(6) < 2, 1, np.sign(result.q[0, 2] * wanted[2]))
    np.testing.assert_allclose(same_sign, wanted, atol=1e-9)
    np.testing.assert_allclose(np.abs(result.q[1]), np.abs(wanted), atol=1e-9)
    assert int(result.iterations[0]) < 12
    assert bool(result.success[0])


@pytest.mark.parametrize("method", ["gauss_newton", "levenberg_marquardt"])
def test_a_start_that_is_not_finite_is_told_and_does_not_disturb_the_others(method):
    result = solved(method)
    assert int(result.status[2]) == Status.NON_FINITE.value
    assert int(result.status[0]) == Status.OK.value


def test_contradictions_stall_and_short_runs_reach_their_end():
    # a circle of radius 2 and one of radius 1 about the same point
    impossible = [Circle(jnp.asarray(2.0)), Circle(jnp.asarray(1.0))]

    @quick_jit
    def run(q):
        return solve_newton(impossible, q), solve_newton(impossible, q, max_iterations=2)

    stalled, short = run(jnp.array([1.0, 3.0]))
    assert int(stalled.status) == Status.STALLED.value
    assert np.isfinite(stalled.q).all()
    assert int(short.status) == Status.MAX_ITERATIONS.value
    assert int(short.iterations) == 2
    assert not bool(short.success)


def test_an_inequality_that_holds_does_nothing():
    half = Implicit(SelectedRows(CURVES, [1]), Comparison.SUPERIOR, np.array([-1.0]))

    run = quick_jit(jax.vmap(lambda q: solve_newton(half, q)))
    inside, outside = jnp.asarray(START).at[0].set(2.0), jnp.asarray(START).at[0].set(-3.0)
    result = run(jnp.stack([inside, outside]))
    np.testing.assert_allclose(result.q[0, :2], (2.0, 3.0))
    assert int(result.iterations[0]) == 0
    np.testing.assert_allclose(result.q[1, 0] - 0.5 * result.q[1, 1], -1.0, atol=1e-8)
    np.testing.assert_allclose(np.asarray(result.status), Status.OK.value)


def test_derivatives_with_respect_to_parameters_and_to_the_start():
    # x moves along the radius; along the circle it follows the start
    def solution(radius, q):
        return solve_newton(Circle(radius), q).q

    @quick_jit
    def everything(radius, q):
        one = jax.jvp(lambda r: solution(r, q), (radius,), (jnp.ones_like(radius),))
        second = jax.grad(jax.grad(lambda r: jnp.sum(solution(r, q) ** 2)))(radius)
        return one, jax.jacrev(solution, (0, 1))(radius, q), second

    (q, forward), (by_radius, by_start), second = everything(jnp.asarray(2.0), jnp.array([1.0, 3.0]))
    unit = np.asarray(q) / 2
    np.testing.assert_allclose(forward, unit, atol=1e-8)
    np.testing.assert_allclose(by_radius, forward, atol=1e-12)
    across = np.array([-unit[1], unit[0]])
    np.testing.assert_allclose(by_start, np.outer(across, across), atol=1e-8)
    # |x|^2 = r^2
    assert float(second) == pytest.approx(2, abs=1e-6)


def test_a_batch_equals_a_loop():
    run = quick_jit(lambda q: solve_newton(constraint(), q).q)
    both = np.stack([START, -START])
    np.testing.assert_allclose(solved("levenberg_marquardt").q[:2], np.stack([run(q) for q in both]), atol=1e-12)


# --- robots -----------------------------------------------------------------------------------------------------------


@functools.cache
def _arm():
    model = load("arm7", dtype=jnp.float64)
    q = jnp.asarray(0.3 * np.array([1.0, 1, -1, 2, 1, 1, -1]))
    return model, q, Position(model, "tool", target=[0.45, 0.1, 0.5])


def test_an_arm_reaches_a_point_within_its_limits_and_stays_near_its_posture():
    model, q, reach = _arm()
    upper = model.upper.at[3].set(1.2)
    posture = Posture(model, q)

    @quick_jit
    def run(q):
        free = solve_newton([[reach], [posture]], q, optional=True)
        boxed = solve_newton(reach, q, lower=model.lower, upper=upper)
        return free, boxed, reach.jacobian(free.q)

    free, boxed, jacobian = run(q)
    assert int(free.status) == Status.OK.value
    assert float(free.errors[0]) < 1e-9
    # nothing that leaves the point where it is brings the posture nearer
    null = np.eye(7) - np.linalg.pinv(jacobian) @ np.asarray(jacobian)
    np.testing.assert_allclose(null @ np.asarray(difference(model, free.q, q)), 0, atol=2e-6)
    assert int(boxed.status) == Status.OK.value
    assert (np.asarray(boxed.q) <= np.asarray(upper)).all()
    assert (np.asarray(boxed.q) >= np.asarray(model.lower)).all()
    assert float(boxed.errors[0]) < 1e-9


def test_the_solution_follows_the_target_and_the_links():
    _, q, reach = _arm()

    def tip(target, length):
        f = eqx.tree_at(lambda f: f.reference_placement.translation, reach, target)
        f = eqx.tree_at(lambda f: f.model.joint_placement.translation, f, f.model.joint_placement.translation * length)
        return solve_newton(f, q).q

    @quick_jit
    def everything(target, length):
        f = eqx.tree_at(lambda f: f.reference_placement.translation, reach, target)
        return jax.jacrev(tip, (0, 1))(target, length), f.jacobian(tip(target, length))

    (by_target, by_length), jacobian = everything(jnp.array([0.45, 0.1, 0.5]), jnp.asarray(1.0))
    assert np.isfinite(by_length).all()
    # the tip follows its target, by the smallest change of the joints
    np.testing.assert_allclose(jacobian @ by_target, np.eye(3), atol=1e-8)
    np.testing.assert_allclose(by_target, np.linalg.pinv(jacobian), atol=1e-8)


def test_restarts_find_what_one_start_does_not():
    model, _, reach = _arm()
    # the outstretched arm points away from the target, a singular start
    q = jnp.zeros(7)
    f = eqx.tree_at(lambda f: f.reference_placement.translation, reach, jnp.array([0.0, 0.0, 0.4]))

    @quick_jit
    def run(q):
        return solve_newton(f, q, limits=True), solve_newton(f, q, limits=True, restarts=12, key=jax.random.key(1))

    one, many = run(q)
    assert int(one.status) != Status.OK.value
    assert int(many.status) == Status.OK.value
    assert (np.asarray(many.q) <= np.asarray(model.upper) + 1e-12).all()


def test_mistakes_are_named():
    _, q, reach = _arm()
    with pytest.raises(UnknownNameError, match="gauss_newton"):
        solve_newton(reach, q, method="newton")
    with pytest.raises(InputError, match="at least one"):
        solve_newton([], q)
    with pytest.raises(InputError, match="one argument"):
        solve_newton([reach, CURVES], q)
    with pytest.raises(InputError, match="optional"):
        solve_newton(reach, q, optional=True)
    with pytest.raises(InputError, match="restarts"):
        solve_newton(reach, q, restarts=3)
    with pytest.raises(InputError, match="wanted functions"):
        solve_newton([3.0], q)
    with pytest.raises(InputError, match="has none"):
        solve_newton(CURVES, START, limits=True)
    with pytest.raises(InputError, match="q: wanted shape"):
        solve_newton(reach, np.zeros(6))
    with pytest.raises(InputError, match="max_iterations"):
        solve_newton(reach, q, max_iterations=-1)
    with pytest.raises(InputError, match="coordinate 0 are crossed"):
        solve_newton(reach, q, lower=np.ones(len(q)), upper=np.zeros(len(q)))


def test_single_precision_converges_to_its_own_tolerance():
    model, q, _ = _arm()
    f = Position(model.astype(jnp.float32), "tool", target=jnp.array([0.45, 0.1, 0.5], jnp.float32))
    result = quick_jit(lambda q: solve_newton(f, q))(q.astype(jnp.float32))
    assert result.q.dtype == jnp.float32
    assert int(result.status) == Status.OK.value
