"""Visual and collision shapes: kinds, sizes, colours, meshes by reference, and what is left out."""

import pathlib
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.errors import JaxdynWarning
from jaxdyn.model import from_urdf

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"


def one_link(*shapes, before=""):
    return f'<robot name="r">{before}<link name="a">{"".join(shapes)}</link></robot>'


def visual(geometry, rest=""):
    return f"<visual>{rest}<geometry>{geometry}</geometry></visual>"


def test_empty_shapes_are_reported_by_link_and_name_and_the_rest_is_kept():
    """Trial T47, as far as loading goes."""
    with pytest.warns(JaxdynWarning, match="without geometry are left out: link 'p' collision 'none'") as caught:
        model = from_urdf(TRIALS / "T47.urdf")
    assert len(caught) == 1
    shapes = [(s.link, s.name, s.kind, s.role, s.body) for s in model.tree.geometry]
    assert shapes == [
        ("base", "ok", "box", "collision", -1),
        ("base", "m", "mesh", "collision", -1),
        ("p", "cap", "capsule", "collision", 0),
        ("p", "cyl", "cylinder", "collision", 0),
    ]
    assert model.tree.geometry[1].mesh == "package://nowhere/hull.stl"


def test_sizes_of_every_kind():
    model = from_urdf(
        one_link(
            visual('<box size="1 2 3"/>'),
            visual('<sphere radius="0.5"/>'),
            visual('<cylinder radius="0.1" length="0.4"/>'),
            visual('<capsule radius="0.2" length="0.6"/>'),
            visual('<mesh filename="m.stl"/>'),
            visual('<mesh filename="m.stl" scale="1 -1 2"/>'),
        )
    )
    assert [s.kind for s in model.tree.geometry] == ["box", "sphere", "cylinder", "capsule", "mesh", "mesh"]
    want = [[1, 2, 3], [0.5, 0, 0], [0.1, 0.4, 0], [0.2, 0.6, 0], [1, 1, 1], [1, -1, 2]]
    np.testing.assert_array_equal(model.shape_size, want)


def test_unknown_geometry_is_reported():
    with pytest.warns(JaxdynWarning, match="unknown geometry are left out: link 'a' visual '' .line 1. <torus>"):
        model = from_urdf(one_link(visual('<torus radius="1"/>'), visual('<sphere radius="1"/>')))
    assert len(model.tree.geometry) == 1


def test_colours_are_inline_global_or_those_of_another_shape():
    red, blue = '<color rgba="1 0 0 1"/>', '<color rgba="0 0 1 0.5"/>'
    ball = '<sphere radius="1"/>'
    text = one_link(
        visual(ball, f'<material name="mine">{red}</material>'),
        visual(ball, '<material name="sea"/>'),
        visual(ball, '<material name="mine"/>'),
        visual(ball, '<material name="nowhere"/>'),
        visual(ball),
        visual(ball, f'<material name="sea">{red}</material>'),
        before=f'<material name="sea">{blue}</material>',
    )
    want = [[1, 0, 0, 1], [0, 0, 1, 0.5], [1, 0, 0, 1], [0.7, 0.7, 0.7, 1], [0.7, 0.7, 0.7, 1], [1, 0, 0, 1]]
    np.testing.assert_array_equal(from_urdf(text).shape_color, want)


def test_shapes_move_with_the_body_that_their_link_is_lumped_into():
    text = (
        '<robot name="r"><link name="base"/><link name="arm"/>'
        f'<link name="tool">{visual(BALL, ORIGIN)}</link>'
        '<joint name="j" type="continuous"><origin xyz="0 0 1"/><parent link="base"/><child link="arm"/></joint>'
        '<joint name="f" type="fixed"><origin xyz="0 1 0" rpy="0 0 1.5707963267948966"/>'
        '<parent link="arm"/><child link="tool"/></joint></robot>'
    )
    model = from_urdf(text)
    shape = model.tree.geometry[0]
    assert (shape.link, shape.body) == ("tool", 0)
    np.testing.assert_allclose(model.shape_placement.translation[0], [0, 3, 0], atol=1e-15)
    np.testing.assert_allclose(model.shape_placement.rotation[0], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)
    welded = from_urdf(text, locked={"j": 0.0})
    assert welded.tree.geometry[0].body == -1
    np.testing.assert_allclose(welded.shape_placement.translation[0], [0, 3, 1], atol=1e-15)


BALL, ORIGIN = '<sphere radius="1"/>', '<origin xyz="2 0 0"/>'


def test_meshes_are_found_in_package_folders_and_beside_the_file_else_they_keep_their_name(tmp_path):
    files = [tmp_path / "ws" / "my_robot" / "meshes" / "a.stl", tmp_path / "urdf" / "b.stl", tmp_path / "c d.stl"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    names = [
        "package://my_robot/meshes/a.stl",
        "b.stl",
        f"file://{files[2]}",
        "package://other/a.stl",
        "missing.stl",
        "https://x.org/a.stl",
    ]
    path = tmp_path / "urdf" / "r.urdf"
    path.write_text(one_link(*(visual(f'<mesh filename="{name}"/>') for name in names)))

    def meshes(**options):
        return [shape.mesh for shape in from_urdf(path, **options).tree.geometry]

    found = [str(file) for file in files]
    assert meshes() == [names[0], *found[1:], *names[3:]]
    assert meshes(package_dirs=[tmp_path / "ws"]) == [*found, *names[3:]]
    assert meshes(package_dirs=[str(tmp_path / "ws" / "my_robot")]) == [*found, *names[3:]]
    assert meshes(package_dirs=str(tmp_path / "ws")) == [*found, *names[3:]]
    assert [shape.mesh for shape in from_urdf(path.read_text()).tree.geometry][1] == "b.stl"


def test_packages_are_found_as_ros_finds_them(tmp_path, monkeypatch):
    for variable in ("ROS_PACKAGE_PATH", "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "GZ_SIM_RESOURCE_PATH"):
        monkeypatch.delenv(variable, raising=False)
    text = one_link(visual('<mesh filename="package://bot/meshes/a b.stl"/>'))

    def put(*folders):
        file = tmp_path.joinpath(*folders, "bot", "meshes", "a b.stl")
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
        return str(file)

    def mesh(source=text, **options):
        return from_urdf(source, **options).tree.geometry[0].mesh

    given, ros, ament, above = put("given"), put("ros"), put("ament", "share"), put("src")
    assert mesh() == "package://bot/meshes/a b.stl"
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'none'}:{tmp_path / 'ament'}")
    assert mesh() == ament
    monkeypatch.setenv("ROS_PACKAGE_PATH", str(tmp_path / "ros"))
    assert mesh() == ros
    monkeypatch.setenv("ROS_PACKAGE_PATH", str(tmp_path / "ros" / "bot"))
    assert mesh() == ros
    file = tmp_path / "src" / "bot" / "urdf" / "deep" / "bot.urdf"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert mesh(file) == above  # the package that the file lies in
    assert mesh(file, package_dirs=[tmp_path / "given"]) == given
    assert mesh(text.replace("package:", "model:").replace("a b", "a%20b")) == ros
    for uri in (f"file://{given}", f"file:{given}", f"file://localhost{given}", f"file://{given.replace(' ', '%20')}"):
        assert mesh(one_link(visual(f'<mesh filename="{uri}"/>'))) == given


def test_robots_without_shapes_have_empty_leaves():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = from_urdf(one_link(), dtype=jnp.float32)
    assert model.shape_size.shape == (0, 3) and model.shape_color.shape == (0, 4)
    assert model.shape_placement.rotation.shape == (0, 3, 3) and model.shape_size.dtype == jnp.float32
