"""Tasks and limits of motion: known numbers of planar arms, Jacobians against differences, accelerations that do as told."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from random_trees import random_model

from jaxdyn import algorithms as alg
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3
from jaxdyn.model import from_urdf, integrate, neutral, random_configuration
from jaxdyn.tasks import (
    Affine,
    AxisTask,
    Capsule,
    CapturePointTask,
    CartesianPositionLimits,
    CartesianTask,
    CartesianVelocityLimits,
    CollisionAvoidance,
    CoMTask,
    DampingTask,
    FunctionTask,
    GazeTask,
    JointCouplingTask,
    JointLimits,
    KineticEnergyTask,
    ManipulabilityTask,
    MinimumEffortTask,
    MomentumTask,
    PositionTask,
    PosturalTask,
    Stack,
    SupportPolygon,
    VelocityLimits,
    bounds,
    robot_state,
    solve_hierarchy,
)


def planar(*lengths, limit=3.0):
    """An arm in the plane x, y with links of the given lengths and a frame `tip`."""
    inertia = '<inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
    text, parent, x = '<robot name="planar"><link name="world"/>', "world", 0.0
    for i, length in enumerate(lengths):
        text += (
            f'<link name="l{i}">{inertia}</link><joint name="j{i}" type="revolute"><parent link="{parent}"/>'
            f'<child link="l{i}"/><origin xyz="{x} 0 0"/><axis xyz="0 0 1"/>'
            f'<limit lower="-{limit}" upper="{limit}" velocity="1" effort="10"/></joint>'
        )
        parent, x = f"l{i}", length
    text += f'<link name="tip"/><joint name="t" type="fixed"><parent link="{parent}"/><child link="tip"/>'
    text += f'<origin xyz="{x} 0 0"/></joint></robot>'
    return from_urdf(text, dtype=jnp.float64)


def goal(x, y, yaw):
    return SE3(so3.exp(jnp.asarray([0.0, 0.0, yaw])), jnp.asarray([x, y, 0.0]))


Q2 = jnp.asarray([0.3, 0.5])


def test_a_planar_arm_of_two_joints():
    model = planar(1.0, 1.0)
    state = robot_state(model, Q2)
    task = CartesianTask("tip", goal(1.5, 1.2, 1.2), gain=0.5, weight=10.0)
    np.testing.assert_allclose(task.pose(state).translation, [1.6520431985, 1.0128762976, 0], atol=1e-10)
    data = task.evaluate(state)
    rows = [[-1.0128762976, -0.7173560909], [1.6520431985, 0.6967067093], [0, 0], [0, 0], [0, 0], [1, 1]]
    np.testing.assert_allclose(data.A, rows, atol=1e-10)
    np.testing.assert_allclose(data.b, [-0.0760215992, 0.0935618512, 0, 0, 0, 0.0993346654], atol=1e-10)
    np.testing.assert_allclose(data.cost(jnp.asarray([0.1, -0.2])), 0.5828991266, atol=1e-9)
    log = CartesianTask("tip", goal(1.5, 1.2, 1.2), orientation_error="log", gain=0.5)
    np.testing.assert_allclose(log.evaluate(state).b[5], 0.2, atol=1e-12)
    log6 = CartesianTask("tip", goal(1.5, 1.2, 1.2), orientation_error="log6")
    np.testing.assert_allclose(log6.error(state), [0.07581429, 0.23057742, 0, 0, 0, 0.4], atol=1e-7)
    assert (task % [0, 1]).evaluate(state).A.shape == (2, 2)
    reset = task.reset(state)
    np.testing.assert_allclose(reset.error(state), 0.0, atol=1e-12)
    local = CartesianTask("tip", goal(1.5, 1.2, 1.2), local=True, gain=0.5, weight=10.0)
    np.testing.assert_allclose(local.cost(jnp.asarray([0.1, -0.2]), state), 0.5828991266, atol=1e-9)


def test_a_planar_arm_of_three_joints():
    model, q = planar(1.0, 1.0, 0.5), jnp.asarray([0.3, 0.5, -0.4])
    state = robot_state(model, q)
    tip = PositionTask("tip", jnp.asarray([2.0, 1.0, 0.0])) % [0, 1]
    posture = PosturalTask(jnp.zeros(3))
    none = jnp.full(3, 1e3)
    stacks = [tip / posture << bounds(-m, m) for m in (none, jnp.full(3, 0.25))]
    data = jax.tree.map(lambda *x: jnp.stack(x), *[s.evaluate(state) for s in stacks])
    x = quick_jit(jax.vmap(solve_hierarchy))(data).levels
    np.testing.assert_allclose(x[0, 1], [-0.5730995460, 0.9000239082, -0.0834072803], atol=1e-7)
    np.testing.assert_allclose(x[1], [[-0.1498211461, 0.25, -0.25]] * 2, atol=1e-7)
    soft = [Stack((w * tip + posture,)).evaluate(state) for w in (1.0, 10.0, 1e3)]
    s = quick_jit(jax.vmap(functools.partial(solve_hierarchy, mode="soft")))(
        jax.tree.map(lambda *x: jnp.stack(x), *soft)
    )
    right = [
        [-0.0241063165, -0.2725187218, 0.4392590163],
        [-0.1447061050, 0.0471782105, 0.3074509253],
        [-0.5585864586, 0.8713752705, -0.0702325563],
    ]
    np.testing.assert_allclose(s.x, right, atol=1e-7)


def _tasks(model, frame, other, reference):
    point = jnp.asarray([0.05, -0.1, 0.2])
    pose = SE3(so3.exp(jnp.asarray([0.4, -0.3, 0.9])), jnp.asarray([0.3, 0.2, 0.9]))
    height = lambda m, q: alg.frame_pose(m, alg.forward_kinematics(m, q), frame).translation[2:] - 0.4  # noqa: E731
    return {
        "cartesian": CartesianTask(frame, pose),
        "relative": CartesianTask(frame, pose, base=other),
        "local": CartesianTask(frame, pose, local=True),
        "log6": CartesianTask(frame, pose, orientation_error="log6"),
        "position": PositionTask(frame, jnp.asarray([0.3, 0.1, 0.5]), point),
        "com": CoMTask(jnp.asarray([0.1, 0.0, 0.6])),
        "postural": PosturalTask(reference),
        "axis": AxisTask(frame, jnp.asarray([0.0, 0.0, 1.0]), jnp.asarray([0.1, 0.2, 1.0])),
        "gaze": GazeTask(frame, jnp.asarray([2.0, 0.3, 1.0])),
        "function": FunctionTask(height),
        "damping": DampingTask(),
    }


MODEL = functools.cache(
    lambda: random_model(3, 4, root="floating", types=("revolute", "prismatic"), fixed=0.0, dtype=jnp.float64)
)


@functools.cache
def measured():
    """For every task: J, the derivative of what it measures along a random motion, and J_dot v against differences."""
    model = MODEL()
    q = random_configuration(model, jax.random.key(1))
    v = jax.random.normal(jax.random.key(2), (model.nv,))
    reference = random_configuration(model, jax.random.key(3))
    frames = model.frame_names
    tasks = _tasks(model, frames[-1], frames[0], reference)

    def at(t):
        state = robot_state(model, integrate(model, q, t * v), v)
        return {k: (task.jacobian(state), task.bias(state), task.error(state)) for k, task in tasks.items()}

    h = 1e-5
    sides = quick_jit(jax.vmap(at))(jnp.asarray([0.0, h, -h]))
    here, ahead, behind = ({k: [a[i] for a in parts] for k, parts in sides.items()} for i in range(3))
    return here, ahead, behind, h, np.asarray(v)


@pytest.mark.parametrize("name", ["cartesian", "relative", "position", "com", "function", "log6"])
def test_jacobians_are_derivatives_of_the_error(name):
    (J, _, _), (_, _, ahead), (_, _, behind) = (side[name] for side in measured()[:3])
    rate = -(ahead - behind) / (2 * measured()[3])
    rows = slice(None) if name in ("position", "com", "function", "log6") else slice(0, 3)
    np.testing.assert_allclose((J @ measured()[4])[rows], rate[rows], atol=1e-6)


@pytest.mark.parametrize("name", ["cartesian", "relative", "local", "position", "com", "axis", "gaze", "function"])
def test_biases_are_rates_of_jacobians(name):
    (_, bias, _), (ahead, _, _), (behind, _, _) = (side[name] for side in measured()[:3])
    v = measured()[4]
    np.testing.assert_allclose(bias, (ahead @ v - behind @ v) / (2 * measured()[3]), atol=1e-5)


def test_directions_turn_the_right_way():
    """A small step along the least-squares solution shrinks the error of axis and gaze."""
    model = planar(1.0, 1.0)
    state = robot_state(model, Q2)
    for task in (
        AxisTask("tip", jnp.asarray([1.0, 0.0, 0.0]), jnp.asarray([0.0, 1.0, 0.0])),
        GazeTask("tip", jnp.asarray([2.2, 3.0, 0.0])),
    ):
        data = task.evaluate(state)
        dq = jnp.linalg.lstsq(data.A, data.b)[0]
        before, after = (jnp.linalg.norm(task.error(robot_state(model, Q2 + s * dq))) for s in (0.0, 0.1))
        assert after < 0.95 * before
    near = GazeTask("tip", task.reference, nearest=10.0).evaluate(state)
    assert not near.A.any() and not near.b.any()


def test_slopes_and_metrics():
    model = planar(1.0, 1.0, 0.5).astype(jnp.float64)
    q = jnp.asarray([0.3, 0.5, -0.4])
    state = robot_state(model, q)
    better = ManipulabilityTask("tip", rows=(0, 1))
    slope = better.evaluate(state).b
    steps = 1e-5 * jnp.concatenate([jnp.eye(3), -jnp.eye(3)])
    ends = quick_jit(jax.vmap(lambda d: better.manipulability(state, q + d)))(steps)
    np.testing.assert_allclose(slope, (ends[:3] - ends[3:]) / 2e-5, atol=1e-6)
    stretched = ManipulabilityTask("tip", rows=(0, 1)).evaluate(robot_state(model, jnp.zeros(3)))
    assert np.isfinite(stretched.b).all()
    effort = MinimumEffortTask().evaluate(state)
    np.testing.assert_allclose(effort.b, 0.0, atol=1e-12)  # gravity is along the axes
    np.testing.assert_allclose(KineticEnergyTask().evaluate(state).weight, alg.crba(model, q), atol=1e-12)
    coupling = JointCouplingTask(("j0", "j2"), jnp.asarray([1.0, -2.0]), jnp.asarray([0.1])).evaluate(state)
    np.testing.assert_allclose(coupling.A, [[1, 0, -2]])
    np.testing.assert_allclose(coupling.b, [0.1 - 0.3 - 0.8], atol=1e-12)


def test_feed_forward_gains_and_masks():
    model = planar(1.0, 1.0)
    state = robot_state(model, Q2, jnp.asarray([0.2, -0.1]))
    posture = PosturalTask(jnp.zeros(2))
    np.testing.assert_allclose(posture.with_feed_forward(jnp.asarray([1.0, 2.0])).evaluate(state).b, [0.7, 1.5])
    acceleration = robot_state(model, Q2, state.v, acceleration=Affine.identity(2, jnp.float64))
    np.testing.assert_allclose(posture.evaluate(acceleration).b, -10 * Q2 - 2 * np.sqrt(10) * state.v, atol=1e-12)
    np.testing.assert_allclose(posture.with_gain(4.0).evaluate(acceleration).b, -4 * Q2 - 4 * state.v, atol=1e-12)
    np.testing.assert_allclose(posture.nonlinear_cost(state), 0.5 * Q2 @ Q2, atol=1e-12)
    momentum = MomentumTask("both").evaluate(acceleration)
    J, bias = alg.centroidal_map(model, state.kin), alg.centroidal_bias(model, state.kin)
    np.testing.assert_allclose(momentum.b, -J @ state.v - bias, atol=1e-12)
    capture = CapturePointTask(jnp.asarray([0.0, 0.0]), 3.0).evaluate(acceleration)
    assert capture.A.shape == (2, 2)
    with pytest.raises(InputError, match="needs a robot"):
        posture.evaluate()


# -- trial T51: the posture error goes the short way round

T51 = pathlib.Path(__file__).parent / "data" / "posture_error.urdf"


def test_the_posture_error_is_on_the_manifold():
    model = from_urdf(str(T51), root="floating", dtype=jnp.float64)
    wheel = model.tree.joint_types.index("continuous")
    at = model.tree.q_offset[wheel]

    def pose(yaw, angle):
        half = 0.5 * yaw
        q = neutral(model).at[3:7].set(jnp.asarray([np.cos(half), 0, 0, np.sin(half)]))
        return q.at[at].set(angle)

    state = robot_state(model, pose(3.0, 3.1))
    e = PosturalTask(pose(-3.0, -3.1)).error(state)
    np.testing.assert_allclose(e[model.tree.v_offset[wheel]], 0.0831853072, atol=1e-9)
    np.testing.assert_allclose(e[5], 0.2831853072, atol=1e-9)
    turned = state.q.at[3:7].multiply(-1.0)
    np.testing.assert_allclose(PosturalTask(turned).error(state), 0.0, atol=1e-12)
    data = JointLimits().evaluate(state)
    assert np.isposinf(data.upper[:6]).all() and not np.isnan(data.lower).any()


# -- limits


def test_joint_limits_never_contradict_velocity_limits():
    model = planar(1.0, 1.0, limit=2.0)
    state = robot_state(model, jnp.asarray([2.5, 0.5]))
    speed, dt = VelocityLimits(0.01), 0.01
    back = solve_hierarchy(
        PosturalTask(jnp.asarray([2.5, 0.5])) / DampingTask() << JointLimits(step=dt) << speed, state
    )
    np.testing.assert_allclose(back.x, [-0.01, 0.0], atol=1e-8)
    assert back.success
    data = JointLimits().evaluate(state)
    np.testing.assert_allclose(data.upper, [0.0, 1.5])
    np.testing.assert_allclose(data.lower, [-4.5, -2.5])
    np.testing.assert_allclose(JointLimits(0.5).evaluate(state).upper, [0.0, 0.75])
    with_accelerations = robot_state(model, Q2, Q2, acceleration=Affine.identity(2, jnp.float64))
    ecbf = JointLimits(alpha=(2.0, 3.0)).evaluate(with_accelerations)
    np.testing.assert_allclose(ecbf.b_upper, 6 * (2 - Q2) - 5 * Q2, atol=1e-12)
    fast = VelocityLimits(0.1, horizon=2.0).evaluate(with_accelerations)
    np.testing.assert_allclose(fast.b_upper, (1 - Q2) / 0.2, atol=1e-12)


def test_regions_of_space():
    model = planar(1.0, 1.0)
    state = robot_state(model, Q2)
    tip = alg.frame_pose(model, state.kin, "tip").translation
    wall = CartesianPositionLimits("tip", jnp.asarray([[1.0, 0.0, 0.0]]), jnp.asarray([1.7])).evaluate(state)
    np.testing.assert_allclose(wall.b_upper, [1.7 - tip[0]], atol=1e-12)
    slow = CartesianVelocityLimits("tip", jnp.full(6, 2.0), 0.1).evaluate(state)
    np.testing.assert_allclose(slow.b_upper, 0.2)
    square = jnp.asarray([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])
    com = alg.center_of_mass(model, state.kin)
    inside = SupportPolygon(square, margin=0.1).evaluate(state)
    np.testing.assert_allclose(inside.b_upper, [com[1] - 0.1, 1.9 - com[0], 1.9 - com[1], com[0] - 0.1], atol=1e-12)


@pytest.mark.parametrize("kind", ["spheres", "capsules"])
def test_capsules_keep_apart(kind):
    model = planar(1.0, 1.0)
    state = robot_state(model, Q2)
    o, x = jnp.zeros(3), jnp.asarray([1.0, 0.0, 0.0]) * float(kind == "capsules")
    pair = (Capsule("l1", o, x, 0.1), Capsule("world", jnp.asarray([1.0, 2.0, 0.0]), jnp.asarray([2.0, 2.0, 0.0]), 0.2))
    avoid = CollisionAvoidance((pair,), 0.05)
    start = alg.frame_pose(model, state.kin, "l1").translation
    nearest = alg.frame_pose(model, state.kin, "tip").translation if kind == "capsules" else start
    clear = np.hypot(max(1.0 - nearest[0], 0.0), 2.0 - nearest[1]) - 0.3
    np.testing.assert_allclose(avoid.distances(state), [clear], atol=1e-12)
    data = avoid.evaluate(state)
    np.testing.assert_allclose(data.b_lower, [0.05 - clear], atol=1e-12)
    h = 1e-6
    slope = [(avoid.distances(robot_state(model, Q2.at[i].add(h))) - clear) / h for i in range(2)]
    np.testing.assert_allclose(data.A_in[0], np.ravel(slope), atol=1e-5)


def test_se3_errors_are_finite_half_a_turn_away():
    model = planar(1.0, 1.0)
    half = SE3(so3.exp(jnp.asarray([0.0, 0.0, 0.8 + np.pi])), jnp.zeros(3))

    def costs(q):
        state = robot_state(model, q)
        kinds = ("quaternion", "log", "log6")
        return jnp.stack([CartesianTask("tip", half, orientation_error=k).nonlinear_cost(state) for k in kinds])

    assert np.isfinite(quick_jit(jax.jacrev(costs))(Q2)).all()
