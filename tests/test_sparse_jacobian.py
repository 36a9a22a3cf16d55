"""Sparse Jacobians: the container with static and run-time indices, its algebra, and how kinematics makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit, robot, some_frames
from oracles import states
from random_trees import random_model

from jaxdyn import algorithms as alg
from jaxdyn.algorithms.sparse_assembly import concat, contact_rotation, stack_rows, transposed_sum
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.algorithms.topology import Topology
from jaxdyn.errors import InputError
from jaxdyn.math.spatial import Representation
from jaxdyn.model import from_urdf


def numbered(nv=10):
    """Two columns, 4 and 7, that hold 1 .. 6."""
    return SparseJacobian.from_values(jnp.arange(1.0, 7.0).reshape(2, 3).T, (4, 7), nv)


def both_kinds(j):
    return {"static": j, "run-time": j.padded(j.capacity + 2)}


# -- the container
# ---------------------------------------------------------------------------------------------------------------


def test_entries_by_row_and_column_and_column_by_column():
    j = SparseJacobian.empty(10).resize(2).with_idx((4, 7))
    for i in range(6):
        j = j.set_flat(i, i + 1.0)
    assert [float(j[0, 0]), float(j[2, 0]), float(j[0, 1]), float(j[4]), float(j[1, 1])] == [1, 3, 4, 5, 5]
    np.testing.assert_array_equal(j.data, np.arange(1.0, 7.0))
    np.testing.assert_array_equal(j.block, [[1, 4], [2, 5], [3, 6]])
    dense = np.zeros((3, 10))
    dense[:, 4], dense[:, 7] = (1, 2, 3), (4, 5, 6)
    np.testing.assert_array_equal(j.to_dense(), dense)
    for other in (j.scale(2.0), 2.0 * j, j * 2.0, -(j * -2.0)):
        np.testing.assert_array_equal(other.data, 2 * np.arange(1.0, 7.0))
    assert j.at_set(1, 1, 9.0)[1, 1] == 9.0
    assert j[1, 1] == 5.0  # nothing changes in place
    np.testing.assert_array_equal(j.with_block(jnp.ones((3, 2))).data, np.ones(6))


@pytest.mark.parametrize("shape, at", [((2, 2), (1, 0)), ((3, 2), (0, 0)), ((2, 1), (1, 1)), ((1, 2), (2, 0))])
def test_blocks_of_any_shape_are_written_where_they_belong(shape, at):
    block = jnp.arange(float(np.prod(shape))).reshape(shape) + 10
    wanted = np.arange(1.0, 7.0).reshape(2, 3).T.copy()
    wanted[at[0] : at[0] + shape[0], at[1] : at[1] + shape[1]] = block
    for j in both_kinds(numbered()).values():
        np.testing.assert_array_equal(j.fill_sub(*at, block).to_dense()[:, [4, 7]], wanted)


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"does not fit into \(3, 2\)"):
        numbered().fill_sub(2, 1, jnp.ones((2, 2)))
    with pytest.raises(InputError, match="does not fit"):
        numbered().fill_sub(-1, 0, jnp.ones((1, 1)))


def test_resizing_zeroes_values_and_keeps_indices():
    j = numbered().resize(1)
    assert (j.size, j.capacity) == (1, 2)
    again = j.resize(2)
    assert again.idx == (4, 7)
    assert (again.values == 0).all()
    grown = again.resize(4)
    assert (grown.size, grown.capacity, grown.idx) == (4, 4, (4, 7, 10, 10))
    with pytest.raises(InputError, match="not negative, given -1"):
        j.resize(-1)
    padded = numbered().padded(5)
    run = jax.jit(lambda n: padded.resize(n))(jnp.int32(1))
    assert (int(run.size), run.capacity) == (1, 5)
    assert (run.values == 0).all()
    with pytest.raises(InputError, match="0 to 5"):
        padded.resize(6)


def test_assignment_keeps_room():
    big, small = SparseJacobian.empty(30, 18), numbered(30)
    a = big.assign(small)
    assert (a.size, a.capacity) == (2, 18)
    np.testing.assert_array_equal(a.to_dense(), small.to_dense())
    b = small.assign(a)
    assert b.capacity == 18
    assert (b.values[:, b.size :] == 0).all()
    assert a.assign(a).same_structure(a)
    assert small.assign(SparseJacobian.empty(30)).size == 0
    with pytest.raises(InputError, match="static and run-time"):
        small.assign(small.padded())
    with pytest.raises(InputError, match="wanted nv = 30, given nv = 10"):
        small.assign(numbered())
    padded = SparseJacobian.empty(30, 18).padded()
    step = lambda carry, _: (carry.assign(small.padded()), carry.size)  # noqa: E731
    carried, sizes = jax.lax.scan(step, padded, length=2)  # shapes stay
    assert sizes.tolist() == [0, 2]
    np.testing.assert_array_equal(carried.to_dense(), small.to_dense())


def test_order_and_repetition_of_columns():
    j = numbered()
    swapped = SparseJacobian.from_values(j.values[:, ::-1], (7, 4), 10)
    assert j.allclose(swapped)
    assert not j.same_structure(swapped)
    assert swapped.sort().same_structure(j)
    np.testing.assert_array_equal(swapped.sort().values, j.values)
    np.testing.assert_array_equal(swapped.padded(4).sort().values[:, :2], j.values)
    twice = SparseJacobian.from_values(j.values, (4, 4), 10)
    for kind in both_kinds(twice).values():
        np.testing.assert_array_equal(kind.to_dense()[:, 4], [5, 7, 9])
    assert twice.summed().idx == (4,)


def test_indices_out_of_range():
    j = numbered()
    for at in ((3, 0), (0, 2), (-1, 0), 6, -1):
        with pytest.raises(IndexError, match="wanted 0 to"):
            j[at]
        with pytest.raises(InputError, match="wanted 0 to"):
            j.set_flat(at, 0.0) if isinstance(at, int) else j.at_set(*at, 0.0)
    for bad in ((4, 10), (-1, 2)):
        with pytest.raises(InputError, match="integers from 0 to 9"):
            SparseJacobian.from_dense(jnp.ones((3, 10)), bad)
    read = jax.jit(lambda r, c: (j[r, c], j.at_set(r, c, 9.0).data, j.padded(4)[r, c]))
    value, changed, padded = read(2, 1)
    assert (value, padded) == (6, 6)
    np.testing.assert_array_equal(changed, [1, 2, 3, 4, 5, 9])
    for r, c in ((0, 2), (3, 0), (0, -1)):
        value, changed, padded = read(r, c)
        assert np.isnan(value)
        assert np.isnan(padded)
        np.testing.assert_array_equal(changed, np.arange(1.0, 7.0))


def test_making_one_from_a_full_matrix():
    J = jnp.arange(30.0).reshape(3, 10)
    topology = Topology((-1, 0, 1, 0, 3, 3, -1, 6, 7, 8))
    j = SparseJacobian.from_dense(J, topology=topology, dof=5)
    assert j.idx == (0, 3, 5)
    np.testing.assert_array_equal(j.values, J[:, [0, 3, 5]])
    assert SparseJacobian.from_dense(J, topology=topology, dof=-1).size == 0
    run = SparseJacobian.from_dense(J, jnp.array([5, 0, 10], jnp.int32))
    np.testing.assert_array_equal(run.to_dense(), SparseJacobian.from_dense(J, (0, 5)).to_dense())
    with pytest.raises(InputError, match="either idx, or topology"):
        SparseJacobian.from_dense(J)
    with pytest.raises(InputError, match="one index for each of 2 columns"):
        SparseJacobian.from_values(jnp.ones((3, 2)), (1,), 4)
    with pytest.raises(InputError, match="dof: wanted -1"):
        SparseJacobian.from_dense(J, topology=topology, dof=10)


# -- algebra
# ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(3)
    a = SparseJacobian.from_values(jnp.asarray(rng.normal(size=(3, 4))), (6, 0, 3, 1), 9)
    b = SparseJacobian.from_values(jnp.asarray(rng.normal(size=(3, 3))), (0, 8, 3), 9)
    return a, b


@pytest.mark.parametrize("kind", ["static", "run-time", "mixed"])
def test_sums_products_and_transposes_are_those_of_the_full_matrices(pair, kind):
    rng = np.random.default_rng(4)
    a, b = pair
    u, many, f = (jnp.asarray(rng.normal(size=s)) for s in ((9,), (9, 2), (3,)))
    R = jnp.asarray(np.linalg.qr(rng.normal(size=(3, 3)))[0])
    permutation = [3, 4, 5, 6, 7, 8, 9, 0, 1]
    if kind != "static":
        a = a.padded(7)
    if kind == "run-time":
        b = b.padded(5)
    A, B = (np.asarray(x.to_dense()) for x in pair)

    @quick_jit
    def compute(a, b):
        return {
            "dense": a.to_dense(), "product": a @ u, "columns": a @ many, "transpose": a.T @ f, "force": a.T @ R,
            "sum": (a + b).to_dense(), "difference": (a - b).to_dense(), "rotated": a.rotate(R).to_dense(),
            "gram": a.gram(), "cross": a.gram(b), "stacked": stack_rows(a, b).to_dense(),
            "renumbered": a.reindex(permutation, 10).to_dense(), "transposed": a.T.to_dense(), "twice": a.T.T.to_dense(),
        }  # fmt: skip

    renumbered = np.zeros((3, 10))
    renumbered[:, permutation] = A
    wanted = {
        "dense": A, "product": A @ u, "columns": A @ many, "transpose": A.T @ f, "force": A.T @ R, "sum": A + B,
        "difference": A - B, "rotated": R @ A, "gram": A @ A.T, "cross": A @ B.T, "stacked": np.vstack([A, B]),
        "renumbered": renumbered, "transposed": A.T, "twice": A,
    }  # fmt: skip
    for name, value in compute(a, b).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-13, atol=1e-14, err_msg=name)


def test_a_sum_has_the_union_of_the_columns(pair):
    a, b = pair
    assert (a + b).idx == (0, 1, 3, 6, 8)
    assert (a - a).idx == (0, 1, 3, 6)  # columns that cancel stay
    assert int((a.padded() + b).size) == 7


def test_values_have_gradients_and_indices_none(pair):
    a, _ = pair
    u = jnp.arange(9.0)

    def f(values, j):
        j = SparseJacobian(values, j.columns, j.nv)
        return jnp.sum((j @ u) ** 2) + jnp.sum(jnp.sin(j.T @ jnp.ones(3)))

    def dense(values):
        J = jnp.zeros((3, 9)).at[:, jnp.array(a.idx)].set(values)
        return jnp.sum((J @ u) ** 2) + jnp.sum(jnp.sin(J.T @ jnp.ones(3)))

    wanted = jax.grad(dense)(a.values)
    np.testing.assert_allclose(jax.grad(f)(a.values, a), wanted, rtol=1e-12)
    padded = a.padded(6)
    np.testing.assert_allclose(jax.grad(f)(padded.values, padded)[:, :4], wanted, rtol=1e-12)


def test_several_at_once(pair):
    a, b = pair
    stacked = concat([a, b])
    assert stacked.values.shape == (2, 3, 4)
    u = jnp.arange(9.0)
    products = jax.vmap(lambda j: j @ u)(stacked)
    np.testing.assert_allclose(products, [a @ u, b @ u], rtol=1e-13)
    forces = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(transposed_sum(stacked, forces), a.T @ forces[0] + b.T @ forces[1], rtol=1e-13)
    with pytest.raises(InputError, match="at least one"):
        concat([])
    with pytest.raises(InputError, match=r"forces: wanted shape \(2, 3\)"):
        transposed_sum(stacked, jnp.ones((3, 3)))


def test_unused_columns_do_not_touch_bad_numbers():
    j = numbered().padded(6)
    u = jnp.full(10, jnp.nan).at[jnp.array([4, 7])].set(1.0)
    np.testing.assert_allclose(j @ u, [5, 7, 9])
    np.testing.assert_allclose(j.resize(1).at_set(0, 0, 2.0) @ u.at[7].set(jnp.nan), [2, 0, 0])


def test_wrong_shapes_are_explained(pair):
    a, _ = pair
    with pytest.raises(InputError, match=r"u: wanted shape \(9,\) or \(9, k\), given shape \(3,\)"):
        a @ jnp.ones(3)
    with pytest.raises(InputError, match=r"f: wanted shape \(3,\)"):
        a.T @ jnp.ones(9)
    with pytest.raises(InputError, match="wanted 3 rows, given 6"):
        a + SparseJacobian.empty(9, rows=6)
    with pytest.raises(InputError, match="one number"):
        a * jnp.ones(3)
    with pytest.raises(InputError, match="3 or 6 rows"):
        SparseJacobian.empty(9, rows=1).rotate(jnp.eye(3))


# -- contact axes
# ---------------------------------------------------------------------------------------------------------------


def test_axes_of_a_contact():
    R = contact_rotation(jnp.array([0.6, 0.0, 0.8]))
    np.testing.assert_allclose(R, [[0, -1, 0], [0.8, 0, -0.6], [0.6, 0, 0.8]], atol=1e-15)
    np.testing.assert_allclose(R.T @ jnp.array([0.0, 0, 1]), [0.6, 0, 0.8])  # a normal force, in the world
    np.testing.assert_array_equal(contact_rotation(jnp.array([0.0, 0, 1])), np.eye(3))
    for normal in ([0.0, 0, -1], [0.36, 0.48, 0.8], [1.0, 0, 0]):
        R = np.asarray(contact_rotation(jnp.array(normal)))
        np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-15)
        assert np.linalg.det(R) == pytest.approx(1.0)
    normals = jnp.array([[0.0, 0, 1], [1e-9, 0, 1], [0.6, 0, 0.8]])
    first, second = jax.jacfwd(contact_rotation), jax.hessian(contact_rotation)
    for derivative in quick_jit(jax.vmap(lambda n: (first(n), second(n))))(normals):
        assert np.isfinite(derivative).all()


# -- kinematics
# ---------------------------------------------------------------------------------------------------------------

MASSIVE = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'

BRANCHED = f"""<robot name="branched">
<link name="base">{MASSIVE}</link><link name="arm"/><link name="tip"/><link name="leg"/>
<joint name="turn" type="revolute"><origin xyz=".2 0 0"/><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
<joint name="weld" type="fixed"><origin xyz=".3 0 -.3"/><parent link="arm"/><child link="tip"/></joint>
<joint name="other" type="revolute"><parent link="base"/><child link="leg"/><axis xyz="1 0 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""


def test_a_point_of_a_branch_in_closed_form():
    model = from_urdf(BRANCHED, root="floating", dtype=jnp.float64)
    q = jnp.array([0.0, 0, 1, 1, 0, 0, 0, 0, 0])
    kin = alg.forward_kinematics(model, q)
    j = alg.sparse_point_jacobian(model, kin, "tip", jnp.zeros(3))
    assert j.idx == tuple(range(7))
    assert j.nv == 8
    e = np.eye(3)
    columns = [e[0], e[1], e[2], (0, 0.3, 0), (-0.3, 0, -0.5), (0, 0.5, 0), (-0.3, 0, -0.3)]
    np.testing.assert_allclose(j.values, np.transpose(columns), atol=1e-15)
    angular = alg.sparse_rotational_jacobian(model, kin, "tip")
    np.testing.assert_allclose(angular.values, np.transpose([e[0] * 0] * 3 + [e[0], e[1], e[2], e[1]]), atol=1e-15)
    assert j.to_dense().shape == (3, 8)
    assert (j.to_dense()[:, 7] == 0).all()
    world = alg.sparse_point_jacobian(model, kin, "arm", jnp.array([0.5, 0, 0.7]), in_world=True)
    np.testing.assert_allclose(world.values, j.values, atol=1e-15)
    assert stack_rows(j, angular).allclose(alg.sparse_frame_jacobian(model, kin, "tip"), atol=1e-15)


@pytest.fixture(scope="module", params=["solo12", "small"])
def sparse_and_full(request):
    model = robot(request.param)
    frames, inputs = some_frames(model), states(model, 3)
    point = jnp.array([0.1, -0.2, 0.3])
    body = {f: model.tree.frame_bodies[model.frame(f)] for f in frames}

    def compute(model, q, v):
        kin = alg.forward_kinematics(model, q, v)
        pairs = {}
        for f in frames:
            for r in Representation:
                pairs[f"{f} {r.name}"] = (
                    alg.sparse_frame_jacobian(model, kin, f, r),
                    alg.frame_jacobian(model, kin, f, r),
                )
            full = alg.point_jacobian(model, kin, f, point)
            at = alg.frame_point(model, kin, f, point)
            pairs[f"point {f}"] = alg.sparse_point_jacobian(model, kin, f, point), full
            chosen = alg.sparse_body_jacobian(model, kin, jnp.int32(body[f]), at)
            pairs[f"body {f}"] = chosen, full
            six = alg.sparse_body_jacobian(model, kin, jnp.int32(body[f]), at, rotational=True)
            angular = alg.frame_jacobian(model, kin, f)[3:]
            pairs[f"six {f}"] = six, jnp.concatenate([full, angular])
            pairs[f"turn {f}"] = alg.sparse_rotational_jacobian(model, kin, f), angular
            turned = alg.frame_jacobian_dot(model, kin, f)[3:]
            pairs[f"turn rate {f}"] = alg.sparse_rotational_jacobian_dot(model, kin, f), turned
            a = alg.frame_acceleration(model, alg.forward_kinematics(model, q, v, v * 0.0), f)
            pairs[f"point rate {f}"] = (
                alg.sparse_point_jacobian_dot(model, kin, f, jnp.zeros(3)),
                (alg.frame_jacobian_dot(model, kin, f)[:3]),
            )
            pairs[f"bias {f}"] = alg.sparse_point_jacobian_dot(model, kin, f, jnp.zeros(3)) @ v, a[:3]
        a, b = frames
        relative = alg.sparse_relative_jacobian(model, kin, a, b)
        at = alg.frame_pose(model, kin, a).translation
        arm = at - alg.frame_pose(model, kin, b).translation
        other = alg.frame_jacobian(model, kin, b)
        moved = jnp.concatenate([other[:3] + jnp.cross(other[3:], arm[:, None], axis=0), other[3:]])
        pairs["relative"] = relative, alg.frame_jacobian(model, kin, a) - moved
        nothing = alg.sparse_body_jacobian(model, kin, jnp.int32(-1), at)
        pairs["world"] = nothing, jnp.zeros((3, model.nv))
        dense = lambda j: j.to_dense() if isinstance(j, SparseJacobian) else j  # noqa: E731
        return {name: (dense(x), y) for name, (x, y) in pairs.items()}

    return quick_jit(jax.vmap(compute, (None, 0, 0)))(model, inputs["q"], inputs["v"])


def test_sparse_jacobians_are_the_full_ones_without_zeros(sparse_and_full):
    for name, (sparse, full) in sparse_and_full.items():
        np.testing.assert_allclose(sparse, full, rtol=1e-11, atol=1e-11, err_msg=name)


def test_columns_are_those_between_the_body_and_the_world():
    model = robot("solo12")
    kin = alg.forward_kinematics(model, states(model, 1)["q"][0])
    for frame in ("FL_FOOT", "HR_FOOT"):
        j = alg.sparse_frame_jacobian(model, kin, frame)
        body = model.tree.frame_bodies[model.frame(frame)]
        assert j.size == 9
        assert j.idx == Topology.from_tree(model.tree).chains[model.tree.last_dof[body]]


def test_a_frame_of_the_world_has_no_columns():
    model = random_model(3, 3)
    kin = alg.forward_kinematics(model, jnp.zeros(model.nq, model.dtype), jnp.zeros(model.nv, model.dtype))
    for j in (
        alg.sparse_frame_jacobian(model, kin, "link0"),
        alg.sparse_point_jacobian(model, kin, "link0", jnp.zeros(3, model.dtype)),
        alg.sparse_point_jacobian_dot(model, kin, "link0", jnp.zeros(3, model.dtype)),
        alg.sparse_rotational_jacobian_dot(model, kin, "link0"),
    ):
        assert j.size == 0
        assert j.to_dense().shape == (j.rows, model.nv)
    with pytest.raises(InputError, match="no velocities: make it with forward_kinematics"):
        alg.sparse_point_jacobian_dot(
            model, alg.forward_kinematics(model, jnp.zeros(model.nq, model.dtype)), 1, jnp.zeros(3, model.dtype)
        )


FOLLOWING = f"""<robot name="gripper"><link name="palm">{MASSIVE}</link><link name="left"/><link name="right"/>
<joint name="lead" type="prismatic"><origin xyz="0 .1 0"/><parent link="palm"/><child link="left"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
<joint name="follow" type="revolute"><origin xyz="0 -.1 0"/><parent link="left"/><child link="right"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/><mimic joint="lead" multiplier="-2"/></joint></robot>"""


def test_columns_of_joints_that_follow_go_to_their_leaders():
    model = from_urdf(FOLLOWING, root="floating", dtype=jnp.float64)
    assert model.nv == 7
    q = jnp.array([0.1, 0.2, 0.3, 1, 0, 0, 0, 0.2])
    kin = alg.forward_kinematics(model, q)
    j = alg.sparse_frame_jacobian(model, kin, "right")
    assert j.idx == tuple(range(7))
    np.testing.assert_allclose(j.to_dense(), alg.frame_jacobian(model, kin, "right"), atol=1e-14)
