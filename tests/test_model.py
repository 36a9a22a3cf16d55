"""`Model` as a pytree: what is static, what is a leaf, and access by name."""

import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from random_trees import MOVING, random_model, random_urdf

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.model import configuration, from_urdf, load, neutral, tangent

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"
EXPECTED = json.loads((TRIALS / "expected.json").read_text())


def test_every_number_is_a_leaf_and_the_tree_is_the_only_static_part():
    model = random_model(0, 5, types=MOVING, root="floating")
    leaves, structure = jax.tree.flatten(model)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float64 for leaf in leaves)
    assert (
        len(leaves) == 2 + 1 + 3 + 1 + 3 + 4 + 2 + 2 + 2
    )  # poses, axis, inertia, gravity, joint sides, limits, frames, shapes
    assert jax.tree.unflatten(structure, leaves).tree is model.tree


def test_loads_of_like_robots_share_one_compiled_function():
    """Trial T36, as far as loading goes: two loads of one file, and a third robot that differs in masses alone."""
    traces = []

    @jax.jit
    def mass(model, q):
        traces.append(1)
        return model.total_mass + q.sum()

    models = [from_urdf(TRIALS / name) for name in ("T36.urdf", "T36.urdf", "T36b.urdf")]
    masses = [float(mass(model, neutral(model))) for model in models]
    assert len(traces) == 1 and mass._cache_size() == 1
    assert masses[0] == masses[1] != masses[2]
    assert models[0].tree == models[1].tree == models[2].tree and hash(models[0].tree) == hash(models[2].tree)


def test_leaves_can_be_replaced_differentiated_and_batched():
    model = load("arm7")
    heavier = eqx.tree_at(lambda m: m.inertia.mass, model, 2 * model.inertia.mass)
    assert float(heavier.total_mass) == 2 * float(model.total_mass)
    gradient = eqx.filter_grad(lambda m: m.total_mass)(model)
    np.testing.assert_array_equal(gradient.inertia.mass, np.ones(7))
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), model, heavier)
    assert batch.total_mass.shape == (2,) and batch.tree == model.tree
    np.testing.assert_allclose(jax.vmap(lambda m: m.total_mass)(batch), [17.5, 35.0])


def test_sizes_and_names_are_those_of_the_tree():
    model = load("quadruped", root="floating")
    assert (model.nq, model.nv, model.n_joints, model.n_bodies) == (19, 18, 13, 13)
    assert model.joint_names[:3] == ("root_joint", "fl_hip_roll", "fl_hip_pitch")
    assert model.frame_names[: model.n_bodies] == model.body_names and model.n_frames == 17
    assert (model.joint("fl_knee"), model.body("fl_shank"), model.frame("fl_foot")) == (3, 3, 13)
    assert model.tree.frame_bodies[model.frame("fl_foot")] == model.body("fl_shank")


@pytest.mark.parametrize(
    ("kind", "wrong", "near"), [("frame", "Tool", "tool"), ("joint", "joint8", "joint1"), ("body", "link9", "link1")]
)
def test_a_typo_in_a_name_lists_the_nearest(kind, wrong, near):
    """Trial T41, names."""
    with pytest.raises(UnknownNameError, match=rf"unknown {kind} '{wrong}'\. Did you mean .*'{near}'"):
        getattr(load("arm7"), kind)(wrong)


def test_the_representation_is_short():
    text = repr(load("humanoid", root="floating"))
    assert len(text) < 120 and "nv=37" in text


def test_astype_changes_every_leaf():
    model = random_model(1, 4).astype(jnp.float32)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(model)) and model.dtype == jnp.float32
    assert model.astype("float64").dtype == jnp.float64


@pytest.mark.parametrize("dtype", [int, "int32", bool, complex, "float46", object])
def test_only_floating_dtypes_are_taken(dtype):
    with pytest.raises(InputError, match=r"^dtype: wanted a floating-point dtype"):
        load("box", dtype=dtype)


def test_float64_without_x64_is_refused_instead_of_rounded(run_python):
    code = (
        "import jaxdyn.model as m\n"
        "assert m.load('box').dtype == 'float32'\n"
        "try: m.load('box', dtype='float64')\n"
        "except ValueError as e: print(e)\n"
    )
    assert "jax_enable_x64" in run_python("-W", "error", "-c", code).stdout


def test_importing_starts_no_backend_and_changes_no_setting(run_python):
    code = (
        "import jax, jaxdyn.model\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a backend was started'\n"
        "assert not jax.config.jax_enable_x64\n"
    )
    assert run_python("-W", "error", "-c", code).stdout == ""


# Configurations by name


def test_a_configuration_by_names_does_not_depend_on_the_order_of_joints():
    """Trial T16, the part about names."""
    model = from_urdf(TRIALS / "T16.urdf")
    q = configuration(model, EXPECTED["T16"]["q"])
    assert {name: float(q[model.joint(name)]) for name in model.joint_names} == EXPECTED["T16"]["q"]


def test_configurations_of_joints_with_several_coordinates():
    model = from_urdf(TRIALS / "T10b.urdf")
    pose = [1.0, 2.0, 3.0, 0.0, 1.0, 0.0, 0.0]
    np.testing.assert_array_equal(configuration(model, {"gimbal": 1, "free": pose}), [*pose, 1.0])
    np.testing.assert_array_equal(configuration(model, {}), neutral(model))
    base = configuration(model, {"free": pose})
    np.testing.assert_array_equal(configuration(model, {"gimbal": jnp.asarray([0.5])}, base=base), [*pose, 0.5])
    np.testing.assert_array_equal(tangent(model, {"free": np.arange(6.0)}), [0, 1, 2, 3, 4, 5, 0])


def test_configurations_can_be_differentiated_and_keep_the_dtype():
    model = load("arm7", dtype=jnp.float32)
    jacobian = jax.jacfwd(lambda x: configuration(model, {"joint2": x}))(jnp.asarray(0.1, jnp.float32))
    assert jacobian.dtype == jnp.float32
    np.testing.assert_array_equal(jacobian, [0, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"joint22": 1.0}, UnknownNameError, "Did you mean 'joint2'"),
        ({"joint2": [1.0, 2.0]}, InputError, r"joint2: wanted shape \(1,\), given shape \(2,\)"),
        ({"joint2": True}, InputError, "joint2: wanted floating-point numbers"),
    ],
)
def test_wrong_values_by_name_are_refused(values, error, message):
    with pytest.raises(error, match=message):
        configuration(load("arm7"), values)


def test_values_without_names_are_refused():
    with pytest.raises((InputError, jaxtyping.TypeCheckError)):  # the latter only where annotations are checked
        configuration(load("arm7"), [0.0] * 7)


def test_a_wrong_base_is_refused():
    with pytest.raises(InputError, match=r"base: wanted shape \(7,\), given shape \(3,\)"):
        configuration(load("arm7"), {}, base=jnp.zeros(3))


@pytest.mark.parametrize("shape", ["chain", "star", "random"])
def test_large_robots_load(shape):
    model = from_urdf(random_urdf(3, 100, shape=shape, fixed=0.0))
    assert model.nv == 100
    assert len(model.tree.levels) == {"chain": 100, "star": 1}.get(shape, len(model.tree.levels))
