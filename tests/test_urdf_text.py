"""URDF as text: files, encodings, numbers, and everything that is no tree. A mistake must be named with its element and line."""

import locale
import pathlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import random_urdf

from jaxdyn.errors import JaxdynWarning, UnknownNameError, URDFError
from jaxdyn.model import from_urdf, load
from jaxdyn.model.urdf_xml import parse_xml

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"
GOOD = (TRIALS / "T36.urdf").read_text()
HEAD = '<?xml version="1.0"?>'


def refused(text, *parts, error=URDFError):
    """The text is refused within a second, and the message holds all parts."""
    start = time.process_time()
    with pytest.raises(error) as caught:
        from_urdf(text)
    assert time.process_time() - start < 1.0
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"
    return str(caught.value)


# Where the text comes from


def test_paths_text_and_bytes_give_the_same_robot(tmp_path):
    path = tmp_path / "robot with blanks ü.urdf"
    path.write_text(GOOD, encoding="utf-8")
    models = [from_urdf(source) for source in (path, str(path), GOOD, GOOD.encode(), "\n\n  " + GOOD)]
    assert all(model.tree == models[0].tree for model in models)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "windows-1252"])
def test_encodings_and_byte_order_marks(encoding, tmp_path):
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    text = GOOD.replace(HEAD, f'<?xml version="1.0" encoding="{name}"?>').replace('"u"', '"glied_ä"')
    path = tmp_path / "a.urdf"
    path.write_bytes(text.encode(encoding))
    assert "glied_ä" in from_urdf(path).body_names
    assert "glied_ä" in from_urdf(text).body_names  # a str has been decoded: the declaration does not matter


def test_comments_cdata_line_ends_and_plain_doctypes_are_fine():
    text = GOOD.replace(HEAD, HEAD + "<!DOCTYPE robot><!-- <link name='no'/> -->").replace("\n", "\r\n")
    text = text.replace("</robot>", "<!-- end --><gazebo><![CDATA[ <link> ]]></gazebo></robot>\n<!-- after -->")
    assert from_urdf(text).tree == from_urdf(GOOD).tree


def test_what_is_no_file_is_explained(tmp_path):
    (tmp_path / "panda.urdf").write_text(GOOD)
    (tmp_path / "empty.urdf").write_text(" \n")
    (tmp_path / "mesh.stl").write_bytes(bytes(range(256)) * 10)
    refused(str(tmp_path / "pandas.urdf"), "there is no file", "'panda.urdf'")
    refused(tmp_path / "no" / "panda.urdf", "does not exist either")
    refused(tmp_path, "is a folder", "'empty.urdf', 'panda.urdf'")
    refused(tmp_path / "empty.urdf", "is empty")
    refused(tmp_path / "mesh.stl", "not well-formed XML")
    refused("", "is empty")
    refused(" \n\ufeff", "is empty")
    refused(b"", "is empty")
    refused("robot\nlink\n", "neither XML")
    refused("x" * 100_000 + ".urdf", "cannot be read")
    refused("~nobody_of_this_name/robot.urdf")


def test_other_formats_are_recognised():
    refused("<sdf version='1.7'><model name='m'/></sdf>", "<sdf>", "an SDF file")
    refused("<mujoco/>", "an MJCF file")
    refused("<link name='a'/>", "outermost element is <link>")
    refused('<robot name="r" xmlns:xacro="x"><xacro:macro name="m"/></robot>', "this is a xacro file", "line 1")
    refused('<robot name="r"/>', "'r' has no <link>")


def test_malformed_xml_is_reported_with_its_line():
    refused(GOOD.replace("</robot>", ""), "not well-formed", "line")
    refused("\n\n<robot>\n<link name='a'>\n</robot>", "mismatched tag at line 5")
    refused("<robot>\n<link name='a' name='b'/></robot>", "duplicate attribute at line 2")
    refused("<robot>&nothing;</robot>", "undefined entity")
    refused("<robot name='\ud800'/>", "cannot be decoded")
    refused(b'<?xml version="1.0" encoding="klingon"?><robot/>')
    refused(b"<robot name='\xff\xfe'/>", "not well-formed")
    refused("<robot>\0</robot>")


def test_entity_bombs_and_external_entities_are_refused(tmp_path):
    bomb = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    refused(
        f'<!DOCTYPE robot [<!ENTITY a0 "lol">{bomb}]><robot name="&a11;"><link name="a"/></robot>',
        "entities are refused",
        "'a0'",
    )
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    text = f'<!DOCTYPE robot [<!ENTITY x SYSTEM "file://{secret}">]><robot name="r"><link name="a">&x;</link></robot>'
    assert "do not read" not in refused(text, "entities are refused")
    refused(
        f'<!DOCTYPE robot [<!ENTITY % p SYSTEM "file://{secret}"> %p;]><robot><link name="a"/></robot>',
        "entities are refused",
    )
    refused(f'<!DOCTYPE robot SYSTEM "file://{secret}"><robot><link name="a"/></robot>', "never read")
    refused("<robot>" + "<a>" * 100_000 + "</a>" * 100_000 + "</robot>", "nest deeper")


def test_thousands_of_links_load_in_reasonable_time():
    parts = ['<link name="l0"/>']
    for i in range(3_000):
        parts.append(
            f'<link name="l{i + 1}"/><joint name="j{i}" type="fixed"><parent link="l{i}"/><child link="l{i + 1}"/></joint>'
        )
    start = time.process_time()
    model = from_urdf(f'<robot name="r">{"".join(parts)}</robot>')
    assert model.n_frames == 3_001 and time.process_time() - start < 10.0


# Numbers


def test_numbers_may_be_written_in_every_way_that_xml_and_c_allow():
    """Trial T12."""
    model = from_urdf(TRIALS / "T12.urdf")
    np.testing.assert_array_equal(model.inertia.com[0], [0.1, -0.05, 0.2])
    np.testing.assert_allclose(model.inertia.inertia[0], np.diag([0.02, 0.03, 0.01]), atol=1e-17)
    np.testing.assert_array_equal(model.joint_placement.translation[0], [0, 0.1, 1e-16])
    np.testing.assert_array_equal([model.velocity_limit[0], model.effort_limit[0]], [25, 1000])


def test_the_decimal_comma_of_the_locale_does_not_matter():
    """Trial T12 under a locale that writes 1,5."""
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "it_IT.UTF-8"):
        try:
            locale.setlocale(locale.LC_ALL, name)
            break
        except locale.Error:
            continue
    else:
        pytest.skip("no locale with a decimal comma on this machine")
    try:
        np.testing.assert_array_equal(from_urdf(TRIALS / "T12.urdf").inertia.com[0], [0.1, -0.05, 0.2])
    finally:
        locale.setlocale(locale.LC_ALL, before)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("T12b", ("joint 'j'", "<origin>", "line 7", "xyz='0,5 0 0'", "'0,5' is not a number", "decimal point")),
        ("T12c", ("joint 'j'", "<origin>", "xyz='0.5 0'", "wanted 3 numbers, found 2")),
        ("T12d", ("link 'arm'", "<mass>", "value='nan'", "'nan' is not a finite number")),
    ],
)
def test_numbers_that_are_none_are_refused_with_element_attribute_and_text(name, parts):
    """Trials T12b to T12d."""
    refused(TRIALS / f"{name}.urdf", *parts)


@pytest.mark.parametrize(
    "bad",
    ["", "1_0", "0x10", "1e", "--1", "1 2", "inf", "-Infinity", "1e999", "١", "1\u00a0", "one", "1.0f", ".", "e5"],
)
def test_what_python_might_read_as_a_number_but_c_would_not_is_refused(bad):
    text = f"<robot><link name='a'><inertial><mass value='{bad}'/></inertial></link></robot>"
    refused(text, "link 'a': <mass> (line 1): value=")


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "\t \n"]),
    st.sampled_from(["repr", ".17g", ".17e", "+.17g"]),
)
def test_every_float_is_read_back_exactly(value, blank, form):
    text = repr(value) if form == "repr" else format(value, form)
    element = parse_xml(f'<robot a="{blank}{text}{blank}"/>')
    assert element.number("a") == value


@pytest.mark.parametrize(
    ("inside", "parts"),
    [
        ("<inertial><inertia/></inertial>", ("link 'a': <inertial>", "needs a <mass> element")),
        ("<inertial><mass value='1'/></inertial>", ("needs a <inertia> element",)),
        (
            "<inertial><mass value='1'/><inertia ixx='1' ixy='0' ixz='0' iyy='1' iyz='0'/></inertial>",
            ("<inertia>", "'izz'"),
        ),
        ("<inertial><mass weight='1'/></inertial>", ("<mass>", "needs the attribute 'value'")),
        ("<inertial><mass value='-1'/></inertial>", ("value='-1'", "a mass is not negative")),
        ("<inertial/><inertial/>", ("has 2 <inertial> elements",)),
        ("<visual><geometry><box size='1 1'/></geometry></visual>", ("<box>", "size='1 1'", "wanted 3 numbers")),
        ("<visual><geometry><box size='1 1 -1'/></geometry></visual>", ("<box>", "not negative")),
        ("<visual><geometry><sphere/></geometry></visual>", ("<sphere>", "'radius'")),
        ("<visual><geometry><mesh/></geometry></visual>", ("<mesh>", "'filename'")),
    ],
)
def test_incomplete_links_are_refused(inside, parts):
    refused(f"<robot><link name='a'>{inside}</link></robot>", *parts)


@pytest.mark.parametrize(
    ("joint", "parts"),
    [
        ("<joint type='fixed'/>", ("<joint>", "'name'")),
        ("<joint name=' ' type='fixed'/>", ("'name' is empty",)),
        ("<joint name='j'/>", ("joint 'j'", "'type'")),
        ("<joint name='j' type='fixed'><parent link='a'/></joint>", ("joint 'j'", "needs a <child> element")),
        ("<joint name='j' type='fixed'><parent name='a'/><child link='b'/></joint>", ("<parent>", "'link'")),
        (
            "<joint name='j' type='revolute'><parent link='a'/><child link='b'/><axis xyz='0 0 0'/></joint>",
            ("joint 'j': <axis>", "length zero"),
        ),
        (
            "<joint name='j' type='continuous'><parent link='a'/><child link='b'/><limit velocity='fast'/></joint>",
            ("<limit>", "'fast'"),
        ),
        (
            "<joint name='j' type='continuous'><parent link='a'/><child link='b'/><mimic/></joint>",
            ("<mimic>", "'joint'"),
        ),
    ],
)
def test_incomplete_joints_are_refused(joint, parts):
    refused(f"<robot><link name='a'/><link name='b'/>{joint}</robot>", *parts)


# No tree


def test_two_roots_are_named():
    """Trial T06a."""
    refused(TRIALS / "T06a.urdf", "2 root links", "'base_a', 'cart_b'")


def test_a_ring_is_named():
    """Trial T06b."""
    refused(TRIALS / "T06b.urdf", "form a loop", "'pq'", "'qr'", "'rp'")


def test_a_link_with_two_parents_is_named_with_both_joints():
    """Trial T06c."""
    refused(TRIALS / "T06c.urdf", "'bottom'", "'lb'", "'rb'")


def test_a_joint_from_a_link_to_itself_is_a_loop():
    """Trial T06d."""
    refused(TRIALS / "T06d.urdf", "'oops'", "'grip'", "loop")


def test_a_ring_beside_a_tree_is_found():
    text = (TRIALS / "T06b.urdf").read_text().replace("</robot>", '<link name="alone"/></robot>')
    refused(text, "'pq'", "form a loop")


def test_doubled_names_are_reported_with_their_lines():
    refused("<robot>\n<link name='a'/>\n<link name='a'/></robot>", "two links have the name 'a' (lines 2 and 3)")
    joint = "<joint name='j' type='fixed'><parent link='a'/><child link='{}'/></joint>\n"
    links = "<robot><link name='a'/><link name='b'/><link name='c'/>\n"
    refused(links + joint.format("b") + joint.format("c") + "</robot>", "two joints have the name 'j' (lines 2 and 3)")


@pytest.mark.parametrize("role", ["parent", "child"])
def test_links_that_do_not_exist_are_named_with_the_nearest(role):
    names = {"parent": "base", "child": "lower_arm"} | {role: "lower_arn" if role == "child" else "bse"}
    text = (
        "<robot><link name='base'/><link name='lower_arm'/>\n"
        f"<joint name='j' type='fixed'><parent link='{names['parent']}'/><child link='{names['child']}'/></joint></robot>"
    )
    refused(
        text,
        f"joint 'j' (line 2): {role} link '{names[role]}' does not exist",
        {"parent": "'base'", "child": "'lower_arm'"}[role],
    )


# Misspelled elements


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("<robot><link name='a'><inertail><mass value='1'/></inertail></link></robot>", "<inertial>"),
        ("<robot><link name='a'><colision/></link></robot>", "<collision>"),
        (
            "<robot><link name='a'><visual><orgin xyz='1 0 0'/><geometry><sphere radius='1'/></geometry></visual></link></robot>",
            "<origin>",
        ),
    ],
)
def test_misspelled_elements_are_reported(text, meant):
    with pytest.warns(JaxdynWarning, match=rf"unknown elements are ignored: link 'a'.*perhaps meant as {meant}"):
        from_urdf(text)


def test_misspelled_attributes_are_reported():
    text = (
        "<robot><link name='a'/><link name='b'/><joint name='j' type='continuous'><parent link='a'/><child link='b'/>"
        "<dynamics dampning='1'/></joint></robot>"
    )
    with pytest.warns(JaxdynWarning, match="dampning='1', perhaps meant as 'damping'"):
        from_urdf(text)


def test_other_elements_are_ignored_without_a_word():
    extra = (
        "<transmission name='t'><joint name='no'/></transmission><gazebo reference='u'><link/></gazebo><ros2_control/>"
    )
    text = GOOD.replace("</robot>", extra + "</robot>").replace(
        "</link>", "<contact/><self_collide>1</self_collide></link>"
    )
    text = text.replace("</joint>", "<safety_controller k_velocity='1'/><calibration rising='0'/></joint>")
    assert from_urdf(text).tree == from_urdf(GOOD).tree


# load


def test_load_takes_names_paths_and_text(tmp_path, monkeypatch):
    assert load("pendulum").joint_names == ("pivot",)
    (tmp_path / "mine.urdf").write_text(GOOD)
    (tmp_path / "plain").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    assert load("mine.urdf").tree == load(tmp_path / "mine.urdf").tree == load(GOOD).tree == load("plain").tree


@pytest.mark.parametrize(
    ("name", "near"), [("quadrupde", "'quadruped'"), ("Humanoid", "'humanoid'"), ("spot", "'arm7', 'box'")]
)
def test_an_unknown_robot_lists_those_that_exist(name, near):
    with pytest.raises(UnknownNameError, match=rf"unknown robot '{name}'.*{near}.*"):
        load(name)


def test_load_refuses_what_is_neither():
    with pytest.raises(URDFError, match="empty"):
        load("")
    with pytest.raises(URDFError, match="there is no file"):
        load("robots/spot.urdf")


@given(st.integers(0, 10**6), st.data())
def test_damaged_files_are_refused_or_read_but_never_crash(seed, data):
    """Cuts, doubles and overwrites pieces of a good file."""
    text = random_urdf(seed % 7, 3)
    i = data.draw(st.integers(0, len(text) - 1))
    j = data.draw(st.integers(i, min(len(text), i + 40)))
    piece = data.draw(st.sampled_from(["", text[i:j] * 2, "nan", "0", "<", '"', "link1", "<link/>", "\0", "é"]))
    try:
        from_urdf(text[:i] + piece + text[j:])
    except (URDFError, JaxdynWarning):
        pass
