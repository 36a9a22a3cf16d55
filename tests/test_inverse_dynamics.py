"""Inverse dynamics, its parts, and generalised forces of wrenches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot_in_both_precisions, oracle, robot
from oracles import states

from jaxdyn.algorithms import (
    Configuration,
    configuration_from_pose,
    crba,
    forward_kinematics,
    frame_jacobian,
    generalized_force,
    gravity_torque,
    joint_friction_torque,
    nonlinear_effects,
    rnea,
)
from jaxdyn.algorithms.configuration import as_configuration
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.model import configuration, from_urdf, load, neutral


@every_robot_in_both_precisions
def test_torques_agree_with_pinocchio(name, dtype, tolerance):
    """One of the states has a wrench on every body."""
    result = evaluate(name, dtype)
    expected = result.reference(result.oracle.rnea, "q", "v", "a", "wrenches")
    check(result["rnea"], expected, tolerance)


@every_robot_in_both_precisions
def test_generalised_forces_of_wrenches_agree_with_pinocchio(name, dtype, tolerance):
    result = evaluate(name, dtype)
    expected = result.reference(result.oracle.generalized_force, "q", "wrenches")
    check(result["generalized_force"], expected, tolerance)
    assert not result["generalized_force"][0].any() and result["generalized_force"][1].any()


@pytest.fixture(scope="module")
def one_state():
    model = robot("small")
    return model, {name: x[1] for name, x in states(model).items()}


def test_the_parts_agree_with_pinocchio_outside_of_jit_and_vmap(one_state):
    model, s = one_state
    there = oracle("small")
    q, v, a, wrenches = s["q"], s["v"], s["a"], s["wrenches"]
    check(rnea(model, q, v, a), there.rnea(q, v, a), 1e-12)
    check(rnea(model, q, v, a, wrenches), there.rnea(q, v, a, wrenches), 1e-12)
    check(rnea(model, q, v, a, wrenches), evaluate("small")["rnea"][1], 1e-13)
    check(nonlinear_effects(model, q, v), there.rnea(q, v, 0 * v), 1e-12)
    check(gravity_torque(model, q), there.rnea(q, 0 * v, 0 * v), 1e-12)


def test_wrenches_act_through_the_jacobians_of_the_bodies_frames(one_state):
    model, s = one_state
    kin = forward_kinematics(model, s["q"])
    expected = sum(frame_jacobian(model, kin, i).T @ w for i, w in enumerate(s["wrenches"]))
    check(generalized_force(model, s["q"], s["wrenches"]), expected, 1e-13)


def test_a_configuration_gives_what_its_coordinates_give(one_state):
    model, s = one_state
    at = as_configuration(model, s["q"])
    assert isinstance(at, Configuration)
    check(rnea(model, at, s["v"], s["a"], s["wrenches"]), rnea(model, s["q"], s["v"], s["a"], s["wrenches"]), 1e-15)
    check(crba(model, at), crba(model, s["q"]), 1e-15)
    check(forward_kinematics(model, at, s["v"]).twist, forward_kinematics(model, s["q"], s["v"]).twist, 1e-15)
    slope = lambda at: jax.grad(lambda v: rnea(model, at, v, s["a"]).sum())(s["v"])  # noqa: E731
    check(slope(at), slope(s["q"]), 1e-15)


def test_a_floating_base_may_be_given_by_its_pose():
    model = load("quadruped", root="floating")
    q = states(model)["q"][0]
    at = configuration_from_pose(model, q[:3], so3.from_quaternion(q[3:7]), q[7:])
    v, a = states(model)["v"][0], states(model)["a"][0]
    check(rnea(model, at, v, a), rnea(model, q, v, a), 1e-15)
    for arguments, text in (
        ((q[:2], jnp.eye(3), q[7:]), r"position: wanted shape \(3,\), given shape \(2,\)"),
        ((q[:3], q[3:7], q[7:]), r"rotation: wanted shape \(3, 3\), given shape \(4,\)"),
        ((q[:3], jnp.eye(3), q[6:]), r"joint_position: wanted shape \(12,\), given shape \(13,\)"),
    ):
        with pytest.raises(InputError, match=text):
            configuration_from_pose(model, *arguments)
    with pytest.raises(InputError, match="first joint is floating"):
        configuration_from_pose(load("arm7"), q[:3], jnp.eye(3), jnp.zeros(7))
    with pytest.raises(InputError, match=r"q.coordinates: wanted shape \(15,\), given shape \(14,\)"):
        rnea(model, Configuration(at.rotations, at.coordinates[:-1]), v, a)
    with pytest.raises(InputError, match=r"q.rotations: wanted shape \(1, 3, 3\), given shape \(0, 3, 3\)"):
        rnea(model, Configuration(at.rotations[:0], at.coordinates), v, a)


def test_torques_are_affine_in_the_acceleration_quadratic_in_the_velocity_and_linear_in_gravity(one_state):
    model, s = one_state
    q, v, a = s["q"], s["v"], s["a"]
    h, g = nonlinear_effects(model, q, v), gravity_torque(model, q)
    check(rnea(model, q, v, -a) + rnea(model, q, v, a), 2 * h, 1e-13)
    check(nonlinear_effects(model, q, -3 * v) - g, 9 * (h - g), 1e-13)
    upwards = eqx.tree_at(lambda m: m.gravity, model, -2 * model.gravity)
    check(gravity_torque(upwards, q), -2 * g, 1e-13)


def test_power_of_the_bias_torque_is_the_loss_of_energy(one_state):
    """v . (h - g) = v . M_dot v / 2: Coriolis terms do no work beyond the change of M."""
    model, s = one_state
    q, v = s["q"], s["v"]
    from jaxdyn.model import integrate

    rate = jax.jvp(lambda t: crba(model, integrate(model, q, v * t)), (jnp.zeros(()),), (jnp.ones(()),))[1]
    power = v @ (nonlinear_effects(model, q, v) - gravity_torque(model, q))
    np.testing.assert_allclose(power, 0.5 * v @ rate @ v, rtol=1e-11)


def test_a_free_body_needs_its_weight_and_nothing_else():
    model = from_urdf(
        '<robot name="r"><link name="ball"><inertial><origin xyz="0.1 0 0"/><mass value="2"/>'
        '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link></robot>',
        root="floating",
        gravity=(0.0, 0.0, -10.0),
    )
    zero = jnp.zeros(6)
    np.testing.assert_allclose(rnea(model, neutral(model), zero, zero), [0, 0, 20, 0, -2, 0], atol=1e-14)
    fall = jnp.array([0, 0, -10.0, 0, 0, 0])
    np.testing.assert_allclose(rnea(model, neutral(model), zero, fall), 0, atol=1e-14)
    # a push at the centre of mass: force and its moment about the frame's origin
    push = jnp.array([[3.0, 0, 0, 0, 0, 0]]) + jnp.array([[0, 0, 20.0, 0, -2, 0]])
    np.testing.assert_allclose(rnea(model, neutral(model), zero, zero, push), [-3, 0, 0, 0, 0, 0], atol=1e-14)


def test_friction_of_the_joints_opposes_motion_and_is_not_part_of_the_torque():
    model = load("arm7")
    v = jnp.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0, 0.1])
    viscous = eqx.tree_at(lambda m: (m.damping, m.friction), model, (jnp.full(7, 0.3), jnp.zeros(7)))
    np.testing.assert_allclose(joint_friction_torque(viscous, v), -0.3 * v, rtol=1e-15)
    dry = eqx.tree_at(lambda m: (m.damping, m.friction), model, (jnp.zeros(7), jnp.full(7, 0.3)))
    np.testing.assert_allclose(joint_friction_torque(dry, v), -0.3 * np.sign(v), atol=1e-15)
    assert np.isfinite(jax.jacobian(joint_friction_torque, 1)(dry, v)).all()
    q = neutral(model)
    np.testing.assert_array_equal(rnea(viscous, q, v, v), rnea(dry, q, v, v))


def test_a_robot_without_joints_needs_no_torques():
    model = from_urdf('<robot name="r"><link name="base"/></robot>')
    empty = jnp.zeros(0)
    assert jax.jit(rnea)(model, empty, empty, empty).shape == (0,)
    assert rnea(model, empty, empty, empty, jnp.zeros((0, 6))).shape == (0,)
    assert nonlinear_effects(model, empty, empty).shape == gravity_torque(model, empty).shape == (0,)
    assert jax.vmap(lambda q: gravity_torque(model, q))(jnp.zeros((3, 0))).shape == (3, 0)
    assert jax.grad(lambda q: rnea(model, q, q, q).sum())(empty).shape == (0,)


# What is refused

ARM = load("arm7")


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, lambda f: jax.vmap(f, axis_size=2, in_axes=None)], ids=["eager", "jit", "vmap"]
)
@pytest.mark.parametrize(
    "argument, value, message",
    [
        ("q", np.zeros(6), r"q: wanted shape \(7,\), given shape \(6,\)"),
        ("q", np.zeros(8), r"q: wanted shape \(7,\), given shape \(8,\)"),
        ("q", np.zeros(()), r"q: wanted shape \(7,\), given shape \(\)"),
        ("q", np.zeros(1), r"q: wanted shape \(7,\), given shape \(1,\)"),
        ("q", np.zeros((1, 7)), r"q: wanted shape \(7,\), given shape \(1, 7\)\. Batches go through jax\.vmap"),
        ("q", np.zeros((7, 1)), r"q: wanted shape \(7,\), given shape \(7, 1\)"),
        ("q", np.zeros(7, int), r"q: wanted floating-point numbers, given dtype int"),
        ("q", np.zeros(7, bool), r"q: wanted floating-point numbers, given dtype bool"),
        ("q", np.zeros(7, complex), r"q: wanted floating-point numbers, given dtype complex"),
        ("v", np.zeros(6), r"v: wanted shape \(7,\), given shape \(6,\)"),
        ("v", np.zeros(7, int), r"v: wanted floating-point numbers"),
        ("a", np.zeros((7, 7)), r"a: wanted shape \(7,\), given shape \(7, 7\)"),
        ("wrenches", np.zeros((7, 3)), r"wrenches: wanted shape \(7, 6\), given shape \(7, 3\)"),
        ("wrenches", np.zeros(6), r"wrenches: wanted shape \(7, 6\), given shape \(6,\)"),
    ],
)
def test_wrong_arguments_are_refused_with_name_and_shapes(transform, argument, value, message):
    good = {"q": np.zeros(7), "v": np.zeros(7), "a": np.zeros(7), "wrenches": np.zeros((7, 6))}
    arguments = {name: jnp.asarray(x) for name, x in (good | {argument: value}).items()}
    call = transform(lambda x: rnea(ARM, x["q"], x["v"], x["a"], x["wrenches"]))
    with pytest.raises(InputError, match=message):
        call(arguments)


def test_lists_of_floats_are_converted():
    q = [0.1] * 7
    np.testing.assert_array_equal(gravity_torque(ARM, q), gravity_torque(ARM, jnp.asarray(q)))
    np.testing.assert_array_equal(gravity_torque(ARM, configuration(ARM, {})), gravity_torque(ARM, np.zeros(7)))


# Compiled once


def test_other_numbers_do_not_compile_again():
    count = 0

    @jax.jit
    def torque(model, q, v, a):
        nonlocal count
        count += 1
        return rnea(model, q, v, a)

    first, second = load("arm7"), load("arm7")
    heavier = eqx.tree_at(lambda m: m.inertia.mass, first, 2 * first.inertia.mass)
    q = jnp.full(7, 0.3)
    torques = [torque(m, q, 0 * q, 0 * q) for m in (first, second, heavier)]
    torque(first, q + 1, q, q)
    assert count == 1 and torque._cache_size() == 1
    np.testing.assert_allclose(torques[1], torques[0])
    np.testing.assert_allclose(torques[2], 2 * torques[0], rtol=1e-12)


def test_gravity_torque_is_linear_in_the_masses():
    model = load("arm7", dtype=jnp.float64)
    q = jnp.linspace(-1.0, 1.0, model.nq)

    def torque(mass):
        return gravity_torque(eqx.tree_at(lambda m: m.inertia.mass, model, mass), q)

    mass = model.inertia.mass
    slopes = jax.jit(jax.jacfwd(torque))(mass)
    np.testing.assert_allclose(slopes @ mass, torque(mass), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.jacrev(torque))(mass), slopes, rtol=1e-12, atol=1e-12)
