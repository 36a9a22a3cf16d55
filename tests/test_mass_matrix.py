"""The joint-space inertia matrix: against Pinocchio, against inverse dynamics, and its structure."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot, every_robot_in_both_precisions, robot
from oracles import states

from jaxdyn.algorithms import crba, gravity_torque, kinetic_energy, rnea
from jaxdyn.errors import InputError
from jaxdyn.model import from_urdf, load, neutral


@every_robot_in_both_precisions
def test_mass_matrices_agree_with_pinocchio(name, dtype, tolerance):
    result = evaluate(name, dtype)
    check(result["mass_matrix"], result.reference(result.oracle.mass_matrix, "q"), tolerance)


@every_robot
def test_mass_matrices_are_symmetric_positive_definite_and_zero_between_branches(name):
    result = evaluate(name)
    tree, matrices = result.model.tree, result["mass_matrix"]
    check(matrices, np.swapaxes(matrices, 1, 2), 1e-14)
    assert np.linalg.eigvalsh(matrices).min() > 0
    below = tree.ancestors[np.ix_(tree.dof_body, tree.dof_body)]
    apart = ~(below | below.T)
    np.testing.assert_array_equal(matrices[:, apart], 0.0)


@pytest.fixture(scope="module")
def one_state():
    model = robot("small")
    return model, {name: x[0] for name, x in states(model).items()}


def test_columns_are_torques_of_unit_accelerations(one_state):
    model, s = one_state
    zero = jnp.zeros(model.nv)
    columns = jax.jit(jax.vmap(lambda a: rnea(model, s["q"], zero, a)))(jnp.eye(model.nv))
    check(columns.T - gravity_torque(model, s["q"])[:, None], crba(model, s["q"]), 1e-12)


def test_eager_jitted_and_batched_calls_agree(one_state):
    model, s = one_state
    eager = crba(model, s["q"])
    check(jax.jit(crba)(model, s["q"]), eager, 1e-14)
    check(evaluate("small")["mass_matrix"][0], eager, 1e-14)


def test_the_kinetic_energy_is_half_v_m_v(one_state):
    model, s = one_state
    expected = 0.5 * s["v"] @ crba(model, s["q"]) @ s["v"]
    np.testing.assert_allclose(kinetic_energy(model, s["q"], s["v"]), expected, rtol=1e-12)


def test_armature_is_on_the_diagonal_alone(one_state):
    model, s = one_state
    armature = jnp.linspace(0.1, 2.0, model.nv)
    with_rotors = eqx.tree_at(lambda m: m.armature, model, armature)
    check(crba(with_rotors, s["q"]) - crba(model, s["q"]), np.diag(armature), 1e-13)


def test_matrices_of_single_bodies_are_their_inertias():
    inertial = '<inertial><origin xyz="0.1 0.2 0.3"/><mass value="2"/><inertia ixx="1" ixy="0" ixz="0" iyy="2" iyz="0" izz="3"/></inertial>'
    free = from_urdf(f'<robot name="r"><link name="b">{inertial}</link></robot>', root="floating")
    np.testing.assert_allclose(crba(free, neutral(free)), free.inertia.as_matrix()[0], atol=1e-15)
    hinge = from_urdf(
        f'<robot name="r"><link name="a"/><link name="b">{inertial}</link><joint name="j" type="continuous">'
        '<parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint></robot>'
    )
    np.testing.assert_allclose(crba(hinge, jnp.array([0.7])), [[3 + 2 * 0.05]], rtol=1e-14)


def test_a_robot_without_joints_has_an_empty_matrix():
    model = from_urdf('<robot name="r"><link name="base"/></robot>')
    assert crba(model, jnp.zeros(0)).shape == (0, 0)
    assert jax.vmap(crba, (None, 0))(model, jnp.zeros((3, 0))).shape == (3, 0, 0)


def test_wrong_configurations_are_refused():
    model = load("quadruped", root="floating")
    with pytest.raises(InputError, match=r"q: wanted shape \(19,\), given shape \(18,\)"):
        crba(model, jnp.zeros(18))
    with pytest.raises(InputError, match=r"quaternion of joint 'root_joint'.*is zero"):
        crba(model, jnp.zeros(19))
