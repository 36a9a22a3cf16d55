"""Edited models: equal to the file that says the same, or to the robot before, seen otherwise."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from random_trees import MOVING, ONE_DOF, random_urdf

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError, JaxdynWarning, UnknownNameError, URDFError
from jaxdyn.math import SE3, Representation, SpatialInertia, so3
from jaxdyn.model import (
    add_frame,
    append,
    attach,
    change_base,
    configuration,
    from_urdf,
    mirror,
    neutral,
    random_configuration,
    reduce,
)

LIMITS = '<limit lower="-1" upper="1" effort="9" velocity="9"/>'
INERTIA = '<inertia ixx="0.02" ixy="0.001" ixz="-0.002" iyy="0.03" iyz="0.003" izz="0.025"/>'


def link(name, mass=1.0, com="0.1 0.05 -0.02"):
    return f'<link name="{name}"><inertial><origin xyz="{com}" rpy="0.2 0.1 -0.3"/><mass value="{mass}"/>{INERTIA}</inertial></link>'


def joint(name, parent, child, kind="revolute", axis="1 2 3", origin='xyz="0.1 0.2 0.3" rpy="0.4 -0.2 0.7"', inside=""):
    return (
        f'<joint name="{name}" type="{kind}"><origin {origin}/><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/>{LIMITS}{inside}</joint>'
    )


def robot(*elements):
    return f'<robot name="r">{"".join(elements)}</robot>'


ARM = (link("base", 2), link("upper"), link("hand", 0.5), joint("a", "base", "upper"), joint("b", "upper", "hand"))
TOOL = (link("tool", 0.3), link("left", 0.1), joint("slide", "tool", "left", "prismatic"))


def assert_same(ours, theirs, frames="in order"):
    """Equal trees (frames in any order, if told), and equal leaves."""
    if frames == "any":
        order = [ours.frame_names.index(name) for name in theirs.frame_names]
        placement = jax.tree.map(lambda x: x[np.asarray(order)], ours.frame_placement)
        assert set(ours.frame_names) == set(theirs.frame_names)
        assert [ours.tree.frame_bodies[i] for i in order] == list(theirs.tree.frame_bodies)
        ours = eqx.tree_at(lambda m: m.frame_placement, ours, placement)
        assert ours.tree.joint_names == theirs.tree.joint_names and ours.tree.parents == theirs.tree.parents
        assert ours.tree.body_names == theirs.tree.body_names and ours.tree.followers == theirs.tree.followers
    else:
        assert ours.tree == theirs.tree
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@quick_jit
def summary(model, q, v):
    """Frame poses, twists and accelerations in free motion, and energies."""
    a = alg.aba(model, q, v, jnp.zeros(model.nv))
    kin = alg.forward_kinematics(model, q, v, a)
    frames = {}
    for name in model.frame_names:
        pose = alg.frame_pose(model, kin, name)
        motion = alg.frame_velocity(model, kin, name), alg.frame_acceleration(model, kin, name)
        frames[name] = pose.translation, pose.rotation, *motion
    return frames, alg.kinetic_energy(model, q, v), alg.potential_energy(model, q)


@quick_jit
def places(model, q, v):
    """Frame poses and energies, which the compiler has sooner."""
    kin = alg.forward_kinematics(model, q)
    poses = {name: alg.frame_pose(model, kin, name).as_matrix() for name in model.frame_names}
    return poses, alg.kinetic_energy(model, q, v), alg.potential_energy(model, q)


# Locking joints


@pytest.mark.parametrize("seed", [0, 3])
def test_a_reduced_model_is_the_file_with_locked_joints(seed):
    text = random_urdf(seed, 9, types=MOVING, fixed=0.3)
    full = from_urdf(text, root="floating")
    names = [n for n in full.joint_names if n != "root_joint"][::2]
    key = jax.random.key(seed)
    q = random_configuration(full, key)
    values = {
        n: q[full.tree.q_offset[i] : full.tree.q_offset[i] + full.tree.joint_nq[i]]
        for n in names
        for i in [full.joint(n)]
    }
    assert_same(reduce(full, values), from_urdf(text, root="floating", locked=values), frames="any")


def test_joints_are_locked_at_zero_by_name_alone_and_armature_of_the_others_stays():
    """Trial T19, last part."""
    model = from_urdf(robot(*ARM))
    model = eqx.tree_at(lambda m: m.armature, model, jnp.array([0.1, 0.05]))
    for locked in (["b"], {"b": 0}, {"b": 0.0}, {"b": jnp.zeros(1)}):
        result = reduce(model, locked)
        assert result.joint_names == ("a",) and float(result.armature[0]) == 0.1
        assert result.frame_names == ("upper", "hand", "base")
    assert reduce(model, ["a", "b"]).nv == 0 and reduce(model, []).tree == model.tree


def test_reduction_refuses_what_it_cannot_lock():
    model = from_urdf(robot(*ARM))
    with pytest.raises(UnknownNameError, match=r"unknown joint 'bb'\. Did you mean 'b'"):
        reduce(model, {"bb": 0.0})
    with pytest.raises(InputError, match=r"locked\['b'\]: wanted shape"):
        reduce(model, {"b": [0.0, 1.0]})
    with pytest.raises(InputError, match="locked: wanted a mapping"):
        reduce(model, "b")
    with pytest.raises(InputError, match=r"locked\['b'\]: wanted finite numbers, given \[nan\]"):
        reduce(model, {"b": float("nan")})


def test_followers_of_a_locked_joint_stand_where_it_puts_them():
    text = robot(
        *ARM,
        link("finger", 0.1),
        joint("c", "hand", "finger", "prismatic", inside='<mimic joint="b" multiplier="-0.5" offset="0.2"/>'),
        link("tip", 0.1),
        joint("d", "finger", "tip", inside='<mimic joint="c" multiplier="2"/>'),
    )
    model = from_urdf(text)
    assert_same(reduce(model, {"b": 0.3}), from_urdf(text, locked={"b": 0.3}), frames="any")
    assert_same(reduce(model, {"a": 0.3}), from_urdf(text, locked={"a": 0.3}), frames="any")


def test_gradients_pass_through_the_edits():
    model = from_urdf(robot(*ARM), root="floating")

    def inertia(angle, mass):
        load = SpatialInertia(mass, jnp.array([0.1, 0.0, 0.0]), 0.01 * jnp.eye(3))
        locked = attach(reduce(model, {"a": angle, "b": 0.2}), "hand", load, jnp.array([0.0, 0.2, 0.0]))
        return jnp.sum(locked.inertia.inertia[0] ** 2) + locked.inertia.com[0, 0]

    at = jnp.float64(0.4), jnp.float64(0.7)
    slopes = jax.jit(jax.grad(inertia, argnums=(0, 1)))(*at)
    value = jax.jit(inertia)
    for k, slope in enumerate(slopes):
        step = [1e-6 * (k == i) for i in range(2)]
        difference = (value(at[0] + step[0], at[1] + step[1]) - value(at[0] - step[0], at[1] - step[1])) / 2e-6
        np.testing.assert_allclose(slope, difference, rtol=1e-6)


# Adding


def test_a_payload_is_the_link_welded_there():
    text = robot(*ARM, link("load", 0.8), joint("weld", "hand", "load", "fixed"))
    whole, arm = from_urdf(text), from_urdf(robot(*ARM))
    alone = from_urdf(robot(link("load", 0.8)), root="floating")
    i = whole.frame("load")
    pose = SE3(whole.frame_placement.rotation[i], whole.frame_placement.translation[i])
    inertia = jax.tree.map(lambda x: x[0], alone.inertia)
    assert_same(attach(arm, "hand", inertia, pose, name="load"), whole, frames="any")
    assert_same(attach(arm, "hand", inertia, pose.as_matrix(), name="load"), whole, frames="any")
    with pytest.raises(InputError, match="'base' is fixed to the world; a mass there moves nothing"):
        attach(arm, "base", inertia)
    with pytest.raises(InputError, match="there is a frame 'hand' already"):
        attach(arm, "hand", inertia, name="hand")


def test_frames_are_added_by_the_reader_and_afterwards():
    text, place = robot(*ARM), np.array([0.1, -0.2, 0.3])
    pose = SE3(so3.exp(jnp.array([0.1, 0.2, 0.3])), jnp.asarray(place))
    read = from_urdf(text, frames={"tcp": ("hand", pose), "mark": ("base", place)})
    added = add_frame(add_frame(from_urdf(text), "tcp", "hand", pose), "mark", "base", place)
    assert_same(added, read, frames="any")
    with pytest.raises(
        URDFError, match="frames: 'x' is to be fixed to link 'hnd', which does not exist; nearest: 'hand'"
    ):
        from_urdf(text, frames={"x": ("hnd", place)})
    with pytest.raises(URDFError, match="frames: 'hand' is the name of a link already"):
        from_urdf(text, frames={"hand": ("base", place)})
    with pytest.raises(InputError, match=r"frames\['x'\]: wanted a rigid motion"):
        from_urdf(text, frames={"x": ("base", 2 * np.eye(4))})
    with pytest.raises(InputError, match="there is a frame 'hand' already"):
        add_frame(read, "hand", "base")


def test_an_appended_robot_is_the_file_with_both():
    weld = joint("weld", "hand", "tool", "fixed")
    both = from_urdf(robot(*ARM, *TOOL, weld), root="floating")
    i = both.frame("tool")
    pose = SE3(both.frame_placement.rotation[i], both.frame_placement.translation[i])
    arm, tool = from_urdf(robot(*ARM), root="floating"), from_urdf(robot(*TOOL), root="floating")
    assert_same(append(arm, tool, "hand", pose), both, frames="any")
    twice = append(append(arm, tool, "hand", prefix="left/"), tool, "hand", prefix="right/")
    assert twice.joint_names == ("root_joint", "a", "b", "left/slide", "right/slide")
    assert twice.tree.frame_bodies[twice.frame("right/tool")] == twice.body("hand")
    np.testing.assert_allclose(twice.total_mass, 3.5 + 2 * 0.4)
    with pytest.raises(InputError, match="two joints would have the same name: 'slide'; a prefix"):
        append(append(arm, tool, "hand"), tool, "hand")
    with pytest.warns(JaxdynWarning, match="inertia of the other robot's links 'tool' is not known"):
        append(arm, from_urdf(robot(*TOOL)), "hand")


# Another base


def state_from(model, other, q, v, frame):
    """The state of `other`, based at `frame`, that is the state (q, v) of `model`."""
    kin = alg.forward_kinematics(model, q, v)
    pose = alg.frame_pose(model, kin, frame)
    twist = alg.frame_velocity(model, kin, frame, Representation.LOCAL)
    place = jnp.concatenate([pose.translation, so3.to_quaternion(pose.rotation)])
    names = [n for n in model.joint_names if n != "root_joint"]
    q = configuration(other, {"root_joint": place} | {n: q[model.tree.q_offset[model.joint(n)]] for n in names})
    new_v = jnp.zeros(model.nv).at[:6].set(twist)
    for n in names:
        new_v = new_v.at[other.tree.v_offset[other.joint(n)]].set(v[model.tree.v_offset[model.joint(n)]])
    return q, new_v


def test_a_robot_seen_from_another_base_moves_the_same():
    text = robot(
        *ARM,
        link("foot"),
        joint("c", "base", "foot", "prismatic"),
        link("ear", 0.2),
        joint("d", "upper", "ear", "continuous"),
        link("sole", 0.3),
        joint("e", "foot", "sole", "fixed"),
        link("finger", 0.1),
        joint("f", "hand", "finger", inside='<mimic joint="a" multiplier="0.5"/>'),
    )
    model = from_urdf(text, root="floating")
    q = random_configuration(model, jax.random.key(1))
    v = jnp.asarray(np.random.default_rng(0).normal(size=model.nv))
    frames, kinetic, potential = summary(model, q, v)
    moved, read = change_base(model, "ear"), from_urdf(text, root="floating", base_link="ear")
    there, *energies = summary(moved, *state_from(model, moved, q, v, "ear"))
    poses, *energies_read = places(read, *state_from(model, read, q, v, "ear"))
    for name, values in frames.items():
        for a, b in zip(values, there[name], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(poses[name][:3, 3], values[0], atol=1e-11, err_msg=name)
        np.testing.assert_allclose(poses[name][:3, :3], values[1], atol=1e-11, err_msg=name)
    for found in (energies, energies_read):
        np.testing.assert_allclose(found, [kinetic, potential], rtol=1e-10)
    assert moved.body_names[:3] == ("ear", "upper_at_d", "base_at_a")
    assert set(read.frame_names) == set(moved.frame_names)


def test_a_base_behind_fixed_joints_is_a_change_of_frame():
    text = robot(*ARM, link("foot"), joint("e", "base", "foot", "fixed"))
    model = from_urdf(text, root="floating", base_link="foot")
    assert_same(change_base(from_urdf(text, root="floating"), "foot"), model, frames="any")
    assert model.body_names == ("foot", "upper", "hand") and "base" in model.frame_names
    same = from_urdf(text, root="floating", base_link="base")
    assert same.tree == from_urdf(text, root="floating").tree
    fixed = from_urdf(text, base_link="hand")
    assert fixed.joint_names == ("b", "a") and fixed.tree.frame_bodies[fixed.frame("hand")] == -1
    with pytest.raises(URDFError, match="base_link: link 'hnd' does not exist; nearest: 'hand'"):
        from_urdf(text, base_link="hnd")
    with pytest.raises(InputError, match="load the file with base_link="):
        change_base(from_urdf(text), "hand")
    with pytest.raises(InputError, match=r"root: given 'hand', wanted 'fixed' or 'floating'.*write base_link='hand'"):
        from_urdf(text, root="hand")


# Mirror


@functools.cache
def lopsided():
    return from_urdf(random_urdf(4, 5, types=ONE_DOF, fixed=0.4))


def test_a_mirrored_robot_is_the_reflection_of_the_robot():
    model = lopsided()
    other = mirror(model, "y", rename=lambda name: name.replace("link", "knil"))
    assert other.frame_names[0] == model.frame_names[0].replace("link", "knil") and other.nv == model.nv
    q = random_configuration(model, jax.random.key(2))
    v = jnp.asarray(np.random.default_rng(0).normal(size=model.nv))
    renamed = mirror(model)
    (ours, kinetic, potential), (theirs, *energies) = summary(model, q, v), summary(renamed, q, v)
    s = np.array([1.0, -1.0, 1.0])
    for name in ours:
        np.testing.assert_allclose(ours[name][0], s * theirs[name][0], atol=1e-12)
        np.testing.assert_allclose(ours[name][1], np.outer(s, s) * theirs[name][1], atol=1e-12)
        np.testing.assert_allclose(ours[name][3], np.r_[s, -s] * theirs[name][3], atol=1e-9)
    np.testing.assert_allclose(energies, [kinetic, potential], rtol=1e-10)
    for a, b in zip(jax.tree.leaves(mirror(renamed)), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)
    with pytest.raises(InputError, match="normal: wanted 'x', 'y' or 'z'"):
        mirror(model, "w")


def test_meshes_are_mirrored_by_their_scale():
    shape = '<visual><origin xyz="0 0.1 0"/><geometry><mesh filename="a.obj" scale="1 2 3"/></geometry></visual>'
    model = mirror(from_urdf(robot(f'<link name="base">{shape}</link>')))
    np.testing.assert_array_equal(model.shape_size, [[1, -2, 3]])
    np.testing.assert_array_equal(model.shape_placement.translation, [[0, -0.1, 0]])
    assert neutral(model).shape == (0,)


def test_quaternions_of_a_mirrored_robot_turn_the_other_way():
    text = robot(
        *ARM,
        link("ball"),
        joint("s", "hand", "ball", "spherical"),
    )
    model = from_urdf(text, root="floating")
    other = mirror(model, "y")
    q = random_configuration(model, jax.random.key(3))
    flip = np.ones(model.nq)
    flip[1] = flip[4] = flip[6] = -1  # y of the position; x and z of the quaternion wxyz at 3
    at = model.tree.q_offset[model.joint("s")]
    flip[at + 1] = flip[at + 3] = -1
    at_bodies = quick_jit(lambda m, q: alg.forward_kinematics(m, q).translation)
    np.testing.assert_allclose(
        at_bodies(other, q * flip), at_bodies(model, q) * np.array([[1.0, -1.0, 1.0]]), atol=1e-12
    )
