"""The robots that come with the library, and robots of other people against Pinocchio."""

import pathlib
import time
import warnings

import jax
import numpy as np
import pinocchio as pin
import pytest

from jaxdyn.model import configuration, difference, from_urdf, load, neutral, random_configuration, robot_names
from jaxdyn.model.urdf import ROBOTS

OURS = ("arm7", "box", "cartpole", "double_pendulum", "humanoid", "pendulum", "quadruped")
FREE = ("box", "humanoid", "quadruped")
BOX = pathlib.Path(__file__).parent / "data" / "floating_base" / "box.urdf"


def ours(name):
    return load(name, root="floating" if name in FREE else "fixed")


def oracle(name_or_path, root):
    path = str(ROBOTS / f"{name_or_path}.urdf") if name_or_path in OURS else name_or_path
    return pin.buildModelFromUrdf(path, *([pin.JointModelFreeFlyer()] if root == "floating" else []))


def assert_same_as_pinocchio(model, want):
    """Names, tree, placements, inertias, frames and limits, joint by joint (Pinocchio sorts children by name)."""
    assert sorted(model.joint_names) == sorted(want.names[1:])
    assert model.nv == want.nv
    model = jax.tree.map(np.asarray, model)
    tree = model.tree
    scale = {"revolute": 1, "prismatic": 1}
    for i, name in enumerate(model.joint_names):
        j = want.getJointId(name)
        parent = "universe" if tree.parents[i] < 0 else model.joint_names[tree.parents[i]]
        assert want.names[want.parents[j]] == parent
        np.testing.assert_allclose(model.joint_placement.rotation[i], want.jointPlacements[j].rotation, atol=1e-14)
        np.testing.assert_allclose(
            model.joint_placement.translation[i], want.jointPlacements[j].translation, atol=1e-14
        )
        inertia = want.inertias[j]
        np.testing.assert_allclose(model.inertia.mass[i], inertia.mass, rtol=1e-14)
        if inertia.mass > 0:
            np.testing.assert_allclose(model.inertia.com[i], inertia.lever, atol=1e-13)
            np.testing.assert_allclose(model.inertia.inertia[i], inertia.inertia, atol=1e-13)
        if tree.joint_types[i] in scale:
            q, v = want.joints[j].idx_q, want.joints[j].idx_v
            at_q, at_v = tree.q_offset[i], tree.v_offset[i]
            pairs = [
                (model.effort_limit[at_v], want.upperEffortLimit[v]),
                (model.velocity_limit[at_v], want.upperVelocityLimit[v]),
            ]
            pairs += [(model.damping[at_v], want.damping[v]), (model.friction[at_v], want.upperDryFrictionLimit[v])]
            pairs += [(model.upper[at_q], want.upperPositionLimit[q]), (model.lower[at_q], want.lowerPositionLimit[q])]
            for value, reference in pairs:
                if np.isinf(value) and reference == 0:
                    continue  # a bound that the file does not give is none here, and zero there
                np.testing.assert_allclose(value, reference, rtol=1e-14)
    for name in model.frame_names:
        i, frame = model.frame(name), want.frames[want.getFrameId(name, pin.FrameType.BODY)]
        body = tree.frame_bodies[i]
        assert want.names[frame.parentJoint] == ("universe" if body < 0 else model.joint_names[body])
        np.testing.assert_allclose(model.frame_placement.rotation[i], frame.placement.rotation, atol=1e-14)
        np.testing.assert_allclose(model.frame_placement.translation[i], frame.placement.translation, atol=1e-14)


def test_all_robots_are_there():
    assert robot_names() == OURS


@pytest.mark.parametrize("name", OURS)
def test_our_robots_read_alike_in_pinocchio(name):
    root = "floating" if name in FREE else "fixed"
    assert_same_as_pinocchio(ours(name), oracle(name, root))


@pytest.mark.parametrize("name", OURS)
def test_our_robots_are_physical_bounded_and_drawable(name):
    model = ours(name)
    for inertia in np.asarray(model.inertia.inertia):
        moments = np.linalg.eigvalsh(inertia)
        assert moments[0] > 0 and moments[0] + moments[1] >= moments[2] * (1 - 1e-9)
    joints = [i for i, kind in enumerate(model.tree.joint_types) if kind != "floating"]
    at = [model.tree.v_offset[i] for i in joints]
    assert np.all(np.isfinite(np.asarray(model.effort_limit)[at])) and np.all(
        np.isfinite(np.asarray(model.velocity_limit)[at])
    )
    q = neutral(model)
    assert np.all(q >= model.lower) and np.all(q <= model.upper)
    roles = {shape.role for shape in model.tree.geometry}
    assert roles == {"visual", "collision"}
    assert all(shape.kind in ("box", "sphere", "cylinder") for shape in model.tree.geometry)
    drawn = {shape.link for shape in model.tree.geometry if shape.role == "visual"}
    assert set(model.body_names) <= drawn
    assert np.all(np.isfinite(random_configuration(model, jax.random.key(0))))


@pytest.mark.parametrize(
    ("name", "nv", "mass"),
    [("pendulum", 1, 1), ("double_pendulum", 2, 2), ("cartpole", 2, 1.1), ("arm7", 7, 17.5), ("box", 6, 10)],
)
def test_sizes_of_the_small_robots(name, nv, mass):
    model = ours(name)
    assert model.nv == nv
    np.testing.assert_allclose(float(model.total_mass), mass, rtol=1e-12)


def frame_positions(name, model, q, frames):
    """Positions of frames relative to the root link, by Pinocchio."""
    fixed = pin.buildModelFromUrdf(str(ROBOTS / f"{name}.urdf"))
    data, at = fixed.createData(), pin.neutral(fixed)
    for joint in fixed.names[1:]:
        at[fixed.joints[fixed.getJointId(joint)].idx_q] = q[model.tree.q_offset[model.joint(joint)]]
    pin.framesForwardKinematics(fixed, data, at)
    return np.stack([data.oMf[fixed.getFrameId(frame)].translation for frame in frames])


def test_the_quadruped_stands_as_documented():
    model = ours("quadruped")
    assert model.nv == 18 and 12 < float(model.total_mass) < 15
    legs = ("fl", "fr", "rl", "rr")
    names = [f"{leg}_{joint}" for leg in legs for joint in ("hip_roll", "hip_pitch", "knee")]
    assert model.joint_names == ("root_joint", *names)
    pose = configuration(
        model, {f"{leg}_{joint}": value for leg in legs for joint, value in (("hip_pitch", 0.8), ("knee", -1.6))}
    )
    feet = frame_positions("quadruped", model, pose, [f"{leg}_foot" for leg in legs])
    np.testing.assert_allclose(feet[:, 2], -0.42 * np.cos(0.8), atol=1e-12)
    np.testing.assert_allclose(feet[:, 0], [0.19, 0.19, -0.19, -0.19], atol=1e-12)
    np.testing.assert_allclose(feet[:, 1], [0.145, -0.145, 0.145, -0.145], atol=1e-12)
    assert np.all(pose >= model.lower) and np.all(pose <= model.upper)


def test_the_humanoid_stands_as_documented():
    model = ours("humanoid")
    assert model.n_joints == 1 + 31 and 50 < float(model.total_mass) < 65
    upright = frame_positions("humanoid", model, neutral(model), ["left_foot", "right_foot", "head"])
    np.testing.assert_allclose(upright[:2], [[0.035, 0.09, -0.89], [0.035, -0.09, -0.89]], atol=1e-12)
    assert 1.55 < upright[2, 2] + 0.18 + 0.89 < 1.7  # the head is a ball of 0.09 m above its joint
    bent = {
        f"{s}_{j}": v for s in ("left", "right") for j, v in (("hip_pitch", -0.4), ("knee", 0.8), ("ankle_pitch", -0.4))
    }
    feet = frame_positions("humanoid", model, configuration(model, bent), ["left_foot", "right_foot"])
    np.testing.assert_allclose(feet[:, 2], -(0.17 + 0.72 * np.cos(0.4)), atol=1e-12)


def test_left_and_right_of_the_humanoid_are_mirror_images():
    model = ours("humanoid")
    mirror = np.diag([1.0, -1.0, 1.0])
    for name in model.body_names:
        if name.startswith("left_"):
            i, j = model.body(name), model.body(name.replace("left", "right"))
            np.testing.assert_allclose(model.inertia.com[i] @ mirror, model.inertia.com[j], atol=1e-12)
            np.testing.assert_allclose(
                mirror @ np.asarray(model.inertia.inertia[i]) @ mirror, model.inertia.inertia[j], atol=1e-12
            )
            np.testing.assert_allclose(
                model.joint_placement.translation[i] @ mirror, model.joint_placement.translation[j], atol=1e-12
            )


def test_the_box_is_that_of_the_reference_data():
    """Same numbers as the box with which the reference data of floating-base dynamics were made."""
    model, reference = ours("box"), from_urdf(BOX, root="floating")
    for leaf in ("mass", "com", "inertia"):
        np.testing.assert_array_equal(getattr(model.inertia, leaf), getattr(reference.inertia, leaf))
    assert model.frame_names == reference.frame_names
    np.testing.assert_array_equal(model.frame_placement.translation, reference.frame_placement.translation)


# Robots of other people

THEIRS = ("panda", "go2", "talos")  # in either of two ways; test_every_robot.py reads all of them


def their_path(name):
    loaders = pytest.importorskip("example_robot_data.robots_loader")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loaders.load(name).urdf


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_robots_of_other_people_read_as_in_pinocchio(name, root):
    path = their_path(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="mimic='independent'")
        warnings.filterwarnings("ignore", message="links have negative moments")
        model = from_urdf(path, root=root, mimic="independent")
    assert_same_as_pinocchio(model, oracle(path, root))


def test_followers_of_a_real_hand_follow_or_are_named():
    model = from_urdf(their_path("panda"))
    assert model.nv == 8 and model.follower_names == ("panda_finger_joint2",)
    with pytest.warns(UserWarning, match="'panda_finger_joint2' .follows 'panda_finger_joint1'"):
        assert from_urdf(their_path("panda"), mimic="independent").nv == 9
    assert from_urdf(their_path("panda"), locked={"panda_finger_joint1": 0.02, "panda_finger_joint2": 0.02}).nv == 7


def test_unbounded_joints_of_a_real_robot_are_named():
    """Pinocchio takes missing bounds as 0 .. 0 and locks the joint."""
    with pytest.warns(UserWarning, match="unbounded in what their <limit> lacks: 'FL_KFE' .lower, upper."):
        model = from_urdf(their_path("quadruped"))
    assert np.isneginf(model.lower[model.joint("FL_KFE")])


def test_a_large_robot_loads_fast():
    path = their_path("talos")
    from_urdf(path)
    times = []
    for _ in range(3):
        start = time.process_time()
        from_urdf(path, root="floating")
        times.append(time.process_time() - start)
    assert min(times) < 0.3


def test_a_reduced_talos_has_the_joints_of_the_list_in_its_order():
    path = their_path("talos")
    names = [n for side in ("right", "left") for n in (f"leg_{side}_{k}_joint" for k in range(1, 7))]
    model = from_urdf(path, root="floating", joints=names)
    assert model.joint_names == ("root_joint", *names)
    full = from_urdf(path, root="floating")
    np.testing.assert_allclose(float(model.total_mass), float(full.total_mass), rtol=1e-14)
    np.testing.assert_allclose(difference(model, neutral(model), neutral(model)), np.zeros(18), atol=1e-15)
