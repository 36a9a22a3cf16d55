"""Sparse factor of the mass matrix: closed forms, numbers of Pinocchio, random trees, derivatives, odd matrices."""

import functools
import pathlib
import pickle

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from evaluations import FAST, SLOW, oracle, quick_jit, robot
from oracles import states

from jaxdyn import algorithms as alg
from jaxdyn.algorithms import cholesky
from jaxdyn.algorithms.topology import Topology, topology_of
from jaxdyn.errors import InputError, Status
from jaxdyn.model import from_urdf, integrate, neutral

DATA = pathlib.Path(__file__).parent / "data"
PINOCCHIO = np.load(DATA / "cholesky" / "pinocchio.npz")


def everything(topology, M, v, method="auto"):
    factor = cholesky.decompose(topology, M, method=method)
    result = {"U": factor.U, "D": factor.D, "Dinv": factor.Dinv, "M": factor.M, "log_det": factor.log_det}
    result |= {"ok": factor.ok, "status": factor.status, "min_pivot": factor.min_pivot}
    result["Minv"] = cholesky.compute_minv(factor)
    result["Mv"] = cholesky.Mv(topology, M, v)
    for name in ("solve", "UDUtv", "Uv", "Utv", "Uiv", "Utiv"):
        result[name] = getattr(cholesky, name)(factor, v)
    return result


@functools.partial(quick_jit, static_argnums=(0, 3))
def evaluate_batch(topology, M, v, method="auto"):
    """`everything` of a batch of matrices and right-hand sides."""
    return jax.vmap(lambda M, v: everything(topology, M, v, method))(M, v)


def evaluate(parents, M, v, method="auto"):
    """`everything` of one matrix, as NumPy."""
    result = evaluate_batch(Topology.from_parents(parents), jnp.asarray(M)[None], jnp.asarray(v)[None], method)
    return jax.tree.map(lambda x: np.asarray(x)[0], result)


def poisoned(parents, M):
    """M with NaN wherever it is not to be read."""
    return np.where(Topology.from_parents(parents).related, M, np.nan)


def random_parents(seed, nv):
    rng = np.random.default_rng(seed)
    return [int(rng.integers(-1, j)) if j and rng.random() < 0.6 else j - 1 for j in range(nv)]


def random_factor(parents, seed=0, indefinite=False):
    rng = np.random.default_rng(seed)
    related, nv = Topology.from_parents(parents).related, len(parents)
    U = np.where(related, rng.normal(size=(nv, nv)), 0.0)
    np.fill_diagonal(U, 1.0)
    D = rng.uniform(0.2, 3.0, nv) * (rng.choice([-1.0, 1.0], nv) if indefinite else 1.0)
    return U, D, U @ np.diag(D) @ U.T


def check(result, U, D, M, v, tolerance=1e-12):
    """All results of `everything` against dense products of U and D."""
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance)
    scale = lambda x: tolerance * max(np.abs(x).max(initial=0.0), 1e-300)  # noqa: E731
    close(result["U"], U, atol=scale(U))
    close(result["D"], D)
    close(result["Dinv"], 1 / D)
    assert (result["U"][U == 0] == 0.0).all()
    close(result["M"], M, atol=scale(M))
    expected = {
        "solve": np.linalg.solve(M, v),
        "Mv": M @ v,
        "UDUtv": M @ v,
        "Uv": U @ v,
        "Utv": U.T @ v,
        "Uiv": np.linalg.solve(U, v),
        "Utiv": np.linalg.solve(U.T, v),
    }
    for name, wanted in expected.items():
        close(result[name], wanted, atol=100 * scale(wanted), err_msg=name)
    inverse = np.linalg.inv(M)
    close(result["Minv"], inverse, atol=100 * scale(inverse))
    assert (result["Minv"] == result["Minv"].T).all()
    close(result["log_det"], np.log(D).sum(), atol=1e-12)


# -- closed forms and the numbers of Pinocchio
# ---------------------------------------------------------------------------------------------------------------

Y_PARENTS = (-1, 0, 0)


def y_tree(q):
    """Mass matrix of a root that turns with a child that turns and one that shifts."""
    c, zero = jnp.cos(q[0]), jnp.zeros_like(q[0])
    first = jnp.stack([5.495 + c + 3 * q[1] ** 2, 0.165 + 0.5 * c, zero - 3.0])
    return jnp.stack([first, jnp.stack([first[1], zero + 0.165, zero]), jnp.stack([first[2], zero, zero + 3.0])])


Q = jnp.array([0.7, 0.2])
V = np.array([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def y_result():
    M = np.asarray(y_tree(Q))
    both = evaluate_batch(Topology(Y_PARENTS), np.stack([M, poisoned(Y_PARENTS, M)]), np.stack([V, V]))
    return jax.tree.map(np.asarray, both)


def test_the_factor_of_a_tree_with_two_branches_in_closed_form(y_result):
    c = np.cos(0.7)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    close(y_result["U"][0], [[1, 1 + 100 / 33 * c, -1], [0, 1, 0], [0, 0, 1]])
    close(y_result["D"][0], [2.33 + 3 * 0.04 - 50 / 33 * c * c, 0.165, 3])
    expected = {
        "D": [1.563661255379, 0.165, 3],
        "solve": [-1.685408004194, 17.712896320542, -0.685408004194],
        "Uv": [4.635407195664, 2, 3],
        "Utv": [1, 5.317703597832, 2],
        "Uiv": [-2.635407195664, 2, 3],
        "Utiv": [1, -1.317703597832, 4],
        "Mv": [-1.525315625431, 0.877421093642, 6],
        "UDUtv": [-1.525315625431, 0.877421093642, 6],
    }
    for name, wanted in expected.items():
        np.testing.assert_allclose(y_result[name][0], wanted, rtol=1e-11, err_msg=name)
    minv = [
        [0.639524703039, -2.121753408176, 0.639524703039],
        [0, 13.099954976622, -2.121753408176],
        [0, 0, 0.972858036373],
    ]
    np.testing.assert_allclose(np.triu(y_result["Minv"][0]), minv, rtol=1e-11)


def test_only_structural_entries_of_the_upper_triangle_are_read(y_result):
    for name, value in y_result.items():
        np.testing.assert_array_equal(value[0], value[1], err_msg=name)


def test_it_is_neither_the_factor_of_textbooks_nor_its_transpose(y_result):
    U, D, M = (y_result[name][0] for name in ("U", "D", "M"))
    np.testing.assert_allclose(U @ np.diag(D) @ U.T, M, rtol=1e-13)
    assert np.abs(U.T @ np.diag(D) @ U - M).max() > 1.0
    textbook = np.diag(np.linalg.cholesky(M)) ** 2
    assert np.abs(textbook - D).max() > 1.0


BREADTH_FIRST = (-1, 0, 0, 1, 2)
BY_LEVELS = np.array(
    [
        [1.853226050487, 0.207947971895, -0.075081541835, -0.034206017149, -0.172593193898],
        [0, 0.727303829932, 0, -0.143995390709, 0],
        [0, 0, 0.5725, 0, -0.6],
        [0, 0, 0, 0.06125, 0],
        [0, 0, 0, 0, 3],
    ]
)


def test_any_numbering_with_parents_first_is_right():
    swapped = [0, 2, 1, 4, 3]
    symmetric = BY_LEVELS + np.triu(BY_LEVELS, 1).T
    v = np.arange(1.0, 6.0)
    both = evaluate_batch(
        Topology(BREADTH_FIRST), np.stack([BY_LEVELS, symmetric[np.ix_(swapped, swapped)]]), np.stack([v, v])
    )
    D = [1.755813087012, 0.388778563885, 0.4525, 0.06125, 3]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9)
    close(both["D"][0], D)
    close(both["D"][1], np.asarray(D)[swapped])
    U = {(0, 1): 0.328031207150, (0, 2): -0.242210343899, (0, 3): -0.558465586110}
    U |= {(1, 3): -2.350945154432, (0, 4): -0.057531064633, (2, 4): -0.2}
    close([both["U"][0][at] for at in U], list(U.values()))
    close(both["solve"][0], [0.426903710104, 29.192290935803, 8.943179499961, 134.17400840194, 3.479862791597])
    close(both["solve"][1], [-0.07937596277634, 6.168619624630, 37.97752777403, 2.562490674615, 170.8714092153])


CHECKSUMS = {
    "panda": (-25.5960991385, 35, 459.778536028, 456.663000732, 5.775801903365),
    "allegro_right_hand": (-151.6257402080, 24, 331596.916365804, 771610.482908384, 8.841061599979),
    "solo12": (-85.7560592870, 99, 12914.932748814, 23348.468947480, 26.303036406957),
    "talos": (-35.1294888379, 331, 1810.045095286, 1837.428900304, 15.904570838445),
}
PRODUCTS = {  # sums of Uv, Utv, Uiv, Utiv, Mv of cos(0 .. nv - 1)
    "panda": (-3.061147445794, 5.333030485655, 1.437166382917, -0.355284140511, 2.202831352698),
    "allegro_right_hand": (-9.920552952174, 3.195573366717, 4.370576915183, 0.827809250754, -1.2353177443e-4),
    "solo12": (22.666887065235, -63.432597112596, -17.340787721053, -13.767993838053, 2.656838166592),
    "talos": (-3.851167462296, -20.140049931284, -5.363223220609, -5.405565478831, 47.836333702463),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "talos" else n for n in CHECKSUMS])
def test_factor_and_solutions_of_pinocchio(name):
    parents, M, b = (PINOCCHIO[f"{name}/{key}"] for key in ("parents", "M", "b"))
    nv = len(b)
    sides = np.stack([b, np.cos(np.arange(nv)), np.ones(nv)], axis=1)
    result = evaluate(parents, M, sides)
    U, D = PINOCCHIO[f"{name}/U"], PINOCCHIO[f"{name}/D"]
    np.testing.assert_allclose(result["U"], U, rtol=1e-12, atol=1e-12 * np.abs(U).max())
    np.testing.assert_allclose(result["D"], D, rtol=1e-12)
    related = Topology.from_parents(parents).related
    assert (result["U"][~related] == 0.0).all()
    assert np.abs(U - np.eye(nv))[~related].max() == 0.0
    assert np.abs(result["U"] @ np.diag(result["D"]) @ result["U"].T - M).max() <= 1e-13 * np.abs(M).max()
    x = result["solve"][:, 0]
    np.testing.assert_allclose(x, PINOCCHIO[f"{name}/x"], rtol=1e-10, atol=1e-10 * np.abs(x).max())
    root = np.sqrt(np.diag(M))
    allowed = 8 * nv * np.finfo(float).eps * (root * (root @ np.abs(x)) + np.abs(b))
    assert (np.abs(M @ x - b) <= allowed).all()
    inverse = PINOCCHIO[f"{name}/Minv"]
    np.testing.assert_allclose(result["Minv"], inverse, rtol=1e-11, atol=1e-11 * np.abs(inverse).max())
    assert (result["Minv"] == result["Minv"].T).all()
    log_det, entries, total, trace, norm = CHECKSUMS[name]
    np.testing.assert_allclose(result["log_det"], log_det, rtol=1e-11)
    assert np.count_nonzero(related) - nv == entries == Topology.from_parents(parents).entries
    np.testing.assert_allclose(
        [result["solve"][:, 2].sum(), np.trace(result["Minv"]), np.linalg.norm(result["U"])],
        [total, trace, norm],
        rtol=1e-10,
    )
    for key, wanted in zip(("Uv", "Utv", "Uiv", "Utiv", "Mv"), PRODUCTS[name], strict=True):
        scale = np.abs(result[key][:, 1]).sum()
        np.testing.assert_allclose(result[key][:, 1].sum(), wanted, atol=1e-11 * scale, err_msg=key)
    np.testing.assert_allclose(result["UDUtv"], M @ sides, atol=1e-12 * np.abs(M @ sides).max())


def test_counts_of_entries_and_operations():
    counts = {name: Topology.from_parents(PINOCCHIO[f"{name}/parents"]) for name in CHECKSUMS}
    found = {name: (t.entries, t.factor_cost, t.solve_cost, len(t.roots)) for name, t in counts.items()}
    assert found == {
        "panda": (35, 112, 79, 1),
        "allegro_right_hand": (24, 40, 64, 4),
        "solo12": (99, 375, 216, 1),
        "talos": (331, 1859, 700, 1),
    }
    assert Topology.full(7).factor_cost == (7**3 - 7) // 6
    fifteen_free_bodies = Topology(tuple(j - 1 if j % 6 else -1 for j in range(90)))
    assert (fifteen_free_bodies.nv, fifteen_free_bodies.factor_cost) == (90, 15 * 35)


def test_the_inverse_between_roots_is_exactly_zero():
    parents, M = (PINOCCHIO[f"allegro_right_hand/{key}"] for key in ("parents", "M"))
    inverse = evaluate(parents, M, np.stack([np.ones(16)] * 3, axis=1))["Minv"]
    blocks = np.kron(np.eye(4), np.ones((4, 4))) > 0
    assert (inverse[~blocks] == 0.0).all()
    assert (inverse[blocks] != 0.0).any()


def _joint(name, kind, parent, child, xyz, axis="0 0 1"):
    limit = '<limit lower="-3" upper="3" effort="1" velocity="1"/>' if kind == "revolute" else ""
    return (
        f'<joint name="{name}" type="{kind}"><origin xyz="{xyz}"/><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/>{limit}</joint>'
    )


def _link(name, mass, com, inertia):
    xx, yy, zz = inertia
    tensor = f'<inertia ixx="{xx}" iyy="{yy}" izz="{zz}" ixy="0" ixz="0" iyz="0"/>'
    return f'<link name="{name}"><inertial><origin xyz="{com}"/><mass value="{mass}"/>{tensor}</inertial></link>'


MIXED_JOINTS = (
    '<robot name="mixed">'
    + _link("base", 5, ".1 .2 .3", (0.1, 0.2, 0.3))
    + _link("ball", 1, "0 0 -.2", (0.01, 0.02, 0.03))
    + _link("shin", 0.5, "0 0 -.2", (0.01, 0.01, 0.01))
    + _link("tray", 0.7, "0 .1 0", (0.01, 0.02, 0.01))
    + _joint("hip", "spherical", "base", "ball", ".1 .2 .3")
    + _joint("knee", "revolute", "ball", "shin", "0 0 -.4", "1 0 0")
    + _joint("slide", "planar", "base", "tray", "-.1 .2 .3")
    + "</robot>"
)


def test_joints_of_several_degrees_of_freedom_and_armature():
    model = from_urdf(MIXED_JOINTS, root="floating", dtype=jnp.float64)
    assert topology_of(model).parents == (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 10, 11)
    base, ball = (np.array(x) / np.linalg.norm(x) for x in ([0.9, 0.1, 0.2, 0.3], [0.9, -0.2, 0.1, 0.3]))
    q = np.concatenate([[0.1, 0.2, 0.3], base, ball, [0.4, 0.05, -0.1, 0.3]])
    M = np.asarray(quick_jit(alg.crba)(model, jnp.asarray(q)))
    assert M[7, 8] == pytest.approx(0.022750294601, rel=1e-10)
    assert M[6, 9] == pytest.approx(0.06684243976, rel=1e-10)
    armature = np.diag([0.0] * 6 + [0.01 * k for k in range(1, 8)])
    both = evaluate_batch(topology_of(model), np.stack([M, M + armature]), np.stack([np.arange(1.0, 14.0)] * 2))
    both = jax.tree.map(np.asarray, both)
    D = [
        1.438959020371, 0.984642074727, 4.810173264493, 0.724645021028, 0.586139109944, 0.566727712617, 0.084754487751,
        0.228624509265, 0.043032932907, 0.03, 0.411764705882, 0.7, 0.017,
    ]  # fmt: skip
    x = [
        2.423188386135, 10.607100056257, -11.54043201653, 24.053768228901, -32.935881831284, -29.349404474372,
        -200.971140800184, 43.667112395324, 240.934095790443, 753.31004756308, 159.599157503536, 11.164882069506,
        1439.349404474372,
    ]  # fmt: skip
    np.testing.assert_allclose(both["D"][0], D, rtol=1e-10)
    np.testing.assert_allclose(both["solve"][0], x, rtol=1e-9)
    np.testing.assert_allclose(both["log_det"], [-15.419510285086, -10.614541750864], rtol=1e-11)
    U = both["U"][0]
    np.testing.assert_allclose([U[4, 5], U[7, 8]], [-0.573691410942, 0.528671718722], rtol=1e-10)
    assert (U[6:10, 10:] == 0.0).all()
    assert (both["M"][0][6:10, 10:] == 0.0).all()
    np.testing.assert_allclose(both["D"][1][[0, 6, 12]], [1.559444738622, 0.179857568762, 0.087], rtol=1e-10)
    assert both["solve"][1][0] == pytest.approx(13.265988766588, rel=1e-9)
    assert (both["D"][1] >= both["D"][0]).all()


@pytest.mark.parametrize(
    "name", [n if n == "small" else pytest.param(n, marks=pytest.mark.slow) for n in (*FAST, *SLOW)]
)
def test_factor_inverse_and_solution_agree_with_pinocchio(name):
    assert_factors_agree(robot(name), oracle(name))


def assert_factors_agree(model, there):
    """Factor, inverse and solution at three states against those of Pinocchio, entry by entry."""
    nv, inputs = model.nv, states(model, 3)

    def evaluate(model, q, tau):
        factor = cholesky.decompose(model, alg.crba(model, q))
        return {
            "D": factor.D, "U": factor.U, "x": cholesky.solve(factor, tau), "Minv": cholesky.compute_minv(factor),
            "ok": factor.ok, "status": factor.status,
        }  # fmt: skip

    result = quick_jit(jax.vmap(evaluate, (None, 0, 0)))(model, inputs["q"], inputs["tau"])
    assert result["ok"].all()
    assert (result["status"] == Status.OK).all()
    dofs = there.dofs  # ours of each of theirs: parents first in both numberings, so U and D are only renumbered
    for i in range(3):
        pin.crba(there.model, there.data, there.q(inputs["q"][i]))
        U = pin.cholesky.decompose(there.model, there.data)
        x = pin.cholesky.solve(there.model, there.data, np.asarray(inputs["tau"][i])[dofs])
        inverse = pin.cholesky.computeMinv(there.model, there.data)
        # the digits that the condition of the diagonally scaled matrix leaves
        M = np.asarray(there.mass_matrix(inputs["q"][i]))
        scale = np.sqrt(np.diag(M))
        rtol = 1e-13 * max(np.linalg.cond(M / np.outer(scale, scale)), 10.0)

        def close(ours, theirs, rtol=rtol):
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())

        close(np.asarray(result["D"][i])[dofs], there.data.D)
        close(np.asarray(result["U"][i])[np.ix_(dofs, dofs)], U)
        close(np.asarray(result["x"][i])[dofs], x)
        close(np.asarray(result["Minv"][i])[np.ix_(dofs, dofs)], inverse)
    assert result["Minv"].shape == (3, nv, nv)


def test_a_spider_of_badly_mixed_masses():
    model = from_urdf(DATA / "trials" / "T43.urdf", root="floating", gravity=(0.0, 0.0, -9.81), dtype=jnp.float64)
    angles = {
        "j_p1": 0.1,
        "j_p2": -0.2,
        "j_p3": 0.3,
        "j_q1": -0.4,
        "j_q2": 0.5,
        "j_q3": -0.6,
        "j_r1": 0.7,
        "j_r2": -0.8,
    }
    q = neutral(model).at[2].set(0.5)
    for name, angle in angles.items():
        q = q.at[model.tree.q_offset[model.joint(name)]].set(angle)
    M = quick_jit(alg.crba)(model, q)
    result = evaluate(topology_of(model).parents, M, np.ones(14))
    wanted = {
        "j_p1": 87.4238359, "j_p2": 392.62428692, "j_p3": 16085.96818626, "j_q1": 26.86474457, "j_q2": 9910.26442731,
        "j_q3": 152247.27517568, "j_r1": 353.74838216, "j_r2": 1015.40543384,
    }  # fmt: skip
    x = {name: result["solve"][model.tree.v_offset[model.joint(name)]] for name in wanted}
    np.testing.assert_allclose(list(x.values()), list(wanted.values()), rtol=1e-8)
    base = [0.21767005, -0.36420405, 0.2329276, -1.2102355, -3.90835975, -3.30241301]
    np.testing.assert_allclose(result["solve"][:6], base, rtol=1e-7)
    np.testing.assert_allclose(result["log_det"], -43.3302297205, rtol=1e-11)
    assert topology_of(model).entries + 14 == 84


# -- properties
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed, nv", [(0, 1), (1, 5), (2, 9), (3, 12)])
def test_the_factor_of_a_random_tree_is_recovered(seed, nv):
    parents = random_parents(seed, nv)
    rng = np.random.default_rng(seed)
    factors = [random_factor(parents, 10 * seed + k) for k in range(3)]
    v = rng.normal(size=(3, nv, 2))
    result = evaluate_batch(Topology.from_parents(parents), np.stack([poisoned(parents, M) for *_, M in factors]), v)
    for k, (U, D, M) in enumerate(factors):
        check(jax.tree.map(lambda x, k=k: np.asarray(x)[k], result), U, D, M, v[k], 1e-11)
        for j in range(nv):  # the inertia felt with ancestors held and all below free
            below = [j, *(k for k in range(j + 1, nv) if Topology.from_parents(parents).related[j, k])]
            np.testing.assert_allclose(D[j], 1 / np.linalg.inv(M[np.ix_(below, below)])[0, 0], rtol=1e-9)
    quadratic = np.einsum("bj,bjk->bk", np.asarray(result["D"]), np.asarray(result["Utv"]) ** 2)
    np.testing.assert_allclose(quadratic, np.einsum("bjk,bjk->bk", v, result["Mv"]), rtol=1e-9)


@st.composite
def forests(draw):
    """Parents of up to 12 degrees of freedom, numbered parents first, any number of roots."""
    return [draw(st.integers(-1, j - 1)) for j in range(draw(st.integers(1, 12)))]


@pytest.mark.slow
@hypothesis.settings(max_examples=12, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(forests(), st.integers(0, 99))
def test_the_factor_of_any_forest_is_recovered(parents, seed):
    U, D, M = random_factor(parents, seed)
    v = np.random.default_rng(seed).normal(size=(len(parents), 2))
    check(evaluate(parents, poisoned(parents, M), v, "sparse"), U, D, M, v, 1e-9)


def test_renumbering_permutes_the_factor():
    parents = random_parents(7, 10)
    _, _, M = random_factor(parents, 7)
    levels = Topology.from_parents(parents).depth
    order = sorted(range(10), key=lambda j: (levels[j], -j))  # place -> old number: parents first, not an involution
    place = np.argsort(order)
    assert not np.array_equal(place, np.argsort(place))
    renumbered = [int(place[parents[j]]) if parents[j] >= 0 else -1 for j in order]
    v = np.arange(10.0)
    old, new = evaluate(parents, M, v), evaluate(renumbered, M[np.ix_(order, order)], v[order])
    np.testing.assert_allclose(new["D"], old["D"][order], rtol=1e-11)
    np.testing.assert_allclose(new["U"], old["U"][np.ix_(order, order)], atol=1e-11)
    np.testing.assert_allclose(new["solve"], old["solve"][order], rtol=1e-9)


def test_scaling_the_matrix_scales_the_factor():
    parents = random_parents(3, 12)
    U, D, M = random_factor(parents, 3)
    s = np.random.default_rng(1).uniform(0.1, 10.0, 12)
    v = np.zeros((3, 12, 2))
    result = evaluate_batch(Topology.from_parents(parents), np.stack([7.0 * M, np.outer(s, s) * M, M + np.diag(s)]), v)
    np.testing.assert_allclose(result["U"][0], U, atol=1e-11)
    np.testing.assert_allclose(result["D"][0], 7.0 * D, rtol=1e-11)
    np.testing.assert_allclose(result["U"][1], np.diag(s) @ U @ np.diag(1 / s), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(result["D"][1], s * s * D, rtol=1e-10)
    assert (result["D"][2] >= D).all()


def test_the_dense_method_gives_the_same():
    parents = random_parents(2, 9)
    U, D, M = random_factor(parents, 20)
    result = evaluate(parents, poisoned(parents, M), np.ones((9, 2)), "dense")
    check(result, U, D, M, np.ones((9, 2)), 1e-11)


def test_indefinite_matrices_need_no_square_roots():
    M = np.array([[1.0, 2, 0], [2, 1, 0], [0, 0, -1]])
    result = evaluate((-1, 0, 0), M, V, "ldl")
    np.testing.assert_allclose(result["D"], [-3, 1, -1], rtol=1e-13)
    np.testing.assert_allclose(result["solve"], np.linalg.solve(M, V), rtol=1e-12)
    assert not result["ok"]
    assert result["status"] == Status.SINGULAR_MASS_MATRIX
    assert np.isnan(evaluate((-1, 0, 0), M, V, "dense")["D"]).any()


def test_float32_keeps_its_dtype_and_its_digits():
    parents, M, b = (PINOCCHIO[f"allegro_right_hand/{key}"] for key in ("parents", "M", "b"))
    result = evaluate(parents, M.astype(np.float32), b.astype(np.float32))
    assert {x.dtype for name, x in result.items() if name not in ("ok", "status")} == {np.dtype(np.float32)}
    x = PINOCCHIO["allegro_right_hand/x"]
    assert np.abs(result["solve"] - x).max() < 2e-5 * np.abs(x).max()


# -- singular matrices, floors and what a bad element does to its neighbours
# ---------------------------------------------------------------------------------------------------------------


def test_a_singular_element_of_a_batch_keeps_its_troubles_to_itself():
    parents = random_parents(1, 5)
    _, _, M = random_factor(parents, 1)
    bad, nan = np.zeros((5, 5)), np.where(np.eye(5) > 0, np.nan, M)
    v = np.ones((4, 5, 2))
    result = evaluate_batch(Topology.from_parents(parents), np.stack([M, bad, nan, M]), v)
    assert result["ok"].tolist() == [True, False, False, True]
    wanted = [Status.OK, Status.SINGULAR_MASS_MATRIX, Status.NON_FINITE, Status.OK]
    assert result["status"].tolist() == [int(s) for s in wanted]
    assert result["status"].dtype == jnp.int32
    assert result["min_pivot"][1] == 0.0 or np.isnan(result["min_pivot"][1])
    for name in ("U", "D", "solve", "Minv"):
        assert np.isfinite(result[name][0]).all()
        np.testing.assert_array_equal(result[name][0], result[name][3])
        assert not np.isfinite(result["solve"][1:3]).any()


def test_a_branch_that_is_singular_does_not_touch_another_root():
    M = np.diag([1.0, 0.0, 2.0, 3.0])
    result = evaluate((-1, 0, -1, 2), M, np.ones(4))
    assert not np.isfinite(result["solve"][:2]).any()
    np.testing.assert_allclose(result["solve"][2:], [0.5, 1 / 3])


@pytest.fixture(scope="module")
def floored():
    """M with a massless leaf: value, gradient and Hessian of a function of the solution, with a floor."""
    parents, floor = (-1, 0, 1), 1e-3

    def f(m):
        M = jnp.array([[3.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]) + m
        factor = cholesky.decompose(parents, M, pivot_floor=floor)
        x = cholesky.solve(factor, jnp.array([1.0, 2.0, 3.0]))
        return x @ x * 1e-6 + factor.D.sum() + jnp.sum(factor.U), (x, factor.D, factor.M, factor.ok)

    m = jnp.zeros((3, 3))
    return quick_jit(lambda m: (f(m), jax.grad(f, has_aux=True)(m)[0], jax.hessian(f, has_aux=True)(m)[0]))(m)


def test_a_pivot_floor_makes_values_and_gradients_finite(floored):
    (value, (x, D, M, ok)), gradient, hessian = floored
    assert ok
    assert all(np.isfinite(y).all() for y in (value, gradient, hessian))
    np.testing.assert_allclose(D, [2.875, 2.0, 1e-3])
    np.testing.assert_allclose(M, [[3, 0.5, 0], [0.5, 2, 0], [0, 0, 1e-3]], atol=1e-16)
    np.testing.assert_allclose(M @ x, [1, 2, 3], rtol=1e-12)
    assert gradient[2, 2] == 0.0  # a pivot that is held at the floor
    assert (np.tril(gradient, -1) == 0.0).all()


def test_the_gradient_with_a_floor_is_that_of_the_raised_matrix(floored):
    (_, (x, *_)), gradient, _ = floored
    M = np.array([[3, 0.5, 0.0], [0.5, 2, 0], [0, 0, 1e-3]])
    lam = np.linalg.solve(M, 2e-6 * np.asarray(x))
    # of D and U: D_0 = M_00 - M_01^2 / M_11, U_01 = M_01 / M_11
    wanted = -np.outer(lam, x) - np.triu(np.outer(x, lam), 1)
    np.testing.assert_allclose(gradient[0, 0], wanted[0, 0] + 1.0, rtol=1e-9)
    np.testing.assert_allclose(gradient[0, 1], wanted[0, 1] - 2 * 0.5 / 2 + 1 / 2, rtol=1e-9)


# -- derivatives
# ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def y_derivatives():
    def solution(q):
        return cholesky.solve(cholesky.decompose(Y_PARENTS, y_tree(q)), jnp.asarray(V))

    def f(q):
        return jnp.asarray(V) @ solution(q)

    def of_matrix(M):
        return jnp.asarray(V) @ cholesky.solve(cholesky.decompose(Y_PARENTS, M), jnp.asarray(V))

    def parts(q):
        factor = cholesky.decompose(Y_PARENTS, y_tree(q))
        return factor.D, factor.U

    modes = {f"{a.__name__} {b.__name__}": a(b(f)) for a in (jax.jacfwd, jax.jacrev) for b in (jax.jacfwd, jax.jacrev)}
    compute = quick_jit(
        lambda q, M: {
            "f": f(q),
            "gradient": jax.grad(f)(q),
            "hessians": {name: h(q) for name, h in modes.items()},
            "dx": jax.jacfwd(solution)(q),
            "forward": jax.jacfwd(parts)(q),
            "reverse": jax.jacrev(parts)(q),
            "cotangent": jax.grad(of_matrix)(M),
        }
    )
    return compute(Q, jnp.asarray(poisoned(Y_PARENTS, np.asarray(y_tree(Q)))))


def test_derivatives_of_the_solution_in_every_mode(y_derivatives):
    d = y_derivatives
    np.testing.assert_allclose(d["f"], 31.684160624307, rtol=1e-11)
    np.testing.assert_allclose(d["gradient"], [-17.402160323747, -3.408720168723], rtol=1e-10)
    np.testing.assert_allclose(d["dx"][:, 0], [4.106286968279, -16.913654098432, 4.106286968279], rtol=1e-10)
    for name, hessian in d["hessians"].items():
        np.testing.assert_allclose(
            hessian, [[35.643476894, 16.609845], [16.609845, -11.811695]], rtol=1e-7, err_msg=name
        )


def test_derivatives_of_the_factor(y_derivatives):
    for mode in ("forward", "reverse"):
        dD, dU = y_derivatives[mode]
        np.testing.assert_allclose(dD[0], [1.493105651498, 1.2], rtol=1e-10)
        np.testing.assert_allclose(dU[0, 1], [-1.952174809811, 0], rtol=1e-10, atol=1e-14)


def test_the_gradient_lives_where_the_matrix_is_read(y_derivatives):
    wanted = [[-2.840600140602, 59.706914472209, -2.310384272816], [0, -313.746696062268, 0], [0, 0, -0.469784132214]]
    np.testing.assert_allclose(y_derivatives["cotangent"], wanted, rtol=1e-10)
    assert y_derivatives["cotangent"][1, 2] == 0.0


def _by_definition(related, M):
    """U and D column by column in plain JAX, to be differentiated as it stands."""
    nv = len(related)
    U, D = jnp.eye(nv), [jnp.zeros(())] * nv
    for j in range(nv - 1, -1, -1):
        below = [k for k in range(j + 1, nv) if related[j, k]]
        D[j] = M[j, j] - sum(U[j, k] ** 2 * D[k] for k in below)
        for i in range(j):
            if related[i, j]:
                rest = M[i, j] - sum(U[i, k] * D[k] * U[j, k] for k in below)
                U = U.at[i, j].set(rest / D[j])
    return U, jnp.stack(D)


def test_second_derivatives_of_everything_in_every_mode():
    parents = (-1, 0, 0, 1, 2, -1)
    nv, related = 6, Topology(parents).related
    rng = np.random.default_rng(5)
    _, _, M = random_factor(parents, 5)
    M = jnp.asarray(M)
    weights = [jnp.asarray(rng.normal(size=s)) for s in ((nv, nv), (nv,), (nv, nv), (nv, 2), (nv, 2), (nv, 2), (nv, 2))]
    y = jnp.asarray(rng.normal(size=(nv, 2)))

    def ours(M):
        factor = cholesky.decompose(parents, M)
        parts = [factor.U, factor.D, cholesky.compute_minv(factor)]
        parts += [getattr(cholesky, name)(factor, y) for name in ("solve", "Uiv", "Utiv", "UDUtv")]
        return factor.log_det + sum(jnp.sum(w * p) for w, p in zip(weights, parts, strict=True))

    def reference(M):
        U, D = _by_definition(related, M)
        S = U @ jnp.diag(D) @ U.T
        parts = [
            U,
            D,
            jnp.linalg.inv(S),
            jnp.linalg.solve(S, y),
            jnp.linalg.solve(U, y),
            jnp.linalg.solve(U.T, y),
            S @ y,
        ]
        return jnp.sum(jnp.log(D)) + sum(jnp.sum(w * p) for w, p in zip(weights, parts, strict=True))

    direction, other = (jnp.asarray(rng.normal(size=(nv, nv))) for _ in range(2))

    def orders(f):
        slope = lambda M: jax.jvp(f, (M,), (direction,))[1]  # noqa: E731
        dual = lambda M: jnp.sum(jax.grad(f)(M) * direction)  # noqa: E731
        return {
            "value": f(M),
            "gradient": jax.grad(f)(M),
            "forward forward": jax.jvp(slope, (M,), (other,))[1],
            "reverse forward": jax.grad(slope)(M),
            "forward reverse": jax.jvp(dual, (M,), (other,))[1],
            "reverse reverse": jax.grad(dual)(M),
        }

    found, wanted = quick_jit(lambda: orders(ours))(), quick_jit(lambda: orders(reference))()
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-9, atol=1e-8 * np.abs(wanted[name]).max(), err_msg=name)
    assert (np.asarray(found["gradient"])[~related] == 0.0).all()


@pytest.mark.parametrize("name", [n if n == "panda" else pytest.param(n, marks=pytest.mark.slow) for n in FAST[:3]])
def test_the_derivative_along_the_motion_of_a_robot(name):
    wanted = {"panda": -88.843715999, "solo12": 1320.39606918, "talos": 30.8908458414}[name]
    model, there = robot(name), oracle(name)
    q = configuration_of_file(model, there, name)
    rotors = np.zeros(model.nv)
    rotors[there.dofs] = PINOCCHIO[f"{name}/armature"]
    model = eqx.tree_at(lambda m: m.armature, model, jnp.asarray(rotors))
    direction = np.zeros(model.nv)
    direction[there.dofs] = np.cos(np.arange(model.nv))
    ones = jnp.ones(model.nv)

    def f(e):
        moved = integrate(model, q, e * jnp.asarray(direction))
        return ones @ cholesky.solve(cholesky.decompose(model, alg.crba(model, moved)), ones)

    assert float(quick_jit(jax.grad(f))(0.0)) == pytest.approx(wanted, rel=1e-7)


def configuration_of_file(model, there, name):
    """Ours of the configuration that the file holds."""
    theirs, q = PINOCCHIO[f"{name}/q"], np.array(neutral(model))
    for i, joint in enumerate(model.joint_names):
        at = there.model.joints[there.model.getJointId(joint)]
        part = theirs[at.idx_q : at.idx_q + at.nq]
        start = model.tree.q_offset[i]
        if model.tree.joint_types[i] == "floating":
            part = np.concatenate([part[:3], part[6:7], part[3:6]])
        q[start : start + len(part)] = part
    return jnp.asarray(q)


# -- arguments
# ---------------------------------------------------------------------------------------------------------------


def test_no_degrees_of_freedom_at_all():
    factor = cholesky.decompose((), jnp.zeros((0, 0)))
    assert factor.ok
    assert factor.status == Status.OK
    assert factor.log_det == 0.0
    assert factor.U.shape == factor.M.shape == cholesky.compute_minv(factor).shape == (0, 0)
    for name in ("solve", "Uv", "Utv", "Uiv", "Utiv", "UDUtv"):
        assert getattr(cholesky, name)(factor, jnp.zeros(0)).shape == (0,)
    assert cholesky.Mv((), jnp.zeros((0, 0)), jnp.zeros((0, 3))).shape == (0, 3)


def test_right_hand_sides_of_any_width_and_dtype():
    factor = cholesky.decompose((-1, 0), jnp.array([[2.0, 1.0], [0.0, 3.0]]))
    for columns in (0, 1):
        assert cholesky.solve(factor, jnp.ones((2, columns))).shape == (2, columns)
    x = cholesky.solve(factor, np.array([1, 2]))
    assert x.dtype == jnp.float64
    np.testing.assert_allclose(np.array([[2.0, 1.0], [1.0, 3.0]]) @ x, [1, 2])
    assert cholesky.solve(factor, jnp.ones(2, jnp.float32)).dtype == jnp.float64
    single = cholesky.decompose((-1, 0), jnp.array([[2.0, 1.0], [0.0, 3.0]], jnp.float32))
    assert cholesky.solve(single, jnp.ones(2, jnp.float32)).dtype == jnp.float32
    for wrong in (jnp.ones(3), jnp.ones((1, 2)), jnp.ones((2, 1, 1)), jnp.ones(())):
        with pytest.raises(InputError, match=r"wanted shape \(2,\) or \(2, k\), given shape"):
            cholesky.solve(factor, wrong)


def test_mistakes_are_explained():
    with pytest.raises(InputError, match=r"parents\[1\] = 1"):
        Topology.from_parents([-1, 1])
    with pytest.raises(InputError, match="one integer per degree of freedom"):
        Topology.from_parents(np.array([-1.0, 0.0]))
    with pytest.raises(InputError, match=r"M: wanted shape \(2, 2\), given shape \(3, 3\)"):
        cholesky.decompose((-1, 0), jnp.eye(3))
    with pytest.raises(InputError, match=r"unknown method 'dens'.*'dense'"):
        cholesky.decompose((-1, 0), jnp.eye(2), method="dens")
    with pytest.raises(InputError, match="no pivots to raise"):
        cholesky.decompose((-1, 0), jnp.eye(2), method="dense", pivot_floor=1.0)
    with pytest.raises(InputError, match="floating-point"):
        cholesky.decompose((-1, 0), jnp.eye(2, dtype=int))
    with pytest.raises(InputError, match="must hold its ancestor 0"):
        Topology((-1, 0)).restricted((1,))


def test_a_topology_is_a_value():
    a, b = Topology((-1, 0, 0)), pickle.loads(pickle.dumps(Topology.from_parents(np.array([-1, 0, 0]))))
    assert a == b
    assert hash(a) == hash(b)
    assert a != Topology.full(3)
    assert a.closure([2]) == (0, 2)
    assert a.restricted((0, 2)).parents == (-1, 0)
    assert "entries=2" in repr(a)


def test_equal_topologies_share_a_compiled_function_and_factors_can_be_carried():
    traces = []

    @jax.jit
    def run(factor, M):
        traces.append(1)
        step = lambda factor, x: (cholesky.decompose(factor.topology, M * (1.0 + x)), factor.log_det)  # noqa: E731
        return jax.lax.scan(step, factor, jnp.arange(3.0))

    for _ in range(2):
        M = jnp.asarray(BY_LEVELS)
        factor, dets = run(cholesky.decompose(Topology.from_parents(list(BREADTH_FIRST)), M), M)
    assert len(traces) == 1
    np.testing.assert_allclose(
        dets, [factor.log_det - 5 * np.log(3)] * 2 + [factor.log_det - 5 * np.log(1.5)], rtol=1e-9
    )


def test_as_an_operator_of_lineax():
    lx = pytest.importorskip("lineax")
    M = BY_LEVELS + np.triu(BY_LEVELS, 1).T
    factor = cholesky.decompose(BREADTH_FIRST, jnp.asarray(BY_LEVELS))
    operator = factor.as_lineax()
    assert lx.is_symmetric(operator)
    assert lx.is_positive_semidefinite(operator)
    np.testing.assert_allclose(operator.as_matrix(), M, atol=1e-14)
    np.testing.assert_allclose(factor.as_lineax(inverse=True).mv(jnp.asarray(M[0])), np.eye(5)[0], atol=1e-12)


# -- straight from a configuration
# ---------------------------------------------------------------------------------------------------------------


def test_the_factor_straight_from_a_configuration():
    model = robot("small")
    inputs = states(model, 3)

    def compute(model, q, y):
        direct, whole = alg.mass_cholesky(model, q), cholesky.decompose(model, alg.crba(model, q))
        both = {"mass_solve": (alg.mass_solve(model, q, y), cholesky.solve(whole, y))}
        both["factor_solve"] = (cholesky.factor_solve(model, alg.crba(model, q), y), both["mass_solve"][1])
        both |= {name: (getattr(direct, name), getattr(whole, name)) for name in ("U", "D", "M", "log_det")}
        return both

    for name, (found, wanted) in quick_jit(jax.vmap(compute, (None, 0, 0)))(model, inputs["q"], inputs["tau"]).items():
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.slow
def test_derivatives_of_a_solve_straight_from_a_configuration():
    model = robot("small")
    inputs = jax.tree.map(lambda x: x[0], states(model, 2))
    q, y = inputs["q"], inputs["tau"]
    whole = lambda q: cholesky.solve(cholesky.decompose(model, alg.crba(model, q)), y)  # noqa: E731
    for mode in (jax.jacfwd, jax.jacrev):
        found = quick_jit(mode(lambda q: alg.mass_solve(model, q, y)))(q)
        wanted = quick_jit(jax.jacfwd(whole))(q)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10 * np.abs(wanted).max())


def test_a_robot_whose_joints_follow_others_has_no_zeros_between_them():
    leaf = '<inertial><origin xyz="0 .1 .2"/><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
    joint = lambda name, child, more="": (  # noqa: E731
        f'<joint name="{name}" type="revolute"><origin xyz="0 0 .1"/><parent link="base"/><child link="{child}"/><axis xyz="1 0 0"/>'
        f'<limit lower="-1" upper="1" effort="1" velocity="1"/>{more}</joint>'
    )
    parts = "".join(f'<link name="{n}">{leaf}</link>' for n in "abc") + joint("ja", "a") + joint("jb", "b")
    text = f'<robot name="g"><link name="base"/>{parts}{joint("jc", "c", """<mimic joint="ja" multiplier="2"/>""")}</robot>'
    model = from_urdf(text, dtype=jnp.float64)
    assert model.nv == 2
    assert topology_of(model).parents == (-1, -1) or topology_of(model).parents == (-1, 0)
    q = jnp.array([0.1, 0.2])
    M = np.asarray(alg.crba(model, q))
    for x in (alg.mass_solve(model, q, jnp.ones(2)), cholesky.solve(alg.mass_cholesky(model, q), jnp.ones(2))):
        np.testing.assert_allclose(M @ x, np.ones(2), rtol=1e-12)
