"""Centre of mass, momentum and energies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot, every_robot_in_both_precisions, robot
from oracles import states

from jaxdyn.algorithms import (
    aba,
    center_of_mass,
    centroidal_map,
    centroidal_momentum,
    com_jacobian,
    com_velocity,
    forward_kinematics,
    gravity_torque,
    kinetic_energy,
    potential_energy,
)
from jaxdyn.errors import InputError
from jaxdyn.model import from_urdf, integrate, load, neutral


@every_robot_in_both_precisions
def test_centroidal_quantities_and_energies_agree_with_pinocchio(name, dtype, tolerance):
    result = evaluate(name, dtype)
    for part, expected in result.reference(result.oracle.centroidal, "q", "v").items():
        check(result[part], expected, tolerance, part)


@every_robot
def test_the_map_takes_velocities_to_the_momentum(name):
    result = evaluate(name)
    v, mass = result.inputs["v"], float(result.model.total_mass)
    check(np.einsum("bij,bj->bi", result["map"], v), result["momentum"], 1e-12)
    check(np.einsum("bij,bj->bi", result["com_jacobian"], v), result["com_velocity"], 1e-12)
    check(result["com_velocity"] * mass, result["momentum"][:, :3], 1e-12)
    check(result["com_jacobian"] * mass, result["map"][:, :3], 1e-12)


@pytest.fixture(scope="module")
def one_state():
    model = robot("small")
    s = {name: x[0] for name, x in states(model).items()}
    return model, s, forward_kinematics(model, s["q"], s["v"])


def test_the_jacobian_of_the_centre_of_mass_is_its_derivative(one_state):
    model, s, kin = one_state
    place = lambda d: center_of_mass(model, forward_kinematics(model, integrate(model, s["q"], d)))  # noqa: E731
    check(jax.jit(jax.jacfwd(place))(jnp.zeros(model.nv)), com_jacobian(model, kin), 1e-12)
    check(com_jacobian(model, kin) @ s["v"], com_velocity(model, kin), 1e-13)


def test_gravity_torques_are_the_derivative_of_the_potential_energy(one_state):
    model, s, kin = one_state
    model = eqx.tree_at(lambda m: m.gravity, model, jnp.array([1.0, -2.0, -9.0]))
    height = lambda d: potential_energy(model, integrate(model, s["q"], d))  # noqa: E731
    check(jax.jit(jax.grad(height))(jnp.zeros(model.nv)), gravity_torque(model, s["q"]), 1e-12)
    mass = float(model.total_mass)
    expected = -mass * np.dot(model.gravity, center_of_mass(model, kin))
    np.testing.assert_allclose(potential_energy(model, s["q"]), expected, rtol=1e-12)


def test_a_free_robot_keeps_its_momentum_whatever_its_joints_do():
    """Joint torques change no momentum; gravity changes the linear part by m g."""
    model = load("quadruped", root="floating")
    s = {name: x[0] for name, x in states(model).items()}
    tau = s["tau"].at[:6].set(0.0)

    def momentum(t):
        a = aba(model, s["q"], s["v"], tau)
        q = integrate(model, s["q"], s["v"] * t)
        return centroidal_momentum(model, forward_kinematics(model, q, s["v"] + a * t))

    _, rate = jax.jit(lambda: jax.jvp(momentum, (jnp.zeros(()),), (jnp.ones(()),)))()
    weight = float(model.total_mass) * np.asarray(model.gravity)
    np.testing.assert_allclose(rate, [*weight, 0, 0, 0], atol=1e-10 * np.abs(s["tau"]).max())


def test_momentum_about_the_centre_of_mass_does_not_depend_on_the_place_or_the_speed_of_the_frame():
    model = load("quadruped", root="floating")
    s = {name: x[0] for name, x in states(model).items()}
    here = centroidal_momentum(model, forward_kinematics(model, s["q"], s["v"]))
    there = centroidal_momentum(
        model, forward_kinematics(model, s["q"].at[:3].add(jnp.array([5.0, -3.0, 2.0])), s["v"])
    )
    check(there, here, 1e-12)
    kin = forward_kinematics(model, s["q"], s["v"])
    drift = jnp.zeros(model.nv).at[:3].set(kin.rotation[0].T @ jnp.array([1.0, 2.0, 3.0]))
    moving = centroidal_momentum(model, forward_kinematics(model, s["q"], s["v"] + drift))
    check(moving[3:], here[3:], 1e-12)
    check(moving[:3] - here[:3], float(model.total_mass) * np.array([1.0, 2.0, 3.0]), 1e-12)


def test_energy_is_conserved_along_free_motion(one_state):
    """Its rate at this instant is zero without torques."""
    model, s, _ = one_state
    a = aba(model, s["q"], s["v"], jnp.zeros(model.nv))

    def energy(t):
        q, v = integrate(model, s["q"], s["v"] * t), s["v"] + a * t
        return kinetic_energy(model, q, v) + potential_energy(model, q)

    _, rate = jax.jit(lambda: jax.jvp(energy, (jnp.zeros(()),), (jnp.ones(()),)))()
    scale = np.abs(a).max() * np.abs(s["v"]).max()
    assert abs(rate) < 1e-11 * scale


def test_rotors_have_kinetic_energy(one_state):
    model, s, _ = one_state
    geared = eqx.tree_at(lambda m: m.armature, model, jnp.full(model.nv, 0.4))
    more = kinetic_energy(geared, s["q"], s["v"]) - kinetic_energy(model, s["q"], s["v"])
    np.testing.assert_allclose(more, 0.2 * np.dot(s["v"], s["v"]), rtol=1e-12)


def test_a_robot_without_mass_or_joints_has_finite_values_and_gradients():
    massless = from_urdf(
        '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="continuous">'
        '<origin xyz="0 0 1"/><parent link="a"/><child link="b"/></joint></robot>'
    )
    place = lambda m, q: center_of_mass(m, forward_kinematics(m, q)).sum()  # noqa: E731
    q = jnp.array([0.3])
    np.testing.assert_array_equal(center_of_mass(massless, forward_kinematics(massless, q)), [0, 0, 1])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.grad(place, (0, 1))(massless, q)))
    empty = from_urdf('<robot name="r"><link name="base"/></robot>')
    kin = forward_kinematics(empty, jnp.zeros(0), jnp.zeros(0))
    assert centroidal_momentum(empty, kin).shape == (6,) and not centroidal_momentum(empty, kin).any()
    assert centroidal_map(empty, kin).shape == (6, 0) and com_jacobian(empty, kin).shape == (3, 0)
    assert kinetic_energy(empty, jnp.zeros(0), jnp.zeros(0)) == potential_energy(empty, jnp.zeros(0)) == 0


def test_momentum_needs_velocities():
    model = load("double_pendulum")
    with pytest.raises(InputError, match="kin holds no velocities"):
        centroidal_momentum(model, forward_kinematics(model, neutral(model)))
    with pytest.raises(InputError, match=r"v: wanted shape \(2,\), given shape \(3,\)"):
        kinetic_energy(model, neutral(model), jnp.zeros(3))
