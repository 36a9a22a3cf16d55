"""The bridge to diffrax: adaptive and stiff solvers on the same systems."""

import sys

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import InputError
from jaxdyn.model import load
from jaxdyn.systems import (
    RKMK4,
    FixedBaseDynamics,
    FixedBaseState,
    Input,
    LinearTimeInvariantSystem,
    SemiImplicitEuler,
    State,
    diffrax_term,
    rollout,
)


def test_without_diffrax_it_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffrax", None)
    with pytest.raises(ImportError, match=r"the extra 'solvers' installs: pip install 'jaxdyn\[solvers\]'"):
        diffrax_term(FixedBaseDynamics(load("pendulum")))


def test_wrong_controls_are_named():
    pytest.importorskip("diffrax")
    system = FixedBaseDynamics(load("pendulum"))
    with pytest.raises(InputError, match="dt: wanted the time for which each of the controls is held"):
        diffrax_term(system, jnp.zeros((5, 1)))
    with pytest.raises(InputError, match="positive time step"):
        diffrax_term(system, jnp.zeros((5, 1)), dt=0.0)
    with pytest.raises(InputError, match=r"\(1,\)"):
        diffrax_term(system, jnp.zeros((5, 2)), dt=0.1)


def solve(term, x, end, solver, tolerance=1e-10, args=None, **options):
    diffrax = pytest.importorskip("diffrax")
    controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    options = {"stepsize_controller": controller, "dt0": None, "args": args} | options
    solution = diffrax.diffeqsolve(term, solver, 0.0, end, y0=x, **options)
    return jax.tree.map(lambda a: a[-1], solution.ys)


def test_the_spinning_box_on_the_brush_equals_its_reference():
    """DOP853 with tolerance 1e-13: the values of the order tests."""
    diffrax = pytest.importorskip("diffrax")
    case, x = data.box_case("tilted_spin")
    system = data.box_on_patch()
    end = quick_jit(lambda x: solve(diffrax_term(system), x, case["T"], diffrax.Tsit5()))(x)
    assert isinstance(end, State)
    np.testing.assert_allclose(end.position, [-0.002052550860421, 0.002115917421227, 0.045863050405177], atol=1e-8)
    np.testing.assert_allclose(end.twist[3:], [-0.113152110457247, 1.036671756535059, -0.287286800271942], atol=1e-6)
    np.testing.assert_allclose(end.rotation[0], [0.999321561375306, -0.033951155576427, -0.014273612207351], atol=1e-8)
    np.testing.assert_allclose(end.rotation.T @ end.rotation, np.eye(3), atol=1e-8)


@pytest.fixture(scope="module")
def arm():
    return FixedBaseDynamics(load("pendulum")), FixedBaseState(jnp.array([0.5]), jnp.array([1.0]))


class Spring(eqx.Module):
    stiffness: jax.Array

    def __call__(self, x, t):
        return -self.stiffness * x.joint_position + jnp.sin(t)


def test_policies_held_inputs_and_args_drive_it_and_its_gradients_are_those_of_a_fine_rollout(arm):
    diffrax = pytest.importorskip("diffrax")
    system, x = arm

    def last(stiffness):
        return solve(diffrax_term(system, Spring(stiffness)), x, 0.5, diffrax.Tsit5()).joint_position[0]

    def by_args(stiffness):
        return solve(diffrax_term(system), x, 0.5, diffrax.Tsit5(), args=Spring(stiffness)).joint_position[0]

    # a policy is held over a control step here, so these are short
    def fine(stiffness, n=2000):
        return rollout(system, RKMK4(), x, Spring(stiffness), 0.5 / n, n, save_every=None).final.joint_position[0]

    k = jnp.asarray(3.0)
    found, slope, args, (expected, fine_slope) = quick_jit(
        lambda k: (*jax.value_and_grad(last)(k), by_args(k), jax.value_and_grad(fine)(k))
    )(k)
    assert found == args == pytest.approx(float(expected), abs=5e-4)
    assert slope == pytest.approx(float(fine_slope), rel=5e-3)


def test_inputs_with_a_time_axis_are_held(arm):
    diffrax = pytest.importorskip("diffrax")
    system, x = arm
    torques = jnp.asarray(np.random.default_rng(0).normal(size=(10, 1)))
    controller = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=1e-10, atol=1e-10), jump_ts=jnp.asarray(0.1 * np.arange(1, 10))
    )

    @quick_jit
    def both(torques):
        term = diffrax_term(system, Input(torques), dt=0.1)
        ours = rollout(system, RKMK4(), x, torques, 0.1, substeps=50, save_every=None).final
        return solve(term, x, 1.0, diffrax.Tsit5(), stepsize_controller=controller), ours

    found, expected = both(torques)
    np.testing.assert_allclose(found.joint_position, expected.joint_position, atol=1e-8)
    np.testing.assert_allclose(found.joint_velocity, expected.joint_velocity, atol=1e-8)


def test_stiff_solvers_take_long_steps_on_stiff_systems():
    """Two decays, one of them a million times as fast: an implicit solver needs some tens of steps for what takes an explicit one
    millions."""
    diffrax = pytest.importorskip("diffrax")
    system = LinearTimeInvariantSystem(np.diag([-1.0, -1e6]), np.array([[1.0], [1e6]]))
    options = {"stepsize_controller": diffrax.PIDController(rtol=1e-6, atol=1e-8), "dt0": None, "max_steps": 400}

    @quick_jit
    def solution(u):
        return diffrax.diffeqsolve(diffrax_term(system, u), diffrax.Kvaerno5(), 0.0, 1.0, y0=jnp.zeros(2), **options)

    found = solution(jnp.ones(1))
    np.testing.assert_allclose(found.ys[-1], [1 - np.exp(-1), 1.0], atol=1e-6)
    assert int(found.stats["num_steps"]) < 200


@pytest.mark.slow
def test_a_stiff_contact_comes_to_rest_under_a_stiff_solver():
    diffrax = pytest.importorskip("diffrax")
    _, x = data.box_case("drop")
    system = data.box_on_patch(stiffness=2e8, damping=2e4)
    end = quick_jit(lambda x: solve(diffrax_term(system), x, 1.0, diffrax.Kvaerno5(), 1e-8, max_steps=100_000))(x)
    assert end.position[2] - 0.05 == pytest.approx(-8.1722083333e-6, abs=1e-8)


def test_single_precision_stays_single():
    diffrax = pytest.importorskip("diffrax")
    system = FixedBaseDynamics(load("pendulum", dtype=jnp.float32))
    x = FixedBaseState(jnp.full(1, 0.5, jnp.float32), jnp.zeros(1, jnp.float32))
    term = diffrax_term(system, lambda x, t: -x.joint_position)
    end = diffrax.diffeqsolve(
        term,
        diffrax.Heun(),
        jnp.float32(0),
        jnp.float32(0.1),
        jnp.float32(0.01),
        y0=x,
        stepsize_controller=diffrax.ConstantStepSize(),
    )
    assert end.ys.joint_position.dtype == jnp.float32 and np.isfinite(end.ys.joint_position).all()


def test_the_step_of_the_library_and_the_bridge_agree_on_first_order(arm):
    diffrax = pytest.importorskip("diffrax")
    system, x = arm
    ours = rollout(system, SemiImplicitEuler(), x, None, 1e-4, 1000, save_every=None).final
    theirs = solve(diffrax_term(system), x, 0.1, diffrax.Tsit5())
    np.testing.assert_allclose(theirs.joint_position, ours.joint_position, atol=1e-3)
