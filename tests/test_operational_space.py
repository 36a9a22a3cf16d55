"""Delassus matrix, operational-space inertia and inverses, constrained motion, impulses; loops and dependent rows."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit, robot
from oracles import states

from jaxdyn import algorithms as alg
from jaxdyn.algorithms import cholesky
from jaxdyn.algorithms import operational_space as osp
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.algorithms.topology import Topology
from jaxdyn.errors import InputError, Status

PINOCCHIO = np.load(pathlib.Path(__file__).parent / "data" / "cholesky" / "pinocchio.npz")
FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")


def file_case(name, frames, rows, dofs):
    """Factor and sparse Jacobians from the numbers of the file."""
    topology = Topology.from_parents(PINOCCHIO[f"{name}/parents"])
    full = [jnp.asarray(PINOCCHIO[f"{name}/J_{f}"][:rows]) for f in frames]
    return topology, jnp.asarray(PINOCCHIO[f"{name}/M"]), full, dofs


@pytest.fixture(scope="module")
def quadruped():
    topology, M, full, dofs = file_case("solo12", FEET, 3, (8, 11, 14, 17))
    rng = np.random.default_rng(0)
    v = jnp.asarray(rng.normal(size=18))
    a, b = jnp.asarray(rng.normal(size=12)), jnp.asarray(rng.normal(size=18))

    @quick_jit
    def compute(M, full):
        factor = cholesky.decompose(topology, M)
        sparse = [SparseJacobian.from_dense(J, topology=topology, dof=d) for J, d in zip(full, dofs, strict=True)]
        constraints = osp.constrain(factor, sparse)
        soft = osp.constrain(factor, sparse, 0.1)
        return {
            "G": osp.delassus(factor, sparse),
            "damped": soft.delassus,
            "run-time": osp.delassus(factor, [J.padded(12) for J in sparse]),
            "full": osp.delassus(factor, jnp.concatenate(full)),
            "block": osp.delassus_block(factor, sparse[0], sparse[3]),
            "MinvJT": osp.minv_jt(factor, sparse),
            "inertia": osp.operational_space_inertia(factor, sparse),
            "inverse": osp.dynamically_consistent_inverse(factor, sparse),
            "projector": osp.null_space_projector(factor, sparse),
            "U": soft.U,
            "D": soft.D,
            "solution": osp.constrained_solve(soft, a, b),
            "motion": osp.constrained_acceleration(constraints, b, a),
            "impact": osp.contact_impulse(constraints, v, 0.3),
            "status": constraints.status,
        }

    result = jax.tree.map(np.asarray, compute(M, full))
    return result, np.asarray(M), np.asarray(jnp.concatenate(full)), (np.asarray(v), np.asarray(a), np.asarray(b))


def test_the_delassus_matrix_of_four_feet(quadruped):
    result, M, J, _ = quadruped
    G, wanted = result["G"], J @ np.linalg.solve(M, J.T)
    np.testing.assert_allclose(G, wanted, atol=1e-12 * np.abs(wanted).max())
    np.testing.assert_allclose(
        [G[0, 0], G[0, 1], np.trace(G)], [46.67693020904, -0.8815341122343, 293.5447172583773], rtol=1e-12
    )
    np.testing.assert_allclose(G[0, 9:12], [0.010089522466, -0.061579446535, 0.001071117003], rtol=1e-7)
    eigenvalues = np.linalg.eigvalsh(G)
    np.testing.assert_allclose([eigenvalues[0], eigenvalues[-1] / eigenvalues[0]], [0.7212363450, 65.816], rtol=1e-5)
    assert (G == G.T).all()
    for name in ("run-time", "full"):
        np.testing.assert_allclose(result[name], G, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(result["damped"], G + 0.1 * np.eye(12), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(result["block"], G[:3, 9:], atol=1e-14)
    np.testing.assert_allclose(result["MinvJT"], np.linalg.solve(M, J.T), atol=1e-9)


def test_the_sparse_jacobian_of_a_foot():
    topology, _, full, dofs = file_case("solo12", FEET, 3, (8, 11, 14, 17))
    j = SparseJacobian.from_dense(full[3], topology=topology, dof=dofs[3])
    assert j.idx == (0, 1, 2, 3, 4, 5, 15, 16, 17)
    u = np.cos(np.arange(18))
    np.testing.assert_allclose(j @ u, [1.513161772458, -0.06738995868, 0.362949901562], rtol=1e-10)
    force = j.T @ jnp.array([1.0, -2, 3])
    wanted = [
        1.925871841729, -2.457417598085, 2.062066050799, -1.058734518082, -0.406499603946, 0.504371678824, -0.878303738637,
        -0.79248642913, -0.413227509369,
    ]  # fmt: skip
    np.testing.assert_allclose(force[jnp.array(j.idx)], wanted, rtol=1e-10)
    assert np.count_nonzero(force) == 9


def test_inertia_inverse_and_projector(quadruped):
    result, M, J, _ = quadruped
    inertia = np.linalg.inv(J @ np.linalg.solve(M, J.T))
    np.testing.assert_allclose(result["inertia"], inertia, rtol=1e-9, atol=1e-9 * np.abs(inertia).max())
    assert (result["inertia"] == result["inertia"].T).all()
    inverse, projector = result["inverse"], result["projector"]
    np.testing.assert_allclose(J @ inverse, np.eye(12), atol=1e-11)
    np.testing.assert_allclose(inverse, np.linalg.solve(M, J.T) @ inertia, atol=1e-9)
    np.testing.assert_allclose(J @ projector, np.zeros((12, 18)), atol=1e-10)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-9)
    np.testing.assert_allclose(projector @ inverse, 0 * inverse, atol=1e-9)
    # a torque in the null space does not accelerate the feet
    tau = projector.T @ np.arange(18.0)
    np.testing.assert_allclose(J @ np.linalg.solve(M, tau), np.zeros(12), atol=1e-7)


def test_the_factor_of_the_whole_system_has_the_constraints_first(quadruped):
    result, M, J, (_, a, b) = quadruped
    system = np.block([[-0.1 * np.eye(12), J], [J.T, M]])
    U, D = result["U"], result["D"]
    np.testing.assert_allclose(U @ np.diag(D) @ U.T, system, atol=1e-12)
    assert (np.tril(U, -1) == 0).all()
    assert (D[:12] < 0).all()
    assert (D[12:] > 0).all()
    G = U[:12, 12:] @ np.diag(D[12:]) @ U[:12, 12:].T
    np.testing.assert_allclose(G, result["G"], atol=1e-11)
    f, x = result["solution"]
    np.testing.assert_allclose(
        np.concatenate([f, x]), np.linalg.solve(system, np.concatenate([a, b])), rtol=1e-7, atol=1e-8
    )


def test_constrained_accelerations_and_impacts(quadruped):
    result, M, J, (v, drift, force) = quadruped
    acceleration, f = result["motion"]
    np.testing.assert_allclose(J @ acceleration + drift, np.zeros(12), atol=1e-9)
    np.testing.assert_allclose(M @ acceleration, force + J.T @ f, atol=1e-9)
    after, p = result["impact"]
    np.testing.assert_allclose(J @ after, -0.3 * J @ v, atol=1e-11)
    np.testing.assert_allclose(M @ (after - v), J.T @ p, atol=1e-11)
    assert after @ M @ after < v @ M @ v
    assert result["status"] == Status.OK


def test_two_soles_of_six_rows():
    topology, M, full, dofs = file_case("talos", ("left_sole_link", "right_sole_link"), 6, (11, 17))
    compute = quick_jit(
        lambda M: osp.delassus(
            cholesky.decompose(topology, M),
            [SparseJacobian.from_dense(J, topology=topology, dof=d) for J, d in zip(full, dofs, strict=True)],
        )
    )
    G = np.asarray(compute(M))
    np.testing.assert_allclose(np.trace(G), 49.75625684995514, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.eigvalsh(G)[0], 4.535613842e-3, rtol=1e-7)


def small_case():
    """A tree with two branches and another root, its matrix, and constraints on both branches and across the roots."""
    topology = Topology((-1, 0, 0, -1, 3))
    rng = np.random.default_rng(2)
    U = np.where(topology.related, rng.normal(size=(5, 5)), 0.0)
    np.fill_diagonal(U, 1.0)
    M = U @ np.diag(rng.uniform(0.5, 2.0, 5)) @ U.T
    make = lambda rows, dof: SparseJacobian.from_values(  # noqa: E731
        jnp.asarray(rng.normal(size=(rows, len(topology.chains[dof])))), topology.chains[dof], 5
    )
    return topology, jnp.asarray(M), make(1, 1), make(1, 2), make(2, 4), make(2, 2)


@pytest.fixture(scope="module")
def loops():
    topology, M, a, b, other, c = small_case()
    loop = b - a

    @quick_jit
    def compute(M):
        factor = cholesky.decompose(topology, M)
        apart = osp.delassus(factor, [a, other])
        closed = osp.constrain(factor, [loop, other])
        twice = osp.constrain(factor, [a, a, other])
        damped = osp.constrain(factor, [a, a, other], jnp.array([1e-3, 1e-3, 0.0, 0.0]))
        force = jnp.arange(1.0, 6.0)
        return {
            "apart": apart,
            "loop": closed.delassus,
            "statuses": (closed.status, twice.status, damped.status),
            "motion": osp.constrained_acceleration(damped, force),
            "missing ancestor": osp.delassus(factor, SparseJacobian.from_values(a.values[:, 1:], a.idx[1:], 5)),
            "mixed rows": osp.delassus(factor, [a, c, other.padded()]),
            "nan": osp.constrain(factor, a * jnp.nan).status,
            "singular": osp.constrain(cholesky.decompose(topology, M.at[4, 4].set(0.0).at[3, 4].set(0.0)), a).status,
        }

    return jax.tree.map(np.asarray, compute(M)), np.asarray(M), [np.asarray(x.to_dense()) for x in (a, b, other, c)]


def test_constraints_on_different_roots_do_not_feel_each_other(loops):
    result, M, (a, _, other, _) = loops
    assert (result["apart"][0, 1:] == 0.0).all()
    J = np.vstack([a, other])
    np.testing.assert_allclose(result["apart"], J @ np.linalg.solve(M, J.T), atol=1e-12)


def test_a_loop_is_a_difference_of_jacobians(loops):
    result, M, (a, b, other, c) = loops
    J = np.vstack([b - a, other])
    np.testing.assert_allclose(result["loop"], J @ np.linalg.solve(M, J.T), atol=1e-12)
    J = np.vstack([a, c, other])
    np.testing.assert_allclose(result["mixed rows"], J @ np.linalg.solve(M, J.T), atol=1e-12)
    partial = a * [0, 1, 1, 1, 1]
    np.testing.assert_allclose(result["missing ancestor"], partial @ np.linalg.solve(M, partial.T), atol=1e-12)


def test_dependent_rows_have_a_status_and_with_damping_an_answer(loops):
    result, M, (a, _, other, _) = loops
    assert result["statuses"] == (Status.OK, Status.DEPENDENT_CONSTRAINTS, Status.OK)
    assert result["nan"] == Status.NON_FINITE
    assert result["singular"] == Status.SINGULAR_MASS_MATRIX
    acceleration, f = result["motion"]
    J, R = np.vstack([a, a, other]), np.diag([1e-3, 1e-3, 0, 0])
    np.testing.assert_allclose(J @ acceleration, -R @ f, atol=1e-9)
    np.testing.assert_allclose(f[0], f[1], rtol=1e-6)  # both carry the same
    np.testing.assert_allclose(M @ acceleration, np.arange(1.0, 6.0) + J.T @ f, atol=1e-9)


def test_derivatives_to_second_order_in_every_mode():
    topology, M, a, b, other, _ = small_case()
    rng = np.random.default_rng(6)
    w, f = jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=5))

    def ours(x):
        M, values = x
        factor = cholesky.decompose(topology, M)
        js = [SparseJacobian(values, a.columns, 5), b, other]
        constraints = osp.constrain(factor, js, 0.1)
        acceleration, force = osp.constrained_acceleration(constraints, f)
        return jnp.sum(w * constraints.delassus) + jnp.sum(acceleration**2) + jnp.sum(force)

    def reference(x):
        M, values = x
        S = jnp.where(topology.related, M, 0.0)
        S = S + jnp.triu(S, 1).T
        J = jnp.concatenate([SparseJacobian(values, a.columns, 5).to_dense(), b.to_dense(), other.to_dense()])
        G = J @ jnp.linalg.solve(S, J.T) + 0.1 * jnp.eye(4)
        force = -jnp.linalg.solve(G, J @ jnp.linalg.solve(S, f))
        acceleration = jnp.linalg.solve(S, f + J.T @ force)
        return jnp.sum(w * G) + jnp.sum(acceleration**2) + jnp.sum(force)

    x = (M, a.values)
    along = (jnp.asarray(rng.normal(size=(5, 5))), jnp.asarray(rng.normal(size=a.values.shape)))

    def orders(f):
        slope = lambda x: jax.jvp(f, (x,), (along,))[1]  # noqa: E731
        dual = lambda x: sum(jnp.sum(g * d) for g, d in zip(jax.grad(f)(x), along, strict=True))  # noqa: E731
        return {
            "value": f(x),
            "gradient": jax.grad(f)(x),
            "forward forward": jax.jvp(slope, (x,), (along,))[1],
            "reverse forward": jax.grad(slope)(x),
            "forward reverse": jax.jvp(dual, (x,), (along,))[1],
            "reverse reverse": jax.grad(dual)(x),
        }

    found, wanted = quick_jit(lambda: orders(ours))(), quick_jit(lambda: orders(reference))()
    for name in found:
        for x, y in zip(jax.tree.leaves(found[name]), jax.tree.leaves(wanted[name]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9 * max(np.abs(y).max(), 1.0), err_msg=name)


def test_a_batch_of_robots_with_contacts_chosen_at_run_time():
    model = robot("small")
    inputs = states(model, 3)
    bodies = jnp.array([1, 3, 5], jnp.int32)

    def compute(q, body):
        kin = alg.forward_kinematics(model, q)
        factor = cholesky.decompose(model, alg.crba(model, q))
        point = kin.translation[body] + jnp.array([0.1, 0.2, 0.3])
        J = alg.sparse_body_jacobian(model, kin, body, point)
        return osp.delassus(factor, J), J.to_dense(), alg.crba(model, q)

    G, J, M = (np.asarray(x) for x in quick_jit(jax.vmap(compute))(inputs["q"], bodies))
    for i in range(3):
        wanted = J[i] @ np.linalg.solve(M[i], J[i].T)
        np.testing.assert_allclose(G[i], wanted, rtol=1e-9, atol=1e-10 * np.abs(wanted).max())


def test_arguments_that_do_not_fit_are_explained():
    topology, M, a, _, _, _ = small_case()
    factor = cholesky.decompose(topology, M)
    with pytest.raises(InputError, match=r"jacobians\[1\]: wanted nv = 5 as the mass matrix has, given nv = 6"):
        osp.delassus(factor, [a, SparseJacobian.empty(6)])
    with pytest.raises(InputError, match=r"jacobians\[0\]: wanted shape \(rows, 5\)"):
        osp.delassus(factor, jnp.ones(5))
    with pytest.raises(InputError, match="damping: wanted one number or one for each of 1 rows"):
        osp.delassus(factor, a, jnp.ones(3))
    with pytest.raises(InputError, match=r"drift: wanted shape \(1,\)"):
        osp.constrained_acceleration(osp.constrain(factor, a), jnp.ones(5), jnp.ones(2))
    assert osp.delassus(factor, []).shape == (0, 0)
    assert osp.delassus(factor, SparseJacobian.empty(5, rows=2)).tolist() == [[0, 0], [0, 0]]
