"""Jacobians of frames and points, and J_dot v."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot, every_robot_in_both_precisions, oracle, robot, some_frames
from oracles import states

from jaxdyn.algorithms import (
    bias_accelerations,
    forward_kinematics,
    frame_acceleration,
    frame_jacobian,
    frame_point,
    frame_pose,
    frame_velocity,
    jacobian_dot_v,
    point_jacobian,
)
from jaxdyn.errors import InputError
from jaxdyn.math.spatial import Representation
from jaxdyn.model import coordinate_rates, integrate, load, neutral


@every_robot_in_both_precisions
def test_jacobians_agree_with_pinocchio_in_all_representations(name, dtype, tolerance):
    result = evaluate(name, dtype)
    for frame in some_frames(result.model):
        for representation in Representation:
            there = lambda q, f=frame, r=representation: result.oracle.jacobian(q, f, r)  # noqa: E731
            expected = result.reference(there, "q")
            check(result["jacobian", frame, representation], expected, tolerance, f"{frame}, {representation}")


@every_robot
def test_a_jacobian_takes_velocities_to_the_twist_and_accelerations_to_the_acceleration(name):
    result = evaluate(name)
    v, a = result.inputs["v"], result.inputs["a"]
    for frame in some_frames(result.model):
        for representation in Representation:
            jacobian = result["jacobian", frame, representation]
            check(np.einsum("bij,bj->bi", jacobian, v), result["twist", frame, representation], 1e-12)
            rate = np.einsum("bij,bj->bi", jacobian, a) + result["bias", frame, representation]
            check(rate, result["acceleration", frame, representation], 1e-11)


@pytest.fixture(scope="module")
def one_state():
    model = robot("small")
    state = {name: x[0] for name, x in states(model).items()}
    return model, state, forward_kinematics(model, state["q"], state["v"], state["a"])


def test_all_frames_agree_with_pinocchio_outside_of_jit_and_vmap(one_state):
    model, state, kin = one_state
    for frame in model.frame_names:
        for representation in Representation:
            expected = oracle("small").jacobian(state["q"], frame, representation)
            check(frame_jacobian(model, kin, frame, representation), expected, 1e-12, frame)
    default = frame_jacobian(model, kin, frame)
    np.testing.assert_array_equal(default, frame_jacobian(model, kin, frame, Representation.MIXED))


def test_jacobians_are_derivatives_of_positions_and_their_rate_is_j_dot(one_state):
    """In tangent space: columns are the rates of the frame when q moves along integrate(model, q, e_k t)."""
    model, state, kin = one_state
    frame, point, v = model.frame_names[-1], jnp.array([0.2, -0.1, 0.3]), state["v"]

    def place(displacement):
        at = forward_kinematics(model, integrate(model, state["q"], displacement))
        return frame_pose(model, at, frame).rotation, frame_point(model, at, frame, point)

    def twist(time):
        at = forward_kinematics(model, integrate(model, state["q"], v * time), v)
        jacobians = [frame_jacobian(model, at, frame, r) for r in Representation]
        return jnp.stack([jnp.matmul(j, v) for j in jacobians]), jnp.matmul(point_jacobian(model, at, frame, point), v)

    zero = jnp.zeros(model.nv)
    turn, shift = jax.jit(lambda: jax.jacfwd(place)(zero))()
    w = np.einsum("ijk,lj->ilk", turn, frame_pose(model, kin, frame).rotation)
    check(np.stack([w[2, 1], w[0, 2], w[1, 0]]), frame_jacobian(model, kin, frame)[3:], 1e-12)
    check(shift, point_jacobian(model, kin, frame, point), 1e-12)
    _, (rates, point_rate) = jax.jit(lambda: jax.jvp(twist, (jnp.zeros(()),), (jnp.ones(()),)))()
    for rate, representation in zip(rates, Representation, strict=True):
        check(rate, jacobian_dot_v(model, kin, frame, representation), 1e-11, representation)
    bias = jacobian_dot_v(model, kin, frame)
    arm = frame_point(model, kin, frame, point) - frame_pose(model, kin, frame).translation
    omega = frame_velocity(model, kin, frame)[3:]
    expected = bias[:3] + np.cross(bias[3:], arm) + np.cross(omega, np.cross(omega, arm))
    check(point_rate, expected, 1e-11)


def test_bias_accelerations_are_those_with_zero_joint_accelerations(one_state):
    model, state, kin = one_state
    still = forward_kinematics(model, state["q"], state["v"], jnp.zeros(model.nv))
    check(bias_accelerations(model, kin), still.acceleration, 1e-12)
    last = model.frame_names[-1]
    check(jacobian_dot_v(model, kin, last), frame_acceleration(model, still, last), 1e-12)


def test_the_free_flyer_moves_its_body_along_its_own_axes():
    """LOCAL: the identity for the base; the derivative of the coordinates goes through coordinate_rates."""
    model = load("box", root="floating")
    q = states(model)["q"][0]
    kin = forward_kinematics(model, q)
    check(frame_jacobian(model, kin, model.body_names[0], Representation.LOCAL), np.eye(6), 1e-15)
    v = jnp.arange(1.0, 7.0)
    check(coordinate_rates(model, q, v)[:3], frame_jacobian(model, kin, model.body_names[0])[:3] @ v, 1e-15)


def test_bodies_that_a_joint_does_not_move_have_exact_zeros(one_state):
    model, _, kin = one_state
    for i, name in enumerate(model.body_names):
        jacobian = np.asarray(frame_jacobian(model, kin, name, Representation.WORLD))
        np.testing.assert_array_equal(jacobian.any(axis=0) & ~model.tree.dof_support[i], False)


def test_wrong_points_are_refused():
    model = load("arm7")
    kin = forward_kinematics(model, neutral(model))
    with pytest.raises(InputError, match=r"point: wanted shape \(3,\), given shape \(3, 1\)"):
        point_jacobian(model, kin, model.frame_names[-1], jnp.zeros((3, 1)))
    with pytest.raises(InputError, match="point: wanted floating-point numbers, given dtype int"):
        point_jacobian(model, kin, model.frame_names[-1], jnp.zeros(3, int))
