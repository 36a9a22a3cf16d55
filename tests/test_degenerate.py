"""Robots at the edge: no joints, no freedom, no mass, one body, several roots, very long, very wide."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from oracles import Oracle, pinocchio_from_model

from jaxdyn import algorithms as alg
from jaxdyn.errors import JaxdynWarning, Status
from jaxdyn.model import (
    ModelBuilder,
    append,
    from_urdf,
    mirror,
    neutral,
    random_configuration,
    reduce,
    restore,
    save,
)

INERTIA = (0.02, 0.03, 0.025)


def star(leaves):
    builder = ModelBuilder().add_link("hub", 2.0, inertia=INERTIA)
    for i in range(leaves):
        angle = 2 * np.pi * i / leaves
        builder.add_link(f"l{i}", 0.1 + 0.01 * i, (0.1, 0, 0.05), INERTIA)
        place = (np.cos(angle), np.sin(angle), 0.1)
        builder.add_joint(
            f"j{i}", ("revolute", "prismatic", "continuous")[i % 3], "hub", f"l{i}", place, (1, i % 2, 0.5)
        )
    return builder.build(root="floating")


def chain(links):
    builder = ModelBuilder().add_link("l0")
    for i in range(links):
        builder.add_link(f"l{i + 1}", 0.2, (0.02, 0.01, 0.05), (1e-3, 2e-3, 1.5e-3))
        builder.add_joint(f"j{i}", "revolute", f"l{i}", f"l{i + 1}", (0, 0, 0.1), (i % 2, 1 - i % 2, 0.3))
    return builder.build()


def roots():
    """A fixed base with an arm, and two free bodies beside it, in one file."""
    builder = ModelBuilder().add_link("world").add_link("arm", 1.0, (0, 0, 0.2), INERTIA)
    builder.add_joint("shoulder", "revolute", "world", "arm", (0, 0, 1), (0, 1, 0))
    for name in ("ball", "box"):
        builder.add_link(name, 0.5, (0.01, 0, 0), INERTIA).add_joint(f"free_{name}", "floating", "world", name)
    builder.add_link("lid", 0.1, (0, 0.1, 0), INERTIA)
    return builder.add_joint("hinge", "revolute", "box", "lid", (0.1, 0, 0), (1, 0, 0)).build()


def dynamics(model, q, v, a):
    kin = alg.forward_kinematics(model, q, v, a)
    tau = alg.rnea(model, q, v, a)
    frame = model.frame_names[-1]
    return {
        "rnea": tau,
        "mass": alg.crba(model, q),
        "aba": alg.aba(model, q, v, tau),
        "jacobian": alg.frame_jacobian(model, kin, frame),
        "com": alg.center_of_mass(model, kin),
        "energy": alg.kinetic_energy(model, q, v) + alg.potential_energy(model, q),
        "status": alg.mass_matrix_status(model, q),
        "position": alg.frame_pose(model, kin, frame).translation,
    }


def check_against_pinocchio(model, seed=0, tolerance=1e-8):
    oracle = Oracle(model, pinocchio_from_model(model))
    rng = np.random.default_rng(seed)
    q = random_configuration(model, jax.random.key(seed))
    v, a = jnp.asarray(rng.normal(size=model.nv)), jnp.asarray(rng.normal(size=model.nv))
    result = quick_jit(dynamics)(model, q, v, a)
    mass = oracle.mass_matrix(q)
    scale = np.max(np.abs(mass))
    np.testing.assert_allclose(result["mass"], mass, atol=1e-11 * scale)
    tau = oracle.rnea(q, v, a)
    np.testing.assert_allclose(result["rnea"], tau, atol=1e-11 * np.max(np.abs(tau)))
    np.testing.assert_allclose(result["aba"], a, atol=tolerance * np.max(np.abs(a)))
    assert int(result["status"]) == Status.OK


# No freedom


@pytest.mark.parametrize(
    "build",
    [
        lambda: ModelBuilder().add_link("only", 1.0).build(),
        lambda: ModelBuilder().add_link("a").add_link("b", 1.0).add_joint("j", "fixed", "a", "b", (0, 0, 1)).build(),
        lambda: (
            ModelBuilder()
            .add_link("a")
            .add_link("b", 1.0)
            .add_joint("j", "revolute", "a", "b")
            .build(locked={"j": 0.5})
        ),
        lambda: reduce(chain(3), ["j0", "j1", "j2"]),
    ],
    ids=["one link", "fixed joints", "locked", "reduced"],
)
def test_robots_without_freedom(build, tmp_path):
    model = build()
    assert (model.nq, model.nv, model.n_bodies) == (0, 0, 0)
    empty = jnp.zeros(0)
    result = jax.jit(dynamics)(model, empty, empty, empty)
    assert result["rnea"].shape == result["aba"].shape == (0,) and result["mass"].shape == (0, 0)
    assert result["jacobian"].shape == (6, 0) and int(result["status"]) == Status.OK
    np.testing.assert_allclose(result["position"], model.frame_placement.translation[-1])
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(result))
    batch = jax.vmap(lambda q: alg.crba(model, q))(jnp.zeros((3, 0)))
    assert batch.shape == (3, 0, 0) and neutral(model).shape == (0,)
    assert random_configuration(model, jax.random.key(0)).shape == (0,)
    assert mirror(model).tree == model.tree and reduce(model, []).tree == model.tree
    save(tmp_path / "model.npz", model)
    assert restore(tmp_path / "model.npz").tree == model.tree


def test_a_single_free_body():
    model = ModelBuilder().add_link("body", 2.0, (0.1, 0.2, 0.3), INERTIA).build(root="floating")
    assert (model.nq, model.nv, model.joint_names) == (7, 6, ("root_joint",))
    check_against_pinocchio(model)
    assert append(chain(2), model, "l2").nv == 2


# No mass


def test_massless_links_are_carried_and_massless_ends_are_named():
    """Trial T32: massless links between, and at the end, where the mass matrix becomes singular."""
    builder = (
        ModelBuilder().add_link("a").add_link("pan").add_link("tilt").add_link("camera", 0.3, (0.1, 0, 0), INERTIA)
    )
    builder.add_joint("p", "revolute", "a", "pan", (0, 0, 0.1), (0, 0, 1))
    builder.add_joint("t", "revolute", "pan", "tilt", (0, 0, 0.1), (0, 1, 0))
    builder.add_joint("c", "prismatic", "tilt", "camera", (0.1, 0, 0))
    camera, bare = builder.build(), builder.add_link("flag").add_joint("f", "revolute", "camera", "flag").build()
    q = jnp.full(4, 0.3)

    def total(model, q):
        kin = alg.forward_kinematics(model, q, q)
        return alg.rnea(model, q, q, q).sum() + alg.center_of_mass(model, kin).sum()

    def both(bare, camera, q):
        gradients = jax.grad(total, argnums=(0, 1))(bare, q)
        return gradients, alg.mass_matrix_status(bare, q), alg.mass_matrix_status(camera, q[:3])

    gradients, singular, regular = quick_jit(both)(bare, camera, q)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradients))
    assert int(singular) == Status.SINGULAR_MASS_MATRIX and int(regular) == Status.OK


def test_a_free_robot_without_mass_is_a_warning():
    builder = ModelBuilder().add_link("a").add_link("b", 1.0, inertia=INERTIA).add_joint("j", "revolute", "a", "b")
    with pytest.warns(JaxdynWarning, match="the body 'a' behind the free-flyer has no mass"):
        builder.build(root="floating")


# Many


def test_fixed_and_free_roots_side_by_side():
    model = roots()
    assert model.tree.parents == (-1, -1, -1, 2) and model.nv == 1 + 6 + 6 + 1
    check_against_pinocchio(model)


@pytest.mark.slow
def test_sixty_leaves():
    model = star(60)
    assert (model.nv, len(model.tree.levels)) == (66, 2)
    check_against_pinocchio(model)


@pytest.mark.slow
def test_a_chain_of_a_hundred():
    model = chain(100)
    assert (model.nv, len(model.tree.levels)) == (100, 100)
    check_against_pinocchio(model, tolerance=1e-5)


def test_a_chain_of_a_hundred_loads_edits_and_moves():
    """Without its dynamics, which take the compiler long."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = chain(100)
        read = from_urdf(
            '<robot name="r"><link name="l0"/>'
            + "".join(
                f'<link name="l{i + 1}"/><joint name="j{i}" type="continuous"><parent link="l{i}"/><child link="l{i + 1}"/></joint>'
                for i in range(100)
            )
            + "</robot>"
        )
    assert read.nv == model.nv == 100
    half = reduce(model, {f"j{i}": 0.1 for i in range(50, 100)})
    assert half.nv == 50 and half.n_frames == 101
    np.testing.assert_allclose(half.total_mass, model.total_mass)
