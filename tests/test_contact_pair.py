"""Complement, hold and explicit form of a contact; placements solved in batches."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import FOOT, FREE, SQUARE, configurations, contact_of, free_bodies, pose, tree
from evaluations import quick_jit

from jaxdyn.errors import InputError, Status
from jaxdyn.functions import (
    Comparison,
    ConvexShapeContact,
    ConvexShapeContactComplement,
    ConvexShapeContactHold,
    create_constraint_and_complement,
    create_pair,
    explicit_hold,
    relative_pose_from,
    solve_placement,
)
from jaxdyn.math import so3

BOXES = FREE[0]


@functools.cache
def held():
    """Two boxes: the hold's value at the reference configurations, what is read from it, and q solved for it again."""
    contact = contact_of(BOXES)
    explicit = explicit_hold(contact)

    def everything(contact, q):
        hold = ConvexShapeContactHold(contact)
        value = hold.value(q)
        # from anywhere else
        elsewhere = q.at[7:].set(jnp.asarray(pose(0.3, 0.2, 5.0, 0.4)))
        again = eqx.tree_at(lambda e: e.implicit.function.contact, explicit, contact).solve(elsewhere, value)
        return value, relative_pose_from(contact, value), contact.select(q), again, hold.value(again)

    q = configurations(BOXES)
    return contact, q, jax.tree.map(np.asarray, quick_jit(jax.vmap(everything, (None, 0)))(contact, q))


def test_the_pair_and_the_pose_can_be_read_from_the_eight_numbers():
    _, _, (value, read, chosen, *_) = held()
    np.testing.assert_array_equal(read.floor, chosen.floor)
    np.testing.assert_array_equal(read.object, chosen.object)
    np.testing.assert_allclose(read.pose[:, :3], chosen.pose.translation, atol=1e-9)
    rotation = jax.vmap(so3.from_quaternion)(read.pose[:, 3:])
    np.testing.assert_allclose(rotation, chosen.pose.rotation, atol=1e-9)
    assert value.shape == (len(BOXES["cases"]), 8)


def test_the_pose_of_the_objects_can_be_solved_for():
    _, q, (value, _, _, again, value_again) = held()
    np.testing.assert_allclose(again[:, :10], q[:, :10], atol=1e-8)
    sign = np.sign(np.sum(again[:, 10:] * q[:, 10:], axis=1, keepdims=True))
    np.testing.assert_allclose(again[:, 10:] * sign, q[:, 10:], atol=1e-8)
    # where a pose is on the edge between two surfaces, another pair may be read from it
    same = np.abs(value_again - value).max(axis=1) < 1e-7
    assert same.mean() > 0.85


def test_the_hold_stacks_the_two():
    contact, q, (value, *_) = held()
    np.testing.assert_allclose(value[:, :5], [c["value"] for c in BOXES["cases"]], atol=1e-9)
    np.testing.assert_allclose(value[:, 5:], [c["complement"] for c in BOXES["cases"]], atol=1e-9)
    hold = ConvexShapeContactHold(contact)
    assert jax.eval_shape(lambda q: hold.jacobian(q), q[0]).shape == (8, 12)
    assert (hold.name, hold.complement.name) == ("contact/hold", "contact/complement")
    assert hold.relative_pose_bodies == (0, 1)
    np.testing.assert_array_equal(hold.active_parameters, contact.active_parameters)
    assert q.shape[1] == 14


def test_decoding_in_closed_form():
    contact = contact_of(BOXES)
    inside = relative_pose_from(contact, [0.0, 0, 0, 0, 0, 0.8, 5.32842712474619, 0])
    assert (int(inside.floor), int(inside.object)) == (0, 1)
    np.testing.assert_allclose(inside.pose, (0, 0.8, 0.5, 1, 0, 0, 0), atol=1e-12)
    outside = relative_pose_from(contact, [0.0, 0.3, 0, 0, 0, 0, 4.82842712474619, 0.2])
    assert (int(outside.floor), int(outside.object)) == (0, 1)
    np.testing.assert_allclose(outside.pose[:3], (0, 0.3, 0), atol=1e-12)
    np.testing.assert_allclose(outside.pose[3:], (np.cos(0.1), np.sin(0.1), 0, 0), atol=1e-12)


def test_a_pair_shares_one_contact_and_the_explicit_form_has_its_comparisons():
    model = free_bodies()
    contact, complement = create_pair("stance", model, [(None, SQUARE)], [("b0", FOOT)], margin=0.02)
    assert complement.contact is contact
    assert (contact.name, complement.name) == ("stance", "stance/complement")
    zero, free, explicit = create_constraint_and_complement(
        "stance", model, [(None, SQUARE)], [("b0", FOOT)], margin=0.02
    )
    assert set(zero.comparison) == {Comparison.EQUAL_TO_ZERO}
    assert set(free.comparison) == {Comparison.EQUALITY}
    assert explicit.implicit.comparison == (Comparison.EQUAL_TO_ZERO,) * 5 + (Comparison.EQUALITY,) * 3
    assert explicit.outputs == tuple(range(7))
    # the margin lifts the foot off the floor
    q = quick_jit(lambda q: explicit.solve(q, jnp.zeros(8)))(pose(7, 7, 7))
    np.testing.assert_allclose(q, (1, 1, 0.02, 1, 0, 0, 0), atol=1e-12)


def test_objects_that_do_not_float_cannot_be_solved_for():
    with pytest.raises(InputError, match="floating joint"):
        explicit_hold(ConvexShapeContact(tree(), [("b2", FOOT)], [("a3", FOOT)]))
    with pytest.raises(InputError, match="moves with the objects"):
        explicit_hold(ConvexShapeContact(free_bodies(), [("b0", SQUARE)], [("b0", FOOT)]))
    assert ConvexShapeContactComplement.__doc__


# --- placements -----------------------------------------------------------------------------------------------------


def _faces(half=(0.1, 0.15, 0.2)):
    """The faces of a box, normals outwards."""
    corners = []
    for axis in range(3):
        u, w = (axis + 1) % 3, (axis + 2) % 3
        for side in (1, -1):
            face = np.zeros((4, 3))
            face[:, axis] = side * half[axis]
            face[:, u], face[:, w] = half[u] * np.array([-1, 1, 1, -1]), half[w] * np.array([-1, -1, 1, 1])
            corners.append(face if side > 0 else face[::-1])
    return corners


def _stairs(n=3):
    step = np.array([(-0.15, -0.5, 0), (0.15, -0.5, 0), (0.15, 0.5, 0), (-0.15, 0.5, 0)])
    return [step + np.array([0.3 * i, 0, 0.13 * i]) for i in range(n)]


@functools.cache
def _placed():
    contact = ConvexShapeContact(
        free_bodies(), [(None, p) for p in _stairs()], [("b0", p) for p in _faces()], margin=1e-3
    )
    rng = np.random.default_rng(0)
    q = rng.normal(size=(200, 7))
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    q[:, :3] = q[:, :3] * 0.4 + np.array([0.3, 0, 0.4])
    run = quick_jit(jax.vmap(lambda c, q: solve_placement(c, q), (None, 0)))
    return contact, q, jax.tree.map(np.asarray, run(contact, q))


def test_boxes_are_put_on_the_nearest_of_several_steps():
    _, q, result = _placed()
    assert (result.status == Status.OK.value).mean() > 0.99
    good = result.status == Status.OK.value
    assert result.error[good].max() < 1e-7
    assert len(set(result.floor[good])) == 3
    assert len(set(result.object[good])) >= 4
    assert np.median(np.linalg.norm(result.q[good, :3] - q[good, :3], axis=1)) < 0.6


def test_the_faces_that_touch_are_level_and_above_the_step():
    _, _, result = _placed()
    good = result.status == Status.OK.value
    rotation = np.asarray(jax.vmap(so3.from_quaternion)(jnp.asarray(result.q[:, 3:])))
    for k in np.flatnonzero(good)[:50]:
        face = _faces()[result.object[k]] @ rotation[k].T + result.q[k, :3]
        np.testing.assert_allclose(face[:, 2], 0.13 * result.floor[k] + 1e-3, atol=1e-7)
        center = face.mean(axis=0)
        assert abs(center[0] - 0.3 * result.floor[k]) < 0.15
        assert abs(center[1]) < 0.5
