"""Scenes: what goes into the page, and mistakes that are refused. The page in a browser: test_viz_page.py."""

import base64
import json
import re
import struct
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.algorithms.configuration import configuration_from_pose
from jaxdyn.algorithms.kinematics import forward_kinematics
from jaxdyn.contact.fields import parameter
from jaxdyn.contact.terrain import FlatTerrain, PlaneTerrain, Terrain
from jaxdyn.errors import InputError, JaxdynWarning, UnknownNameError
from jaxdyn.math import so3
from jaxdyn.model import from_urdf, load, neutral, random_configuration
from jaxdyn.viz import Scene
from jaxdyn.viz.mesh_files import MeshPart, decimate, read_mesh
from jaxdyn.viz.shapes import robot_shapes
from jaxdyn.viz.values import color, nice, picked, quaternion


@pytest.fixture(scope="module")
def arm():
    return load("double_pendulum")


@pytest.fixture(scope="module")
def box():
    return load("box", root="floating")


def swing(model, steps=51, environments=None):
    """Some motion and its times."""
    q = 0.8 * np.sin(np.linspace(0, 6, steps))[:, None] * np.linspace(1, 2, model.nq)
    q = q if environments is None else q * np.linspace(0.5, 1, environments)[:, None, None]
    return q, np.linspace(0, 1, steps)


class Page:
    """The data inside the text of a page."""

    def __init__(self, scene):
        self.text = scene.to_html()
        self.data = json.loads(
            re.search(r'<script id="data" type="application/json">(.*?)</script>', self.text, re.S)[1]
        )
        self.bytes = base64.b64decode(
            re.search(r'<script id="arrays" type="text/plain">(.*?)</script>', self.text, re.S)[1]
        )

    def layer(self, name):
        return next(layer for layer in self.data["layers"] if layer["name"] == name)

    def array(self, reference):
        kind, offset, count = reference
        return np.frombuffer(self.bytes, {"f4": "<f4", "u2": "<u2", "u4": "<u4"}[kind], count, offset)


# Poses


def test_quaternions_of_rotations_are_right_at_every_branch(key):
    R = np.asarray(so3.random(key, (64,)))
    R = np.concatenate([R, np.eye(3)[None], [np.diag(d) for d in ([1.0, -1, -1], [-1.0, 1, -1], [-1.0, -1, 1])]])
    np.testing.assert_allclose(so3.from_quaternion(jnp.asarray(quaternion(R))), R, atol=1e-12)


def test_the_page_holds_the_poses_of_the_bodies(arm):
    q, t = swing(arm)
    page = Page(Scene(rate=1000).add_robot(arm, q, times=t))
    poses = page.array(page.layer("robot")["poses"]).reshape(51, 1, 2, 7)
    kinematics = jax.vmap(lambda q: forward_kinematics(arm, q))(q)
    np.testing.assert_allclose(poses[:, 0, :, :3], kinematics.translation, atol=1e-6)
    R = so3.from_quaternion(jnp.asarray(poses[:, 0, :, 3:].astype(float)))
    np.testing.assert_allclose(R, kinematics.rotation, atol=1e-6)
    np.testing.assert_allclose(page.array(page.layer("robot")["times"]), t, atol=1e-7)


def test_configurations_and_poses_give_the_same_page(box, key):
    q = np.stack([random_configuration(box, k) for k in jax.random.split(key, 4)])
    R, p = np.asarray(so3.from_quaternion(jnp.asarray(q[:, 3:]))), q[:, :3]
    t = np.arange(4.0)
    configurations = jax.vmap(lambda p, R: configuration_from_pose(box, p, R, jnp.zeros(0)))(p, R)
    pages = [
        Page(Scene().add_robot(box, q, times=t)),
        Page(Scene().add_robot(box, configurations, times=t)),
        Page(Scene().add_robot(box, poses=(R[:, None], p[:, None]), times=t)),
        Page(Scene().add_robot(box, poses=jax.vmap(lambda q: forward_kinematics(box, q))(q), times=t)),
    ]
    wanted = pages[0].array(pages[0].layer("robot")["poses"]).reshape(-1, 7)
    for page in pages[1:]:
        given = page.array(page.layer("robot")["poses"]).reshape(-1, 7)
        sign = np.sign(np.sum(given[:, 3:] * wanted[:, 3:], axis=1, keepdims=True))
        np.testing.assert_allclose(given * np.hstack([np.ones((4, 3)), np.tile(sign, 4)]), wanted, atol=1e-6)


def test_environments_stand_on_a_grid_and_forces_follow_them(arm):
    q, t = swing(arm, environments=4)
    scene = Scene().add_robot(arm, q, times=t, spacing=2.0, name="arm")
    points, forces = np.zeros((4, 51, 1, 3)), np.ones((4, 51, 1, 3))
    page = Page(scene.add_contact_forces(points, forces, robot="arm"))
    offsets = page.array(page.layer("arm")["offsets"]).reshape(4, 3)
    np.testing.assert_allclose(sorted(map(tuple, offsets)), [(-1, -1, 0), (-1, 1, 0), (1, -1, 0), (1, 1, 0)])
    samples = page.array(page.layer("contact forces")["samples"]).reshape(-1, 4, 6)
    np.testing.assert_allclose(samples[0, :, :3], offsets)
    np.testing.assert_allclose(samples[0, :, 3:], 1)


def test_samples_are_kept_at_the_rate_and_include_both_ends():
    t = np.linspace(0, 2, 2001)
    kept = picked(t, 60.0)
    assert (kept[0], kept[-1], len(kept)) == (0, 2000, 121)
    assert np.abs(np.diff(t[kept]) - 1 / 60).max() < 1.1e-3
    np.testing.assert_array_equal(picked(np.array([0, 0.4, 2.0]), 60.0), [0, 1, 2])


def test_a_long_scene_of_many_robots_stays_below_five_megabytes(arm):
    q, _ = swing(arm, 4001, 64)
    text = Scene().add_robot(arm, q, timestep=1e-2).to_html()
    assert 1e6 < len(text) < 5e6
    with pytest.warns(JaxdynWarning, match=r"page of \d+ MB"):
        Scene().add_robot(arm, np.tile(q, (4, 1, 1)), timestep=1e-2).to_html()


# Looks


def test_a_robot_without_shapes_is_drawn_as_a_skeleton():
    text = """<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/><origin xyz="0 0 .3"/>
    <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="c"/>
    <joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>
    <joint name="k" type="continuous"><parent link="b"/><child link="c"/><origin xyz="0 0 .5"/></joint></robot>"""
    shapes = robot_shapes(from_urdf(text))
    assert [(s.body, s.kind) for s in shapes] == [(0, "sphere"), (0, "capsule"), (1, "sphere")]
    np.testing.assert_allclose(shapes[1].position, [0, 0, 0.25])
    assert shapes[1].size[1] == pytest.approx(0.5)


def test_shapes_can_be_chosen(arm):
    assert {s.kind for s in robot_shapes(arm, "skeleton")} == {"sphere", "capsule"}
    visual = [info for info in arm.tree.geometry if info.role == "visual"]
    assert len(robot_shapes(arm)) == len(visual)
    with pytest.raises(InputError, match="'visual', 'collision', 'skeleton'"):
        robot_shapes(arm, "pretty")


MESH_ROBOT = """<robot name="r"><link name="a"><visual><geometry><mesh filename="{}" scale="2 2 2"/></geometry></visual>
{}</link></robot>"""
TETRAHEDRON = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float)
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def write_mesh(path):
    corners = TETRAHEDRON[FACES]
    if path.name.startswith("text"):
        facets = "".join(
            "facet normal 0 0 0\nouter loop\n"
            + "".join(f"vertex {x} {y} {z}\n" for x, y, z in c)
            + "endloop\nendfacet\n"
            for c in corners
        )
        path.write_text(f"solid t\n{facets}endsolid t\n")
    elif path.suffix == ".stl":
        body = b"".join(struct.pack("<12fH", 0, 0, 0, *c.ravel(), 0) for c in corners)
        path.write_bytes(b"solid but binary".ljust(80) + struct.pack("<I", 4) + body)
    elif path.suffix == ".obj":
        path.with_suffix(".mtl").write_text("newmtl red\nKd 1 0 0\n")
        lines = ["mtllib mesh.mtl", "usemtl red", *("v {} {} {}".format(*v) for v in TETRAHEDRON)]
        path.write_text("\n".join([*lines, "f 1/1 3//2 2", "f 1 2 4", "f -4 -1 -2", "f 2 3 4"]))
    else:
        floats = " ".join(str(x) for x in TETRAHEDRON.ravel() * 100)
        indices = " ".join(f"{i} 0" for i in FACES.ravel())
        path.write_text(
            f"""<?xml version="1.0"?><COLLADA xmlns="x"><asset><unit meter="0.01"/><up_axis>Z_UP</up_axis></asset>
            <library_effects><effect id="e"><profile_COMMON><technique><phong><diffuse><color>1 0 0 1</color></diffuse>
            </phong></technique></profile_COMMON></effect></library_effects>
            <library_materials><material id="m"><instance_effect url="#e"/></material></library_materials>
            <library_geometries><geometry id="g"><mesh><source id="p"><float_array id="pa" count="12">{floats}</float_array>
            </source><vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
            <triangles count="4" material="s"><input semantic="VERTEX" source="#v" offset="0"/>
            <input semantic="NORMAL" source="#p" offset="1"/><p>{indices}</p></triangles></mesh></geometry></library_geometries>
            <library_visual_scenes><visual_scene id="s"><node><translate>0 0 0</translate><rotate>0 0 1 0</rotate>
            <instance_geometry url="#g"><bind_material><technique_common><instance_material symbol="s" target="#m"/>
            </technique_common></bind_material></instance_geometry></node></visual_scene></library_visual_scenes>
            <scene><instance_visual_scene url="#s"/></scene></COLLADA>"""
        )
    return path


@pytest.mark.parametrize("name", ["binary.stl", "text.stl", "mesh.obj", "mesh.dae"])
def test_mesh_files_are_read_and_embedded(tmp_path, name):
    path = write_mesh(tmp_path / name)
    (part,) = read_mesh(path)
    volume = np.linalg.det(part.vertices[part.triangles]).sum() / 6
    assert part.vertices.shape == (4, 3) and volume == pytest.approx(1 / 6)
    assert part.color == (None if path.suffix == ".stl" else (1.0, 0.0, 0.0, 1.0))
    page = Page(Scene().add_robot(from_urdf(MESH_ROBOT.format(path, ""))))
    (mesh,) = page.data["meshes"]
    steps = page.array(mesh["vertices"]).reshape(-1, 3) / 65535
    vertices = steps * np.subtract(mesh["high"], mesh["low"]) + mesh["low"]
    np.testing.assert_allclose(
        vertices[page.array(mesh["triangles"])], part.vertices[part.triangles].reshape(-1, 3), atol=1e-4
    )
    assert page.layer("robot")["shapes"][0]["size"] == [2, 2, 2]


def test_a_mesh_with_many_triangles_is_made_coarser_and_keeps_its_form():
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 200), np.linspace(0, np.pi, 100), indexing="ij")
    points = np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1).reshape(-1, 3)
    i = np.arange(199 * 100).reshape(199, 100)[:, :-1].ravel()
    triangles = np.concatenate([np.stack([i, i + 1, i + 101], 1), np.stack([i, i + 101, i + 100], 1)])
    coarse = decimate(MeshPart(points, triangles), 2000)
    assert 800 < len(coarse.triangles) <= 2000
    used = coarse.vertices[np.unique(coarse.triangles)]
    assert np.abs(np.linalg.norm(used, axis=1) - 1).max() < 0.03


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("missing.stl", None, "not found"),
        ("short.stl", b"abc", "no STL file"),
        ("broken.obj", b"v 0 0 0\nf 1 2 3\n", "vertex 2"),
        ("empty.dae", b"<COLLADA/>", "holds no triangles"),
        ("bomb.dae", b'<!DOCTYPE a [<!ENTITY b "c">]><COLLADA/>', "entities"),
        ("cut.dae", b"<COLLADA>", "cannot be read"),
        ("other.wrl", b"", "wanted a file that ends in"),
    ],
)
def test_a_mesh_that_cannot_be_read_is_replaced_with_one_warning(tmp_path, name, content, reason):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    collision = '<collision><geometry><box size="1 1 1"/></geometry></collision>'
    model = from_urdf(MESH_ROBOT.format(path, collision))
    scene = Scene()
    with pytest.warns(JaxdynWarning, match=reason) as caught:
        scene.add_robot(model)
    assert len(caught) == 1
    assert [shape["kind"] for shape in Page(scene).layer("robot")["shapes"]] == ["box"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scene.add_robot(model)


# The page


def test_texts_cannot_leave_their_place(arm):
    evil = "</script><script>alert(1)</script> <b> & \" ' @DATA@ <!-- \u2028"
    q, t = swing(arm)
    scene = Scene(evil, subtitle=evil).add_robot(arm, q, times=t, name=evil)
    scene.add_label(evil, (0, 0, 1)).add_time_stamp(0.5, evil).add_readout(evil, q[:, 0], times=t, unit=evil)
    page = Page(scene)
    assert page.text.count("<script") == 3 == page.text.count("</script>")
    assert "alert(1)</" not in page.text and "<b>" not in re.sub(r"<b id=\"now\">", "", page.text)
    assert page.layer(evil)["name"] == page.data["title"] == page.data["events"][0]["text"] == evil
    assert scene._repr_html_().count("<") == 2


def test_the_page_refers_to_nothing_outside(arm):
    text = Scene().add_robot(arm).to_html()
    assert "default-src 'none'" in text
    patterns = (
        r"https?:",
        r"""(src|href)\s*=\s*["'](?!data:)""",
        r"url\(",
        r"@import",
        r"\bimport\b\s*[('\"{]",
        r"\bfetch\(",
    )
    for pattern in (*patterns, "XMLHttp", "WebSocket"):
        found = re.search(pattern, re.sub(r"URL\.(create|revoke)ObjectURL\(|href: URL", "", text))
        assert not found, text[max(found.start() - 60, 0) : found.end() + 60]
    program = re.sub(r'<script id="arrays".*?</script>', "", text, flags=re.S)
    assert "//" not in program


def test_a_scene_is_written_where_asked(arm, tmp_path):
    path = Scene("One").add_robot(arm).save(tmp_path / "new" / "scene.html")
    assert path.read_text(encoding="utf-8") == Scene("One").add_robot(arm).to_html()
    assert repr(Scene("One").add_robot(arm)) == "Scene('One', 1 layers: 'robot')"


def test_an_empty_scene_and_everything_at_once_make_a_page(arm):
    assert Page(Scene()).data["layers"] == []
    q, t = swing(arm, environments=2)
    scene = Scene(theme="dark", speed=0.5).add_robot(arm, q, times=t, color=["red", (0, 1, 0)], opacity=[1, 0.5])
    scene.add_robot(arm, q[0, 0], opacity=0.3, color="#abc", offset=(0, 1, 0))
    scene.add_trace(robot="robot", body=arm.body_names[1]).add_trace(np.eye(3), color="red")
    scene.add_frames((np.eye(3)[None], np.zeros((1, 3)))).add_boxes(np.ones((2, 3)), np.ones((2, 3)))
    scene.add_spheres(np.zeros((51, 1, 3)), 0.1, times=t).add_heightmap([0, 1, 2], [0, 1], np.zeros((3, 2)))
    scene.add_label("here", robot="robot 2").add_readout("x", q[0, :, 0], times=t, unit="rad")
    scene.add_ground(-1, style="grid").set_camera(azimuth=30, elevation=20, distance=3, target=(0, 0, 1), follow=True)
    data = Page(scene).data
    kinds = [layer["kind"] for layer in data["layers"]]
    assert kinds == ["robot", "ghost", "trace", "trace", "frames", "thing", "thing", "terrain", "frames", "labels"]
    assert data["duration"] == [0, 1] and data["ground"]["point"] == [0, 0, -1] and data["follow"]


def test_terrains_of_contact_laws_become_ground():
    flat, slope = (
        Page(Scene().add_terrain(FlatTerrain(0.2))).data["ground"],
        PlaneTerrain((0.0, 1.0, 1.0), (1.0, 0.0, 0.0)),
    )
    assert flat["point"] == [0, 0, 0.2] and flat["quaternion"] == [1, 0, 0, 0]
    ground = Page(Scene().add_terrain(slope)).data["ground"]
    R = np.asarray(so3.from_quaternion(jnp.asarray(ground["quaternion"])))
    np.testing.assert_allclose(R[:, 2], [0, np.sqrt(0.5), np.sqrt(0.5)], atol=1e-12)

    with pytest.raises(InputError, match="x= and y="):
        Scene().add_terrain(Ramp([2.0, 1.0]))
    page = Page(Scene().add_terrain(Ramp([2.0, 1.0]), x=[0.0, 1.0], y=[0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(page.array(page.layer("terrain")["z"]), [0, 1, 2, 2, 3, 4])


class Ramp(Terrain):
    """A shape of the ground that is neither of those that the library knows, with a leaf that must be stacked."""

    slope: jax.Array = parameter("slope", (2,))

    def query(self, points):
        up = jnp.stack([-self.slope[:, 0], -self.slope[:, 1], jnp.ones_like(self.slope[:, 0])], axis=1)
        up = up / jnp.linalg.norm(up, axis=1, keepdims=True)
        return (self.height(points[:, :2]) - points[:, 2]) * up[:, 2], up + jnp.zeros_like(points)

    def height(self, xy):
        return self.slope[:, 0] * xy[:, 0] + self.slope[:, 1] * xy[:, 1]


# Mistakes

T, Q = np.linspace(0, 1, 5), np.zeros((5, 2))
NAN = np.where(np.arange(5)[:, None] == 3, np.nan, Q)
ZERO = np.zeros
MISTAKES = {
    "wrong number of coordinates": (lambda s, m: s.add_robot(m, np.zeros((5, 3)), times=T), r"q of 'robot': wanted shape \(2,\) or"),
    "no times": (lambda s, m: s.add_robot(m, Q), "5 steps need their times"),
    "another number of times": (lambda s, m: s.add_robot(m, Q, times=T[:4]), "5 steps, but 4 times"),
    "times go back": (lambda s, m: s.add_robot(m, Q, times=T[::-1]), "times must increase"),
    "times and timestep": (lambda s, m: s.add_robot(m, Q, times=T, timestep=0.1), "not both"),
    "timestep zero": (lambda s, m: s.add_robot(m, Q, timestep=0), "timestep must be positive"),
    "NaN": (lambda s, m: s.add_robot(m, NAN, times=T), r"2 of 10 numbers are not finite, the first is q\[3, 0\]"),
    "no steps": (lambda s, m: s.add_robot(m, np.zeros((0, 2))), "is empty"),
    "text": (lambda s, m: s.add_robot(m, "abc"), "wanted numbers"),
    "q and poses": (lambda s, m: s.add_robot(m, Q, poses=(), times=T), "not both"),
    "poses of another kind": (lambda s, m: s.add_robot(m, poses=3.0), "wanted an SE3"),
    "NaN in poses": (lambda s, m: s.add_robot(m, poses=(np.tile(np.eye(3), (2, 1, 1)), np.full((2, 3), np.nan))), "not finite"),
    "no rotations": (lambda s, m: s.add_robot(m, poses=(np.ones((2, 3, 3)), np.zeros((2, 3)))), "not all are rotations"),
    "unequal poses": (lambda s, m: s.add_robot(m, poses=(np.ones((1, 3, 3)), np.zeros((2, 3)))), r"wanted shape \(2, 3, 3\)"),
    "a batch of models": (lambda s, m: s.add_robot(jax.tree.map(lambda x: x[None], m)), "wanted one robot"),
    "opacity": (lambda s, m: s.add_robot(m, opacity=1.5), "opacity: between 0 and 1"),
    "colour": (lambda s, m: s.add_robot(m, color="#12"), "wanted '#rrggbb'"),
    "colours": (lambda s, m: s.add_robot(m, color=["red", "blue"]), "wanted one colour or 1, given 2"),
    "offset": (lambda s, m: s.add_robot(m, offset=(1, 2)), "offset: wanted shape"),
    "name taken": (lambda s, m: s.add_robot(m, name="a").add_robot(m, name="a"), "there is a 'a'"),
    "forces of another shape": (
        lambda s, m: s.add_contact_forces(ZERO((5, 2, 3)), ZERO((5, 1, 3)), times=T),
        r"forces: wanted shape \(5, 2, 3\), given shape \(5, 1, 3\)",
    ),
    "forces of other environments": (
        lambda s, m: s.add_robot(m).add_contact_forces(ZERO((2, 5, 1, 3)), ZERO((2, 5, 1, 3)), times=T, robot="robot"),
        "2 environments, but 'robot' has 1",
    ),
    "forces longer than the robot": (
        lambda s, m: s.add_robot(m, Q, times=T).add_contact_forces(ZERO((6, 1, 3)), ZERO((6, 1, 3)), robot="robot"),
        "6 steps, but 5 times",
    ),
    "trace of one point": (lambda s, m: s.add_trace(np.zeros((1, 3))), "two points at least"),
    "trace of nothing": (lambda s, m: s.add_trace(robot="r"), "give points"),
    "label nowhere": (lambda s, m: s.add_label("x"), "give a position"),
    "environment": (lambda s, m: s.add_robot(m).add_label("x", robot="robot", environment=1), "has 1, given 1"),
    "ground upside down": (lambda s, m: s.add_ground(normal=(0, 0, -1)), "upwards"),
    "ground style": (lambda s, m: s.add_ground(style="lawn"), "'checker', 'grid', 'plain'"),
    "heights": (lambda s, m: s.add_heightmap([0, 1], [0, 1], np.zeros((3, 2))), "heights: wanted shape"),
    "grid": (lambda s, m: s.add_heightmap([1, 0], [0, 1], np.zeros((2, 2))), "x: wanted two or more increasing"),
    "flat boxes": (lambda s, m: s.add_boxes(np.zeros((1, 3)), np.zeros((1, 3))), "must be positive"),
    "radius": (lambda s, m: s.add_spheres(np.zeros((1, 3)), -1.0), "must be positive"),
    "time stamp": (lambda s, m: s.add_robot(m, Q, times=T).add_time_stamp(2.0, "x").to_html(), "time stamp 'x' at 2 s"),
    "theme": (lambda s, m: Scene(theme="blue"), "'light', 'dark'"),
    "rate": (lambda s, m: Scene(rate=0), "rate: must be positive"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_with_what_was_given_and_expected(arm, mistake):
    act, text = MISTAKES[mistake]
    with pytest.raises(InputError, match=text):
        act(Scene(), arm)


def test_unknown_names_are_refused_with_the_nearest(arm):
    scene = Scene().add_robot(arm, name="arm")
    with pytest.raises(UnknownNameError, match="Did you mean 'arm'"):
        scene.add_contact_forces(np.zeros((1, 3)), np.zeros((1, 3)), robot="amr")
    with pytest.raises(UnknownNameError, match="body"):
        scene.add_trace(robot="arm", body="nose")
    with pytest.raises(UnknownNameError, match="Did you mean 'green'"):
        scene.add_robot(arm, color="gren")


def test_colours_and_round_numbers():
    assert color("#0af") == color("#00aaff") == pytest.approx((0, 2 / 3, 1))
    assert [nice(x) for x in (0.19, 0.2, 0.99, 1.0, 7.0)] == pytest.approx([0.1, 0.2, 0.5, 1.0, 5.0])


def test_a_float32_robot_is_drawn_too(arm):
    page = Page(Scene().add_robot(arm.astype("float32"), np.asarray(neutral(arm))))
    assert page.data["duration"] == [0, 0]
