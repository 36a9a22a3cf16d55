"""Models as descriptions and URDF files: what is written reads as the same model."""

import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_trees import MOVING, random_urdf

from jaxdyn.errors import InputError
from jaxdyn.model import append, from_urdf, load, reduce, to_builder, to_urdf

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"


def assert_same(ours, theirs, without=()):
    order = [ours.frame_names.index(name) for name in theirs.frame_names]
    for name in ("joint_names", "joint_types", "parents", "body_names", "geometry", "followers"):
        assert getattr(ours.tree, name) == getattr(theirs.tree, name), name
    assert [ours.tree.frame_bodies[i] for i in order] == list(theirs.tree.frame_bodies)
    ours = eqx.tree_at(
        lambda m: m.frame_placement, ours, jax.tree.map(lambda x: x[np.asarray(order)], ours.frame_placement)
    )
    for name in (f for f in ours.__dataclass_fields__ if f not in ("tree", *without)):
        for a, b in zip(jax.tree.leaves(getattr(ours, name)), jax.tree.leaves(getattr(theirs, name)), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-15, rtol=1e-14, err_msg=name)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_a_random_robot_comes_back(seed, root):
    model = from_urdf(random_urdf(seed, 8, types=MOVING, fixed=0.4), root=root)
    assert_same(from_urdf(to_urdf(model), root=root), model)


@pytest.mark.parametrize("name", ["quadruped", "arm7", "cartpole"])
def test_robots_of_the_library_come_back_with_their_shapes(name):
    root = "floating" if name == "quadruped" else "fixed"
    model = load(name, root=root)
    assert_same(from_urdf(to_urdf(model, name), root=root), model)


def test_followers_limits_and_armature_come_back():
    model = from_urdf(TRIALS / "T08.urdf")
    model = eqx.tree_at(lambda m: m.armature, model, jnp.full(1, 0.03))
    assert_same(to_builder(model).build(), model)
    assert 'mimic joint="left_j" multiplier="-1.0" offset="0.02"' in to_urdf(model)


def test_an_edited_model_can_be_written_and_added_to():
    arm, box = load("arm7"), load("box", root="floating")
    edited = reduce(append(arm, box, arm.frame_names[6], prefix="load/"), ["joint2"])
    builder = to_builder(edited).add_link("extra", 0.1).add_joint("more", "revolute", edited.body_names[-1], "extra")
    model = builder.build()
    assert model.nv == edited.nv + 1
    np.testing.assert_allclose(model.total_mass, edited.total_mass + 0.1)


def test_numbers_must_be_there():
    with pytest.raises(InputError, match="to_builder: the model's numbers cannot be read under jit"):
        jax.jit(lambda m: to_urdf(m))(load("box"))
