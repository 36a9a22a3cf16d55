"""What the commands choose by themselves: contacts, gains, constants of the ground; and what they show."""

import io
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.app import ground, optimisation, robot, scenario, terminal, tuning

# A table whose four legs end 1 m below its plate, one of them 0.1 m shorter; the camera has no shape.
LEGS = "".join(
    f"""<link name="leg{i}"><inertial><mass value="0.5"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 {-length / 2}"/><geometry><box size="0.1 0.1 {length}"/></geometry></collision></link>
    <joint name="hip{i}" type="revolute"><origin xyz="{x} {y} 0"/><parent link="plate"/><child link="leg{i}"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="40" velocity="5"/></joint>"""
    for i, (x, y, length) in enumerate([(0.5, 0.3, 1.0), (0.5, -0.3, 1.0), (-0.5, 0.3, 1.0), (-0.5, -0.3, 0.9)])
)
TABLE = f"""<robot name="table"><link name="plate"><inertial><mass value="4"/>
  <inertia ixx="0.4" iyy="0.4" izz="0.6" ixy="0" ixz="0" iyz="0"/></inertial>
  <collision><geometry><box size="1.2 0.8 0.1"/></geometry></collision></link>{LEGS}
  <link name="sole"/><joint name="sole_fixed" type="fixed"><origin xyz="0 0 -1"/><parent link="leg0"/><child link="sole"/></joint>
  <link name="camera"><inertial><mass value="0.1"/><inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="pan" type="revolute"><origin xyz="0 0 0.2"/><parent link="plate"/><child link="camera"/><axis xyz="0 0 1"/>
  <limit lower="0.5" upper="1.5" effort="0" velocity="5"/></joint></robot>"""


@pytest.fixture(scope="module")
def table():
    """The model, its posture and its survey."""
    model = jaxdyn.from_urdf(TABLE, root="floating")
    q = robot.posture(model, "table", [])
    return model, q, tuning.survey(model, q)


# Posture


def test_a_posture_is_zero_or_the_middle_of_limits_that_exclude_zero(table):
    model, q, _ = table
    named = dict(zip(model.joint_names[1:], q[7:], strict=True))
    assert named == {"hip0": 0, "hip1": 0, "hip2": 0, "hip3": 0, "pan": 1.0}


def test_assignments_reach_all_joints_that_fit_a_pattern(table):
    model, q, _ = table
    new = robot.assign(model, q, ["hip*=0.2", "hip3=-0.1"], "--posture")
    np.testing.assert_allclose(new[7:], [0.2, 0.2, 0.2, -0.1, 1.0])
    with pytest.raises(jaxdyn.UnknownNameError, match="hip0"):
        robot.assign(model, q, ["hop0=1"], "--posture")


def test_robots_whose_joints_tell_their_family_stand_instead_of_kneeling():
    links = "".join(f'<link name="{name}"/>' for name in ("base", "thigh", "calf"))
    joint = (
        '<joint name="{}" type="revolute"><parent link="{}"/><child link="{}"/>'
        '<limit lower="{}" upper="2" effort="1" velocity="1"/></joint>'
    )
    thigh = joint.format("FL_thigh_joint", "base", "thigh", -2)
    calf = joint.format("FL_calf_joint", "thigh", "calf", -2.7)
    whole = jaxdyn.from_urdf(f'<robot name="r">{links}{thigh}{calf}</robot>')
    np.testing.assert_allclose(robot.posture(whole, "r", []), [0.8, -1.6])
    part = jaxdyn.from_urdf(f'<robot name="r"><link name="base"/><link name="thigh"/>{thigh}</robot>')
    np.testing.assert_allclose(robot.posture(part, "r", []), [0.0])


# Contacts


def test_supports_are_the_bodies_with_the_lowest_points_named_after_the_nearest_link(table):
    model, _, at = table
    spots = ground.choose(model, at.rotation, at.translation, falls=False)
    assert [spot.frame for spot in spots] == ["sole", "leg1", "leg2"]
    for spot in spots:
        assert spot.support
        assert sorted(map(tuple, spot.points.round(9)[:, :2])) == [(x, y) for x in (-0.05, 0.05) for y in (-0.05, 0.05)]
    np.testing.assert_allclose(spots[0].points[:, 2], 0, atol=1e-12)  # in the frame of the sole
    np.testing.assert_allclose(spots[1].points[:, 2], -1)


def test_for_a_fall_the_corners_of_the_root_and_the_tips_are_added(table):
    model, _, at = table
    spots = ground.choose(model, at.rotation, at.translation)
    rest = {spot.frame: spot.points for spot in spots if not spot.support}
    assert set(rest) == {"plate", "leg3", "camera"}
    assert len(rest["plate"]) == 8 and len(rest["leg3"]) == 1
    np.testing.assert_allclose(rest["camera"], 0)


def test_named_links_replace_the_supports(table):
    model, _, at = table
    spots = ground.choose(model, at.rotation, at.translation, ["leg3", "sole"], falls=False)
    assert [spot.frame for spot in spots] == ["leg3", "sole"]
    np.testing.assert_allclose(spots[0].points[:, 2], -0.9)
    np.testing.assert_allclose(spots[1].points, np.zeros((1, 3)))  # it has no shape: its origin


@pytest.mark.parametrize(
    "shape, lowest",
    [('<sphere radius="0.2"/>', [[0, 0, -0.2]]), ('<capsule radius="0.1" length="0.4"/>', [[0, 0, -0.3]]),
     ('<cylinder radius="0.1" length="0.6"/>', [[0.1, 0, -0.3], [-0.1, 0, -0.3], [0, 0.1, -0.3], [0, -0.1, -0.3]])],
)  # fmt: skip
def test_round_shapes_touch_at_their_lowest_points(shape, lowest):
    text = f"""<robot name="x"><link name="a"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
      <collision><geometry>{shape}</geometry></collision></link></robot>"""
    model = jaxdyn.from_urdf(text, root="floating")
    (spot,) = ground.choose(model, np.eye(3)[None], np.zeros((1, 3)))
    assert len(spot.points) == len(lowest)
    np.testing.assert_allclose(spot.points[:, 2], lowest[0][2], atol=1e-6)
    np.testing.assert_allclose(np.abs(spot.points[:, :2]).max(), np.abs(np.asarray(lowest)[:, :2]).max(), atol=0.031)


# Gains and ground


@pytest.mark.parametrize("dt", [1e-3, 4e-3])
def test_springs_and_dampers_stay_below_what_the_integrator_bears(table, dt):
    model, q, at = table
    plan = tuning.plan(model, q, dt, substeps=1)
    jacobians = tuning.point_jacobians(model, at, [spot for spot in plan.spots if spot.support])
    inverse = np.linalg.inv(at.mass)
    along = jacobians[:, 2]
    mobility = np.linalg.eigvalsh(along @ inverse @ along.T).max()
    assert plan.ground.stiffness * mobility * dt**2 <= 0.3 + 1e-9
    assert plan.ground.damping * mobility * dt <= 0.8 + 1e-9
    felt = 1 / np.diag(inverse)[6:]
    assert (plan.kp <= 0.3 * felt / dt**2 + 1e-9).all() and (plan.kd <= 0.5 * felt / dt + 1e-9).all()


def test_gains_bear_the_whole_time_step_also_with_substeps_and_all_joints_together(table):
    """The torque of the controller is held over the substeps."""
    model, q, at = table
    dt = 8e-3
    plan = tuning.plan(model, q, dt, substeps=4)
    inverse = np.linalg.inv(at.mass)[6:, 6:]
    for gains, most in ((plan.kp, 0.5 / dt**2), (plan.kd, 1 / dt)):
        assert (gains > 0).all() and np.linalg.eigvals(inverse * gains).real.max() <= most * (1 + 1e-9)
    felt = 1 / np.diag(np.linalg.inv(at.mass))[6:]
    assert (plan.kp <= 0.3 * felt / dt**2 + 1e-9).all() and (plan.kd <= 0.5 * felt / dt + 1e-9).all()


def test_gains_of_joints_that_move_each_other_are_lowered_and_others_kept():
    inverse = np.array([[1.0, 0, 0], [0, 50, 49], [0, 49, 50]])
    gains = tuning._bounded(inverse, np.array([0.5, 0.01, 0.01]), 0.6)
    assert gains[0] == 0.5 and gains[1] == pytest.approx(gains[2])
    assert 0.5 < np.linalg.eigvals(inverse * gains).real.max() <= 0.6


def test_jacobians_of_the_points_are_those_of_the_library(table):
    model, q, at = table
    spots = ground.choose(model, at.rotation, at.translation)
    ours = tuning.point_jacobians(model, at, spots)
    kin = jaxdyn.forward_kinematics(model, jnp.asarray(q))
    theirs = [jaxdyn.point_jacobian(model, kin, s.frame, jnp.asarray(p)) for s in spots for p in s.points]
    np.testing.assert_allclose(ours, np.stack(theirs), atol=1e-12)


def test_a_plan_stands_on_the_ground_as_deep_as_its_weight_presses_it(table):
    model, q, _ = table
    plan = tuning.plan(model, q, 1e-3)
    weight = 6.1 * 9.80665
    np.testing.assert_allclose(plan.ground.sink, weight / 12 / plan.ground.stiffness)
    np.testing.assert_allclose(plan.q[2], 1 - plan.ground.sink)


def test_the_ground_is_at_height_zero_under_points_anywhere_in_their_links(table):
    """The legs' points are 1 m below their frames, those of the sole in its origin."""
    model, q, _ = table
    plan = tuning.plan(model, q, 1e-3)
    system, x = scenario.make_system(model, plan), scenario.make_state(model, jnp.asarray(plan.q))
    force = np.asarray(jax.jit(lambda x: system.contact_wrenches(x))(x))[:, 2]
    named = dict(zip([spot.frame for spot in plan.spots], force, strict=True))
    np.testing.assert_allclose([named[n] for n in ("sole", "leg1", "leg2")], 6.1 * 9.80665 / 3)
    assert named["plate"] == named["camera"] == 0


def test_friction_dampers_and_gains_are_stable_together_on_the_most_slippery_and_the_roughest_ground():
    """The step of the whole humanoid, linearised where it stands, by automatic differentiation."""
    model = jaxdyn.load("humanoid", root="floating")
    plan = tuning.plan(model, robot.posture(model, "humanoid", []), 1e-3)
    x = scenario.make_state(model, jnp.asarray(plan.q))
    for friction in (0.4, 1.0):
        system = scenario.make_system(model, plan, friction=friction)
        control = scenario.posture_control(system, plan, model)
        step = jaxdyn.check_step(system, jaxdyn.SemiImplicitEuler(), x, control, 1e-3, plan.substeps)
        assert step is jaxdyn.Status.OK
    # slipperiness costs substeps where it would exceed half a metre per second
    assert plan.ground.slip_velocity < 0.5


def test_the_torque_that_holds_the_posture_balances_gravity_with_forces_that_act_upwards(table):
    model, q, at = table
    plan = tuning.plan(model, q, 1e-3)
    up = tuning.point_jacobians(model, at, [spot for spot in plan.spots if spot.support])[:, 2]
    torque = np.concatenate([np.zeros(6), plan.hold])
    force = np.linalg.lstsq(up.T, at.gravity - torque, rcond=None)[0]
    np.testing.assert_allclose(up.T @ force, at.gravity - torque, atol=1e-9)


def test_a_limit_of_zero_is_none(table):
    limit = tuning.torque_limit(table[0])
    np.testing.assert_allclose(limit, [40, 40, 40, 40, 1e6])


def test_joints_without_inertia_are_named_and_get_some():
    text = TABLE.replace('<mass value="0.1"/>', '<mass value="0"/>').replace("1e-4", "0")
    model = jaxdyn.from_urdf(text, root="floating")
    q = robot.posture(model, "table", [])
    sound, names = tuning.regular(model, q)
    assert names == ["pan"]
    assert np.asarray(sound.armature)[-1] > 0 and (np.asarray(sound.armature)[:-1] == 0).all()
    assert tuning.singular_joints(sound, tuning.survey(sound, q).mass) == []


def test_armature_is_that_of_the_joints_alone(table):
    model, q, _ = table
    armed, names = tuning.regular(model, q, 0.25)
    assert names == []
    np.testing.assert_allclose(armed.armature, [0] * 6 + [0.25] * 5)


# Torques


def test_torques_are_linear_between_knots_and_end_after_the_last():
    model = jaxdyn.load("double_pendulum")
    system = jaxdyn.FixedBaseDynamics(model)
    zero, one = jnp.zeros(2), jnp.ones(2)
    x = jaxdyn.FixedBaseState(zero, zero)
    control = scenario.PostureControl(system, x, zero, zero, zero, 1e6 * one)
    knots = jnp.array([[0.0, 1.0], [2.0, 1.0], [4.0, -1.0]])
    policy = optimisation.Torques(control, knots, 3 * one, jnp.asarray(1.0))
    for t, wanted in [
        (0.0, [0, 1]),
        (0.25, [1, 1]),
        (0.5, [2, 1]),
        (0.75, [3, 0]),
        (1.0, [4, -1]),
        (1.25, [2, -0.5]),
        (1.5, [0, 0]),
    ]:
        np.testing.assert_allclose(policy(x, jnp.asarray(t)), 3 * np.asarray(wanted), atol=1e-6)


def test_torques_keep_their_limits():
    model = jaxdyn.load("double_pendulum")
    zero, one = jnp.zeros(2), jnp.ones(2)
    x = jaxdyn.FixedBaseState(zero, zero)
    control = scenario.PostureControl(jaxdyn.FixedBaseDynamics(model), x, zero, zero, 100 * one, 7 * one)
    policy = optimisation.Torques(control, jnp.zeros((2, 2)), one, jnp.asarray(1.0))
    assert (jnp.abs(policy(x, jnp.asarray(0.5))) <= 7).all()
    np.testing.assert_allclose(control(x, jnp.asarray(0.0)), [7, 7])


# Terminal


def test_a_table_is_as_wide_as_its_cells():
    text = terminal.table([["a", 10], ["longer", 2]], ["name", "n"], right=(1,))
    assert text.splitlines() == ["name     n", "------  --", "a       10", "longer   2"]


def test_a_bar_in_a_file_has_a_line_for_each_tenth():
    stream = io.StringIO()
    bar = terminal.Bar("go", 40, stream)
    for done in range(1, 41):
        bar.update(done, "note", 1.0)
    bar.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11 and lines[-1] == f"go [{'#' * 24}] 40/40  note  1.0 s"


def test_a_bar_on_a_terminal_is_drawn_over():
    stream = io.StringIO()
    stream.isatty = lambda: True
    bar = terminal.Bar("go", 2, stream)
    bar.update(1)
    bar.update(2)
    bar.close()
    assert stream.getvalue().count("\r") == 2 and stream.getvalue().endswith("\n")


def test_work_that_is_interruptible_gives_its_result_or_its_fault():
    assert terminal.interruptible(lambda check: threading.current_thread().name) == terminal.WORKER
    with pytest.raises(ZeroDivisionError):
        terminal.interruptible(lambda check: 1 / 0)
    assert not terminal.abandoned()
