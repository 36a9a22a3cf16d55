"""Whether a step is short enough: against the limits of the box drop, and with gains."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.contact import stable_dt
from jaxdyn.errors import InputError, JaxdynWarning, Status
from jaxdyn.model import load
from jaxdyn.systems import (
    RKMK4,
    EmbeddedEuler,
    EmbeddedRK4,
    FixedBaseDynamics,
    FixedBaseState,
    ImplicitMidpoint,
    LieEuler,
    LieMidpoint,
    LinearlyImplicit,
    LinearTimeInvariantSystem,
    SemiImplicitEuler,
    check_step,
    stable_substeps,
    step,
)
from jaxdyn.systems.rollout import as_controls
from jaxdyn.systems.step_size import TRIES, _growths, _linear


def test_the_limit_of_the_box_is_that_of_its_fastest_mode():
    """It tilts faster than it bounces, and the bounce is what the table of limits is about."""
    system, (_, x) = data.box_on_patch(), data.box_case("drop")
    zero = jnp.zeros(())
    _, rates = _linear(system, SemiImplicitEuler(), x, as_controls(system, None), jnp.full(1, 1e-2), zero)
    poles = np.linalg.eigvals(np.asarray(rates))
    assert np.abs(poles - (-6 + 1j * np.sqrt(1164))).min() < 1e-9
    # damping is in proportion to stiffness, so each mode is a mass on a spring
    frequencies, damping = np.abs(poles), -poles.real / np.abs(poles)
    limits = 2 / frequencies * (np.sqrt(1 + damping**2) - damping)
    assert limits.max() > stable_dt(2e5, 2e3, 0.06, 10.0) == pytest.approx(0.0486, rel=1e-3)
    assert stable_substeps(system, SemiImplicitEuler(), x, None, 0.98 * limits.min()) == 1
    assert stable_substeps(system, SemiImplicitEuler(), x, None, 1.02 * limits.min()) == 2


@pytest.fixture(scope="module")
def arm():
    system = FixedBaseDynamics(load("pendulum"))
    return system, FixedBaseState(jnp.array([0.3]), jnp.zeros(1))


@pytest.fixture(scope="module")
def damped():
    """A pendulum in so much gravity that it is stiff, with friction in its joint; and its poles."""
    model = load("pendulum")
    model = eqx.tree_at(lambda m: (m.gravity, m.damping), model, (100 * model.gravity, 2 + model.damping))
    system = FixedBaseDynamics(model, joint_friction=True)
    x = FixedBaseState(jnp.zeros(1), jnp.zeros(1))
    rate = lambda z: system.acceleration(FixedBaseState(z[:1], z[1:]), None)  # noqa: E731
    down = jax.jacfwd(rate)(jnp.concatenate([x.joint_position, x.joint_velocity]))
    return system, x, np.linalg.eigvals(np.array([[0.0, 1.0], np.asarray(down[0])]))


@pytest.mark.parametrize(
    "integrator, polynomial",
    [
        (LieEuler(), [1, 1]),
        pytest.param(EmbeddedEuler(), [1, 1], marks=pytest.mark.slow),
        pytest.param(LieMidpoint(), [0.5, 1, 1], marks=pytest.mark.slow),
        (RKMK4(), [1 / 24, 1 / 6, 0.5, 1, 1]),
        pytest.param(EmbeddedRK4(), [1 / 24, 1 / 6, 0.5, 1, 1], marks=pytest.mark.slow),
    ],
    ids=lambda v: type(v).__name__ if hasattr(v, "step") else "",
)
def test_growth_is_that_of_the_stability_function(damped, integrator, polynomial):
    system, x, poles = damped
    dt = 8 / np.abs(poles).max()
    enough, growth = _growths(system, integrator, x, None, dt, 0.0)
    sizes = [np.abs(np.polyval(polynomial, dt / 2**k * poles)).max() for k in range(TRIES)]
    assert growth == pytest.approx(sizes[0], rel=1e-6)
    assert enough == next(2**k for k in range(TRIES) if sizes[k] <= 1) > 1


def test_implicit_integrators_take_any_step(damped):
    system, x, poles = damped
    assert stable_substeps(system, ImplicitMidpoint(), x, None, 100 / np.abs(poles).max()) == 1


@pytest.mark.slow
def test_the_linearly_implicit_integrator_takes_any_step(damped):
    system, x, poles = damped
    assert stable_substeps(system, LinearlyImplicit(), x, None, 100 / np.abs(poles).max()) == 1


def spring(x, t):
    """A policy without damping."""
    return -1e9 * x.joint_position


def test_a_long_step_is_a_warning_with_what_would_do(arm):
    """The torque of a policy is held over a step, so stiff gains limit the step of every integrator."""
    system, x = arm
    policy = lambda x, t: -400.0 * x.joint_position - 2.0 * x.joint_velocity  # noqa: E731
    enough = stable_substeps(system, SemiImplicitEuler(), x, policy, 0.4)
    assert enough > 1
    with pytest.warns(
        JaxdynWarning, match=rf"a step of 0.4 s is too long for SemiImplicitEuler: .* substeps={enough} would do"
    ):
        assert check_step(system, SemiImplicitEuler(), x, policy, 0.4) is Status.UNSTABLE_STEP
    assert check_step(system, SemiImplicitEuler(), x, policy, 0.4, substeps=enough) is Status.OK
    # explicit Euler feeds an undamped spring, whatever the step
    bouncing = FixedBaseState(jnp.zeros(1), jnp.zeros(1))
    assert stable_substeps(system, LieEuler(), bouncing, spring, 0.1) is None
    with pytest.warns(JaxdynWarning, match="no number of substeps up to 1024 helps"):
        check_step(system, LieEuler(), bouncing, spring, 0.1)
    # a motion that falls by itself may
    upright = FixedBaseState(jnp.array([np.pi]), jnp.zeros(1))
    assert stable_substeps(system, SemiImplicitEuler(), upright, None, 0.01) == 1


def test_what_cannot_be_checked_is_named(arm):
    system, x = arm
    with pytest.raises(InputError, match="given values that are being traced"):
        jax.jit(lambda dt: stable_substeps(system, RKMK4(), x, None, dt))(0.1)
    with pytest.raises(InputError, match="one with a time axis"):
        stable_substeps(system, RKMK4(), x, jnp.zeros((3, 1)), 0.1)
    with pytest.raises(InputError, match="wanted a mechanical system, given LinearTimeInvariantSystem"):
        stable_substeps(LinearTimeInvariantSystem(np.eye(2), np.zeros((2, 1))), RKMK4(), jnp.zeros(2), None, 0.1)
    with pytest.raises(InputError, match="not finite there"):
        stable_substeps(system, RKMK4(), FixedBaseState(jnp.array([jnp.nan]), jnp.zeros(1)), None, 0.1)
    with pytest.raises(InputError, match="positive time step"):
        check_step(system, RKMK4(), x, None, 0.0)


def test_single_precision(arm):
    system = FixedBaseDynamics(load("pendulum", dtype=jnp.float32))
    x = FixedBaseState(jnp.full(1, 0.3, jnp.float32), jnp.zeros(1, jnp.float32))
    assert stable_substeps(system, SemiImplicitEuler(), x, None, 0.01) == 1
    assert step(system, SemiImplicitEuler(), x, None, 0.01).joint_position.dtype == jnp.float32
