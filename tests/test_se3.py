"""Rigid motions: group axioms, Pinocchio as oracle, and derivatives at the places where they used to be NaN."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from closeness import assert_close
from hypothesis import given
from hypothesis.extra import numpy as hnp

from jaxdyn.math import SE3, se3, so3

PI = np.pi
AXES = np.array([[2 / 3, -1 / 3, 2 / 3], [0, 1, 0], [-0.6, 0, 0.8]])
LINEAR = np.array([[0.3, -1.2, 0.7], [2.0, 0.1, -0.4], [0.0, 0.0, 0.0]])
ANGLES = [0.0, 1e-12, 1e-9, 1e-7, 1e-4, 1e-2, 0.5, 0.9999999, 1.0000001, 2.0, 3.0, PI - 1e-4, PI - 1e-8]


def twists(angles):
    angular = np.array(angles)[:, None, None] * AXES
    return np.concatenate([np.broadcast_to(LINEAR, angular.shape), angular], axis=-1).reshape(-1, 6)


SAMPLE = twists(ANGLES)


@functools.cache
def batched(f):
    """One compiled program for each function, over the sample."""
    return jax.jit(jax.vmap(f))


def random_pose(seed):
    rng = np.random.default_rng(seed)
    return se3.exp(jnp.asarray(rng.normal(size=6)))


def motion_matrix(xi):
    """4x4 matrix of a twist."""
    return jnp.zeros((4, 4)).at[:3, :3].set(so3.hat(xi[3:])).at[:3, 3].set(xi[:3])


# --- exponential, logarithm, Jacobians ------------------------------------------------------------------------------


def test_exp_agrees_with_pinocchio():
    xi = np.concatenate([SAMPLE, twists([PI, 5.0, 7.0])])
    assert_close(batched(se3.exp)(jnp.asarray(xi)).as_matrix(), [pin.exp6(x).homogeneous for x in xi], 1e-14)


def test_log_inverts_exp_and_agrees_with_pinocchio():
    xi = jnp.asarray(SAMPLE)
    found = batched(lambda xi: se3.log(se3.exp(xi)))(xi)
    assert_close(found, xi, 2e-14)
    middle = np.linalg.norm(SAMPLE[:, 3:], axis=1) < 3.1  # its own accuracy ends there
    assert_close(found[middle], [pin.log6(pin.exp6(x)).vector for x in SAMPLE[middle]], 1e-9)


def test_log_at_a_half_turn_gives_the_pose_back():
    pose = batched(se3.exp)(jnp.asarray(twists([PI])))
    found = batched(se3.log)(pose)
    assert_close(np.linalg.norm(found[:, 3:], axis=1), [PI] * len(found), 1e-14)
    assert_close(batched(se3.exp)(found).as_matrix(), pose.as_matrix(), 4e-15)


def test_log_of_a_rotation_with_trace_above_three_is_finite_with_its_derivatives():
    R = jnp.array([[1.0000001, 1e-8, 0.0], [-1e-8, 1.0000001, 0.0], [0.0, 0.0, 1.0]])
    f = jax.jit(lambda R: (se3.log(SE3(R, jnp.ones(3))), jax.jacrev(lambda R: se3.log(SE3(R, jnp.ones(3))))(R)))
    value, derivative = f(R)
    assert_close(value, [1.0, 1.0, 1.0, 0.0, 0.0, -1e-8], 1e-8)
    assert np.isfinite(derivative).all()


def test_the_jacobians_agree_with_pinocchio_and_invert_each_other():
    right, left, right_inverse, left_inverse = batched(
        lambda xi: [
            f(xi)
            for f in (se3.right_jacobian, se3.left_jacobian, se3.right_jacobian_inverse, se3.left_jacobian_inverse)
        ]
    )(jnp.asarray(SAMPLE))
    assert_close(right, [pin.Jexp6(x) for x in SAMPLE], 1e-9)  # its series switch late
    eye = np.broadcast_to(np.eye(6), right.shape)
    assert_close(np.asarray(right) @ np.asarray(right_inverse), eye, 1e-13)
    assert_close(np.asarray(left) @ np.asarray(left_inverse), eye, 1e-13)
    assert_close(
        left, np.asarray(batched(lambda xi: se3.exp(xi).adjoint())(jnp.asarray(SAMPLE))) @ np.asarray(right), 1e-13
    )


def test_the_jacobians_are_the_derivative_of_the_group_product():
    def by_differentiation(xi):
        pose = se3.exp(xi)
        return jax.jacfwd(lambda d: se3.log(se3.exp(xi + d) @ pose.inverse()))(jnp.zeros_like(xi))

    assert_close(
        batched(by_differentiation)(jnp.asarray(SAMPLE)), batched(se3.left_jacobian)(jnp.asarray(SAMPLE)), 3e-14
    )


def test_the_corner_of_the_jacobian_is_the_derivative_of_that_of_rotations_along_the_linear_part():
    def by_differentiation(xi):
        return jax.jvp(so3.left_jacobian, (xi[3:],), (xi[:3],))[1]

    assert_close(
        batched(by_differentiation)(jnp.asarray(SAMPLE)),
        batched(se3.left_jacobian)(jnp.asarray(SAMPLE))[:, :3, 3:],
        3e-15,
    )


def test_the_derivative_of_log_after_exp_is_the_identity_in_both_modes_and_its_second_is_zero():
    def f(xi):
        return se3.log(se3.exp(xi))

    eye = np.broadcast_to(np.eye(6), (len(SAMPLE), 6, 6))
    assert_close(batched(jax.jacfwd(f))(jnp.asarray(SAMPLE)), eye, 3e-14)
    assert_close(batched(jax.jacrev(f))(jnp.asarray(SAMPLE)), eye, 3e-14)
    direction = jnp.array([0.3, -0.5, 0.7, 1.0, 0.2, -0.4])
    hessian = batched(jax.hessian(lambda xi: jnp.sum(direction * f(xi))))(jnp.asarray(SAMPLE))
    assert_close(hessian, np.zeros_like(hessian), 4e-13)


def test_a_pose_task_at_zero_error_has_gradient_zero_and_hessian_two():
    target = random_pose(0)

    def cost(d):
        return jnp.sum(se3.log(target.inverse() @ (target @ se3.exp(d))) ** 2)

    gradient, hessian = jax.jit(lambda d: (jax.grad(cost)(d), jax.hessian(cost)(d)))(jnp.zeros(6))
    assert_close(gradient, np.zeros(6), 1e-15)
    assert_close(hessian, 2 * np.eye(6), 1e-14)


def test_the_error_between_two_headings_goes_the_short_way_and_is_zero_between_q_and_minus_q():
    def heading(yaw):
        return SE3(so3.from_rpy(jnp.array([0.0, 0.0, yaw])), jnp.zeros(3))

    error = se3.log(heading(3.0).inverse() @ heading(-3.0))
    assert_close(error, [0, 0, 0, 0, 0, 2 * PI - 6.0], 1e-14)
    q = jnp.array([0.5, -0.1, 0.7, 0.3])
    pair = SE3.from_quaternion(q, jnp.ones(3)).inverse() @ SE3.from_quaternion(-q, jnp.ones(3))
    assert_close(pair.log(), np.zeros(6), 1e-15)


# --- group and actions ----------------------------------------------------------------------------------------------

TWISTS = hnp.arrays(np.float64, 6, elements=st.floats(-3, 3, width=32))


def group_residuals(xi, point):
    A, B, C = (se3.exp(x) for x in xi)

    def matrix(pose):
        return pose.as_matrix()

    return (
        matrix((A @ B) @ C) - matrix(A @ (B @ C)),
        matrix(A @ A.inverse()) - jnp.eye(4),
        matrix(se3.exp(A.log())) - matrix(A),
        matrix(A @ B) - jnp.matmul(matrix(A), matrix(B), precision="highest"),
        A.apply(B.apply(point)) - (A @ B).apply(point),
        A.apply_inverse(A.apply(point)) - point,
        # The adjoint: A exp(xi) A^-1 = exp(Ad xi), and the twist's matrix transforms by conjugation.
        matrix(A @ B @ A.inverse()) - matrix(se3.exp(A.action_on_twist(xi[1]))),
        motion_matrix(A.action_on_twist(xi[1])) - matrix(A) @ motion_matrix(xi[1]) @ matrix(A.inverse()),
        A.action_on_twist(xi[1]) - A.adjoint() @ xi[1],
        # A wrench transforms by the inverse transpose: power is the same in both frames.
        A.action_on_wrench(xi[2]) - A.inverse().adjoint().T @ xi[2],
        A.action_on_wrench(xi[2]) @ A.action_on_twist(xi[1]) - xi[2] @ xi[1],
        (A @ B).adjoint() - A.adjoint() @ B.adjoint(),
    )


@given(TWISTS, TWISTS, TWISTS)
def test_group_axioms_and_actions(a, b, c):
    for residual in batched(group_residuals)(jnp.asarray(np.stack([a, b, c])[None]), jnp.asarray(a[None, :3])):
        assert_close(residual, np.zeros_like(residual), 5e-12)


def test_poses_agree_with_pinocchio():
    pose = random_pose(1)
    oracle = pin.SE3(np.array(pose.rotation), np.array(pose.translation))
    x = np.random.default_rng(2).normal(size=6)
    assert_close(pose.as_matrix(), oracle.homogeneous, 0)
    assert_close(pose.inverse().as_matrix(), oracle.inverse().homogeneous)
    assert_close(pose.adjoint(), oracle.action)
    assert_close(pose.action_on_twist(jnp.asarray(x)), oracle.act(pin.Motion(x)).vector)
    assert_close(pose.action_on_wrench(jnp.asarray(x)), oracle.act(pin.Force(x)).vector)


def test_constructors_and_conversions_are_inverse():
    pose = random_pose(3)
    assert_close(SE3.from_matrix(pose.as_matrix()).as_matrix(), pose.as_matrix(), 0)
    assert_close(SE3.from_quaternion(3.0 * pose.as_quaternion(), pose.translation).as_matrix(), pose.as_matrix(), 1e-15)
    assert_close(SE3.identity().as_matrix(), np.eye(4), 0)
    assert_close(SE3.exp(pose.log()).as_matrix(), pose.as_matrix(), 2e-15)
    batch = se3.identity((2, 3), jnp.float32)
    assert batch.rotation.shape == (2, 3, 3, 3) and batch.translation.dtype == jnp.float32


# --- shapes and types -----------------------------------------------------------------------------------------------


def test_a_pose_and_many_points_broadcast_and_so_do_many_poses_and_one_point():
    pose, points = random_pose(4), jnp.asarray(np.random.default_rng(5).normal(size=(4, 2, 3)))
    found = pose.apply(points)
    assert_close(found, jax.vmap(jax.vmap(pose.apply))(points), 0)
    assert_close(pose.apply_inverse(found), points)
    many = se3.exp(jnp.asarray(SAMPLE))
    assert_close(many.apply(points[0, 0]), jax.vmap(lambda p: p.apply(points[0, 0]))(many), 1e-15)
    assert many.action_on_twist(jnp.ones(6)).shape == (len(SAMPLE), 6)
    assert pose.action_on_wrench(jnp.ones((7, 6))).shape == (7, 6)
    assert (pose @ many).translation.shape == (len(SAMPLE), 3) == (many @ pose).translation.shape


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_batch_axes_lead_and_the_dtype_is_kept(dtype):
    def everything(xi):
        pose = se3.exp(xi)
        actions = pose.action_on_twist(xi), pose.action_on_wrench(xi), pose.apply(xi[..., :3]), pose.as_quaternion()
        jacobians = se3.left_jacobian(xi), se3.right_jacobian(xi)
        inverses = se3.left_jacobian_inverse(xi), se3.right_jacobian_inverse(xi)
        return pose, pose.inverse() @ pose, pose.log(), pose.adjoint(), pose.as_matrix(), actions, jacobians, inverses

    single = jax.eval_shape(everything, jax.ShapeDtypeStruct((6,), dtype))
    batch = jax.eval_shape(everything, jax.ShapeDtypeStruct((5, 2, 6), dtype))
    for one, many in zip(jax.tree.leaves(single), jax.tree.leaves(batch), strict=True):
        assert one.dtype == many.dtype == dtype
        assert many.shape == (5, 2, *one.shape)


def test_leading_axes_give_what_vmap_gives():
    xi = jnp.asarray(SAMPLE)
    assert_close(se3.exp(xi).as_matrix(), batched(lambda xi: se3.exp(xi).as_matrix())(xi), 1e-15)
    assert_close(se3.left_jacobian(xi), batched(se3.left_jacobian)(xi), 2e-15)


def test_single_precision_is_right_to_single_precision():
    small = jnp.asarray(SAMPLE[:-6], jnp.float32)
    pose = batched(se3.exp)(small)
    assert_close(pose.as_matrix(), [pin.exp6(x).homogeneous for x in SAMPLE[:-6]], 2e-6)
    assert_close(batched(se3.log)(pose), SAMPLE[:-6], 1e-5)


def test_poses_of_different_batches_are_refused():
    with pytest.raises(Exception, match="batch"):
        SE3(jnp.zeros((2, 3, 3)), jnp.zeros((3, 3)))
