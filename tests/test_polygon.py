"""Convex shapes: reference distances, degenerate corners, projections, hull, cutting, sampling, drawing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import FOOT, PENTAGON, SQUARE
from evaluations import quick_jit
from hypothesis import given
from hypothesis import strategies as st

from jaxdyn.errors import InputError, JaxdynWarning
from jaxdyn.functions import ConvexShape, convex_hull, draw_shapes, split_outline
from jaxdyn.functions.outline import check_outline, newell
from jaxdyn.functions.polygon import intersect
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3

TRIANGLE = [(0.0, 0, 0), (2, 0, 0), (0, 2, 0)]
L_SHAPE = [(0.0, 0, 0), (2, 0, 0), (2, 1, 0), (1, 1, 0), (1, 2, 0), (0, 2, 0)]


def _questions(shape, points):
    def each(point):
        return {
            "distance": shape.distance(point),
            "inside": shape.contains(point),
            "closest": shape.closest_point(point),
            "slope": jax.grad(shape.distance)(point),
            "pull": jax.jacrev(shape.closest_point)(point),
            "corners": jax.grad(lambda s: s.distance(point))(shape).points,
        }

    return jax.vmap(each)(points), shape.geometry(), shape.area, shape.radius


ask = quick_jit(_questions)
geometry = quick_jit(lambda shape: shape.geometry())


def at(points, *queries):
    """Answers about a polygon for at most 16 points."""
    shape = points if isinstance(points, ConvexShape) else ConvexShape(points)
    given = np.asarray([(*p, 0.0)[:3] for p in queries], dtype=float)
    q = np.concatenate([given, np.zeros((16 - len(given), 3))])
    answers, geometry, area, radius = ask(shape, q)
    return {k: np.asarray(v)[: len(given)] for k, v in answers.items()}, geometry, area, radius


def test_distances_from_a_triangle():
    queries = [
        (0, 0),
        (1, 1),
        (0.5, 0.5),
        (0.2, 0.3),
        (-1, -1),
        (1, -1),
        (3, -0.2),
        (2, 2),
        (-0.2, 3),
        (-1, 1),
        (-1, 3),
    ]
    wanted = [0, 0, -0.5, -0.2, 2**0.5, 1, 1.0198039027, 2**0.5, 1.0198039027, 1, 2**0.5]
    got, geometry, area, _ = at(TRIANGLE, *queries)
    np.testing.assert_allclose(got["distance"], wanted, atol=1e-10)
    assert got["inside"].tolist() == [True] * 4 + [False] * 7
    np.testing.assert_allclose(geometry.center, (2 / 3, 2 / 3, 0), atol=1e-15)
    np.testing.assert_allclose(geometry.normal, (0, 0, 1))
    assert float(area) == pytest.approx(2.0)


def test_distances_from_a_square_and_from_its_reverse():
    queries = [(0, 3), (3, 0), (1, 1), (0, 1), (1, 0.25), (3, 3), (2, 2), (3, 2), (1, 1, 5)]
    wanted = [1, 1, -1, 0, -0.25, 2**0.5, 0, 1, -1]
    for shape, up in ((ConvexShape(SQUARE), 1), (ConvexShape(SQUARE).reversed(), -1)):
        got, geometry, area, radius = at(shape, *queries)
        np.testing.assert_allclose(got["distance"], wanted, atol=1e-12)
        np.testing.assert_allclose(geometry.normal, (0, 0, up))
        assert got["inside"][6]
        assert (float(area), float(radius)) == (4.0, pytest.approx(2**0.5))
    # the first edge of the reverse is the one before the last, backwards
    np.testing.assert_allclose(geometry.directions[0], (SQUARE[2] - SQUARE[3]) / 2)


def test_no_derivative_is_nan_and_those_of_regular_points_are_right():
    queries = [(0, 0), (1, 0), (2, 2), (1, 1), (3, 3), (-1, 0), (1, 1, 5), (0, 3), (0.3, 0.4), (2.5, 1.2, 0.3), (2, 1)]
    got, *_ = at(SQUARE, *queries)
    assert all(np.isfinite(v).all() for v in got.values() if v.dtype != bool)
    np.testing.assert_allclose(got["slope"][4], (0.5**0.5, 0.5**0.5, 0), atol=1e-12)
    np.testing.assert_allclose(got["slope"][8], (-1, 0, 0), atol=1e-12)
    np.testing.assert_allclose(got["slope"][9], (1, 0, 0), atol=1e-12)
    np.testing.assert_allclose(got["pull"][9], np.diag([0.0, 1, 0]), atol=1e-12)
    np.testing.assert_allclose(got["pull"][8], np.diag([1.0, 1, 0]), atol=1e-12)
    # moving the edge moves the distance: corners 1 and 2 carry the point (2.5, 1.2) in proportion
    np.testing.assert_allclose(got["corners"][9][:, 0], (0, -0.4, -0.6, 0), atol=1e-12)


def test_points_and_segments():
    one = ConvexShape([(1.0, 2, 3)])
    np.testing.assert_allclose(one.pose.rotation, np.eye(3))
    np.testing.assert_allclose(one.normal, (1, 0, 0))
    assert float(one.distance([1.0, 2.0, 5.0])) == 2.0
    for end, center, normal, outward, direction in (
        ((3.0, 4, 0), (1.5, 2, 0), (-0.8, 0.6, 0), (0, 0, 1), (0.6, 0.8, 0)),
        ((0.0, 0, 2), (0, 0, 1), (0, -1, 0), (1, 0, 0), (0, 0, 1)),
    ):
        g = geometry(ConvexShape([(0.0, 0, 0), end]))
        np.testing.assert_allclose(g.center, center)
        np.testing.assert_allclose(g.normal, normal, atol=1e-15)
        np.testing.assert_allclose(g.outward[0], outward, atol=1e-15)
        np.testing.assert_allclose(g.directions[0], direction, atol=1e-15)
    line = ConvexShape([(0.0, 0, 0), (3, 4, 0)])

    @quick_jit
    def everything(line):
        return line.distance([3.0, 4.0, 2.0]), line.closest_point([6.0, 8.0, 1.0]), line.reversed().geometry()

    distance, closest, back = everything(line)
    assert float(distance) == pytest.approx(2.0)
    np.testing.assert_allclose(closest, (3, 4, 0), atol=1e-12)
    np.testing.assert_allclose(back.directions[0], (-0.6, -0.8, 0))
    assert float(back.lengths[0]) == pytest.approx(5.0)
    assert not bool(line.contains([0.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    "points, message",
    [
        ([], "at least one corner"),
        (np.zeros((3, 2)), r"shape \(3, 2\)"),
        ([(0.0, 0, 0), (1, 0, 0), (2, 0, 0)], "first three corners"),
        ([(0.0, 0, 0), (1, 0, 0), (2, 0, 0), (2, 2, 0)], "first three corners"),
        (L_SHAPE, "not convex at corner 3"),
        ([(0.0, 0, 0), (2, 0, 0), (2, 2, 0), (0, 2, 1)], "not lie in one plane"),
        ([(0.0, 0, 0), (2, 0, 0), (0, 2, 0), (2, 2, 0)], "crosses itself|not convex"),
        ([(np.cos(a), np.sin(a), 0) for a in 0.8 * np.pi * np.arange(5)], "crosses itself"),
        ([(0.0, 0, 0), (0, 0, 0)], "not different"),
        ([(0.0, 0, 0), (1, 0, 0), (1, 0, 0)], "not different|enclose|first three"),
        ([(0.0, 0, 0), (1, 0, 0), (1, np.nan, 0)], "corner 2 is not finite"),
    ],
)
def test_corners_that_make_no_convex_shape_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        ConvexShape(points)


def test_a_corner_on_a_straight_edge_is_kept_or_left_out():
    corners = [(2.0, 0, 0), (2, 2, 0), (0, 2, 0), (0, 0, 0), (1, 0, 0)]
    kept = ConvexShape(corners)
    np.testing.assert_allclose(kept.center, (1, 0.8, 0))
    assert float(kept.distance([1.0, 0.25, 0.0])) == pytest.approx(-0.25)
    assert len(ConvexShape(corners, simplify=True).points) == 4
    # its first three corners are on one line once it is turned over, as floors are
    turned = ConvexShape([(0.0, 0, 0), (2, 0, 0), (2, 2, 0), (1, 2, 0), (0, 2, 0)]).reversed()
    np.testing.assert_allclose(turned.normal, (0, 0, -1))


def test_a_repeated_corner_is_left_out_with_a_warning():
    with pytest.warns(JaxdynWarning, match=r"corners \[3\]"):
        shape = ConvexShape([(0.0, 0, 0), (2, 0, 0), (2, 2, 0), (2, 2, 0), (0, 2, 0)])
    np.testing.assert_allclose(shape.center, (1, 1, 0))


def test_padding_changes_nothing():
    shape = ConvexShape(PENTAGON)
    padded = shape.padded(8)
    for a, b in ((shape, padded), (shape.reversed(), padded.reversed())):
        g, h = geometry(a), geometry(b)
        np.testing.assert_allclose(g.center, h.center, atol=1e-15)
        np.testing.assert_allclose(g.normal, h.normal, atol=1e-15)
        np.testing.assert_allclose(g.pose.rotation, h.pose.rotation, atol=1e-15)
        np.testing.assert_allclose(h.directions[:5], g.directions, atol=1e-15)
        assert h.edges.tolist() == [True] * 5 + [False] * 3
        np.testing.assert_allclose(a.outline(), b.outline())
    point = jnp.array([-4.0, 7.0, 0.0])
    ask_two = quick_jit(lambda s: (s.distance(point), s.area))
    np.testing.assert_allclose(ask_two(shape), ask_two(padded), atol=1e-12)
    with pytest.raises(InputError, match="has 5 corners"):
        shape.padded(4)


@given(st.integers(0, 10_000))
def test_the_hull_holds_all_points_and_keeps_the_normal(seed):
    rng = np.random.default_rng(seed)
    flat = np.round(rng.normal(size=(rng.integers(3, 12), 2)), 1)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0][:, :2].T
    points = flat @ axes + rng.normal(size=3)
    try:
        hull = convex_hull(points)
    except InputError as error:
        assert "one line" in str(error)
        return
    assert {tuple(p) for p in hull} <= {tuple(p) for p in points}
    checked = check_outline(np.roll(hull, -1, axis=0))
    np.testing.assert_allclose(np.roll(checked, 1, axis=0), hull)
    normal = newell(hull) / np.linalg.norm(newell(hull))
    if np.linalg.norm(newell(points)) > 1e-9:
        assert newell(points) @ normal > 0
    outward = np.cross(np.roll(hull, -1, axis=0) - hull, normal)
    assert (np.einsum("ei,pei->pe", outward, points[:, None] - hull[None]) <= 1e-9).all()


@given(st.integers(0, 10_000))
def test_a_cut_outline_covers_the_same_area_with_convex_pieces(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 11))
    angles = np.sort(rng.uniform(0, 2 * np.pi, n))
    if np.diff(np.append(angles, angles[0] + 2 * np.pi)).max() > 3.0 or np.diff(angles).min() < 0.05:
        return
    star = rng.uniform(0.3, 2.0, n)[:, None] * np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    pieces = split_outline(star)
    for piece in pieces:
        assert newell(piece)[2] > 0
        after, before = np.roll(piece, -1, axis=0) - piece, piece - np.roll(piece, 1, axis=0)
        assert (np.cross(before, after)[:, 2] >= -1e-9).all()
    np.testing.assert_allclose(sum(newell(p)[2] for p in pieces), newell(star)[2], atol=1e-9)


def test_a_cut_l_shape_is_two_rectangles():
    pieces = ConvexShape.split(L_SHAPE, "somewhere")
    assert len(pieces) == 2
    assert all(piece.frame == "somewhere" for piece in pieces)
    assert sum(float(piece.area) for piece in pieces) == pytest.approx(3.0)
    # the point that the whole outline would take for outside is inside one of them
    assert any(bool(piece.contains([1.5, 0.5, 0.0])) for piece in pieces)
    assert not any(bool(piece.contains([1.5, 1.5, 0.0])) for piece in pieces)
    with pytest.raises(InputError, match="crosses"):
        split_outline([(0.0, 0, 0), (2, 0, 0), (0, 2, 0), (2, 2.5, 0)])


def test_samples_are_inside_and_fill_the_shape():
    shape = ConvexShape(PENTAGON).padded(7)
    points = np.asarray(quick_jit(lambda s: s.sample(jax.random.key(0), 4000))(shape))
    outward, corners, edges = (np.asarray(getattr(geometry(shape), k)) for k in ("outward", "corners", "edges"))
    heights = np.einsum("ei,pei->pe", outward, points[:, None] - corners[None])
    assert (heights[:, edges] <= 1e-12).all()
    # the share left of x = -2 is that of the area
    left = ConvexShape([(-2.0, -6, 0), (-2, 6, 0), (-5, 0, 0)])
    assert np.mean(points[:, 0] < -2) == pytest.approx(float(left.area / shape.area), abs=0.03)
    on_line = ConvexShape([(0.0, 0, 0), (1, 1, 0)]).sample(jax.random.key(1), 5)
    np.testing.assert_allclose(on_line[:, 0], on_line[:, 1])


def test_a_line_meets_a_plane_unless_it_is_parallel():
    up = jnp.array([0.0, 0, 1])
    point, crosses = intersect(jnp.array([0.2, 0.3, 1.0]), jnp.array([1.0, 0, -1]), jnp.zeros(3), up)
    np.testing.assert_allclose(point, (1.2, 0.3, 0))
    assert bool(crosses)
    point, crosses = intersect(jnp.array([0.2, 0.3, 1.0]), jnp.array([1.0, 0, 0]), jnp.zeros(3), up)
    np.testing.assert_allclose(point, (0.2, 0.3, 1.0))
    assert not bool(crosses)
    assert bool(ConvexShape(SQUARE).pierced_by([0.2, 0.3, 1.0], [1.0, 0.0, -1.0]))
    assert not bool(ConvexShape(SQUARE).pierced_by([3.0, 0.3, 1.0], [1.0, 0.0, -1.0]))


def test_a_moved_shape_is_the_shape_of_the_moved_corners():
    move = SE3(so3.exp(jnp.array([0.1, 0.5, -0.3])), jnp.array([1.0, 2.0, 3.0]))
    shape = ConvexShape(FOOT, "sole")
    moved = shape.transformed(move)
    assert moved.frame is None
    np.testing.assert_allclose(moved.normal, move.rotation @ shape.normal, atol=1e-15)
    np.testing.assert_allclose(moved.distance(move.apply(jnp.array([0.3, 0.0, 0.2]))), shape.distance([0.3, 0.0, 0.2]))


def test_shapes_are_equal_bit_by_bit():
    assert ConvexShape(SQUARE, "a") == ConvexShape(SQUARE, "a")
    assert ConvexShape(SQUARE, "a") != ConvexShape(SQUARE, "b")
    assert ConvexShape(SQUARE) != ConvexShape(SQUARE[::-1])
    assert "polygon with 4 corners on 'a'" in repr(ConvexShape(SQUARE, "a"))
    assert ConvexShape(SQUARE, dtype=jnp.float32).points.dtype == jnp.float32


def test_shapes_can_be_made_while_jax_traces():
    area = quick_jit(jax.grad(lambda scale: ConvexShape(scale * SQUARE).area))(1.0)
    assert float(area) == pytest.approx(8.0)


def test_drawing_returns_axes_with_everything_on_them():
    pytest.importorskip("matplotlib")
    shapes = [ConvexShape(SQUARE), ConvexShape(FOOT + np.array([0, 0, 1.0])), ConvexShape([(0.0, 0, 0)])]
    axes = draw_shapes([*shapes, ConvexShape([(0.0, 0, 0), (1, 1, 1)])], label="floors")
    assert len(axes.lines) == 4
    move = SE3(so3.exp(jnp.array([0.0, np.pi / 2, 0.0])), jnp.zeros(3))
    assert draw_shapes(shapes[0], poses=[move], axes=axes) is axes
    axes.figure.canvas.draw()
    with pytest.raises(InputError, match="one for each"):
        draw_shapes(shapes, poses=[None])
