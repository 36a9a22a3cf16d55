"""Poses, velocities and accelerations of bodies and frames: against Pinocchio, and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot_in_both_precisions, oracle, robot, some_frames
from oracles import key, states

from jaxdyn.algorithms import (
    Kinematics,
    forward_kinematics,
    frame_acceleration,
    frame_jacobian,
    frame_point,
    frame_pose,
    frame_velocity,
    jacobian_dot_v,
)
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math.spatial import Representation
from jaxdyn.model import from_urdf, integrate, load, neutral, normalize

PARTS = ("twist", "acceleration", "bias")


@every_robot_in_both_precisions
def test_bodies_and_frames_are_where_pinocchio_has_them_and_move_as_there(name, dtype, tolerance):
    result = evaluate(name, dtype)
    model, n = result.model, result.model.n_bodies
    expected = result.reference(result.oracle.kinematics, "q", "v", "a")
    bodies = {
        "rotation": "rotation",
        "translation": "translation",
        "body_twist": "twist MIXED",
        "body_acceleration": "acceleration MIXED",
        "bias_accelerations": "bias MIXED",
    }
    for ours, there in bodies.items():
        check(result[ours], expected[there][:, :n], tolerance, ours)
    for frame in some_frames(model):
        i = model.frame(frame)
        for part in ("rotation", "translation"):
            check(result[part, frame], expected[part][:, i], tolerance, f"{part} of {frame}")
        for part in PARTS:
            for representation in Representation:
                there = expected[key(part, representation)][:, i]
                value, what = result[part, frame, representation], f"{part} of {frame}, {representation}"
                scale = np.abs(expected[key("acceleration", representation)][:, i]).max()
                if part == "bias" and np.abs(there).max() < 1e-9 * scale:  # nothing but rounding, in both
                    np.testing.assert_allclose(value, 0, rtol=0, atol=tolerance * scale, err_msg=what)
                else:
                    check(value, there, tolerance, what)


@pytest.fixture(scope="module")
def one_state():
    """A robot of every joint type in one state, not batched, not jitted; the same numbers in the oracle."""
    model = robot("small")
    state = {name: x[0] for name, x in states(model).items()}
    kin = forward_kinematics(model, state["q"], state["v"], state["a"])
    return model, state, kin, oracle("small").kinematics(state["q"], state["v"], state["a"])


def test_all_frames_agree_with_pinocchio_outside_of_jit_and_vmap(one_state):
    model, _, kin, expected = one_state
    for i, frame in enumerate(model.frame_names):
        pose = frame_pose(model, kin, frame)
        check(pose.rotation, expected["rotation"][i], 1e-12)
        check(pose.translation, expected["translation"][i], 1e-12)
        for representation in Representation:
            at = (model, kin, frame, representation)
            check(frame_velocity(*at), expected[key("twist", representation)][i], 1e-12, frame)
            check(frame_acceleration(*at), expected[key("acceleration", representation)][i], 1e-11, frame)
            check(jacobian_dot_v(*at), expected[key("bias", representation)][i], 1e-11, frame)


def test_eager_jitted_and_batched_calls_agree(one_state):
    model, state, kin, _ = one_state
    jitted = jax.jit(forward_kinematics)(model, state["q"], state["v"], state["a"])
    batched = evaluate("small")
    for part in ("rotation", "translation", "twist", "acceleration"):
        check(getattr(jitted, part), getattr(kin, part), 1e-13, part)
    check(batched["rotation"][0], kin.rotation, 1e-13)
    check(batched["body_acceleration"][0], kin.acceleration, 1e-13)


def test_parts_that_were_not_asked_for_are_absent():
    model = load("double_pendulum")
    q, v = neutral(model), jnp.ones(2)
    assert forward_kinematics(model, q).twist is None and forward_kinematics(model, q).velocity is None
    kin = forward_kinematics(model, q, v)
    assert kin.twist.shape == (2, 6) and kin.acceleration is None
    with pytest.raises(InputError, match=r"kin holds no velocities: make it with forward_kinematics\(model, q, v\)"):
        frame_velocity(model, forward_kinematics(model, q), 0)
    with pytest.raises(InputError, match=r"kin holds no velocities"):
        jacobian_dot_v(model, forward_kinematics(model, q), 0)
    with pytest.raises(
        InputError, match=r"kin holds no accelerations: make it with forward_kinematics\(model, q, v, a\)"
    ):
        frame_acceleration(model, kin, 0)
    with pytest.raises(InputError, match="a: accelerations need velocities"):
        forward_kinematics(model, q, None, v)


def test_twists_and_accelerations_are_time_derivatives():
    """Along q(t) = q + v t + a t^2 / 2 in the group of the configurations, to second order at t = 0."""
    model = robot("small")
    state = {name: x[0] for name, x in states(model).items()}
    frame = model.frame_names[-1]

    def motion(t):
        # the velocity of integrate(q, x(t)) at t is v + a t + O(t^2): [x, x_dot] vanishes at second order
        q = integrate(model, state["q"], state["v"] * t + 0.5 * state["a"] * t**2)
        kin = forward_kinematics(model, q, state["v"] + state["a"] * t)
        pose = frame_pose(model, kin, frame)
        twists = jnp.stack([frame_velocity(model, kin, frame, r) for r in Representation])
        return pose.rotation, pose.translation, twists

    zero, one = jnp.zeros(()), jnp.ones(())
    (rotation, _, twists), (spin, velocity, rates) = jax.jit(lambda: jax.jvp(motion, (zero,), (one,)))()
    local, mixed, _ = np.asarray(twists)
    w = rotation.T @ spin
    check(velocity, mixed[:3], 1e-12)
    check(jnp.stack([w[2, 1], w[0, 2], w[1, 0]]), local[3:], 1e-12)
    result = evaluate("small")
    for rate, representation in zip(rates, Representation, strict=True):
        check(rate, result["acceleration", frame, representation][0], 1e-11, representation)


def test_a_base_far_away_costs_no_digits_in_float32():
    """What does not depend on the base's position has the same digits at 10 km as at home."""
    model = load("quadruped", root="floating", dtype=jnp.float32)
    state = {name: x[0] for name, x in states(model).items()}
    far = state["q"].at[:3].set(jnp.array([1e4, -2e4, 3e3], jnp.float32))
    near = forward_kinematics(model, state["q"].at[:3].set(0.0), state["v"], state["a"])
    away = forward_kinematics(model, far, state["v"], state["a"])
    for part in ("rotation", "twist", "acceleration", "axes"):
        check(getattr(away, part), getattr(near, part), 1e-6, part)
    foot = model.frame_names[-1]
    check(frame_jacobian(model, away, foot), frame_jacobian(model, near, foot), 1e-2)  # that of a point in the world


def test_frames_are_given_by_name_or_index_and_those_of_the_world_stand_still():
    model = from_urdf(
        '<robot name="r"><link name="base"/><link name="post"/><link name="arm"/><link name="tool"/>'
        '<joint name="f" type="fixed"><origin xyz="1 2 3"/><parent link="base"/><child link="post"/></joint>'
        '<joint name="j" type="continuous"><origin xyz="0 0 1"/><parent link="post"/><child link="arm"/><axis xyz="0 0 1"/></joint>'
        '<joint name="g" type="fixed"><origin xyz="0.5 0 0"/><parent link="arm"/><child link="tool"/></joint></robot>'
    )
    kin = forward_kinematics(model, jnp.array([np.pi / 2]), jnp.array([2.0]), jnp.array([3.0]))
    np.testing.assert_allclose(frame_pose(model, kin, "tool").translation, [1, 2.5, 4], atol=1e-15)
    np.testing.assert_allclose(frame_velocity(model, kin, "tool"), [-1, 0, 0, 0, 0, 2], atol=1e-15)
    np.testing.assert_allclose(frame_acceleration(model, kin, "tool"), [-1.5, -2, 0, 0, 0, 3], atol=1e-15)
    np.testing.assert_allclose(frame_point(model, kin, "tool", jnp.array([0.0, 1, 0])), [0, 2.5, 4], atol=1e-15)
    index = model.frame("tool")
    np.testing.assert_array_equal(frame_pose(model, kin, index).translation, frame_pose(model, kin, "tool").translation)
    for still in ("base", "post"):
        assert not frame_velocity(model, kin, still).any() and not frame_acceleration(model, kin, still).any()
        assert frame_jacobian(model, kin, still).shape == (6, 1) and not frame_jacobian(model, kin, still).any()
    np.testing.assert_array_equal(frame_pose(model, kin, "post").translation, [1, 2, 3])


def test_a_robot_without_joints_has_empty_kinematics():
    model = from_urdf('<robot name="r"><link name="base"/></robot>')
    empty = jnp.zeros(0)
    kin = jax.jit(forward_kinematics)(model, empty, empty, empty)
    assert isinstance(kin, Kinematics)
    assert kin.rotation.shape == (0, 3, 3) and kin.twist.shape == (0, 6) and kin.axes.shape == (0, 6)
    np.testing.assert_array_equal(frame_pose(model, kin, "base").rotation, np.eye(3))
    assert frame_jacobian(model, kin, "base").shape == (6, 0)
    assert frame_velocity(model, kin, "base").shape == (6,)
    batch = jax.vmap(forward_kinematics, (None, 0))(model, jnp.zeros((3, 0)))
    assert batch.rotation.shape == (3, 0, 3, 3)


def test_the_length_of_a_quaternion_does_not_matter():
    model = robot("small")
    q = states(model)["q"][0]
    scales = np.ones(model.nq)
    for start, kind in zip(model.tree.q_offset, model.tree.joint_types, strict=True):
        if kind in ("floating", "spherical"):
            first = start + (3 if kind == "floating" else 0)
            scales[first : first + 4] = -0.37
    stretched = q * scales
    check(normalize(model, stretched) * np.sign(scales), q, 1e-14)
    here, there = forward_kinematics(model, q), forward_kinematics(model, stretched)
    check(there.rotation, here.rotation, 1e-14)
    check(there.translation, here.translation, 1e-14)


def test_wrong_frames_and_points_are_refused():
    model = load("quadruped", root="floating")
    kin = forward_kinematics(model, neutral(model), jnp.zeros(model.nv))
    name = model.frame_names[-1]
    with pytest.raises(UnknownNameError, match=f"unknown frame '{name}x'. Did you mean '{name}'"):
        frame_pose(model, kin, name + "x")
    for function in (frame_velocity, frame_jacobian, jacobian_dot_v):
        with pytest.raises(UnknownNameError, match="unknown frame"):
            function(model, kin, "nowhere")
    for index in (-1, model.n_frames):
        with pytest.raises(
            InputError, match=rf"frame: wanted a name or an index from 0 to {model.n_frames - 1}, given {index}"
        ):
            frame_pose(model, kin, index)
    for wrong in (1.0, True, None):
        with pytest.raises(Exception, match="frame"):
            frame_pose(model, kin, wrong)
    with pytest.raises(InputError, match=r"point: wanted shape \(3,\), given shape \(2,\)"):
        frame_point(model, kin, name, jnp.zeros(2))
