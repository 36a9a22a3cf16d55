"""States in other libraries: there and back, and their own forward dynamics at the converted states."""

import functools

import idyntree.bindings as idyn
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from evaluations import quick_jit
from oracles import Oracle, pinocchio_from_model
from random_trees import MOVING, random_model, random_urdf

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError
from jaxdyn.model import (
    from_idyntree,
    from_mjcf,
    from_mujoco,
    from_pinocchio,
    from_urdf,
    random_configuration,
    reduce,
    to_idyntree,
    to_mujoco,
    to_pinocchio,
)
from jaxdyn.model.convert import _quaternion, _rotation

TYPES = ("revolute", "continuous", "prismatic")
URDF = random_urdf(11, 5, types=TYPES, fixed=0.3)
FOLLOWING = URDF.replace('<axis xyz="', '<mimic joint="j1" multiplier="-2" offset="0.3"/><axis xyz="', 1)


@functools.cache
def robot():
    return from_urdf(URDF, root="floating")


def states(model, count=3):
    rng = np.random.default_rng(1)
    q = jnp.stack([random_configuration(model, jax.random.key(k)) for k in range(count)])
    return q, jnp.asarray(rng.normal(size=(count, model.nv))), jnp.asarray(rng.normal(size=(count, model.nv)))


@functools.cache
def free_accelerations():
    """Accelerations of the robot in three states, LOCAL base, and of the base in MIXED axes."""
    model = robot()
    q, v, tau = states(model)

    def both(q, v, tau):
        a = alg.aba(model, q, v, tau)
        kin = alg.forward_kinematics(model, q, v, a)
        return a, kin.acceleration[0]

    return quick_jit(jax.vmap(both))(q, v, tau)


def assert_there_and_back(model, there, back, tolerance=1e-13):
    """`there(q, v)` then `back(q, v)` for a batch, single states, and without velocities."""
    q, v, _ = states(model)
    for a, b in ((q, v), (q[0], v[0]), (q[None], v[None])):
        q_there, v_there = there(a, b)
        q_back, v_back = back(q_there, v_there)
        np.testing.assert_allclose(
            np.cos(q_back), np.cos(a), atol=tolerance
        )  # angles of circles come back within a turn
        np.testing.assert_allclose(v_back, b, atol=tolerance)
        np.testing.assert_array_equal(there(a), q_there)
        np.testing.assert_array_equal(back(q_there), q_back)
        assert q_back.dtype == model.dtype and isinstance(q_there, np.ndarray)
    return q_there, v_there


# Pinocchio


@pytest.mark.parametrize("seed", [172, 17])
def test_pinocchio_there_and_back_with_every_joint_type(seed):
    model = random_model(seed, 6, types=MOVING)
    if any(k == "planar" for k in model.tree.joint_types):
        model = random_model(seed, 6, types=("revolute", "continuous", "prismatic", "floating", "spherical"))
    other = pinocchio_from_model(model)
    assert_there_and_back(
        model, lambda q, v=None: to_pinocchio(model, other, q, v), lambda q, v=None: from_pinocchio(model, other, q, v)
    )
    oracle, (q, v, _) = Oracle(model, other), states(model)
    q_there, v_there = to_pinocchio(model, other, q, v)
    np.testing.assert_allclose(q_there, [oracle.q(x) for x in q], atol=1e-14)
    np.testing.assert_allclose(v_there, [oracle.v(x) for x in v], atol=1e-14)


def test_pinocchio_moves_the_same():
    model, other = robot(), pin.buildModelFromXML(URDF, pin.JointModelFreeFlyer())
    other.gravity.linear = np.array(model.gravity)
    other.armature[:] = 0
    q, v, tau = states(model)
    q_there, v_there = to_pinocchio(model, other, q, v)
    _, tau_there = to_pinocchio(model, other, q, tau)
    a_there = np.stack([pin.aba(other, other.createData(), *x) for x in zip(q_there, v_there, tau_there, strict=True)])
    _, a = from_pinocchio(model, other, q_there, a_there)
    np.testing.assert_allclose(a, free_accelerations()[0], rtol=1e-8, atol=1e-8)


def test_followers_have_coordinates_in_pinocchio_and_none_here():
    model, other = from_urdf(FOLLOWING), pin.buildModelFromXML(FOLLOWING)
    (follower,) = model.follower_names
    q, v, _ = states(model)
    q_there, v_there = to_pinocchio(model, other, q, v)
    at, leader = other.joints[other.getJointId(follower)], model.joint("j1")
    lead = q[:, model.tree.q_offset[leader]], v[:, model.tree.v_offset[leader]]
    if at.nq == 1:
        np.testing.assert_allclose(q_there[:, at.idx_q], -2 * lead[0] + 0.3, atol=1e-14)
    np.testing.assert_allclose(v_there[:, at.idx_v], -2 * lead[1], atol=1e-14)
    back = from_pinocchio(model, other, q_there, v_there)
    np.testing.assert_allclose(back[1], v, atol=1e-14)
    assert back[0].shape == q.shape


# MuJoCo

TWO = """<mujoco><worldbody><body name="a"><freejoint name="base"/><geom size="0.1" mass="1"/>
 <body name="b" pos="0.1 0.2 0.3"><joint name="x" type="ball"/><geom size="0.1" mass="1" pos="0.1 0 0"/>
  <body name="c"><joint name="y" axis="1 2 3"/><geom size="0.1" mass="1" pos="0 0.1 0"/></body></body></body></worldbody></mujoco>"""


def test_mujoco_there_and_back():
    """Its forward dynamics are in test_mjcf.py."""
    mujoco = pytest.importorskip("mujoco")
    other = mujoco.MjModel.from_xml_string(TWO)
    model = from_mjcf(other)
    assert_there_and_back(
        model, lambda q, v=None: to_mujoco(model, other, q, v), lambda q, v=None: from_mujoco(model, other, q, v)
    )
    q, v, _ = states(model)
    _, v_there = to_mujoco(model, other, q, v)
    data = mujoco.MjData(other)
    data.qpos, data.qvel = to_mujoco(model, other, q[0], v[0])
    mujoco.mj_forward(other, data)
    np.testing.assert_allclose(v_there[0, 3:6], v[0, 3:6])
    np.testing.assert_allclose(data.body("a").xmat.reshape(3, 3) @ v[0, :3], v_there[0, :3], atol=1e-12)


# iDynTree


def idyntree_of(text):
    loader = idyn.ModelLoader()
    assert loader.loadModelFromString(text)
    return loader.model().copy()


def test_idyntree_there_and_back_and_moves_the_same():
    model, other = robot(), idyntree_of(URDF)
    other.setDefaultBaseLink(other.getLinkIndex(model.body_names[0]))

    def there(q, v=None):
        pose, s, *rest = to_idyntree(model, other, q, v)
        packed = np.concatenate([pose.reshape(*pose.shape[:-2], 16), s], -1)
        return packed if v is None else (packed, np.concatenate(rest, -1))

    def back(packed, v=None):
        pose = packed[..., :16].reshape(*packed.shape[:-1], 4, 4)
        rest = () if v is None else (v[..., :6], v[..., 6:])
        return from_idyntree(model, other, pose, packed[..., 16:], *rest)

    q, v, tau = states(model)
    packed, velocity = there(q, v)
    np.testing.assert_allclose(back(packed, velocity)[1], v, atol=1e-13)
    q_back = back(packed)
    sign = np.sign(np.sum(q_back[:, 3:7] * q[:, 3:7], axis=1, keepdims=True))
    np.testing.assert_allclose(sign * q_back[:, 3:7], q[:, 3:7], atol=1e-13)
    np.testing.assert_allclose(q_back[:, 7:], q[:, 7:], atol=1e-14)

    kin = idyn.KinDynComputations()
    kin.loadRobotModel(other)
    for k, (pose, s, twist, speed) in enumerate(zip(*to_idyntree(model, other, q, v), strict=True)):
        assert kin.setRobotState(pose, s, twist, speed, np.array(model.gravity))
        mass = idyn.MatrixDynSize(model.nv, model.nv)
        assert kin.getFreeFloatingMassMatrix(mass)
        bias = idyn.FreeFloatingGeneralizedTorques(other)
        assert kin.generalizedBiasForces(bias)
        h = np.concatenate([bias.baseWrench().toNumPy(), bias.jointTorques().toNumPy()])
        turn = pose[:3, :3]
        effort = np.concatenate([turn @ tau[k, :3], turn @ tau[k, 3:6], to_idyntree(model, other, q[k], tau[k])[3]])
        a = np.linalg.solve(mass.toNumPy(), effort - h)
        ours, base = free_accelerations()
        np.testing.assert_allclose(a[:6], base[k], rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(a[6:], to_idyntree(model, other, q[k], ours[k])[3], rtol=1e-7, atol=1e-7)


def test_another_base_link_in_idyntree_is_refused():
    other = idyntree_of(URDF)
    other.setDefaultBaseLink(other.getLinkIndex("link1"))
    with pytest.raises(InputError, match="base link of the iDynTree model is 'link1', the root link here 'link0'"):
        to_idyntree(robot(), other, *states(robot())[:2])


# Refusals


def test_what_does_not_fit_is_refused():
    model, other = robot(), pin.buildModelFromXML(URDF, pin.JointModelFreeFlyer())
    q, v, _ = states(model)
    smaller = reduce(model, ["j1"])
    with pytest.raises(InputError, match="the Pinocchio model has the joints 'j1' too, which are not here"):
        to_pinocchio(smaller, other, *(x[0] for x in states(smaller)[:2]))
    assert from_pinocchio(smaller, other, to_pinocchio(model, other, q)).shape == (3, smaller.nq)
    fixed = pin.buildModelFromXML(URDF)
    with pytest.raises(InputError, match="joint 'root_joint' is not in the Pinocchio model"):
        to_pinocchio(model, fixed, q)
    with pytest.raises(InputError, match=r"q: wanted shape \(..., 12\), given \(3, 11\)"):
        to_pinocchio(model, other, q[:, :-1])
    with pytest.raises(InputError, match=r"v: wanted shape"):
        to_pinocchio(model, other, q, v[:, :-1])
    with pytest.raises(InputError, match="q: states of other libraries are converted outside of jit"):
        jax.jit(lambda q: to_pinocchio(model, other, q))(q)
    planar = from_urdf(
        '<robot name="r"><link name="a"/><link name="b"/><joint name="p" type="planar"><parent link="a"/>'
        '<child link="b"/><axis xyz="0 1 0"/></joint></robot>'
    )
    there = pin.Model()
    there.addJoint(0, pin.JointModelPlanar(), pin.SE3.Identity(), "p")
    with pytest.raises(InputError, match="joint 'p': planar joints of Pinocchio turn about z, this one does not"):
        to_pinocchio(planar, there, jnp.zeros(3))
    there = pin.Model()
    there.addJoint(0, pin.JointModelSpherical(), pin.SE3.Identity(), "p")
    with pytest.raises(InputError, match="joint 'p' is planar here, in the Pinocchio model: ball xyzw"):
        to_pinocchio(planar, there, jnp.zeros(3))


def test_quaternions_of_matrices_are_right_at_every_angle():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(200, 4))
    q[:8] = np.concatenate([np.eye(4), -np.eye(4)])
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    back = _quaternion(_rotation(q))
    np.testing.assert_allclose(np.abs(np.sum(back * q, axis=1)), 1, atol=1e-15)
    np.testing.assert_allclose(_rotation(back), _rotation(q), atol=1e-15)
