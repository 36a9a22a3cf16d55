"""The level order of a tree: every body and degree of freedom once, parents first, and the sums along the tree that
all algorithms are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_trees import MOVING, random_model

from jaxdyn.model import load
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import Tree


def tree_of(types, parents):
    names = tuple(f"b{i}" for i in range(len(types)))
    return Tree(names, tuple(types), tuple(parents), names, names, tuple(range(len(types))))


TREES = {
    "no joints": tree_of([], []),
    "one joint": tree_of(["revolute"], [-1]),
    "one floating body": tree_of(["floating"], [-1]),
    "chain of all types": tree_of(MOVING, range(-1, len(MOVING) - 1)),
    "star": tree_of(["revolute", "spherical"] * 4, [-1] * 8),
    "forest": tree_of(["floating", "planar", "prismatic", "revolute", "floating"], [-1, -1, 0, 1, -1]),
    "not depth first": tree_of(["revolute"] * 6, [-1, -1, 0, 1, 0, 1]),
    "uneven branches": tree_of(["floating"] + ["revolute"] * 6, [-1, 0, 0, 1, 3, 4, 2]),
    "quadruped": load("quadruped", root="floating").tree,
    **{f"random {seed}": random_model(seed, 12, types=MOVING).tree for seed in range(4)},
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


@every_tree
def test_every_body_and_degree_of_freedom_occurs_once_and_the_ranks_are_the_inverse(tree):
    order = schedule(tree)
    np.testing.assert_array_equal(np.sort(order.bodies), range(tree.n_bodies))
    np.testing.assert_array_equal(np.sort(order.dofs), range(tree.nv))
    np.testing.assert_array_equal(order.bodies[order.body_rank], range(tree.n_bodies))
    np.testing.assert_array_equal(order.dofs[order.dof_rank], range(tree.nv))
    assert order.n == tree.n_bodies


@every_tree
def test_levels_tile_the_bodies_and_groups_tile_the_levels(tree):
    order, body, dof = schedule(tree), 0, 0
    assert len(order.levels) == len(tree.levels)
    for depth, level in enumerate(order.levels):
        assert (level.depth, level.start) == (depth, body)
        first = 0
        for group in level.groups:
            assert (group.first, group.dof) == (first, dof)
            members = order.bodies[level.start + first : level.start + first + group.count]
            assert {tree.joint_nv[b] for b in members} == {group.size}
            expected = [tree.v_offset[b] + k for b in members for k in range(group.size)]
            np.testing.assert_array_equal(order.dofs[dof : dof + group.count * group.size], expected)
            first, dof = first + group.count, dof + group.count * group.size
        assert level.start + first == level.stop
        assert {tree.depth[b] for b in order.bodies[level.start : level.stop]} == {depth}
        body = level.stop
    assert (body, dof) == (tree.n_bodies, tree.nv)


@every_tree
def test_parents_and_children_are_those_of_the_tree(tree):
    order = schedule(tree)
    for i, b in enumerate(order.bodies):
        above = order.parents[i]
        assert (order.bodies[above] if above >= 0 else -1) == tree.parents[b]
    for above, level in zip((None, *order.levels), order.levels, strict=False):
        if above is None:
            assert level.parent == () and level.children == ()
            continue
        assert len(level.children) == above.stop - above.start
        for i, p in enumerate(level.parent):
            assert order.parents[level.start + i] == above.start + p
            assert i in level.children[p]
        assert sum(map(len, level.children)) == level.stop - level.start


@every_tree
def test_relations_of_degrees_of_freedom_are_those_of_the_tree(tree):
    order = schedule(tree)
    bodies = np.asarray(tree.dof_body, int)[order.dofs]
    np.testing.assert_array_equal(order.bodies[order.dof_body], bodies)
    below = tree.ancestors[np.ix_(bodies, bodies)]
    np.testing.assert_array_equal(order.below, below)
    np.testing.assert_array_equal(order.strictly_above, below.T & ~below)
    np.testing.assert_array_equal(order.dof_ancestors, tree.dof_ancestors[np.ix_(order.dofs, order.dofs)])


@every_tree
def test_sums_along_the_tree_are_products_with_the_ancestors_matrix(tree):
    order = schedule(tree)
    rng = np.random.default_rng(0)
    per_body, per_dof = (
        jnp.asarray(rng.normal(size=(tree.n_bodies, 2, 3))),
        jnp.asarray(rng.normal(size=(tree.nv, 2, 3))),
    )
    ancestors = tree.ancestors[np.ix_(order.bodies, order.bodies)].astype(float)
    belongs = (np.arange(tree.n_bodies)[:, None] == order.dof_body[None]).astype(float)
    down, up, dofs = jax.jit(lambda x, y: (order.sum_down(x), order.sum_up(x), order.sum_dofs(y)))(per_body, per_dof)
    np.testing.assert_allclose(down, np.einsum("ij,jkl->ikl", ancestors, per_body), atol=1e-14)
    np.testing.assert_allclose(up, np.einsum("ji,jkl->ikl", ancestors, per_body), atol=1e-14)
    np.testing.assert_allclose(dofs, np.einsum("ij,jkl->ikl", belongs, per_dof), atol=1e-14)


@every_tree
def test_scans_hand_states_outwards_and_messages_inwards(tree):
    order = schedule(tree)
    number = jnp.asarray(order.bodies, float).reshape(-1, 1)

    # outwards: each body gets its parent's number; inwards: each gets the sum of its children's
    received = order.scan_down(lambda level, above: {"own": level.of(number), "above": above and above["own"]})
    for level, state in zip(order.levels, received, strict=True):
        if level.depth == 0:
            assert state["above"] is None
        else:
            np.testing.assert_array_equal(
                state["above"][:, 0], np.take(tree.parents, order.bodies[level.start : level.stop])
            )
    sums = order.scan_up(lambda level, below: (level.of(number), below))
    for level, below in zip(order.levels, sums, strict=True):
        expected = [sum(tree.children[b]) for b in order.bodies[level.start : level.stop]]
        if below is None:
            assert level.depth == len(order.levels) - 1
        else:
            np.testing.assert_array_equal(below[:, 0], expected)


@every_tree
def test_groups_cut_stacks_into_bodies_and_degrees_of_freedom(tree):
    order = schedule(tree)
    per_body = jnp.arange(float(tree.n_bodies)).reshape(-1, 1)
    per_dof = jnp.arange(float(tree.nv)).reshape(-1, 1)
    for level in order.levels:
        for group in level.groups:
            bodies, dofs = group.bodies(level.of(per_body)), group.dofs(per_dof)
            assert dofs.shape == (group.count, group.size, 1)
            np.testing.assert_array_equal(order.dof_body[dofs[:, :, 0].astype(int)], np.tile(bodies, group.size))


def test_equal_trees_share_one_schedule():
    first, second = (tree_of(["floating", "revolute"], [-1, 0]) for _ in range(2))
    assert first is not second and schedule(first) is schedule(second)
