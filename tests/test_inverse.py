"""Inverse kinematics and inverse dynamics by stacks of tasks, alone and in closed loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError, Status, UnknownNameError
from jaxdyn.math.se3 import SE3
from jaxdyn.model import difference, integrate, load, neutral, random_configuration
from jaxdyn.systems import FixedBaseDynamics, FixedBaseState, SemiImplicitEuler, rollout
from jaxdyn.tasks import (
    CartesianTask,
    CenterOfPressureLimits,
    CenterOfPressureTask,
    CoMTask,
    Contact,
    FrictionCone,
    GenericTask,
    JointLimits,
    NormalTorqueLimits,
    PositionTask,
    PosturalTask,
    TorqueLimits,
    WrenchLimits,
    WrenchTask,
    bounds,
    equality,
    inverse_dynamics,
    inverse_kinematics,
    robot_state,
    solve_hierarchy,
)

BATCH = 12


@functools.cache
def arm():
    model = load("arm7", dtype=jnp.float64)
    return model, model.frame_names[-1]


def middle(model):
    finite = jnp.isfinite(model.lower) & jnp.isfinite(model.upper)
    return (
        jnp.where(finite, 0.5 * (jnp.where(finite, model.lower, 0.0) + jnp.where(finite, model.upper, 0.0)), 0.1) + 0.1
    )


@functools.cache
def reached():
    """Goals that can be reached, from one start, with and without restarts."""
    model, tip = arm()
    keys = jax.random.split(jax.random.key(0), BATCH)

    def one(key):
        goal = random_configuration(model, key)
        pose = alg.frame_pose(model, alg.forward_kinematics(model, goal), tip)
        stack = CartesianTask(tip, pose, orientation_error="log6") << JointLimits()
        return pose, inverse_kinematics(stack, model, middle(model), restarts=7, key=key)

    pose, solution = quick_jit(jax.vmap(one))(keys)
    return jax.tree.map(np.asarray, solution), pose


@pytest.mark.slow
def test_goals_are_found_within_the_limits():
    model, tip = arm()
    solution, pose = reached()
    assert solution.success.mean() > 0.9
    assert (solution.q <= np.asarray(model.upper) + 1e-8).all() and (solution.q >= np.asarray(model.lower) - 1e-8).all()
    found = jax.vmap(lambda q: alg.frame_pose(model, alg.forward_kinematics(model, q), tip))(jnp.asarray(solution.q))
    done = solution.success
    np.testing.assert_allclose(found.translation[done], pose.translation[done], atol=1e-7)
    np.testing.assert_allclose(found.rotation[done], pose.rotation[done], atol=1e-7)
    assert (solution.status[done] == Status.OK).all() and (solution.status[~done] != Status.OK).all()


def test_the_derivative_of_a_solution_is_the_implicit_one():
    model, tip = arm()
    start = middle(model)
    target = alg.frame_pose(model, alg.forward_kinematics(model, start + 0.2), tip).translation

    def solve(p):
        s = inverse_kinematics(PositionTask(tip, p), model, start, tolerance=1e-10)
        return s.q

    q, J = quick_jit(lambda p: (solve(p), jax.jacrev(solve)(p)))(target)
    jacobian = alg.frame_jacobian(model, alg.forward_kinematics(model, q), tip)[:3]
    # the tip follows its target: J dq/dp = 1
    np.testing.assert_allclose(jacobian @ J, np.eye(3), atol=1e-6)


def test_restarts_need_a_key():
    model, tip = arm()
    with pytest.raises(InputError, match="restarts need a random key"):
        inverse_kinematics(PositionTask(tip, jnp.zeros(3)), model, neutral(model), restarts=3)


def test_torques_of_a_fixed_robot_and_a_closed_loop_that_reaches():
    model, tip = arm()
    start = jnp.asarray([0.2, 0.5, 0.1, 1.2, 0.1, 0.8, 0.1])  # bent: far from singular
    here = alg.frame_pose(model, alg.forward_kinematics(model, start), tip).translation
    target = here + jnp.asarray([0.05, -0.1, 0.05])
    stack = PositionTask(tip, target) / PosturalTask(start) << TorqueLimits()

    def policy(x, _):
        return inverse_dynamics(stack, model, x.joint_position, x.joint_velocity).torque

    def simulate(q):
        first = inverse_dynamics(stack, model, q, jnp.zeros(model.nv))
        check = alg.rnea(model, q, jnp.zeros(model.nv), first.acceleration)
        x0 = FixedBaseState(joint_position=q, joint_velocity=jnp.zeros(model.nv))
        end = rollout(FixedBaseDynamics(model), SemiImplicitEuler(), x0, policy, 0.01, 100, save_every=None).final
        tip_end = alg.frame_pose(model, alg.forward_kinematics(model, end.joint_position), tip).translation
        return first, check, tip_end

    first, check, end = quick_jit(simulate)(start)
    np.testing.assert_allclose(first.torque, check, atol=1e-6)
    assert first.success and (jnp.abs(first.torque) <= model.effort_limit + 1e-6).all()
    assert np.linalg.norm(end - target) < 0.005


# -- a humanoid on two feet

FEET = ("left_foot", "right_foot")


@functools.cache
def standing():
    model = load("humanoid", root="floating", dtype=jnp.float64)
    q = neutral(model)
    r = np.random.default_rng(0)
    q = integrate(model, q, jnp.asarray(0.1 * r.normal(size=model.nv)))
    v = jnp.asarray(0.1 * r.normal(size=model.nv))

    def control(q, v, lean, right_active):
        kin = alg.forward_kinematics(model, q)
        com = alg.center_of_mass(model, kin)
        feet = [alg.frame_pose(model, kin, f) for f in FEET]
        middle = 0.5 * (feet[0].translation + feet[1].translation)
        goal = jnp.concatenate([middle[:2] + lean, com[2:]])
        contacts = (Contact(FEET[0]), Contact(FEET[1], active=right_active))
        # the ground is level: the axes of the contact are those of the world
        level = [pose.rotation.T for pose in feet]
        limits = [
            c
            for foot, R in zip(FEET, level, strict=True)
            for c in (
                FrictionCone(foot, 0.7, R),
                CenterOfPressureLimits(foot, (-0.08, -0.04), (0.12, 0.04), R),
                NormalTorqueLimits(foot, (0.1, 0.04), 0.7, R),
            )
        ]
        stack = CoMTask(goal) / (PosturalTask(q) + 1e-3 * WrenchTask(FEET[0]))
        for limit in limits:
            stack = stack << limit
        stack = stack << TorqueLimits(jnp.full(model.nv, 500.0))
        s = inverse_dynamics(stack, model, q, v, contacts)
        # what the robot does under these torques and wrenches
        force = sum(alg.frame_jacobian(model, kin, f).T @ s.wrenches[f] for f in FEET)
        state = robot_state(model, q, v)
        motion = [
            alg.frame_jacobian(model, kin, f) @ s.acceleration + alg.jacobian_dot_v(model, state.kin, f) for f in FEET
        ]
        return s, alg.aba(model, q, v, s.torque + force), jnp.stack(motion), sum(model.inertia.mass)

    lean = jnp.asarray([[0.0, 0.0], [0.02, 0.01], [0.0, 0.03]])
    on = jnp.asarray([True, True, False])
    return jax.tree.map(np.asarray, quick_jit(jax.vmap(control, (None, None, 0, 0)))(q, v, lean, on))


@pytest.mark.slow
def test_a_humanoid_stands_by_pushing_only():
    s, acceleration, feet, mass = standing()
    assert (s.solution.status[:, 0] == Status.OK).all(), s.solution.status
    # on one foot the first level is at the edge of its sole: the posture has no freedom left, and may end as STALLED
    assert (s.solution.status[:2] == Status.OK).all(), s.solution.status
    assert s.residual.max() < 1e-5 and np.abs(s.torque[:, :6]).max() == 0
    np.testing.assert_allclose(acceleration, s.acceleration, atol=1e-5)
    assert np.abs(feet[:2]).max() < 1e-6 and np.abs(feet[2, 0]).max() < 1e-6
    left, right = s.wrenches["left_foot"], s.wrenches["right_foot"]
    assert (left[:, 2] > 0).all() and (right[:2, 2] > 0).all()
    np.testing.assert_allclose(right[2], 0.0, atol=1e-9)  # in the air
    for w in (left, right[:2]):
        assert (np.abs(w[:, :2]).max(axis=1) <= 0.7 / np.sqrt(2) * w[:, 2] + 1e-6).all()
        assert (w[:, 4] <= 0.08 * w[:, 2] + 1e-6).all() and (-w[:, 4] <= 0.12 * w[:, 2] + 1e-6).all()
    assert mass[0] > 0


def test_wrench_tasks_and_mistakes():
    model = load("quadruped", root="floating", dtype=jnp.float64)
    foot = model.frame_names[-1]
    q, v = neutral(model), jnp.zeros(model.nv)
    from jaxdyn.tasks import dynamics_state

    state, blocks = dynamics_state(model, q, v, (Contact(foot, "point"),))
    assert blocks.size == model.nv + 3
    R = jnp.eye(3)
    limits = WrenchLimits(foot, jnp.full(6, -1.0), jnp.full(6, 2.0), R)
    x = jnp.zeros(blocks.size).at[-3:].set(jnp.asarray([0.1, 0.2, 3.0]))
    np.testing.assert_allclose(limits.evaluate(state).violation(x), 1.0, atol=1e-12)
    task = CenterOfPressureTask(foot, jnp.asarray([0.1, 0.2]))
    np.testing.assert_allclose(task.evaluate(state).residual(x), [0.3, -0.6], atol=1e-12)
    with pytest.raises(UnknownNameError, match="unknown contact 'feet'"):
        WrenchTask("feet").evaluate(state)
    with pytest.raises(InputError, match="inverse dynamics only"):
        WrenchTask(foot).evaluate(robot_state(model, q))
    with pytest.raises(UnknownNameError, match="unknown kind of contact"):
        Contact(foot, "line")
    with pytest.raises(InputError, match="one per frame"):
        dynamics_state(model, q, v, (Contact(foot), Contact(foot)))


def test_feet_push_and_do_not_pull():
    """Trial T52: a body of 30 kg on two feet, its centre of mass at 0.05, 0.1 and 0.12 m."""
    weight = 294.3

    def share(com):
        rows = equality([[1.0, 1.0], [-0.1, 0.1]], jnp.stack([weight + 0 * com, weight * com]))
        return solve_hierarchy(GenericTask(np.eye(2), np.zeros(2)) << rows << bounds([0.0, 0.0]))

    s = quick_jit(jax.vmap(share))(jnp.asarray([0.05, 0.1, 0.12]))
    np.testing.assert_allclose(s.x[:2], [[73.575, 220.725], [0.0, weight]], atol=1e-5)
    assert list(s.status[:, 0]) == [Status.OK, Status.OK, Status.INFEASIBLE]


def test_a_relative_pose_closes_a_loop():
    model, tip = arm()
    start = middle(model)
    other = model.frame_names[2]
    pose = alg.relative_pose(model, alg.forward_kinematics(model, start), tip, other)
    closed = CartesianTask(tip, SE3(pose.rotation, pose.translation), base=other)
    stack = PosturalTask(start + 0.1) << closed
    x = solve_hierarchy(stack, robot_state(model, start)).x
    J = alg.relative_jacobian(model, alg.forward_kinematics(model, start), tip, other)
    np.testing.assert_allclose(J @ x, 0.0, atol=1e-8)
    assert np.linalg.norm(difference(model, start, integrate(model, start, x))) > 1e-3
