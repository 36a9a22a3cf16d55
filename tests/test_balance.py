"""Whole-body control in closed loop: a humanoid on compliant ground reaches and keeps its balance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import tasks

FEET = ("left_foot", "right_foot")
BY = np.array([0.45, 0.1, -0.1])
DT = 0.005

pytestmark = pytest.mark.slow


class Humanoid(eqx.Module):
    """The robot on its ground, its posture, and where things are in it."""

    model: jaxdyn.Model
    system: jaxdyn.FloatingBaseDynamics
    posture: jax.Array
    foot: jax.Array
    hand: jax.Array
    com: jax.Array

    @property
    def start(self):
        return jaxdyn.state_from_configuration(self.model, self.posture)


@jax.jit
def places(model, q):
    kin = jaxdyn.forward_kinematics(model, q)
    foot, hand = (jaxdyn.frame_pose(model, kin, name).translation for name in ("left_foot", "right_hand"))
    return foot, hand, jaxdyn.center_of_mass(model, kin)


@pytest.fixture(scope="module")
def humanoid():
    model = jaxdyn.load("humanoid", root="floating", dtype=jnp.float64)
    model = eqx.tree_at(lambda m: m.armature, model, model.armature.at[6:].set(0.1))
    law = jaxdyn.Coulomb(stiffness=6e4, damping=800.0, friction=0.8, slip_velocity=0.03)
    sole = jnp.array([[x, y, 0.0] for x in (-0.1, 0.1) for y in (-0.045, 0.045)])
    contacts = [jaxdyn.CompliantContact(foot, jaxdyn.ContactPoints(law, sole)) for foot in FEET]
    system = jaxdyn.FloatingBaseDynamics(model, contacts, terrain=jaxdyn.FlatTerrain())
    leg = {"hip_pitch": -0.3, "knee": 0.6, "ankle_pitch": -0.3, "elbow": -0.6}
    bent = {f"{side}_{joint}": angle for side in ("left", "right") for joint, angle in leg.items()}
    q = jaxdyn.configuration(model, bent)
    sink = float(model.total_mass) * 9.80665 / 8 / 6e4
    q = q.at[2].add(-places(model, q)[0][2] - sink)
    return Humanoid(model, system, q, *places(model, q))


class Reach(eqx.Module):
    robot: Humanoid
    weights: jax.Array
    duration: float = 1.5

    def __call__(self, x, t):
        robot, (balance, reach, rest) = self.robot, self.weights
        q, v = jaxdyn.configuration_from_state(robot.model, x)
        s = jnp.clip(t / self.duration, 0.0, 1.0)
        wanted = robot.hand + s**3 * (10 - 15 * s + 6 * s**2) * BY
        stack = (
            balance * tasks.CoMTask(robot.com.at[0].set(robot.foot[0] + 0.01), gain=40.0)
            + reach * tasks.PositionTask("right_hand", wanted, gain=60.0)
            + rest * tasks.PosturalTask(robot.posture, gain=30.0)
        ) << tasks.TorqueLimits()
        edge = jnp.array([0.09, 0.04])
        for name in FEET:
            stack = stack << tasks.FrictionCone(name, 0.6) << tasks.CenterOfPressureLimits(name, -edge, edge)
        contacts = [tasks.Contact(name, damping=20.0) for name in FEET]
        return tasks.inverse_dynamics(stack, robot.model, q, v, contacts, mode="soft").torque[6:]


def simulate(robot, weights, steps, duration=1.5):
    def look(x, u, t):
        q, _ = jaxdyn.configuration_from_state(robot.model, x)
        _, hand, com = places(robot.model, q)
        return q[2], hand, com, u, robot.system.contact_wrenches(x)

    options = {"substeps": 10, "save_every": 5, "checkpoint": "none", "record": look}
    controller = Reach(robot, weights, duration)
    return jaxdyn.rollout(robot.system, jaxdyn.SemiImplicitEuler(), robot.start, controller, DT, steps, **options)


def test_a_humanoid_reaches_half_a_metre_and_does_not_fall(humanoid):
    run = eqx.filter_jit(simulate)
    height, hand, com, torque, wrenches = run(humanoid, jnp.array([10.0, 3.0, 0.02]), 500).record
    assert height.min() > 0.95 * height[0]
    assert jnp.linalg.norm(hand[-1] - humanoid.hand - BY) < 0.03
    assert jnp.linalg.norm(hand[-1] - hand[-10]) < 2e-3  # it has come to rest
    assert jnp.abs(com[-1, :2] - jnp.array([humanoid.foot[0] + 0.01, 0])).max() < 0.02
    limit = np.asarray(humanoid.model.effort_limit[6:])
    assert (np.abs(torque) <= limit * (1 + 1e-6)).all()
    assert wrenches[:, :, 2].min() > 50  # both feet stay loaded
    weight = float(humanoid.model.total_mass) * 9.80665
    np.testing.assert_allclose(wrenches[-1, :, 2].sum(), weight, rtol=0.01)

    # The centre of mass is what keeps it up.
    fallen = run(humanoid, jnp.array([0.0, 3.0, 0.02]), 500).record[0]
    assert not fallen[-1] > 0.7 * height[0]


def test_derivatives_by_the_weights_go_through_the_closed_loop(humanoid):
    """Forward mode through every program and contact, against central differences."""
    weights = jnp.log(jnp.array([10.0, 1.0, 0.05]))

    def end(logarithms):
        record = simulate(humanoid, jnp.exp(logarithms), 40, duration=0.2).record
        return record[1][-1], record[3][-1]

    value = jax.jit(end)
    slope = jax.jit(jax.jacfwd(end))(weights)
    h = 1e-4
    for k in range(3):
        step = h * jnp.eye(3)[k]
        up, down = value(weights + step), value(weights - step)
        for part, forward, backward in zip(slope, up, down, strict=True):
            difference = (forward - backward) / (2 * h)
            scale = max(float(jnp.abs(part).max()), 1e-3)
            np.testing.assert_allclose(part[:, k], difference, atol=2e-3 * scale)
