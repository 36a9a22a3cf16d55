"""Integrators: orders on a spinning box in contact, parity of the embedded ones, closed forms, energy, and stability limits."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from floating_base_data import assert_close

from jaxdyn.contact import CompliantContact, ContactPatch, SmoothCoulomb
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.model import from_urdf, load
from jaxdyn.systems import (
    RKMK4,
    EmbeddedEuler,
    EmbeddedRK4,
    FixedBaseDynamics,
    FixedBaseState,
    FloatingBaseDynamics,
    ImplicitMidpoint,
    Input,
    Integrator,
    LieEuler,
    LieMidpoint,
    LinearlyImplicit,
    SemiImplicitEuler,
    State,
    boxminus,
    boxplus,
    linearize,
    rollout,
    state_from_configuration,
    step,
)

LIE = [SemiImplicitEuler(), LieEuler(), LieMidpoint(), RKMK4()]
ALL = [*LIE, LinearlyImplicit(), ImplicitMidpoint(), EmbeddedEuler(), EmbeddedRK4()]
QUICK = ("SemiImplicitEuler", "RKMK4", "LinearlyImplicit", "EmbeddedRK4")
name_of = lambda i: type(i).__name__  # noqa: E731


@eqx.filter_jit
def end(system, integrator, x, dt, steps):
    """The state after any number of steps, for one compilation per integrator: the number is not static."""
    return jax.lax.fori_loop(0, steps, lambda _, x: step(system, integrator, x, None, dt), x)


def run(system, integrator, x, dt, duration):
    return end(system, integrator, x, jnp.asarray(dt), jnp.asarray(round(duration / dt)))


# Box on the brush, tilted and spinning, T = 0.2 s; DOP853 with tolerance 1e-13
TILTED = {
    "position": [-0.002052550860421, 0.002115917421227, 0.045863050405177],
    "linear": [-0.007360543213948, 0.012337214783535, -0.060846714457901],
    "angular": [-0.113152110457247, 1.036671756535059, -0.287286800271942],
    "row": [0.999321561375306, -0.033951155576427, -0.014273612207351],
}


def error(x):
    expected = np.concatenate([TILTED["position"], TILTED["linear"], TILTED["angular"], TILTED["row"]])
    return np.abs(np.concatenate([x.position, x.twist, x.rotation[0]]) - expected).max()


class AveragedRK4(Integrator):
    """The trap: the classical Runge-Kutta method with the exponential of the average of the stages' velocities."""

    def step(self, system, x, u, t, dt):
        v, slope, total = system.velocity(x), None, 0.0
        for fraction, weight in zip((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6), strict=True):
            h = fraction * dt
            at = x if slope is None else system.displace(x, h * slope[0], v + h * slope[1])
            slope = jnp.stack([system.velocity(at), system.acceleration(at, u, t + h)])
            total = total + weight * slope
        return system.displace(x, dt * total[0], v + dt * total[1])


@pytest.mark.parametrize(
    "integrator, order, measured",
    [
        (EmbeddedEuler(), 1, [6.1e-1, 2.6e-1, 1.2e-1, 5.8e-2]),
        (LieEuler(), 1, [6.1e-1, 2.6e-1, 1.2e-1, 5.8e-2]),
        (SemiImplicitEuler(), 1, [1.2e-1, 5.7e-2, 2.8e-2, 1.4e-2]),
        (LieMidpoint(), 2, [2.5e-2, 6.4e-3, 1.6e-3, 4.1e-4]),
        (RKMK4(), 4, [4.8e-5, 3.0e-6, 1.9e-7, 1.2e-8]),
        (EmbeddedRK4(), 4, [4.9e-5, 3.0e-6, 1.9e-7, 1.2e-8]),
        (LinearlyImplicit(), 1, [3.6e-1, 2.0e-1, 1.1e-1, 5.4e-2]),
        (AveragedRK4(), 2, [1.4e-4, 3.5e-5, 8.9e-6, 2.2e-6]),
    ],
    ids=lambda v: name_of(v) if hasattr(v, "step") else "",
)
def test_order_on_the_tilted_spinning_box(integrator, order, measured):
    case, x = data.box_case("tilted_spin")
    system = data.box_on_patch()
    errors = [error(run(system, integrator, x, case["T"] / n, case["T"])) for n in (50, 100, 200, 400)]
    np.testing.assert_allclose(errors, measured, rtol=0.12)
    assert np.log2(errors[-2] / errors[-1]) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("name", ["drop", "tilted_spin"])
@pytest.mark.parametrize(
    "integrator, key", [(EmbeddedEuler(), "blf_forward_euler_dt0.001"), (EmbeddedRK4(), "blf_rk4_dt0.001")]
)
def test_embedded_integrators_are_those_of_the_reference(integrator, key, name):
    case, x = data.box_case(name)
    final = run(data.box_on_patch(), integrator, x, 1e-3, case["T"])
    expected = case["runs"][key]
    tolerance = 1e-13 if name == "drop" else 1e-12
    np.testing.assert_allclose(final.position, expected["p"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(final.twist, expected["twist"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(final.rotation, expected["R"], rtol=0, atol=1e-12)


BODY = """<robot name="body"><link name="body"><inertial><mass value="{mass}"/><origin xyz="{com}"/>
<inertia ixx="{xx}" iyy="{yy}" izz="{zz}" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""


def body(xx, yy, zz, mass=1.0, com="0 0 0", dtype=None):
    text = BODY.format(xx=xx, yy=yy, zz=zz, mass=mass, com=com)
    return FloatingBaseDynamics(from_urdf(text, root="floating", dtype=dtype), gravity=[0.0, 0.0, 0.0])


def spinning(omega, dtype=jnp.float64):
    return State(
        jnp.asarray([0, 0, 0, *omega], dtype),
        jnp.zeros(0, dtype),
        jnp.zeros(3, dtype),
        jnp.eye(3, dtype=dtype),
        jnp.zeros(0, dtype),
    )


TOP = np.array(
    [
        [0.85002581359293, -0.524582296673419, 0.047639586926394],
        [0.521066451135088, 0.850662160797492, 0.069739814229947],
        [-0.077109465872629, -0.034457251837353, 0.99642703098052],
    ]
)


@pytest.mark.parametrize(
    "integrator, dt, dtype, tolerance",
    [
        (RKMK4(), 1e-2, jnp.float64, 6e-8),
        (RKMK4(), 1e-3, jnp.float64, 6e-12),
        (LieMidpoint(), 1e-3, jnp.float64, 3.2e-6),
        (SemiImplicitEuler(), 1e-3, jnp.float64, 6e-4),
        (RKMK4(), 1e-3, jnp.float32, 2e-5),
    ],
    ids=lambda v: name_of(v) if hasattr(v, "step") else None,
)
def test_symmetric_top(integrator, dt, dtype, tolerance):
    moments = np.array([0.06, 0.06, 0.1])
    x = run(body(*moments, dtype=dtype), integrator, spinning([0.5, 0, 4], dtype), jnp.asarray(dt, dtype), 1.7)
    assert np.abs(np.asarray(x.rotation) - TOP).max() < tolerance
    if integrator == RKMK4() and dtype == jnp.float64:
        atol = 2e-7 if dt == 1e-2 else 1e-11
        np.testing.assert_allclose(x.twist[3:], [0.372961101529589, -0.185972837946536, 4.009527917385284], atol=atol)
        local = np.asarray(x.rotation).T @ np.asarray(x.twist[3:])
        energy, momentum = 0.5 * local @ (moments * local), np.asarray(x.rotation) @ (moments * local)
        exact = 0.5 * (0.06 * 0.25 + 0.1 * 16)
        assert abs(energy / exact - 1) < (2e-10 if dt == 1e-2 else 1e-13)
        assert np.abs(momentum - [0.03, 0, 0.4]).max() < (2e-10 if dt == 1e-2 else 1e-13)


def test_asymmetric_body_flips():
    system = data.system("box", with_contacts=False, gravity=[0.0, 0.0, 0.0])
    x = run(system, RKMK4(), spinning([0.01, 5, 0.01]), 1e-3, 5.0)
    rotation = [
        [0.517073871831858, 0.045358233057839, 0.854738112969501],
        [-0.03932892309956, -0.996281209695037, 0.076661509353913],
        [0.855036751769549, -0.073255592977333, -0.513367092070475],
    ]
    np.testing.assert_allclose(x.rotation, rotation, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        x.twist[3:], [-0.1647283952443, 5.000456302658794, -0.098297793676874], rtol=0, atol=1e-9
    )
    inertia = np.asarray(system.model.inertia.inertia[0])
    momentum = np.asarray(x.rotation) @ inertia @ np.asarray(x.rotation).T @ np.asarray(x.twist[3:])
    np.testing.assert_allclose(momentum, inertia @ [0.01, 5, 0.01], rtol=0, atol=1e-12)


def test_free_body_keeps_energy_momentum_and_its_centre_of_mass():
    """Trial T28: the centre of mass is not the origin of the link."""
    system = FloatingBaseDynamics(from_urdf(data.DATA / "trials/T28.urdf", root="floating"), gravity=[0.0, 0.0, 0.0])
    com = system.model.inertia.com[0]
    omega = jnp.array([0.5, 3.0, 0.8])
    x = eqx.tree_at(lambda x: x.twist, spinning(omega), jnp.concatenate([-jnp.cross(omega, com), omega]))
    inertia = np.diag([0.02, 0.05, 0.06])
    expected = [
        [-0.54511539, 2.9874, 0.82894559],
        [-2.24211081, 1.16477577, 2.32745803],
        [-1.33114373, -2.56220417, 1.47035493],
    ]
    for local in expected:
        x = run(system, RKMK4(), x, 1e-3, 1.0)
        rotation = np.asarray(x.rotation)
        found = rotation.T @ np.asarray(x.twist[3:])
        np.testing.assert_allclose(found, local, rtol=0, atol=2e-8)
        assert 0.5 * found @ inertia @ found == pytest.approx(0.2467, abs=1e-8)
        assert np.linalg.norm(inertia @ found) == pytest.approx(0.1578100124, abs=1e-8)
        np.testing.assert_allclose(np.asarray(x.position) + rotation @ np.asarray(com), com, atol=1e-10)
        assert np.linalg.norm(so3.to_quaternion(x.rotation)) == pytest.approx(1, abs=1e-9)


# Free fall and constant forces


@pytest.mark.parametrize(
    "integrator, drift",
    [(RKMK4(), 0.0), (LieEuler(), 1), (EmbeddedEuler(), 1), (SemiImplicitEuler(), -1)],
    ids=lambda v: name_of(v) if hasattr(v, "step") else "",
)
def test_free_fall(integrator, drift):
    system = data.system("box", with_contacts=False)
    x = data.random_state(system.model, np.random.default_rng(0))
    x = eqx.tree_at(lambda x: x.twist, x, jnp.zeros(6))
    final = run(system, integrator, x, 1e-3, 1.0)
    assert final.position[2] - x.position[2] + 4.903325 == pytest.approx(
        drift * 4.903325e-3, abs=1e-10 if drift else 1e-12
    )


def test_a_body_at_rest_without_gravity_stays_there_to_the_last_bit():
    system = data.system("biped", with_contacts=False, gravity=[0.0, 0.0, 0.0])
    x = data.random_state(system.model, np.random.default_rng(0))
    x = eqx.tree_at(lambda x: (x.twist, x.joint_velocity), x, (0 * x.twist, 0 * x.joint_velocity))
    for integrator in (SemiImplicitEuler(), RKMK4()):
        jax.tree.map(np.testing.assert_array_equal, run(system, integrator, x, 1e-3, 0.1), x)


@eqx.filter_jit
def end_under_force(system, integrator, x, force, dt, steps):
    """As `end`, under a constant force in world axes at the origin of the body."""
    u = Input(jnp.zeros(system.n), None, jnp.concatenate([force, jnp.zeros(3)])[None])
    return jax.lax.fori_loop(0, steps, lambda _, x: step(system, integrator, x, u, dt), x)


def test_constant_force_through_the_centre_of_mass():
    """10 N along x on 10 kg, in any orientation."""
    system, h = data.system("box", with_contacts=False, gravity=[0.0, 0.0, 0.0]), 1e-3
    assert not system.model.inertia.com.any()
    x = data.random_state(system.model, np.random.default_rng(1))
    x = eqx.tree_at(lambda x: (x.twist, x.position), x, (jnp.zeros(6), jnp.zeros(3)))
    for integrator, end_position in ((SemiImplicitEuler(), 0.5 + h / 2), (RKMK4(), 0.5)):
        final = end_under_force(system, integrator, x, jnp.array([10.0, 0, 0]), jnp.asarray(h), jnp.asarray(1000))
        np.testing.assert_allclose(final.twist, [1, 0, 0, 0, 0, 0], atol=1e-12)
        np.testing.assert_allclose(final.position, [end_position, 0, 0], atol=1e-12)
        np.testing.assert_allclose(final.rotation, x.rotation, atol=1e-12)


# Box dropped on the brush


def drop(t, k_area=12000.0, mass=10.0, b_area=120.0):
    """Height of the box in closed form."""
    depth, decay = mass * 9.80665 / k_area, b_area / (2 * mass)
    frequency = np.sqrt(k_area / mass - decay**2)
    return 0.05 - depth * (1 - np.exp(-decay * t) * (np.cos(frequency * t) + decay / frequency * np.sin(frequency * t)))


def test_box_drop_in_closed_form():
    assert drop(0.1) == pytest.approx(0.03729495900757672, abs=1e-14)
    _, x = data.box_case("drop")
    system = data.box_on_patch()
    for t, velocity in ((0.1, 0.04209977628465297), (0.5, None), (2.0, None)):
        final = run(system, RKMK4(), x, 1e-3, t)
        assert final.position[2] == pytest.approx(drop(t), abs=3e-10)
        if velocity:
            assert final.twist[2] == pytest.approx(velocity, abs=2e-8)
    heights = rollout(system, RKMK4(), x, None, 1e-3, 200, checkpoint="none").state.position[:, 2]
    assert 0.05 - heights.min() == pytest.approx(1.287543548706e-2, abs=1e-6)


@pytest.mark.parametrize(
    "integrator, height", [(SemiImplicitEuler(), 0.0418278128), (RKMK4(), 0.0418278240)], ids=["semi-implicit", "rkmk4"]
)
def test_box_drop_in_single_precision(integrator, height):
    _, x = data.box_case("drop", jnp.float32)
    final = end(data.box_on_patch(dtype=jnp.float32), integrator, x, jnp.float32(1e-3), jnp.asarray(2000))
    assert final.position.dtype == jnp.float32
    assert float(final.position[2]) == pytest.approx(height, abs=1e-7)


@pytest.mark.parametrize(
    "integrator, limit",
    [(LieEuler(), 0.01), (SemiImplicitEuler(), 0.0486), (RKMK4(), 0.08527)],
    ids=["euler", "semi-implicit", "rkmk4"],
)
def test_stability_limit_of_the_box_drop(integrator, limit):
    _, x = data.box_case("drop")
    system = data.box_on_patch()
    below = end(system, integrator, x, jnp.asarray(0.98 * limit), jnp.asarray(10_000)).position[2]
    above = end(system, integrator, x, jnp.asarray(1.02 * limit), jnp.asarray(10_000)).position[2]
    assert abs(below - 0.05) < 0.1
    assert not abs(above - 0.05) < 1.0


def test_stiff_contact_needs_the_implicit_integrator():
    _, x = data.box_case("drop")
    system = data.box_on_patch(stiffness=2e8, damping=2e4)
    for integrator in (LieEuler(), SemiImplicitEuler(), RKMK4()):
        assert not abs(run(system, integrator, x, 5e-3, 1.0).position[2]) < 1e100
    final = run(system, LinearlyImplicit(), x, 5e-3, 1.0)
    assert final.position[2] - 0.05 == pytest.approx(-8.1722083333e-6, abs=1e-12)
    # a fifth of that step: all but explicit Euler come to rest
    assert not abs(run(system, LieEuler(), x, 1e-3, 1.0).position[2]) < 1e100
    for integrator in (SemiImplicitEuler(), RKMK4(), LinearlyImplicit()):
        assert run(system, integrator, x, 1e-3, 1.0).position[2] - 0.05 == pytest.approx(-8.1722083333e-6, abs=1e-12)


# Energy, time reversal, orthonormality


def energy(system, x):
    """Kinetic and potential energy of the box."""
    mass, inertia = 10.0, system.model.inertia.inertia[0]
    omega = so3.rotate_back(x.rotation, x.twist[3:])
    return 0.5 * mass * x.twist[:3] @ x.twist[:3] + 0.5 * omega @ inertia @ omega + mass * 9.80665 * x.position[2]


def contact_energy(system, x):
    """Energy of the box on an undamped brush with null pose at the origin, without projection of the area."""
    sole = x.position + x.rotation @ jnp.array([0.0, 0.0, -0.05])
    stiffness, length, width = 2e5 * 0.06, 0.3, 0.2
    turned = length**2 * (1 - x.rotation[0, 0]) + width**2 * (1 - x.rotation[1, 1])
    return energy(system, x) + 0.5 * stiffness * sole @ sole + stiffness / 12 * turned


def reversed_time(x):
    return eqx.tree_at(lambda x: x.twist, x, -x.twist)


def there_and_back(system, x):
    """The state after 1 s, and that after going back from there."""
    dt, steps = jnp.asarray(1e-3, x.twist.dtype), jnp.asarray(1000)
    after = end(system, RKMK4(), x, dt, steps)
    return after, reversed_time(end(system, RKMK4(), reversed_time(after), dt, steps))


def test_undamped_brush_keeps_energy_only_without_projection_and_is_reversible():
    _, x = data.box_case("tilted_spin")
    system = data.box_on_patch(damping=0.0, projected_area="none")
    start = float(contact_energy(system, x))
    assert start == pytest.approx(8.063041997560092, abs=1e-12)
    after, back = there_and_back(system, x)
    assert contact_energy(system, after) == pytest.approx(8.06304177, abs=1e-8)
    np.testing.assert_allclose(back.position, x.position, rtol=0, atol=1e-9)
    np.testing.assert_allclose(back.twist[3:], x.twist[3:], rtol=0, atol=2e-7)
    projecting = data.box_on_patch(damping=0.0)
    assert contact_energy(projecting, run(projecting, RKMK4(), x, 1e-3, 1.0)) == pytest.approx(8.10206, abs=1e-5)


def test_free_flight_keeps_energy_and_is_reversible():
    _, x = data.box_case("tilted_spin")
    system = data.system("box", with_contacts=False)
    after, back = there_and_back(system, x)
    assert energy(system, x) == pytest.approx(5.718273445395682, abs=1e-14)
    assert energy(system, after) == pytest.approx(5.7182734453870, abs=1e-12)
    np.testing.assert_allclose(back.position, x.position, rtol=0, atol=1e-13)
    np.testing.assert_allclose(back.twist, x.twist, rtol=0, atol=1e-13)


@pytest.mark.parametrize("contact", [False, True], ids=["free flight", "undamped brush"])
def test_motion_is_reversible_in_single_precision(contact):
    _, x = data.box_case("tilted_spin", jnp.float32)
    single = {"dtype": jnp.float32}
    on_patch = {"damping": 0.0, "projected_area": "none"} | single
    system = data.box_on_patch(**on_patch) if contact else data.system("box", with_contacts=False, **single)
    _, back = there_and_back(system, x)
    assert back.position.dtype == jnp.float32
    for part in ("position", "twist", "rotation"):
        np.testing.assert_allclose(getattr(back, part), getattr(x, part), rtol=0, atol=1e-3, err_msg=part)


def orthonormality(x):
    r = np.asarray(x.rotation, np.float64)
    return np.abs(r.T @ r - np.eye(3)).max()


@pytest.mark.parametrize(
    "rho, expected",
    [
        (0.0, (4.008e-3, 4.08e-2, 0.2214)),
        (0.01, (3.988e-3, 3.88e-2, 0.1728)),
        (1.0, (2.533e-3, 4.016e-3, 4.016e-3)),
        (10.0, (4.001e-4, 4.0016e-4, 4.0016e-4)),
        (100.0, (4e-5,) * 3),
    ],
)
def test_embedded_euler_leaves_the_group_as_documented(rho, expected):
    system = data.system("box", with_contacts=False, gravity=[0.0, 0.0, 0.0], rho=rho)
    x, t = spinning([0, 0, 2]), 0.0
    for duration, e in zip((1.0, 9.0, 40.0), expected, strict=True):
        x, t = run(system, EmbeddedEuler(), x, 1e-3, duration), t + duration
        assert orthonormality(x) == pytest.approx(e, rel=1e-3)
    assert orthonormality(run(system, EmbeddedEuler(project=True), spinning([0, 0, 2]), 1e-3, 1.0)) < 1e-14


def test_pull_towards_the_group():
    system = data.system("box", with_contacts=False, rho=0.01)
    x = eqx.tree_at(lambda x: x.rotation, spinning([0, 0, 0]), 1.05 * jnp.eye(3))
    np.testing.assert_allclose(system(x, jnp.zeros(0)).rotation_rate, -4.880952381e-4 * np.eye(3), atol=1e-13)


@pytest.mark.parametrize("integrator", [RKMK4(), SemiImplicitEuler()], ids=name_of)
def test_lie_integrators_stay_on_the_group(integrator):
    system = data.system("box", with_contacts=False, gravity=[0.0, 0.0, 0.0])
    assert (
        orthonormality(end(system, integrator, spinning([0.3, 0.2, 2]), jnp.asarray(1e-3), jnp.asarray(100_000)))
        < 2e-12
    )
    single = data.system("box", with_contacts=False, gravity=[0.0, 0.0, 0.0], dtype=jnp.float32)
    x = end(single, integrator, spinning([0.3, 0.2, 2], jnp.float32), jnp.float32(1e-3), jnp.asarray(10_000))
    assert orthonormality(x) < 2e-5


# Joints that are not numbers, tangents, linearisation

CHAIN = """<robot name="chain"><link name="base"/>
<link name="ball"><inertial><mass value="1"/><origin xyz="0.1 0.2 -0.3"/>
  <inertia ixx=".02" iyy=".03" izz=".04" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="slab"><inertial><mass value="2"/><origin xyz="0 0.1 -0.2"/>
  <inertia ixx=".05" iyy=".03" izz=".06" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="socket" type="spherical"><parent link="base"/><child link="ball"/></joint>
<joint name="plane" type="planar"><parent link="ball"/><child link="slab"/>
  <axis xyz="0 0.6 0.8"/><origin xyz="0 0 -0.4"/></joint></robot>"""


def test_order_with_spherical_and_planar_joints():
    system = FixedBaseDynamics(from_urdf(CHAIN))
    q = jnp.array([0.8, 0.2, -0.4, 0.4, 0.1, -0.2, 0.3])
    x = FixedBaseState(q.at[:4].divide(jnp.linalg.norm(q[:4])), jnp.array([1.0, -2.0, 0.5, 0.7, -0.3, 1.5]))
    fine = run(system, RKMK4(), x, 0.2 / 800, 0.2)
    for integrator, order in (
        (SemiImplicitEuler(), 1),
        (LieMidpoint(), 2),
        (RKMK4(), 4),
        (EmbeddedRK4(project=True), 4),
    ):
        errors = [np.abs(boxminus(system, run(system, integrator, x, 0.2 / n, 0.2), fine)).max() for n in (20, 40)]
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25), name_of(integrator)


def test_tangents_are_inverse_to_each_other():
    rng = np.random.default_rng(7)
    system = data.system("biped")
    x = data.random_state(system.model, rng)
    tangent = jnp.asarray(0.5 * rng.normal(size=26))
    np.testing.assert_allclose(boxminus(system, boxplus(system, x, tangent), x), tangent, atol=1e-13)
    assert not np.asarray(boxminus(system, x, x)[6:]).any()
    with pytest.raises(InputError, match=r"tangent: wanted shape \(26,\)"):
        boxplus(system, x, jnp.zeros(25))


def check_linearization(system, integrator, x, torque, dt):
    n, m, h = 2 * system.model.nv, system.n, 1e-6

    @quick_jit
    def both(system, x, torque):
        after = step(system, integrator, x, torque, dt)

        def moved(change):
            new = step(system, integrator, boxplus(system, x, change[:n]), torque + change[n:], dt)
            return boxminus(system, new, after)

        changes = h * jnp.eye(n + m)
        steps = jax.vmap(moved)(jnp.concatenate([changes, -changes]))
        return linearize(system, integrator, x, torque, dt), (steps[: n + m] - steps[n + m :]).T / (2 * h)

    (a, b), differences = both(system, x, torque)
    assert a.shape == (n, n) and b.shape == (n, m)
    assert_close(a, differences[:, :n], 1e-6)
    assert_close(b, differences[:, n:], 1e-6)


@pytest.mark.parametrize(
    "integrator",
    [i if name_of(i) in QUICK else pytest.param(i, marks=pytest.mark.slow) for i in ALL],
    ids=name_of,
)
def test_linearization_equals_differences(integrator):
    check_linearization(data.box_on_patch(), integrator, data.box_case("tilted_spin")[1], jnp.zeros(0), 1e-2)


def test_linearization_with_joints_equals_differences():
    fixture = data.read("fdyn")["biped"]
    x, torque = data.state(fixture), jnp.asarray(fixture["tau"])
    check_linearization(data.system("biped"), SemiImplicitEuler(), x, torque, 1e-3)


@pytest.mark.parametrize("integrator", ALL, ids=name_of)
def test_no_contacts_no_joints_and_gradients_at_rest(integrator):
    system = data.system("box", with_contacts=False)
    x = state_from_configuration(system.model)

    def loss(x):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(step(system, integrator, x, None, 1e-2)))

    slopes = quick_jit(lambda x: (jax.grad(loss)(x), jax.jacfwd(loss)(x)))(x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("integrator", ALL, ids=name_of)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_step_keeps_shapes_and_dtypes_and_compiles_once(integrator, dtype):
    contact = CompliantContact("sole", ContactPatch(SmoothCoulomb(1e5, 1e3), 0.3, 0.2))
    system = FloatingBaseDynamics(data.model("box", dtype), contact)
    x = State([0.0] * 6, [], [0, 0, 0.06], np.eye(3).tolist(), [])
    if dtype == jnp.float32:
        x = jax.tree.map(lambda a: a.astype(dtype), x)
    compiled = quick_jit(lambda x: step(system, integrator, x, None, 1e-3))
    kind = lambda x: [(a.shape, a.dtype, a.weak_type) for a in jax.tree.leaves(x)]  # noqa: E731
    first = kind(x)
    for _ in range(3):
        x = compiled(x)
        assert kind(x) == first
    assert compiled._cache_size() == 1
    with pytest.raises(InputError, match="substeps"):
        step(system, integrator, x, None, 1e-3, substeps=0)


def test_substeps_are_steps():
    system = data.system("biped")
    x = data.state(data.read("fdyn")["biped"])
    once = step(system, SemiImplicitEuler(), x, None, 1e-3, substeps=4)
    for _ in range(4):
        x = step(system, SemiImplicitEuler(), x, None, 2.5e-4)
    data.assert_tree_close(once, x, 1e-12)


def test_pendulum_swings_with_its_period():
    """A fixed base: small swings of the pendulum against the closed form."""
    model = load("pendulum")
    system = FixedBaseDynamics(model)
    x = FixedBaseState([1e-4], [0.0])
    inertia = 1 / jnp.linalg.inv(jax.jacfwd(lambda t: system.acceleration(x, t))(jnp.zeros(1)))[0, 0]
    stiffness = -jax.jacfwd(lambda q: system.acceleration(FixedBaseState(q, jnp.zeros(1)), None))(jnp.zeros(1))[0, 0]
    assert inertia > 0 and stiffness > 0
    final = run(system, RKMK4(), x, 1e-3, 1.0)
    assert final.joint_position[0] == pytest.approx(1e-4 * np.cos(np.sqrt(stiffness)), abs=1e-10)
