"""Robots described in code: the same models, and the same refusals, as from a file."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.errors import InputError, JaxdynWarning, UnknownNameError, URDFError
from jaxdyn.math import SE3, so3
from jaxdyn.model import ModelBuilder, from_urdf
from jaxdyn.model.builder import rpy_of
from jaxdyn.model.urdf_parse import rotation_from_rpy

INERTIA = np.array([[0.02, 0.001, -0.002], [0.001, 0.03, 0.003], [-0.002, 0.003, 0.025]])
POSE = SE3(so3.exp(jnp.array([0.3, -0.8, 1.2])), jnp.array([0.1, 0.2, 0.3]))


def arm():
    builder = ModelBuilder("arm")
    builder.add_link("base", 2.0).add_link("upper", 1.5, (0.1, 0.0, 0.2), INERTIA).add_link("hand", 0.5)
    builder.add_joint(
        "shoulder", "revolute", "base", "upper", POSE, (0, 3, 4), lower=-1, upper=2, effort=30, velocity=4, damping=0.5,
        friction=0.1, armature=0.02,
    )  # fmt: skip
    builder.add_joint("wrist", "prismatic", "upper", "hand", (0, 0, 0.4), mimic=("shoulder", -0.5, 0.1))
    builder.add_frame("tcp", "hand", POSE)
    builder.add_shape("upper", "cylinder", (0.05, 0.4), (0, 0, 0.2), color=(1, 0, 0, 1), name="tube")
    builder.add_shape("hand", "mesh", (1, 1, 1), mesh="package://p/hand.stl", roles=["visual"])
    return builder


def test_the_built_model_is_that_of_the_file_it_writes():
    built, read = arm().build(root="floating"), from_urdf(arm().to_urdf(), root="floating")
    assert built.tree == read.tree
    np.testing.assert_allclose(built.armature, [0] * 6 + [0.02], atol=0)
    for a, b in zip(jax.tree.leaves(built), jax.tree.leaves(read), strict=True):
        if a is not built.armature:
            np.testing.assert_array_equal(a, b)


def test_numbers_arrive_to_the_last_digits():
    model = arm().build()
    np.testing.assert_allclose(model.joint_placement.rotation[0], POSE.rotation, atol=3e-16)
    np.testing.assert_array_equal(model.joint_placement.translation[0], POSE.translation)
    np.testing.assert_array_equal(model.inertia.inertia[0], INERTIA)
    np.testing.assert_allclose(model.joint_axis[0], [0, 0.6, 0.8], rtol=1e-16)
    assert [s.kind for s in model.tree.geometry] == ["cylinder", "cylinder", "mesh"]
    np.testing.assert_array_equal(model.shape_color[0], [1, 0, 0, 1])
    assert model.frame_names == ("upper", "hand", "base", "tcp") and model.follower_names == ("wrist",)


def test_roll_pitch_yaw_give_the_rotation_back_at_ninety_degrees_too():
    rng = np.random.default_rng(0)
    angles = [rng.uniform(-3, 3, 3) for _ in range(50)]
    angles += [
        np.array([r, s * np.pi / 2 + e, y]) for r, y in rng.uniform(-3, 3, (10, 2)) for s in (1, -1) for e in (0, 1e-9)
    ]
    for rpy in angles:
        rotation = rotation_from_rpy(*rpy)
        np.testing.assert_allclose(rotation_from_rpy(*rpy_of(rotation)), rotation, atol=1e-15)


def test_the_readers_checks_apply():
    """One validation for both: the reader's, without lines to name."""
    with pytest.raises(URDFError, match=r"^link 'a': <mass>: value='-1.0': a mass is not negative"):
        ModelBuilder().add_link("a", -1.0).build()
    with pytest.raises(URDFError, match=r"link 'a': <inertia>: ixx='nan': 'nan' is not a finite number"):
        ModelBuilder().add_link("a", 1.0, inertia=(float("nan"), 1, 1)).build()
    two = lambda: ModelBuilder().add_link("a").add_link("b")  # noqa: E731
    with pytest.raises(URDFError, match=r"joint 'j': <axis>: xyz='0.0 0.0 0.0': an axis of length zero"):
        two().add_joint("j", "revolute", "a", "b", axis=(0, 0, 0)).build()
    with pytest.raises(URDFError, match="joint 'j': <joint>: unknown joint type 'hinge'"):
        two().add_joint("j", "hinge", "a", "b").build()
    with pytest.raises(URDFError, match=r"^joint 'j': child link 'c' does not exist"):
        two().add_joint("j", "revolute", "a", "c").build()
    with pytest.raises(URDFError, match="has 2 root links, wanted one: 'a', 'b'"):
        two().build()
    with pytest.raises(URDFError, match="the joints 'j', 'k' form a loop"):
        two().add_joint("j", "fixed", "a", "b").add_joint("k", "fixed", "b", "a").build()
    with pytest.raises(URDFError, match="two links have the name 'a'\\."):
        ModelBuilder().add_link("a").add_link("a").build()
    with pytest.raises(URDFError, match="has no <link>"):
        ModelBuilder("empty").build()
    with pytest.warns(JaxdynWarning, match="limits with lower > upper are exchanged"):
        two().add_joint("j", "revolute", "a", "b", lower=1, upper=-1).build()
    with pytest.raises(UnknownNameError, match="locked: unknown joint 'k'"):
        two().add_joint("j", "revolute", "a", "b").build(locked={"k": 0.0})


def test_what_only_code_can_get_wrong_is_refused_at_once():
    builder = ModelBuilder().add_link("a")
    for call, text in (
        (lambda: builder.add_link("b", inertia=(1, 1, 1)), "com and inertia need a mass"),
        (lambda: builder.add_link("b", 1.0, inertia=np.ones((2, 2))), "wanted a diagonal"),
        (lambda: builder.add_joint("j", "revolute", "a", "b", armature=-1.0), "armature=-1.0: wanted a finite number"),
        (lambda: builder.add_joint("k", "revolute", "a", "b", (1, 2)), "placement: wanted an SE3"),
        (lambda: builder.add_shape("z", "box"), "there is no link 'z' yet"),
        (lambda: builder.add_shape("a", "cone"), "kind: given 'cone', wanted one of box"),
        (lambda: builder.add_shape("a", "box", 1.0), "size of a box: wanted 3 numbers"),
        (lambda: builder.add_shape("a", "sphere", 1.0, roles=["seen"]), "roles: given 'seen'"),
    ):
        with pytest.raises(InputError, match=text):
            call()


def test_a_name_with_markup_survives_the_file():
    builder = ModelBuilder('a<b>&"c"').add_link("x & <y>")
    assert from_urdf(builder.to_urdf()).frame_names == ("x & <y>",)


def test_the_examples_of_the_page_on_models_run():
    page = pathlib.Path(__file__).parent.parent / "docs" / "models.md"
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        exec(compile(block, str(page), "exec"), names)
    assert names["model"].frame_names == ("rod", "base", "tip") and names["loaded"].nv == 6
