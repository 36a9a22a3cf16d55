"""Parameterisations of inertia: conversions, gradients, physical consistency."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn import model as jm
from jaxdyn.errors import InputError, JaxdynWarning
from jaxdyn.math import SE3, SpatialInertia, so3
from jaxdyn.model import from_urdf, inertia_report, is_physical, load, with_inertial_parameters

pseudo_inertia, from_pseudo_inertia = quick_jit(jm.pseudo_inertia), quick_jit(jm.from_pseudo_inertia)
log_cholesky, from_log_cholesky = quick_jit(jm.log_cholesky), quick_jit(jm.from_log_cholesky)
inertia_divergence = quick_jit(jm.inertia_divergence)


@pytest.fixture(scope="module")
def points():
    """Standard parameters of random clouds of mass points, and the clouds."""
    rng = np.random.default_rng(0)
    clouds = [(rng.uniform(0.1, 1, 6), rng.normal(size=(6, 3))) for _ in range(5)]
    parameters = []
    for masses, x in clouds:
        inertia = sum(m * (p @ p * np.eye(3) - np.outer(p, p)) for m, p in zip(masses, x, strict=True))
        six = [inertia[i, j] for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))]
        parameters.append([masses.sum(), *(masses @ x), *six])
    return jnp.asarray(parameters), clouds


def test_pseudo_inertia_is_the_second_moment_of_the_mass(points):
    parameters, clouds = points
    matrices = pseudo_inertia(parameters)
    for matrix, (masses, x) in zip(matrices, clouds, strict=True):
        extended = np.concatenate([x, np.ones((6, 1))], 1)
        np.testing.assert_allclose(matrix, extended.T @ (masses[:, None] * extended), atol=1e-13)
    np.testing.assert_allclose(from_pseudo_inertia(matrices), parameters, atol=1e-14)
    np.testing.assert_allclose(pseudo_inertia(parameters[0]), matrices[0], atol=1e-15)


def test_order_of_parameters_is_that_of_spatial_inertia(points):
    parameters, _ = points
    inertia = SpatialInertia.from_point_parameters(parameters)
    np.testing.assert_allclose(inertia.point_parameters(), parameters, atol=1e-13)


def test_log_cholesky_and_back(points):
    parameters, _ = points
    theta = log_cholesky(parameters)
    np.testing.assert_allclose(from_log_cholesky(theta), parameters, rtol=1e-12, atol=1e-13)
    drawn = jnp.asarray(np.random.default_rng(1).normal(size=(20, 10)))
    np.testing.assert_allclose(log_cholesky(from_log_cholesky(drawn)), drawn, atol=1e-8)
    np.testing.assert_array_equal(from_log_cholesky(jnp.zeros(10)), [1, 0, 0, 0, 2, 0, 2, 0, 0, 2])


def test_log_cholesky_bodies_are_always_physical():
    for scale in (0.1, 1.0, 3.0):
        theta = jnp.asarray(scale * np.random.default_rng(2).normal(size=(50, 10)))
        parameters = from_log_cholesky(theta)
        assert is_physical(parameters)
        assert np.all(SpatialInertia.from_point_parameters(parameters).is_physical(1e-6))


def test_gradients_are_those_of_differences(points):
    theta = log_cholesky(points[0][0])
    jacobian = quick_jit(jax.jacobian(jm.from_log_cholesky))(theta)
    step = 1e-6
    columns = [
        (from_log_cholesky(theta.at[k].add(step)) - from_log_cholesky(theta.at[k].add(-step))) / (2 * step)
        for k in range(10)
    ]
    np.testing.assert_allclose(jacobian, np.stack(columns, 1), atol=1e-7)
    np.testing.assert_allclose(quick_jit(jax.jacobian(jm.log_cholesky))(points[0][0]) @ jacobian, np.eye(10), atol=1e-9)
    assert abs(np.linalg.det(jacobian)) > 0


def test_divergence_is_zero_at_the_reference_and_the_same_in_every_frame(points):
    parameters, _ = points
    np.testing.assert_allclose(inertia_divergence(parameters, parameters), 0, atol=1e-12)
    value = inertia_divergence(parameters[0], parameters[1])
    assert value > 0.1
    pose = SE3(so3.exp(jnp.array([0.3, 0.2, -0.9])), jnp.array([1.0, -2.0, 0.5]))
    move = quick_jit(lambda p: SpatialInertia.from_point_parameters(p).transform(pose).point_parameters())
    moved = [move(p) for p in parameters[:2]]
    np.testing.assert_allclose(inertia_divergence(*moved), value, rtol=1e-9)
    gradient = quick_jit(jax.grad(jm.inertia_divergence))(parameters[0], parameters[0])
    np.testing.assert_allclose(gradient, 0, atol=1e-10)


def test_every_violated_condition_is_named():
    text = (
        '<robot name="r"><link name="base"/>'
        + "".join(
            f'<link name="{name}"><inertial><mass value="1"/>'
            f'<inertia ixx="{x}" ixy="0" ixz="0" iyy="{y}" iyz="0" izz="{z}"/></inertial></link>'
            f'<joint name="j_{name}" type="continuous"><parent link="base"/><child link="{name}"/></joint>'
            for name, x, y, z in (("good", 1, 1, 1), ("plate", 1, 1, 2), ("thin", 1, 1, 3), ("negative", -1, 2, 2))
        )
        + "</robot>"
    )
    with pytest.warns(JaxdynWarning, match="links have negative moments of inertia, as no body has: 'negative'"):
        model = from_urdf(text)
    report = inertia_report(eqx.tree_at(lambda m: m.inertia.mass, model, model.inertia.mass.at[0].set(-0.5)))
    assert [line.split(":")[0] for line in report] == ["good", "thin", "negative", "negative"]
    assert "mass -0.5 is negative" in report[0] and "triangle inequality" in report[1]
    assert "not positive semidefinite" in report[2] and "triangle" in report[3]
    assert inertia_report(load("humanoid", root="floating")) == ()
    assert not is_physical(model.inertia.point_parameters()) and is_physical(model.inertia.point_parameters()[:2])


def test_a_model_takes_parameters():
    model = load("arm7")
    parameters = model.inertia.point_parameters()
    same = with_inertial_parameters(model, parameters)
    np.testing.assert_allclose(same.inertia.inertia, model.inertia.inertia, atol=1e-14)
    mass = jax.grad(lambda p: with_inertial_parameters(model, p).total_mass)(parameters)
    np.testing.assert_array_equal(mass[:, 0], np.ones(7))
    with pytest.raises(
        InputError, match=r"parameters: wanted shape \(7, 10\), given shape \(6, 10\). One row per body"
    ):
        with_inertial_parameters(model, parameters[:6])
    for function in (pseudo_inertia, log_cholesky, from_log_cholesky):
        with pytest.raises(InputError, match=r"wanted shape \(..., 10\), given shape \(9,\)"):
            function(jnp.ones(9))
