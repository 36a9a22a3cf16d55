"""Rotations: group axioms, closed forms, two independent libraries, and derivatives where others return NaN."""

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
from scipy.spatial.transform import Rotation

from jaxdyn.math import so3

PI = np.pi
AXES = np.array([[2, -1, 2], [1, 0, 0], [0, 0, -1], [0.6, 0, -0.8], [-1, -4, 8]])
AXES = AXES / np.linalg.norm(AXES, axis=1, keepdims=True)
NEAR = [0.0, 1e-160, 1e-12, 1e-9, 1e-7, 1e-4, 1e-2]
MIDDLE = [0.3, 0.9999999, 1.0, 1.0000001, 2.0, 3.0]  # the series end at an angle of 1
HALF_TURN = [PI - 1e-2, PI - 1e-4, PI - 1e-7, PI - 1e-9]


def vectors(angles):
    return (np.array(angles)[:, None, None] * AXES).reshape(-1, 3)


BELOW_PI = vectors(NEAR + MIDDLE + HALF_TURN)


@functools.cache
def batched(f):
    """One compiled program for each function, over the sample."""
    return jax.jit(jax.vmap(f))


# --- values ---------------------------------------------------------------------------------------------------------


def test_exp_agrees_with_scipy_at_every_angle():
    w = np.concatenate([BELOW_PI, vectors([PI, 4.0, 2 * PI, 7.0, 30.0])])
    assert_close(batched(so3.exp)(jnp.asarray(w)), Rotation.from_rotvec(w).as_matrix(), 4e-15)


def test_exp_is_orthonormal_to_rounding():
    R = np.asarray(batched(so3.exp)(jnp.asarray(BELOW_PI)))
    assert_close(R @ R.transpose(0, 2, 1), np.broadcast_to(np.eye(3), R.shape), 4e-16 * 3)
    assert_close(np.linalg.det(R), np.ones(len(R)), 2e-15)


def test_log_inverts_exp_below_pi():
    w = jnp.asarray(BELOW_PI)
    assert_close(batched(so3.log)(batched(so3.exp)(w)), w, 4e-15)


def test_log_of_a_small_rotation_keeps_relative_precision():
    w = vectors([1e-150, 1e-12, 1e-7])
    found = batched(so3.log)(batched(so3.exp)(jnp.asarray(w)))
    np.testing.assert_allclose(found, w, rtol=1e-15, atol=0)


def test_log_of_a_half_turn_is_plus_or_minus_the_vector():
    for w, R in zip(vectors([PI]), Rotation.from_rotvec(vectors([PI])).as_matrix(), strict=True):
        found = np.asarray(so3.log(jnp.asarray(R)))
        assert min(np.abs(found - w).max(), np.abs(found + w).max()) < 1e-15 * 10
    # Without rounding, the largest component is the positive one.
    for diagonal in ([1, -1, -1], [-1, 1, -1], [-1, -1, 1]):
        w = so3.log(jnp.diag(jnp.array(diagonal, float)))
        assert_close(w, PI * (np.array(diagonal) + 1) / 2, 1e-15)


def test_log_of_a_matrix_with_trace_above_three_is_its_skew_part():
    R = jnp.array([[1.0000001, 1e-8, 0.0], [-1e-8, 1.0000001, 0.0], [0.0, 0.0, 1.0]])
    assert_close(so3.log(R), [0.0, 0.0, -1e-8], 1e-12)
    for mode in (jax.jacfwd, jax.jacrev):
        assert np.isfinite(jax.jit(mode(so3.log))(R)).all()


def test_hat_and_vee_are_inverse_and_hat_is_the_cross_product():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3))
    assert_close(so3.hat(jnp.asarray(a)) @ jnp.asarray(b), np.cross(a, b))
    assert_close(so3.cross(jnp.asarray(a), jnp.asarray(b)), np.cross(a, b))
    assert_close(so3.vee(so3.hat(jnp.asarray(a))), a)
    assert_close(so3.vee(jnp.asarray(np.outer(a, a))), np.zeros(3))


def test_products_are_those_of_matrices():
    rng = np.random.default_rng(1)
    A, B, x = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    a, b, v = jnp.asarray(A), jnp.asarray(B), jnp.asarray(x)
    assert_close(so3.compose(a, b), A @ B)
    assert_close(so3.rotate(a, v), A @ x)
    assert_close(so3.rotate_back(a, v), A.T @ x)
    assert_close(so3.inverse(a), A.T, 0)


def test_the_jacobians_agree_with_pinocchio_and_invert_each_other():
    w = vectors(NEAR + MIDDLE + HALF_TURN + [PI, 4.5])
    right = np.asarray(batched(so3.right_jacobian)(jnp.asarray(w)))
    assert_close(right, [pin.Jexp3(x) for x in w], 2e-12)  # its series switch late
    left = np.asarray(batched(so3.left_jacobian)(jnp.asarray(w)))
    assert_close(left, right.transpose(0, 2, 1), 1e-15)
    eye = np.broadcast_to(np.eye(3), left.shape)
    assert_close(left @ np.asarray(batched(so3.left_jacobian_inverse)(jnp.asarray(w))), eye, 2e-15 * 3)
    assert_close(right @ np.asarray(batched(so3.right_jacobian_inverse)(jnp.asarray(w))), eye, 2e-15 * 3)


def test_the_jacobians_are_the_derivative_of_the_group_product():
    def by_differentiation(w):
        R = so3.exp(w)
        left = jax.jacfwd(lambda d: so3.log(so3.compose(so3.exp(w + d), R.T)))(jnp.zeros_like(w))
        right = jax.jacfwd(lambda d: so3.log(so3.compose(R.T, so3.exp(w + d))))(jnp.zeros_like(w))
        return left, right

    left, right = batched(by_differentiation)(jnp.asarray(BELOW_PI))
    assert_close(left, batched(so3.left_jacobian)(jnp.asarray(BELOW_PI)), 4e-15)
    assert_close(right, batched(so3.right_jacobian)(jnp.asarray(BELOW_PI)), 4e-15)


# --- quaternions ----------------------------------------------------------------------------------------------------

QUATERNIONS = np.concatenate(
    [
        Rotation.random(20, random_state=3).as_quat(scalar_first=True),
        np.eye(4),
        -np.eye(4),
        Rotation.from_rotvec(vectors([1e-9, 1e-4, PI - 1e-7, PI])).as_quat(scalar_first=True),
    ]
)


def test_from_quaternion_agrees_with_scipy_whatever_the_length_and_sign():
    expected = Rotation.from_quat(QUATERNIONS, scalar_first=True).as_matrix()
    for scale in (1.0, 2.0, 0.001, -1.0, 1e-200, 1e200):
        assert_close(batched(so3.from_quaternion)(jnp.asarray(scale * QUATERNIONS)), expected, 2e-15)


def test_the_length_of_a_quaternion_has_no_derivative():
    for scale in (1.0, 2.0, 0.001, -1.0):
        along = batched(lambda q: jax.jvp(so3.from_quaternion, (q,), (q,))[1])
        assert_close(along(jnp.asarray(scale * QUATERNIONS)), np.zeros((len(QUATERNIONS), 3, 3)), 1e-15)
        along = batched(lambda q: jax.jvp(so3.quaternion_log, (q,), (q,))[1])
        assert_close(along(jnp.asarray(scale * QUATERNIONS)), np.zeros((len(QUATERNIONS), 3)), 4e-15)


def test_a_zero_quaternion_is_the_identity_with_derivative_zero():
    zero = jnp.zeros(4)
    with jax.debug_nans(True):
        assert_close(so3.from_quaternion(zero), np.eye(3), 0)
        assert_close(so3.quaternion_normalize(zero), [1, 0, 0, 0], 0)
        assert_close(so3.quaternion_log(zero), np.zeros(3), 0)
        for f in (so3.from_quaternion, so3.quaternion_normalize, so3.quaternion_log):
            derivatives = jax.jit(lambda q, f=f: (jax.jacfwd(f)(q), jax.jacrev(f)(q), jax.hessian(f)(q)))(zero)
            assert not any(np.any(derivative) for derivative in derivatives)


def test_to_quaternion_inverts_from_quaternion_with_a_scalar_part_that_is_not_negative():
    R = batched(so3.from_quaternion)(jnp.asarray(QUATERNIONS))
    q = np.asarray(batched(so3.to_quaternion)(R))
    assert (q[:, 0] >= 0).all()
    assert_close(np.linalg.norm(q, axis=1), np.ones(len(q)), 4e-16)
    sign = np.sign(np.sum(q * QUATERNIONS, axis=1, keepdims=True))
    assert_close(q, sign * QUATERNIONS, 1e-15)


def test_the_quaternion_product_is_that_of_scipy():
    a, b = QUATERNIONS[:20], QUATERNIONS[20:40][::-1]
    n = min(len(a), len(b))
    ab = so3.quaternion_multiply(jnp.asarray(a[:n]), jnp.asarray(b[:n]))
    expected = (Rotation.from_quat(a[:n], scalar_first=True) * Rotation.from_quat(b[:n], scalar_first=True)).as_matrix()
    assert_close(batched(so3.from_quaternion)(ab), expected, 1e-15)
    conjugate = so3.quaternion_conjugate(jnp.asarray(a))
    assert_close(so3.quaternion_multiply(jnp.asarray(a), conjugate), np.tile(np.eye(4)[0], (len(a), 1)), 1e-15)


def test_quaternion_exp_and_log_are_those_of_the_matrices():
    w = jnp.asarray(BELOW_PI)
    q = batched(so3.quaternion_exp)(w)
    assert_close(batched(so3.from_quaternion)(q), batched(so3.exp)(w), 1e-15)
    assert_close(batched(so3.quaternion_log)(q), w, 2e-15)
    assert_close(batched(so3.quaternion_log)(-q), w, 2e-15)
    assert_close(batched(so3.quaternion_log)(1e-3 * q), w, 2e-15)


# --- angles, vectors, repair ----------------------------------------------------------------------------------------


def test_from_rpy_is_the_convention_of_urdf():
    rpy = np.random.default_rng(4).uniform(-PI, PI, (20, 3))
    assert_close(batched(so3.from_rpy)(jnp.asarray(rpy)), Rotation.from_euler("xyz", rpy).as_matrix(), 1e-15)
    assert_close(so3.from_rpy(jnp.array([0.1, -0.2, 0.3])), pin.rpy.rpyToMatrix(0.1, -0.2, 0.3), 1e-15)


def test_to_rpy_gives_the_same_rotation_also_at_and_near_gimbal_lock():
    rng = np.random.default_rng(5)
    rpy = rng.uniform(-PI, PI, (40, 3))
    rpy[:, 1] /= 2
    rpy[20:30, 1] = PI / 2 * np.sign(rpy[20:30, 1])
    rpy[30:, 1] = (PI / 2 - 10.0 ** rng.uniform(-16, -2, 10)) * np.sign(rpy[30:, 1])
    R = batched(so3.from_rpy)(jnp.asarray(rpy))
    found = batched(so3.to_rpy)(R)
    assert_close(found[:20], rpy[:20], 1e-13)
    assert_close(batched(so3.from_rpy)(found), R, 4e-15)
    jacobian = batched(jax.jacrev(lambda rpy: so3.to_rpy(so3.from_rpy(rpy))))(jnp.asarray(rpy[20:30]))
    assert np.isfinite(jacobian).all()


def test_project_gives_the_polar_factor():
    rng = np.random.default_rng(6)
    R = np.asarray(so3.random(jax.random.key(0), (20,)))
    M = R + 2e-5 * rng.normal(size=R.shape)
    u, _, vt = np.linalg.svd(M)
    assert_close(batched(so3.project)(jnp.asarray(M)), u @ vt, 2e-15)
    # At a rotation the derivative keeps the tangent part of a change and drops the rest.
    E = rng.normal(size=R.shape)
    along = jax.jit(jax.vmap(lambda r, e: jax.jvp(so3.project, (r,), (e,))[1]))(jnp.asarray(R), jnp.asarray(E))
    skew = R.transpose(0, 2, 1) @ E
    assert_close(along, R @ (skew - skew.transpose(0, 2, 1)) / 2, 1e-14)


def test_from_two_vectors_turns_one_direction_into_the_other_by_the_smallest_angle():
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(2, 30, 3)) * 10.0 ** rng.uniform(-3, 3, (2, 30, 1))
    b[10:20] = -a[10:20] + 10.0 ** rng.uniform(-16, -2, (10, 1)) * rng.normal(size=(10, 3))
    b[20:25] = 2 * a[20:25]
    b[25:] = -3 * a[25:]

    def unit(v):
        return v / np.linalg.norm(v, axis=1, keepdims=True)

    R = np.asarray(so3.from_two_vectors(jnp.asarray(a), jnp.asarray(b)))
    assert_close(np.einsum("nij,nj->ni", R, unit(a)), unit(b), 2e-15)
    assert_close(R @ R.transpose(0, 2, 1), np.broadcast_to(np.eye(3), R.shape), 2e-15)
    angle = np.linalg.norm(batched(so3.log)(jnp.asarray(R)), axis=1)
    assert_close(
        angle, np.arctan2(np.linalg.norm(np.cross(unit(a), unit(b)), axis=1), np.sum(unit(a) * unit(b), axis=1)), 1e-14
    )


def test_from_two_vectors_has_finite_derivatives_for_opposite_equal_and_zero_vectors():
    e, zero = jnp.array([0.0, 0.0, 1.0]), jnp.zeros(3)
    a, b = jnp.stack([e, e, zero, e, zero]), jnp.stack([-e, e, e, zero, zero])
    for derivative in (jax.jacfwd, jax.jacrev):
        found = jax.jit(jax.vmap(derivative(so3.from_two_vectors, (0, 1))))(a, b)
        assert all(np.isfinite(x).all() for x in found)
    assert_close(so3.from_two_vectors(a, b)[2:], np.broadcast_to(np.eye(3), (3, 3, 3)), 0)


def test_random_rotations_are_uniform_and_repeatable(key):
    R = np.asarray(so3.random(key, (4000,)))
    assert_close(np.linalg.det(R), np.ones(4000), 1e-14)
    assert np.abs(R.mean(0)).max() < 0.04  # Haar: mean 0, second moments 1/3
    assert np.abs((R**2).mean(0) - 1 / 3).max() < 0.03
    # Angle density (1 - cos a) / pi: mean pi/2 + 2/pi.
    angle = np.linalg.norm(batched(so3.log)(jnp.asarray(R)), axis=1)
    assert abs(angle.mean() - (PI / 2 + 2 / PI)) < 0.04
    assert (R == np.asarray(so3.random(key, (4000,)))).all()
    assert so3.random(key).shape == (3, 3) and so3.random(key, dtype=jnp.float32).dtype == jnp.float32


# --- group axioms ---------------------------------------------------------------------------------------------------

ROTATION_VECTORS = hnp.arrays(np.float64, 3, elements=st.floats(-4, 4, width=32))


def group_residuals(w):
    A, B, C = (so3.exp(x) for x in w)
    qA, qB = so3.to_quaternion(A), so3.to_quaternion(B)
    return (
        so3.compose(so3.compose(A, B), C) - so3.compose(A, so3.compose(B, C)),
        so3.compose(A, so3.inverse(A)) - jnp.eye(3),
        so3.exp(so3.log(A)) - A,
        # The adjoint: R exp(w) R^T = exp(R w).
        so3.compose(so3.compose(A, B), so3.inverse(A)) - so3.exp(so3.rotate(A, w[1])),
        so3.from_quaternion(so3.quaternion_multiply(qA, qB)) - so3.compose(A, B),
    )


@given(ROTATION_VECTORS, ROTATION_VECTORS, ROTATION_VECTORS)
def test_group_axioms(a, b, c):
    for residual in batched(group_residuals)(jnp.asarray(np.stack([a, b, c])[None])):
        assert_close(residual, np.zeros_like(residual), 4e-14)


# --- derivatives ----------------------------------------------------------------------------------------------------


def test_the_first_derivative_of_log_after_exp_is_the_identity_in_both_modes():
    def f(w):
        return so3.log(so3.exp(w))

    eye = np.broadcast_to(np.eye(3), (len(BELOW_PI), 3, 3))
    assert_close(batched(jax.jacfwd(f))(jnp.asarray(BELOW_PI)), eye, 4e-15)
    assert_close(batched(jax.jacrev(f))(jnp.asarray(BELOW_PI)), eye, 4e-15)


def test_the_second_derivative_of_log_after_exp_is_zero_in_every_order_of_modes():
    direction = jnp.array([0.3, -0.5, 0.7])

    def f(w):
        return jnp.sum(direction * so3.log(so3.exp(w)))

    modes = (jax.jacfwd, jax.jacrev)
    hessians = batched(lambda w: [outer(inner(f))(w) for outer in modes for inner in modes])(jnp.asarray(BELOW_PI))
    for hessian in hessians:
        assert_close(hessian, np.zeros((len(BELOW_PI), 3, 3)), 2e-14)


def test_at_a_half_turn_the_derivative_of_log_is_that_of_the_chosen_branch():
    w = vectors([PI])

    def f(w):
        return so3.log(so3.exp(w))

    value = np.asarray(batched(f)(jnp.asarray(w)))
    for mode in (jax.jacfwd, jax.jacrev):
        jacobian = np.asarray(batched(mode(f))(jnp.asarray(w)))
        for axis, v, J in zip(AXES, value, jacobian, strict=True):
            # On the other branch log(exp(w)) = w - 2 pi w/|w|.
            expected = np.eye(3) if v @ axis > 0 else 2 * np.outer(axis, axis) - np.eye(3)
            assert_close(J, expected, 1e-14)


def test_squared_log_has_gradient_zero_and_hessian_two_at_the_identity():
    def f(w):
        return jnp.sum(so3.log(so3.exp(w)) ** 2)

    for dtype, tol in ((jnp.float64, 1e-15), (jnp.float32, 1e-6)):
        zero = jnp.zeros(3, dtype)
        gradient, hessian = jax.jit(lambda w: (jax.grad(f)(w), jax.hessian(f)(w)))(zero)
        assert gradient.dtype == dtype and hessian.dtype == dtype
        assert_close(gradient, np.zeros(3), 0)
        assert_close(hessian, 2 * np.eye(3), tol)


# Each function along a curve t -> f(curve(w, t)) through rotation vectors, quaternions, or perturbed rotations.
def rotation_curve(w, d, t):
    return so3.compose(so3.exp(w), so3.exp(t * d))


def quaternion_curve(w, d, t):
    return 1.7 * so3.quaternion_multiply(so3.quaternion_exp(w), so3.quaternion_exp(t * d))


def straight(w, d, t):
    return w + t * d


CURVES = {
    "exp": (so3.exp, straight),
    "left_jacobian": (so3.left_jacobian, straight),
    "left_jacobian_inverse": (so3.left_jacobian_inverse, straight),
    "quaternion_exp": (so3.quaternion_exp, straight),
    "log": (so3.log, rotation_curve),
    "to_quaternion": (so3.to_quaternion, rotation_curve),
    "to_rpy": (so3.to_rpy, rotation_curve),
    "from_quaternion": (so3.from_quaternion, quaternion_curve),
    "quaternion_log": (so3.quaternion_log, quaternion_curve),
    "from_rpy": (so3.from_rpy, straight),
    "project": (lambda R: so3.project(R + 1e-3 * R * R), rotation_curve),
    "from_two_vectors": (
        lambda w: so3.from_two_vectors(w + jnp.array([0.2, 0.1, 0.4]), w[::-1] * w + jnp.array([1.0, 2.0, -1.0])),
        straight,
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_first_and_second_derivatives_agree_with_differences(name):
    f, curve = CURVES[name]
    w = vectors([0.0, 1e-9, 1e-4, 1e-2, 1.0, 2.0, 3.0])
    d = np.random.default_rng(8).normal(size=w.shape)
    weights = jnp.asarray(np.random.default_rng(9).normal(size=jax.eval_shape(f, curve(*jnp.ones((2, 3)), 0.0)).shape))

    @jax.jit
    @jax.vmap
    def taylor(w, d, t):
        def scalar(t):
            return jnp.sum(weights * f(curve(w, d, t)))

        def first(t):
            return jax.jvp(scalar, (t,), (jnp.ones_like(t),))[1]

        return scalar(t), first(t), jax.grad(scalar)(t), jax.grad(first)(t)

    h = 2.0**-17
    t = jnp.full(len(w), h)
    w, d = jnp.asarray(w), jnp.asarray(d)
    (before, slope_before, _, _), (after, slope_after, _, _) = taylor(w, d, -t), taylor(w, d, t)
    _, first, reverse, second = taylor(w, d, 0 * t)
    np.testing.assert_allclose(first, (after - before) / (2 * h), rtol=2e-8, atol=2e-8)
    np.testing.assert_allclose(reverse, first, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(second, (slope_after - slope_before) / (2 * h), rtol=2e-7, atol=2e-7)


def test_nothing_is_nan_on_the_way_to_a_derivative_at_the_identity():
    zero = jnp.zeros(3)
    with jax.debug_nans(True):
        found = (
            jax.jacrev(lambda w: so3.log(so3.exp(w)))(zero),  # not compiled: every step is checked
            jax.jit(jax.jacrev(so3.left_jacobian_inverse))(zero),
            jax.jit(jax.jacrev(so3.to_quaternion))(jnp.eye(3)),
        )
    assert all(np.isfinite(x).all() for x in found)


# --- shapes and types -----------------------------------------------------------------------------------------------

CORES = {
    "hat": (3,), "vee": (3, 3), "exp": (3,), "log": (3, 3), "inverse": (3, 3), "project": (3, 3),
    "left_jacobian": (3,), "right_jacobian": (3,), "left_jacobian_inverse": (3,), "right_jacobian_inverse": (3,),
    "from_quaternion": (4,), "to_quaternion": (3, 3), "quaternion_normalize": (4,), "quaternion_conjugate": (4,),
    "quaternion_exp": (3,), "quaternion_log": (4,), "from_rpy": (3,), "to_rpy": (3, 3),
}  # fmt: skip
PAIRS = {
    "cross": ((3,), (3,)), "rotate": ((3, 3), (3,)), "rotate_back": ((3, 3), (3,)), "compose": ((3, 3), (3, 3)),
    "quaternion_multiply": ((4,), (4,)), "from_two_vectors": ((3,), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CORES)
def test_batch_axes_lead_and_the_dtype_is_kept(name):
    f, core = getattr(so3, name), CORES[name]
    for dtype in (jnp.float32, jnp.float64):
        single = jax.eval_shape(f, jax.ShapeDtypeStruct(core, dtype))
        batch = jax.eval_shape(f, jax.ShapeDtypeStruct((5, 2, *core), dtype))
        assert single.dtype == dtype and batch.dtype == dtype
        assert batch.shape == (5, 2, *single.shape)


@pytest.mark.parametrize("name", PAIRS)
def test_batch_axes_of_two_arguments_broadcast(name):
    f, (first, second) = getattr(so3, name), PAIRS[name]
    single = jax.eval_shape(f, jax.ShapeDtypeStruct(first, jnp.float32), jax.ShapeDtypeStruct(second, jnp.float32))
    assert single.dtype == jnp.float32
    for a, b, out in (((), (7,), (7,)), ((7,), (), (7,)), ((4, 1), (7,), (4, 7)), ((2,), (2,), (2,))):
        found = jax.eval_shape(
            f, jax.ShapeDtypeStruct((*a, *first), jnp.float32), jax.ShapeDtypeStruct((*b, *second), jnp.float32)
        )
        assert found.shape == (*out, *single.shape)


def test_leading_axes_give_what_vmap_gives():
    w = jnp.asarray(BELOW_PI)
    R = so3.exp(w)
    assert_close(R, batched(so3.exp)(w), 1e-15)
    assert_close(so3.log(R), batched(so3.log)(R), 1e-15)
    assert_close(so3.to_rpy(R), batched(so3.to_rpy)(R), 1e-15)
    assert_close(so3.rotate(R[3], w), batched(lambda v: so3.rotate(R[3], v))(w), 1e-15)


def test_single_precision_is_right_to_single_precision():
    w = vectors(NEAR[2:] + MIDDLE + [PI - 1e-2])
    small = jnp.asarray(w, jnp.float32)
    R = batched(so3.exp)(small)
    assert_close(R, Rotation.from_rotvec(w).as_matrix(), 4e-7)
    assert_close(batched(so3.log)(R), w, 2e-6)
    np.testing.assert_allclose(batched(so3.log)(R)[:20], w[:20], rtol=1e-6, atol=0)
    eye = np.broadcast_to(np.eye(3), (len(w), 3, 3))
    assert_close(batched(jax.jacrev(lambda w: so3.log(so3.exp(w))))(small), eye, 4e-6)
    assert_close(batched(so3.from_quaternion)(batched(so3.to_quaternion)(R)), R, 4e-7)
    assert_close(
        so3.from_quaternion(1e-25 * jnp.asarray(QUATERNIONS, jnp.float32)),
        so3.from_quaternion(jnp.asarray(QUATERNIONS)),
        1e-6,
    )
    assert_close(so3.from_quaternion(jnp.zeros(4, jnp.float32)), np.eye(3), 0)
