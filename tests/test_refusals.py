"""What a user reads who hands a function the wrong thing, in an interpreter without the shape checks of these tests.

Those checks would speak first. All cases run in one process; each is an expression that must raise what stands beside it.
"""

import json

import pytest

CASES = {
    # name: (expression, exception, words of its text)
    "seed instead of a key": (
        "jaxdyn.random_configuration(M, 0)",
        "InputError",
        "key: wanted one random key, as jax.random.key(0) makes it, given 0",
    ),
    "many keys": (
        "jaxdyn.random_configuration(M, jax.random.split(jax.random.key(0)))",
        "InputError",
        "key: wanted one",
    ),
    "seed for a rotation": ("so3.random(3)", "InputError", "key: wanted one random key"),
    "seed for a space": ("jaxdyn.LieSpace.SO3().random(3)", "InputError", "key: wanted one random key"),
    "vector of four": ("so3.exp(jnp.zeros(4))", "InputError", "w: wanted shape (..., 3), given shape (4,)"),
    "integers": ("so3.exp(jnp.arange(3))", "InputError", "w: wanted floating-point numbers, given dtype int32"),
    "text": ("so3.hat('xyz')", "InputError", "w: wanted an array of floating-point numbers"),
    "keyword": (
        "so3.cross(a=jnp.zeros(3), b=jnp.zeros(2))",
        "InputError",
        "b: wanted shape (..., 3), given shape (2,)",
    ),
    "twist of seven": (
        "E.action_on_twist(jnp.zeros(7))",
        "InputError",
        "twist: wanted shape (..., 6), given shape (7,)",
    ),
    "matrix of three": ("jaxdyn.SE3.from_matrix(jnp.eye(3))", "InputError", "matrix: wanted shape (..., 4, 4)"),
    "pose of wrong shape": (
        "jaxdyn.SE3(jnp.eye(4), jnp.zeros(3))",
        "InputError",
        "SE3: rotation: wanted shape (..., 3, 3), given shape (4, 4)",
    ),
    "pose of integers": (
        "jaxdyn.SE3(jnp.eye(3), jnp.arange(3))",
        "InputError",
        "SE3: translation: wanted floating-point numbers, given dtype int32",
    ),
    "pose of lists": (
        "jaxdyn.SE3(jnp.eye(3), [0.0, 0.0, 0.0])",
        "InputError",
        "SE3: translation: wanted an array, given a list",
    ),
    "pose of half a batch": (
        "jaxdyn.SE3(jnp.eye(3), jnp.zeros((2, 3)))",
        "InputError",
        "SE3: wanted the same batch axes",
    ),
    "inertia of wrong shape": (
        "jaxdyn.SpatialInertia(jnp.ones(()), jnp.zeros(3), jnp.zeros(3))",
        "InputError",
        "SpatialInertia: inertia: wanted shape (..., 3, 3)",
    ),
    "option of another library": (
        "jaxdyn.load('pendulum', base='floating')",
        "TypeError",
        "load: there is no option 'base'; nearest: 'base_link'",
    ),
    "locked names in one text": (
        "jaxdyn.load('double_pendulum', locked='elbow')",
        "InputError",
        "locked: wanted a mapping from joint names to values, or names alone, given 'elbow'",
    ),
    "locked, traced": (
        "jax.jit(lambda x: jaxdyn.load('double_pendulum', locked={'elbow': x}))(0.1)",
        "InputError",
        "locked['elbow']: wanted numbers, given values that are being traced",
    ),
    "frame, traced": (
        "jax.jit(lambda x: jaxdyn.load('pendulum', frames={'f': ('rod', x)}))(jnp.zeros(3))",
        "InputError",
        "being traced",
    ),
    "builder, traced": (
        "jax.jit(lambda x: jaxdyn.ModelBuilder().add_link('a', mass=x))(1.0)",
        "InputError",
        "being traced",
    ),
    "reference of four": (
        "jaxdyn.PositionTask('tip', jnp.zeros(4))",
        "InputError",
        "position_tip: reference: wanted shape (..., 3), given shape (4,)",
    ),
    "reference of integers": (
        "jaxdyn.PositionTask('tip', jnp.arange(3))",
        "InputError",
        "wanted floating-point numbers, given dtype int32",
    ),
    "point of two": (
        "jaxdyn.PositionTask('tip', jnp.zeros(3), jnp.zeros(2))",
        "InputError",
        "position_tip: point: wanted shape (..., 3)",
    ),
    "reference of a copy": (
        "jaxdyn.CoMTask(jnp.zeros(3)).with_reference(jnp.zeros(2))",
        "InputError",
        "com: reference: wanted shape (..., 3), given shape (2,)",
    ),
    "axis of two": (
        "jaxdyn.tasks.AxisTask('tip', jnp.zeros(2), jnp.zeros(3))",
        "InputError",
        "axis_tip: axis: wanted shape (..., 3)",
    ),
    "gaze at two numbers": (
        "jaxdyn.tasks.GazeTask('tip', jnp.zeros(2))",
        "InputError",
        "gaze_tip: reference: wanted shape (..., 3)",
    ),
    "capture point of three": (
        "jaxdyn.tasks.CapturePointTask(jnp.zeros(3), 3.0)",
        "InputError",
        "capture_point: reference: wanted shape (..., 2)",
    ),
    "momentum of three": (
        "jaxdyn.MomentumTask('both', jnp.zeros(3))",
        "InputError",
        "both_momentum: reference: wanted shape (..., 6)",
    ),
    "wrench of three": (
        "jaxdyn.tasks.WrenchTask('tip', jnp.zeros(3))",
        "InputError",
        "wrench_tip: reference: wanted shape (..., 6)",
    ),
    "pressure at three": (
        "jaxdyn.tasks.CenterOfPressureTask('tip', jnp.zeros(3))",
        "InputError",
        "cop_tip: reference: wanted shape (..., 2)",
    ),
    "ratios of three": (
        "jaxdyn.tasks.JointCouplingTask(('a', 'b'), jnp.zeros(3))",
        "InputError",
        "coupling: ratios: wanted shape (..., 2)",
    ),
    "pose task with a matrix": (
        "jaxdyn.CartesianTask('tip', jnp.eye(4))",
        "InputError",
        "reference: wanted an SE3(rotation, translation), given a ArrayImpl",
    ),
    "postural task": (
        "jaxdyn.PosturalTask(jnp.zeros(3)).error(jaxdyn.robot_state(M, jaxdyn.neutral(M)))",
        "InputError",
        "postural: reference: wanted shape (19,), given shape (3,)",
    ),
    "kinematics of a batch": (
        "jaxdyn.frame_pose(M, jax.vmap(lambda q: jaxdyn.forward_kinematics(M, q))(jnp.zeros((3, M.nq))), 'trunk')",
        "InputError",
        "kin.rotation: wanted shape (13, 3, 3), given shape (3, 13, 3, 3). Batches go through jax.vmap",
    ),
    "kinematics of another robot": (
        "jaxdyn.center_of_mass(jaxdyn.load('pendulum'), K)",
        "InputError",
        "kin.rotation: wanted shape (1, 3, 3), given shape (13, 3, 3). Are they those of another robot?",
    ),
    "twist of five": (
        "jaxdyn.body_regressor(jnp.zeros(5), jnp.zeros(6))",
        "InputError",
        "twist: wanted shape (..., 6)",
    ),
    "negative stiffness": (
        "jaxdyn.Coulomb(-1.0, 1.0)",
        "InputError",
        "stiffness: wanted a number that is not negative",
    ),
    "negative damping": ("jaxdyn.Brush(1.0, -1.0)", "InputError", "damping: wanted a number that is not negative"),
    "negative friction": (
        "jaxdyn.SmoothCoulomb(1.0, 1.0, friction=-0.5)",
        "InputError",
        "friction: wanted a number that is not negative, given -0.5",
    ),
    "no smoothing": (
        "jaxdyn.SmoothCoulomb(1.0, 1.0, smoothing=0.0)",
        "InputError",
        "smoothing: wanted a positive number",
    ),
    "negative constraint": (
        "jaxdyn.FixedPoint('tip', jnp.zeros(3), stiffness=-1.0)",
        "InputError",
        "stiffness: wanted a number that is not negative",
    ),
    "frame that is no pose": (
        "jaxdyn.FixedFrame('tip', jnp.eye(4))",
        "InputError",
        "wanted an SE3(rotation, translation)",
    ),
    "cutoffs": ("jaxdyn.ButterworthLowPassFilter(2, jnp.ones(2), 0.01)", "InputError", "cutoff: wanted shape ()"),
    "memory of another filter": (
        "F.step(jnp.zeros((3, 2, 3)), jnp.zeros(3))",
        "InputError",
        "memory: wanted shape (2, 2, ...)",
    ),
    "signal without time": ("F.run(F.reset(jnp.zeros(3)), 1.0)", "InputError", "signal: wanted shape (time, *(3,))"),
    "states without names": (
        "jaxdyn.MultiStateWeightProvider([[1.0]], 1.0, 0.1)",
        "InputError",
        "states: wanted a mapping",
    ),
    "time that runs backwards": (
        "jaxdyn.MultiStateWeightProvider({'a': [1.0]}, 1.0, -0.1)",
        "InputError",
        "sampling_time: wanted a positive time",
    ),
    "integer state": (
        "jaxdyn.rollout(L, jaxdyn.LieEuler(), jnp.zeros(2, int), jnp.ones(1), 0.1, 3)",
        "InputError",
        "x: wanted floating-point numbers, given dtype int32",
    ),
    "integer input": (
        "L(jnp.zeros(2), jnp.asarray([1]))",
        "InputError",
        "u: wanted floating-point numbers, given dtype int32",
    ),
    "rotation of four": (
        "jaxdyn.SO3Dynamics()(jnp.eye(4), jnp.zeros(3))",
        "InputError",
        "x: wanted a rotation matrix (3, 3)",
    ),
    "joints that are no number": (
        "jaxdyn.FloatingBaseVelocityKinematics(2.0)",
        "InputError",
        "n: wanted the number of joints",
    ),
    "vector as an input": (
        "jaxdyn.FloatingBaseVelocityKinematics(2)(jaxdyn.PoseState(jnp.zeros(3), jnp.eye(3), jnp.zeros(2)), jnp.zeros(8))",
        "InputError",
        "u: wanted a VelocityInput, given a ArrayImpl",
    ),
    "vector as a state": (
        "jaxdyn.FloatingBaseAccelerationKinematics(2)(jnp.zeros(16), None)",
        "InputError",
        "x: wanted a state with twist, joint_velocity",
    ),
    "mass of nothing": ("jaxdyn.CentroidalDynamics(0.0)", "InputError", "mass: wanted a positive mass"),
    "external wrench of five": (
        "jaxdyn.CentroidalInput(jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(5))",
        "InputError",
        "wrench: wanted shape (..., 6)",
    ),
    "centroidal state as a vector": (
        "jaxdyn.CentroidalDynamics()(jnp.zeros(9), None)",
        "InputError",
        "x: wanted a CentroidalState",
    ),
    "corners of one contact": (
        "jaxdyn.corner_points(E, jnp.zeros((4, 3)))",
        "InputError",
        "corners: wanted shape (c, m, 3) and as many poses",
    ),
    "no reference": (
        "jaxdyn.tasks.DampingTask().reset()",
        "NotDefinedError",
        "damping: a DampingTask has no reference to reset",
    ),
    "abstract": ("jaxdyn.tasks.library._GradientTask()", "TypeError", "abstract"),
}

SCRIPT = """
import inspect, json, sys, types
import jax, jax.numpy as jnp, numpy as np
import jaxdyn
from jaxdyn import so3

M = jaxdyn.load("quadruped", root="floating")
K = jaxdyn.forward_kinematics(M, jaxdyn.neutral(M), jnp.zeros(M.nv), jnp.zeros(M.nv))
E = jaxdyn.SE3.identity()
F = jaxdyn.ButterworthLowPassFilter(2, 5.0, 0.01)
L = jaxdyn.LinearTimeInvariantSystem([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]])


def caught(call):
    try:
        return "", repr(call())
    except Exception as error:
        return type(error).__name__, str(error)


cases = {name: caught(lambda: eval(text)) for name, text in json.loads(sys.stdin.read()).items()}

# every public function whose first argument is a model, with a name instead; and every one that takes kinematics, with
# a configuration instead
stand_in = {"frame": "trunk", "reference": "trunk", "other": "trunk", "kin": K, "body": jnp.asarray(0)}
point = {"point": jnp.zeros(3)}
calls = {}
modules = [jaxdyn, *(m for m in vars(jaxdyn).values() if isinstance(m, types.ModuleType))]
for module in modules:
    for name, function in vars(module).items():
        if inspect.isfunction(function) and function.__module__.startswith("jaxdyn.") and name[0] != "_":
            calls[name] = function
wrong = {}
for name, function in calls.items():
    parameters = inspect.signature(function).parameters
    if "jaxdyn.contact" in function.__module__ or next(iter(parameters), "") != "model":
        continue
    wanted = {p: stand_in.get(p, point.get(p, jnp.zeros(1))) for p, x in parameters.items() if x.default is x.empty}
    wrong[f"{name}(model)"] = caught(lambda: function(**wanted | {"model": "quadruped"}))
    if "kin" in wanted:
        wrong[f"{name}(kin)"] = caught(lambda: function(**wanted | {"model": M, "kin": jaxdyn.neutral(M)}))
print(json.dumps({"cases": cases, "wrong": wrong}))
"""


@pytest.fixture(scope="module")
def refusals(run_python):
    """What was raised in each case, and by each public function that was given something else instead of a model."""
    texts = json.dumps({name: expression for name, (expression, *_) in CASES.items()})
    return json.loads(run_python("-c", SCRIPT, input=texts).stdout)


@pytest.mark.parametrize("name", CASES)
def test_the_wrong_thing_is_refused_by_name(refusals, name):
    _, error, words = CASES[name]
    kind, text = refusals["cases"][name]
    assert kind == error and words in text, f"{kind}: {text}"


def test_every_function_of_a_model_refuses_what_is_none(refusals):
    given = {name: answer for name, answer in refusals["wrong"].items() if name.endswith("(model)")}
    # these look at their other argument first, the model of another library
    others = {"from_pinocchio", "to_pinocchio", "from_mujoco", "to_mujoco", "keyframes"}
    bad = {
        name: answer
        for name, (*answer,) in given.items()
        if answer[0] != "InputError" or not answer[1].startswith("model: wanted a Model")
    }
    assert len(given) > 80
    assert set(bad) <= {f"{name}(model)" for name in others}, bad


def test_every_function_of_kinematics_refuses_a_configuration(refusals):
    given = {name: answer for name, answer in refusals["wrong"].items() if name.endswith("(kin)")}
    bad = {
        name: answer
        for name, answer in given.items()
        if answer[0] != "InputError" or not answer[1].startswith("kin: wanted Kinematics")
    }
    assert len(given) > 30 and not bad, bad
