"""Systems whose input moves the state itself, under every integrator: closed forms, orders, rollouts, gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from jaxdyn import (
    RKMK4,
    SE3,
    AccelerationInput,
    CentroidalDynamics,
    CentroidalInput,
    CentroidalState,
    EmbeddedEuler,
    EmbeddedRK4,
    FirstOrderSmoother,
    FloatingBaseAccelerationKinematics,
    FloatingBaseVelocityKinematics,
    InputError,
    LieEuler,
    LieMidpoint,
    LinearlyImplicit,
    LinearTimeInvariantSystem,
    PoseState,
    SemiImplicitEuler,
    SO3Dynamics,
    State,
    VelocityInput,
    batch_rollout,
    corner_points,
    rollout,
    so3,
    step,
)

INTEGRATORS = {
    SemiImplicitEuler: 1,
    LieEuler: 1,
    LinearlyImplicit: 1,
    EmbeddedEuler: 1,
    LieMidpoint: 2,
    RKMK4: 4,
    EmbeddedRK4: 4,
}
OSCILLATOR = LinearTimeInvariantSystem([[0.0, 1.0], [-2.0, -2.0]], [[0.0], [2.0]])


def response(t):
    return np.array([1 - np.exp(-t) * (np.cos(t) + np.sin(t)), 2 * np.exp(-t) * np.sin(t)])


def orders(errors):
    return np.log2(np.array(errors[:-1]) / np.array(errors[1:]))


# Linear systems


@pytest.mark.parametrize("integrator, order", INTEGRATORS.items(), ids=lambda x: getattr(x, "__name__", str(x)))
def test_step_response_of_a_linear_system(integrator, order):
    run = lambda n: rollout(OSCILLATOR, integrator(), jnp.zeros(2), jnp.ones(1), 2.0 / n, n, save_every=None).final  # noqa: E731
    errors = [np.abs(run(n) - response(2.0)).max() for n in (20, 40, 80)]
    assert np.abs(orders(errors) - order).max() < 0.35, errors
    np.testing.assert_allclose(response(2.0), (0.93325933, 0.24612005), atol=1e-8)


def test_errors_of_a_linear_system_are_those_of_the_original():
    euler = rollout(OSCILLATOR, LieEuler(), jnp.zeros(2), jnp.ones(1), 1e-4, 20_000, save_every=None).final
    assert 3.5e-5 < np.abs(euler - response(2.0)).max() < 3.7e-5
    fine = rollout(OSCILLATOR, RKMK4(), jnp.zeros(2), jnp.ones(1), 1e-3, 2000, save_every=None).final
    assert np.abs(fine - response(2.0)).max() < 1e-13


def test_gradients_by_the_matrices_of_a_linear_system():
    def end(A):
        system = LinearTimeInvariantSystem(A, OSCILLATOR.B)
        return rollout(system, RKMK4(), jnp.ones(2), None, 0.01, 100, save_every=None).final[0]

    gradient = jax.grad(end)(OSCILLATOR.A)
    exact = np.array(
        [
            scipy.linalg.expm_frechet(np.asarray(OSCILLATOR.A), e.reshape(2, 2), compute_expm=False)[0].sum()
            for e in np.eye(4)
        ]
    ).reshape(2, 2)
    np.testing.assert_allclose(gradient, exact, atol=1e-9)


def test_controls_of_a_linear_system_over_time_by_policy_and_in_batches():
    u = jnp.asarray(np.random.default_rng(0).normal(size=(10, 1)))
    by_sequence = rollout(OSCILLATOR, LieMidpoint(), jnp.zeros(2), u, 0.1)
    by_policy = rollout(
        OSCILLATOR, LieMidpoint(), jnp.zeros(2), lambda x, t: u[jnp.round(t / 0.1).astype(int)], 0.1, 10
    )
    np.testing.assert_allclose(by_sequence.state, by_policy.state, atol=1e-14)
    many = jax.vmap(lambda u: rollout(OSCILLATOR, LieMidpoint(), jnp.zeros(2), u, 0.1).final)(jnp.stack([u, 2 * u]))
    np.testing.assert_allclose(many, np.stack([by_sequence.final, 2 * by_sequence.final]), atol=1e-13)
    policy = lambda x, t: -x[:1]  # noqa: E731
    batch = batch_rollout(OSCILLATOR, LieMidpoint(), jnp.eye(2), policy, 0.1, 10)
    one = rollout(OSCILLATOR, LieMidpoint(), jnp.eye(2)[1], policy, 0.1, 10)
    np.testing.assert_allclose(batch.trajectory.final[1], one.final, atol=1e-14)


def test_a_smoother_has_made_95_per_cent_after_its_settling_time():
    smoother = FirstOrderSmoother(0.1)
    run = lambda integrator, n: rollout(smoother, integrator, jnp.zeros(2), jnp.ones(2), 0.1 / n, n).final  # noqa: E731
    np.testing.assert_allclose(run(RKMK4(), 100), 1 - np.exp(-3.0), atol=1e-9)
    np.testing.assert_allclose(run(LieEuler(), 1000), 0.950437, atol=1e-6)


# Kinematics


@functools.cache
def turning():
    """A rotation whose axis turns: omega(t) = (cos 3t, sin 3t, 2)."""
    policy = lambda x, t: jnp.stack([jnp.cos(3 * t), jnp.sin(3 * t), jnp.full_like(t, 2.0)])  # noqa: E731
    final = lambda integrator, n: rollout(SO3Dynamics(), integrator, jnp.eye(3), policy, 1.0 / n, n).final  # noqa: E731
    # In axes that turn with 3 about z the angular velocity is constant: R = Rz(3 t) Exp((1, 0, -1) t)
    exact = so3.exp(jnp.array([0.0, 0.0, 3.0])) @ so3.exp(jnp.array([1.0, 0.0, -1.0]))
    return final, exact


@pytest.mark.parametrize(
    "integrator, order", [(LieEuler, 1), (LieMidpoint, 2), (RKMK4, 4), (EmbeddedRK4, 4)], ids=lambda x: str(x)[-20:]
)
def test_a_rotation_with_a_turning_axis(integrator, order):
    """A policy is held over a step, so the method is asked with the input as a function of time."""
    _, exact = turning()

    class Turning(SO3Dynamics):
        def rate(self, x, u, t=0.0):
            return jnp.stack([jnp.cos(3.0 * t), jnp.sin(3.0 * t), 2.0 + 0.0 * t])

    run = lambda n: rollout(Turning(), integrator(), jnp.eye(3), None, 1.0 / n, n, save_every=None).final  # noqa: E731
    errors = [np.abs(run(n) - exact).max() for n in (8, 16, 32)]
    assert np.abs(orders(errors) - order).max() < 0.3, errors
    if integrator is not EmbeddedRK4:
        assert np.abs(run(8) @ run(8).T - np.eye(3)).max() < 1e-14


def test_velocity_kinematics_at_constant_twist_are_exact():
    system = FloatingBaseVelocityKinematics(2)
    x = PoseState([0.1, 0.2, 0.3], so3.exp(jnp.array([0.3, -0.2, 0.5])), [0.5, -0.5])
    u = VelocityInput([1.0, -2.0, 0.5, 0.4, 0.3, -0.7], [0.2, -0.1])
    for integrator in (LieEuler(), LieMidpoint(), RKMK4(), SemiImplicitEuler(), LinearlyImplicit()):
        end = rollout(system, integrator, x, u, 0.1, 10).final
        np.testing.assert_allclose(end.position, x.position + u.twist[:3], atol=1e-12)
        np.testing.assert_allclose(end.rotation, so3.exp(u.twist[3:]) @ x.rotation, atol=1e-12)
        np.testing.assert_allclose(end.joint_position, x.joint_position + u.joint_velocity, atol=1e-12)
    rate = system(x, u)
    np.testing.assert_allclose(rate.rotation_rate, so3.hat(u.twist[3:]) @ x.rotation, atol=1e-14)
    np.testing.assert_allclose(system.move(x, system.between(x, end)).rotation, end.rotation, atol=1e-13)
    bare = EmbeddedEuler(project=True).step(system, x, u, jnp.zeros(()), jnp.asarray(0.1))
    np.testing.assert_allclose(bare.rotation @ bare.rotation.T, np.eye(3), atol=1e-8)


def test_acceleration_kinematics_are_a_double_integrator():
    system = FloatingBaseAccelerationKinematics(1)
    x = State([1.0, 0.0, 0.0, 0.0, 0.0, 2.0], [0.5], [0.0, 0.0, 1.0], jnp.eye(3), [0.1])
    u = AccelerationInput([0.0, 2.0, 0.0, 0.0, 0.0, -1.0], [3.0])
    end = rollout(system, RKMK4(), x, u, 0.1, 10).final
    np.testing.assert_allclose(end.position, [1.0, 1.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(end.rotation, so3.exp(jnp.array([0.0, 0.0, 1.5])), atol=1e-9)
    np.testing.assert_allclose(end.joint_position, [0.1 + 0.5 + 1.5], atol=1e-12)
    np.testing.assert_allclose(end.twist, [1.0, 2.0, 0.0, 0.0, 0.0, 1.0], atol=1e-12)
    semi = rollout(system, SemiImplicitEuler(), x, u, 0.1, 10).final
    np.testing.assert_allclose(semi.joint_position, [0.1 + 0.5 + 1.5 + 3.0 * 0.1 / 2], atol=1e-12)
    still = rollout(system, RKMK4(), x, None, 0.1, 10).final
    np.testing.assert_allclose(still.joint_velocity, [0.5], atol=0)
    np.testing.assert_allclose(system(x, u).rotation_rate, so3.hat(x.twist[3:]) @ x.rotation, atol=1e-14)


# Centroidal dynamics


def test_centroidal_dynamics():
    system = CentroidalDynamics(2.0)
    x = CentroidalState([0.1, 0.0, 0.8], [0.0, 0.2, 0.0], [0.0, 0.0, 0.1])
    turn = so3.exp(jnp.array([[0.0, 0.0, 0.5], [0.1, 0.0, 0.0]]))
    corners = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 3)))
    poses = SE3(turn, jnp.array([[0.1, 0.1, 0.0], [0.0, -0.1, 0.0]]))
    points = corner_points(poses, corners)
    np.testing.assert_allclose(points[5], turn[1] @ corners[1, 1] + poses.translation[1], atol=1e-14)
    forces = jnp.asarray(np.random.default_rng(2).normal(size=(8, 3)))
    wrench = jnp.array([1.0, 2.0, 3.0, 0.4, 0.5, 0.6])
    rate = system(x, CentroidalInput(points, forces, wrench))
    np.testing.assert_allclose(rate.com_velocity, x.com_velocity)
    total = np.array([0.0, 0.0, -9.80665]) + (forces.sum(0) + wrench[:3]) / 2.0
    np.testing.assert_allclose(rate.com_acceleration, total, atol=1e-13)
    moment = np.cross(points - x.com_position[None], forces).sum(0) + wrench[3:]
    np.testing.assert_allclose(rate.angular_momentum_rate, moment, atol=1e-13)
    fall = rollout(system, RKMK4(), x, None, 0.1, 10).final
    np.testing.assert_allclose(fall.com_position, [0.1, 0.2, 0.8 - 9.80665 / 2], atol=1e-12)
    np.testing.assert_allclose(fall.angular_momentum, x.angular_momentum)
    heavy = jax.grad(lambda m: CentroidalDynamics(m)(x, CentroidalInput(points, forces)).com_acceleration[0])(2.0)
    np.testing.assert_allclose(heavy, -forces.sum(0)[0] / 4.0, atol=1e-13)


# Precision and mistakes


def test_single_precision_stays_single():
    f32 = lambda x: jax.tree.map(lambda a: a.astype(jnp.float32), x)  # noqa: E731
    system, x = f32(FloatingBaseVelocityKinematics(1)), f32(PoseState(jnp.zeros(3), jnp.eye(3), jnp.zeros(1)))
    for u in (None, f32(VelocityInput(jnp.ones(6), jnp.ones(1)))):
        for leaf in jax.tree.leaves(step(system, RKMK4(), x, u, 0.1)):
            assert leaf.dtype == jnp.float32
    assert step(f32(OSCILLATOR), LieEuler(), jnp.zeros(2, jnp.float32), None, 0.1).dtype == jnp.float32


def test_mistakes_are_named():
    with pytest.raises(InputError, match="square"):
        LinearTimeInvariantSystem(jnp.zeros((2, 3)), jnp.zeros((2, 1)))
    with pytest.raises(InputError, match="2 rows"):
        LinearTimeInvariantSystem(jnp.eye(2), jnp.zeros((3, 1)))
    with pytest.raises(InputError, match="settling_time"):
        FirstOrderSmoother(0.0)
    with pytest.raises(InputError, match=r"joint_velocity.*\(2,\)"):
        x = PoseState(jnp.zeros(3), jnp.eye(3), jnp.zeros(2))
        step(FloatingBaseVelocityKinematics(2), LieEuler(), x, VelocityInput(jnp.zeros(6), jnp.zeros(3)), 0.1)
    with pytest.raises(InputError, match="controls"):
        rollout(OSCILLATOR, LieEuler(), jnp.zeros(2), jnp.zeros((2, 3, 1)), 0.1)
