"""Joint types: pose, motion subspace and coordinates belong together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.math import se3
from jaxdyn.model import joints
from jaxdyn.model.description import Joint
from jaxdyn.model.order import frozen_pose
from jaxdyn.model.tree import JOINT_SIZES

KINDS = sorted(JOINT_SIZES)


def random_axis(rng):
    axis = rng.normal(size=3)
    return axis / np.linalg.norm(axis)


def random_coordinates(rng, kind):
    return joints.normalize_joint(kind, jnp.asarray(rng.normal(size=JOINT_SIZES[kind][0])))


@pytest.mark.parametrize("kind", KINDS)
def test_moving_along_v_moves_the_child_by_the_motion_subspace(kind):
    """d/dt of the pose, in axes of the child, is S v, with S constant."""
    rng = np.random.default_rng(1)
    axis = jnp.asarray(random_axis(rng))
    subspace = joints.motion_subspace(kind, axis)
    for _ in range(3):
        q, v = random_coordinates(rng, kind), jnp.asarray(rng.normal(size=JOINT_SIZES[kind][1]))

        def pose(t, q=q, v=v):
            return joints.joint_pose(kind, axis, joints.integrate_joint(kind, q, t * v))

        here = pose(0.0)
        twist = jax.jacfwd(lambda t, here=here: se3.log(here.inverse() @ pose(t)))(0.0)
        np.testing.assert_allclose(twist, subspace @ v, atol=1e-12)
        # and along the whole path: the twist is constant, so the pose is its exponential
        np.testing.assert_allclose(pose(1.0).as_matrix(), (here @ se3.exp(subspace @ v)).as_matrix(), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_neutral_coordinates_give_the_identity_pose(kind):
    pose = joints.joint_pose(kind, jnp.asarray([0.0, 0.6, 0.8]), jnp.asarray(joints.neutral_of(kind)))
    np.testing.assert_allclose(pose.as_matrix(), np.eye(4), atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_freezing_a_joint_puts_it_where_the_moving_joint_would_be(kind):
    rng = np.random.default_rng(2)
    axis, q = random_axis(rng), rng.normal(size=JOINT_SIZES[kind][0])
    free = (-np.inf, np.inf, np.inf, np.inf, 0.0, 0.0)
    frozen = frozen_pose(Joint("j", 1, kind, "a", "b", np.eye(4), axis, *free, None), q)
    np.testing.assert_allclose(
        frozen, joints.joint_pose(kind, jnp.asarray(axis), jnp.asarray(q)).as_matrix(), atol=1e-14
    )


@pytest.mark.parametrize(
    "normal", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, -1), (0.6, 0, 0.8), (0.5773502691896258,) * 3]
)
def test_in_plane_axes_are_orthonormal_and_right_handed(normal):
    n = jnp.asarray(normal, float)
    u, w = joints.planar_axes(n)
    np.testing.assert_allclose(np.stack([u, w, n]) @ np.stack([u, w, n]).T, np.eye(3), atol=1e-15)
    np.testing.assert_allclose(np.cross(u, w), n, atol=1e-15)


def test_in_plane_axes_of_z_and_y_are_as_documented():
    np.testing.assert_array_equal(np.stack(joints.planar_axes(jnp.asarray([0.0, 0.0, 1.0]))), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(np.stack(joints.planar_axes(jnp.asarray([0.0, 1.0, 0.0]))), [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_joints_is_handled_like_each_alone(kind):
    rng = np.random.default_rng(3)
    axis = jnp.asarray(np.stack([random_axis(rng) for _ in range(4)]))
    q = jnp.stack([random_coordinates(rng, kind) for _ in range(4)])
    v = jnp.asarray(rng.normal(size=(4, JOINT_SIZES[kind][1])))
    stacked = (
        joints.joint_pose(kind, axis, q).as_matrix(),
        joints.motion_subspace(kind, axis),
        joints.integrate_joint(kind, q, v),
    )
    for i in range(4):
        alone = (
            joints.joint_pose(kind, axis[i], q[i]).as_matrix(),
            joints.motion_subspace(kind, axis[i]),
            joints.integrate_joint(kind, q[i], v[i]),
        )
        for a, b in zip(stacked, alone, strict=True):
            np.testing.assert_allclose(a[i], b, atol=1e-15)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 3.0, np.pi, -np.pi, 100.0])
def test_the_nearest_turn_is_within_half_a_turn(angle):
    wrapped = float(joints.nearest_turn(jnp.asarray(angle)))
    assert abs(wrapped) <= np.pi * (1 + 1e-15)
    assert np.isclose(np.cos(wrapped), np.cos(angle)) and np.isclose(np.sin(wrapped), np.sin(angle), atol=1e-13)
