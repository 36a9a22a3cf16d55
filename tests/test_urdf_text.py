"""URDF as text: files, encodings, numbers, and everything that is no tree. A mistake must be named with its element and line."""

import locale
import pathlib
import time

import jax
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


def assert_refused(text, *parts, error=URDFError):
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
    assert_refused(str(tmp_path / "pandas.urdf"), "there is no file", "'panda.urdf'")
    assert_refused(tmp_path / "no" / "panda.urdf", "does not exist either")
    assert_refused(tmp_path, "is a folder", "'empty.urdf', 'panda.urdf'")
    assert_refused(tmp_path / "empty.urdf", "is empty")
    assert_refused(tmp_path / "mesh.stl", "not well-formed XML")
    assert_refused("", "is empty")
    assert_refused(" \n\ufeff", "is empty")
    assert_refused(b"", "is empty")
    assert_refused("robot\nlink\n", "neither XML")
    assert_refused("x" * 100_000 + ".urdf", "cannot be read")
    assert_refused("~nobody_of_this_name/robot.urdf")


def test_other_formats_are_recognised():
    assert_refused("<sdf version='1.7'><model name='m'/></sdf>", "<sdf>", "an SDF file")
    assert_refused("<mujoco/>", "an MJCF file")
    assert_refused("<link name='a'/>", "outermost element is <link>")
    assert_refused('<robot name="r" xmlns:xacro="x"><xacro:macro name="m"/></robot>', "this is a xacro file", "line 1")
    assert_refused('<robot name="r"/>', "'r' has no <link>")


def test_malformed_xml_is_reported_with_its_line():
    assert_refused(GOOD.replace("</robot>", ""), "not well-formed", "line")
    assert_refused("\n\n<robot>\n<link name='a'>\n</robot>", "mismatched tag at line 5")
    assert_refused("<robot>\n<link name='a' name='b'/></robot>", "duplicate attribute at line 2")
    assert_refused("<robot>&nothing;</robot>", "undefined entity")
    assert_refused("<robot name='\ud800'/>", "cannot be decoded")
    assert_refused(b'<?xml version="1.0" encoding="klingon"?><robot/>')
    assert_refused(b"<robot name='\xff\xfe'/>", "not well-formed")
    assert_refused("<robot>\0</robot>")


def test_entity_bombs_and_external_entities_are_refused(tmp_path):
    bomb = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    assert_refused(
        f'<!DOCTYPE robot [<!ENTITY a0 "lol">{bomb}]><robot name="&a11;"><link name="a"/></robot>',
        "entities are refused",
        "'a0'",
    )
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    text = f'<!DOCTYPE robot [<!ENTITY x SYSTEM "file://{secret}">]><robot name="r"><link name="a">&x;</link></robot>'
    assert "do not read" not in assert_refused(text, "entities are refused")
    assert_refused(
        f'<!DOCTYPE robot [<!ENTITY % p SYSTEM "file://{secret}"> %p;]><robot><link name="a"/></robot>',
        "entities are refused",
    )
    assert_refused(f'<!DOCTYPE robot SYSTEM "file://{secret}"><robot><link name="a"/></robot>', "never read")
    assert_refused("<robot>" + "<a>" * 100_000 + "</a>" * 100_000 + "</robot>", "nest deeper")


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
    assert_refused(TRIALS / f"{name}.urdf", *parts)


@pytest.mark.parametrize(
    "bad",
    ["", "1_0", "0x10", "1e", "--1", "1 2", "inf", "-Infinity", "1e999", "١", "1\u00a0", "one", "1.0f", ".", "e5"],
)
def test_what_python_might_read_as_a_number_but_c_would_not_is_refused(bad):
    text = f"<robot><link name='a'><inertial><mass value='{bad}'/></inertial></link></robot>"
    assert_refused(text, "link 'a': <mass> (line 1): value=")


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
    assert_refused(f"<robot><link name='a'>{inside}</link></robot>", *parts)


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
    assert_refused(f"<robot><link name='a'/><link name='b'/>{joint}</robot>", *parts)


# No tree


def test_two_roots_are_named():
    """Trial T06a."""
    assert_refused(TRIALS / "T06a.urdf", "2 root links", "'base_a', 'cart_b'")


def test_a_ring_is_named():
    """Trial T06b."""
    assert_refused(TRIALS / "T06b.urdf", "form a loop", "'pq'", "'qr'", "'rp'")


def test_a_link_with_two_parents_is_named_with_both_joints():
    """Trial T06c."""
    assert_refused(TRIALS / "T06c.urdf", "'bottom'", "'lb'", "'rb'")


def test_a_joint_from_a_link_to_itself_is_a_loop():
    """Trial T06d."""
    assert_refused(TRIALS / "T06d.urdf", "'oops'", "'grip'", "loop")


def test_a_ring_beside_a_tree_is_found():
    text = (TRIALS / "T06b.urdf").read_text().replace("</robot>", '<link name="alone"/></robot>')
    assert_refused(text, "'pq'", "form a loop")


def test_doubled_names_are_reported_with_their_lines():
    assert_refused("<robot>\n<link name='a'/>\n<link name='a'/></robot>", "two links have the name 'a' (lines 2 and 3)")
    joint = "<joint name='j' type='fixed'><parent link='a'/><child link='{}'/></joint>\n"
    links = "<robot><link name='a'/><link name='b'/><link name='c'/>\n"
    assert_refused(
        links + joint.format("b") + joint.format("c") + "</robot>", "two joints have the name 'j' (lines 2 and 3)"
    )


@pytest.mark.parametrize("role", ["parent", "child"])
def test_links_that_do_not_exist_are_named_with_the_nearest(role):
    names = {"parent": "base", "child": "lower_arm"} | {role: "lower_arn" if role == "child" else "bse"}
    text = (
        "<robot><link name='base'/><link name='lower_arm'/>\n"
        f"<joint name='j' type='fixed'><parent link='{names['parent']}'/><child link='{names['child']}'/></joint></robot>"
    )
    assert_refused(
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
        model = from_urdf(text[:i] + piece + text[j:])
    except (URDFError, JaxdynWarning):
        return
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(model))


# Files that somebody wrote by mistake. Each is refused with the culprit, or read with a warning that names it.

BODY = '<inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'
LIMIT = '<limit lower="-1" upper="1" effort="1" velocity="1"/>'
TWO = f'<link name="a">{BODY}</link><link name="b">{BODY}</link>'


def jointed(inside="", kind="revolute", limit=LIMIT, rest=""):
    joint = f'<joint name="j" type="{kind}"><parent link="a"/><child link="b"/>{limit}{inside}</joint>'
    return f'<robot name="r">{TWO}{joint}{rest}</robot>'


def linked(inside=BODY, before=""):
    return f'<robot name="r">{before}<link name="a">{inside}</link></robot>'


def shaped(geometry, rest=""):
    return linked(f"{BODY}<visual><geometry>{geometry}</geometry>{rest}</visual>")


REFUSED = {
    "tags in upper case": ('<ROBOT name="r"><LINK name="a"/></ROBOT>', "wanted <robot>; tags are written in lower case"),
    "tags with a prefix": ('<u:robot xmlns:u="u"><u:link name="a"/></u:robot>', "without a prefix"),
    "links in upper case": ('<robot name="r"><Link name="a"/></robot>', "has no <link>; is <Link> meant?"),
    "a robot in a robot": (f'<robot name="r">{linked()}</robot>', "has no <link>"),
    "a name of blanks": ('<robot><link name="  "/></robot>', "attribute 'name' is empty"),
    "blanks around a name": (jointed().replace('link name="a"', 'link name=" a "'), "parent link 'a' does not exist; nearest: ' a '"),
    "another case": (jointed().replace('link name="b"', 'link name="B"'), "child link 'b' does not exist; nearest: 'B'"),
    "no type": (jointed().replace(' type="revolute"', ""), "joint 'j': <joint> (line 1) needs the attribute 'type'"),
    "no parent": (jointed().replace('<parent link="a"/>', ""), "needs a <parent> element"),
    "a parent as text": (jointed().replace('<parent link="a"/>', "<parent>a</parent>"), "<parent> (line 1) needs the attribute 'link'"),
    "two origins": (jointed("<origin/><origin/>"), "has 2 <origin> elements (lines 1, 1)"),
    "an axis of four": (jointed('<axis xyz="0 0 1 0"/>'), "xyz='0 0 1 0': wanted 3 numbers, found 4"),
    "an axis of none": (jointed('<axis xyz=""/>'), "xyz='': wanted 3 numbers, found 0"),
    "hexadecimal": (jointed('<axis xyz="0x1 0 0"/>'), "'0x1' is not a number"),
    "underscores": (jointed('<origin xyz="1_0 0 0"/>'), "'1_0' is not a number"),
    "other digits": (jointed('<origin xyz="١ 0 0"/>'), "is not a number"),
    "a hard blank": (jointed('<origin xyz="1\u00a00 0"/>'), "wanted 3 numbers, found 2"),
    "a suffix": (jointed('<origin xyz="1.0f 0 0"/>'), "'1.0f' is not a number"),
    "a fraction": (jointed('<origin xyz="1/2 0 0"/>'), "'1/2' is not a number"),
    "an expression": (jointed('<origin rpy="${pi/2} 0 0"/>'), "'${pi/2}' is not a number"),
    "degrees": (jointed('<origin rpy="90deg 0 0"/>'), "'90deg' is not a number"),
    "commas": (jointed('<origin xyz="1, 2, 3"/>'), "write a decimal point, not a comma"),
    "too large": (jointed('<origin xyz="1e400 0 0"/>'), "'1e400' is too large for a float"),
    "five thousand digits": (jointed(f'<origin xyz="{"1" * 5000} 0 0"/>'), "... (5000 characters)' is too large"),
    "infinite angles": (jointed('<origin rpy="inf 0 0"/>'), "'inf' is not a finite number"),
    "rpy and a quaternion": (jointed('<origin rpy="0 0 1" quat_xyzw="0 0 0 1"/>'), "has both rpy and quat_xyzw"),
    "no rotation": (jointed('<origin quat_xyzw="0 0 0 0"/>'), "zero stands for no rotation"),
    "limits that are nan": (jointed(limit=LIMIT.replace('"-1"', '"nan"')), "lower='nan'"),
    "no inertia": (linked('<inertial><mass value="1"/></inertial>'), "needs a <inertia> element"),
    "a mass as text": (linked(BODY.replace('<mass value="1"/>', "<mass>1</mass>")), "<mass> (line 1) needs the attribute 'value'"),
    "a mass with a unit": (linked(BODY.replace('value="1"', 'value="1 kg"')), "wanted 1 number, found 2"),
    "two inertials": (linked(BODY + BODY), "has 2 <inertial> elements"),
    "a box without size": (shaped("<box/>"), "<box> (line 1) needs the attribute 'size'"),
    "a scale of one number": (shaped('<mesh filename="a" scale="1"/>'), "scale='1': wanted 3 numbers"),
    "a colour of three": (shaped('<sphere radius="1"/>', '<material name="m"><color rgba="1 0 0"/></material>'), "rgba='1 0 0'"),
    "included files": (linked(before='<xi:include xmlns:xi="x" href="/etc/passwd"/>'), "<xi:include> (line 1): other files are never read"),
    "two robots": (linked() + linked(), "junk after document element"),
    "compressed": (b"\x1f\x8b\x08" + bytes(50), "is compressed (gzip): unpack it first"),
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + linked().encode(), "not well-formed"),
    "latin letters as utf-8": (linked().replace('"a"', '"ä"').encode("latin-1"), "not well-formed"),
    "a loop beside the tree": (
        f'<robot name="r">{TWO}<link name="c"/>'
        '<joint name="x" type="fixed"><parent link="b"/><child link="c"/></joint>'
        '<joint name="y" type="fixed"><parent link="c"/><child link="b"/></joint></robot>',
        "the joints 'x', 'y' form a loop",
    ),
}  # fmt: skip
WARNED = {
    "a joint in a link": (
        jointed().replace("</link>", '<joint name="k" type="fixed"/></link>', 1),
        "elements that belong directly into <robot> are ignored elsewhere: link 'a': <joint> (line 1)",
    ),
    "negative magnitudes": (jointed(limit=LIMIT.replace('effort="1"', 'effort="-4"')), "negative ones lose their sign: 'j'"),
    "negative moments": (linked(BODY.replace('ixx="1"', 'ixx="-1"')), "links have negative moments of inertia, as no body has: 'a'"),
    "two shapes in one": (shaped('<sphere radius="1"/><box size="1 1 1"/>'), "only the first shape of a <geometry> is read"),
    "bytes as colours": (
        shaped('<sphere radius="1"/>', '<material name="m"><color rgba="255 0 0 1"/></material>'),
        "colours outside of 0 .. 1 are clipped: link 'a' visual",
    ),
    "limits the wrong way": (jointed(limit=LIMIT.replace('"-1"', '"inf"')), "limits with lower > upper are exchanged: 'j'"),
    "negative damping": (jointed('<dynamics damping="-1"/>'), "negative damping or friction"),
}  # fmt: skip
READ = {
    "foreign namespaces": jointed().replace('name="r"', 'name="r" xmlns="http://x" xmlns:q="http://q"'),
    "nonsense in what is not read": jointed('<safety_controller k_velocity="nan"/><calibration rising="x"/>'),
    "a transmission": jointed(rest='<transmission name="t"><joint name="zz"/></transmission><gazebo reference="q"/>'),
    "controllers": jointed(rest='<ros2_control name="c"><joint name="j"><limit/></joint></ros2_control>'),
    "a fixed joint with an axis of zero": jointed('<axis xyz="0 0 0"/>', kind="fixed"),
    "a fixed joint that follows": jointed('<mimic joint="nothing"/>', kind="fixed"),
    "a joint with the name of a link": jointed().replace('joint name="j"', 'joint name="a"'),
    "a joint with the name of the free-flyer": jointed().replace('joint name="j"', 'joint name="root_joint"'),
    "tiny and huge axes": jointed('<axis xyz="1e-310 1e300 0"/>'),
    "an angle of many turns": jointed('<origin rpy="1e308 0 0"/>'),
    "fifty thousand decimals": jointed(f'<origin xyz="0.{"1" * 50000} 0 0"/>'),
    "numbers below the smallest": jointed('<origin xyz="1e-400 -0 +.5"/>'),
    "a mesh outside": shaped('<mesh filename="package://../../etc/passwd"/>'),
    "a mesh that is a folder": shaped('<mesh filename="file:///tmp"/>'),
    "a mesh with a long name": shaped(f'<mesh filename="{"x" * 5000}"/>'),
    "a mesh with a zero byte": shaped('<mesh filename="%00"/>'),
    "pictures as names": linked().replace('"a"', '"🤖"'),
    "twenty thousand attributes": linked().replace(
        "<link ", "<link " + " ".join(f'x{i}="1"' for i in range(20000)) + " "
    ),
    "utf-16 without mark": ('<?xml version="1.0" encoding="utf-16"?>' + linked()).encode("utf-16-le"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_refused_with_the_culprit(case):
    text, *parts = REFUSED[case]
    assert len(assert_refused(text, *parts)) < 400


@pytest.mark.parametrize("case", WARNED)
def test_doubtful_files_are_read_with_a_warning_that_names_the_culprit(case):
    text, part = WARNED[case]
    with pytest.warns(JaxdynWarning) as caught:
        from_urdf(text)
    assert len(caught) == 1 and part in str(caught[0].message), str(caught[0].message)


@pytest.mark.parametrize("case", READ)
def test_odd_but_legal_files_are_read_without_a_word(case):
    for root in ("fixed", "floating"):
        model = from_urdf(READ[case], root=root)
        assert np.all(np.isfinite(model.joint_placement.translation)) and np.all(np.isfinite(model.joint_axis))


def test_an_origin_may_turn_by_a_quaternion():
    """Version 1.2 of the format."""
    turned = from_urdf(jointed('<origin xyz="1 2 3" quat_xyzw="0.2 -0.4 0.6 1.2"/>'))
    w, x, y, z = np.array([1.2, 0.2, -0.4, 0.6]) / np.sqrt(1.44 + 0.04 + 0.16 + 0.36)
    column = [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)]
    np.testing.assert_allclose(turned.joint_placement.rotation[0, :, 0], column, atol=1e-15)
    np.testing.assert_array_equal(turned.joint_placement.translation[0], [1, 2, 3])


def test_negative_magnitudes_lose_their_sign_and_colours_are_clipped():
    with pytest.warns(JaxdynWarning):
        assert float(from_urdf(WARNED["negative magnitudes"][0]).effort_limit[0]) == 4
        np.testing.assert_array_equal(from_urdf(WARNED["bytes as colours"][0]).shape_color, [[1, 0, 0, 1]])
