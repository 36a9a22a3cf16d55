"""Representations, cross products and inertia, against differentiation in time and Pinocchio."""

import itertools

import closeness
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from jaxdyn.errors import InputError
from jaxdyn.math import SE3, Representation, SpatialInertia, se3, so3, spatial

LOCAL, MIXED, WORLD = Representation.LOCAL, Representation.MIXED, Representation.WORLD
ALL_PAIRS = list(itertools.product(Representation, Representation))


def assert_close(found, expected, tol=1e-13):
    closeness.assert_close(found, expected, tol)


# --- representations, from a motion in time -------------------------------------------------------------------------


def pose_at(t):
    """A frame that moves and turns in no special way."""
    turn = jnp.array([0.4 + 0.7 * t, -0.3 * t + 0.5 * t**2, 0.2 - 1.1 * t**3])
    place = jnp.array([1.0 + 0.3 * t - 0.8 * t**2, -0.5 + t**3, 0.7 + 0.9 * t + 0.2 * t**2])
    return SE3(so3.exp(turn), place)


def twists_at(t):
    """Twist in each representation, by definition: from the pose and its derivative in time."""
    pose, rate = jax.jvp(pose_at, (t,), (jnp.ones_like(t),))
    R, p = pose.rotation, pose.translation
    w, v = so3.vee(rate.rotation @ R.T), rate.translation
    return {
        LOCAL: jnp.concatenate([R.T @ v, R.T @ w]),
        MIXED: jnp.concatenate([v, w]),
        WORLD: jnp.concatenate([v + jnp.cross(p, w), w]),
    }


@jax.jit
def motion_at(t):
    twists = twists_at(t)
    _, accelerations = jax.jvp(lambda t: tuple(twists_at(t).values()), (t,), (jnp.ones_like(t),))
    p_ddot = jax.jvp(lambda t: jax.jvp(pose_at, (t,), (1.0 + 0 * t,))[1].translation, (t,), (1.0 + 0 * t,))[1]
    return pose_at(t), tuple(twists.values()), accelerations, p_ddot


@pytest.fixture(scope="module")
def motion():
    pose, twists, accelerations, p_ddot = motion_at(jnp.array(0.6))
    return (
        pose,
        dict(zip(twists_at(jnp.array(0.6)), twists, strict=True)),
        dict(zip(Representation, accelerations, strict=True)),
        p_ddot,
    )


def test_the_acceleration_of_this_motion_is_the_difference_of_its_twists(motion):
    h = 1e-5
    _, before, _, _ = motion_at(jnp.array(0.6 - h))
    _, after, _, _ = motion_at(jnp.array(0.6 + h))
    for representation, a, b in zip(Representation, before, after, strict=True):
        assert_close(motion[2][representation], (np.asarray(b) - np.asarray(a)) / (2 * h), 1e-8)


@pytest.mark.parametrize(("source", "target"), ALL_PAIRS)
def test_twists_and_accelerations_convert_as_they_follow_from_the_motion(motion, source, target):
    pose, twists, accelerations, _ = motion
    assert_close(spatial.convert_twist(twists[source], pose, source, target), twists[target], 1e-14)
    found = spatial.convert_acceleration(accelerations[source], twists[source], pose, source, target)
    assert_close(found, accelerations[target], 3e-14)


@pytest.mark.parametrize(("source", "target"), ALL_PAIRS)
def test_wrenches_convert_so_that_power_is_the_same(motion, source, target):
    pose, twists, _, _ = motion
    wrench = jnp.asarray(np.random.default_rng(0).normal(size=6))
    there = spatial.convert_wrench(wrench, pose, source, target)
    assert_close(there @ twists[target], wrench @ twists[source], 1e-13)
    assert_close(spatial.convert_wrench(there, pose, target, source), wrench, 1e-14)


def test_a_pure_force_at_the_frame_has_a_moment_only_about_the_origin_of_the_world(motion):
    pose = motion[0]
    force = jnp.array([1.0, 2.0, -3.0, 0.0, 0.0, 0.0])
    world = spatial.convert_wrench(force, pose, MIXED, WORLD)
    assert_close(world[:3], force[:3], 0)
    assert_close(world[3:], np.cross(pose.translation, force[:3]))
    assert_close(spatial.convert_wrench(force, pose, MIXED, LOCAL)[3:], np.zeros(3), 0)


def test_local_to_world_is_the_action_of_the_pose(motion):
    pose, twists, accelerations, _ = motion
    assert_close(pose.action_on_twist(twists[LOCAL]), twists[WORLD], 1e-14)
    assert_close(pose.action_on_twist(accelerations[LOCAL]), accelerations[WORLD], 3e-14)
    wrench = jnp.arange(6.0)
    assert_close(pose.action_on_wrench(wrench), spatial.convert_wrench(wrench, pose, LOCAL, WORLD), 1e-14)


@pytest.mark.parametrize("source", Representation)
def test_the_classical_acceleration_is_that_of_the_origin_in_body_axes(motion, source):
    pose, twists, accelerations, p_ddot = motion
    found = spatial.classical_acceleration(accelerations[source], twists[source], pose, source)
    assert_close(found[:3], np.asarray(pose.rotation).T @ np.asarray(p_ddot), 3e-14)
    assert_close(found[3:], accelerations[LOCAL][3:], 1e-14)


def test_accelerations_agree_with_pinocchio():
    model = pin.Model()
    joint = model.addJoint(0, pin.JointModelFreeFlyer(), pin.SE3.Identity(), "root")
    frame = model.addFrame(pin.Frame("f", joint, pin.SE3(pin.exp3(np.array([0.3, 0.2, -1])), np.ones(3)), pin.OP_FRAME))
    data, rng = model.createData(), np.random.default_rng(1)
    v, a = rng.normal(size=(2, 6))
    q = pin.normalize(model, rng.normal(size=7))
    pin.forwardKinematics(model, data, q, v, a)
    oracle = pin.updateFramePlacement(model, data, frame)
    pose = SE3(jnp.asarray(oracle.rotation), jnp.asarray(oracle.translation))
    axes = pin.ReferenceFrame
    twist = jnp.asarray(pin.getFrameVelocity(model, data, frame, axes.LOCAL).vector)
    local = jnp.asarray(pin.getFrameAcceleration(model, data, frame, axes.LOCAL).vector)
    classical = pin.getFrameClassicalAcceleration(model, data, frame, axes.LOCAL).vector
    mixed = pin.getFrameClassicalAcceleration(model, data, frame, axes.LOCAL_WORLD_ALIGNED).vector
    world = pin.getFrameAcceleration(model, data, frame, axes.WORLD).vector
    assert_close(spatial.classical_acceleration(local, twist, pose, LOCAL), classical)
    assert_close(spatial.convert_acceleration(local, twist, pose, LOCAL, MIXED), mixed)
    assert_close(spatial.convert_acceleration(local, twist, pose, LOCAL, WORLD), world)


# --- cross products -------------------------------------------------------------------------------------------------


def test_cross_products_agree_with_pinocchio_and_are_dual():
    x, y = np.random.default_rng(2).normal(size=(2, 6))
    a, b = jnp.asarray(x), jnp.asarray(y)
    assert_close(spatial.motion_cross(a, b), pin.Motion(x).cross(pin.Motion(y)).vector)
    assert_close(spatial.force_cross(a, b), pin.Motion(x).cross(pin.Force(y)).vector)
    assert_close(spatial.motion_cross_matrix(a) @ b, spatial.motion_cross(a, b))
    assert_close(spatial.force_cross_matrix(a) @ b, spatial.force_cross(a, b))
    assert_close(spatial.force_cross_matrix(a), -spatial.motion_cross_matrix(a).T, 0)


def test_the_motion_cross_product_is_the_derivative_of_the_adjoint():
    x, y = jnp.asarray(np.random.default_rng(3).normal(size=(2, 6)))

    def moved(t):
        return (se3.exp(t * x).action_on_twist(y), se3.exp(t * x).action_on_wrench(y))

    _, rates = jax.jit(lambda t: jax.jvp(moved, (t,), (jnp.ones_like(t),)))(jnp.array(0.0))
    assert_close(rates[0], spatial.motion_cross(x, y))
    assert_close(rates[1], spatial.force_cross(x, y))


# --- inertia --------------------------------------------------------------------------------------------------------


def random_inertia(seed):
    rng = np.random.default_rng(seed)
    principal = rng.uniform(1, 1.5, 3)
    R = pin.exp3(rng.normal(size=3))
    oracle = pin.Inertia(rng.uniform(0.5, 3), rng.normal(size=3), R @ np.diag(principal) @ R.T)
    return oracle, SpatialInertia(jnp.asarray(oracle.mass), jnp.asarray(oracle.lever), jnp.asarray(oracle.inertia))


def test_inertia_agrees_with_pinocchio():
    oracle, inertia = random_inertia(0)
    x = np.random.default_rng(4).normal(size=6)
    assert_close(inertia.as_matrix(), oracle.matrix())
    assert_close(inertia.apply(jnp.asarray(x)), (oracle * pin.Motion(x)).vector)
    assert_close(inertia.kinetic_energy(jnp.asarray(x)), oracle.vtiv(pin.Motion(x)) / 2)
    assert_close(inertia.point_parameters(), oracle.toDynamicParameters())
    placement = pin.SE3(pin.exp3(np.array([0.3, -2.0, 0.5])), np.array([1.0, 2.0, 3.0]))
    pose = SE3(jnp.asarray(placement.rotation), jnp.asarray(placement.translation))
    assert_close(inertia.transform(pose).as_matrix(), placement.act(oracle).matrix())
    other_oracle, other = random_inertia(1)
    assert_close((inertia + other).as_matrix(), (oracle + other_oracle).matrix())


def test_moving_a_body_transforms_its_matrix_by_the_adjoint_and_keeps_its_energy():
    _, inertia = random_inertia(2)
    pose = se3.exp(jnp.asarray(np.random.default_rng(5).normal(size=6)))
    back, x = pose.inverse().adjoint(), jnp.arange(6.0)
    assert_close(inertia.transform(pose).as_matrix(), back.T @ inertia.as_matrix() @ back)
    assert_close(inertia.transform(pose).kinetic_energy(pose.action_on_twist(x)), inertia.kinetic_energy(x), 1e-12)


def test_conversions_of_inertia_are_inverse():
    _, inertia = random_inertia(3)
    for back in (
        SpatialInertia.from_matrix(inertia.as_matrix()),
        SpatialInertia.from_point_parameters(inertia.point_parameters()),
    ):
        for found, expected in zip(jax.tree.leaves(back), jax.tree.leaves(inertia), strict=True):
            assert_close(found, expected)


def test_massless_bodies_add_without_nan_in_value_or_gradient():
    _, inertia = random_inertia(4)
    nothing = SpatialInertia.zero()
    assert_close((inertia + nothing).as_matrix(), inertia.as_matrix())
    assert_close((nothing + nothing).as_matrix(), np.zeros((6, 6)), 0)

    def total(a, b):
        return jnp.sum((a + b).as_matrix() ** 2) + jnp.sum((a + b).com)

    with jax.debug_nans(True):
        for derivative in (jax.grad(total, (0, 1)), jax.jacfwd(total, (0, 1))):
            for a, b in ((inertia, nothing), (nothing, nothing)):
                assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.jit(derivative)(a, b)))
        assert np.isfinite(jax.jit(jax.jacrev(SpatialInertia.from_matrix))(jnp.zeros((6, 6))).com).all()


def inertias(*rows):
    mass, moments = np.array([r[0] for r in rows], float), np.array([np.diag(r[1]) for r in rows], float)
    return SpatialInertia(jnp.asarray(mass), jnp.ones((len(rows), 3)), jnp.asarray(moments))


def test_a_body_is_physical_if_some_distribution_of_mass_has_its_inertia():
    real = inertias((1, (2, 2, 2)), (1, (1, 1, 0)), (1, (1, 2, 3)), (0, (0, 0, 0)))  # ball, rod, plate, nothing
    assert real.is_physical().all()
    assert spatial.consistency_report(real) == ()
    turned = real.transform(se3.exp(jnp.broadcast_to(jnp.arange(6.0), (4, 6))))
    assert turned.is_physical().all()
    unreal = inertias((-1, (2, 2, 2)), (1, (2, 2, -0.1)), (1, (1, 2, 3.1)))
    assert not unreal.is_physical().any()
    assert unreal.is_physical(tolerance=2.0).all()


def test_the_report_names_each_fault_of_each_body():
    bodies = inertias((1, (1, 2, 3)), (-2, (1, 1, 1)), (1, (1, 1, -0.1)), (1, (1, 2, 4)), (np.nan, (1, 1, 1)))
    report = spatial.consistency_report(bodies, ("fine", "upside_down", "hollow", "flat", "undefined"))
    assert [line.split(":")[0] for line in report] == ["upside_down", "hollow", "hollow", "flat", "undefined"]
    assert "mass -2 is negative" in report[0]
    assert "positive semidefinite" in report[1] and "triangle" in report[2] and "triangle" in report[3]
    single = SpatialInertia(jnp.array(-1.0), jnp.zeros(3), jnp.eye(3))
    assert spatial.consistency_report(single) == ("body 0: mass -1 is negative",)


# --- shapes and types -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_batch_axes_lead_and_the_dtype_is_kept(dtype):
    def everything(x, y, mass):
        pose = se3.exp(x)
        inertia = SpatialInertia(mass, x[..., :3], so3.exp(y[..., :3]))
        converted = [
            (
                spatial.convert_twist(x, pose, *pair),
                spatial.convert_wrench(x, pose, *pair),
                spatial.convert_acceleration(x, y, pose, *pair),
            )
            for pair in ALL_PAIRS
        ]
        products = spatial.motion_cross(x, y), spatial.force_cross_matrix(x), spatial.classical_acceleration(x, y, pose)
        bodies = inertia.transform(pose) + inertia, SpatialInertia.from_matrix(inertia.as_matrix())
        numbers = inertia.apply(x), inertia.kinetic_energy(x), inertia.point_parameters(), inertia.consistency_margins()
        return converted, products, bodies, SpatialInertia.from_point_parameters(inertia.point_parameters()), numbers

    def shapes(*batch):
        return [jax.ShapeDtypeStruct((*batch, *core), dtype) for core in ((6,), (6,), ())]

    single, batch = jax.eval_shape(everything, *shapes()), jax.eval_shape(everything, *shapes(5, 2))
    for one, many in zip(jax.tree.leaves(single), jax.tree.leaves(batch), strict=True):
        assert one.dtype == many.dtype == dtype
        assert many.shape == (5, 2, *one.shape)


def test_one_pose_serves_many_twists():
    pose = se3.exp(jnp.arange(6.0))
    x = jnp.asarray(np.random.default_rng(6).normal(size=(4, 6)))
    for pair in ALL_PAIRS:
        for convert in (spatial.convert_twist, spatial.convert_wrench):
            assert_close(convert(x, pose, *pair)[2], convert(x[2], pose, *pair), 1e-15)
        found = spatial.convert_acceleration(x, 2.0 * x, pose, *pair)
        assert_close(found[2], spatial.convert_acceleration(x[2], 2.0 * x[2], pose, *pair), 1e-14)


@pytest.mark.parametrize("wrong", ["local", "body", None, 0])
def test_what_is_no_representation_is_refused(wrong):
    with pytest.raises(InputError, match="representation: wanted one of Representation"):
        spatial.check_representation(Representation.MIXED, wrong)


def test_a_representation_may_be_a_static_argument():
    f = jax.jit(lambda x, target: spatial.convert_twist(x, se3.identity(), LOCAL, target), static_argnums=1)
    assert_close(f(jnp.ones(6), MIXED), np.ones(6), 0)
    assert {Representation("local"), Representation("mixed"), Representation("world")} == set(Representation)
