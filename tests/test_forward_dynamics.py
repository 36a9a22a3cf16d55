"""Forward dynamics and the inverse of the mass matrix."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot_in_both_precisions, oracle, robot
from oracles import Oracle, pinocchio_from_model, states
from random_trees import random_model

from jaxdyn.algorithms import aba, compute_minv, crba, forward_dynamics, mass_matrix_status, nonlinear_effects, rnea
from jaxdyn.algorithms.configuration import as_configuration
from jaxdyn.errors import InputError, JaxdynWarning, Status
from jaxdyn.model import ModelBuilder, from_urdf, load, neutral


@every_robot_in_both_precisions
def test_accelerations_agree_with_pinocchio(name, dtype, tolerance):
    """One of the states has a wrench on every body."""
    result = evaluate(name, dtype)
    expected = result.reference(result.oracle.aba, "q", "v", "tau", "wrenches")
    check(result["aba_derivatives", "a"], expected, result.of_accelerations(tolerance))


@every_robot_in_both_precisions
def test_accelerations_solve_the_equations_of_motion(name, dtype, tolerance):
    """The residual of the oracle's equations at our accelerations, relative to the terms `|M| |a|` that cancel in them:
    the rounding of the accelerations themselves leaves as much."""
    result = evaluate(name, dtype)
    q, v, wrenches = (result.inputs[x] for x in ("q", "v", "wrenches"))
    a = result["aba_derivatives", "a"]
    torques = np.stack([result.oracle.rnea(*x) for x in zip(q, v, a, wrenches, strict=True)])
    inertia = np.stack([np.abs(result.oracle.mass_matrix(x)) @ np.abs(y) for x, y in zip(q, a, strict=True)])
    np.testing.assert_allclose(torques, result.inputs["tau"], rtol=0, atol=tolerance * inertia.max())


@pytest.fixture(scope="module")
def one_state():
    model = robot("small")
    return model, {name: x[1] for name, x in states(model).items()}


def test_accelerations_and_inverse_agree_with_pinocchio_outside_of_jit_and_vmap(one_state):
    model, s = one_state
    q, v, tau, wrenches = s["q"], s["v"], s["tau"], s["wrenches"]
    check(aba(model, q, v, tau), oracle("small").aba(q, v, tau), 1e-11)
    check(aba(model, q, v, tau, wrenches), oracle("small").aba(q, v, tau, wrenches), 1e-11)
    check(aba(model, q, v, tau, wrenches), evaluate("small")["aba_derivatives", "a"][1], 1e-12)
    check(compute_minv(model, q), oracle("small").minv(q), 1e-12)
    np.testing.assert_array_equal(forward_dynamics(model, q, v, tau), aba(model, q, v, tau))


def test_forward_and_inverse_dynamics_are_inverse_to_each_other(one_state):
    model, s = one_state
    tau = rnea(model, s["q"], s["v"], s["a"], s["wrenches"])
    check(aba(model, s["q"], s["v"], tau, s["wrenches"]), s["a"], 1e-11)
    check(compute_minv(model, s["q"]) @ crba(model, s["q"]), np.eye(model.nv), 1e-11)


def test_a_configuration_gives_what_its_coordinates_give(one_state):
    model, s = one_state
    at = as_configuration(model, s["q"])
    check(aba(model, at, s["v"], s["tau"]), aba(model, s["q"], s["v"], s["tau"]), 1e-15)
    check(compute_minv(model, at), compute_minv(model, s["q"]), 1e-15)


def test_armature_counts_as_in_inverse_dynamics(one_state):
    model, s = one_state
    model = eqx.tree_at(lambda m: m.armature, model, jnp.linspace(0.1, 2.0, model.nv))
    check(aba(model, s["q"], s["v"], rnea(model, s["q"], s["v"], s["a"])), s["a"], 1e-12)
    check(compute_minv(model, s["q"]) @ crba(model, s["q"]), np.eye(model.nv), 1e-11)


def test_a_free_body_falls_and_a_spinning_one_keeps_its_momentum():
    model = load("box", root="floating")
    q = states(model)["q"][0]
    spin = jnp.array([0.0, 0, 0, 0.5, 3.0, 0.8])
    fall = aba(model, q, jnp.zeros(6), jnp.zeros(6))
    assert not np.abs(fall[3:]).max() > 1e-14 and np.linalg.norm(fall[:3]) == pytest.approx(9.80665, rel=1e-12)
    weightless = eqx.tree_at(lambda m: m.gravity, model, jnp.zeros(3))
    moments = np.asarray(model.inertia.inertia[0])
    euler = np.linalg.solve(moments, -np.cross(spin[3:], moments @ spin[3:]))
    check(aba(weightless, q, spin, jnp.zeros(6))[3:], euler, 1e-12)


def test_a_robot_without_joints_has_no_accelerations():
    model = from_urdf('<robot name="r"><link name="base"/></robot>')
    empty = jnp.zeros(0)
    assert jax.jit(aba)(model, empty, empty, empty).shape == (0,)
    assert compute_minv(model, empty).shape == (0, 0)
    assert jax.vmap(lambda q: aba(model, q, q, q))(jnp.zeros((3, 0))).shape == (3, 0)
    assert jax.grad(lambda q: aba(model, q, q, q).sum())(empty).shape == (0,)


def test_a_singular_mass_matrix_gives_no_plausible_numbers():
    """A massless arm: no finite acceleration answers to a torque. Rotors in the joint make it regular."""
    text = (
        '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="continuous">'
        '<parent link="a"/><child link="b"/></joint></robot>'
    )
    model = from_urdf(text)
    one = jnp.ones(1)
    with pytest.warns(JaxdynWarning, match="singular at joints 'j'"):
        assert not np.isfinite(aba(model, one, one, one)).any()
    assert int(mass_matrix_status(model, one)) == Status.SINGULAR_MASS_MATRIX
    geared = eqx.tree_at(lambda m: m.armature, model, 0.5 * one)
    np.testing.assert_allclose(aba(geared, one, one, one), [2.0])
    assert int(mass_matrix_status(geared, one)) == Status.OK


def test_a_singular_mass_matrix_is_named_where_rounding_hides_it():
    """A rod turned twice about one axis: what is left of its inertia for the second joint is rounding, not zero."""
    builder = ModelBuilder().add_link("a").add_link("b").add_link("c", 0.3, (0.1, 0.2, 0.3), (0.1, 0.2, 0.15))
    builder.add_joint("j", "continuous", "a", "b", axis=(0.3, 0.4, 0.8))
    builder.add_joint("k", "continuous", "b", "c", axis=(0.3, 0.4, 0.8))
    model, zero, turned = builder.build(), jnp.zeros(2), jnp.asarray([0.7, -0.4])
    with pytest.warns(JaxdynWarning, match="singular at joints .*mass_matrix_status"):
        a = aba(model, turned, zero, jnp.asarray([1.0, -1.0]))
    assert not np.isfinite(a).all() or np.abs(a).max() > 1e10
    assert int(mass_matrix_status(model, turned)) == Status.SINGULAR_MASS_MATRIX


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "argument, shape, message",
    [
        ("q", (8,), r"q: wanted shape \(7,\), given shape \(8,\)"),
        ("v", (), r"v: wanted shape \(7,\), given shape \(\)"),
        ("tau", (1, 7), r"tau: wanted shape \(7,\), given shape \(1, 7\)\. Batches go through jax\.vmap"),
        ("wrenches", (8, 6), r"wrenches: wanted shape \(7, 6\), given shape \(8, 6\)"),
    ],
)
def test_wrong_shapes_are_refused_with_name_and_shapes(transform, argument, shape, message):
    model = load("arm7")
    arguments = {name: jnp.zeros(7) for name in ("q", "v", "tau")} | {"wrenches": jnp.zeros((7, 6))}
    arguments[argument] = jnp.zeros(shape)
    with pytest.raises(InputError, match=message):
        transform(lambda x: aba(model, x["q"], x["v"], x["tau"], x["wrenches"]))(arguments)


def test_other_numbers_do_not_compile_again():
    function = jax.jit(lambda *arguments: aba(*arguments))  # of its own: calls of jit(aba) share what they compiled
    model = load("double_pendulum")
    other = jax.tree.map(lambda x: x * 1.1, model)
    for m in (model, load("double_pendulum"), other):
        function(m, neutral(m), jnp.ones(2), jnp.ones(2))
    assert function._cache_size() == 1


# Long and wide trees


def dynamics(model, q, v, tau):
    return aba(model, q, v, tau), crba(model, q), nonlinear_effects(model, q, v)


@pytest.mark.parametrize(
    "shape, n, seconds",
    [
        ("star", 60, 20),
        pytest.param("chain", 40, 60, marks=pytest.mark.slow),
        pytest.param("chain", 100, 150, marks=pytest.mark.slow),
    ],
)
def test_long_chains_and_wide_stars_compile_in_reasonable_time_and_are_right(shape, n, seconds):
    model = random_model(1, n, shape=shape, fixed=0.0, dtype=jnp.float64)
    s = {name: x[0] for name, x in states(model, 2).items()}
    arguments = (model, s["q"], s["v"], s["tau"])
    start = time.process_time()
    compiled = jax.jit(dynamics).lower(*arguments).compile()
    assert time.process_time() - start < seconds
    a, mass, bias = compiled(*arguments)
    there = Oracle(model, pinocchio_from_model(model))
    check(mass, there.mass_matrix(s["q"]), 1e-10)
    check(bias, there.rnea(s["q"], s["v"], 0 * s["v"]), 1e-10)
    # accelerations of a long chain are ill-conditioned: ask for the torques back
    check(there.rnea(s["q"], s["v"], a), s["tau"], 1e-10)
    check(a, there.aba(s["q"], s["v"], s["tau"]), 1e-10 if shape == "star" else 1e-6)


def test_a_batch_of_states_may_be_empty():
    model = load("quadruped", root="floating")
    q, v = jnp.zeros((0, model.nq)), jnp.zeros((0, model.nv))
    assert jax.vmap(aba, (None, 0, 0, 0))(model, q, v, v).shape == (0, model.nv)
