"""The implicit midpoint rule: order, reversibility, energy, stiffness, derivatives, and the status."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.contact import stable_dt
from jaxdyn.errors import InputError, Status
from jaxdyn.math import so3
from jaxdyn.model import load
from jaxdyn.systems import (
    FixedBaseDynamics,
    FixedBaseState,
    ImplicitMidpoint,
    LinearTimeInvariantSystem,
    SO3Dynamics,
    batch_rollout,
    rollout,
    step,
    step_with_status,
)
from jaxdyn.systems.first_order import VectorSystem

RULE = ImplicitMidpoint()


@eqx.filter_jit
def end(system, integrator, x, dt, steps):
    """State after any number of steps, and the first status that is not `OK`."""

    def body(_, carry):
        x, status = carry
        x, now = step_with_status(system, integrator, x, None, dt)
        return x, jnp.where(status == 0, now, status)

    return jax.lax.fori_loop(0, steps, body, (x, jnp.zeros((), jnp.int32)))


# End of the tilted, spinning box on the brush after 0.2 s; DOP853 with tolerance 1e-13
POSITION = [-0.002052550860421, 0.002115917421227, 0.045863050405177]
TWIST = [-0.007360543213948, 0.012337214783535, -0.060846714457901, -0.113152110457247, 1.036671756535059, -0.287286800271942]  # fmt: skip


def energy(system, x):
    """Of the box on an undamped brush without projection of the area, with its null pose at the origin."""
    inertia, stiffness = system.model.inertia.inertia[0], 2e5 * 0.06
    omega = so3.rotate_back(x.rotation, x.twist[3:])
    sole = x.position + x.rotation @ jnp.array([0.0, 0.0, -0.05])
    turned = 0.3**2 * (1 - x.rotation[0, 0]) + 0.2**2 * (1 - x.rotation[1, 1])
    kinetic = 5.0 * x.twist[:3] @ x.twist[:3] + 0.5 * omega @ inertia @ omega
    return float(kinetic + 98.0665 * x.position[2] + 0.5 * stiffness * sole @ sole + stiffness / 12 * turned)


def test_the_spinning_box_is_met_with_order_two_and_the_way_back_is_the_way_there():
    case, x = data.box_case("tilted_spin")
    system = data.box_on_patch()
    errors = []
    for n in (50, 100, 200, 400):
        after, status = end(system, RULE, x, jnp.asarray(case["T"] / n), jnp.asarray(n))
        assert status == 0
        errors.append(
            np.abs(np.concatenate([after.position - np.array(POSITION), after.twist - np.array(TWIST)])).max()
        )
    np.testing.assert_allclose(errors, [1.32e-2, 3.31e-3, 8.27e-4, 2.07e-4], rtol=0.05)
    assert np.log2(errors[-2] / errors[-1]) == pytest.approx(2, abs=0.15)

    undamped = data.box_on_patch(damping=0.0, projected_area="none")
    start = energy(undamped, x)
    assert start == pytest.approx(8.063041997560092, abs=1e-12)
    turned = lambda x: eqx.tree_at(lambda x: x.twist, x, -x.twist)  # noqa: E731
    after, _ = end(undamped, RULE, x, jnp.asarray(1e-3), jnp.asarray(1000))
    assert energy(undamped, after) == pytest.approx(start, rel=1e-3)
    back = turned(end(undamped, RULE, turned(after), jnp.asarray(1e-3), jnp.asarray(1000))[0])
    np.testing.assert_allclose(back.position, x.position, rtol=0, atol=1e-9)
    np.testing.assert_allclose(back.twist, x.twist, rtol=0, atol=1e-6)
    np.testing.assert_allclose(after.rotation.T @ after.rotation, np.eye(3), atol=1e-13)

    # a step that explicit integrators do not survive; nothing grows
    stiff = data.box_on_patch(stiffness=2e8, damping=2e4)
    _, resting = data.box_case("drop")
    after, _ = end(stiff, RULE, resting, jnp.asarray(5e-3), jnp.asarray(200))
    assert abs(after.position[2] - 0.05) < 1e-3
    assert stable_dt(2e8, 2e4, 0.06, 10.0, "ImplicitMidpoint") == np.inf


def test_energy_swings_and_does_not_drift():
    """A double pendulum that tumbles for ten seconds, at a step of 5 ms."""
    system = FixedBaseDynamics(load("double_pendulum"))
    x = FixedBaseState(jnp.array([2.0, 1.0]), jnp.array([0.5, -0.5]))

    def total(x):
        from jaxdyn.algorithms import kinetic_energy, potential_energy

        q, v = x.joint_position, x.joint_velocity
        return kinetic_energy(system.model, q, v) + potential_energy(system.model, q)

    path = rollout(system, RULE, x, None, 5e-3, 2000, record=lambda x, u, t: total(x), checkpoint="none")
    assert path.status == Status.OK
    off = np.asarray(path.record - total(x)) / float(jnp.abs(total(x)))
    early, late = np.abs(off[:500]).max(), np.abs(off[1500:]).max()
    assert 0 < early < 1e-2 and late < 3 * early


def test_systems_without_a_velocity():
    """A linear system takes the (1, 1) Pade approximation; a rotation with a constant velocity is exact."""
    matrix, h = np.array([[0.0, 1.0], [-2.0, -2.0]]), 0.1
    system = LinearTimeInvariantSystem(matrix, np.zeros((2, 1)))
    x = jnp.array([1.0, -0.5])
    expected = np.linalg.solve(np.eye(2) - h / 2 * matrix, (np.eye(2) + h / 2 * matrix) @ x)
    new, status = step_with_status(system, RULE, x, None, h)
    np.testing.assert_allclose(new, expected, atol=1e-14)
    assert status == 0
    omega = jnp.array([0.3, -0.2, 0.5])
    np.testing.assert_allclose(step(SO3Dynamics(), RULE, jnp.eye(3), omega, 0.5), so3.exp(0.5 * omega), atol=1e-14)


@pytest.fixture(scope="module")
def pendulum():
    system = FixedBaseDynamics(load("pendulum"))
    return system, FixedBaseState(jnp.array([2.0]), jnp.array([1.0]))


class Swing(VectorSystem):
    """A pendulum as a vector (angle, rate), pushed by `u`."""

    pull: jax.Array

    def __call__(self, x, u, t=0.0):
        return jnp.stack([x[1], -self.pull * jnp.sin(x[0]) + u])

    @property
    def default_input(self):
        return jnp.zeros(())


def test_derivatives_of_all_orders_and_modes_are_those_of_the_solution():
    def angle(p):
        return step(Swing(9.8 * p[0]), RULE, jnp.stack([2 * p[1], p[1]]), p[2], 0.2 * p[1])[0]

    p = jnp.array([1.0, 1.0, 0.3])
    slope, forward, second, rows = quick_jit(
        lambda p, around: (
            jax.grad(angle)(p),
            jax.jacfwd(angle)(p),
            jax.jacfwd(jax.grad(angle))(p),
            jax.vmap(lambda q: (angle(q), jax.grad(angle)(q)))(around),
        )
    )(p, p[None] + 1e-4 * jnp.concatenate([jnp.eye(3), -jnp.eye(3)]))
    np.testing.assert_allclose(forward, slope, rtol=1e-12)
    values, slopes = map(np.asarray, rows)
    np.testing.assert_allclose(slope, (values[:3] - values[3:]) / 2e-4, rtol=1e-6)
    np.testing.assert_allclose(second, (slopes[:3] - slopes[3:]) / 2e-4, rtol=1e-5, atol=1e-7)


def test_gradients_through_a_rollout_equal_those_of_forward_mode(pendulum):
    system, x = pendulum

    def angle(g):
        heavy = eqx.tree_at(lambda s: s.model.gravity, system, g * system.model.gravity)
        return rollout(heavy, RULE, x, None, 0.1, 5, save_every=None).final.joint_position[0]

    one = jnp.ones(())
    slope, forward = quick_jit(lambda g: (jax.grad(angle)(g), jax.jacfwd(angle)(g)))(one)
    assert np.isfinite(slope) and slope != 0
    np.testing.assert_allclose(slope, forward, rtol=1e-11)


def test_a_step_that_was_not_solved_says_so(pendulum):
    system, x = pendulum
    fast = FixedBaseState(x.joint_position, jnp.array([15.0]))
    once = ImplicitMidpoint(iterations=1)
    _, status = step_with_status(system, RULE, fast, None, 0.3, substeps=2)
    assert status == Status.OK
    _, unsolved = step_with_status(system, once, fast, None, 0.3, substeps=2)
    assert unsolved == Status.MAX_ITERATIONS
    path = rollout(system, once, fast, None, 0.3, 4)
    assert path.status == Status.MAX_ITERATIONS and path.status.dtype == jnp.int32
    calm = FixedBaseState(jnp.zeros(1), jnp.zeros(1))
    assert rollout(system, once, calm, None, 0.3, 4).status == Status.OK
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), calm, fast)
    result = batch_rollout(system, once, both, None, 0.3, 4)
    assert result.status is Status.MAX_ITERATIONS and result.message.startswith("environment 1: stopped at the largest")
    assert result.trajectory.status.tolist() == [0, Status.MAX_ITERATIONS]
    # a NaN has not converged, and what became of the state counts
    nan = rollout(system, RULE, x, jnp.array([jnp.nan]), 0.3, 4)
    assert nan.status in (Status.MAX_ITERATIONS, Status.NON_FINITE)
    with pytest.raises(InputError, match="iterations: wanted at least 1, given 0"):
        ImplicitMidpoint(iterations=0)


def test_single_precision_stays_single_and_converges():
    system = FixedBaseDynamics(load("pendulum", dtype=jnp.float32))
    x = FixedBaseState(jnp.array([2.0], jnp.float32), jnp.array([3.0], jnp.float32))
    path = rollout(system, RULE, x, None, 1e-2, 100, save_every=None, checkpoint="none")
    assert path.final.joint_position.dtype == jnp.float32 and path.status == Status.OK
