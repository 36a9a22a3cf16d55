"""Poses, centre of mass, distances, posture and manipulability: values in closed form, Jacobians against automatic
differentiation and differences, at random and at singular configurations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit, robot
from random_trees import random_model

from jaxdyn.algorithms import center_of_mass, forward_kinematics, frame_pose
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.functions import (
    CenterOfMass,
    CenterOfMassDistance,
    FunctionSet,
    Manipulability,
    Orientation,
    PointDistance,
    Position,
    Posture,
    RelativeOrientation,
    RelativePosition,
    RelativeTransformation,
    Transformation,
    automatic_jacobian,
)
from jaxdyn.functions.implicit import Gap
from jaxdyn.math import so3
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.math.se3 import SE3
from jaxdyn.model import integrate, load, neutral, random_configuration

PLACED = SE3(so3.exp(jnp.array([0.2, -0.4, 0.9])), jnp.array([0.1, 0.3, -0.2]))
SQUARE = np.array([(0.0, 0, 0), (2, 0, 0.5), (2, 2, 0.5), (0, 2, 0)])


# what runs in a quick run; the others share their code
FEW = ("masked", "element", "relative", "com in a frame", "distance", "com from a polygon", "posture")


@functools.cache
def model_of(name):
    """ "small": joints of all six types; "floating": a floating base with a few joints on two branches."""
    if name == "small":
        return robot("small")
    return random_model(5, 3, root="floating", fixed=0.0, dtype=jnp.float64)


def functions(name):
    """Every function once; frames on different branches where there are."""
    model = model_of(name)
    a, b, c = model.body_names[-1], model.body_names[0], model.body_names[model.n_bodies // 2]
    posture = random_configuration(model, jax.random.key(9))
    every = {
        "position": Position(model, a, jnp.array([0.1, 0.2, 0.3]), PLACED),
        "orientation": Orientation(model, a, PLACED, PLACED),
        "masked": Transformation(model, a, PLACED, mask=(False, True, False, True, False, True)),
        "element": Transformation(model, a, PLACED, PLACED, as_element=True),
        "relative position": RelativePosition(model, a, c, jnp.array([0.1, 0.2, 0.3]), PLACED),
        "relative orientation": RelativeOrientation(model, c, a, as_element=True),
        "relative": RelativeTransformation(model, a, b, PLACED, PLACED),
        "com": CenterOfMass(model, mask=(True, False, True)),
        "com in a frame": CenterOfMass(model, a, PLACED),
        "distance": PointDistance(model, a, [0.1, 0.0, 0.0], c, [0.0, 0.3, 0.1]),
        "com from a polygon": CenterOfMassDistance(model, (c, SQUARE[[0, 1, 3]])),
        "posture": Posture(model, posture, mask=[True] * model.nv),
    }
    return every if name == "small" else {which: every[which] for which in FEW}


CASES = [
    *(pytest.param("floating", which, id=f"floating-{which}") for which in FEW),
    *(pytest.param("small", which, id=f"small-{which}", marks=pytest.mark.slow) for which in functions("small")),
]


@functools.cache
def evaluated(name):
    model = model_of(name)
    q = jax.vmap(lambda key: random_configuration(model, key))(jax.random.split(jax.random.key(1), 4))
    q = np.concatenate([q, neutral(model)[None]])
    parts = functions(name)
    together = FunctionSet(list(parts.values()))

    ways = np.random.default_rng(4).normal(size=(3, model.nv))

    def everything(model, q):
        value, jacobian = together.value_and_jacobian(q)
        # differences along a few directions, on the manifold
        points = jax.vmap(lambda v: together.value(integrate(model, q, v)))(np.concatenate([ways, -ways]) * 1e-5)
        space = together.output_space
        moved = space.minus(points, jnp.broadcast_to(value, points.shape))
        differences = (moved[:3] - moved[3:]) / 2e-5
        return value, jacobian, automatic_jacobian(together, q) if name == "small" else jacobian, differences

    results = quick_jit(jax.vmap(everything, (None, 0)))(model, q)
    return model, q, parts, ways, jax.tree.map(np.asarray, results)


def _rows(name, which):
    parts = functions(name)
    start = start_v = 0
    for name, f in parts.items():
        end, end_v = start + f.output_size, start_v + f.output_derivative_size
        if name == which:
            return slice(start, end), slice(start_v, end_v)
        start, start_v = end, end_v
    raise AssertionError(which)


every_function = pytest.mark.parametrize("robot, which", CASES)


@every_function
def test_the_jacobian_is_that_of_differences(robot, which):
    *_, ways, (_, jacobian, _, differences) = evaluated(robot)
    rows = _rows(robot, which)[1]
    wanted = np.einsum("nij,kj->nki", jacobian[:, rows], ways)
    np.testing.assert_allclose(differences[:, :, rows], wanted, atol=1e-7 * np.maximum(1, np.abs(wanted).max()))


@pytest.mark.slow
def test_the_jacobian_is_that_of_automatic_differentiation():
    *_, (_, jacobian, automatic, _) = evaluated("small")
    np.testing.assert_allclose(automatic, jacobian, atol=1e-11 * np.maximum(1, np.abs(automatic).max()))


@every_function
def test_inactive_columns_are_zero_and_active_ones_are_not(robot, which):
    _, _, parts, _, (_, jacobian, *_) = evaluated(robot)
    active = parts[which].active_derivative_parameters
    moved = np.abs(jacobian[:, _rows(robot, which)[1]]).max(axis=(0, 1)) > 1e-9
    assert not (moved & ~active).any()
    if which not in ("com from a polygon", "com in a frame", "distance"):
        assert (moved == active).mean() > 0.5


def test_values_are_those_of_the_poses():
    model, q, parts, _, (values, *_) = evaluated("floating")
    a, c = model.body_names[-1], model.body_names[model.n_bodies // 2]

    def poses(q):
        kin = forward_kinematics(model, q)
        here, there = frame_pose(model, kin, a), frame_pose(model, kin, c)
        gap = here.apply(jnp.array([0.1, 0.0, 0.0])) - there.apply(jnp.array([0.0, 0.3, 0.1]))
        placed = here @ PLACED
        return {
            "masked": jnp.concatenate([placed.translation, so3.log(placed.rotation)])[np.array([1, 3, 5])],
            "distance": jnp.linalg.norm(gap)[None],
            "com in a frame": placed.apply_inverse(center_of_mass(model, kin)),
        }

    for name, wanted in quick_jit(jax.vmap(poses))(q).items():
        np.testing.assert_allclose(values[:, _rows("floating", name)[0]], wanted, atol=1e-10)
    assert parts["masked"].rows == (1, 3, 5)


def test_a_relative_transformation_is_translation_and_rotation_vector():
    model = load("box", root="floating")
    f = RelativeTransformation(model, model.body_names[0], None)
    w = np.array([0.3, -0.5, 0.2])
    q = np.concatenate([(1.0, 2.0, 3.0), so3.quaternion_exp(jnp.asarray(w))])
    value, jacobian = quick_jit(lambda q: f.value_and_jacobian(q))(q)
    np.testing.assert_allclose(value, (1, 2, 3, *w), atol=1e-14)
    np.testing.assert_allclose(jacobian[:3, :3], so3.exp(jnp.asarray(w)), atol=1e-14)
    np.testing.assert_allclose(jacobian[3:, 3:], so3.right_jacobian_inverse(jnp.asarray(w)), atol=1e-13)
    assert f.output_space == LieSpace.R(6)
    assert f.depends_on_rel_pose_between() == (None, model.joint_names[0])
    again = RelativeTransformation(model, model.joint_names[0], None)
    assert again.bodies == (0, -1)


def test_the_distance_of_equal_points_is_zero_with_derivative_zero():
    model = load("box", root="floating")
    f = PointDistance(model, model.body_names[0], np.zeros(3), None, np.zeros(3))
    q = np.array([0, 0, 0, 1.0, 0, 0, 0])
    value, jacobian, gradient = quick_jit(lambda q: (f.value(q), f.jacobian(q), jax.jacrev(f.value)(q)))(q)
    assert float(value[0]) == 0
    assert not np.asarray(jacobian).any()
    assert np.isfinite(gradient).all()


def test_manipulability_of_a_planar_arm():
    model = load("double_pendulum")
    tip = Position(model, model.body_names[-1], [0.0, 0.0, -1.0])
    q = np.array([[0.3, 0.9], [0.4, 0.0], [0.1, np.pi]])
    planar = np.asarray(quick_jit(jax.vmap(lambda q: tip.jacobian(q)))(q))
    two = np.abs(planar).max(axis=(0, 2)) > 1e-9
    assert two.sum() == 2
    space = Manipulability(tip)
    flat = Manipulability(Position(model, model.body_names[-1], [0.0, 0.0, -1.0], mask=two.tolist()))
    value, slope, volume = quick_jit(jax.vmap(lambda q: (flat.value(q)[0], flat.jacobian(q)[0], space.value(q)[0])))(q)
    # three rows of rank two have no volume in space
    assert not np.asarray(volume).any()
    assert value[0] > 0.1
    np.testing.assert_allclose(value[1:], 0, atol=1e-12)
    assert abs(float(slope[0, 1])) > 1e-3
    assert np.isfinite(slope).all()
    assert abs(np.linalg.det(planar[0][two])) == pytest.approx(float(value[0]))


def test_mistakes_are_named():
    model = load("arm7")
    with pytest.raises(UnknownNameError, match="tool"):
        Position(model, "tooll")
    with pytest.raises(InputError, match="3 rows, given 2"):
        Position(model, "tool", mask=(True, False))
    with pytest.raises(InputError, match="at least one row"):
        Orientation(model, "tool", mask=(False, False, False))
    with pytest.raises(InputError, match="as_element"):
        Transformation(model, "tool", mask=(True, True, True, False, False, False), as_element=True)
    with pytest.raises(InputError, match="mask"):
        CenterOfMass(model, mask=(False, False, False))
    with pytest.raises(InputError, match="wanted a polygon"):
        CenterOfMassDistance(model, (None, [(0.0, 0, 0), (1, 0, 0)]))
    with pytest.raises(InputError, match="7 degrees"):
        Posture(model, np.zeros(7), mask=[True])
    assert Gap.__doc__


def test_the_dtype_follows_the_model():
    model = load("arm7").astype(jnp.float32)
    f = RelativeTransformation(model, "tool", model.body_names[1])
    out = jax.eval_shape(lambda f, q: f.value_and_jacobian(q), f, jax.ShapeDtypeStruct((7,), jnp.float32))
    assert all(x.dtype == jnp.float32 for x in out)
