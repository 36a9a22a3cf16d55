"""Friction cone, centre of pressure and the wrench cone of a sole: against forces in its corners."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from scipy.optimize import nnls

from jaxdyn.contact import (
    center_of_pressure,
    friction_margin,
    wrench_cone,
    wrench_in_contact_axes,
    wrench_margins,
)
from jaxdyn.errors import InputError
from jaxdyn.math import so3

LENGTH, WIDTH, FRICTION = 0.24, 0.12, 0.6


def corner_rays(friction):
    """Wrenches (16, 6) of unit normal forces in the corners, on the edges of a pyramid."""
    rays = []
    for x, y, a, b in itertools.product((-1, 1), repeat=4):
        corner, force = np.array([x * LENGTH / 2, y * WIDTH / 2, 0]), np.array([a * friction, b * friction, 1])
        rays.append(np.concatenate([force, np.cross(corner, force)]))
    return np.array(rays)


@pytest.mark.parametrize("inside, friction", [(False, FRICTION), (True, FRICTION / np.sqrt(2))])
def test_the_cone_is_exactly_what_forces_in_the_corners_can_make(inside, friction):
    cone = np.asarray(wrench_cone(LENGTH, WIDTH, FRICTION, inside))
    assert cone.shape == (17, 6)
    rays, rng = corner_rays(friction), np.random.default_rng(0)
    slack = -rays @ cone.T
    assert slack.min() > -1e-14
    # all rows but f_z >= 0, which the others imply, are reached
    assert (np.abs(slack).min(axis=0) < 1e-14)[[0, 1, 2, 3, *range(5, 17)]].all()
    # nothing else fulfils the rows: wrenches with no negative margin are sums of the rays
    found = 0
    for w in rays[:8].mean(0) + rng.normal(size=(4000, 6)) * np.array([0.4, 0.4, 0, 0.05, 0.1, 0.05]):
        if (cone @ w <= 0).all():
            found += 1
            assert nnls(rays.T, w)[1] < 1e-9
    assert found > 50


def test_wrenches_of_the_inner_cone_come_from_forces_in_friction_cones():
    rays = corner_rays(FRICTION / np.sqrt(2))
    assert (np.linalg.norm(rays[:, :2], axis=1) <= FRICTION + 1e-15).all()


def test_evaluators_in_numbers_and_in_axes_of_the_contact():
    local = jnp.array([3.0, -4.0, 20.0, 0.6, -1.0, 0.05])
    rotation = so3.exp(jnp.array([0.3, -0.2, 0.8]))
    mixed = jnp.concatenate([so3.rotate(rotation, local[:3]), so3.rotate(rotation, local[3:])])
    np.testing.assert_allclose(wrench_in_contact_axes(mixed, rotation), local, atol=1e-14)
    assert friction_margin(mixed, FRICTION, rotation) == pytest.approx(0.6 * 20 - 5)
    assert friction_margin(local, 1) == pytest.approx(15)
    np.testing.assert_allclose(center_of_pressure(mixed, rotation), [0.05, 0.03], atol=1e-14)
    cone = wrench_cone(LENGTH, WIDTH, FRICTION)
    margins = np.asarray(wrench_margins(mixed, cone, rotation))
    np.testing.assert_allclose(margins, -np.asarray(cone) @ local, atol=1e-13)
    assert margins[4] == pytest.approx(20) and (margins > 0).all()
    # the centre of pressure leaves the sole where its row changes sign
    at_edge = jnp.array([0.0, 0.0, 20.0, 0.0, -20 * LENGTH / 2, 0.0])
    assert np.abs(np.asarray(wrench_margins(at_edge, cone))[5:9]).min() < 1e-14
    assert (np.asarray(wrench_margins(1.01 * at_edge.at[4].mul(1.01), cone))[5:9] < 0).any()


def test_derivatives_are_finite_without_load_and_right_with_it():
    def everything(w, friction, length):
        cone = wrench_cone(length, WIDTH, friction)
        return friction_margin(w, friction), center_of_pressure(w), wrench_margins(w, cone)

    at = jnp.asarray(FRICTION), jnp.asarray(LENGTH)
    both = quick_jit(
        lambda w: [jacobian(everything, argnums=(0, 1, 2))(w, *at) for jacobian in (jax.jacfwd, jax.jacrev)]
    )
    loaded = jnp.array([3.0, -4.0, 20.0, 0.6, -1.0, 0.05])
    for w in (jnp.zeros(6), jnp.zeros(6).at[2].set(-1.0), loaded):
        forward, reverse = both(w)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((forward, reverse)))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), forward, reverse)
    np.testing.assert_allclose(forward[0][0], [-0.6, 0.8, 0.6, 0, 0, 0], atol=1e-14)
    np.testing.assert_allclose(forward[1][0][0], [0, 0, -0.05 / 20, 0, -1 / 20, 0], atol=1e-14)
    assert center_of_pressure(jnp.zeros(6)).tolist() == [0, 0]


def test_single_precision_and_batches():
    w = jnp.ones((4, 6), jnp.float32)
    cone = wrench_cone(0.2, 0.1, jnp.float32(0.5))
    assert cone.dtype == jnp.float32 and wrench_cone(jnp.float32(0.2), 0.1, 0.5).dtype == jnp.float32
    margins = jax.vmap(wrench_margins, (0, None))(w, cone)
    assert margins.shape == (4, 17) and margins.dtype == jnp.float32
    assert jax.vmap(lambda w: friction_margin(w, 0.5))(w).dtype == jnp.float32
    assert jax.vmap(center_of_pressure)(w).dtype == jnp.float32


def test_mistakes_are_named():
    with pytest.raises(InputError, match="width: wanted a positive number, given 0"):
        wrench_cone(0.2, 0.0, 0.5)
    with pytest.raises(InputError, match="friction: wanted a number that is not negative, given -1"):
        wrench_cone(0.2, 0.1, -1.0)
    with pytest.raises(InputError, match=r"wrench: wanted shape \(6,\)"):
        friction_margin(jnp.zeros(3), 0.5)
    with pytest.raises(InputError, match=r"rotation: wanted shape \(3, 3\)"):
        center_of_pressure(jnp.zeros(6), jnp.zeros(3))
