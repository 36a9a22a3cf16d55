"""Configurations: group axioms, Pinocchio as the oracle, derivatives at the singular points, and refusal of
nonsense."""

import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from random_trees import MOVING, URDF_MOVING, random_model, random_urdf

from jaxdyn.errors import InputError, Status
from jaxdyn.model import (
    check_configuration,
    configuration_status,
    coordinate_rates,
    difference,
    from_urdf,
    integrate,
    interpolate,
    neutral,
    normalize,
    random_configuration,
    velocity_from_rates,
)

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"
EXPECTED = json.loads((TRIALS / "expected.json").read_text())


@pytest.fixture(scope="module")
def every_type():
    """A robot with two joints of every type."""
    return from_urdf(_all_types(), root="floating")


def _all_types():
    joints = [
        f'<joint name="{kind}{k}" type="{kind}"><parent link="{kind}{k - 1}" /><child link="{kind}{k}"/><axis xyz="0 0.6 0.8"/>'
        '<limit lower="-2" upper="3" effort="1" velocity="1"/></joint>'.replace(f"{kind}0", "base")
        for kind in MOVING
        for k in (1, 2)
    ]
    links = [
        '<link name="base"><inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
    ]
    links += [f'<link name="{kind}{k}"/>' for kind in MOVING for k in (1, 2)]
    return f'<robot name="all">{"".join(links + joints)}</robot>'


def sample(model, seed):
    """A configuration and a velocity whose rotations stay below half a turn."""
    keys = jax.random.split(jax.random.key(seed))
    return random_configuration(model, keys[0]), jax.random.uniform(keys[1], (model.nv,), minval=-1.5, maxval=1.5)


def assert_same_configuration(model, a, b, atol=1e-12):
    """Whether both stand for the same poses: quaternions up to sign, angles up to turns."""
    np.testing.assert_allclose(difference(model, a, b), np.zeros(model.nv), atol=atol)


@pytest.mark.parametrize("seed", range(3))
def test_difference_undoes_integrate(every_type, seed):
    q, v = sample(every_type, seed)
    np.testing.assert_allclose(difference(every_type, q, integrate(every_type, q, v)), v, atol=1e-12)
    assert_same_configuration(
        every_type, integrate(every_type, q, difference(every_type, q, neutral(every_type))), neutral(every_type)
    )


def test_no_motion_leaves_the_configuration_alone(every_type):
    q, _ = sample(every_type, 3)
    np.testing.assert_allclose(integrate(every_type, q, jnp.zeros(every_type.nv)), q, atol=1e-15)
    np.testing.assert_allclose(difference(every_type, q, q), np.zeros(every_type.nv), atol=1e-15)


def test_there_and_back(every_type):
    q, v = sample(every_type, 4)
    assert_same_configuration(every_type, integrate(every_type, integrate(every_type, q, v), -v), q)
    assert_same_configuration(
        every_type, integrate(every_type, integrate(every_type, q, 0.3 * v), 0.7 * v), integrate(every_type, q, v)
    )


def test_interpolation_runs_from_one_to_the_other_at_constant_speed(every_type):
    q0, v = sample(every_type, 5)
    q1 = integrate(every_type, q0, v)
    assert_same_configuration(every_type, interpolate(every_type, q0, q1, 0), q0)
    assert_same_configuration(every_type, interpolate(every_type, q0, q1, 1.0), q1)
    quarter = interpolate(every_type, q0, q1, 0.25)
    np.testing.assert_allclose(difference(every_type, q0, quarter), v / 4, atol=1e-12)
    np.testing.assert_allclose(difference(every_type, quarter, q1), 0.75 * v, atol=1e-12)


# Pinocchio: quaternions xyzw; continuous joints and the angle of planar ones as cosine and sine; children
# sorted by name


def to_pin(model, pin_model, q):
    out = pin.neutral(pin_model)
    for name, kind, start, size in zip(
        model.joint_names, model.tree.joint_types, model.tree.q_offset, model.tree.joint_nq, strict=True
    ):
        part = np.asarray(q[start : start + size])
        if kind == "floating":
            part = np.concatenate([part[:3], part[4:], part[3:4]])
        elif kind == "continuous":
            part = np.array([np.cos(part[0]), np.sin(part[0])])
        elif kind == "planar":
            part = np.array([part[0], part[1], np.cos(part[2]), np.sin(part[2])])
        joint = pin_model.joints[pin_model.getJointId(name)]
        out[joint.idx_q : joint.idx_q + joint.nq] = part
    return out


def by_pin_order(model, pin_model, v):
    out = np.zeros(pin_model.nv)
    for name, start, size in zip(model.joint_names, model.tree.v_offset, model.tree.joint_nv, strict=True):
        joint = pin_model.joints[pin_model.getJointId(name)]
        out[joint.idx_v : joint.idx_v + joint.nv] = np.asarray(v[start : start + size])
    return out


@pytest.mark.parametrize("seed", range(3))
def test_integrate_and_difference_agree_with_pinocchio(seed):
    text = random_urdf(seed, 10, types=URDF_MOVING)
    model, oracle = from_urdf(text, root="floating"), pin.buildModelFromXML(text, pin.JointModelFreeFlyer())
    q, v = sample(model, seed)
    q1 = integrate(model, q, v)
    want = pin.integrate(oracle, to_pin(model, oracle, q), by_pin_order(model, oracle, v))
    np.testing.assert_allclose(pin.difference(oracle, want, to_pin(model, oracle, q1)), np.zeros(model.nv), atol=1e-12)
    q2 = integrate(model, q, 0.5 * jnp.flip(v))
    want = pin.difference(oracle, to_pin(model, oracle, q1), to_pin(model, oracle, q2))
    np.testing.assert_allclose(by_pin_order(model, oracle, difference(model, q1, q2)), want, atol=1e-12)


# Derivatives


def test_derivatives_of_difference_are_right_where_both_are_equal(every_type):
    """In the tangent space the derivative of difference(q, q + v) at v = 0 is the identity, that of half its
    square the same twice."""
    q, _ = sample(every_type, 6)

    def step(v):
        return difference(every_type, q, integrate(every_type, q, v))

    zero, eye = jnp.zeros(every_type.nv), np.eye(every_type.nv)
    np.testing.assert_allclose(jax.jit(jax.jacrev(step))(zero), eye, atol=1e-12)
    hessian = jax.jit(jax.hessian(lambda v: jnp.sum(step(v) ** 2)))(zero)
    np.testing.assert_allclose(hessian, 2 * eye, atol=1e-11)


def test_derivatives_agree_with_central_differences(every_type):
    q, v = sample(every_type, 8)
    direction = jax.random.normal(jax.random.key(1), (every_type.nv,))
    target = random_configuration(every_type, jax.random.key(2))

    def cost(v):
        return jnp.sum(jnp.sin(difference(every_type, target, integrate(every_type, q, v))))

    @jax.jit
    def slope(t):
        return jax.jvp(cost, (v + t * direction,), (direction,))

    h = 1e-4
    first = slope(0.0)[1]
    second = jax.jit(lambda: jax.jvp(lambda t: slope(t)[1], (0.0,), (1.0,))[1])()
    (before, slope_before), (after, slope_after) = slope(-h), slope(h)
    np.testing.assert_allclose(first, (after - before) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(second, (slope_after - slope_before) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(cost))(v) @ direction, first, rtol=1e-12)


def test_the_gradient_with_respect_to_raw_coordinates_is_finite_and_blind_to_quaternion_length(every_type):
    q, _ = sample(every_type, 9)
    gradient = jax.jit(jax.jacrev(lambda x: difference(every_type, q, x)))(q)
    assert np.all(np.isfinite(gradient))
    start = every_type.tree.q_offset[every_type.joint("spherical1")]
    np.testing.assert_allclose(gradient[:, start : start + 4] @ q[start : start + 4], 0, atol=1e-12)


def test_rates_are_the_derivative_of_motion_and_velocities_come_back(every_type):
    q, v = sample(every_type, 10)
    rates = coordinate_rates(every_type, q, v)
    motion = jax.jvp(lambda t: integrate(every_type, q, t * v), (0.0,), (1.0,))[1]
    np.testing.assert_allclose(rates, motion, atol=1e-13)
    np.testing.assert_allclose(velocity_from_rates(every_type, q, rates), v, atol=1e-13)


def test_log_of_a_tiny_rotation_is_exact_through_difference():
    """Trial T30."""
    model = from_urdf(
        '<robot name="ball"><link name="a"/><link name="b"/>'
        '<joint name="j" type="spherical"><parent link="a"/><child link="b"/></joint></robot>'
    )
    axis = np.array([2.0, -1.0, 2.0]) / 3
    q = neutral(model)
    slope = jax.jit(jax.grad(lambda v, m: jnp.sum(difference(model, m, integrate(model, m, v)) ** 2)))
    for theta in EXPECTED["T30"]["theta"]:
        moved = jnp.asarray([np.cos(theta / 2), *np.sin(theta / 2) * axis])
        np.testing.assert_allclose(difference(model, q, moved), theta * axis, rtol=1e-14, atol=1e-25)
        np.testing.assert_allclose(slope(jnp.zeros(3), moved), 0, atol=1e-15)


# Turns and signs


def test_posture_error_goes_the_short_way_round():
    """Trial T51."""
    model, trial = from_urdf(TRIALS / "T51.urdf", root="floating"), EXPECTED["T51"]

    def at(yaw, roll, sign=1.0):
        quaternion = sign * np.array([np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)])
        return jnp.asarray([0, 0, 0, *quaternion, roll])

    start = at(3.0, trial["roll_from"])
    for sign in (1.0, -1.0):
        error = difference(model, start, at(-3.0, trial["roll_to"], sign))
        np.testing.assert_allclose(error, [0, 0, 0, 0, 0, trial["yaw_error"], trial["error"]], atol=1e-9)
        np.testing.assert_allclose(difference(model, start, at(3.0, 3.1, sign)), np.zeros(7), atol=1e-14)
    assert np.all(np.isinf(model.lower)) and np.all(np.isinf(model.upper))


def test_quaternions_of_any_length_and_sign_are_the_same_configuration(every_type):
    q, v = sample(every_type, 11)
    starts = [
        every_type.tree.q_offset[i] + 3 * (k == "floating")
        for i, k in enumerate(every_type.tree.joint_types)
        if k in ("floating", "spherical")
    ]
    for scale in (2.0, 1e-3, -1.0, 1e-30, 1e30):
        scaled = q
        for start in starts:
            scaled = scaled.at[start : start + 4].multiply(scale)
        assert_same_configuration(every_type, q, scaled)
        assert_same_configuration(every_type, integrate(every_type, q, v), integrate(every_type, scaled, v))
        if scale > 0:
            np.testing.assert_allclose(normalize(every_type, scaled), normalize(every_type, q), atol=1e-15)


def test_normalize_turns_zero_quaternions_into_the_identity(every_type):
    zero = jnp.zeros(every_type.nq)
    np.testing.assert_array_equal(normalize(every_type, zero), neutral(every_type))
    assert np.all(np.isfinite(jax.jit(jax.jacobian(lambda q: normalize(every_type, q)))(zero)))


def test_zero_quaternions_are_refused_when_seen_and_flagged_when_not(every_type):
    q = neutral(every_type).at[3].set(0.0)
    with pytest.raises(InputError, match=r"q: the quaternion of joint 'root_joint', q\[3:7\], is zero"):
        integrate(every_type, q, jnp.zeros(every_type.nv))
    with pytest.raises(InputError, match=r"q1: the quaternion"):
        difference(every_type, neutral(every_type), q)
    status = jax.jit(lambda q: configuration_status(every_type, q))
    assert status(q) == Status.ZERO_QUATERNION and status(q).dtype == jnp.int32
    assert status(neutral(every_type)) == Status.OK
    assert status(q.at[0].set(jnp.nan)) == Status.NON_FINITE
    assert np.all(np.isfinite(jax.jit(lambda q: integrate(every_type, q, jnp.ones(every_type.nv)))(q)))


# Random configurations


def test_random_configurations_keep_limits_and_have_unit_quaternions(every_type):
    q = np.asarray(jax.vmap(lambda k: random_configuration(every_type, k))(jax.random.split(jax.random.key(0), 500)))
    assert np.all(np.isfinite(q))
    assert np.all(q >= np.asarray(every_type.lower)) and np.all(q <= np.asarray(every_type.upper))
    i = every_type.tree.q_offset[every_type.joint("prismatic1")]
    assert q[:, i].min() < -1.9 and q[:, i].max() > 2.9 and abs(q[:, i].mean() - 0.5) < 0.2
    np.testing.assert_allclose(np.linalg.norm(q[:, 3:7], axis=1), 1, atol=1e-15)
    # uniform rotations: the quaternion has no direction and its entries have variance 1/4
    assert np.abs(q[:, 3:7].mean(0)).max() < 0.1
    np.testing.assert_allclose((q[:, 3:7] ** 2).mean(0), 0.25, atol=0.03)
    for name, offset in (("continuous1", 0), ("planar1", 2)):
        angle = q[:, every_type.tree.q_offset[every_type.joint(name)] + offset]
        assert np.abs(angle).max() <= np.pi and np.std(angle) > 1.6


def test_one_sided_and_absent_limits_give_finite_configurations():
    joint = (
        '<joint name="{0}" type="prismatic"><parent link="{1}"/><child link="{0}"/>'
        '<limit lower="{2}" upper="{3}" effort="1" velocity="1"/></joint>'
    )
    model = from_urdf(
        '<robot name="r"><link name="w"/><link name="a"/><link name="b"/><link name="c"/>'
        + joint.format("a", "w", 5, "inf")
        + joint.format("b", "a", "-inf", -5)
        + joint.format("c", "b", "-inf", "inf")
        + "</robot>"
    )
    q = jax.vmap(lambda k: random_configuration(model, k))(jax.random.split(jax.random.key(1), 100))
    assert (
        np.all(np.isfinite(q)) and np.all(q[:, 0] >= 5) and np.all(q[:, 1] <= -5) and q[:, 2].min() < 0 < q[:, 2].max()
    )
    gradient = jax.grad(lambda low: random_configuration(_with_lower(model, low), jax.random.key(2)).sum())(model.lower)
    assert np.all(np.isfinite(gradient))


def _with_lower(model, lower):
    return eqx.tree_at(lambda m: m.lower, model, lower)


# Shapes, dtypes, transformations


@pytest.mark.parametrize("shape", [(2,), (4,), (), (1,), (1, 3), (3, 1)])
def test_wrong_shapes_are_refused_with_name_and_both_shapes(shape):
    """Trial T41."""
    model = from_urdf(TRIALS / "T22.urdf")
    good, bad = jnp.zeros(3), jnp.zeros(shape)
    calls = {
        "q": [
            lambda x: integrate(model, x, good),
            lambda x: normalize(model, x),
            lambda x: check_configuration(model, x),
            lambda x: coordinate_rates(model, x, good),
        ],
        "v": [lambda x: integrate(model, good, x)],
        "q0": [lambda x: difference(model, x, good)],
        "q1": [lambda x: interpolate(model, good, x, 0.5)],
    }
    for name, functions in calls.items():
        for function in functions:
            for wrapped in (function, jax.jit(function)):
                with pytest.raises(InputError, match=rf"^{name}: wanted shape \(3,\), given shape ") as caught:
                    wrapped(bad)
                assert str(shape) in str(caught.value)


def test_integers_are_refused():
    model = from_urdf(TRIALS / "T22.urdf")
    with pytest.raises(InputError, match="q: wanted floating-point numbers, given dtype int"):
        integrate(model, jnp.zeros(3, int), jnp.zeros(3))


def test_lists_of_floats_are_accepted():
    model = from_urdf(TRIALS / "T22.urdf", dtype=jnp.float32)
    assert integrate(model, [0.1, 0.2, 0.3], [1.0, 0.0, 0.0]).dtype == jnp.float32


def test_single_precision_stays_single_and_accurate(every_type):
    single = every_type.astype(jnp.float32)
    q, v = sample(every_type, 12)
    q32, v32 = q.astype(jnp.float32), v.astype(jnp.float32)
    moved = integrate(single, q32, v32)
    assert moved.dtype == jnp.float32 and neutral(single).dtype == jnp.float32
    assert random_configuration(single, jax.random.key(0)).dtype == jnp.float32
    np.testing.assert_allclose(moved, integrate(every_type, q, v), atol=2e-6)
    back = difference(single, q32, moved)
    assert back.dtype == jnp.float32
    np.testing.assert_allclose(back, v, atol=4e-6)
    assert np.all(np.isfinite(jax.jit(jax.jacobian(lambda x: difference(single, q32, x)))(q32)))


def test_batches_go_through_vmap(every_type):
    samples = [sample(every_type, seed) for seed in range(4)]
    q, v = jnp.stack([s[0] for s in samples]), jnp.stack([s[1] for s in samples])
    moved = jax.vmap(lambda q, v: integrate(every_type, q, v))(q, v)
    for i in range(4):
        np.testing.assert_allclose(moved[i], integrate(every_type, q[i], v[i]), atol=1e-15)
    gradient = jax.jit(jax.vmap(jax.grad(lambda v, q: integrate(every_type, q, v).sum())))(v, q)
    assert gradient.shape == v.shape and np.all(np.isfinite(gradient))


def test_the_program_does_not_grow_with_the_number_of_joints():
    def size(n):
        model = random_model(1, n, types=("revolute", "prismatic", "continuous"), root="floating", fixed=0.0)
        q, v = neutral(model), jnp.zeros(model.nv)
        return len(jax.make_jaxpr(lambda q, v: difference(model, q, integrate(model, q, v)))(q, v).eqns)

    assert size(60) == size(12)


def test_a_robot_that_cannot_move_has_an_empty_configuration():
    model = from_urdf('<robot name="post"><link name="post"/></robot>')
    q = neutral(model)
    assert q.shape == (0,)
    assert integrate(model, q, jnp.zeros(0)).shape == difference(model, q, q).shape == normalize(model, q).shape == (0,)
    assert random_configuration(model, jax.random.key(0)).shape == (0,)
    assert configuration_status(model, q) == Status.OK
