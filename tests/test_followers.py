"""Joints that follow others: the reduced robot is the robot with all joints free, moved along G."""

import dataclasses
import inspect
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

import jaxdyn
from jaxdyn import algorithms as alg
from jaxdyn.app import ground, tuning
from jaxdyn.contact.fields import leaf_ranks
from jaxdyn.errors import InputError, JaxdynWarning, URDFError
from jaxdyn.model import configuration, from_urdf, integrate, neutral, random_configuration
from jaxdyn.model.followers import free_coordinates, free_model, free_velocity, independent_coordinates, projection

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"


def link(name, mass=0.7):
    inertia = 'ixx="0.02" ixy="0.001" ixz="-0.002" iyy="0.03" iyz="0.003" izz="0.025"'
    return f'<link name="{name}"><inertial><origin xyz="0.03 -0.05 0.08"/><mass value="{mass}"/><inertia {inertia}/></inertial></link>'


def joint(name, kind, parent, child, axis, inside="", limit="-3 3 50 5"):
    lower, upper, effort, velocity = limit.split()
    return (
        f'<joint name="{name}" type="{kind}"><origin xyz="0.1 0.05 0.2" rpy="0.3 -0.4 0.5"/><parent link="{parent}"/>'
        f'<child link="{child}"/><axis xyz="{axis}"/>'
        f'<limit lower="{lower}" upper="{upper}" effort="{effort}" velocity="{velocity}"/>'
        f'<dynamics damping="0.3" friction="0.2"/>{inside}</joint>'
    )


# a follower before its leader, a chain, a prismatic follower of a revolute joint, a continuous leader, a follower on
# its leader's own subtree, joints with quaternions
HAND = "".join(
    [
        '<robot name="hand">',
        *(link(name, mass) for name, mass in zip("abcdefg", (1, 0.5, 0.6, 0.4, 0.3, 0.8, 0.2), strict=True)),
        joint("b_j", "prismatic", "a", "b", "0 1 0", '<mimic joint="c_j" multiplier="-0.3" offset="0.02"/>'),
        joint("c_j", "revolute", "a", "c", "1 2 0", limit="-1 2 50 5"),
        joint("d_j", "revolute", "b", "d", "1 0 1", '<mimic joint="b_j" multiplier="2" offset="0.1"/>'),
        joint("e_j", "continuous", "c", "e", "0 0 1"),
        joint("f_j", "revolute", "e", "f", "0 1 1", '<mimic joint="e_j" multiplier="1.5"/>', limit="-9 9 50 5"),
        joint("g_j", "spherical", "d", "g", "1 0 0"),
        "</robot>",
    ]
)


@pytest.fixture(scope="module")
def hand():
    model = from_urdf(HAND, root="floating", gravity=(0.4, -0.3, -9.8))
    armature = jnp.linspace(0.01, 0.05, model.nv).at[:6].set(0.0)
    return eqx.tree_at(lambda m: m.armature, model, armature)


def test_followers_have_no_coordinates(hand):
    assert hand.joint_names == ("root_joint", "g_j", "c_j", "e_j")
    assert hand.follower_names == ("b_j", "d_j", "f_j")
    assert (hand.nq, hand.nv, hand.n_joints, hand.n_bodies) == (13, 11, 7, 7)
    q = configuration(hand, {"c_j": 0.5, "e_j": -0.2})
    all_of_them = configuration(free_model(hand), {"c_j": 0.5, "e_j": -0.2, "b_j": -0.13, "d_j": -0.16, "f_j": -0.3})
    np.testing.assert_allclose(free_coordinates(hand, q), all_of_them, atol=1e-15)
    np.testing.assert_array_equal(independent_coordinates(hand, all_of_them), q)
    with pytest.raises(InputError, match="'d_j' follows 'c_j' and has no value of its own"):
        configuration(hand, {"d_j": 0.1})
    with pytest.raises(InputError, match=r"q: wanted shape \(13,\), given shape \(16,\).*3 more follow others"):
        jaxdyn.crba(hand, all_of_them)


def test_sides_of_the_followers_become_their_leaders(hand):
    # b: -0.3 c + 0.02, d: 2 b + 0.1 = -0.6 c + 0.14, f = 1.5 e
    c, e = hand.tree.v_offset[hand.joint("c_j")], hand.tree.v_offset[hand.joint("e_j")]
    np.testing.assert_allclose(hand.damping[c], 0.3 * (1 + 0.09 + 0.36), rtol=1e-12)
    np.testing.assert_allclose(hand.friction[c], 0.2 * (1 + 0.3 + 0.6), rtol=1e-12)
    np.testing.assert_allclose(hand.friction[e], 0.2 * 2.5, rtol=1e-12)
    assert float(hand.velocity_limit[c]) == 5 and float(hand.effort_limit[c]) == 50
    np.testing.assert_allclose(hand.velocity_limit[e], 5 / 1.5, rtol=1e-12)
    q = hand.tree.q_offset[hand.joint("e_j")]
    np.testing.assert_allclose([hand.lower[q], hand.upper[q]], [-6, 6], rtol=1e-12)
    trial = from_urdf(TRIALS / "T08.urdf")  # flap = -2 left + 0.14 stays within -3 .. 3
    np.testing.assert_allclose([trial.lower[0], trial.upper[0]], [-1.43, 1.57], rtol=1e-12)


# Each algorithm, and the axes of its result that run over degrees of freedom. A function that is not in this table or
# the next is one for which nobody has said what it does with followers.
TABLE = {
    "bias_accelerations": ("kin", ()),
    "center_of_mass": ("kin", ()),
    "centroidal_bias": ("kin", ()),
    "centroidal_derivatives": ("q v a", (1,)),
    "centroidal_map": ("kin", (1,)),
    "centroidal_map_dot": ("kin", (1,)),
    "centroidal_momentum": ("kin", ()),
    "centroidal_momentum_rate": ("kin", ()),
    "com_acceleration": ("kin", ()),
    "com_jacobian": ("kin", (1,)),
    "com_jacobian_dot": ("kin", (1,)),
    "com_jacobian_dot_v": ("kin", ()),
    "com_velocity": ("kin", ()),
    "coriolis_matrix": ("q v", (0, 1)),
    "crba": ("q", (0, 1)),
    "frame_acceleration": ("kin frame", ()),
    "frame_jacobian": ("kin frame", (1,)),
    "frame_jacobian_dot": ("kin frame", (1,)),
    "frame_velocity": ("kin frame", ()),
    "generalized_force": ("q wrenches", (0,)),
    "gravity_torque": ("q", (0,)),
    "jacobian_dot_v": ("kin frame", ()),
    "joint_torque_regressor": ("q v a", (0,)),
    "kinetic_energy": ("q v", ()),
    "kinetic_energy_regressor": ("q v", ()),
    "mechanical_energy": ("q v", ()),
    "nonlinear_effects": ("q v", (0,)),
    "point_jacobian": ("kin frame point", (1,)),
    "potential_energy": ("q", ()),
    "potential_energy_regressor": ("q", ()),
    "relative_jacobian": ("kin frame reference", (1,)),
    "relative_jacobian_dot_v": ("kin frame reference", ()),
    "rnea": ("q v a wrenches", (0,)),
    "rnea_derivatives": ("q v a wrenches", (0, 1)),
    "frame_velocity_derivatives": ("kin frame", (1,)),
    "frame_acceleration_derivatives": ("kin frame", (1,)),
    "static_torque": ("q wrenches", (0,)),
    "subtree_centers_of_mass": ("kin", ()),
    "subtree_com_velocities": ("kin", ()),
    "subtree_masses": ("", ()),
}
# forward dynamics are compared by themselves below; the others take no followers' part in anything
ELSEWHERE = {
    "aba", "aba_derivatives", "compute_minv", "forward_dynamics", "forward_kinematics", "mass_matrix_status",
    "configuration_from_pose", "joint_friction_torque", "joint_spring_torque", "spring_energy",  # see test_springs
    "frame_point", "frame_pose", "relative_pose", "relative_velocity",
    "sparse_body_jacobian", "sparse_frame_jacobian", "sparse_point_jacobian", "sparse_point_jacobian_dot",
    "sparse_relative_jacobian", "sparse_rotational_jacobian", "sparse_rotational_jacobian_dot",  # by themselves below
    "relative_acceleration", "frame_regressor", "inertial_parameters", "mechanical_power",
    "mass_cholesky", "mass_solve",
}  # fmt: skip


def arguments(model, q, v, a, wrenches):
    values = {"q": q, "v": v, "a": a, "wrenches": wrenches, "frame": "f", "reference": "d"}
    return values | {"kin": alg.forward_kinematics(model, q, v, a), "point": jnp.array([0.1, -0.2, 0.3])}


def table_of(model, q, v, a, wrenches):
    given = arguments(model, q, v, a, wrenches)
    return {
        name: getattr(alg, name)(model, *(given[x] for x in names.split()))
        for name, (names, _) in TABLE.items()
        if hasattr(alg, name)
    }


def forward_of(model, q, v, tau, wrenches):
    derivatives = alg.aba_derivatives(model, q, v, tau, wrenches)._asdict()
    jacobian = jax.jacobian(lambda v: alg.aba(model, q, v, tau, wrenches))(v)
    mass = alg.crba(model, q)
    by_ratio = jax.grad(lambda m: jnp.sum(alg.aba(m, q, v, tau)), allow_int=True)(model).follower_ratio
    other = jnp.sum(alg.aba(eqx.tree_at(lambda m: m.follower_ratio, model, model.follower_ratio + 1e-6), q, v, tau))
    slope = (other - jnp.sum(alg.aba(model, q, v, tau))) / 1e-6
    return derivatives, jacobian, mass, alg.compute_minv(model, q), by_ratio, slope, alg.mass_matrix_status(model, q)


@pytest.fixture(scope="module")
def state(hand):
    rng = np.random.default_rng(3)
    v, a, tau = (jnp.asarray(rng.normal(size=hand.nv)) for _ in range(3))
    q = random_configuration(hand, jax.random.key(5))
    return {"q": q, "v": v, "a": a, "wrenches": jnp.asarray(rng.normal(size=(hand.n_bodies, 6)))}, tau


@pytest.fixture(scope="module")
def both(hand, state):
    """The table for the robot with followers, and for the free one taken back along G."""

    def compute(hand, q, v, a, wrenches):
        there = free_coordinates(hand, q), free_velocity(hand, v), free_velocity(hand, a)
        return table_of(hand, q, v, a, wrenches), table_of(free_model(hand), *there, wrenches)

    ours, free = quick_jit(compute)(hand, **state[0])
    matrix = np.asarray(projection(hand))

    def back(x, axes):
        for axis in axes if np.ndim(x) > max(axes, default=0) else ():
            x = np.moveaxis(np.tensordot(np.asarray(x), matrix, axes=(axis, 0)), -1, axis)
        return x

    return ours, {name: jax.tree.map(lambda x, n=name: back(x, TABLE[n][1]), value) for name, value in free.items()}


def test_every_algorithm_is_in_the_table():
    unknown = [
        name
        for name, thing in vars(alg).items()
        if inspect.isfunction(thing) and "model" in inspect.signature(thing).parameters and not name.startswith("_")
    ]
    new = sorted(set(unknown) - set(TABLE) - ELSEWHERE)
    assert not new, f"say here what {new} do with joints that follow others (`through_followers`, or refuse)"


@pytest.mark.parametrize("name", [name for name in TABLE if hasattr(alg, name)])
def test_algorithms_are_those_of_the_free_robot_along_g(both, name):
    leaves = zip(*(jax.tree.leaves(part[name]) for part in both), strict=True)
    for ours, theirs in leaves:
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_factors_and_solves_are_those_of_the_reduced_mass_matrix(hand, state):
    q, y = state[0]["q"], jnp.arange(1.0, hand.nv + 1.0)
    mass = alg.crba(hand, q)
    np.testing.assert_allclose(alg.cholesky.UDUtv(alg.mass_cholesky(hand, q), y), mass @ y, rtol=1e-12)
    np.testing.assert_allclose(mass @ alg.mass_solve(hand, q, y), y, rtol=1e-9)


def test_sparse_jacobians_are_the_dense_ones(hand, state, both):
    def compute(q, v):
        kin = alg.forward_kinematics(hand, q, v)
        point = jnp.array([0.1, -0.2, 0.3])
        return {
            "frame_jacobian": alg.sparse_frame_jacobian(hand, kin, "f").to_dense(),
            "point_jacobian": alg.sparse_point_jacobian(hand, kin, "f", point).to_dense(),
            "frame_jacobian_dot": alg.sparse_rotational_jacobian_dot(hand, kin, "f").to_dense(),
        }

    values = quick_jit(compute)(state[0]["q"], state[0]["v"])
    for name, value in values.items():
        np.testing.assert_allclose(value, both[0][name][-len(value) :], atol=1e-11, err_msg=name)


def test_the_jacobian_of_a_body_chosen_at_run_time_sums_the_columns_of_followers(hand, state):
    kin = alg.forward_kinematics(hand, state[0]["q"], state[0]["v"])
    point = jnp.array([0.1, -0.2, 0.3])

    @quick_jit
    def compute(hand, kin, bodies):
        chosen = jax.vmap(lambda b: alg.sparse_body_jacobian(hand, kin, b, point, rotational=True).to_dense())(bodies)
        # the frames of the bodies come first
        dense = [alg.frame_jacobian(hand, kin, i, jaxdyn.Representation.WORLD) for i in range(hand.n_bodies)]
        return chosen, jnp.stack(dense)

    bodies = jnp.arange(-1, hand.n_bodies, dtype=jnp.int32)
    chosen, dense = (np.asarray(x) for x in compute(hand, kin, bodies))
    linear = dense[:, :3] + np.swapaxes(np.cross(np.swapaxes(dense[:, 3:], 1, 2), np.asarray(point)), 1, 2)
    np.testing.assert_allclose(chosen[1:], np.concatenate([linear, dense[:, 3:]], axis=1), atol=1e-11)
    assert not chosen[0].any()
    one = alg.sparse_body_jacobian(hand, kin, jnp.int32(hand.body("f")), point)
    used = np.asarray(one.idx[: int(one.size)])
    assert len(set(used)) == len(used)


def test_forward_dynamics_invert_inverse_dynamics(hand, state, both):
    s, _ = state
    tau = both[0]["rnea"]
    derivatives, jacobian, mass, inverse, by_ratio, slope, status = quick_jit(forward_of)(
        hand, s["q"], s["v"], tau, s["wrenches"]
    )
    np.testing.assert_allclose(derivatives["a"], s["a"], atol=1e-9)
    np.testing.assert_allclose(mass, mass.T, atol=1e-14)
    assert np.all(np.linalg.eigvalsh(mass) > 0) and int(status) == 0
    np.testing.assert_allclose(inverse @ mass, np.eye(hand.nv), atol=1e-9)
    np.testing.assert_allclose(derivatives["dtau"], inverse, atol=1e-12)
    np.testing.assert_allclose(derivatives["dv"], jacobian, atol=1e-9)
    by = both[0]["rnea_derivatives"]
    np.testing.assert_allclose(derivatives["dq"], -np.asarray(inverse) @ by.dq, atol=1e-8)
    np.testing.assert_allclose(np.sum(by_ratio), slope, rtol=1e-4)


def test_coriolis_matrix_of_followers_has_the_skew_property(hand, state):
    s, _ = state

    def rate(t):
        return alg.crba(hand, integrate(hand, s["q"], t * s["v"]))

    def both(v):
        return jax.jvp(rate, (0.0,), (1.0,))[1], alg.coriolis_matrix(hand, s["q"], v)

    mass_rate, coriolis = quick_jit(both)(s["v"])
    skew = np.asarray(mass_rate - 2 * coriolis)
    np.testing.assert_allclose(s["v"] @ skew @ s["v"], 0, atol=1e-9)


def test_what_needs_a_tree_of_free_joints_refuses(hand):
    for attribute in ("dof_parent", "dof_support", "last_dof", "dof_levels", "dof_ancestors"):
        with pytest.raises(InputError, match="'b_j', 'd_j', 'f_j'"):
            getattr(hand.tree, attribute)
    assert hand.tree.free.nv == 14 and hand.tree.free.free is hand.tree.free


def test_systems_simulate_followers(hand):
    robot = jaxdyn.FloatingBaseDynamics(hand)
    x = jaxdyn.state_from_configuration(hand, neutral(hand), jnp.linspace(-0.5, 0.5, hand.nv))
    acceleration = quick_jit(lambda x: robot.acceleration(x, None))(x)
    q, v = jaxdyn.configuration_from_state(hand, x)
    a = quick_jit(alg.aba)(hand, q, v, jnp.zeros(hand.nv))
    np.testing.assert_allclose(acceleration[6:], a[6:], atol=1e-10)


@pytest.mark.slow
def test_contacts_on_followers_push_their_leaders(hand):
    points = jaxdyn.ContactPoints(jaxdyn.SmoothCoulomb(1e3, 10.0, smoothing=0.05))
    contact = jaxdyn.CompliantContact("d", points)
    robot = jaxdyn.FloatingBaseDynamics(hand, contact, terrain=jaxdyn.FlatTerrain(3.0))
    q, v = neutral(hand), jnp.linspace(-0.5, 0.5, hand.nv)
    x = jaxdyn.state_from_configuration(hand, q, v)

    def compute(x, q, v):
        wrench = robot.contact_wrenches(x)[0]
        on_bodies = jnp.zeros((hand.n_bodies, 6)).at[hand.body("d")].set(wrench)
        return robot.acceleration(x, None), alg.aba(hand, q, v, jnp.zeros(hand.nv), on_bodies), wrench

    there, ours, wrench = quick_jit(compute)(x, q, v)
    assert float(wrench[2]) > 1
    np.testing.assert_allclose(there[6:], ours[6:], rtol=1e-9)


# Reading


def gripper(*joints):
    return '<robot name="g">' + "".join(link(name) for name in "abcd") + "".join(joints) + "</robot>"


def test_followers_stand_where_a_frozen_leader_puts_them():
    model = from_urdf(HAND, locked={"c_j": 0.5})
    assert model.joint_names == ("g_j", "e_j") and model.follower_names == ("f_j",)
    kept = from_urdf(HAND, joints=["e_j"], locked={"c_j": 0.5})
    assert kept.joint_names == ("e_j",) and kept.follower_names == ("f_j",)
    alone = from_urdf(HAND, locked={"c_j": 0.5, "b_j": 0.3})
    shift = alone.frame_placement.translation[alone.frame("b")] - model.frame_placement.translation[model.frame("b")]
    np.testing.assert_allclose(np.linalg.norm(shift), 0.3 + 0.13, rtol=1e-12)


def test_followers_may_be_listed_with_their_leader_but_not_without():
    model = from_urdf(HAND, joints=["c_j", "e_j", "f_j"])
    assert model.joint_names == ("c_j", "e_j") and model.follower_names == ("b_j", "d_j", "f_j")
    with pytest.raises(InputError, match="joints: 'd_j' follows 'c_j', which is not kept"):
        from_urdf(HAND, joints=["d_j"])


def test_impossible_followers_are_refused():
    follows = lambda name: f'<mimic joint="{name}"/>'  # noqa: E731
    ring = gripper(
        joint("x", "revolute", "a", "b", "0 0 1", follows("y")), joint("y", "revolute", "a", "c", "0 0 1", follows("x"))
    )
    with pytest.raises(URDFError, match="joints 'x', 'y' follow each other in a ring"):
        from_urdf(ring.replace(link("d"), ""))
    with pytest.raises(URDFError, match="'x' follow each other in a ring"):
        from_urdf(
            gripper(joint("x", "revolute", "a", "b", "0 0 1", follows("x")))
            .replace(link("c"), "")
            .replace(link("d"), "")
        )
    planar = gripper(
        joint("x", "planar", "a", "b", "0 0 1"), joint("y", "revolute", "b", "c", "0 0 1", follows("x"))
    ).replace(link("d"), "")
    with pytest.raises(URDFError, match=r"joint 'y' \(line 1\): <mimic> joint='x': joint 'x' is planar"):
        from_urdf(planar)


def test_a_follower_of_a_fixed_joint_stands_at_its_offset_with_a_warning():
    text = gripper(
        joint("x", "fixed", "a", "b", "0 0 1"),
        joint("y", "prismatic", "b", "c", "0 0 1", '<mimic joint="x" multiplier="2" offset="0.25"/>'),
        joint("z", "revolute", "c", "d", "0 0 1"),
    )
    with pytest.warns(JaxdynWarning, match="stand still, at the offset of their <mimic>: 'y' .follows 'x'"):
        model = from_urdf(text)
    assert model.joint_names == ("z",)
    locked = from_urdf(text, locked={"y": 0.25}, mimic="independent")
    np.testing.assert_allclose(model.joint_placement.translation, locked.joint_placement.translation, atol=1e-15)


def test_limits_that_leave_no_room_are_named():
    text = gripper(
        joint("x", "revolute", "a", "b", "0 0 1", limit="1 2 1 1"),
        joint("y", "revolute", "b", "c", "0 0 1", '<mimic joint="x"/>', limit="-1 0 1 1"),
    ).replace(link("d"), "")
    with pytest.warns(JaxdynWarning, match="'x' leave no room for those of its followers 'y'"):
        model = from_urdf(text)
    assert float(model.lower[0]) == 1 and float(model.upper[0]) == 2


def test_the_commands_know_how_followers_move_points_on_the_ground(hand):
    q = np.asarray(random_configuration(hand, jax.random.key(2)))
    at = tuning.survey(hand, q)
    spots = [ground.Spot("f", np.array([[0.1, -0.2, 0.3], [0.0, 0.1, 0.0]]), True)]
    kin = alg.forward_kinematics(hand, jnp.asarray(q))
    theirs = [alg.point_jacobian(hand, kin, "f", jnp.asarray(p)) for p in spots[0].points]
    np.testing.assert_allclose(tuning.point_jacobians(hand, at, spots), np.stack(theirs), atol=1e-12)


def test_every_number_of_a_model_can_be_told_from_a_batch_of_it(hand):
    sprung = dataclasses.replace(hand, stiffness=jnp.ones(hand.nv), spring_reference=neutral(hand))
    assert leaf_ranks(sprung) == [leaf.ndim for leaf in jax.tree.leaves(sprung)]
