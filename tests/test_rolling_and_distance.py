"""Distances, wheels, viability limits and admittances: closed forms, differences, and motions that never leave."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError
from jaxdyn.model import from_urdf, integrate, load, random_configuration
from jaxdyn.tasks import (
    AccelerationLimits,
    Admittance,
    Affine,
    DistanceTask,
    RollingTask,
    TaskConstraint,
    ViabilityLimits,
    minimize_variable,
    robot_state,
    solve_hierarchy,
)

BODY = '<inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
RADIUS, TRACK = 0.2, 0.3


@functools.cache
def cart():
    """A base on two wheels that turn about its y axis, 0.3 m to either side, and a second frame for a roller."""
    text = f'<robot name="cart"><link name="base">{BODY}</link>'
    for side, y in (("left", TRACK), ("right", -TRACK)):
        text += (
            f'<link name="{side}">{BODY}</link><joint name="{side}_axle" type="continuous"><parent link="base"/>'
            f'<child link="{side}"/><origin xyz="0 {y} 0"/><axis xyz="0 1 0"/></joint>'
        )
    return from_urdf(text + "</robot>", root="floating", dtype=jnp.float64)


def at(model, yaw, left, right):
    q = jnp.zeros(model.nq).at[2].set(RADIUS).at[3].set(np.cos(yaw / 2)).at[6].set(np.sin(yaw / 2))
    return q.at[7].set(left).at[8].set(right)


def test_a_cart_rolls_as_unicycles_do():
    """Wheels that do not slip leave v = r (left + right) / 2 forward and r (right - left) / (2 track) about z."""
    model, yaw = cart(), 0.7
    state = robot_state(model, at(model, yaw, 0.4, -1.1))
    y = jnp.asarray([0.0, 1.0, 0.0])
    rows = jnp.concatenate([RollingTask(f, RADIUS, y).evaluate(state).A for f in ("left", "right")])
    left, right = 0.5, 0.8
    forward, turn = RADIUS * (left + right) / 2, RADIUS * (right - left) / (2 * TRACK)
    free = jnp.asarray([forward, 0, 0, 0, 0, turn, left, right])  # base twist in the axes of the base
    np.testing.assert_allclose(rows @ free, 0.0, atol=1e-12)
    # nothing else moves on the plane: two degrees of freedom remain, and rocking about the common axle
    assert np.linalg.matrix_rank(np.asarray(rows)) == 5
    np.testing.assert_allclose(rows @ jnp.zeros(8).at[4].set(1.0).at[6:].set(-1.0), rows @ jnp.zeros(8), atol=1e-12)
    # a sliding base: both rows see it
    slip = rows @ jnp.zeros(8).at[1].set(1.0)
    np.testing.assert_allclose(slip[:2], [-np.sin(yaw), np.cos(yaw)], atol=1e-12)


def test_a_mecanum_wheel_holds_what_its_roller_holds():
    """Rollers at 45 degrees: r omega = v_x - v_y - track w for the left wheel, seen from the base."""
    model = cart()
    state = robot_state(model, at(model, 0.7, 0.4, -1.1))
    task = RollingTask(
        "left", RADIUS, jnp.asarray([0.0, 1, 0]), along=jnp.asarray([1.0, -1, 0]), carrier="base", name="mecanum"
    )
    data = task.evaluate(state)
    expected = np.array([1, -1, 0, 0, 0, -TRACK, -RADIUS, 0]) / np.sqrt(2)
    # rolling about x lifts the wheel and moves its lowest point sideways
    expected[3] = data.A[0, 3]
    expected[4] = -RADIUS / np.sqrt(2)
    np.testing.assert_allclose(data.A[0], expected, atol=1e-12)
    with pytest.raises(InputError, match="along and carrier go together"):
        RollingTask("left", RADIUS, jnp.asarray([0.0, 1, 0]), along=jnp.asarray([1.0, 0, 0]))


def test_rolling_wheels_carry_a_wish_of_the_base_only_as_far_as_they_can():
    model = cart()
    state = robot_state(model, at(model, 0.0, 0.0, 0.0))
    y = jnp.asarray([0.0, 1.0, 0.0])
    base = Affine(jnp.eye(8)[jnp.asarray([0, 1, 5])], jnp.zeros(3))
    stack = minimize_variable(base, jnp.asarray([0.1, 0.05, 0.2])) / minimize_variable(Affine.identity(8))
    for wheel in ("left", "right"):
        stack = stack << TaskConstraint(RollingTask(wheel, RADIUS, y, name=wheel))
    x = solve_hierarchy(stack, state).x
    np.testing.assert_allclose(x[jnp.asarray([0, 1, 5])], [0.1, 0.0, 0.2], atol=1e-7)  # no way sideways
    turned = x[4] + x[6:]  # rocking of the base turns the wheels along
    np.testing.assert_allclose(turned, [(0.1 - TRACK * 0.2) / RADIUS, (0.1 + TRACK * 0.2) / RADIUS], atol=1e-6)


@functools.cache
def rates():
    """Jacobian, bias, error: here and a step along the motion to either side."""
    model = load("quadruped", root="floating", dtype=jnp.float64)
    q = random_configuration(model, jax.random.key(1))
    v = jax.random.normal(jax.random.key(2), (model.nv,))
    frames = model.frame_names
    point = jnp.asarray([0.05, -0.1, 0.2])
    tasks = {
        "to world": DistanceTask(frames[-1], 0.5, point=point, other_point=jnp.asarray([0.4, 0.1, 0.3])),
        "of frames": DistanceTask(frames[-1], 0.5, frames[3], other_point=point),
        "wheel": RollingTask(frames[-1], 0.1, jnp.asarray([0.1, 1.0, 0.2])),
        "roller": RollingTask(
            frames[-1], 0.1, jnp.asarray([0.1, 1.0, 0.2]), along=jnp.asarray([1.0, 1, 0]), carrier=frames[0]
        ),
    }

    def at(t):
        state = robot_state(model, integrate(model, q, t * v), v)
        return {k: (task.jacobian(state), task.bias(state), task.error(state)) for k, task in tasks.items()}

    h = 1e-5
    return quick_jit(jax.vmap(at))(jnp.asarray([0.0, h, -h])), h, np.asarray(v)


@pytest.mark.parametrize("name", ["to world", "of frames", "wheel", "roller"])
def test_jacobians_and_biases_against_differences(name):
    (J, bias, error), h, v = (x[name] if isinstance(x, dict) else x for x in rates())
    np.testing.assert_allclose(bias[0], (J[1] - J[2]) @ v / (2 * h), atol=1e-5)
    if "wheel" not in name and "roller" not in name:
        np.testing.assert_allclose(J[0] @ v, -(error[1] - error[2]) / (2 * h), atol=1e-7)
        assert abs(float((J[0] @ v)[0])) > 1e-2


def test_points_that_meet_have_no_direction():
    model = cart()
    state = robot_state(model, at(model, 0.2, 0.0, 0.0))
    data = DistanceTask("left", 0.1, "left").evaluate(state)
    np.testing.assert_array_equal(data.A, 0.0)
    assert np.isfinite(data.b).all()
    slope = jax.grad(lambda q: DistanceTask("left", 0.1, "left").nonlinear_cost(robot_state(model, q)))(state.q)
    assert np.isfinite(slope).all()
    far = DistanceTask("left", 0.1, "right").reset(state)
    np.testing.assert_allclose(far.reference, 2 * TRACK, atol=1e-12)


def test_wheels_without_a_direction_and_references_of_another_shape_are_refused():
    y, zero = jnp.asarray([0.0, 1.0, 0.0]), jnp.zeros(3)
    for wrong in ({"axle": zero}, {"axle": y, "normal": zero}, {"axle": y, "along": zero, "carrier": "base"}):
        with pytest.raises(InputError, match="wanted a direction of any length but zero"):
            RollingTask("left", RADIUS, **wrong)
    with pytest.raises(InputError, match="radius: wanted a number that is not negative"):
        RollingTask("left", -RADIUS, y)
    state = robot_state(cart(), at(cart(), 0.0, 0.0, 0.0))
    with pytest.raises(InputError, match=r"reference: wanted shape \(\), given shape \(2,\)"):
        DistanceTask("left", jnp.asarray([0.1, 0.2]), "right").evaluate(state)


# -- viability

MOST, SPEED, DT = 4.0, 1.5, 0.02


@functools.cache
def hinge():
    text = f'<robot name="h"><link name="world"/><link name="a">{BODY}</link><joint name="j" type="revolute">'
    text += '<parent link="world"/><child link="a"/><axis xyz="0 0 1"/>'
    return from_urdf(
        text + f'<limit lower="-1" upper="0.8" velocity="{SPEED}" effort="1"/></joint></robot>', dtype=jnp.float64
    )


@functools.cache
def thrown(order):
    """A hinge pushed about by random wishes, clipped to its limits: positions, velocities, accelerations, gaps."""
    model = hinge()
    limits = ViabilityLimits(DT, MOST)

    def run(key):
        # long pushes to either side, then short ones
        wishes = 3 * MOST * jnp.repeat(jax.random.normal(key, (60,)), 10)

        def step(carry, wish):
            q, v = carry
            expression = None if order == 1 else Affine.identity(1, jnp.float64)
            data = limits.evaluate(robot_state(model, q, v, acceleration=expression))
            low, high = (data.lower, data.upper) if order == 1 else (data.b_lower, data.b_upper)
            if order == 1:
                x = jnp.clip(v * DT + wish * DT**2, low, high)
                a, crest = (x / DT - v) / DT, q + x
                q, v = q + x, x / DT
            else:
                a = jnp.clip(wish, low, high)
                t = jnp.clip(-v / jnp.where(a == 0, 1.0, a), 0.0, DT)
                crest = q + v * t + a * t**2 / 2  # the farthest point within the step
                q, v = q + DT * v + DT**2 / 2 * a, v + DT * a
            return (q, v), jnp.concatenate([q, v, a, high - low, crest])

        return jax.lax.scan(step, (jnp.zeros(1), jnp.zeros(1)), wishes)[1]

    return np.asarray(quick_jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 32)))


@pytest.mark.parametrize("order", [1, 2])
def test_motions_within_viability_limits_never_leave_them(order):
    q, v, a, room, crest = np.moveaxis(thrown(order), -1, 0)
    for position in (q, crest):
        assert position.max() <= 0.8 + 1e-9 and position.min() >= -1 - 1e-9
    assert np.abs(v).max() <= SPEED + 1e-9 and np.abs(a).max() <= MOST + 1e-7
    assert room.min() > -1e-12
    # they are not merely cautious: limits are reached, at full speed and with full braking
    assert q.max() > 0.79 and np.abs(v).max() > 0.99 * SPEED and np.abs(a).max() > 0.99 * MOST


@pytest.mark.parametrize("wrong", [{"dt": 0.0}, {"acceleration": -MOST}, {"acceleration": 0.0}, {"velocity": -1.0}])
def test_viability_limits_that_allow_nothing_are_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))}: wanted a"):
        ViabilityLimits(**({"dt": DT, "acceleration": MOST} | wrong))


@pytest.mark.parametrize("limits", [AccelerationLimits(jnp.ones(1), DT), ViabilityLimits(DT, jnp.ones(1))])
def test_one_number_in_a_list_does_not_stand_for_all_joints(limits):
    with pytest.raises(InputError, match=r"wanted shape \(8,\), given shape \(1,\)"):
        limits.evaluate(robot_state(cart(), at(cart(), 0.0, 0.0, 0.0)))


def test_hopeless_states_brake_as_hard_as_they_may():
    model = hinge()
    state = robot_state(model, jnp.asarray([0.79]), jnp.asarray([1.4]), acceleration=Affine.identity(1, jnp.float64))
    data = ViabilityLimits(DT, MOST).evaluate(state)
    np.testing.assert_allclose([data.b_lower[0], data.b_upper[0]], [-MOST, -MOST])
    slow = ViabilityLimits(DT, MOST).evaluate(robot_state(model, jnp.asarray([0.79]), jnp.asarray([1.4])))
    np.testing.assert_allclose(slow.upper, 1.4 * DT - MOST * DT**2)
    wheel = ViabilityLimits(DT, MOST, velocity=3.0).evaluate(robot_state(cart(), at(cart(), 0.0, 0.0, 0.0)))
    np.testing.assert_allclose(wheel.upper, MOST * DT**2)  # no position limits
    slope = jax.grad(lambda q: ViabilityLimits(DT, MOST).evaluate(dataclasses.replace(state, q=q)).b_upper[0])
    assert np.isfinite(slope(jnp.asarray([0.5]))).all()


# -- admittance


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_an_admittance_comes_to_rest_where_the_spring_holds_the_force(dtype):
    rule = Admittance(damping=20.0, dt=0.01, mass=1.0, stiffness=100.0, deadzone=0.5)
    force = jnp.asarray([5.5, -0.4, -10.5], dtype)
    state = jax.lax.fori_loop(0, 2000, lambda _, s: rule.step(s, force), rule.start(3, dtype))
    np.testing.assert_allclose(state.position, [0.05, 0.0, -0.1], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.velocity, 0.0, atol=1e-6)
    assert state.position.dtype == dtype


def test_an_admittance_converges_to_the_motion_of_its_spring():
    """Critically damped under a constant force: x = f / k (1 - (1 + w t) exp(-w t)); first order in the step."""
    w, end = 10.0, 0.3
    exact = 0.02 * (1 - (1 + w * end) * np.exp(-w * end))

    def error(steps):
        rule = Admittance(damping=2 * w, dt=end / steps, mass=1.0, stiffness=w**2)
        state = jax.lax.fori_loop(0, steps, lambda _, s: rule.step(s, jnp.asarray([2.0])), rule.start(1))
        return float(state.position[0]) - exact

    assert abs(error(400) / error(200) - 0.5) < 0.02 and abs(error(400)) < 1e-4
    # no mass: velocity is force over damping; a stiff spring with a long step stays finite
    one = Admittance(damping=4.0, dt=0.1).step(Admittance(damping=4.0, dt=0.1).start(1), jnp.asarray([2.0]))
    np.testing.assert_allclose([one.velocity[0], one.position[0]], [0.5, 0.05], rtol=1e-12)
    stiff = Admittance(damping=1.0, dt=1.0, mass=1.0, stiffness=1e6)
    last = jax.lax.fori_loop(0, 50, lambda _, s: stiff.step(s, jnp.asarray([1.0])), stiff.start(1))
    np.testing.assert_allclose(last.position, 1e-6, rtol=1e-6)
    with pytest.raises(InputError, match="damping: wanted a number that is not negative"):
        Admittance(damping=-1.0, dt=0.1)
    with pytest.raises(InputError, match=r"damping: wanted shape \(1,\), given shape \(3,\)"):
        Admittance(damping=jnp.ones(3), dt=0.1).step(one, jnp.asarray([2.0]))


def test_slipping_dies_out_at_acceleration_level():
    model = cart()
    v = jnp.asarray([0.3, 0.1, 0.0, 0.0, 0.0, 0.2, 1.0, -0.5])
    state = robot_state(model, at(model, 0.4, 0.0, 0.0), v, acceleration=Affine.identity(8, jnp.float64))
    task = RollingTask("left", RADIUS, jnp.asarray([0.0, 1, 0]), rate_gain=5.0)
    data = task.evaluate(state)
    J = task.jacobian(state)
    np.testing.assert_allclose(data.b, -5.0 * J @ v - task.bias(state), atol=1e-12)
    p = alg.frame_pose(model, state.kin, "left").translation
    twist = alg.frame_velocity(model, state.kin, "left")
    # the velocity of the lowest point of the wheel, by hand
    lowest = twist[:3] + jnp.cross(twist[3:], jnp.asarray([0.0, 0.0, -RADIUS]))
    np.testing.assert_allclose(J @ v, lowest, atol=1e-12)
    assert p[2] == pytest.approx(RADIUS)
