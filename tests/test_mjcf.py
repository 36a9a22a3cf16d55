"""Robots from MuJoCo: the same mass matrix, bias and accelerations there and here."""

import functools
import pathlib
import sys
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError, JaxdynWarning
from jaxdyn.math import so3
from jaxdyn.model import from_mjcf, from_mujoco, from_urdf, keyframes, random_configuration, to_mujoco

# two joints in one body with anchors off its origin, a ball, a slide and a hinge with ref, turned inertias
WALKER = """
<mujoco model="walker"><compiler angle="radian"/><option gravity="0.3 -0.2 -9.7"/>
 <worldbody>
  <body name="torso" pos="0.1 0.2 1" quat="0.9 0.1 -0.2 0.3">
   <freejoint/>
   <inertial pos="0.05 0.02 -0.1" mass="3" fullinertia="0.05 0.06 0.04 0.002 -0.003 0.001"/>
   <site name="imu" pos="0.1 0 0.2" euler="0.2 0.3 -0.5"/>
   <body name="leg" pos="0 0.2 -0.1" euler="0.3 -0.4 0.5">
    <joint name="hip_x" type="hinge" axis="1 0.2 0" pos="0.02 0.03 0.04" armature="0.03" damping="0.4" frictionloss="0.2"
     range="-1 2" actuatorfrcrange="-20 30"/>
    <joint name="hip_y" type="hinge" axis="0 1 0.3" pos="-0.05 0.01 0.02" ref="0.3" damping="0.1"/>
    <joint name="shift" type="slide" axis="0 0.3 1" ref="-0.1" armature="0.2"/>
    <geom type="capsule" size="0.04 0.2" mass="0.7" pos="0 0.02 -0.2" euler="0.1 0.2 0"/>
    <body name="foot" pos="0.05 0 -0.4">
     <joint name="ankle" type="ball" pos="0.01 0.02 0.03" armature="0.01"/>
     <geom name="sole" type="box" size="0.1 0.05 0.02" mass="0.4" pos="0.03 0 0" rgba="1 0 0 1"/>
     <site name="toe" pos="0.1 0 0"/>
    </body>
   </body>
   <body name="fin" pos="-0.2 0 0"><geom type="sphere" size="0.1" mass="0.3" contype="0" conaffinity="0"/></body>
  </body>
 </worldbody>
 <actuator><motor joint="hip_y" gear="4" ctrlrange="-2 1" ctrllimited="true"/></actuator>
 <keyframe><key name="bent" qpos="0 0 1 1 0 0 0  0.1 0.2 0.3  0 1 0 0" qvel="1 2 3 4 5 6 7 8 9 10 11 12"/><key/></keyframe>
</mujoco>
"""
SHIPPED = pathlib.Path(mujoco.__file__).parent / "testdata" / "model.xml"


@functools.cache
def robot(name):
    """The MjModel and ours; without constraints, which are not part of a Model."""
    source = {"walker": WALKER, "shipped": SHIPPED.read_text()}[name]
    there = mujoco.MjModel.from_xml_string(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JaxdynWarning)
        ours = from_mjcf(there)
    there.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    return there, ours


@quick_jit
def dynamics(model, q, v, tau):
    kin = alg.forward_kinematics(model, q, v)
    poses = [alg.frame_pose(model, kin, name) for name in model.frame_names]
    whole = {
        "jacobian": jnp.stack([alg.frame_jacobian(model, kin, name) for name in model.body_names]),
        "com": alg.center_of_mass(model, kin),
        "momentum": alg.centroidal_momentum(model, kin),
        "subtree_com": alg.subtree_centers_of_mass(model, kin),
        "subtree_velocity": alg.subtree_com_velocities(model, kin),
        "kinetic": alg.kinetic_energy(model, q, v),
        "potential": alg.potential_energy(model, q),
    }
    torques = alg.aba(model, q, v, tau - model.damping * v)
    return alg.crba(model, q), alg.nonlinear_effects(model, q, v), torques, poses, whole


def theirs(there, ours, qpos, qvel, tau):
    """M, bias and acceleration of MuJoCo in our coordinates; tau in ours."""
    data = mujoco.MjData(there)
    data.qpos, data.qvel = qpos, qvel
    # v there = T v here, T turns the linear velocity of each free joint to world axes
    turn, swing = np.eye(there.nv), np.zeros(there.nv)
    for j in np.flatnonzero(there.jnt_type == 0):
        q, v = there.jnt_qposadr[j], there.jnt_dofadr[j]
        rotation = np.asarray(so3.from_quaternion(jnp.asarray(qpos[q + 3 : q + 7])))
        turn[v : v + 3, v : v + 3] = rotation
        swing[v : v + 3] = rotation @ np.cross(qvel[v + 3 : v + 6], rotation.T @ qvel[v : v + 3])
    mujoco.mj_forward(there, data)
    # of the passive forces only the joints' damping is meant: tendons have springs too
    data.qfrc_applied = turn @ tau - there.dof_damping * qvel - data.qfrc_passive - data.qfrc_actuator
    mujoco.mj_forward(there, data)
    mass = np.zeros((there.nv, there.nv))
    for k in range(there.nv):
        mujoco.mj_mulM(there, data, mass[k], np.eye(there.nv)[k])
    bias = turn.T @ (data.qfrc_bias + mass @ swing)
    return turn.T @ mass @ turn, bias, turn.T @ (data.qacc - swing), data


@pytest.mark.parametrize("name", ["walker", "shipped"])
def test_mass_matrix_bias_acceleration_and_poses_are_those_of_mujoco(name):
    there, ours = robot(name)
    assert (ours.nq, ours.nv) == (there.nq, there.nv)
    rng = np.random.default_rng(0)
    for seed in range(2):
        q = random_configuration(ours, jax.random.key(seed))
        v, tau = jnp.asarray(rng.normal(size=ours.nv)), jnp.asarray(rng.normal(size=ours.nv))
        qpos, qvel = to_mujoco(ours, there, q, v)
        back = from_mujoco(ours, there, qpos, qvel)
        np.testing.assert_allclose(back[0], q, atol=1e-14)
        np.testing.assert_allclose(back[1], v, atol=1e-13)
        mass, bias, acceleration, data = theirs(there, ours, qpos, qvel, tau)
        ours_mass, ours_bias, ours_acceleration, poses, whole = dynamics(ours, q, v, tau)
        np.testing.assert_allclose(ours_mass, mass, atol=1e-10)
        np.testing.assert_allclose(ours_bias, bias, atol=1e-9)
        np.testing.assert_allclose(ours_acceleration, acceleration, atol=1e-7 * (1 + np.abs(acceleration).max()))
        for frame, pose in zip(ours.frame_names, poses, strict=True):
            if mujoco.mj_name2id(there, mujoco.mjtObj.mjOBJ_BODY, frame) >= 0:
                np.testing.assert_allclose(pose.translation, data.body(frame).xpos, atol=1e-10, err_msg=frame)
            elif mujoco.mj_name2id(there, mujoco.mjtObj.mjOBJ_SITE, frame) >= 0:
                np.testing.assert_allclose(pose.translation, data.site(frame).xpos, atol=1e-10, err_msg=frame)
                np.testing.assert_allclose(pose.rotation.reshape(-1), data.site(frame).xmat, atol=1e-10)
        for part, value in theirs_of_the_whole(there, ours, data, qpos).items():
            which, value = value if isinstance(value, tuple) else (..., value)
            mine = np.asarray(whole[part])[which]
            np.testing.assert_allclose(mine, value, atol=1e-9 * (1 + np.abs(value).max()), err_msg=part)


def theirs_of_the_whole(there, ours, data, qpos):
    """Jacobians, centres of mass, momentum and energies of MuJoCo in our order and coordinates; those of the world
    are those of the robot, since nothing else has a mass."""
    turn = np.eye(there.nv)
    for j in np.flatnonzero(there.jnt_type == 0):
        q, v = there.jnt_qposadr[j], there.jnt_dofadr[j]
        turn[v : v + 3, v : v + 3] = np.asarray(so3.from_quaternion(jnp.asarray(qpos[q + 3 : q + 7])))
    mujoco.mj_subtreeVel(there, data)
    bodies = [mujoco.mj_name2id(there, mujoco.mjtObj.mjOBJ_BODY, name) for name in ours.body_names]
    # a body with several joints is several of ours, of which the last alone has its name
    known = [i for i, body in enumerate(bodies) if body >= 0]
    assert known
    jacobians = np.zeros((len(known), 6, there.nv))
    for rows, i in zip(jacobians, known, strict=True):
        mujoco.mj_jacBody(there, data, rows[:3], rows[3:], bodies[i])
    named = [bodies[i] for i in known]
    result = {
        "jacobian": (known, jacobians @ turn),
        "subtree_com": (known, data.subtree_com[named]),
        "subtree_velocity": (known, data.subtree_linvel[named]),
    }
    moving = there.body_mass[1:].sum()
    assert np.isclose(moving, there.body_subtreemass[0])
    result["com"] = data.subtree_com[0]
    result["momentum"] = np.concatenate([moving * data.subtree_linvel[0], data.subtree_angmom[0]])
    mujoco.mj_energyVel(there, data)
    result["kinetic"] = data.energy[1]
    result["potential"] = -there.body_mass[1:] @ data.xipos[1:] @ there.opt.gravity
    return result


def test_the_parts_of_a_body_become_leaves_frames_and_shapes():
    _, model = robot("walker")
    assert model.joint_names == ("torso_free", "hip_x", "hip_y", "shift", "ankle")
    assert model.tree.joint_types == ("floating", "revolute", "revolute", "prismatic", "spherical")
    assert {"torso", "leg", "foot", "fin", "imu", "toe", "world"} <= set(model.frame_names)
    np.testing.assert_array_equal(model.gravity, [0.3, -0.2, -9.7])
    np.testing.assert_allclose(model.armature, [0] * 6 + [0.03, 0, 0.2] + [0.01] * 3)
    np.testing.assert_allclose(model.damping, [0] * 6 + [0.4, 0.1, 0, 0, 0, 0])
    assert float(model.friction[6]) == 0.2
    np.testing.assert_allclose(model.effort_limit[6:9], [30, 8, np.inf])
    np.testing.assert_allclose([model.lower[7], model.upper[7]], [-1, 2])
    shapes = {s.link: s for s in model.tree.geometry}
    assert [shapes[n].role for n in ("leg", "foot", "fin")] == ["collision", "collision", "visual"]
    i = model.tree.geometry.index(shapes["foot"])
    np.testing.assert_allclose(model.shape_size[i], [0.2, 0.1, 0.04])
    np.testing.assert_allclose(model.shape_color[i], [1, 0, 0, 1])
    np.testing.assert_allclose(model.total_mass, 4.4)


def test_keyframes_are_states():
    there, model = robot("walker")
    found = keyframes(model, there)
    assert list(found) == ["bent", "key1"]
    q, v = found["bent"]
    np.testing.assert_allclose(q, [0, 0, 1, 1, 0, 0, 0, 0.1, 0.2, 0.3, 0, 1, 0, 0])
    np.testing.assert_allclose(v, np.arange(1.0, 13.0))


URDF = """<robot name="arm"><link name="base"/>
 <link name="upper"><inertial><origin xyz="0.1 0 0.2"/><mass value="2"/>
  <inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.03" iyz="0.002" izz="0.025"/></inertial></link>
 <link name="lower"><inertial><origin xyz="0 0.1 0.1"/><mass value="1"/>
  <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial></link>
 <joint name="shoulder" type="revolute"><origin xyz="0 0 0.5" rpy="0.3 0 0"/><parent link="base"/><child link="upper"/>
  <axis xyz="0 1 0"/><limit lower="-1" upper="2" effort="10" velocity="9"/><dynamics damping="0.2" friction="0.1"/></joint>
 <joint name="slider" type="prismatic"><origin xyz="0 0 0.4"/><parent link="upper"/><child link="lower"/>
  <axis xyz="0 0 1"/><limit lower="0" upper="0.5" effort="20" velocity="9"/></joint></robot>"""
MJCF = """<mujoco><compiler angle="radian"/><option gravity="0 0 -9.80665"/><worldbody><body name="base">
 <body name="upper" pos="0 0 0.5" euler="0.3 0 0"><inertial pos="0.1 0 0.2" mass="2" fullinertia="0.02 0.03 0.025 0.001 0 0.002"/>
  <joint name="shoulder" axis="0 1 0" range="-1 2" actuatorfrcrange="-10 10" damping="0.2" frictionloss="0.1"/>
  <body name="lower" pos="0 0 0.4"><inertial pos="0 0.1 0.1" mass="1" diaginertia="0.01 0.01 0.01"/>
   <joint name="slider" type="slide" axis="0 0 1" range="0 0.5" actuatorfrcrange="-20 20"/></body></body></body></worldbody></mujoco>"""


def test_a_urdf_and_an_mjcf_of_one_robot_are_one_model(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(MJCF)
    read = from_urdf(URDF)
    for source in (MJCF, path, str(path), mujoco.MjModel.from_xml_string(MJCF), mujoco.MjSpec.from_string(MJCF)):
        model = from_mjcf(source)
        assert model.joint_names == read.joint_names and model.body_names == read.body_names
        for name in ("joint_axis", "gravity", "damping", "friction", "lower", "upper", "effort_limit"):
            np.testing.assert_allclose(getattr(model, name), getattr(read, name), atol=1e-12)
        for name in ("joint_placement", "inertia"):
            for a, b in zip(jax.tree.leaves(getattr(model, name)), jax.tree.leaves(getattr(read, name)), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-9)


def test_options_are_those_of_the_reader():
    model = from_mjcf(
        WALKER,
        locked={"shift": 0.1, "torso_free": [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]},
        dtype=jnp.float32,
        gravity=(0, 0, -1),
    )
    assert model.joint_names == ("hip_x", "hip_y", "ankle") and model.dtype == jnp.float32
    np.testing.assert_array_equal(model.gravity, [0, 0, -1])
    assert from_mjcf(WALKER, joints=["hip_x"], frames={"mark": ("leg", [0.0, 0.0, 1.0])}).frame("mark")


COUPLED = """<mujoco><compiler angle="radian"/><worldbody><geom name="ground" type="plane" size="1 1 1"/>
 <body name="a"><joint name="x" axis="0 1 0"/><geom size="0.1" mass="1"/>
  <body name="b" pos="0 0 0.3" gravcomp="1"><joint name="y" axis="0 1 0" ref="0.1" stiffness="2"/><geom size="0.1" mass="1"/>
   <body name="c" pos="0 0 0.3"><joint name="z" axis="0 1 0"/><geom type="ellipsoid" size="0.1 0.2 0.3" mass="1"/></body></body></body>
 </worldbody>
 <tendon><fixed name="t"><joint joint="x" coef="1"/></fixed></tendon>
 <actuator><motor name="pull" tendon="t"/></actuator>
 <equality><joint name="couple" joint1="y" joint2="x" polycoef="0.2 -0.5 0 0 0"/>
  <connect name="loop" body1="a" body2="c" anchor="0 0 0"/><weld name="off" body1="a" body2="c" active="false"/></equality></mujoco>"""


def test_what_has_no_place_is_reported_by_name_in_one_warning():
    with pytest.warns(JaxdynWarning, match="from_mjcf: not part of the model") as caught:
        model = from_mjcf(COUPLED)
    assert len(caught) == 1 and model.joint_names == ("x", "y", "z")
    text = str(caught[0].message)
    for part in (
        "actuators that do not act on one hinge or slide: 'pull'", "plane 'ground' of 'world'",
        "ellipsoid", "equality joint 'couple'", "equality connect 'loop'", "equality weld 'off' (inactive)", "1 tendons",
        "gravity compensation of 'b'",
    ):  # fmt: skip
        assert part in text, part


def test_a_linear_coupling_can_be_reduced_exactly():
    with pytest.warns(JaxdynWarning, match="not part of the model"):
        model = from_mjcf(COUPLED, mimic="reduce")
    assert model.joint_names == ("x", "z") and model.follower_names == ("y",)
    # y - 0.1 = 0.2 - 0.5 x
    np.testing.assert_allclose([model.follower_ratio[0], model.follower_offset[0]], [-0.5, 0.3])


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="MuJoCo cannot read this model"):
        from_mjcf("<mujoco><nonsense/></mujoco>")
    with pytest.raises(InputError, match="MuJoCo cannot read"):
        from_mjcf(tmp_path / "nothing.xml")
    with pytest.raises(InputError, match="wanted a path, XML text, MjSpec or MjModel, given int"):
        from_mjcf(3)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(InputError, match="needs the package mujoco: pip install"):
        from_mjcf(MJCF)


@pytest.mark.skipif(not hasattr(mujoco.MjModel, "actuator_armature"), reason="since MuJoCo 4")
def test_the_rotor_of_an_actuator_counts_by_its_gear_squared():
    text = MJCF.replace("</mujoco>", '<actuator><motor joint="shoulder" gear="3" armature="0.01"/></actuator></mujoco>')
    masses = []
    for source in (text, MJCF):
        there = mujoco.MjModel.from_xml_string(source)
        data, product = mujoco.MjData(there), np.zeros(2)
        mujoco.mj_forward(there, data)
        mujoco.mj_mulM(there, data, product, np.array([1.0, 0.0]))
        masses.append(product[0])
    np.testing.assert_allclose(from_mjcf(text).armature[0], masses[0] - masses[1], atol=1e-12)
