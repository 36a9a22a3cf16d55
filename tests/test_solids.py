"""Inertia of solids: primitives against integration, meshes against primitives."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import SE3, so3
from jaxdyn.model import ModelBuilder, mesh_inertia, read_mesh, shape_inertia, solid_inertia

SIZES = {"box": [0.2, 0.3, 0.5], "sphere": [0.3], "cylinder": [0.2, 0.7], "capsule": [0.2, 0.7]}


def integrated(kind, size, n=160):
    """Volume and inertia of a unit density, on a grid of cells."""
    if kind == "box":
        reach = np.array(size) / 2
    else:
        reach = np.array(
            [size[0], size[0], size[0] if kind == "sphere" else size[1] / 2 + (kind == "capsule") * size[0]]
        )
    axes = [(np.arange(n) + 0.5) / n * 2 * r - r for r in reach]
    x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
    if kind == "box":
        inside = np.ones((n, n, n), bool)
    elif kind == "sphere":
        inside = x**2 + y**2 + z**2 <= size[0] ** 2
    elif kind == "cylinder":
        inside = np.broadcast_to(x**2 + y**2 <= size[0] ** 2, (n, n, n))
    else:
        inside = x**2 + y**2 + np.maximum(np.abs(z) - size[1] / 2, 0) ** 2 <= size[0] ** 2
    cell = np.prod(2 * reach / n)
    xx, yy, zz = (np.sum(inside * p**2) * cell for p in (x, y, z))
    return inside.sum() * cell, np.diag([yy + zz, zz + xx, xx + yy])


@pytest.mark.parametrize("kind", SIZES)
def test_primitives_are_their_integrals(kind):
    volume, inertia = integrated(kind, SIZES[kind])
    solid = solid_inertia(kind, SIZES[kind], density=1.0)
    np.testing.assert_allclose(solid.mass, volume, rtol=3e-3)
    np.testing.assert_allclose(solid.inertia, inertia, rtol=5e-3, atol=1e-12)
    heavy = solid_inertia(kind, jnp.asarray(SIZES[kind]), mass=2.0)
    np.testing.assert_allclose(heavy.inertia, solid.inertia * 2 / solid.mass, rtol=1e-12)
    assert heavy.is_physical()


CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
FACES = np.array(
    [[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]]
)  # fmt: skip


def test_a_mesh_is_the_solid_it_bounds():
    pose = SE3(so3.exp(jnp.array([0.3, -0.2, 0.9])), jnp.array([2.0, -1.0, 0.5]))
    corners = (CUBE - 0.5) * np.array(SIZES["box"])
    mesh = quick_jit(lambda v: mesh_inertia(v, FACES))(pose.apply(jnp.asarray(corners)))
    box = solid_inertia("box", SIZES["box"]).transform(pose)
    turned = mesh_inertia(pose.apply(jnp.asarray(corners)), FACES[:, ::-1])
    for solid in (mesh, turned):
        np.testing.assert_allclose(solid.mass, box.mass, rtol=1e-12)
        np.testing.assert_allclose(solid.com, box.com, atol=1e-12)
        np.testing.assert_allclose(solid.inertia, box.inertia, atol=1e-11)
    by_scale = quick_jit(jax.grad(lambda s: mesh_inertia(s * jnp.asarray(corners), FACES).mass))(1.0)
    np.testing.assert_allclose(by_scale, 3 * box.mass, rtol=1e-12)


def test_shapes_of_a_model_have_inertia_in_the_frame_of_their_body():
    builder = ModelBuilder().add_link("a").add_link("b", 1.0).add_joint("j", "revolute", "a", "b")
    builder.add_shape("b", "capsule", (0.1, 0.4), (0.0, 0.2, 0.0), roles=["collision"])
    model = builder.build()
    solid = shape_inertia(model, 0, mass=2.0)
    np.testing.assert_allclose(solid.com, [0, 0.2, 0], atol=1e-15)
    np.testing.assert_allclose(solid.inertia, solid_inertia("capsule", [0.1, 0.4], mass=2.0).inertia, atol=1e-15)
    with pytest.raises(InputError, match="shape: wanted an index below 1, given 1"):
        shape_inertia(model, 1)


def test_meshes_are_read_by_trimesh(tmp_path, monkeypatch):
    path = tmp_path / "cube.obj"
    lines = [f"v {x} {y} {z}" for x, y, z in CUBE] + [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in FACES]
    path.write_text("\n".join(lines) + "\n")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "trimesh", None)
        with pytest.raises(InputError, match="needs the package trimesh"):
            read_mesh(path)
    pytest.importorskip("trimesh")
    vertices, faces = read_mesh(path, (1.0, 2.0, -3.0))
    np.testing.assert_allclose(mesh_inertia(vertices, faces, density=1.0).mass, 6.0)
    builder = ModelBuilder().add_link("a", 1.0).add_shape("a", "mesh", (1, 1, 1), (1, 0, 0), mesh=str(path))
    np.testing.assert_allclose(shape_inertia(builder.build(), 0).com, [1.5, 0.5, 0.5], atol=1e-12)
    (tmp_path / "bad.stl").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read as a mesh"):
        read_mesh(tmp_path / "bad.stl")


def test_wrong_solids_are_refused():
    with pytest.raises(UnknownNameError, match="unknown kind of solid 'bocks'"):
        solid_inertia("bocks", 1.0)
    with pytest.raises(InputError, match=r"size: wanted shape \(2,\), given shape \(1,\). Of a cylinder."):
        solid_inertia("cylinder", 1.0)
    with pytest.raises(InputError, match=r"wanted vertices \(n, 3\) and faces \(m, 3\)"):
        mesh_inertia(np.zeros((3, 2)), FACES)
