"""Models as files: what comes back, and what is refused."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_trees import MOVING, random_model

from jaxdyn.errors import InputError
from jaxdyn.model import ModelBuilder, from_urdf, load, restore, save


@pytest.fixture(scope="module")
def robot():
    model = random_model(3, 6, types=MOVING, root="floating")
    return eqx.tree_at(lambda m: m.armature, model, jnp.linspace(0.1, 0.2, model.nv))


def assert_equal(a, b):
    assert a.tree == b.tree and hash(a.tree) == hash(b.tree)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_a_model_comes_back_bit_by_bit(robot, tmp_path):
    for i, model in enumerate((robot, robot.astype(jnp.float32), load("quadruped"), load("box", root="floating"))):
        path = tmp_path / f"robot{i}.npz"
        save(path, model)
        assert_equal(restore(path), model)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"robot{i}.npz" for i in range(4)]


def test_followers_shapes_and_batches_come_back(robot, tmp_path):
    builder = ModelBuilder().add_link("a").add_link("b", 1.0).add_link("c", 1.0)
    builder.add_joint("x", "revolute", "a", "b").add_joint("y", "revolute", "b", "c", mimic=("x", 2.0, 0.1))
    model = builder.add_shape("b", "box", (1, 2, 3), name="block").build()
    save(str(tmp_path / "name without suffix"), model)
    assert_equal(restore(str(tmp_path / "name without suffix")), model)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), robot)
    save(tmp_path / "batch", batch)
    assert_equal(restore(tmp_path / "batch"), batch)
    empty = from_urdf('<robot name="r"><link name="a"/></robot>')
    save(tmp_path / "empty", empty)
    assert_equal(restore(tmp_path / "empty"), empty)


def test_the_dtype_can_be_chosen(robot, tmp_path):
    save(tmp_path / "r.npz", robot)
    assert restore(tmp_path / "r.npz", dtype=jnp.float32).dtype == jnp.float32
    jax.config.update("jax_enable_x64", False)
    try:
        assert restore(tmp_path / "r.npz").dtype == jnp.float32
    finally:
        jax.config.update("jax_enable_x64", True)


def rewritten(path, target, **changes):
    with np.load(path) as archive:
        content = dict(archive)
    for name, value in changes.items():
        if value is None:
            del content[name]
        else:
            content[name] = value
    np.savez(target, **content)
    return target


def test_foreign_newer_and_damaged_files_are_refused(robot, tmp_path):
    path = tmp_path / "r.npz"
    save(path, robot)
    with np.load(path) as archive:
        header = json.loads(str(archive["header"]))

    def other(**changes):
        return rewritten(path, tmp_path / "other.npz", **changes)

    def with_header(**changes):
        return other(header=np.asarray(json.dumps(header | changes)))

    (tmp_path / "text").write_text("<robot/>")
    (tmp_path / "cut").write_bytes(path.read_bytes()[:2000])
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", header=np.array([{}], dtype=object))
    for make, text in (
        (lambda: tmp_path / "nothing", "there is no file"),
        (lambda: tmp_path, "is no model"),
        (lambda: tmp_path / "text", "is no model that save wrote"),
        (lambda: tmp_path / "cut", "is no model that save wrote"),
        (lambda: tmp_path / "array.npy", "holds a single array"),
        (lambda: tmp_path / "objects.npz", "is no model that save wrote"),
        (lambda: other(header=None), "but no model that save wrote"),
        (lambda: other(header=np.asarray("{")), "but no model that save wrote"),
        (lambda: with_header(format="something"), "but no model that save wrote"),
        (lambda: with_header(version=99), "in version 99 of the format; this one, .* reads up to 2: update jaxdyn"),
        (lambda: with_header(version="x"), "format version is 'x'"),
        (lambda: with_header(tree={}), "its tree cannot be read"),
        (lambda: with_header(tree=header["tree"] | {"parents": [5] * 7}), "its tree cannot be read"),
        (lambda: other(gravity=None), "it lacks 'gravity'"),
        (lambda: other(gravity=np.zeros(2)), "gravity is float64.2,., wanted floats of shape .3,."),
        (lambda: other(armature=np.zeros(robot.nv, dtype=int)), "armature is int64"),
        (lambda: other(armatures=np.zeros(3)), "holds 'armatures', which is no leaf of a model; nearest: 'armature'"),
    ):
        with pytest.raises(InputError, match=text):
            restore(make())


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(robot, tmp_path):
    target = tmp_path / "nowhere" / "robot.npz"
    with pytest.raises(FileNotFoundError) as caught:
        save(target, robot)
    assert caught.value.filename == str(target)


def test_a_traced_model_is_not_saved(robot, tmp_path):
    with pytest.raises(InputError, match="cannot be read under jit"):
        jax.jit(lambda m: save(tmp_path / "r", m))(robot)
    assert not list(tmp_path.iterdir())
