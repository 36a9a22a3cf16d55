"""The static structure: what follows from parents and joint types, identity, and refusal of nonsense."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.model.schedule import schedule
from jaxdyn.model.tree import JOINT_SIZES, ShapeInfo, Tree


def make_tree(parents, types=None, extra_frames=(), changes=None):
    n = len(parents)
    names = tuple(f"link{i}" for i in range(n))
    fields = dict(
        joint_names=tuple(f"joint{i}" for i in range(n)),
        joint_types=tuple(types or ["revolute"] * n),
        parents=tuple(parents),
        body_names=names,
        frame_names=names + tuple(name for name, _ in extra_frames),
        frame_bodies=tuple(range(n)) + tuple(body for _, body in extra_frames),
    )
    return Tree(**{**fields, **(changes or {})})


@st.composite
def descriptions(draw):
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    types = [draw(st.sampled_from(sorted(JOINT_SIZES))) for _ in range(n)]
    return parents, types  # not yet a Tree: the shape checks draw random numbers, which strategies must not


def path_to_world(parents, i):
    path = []
    while i >= 0:
        path.append(i)
        i = parents[i]
    return path


@given(descriptions())
def test_bodies_above_each_body_are_found_by_walking_to_the_world(description):
    tree = make_tree(*description)
    for i in range(tree.n_bodies):
        assert set(np.flatnonzero(tree.ancestors[i])) == set(path_to_world(tree.parents, i))
        assert tree.depth[i] == len(path_to_world(tree.parents, i)) - 1
    assert sorted(body for level in tree.levels for body in level) == list(range(tree.n_bodies))
    for k, level in enumerate(tree.levels):
        assert all(tree.depth[body] == k for body in level)
    assert all(tree.parents[child] == i for i, children in enumerate(tree.children) for child in children)


@given(descriptions())
def test_degrees_of_freedom_form_a_tree_of_their_own(description):
    tree = make_tree(*description)
    assert tree.nv == sum(tree.joint_nv) == len(tree.dof_body) == len(tree.dof_parent)
    assert tree.nq == sum(tree.joint_nq)
    for k in range(tree.nv):
        above = set(path_to_world(tree.dof_parent, k))
        assert set(np.flatnonzero(tree.dof_ancestors[k])) == above
        body = tree.dof_body[k]
        # the dofs above are those of the bodies above, and of its own joint those before it
        moving = {j for j in range(tree.nv) if tree.ancestors[body, tree.dof_body[j]]}
        assert above == {j for j in moving if tree.dof_body[j] != body or j <= k}
        assert set(np.flatnonzero(tree.dof_support[body])) == moving
    assert sorted(dof for level in tree.dof_levels for dof in level) == list(range(tree.nv))


@given(descriptions())
def test_offsets_tile_q_and_v_without_gaps(description):
    tree = make_tree(*description)
    for offsets, sizes, total in ((tree.q_offset, tree.joint_nq, tree.nq), (tree.v_offset, tree.joint_nv, tree.nv)):
        covered = [k for start, size in zip(offsets, sizes, strict=True) for k in range(start, start + size)]
        assert covered == list(range(total))
    assert all(tree.dof_body[last] == body for body, last in enumerate(tree.last_dof))


def test_numbering_need_not_be_depth_first():
    tree = make_tree([-1, -1, 0, 1, 0])
    assert tree.levels == ((0, 1), (2, 3, 4))
    assert tree.dof_parent == (-1, -1, 0, 1, 0)


def test_a_robot_without_joints_has_empty_everything():
    tree = make_tree([], extra_frames=[("base", -1)])
    assert (tree.nq, tree.nv, tree.n_bodies, tree.n_frames) == (0, 0, 0, 1)
    assert tree.levels == tree.dof_levels == ()
    assert tree.ancestors.shape == tree.dof_support.shape == tree.dof_ancestors.shape == (0, 0)


def test_long_chains_and_wide_stars_are_cheap():
    chain = make_tree(range(-1, 299))
    assert len(chain.levels) == 300 and chain.ancestors.sum() == 300 * 301 / 2
    star = make_tree([-1] + [0] * 60)
    assert star.levels == ((0,), tuple(range(1, 61)))
    assert star.children[0] == tuple(range(1, 61))


def test_a_free_flyer_counts_seven_coordinates_and_six_velocities():
    tree = make_tree([-1, 0], ["floating", "revolute"])
    assert (tree.nq, tree.nv) == (8, 7)
    assert tree.dof_parent == (-1, 0, 1, 2, 3, 4, 5)
    assert tree.last_dof == (5, 6)


def test_matrices_cannot_be_written():
    tree = make_tree([-1, 0])
    for matrix in (tree.ancestors, tree.dof_ancestors, tree.dof_support):
        with pytest.raises(ValueError, match="read-only"):
            matrix[0, 0] = False


def test_equal_trees_are_equal_and_hash_alike_whatever_was_asked_of_them():
    one, two = make_tree([-1, 0, 0]), make_tree([-1, 0, 0])
    _ = one.ancestors, one.dof_levels, one.frame("link1")
    assert one == two and hash(one) == hash(two) and one is not two
    assert one != make_tree([-1, 0, 1])
    assert one != make_tree([-1, 0, 0], changes={"geometry": (ShapeInfo("", "link0", 0, "box", "visual"),)})
    assert one != "a tree"


def test_trees_are_static_arguments_that_compile_once():
    traces = []

    def function(tree, x):
        traces.append(tree)
        return x * tree.nv

    compiled = jax.jit(function, static_argnums=0)
    assert compiled(make_tree([-1, 0]), jnp.asarray(1.0)) == 2.0
    assert compiled(make_tree([-1, 0]), jnp.asarray(2.0)) == 4.0
    assert len(traces) == 1


def test_pickling_drops_what_depends_on_the_process():
    tree = make_tree([-1, 0])
    _ = hash(tree), tree.ancestors
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree and "_hash" in tree.__dict__
    assert not {"_hash", "ancestors"} & set(pickle.loads(pickle.dumps(make_tree([-1]))).__dict__)


def test_trees_cannot_be_changed():
    with pytest.raises(AttributeError):
        make_tree([-1]).parents = (0,)


def test_names_give_indices_and_a_typo_gives_the_nearest_names():
    tree = make_tree([-1, 0], extra_frames=[("tool", 1)])
    assert (tree.joint("joint1"), tree.body("link1"), tree.frame("tool")) == (1, 1, 2)
    with pytest.raises(UnknownNameError, match=r"unknown frame 'Tool'\. Did you mean 'tool'"):
        tree.frame("Tool")
    with pytest.raises(KeyError, match="'joint0', 'joint1'"):
        tree.joint("elbow")
    with pytest.raises(UnknownNameError, match="unknown body 'tool'"):
        tree.body("tool")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(parents=(0,)), "hangs on body 0"),
        (dict(parents=(-2,)), "hangs on body -2"),
        (dict(parents=(-1, 0)), "2 entries"),
        (dict(joint_types=("revolut",)), "Did you mean 'revolute'"),
        (dict(frame_names=("other",)), "first frames"),
        (dict(frame_names=("link0", "link0"), frame_bodies=(0, 0)), "more than once"),
        (dict(frame_names=("link0", "tool"), frame_bodies=(0, 1)), "does not exist"),
        (dict(frame_names=("link0", "tool")), "frame_bodies"),
        (dict(geometry=(ShapeInfo("", "link0", 3, "box", "visual"),)), "shape is fixed"),
    ],
)
def test_tuples_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        make_tree([-1], changes=changes)


def test_followers_have_no_coordinates_and_know_the_joint_that_moves_them():
    types = ["floating", "prismatic", "revolute", "continuous"]
    tree = make_tree((-1, 0, 0, 2), types, changes={"followers": ((1, 2), (2, 3))})
    assert (tree.nq, tree.nv) == (8, 7) and tree.joint_nq == (7, 0, 0, 1)
    assert tree.independent == (0, 3) and tree.leading_joint == (0, 3, 3, 3)
    assert tree.q_offset == (0, 7, 7, 7) and tree.dof_body == (0,) * 6 + (3,)
    assert tree.free == make_tree((-1, 0, 0, 2), types) and tree != tree.free
    assert pickle.loads(pickle.dumps(tree)) == tree
    with pytest.raises(InputError, match=r"what uses Tree\.dof_parent is not for robots .*'joint1', 'joint2'"):
        tree.dof_parent
    with pytest.raises(InputError, match="this function is not for robots with joints that follow others"):
        schedule(tree)


@pytest.mark.parametrize(
    ("followers", "message"),
    [
        (((2, 1), (1, 3)), "sorted by joint"),
        (((1, 2), (1, 3)), "each follows one joint"),
        (((1, 0),), "joints of one coordinate can follow each other, joint 0 is none"),
        (((1, 9),), "joint 9 is none"),
        (((1, 1),), "follow each other in a ring"),
        (((1, 2), (2, 1)), r"\['joint1', 'joint2'\] follow each other in a ring"),
    ],
)
def test_impossible_followers_are_refused(followers, message):
    with pytest.raises(InputError, match=message):
        make_tree((-1, 0, 0, 2), ["floating", "prismatic", "revolute", "continuous"], changes={"followers": followers})
