"""Contact patches: the brush in closed form, by quadrature, its rate, its regressor, and what it does not do."""

import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.contact import (
    Brush,
    CompliantContact,
    ContactPatch,
    ContactPoints,
    UnilateralBrush,
    contact_rate,
    contact_rate_terms,
    contact_regressor,
    contact_wrench,
)
from jaxdyn.contact.compliant import contact_wrenches
from jaxdyn.errors import InputError
from jaxdyn.math import SE3, so3

CASES = json.loads((pathlib.Path(__file__).parent / "data/floating_base/contact.json").read_text())
GOLDEN = CASES[0]


wrench_of = eqx.filter_jit(contact_wrench)
rate_of = eqx.filter_jit(contact_rate)
rate_terms_of = eqx.filter_jit(contact_rate_terms)
regressor_of = eqx.filter_jit(contact_regressor)
by_quadrature_of = eqx.filter_jit(lambda patch, *state: patch.wrench_by_quadrature(*state))
density_of = eqx.filter_jit(lambda patch, *state: patch.density(*state))


def patch_of(case, dtype=jnp.float64, **options):
    p = case["params"]
    law = Brush(jnp.asarray(p["spring_coeff"], dtype), jnp.asarray(p["damper_coeff"], dtype))
    return ContactPatch(law, jnp.asarray(p["length"], dtype), jnp.asarray(p["width"], dtype), **options)


def state_of(case, dtype=jnp.float64):
    pose = SE3(jnp.asarray(case["R"], dtype), jnp.asarray(case["p"], dtype))
    null = SE3(jnp.asarray(case["null_R"], dtype), jnp.asarray(case["null_p"], dtype))
    return pose, jnp.asarray(case["twist"], dtype), null


def close(actual, expected, tolerance):
    """Largest difference relative to the largest component."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-300, np.abs(expected).max()))


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-15), (jnp.float32, 1e-6)])
def test_golden_wrench(dtype, tolerance):
    expected = [
        0.10465864055508661,
        0,
        -0.20931728111017323,
        0.001920251008368921,
        -0.005537594446431846,
        -0.0032861029793451097,
    ]
    patch = patch_of(GOLDEN, dtype, quadrature=2)
    wrench = wrench_of(patch, *state_of(GOLDEN, dtype))
    assert wrench.dtype == dtype
    np.testing.assert_allclose(wrench, expected, rtol=0, atol=tolerance)
    by_quadrature = by_quadrature_of(patch, *state_of(GOLDEN, dtype))
    np.testing.assert_allclose(by_quadrature, wrench, rtol=0, atol=tolerance)
    regressor = np.asarray(regressor_of(patch, *state_of(GOLDEN, dtype)))
    np.testing.assert_allclose(regressor @ np.array([2000, 100], dtype), wrench, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_wrench_and_regressor_equal_the_reference(case):
    patch, state = patch_of(case), state_of(case)
    regressor = np.asarray(regressor_of(patch, *state))
    close(regressor, case["regressor"], 1e-12)
    constants = np.array([case["params"]["spring_coeff"], case["params"]["damper_coeff"]], float)
    # Where spring and damper cancel, 120 N against 120 N, the reference is zero by luck of rounding: for the double next
    # to 0.01 m the wrench is 2.5e-15 N, which a fused multiplication and addition finds. So: one last digit of a term.
    digit = np.finfo(float).eps * np.abs(regressor * constants).max()
    for wrench in (regressor @ constants, wrench_of(patch, *state)):
        tolerance = 1e-12 * np.abs(case["wrench"]).max() + digit
        np.testing.assert_allclose(wrench, case["wrench"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_rate_is_the_true_rate_also_upside_down(case):
    patch, (pose, twist, null) = patch_of(case), state_of(case)
    acceleration = jnp.asarray(case["acc"])
    rate = rate_of(patch, pose, twist, acceleration, null)
    still, matrix = rate_terms_of(patch, pose, twist, null)
    if abs(case["R"][2][2]) < 1e-9:  # on the kink of the projected area
        assert np.isfinite(rate).all()
        return
    close(still + matrix @ acceleration, rate, 1e-12)
    if case["R"][2][2] > 0:
        close(rate, case["blf_rate"], 1e-12)
        close(still, case["blf_autonomous"], 1e-12)
        close(matrix, case["blf_control_matrix"], 1e-12)
    else:
        close(rate, case["true_rate_fd"], 1e-6)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-12), (jnp.float32, 1e-4)])
def test_golden_rate(dtype, tolerance):
    pose, twist, null = state_of(GOLDEN, dtype)
    rate = rate_of(patch_of(GOLDEN, dtype), pose, twist, jnp.ones(6, dtype), null)
    expected = [
        -7.328583225179497,
        3.1397592166525987,
        -3.134802444005732,
        -0.007287087825096273,
        -0.0128026106989969,
        0.01766088061374664,
    ]
    np.testing.assert_allclose(rate, expected, rtol=0, atol=tolerance)
    upside_down = next(c for c in CASES if c["name"] == "upside_down")
    pose, twist, null = state_of(upside_down, dtype)
    rate = rate_of(patch_of(upside_down, dtype), pose, twist, jnp.ones(6, dtype), null)
    expected = [-7.328583225, 3.139759217, -3.134802444, 0.005709866268, -0.012802610699, 0.003014057432]
    np.testing.assert_allclose(rate, expected, rtol=0, atol=max(tolerance, 1e-9))


def test_density_inside_at_the_corner_and_outside():
    patch, state = patch_of(GOLDEN), state_of(GOLDEN)
    force, moment = density_of(patch, jnp.array([0.03, -0.02]), *state)
    np.testing.assert_allclose(force, [7.512133882821526, -4.847933061645104, -11.679922723174197], rtol=0, atol=1e-12)
    np.testing.assert_allclose(moment, [0.180151443064962, 0.348888611041262, -0.028944273076407], rtol=0, atol=1e-12)
    force, moment = density_of(patch, jnp.array([0.07, 0.0]), *state)
    assert not force.any() and not moment.any()
    force, _ = density_of(patch, jnp.array([0.06, 0.045]), *state)
    np.testing.assert_allclose(force, [22.44728033920152, -7.595376922109637, 17.658215001257112], rtol=0, atol=1e-12)


def test_regressor_identifies_the_constants():
    rng = np.random.default_rng(0)
    patch, (pose, _, null) = patch_of(GOLDEN), state_of(GOLDEN)
    twists = [jnp.asarray(rng.normal(size=6)) for _ in range(3)]
    stacked = np.concatenate([regressor_of(patch, pose, t, null) for t in twists])
    wrenches = np.concatenate([wrench_of(patch, pose, t, null) for t in twists])
    found = np.linalg.lstsq(stacked, wrenches, rcond=None)[0]
    np.testing.assert_allclose(found, [2000, 100], rtol=1e-9)
    with pytest.raises(InputError, match="not linear"):
        contact_regressor(ContactPatch(UnilateralBrush(1e4, 1e2), 0.1, 0.1), pose, twists[0], null)


def test_brush_pulls_and_a_unilateral_brush_does_not():
    lifted = SE3(jnp.eye(3), jnp.array([0.0, 0.0, 0.01]))
    still, null = jnp.zeros(6), SE3.identity()
    assert wrench_of(ContactPatch(Brush(2e5, 2e3), 0.3, 0.2), lifted, still, null)[2] == pytest.approx(-120)
    hard = ContactPatch(UnilateralBrush(2e5, 2e3), 0.3, 0.2)
    assert not wrench_of(hard, lifted, still, null).any()
    # penetrating 1 cm, lifting at 1.5 m/s
    pressed, lifting = SE3(jnp.eye(3), jnp.array([0.0, 0.0, -0.01])), jnp.array([0, 0, 1.5, 0, 0, 0])
    assert wrench_of(ContactPatch(Brush(2e5, 2e3), 0.3, 0.2), pressed, lifting, null)[2] == pytest.approx(-60)
    assert not wrench_of(hard, pressed, lifting, null).any()


# Sole of 0.2 m by 0.1 m at a pitch of 0.1 with its centre 2 mm deep, k = 1e6: normal force and moment about y of the
# normal stress, exactly. Friction would add 0.4 % to the moment, as the tilt displaces the sole along its length too.
HALF_LIFTED = 71.5607448889777, -4.271402283014
FRICTIONLESS = UnilateralBrush(1e6, 0.0, 0.0)


def half_lifted(sole):
    tilted = SE3(so3.from_rpy(jnp.array([0.0, 0.1, 0.0])), jnp.array([0.0, 0.0, -0.002]))
    return wrench_of(sole, tilted, jnp.zeros(6), SE3.identity())[jnp.array([2, 4])]


@pytest.mark.parametrize("order, force", [(4, 71.680), (16, 71.700), (32, 71.595)])
def test_half_lifted_sole_converges_with_the_quadrature(order, force):
    found = half_lifted(ContactPatch(FRICTIONLESS, 0.2, 0.1, quadrature=order))
    assert found[0] == pytest.approx(force, abs=5e-4)
    # the sum over the nodes across the strip, in numbers
    x, w = np.polynomial.legendre.leggauss(order)
    x, w = 0.1 * x, 0.1 * w * 0.1
    pressure = np.cos(0.1) * 1e6 * np.maximum(0.002 + x * np.sin(0.1), 0)
    np.testing.assert_allclose(found, [w @ pressure, -(w * x) @ pressure * np.cos(0.1)], rtol=1e-12)


def test_half_lifted_sole_has_the_exact_force_and_moment_in_the_limit():
    x, w = np.polynomial.legendre.leggauss(1000)
    fine = ContactPoints(FRICTIONLESS, np.stack([0.1 * x, 0 * x, 0 * x], -1), np.cos(0.1) * 0.01 * w)
    np.testing.assert_allclose(half_lifted(fine), HALF_LIFTED, rtol=1e-5)
    middle = (np.arange(16) + 0.5) / 16 * 0.2 - 0.1
    points, areas = np.stack([middle, 0 * middle, 0 * middle], -1), np.full(16, np.cos(0.1) * 0.02 / 16)
    assert half_lifted(ContactPoints(FRICTIONLESS, points, areas))[0] == pytest.approx(71.438, abs=5e-4)
    assert half_lifted(ContactPatch(Brush(1e6, 0.0), 0.2, 0.1))[0] == pytest.approx(39.800166611, abs=1e-9)


def test_projected_area_is_what_makes_the_brush_gain_energy():
    # press, tilt, lift, tilt back: net work k A depth^2 (1 - cos tilt) / 2 with the projection, none without
    depth, tilt, stiffness = 0.01, 0.2, 2e5

    def work(projected_area):
        patch = ContactPatch(Brush(stiffness, 0.0), 0.3, 0.2, projected_area=projected_area)

        def power(pose_at, s):
            pose, rate = jax.jvp(pose_at, (s,), (jnp.ones_like(s),))
            angular = so3.vee(so3.compose(rate.rotation, so3.inverse(pose.rotation)))
            twist = jnp.concatenate([rate.translation, angular])
            return jnp.sum(patch.wrench(pose, twist, SE3.identity()) * twist)

        def pose(z, angle):
            return SE3(so3.from_rpy(jnp.stack([0 * angle, angle, 0 * angle])), jnp.stack([0 * z, 0 * z, z]))

        s, w = (jnp.asarray(x) for x in np.polynomial.legendre.leggauss(12))
        s, w = (s + 1) / 2, w / 2
        legs = [
            lambda s: pose(-depth * s, 0 * s),
            lambda s: pose(-depth + 0 * s, tilt * s),
            lambda s: pose(-depth * (1 - s), tilt + 0 * s),
            lambda s: pose(0 * s, tilt * (1 - s)),
        ]
        return jax.jit(lambda: sum(jnp.sum(w * jax.vmap(lambda s, leg=leg: power(leg, s))(s)) for leg in legs))()

    lost = 0.5 * stiffness * 0.06 * depth**2 * (1 - np.cos(tilt))
    assert abs(work("abs_r33")) == pytest.approx(lost, rel=1e-6)
    assert lost == pytest.approx(0.01196, rel=1e-3)
    assert work("none") == pytest.approx(0, abs=1e-12)


def test_far_from_the_origin_the_anchor_keeps_its_digits():
    patch = ContactPatch(Brush(2e6, 0.0), 0.19, 0.09)
    far = jnp.array([1e6, 0.0, 0.0])
    near, away = (
        wrench_of(patch, SE3(jnp.eye(3), p + jnp.array([0.0, 0.0, -1e-3])), jnp.zeros(6), SE3(jnp.eye(3), p))
        for p in (0 * far, far)
    )
    np.testing.assert_array_equal(near, away)


def test_point_contact_is_a_spring():
    contact = ContactPoints(Brush(1e4, 10.0), [[0.0, 0.0, -0.1]])
    pose, twist = SE3(jnp.eye(3), jnp.array([0.0, 0.0, 0.09])), jnp.array([0, 0, 0.5, 0, 0, 0])
    np.testing.assert_allclose(contact.wrench(pose, twist, SE3(jnp.eye(3), jnp.array([0.0, 0.0, 0.1])))[2], 100 - 5)
    with pytest.raises(InputError, match=r"points: wanted shape \(n, 3\)"):
        ContactPoints(Brush(1e4, 10.0), [0.0, 0.0, 0.1])


def test_integers_are_numbers_here_and_wrong_options_are_named():
    contact = CompliantContact("sole", ContactPatch(Brush(2000, 100), 1, 1))
    assert contact.law.traction.stiffness == 2000.0
    with pytest.raises(InputError, match="abs_r33"):
        ContactPatch(Brush(1e3, 1.0), 1.0, 1.0, projected_area="cosine")
    with pytest.raises(InputError, match="null_position"):
        CompliantContact("sole", Brush(1e3, 1.0), null_position=[0.0, 0.0])
    with pytest.raises(InputError, match="name of a frame"):
        CompliantContact(3, Brush(1e3, 1.0))


def test_contacts_of_several_laws_are_computed_together():
    rng = np.random.default_rng(1)
    laws = [Brush(1e4, 1e2), ContactPatch(Brush(1e5, 1e3), 0.2, 0.1), Brush(2e4, 1e2), UnilateralBrush(1e4, 10.0)]
    contacts = tuple(CompliantContact(f"f{i}", law, active=1.0 - 0.1 * i) for i, law in enumerate(laws))
    poses = SE3(so3.exp(jnp.asarray(rng.normal(size=(4, 3)))), jnp.asarray(rng.normal(size=(4, 3))))
    twists = jnp.asarray(rng.normal(size=(4, 6)))
    together = contact_wrenches(contacts, poses, twists)
    for i, contact in enumerate(contacts):
        alone = contact.wrench(SE3(poses.rotation[i], poses.translation[i]), twists[i])
        np.testing.assert_allclose(together[i], alone, rtol=1e-13)
    np.testing.assert_allclose(
        contact_wrenches(contacts[:1], SE3(poses.rotation[:1], poses.translation[:1]), twists[:1]), together[:1]
    )


@pytest.mark.parametrize("rpy", [(0.0, 0.0, 0.0), (0.0, np.pi / 2, 0.0)], ids=["flat", "vertical"])
@pytest.mark.parametrize("law", [Brush(2e5, 2e3), UnilateralBrush(2e5, 2e3)], ids=["brush", "unilateral"])
def test_derivatives_are_finite_at_touch_down_and_for_a_vertical_foot(law, rpy):
    patch = ContactPatch(law, 0.3, 0.2)

    def wrench(z, rpy, twist):
        return patch.wrench(SE3(so3.from_rpy(rpy), jnp.stack([0 * z, 0 * z, z])), twist, SE3.identity())

    both = jax.jit(lambda *at: [jacobian(wrench, argnums=(0, 1, 2))(*at) for jacobian in (jax.jacfwd, jax.jacrev)])
    for z in (0.0, 1e-12, -1e-12):
        assert all(np.isfinite(d).all() for d in jax.tree.leaves(both(jnp.asarray(z), jnp.asarray(rpy), jnp.zeros(6))))
