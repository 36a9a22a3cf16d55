"""What a URDF means: defaults, joint types, limits, lumping, selection of joints, shapes. Trials of group A as far as loading goes."""

import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import MOVING, ONE_DOF, random_urdf

from jaxdyn.algorithms import gravity_torque
from jaxdyn.errors import InputError, JaxdynWarning, UnknownNameError, URDFError
from jaxdyn.math.se3 import SE3
from jaxdyn.model import from_urdf, load
from jaxdyn.model.joints import joint_pose

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"
EXPECTED = json.loads((TRIALS / "expected.json").read_text())


def robot(*elements):
    return f'<robot name="r">{"".join(elements)}</robot>'


def two_links(joint, inside=""):
    """A robot of two links and one joint, given as its type and what its element holds."""
    return robot(
        '<link name="base"/><link name="arm"/>',
        f'<joint name="j" type="{joint}"><parent link="base"/><child link="arm"/>{inside}</joint>',
    )


BASE = '<link name="base"><inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
LIMIT = '<limit lower="-1" upper="2" effort="3" velocity="4"/>'


def body_poses(model, values):
    """Poses (4, 4) of all frames in the world, by name, in plain NumPy: the oracle for what lumping must keep."""
    model, axes = jax.tree.map(np.asarray, model), model.joint_axis
    poses = []
    for i, name in enumerate(model.joint_names):
        kind, parent = model.tree.joint_types[i], model.tree.parents[i]
        moved = joint_pose(kind, axes[i], jnp.asarray(values[name], float).reshape(-1)).as_matrix()
        above = np.eye(4) if parent < 0 else poses[parent]
        placement = np.eye(4)
        placement[:3, :3], placement[:3, 3] = model.joint_placement.rotation[i], model.joint_placement.translation[i]
        poses.append(above @ placement @ np.asarray(moved))
    frames = {}
    for f, (name, body) in enumerate(zip(model.frame_names, model.tree.frame_bodies, strict=True)):
        placement = np.eye(4)
        placement[:3, :3], placement[:3, 3] = model.frame_placement.rotation[f], model.frame_placement.translation[f]
        frames[name] = (np.eye(4) if body < 0 else poses[body]) @ placement
    return poses, frames


def mass_moments(model, poses):
    """Mass, first moment and inertia about the world's origin of the whole robot."""
    mass, first, second = 0.0, np.zeros(3), np.zeros((3, 3))
    for m, com, inertia, pose in zip(
        *map(np.asarray, (model.inertia.mass, model.inertia.com, model.inertia.inertia)), poses, strict=True
    ):
        c = pose[:3, :3] @ com + pose[:3, 3]
        mass, first = mass + m, first + m * c
        second = second + pose[:3, :3] @ inertia @ pose[:3, :3].T + m * (c @ c * np.eye(3) - np.outer(c, c))
    return mass, first, second


# Defaults


def test_an_absent_axis_is_x():
    """Trial T01."""
    model = from_urdf(TRIALS / "T01.urdf")
    np.testing.assert_array_equal(model.joint_axis, [[1, 0, 0], [1, 0, 0]])
    _, frames = body_poses(model, dict(zip(EXPECTED["T01"]["joints"], EXPECTED["T01"]["q"], strict=True)))
    np.testing.assert_allclose(frames["tip"][:3, 3], EXPECTED["T01"]["tip_xyz"], atol=1e-9)
    np.testing.assert_allclose(frames["tip"][:3, :3], EXPECTED["T01"]["tip_R"], atol=1e-9)


def test_the_frame_of_the_inertia_may_be_absent_or_turned():
    """Trial T04."""
    model, want = from_urdf(TRIALS / "T04.urdf"), EXPECTED["T04"]
    np.testing.assert_array_equal(model.inertia.com[0], want["link_a_com"])
    np.testing.assert_allclose(model.inertia.inertia[1], want["link_b_inertia_about_com_in_link_axes"], atol=1e-9)
    turned = from_urdf(TRIALS / "T04b.urdf", root="floating")
    np.testing.assert_allclose(turned.inertia.inertia[0], EXPECTED["T04b"]["link_inertia"], atol=1e-15)


def test_a_link_without_inertial_is_massless():
    model = from_urdf(TRIALS / "T32.urdf")
    np.testing.assert_array_equal(model.inertia.mass[1:], [0, 0])
    assert np.all(np.isfinite(model.inertia.com)) and not np.any(model.inertia.inertia[1:])


def test_absent_origins_are_identities_and_axes_are_normalised():
    model = from_urdf(two_links("revolute", f'<axis xyz="0 3 4"/>{LIMIT}'))
    np.testing.assert_array_equal(model.joint_placement.rotation[0], np.eye(3))
    np.testing.assert_array_equal(model.joint_placement.translation[0], np.zeros(3))
    np.testing.assert_allclose(model.joint_axis[0], [0, 0.6, 0.8], atol=1e-15)
    partial = from_urdf(two_links("revolute", f'<origin rpy="0 0 1.5707963267948966"/>{LIMIT}'))
    np.testing.assert_allclose(partial.joint_placement.rotation[0], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)


def test_gravity_and_dtype_can_be_chosen():
    model = from_urdf(TRIALS / "T01.urdf", gravity=(0, 0, -1.62), dtype=jnp.float32)
    assert model.gravity.dtype == jnp.float32
    np.testing.assert_allclose(model.gravity, [0, 0, -1.62], rtol=1e-7)
    np.testing.assert_array_equal(from_urdf(TRIALS / "T01.urdf").gravity, [0, 0, -9.80665])
    with pytest.raises(InputError, match=r"gravity: wanted shape \(3,\), given shape \(\)"):
        from_urdf(TRIALS / "T01.urdf", gravity=-9.81)


# Joint types


@pytest.mark.parametrize("kind", MOVING)
def test_every_joint_type_is_read(kind):
    model = from_urdf(two_links(kind, f'<axis xyz="0 1 0"/>{LIMIT}'))
    assert model.tree.joint_types == (kind,)
    assert np.all(np.isfinite(model.lower)) == (kind in ("revolute", "prismatic"))


def test_a_planar_joint_moves_in_its_plane():
    """Trial T10a: the axis is the normal of the plane."""
    model = from_urdf(TRIALS / "T10a.urdf")
    assert (model.nq, model.nv) == (3, 3)
    np.testing.assert_array_equal(model.joint_axis[0], [0, 1, 0])
    _, frames = body_poses(model, {"air": [0.2, 0.1, 0.5]})  # u = z, w = x
    np.testing.assert_allclose(frames["puck"][:3, 3], [0.1, 0, 0.7], atol=1e-15)


def test_a_floating_joint_inside_the_file_is_free():
    """Trial T10b."""
    model = from_urdf(TRIALS / "T10b.urdf")
    assert (model.nq, model.nv, model.tree.joint_types) == (8, 7, ("floating", "revolute"))
    np.testing.assert_allclose(float(model.total_mass), EXPECTED["T10b"]["if_supported"]["total_mass"], rtol=1e-15)


@pytest.mark.parametrize("kind", ["revolut", "Revolute", "hinge", "ball", ""])
def test_an_unknown_joint_type_is_an_error_with_the_joint_and_the_known_types(kind):
    with pytest.raises(URDFError, match=f"joint 'j': <joint> .line 1.: unknown joint type '{kind}'.*'spherical'"):
        from_urdf(two_links(kind))


# Limits, damping, mimic


def test_missing_and_swapped_limits_are_reported_by_name():
    """Trial T14."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = from_urdf(TRIALS / "T14.urdf")
    text = "\n".join(str(w.message) for w in caught)
    assert "'no_bounds'" in text and "'swapped' (lower 0.3, upper -0.3)" in text and "endless" not in text
    np.testing.assert_array_equal(model.lower, [-np.inf, -0.3, -np.inf])
    np.testing.assert_array_equal(model.upper, [np.inf, 0.3, np.inf])
    np.testing.assert_array_equal(model.effort_limit, [10, 10, np.inf])
    _, frames = body_poses(model, {"no_bounds": 0.5, "swapped": 0.5, "endless": 0.5})
    assert np.all(np.isfinite(frames["d"]))


def test_a_missing_limit_element_is_reported_by_name():
    """Trial T14b."""
    with pytest.warns(JaxdynWarning, match="without <limit>.*'no_limit'"):
        model = from_urdf(TRIALS / "T14b.urdf")
    np.testing.assert_array_equal([model.lower[0], model.upper[0]], [-np.inf, np.inf])


def test_limits_may_be_infinite_and_the_bounds_of_a_continuous_joint_mean_nothing():
    model = from_urdf(two_links("revolute", '<limit lower="-inf" upper="INF" effort="inf" velocity="+Infinity"/>'))
    assert np.isneginf(model.lower[0]) and np.isposinf(model.upper[0]) and np.isposinf(model.effort_limit[0])
    endless = from_urdf(two_links("continuous", LIMIT))
    assert np.isneginf(endless.lower[0]) and endless.effort_limit[0] == 3 and endless.velocity_limit[0] == 4


def test_damping_and_friction_are_read():
    """Trial T19, the part about loading."""
    np.testing.assert_array_equal(from_urdf(TRIALS / "T19.urdf").damping, EXPECTED["T19"]["pin_damping_read"])
    model = from_urdf(two_links("planar", '<dynamics damping="0.5" friction="0.25"/>'))
    np.testing.assert_array_equal(model.damping, [0.5] * 3)
    np.testing.assert_array_equal(model.friction, [0.25] * 3)
    assert not np.any(model.armature)
    with pytest.warns(JaxdynWarning, match="negative damping.*'j'"):
        from_urdf(two_links("continuous", '<dynamics damping="-1"/>'))


def test_followers_have_no_coordinates_or_are_independent_and_named():
    """Trial T08; the dynamics are in test_followers.py."""
    model = from_urdf(TRIALS / "T08.urdf")
    assert model.joint_names == ("left_j",) and model.follower_names == ("right_j", "flap_j")
    with pytest.warns(
        JaxdynWarning, match="mimic='independent'.*'right_j' .follows 'left_j'.*'flap_j' .follows 'right_j'"
    ):
        model = from_urdf(TRIALS / "T08.urdf", mimic="independent")
    assert model.joint_names == ("right_j", "flap_j", "left_j") and not model.follower_names


def test_a_locked_follower_needs_no_warning():
    model = from_urdf(TRIALS / "T08.urdf", locked={"right_j": -0.01, "flap_j": 0.08})
    assert model.joint_names == ("left_j",)
    f = model.frame("right")
    np.testing.assert_allclose(model.frame_placement.translation[f], EXPECTED["T08"]["right_xyz"], atol=1e-15)
    np.testing.assert_allclose(
        model.frame_placement.rotation[model.frame("flap")], EXPECTED["T08"]["flap_R"], atol=1e-9
    )


def test_a_leader_that_does_not_exist_is_named():
    """Trial T08b."""
    with pytest.raises(URDFError, match=r"'f_j' .line 9.: <mimic> joint='lfet_j' does not exist"):
        from_urdf(TRIALS / "T08b.urdf")
    with pytest.warns(JaxdynWarning, match="'f_j' .follows 'lfet_j', which does not exist"):
        from_urdf(TRIALS / "T08b.urdf", mimic="independent")


# Order, roots, lumping


def test_joints_are_numbered_depth_first_in_the_order_of_the_file():
    """Trial T16."""
    model = from_urdf(TRIALS / "T16.urdf")
    assert model.joint_names == ("j2", "zeta", "j10", "alpha")
    _, frames = body_poses(model, EXPECTED["T16"]["q"])
    np.testing.assert_allclose(frames["tip"][:3, 3], EXPECTED["T16"]["tip_xyz"], atol=1e-9)


def test_a_fixed_root_is_the_world_and_a_floating_one_gets_a_free_flyer():
    text = (TRIALS / "T16.urdf").read_text().replace('<link name="pedestal"/>', BASE.replace("base", "pedestal"))
    fixed, floating = from_urdf(text), from_urdf(text, root="floating")
    assert fixed.tree.frame_bodies[fixed.frame("pedestal")] == -1
    assert floating.joint_names == ("root_joint", *fixed.joint_names) and floating.body_names[0] == "pedestal"
    assert floating.nq == fixed.nq + 7 and floating.nv == fixed.nv + 6
    with pytest.raises(InputError, match="root: given 'free', wanted 'fixed' or 'floating'"):
        from_urdf(text, root="free")


def test_a_file_may_have_a_joint_named_like_the_free_flyer():
    text = two_links("continuous").replace('"j"', '"root_joint"').replace('<link name="base"/>', BASE)
    assert from_urdf(text, root="floating").joint_names == ("root_joint_", "root_joint")


def test_a_free_flyer_before_a_massless_link_is_reported():
    with pytest.warns(JaxdynWarning, match="'world' behind the free-flyer has no mass"):
        from_urdf(TRIALS / "T10b.urdf", root="floating")


def test_a_massless_root_on_a_fixed_joint_is_lumped_with_what_it_carries():
    text = robot(
        '<link name="dummy"/>',
        BASE,
        '<joint name="f" type="fixed"><origin xyz="0 0 2"/><parent link="dummy"/><child link="base"/></joint>',
    )
    model = from_urdf(text, root="floating")
    assert model.body_names == ("dummy",) and model.frame_names == ("dummy", "base")
    np.testing.assert_array_equal(model.inertia.com[0], [0, 0, 2])
    np.testing.assert_array_equal(model.inertia.inertia[0], np.eye(3))


def coordinates(model, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=size) for name, size in zip(model.joint_names, model.tree.joint_nq, strict=True)}


@given(seed=st.integers(0, 1000), types=st.sampled_from([ONE_DOF, MOVING]), root=st.sampled_from(["fixed", "floating"]))
def test_freezing_joints_keeps_every_frame_and_all_inertia(seed, types, root):
    full = from_urdf(random_urdf(seed, 7, types=types), root=root)
    values = coordinates(full, seed)
    rng = np.random.default_rng(seed)
    frozen = [name for name in full.joint_names if name != "root_joint" and rng.random() < 0.5]
    reduced = from_urdf(random_urdf(seed, 7, types=types), root=root, locked={name: values[name] for name in frozen})
    assert reduced.joint_names == tuple(name for name in full.joint_names if name not in frozen)
    poses, frames = body_poses(full, values)
    poses_reduced, frames_reduced = body_poses(reduced, values)
    assert sorted(frames) == sorted(frames_reduced)
    for name, pose in frames.items():
        np.testing.assert_allclose(frames_reduced[name], pose, atol=1e-12)
    if root == "floating":  # else what is frozen to the world no longer counts
        for a, b in zip(mass_moments(full, poses), mass_moments(reduced, poses_reduced), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


def test_lumping_agrees_with_pinocchio():
    text = random_urdf(5, 10, types=("revolute", "prismatic"), fixed=0.5)
    locked = dict(zip(from_urdf(text).joint_names[1:8:3], (0.4, -1.0, 0.7), strict=True))
    model, oracle = from_urdf(text, locked=locked), pin.buildModelFromXML(text)
    at = pin.neutral(oracle)
    frozen = [oracle.getJointId(name) for name in locked]
    for joint, value in zip(frozen, locked.values(), strict=True):
        at[oracle.joints[joint].idx_q] = value
    reduced = pin.buildReducedModel(oracle, frozen, at)
    for i, name in enumerate(model.joint_names):
        inertia = reduced.inertias[reduced.getJointId(name)]
        np.testing.assert_allclose(model.inertia.mass[i], inertia.mass, rtol=1e-14)
        np.testing.assert_allclose(model.inertia.com[i], inertia.lever, atol=1e-14)
        np.testing.assert_allclose(model.inertia.inertia[i], inertia.inertia, atol=1e-14)


# Selection of joints


def test_the_order_of_the_joints_is_that_of_the_list():
    names = ["j2", "alpha", "zeta", "j10"]
    model = from_urdf(TRIALS / "T16.urdf", joints=names)
    assert model.joint_names == tuple(names) and model.tree.parents == (-1, 0, 0, 2)
    _, frames = body_poses(model, EXPECTED["T16"]["q"])
    np.testing.assert_allclose(frames["tip"][:3, 3], EXPECTED["T16"]["tip_xyz"], atol=1e-9)


def test_joints_that_are_not_listed_are_frozen_at_zero_or_where_locked_says():
    model = from_urdf(TRIALS / "T16.urdf", joints=["j10", "alpha"], locked={"j2": 0.3}, root="floating")
    assert model.joint_names == ("root_joint", "j10", "alpha") and model.tree.parents == (-1, 0, 0)
    same = from_urdf(
        TRIALS / "T16.urdf", locked={"j2": 0.3, "zeta": 0.0}, root="floating", joints=["root_joint", "j10", "alpha"]
    )
    np.testing.assert_array_equal(model.inertia.inertia, same.inertia.inertia)
    assert from_urdf(TRIALS / "T16.urdf", joints=[]).nv == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            dict(joints=["j10", "zeta"]),
            InputError,
            "'j10' is given before 'zeta', but 'zeta' stands between it and the root",
        ),
        (dict(joints=["j10", "alpha", "j2"]), InputError, "'j10' is given before 'j2'"),
        (dict(joints=["j2", "zeat"]), UnknownNameError, "joints: unknown joint 'zeat'. Did you mean 'zeta'"),
        (dict(joints=["j2", "tip_fix"]), InputError, "joints: joint 'tip_fix' is fixed in the file"),
        (dict(joints=["j2", "zeta", "j2"]), InputError, "joints: 'j2' given more than once"),
        (dict(joints=["j2"], locked={"j2": 0.0}), InputError, "both name 'j2'"),
        (dict(joints="j2"), InputError, "wanted a sequence of joint names"),
        (dict(locked={"j3": 0.0}), UnknownNameError, "locked: unknown joint 'j3'. Did you mean 'j2'"),
        (dict(locked={"j2": [0.0, 1.0]}), InputError, r"locked\['j2'\]: wanted shape \(1,\), given shape \(2,\)"),
        (dict(locked={"j2": float("nan")}), InputError, r"locked\['j2'\]: wanted finite numbers"),
        (dict(locked={"j2": "0"}), InputError, r"locked\['j2'\]: "),
    ],
)
def test_impossible_selections_are_explained(options, error, message):
    with pytest.raises(error, match=message):
        from_urdf(TRIALS / "T16.urdf", **options)


def test_a_zero_quaternion_cannot_be_locked():
    with pytest.raises(InputError, match="the quaternion is zero"):
        from_urdf(TRIALS / "T10b.urdf", locked={"free": np.zeros(7)})


# Under transformations


def test_a_robot_may_be_built_while_tracing():
    """Its numbers are then constants; gravity alone may be traced."""
    q = jnp.asarray([0.3, -0.2])

    def torque(gravity):
        model = load("double_pendulum", frames={"f": ("upper", SE3.identity())}, gravity=gravity)
        return gravity_torque(model, q)

    gravity = jnp.asarray([0.0, 0.0, -9.80665])
    expected = gravity_torque(load("double_pendulum"), q)
    np.testing.assert_allclose(jax.jit(lambda: gravity_torque(load("double_pendulum"), q))(), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(torque)(gravity) @ gravity, expected, rtol=1e-12)


def test_locked_joints_may_be_names_alone():
    by_name = load("double_pendulum", locked=["elbow"])
    by_value = load("double_pendulum", locked={"elbow": 0.0})
    assert by_name.joint_names == ("shoulder",)
    np.testing.assert_array_equal(by_name.inertia.as_matrix(), by_value.inertia.as_matrix())
    assert from_urdf(TRIALS / "T16.urdf", locked=("j2",)).nv == from_urdf(TRIALS / "T16.urdf").nv - 1
