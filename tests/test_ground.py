"""Ground that is no plane: grids of heights, boxes, stairs; under contacts, in batches, in drawings."""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.contact import (
    BoxTerrain,
    ContactPatch,
    ContactPoints,
    FlatTerrain,
    HeightmapTerrain,
    PlaneTerrain,
    SmoothCoulomb,
    stairs,
    touchdown_anchor,
)
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import SE3, so3
from jaxdyn.viz import Scene

RNG = np.random.default_rng(0)
HEIGHTS = 0.1 * RNG.normal(size=(6, 5))
SPACING, ORIGIN = np.array([0.5, 0.25]), np.array([-1.0, 2.0])
EDGE = ORIGIN + SPACING * (np.array(HEIGHTS.shape) - 1)


def map_of(interpolation, heights=HEIGHTS, dtype=None):
    return HeightmapTerrain(*(jnp.asarray(a, dtype) for a in (heights, SPACING, ORIGIN)), interpolation)


at = quick_jit(lambda terrain, points: terrain.at(points))


@pytest.fixture(scope="module", params=["bilinear", "cubic"])
def surface(request):
    """A map, and points over it, on its lines and nodes, at its edge and beyond."""
    over = ORIGIN + RNG.uniform(size=(60, 2)) * (EDGE - ORIGIN)
    nodes = np.stack(
        np.meshgrid(*(o + s * np.arange(n) for o, s, n in zip(ORIGIN, SPACING, HEIGHTS.shape, strict=True))), -1
    )
    beyond = over[:20] + np.array([3.0, 0.0]) * np.where(RNG.uniform(size=(20, 1)) < 0.5, 1, -1)
    xy = np.concatenate([over, nodes.reshape(-1, 2), beyond])
    points = jnp.asarray(np.concatenate([xy, 0.02 * RNG.normal(size=(len(xy), 1))], axis=1))
    terrain = map_of(request.param)

    @quick_jit
    def everything(terrain, points):
        one = lambda terrain, p: jax.tree.map(lambda a: a[0], terrain.at(p[None]))  # noqa: E731
        slopes = jax.vmap(jax.jacfwd(one, argnums=(0, 1)), (None, 0))(terrain, points)
        reverse = jax.vmap(jax.jacrev(one, argnums=(0, 1)), (None, 0))(terrain, points)
        second = jax.vmap(jax.jacfwd(jax.jacrev(lambda p: one(terrain, p)[0])))(points)
        return terrain.at(points), slopes, reverse, second

    return terrain, points, jax.tree.map(np.asarray, everything(terrain, points))


def test_a_map_goes_through_its_heights(surface):
    _, _, ((_, _, height), *_) = surface
    expected = HEIGHTS.T.ravel()
    np.testing.assert_allclose(height[60 : 60 + expected.size], expected, atol=1e-14)


def test_depth_is_the_vertical_distance_times_the_slope_of_the_normal(surface):
    _, points, ((depth, normal, height), *_) = surface
    np.testing.assert_allclose(depth, (height - points[:, 2]) * normal[:, 2], atol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(normal, axis=1), 1, atol=1e-14)


def test_a_map_goes_on_level_beyond_its_edge(surface):
    terrain, points, ((_, normal, height), *_) = surface
    far = np.asarray(points[-20:]) * 1.0
    far[:, :2] = np.clip(far[:, :2], ORIGIN, EDGE)
    np.testing.assert_allclose(height[-20:], at(terrain, jnp.asarray(far))[2], atol=1e-14)
    assert (normal[-20:, 0] == 0).all()


def test_normals_and_derivatives_of_a_map_equal_differences(surface):
    terrain, points, ((_, normal, _), slopes, reverse, second) = surface
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((slopes, reverse, second)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), slopes, reverse)
    np.testing.assert_allclose(second, second.swapaxes(1, 2), atol=1e-12)
    over, h = slice(0, 60), 1e-6
    steps = h * np.eye(3)
    for k in range(3):
        ahead, behind = (at(terrain, points[over] + sign * steps[k : k + 1]) for sign in (1, -1))
        for j in (0, 2):  # depth and height
            difference = (np.asarray(ahead[j]) - np.asarray(behind[j])) / (2 * h)
            np.testing.assert_allclose(slopes[j][1][over, k], difference, atol=1e-7)
        if k < 2:  # the normal is that of the surface
            slope = (np.asarray(ahead[2]) - np.asarray(behind[2])) / (2 * h)
            np.testing.assert_allclose(-normal[over, k] / normal[over, 2], slope, atol=1e-7)
    for name, e in (("heights", np.eye(1, 30, 13).reshape(6, 5)), ("spacing", np.eye(1, 2)[0]), ("origin", [0.0, 1.0])):
        get = operator.attrgetter(name)
        moved = [eqx.tree_at(get, terrain, get(terrain) + sign * h * jnp.asarray(e)) for sign in (1, -1)]
        difference = (np.asarray(at(moved[0], points)[0]) - np.asarray(at(moved[1], points)[0])) / (2 * h)
        found = np.sum(getattr(slopes[0][0], name) * np.asarray(e), axis=tuple(range(1, 1 + np.ndim(e))))
        np.testing.assert_allclose(found[over], difference[over], atol=1e-7)


@pytest.mark.parametrize("interpolation", ["bilinear", "cubic"])
def test_a_map_of_a_slope_is_the_slope_up_to_its_edge(interpolation):
    slope = PlaneTerrain([0.3, -0.2, 0.9], [0.1, 0.2, 0.3])
    x, y = map_of("cubic").grid()
    grid = jnp.asarray(np.stack(np.meshgrid(x, y, [0.0], indexing="ij"), -1).reshape(-1, 3))
    terrain = map_of(interpolation, at(slope, grid)[2].reshape(6, 5))
    points = jnp.asarray(np.c_[ORIGIN + RNG.uniform(size=(50, 2)) * (EDGE - ORIGIN), RNG.normal(size=50)])
    for ours, exact in zip(at(terrain, points), at(slope, points), strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-13)


def test_the_normal_of_a_cubic_map_is_continuous_and_that_of_a_bilinear_one_jumps():
    line = np.array([ORIGIN[0] + SPACING[0] * 2, ORIGIN[1] + 0.3])
    both = jnp.asarray([[line[0] - 1e-9, line[1], 0.0], [line[0] + 1e-9, line[1], 0.0]])
    jump = {i: np.abs(np.diff(at(map_of(i), both)[1], axis=0)).max() for i in ("bilinear", "cubic")}
    assert jump["cubic"] < 1e-7 and jump["bilinear"] > 1e-2


# Boxes


def a_box(**options):
    return BoxTerrain([[1.0, 0.0, 0.1]], [[0.6, 0.8, 0.2]], **options)


def test_depth_of_a_box_is_the_distance_from_its_surface():
    points = jnp.array(
        [
            [1.0, 0.0, 0.19],  # just under the top
            [0.71, 0.0, 0.1],  # just behind the front
            [1.0, 0.0, 0.35],  # above
            [0.6, 0.5, 0.1],  # off an upright edge
            [0.6, 0.5, 0.4],  # off a corner
            [1.0, 0.0, 0.01],  # deep, near the underside, which does not count
            [0.0, 0.0, 0.05],  # over the ground
            [0.0, 0.0, -0.02],  # in the ground
        ]
    )
    depth, normal, height = at(a_box(), points)
    corner = np.array([0.1, 0.1, 0.2])
    np.testing.assert_allclose(
        depth, [0.01, 0.01, -0.15, -0.1 * np.sqrt(2), -0.3 * np.sqrt(2 / 3), 0.19, -0.05, 0.02], atol=0.1
    )
    np.testing.assert_allclose(depth[jnp.array([0, 1, 2, 5, 6, 7])], [0.01, 0.01, -0.15, 0.19, -0.05, 0.02], atol=1e-14)
    np.testing.assert_allclose(depth[4], -np.linalg.norm(corner), atol=1e-14)
    np.testing.assert_allclose(normal[0], [0, 0, 1])
    np.testing.assert_allclose(normal[1], [-1, 0, 0])
    np.testing.assert_allclose(normal[4], np.array([-1, 1, 2]) / np.sqrt(6), atol=1e-14)
    np.testing.assert_allclose(normal[7], [0, 0, 1])
    np.testing.assert_allclose(height, [0.2, 0.2, 0.2, 0, 0, 0.2, 0, 0])
    floating = BoxTerrain([[1.0, 0.0, 1.0]], [[0.6, 0.8, 0.2]], underside=True)
    depth, normal, _ = at(floating, jnp.array([[1.0, 0.0, 0.91], [1.0, 0.0, 0.2]]))
    np.testing.assert_allclose(depth, [0.01, -0.2])
    np.testing.assert_allclose(normal, [[0, 0, -1], [0, 0, 1]])


def test_boxes_have_normals_that_are_slopes_of_the_depth_and_finite_derivatives():
    turn = so3.exp(jnp.array([[0.1, -0.2, 0.7], [0.0, 0.0, 1.2]]))
    terrain = BoxTerrain([[0.2, 0.1, 0.1], [-0.3, 0.2, 0.05]], [[0.6, 0.5, 0.4], [0.4, 0.3, 0.2]], turn, level=0.02)
    points = jnp.asarray(np.concatenate([RNG.uniform(-0.6, 0.6, size=(80, 3)), [[0.2, 0.1, 0.1], [0.2, 0.1, 0.02]]]))

    @quick_jit
    def everything(terrain, points):
        depth = lambda terrain, p: terrain.at(p[None])[0][0]  # noqa: E731
        slopes = jax.vmap(jax.jacfwd(depth, argnums=(0, 1)), (None, 0))(terrain, points)
        reverse = jax.vmap(jax.jacrev(depth, argnums=(0, 1)), (None, 0))(terrain, points)
        height = jax.vmap(jax.jacrev(lambda p: terrain.at(p[None])[2][0]))(points)
        return terrain.at(points), slopes, reverse, height

    (_, normal, _), slopes, reverse, height = jax.tree.map(np.asarray, everything(terrain, points))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((slopes, reverse, height)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), slopes, reverse)
    np.testing.assert_allclose(slopes[1], -normal, atol=1e-12)
    h = 1e-6
    size = [at(BoxTerrain(terrain.center, terrain.size + s * h, turn, 0.02), points)[0] for s in (1, -1)]
    difference = (np.asarray(size[0]) - np.asarray(size[1])) / (2 * h)
    np.testing.assert_allclose(np.sum(slopes[0].size, axis=(1, 2)), difference, atol=1e-6)


def test_height_of_a_turned_box_is_where_its_surface_is():
    turn = so3.exp(jnp.array([[0.2, -0.3, 0.5]]))
    terrain = BoxTerrain([[0.0, 0.0, 0.3]], [[1.0, 0.8, 0.4]], turn)
    xy = RNG.uniform(-0.25, 0.25, size=(40, 2))
    height = np.asarray(at(terrain, jnp.asarray(np.c_[xy, 0 * xy[:, :1]]))[2])
    depth = at(terrain, jnp.asarray(np.c_[xy, height]))[0]
    assert (height > 0.1).all()
    np.testing.assert_allclose(depth, 0, atol=1e-12)


def test_stairs_rise_step_by_step_in_their_direction():
    heading = 0.6
    flight = stairs(3, 0.1, 0.3, 1.0, position=(1.0, 2.0), heading=heading)
    along = np.array([-0.1, 0.15, 0.45, 0.75, 1.0])
    xy = np.array([1.0, 2.0]) + along[:, None] * np.array([np.cos(heading), np.sin(heading)])
    depth, normal, height = at(flight, jnp.asarray(np.c_[xy, np.array([0, 0.1, 0.2, 0.3, 0]) - 0.005]))
    np.testing.assert_allclose(height, [0, 0.1, 0.2, 0.3, 0], atol=1e-12)
    np.testing.assert_allclose(depth, 0.005, atol=1e-12)
    np.testing.assert_allclose(normal, np.tile([0.0, 0.0, 1.0], (5, 1)))
    # 2 mm under a tread and 1 mm before the next riser: the tread, as the face between the two steps is hidden
    before = np.array([1.0, 2.0]) + 0.299 * np.array([np.cos(heading), np.sin(heading)])
    depth, normal, _ = at(flight, jnp.asarray([[*before, 0.098]]))
    np.testing.assert_allclose(depth, 0.002, atol=1e-12)
    slope = jax.grad(lambda rise: stairs(3, rise, 0.3, 1.0).at(jnp.array([[0.7, 0.0, 0.0]]))[2][0])(0.1)
    assert slope == pytest.approx(3)


# Under contacts


TERRAINS = {
    "map": map_of("cubic", 0 * HEIGHTS + 0.3),
    "bilinear": map_of("bilinear", 0 * HEIGHTS + 0.3),
    "boxes": BoxTerrain([[0.0, 2.0, 0.15]], [[1.5, 1.5, 0.3]]),
}


@pytest.mark.parametrize("name", TERRAINS)
def test_a_sole_on_level_ground_of_any_kind_feels_the_same_in_batches_too(name):
    law = SmoothCoulomb(1e6, 1e4, 0.6)
    twists = jnp.asarray(0.1 * RNG.normal(size=(3, 6)))
    pose = SE3(so3.exp(jnp.array([0.02, 0.01, 0.3])), jnp.array([0.1, 2.1, 0.298]))
    batch = jax.tree.map(lambda a: jnp.broadcast_to(a, (3, *a.shape)), TERRAINS[name])
    for surface in (ContactPatch(law, 0.2, 0.1), ContactPoints(law, [[0.1, 0.0, 0.0]], [1e-2])):

        @quick_jit
        def wrenches(terrain, batch, twists, surface=surface):
            one = lambda terrain, twist: surface.wrench(pose, twist, SE3.identity(), terrain)  # noqa: E731
            return jax.vmap(one, (None, 0))(terrain, twists), jax.vmap(one)(batch, twists)

        shared, own = wrenches(TERRAINS[name], batch, twists)
        flat = quick_jit(jax.vmap(lambda t, s=surface: s.wrench(pose, t, SE3.identity(), FlatTerrain(0.3))))(twists)
        np.testing.assert_allclose(shared, flat, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(own, shared, rtol=1e-12, atol=1e-12)


def test_single_precision_stays_single_and_anchors_lie_on_the_ground():
    pose = SE3(so3.exp(jnp.array([0.02, 0.01, 0.3])), jnp.array([0.1, 2.1, 0.4]))
    pose32 = jax.tree.map(lambda a: a.astype(jnp.float32), pose)
    anchored = quick_jit(touchdown_anchor)
    for terrain in (
        map_of("cubic", dtype=jnp.float32),
        map_of("bilinear", dtype=jnp.float32),
        BoxTerrain(jnp.asarray([[0.0, 2.0, 0.15]], jnp.float32), [[1.5, 1.5, 0.3]]),
    ):
        depth, normal, height = at(terrain, pose32.translation[None])
        assert {a.dtype for a in (depth, normal, height)} == {jnp.dtype("float32")}
        anchor = anchored(pose32, terrain)
        assert anchor.translation.dtype == jnp.float32
        np.testing.assert_allclose(at(terrain, anchor.translation[None])[0], 0, atol=1e-6)


def test_scenes_draw_maps_and_boxes_on_their_own_grid():
    layer = Scene().add_terrain(map_of("bilinear"))._layers[-1]
    np.testing.assert_allclose(layer.arrays["z"], HEIGHTS, atol=1e-14)
    layer = Scene().add_terrain(stairs(2, 0.1, 0.3, 1.0))._layers[-1]
    x, y, z = (layer.arrays[k] for k in "xyz")
    middle = z[:, len(y) // 2]
    np.testing.assert_allclose(middle[(x > 0) & (x < 0.3)], 0.1, atol=1e-9)
    np.testing.assert_allclose(middle[(x > 0.3) & (x < 0.6)], 0.2, atol=1e-9)
    assert (middle[(x < 0) | (x > 0.6)] == 0).all() and (z[:, np.abs(y) > 0.5] == 0).all()


def test_wrong_grounds_are_named():
    with pytest.raises(InputError, match=r"at least 2 x 2 heights, given shape \(1, 5\)"):
        HeightmapTerrain(HEIGHTS[:1])
    with pytest.raises(InputError, match="spacing: wanted positive"):
        HeightmapTerrain(HEIGHTS, (0.1, 0.0))
    with pytest.raises(InputError, match=r"heights: wanted finite heights, given nan at \[2, 1\]"):
        HeightmapTerrain(np.where(np.arange(30).reshape(6, 5) == 11, np.nan, HEIGHTS))
    with pytest.raises(InputError, match=r"spacing: wanted shape \(2,\)"):
        HeightmapTerrain(HEIGHTS, (0.1, 0.1, 0.1))
    with pytest.raises(UnknownNameError, match="'cubic'"):
        HeightmapTerrain(HEIGHTS, interpolation="cubics")
    with pytest.raises(InputError, match=r"size: wanted shape \(1, 3\) for the 1 boxes"):
        BoxTerrain([[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]] * 2)
    with pytest.raises(InputError, match="size: wanted positive"):
        BoxTerrain([[0.0, 0.0, 0.0]], [[1.0, -1.0, 1.0]])
    with pytest.raises(InputError, match="at least one box"):
        BoxTerrain(jnp.zeros((0, 3)), jnp.zeros((0, 3)))
    with pytest.raises(InputError, match="steps"):
        stairs(0, 0.1, 0.3, 1.0)
