"""Traction laws: what each does in numbers that can be computed by hand, the friction cone, and gradients at every awkward state."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.contact import (
    Brush,
    ContactPatch,
    ContactPoints,
    Coulomb,
    FlatTerrain,
    HuntCrossley,
    Nodes,
    SmoothCoulomb,
    SmoothUnilateral,
    StickSlip,
    UnilateralBrush,
)
from jaxdyn.math import SE3, so3

UP = jnp.array([0.0, 0.0, 1.0])

HARD = {
    "unilateral brush": UnilateralBrush(1e5, 1e2, 0.6),
    "stick-slip": StickSlip(1e5, 1e2, 0.6, 2e5, 50.0),
    "coulomb": Coulomb(1e5, 1e2, 0.6, 1e-3),
    "hunt-crossley": HuntCrossley(1e6, 0.5, 0.6, 1.5, 1e-3),
}
SMOOTH = {
    "smooth unilateral": SmoothUnilateral(1e5, 1e2, 0.6, 1e-4),
    "smooth coulomb": SmoothCoulomb(1e5, 1e2, 0.6, 1e-3, 1e-4),
}
LAWS = HARD | SMOOTH


def nodes(depth, velocity=(0.0, 0.0, 0.0), stretch=(0.0, 0.0)):
    displacement = jnp.concatenate([jnp.asarray(stretch), jnp.asarray(depth)[None]])
    return Nodes(*(jnp.asarray(a)[None, ..., None] for a in (displacement, velocity, depth, UP)))


def stacked(law):
    return jax.tree.map(lambda leaf: leaf[None, None], law)


@jax.jit
def traction(law, *state):
    return stacked(law).traction(nodes(*state))[0, :, 0]


def test_smooth_normal_stress_is_a_softplus_at_rest():
    law = SmoothUnilateral(1e6, 1e4, 0.5, 1e-4)
    assert traction(law, 0.0)[2] == pytest.approx(69.3147, abs=1e-4)
    assert traction(law, 1e-3)[2] == pytest.approx(1000.00454, abs=1e-5)
    assert traction(law, -1e-3)[2] == pytest.approx(0.00454, abs=1e-5)


def test_smooth_law_tends_to_the_hard_one():
    rng = np.random.default_rng(0)
    hard = UnilateralBrush(1e5, 1e3, 0.6)
    for _ in range(20):
        state = 1e-2 * rng.normal(), 0.3 * rng.normal(size=3), 1e-2 * rng.normal(size=2)
        # the saturation of the friction does not depend on the smoothing: compare where it is either far off, or complete
        normal = [float(traction(law, *state)[2]) for law in (hard, SmoothUnilateral(1e5, 1e3, 0.6, 1e-6))]
        assert normal[0] == pytest.approx(normal[1], abs=1.0)
    stuck = 1e-2, (0.0, 0.0, 0.0), (1e-5, 0.0)
    np.testing.assert_allclose(
        traction(SmoothUnilateral(1e5, 0.0, 0.6, 1e-6), *stuck),
        traction(UnilateralBrush(1e5, 0.0, 0.6), *stuck),
        rtol=1e-4,
    )


def test_brush_friction_is_cut_at_the_cone():
    law = UnilateralBrush(1e5, 0.0, 0.5)
    np.testing.assert_allclose(traction(law, 1e-2, (0.0, 0.0, 0.0), (3e-3, 0.0)), [300, 0, 1000])
    np.testing.assert_allclose(traction(law, 1e-2, (0.0, 0.0, 0.0), (3.0, 4.0)), [300, 400, 1000])


def test_regularised_friction_creeps_on_a_slope_at_the_documented_speed():
    slope, friction, slip_velocity = 0.2, 0.5, 1e-3
    ratio = np.tan(slope) / friction
    creep = slip_velocity * ratio / np.sqrt(1 - ratio**2)
    assert creep == pytest.approx(4.435e-4, rel=1e-3)
    t = traction(Coulomb(1e4, 0.0, friction, slip_velocity), 1e-3, (creep, 0.0, 0.0))
    assert -t[0] / t[2] == pytest.approx(np.tan(slope), rel=1e-12)


def test_hunt_crossley_in_numbers():
    assert traction(HuntCrossley(1e4), 0.01)[2] == pytest.approx(10.0)
    assert traction(HuntCrossley(1e4, dissipation=0.5), 0.01, (0.0, 0.0, -1.0))[2] == pytest.approx(15.0)
    assert traction(HuntCrossley(1e4, dissipation=0.5), 0.01, (0.0, 0.0, 3.0))[2] == 0.0
    assert traction(HuntCrossley(1e4, dissipation=0.5), 0.0, (0.0, 0.0, -5.0))[2] == 0.0  # no jump at touch-down


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_forces_push_and_stay_inside_the_friction_cone(law):
    rng = np.random.default_rng(3)
    depth = jnp.asarray(rng.normal(size=500) * 10.0 ** rng.uniform(-9, 0, size=500))
    velocity = jnp.asarray(rng.normal(size=(500, 3)) * 10.0 ** rng.uniform(-9, 1, size=(500, 1)))
    stretch = jnp.asarray(rng.normal(size=(500, 2)) * 10.0 ** rng.uniform(-9, 0, size=(500, 1)))
    t = np.asarray(jax.vmap(lambda *state: traction(law, *state))(depth, velocity, stretch))
    assert np.isfinite(t).all()
    assert (t[:, 2] >= 0).all()
    assert (np.linalg.norm(t[:, :2], axis=1) <= 0.6 * t[:, 2] * (1 + 1e-14) + 1e-12).all()
    patch = ContactPatch(law, 0.2, 0.1)
    poses = SE3(so3.exp(jnp.asarray(rng.normal(size=(50, 3)) * 0.1)), jnp.asarray(rng.normal(size=(50, 3)) * 0.01))
    wrench = np.asarray(
        jax.vmap(lambda pose, v: patch.wrench(pose, v, SE3.identity()))(poses, jnp.asarray(rng.normal(size=(50, 6))))
    )
    assert (np.linalg.norm(wrench[:, :2], axis=1) <= 0.6 * wrench[:, 2] + 1e-12).all()


def test_brush_violates_the_cone_as_documented():
    t = traction(Brush(1e5, 0.0), 1e-3, (0.0, 0.0, 0.0), (0.1, 0.0))
    assert t[0] > t[2]


STATES = json.loads((pathlib.Path(__file__).parent / "data/trials/expected.json").read_text())["T33"]["states"]


STATE_NAMES = ["on the plane", "deep", "deep and sliding", "1 nm above", "far above", "barely sliding"]


@pytest.mark.parametrize("name", LAWS)
def test_gradients_of_a_point_foot_are_finite_and_right(name):
    """Trial T33."""
    foot = ContactPoints(LAWS[name])
    mass, dt, h = 1.0, 1e-3, 1e-7

    def force(x):
        pose = SE3(jnp.eye(3), jnp.stack([jnp.zeros_like(x[0]), jnp.zeros_like(x[0]), x[0]]))
        twist = jnp.concatenate([x[1:], jnp.zeros(3)])
        return foot.wrench(pose, twist, SE3.identity(), FlatTerrain())[:3]

    def step(x):
        velocity = x[1:] + dt * (force(x) / mass - 9.81 * UP)
        return jnp.concatenate([x[:1] + dt * velocity[2:], velocity])

    @jax.jit
    @jax.vmap
    def everything(x):
        both = lambda x: (force(x), step(x))  # noqa: E731
        steps = h * jnp.eye(4)
        differences = jax.vmap(lambda e: (force(x + e) - force(x - e)) / (2 * h))(steps)
        second = jax.jacfwd(jax.jacrev(both))(x)
        return force(x), jax.jacfwd(both)(x), jax.jacrev(both)(x), second, differences.T

    states = jnp.array([[float(s["z"]), *map(float, s["v"])] for s in STATES])
    forces, forward, reverse, second, differences = jax.tree.map(np.asarray, everything(states))
    assert all(np.isfinite(d).all() for d in jax.tree.leaves((forward, reverse, second)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11), forward, reverse)
    assert (forces[:, 2] >= 0).all()
    assert (np.linalg.norm(forces[:, :2], axis=1) <= 0.6 * forces[:, 2] + 1e-12).all()
    for i, (state, case) in enumerate(zip(STATES, STATE_NAMES, strict=True)):
        slopes = forward[0][i]
        if case == "far above" or (case == "1 nm above" and name in HARD):
            assert not forces[i].any() and not slopes.any()
        if state["z"] < 0:
            np.testing.assert_allclose(
                slopes, differences[i], rtol=1e-4, atol=1e-4 * np.abs(slopes).max(), err_msg=case
            )


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_every_constant_has_a_finite_derivative_in_single_precision(law):
    law = jax.tree.map(lambda x: x.astype(jnp.float32), law)

    def total(law, depth):
        zero = jnp.zeros_like(depth)
        leaves = jnp.stack([zero, zero, depth]), jnp.zeros(3, depth.dtype), depth, UP.astype(depth.dtype)
        state = Nodes(*(leaf[None, ..., None] for leaf in leaves))
        return jnp.sum(stacked(law).traction(state))

    differentiated = jax.jit(jax.value_and_grad(total))
    for depth in (-1.0, 0.0, 1e-3):
        value, slopes = differentiated(law, jnp.float32(depth))
        assert value.dtype == jnp.float32
        assert all(np.isfinite(s) and s.dtype == jnp.float32 for s in jax.tree.leaves(slopes))


def bounce(law, heights, dt, duration=1.0):
    """Height of a 1 kg point without gravity after it was thrown down at 5 m/s, semi-implicit Euler."""

    def height(z0):
        def step(_, x):
            z, v = x
            force = stacked(law).traction(nodes(-z, jnp.stack([0 * v, 0 * v, v])))[0, 2, 0]
            v = v + dt * force
            return z + dt * v, v

        return jax.lax.fori_loop(0, round(duration / dt), step, (z0, -5.0 + 0 * z0))[0]

    return jax.jit(jax.vmap(jax.value_and_grad(height)))(heights)


def test_bounce_has_its_true_gradient_through_a_smooth_law_only():
    golden = (np.sqrt(5) - 1) / 2
    heights = jnp.asarray(2.9 + 0.1 * ((np.arange(64) * golden) % 1))
    exact = 5 * (1 - np.asarray(heights) / 5 - np.pi / 100)
    assert 5 * (1 - 2.9 / 5 - np.pi / 100) == pytest.approx(1.9429203673)

    # the hard law: values right, derivatives useless; they become no better than the step becomes shorter
    value, slope = bounce(UnilateralBrush(1e4, 0.0), heights, 1e-3)
    np.testing.assert_allclose(value, exact, atol=2.45e-3)
    np.testing.assert_allclose([slope.min(), slope.max()], [-2.57, 1.32], atol=0.01)
    slope = bounce(UnilateralBrush(1e4, 0.0), heights, 1.25e-4)[1]
    np.testing.assert_allclose([slope.min(), slope.max()], [-1.16, -0.67], atol=0.01)
    for smoothing, dt, error in ((3e-3, 1e-3, 4.1e-4), (1e-3, 5e-4, 4e-3), (1e-3, 2.5e-4, 3e-6)):
        value, slope = bounce(SmoothUnilateral(1e4, 0.0, 0.5, smoothing), heights, dt)
        np.testing.assert_allclose(slope, -1, atol=error)
