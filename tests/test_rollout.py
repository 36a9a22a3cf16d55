"""Rollouts: parity, gradients and their memory, controls, batches, devices, and what happens when things go wrong."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from floating_base_data import assert_close, assert_tree_close

from jaxdyn.contact import (
    Brush,
    CompliantContact,
    ContactPatch,
    ContactPoints,
    Coulomb,
    FlatTerrain,
    HuntCrossley,
)
from jaxdyn.errors import InputError, Status, UnknownNameError
from jaxdyn.model import from_urdf, load
from jaxdyn.systems import (
    RKMK4,
    EmbeddedEuler,
    EmbeddedRK4,
    FixedBaseDynamics,
    FixedBaseState,
    FloatingBaseDynamics,
    Input,
    LieEuler,
    SemiImplicitEuler,
    batch_rollout,
    first_nonfinite,
    nonfinite_component,
    rollout,
    state_from_configuration,
)

EULER = SemiImplicitEuler()


# Parity and closed forms


@pytest.mark.parametrize(
    "integrator, key, tolerance",
    [
        (EmbeddedRK4(), "blf_rk4_dt0.0001", 1e-11),
        (RKMK4(), "blf_rk4_dt2.5e-05", 1e-9),
        (EmbeddedEuler(), "blf_forward_euler_dt0.0001", 1e-11),
    ],
    ids=["EmbeddedRK4", "RKMK4", "EmbeddedEuler"],
)
def test_biped_on_two_feet_equals_the_reference(integrator, key, tolerance):
    fixture, support = data.read("rollouts"), data.read("double_support")
    law = data.patch(support["params"])
    contacts = [CompliantContact(frame, law, null["p"], null["R"]) for frame, null in support["null"].items()]
    system = FloatingBaseDynamics(data.model("biped"), contacts)
    x, torque = data.state(fixture["init"]), jnp.asarray(fixture["init"]["tau"])
    final = rollout(system, integrator, x, torque, 1e-4, 500, save_every=None).final
    expected = fixture["runs"][key]
    for field, name in (
        ("twist", "twist"),
        ("joint_velocity", "ds"),
        ("position", "p"),
        ("rotation", "R"),
        ("joint_position", "s"),
    ):
        np.testing.assert_allclose(getattr(final, field), expected[name], rtol=0, atol=tolerance, err_msg=field)


def ball(law, height, gravity=9.81, dtype=None):
    """Trial T44: a ball of 1 kg that touches the ground with its lowest point."""
    model = from_urdf(data.DATA / "trials/T44.urdf", root="floating", gravity=[0.0, 0.0, -gravity], dtype=dtype)
    foot = CompliantContact("ball", ContactPoints(law, [[0.0, 0.0, -0.1]]))
    x = state_from_configuration(model)
    x = eqx.tree_at(lambda x: x.position, x, jnp.asarray([0.0, 0.0, 0.1 + height], model.dtype))
    return FloatingBaseDynamics(model, foot, terrain=FlatTerrain()), x


def test_ball_rests_at_the_depth_of_the_closed_form():
    for make, constants, depths in (
        (lambda k: Coulomb(k, 0.0), (1e3, 1e4, 1e5), (0.00981, 0.000981, 9.81e-05)),
        (lambda k: HuntCrossley(k), (1e4, 1e5, 1e6), (0.00987293, 0.00212706, 0.00045826)),
    ):
        for k, depth in zip(constants, depths, strict=True):
            system, x = ball(make(k), -depth)
            assert np.abs(system.acceleration(x, None)).max() < 2e-4 * 9.81


def hop(law, integrator, dt):
    """Height of the first hop, lowest normal force and energies at the tops of a ball dropped from 0.5 m."""
    system, x = ball(law, 0.5)
    steps = round(1.5 / dt)
    path = rollout(
        system,
        integrator,
        x,
        None,
        dt,
        steps,
        checkpoint="none",
        record=lambda x, u, t: system.contact_wrenches(x)[0, 2],
    )
    height, speed = np.asarray(path.state.position[:, 2]) - 0.1, np.asarray(path.state.twist[:, 2])
    first_contact = int(np.argmax(height < 0))
    energy = 9.81 * height + 0.5 * speed**2
    return height[first_contact:].max(), np.asarray(path.record).min(), energy[height > 0]


@pytest.mark.parametrize("law", [Coulomb(1e5, 0.0), HuntCrossley(1e6)], ids=["linear", "hunt-crossley"])
def test_dropped_ball_never_hops_higher_than_it_fell(law):
    excess = []
    for dt in (2e-4, 1e-4):
        height, force, _ = hop(law, EULER, dt)
        assert height < 0.505 and force >= 0
        excess.append(abs(height - 0.5))
    assert excess[1] < excess[0] or excess[1] < 1e-4
    # explicit Euler feeds the spring, as its documentation warns
    assert hop(law, LieEuler(), 1e-4)[0] > 0.52
    assert "gains energy" in LieEuler.__doc__


def test_dissipation_takes_energy_at_every_contact():
    for law in (Coulomb(1e5, 50.0), HuntCrossley(1e6, dissipation=0.3)):
        height, force, energy = hop(law, EULER, 1e-4)
        assert height < 0.48 and force >= 0
        assert (np.diff(energy) < 1e-2).all()


# Gradients


def test_gradients_of_the_box_drop_with_respect_to_its_parameters():
    _, x = data.box_case("drop")
    system = data.box_on_patch()

    @eqx.filter_jit
    def height(p, integrator, dt, steps):
        law = system.contacts[0].law.traction
        changed = eqx.tree_at(
            lambda s: (s.contacts[0].law.traction, s.model.inertia.mass, s.model.inertia.inertia),
            system,
            (
                Brush(law.stiffness * p[0], law.damping * p[1]),
                system.model.inertia.mass * p[2],
                system.model.inertia.inertia * p[2],
            ),
        )
        return rollout(changed, integrator, x, None, dt, steps, save_every=None).final.position[2]

    scale = np.array([2e5, 2e3, 10.0])
    exact = np.array([5.860460601e-8, 1.013349665e-7, -1.192359114e-3])
    gradient = jax.grad(height)(jnp.ones(3), RKMK4(), 1e-3, 500) / scale
    np.testing.assert_allclose(gradient, exact, rtol=1e-5)
    # semi-implicit Euler is of first order in the step: halving the step halves the error
    by_damping = [jax.jacfwd(height)(jnp.ones(3), EULER, 0.5 / n, n)[1] / scale[1] for n in (500, 1000)]
    errors = np.abs(np.array(by_damping) / exact[1] - 1)
    assert errors[0] == pytest.approx(0.32, abs=0.03) and errors[0] / errors[1] == pytest.approx(2, abs=0.2)


def settled(checkpoint, steps=10_000):
    """Height of the settled box as a function of the stiffness."""
    _, x = data.box_case("drop")
    system = data.box_on_patch()

    def height(stiffness):
        changed = eqx.tree_at(lambda s: s.contacts[0].law.traction.stiffness, system, stiffness)
        return rollout(changed, EULER, x, None, 1e-3, steps, checkpoint=checkpoint, save_every=None).final.position[2]

    return height


def test_checkpoints_save_memory_and_change_no_gradient():
    stiffness = jnp.asarray(2e5)
    compiled = {c: jax.jit(jax.grad(settled(c))).lower(stiffness).compile() for c in ("none", "step", "nested")}
    memory = {c: f.memory_analysis().temp_size_in_bytes for c, f in compiled.items()}
    values = {c: float(f(stiffness)) for c, f in compiled.items()}
    values["forward"] = float(jax.jit(jax.jacfwd(settled("none")))(stiffness))
    for value in values.values():
        assert value == pytest.approx(values["none"], rel=1e-13)
        assert value == pytest.approx(10 * 9.80665 / (2e5**2 * 0.06), rel=1e-9)
    assert memory["none"] / memory["step"] >= 8
    assert memory["none"] / memory["nested"] >= 50


def test_every_checkpoint_and_saving_gives_the_same_states_and_gradients():
    system, x = arm()
    reference = rollout(system, EULER, x, None, 1e-3, 30, checkpoint="none")
    assert reference.time.shape == (30,) and reference.time[-1] == pytest.approx(0.03)
    assert_tree_close(reference.final, jax.tree.map(lambda a: a[-1], reference.state), 0)

    def loss(x, checkpoint, save_every):
        path = rollout(system, EULER, x, None, 1e-3, 30, checkpoint=checkpoint, save_every=save_every)
        return jnp.sum(path.final.joint_velocity)

    slopes = jax.grad(loss)(x, "none", None)
    for checkpoint, save_every in (("step", 3), ("nested", 1), ("nested", 10), ("nested", 3), ("none", 30)):
        record = (lambda x, u, t: (t, u)) if save_every == 3 else None
        path = rollout(
            system, EULER, x, jnp.zeros(2), 1e-3, 30, checkpoint=checkpoint, save_every=save_every, record=record
        )
        assert_tree_close(path.state, jax.tree.map(lambda a, m=save_every: a[m - 1 :: m], reference.state), 1e-14)
        if record:
            np.testing.assert_allclose(path.record[0], path.time, rtol=1e-12)
        assert_tree_close(jax.grad(loss)(x, checkpoint, save_every), slopes, 1e-12)


def test_prime_numbers_of_steps_are_fine():
    _, x = data.box_case("drop")
    system = data.box_on_patch()
    a = rollout(system, EULER, x, None, 1e-3, 53, checkpoint="nested")
    assert_tree_close(a.state, rollout(system, EULER, x, None, 1e-3, 53, checkpoint="none").state, 1e-14)


def test_free_fall_carries_gradients_through_a_hundred_steps():
    system = data.system("box", with_contacts=False)
    x = state_from_configuration(system.model)

    def final(x):
        return rollout(system, EULER, x, None, 5e-3, 100, save_every=None).final

    slopes = jax.jit(jax.jacrev(final))(x)
    np.testing.assert_array_equal(slopes.position.position, np.eye(3))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_constant_thrust_has_the_gradient_of_the_closed_form():
    n, h = 200, 1e-2
    system = data.system("box", with_contacts=False)
    x = state_from_configuration(system.model)

    def height(thrust):
        gravity = jnp.stack([0 * thrust, 0 * thrust, thrust])
        pushed = eqx.tree_at(lambda s: s.model.gravity, system, gravity)
        return rollout(pushed, EULER, x, None, h, n, save_every=None).final.position[2]

    assert jax.grad(height)(jnp.asarray(1.0)) == pytest.approx(h**2 * n * (n + 1) / 2, rel=1e-12)


# Controls


def arm():
    model = load("double_pendulum")
    return FixedBaseDynamics(model), FixedBaseState(jnp.full(model.nq, 0.3), jnp.zeros(model.nv))


class Feedback(eqx.Module):
    gain: jax.Array

    def __call__(self, x, t):
        return -self.gain * x.joint_position - 0.1 * x.joint_velocity


def test_controls_in_all_their_forms():
    system, x = arm()
    torque = jnp.asarray([0.3, -0.2])
    held = rollout(system, EULER, x, torque, 1e-2, 20)
    assert_tree_close(rollout(system, EULER, x, jnp.tile(torque, (20, 1)), 1e-2).state, held.state, 1e-14)
    assert_tree_close(rollout(system, EULER, x, Input(torque), 1e-2, 20).state, held.state, 1e-14)
    assert_tree_close(rollout(system, EULER, x, lambda x, t: torque, 1e-2, 20).state, held.state, 1e-14)
    none = rollout(system, EULER, x, None, 1e-2, 20).state
    assert_tree_close(none, rollout(system, EULER, x, jnp.zeros(2), 1e-2, 20).state, 1e-14)
    feedback = rollout(system, EULER, x, Feedback(jnp.asarray(5.0)), 1e-2, 20, record=lambda x, u, t: u)
    expected = -5 * x.joint_position - 0.1 * x.joint_velocity
    np.testing.assert_allclose(feedback.record[0], expected)
    slope = jax.grad(lambda k: rollout(system, EULER, x, Feedback(k), 1e-2, 20).final.joint_position[0])(
        jnp.asarray(5.0)
    )
    assert np.isfinite(slope) and slope != 0


def test_a_contact_schedule_is_an_input_with_a_time_axis():
    _, x = data.box_case("drop")
    system = data.box_on_patch()
    contact = system.contacts[0]
    switched = eqx.tree_at(lambda c: c.active, contact, jnp.concatenate([jnp.ones(15), jnp.zeros(15)]))
    path = rollout(system, EULER, x, Input(jnp.zeros((30, 0)), (switched,)), 1e-3)
    on = rollout(system, EULER, x, None, 1e-3, 15)
    off = rollout(data.system("box", with_contacts=False), EULER, on.final, None, 1e-3, 15)
    assert_tree_close(path.final, off.final, 1e-13)


def test_time_is_the_number_of_the_step_and_not_a_sum():
    system, x = arm()
    path = rollout(
        system, EULER, x, lambda x, t: jnp.stack([jnp.sin(t), t]), 1e-2, 30, t0=1e4, record=lambda x, u, t: u[1]
    )
    np.testing.assert_allclose(path.record, 1e4 + 1e-2 * np.arange(30), rtol=1e-15)
    system = FixedBaseDynamics(system.model.astype(jnp.float32))
    x = jax.tree.map(lambda a: a.astype(jnp.float32), x)
    path = rollout(system, EULER, x, None, 1e-3, 10_000, save_every=1000)
    assert path.time.dtype == jnp.float32 and path.time[-1] == pytest.approx(10, abs=1e-5)
    assert np.isfinite(path.state.joint_position).all()


def test_wrong_calls_are_named():
    system, x = arm()
    with pytest.raises(UnknownNameError, match="nested"):
        rollout(system, EULER, x, None, 1e-2, 10, checkpoint="nest")
    with pytest.raises(InputError, match="positive time step"):
        rollout(system, EULER, x, None, -1e-2, 10)
    with pytest.raises(InputError, match="divisor"):
        rollout(system, EULER, x, None, 1e-2, 10, save_every=3)
    with pytest.raises(InputError, match="no time axis"):
        rollout(system, EULER, x, None, 1e-2)
    with pytest.raises(InputError, match="time axis of length"):
        rollout(system, EULER, x, jnp.zeros((5, 2)), 1e-2, 10)
    with pytest.raises(InputError, match=r"\(2,\)"):
        rollout(system, EULER, x, jnp.zeros((5, 3)), 1e-2)
    for start in (None, jnp.zeros(2), (jnp.zeros(2), jnp.zeros(2))):
        with pytest.raises(InputError, match="x0: wanted a state of FixedBaseDynamics"):
            rollout(system, EULER, start, None, 1e-2, 10)
        with pytest.raises(InputError, match="x0: wanted a state of FixedBaseDynamics"):
            batch_rollout(system, EULER, start, None, 1e-2, 10)
    empty = rollout(system, EULER, x, None, 1e-2, 0)
    assert_tree_close(empty.final, x, 0)
    assert empty.time.shape == (0,)


def test_other_numbers_do_not_compile_anew():
    system, x = arm()
    traces = []

    def policy(x, t):
        traces.append(None)
        return jnp.zeros(2)

    for i in range(3):
        heavy = eqx.tree_at(lambda s: s.model.inertia.mass, system, system.model.inertia.mass * (1 + i))
        rollout(heavy, EULER, jax.tree.map(lambda a, i=i: a + i, x), policy, 1e-3 * (1 + i), 10)
        first = len(traces) if i == 0 else first
    assert len(traces) == first


def test_compiled_program_does_not_grow_with_the_horizon():
    system, x = arm()
    texts = [
        jax.jit(lambda x, n=n: rollout(system, EULER, x, None, 1e-3, n).final).lower(x).as_text() for n in (10, 1000)
    ]
    assert len(texts[1]) <= len(texts[0]) * 1.02


# Batches


def quadrupeds(n, seed=0):
    model = load("quadruped", root="floating")
    feet = [f for f in model.frame_names if f.endswith("_foot")]
    system = FloatingBaseDynamics(
        model, [CompliantContact(f, Coulomb(2e4, 2e2, 0.7)) for f in feet], terrain=FlatTerrain()
    )
    rng = np.random.default_rng(seed)
    stand = jnp.tile(jnp.asarray([0.0, 0.8, -1.6]), 4)
    q = jnp.concatenate([jnp.asarray([0.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0]), stand])
    x = state_from_configuration(model, q)
    many = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *a.shape)), x)
    many = eqx.tree_at(lambda x: x.position, many, many.position + jnp.asarray(0.02 * rng.random((n, 3))))
    friction = jnp.asarray(0.3 + 0.6 * rng.random(n))
    random = eqx.tree_at(lambda s: [c.law.traction.friction for c in s.contacts], system, [friction] * 4)
    return system, random, many, Stand(stand)


class Stand(eqx.Module):
    posture: jax.Array

    def __call__(self, x, t):
        return 60.0 * (self.posture - x.joint_position) - 2.0 * x.joint_velocity


@pytest.fixture(scope="module")
def herd():
    return quadrupeds(6)


@pytest.fixture(scope="module")
def whole(herd):
    _, random, x, policy = herd
    return batch_rollout(random, EULER, x, policy, 1e-3, 40, save_every=10, threads=1)


def test_batch_equals_single_rollouts_with_other_friction_in_each(herd, whole):
    system, random, x, policy = herd
    assert whole.status is Status.OK and whole.finite.all() and whole.steps == 40
    assert whole.trajectory.state.position.shape == (6, 4, 3) and whole.trajectory.time.shape == (4,)
    for i in (0, 5):
        alone = eqx.tree_at(
            lambda s: [c.law.traction.friction for c in s.contacts],
            system,
            [random.contacts[0].law.traction.friction[i]] * 4,
        )
        path = rollout(
            alone, EULER, jax.tree.map(lambda a, i=i: a[i], x), policy, 1e-3, 40, save_every=10, checkpoint="none"
        )
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], whole.trajectory.state), path.state, 1e-11)


def test_tiles_threads_and_chunks_change_nothing(herd, whole):
    _, random, x, policy = herd
    seen = []
    other = batch_rollout(
        random, EULER, x, policy, 1e-3, 40, save_every=10, tile=4, threads=2, chunk=20, progress=seen.append
    )
    assert_tree_close(other.trajectory.state, whole.trajectory.state, 1e-12)
    assert_tree_close(other.trajectory.final, whole.trajectory.final, 1e-12)
    assert [p.done for p in seen] == [20, 40] and all(p.environments == 6 and p.rate > 0 for p in seen)


def test_two_devices_give_the_bits_of_one(herd):
    _, random, x, policy = herd
    devices = jax.devices()
    assert len(devices) == 2
    x, random = jax.tree.map(lambda a: a[:4] if a.ndim and a.shape[0] == 6 else a, (x, random))
    results = [
        batch_rollout(
            random, EULER, x, policy, 1e-3, 20, mesh=jax.sharding.Mesh(np.array(devices[:n]), ("env",)), chunk=20
        )
        for n in (1, 2)
    ]
    jax.tree.map(np.testing.assert_array_equal, results[0].trajectory.final, results[1].trajectory.final)
    with pytest.raises(InputError, match="one axis"):
        batch_rollout(
            random, EULER, x, policy, 1e-3, 20, mesh=jax.sharding.Mesh(np.array(devices).reshape(1, 2), ("a", "b"))
        )


def pendulums(n):
    system = FixedBaseDynamics(load("pendulum"))
    return system, FixedBaseState(jnp.linspace(0.1, 1.0, n)[:, None], jnp.zeros((n, 1)))


def test_interruption_keeps_what_was_computed():
    system, x = pendulums(3)

    def stop(progress):
        if progress.done >= 20:
            raise KeyboardInterrupt

    result = batch_rollout(system, EULER, x, None, 1e-2, 50, save_every=5, chunk=10, progress=stop)
    assert result.status is Status.INTERRUPTED and result.steps == 20
    assert result.trajectory.state.joint_position.shape == (3, 4, 1)
    whole = batch_rollout(system, EULER, x, None, 1e-2, 50, save_every=5, chunk=10)
    assert_tree_close(result.trajectory.state, jax.tree.map(lambda a: a[:, :4], whole.trajectory.state), 1e-14)


def test_a_state_that_is_not_finite_is_named():
    system, x = pendulums(5)
    torque = np.zeros((5, 40, 1))
    torque[3, 17] = np.nan
    result = batch_rollout(system, EULER, x, jnp.asarray(torque), 1e-2, 40, chunk=10)
    assert result.status is Status.NON_FINITE and result.steps == 20
    assert "environment 3: joint_velocity[0] = nan after step 18 (t = 0.18 s)" in result.message
    np.testing.assert_array_equal(result.finite, [True, True, True, False, True])
    onwards = batch_rollout(system, EULER, x, jnp.asarray(torque), 1e-2, 40, chunk=10, stop_if_not_finite=False)
    assert onwards.steps == 40 and onwards.finite.sum() == 4 and onwards.status is Status.NON_FINITE
    bad = rollout(system, EULER, jax.tree.map(lambda a: a[3], x), jnp.asarray(torque[3]), 1e-2)
    assert first_nonfinite(bad) == (17, "joint_velocity[0] = nan")
    assert first_nonfinite(rollout(system, EULER, jax.tree.map(lambda a: a[0], x), None, 1e-2, 3)) is None
    assert nonfinite_component({"a": np.array([[0.0, np.inf]])}) == "['a'][0, 1] = inf"


def test_controls_of_a_batch():
    system, x = pendulums(3)
    single = jax.tree.map(lambda a: a[1], x)
    rng = np.random.default_rng(0)
    torque = jnp.asarray(rng.normal(size=(3, 10, 1)))
    by_both = batch_rollout(system, EULER, x, torque, 1e-2, 10).trajectory.final
    assert_tree_close(
        jax.tree.map(lambda a: a[1], by_both), rollout(system, EULER, single, torque[1], 1e-2).final, 1e-13
    )
    by_time = batch_rollout(system, EULER, x, torque[1], 1e-2, 10).trajectory.final
    assert_tree_close(
        jax.tree.map(lambda a: a[1], by_time), rollout(system, EULER, single, torque[1], 1e-2).final, 1e-13
    )
    held = batch_rollout(system, EULER, x, torque[:, 0], 1e-2, 10).trajectory.final
    assert_tree_close(
        jax.tree.map(lambda a: a[1], held), rollout(system, EULER, single, torque[1, 0], 1e-2, 10).final, 1e-13
    )
    with pytest.raises(InputError, match="may be time or environments"):
        batch_rollout(system, EULER, x, torque[:, :3][:, 0], 1e-2, 3)
    with pytest.raises(InputError, match="leading axes"):
        batch_rollout(system, EULER, x, torque[:2], 1e-2, 10)
    with pytest.raises(InputError, match="one leading axis for the environments"):
        batch_rollout(system, EULER, single, None, 1e-2, 10)


def test_masses_differ_by_environment_and_wrong_axes_are_named():
    system, x = pendulums(3)
    masses = system.model.inertia.mass[None] * jnp.array([[0.5], [1.0], [2.0]])
    random = eqx.tree_at(lambda s: s.model.inertia.mass, system, masses)
    result = batch_rollout(random, EULER, x, jnp.ones(1), 1e-2, 10).trajectory.final
    told = eqx.tree_at(
        lambda s: s.model.inertia.mass, jax.tree.map(lambda _: None, system), 0, is_leaf=lambda a: a is None
    )
    assert_tree_close(
        batch_rollout(random, EULER, x, jnp.ones(1), 1e-2, 10, system_axes=told).trajectory.final, result, 1e-14
    )
    for i in range(3):
        alone = eqx.tree_at(lambda s: s.model.inertia.mass, system, masses[i])
        path = rollout(alone, EULER, jax.tree.map(lambda a, i=i: a[i], x), jnp.ones(1), 1e-2, 10)
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], result), path.final, 1e-13)
    wrong = eqx.tree_at(lambda s: s.model.inertia.mass, system, masses[:2])
    with pytest.raises(InputError, match=r"system\.model\.inertia\.mass.*3 environments"):
        batch_rollout(wrong, EULER, x, None, 1e-2, 10)


def test_patch_on_a_foot_in_single_precision():
    law = ContactPatch(Brush(2e5, 2e3), 0.3, 0.2)
    system = FloatingBaseDynamics(data.model("box", jnp.float32), CompliantContact("sole", law))
    _, x = data.box_case("drop", jnp.float32)
    result = rollout(system, EULER, x, None, 1e-3, 2000, save_every=1000)
    assert result.final.position.dtype == jnp.float32
    assert_close(result.final.position, [0, 0, 0.0418278128], 1e-5)
