"""The shape of the ground, anchors on it, and the longest stable step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.contact import ContactPoints, Coulomb, FlatTerrain, PlaneTerrain, stable_dt, touchdown_anchor
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import SE3, so3


def test_flat_ground_is_a_plane_with_its_normal_up():
    points = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    depth, normal, height = FlatTerrain(0.3).at(points)
    np.testing.assert_allclose(depth, 0.3 - points[:, 2])
    np.testing.assert_array_equal(normal, np.tile([0.0, 0.0, 1.0], (5, 1)))
    other_depth, other_normal, other_height = PlaneTerrain([0.0, 0.0, 2.0], [1.0, 2.0, 0.3]).at(points)
    np.testing.assert_allclose(other_depth, depth)
    np.testing.assert_allclose(other_normal, normal)
    np.testing.assert_allclose(height, 0.3)
    np.testing.assert_allclose(other_height, 0.3)


def test_points_at_the_height_of_a_slope_have_no_depth():
    slope = PlaneTerrain([0.3, -0.2, 0.9], [0.1, 0.2, 0.3])
    points = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    on_it = points.at[:, 2].set(slope.at(points)[2])
    np.testing.assert_allclose(slope.at(on_it)[0], 0, atol=1e-14)


def test_anchor_keeps_the_heading_and_lies_on_the_ground():
    pose = SE3(so3.from_rpy(jnp.array([0.1, -0.2, 0.7])), jnp.array([0.4, -0.3, 0.05]))
    anchor = touchdown_anchor(pose)
    np.testing.assert_allclose(anchor.rotation, so3.from_rpy(jnp.array([0.0, 0.0, 0.7])), atol=1e-15)
    np.testing.assert_allclose(anchor.translation, [0.4, -0.3, 0.0])
    slope = PlaneTerrain([0.3, -0.2, 0.9])
    anchor = touchdown_anchor(pose, slope)
    np.testing.assert_allclose(so3.compose(anchor.rotation, so3.inverse(anchor.rotation)), np.eye(3), atol=1e-15)
    np.testing.assert_allclose(slope.at(anchor.translation[None])[0], 0, atol=1e-15)
    np.testing.assert_allclose(anchor.rotation[:, 2], np.array([0.3, -0.2, 0.9]) / np.linalg.norm([0.3, -0.2, 0.9]))
    assert all(np.isfinite(d).all() for d in jax.tree.leaves(jax.jacrev(touchdown_anchor)(pose)))


def test_a_law_on_a_slope_pushes_along_its_normal():
    slope = PlaneTerrain([0.0, 0.6, 0.8])
    foot = ContactPoints(Coulomb(1e4, 0.0))
    wrench = foot.wrench(SE3(jnp.eye(3), -0.01 * jnp.array([0.0, 0.6, 0.8])), jnp.zeros(6), SE3.identity(), slope)
    np.testing.assert_allclose(wrench, [0, 60, 80, 0, 0, 0], atol=1e-12)


@pytest.mark.parametrize(
    "integrator, limit",
    [("EmbeddedEuler", 0.01), ("SemiImplicitEuler", 0.0486), ("RKMK4", 0.08527), ("LinearlyImplicit", np.inf)],
)
def test_stable_step_of_the_dropped_box(integrator, limit):
    assert stable_dt(2e5, 2e3, 0.06, 10.0, integrator) == pytest.approx(limit, rel=1e-3)


def test_stable_step_of_explicit_euler_has_the_textbook_form():
    # 2 zeta / omega while the mode oscillates, 2 / |fastest pole| beyond
    assert stable_dt(400.0, 4.0, 1.0, 1.0, "LieEuler") == pytest.approx(2 * 0.1 / 20)
    assert stable_dt(1.0, 10.0, 1.0, 1.0, "LieEuler") == pytest.approx(2 / (5 + np.sqrt(24)))
    assert stable_dt(400.0, 0.0, 1.0, 1.0, "LieEuler") < 1e-6
    with pytest.raises(UnknownNameError, match="RKMK4"):
        stable_dt(1.0, 1.0, 1.0, 1.0, "RKMK")
    with pytest.raises(InputError, match="stiffness"):
        stable_dt(0.0, 1.0, 1.0, 1.0)
