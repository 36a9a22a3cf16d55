"""Anchors as state: stick and slip, touch-down, lift-off, and what is compiled and differentiated of it."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from floating_base_data import assert_tree_close

from jaxdyn.contact import (
    Brush,
    CompliantContact,
    ContactPatch,
    ContactPoints,
    ContactSchedule,
    Coulomb,
    FlatTerrain,
    StickSlip,
)
from jaxdyn.errors import InputError
from jaxdyn.math import SE3, so3
from jaxdyn.systems import (
    AnchoredDynamics,
    AnchoredState,
    EmbeddedRK4,
    FloatingBaseDynamics,
    Input,
    LieMidpoint,
    SemiImplicitEuler,
    State,
    batch_rollout,
    rollout,
    step,
)

G, MASS, STIFF = 9.80665, 10.0, 1e6
EULER = SemiImplicitEuler()


def stick_slip(friction=0.5, stiffness=1e8):
    return StickSlip(STIFF, 1e4, friction, stiffness, 0.6 * np.sqrt(stiffness * MASS))


def point(law, slope=0.0, schedule=None, dtype=jnp.float64):
    """The 10 kg box that touches the ground with its centre of mass: a point mass. A slope is one of gravity."""
    model = data.model("box", dtype)
    contact = CompliantContact(model.body_names[0], law)
    gravity = jnp.stack([jnp.sin(slope), jnp.zeros_like(slope), -jnp.cos(slope)]) * G if np.ndim(slope) == 0 else slope
    return FloatingBaseDynamics(model, contact, gravity=gravity.astype(dtype), terrain=FlatTerrain(), schedule=schedule)


def moving(velocity=(0.0, 0.0, 0.0), position=(0.0, 0.0, -MASS * G / STIFF), spin=0.0, dtype=jnp.float64):
    parts = [*velocity, 0.0, 0.0, spin], [], position, np.eye(3), []
    return State(*(jnp.asarray(p, dtype) for p in parts))


# One program for everything that slides: 0.3 s in steps of 0.1 ms.
@eqx.filter_jit
def slide(friction, slope, velocity):
    system = AnchoredDynamics(point(stick_slip(friction), slope))
    x = system.start(moving())
    x = eqx.tree_at(lambda x: x.robot.twist, x, jnp.concatenate([velocity, jnp.zeros(3)]))
    path = rollout(system, LieMidpoint(), x, None, 1e-4, 3000, checkpoint="none", save_every=10)
    return path.time, path.state.robot.position, path.state.robot.twist, path.state.anchors[0]


def test_a_sliding_box_stops_where_and_when_dry_friction_says():
    """T21."""
    time, position, twist, anchor = slide(jnp.asarray(0.5), jnp.asarray(0.0), jnp.array([1.0, 0.0, 0.0]))
    stopped = int(np.argmax(np.asarray(twist[:, 0]) <= 0))
    assert position[:, 0].max() == pytest.approx(1 / (2 * 0.5 * G), abs=2e-6)
    assert time[stopped] == pytest.approx(1 / (0.5 * G), abs=1.1e-3)
    # it rests on the spring, which holds no force any more
    assert np.abs(twist[-1]).max() < 1e-9
    assert anchor.slip[-1, 0, 0] == pytest.approx(float(position[-1, 0]), abs=1e-9)


@pytest.mark.parametrize("slip_velocity, distance", [(1e-3, 0.10197244), (1e-2, 0.10203074)])
def test_regularised_friction_slides_a_little_further(slip_velocity, distance):
    """T21."""
    law = Coulomb(STIFF, 1e4, 0.5, slip_velocity)
    path = rollout(point(law, jnp.asarray(0.0)), LieMidpoint(), moving((1.0, 0, 0)), None, 5e-5, 6000, save_every=None)
    assert path.final.position[0] == pytest.approx(distance, abs=3e-8)


def test_on_a_slope_it_sticks_without_creeping_below_the_angle_of_friction_and_slides_above():
    still = jnp.zeros(3)
    slope = 0.2  # tan < 0.5
    _, position, twist, _ = slide(jnp.asarray(0.5), jnp.asarray(slope), still)
    assert np.abs(twist[-1]).max() < 1e-10
    assert position[-1, 0] == pytest.approx(MASS * G * np.sin(slope) / 1e8, rel=1e-6)
    assert abs(position[-1, 0] - position[-50, 0]) < 1e-12  # Coulomb(slip_velocity=1e-3) creeps 2e-5 m meanwhile
    slope = 0.7
    time, _, twist, anchor = slide(jnp.asarray(0.5), jnp.asarray(slope), still)
    pull = np.diff(np.asarray(twist[:, 0])) / np.diff(np.asarray(time))
    np.testing.assert_allclose(pull[200:], G * (np.sin(slope) - 0.5 * np.cos(slope)), rtol=1e-3)
    assert anchor.slip[-1, 0, 0] > 0.05


@pytest.mark.slow
def test_friction_has_the_derivatives_of_sliding():
    velocity = jnp.array([1.5, 0.2, 0.0])

    def end(friction):
        return slide(friction, jnp.asarray(0.0), velocity)[1][-1, :2]

    one = jnp.ones(())
    by_friction = jax.jvp(end, (0.3 * one,), (one,))[1]
    np.testing.assert_allclose(by_friction, -0.5 * G * 0.3**2 * velocity[:2] / np.hypot(1.5, 0.2), rtol=2e-3)


def test_a_spinning_sole_is_braked_by_the_friction_of_all_its_points():
    model = data.model("box")
    law = ContactPatch(StickSlip(1e7, 0.0, 0.5, 1e9), 0.3, 0.2, quadrature=6)
    system = AnchoredDynamics(FloatingBaseDynamics(model, CompliantContact("sole", law)))
    depth = MASS * G / (1e7 * 0.06)
    x = system.start(moving(position=(0.0, 0.0, 0.05 - depth), spin=2.0))
    x = rollout(system, EULER, x, None, 1e-4, 100, save_every=None).final
    wrench = system.contact_wrenches(x)[0]
    nodes, weights = np.polynomial.legendre.leggauss(6)
    arms = np.hypot(*np.meshgrid(0.15 * nodes, 0.1 * nodes, indexing="ij"))
    torque = 0.5 * MASS * G * np.sum(np.outer(weights, weights) / 4 * arms)
    assert wrench[5] == pytest.approx(-torque, rel=1e-3)
    assert wrench[2] == pytest.approx(MASS * G, rel=1e-2)


# Touch-down and lift-off


def test_a_foot_is_anchored_where_it_lands_and_again_after_it_was_in_the_air():
    system = AnchoredDynamics(point(stick_slip(5.0, 1e6), jnp.asarray(0.0)))
    x = system.start(moving((0.5, 0.0, 0.0), (1.0, 2.0, 0.02)))
    np.testing.assert_allclose(x.anchors[0].position, [1.0, 2.0, 0.0])
    path = rollout(system, EULER, x, None, 1e-3, 200)
    height, anchor = np.asarray(path.state.robot.position[:, 2]), path.state.anchors[0]
    airborne = height > 0
    landing = int(np.argmin(airborne))
    assert 60 < landing < 67
    np.testing.assert_allclose(anchor.position[:, 0][airborne], path.state.robot.position[:, 0][airborne])
    np.testing.assert_allclose(anchor.position[:, 2], 0, atol=0)
    touching = slice(landing, landing + int(np.argmax(airborne[landing:])) or None)
    np.testing.assert_allclose(anchor.position[touching, 0], path.state.robot.position[landing - 1, 0], atol=1e-15)
    assert np.abs(path.final.robot.twist[0]) < 1e-2


def test_a_contact_that_a_schedule_switches_on_is_anchored_where_it_is_then():
    schedule = ContactSchedule.of_phases([[(0.1, 0), (0.05, 1), (0.1, 0)]])
    system = AnchoredDynamics(point(ContactPoints(Brush(1e3, 0.0)), jnp.zeros(3), schedule))
    x = system.start(moving((0.4, 0.0, 0.0), (0.0, 0.0, -0.01)))
    path = rollout(system, EULER, x, None, 1e-3, 200)
    anchor, position = np.asarray(path.state.anchors[0].position[:, 0]), np.asarray(path.state.robot.position[:, 0])
    np.testing.assert_array_equal(anchor[:99], position[:99])
    np.testing.assert_allclose(anchor[100:149], 0.04, rtol=1e-9)
    np.testing.assert_array_equal(anchor[150:], position[150:])
    assert path.state.robot.twist[149, 0] < 0.4


def test_a_brush_holds_from_touch_down_to_lift_off_and_nothing_in_the_air():
    system = AnchoredDynamics(point(ContactPoints(Brush(1e4, 0.0)), jnp.asarray(0.0)))
    x = system.start(moving((0.5, 0.0, 0.0), (0.0, 0.0, 0.02)))
    assert not x.anchors[0].held and not system.contact_wrenches(x).any()
    path = rollout(system, EULER, x, None, 1e-3, 200, record=lambda x, u, t: system.contact_wrenches(x))
    height, held = (np.asarray(a) for a in (path.state.robot.position[:, 2], path.state.anchors[0].held))
    np.testing.assert_array_equal(held, height < 0)
    airborne = held == 0
    assert airborne[0] and airborne[-1] and 20 < (~airborne).sum() < 150
    assert not np.asarray(path.record)[airborne].any()
    fall = np.diff(np.asarray(path.state.robot.twist[:, 2]))[airborne[:-1]]
    np.testing.assert_allclose(fall, -1e-3 * G, rtol=1e-9)
    # tied to where it landed
    landed = path.state.anchors[0].position[~airborne]
    np.testing.assert_allclose(landed, np.broadcast_to(landed[0], landed.shape), atol=0)
    # given anchors: held if it is below their plane
    kept = system.start(moving(), touch_down=False).anchors[0]
    assert kept.held == 1 and not np.asarray(kept.position).any()


def test_a_tilted_sole_is_anchored_flat_with_its_heading_and_given_anchors_can_be_kept():
    law = ContactPatch(stick_slip(), 0.3, 0.2, quadrature=2)
    contact = CompliantContact("sole", law, null_position=[1.0, 2.0, 0.0])
    system = AnchoredDynamics(FloatingBaseDynamics(data.model("box"), contact))
    x = eqx.tree_at(lambda x: x.rotation, moving(), so3.from_rpy(jnp.array([0.1, -0.2, 0.7])))
    anchor = system.start(x).anchors[0]
    np.testing.assert_allclose(anchor.rotation, so3.from_rpy(jnp.array([0.0, 0.0, 0.7])), atol=1e-14)
    assert anchor.position[2] == 0 and anchor.slip.shape == (4, 3)
    # of all points the springs along the ground are at rest
    wrench = system.contact_wrenches(system.start(x))[0]
    np.testing.assert_allclose(wrench[:2], 0, atol=1e-6)
    kept = system.start(x, touch_down=False).anchors[0]
    np.testing.assert_allclose(kept.position, [1.0, 2.0, 0.0])


# Hygiene


def test_batches_equal_single_rollouts_and_stages_of_other_integrators_work():
    x = AnchoredDynamics(point(stick_slip(), jnp.asarray(0.0))).start(moving((1.0, 0.0, 0.0)))
    frictions = jnp.array([0.2, 0.5, 0.9])
    system = AnchoredDynamics(point(stick_slip(frictions), jnp.asarray(0.0)))
    states = jax.tree.map(lambda a: jnp.broadcast_to(a, (3, *a.shape)), x)
    result = batch_rollout(system, EULER, states, None, 1e-4, 50)
    for i, friction in enumerate(frictions):
        alone = rollout(AnchoredDynamics(point(stick_slip(friction), jnp.asarray(0.0))), EULER, x, None, 1e-4, 50)
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], result.trajectory.final), alone.final, 1e-11)
    plain = point(stick_slip(), jnp.asarray(0.0))
    derivative = AnchoredDynamics(plain)(x, None)
    assert_tree_close(derivative.robot, plain(x.robot, None), 1e-14)
    assert not any(np.asarray(a).any() for a in jax.tree.leaves(derivative.anchors))
    after = step(AnchoredDynamics(plain), EmbeddedRK4(), x, Input(jnp.zeros(0), plain.contacts), 1e-4)
    assert jax.tree.structure(after) == jax.tree.structure(x)


def end_of_slide(friction, stop_gradient=False):
    dtype = friction.dtype
    system = point(stick_slip(friction, 1e6), jnp.asarray(0.0), dtype=dtype)
    system = AnchoredDynamics(system, stop_gradient)
    x = system.start(moving((1.0, 0.0, 0.0), dtype=dtype))
    return rollout(system, EULER, x, None, 1e-3, 30, save_every=None).final


def test_single_precision_stays_single():
    single, double = (end_of_slide(jnp.asarray(0.5, dtype)) for dtype in (jnp.float32, jnp.float64))
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype("float32")}
    assert_tree_close(single.robot.position, double.robot.position, 1e-4)


@pytest.mark.slow
def test_gradients_can_be_kept_out_of_the_anchors():
    slopes = [jax.jacrev(lambda f, s=s: end_of_slide(f, s).anchors[0].slip)(jnp.asarray(0.5)) for s in (False, True)]
    forward = jax.jacfwd(lambda f: end_of_slide(f).anchors[0].slip)(jnp.asarray(0.5))
    np.testing.assert_allclose(slopes[0], forward, rtol=1e-9, atol=1e-12)
    assert np.abs(slopes[0]).max() > 1e-4 and not slopes[1].any()


def test_a_sliding_law_without_memory_is_cut_at_the_cone():
    contact = CompliantContact("f", stick_slip(0.5, 1e6))
    pose, twist = SE3(jnp.eye(3), jnp.array([0.3, 0.0, -1e-3])), jnp.zeros(6)
    np.testing.assert_allclose(contact.wrench(pose, twist)[:3], [-500, 0, 1000])
    shifted = eqx.tree_at(lambda c: c.slip, contact, jnp.array([[0.3 - 1e-4, 0.0, 0.0]]))
    np.testing.assert_allclose(shifted.wrench(pose, twist)[:3], [-100, 0, 1000], rtol=1e-9)


def test_mistakes_are_named():
    plain = point(stick_slip(), jnp.asarray(0.0))
    system, x = AnchoredDynamics(plain), moving()
    with pytest.raises(InputError, match=r"wanted an AnchoredState, given State; the system's start"):
        system.acceleration(x, None)
    with pytest.raises(InputError, match="wanted an anchor for each of the 1 contacts, given 0"):
        system.acceleration(AnchoredState(x, ()), None)
    with pytest.raises(InputError, match="slip: only a law with anchors that slide"):
        CompliantContact("sole", Brush(1.0, 1.0), slip=jnp.zeros((1, 3)))
    with pytest.raises(InputError, match=r"slip: wanted shape \(1, 3\)"):
        CompliantContact("sole", stick_slip(), slip=jnp.zeros((2, 3)))
