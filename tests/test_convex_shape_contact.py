"""Contacts of planar surfaces: the handed reference configurations, the closed-form cases, and what must stay the same."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import (
    FOOT,
    PENTAGON,
    SCENES,
    SQUARE,
    SQUARE_5,
    TRAPEZOID,
    TREE,
    configurations,
    contact_of,
    everything,
    free_bodies,
    pose,
    reference,
    tree,
)
from evaluations import quick_jit

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.functions import ConvexShape, ConvexShapeContact, ConvexShapeContactComplement, automatic_jacobian
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3
from jaxdyn.model import integrate

# Contacts are arguments: those of equal structure share one compiled program.
evaluate = quick_jit(jax.vmap(everything, (None, 0, None)))
values = quick_jit(jax.vmap(lambda contact, q: contact.value(q), (None, 0)))
HALF = 1.2071067811865475  # radius of SQUARE is 2 HALF


def on_square(floors=(SQUARE,), objects=(FOOT,), companion=True, **options):
    """A free body above squares of the world. All shapes are stored with five corners and a single floor has a far companion,
    so that all of these contacts share a program."""
    floors = [*floors, SQUARE + np.array([1e3, 0, 0])] if companion and len(floors) == 1 else floors
    shapes = [[ConvexShape(p, frame).padded(5) for p in given] for given, frame in ((floors, None), (objects, "b0"))]
    return ConvexShapeContact(free_bodies(), *shapes, **options)


def results_at(contact, q, near=0.15):
    """Everything at some configurations; computed for a fixed number of them, so that nothing is compiled twice."""
    q = np.asarray(q)
    padded = np.concatenate([q, np.broadcast_to(q[:1], (40 - len(q), q.shape[1]))])
    return jax.tree.map(lambda x: np.asarray(x)[: len(q)], evaluate(contact, padded, near))


def at(contact, *poses):
    return results_at(contact, np.stack(poses))


def value_at(contact, q):
    return results_at(contact, q)["value"]


# --- the handed configurations --------------------------------------------------------------------------------------


@functools.cache
def evaluated(i):
    scene = SCENES[i]
    q = configurations(scene)
    contact = contact_of(scene)
    return scene, contact, q, results_at(contact, q, scene["cp_margin"])


every_scene = pytest.mark.parametrize("i", range(len(SCENES)), ids=[f"{i}-{s['name']}" for i, s in enumerate(SCENES)])


@every_scene
def test_values_are_those_of_the_original(i):
    scene, contact, _, got = evaluated(i)
    assert float(contact.radius) == pytest.approx(scene["radius"], abs=1e-12)
    turned = np.linalg.norm(np.stack([got["complement"][:, 2], *got["value"][:, 3:].T]), axis=0)
    for name in ("value", "complement"):
        error = np.abs(got[name] - reference(scene, name)).max(axis=1)
        assert (error <= np.where(turned > 3.0, 1e-6, 1e-9)).all(), error


@every_scene
def test_jacobians_are_those_of_the_original(i):
    scene, _, _, got = evaluated(i)
    for name in ("J", "Jc"):
        wanted = reference(scene, name)
        scale = np.maximum(1.0, np.abs(wanted).max(axis=(1, 2)))
        assert (np.abs(got[name] - wanted).max(axis=(1, 2)) <= 1e-8 * scale).all()


@every_scene
def test_contact_lists_are_those_of_the_original(i):
    scene, _, _, results = evaluated(i)
    for k, case in enumerate(scene["cases"]):
        got = jax.tree.map(lambda leaf, k=k: leaf[k], results["contacts"]).to_list()
        assert len(got) == len(case["contacts"])
        for mine, theirs in zip(got, case["contacts"], strict=True):
            np.testing.assert_allclose(mine.normal, theirs["normal"], atol=1e-12)
            assert len(mine.points) == theirs["npts"]
            assert (mine.support_joint is None) == (theirs["support"] == "null")


@pytest.mark.parametrize("scene", TREE, ids=lambda s: str(s["dep"]))
def test_masks_and_the_pair_of_joints_are_those_of_the_original(scene):
    contact = contact_of(scene)
    # of the original's cosine and sine of the continuous joint, one is left
    active = np.delete(np.array(scene["active"], dtype=bool), 4)
    np.testing.assert_array_equal(contact.active_parameters, active)
    np.testing.assert_array_equal(contact.active_derivative_parameters, np.array(scene["activeD"], dtype=bool))


@functools.cache
def on_tree(floors, objects):
    def shapes(names):
        return [ConvexShape(FOOT, name) for name in names]

    return ConvexShapeContact(tree(), shapes(floors), shapes(objects))


@pytest.mark.parametrize(
    "floors, objects, q_mask, v_mask, pair",
    [
        (("jb2",), ("ja3",), "0111111", "011111", ("ja3", "jb2")),
        (("ja2",), ("jb2",), "0110011", "011011", ("ja2", "jb2")),
        ((None,), ("jb1",), "1000010", "100010", (None, "jb1")),
        (("t",), ("ja3",), "0111100", "011100", ("t", "ja3")),
        (("ja1",), ("ja1",), "0000000", "000000", ("ja1", "ja1")),
        (("jb2", None), ("ja3",), "1111111", "111111", (None, None)),
        (("jb2",), ("ja3", "ja2"), "0111111", "011111", (None, None)),
    ],
)
def test_masks_hold_the_joints_between_floors_and_objects(floors, objects, q_mask, v_mask, pair):
    contact = on_tree(floors, objects)
    as_bools = lambda text: np.array([c == "1" for c in text])  # noqa: E731
    np.testing.assert_array_equal(contact.active_parameters, np.delete(as_bools(q_mask), 4))
    np.testing.assert_array_equal(contact.active_derivative_parameters, as_bools(v_mask))
    complement = ConvexShapeContactComplement(contact)
    np.testing.assert_array_equal(complement.active_derivative_parameters, as_bools(v_mask))
    assert contact.depends_on_rel_pose_between() == pair
    assert (contact.relative_pose_bodies is None) == (len(floors) + len(objects) > 2)


# --- closed-form cases ----------------------------------------------------------------------------------------------


def test_a_foot_on_a_square():
    contact = on_square()
    got = at(
        contact,
        pose(1, 1, 0),
        pose(1, 1, 0.1),
        pose(1.5, 0.5, 0.1, 0.4),
        pose(2, 1, 0.1),
        pose(1.9999999, 1, 0.1),
        pose(3, 3, 0.1),
        pose(1, 1, 0.1, 0.1, (1, 0, 0)),
        pose(1, 1, -0.2, 0.3, (0, 1, 0)),
    )
    values = [
        (0, 0, 0, 0, 0), (-0.1, 0, 0, 0, 0), (-0.1, 0, 0, 0, 0), (-0.1, 0, 1, 0, 0), (-0.1, 0, 0, 0, 0), (-0.1, 2, 2, 0, 0),
        (-0.1, 0, 0, 0, 0.1), (0.2, 0, 0, 0.3, 0),
    ]  # fmt: skip
    np.testing.assert_allclose(got["value"], values, atol=1e-10)
    np.testing.assert_allclose(got["complement"][[0, 2, 3]], [(0, 0, 0), (-0.5, 0.5, -0.4), (0, 0, 0)], atol=1e-10)
    rows = np.zeros((5, 6))
    rows[0, 2], rows[3, 4], rows[4, 3] = -1, 1, 1
    np.testing.assert_allclose(got["J"][0], rows, atol=1e-9)
    np.testing.assert_allclose(
        got["J"][2, 3:], [(0, 0, 0, 0.2, 0.9866309751, 0), (0, 0, 0, 0.9866309751, -0.2, 0)], atol=1e-9
    )
    np.testing.assert_allclose(got["J"][3, 1:3], [(0, 1, 0, 0, 0, 0), (1, 0, 0, 0, 0, 0)], atol=1e-9)
    np.testing.assert_allclose(got["J"][6, 0, :3], (0, -0.0998334166, -0.9950041653), atol=1e-9)
    np.testing.assert_allclose(got["J"][6, 3], (0, 0, 0, 0, 0.9991665277, -0.05), atol=1e-9)
    np.testing.assert_allclose(got["J"][7, 0, :3], (0.2955202067, 0, -0.9553364891), atol=1e-9)
    np.testing.assert_allclose(got["J"][7, 4], (0, 0, 0, 0.9924887258, 0, 0.15), atol=1e-9)
    floor = contact.floors[0]
    np.testing.assert_allclose(floor.pose.rotation, np.array([(0, 0, 1), (0, 1, 0), (-1, 0, 0)]), atol=1e-15)
    assert float(contact.radius) == pytest.approx(2 * HALF, abs=1e-12)


def test_the_margin_lifts_the_object_and_contacts_are_listed_below_another():
    got = at(
        on_square(margin=0.02),
        pose(1, 1, 0.02),
        pose(1, 1, 0),
        pose(1, 1, 0.1),
        pose(2, 1, 0.1),
        pose(2.0000001, 1, 0.1),
        pose(1, 1, -0.2, 0.3, (0, 1, 0)),
        pose(3, 3, 0.1),
    )
    np.testing.assert_allclose(got["value"][0], 0, atol=1e-15)
    assert got["contacts"].active[:, 0].tolist() == [True, True, True, True, False, False, False]
    listed = jax.tree.map(lambda leaf: leaf[0], got["contacts"]).to_list()
    assert len(listed) == 1
    np.testing.assert_allclose(listed[0].normal, (0, 0, -1))
    np.testing.assert_allclose(listed[0].points, FOOT)
    assert (listed[0].joint, listed[0].support_joint) == ("j0", None)


def test_the_first_of_two_equally_near_floors_is_taken():
    raised = SQUARE + np.array([0, 0, 1.0])
    poses = [pose(1, 1, z) for z in (0.3, 0.5, 0.50000001)]
    got = at(on_square((SQUARE, raised)), *poses)
    np.testing.assert_allclose(got["value"][:, 0], (-0.3, -0.5, 0.49999999), atol=1e-12)
    assert got["complement"][2, 0] == pytest.approx(4.82842712474619, abs=1e-12)
    np.testing.assert_allclose(at(on_square((raised, SQUARE)), *poses)["value"][1, 0], 0.5, atol=1e-12)


def test_the_first_of_two_equally_near_objects_is_taken():
    other = FOOT[::-1] + np.array([0, 0, 0.4])
    first = at(on_square(objects=(FOOT, other), companion=False), pose(1, 1, -0.2))
    np.testing.assert_allclose(first["value"][0], (0.2, 0, 0, 0, 0), atol=1e-12)
    second = at(on_square(objects=(other, FOOT), companion=False), pose(1, 1, -0.2))
    np.testing.assert_allclose(second["value"][0], (-0.2, 0, 0, 0, -np.pi), atol=1e-12)
    # two objects on one floor: the second one, where it is nearer
    third = at(on_square(objects=(FOOT, other), companion=False), pose(1, 1, -0.39))
    np.testing.assert_allclose(third["value"][0, 0], -0.01, atol=1e-12)
    assert third["complement"][0, 1] == pytest.approx(4 * HALF, abs=1e-12)


def test_inside_belongs_to_the_chosen_pair():
    # inside the first floor, which is nearer; outside the second
    far = SQUARE + np.array([10.0, 0, 0])
    got = at(on_square((SQUARE, far)), pose(1, 1, 0.1), pose(11, 1, 0.1))
    np.testing.assert_allclose(got["value"], [(-0.1, 0, 0, 0, 0)] * 2, atol=1e-12)


def test_a_point_on_two_floors():
    contact = on_square((SQUARE_5, PENTAGON), ([(0.0, 0, 0)],))
    assert float(contact.radius) == pytest.approx(7.003332407921453, abs=1e-12)
    got = at(contact, pose(2.5, 0, -0.3), pose(7, 1, 0.2), pose(-4, 3, 0.5), pose(0, 0, 0.1), pose(0, 7, 0))
    values = [
        (-0.3, 0, 0, 0, 0), (0.2, -4.5, -1, 0, 0), (0.5, 3.3093806067, -1.6994116629, 0, 0), (0.1, 2.5, 0, 0, 0),
        (0, 1.5205262247, -7.0659748089, 0, 0),
    ]  # fmt: skip
    np.testing.assert_allclose(got["value"], values, atol=1e-9)
    assert got["complement"][2, 0] == pytest.approx(14.006664815842907, abs=1e-12)
    np.testing.assert_allclose(got["complement"][[0, 2], 2], (-1.2091995762, -0.8612698324), atol=1e-9)
    assert not got["J"][:, 3:].any()


def test_a_trapezoid_on_two_floors():
    contact = on_square((SQUARE_5, PENTAGON), (TRAPEZOID[::-1],))
    got = at(
        contact,
        pose(2.5, 0, 0, 1.1, (1, 2, 3)),
        pose(7, 1, 0.2, 1.1, (1, 2, 3)),
        pose(-4, 3, 0.5, 0.4, (1, -1, 0.5)),
    )
    values = [
        (-0.0089820957, 0, 0, -0.7840819842, -0.2613606614),
        (0.1910179043, -4.5123156242, -1.0198153314, -0.7840819842, -0.2613606614),
        (0.5069288557, 3.2890595800, -1.7122197397, -0.1059798906, 0.4489380208),
    ]
    np.testing.assert_allclose(got["value"], values, atol=1e-9)
    np.testing.assert_allclose(got["complement"][0], (-0.0123156242, -0.0198153314, 2.3791133559), atol=1e-9)


def test_a_segment_has_a_value_but_no_jacobian_in_the_exact_mode():
    line = [(-0.1, 0, 0), (0.3, 0, 0)]
    contact = ConvexShapeContact(free_bodies(), [(None, SQUARE_5)], [("b0", line)])
    q = pose(2.5, 0, 0.1)
    value, jacobian = quick_jit(lambda c, q: (c.value(q), automatic_jacobian(c, q)))(contact, q)
    np.testing.assert_allclose(value, (0.1, 0, 0, 1.2091995762, -1.2091995762), atol=1e-9)
    assert np.isfinite(jacobian).all()
    with pytest.raises(NotImplementedError, match="automatic_jacobian"):
        contact.jacobian(q)


def test_shapes_on_one_body_have_a_value_and_no_jacobian():
    contact = ConvexShapeContact(free_bodies(), [(None, SQUARE)], [(None, FOOT + np.array([1, 1, 0.25]))])
    value, jacobian = quick_jit(lambda c, q: c.value_and_jacobian(q))(contact, pose(0, 0, 0))
    np.testing.assert_allclose(value, (-0.25, 0, 0, 0, 0), atol=1e-12)
    assert not jacobian.any()


# --- what must stay the same ----------------------------------------------------------------------------------------


def _random_poses(n, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(n, 7))
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    q[:, :3] *= spread
    return q


def test_moving_floors_and_object_together_changes_nothing():
    q = _random_poses(40)
    contact = on_square((SQUARE_5, PENTAGON), (TRAPEZOID,))
    move = SE3(so3.exp(jnp.array([0.3, -1.1, 0.7])), jnp.array([3.0, -2.0, 1.0]))
    moved = eqx.tree_at(lambda c: c.floors, contact, tuple(f.transformed(move) for f in contact.floors))
    body = move @ SE3.from_quaternion(jnp.asarray(q[:, 3:]), jnp.asarray(q[:, :3]))
    there = np.concatenate([body.translation, body.as_quaternion()], axis=1)
    np.testing.assert_allclose(value_at(moved, there), value_at(contact, q), atol=1e-11)


def test_the_order_of_the_floors_only_changes_the_offsets():
    q = _random_poses(40)
    a, b = at(on_square((SQUARE_5, PENTAGON)), *q), at(on_square((PENTAGON, SQUARE_5)), *q)
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-13)
    unit = 2 * 7.003332407921453
    first = np.round(a["complement"][:, 0] / unit)
    np.testing.assert_allclose(a["complement"][:, 1:], b["complement"][:, 1:], atol=1e-12)
    np.testing.assert_allclose(
        a["complement"][:, 0] - first * unit, b["complement"][:, 0] - (1 - first) * unit, atol=1e-12
    )


def test_relabelling_the_corners_keeps_distances_and_aligned_normals():
    q = _random_poses(20)
    q[:5] = [pose(x, 0.5 * x, 0.2, x) for x in (0, 0.5, 1.0, 1.5, 2.0)]  # over the square, normals aligned
    first = value_at(on_square((SQUARE, PENTAGON)), q)
    rolled = value_at(on_square((np.roll(SQUARE, 1, axis=0), np.roll(PENTAGON, 2, axis=0))), q)
    np.testing.assert_allclose(rolled[:, 0], first[:, 0], atol=1e-12)
    np.testing.assert_allclose(np.hypot(*rolled[:, 1:3].T), np.hypot(*first[:, 1:3].T), atol=1e-12)
    np.testing.assert_allclose(first[:5, 3:], 0, atol=1e-12)
    np.testing.assert_allclose(rolled[:5, 3:], 0, atol=1e-12)


def test_one_program_serves_shapes_of_equal_storage():
    q = _random_poses(3)
    before = value_at(on_square((SQUARE, PENTAGON)), q), evaluate._cache_size()
    value_at(on_square((PENTAGON, SQUARE_5), (TRAPEZOID,), margin=0.3), q)
    assert evaluate._cache_size() == before[1]


def test_a_batch_of_shapes_and_configurations_equals_a_loop():
    q = _random_poses(2)
    contacts = on_square((PENTAGON, SQUARE)), on_square((SQUARE, SQUARE_5), (TRAPEZOID,), margin=0.1)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *contacts)
    both = quick_jit(jax.vmap(lambda c, q: c.value(q)))(stacked, q)
    each = [value_at(c, x[None])[0] for c, x in zip(contacts, q, strict=True)]
    np.testing.assert_allclose(both, each, atol=1e-13)


def test_a_given_pair_is_kept_however_far_it_is():
    contact = on_square((SQUARE, SQUARE + np.array([10.0, 0, 0])))
    q = pose(11, 1, 0.1)[None]
    np.testing.assert_allclose(value_at(contact.with_pair(0, 0), q)[0], (-0.1, 0, 10, 0, 0), atol=1e-12)
    np.testing.assert_allclose(value_at(contact.with_pair(jnp.asarray(1), 0), q)[0], (-0.1, 0, 0, 0, 0), atol=1e-12)
    with pytest.raises(InputError, match="from 0 to 1, given 2"):
        contact.with_pair(2, 0)
    with pytest.raises(InputError, match="mixes all pairs"):
        contact.with_pair(0, 0).with_mode("smooth")
    with pytest.raises(InputError, match="mixes all pairs"):
        contact.with_mode("smooth").with_pair(0, 0)


# --- modes ----------------------------------------------------------------------------------------------------------


def _stairs(**options):
    """Two steps, and a foot."""
    step = np.array([(-0.15, -0.5, 0), (0.15, -0.5, 0), (0.15, 0.5, 0), (-0.15, 0.5, 0)])
    return on_square((step, step + np.array([0.3, 0, 0.15])), **options)


@functools.cache
def _by_mode(mode, align="log"):
    """Value, Jacobian, automatic Jacobian and gradients at poses near and on everything that is singular."""
    contact = _stairs(margin=0.01, mode=mode, normal_align=align, tau=1e-3)
    special = [
        pose(0.15, 0.5, 0), pose(0.15, 0, 0), pose(0, 0, 0), pose(0, 0, 0.3), pose(0, 0, 0.2, np.pi, (1, 0, 0)),
        pose(0.3, 0, 0.15, np.pi), pose(0.15, 0.5, 0.1, np.pi, (1, 1, 0)), pose(0.15, 0, 0.075), pose(-0.15, -0.5, 0.2),
        pose(0.15, 0.7, -0.1), pose(1, 1, 1, np.pi / 2, (0, 1, 0)), pose(0, 0, 0, np.pi / 2, (1, 0, 0)),
    ]  # fmt: skip
    q = np.concatenate([special, _random_poses(12, 2, 0.4)])

    def all_of_it(contact, q):
        value, jacobian = contact.value_and_jacobian(q)
        cost = lambda c, q: 0.5 * jnp.sum(c.value(q) ** 2)  # noqa: E731
        gradient = jax.grad(lambda p, m, q: cost(_with(contact, p, m), q), (0, 1, 2))
        points = [s.points for s in (*contact.floors, *contact.objects)]
        return value, jacobian, gradient(points, contact.margin, q)

    return contact, q, len(special), jax.tree.map(np.asarray, quick_jit(jax.vmap(all_of_it, (None, 0)))(contact, q))


def _with(contact, points, margin):
    return eqx.tree_at(lambda c: [*(s.points for s in (*c.floors, *c.objects)), c.margin], contact, [*points, margin])


every_mode = pytest.mark.parametrize(
    "mode, align", [("exact", "log"), ("projected", "cross"), pytest.param("smooth", "log", marks=pytest.mark.slow)]
)


@every_mode
def test_no_derivative_is_ever_nan(mode, align):
    *_, results = _by_mode(mode, align)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))


@every_mode
def test_gradients_are_those_of_differences(mode, align):
    contact, q, n, (_, jacobian, (points, margin, _)) = _by_mode(mode, align)
    h = 1e-6
    here = np.resize(q[n : n + 4], (40, 7))
    run = value_at if mode == "exact" else values
    cost = lambda c: 0.5 * np.sum(np.asarray(run(c, here)) ** 2, axis=1)[:4]  # noqa: E731
    way = np.random.default_rng(8).normal(size=6)
    there, back = (
        np.concatenate([jax.vmap(lambda x, s=s: integrate(free_bodies(), x, s * h * way))(here[:4]), here[4:]])
        for s in (1, -1)
    )
    differences = (np.asarray(run(contact, there)) - np.asarray(run(contact, back)))[:4] / (2 * h)
    np.testing.assert_allclose(jacobian[n : n + 4] @ way, differences, atol=2e-7 * max(1, np.abs(differences).max()))
    up, down = (eqx.tree_at(lambda c: c.margin, contact, contact.margin + s * h) for s in (1, -1))
    np.testing.assert_allclose(margin[n : n + 4], (cost(up) - cost(down)) / (2 * h), atol=1e-6, rtol=1e-6)
    shapes = [s.points for s in (*contact.floors, *contact.objects)]
    way = [np.random.default_rng(k).normal(size=p.shape) for k, p in enumerate(shapes)]
    up, down = (
        _with(contact, [p + s * h * w for p, w in zip(shapes, way, strict=True)], contact.margin) for s in (1, -1)
    )
    slope = sum(np.sum(g[n : n + 4] * w[None], axis=(1, 2)) for g, w in zip(points, way, strict=True))
    np.testing.assert_allclose(slope, (cost(up) - cost(down)) / (2 * h), atol=2e-6, rtol=1e-5)


def test_the_projected_cost_is_continuous_at_the_outline():
    contact = _stairs(mode="projected", normal_align="cross")
    x = np.array([-0.15 - 0.02, -0.15 - 1e-6, -0.15 + 1e-3])
    q = np.stack([pose(a, 0.2, 0) for a in np.resize(x, 40)])
    cost = 0.5 * np.sum(np.asarray(values(contact, q)) ** 2, axis=1)[:3]
    inset = 1e-3 * 0.15
    np.testing.assert_allclose(cost, [0.5 * (0.02 + inset) ** 2, 0.5 * (1e-6 + inset) ** 2, 0], atol=1e-12)


def test_the_smooth_value_tends_to_the_exact_one():
    q = _random_poses(40, 5, 0.6)
    exact = value_at(_stairs(), q)
    medians = []
    for tau in (1e-1, 1e-2, 1e-3):
        smooth = values(_stairs(mode="smooth", tau=tau), q)
        medians.append(np.median(np.abs(smooth - exact).max(axis=1)))
    assert medians[0] > medians[1] > medians[2]
    assert medians[2] < 1e-6


def test_the_soft_minimum_tends_to_the_smallest_cost():
    contact = _stairs(tau=1e-3, gate=1e-6)
    q = _random_poses(12, 6, 0.5)
    soft, slope = quick_jit(jax.vmap(jax.value_and_grad(lambda q: contact.soft_minimum(q))))(q)
    pairs = [0.5 * np.sum(value_at(contact.with_pair(i, 0), q) ** 2, axis=1) for i in (0, 1)]
    least = np.minimum(*pairs)
    assert (soft <= least + 1e-9).all()
    assert (soft >= least - 1e-3 * np.log(2) - 1e-9).all()
    assert np.isfinite(slope).all()


def test_the_cross_product_of_the_normals_does_not_depend_on_the_first_edge():
    q = _random_poses(40)
    q[0] = pose(0, 0, 0, 1e-4, (1, 2, 0))
    contact = _stairs(mode="projected", normal_align="cross")
    a = np.asarray(values(contact, q))
    rolled = eqx.tree_at(lambda c: [f.points for f in c.floors], contact, [_rolled(f.points) for f in contact.floors])
    b = np.asarray(values(rolled, q))
    np.testing.assert_allclose(np.hypot(*a[:, 3:].T), np.hypot(*b[:, 3:].T), atol=1e-12)
    np.testing.assert_allclose(a[0], value_at(_stairs(), q[:1])[0], atol=1e-8)


def _rolled(points):
    """Four corners and one of padding, from the second corner on."""
    return jnp.concatenate([jnp.roll(points[:4], -1, axis=0), points[4:]])


# --- construction ---------------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    model = free_bodies()
    floor, foot = (None, SQUARE), ("b0", FOOT)
    with pytest.raises(InputError, match="no floors"):
        ConvexShapeContact(model, [], [foot])
    with pytest.raises(InputError, match="no objects"):
        ConvexShapeContact(model, [floor], [])
    for points, kind in (([(0.0, 0, 0)], "point"), ([(0.0, 0, 0), (1, 0, 0)], "line")):
        with pytest.raises(InputError, match=f"floor 0 is a {kind}"):
            ConvexShapeContact(model, [(None, points)], [foot])
    with pytest.raises(UnknownNameError, match="b0"):
        ConvexShapeContact(model, [floor], [("bO", FOOT)])
    with pytest.raises(UnknownNameError, match="projected"):
        ConvexShapeContact(model, [floor], [foot], mode="project")
    with pytest.raises(InputError, match="margin"):
        ConvexShapeContact(model, [floor], [foot], margin=np.zeros(2))
    for width in ("tau", "gate"):
        with pytest.raises(InputError, match=f"{width}: wanted a positive"):
            ConvexShapeContact(model, [floor], [foot], mode="smooth", **{width: 0.0})


def test_contacts_are_equal_if_all_their_parts_are():
    a = on_square()
    assert a == on_square()
    assert a == on_square().with_context("another")
    assert a != on_square(margin=0.1)
    assert a != on_square(objects=(TRAPEZOID,))
    assert a != on_square((PENTAGON,))
    assert a != on_square((SQUARE, SQUARE))
    assert a != a.with_mode("projected")
    assert a != a.with_name("other")
    with pytest.raises(TypeError):
        hash(a)


def test_printing_names_joints_and_shapes():
    text = str(on_square().with_context("stance"))
    assert "object on b0: polygon" in text
    assert "floor on universe" in text
    assert "active degrees of freedom: [0, 5]" in text
    assert "stance" in text


def test_the_dtype_follows_the_model():
    model = free_bodies().astype(jnp.float32)
    contact = ConvexShapeContact(model, [(None, SQUARE)], [("b0", FOOT)], margin=0.02)
    out = jax.eval_shape(everything, contact, jax.ShapeDtypeStruct((7,), jnp.float32))
    assert {x.dtype.name for x in jax.tree.leaves(out)} == {"float32", "bool"}
    for mode in ("projected", "smooth"):
        out = jax.eval_shape(
            lambda c, q: c.value_and_jacobian(q), contact.with_mode(mode), jax.ShapeDtypeStruct((7,), jnp.float32)
        )
        assert all(x.dtype == jnp.float32 for x in out)
