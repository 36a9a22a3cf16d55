"""Rollouts that stop early, and rollouts that end at a time that is no multiple of the step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from floating_base_data import assert_tree_close

from jaxdyn.errors import InputError, Status
from jaxdyn.model import load
from jaxdyn.systems import (
    RKMK4,
    AccelerationInput,
    FixedBaseDynamics,
    FixedBaseState,
    FloatingBaseAccelerationKinematics,
    LieEuler,
    SemiImplicitEuler,
    State,
    batch_rollout,
    rollout,
)

EULER = SemiImplicitEuler()


def below(x, t):
    """A stop: the pendulum has swung below this angle."""
    return x.joint_position[0] < 0.5


@pytest.fixture(scope="module")
def swings():
    """A pendulum, and states of it from which it is let go: the first is below the angle already, the last stays above."""
    system = FixedBaseDynamics(load("pendulum"))
    angles = jnp.array([0.4, 0.6, 0.9, 3.1])
    return system, FixedBaseState(angles[:, None], jnp.zeros((4, 1)))


@pytest.fixture(scope="module")
def free(swings):
    """All steps of the same rollouts without a stop."""
    system, x = swings
    return jax.vmap(lambda x: rollout(system, EULER, x, None, 1e-2, 40, checkpoint="none"))(x)


def first_below(free, i):
    """The number of steps until lane `i` is below, or of all, and the state then."""
    angles = np.asarray(free.state.joint_position)[i, :, 0]
    n = int(np.argmax(angles < 0.5)) + 1 if (angles < 0.5).any() else len(angles)
    return n, jax.tree.map(lambda a: a[i, n - 1], free.state)


def test_each_lane_is_frozen_where_it_stopped(swings, free):
    system, x = swings
    path = jax.vmap(
        lambda x: rollout(system, EULER, x, None, 1e-2, 40, stop=below, save_every=5, record=lambda x, u, t: u)
    )(x)
    assert path.stopped.tolist() == [True, True, True, False]
    assert path.status.tolist() == [Status.OK] * 4
    assert_tree_close(jax.tree.map(lambda a: a[0], path.final), jax.tree.map(lambda a: a[0], x), 0)
    assert path.steps[0] == 0 and not path.active[0].any()
    for i in (1, 2, 3):
        n, state = first_below(free, i)
        assert path.steps[i] == n
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], path.final), state, 1e-14)
        # saved states are those of the free motion while the lane moves, and then the last one
        moving = [5 * (k + 1) <= n for k in range(8)]
        assert path.active[i].tolist() == moving
        for k in range(8):
            expected = free.state.joint_position[i, 5 * k + 4] if moving[k] else state.joint_position
            np.testing.assert_allclose(path.state.joint_position[i, k], expected, atol=1e-14)
    assert 1 < path.steps[1] < path.steps[2] < 40 == path.steps[3]


def test_one_robot_and_a_batch_stop_alike_and_the_batch_ends_with_the_last(swings, free):
    system, x = swings
    n, state = first_below(free, 2)
    alone = rollout(system, EULER, jax.tree.map(lambda a: a[2], x), None, 1e-2, 40, stop=below, save_every=None)
    assert alone.stopped and alone.steps == n and alone.active is None
    assert_tree_close(alone.final, state, 1e-14)
    three = jax.tree.map(lambda a: a[:3], x)
    result = batch_rollout(system, EULER, three, None, 1e-2, 400, stop=below, save_every=10, chunk=10)
    assert result.status is Status.OK
    assert result.steps == -(-n // 10) * 10 == result.trajectory.state.joint_position.shape[1] * 10
    assert result.trajectory.steps.tolist() == [0, first_below(free, 1)[0], n]
    assert result.trajectory.stopped.all() and result.trajectory.active.shape == (3, result.steps // 10)
    assert_tree_close(jax.tree.map(lambda a: a[2], result.trajectory.final), state, 1e-14)


def test_gradients_pass_a_stop_in_both_modes_and_are_those_of_the_steps_that_were_taken(swings, free):
    system, x = swings

    def final(g, x, steps, **options):
        heavy = eqx.tree_at(lambda s: s.model.gravity, system, g * system.model.gravity)
        return rollout(heavy, EULER, x, None, 1e-2, steps, save_every=None, **options).final.joint_position[0]

    def slopes(checkpoint):
        of = lambda x: jax.grad(final)(jnp.ones(()), x, 40, stop=below, checkpoint=checkpoint)  # noqa: E731
        return jax.vmap(of)(x)

    found, nested, forward = quick_jit(
        lambda: (
            slopes("step"),
            slopes("nested"),
            jax.vmap(lambda x: jax.jacfwd(final)(jnp.ones(()), x, 40, stop=below))(x),
        )
    )()
    np.testing.assert_allclose(found, nested, rtol=1e-12)
    np.testing.assert_allclose(found, forward, rtol=1e-12)
    assert found[0] == 0
    n, _ = first_below(free, 2)
    taken = jax.grad(final)(jnp.ones(()), jax.tree.map(lambda a: a[2], x), n)
    np.testing.assert_allclose(found[2], taken, rtol=1e-12)


def test_a_lane_that_stopped_at_a_singular_state_has_a_finite_gradient():
    """A force that grows as the square root of the height is not differentiable on the ground, where the lane stops."""
    system = FixedBaseDynamics(load("pendulum"))

    def policy(x, t):
        return jnp.sqrt(jnp.maximum(x.joint_position, 0.0))

    def final(start):
        x = FixedBaseState(start[None], jnp.full(1, -50.0) * (1 + 0 * start))
        landed = lambda x, t: x.joint_position[0] <= 0  # noqa: E731
        path = rollout(system, EULER, x, policy, 1e-2, 4, stop=landed, save_every=None)
        return path.final.joint_velocity[0] * jnp.where(path.stopped, 1.0, 0.0)

    slopes = quick_jit(jax.vmap(jax.grad(final)))(jnp.array([0.1, 0.8]))
    assert np.isfinite(slopes).all() and (np.asarray(slopes) != 0).all()


def test_a_stop_that_gives_no_bool_is_named(swings):
    system, x = swings
    one = jax.tree.map(lambda a: a[0], x)
    with pytest.raises(InputError, match=r"stop: wanted a function .* one bool, given one that returns bool\(1,\)"):
        rollout(system, EULER, one, None, 1e-2, 4, stop=lambda x, t: x.joint_position < 0.5)
    with pytest.raises(InputError, match=r"given one that returns float64\(\)"):
        batch_rollout(system, EULER, x, None, 1e-2, 4, stop=lambda x, t: t)


# Times that are no multiples of the step


@pytest.fixture(scope="module")
def falling():
    """A body in free fall, of which every integrator's step is known; and the input that lets it fall."""
    start = State(jnp.zeros(6), jnp.zeros(0), jnp.array([0.0, 0.0, 1.0]), jnp.eye(3), jnp.zeros(0))
    pull = AccelerationInput(jnp.array([0.0, 0.0, -9.80665, 0.0, 0.0, 0.0]), jnp.zeros(0))
    return FloatingBaseAccelerationKinematics(0), start, pull


def test_a_rollout_ends_exactly_at_its_duration(falling):
    """The original takes one step of dt and one of 1.5 dt for T = 2.5 dt, and never ends for T < dt; here no step is longer
    than dt."""
    system, x, pull = falling
    g, h = 9.80665, 1e-3
    run = lambda duration, **options: rollout(system, LieEuler(), x, pull, h, duration=duration, **options)  # noqa: E731
    path = run(2.5 * h)
    np.testing.assert_allclose(path.time, [h, 2 * h, 2.5 * h], rtol=1e-15)
    assert path.final.twist[2] == pytest.approx(-2.5 * h * g, rel=1e-13)
    # explicit Euler: the velocity of the start of each step
    assert path.final.position[2] - 1 == pytest.approx(-g * h * h * (1 + 0.5 * 2), rel=1e-9)
    short = run(0.4 * h)
    assert short.time.tolist() == [0.4 * h] and short.final.twist[2] == pytest.approx(-0.4 * h * g, rel=1e-13)
    assert_tree_close(run(0.0).final, x, 0)
    assert run(0.0).time.shape == (0,)
    whole = rollout(system, LieEuler(), x, pull, h, 3)
    assert_tree_close(run(3 * h).state, whole.state, 1e-14)
    assert run(11 * 0.1 * h).time[-1] == 11 * 0.1 * h
    assert rollout(system, LieEuler(), x, pull, 0.1, duration=1.1).time.shape == (11,)
    halves = run(2.5 * h, substeps=2, t0=7.0)
    assert halves.time[-1] == 7.0 + 2.5 * h and halves.final.twist[2] == pytest.approx(-2.5 * h * g, rel=1e-13)


def test_batches_end_at_their_duration_too(falling):
    system, x, pull = falling
    many = jax.tree.map(lambda a: jnp.stack([a, a]), x)
    result = batch_rollout(system, RKMK4(), many, pull, 1e-2, duration=0.095, chunk=4, save_every=1)
    assert result.steps == 10 and result.trajectory.time[-1] == pytest.approx(0.095, abs=1e-16)
    np.testing.assert_allclose(result.trajectory.final.position[:, 2], 1 - 9.80665 / 2 * 0.095**2, rtol=1e-13)


def test_durations_have_derivatives(falling):
    """Those of the state with respect to the time at which it is asked for: its velocity."""
    system, x, pull = falling

    def height(duration, dt):
        return rollout(system, RKMK4(), x, pull, dt, 3, duration=duration, save_every=None).final.position[2]

    by_duration, by_dt = quick_jit(jax.grad(height, argnums=(0, 1)))(jnp.asarray(0.25), jnp.asarray(0.1))
    assert by_duration == pytest.approx(-9.80665 * 0.25, rel=1e-12)
    assert by_dt == pytest.approx(0, abs=1e-12)  # the method is exact here, whatever its step


def test_each_lane_may_have_a_duration_of_its_own(falling):
    """Of a fixed number of steps; those after the end take no time. Halves, wholes, and one that is not reached."""
    system, x, pull = falling
    durations = jnp.array([0.0, 0.05, 0.1, 0.25, 0.3, 0.45])

    def fall(duration):
        return rollout(system, RKMK4(), x, pull, 0.1, 4, duration=duration)

    path, slope = quick_jit(jax.vmap(lambda T: (fall(T), jax.grad(lambda T: fall(T).final.position[2])(T))))(durations)
    reached = np.minimum(durations, 0.4)
    np.testing.assert_allclose(path.time[:, -1], reached, rtol=1e-15)
    np.testing.assert_allclose(path.time[3], [0.1, 0.2, 0.25, 0.25], rtol=1e-15)
    np.testing.assert_allclose(path.final.position[:, 2], 1 - 9.80665 / 2 * reached**2, rtol=1e-13)
    # the velocity; also where the duration is a multiple of the step
    np.testing.assert_allclose(slope[1:5], -9.80665 * durations[1:5], rtol=1e-12)
    assert slope[5] == 0


def test_durations_that_make_no_sense_are_named(falling):
    system, x, pull = falling
    for duration in (-1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="duration: wanted a time that is not negative"):
            rollout(system, EULER, x, pull, 1e-2, duration=duration)
    with pytest.raises(InputError, match=r"steps: a duration of 0.1 s takes 10 steps of at most 0.01 s, given 11"):
        rollout(system, EULER, x, pull, 1e-2, 11, duration=0.1)
    with pytest.raises(InputError, match="no duration, or one that is traced"):
        jax.jit(lambda T: rollout(system, EULER, x, pull, 1e-2, duration=T).final)(0.1)
    with pytest.raises(InputError, match="steps: wanted a number of steps, or a duration"):
        batch_rollout(system, EULER, jax.tree.map(lambda a: a[None], x), pull, 1e-2)
    with pytest.raises(InputError, match="positive time step"):
        batch_rollout(system, EULER, jax.tree.map(lambda a: a[None], x), pull, 0.0, 2)


def test_single_precision_durations():
    system = FixedBaseDynamics(load("pendulum", dtype=jnp.float32))
    x = FixedBaseState(jnp.full(1, 0.3, jnp.float32), jnp.zeros(1, jnp.float32))
    path = rollout(system, EULER, x, None, 0.1, duration=1.1, stop=lambda x, t: t > 0.85)
    assert path.time.dtype == jnp.float32 and path.time.shape == (11,)
    assert path.time[-1] == np.float32(1.1) and path.steps == 9 and path.stopped
