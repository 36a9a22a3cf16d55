"""Floating-base dynamics with compliant contacts, against bipedal-locomotion-framework, iDynTree, and the laws of mechanics."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit
from floating_base_data import assert_close, assert_tree_close

from jaxdyn.algorithms import forward_kinematics
from jaxdyn.contact import Brush, CompliantContact, ContactPatch, FlatTerrain, SmoothCoulomb
from jaxdyn.errors import InputError
from jaxdyn.math import SE3, Representation, so3
from jaxdyn.math.spatial import convert_wrench
from jaxdyn.model import from_urdf, load
from jaxdyn.systems import (
    FloatingBaseDynamics,
    Input,
    SemiImplicitEuler,
    State,
    StateDerivative,
    boxplus,
    configuration_from_state,
    rollout,
    state_from_configuration,
)

ROBOTS = ("biped", "box", "talos_reduced")
derivative = quick_jit(lambda system, x, u: system(x, u))


def with_activity(system, *active):
    return eqx.tree_at(
        lambda s: [c.active for c in s.contacts],
        system,
        [jnp.asarray(a, s.active.dtype) for a, s in zip(active, system.contacts, strict=True)],
    )


def assert_case(result, case, tolerance):
    assert_close(result.twist_rate, case["base_acc_mixed"], tolerance)
    assert_close(result.joint_acceleration, case["dds"], tolerance)
    assert_close(result.rotation_rate, case["Rdot"], tolerance)


@pytest.mark.parametrize("dtype, free, touching", [(jnp.float64, 1e-10, 1e-10), (jnp.float32, 2e-5, 2e-3)])
@pytest.mark.parametrize("name", ROBOTS)
def test_accelerations_equal_the_reference(name, dtype, free, touching):
    fixture = data.read("fdyn")[name]
    x, torque = data.state(fixture, dtype), jnp.asarray(fixture["tau"], dtype)
    system = data.system(name, dtype=dtype)
    result = derivative(system, x, torque)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(result))
    assert_case(result, fixture["cases"]["contacts_all"], touching)
    n = len(system.contacts)
    assert_case(
        derivative(with_activity(system, *[1.0] + [0.0] * (n - 1)), x, torque),
        fixture["cases"]["contact_first"],
        touching,
    )
    none = with_activity(system, *[0.0] * n)
    assert_case(derivative(none, x, torque), fixture["cases"]["no_contact"], free)
    moon = eqx.tree_at(lambda s: s.model.gravity, none, jnp.array([0.3, -0.2, -1.62], dtype))
    assert_case(derivative(moon, x, torque), fixture["cases"]["gravity_0.3_-0.2_-1.62_no_contact"], free)


def given_wrenches(model, fixture, frames):
    """The wrenches of the fixture on some soles, about the origins of the bodies that carry these (n_bodies, 6)."""
    wrenches = np.zeros((model.n_bodies, 6))
    for name in frames:
        sole, frame = fixture["soles"][name], model.frame(name)
        rotation = np.asarray(sole["R"]) @ np.asarray(model.frame_placement.rotation[frame]).T
        arm = rotation @ np.asarray(model.frame_placement.translation[frame])
        force, moment = np.split(np.asarray(sole["wrench"]), 2)
        wrenches[model.tree.frame_bodies[frame]] += np.concatenate([force, moment + np.cross(arm, force)])
    return jnp.asarray(wrenches)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-10), (jnp.float32, 2e-5)])
@pytest.mark.parametrize("name", ROBOTS)
def test_accelerations_under_given_wrenches_equal_the_reference(name, dtype, tolerance):
    """The wrenches of the reference in place of the contacts that make them."""
    fixture = data.read("fdyn")[name]
    x, torque = data.state(fixture, dtype), jnp.asarray(fixture["tau"], dtype)
    system = data.system(name, with_contacts=False, dtype=dtype)
    soles = list(fixture["soles"])
    for case, frames in (("contacts_all", soles), ("contact_first", soles[:1])):
        wrenches = given_wrenches(data.model(name), fixture, frames).astype(dtype)
        assert_case(derivative(system, x, Input(torque, None, wrenches)), fixture["cases"][case], tolerance)


@pytest.mark.parametrize("name", ROBOTS)
def test_mass_regularization_equals_the_reference_and_zero_equals_the_articulated_body_algorithm(name):
    fixture = data.read("fdyn")[name]
    x, torque = data.state(fixture), jnp.asarray(fixture["tau"])
    nv = 6 + len(fixture["joints"])
    matrix = np.diag(0.05 + 0.01 * np.arange(nv))
    system = data.system(name, mass_regularization=matrix)
    assert_case(derivative(system, x, torque), fixture["cases"]["Mreg_diag_0.05+0.01i_contacts_all"], 1e-10)
    zero = eqx.tree_at(lambda s: s.mass_regularization, system, jnp.zeros((nv, nv)))
    assert_case(derivative(zero, x, torque), fixture["cases"]["contacts_all"], 1e-10)


@pytest.mark.parametrize("name", ["biped", "box"])
def test_mass_matrix_bias_and_contact_jacobian_equal_the_reference(name):
    fixture = data.read("fdyn")[name]
    system, x = data.system(name), data.state(fixture)

    @quick_jit
    def quantities(system, x):
        zero = jnp.zeros(system.model.nv)
        jacobian = jax.jacfwd(lambda v: system.contact_states(system.displace(x, zero, v))[1])(zero)
        return (
            system.mass_matrix(x),
            system.bias_force(x),
            jacobian,
            system.contact_states(x),
            system.contact_wrenches(x),
        )

    mass, bias, jacobian, (pose, twist), wrenches = quantities(system, x)
    assert_close(mass, fixture["M"], 1e-12)
    assert_close(bias, fixture["h"], 1e-12)
    for i, (frame, sole) in enumerate(fixture["soles"].items()):
        assert_close(jacobian[i], fixture["J"][frame], 1e-12)
        assert_close(pose.rotation[i], sole["R"], 1e-12)
        assert_close(pose.translation[i], sole["p"], 1e-12)
        assert_close(twist[i], sole["twist"], 1e-12)
        assert_close(wrenches[i], sole["wrench"], 1e-10)


def test_gradients_with_respect_to_contact_constants_and_torques():
    fixture = data.read("fdyn")["biped"]
    system, x, torque = data.system("biped"), data.state(fixture), jnp.asarray(fixture["tau"])

    def acceleration(constants, torque):
        changed = eqx.tree_at(
            lambda s: [p for c in s.contacts for p in (c.law.traction.stiffness, c.law.traction.damping)],
            system,
            [constants[0], constants[1]] * 2,
        )
        return changed.acceleration(x, torque)

    both = quick_jit(lambda *at: [jacobian(acceleration, (0, 1))(*at) for jacobian in (jax.jacfwd, jax.jacrev)])
    for by_constants, by_torque in both(jnp.array([2e6, 1e4]), torque):
        assert_close(by_constants[:, 0], fixture["dacc_dk"], 1e-9)
        assert_close(by_constants[:, 1], fixture["dacc_db"], 1e-9)
        assert_close(by_torque, fixture["dacc_dtau"], 1e-9)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-9), (jnp.float32, 5e-2)])
def test_static_double_support_stands_still(dtype, tolerance):
    fixture = data.read("double_support")
    law = data.patch(fixture["params"])
    contacts = [CompliantContact(frame, law, null["p"], null["R"]) for frame, null in fixture["null"].items()]
    system = FloatingBaseDynamics(data.model("biped", dtype), contacts)
    n = len(fixture["s"])
    x = State(
        jnp.zeros(6, dtype), jnp.zeros(n, dtype), *(jnp.asarray(fixture[k], dtype) for k in ("base_p", "base_R", "s"))
    )
    u = Input(jnp.asarray(fixture["tau"], dtype))
    result = derivative(system, x, u)
    assert np.abs(result.twist_rate).max() < tolerance and np.abs(result.joint_acceleration).max() < tolerance
    if dtype == jnp.float64:
        wrenches = system.contact_wrenches(x, u)
        for i, frame in enumerate(fixture["null"]):
            np.testing.assert_allclose(wrenches[i], fixture["wrench"][frame], rtol=0, atol=1e-8)
        assert wrenches[:, 2].sum() == pytest.approx(291.2575050, abs=1e-8)


@quick_jit
def balances(system, x, torque):
    """Both sides of the balances of linear momentum, angular momentum about the centre of mass, and energy."""
    model = system.model
    mass = jnp.sum(model.inertia.mass)

    def momenta_and_energy(x):
        m, v = system.mass_matrix(x), system.velocity(x)
        momentum = m @ v
        com = x.position + so3.vee(m[3:6, :3]) / mass
        angular = momentum[3:6] - so3.cross(com - x.position, momentum[:3])
        energy = 0.5 * v @ momentum - mass * model.gravity @ com
        return momentum[:3], angular, energy, com

    rate = system(x, torque)
    along = State(rate.twist_rate, rate.joint_acceleration, rate.position_rate, rate.rotation_rate, rate.joint_rate)
    (_, _, _, com), (linear, angular, power, _) = jax.jvp(momenta_and_energy, (x,), (along,))
    pose, twist = system.contact_states(x)
    wrench = system.contact_wrenches(x)
    force, moment = wrench[:, :3], wrench[:, 3:]
    arms = pose.translation - com[None]
    return (linear, angular, power), (
        mass * model.gravity + force.sum(0),
        (moment + so3.cross(arms, force)).sum(0),
        jnp.sum(wrench * twist) + torque @ x.joint_velocity,
    )


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-10), (jnp.float32, 1e-4)])
@pytest.mark.parametrize("name", ROBOTS)
def test_momentum_and_power_balance(name, dtype, tolerance):
    rng = np.random.default_rng(5)
    system = data.system(name, dtype=dtype)
    for _ in range(20):
        x = data.random_state(system.model, rng, dtype)
        torque = jnp.asarray(rng.normal(size=system.n), dtype)
        left, right = balances(system, x, torque)
        for a, b in zip(left, right, strict=True):
            assert_close(a, b, tolerance)


def test_balances_in_numbers():
    fixture = data.read("fdyn")["biped"]
    (linear, angular, power), _ = balances(data.system("biped"), data.state(fixture), jnp.asarray(fixture["tau"]))
    expected = -89.14934741207, -77.99465238989, -316.75855660211, -54.72329961935, 58.39677635259, -1.90528082127
    np.testing.assert_allclose(np.concatenate([linear, angular]), expected, rtol=0, atol=1e-10)
    assert power == pytest.approx(-57.242072962549, abs=1e-10)


def test_turning_and_shifting_the_world_turns_the_accelerations():
    fixture = data.read("fdyn")["biped"]
    system, x, torque = data.system("biped"), data.state(fixture), jnp.asarray(fixture["tau"])
    turn, shift = so3.from_rpy(jnp.array([0.0, 0.0, 0.7])), jnp.array([3.0, -2.0, 0.0])
    pair = lambda t: jnp.concatenate([turn @ t[:3], turn @ t[3:]])  # noqa: E731
    moved = State(pair(x.twist), x.joint_velocity, turn @ x.position + shift, turn @ x.rotation, x.joint_position)
    anchored = [c.anchored(SE3(turn @ c.null_rotation, turn @ c.null_position + shift)) for c in system.contacts]
    there = derivative(eqx.tree_at(lambda s: list(s.contacts), system, anchored), moved, torque)
    here = derivative(system, x, torque)
    assert_close(there.twist_rate, pair(here.twist_rate), 1e-10)
    assert_close(there.joint_acceleration, here.joint_acceleration, 1e-10)


def test_gravity_shifts_the_base_acceleration_and_nothing_else():
    fixture = data.read("fdyn")["biped"]
    system, x, torque = data.system("biped"), data.state(fixture), jnp.asarray(fixture["tau"])
    other = eqx.tree_at(lambda s: s.model.gravity, system, system.model.gravity + jnp.array([0.3, -0.2, 8.18665]))
    a, b = derivative(system, x, torque), derivative(other, x, torque)
    np.testing.assert_allclose(b.twist_rate[:3] - a.twist_rate[:3], [0.3, -0.2, 8.18665], atol=1e-12)
    np.testing.assert_array_equal(a.twist_rate[3:], b.twist_rate[3:])
    np.testing.assert_array_equal(a.joint_acceleration, b.joint_acceleration)


def test_zero_gravity_rest_is_rest_to_the_last_bit():
    for name in ("biped", "box"):
        system = data.system(name, with_contacts=False, gravity=[0.0, 0.0, 0.0])
        x = data.random_state(system.model, np.random.default_rng(0))
        x = eqx.tree_at(lambda x: (x.twist, x.joint_velocity), x, (0 * x.twist, 0 * x.joint_velocity))
        result = derivative(system, x, jnp.zeros(system.n))
        moving = result.twist_rate, result.joint_acceleration, result.position_rate, result.joint_rate
        assert not any(np.asarray(leaf).any() for leaf in moving)


def test_free_fall_has_the_acceleration_of_gravity():
    system = data.system("biped", with_contacts=False)
    x = data.random_state(system.model, np.random.default_rng(1))
    x = eqx.tree_at(lambda x: (x.twist, x.joint_velocity), x, (0 * x.twist, 0 * x.joint_velocity))
    result = derivative(system, x, jnp.zeros(system.n))
    np.testing.assert_allclose(result.twist_rate, [0, 0, -9.80665, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(result.joint_acceleration, 0, atol=1e-11)


def test_the_same_frame_twice_adds_up_and_input_contacts_replace_the_systems():
    fixture = data.read("fdyn")["box"]
    x, torque = data.state(fixture), jnp.zeros(0)
    contact = data.contacts("box")[0]
    half = eqx.tree_at(lambda c: c.active, contact, jnp.asarray(0.5))
    model = data.model("box")
    expected = derivative(FloatingBaseDynamics(model, contact), x, torque)
    assert_tree_close(derivative(FloatingBaseDynamics(model, [half, half]), x, torque), expected, 1e-13)
    assert_tree_close(derivative(FloatingBaseDynamics(model), x, Input(torque, (contact,))), expected, 1e-13)
    none = derivative(FloatingBaseDynamics(model, contact), x, Input(torque, ()))
    assert_tree_close(none, derivative(FloatingBaseDynamics(model), x, torque), 1e-13)


# Against iDynTree, off the rotation group and with another base link


class Kindyn:
    def __init__(self, base=None):
        self.idt = pytest.importorskip("idyntree.swig")
        loader = self.idt.ModelLoader()
        joints = data.read("fdyn")["biped"]["joints"]
        assert loader.loadReducedModelFromFile(str(data.urdf_path("biped")), self.idt.StringVector(joints))
        self.kindyn = self.idt.KinDynComputations()
        self.kindyn.loadRobotModel(loader.model())
        if base:
            assert self.kindyn.setFloatingBase(base)

    def acceleration(self, x, torque, contacts, gravity, regularization=None):
        """The equations of bipedal-locomotion-framework, assembled by iDynTree."""
        n = x.joint_velocity.size
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = x.rotation, x.position
        s, v, ds = (np.asarray(a, float) for a in (x.joint_position, x.twist, x.joint_velocity))
        assert self.kindyn.setRobotState(pose, s, v, ds, np.asarray(gravity, float))
        mass = self.idt.MatrixDynSize(6 + n, 6 + n)
        assert self.kindyn.getFreeFloatingMassMatrix(mass)
        forces = self.idt.FreeFloatingGeneralizedTorques(self.kindyn.model())
        assert self.kindyn.generalizedBiasForces(forces)
        right = -np.concatenate([forces.baseWrench().toNumPy(), forces.jointTorques().toNumPy()])
        right[6:] += torque
        for contact in contacts:
            jacobian = self.idt.MatrixDynSize(6, 6 + n)
            assert self.kindyn.getFrameFreeFloatingJacobian(contact.frame, jacobian)
            frame = self.kindyn.getWorldTransform(contact.frame)
            rotation, position = jnp.asarray(frame.getRotation().toNumPy()), jnp.asarray(frame.getPosition().toNumPy())
            twist = jnp.asarray(self.kindyn.getFrameVel(contact.frame).toNumPy())
            right += jacobian.toNumPy().T @ np.asarray(contact.wrench(SE3(rotation, position), twist))
        matrix = mass.toNumPy() + (0 if regularization is None else regularization)
        return np.linalg.solve(matrix, right)


def test_a_rotation_that_is_not_orthonormal_is_taken_as_the_reference_takes_it():
    fixture = data.read("fdyn")["biped"]
    rng = np.random.default_rng(2)
    matrix = np.diag(0.05 + 0.01 * np.arange(13))
    oracle = Kindyn()
    x, torque = data.state(fixture), jnp.asarray(fixture["tau"])
    for scale in (1e-3, 1e-1):
        rotation = x.rotation @ (jnp.eye(3) + scale * jnp.asarray(rng.normal(size=(3, 3))))
        off = eqx.tree_at(lambda x: x.rotation, x, rotation)
        for regularization in (None, matrix):
            system = data.system("biped", mass_regularization=regularization)
            result = derivative(system, off, torque)
            expected = oracle.acceleration(off, torque, system.contacts, system.model.gravity, regularization)
            assert_close(np.concatenate([result.twist_rate, result.joint_acceleration]), expected, 1e-10)
            inverse_transposed = np.linalg.inv(rotation).T
            rate = np.asarray(so3.hat(x.twist[3:]) @ rotation) + 0.005 * (inverse_transposed - np.asarray(rotation))
            assert_close(result.rotation_rate, rate, 1e-12)


def test_derivatives_with_respect_to_entries_of_the_rotation_equal_differences():
    fixture = data.read("fdyn")["biped"]
    system, x, torque = data.system("biped"), data.state(fixture), jnp.asarray(fixture["tau"])

    @jax.jit
    def acceleration(entries):
        return system.acceleration(eqx.tree_at(lambda x: x.rotation, x, entries.reshape(3, 3)), torque)

    entries, h = x.rotation.reshape(9), 1e-6
    differences = np.stack(
        [(acceleration(entries + h * e) - acceleration(entries - h * e)) / (2 * h) for e in jnp.eye(9)], -1
    )
    assert_close(jax.jacfwd(acceleration)(entries), differences, 1e-7)


@pytest.mark.parametrize("regularized", [False, True])
def test_another_base_link(regularized):
    fixture = data.read("fdyn")["biped"]
    matrix = np.diag(0.05 + 0.01 * np.arange(13)) if regularized else None
    x, torque = data.state(fixture), jnp.asarray(fixture["tau"])
    system = data.system("biped", base_link="l_foot", mass_regularization=matrix)
    expected = Kindyn("l_foot").acceleration(x, torque, system.contacts, system.model.gravity, matrix)
    assert_close(derivative(system, x, torque).twist_rate, expected[:6], 1e-10)
    assert_close(derivative(system, x, torque).joint_acceleration, expected[6:], 1e-10)


# External wrenches


def test_wrenches_are_in_world_axes_about_the_origin_of_the_body():
    model = data.model("biped")
    system, x = data.system("biped", with_contacts=False), data.state(data.read("fdyn")["biped"])
    rng = np.random.default_rng(8)
    wrenches = jnp.asarray(rng.normal(size=(model.n_bodies, 6)))
    # the same as constant contacts: power equals the change that the wrenches make to the energy's rate
    torque = jnp.zeros(7)
    pushed, free = (system.acceleration(x, Input(torque, None, w)) for w in (wrenches, 0 * wrenches))
    q, v = configuration_from_state(model, x)
    kinematics = forward_kinematics(model, q, v)
    power = jnp.sum(kinematics.twist * wrenches)
    assert system.velocity(x) @ system.mass_matrix(x) @ (pushed - free) == pytest.approx(float(power), rel=1e-10)
    with pytest.raises(InputError, match=r"wrenches: wanted shape \(8, 6\)"):
        system.acceleration(x, Input(torque, None, wrenches[:2]))


def test_a_pure_force_about_the_worlds_origin_has_a_moment_about_the_body():
    text = """<robot name="b"><link name="b"><inertial><mass value="1"/>
    <inertia ixx="0.08333333333333333" iyy="0.08333333333333333" izz="0.08333333333333333" ixy="0" ixz="0" iyz="0"/>
    </inertial></link></robot>"""
    system = FloatingBaseDynamics(from_urdf(text, root="floating"), gravity=[0.0, 0.0, 0.0])
    x = eqx.tree_at(lambda x: x.position, state_from_configuration(system.model), jnp.array([0.0, 0.0, 1.0]))
    pose = SE3(x.rotation, x.position)
    force = jnp.array([10.0, 0, 0, 0, 0, 0])
    there = convert_wrench(force, pose, Representation.WORLD, Representation.MIXED)
    np.testing.assert_allclose(there, [10, 0, 0, 0, -10, 0])
    result = system(x, Input(jnp.zeros(0), None, there[None]))
    np.testing.assert_allclose(result.twist_rate, [10, 0, 0, 0, -120, 0], atol=1e-12)
    pushes = jnp.asarray(np.random.default_rng(0).choice([-10.0, 10.0], size=(1000, 3)))

    def push(x, t):
        force = jnp.concatenate([pushes[jnp.round(t * 1000).astype(int)], jnp.zeros(3)])
        pose = SE3(x.rotation, x.position)
        return Input(jnp.zeros(0), None, convert_wrench(force, pose, Representation.WORLD, Representation.MIXED)[None])

    final = rollout(system, SemiImplicitEuler(), x, push, 1e-3, 1000, save_every=None).final
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(final))


def test_first_and_second_derivatives_near_the_identity_and_at_a_half_turn():
    law = ContactPatch(SmoothCoulomb(1e3, 10.0, smoothing=1e-2), 0.3, 0.2, quadrature=2)
    system = FloatingBaseDynamics(data.model("box"), CompliantContact("sole", law), terrain=FlatTerrain())
    x = state_from_configuration(system.model)

    def acceleration(tangent):
        return system.acceleration(boxplus(system, x, tangent), None)

    def central(function, tangent, h):
        return jax.vmap(lambda e: (function(tangent + h * e) - function(tangent - h * e)) / (2 * h), out_axes=-1)(
            jnp.eye(12)
        )

    @quick_jit
    @jax.vmap
    def everything(tangent):
        reverse = jax.jacrev(acceleration)
        first = jax.jacfwd(acceleration)(tangent), reverse(tangent), central(acceleration, tangent, 1e-6)
        return first, (jax.jacfwd(reverse)(tangent), central(reverse, tangent, 1e-6))

    direction = jnp.array([0.0, 0.0, 0.0, 0.6, 0.64, 0.48, *[0.0] * 6])
    angles = jnp.array([0.0, 1e-9, 1e-4, 1e-2, np.pi])
    (forward, reverse, differences), (second, second_differences) = everything(angles[:, None] * direction[None])
    assert_close(forward, reverse, 1e-12)
    for i in range(len(angles)):
        assert_close(forward[i], differences[i], 1e-6)
        assert_close(second[i], second_differences[i], 1e-6)


# States, errors, hygiene


def test_state_and_configuration_are_inverse_to_each_other():
    model = data.model("biped")
    x = data.random_state(model, np.random.default_rng(3))
    q, v = configuration_from_state(model, x)
    assert q.shape == (model.nq,) and v.shape == (model.nv,)
    assert_tree_close(state_from_configuration(model, q, v), x, 1e-14)
    rest = state_from_configuration(model)
    np.testing.assert_array_equal(rest.rotation, np.eye(3))
    with pytest.raises(InputError, match="floating"):
        state_from_configuration(load("arm7"))


def test_derivative_has_the_order_of_the_state():
    fields = lambda c: tuple(c.__dataclass_fields__)  # noqa: E731
    assert fields(State) == ("twist", "joint_velocity", "position", "rotation", "joint_position")
    assert fields(StateDerivative) == (
        "twist_rate",
        "joint_acceleration",
        "position_rate",
        "rotation_rate",
        "joint_rate",
    )
    x = State([0] * 6, [], [0.0, 0.0, 1.0], np.eye(3), [])
    assert all(leaf.dtype == jnp.float64 and not leaf.weak_type for leaf in jax.tree.leaves(x))


def test_wrong_arguments_are_named():
    """Case T28 of the specification: a scalar gravity, an unknown frame, wrong sizes."""
    model = data.model("biped")
    law = ContactPatch(Brush(1e5, 1e3), 0.2, 0.1)
    for wrong in (9.81, [0.0, -9.81], np.zeros((1, 3))):
        with pytest.raises(ValueError, match=r"gravity: wanted shape \(3,\)"):
            FloatingBaseDynamics(model, gravity=wrong)
    with pytest.raises(ValueError, match=r"'l_sol'.*'l_sole'"):
        FloatingBaseDynamics(model, CompliantContact("l_sol", law))
    with pytest.raises(ValueError, match=r"base_link.*'trso'"):
        FloatingBaseDynamics(model, base_link="trso")
    with pytest.raises(ValueError, match=r"mass_regularization: wanted shape \(13, 13\), given shape \(7, 7\)"):
        FloatingBaseDynamics(model, mass_regularization=np.eye(7))
    with pytest.raises(ValueError, match="symmetric"):
        FloatingBaseDynamics(model, mass_regularization=np.triu(np.ones((13, 13))))
    with pytest.raises(ValueError, match="floating"):
        FloatingBaseDynamics(load("arm7"))
    system = FloatingBaseDynamics(model)
    x = state_from_configuration(model)
    with pytest.raises(ValueError, match=r"torque: wanted shape \(7,\).*given \(6,\)"):
        jax.eval_shape(system, x, jnp.zeros(6))
    for field, shape in (("joint_velocity", (6,)), ("joint_position", (8,)), ("joint_position", (1, 7))):
        wrong = eqx.tree_at(lambda x, f=field: getattr(x, f), x, jnp.zeros(shape))
        with pytest.raises(ValueError, match=rf"{field}: wanted shape \(7,\)"):
            jax.eval_shape(system, wrong, jnp.zeros(7))
    with pytest.raises(ValueError, match=r"rotation: wanted shape \(3, 3\)"):
        State(np.zeros(6), np.zeros(7), np.zeros(3), np.zeros(4), np.zeros(7))
    with pytest.raises(ValueError, match=r"twist: wanted shape \(6,\)"):
        State(np.zeros(5), np.zeros(7), np.zeros(3), np.eye(3), np.zeros(7))


def test_other_numbers_do_not_compile_anew():
    traces = []

    @eqx.filter_jit
    def f(system, x, u):
        traces.append(None)
        return system(x, u)

    system, x = data.system("biped"), data.state(data.read("fdyn")["biped"])
    for i in range(5):
        changed = eqx.tree_at(
            lambda s: (s.contacts[0].law.traction.stiffness, s.model.inertia.mass, s.contacts[1].active),
            system,
            (jnp.asarray(1e5 + i), system.model.inertia.mass * (1 + 0.1 * i), jnp.asarray(0.1 * i)),
        )
        f(changed, x, jnp.zeros(7))
    assert len(traces) == 1


def test_batches_equal_loops_also_over_stiffness_and_activity_of_contacts():
    system = data.system("biped")
    rng, n = np.random.default_rng(4), 64
    states = [data.random_state(system.model, rng) for _ in range(n)]
    torques = jnp.asarray(rng.normal(size=(n, 7)))
    masks = jnp.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]] * (n // 4))
    stiffness = jnp.asarray(2e6 * rng.uniform(0.5, 2, size=n))

    def changed(mask, stiffness):
        get = lambda s: [c.law.traction.stiffness for c in s.contacts]  # noqa: E731
        return eqx.tree_at(get, with_activity(system, *mask), [stiffness] * 2)

    @quick_jit
    @jax.vmap
    def batched(x, torque, mask, stiffness):
        return changed(mask, stiffness)(x, torque)

    result = batched(jax.tree.map(lambda *a: jnp.stack(a), *states), torques, masks, stiffness)
    for i, (x, torque, mask, k) in enumerate(zip(states, torques, masks, stiffness, strict=True)):
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], result), derivative(changed(mask, k), x, torque), 1e-12)
    bare = derivative(data.system("biped", with_contacts=False), states[0], torques[0])
    assert_tree_close(jax.tree.map(lambda a: a[0], result), bare, 1e-12)


def test_gradients_are_finite_at_rest_with_the_identity():
    system = data.system("biped")
    anchor = [c.anchored(SE3.identity()) for c in system.contacts]
    system = eqx.tree_at(lambda s: list(s.contacts), system, anchor)
    x = state_from_configuration(system.model)

    @quick_jit
    def gradients(system, x, torque):
        loss = lambda sxu: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sxu[0](sxu[1], sxu[2])))  # noqa: E731
        return jax.grad(loss)((system, x, torque))

    with jax.debug_nans(True):
        found = gradients(system, x, jnp.zeros(7))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_joint_friction_and_armature_act_when_asked_for():
    model = load("quadruped", root="floating")
    model = eqx.tree_at(lambda m: (m.damping, m.friction), model, (jnp.full(18, 0.3), jnp.full(18, 0.1)))
    x = data.random_state(model, np.random.default_rng(6))
    u = jnp.zeros(12)
    plain, rubbing = (derivative(FloatingBaseDynamics(model, joint_friction=f), x, u) for f in (False, True))
    torque = -0.3 * x.joint_velocity - 0.1 * jnp.tanh(x.joint_velocity / 1e-3)
    assert_tree_close(rubbing, derivative(FloatingBaseDynamics(model), x, torque), 1e-12)
    assert np.abs(rubbing.joint_acceleration - plain.joint_acceleration).max() > 1
    heavy = FloatingBaseDynamics(model, armature=np.full(12, 0.2))
    matrix = np.diag([0.0] * 6 + [0.2] * 12)
    assert_tree_close(
        derivative(heavy, x, u), derivative(FloatingBaseDynamics(model, mass_regularization=matrix), x, u), 1e-10
    )
