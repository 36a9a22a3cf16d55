"""Spaces of values: the axioms of each, at, near and far from the identity, and at half a turn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import se3, so3
from jaxdyn.math.lie_space import Factor, LieElement, LieSpace

# One product, so that one compiled function serves all; R^2 x SO(2) and R^3 x SO(3) are made of its factors.
ALL = LieSpace.R(2) * LieSpace.SO2() * LieSpace.SO3() * LieSpace.SE2() * LieSpace.SE3()
ANGLES = (2, 3, 4, 5, 8, 12, 13, 14)
RANDOM = 5


def _tangents():
    """Zero, tiny, small, random, and half turns about an axis and about oblique axes."""
    draw = np.random.default_rng(3).normal(size=(RANDOM, ALL.nv))
    half = np.zeros(ALL.nv)
    for start, size in ((2, 1), (3, 3), (8, 1), (12, 3)):
        half[start] = np.pi
        if size == 3:
            half[start : start + 3] = np.pi * np.array([2.0, -1.0, 2.0]) / 3.0
    return np.stack([0.0 * draw[0], 1e-9 * draw[0], 1e-4 * draw[1], *0.7 * draw, (1 - 1e-7) * half, half])


def _values(e, v):
    there = ALL.plus(e, v)
    ways = np.eye(ALL.nv)
    moved = {
        "plus e": lambda x: ALL.minus(ALL.plus(ALL.plus(e, x), v), there),
        "plus v": lambda x: ALL.minus(ALL.plus(e, v + x), there),
        "minus e": lambda x: ALL.minus(ALL.plus(there, x), e),
        "minus o": lambda x: ALL.minus(there, ALL.plus(e, x)),
    }
    both = np.concatenate([ways, -ways]) * 1e-6
    values = {k: jax.vmap(f)(both) for k, f in moved.items()}
    return {
        "back": ALL.minus(there, e),
        "self": ALL.minus(there, there),
        "half": ALL.minus(ALL.interpolate(e, there, 0.5), e),
        "jacobians": (*ALL.plus_jacobians(e, v), *ALL.minus_jacobians(there, e)),
        "differences": [((x[: ALL.nv] - x[ALL.nv :]) / 2e-6).T for x in values.values()],
        "normal": ALL.normalize(2.0 * e),
    }


def _derivatives(space, e, v, w):
    """First and second derivatives by automatic differentiation, and differences of the first."""
    there = space.plus(e, v)
    zero = jnp.zeros(space.nv)
    first = (
        *jax.jacfwd(lambda x, y: space.minus(space.plus(space.plus(e, x), v + y), there), (0, 1))(zero, zero),
        *jax.jacrev(lambda x, y: space.minus(space.plus(there, x), space.plus(e, y)), (0, 1))(zero, zero),
    )
    slope = jax.grad(lambda x: jnp.sum(space.minus(space.plus(there, x), e) * w))
    step = 1e-5 * w[::-1]
    at = jnp.stack([zero, step, -step])
    around, second = jax.vmap(lambda x: jax.jvp(slope, (x,), (w[::-1],)))(at)
    return first, second[0], (around[1] - around[2]) / 2e-5


@functools.cache
def evaluated():
    v = _tangents()
    e = ALL.random(jax.random.key(1), (len(v),), jnp.float64)
    return np.asarray(e), v, jax.tree.map(np.asarray, quick_jit(jax.vmap(_values))(e, v))


def test_minus_inverts_plus():
    _, v, r = evaluated()
    np.testing.assert_allclose(r["back"][:-1], v[:-1], atol=1e-9)
    # at half a turn both signs are right
    close = np.minimum(abs(r["back"][-1] - v[-1]), abs(r["back"][-1] + v[-1]))
    np.testing.assert_allclose(close[list(ANGLES)], 0, atol=1e-7)


def test_an_element_less_itself_is_zero():
    np.testing.assert_allclose(evaluated()[2]["self"], 0, atol=1e-14)


def test_the_length_of_quaternions_and_of_cosine_and_sine_does_not_matter():
    *_, r = evaluated()
    start = 0
    for factor in ALL.factors:
        if factor.kind in ("SO2", "SO3"):
            part = r["normal"][:, start : start + factor.nq]
            np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, atol=1e-14)
        start += factor.nq
    space = LieSpace.SO2() * LieSpace.SO3()

    @quick_jit
    def scaled(a, b):
        return space.minus(3.0 * a, 0.2 * b), space.minus(a, b), jax.jacrev(space.minus)(0.0 * a, space.neutral())

    long, unit, slope = scaled(*space.random(jax.random.key(0), (2,)))
    np.testing.assert_allclose(long, unit, atol=1e-14)
    assert np.isfinite(slope).all()


def test_the_middle_is_as_far_from_both_ends():
    *_, r = evaluated()
    np.testing.assert_allclose(r["half"][: 3 + RANDOM], 0.5 * r["back"][: 3 + RANDOM], atol=1e-8)


@pytest.mark.parametrize("which", range(4), ids=["plus e", "plus v", "minus e", "minus o"])
def test_jacobians_in_closed_form_are_those_of_differences(which):
    *_, r = evaluated()
    # at half a turn the difference jumps
    np.testing.assert_allclose(r["jacobians"][which][:-2], r["differences"][which][:-2], atol=1e-8)
    assert np.isfinite(r["jacobians"][which]).all()


# name: a part of ALL, and where it is among the tangents and the elements
SPACES = {
    "SO(3)": (LieSpace.SO3(), slice(3, 6), slice(4, 8)),
    "SE(2) x SE(3)": (LieSpace.SE2() * LieSpace.SE3(), slice(6, 15), slice(8, 19)),
}


@pytest.mark.parametrize("name", ["SO(3)", pytest.param("SE(2) x SE(3)", marks=pytest.mark.slow)])
def test_automatic_derivatives_of_first_and_second_order_are_right(name):
    space, tangent, element = SPACES[name]
    e, v, r = evaluated()
    w = np.random.default_rng(5).normal(size=space.nv)
    run = quick_jit(jax.vmap(lambda e, v: _derivatives(space, e, v, w)))
    first, second, differences = jax.tree.map(np.asarray, run(e[:, element], v[:, tangent]))
    for closed, automatic in zip(r["jacobians"], first, strict=True):
        wanted = closed[:, tangent, tangent]
        np.testing.assert_allclose(automatic, wanted, atol=2e-8)
        # away from half a turn to rounding
        np.testing.assert_allclose(automatic[:-2], wanted[:-2], atol=1e-11)
    assert np.isfinite(second).all()
    np.testing.assert_allclose(second[:-2], differences[:-2], atol=1e-6)


def test_groups_agree_with_rotations_and_rigid_motions():
    v = jnp.asarray(np.random.default_rng(0).normal(size=6))
    e = LieSpace.SE3().exp(v)
    pose = se3.exp(v)
    np.testing.assert_allclose(e[:3], pose.translation, atol=1e-14)
    np.testing.assert_allclose(so3.from_quaternion(e[3:]), pose.rotation, atol=1e-14)
    np.testing.assert_allclose(LieSpace.SE3().log(e), se3.log(pose), atol=1e-13)
    apart = LieSpace.R3xSO3().exp(v)
    np.testing.assert_allclose(apart[:3], v[:3])
    plane = LieSpace.SE2().exp(v[jnp.array([0, 1, 5])])
    flat = se3.exp(jnp.array([v[0], v[1], 0, 0, 0, v[5]]))
    np.testing.assert_allclose(plane[:2], flat.translation[:2], atol=1e-14)
    np.testing.assert_allclose(plane[2:], flat.rotation[:2, 0], atol=1e-14)


def test_translations_beside_rotations_are_added():
    both = LieSpace.R2xSO2() * LieSpace.R3xSO3()
    apart = LieSpace.R(2) * LieSpace.SO2() * LieSpace.R(3) * LieSpace.SO3()
    assert (both.nq, both.nv) == (apart.nq, apart.nv)

    def everything(space, e, v):
        there = space.plus(e, v)
        parts = space.minus(there, e), space.normalize(2.0 * e), space.neutral()
        return there, *parts, *space.plus_jacobians(e, v), *space.minus_jacobians(there, e)

    e = both.random(jax.random.key(4))
    v = jnp.asarray(np.random.default_rng(2).normal(size=both.nv))
    for x, y in zip(*quick_jit(lambda e, v: (everything(both, e, v), everything(apart, e, v)))(e, v), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-15)


def test_equality_is_structural_and_neighbouring_vector_spaces_merge():
    a = LieSpace.R(2) * LieSpace.R(1) * LieSpace.SO3() * LieSpace.R(0)
    assert a == LieSpace((Factor("R", 2), Factor("R", 1), Factor("SO3"), Factor("R", 0)))
    assert a != LieSpace.R(3) * LieSpace.SO3()
    assert a.merged() == LieSpace.R(3) * LieSpace.SO3()
    assert hash(a.merged()) == hash(LieSpace.R(3) * LieSpace.SO3())
    assert LieSpace.R(1, rotation=True) != LieSpace.R(1)
    assert (LieSpace.R(1, rotation=True) * LieSpace.R(2)).merged() == LieSpace.R(3)
    assert LieSpace.SE3() != LieSpace.R3xSO3()
    assert str(LieSpace.R(2) * LieSpace.R3xSO3()) == "R^2 x R^3 x SO(3)"
    assert a.coordinate_of == (0, 1, 2, -1, -1, -1)
    assert LieSpace().nq == 0
    assert LieSpace().plus(jnp.zeros(0), jnp.zeros(0)).shape == (0,)


def test_elements_are_added_and_subtracted():
    space = LieSpace.R(1) * LieSpace.SO3()
    one = LieElement(space, space.neutral()) + jnp.array([1.0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(one - LieElement(space, space.neutral()), [1.0, 0.1, 0.2, 0.3], atol=1e-15)
    np.testing.assert_allclose(one.log(), [1.0, 0.1, 0.2, 0.3], atol=1e-15)
    with pytest.raises(InputError, match="different spaces"):
        one - LieElement(LieSpace.R(5), jnp.zeros(5))


def test_the_dtype_follows_the_inputs():
    e, v = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in (ALL.nq, ALL.nv))

    def everything(e, v):
        return (
            ALL.plus(e, v),
            ALL.minus(e, e),
            ALL.exp(v),
            ALL.log(e),
            ALL.plus_jacobians(e, v),
            ALL.minus_jacobians(e, e),
        )

    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(jax.eval_shape(everything, e, v)))
    assert ALL.random(jax.random.key(2), (), jnp.float32).dtype == jnp.float32


def test_mistakes_are_named():
    with pytest.raises(InputError, match=r"wanted 4 coordinates of an element of SO\(3\), given shape \(3,\)"):
        LieSpace.SO3().plus(jnp.zeros(3), jnp.zeros(3))
    with pytest.raises(UnknownNameError, match="SO4"):
        LieSpace((Factor("SO4"),))
    with pytest.raises(InputError, match="can be an angle"):
        LieSpace((Factor("R", 2, True),))
