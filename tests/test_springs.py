"""Springs at the joints, against MuJoCo and against their own energy."""

import dataclasses
import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from evaluations import quick_jit
from random_trees import MOVING, random_model

from jaxdyn import (
    FixedBaseDynamics,
    FixedBaseState,
    FloatingBaseDynamics,
    InputError,
    ModelBuilder,
    State,
    aba,
    append,
    change_base,
    forward_kinematics,
    from_mjcf,
    integrate,
    joint_spring_torque,
    mirror,
    neutral,
    potential_energy,
    random_configuration,
    reduce,
    restore,
    save,
    spring_energy,
    to_builder,
)
from jaxdyn.errors import JaxdynWarning
from jaxdyn.model import to_mujoco
from jaxdyn.model.followers import free_coordinates, free_model, projection

MJCF = """
<mujoco><option gravity="0 0 -9.80665"/><worldbody>
  <body name="trunk" pos="0.1 0.2 1" quat="0.9 0.1 0.3 0.2">
    <joint name="free" type="free" stiffness="7"/><geom size=".2" mass="3"/>
    <body name="upper" pos="0.2 0 0">
      <joint name="hinge" axis="0 1 1" stiffness="3" springref="20" ref="10"/><geom size=".1" mass="1" pos="0 0 .1"/>
      <body name="ball" pos="0 0 0.3"><joint name="ball" type="ball" stiffness="5"/>
        <geom type="box" size=".1 .2 .1" mass="1"/>
        <body name="rod" pos="0 .1 0"><joint name="slide" type="slide" axis="1 0 0" stiffness="11" springref="0.2"/>
          <geom size=".05" mass="0.5"/>
          <body name="loose" pos="0 .1 0"><joint name="loose"/><geom size=".05" mass="0.5"/></body>
        </body></body></body></body></worldbody></mujoco>
"""

torque, energy = quick_jit(joint_spring_torque), quick_jit(spring_energy)


@functools.cache
def tree(dtype=jnp.float64):
    """Joints of all six types, each degree of freedom with a spring of its own that is at rest somewhere else."""
    model = random_model(1054, 6, types=MOVING, fixed=0.25, dtype=dtype)
    assert set(model.tree.joint_types) == set(MOVING)
    rng = np.random.default_rng(3)
    rest = random_configuration(model, jax.random.key(8))
    return dataclasses.replace(
        model, stiffness=jnp.asarray(rng.uniform(0.5, 3, model.nv), dtype), spring_reference=rest
    )


def test_torque_and_energy_are_those_of_mujoco():
    there = mujoco.MjModel.from_xml_string(MJCF)
    model = from_mjcf(there, dtype=jnp.float64)
    data = mujoco.MjData(there)
    for seed in range(5):
        q = random_configuration(model, jax.random.key(seed))
        data.qpos[:], data.qvel[:] = to_mujoco(model, there, q, jnp.zeros(model.nv))
        mujoco.mj_forward(there, data)
        mujoco.mj_energyPos(there, data)
        force = np.array(data.qfrc_spring)
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, data.qpos[3:7])
        force[:3] = rotation.reshape(3, 3).T @ force[:3]  # MuJoCo: linear part in world axes
        np.testing.assert_allclose(torque(model, q), force, atol=1e-11)
        assert np.abs(force[:6]).min() > 1e-3 and force[-1] == 0
        whole = potential_energy(model, q) + spring_energy(model, q)
        np.testing.assert_allclose(whole, data.energy[0], rtol=1e-12)


def test_the_torque_is_minus_the_derivative_of_the_energy_for_every_type_and_stiffness():
    model = tree()

    @quick_jit
    def slope(q):
        return jax.grad(lambda d: spring_energy(model, integrate(model, q, d)))(jnp.zeros(model.nv))

    for seed in range(4):
        q = random_configuration(model, jax.random.key(seed))
        np.testing.assert_allclose(torque(model, q), -slope(q), atol=1e-10)


def test_at_rest_torque_is_zero_and_derivatives_are_the_stiffness():
    model = tree()
    rest = model.spring_reference
    np.testing.assert_allclose(torque(model, rest), 0, atol=1e-12)
    assert energy(model, rest) < 1e-24

    @quick_jit
    def slope(d):
        return jax.jacfwd(lambda d: joint_spring_torque(model, integrate(model, rest, d)))(d)

    stiffness = np.diag(-slope(jnp.zeros(model.nv)))
    for i in model.tree.independent:
        at = model.tree.v_offset[i]
        if model.tree.joint_types[i] not in ("planar", "floating"):  # their shift is along turned axes
            mine = slice(at, at + model.tree.joint_nv[i])
            np.testing.assert_allclose(stiffness[mine], model.stiffness[mine], atol=1e-10)
    second = quick_jit(jax.hessian(lambda d: spring_energy(model, integrate(model, rest, d))))(jnp.zeros(model.nv))
    np.testing.assert_allclose(second, -slope(jnp.zeros(model.nv)), atol=1e-9)
    # with respect to the numbers of the springs too
    by_model = quick_jit(jax.grad(lambda m: jnp.sum(joint_spring_torque(m, neutral(model)))))(model)
    assert np.isfinite(by_model.stiffness).all() and np.isfinite(by_model.spring_reference).all()
    assert np.any(by_model.stiffness) and np.any(by_model.spring_reference)


def test_batches_and_float32():
    model, single = tree(), tree().astype(jnp.float32)
    q = jnp.stack([random_configuration(model, jax.random.key(i)) for i in range(3)])
    one = np.stack([torque(model, x) for x in q])
    np.testing.assert_allclose(jax.vmap(torque, (None, 0))(model, q), one, atol=1e-12)
    stiffer = eqx.tree_at(lambda m: m.stiffness, model, jnp.stack([model.stiffness, 2 * model.stiffness]))
    axes = eqx.tree_at(lambda m: m.stiffness, jax.tree.map(lambda _: None, model), 0, is_leaf=lambda x: x is None)
    several = jax.vmap(joint_spring_torque, (axes, None))(stiffer, q[0])
    np.testing.assert_allclose(several, [one[0], 2 * one[0]], atol=1e-12)
    low = torque(single, q[0].astype(jnp.float32))
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, one[0], rtol=2e-5, atol=2e-5)


def test_a_robot_without_springs_has_none():
    model = random_model(1, 4)
    assert model.stiffness is None and model.spring_reference is None
    np.testing.assert_array_equal(joint_spring_torque(model, neutral(model)), np.zeros(model.nv))
    assert spring_energy(model, neutral(model)) == 0
    half = dataclasses.replace(model, stiffness=jnp.ones(model.nv))  # at rest at the neutral configuration
    np.testing.assert_allclose(joint_spring_torque(half, neutral(model)), 0, atol=1e-7)


def test_leaves_of_a_wrong_shape_are_refused_and_do_not_broadcast():
    model = random_model(1, 4, dtype=jnp.float64)
    for stiffness in (jnp.ones(1), jnp.ones(()), jnp.ones(model.nv + 1)):
        wrong = eqx.tree_at(lambda m: m.stiffness, model, stiffness, is_leaf=lambda x: x is None)
        for function in (joint_spring_torque, spring_energy):
            with pytest.raises(InputError, match=r"model\.stiffness: wanted shape"):
                function(wrong, neutral(model))
    rest = jnp.zeros(1)
    wrong = eqx.tree_at(
        lambda m: (m.stiffness, m.spring_reference), model, (jnp.ones(model.nv), rest), is_leaf=lambda x: x is None
    )
    with pytest.raises(InputError, match=r"model\.spring_reference: wanted shape"):
        spring_energy(wrong, neutral(model))


def test_a_continuous_joint_takes_the_short_way():
    builder = ModelBuilder().add_link("base").add_link("wheel", 1.0)
    builder.add_joint("turn", "continuous", "base", "wheel", stiffness=2.0, spring_reference=3.0)
    model = builder.build(dtype=jnp.float64)
    np.testing.assert_allclose(joint_spring_torque(model, jnp.asarray([-3.0])), [-2 * (2 * np.pi - 6)])


def geared(mimic="reduce"):
    builder = ModelBuilder().add_link("base")
    for name in "abc":
        builder.add_link(name, 1.0, (0.1, 0, 0), (0.1, 0.1, 0.1))
    builder.add_joint("ja", "revolute", "base", "a", stiffness=3.0, spring_reference=0.5)
    builder.add_joint("jb", "revolute", "a", "b", stiffness=5.0, spring_reference=-0.2, mimic=("ja", -2.0, 0.3))
    builder.add_joint("jc", "prismatic", "b", "c", stiffness=7.0, spring_reference=0.1, mimic=("jb", 0.5, -0.1))
    return builder.build(mimic=mimic, dtype=jnp.float64)


@pytest.mark.filterwarnings("ignore:mimic='independent'")
def test_springs_of_followers_are_reduced_exactly():
    model, free = geared(), geared("independent")
    G = np.asarray(projection(model))
    values = []
    for x in (-1.0, 0.0, 0.7):
        q = jnp.asarray([x])
        whole = free_coordinates(model, q)
        np.testing.assert_allclose(torque(model, q), G.T @ np.asarray(torque(free, whole)), atol=1e-12)
        values.append(float(energy(free, whole) - energy(model, q)))
    np.testing.assert_allclose(values, values[0], atol=1e-12)  # but for a constant
    spread = free_model(model)
    np.testing.assert_allclose(spread.stiffness, [3 + 20 + 7, 0, 0])
    np.testing.assert_allclose(G.T @ np.asarray(torque(spread, whole)), torque(model, q), atol=1e-12)


@pytest.mark.filterwarnings("ignore:mimic='independent'")
def test_a_follower_alone_may_have_the_spring():
    builder = to_builder(geared("independent"))
    builder.add_link("d", 1.0).add_link("e", 1.0)
    builder.add_joint("jd", "prismatic", "base", "d").add_joint(
        "je", "prismatic", "base", "e", stiffness=2.0, spring_reference=1.0, mimic=("jd", 2.0, 0.5)
    )
    model = builder.build(dtype=jnp.float64)
    at = model.tree.v_offset[model.joint("jd")]
    assert (model.stiffness[at], model.spring_reference[at]) == (8.0, 0.25)


@pytest.mark.filterwarnings("ignore:append. the inertia")
def test_edits_keep_springs():
    model = tree()
    q = random_configuration(model, jax.random.key(4))
    lock = next(i for i in model.tree.independent if model.tree.joint_types[i] == "revolute")
    name, at = model.joint_names[lock], model.tree.q_offset[lock]
    small = reduce(model, {name: q[at]})
    np.testing.assert_array_equal(small.stiffness, np.delete(model.stiffness, model.tree.v_offset[lock]))
    np.testing.assert_allclose(
        torque(small, jnp.delete(q, at)), np.delete(torque(model, q), model.tree.v_offset[lock]), atol=1e-12
    )
    plain = random_model(3, 4, types=MOVING, dtype=jnp.float64)
    for whole, split in (
        (append(model, plain, model.frame_names[0], prefix="x_"), model.nv),
        (append(plain, model, plain.frame_names[0], prefix="x_"), plain.nv),
    ):
        first = split == model.nv
        np.testing.assert_array_equal(whole.stiffness[:split] if first else whole.stiffness[split:], model.stiffness)
        assert not np.any(whole.stiffness[split:] if first else whole.stiffness[:split])
        there = neutral(plain)
        both = jnp.concatenate([q, there] if first else [there, q])
        np.testing.assert_allclose(energy(whole, both), energy(model, q), atol=1e-12)
    assert reduce(plain, [plain.joint_names[0]]).stiffness is None


def springs_of(model, stiffness, q):
    return dataclasses.replace(model, stiffness=jnp.asarray(stiffness), spring_reference=q)


@pytest.mark.parametrize("normal", "xyz")
def test_a_mirrored_robot_has_its_springs_at_rest_where_the_mirror_shows_it(normal):
    model = tree()
    other = mirror(model, normal)
    sign = np.where(np.array(["x", "y", "z"]) == normal, -1.0, 1.0)
    at = quick_jit(lambda m, q: forward_kinematics(m, q).translation)
    turn = quick_jit(lambda m, q: forward_kinematics(m, q).rotation)
    rest = model.spring_reference, other.spring_reference
    np.testing.assert_allclose(at(other, rest[1]), np.asarray(at(model, rest[0])) * sign, atol=1e-12)
    np.testing.assert_allclose(
        turn(other, rest[1]), np.asarray(turn(model, rest[0])) * np.outer(sign, sign), atol=1e-12
    )


def chain():
    builder = ModelBuilder().add_link("trunk", 2.0, (0, 0, 0), (1, 1, 1))
    builder.add_link("arm", 1.0, (0.1, 0, 0), (0.1, 0.1, 0.1)).add_link("hand", 1.0, (0, 0.1, 0), (0.1, 0.1, 0.1))
    builder.add_joint("ball", "spherical", "trunk", "arm", (0, 0.2, 0), stiffness=4.0, spring_reference=(1, 2, 3, 4.0))
    builder.add_joint("slide", "prismatic", "arm", "hand", (0.3, 0, 0), stiffness=2.0, spring_reference=0.4)
    return builder


def test_a_robot_with_another_base_has_the_same_springs():
    model = chain().build(root="floating", dtype=jnp.float64)
    for other in (change_base(model, "hand"), chain().build(root="floating", base_link="hand", dtype=jnp.float64)):
        q = random_configuration(model, jax.random.key(1))
        ball, slide = model.tree.q_offset[model.joint("ball")], model.tree.q_offset[model.joint("slide")]
        there = neutral(other)
        back = other.tree.q_offset[other.joint("ball")]
        there = there.at[back : back + 4].set(q[ball : ball + 4] * np.array([1.0, -1, -1, -1]))
        there = there.at[other.tree.q_offset[other.joint("slide")]].set(q[slide])
        assert energy(model, q) > 0.1
        np.testing.assert_allclose(energy(other, there), energy(model, q), rtol=1e-12)


def test_springs_that_cannot_be_told_backwards_are_left_out_with_a_warning():
    builder = chain().add_link("foot", 1.0)
    builder.add_joint("flat", "planar", "hand", "foot", stiffness=3.0)
    model = builder.build(root="floating", dtype=jnp.float64)
    for other in (
        lambda: change_base(model, "foot"),
        lambda: builder.build(root="floating", base_link="foot", dtype=jnp.float64),
    ):
        with pytest.warns(JaxdynWarning, match=r"the spring of joint 'flat' \(planar\) has no like"):
            found = other()
        at = found.tree.v_offset[found.joint("flat")]
        assert not np.any(found.stiffness[at : at + 3]) and np.count_nonzero(found.stiffness) == 4
    held = springs_of(model, np.ones(model.nv), neutral(model))
    with pytest.warns(JaxdynWarning, match=r"\(floating\)"):
        assert not np.any(change_base(held, "hand").stiffness[:6])


def test_files_and_builders_keep_springs(tmp_path):
    model = chain().build(root="floating", dtype=jnp.float64)
    save(tmp_path / "a.npz", model)
    again = restore(tmp_path / "a.npz")
    assert eqx.tree_equal(model, again)
    built = to_builder(model).build(root="floating", dtype=jnp.float64)
    np.testing.assert_array_equal(built.stiffness, model.stiffness)
    np.testing.assert_array_equal(built.spring_reference, model.spring_reference)
    with pytest.warns(
        JaxdynWarning, match="a URDF has no springs; those of these joints are left out: 'ball', 'slide'"
    ):
        chain().to_urdf()


def test_files_without_springs_are_written_for_older_readers_too(tmp_path):
    plain = dataclasses.replace(chain().build(dtype=jnp.float64), stiffness=None, spring_reference=None)
    for model, version in ((plain, 1), (chain().build(dtype=jnp.float64), 2)):
        save(tmp_path / "a.npz", model)
        assert json.loads(str(np.load(tmp_path / "a.npz")["header"]))["version"] == version


@pytest.mark.parametrize(
    "given, message",
    [
        ({"stiffness": -1.0}, "stiffness=-1.0: wanted a finite number, not negative"),
        ({"stiffness": np.nan}, "stiffness=nan"),
        ({"stiffness": (1.0, 2.0)}, "stiffness="),
        ({"stiffness": "soft"}, "stiffness: wanted numbers, given 'soft'"),
        ({"spring_reference": (0.0, 1.0)}, r"spring_reference: wanted 1 finite numbers for a revolute joint"),
        ({"spring_reference": np.inf}, "spring_reference: wanted 1 finite"),
    ],
)
def test_a_builder_refuses_wrong_springs(given, message):
    with pytest.raises(InputError, match=message):
        ModelBuilder().add_joint("j", "revolute", "a", "b", **given)
    with pytest.raises(InputError, match="the quaternion is zero"):
        ModelBuilder().add_joint("j", "spherical", "a", "b", spring_reference=(0, 0, 0, 0.0))


def test_systems_apply_springs_on_request():
    model = chain().build(dtype=jnp.float64)
    q = random_configuration(model, jax.random.key(2))
    x = FixedBaseState(joint_position=q, joint_velocity=jnp.zeros(model.nv))
    plain, sprung = (FixedBaseDynamics(model, joint_springs=s) for s in (False, True))
    acceleration = quick_jit(lambda s, x, u: s.acceleration(x, u))
    np.testing.assert_allclose(
        acceleration(sprung, x, jnp.zeros(model.nv)), acceleration(plain, x, torque(model, q)), atol=1e-12
    )


def test_a_floating_base_hangs_on_its_spring_in_the_world():
    there = mujoco.MjModel.from_xml_string(MJCF)
    model = from_mjcf(there, dtype=jnp.float64)
    model = reduce(model, ["ball"])  # a state has joints with one coordinate
    system = FloatingBaseDynamics(model, joint_springs=True)
    rng = np.random.default_rng(0)
    q = random_configuration(model, jax.random.key(5))
    kin = forward_kinematics(model, q)
    v = jnp.asarray(rng.normal(size=model.nv))
    turn = kin.rotation[0]
    twist = jnp.concatenate([turn @ v[:3], turn @ v[3:6]])
    x = State(twist, v[6:], q[:3], turn, q[7:])
    found = quick_jit(lambda s, x: s.acceleration(x, jnp.zeros(model.nv - 6)))(system, x)
    local = aba(model, q, v, joint_spring_torque(model, q))
    linear = turn @ (local[:3] + jnp.cross(v[3:6], v[:3]))
    np.testing.assert_allclose(found, jnp.concatenate([linear, turn @ local[3:6], local[6:]]), atol=1e-9)
