"""Time derivatives, derivatives of kinematics and momentum, relative motion, Coriolis matrix and regressors: against
Pinocchio, against automatic differentiation, and by the laws that they satisfy."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from evaluations import TREES, check, every_robot_in_both_precisions, oracle, quick_jit, robot
from oracles import FRAMES, states

import jaxdyn.algorithms as alg
from jaxdyn.errors import InputError
from jaxdyn.math import SE3, SpatialInertia
from jaxdyn.math.spatial import Representation
from jaxdyn.model import from_urdf, integrate, load

REPRESENTATIONS = tuple(Representation)


def frames(model):
    """A frame to look at and one, on another body, to look from."""
    carried = [(name, body) for name, body in zip(model.frame_names, model.tree.frame_bodies, strict=True) if body >= 0]
    frame, body = carried[-1]
    return frame, next(name for name, b in carried[model.n_bodies // 2 :] + carried if b != body)


def everything(model, q, v, a, wrenches):
    kin = alg.forward_kinematics(model, q, v, a)
    frame, reference = frames(model)
    result = {
        "coriolis": alg.coriolis_matrix(model, q, v),
        "static": alg.static_torque(model, q, wrenches),
        "regressor": alg.joint_torque_regressor(model, q, v, a),
        "kinetic": alg.kinetic_energy_regressor(model, q, v),
        "potential": alg.potential_energy_regressor(model, q),
        "com_acceleration": alg.com_acceleration(model, kin),
        "com_bias": alg.com_jacobian_dot_v(model, kin),
        "com_jacobian_dot": alg.com_jacobian_dot(model, kin),
        "subtree_mass": alg.subtree_masses(model),
        "subtree_com": alg.subtree_centers_of_mass(model, kin),
        "subtree_velocity": alg.subtree_com_velocities(model, kin),
        "momentum_rate": alg.centroidal_momentum_rate(model, kin),
        "centroidal_bias": alg.centroidal_bias(model, kin),
        "map_dot": alg.centroidal_map_dot(model, kin),
        "centroidal": alg.centroidal_derivatives(model, q, v, a)._asdict(),
        "power": alg.mechanical_power(model, q, v, a, wrenches),
        "frame_regressor": alg.frame_regressor(model, kin, frame),
    }
    for representation in REPRESENTATIONS:
        at = (model, kin, frame, representation)
        pair = (model, kin, frame, reference, representation)
        result[representation.name] = {
            "jacobian": alg.frame_jacobian(*at),
            "jacobian_dot": alg.frame_jacobian_dot(*at),
            "spatial": alg.frame_acceleration(*at, kind="spatial"),
            "classical": alg.frame_acceleration(*at, kind="classical"),
            "velocity": alg.frame_velocity_derivatives(*at)._asdict(),
            "acceleration": alg.frame_acceleration_derivatives(*at)._asdict(),
            "relative_velocity": alg.relative_velocity(*pair),
            "relative_jacobian": alg.relative_jacobian(*pair),
            "relative_acceleration": alg.relative_acceleration(*pair),
            "relative_bias": alg.relative_jacobian_dot_v(*pair),
        }
    return result


@functools.cache
def evaluate(name, dtype):
    model = robot(name).astype(dtype)
    s = {key: x for key, x in states(model).items() if key != "tau"}
    result = quick_jit(jax.vmap(lambda model, s: everything(model, **s), (None, 0)))(model, s)
    assert all(x.dtype == dtype for x in jax.tree.leaves(result))
    return model, {key: np.asarray(x) for key, x in s.items()}, jax.tree.map(np.asarray, result)


class Reference:
    """The same of one state in Pinocchio."""

    def __init__(self, name, model, q, v, a):
        self.name, self.o, self.model = name, oracle(name), model
        self.there = (self.o.q(q), self.o.v(v), self.o.v(a))
        self.m, self.d = self.o.model, self.o.data

    def bodies(self, values):
        """Per body, in our order."""
        return np.array([values[self.m.getJointId(name)] for name in self.model.joint_names])

    def dynamics(self):
        q, v, a = self.there
        o, m, d = self.o, self.m, self.d
        result = {"coriolis": o.matrix(pin.computeCoriolisMatrix(m, d, q, v))}
        if self.name in TREES:  # bodies have other frames there, and so other parameters
            return result
        y = pin.computeJointTorqueRegressor(m, d, q, v, a).reshape(m.nv, m.njoints - 1, 10)
        y = y[:, [m.getJointId(name) - 1 for name in self.model.joint_names]]
        result["regressor"] = o.columns(y.reshape(m.nv, -1).T).T
        kinetic = pin.computeKineticEnergyRegressor(m, d, q, v).reshape(m.njoints - 1, 10)
        potential = pin.computePotentialEnergyRegressor(m, d, q).reshape(m.njoints - 1, 10)
        order = [m.getJointId(name) - 1 for name in self.model.joint_names]
        result["kinetic"], result["potential"] = kinetic[order].reshape(-1), potential[order].reshape(-1)
        return result

    def centroidal(self):
        q, v, a = self.there
        o, m, d = self.o, self.m, self.d
        result = {}
        pin.dccrba(m, d, q, v)
        result["map_dot"] = o.columns(d.dAg)
        result["momentum_rate"] = pin.computeCentroidalMomentumTimeVariation(m, d, q, v, a).vector.copy()
        dh_dq, dhdot_dq, dhdot_dv, dhdot_da = pin.computeCentroidalDynamicsDerivatives(m, d, q, v, a)
        result["centroidal"] = {
            "momentum": d.hg.vector.copy(),
            "rate": d.dhg.vector.copy(),
            "momentum_dq": o.columns(dh_dq),
            "momentum_dv": o.columns(dhdot_da),
            "rate_dq": o.columns(dhdot_dq),
            "rate_dv": o.columns(dhdot_dv),
            "rate_da": o.columns(dhdot_da),
        }
        pin.centerOfMass(m, d, q, v, a)
        result["com_acceleration"] = d.acom[0].copy()
        result["subtree_mass"] = self.bodies(d.mass)
        result["subtree_com"] = np.array(
            [d.oMi[j].act(d.com[j]) for j in (m.getJointId(name) for name in self.model.joint_names)]
        )
        return result

    def frame(self, representation):
        q, v, a = self.there
        o, m, d = self.o, self.m, self.d
        frame = m.getFrameId(frames(self.model)[0], pin.FrameType.BODY)  # joints may have names of links
        there = FRAMES[representation]
        pin.computeJointJacobiansTimeVariation(m, d, q, v)
        pin.updateFramePlacements(m, d)
        result = {
            "jacobian": o.columns(pin.getFrameJacobian(m, d, frame, there)),
            "jacobian_dot": o.columns(pin.getFrameJacobianTimeVariation(m, d, frame, there)),
        }
        pin.forwardKinematics(m, d, q, v, a)
        pin.updateFramePlacements(m, d)
        result["spatial"] = pin.getFrameAcceleration(m, d, frame, there).vector
        result["classical"] = pin.getFrameClassicalAcceleration(m, d, frame, there).vector
        return result


@every_robot_in_both_precisions
def test_rates_and_regressors_agree_with_pinocchio(name, dtype, tolerance):
    model, s, ours = evaluate(name, dtype)
    for i in range(len(s["q"])):
        reference = Reference(name, model, s["q"][i], s["v"][i], s["a"][i])
        at = lambda x, i=i: jax.tree.map(lambda y: y[i], x)  # noqa: E731
        for part, expected in (reference.dynamics() | reference.centroidal()).items():
            jax.tree.map(lambda x, y, part=part: check(x, y, tolerance, part), at(ours[part]), expected)
        for representation in REPRESENTATIONS:
            found, expected = at(ours[representation.name]), reference.frame(representation)
            moving = np.abs(expected["jacobian"]).max(initial=0) * np.abs(s["v"][i]).max(initial=0)
            for part, there in expected.items():
                scale = moving if part == "jacobian_dot" else 0  # zero for the base in its own axes
                check(found[part], there, tolerance, f"{part} {representation.name}", scale)


@every_robot_in_both_precisions
def test_laws_of_the_rates(name, dtype, tolerance):
    """What the parts are to each other: products with v and a, energies, torques."""
    model, s, r = evaluate(name, dtype)
    v, a = s["v"], s["a"]
    times = lambda m, x: np.einsum("bij,bj->bi", m, x)  # noqa: E731
    single = jax.vmap(
        lambda model, q, v: (alg.nonlinear_effects(model, q, v), alg.gravity_torque(model, q)), (None, 0, 0)
    )
    bias, gravity = quick_jit(single)(model, s["q"], v)
    scale = max(np.abs(bias).max(), 1.0)
    np.testing.assert_allclose(times(r["coriolis"], v), bias - gravity, atol=10 * tolerance * scale)
    check(r["com_acceleration"] * float(model.total_mass), r["momentum_rate"][:, :3], 10 * tolerance)
    check(times(r["map_dot"], v), r["centroidal_bias"], 10 * tolerance)
    check(times(r["com_jacobian_dot"], v), r["com_bias"], 10 * tolerance)
    for representation in REPRESENTATIONS:
        part = r[representation.name]
        check(times(part["relative_jacobian"], v), part["relative_velocity"], 10 * tolerance)
        expected = times(part["relative_jacobian"], a) + part["relative_bias"]
        check(part["relative_acceleration"], expected, 10 * tolerance)
        check(part["velocity"]["dv"], part["jacobian"], tolerance)
        check(part["acceleration"]["da"], part["jacobian"], tolerance)


# What automatic differentiation says


@functools.cache
def by_differentiation():
    """Of one state of a small tree with all joint types: the closed forms, and jacobians in tangent space and rates
    along the motion by forward mode."""
    model = robot("small")
    s = {key: x[0] for key, x in states(model).items() if key != "tau"}
    frame, reference = frames(model)

    def at(d, v, a):
        q = integrate(model, s["q"], d)
        kin = alg.forward_kinematics(model, q, v, a)
        result = {
            "momentum": alg.centroidal_momentum(model, kin),
            "rate": alg.centroidal_momentum_rate(model, kin),
            "map": alg.centroidal_map(model, kin),
            "com_jacobian": alg.com_jacobian(model, kin),
            "mass_matrix": alg.crba(model, q),
            "subtree_com": alg.subtree_centers_of_mass(model, kin),
        }
        for representation in REPRESENTATIONS:
            result[representation.name] = {
                "jacobian": alg.frame_jacobian(model, kin, frame, representation),
                "velocity": alg.frame_velocity(model, kin, frame, representation),
                "acceleration": alg.frame_acceleration(model, kin, frame, representation),
                "relative_velocity": alg.relative_velocity(model, kin, frame, reference, representation),
            }
        pose = alg.relative_pose(model, kin, frame, reference)
        result["relative"] = (pose.rotation, pose.translation)
        return result

    @quick_jit
    def compute(v, a):
        zero = jnp.zeros(model.nv)
        jacobians = jax.jacfwd(at, (0, 1, 2))(zero, v, a)
        rates = jax.jvp(lambda t: at(t * v, v + t * a, a), (jnp.zeros(()),), (jnp.ones(()),))
        return rates[0], jacobians, rates[1], everything(model, s["q"], v, a, s["wrenches"])

    return model, s, jax.tree.map(np.asarray, compute(s["v"], s["a"]))


def test_rates_are_derivatives_along_the_motion():
    _, _, (here, _, rates, r) = by_differentiation()
    check(r["map_dot"], rates["map"], 1e-12)
    check(r["com_jacobian_dot"], rates["com_jacobian"], 1e-12)
    check(r["momentum_rate"], rates["momentum"], 1e-12)
    check(r["subtree_velocity"], rates["subtree_com"], 1e-12)
    for representation in REPRESENTATIONS:
        mine, theirs = r[representation.name], rates[representation.name]
        check(mine["jacobian_dot"], theirs["jacobian"], 1e-12, representation.name)
        check(mine["relative_acceleration"], theirs["relative_velocity"], 1e-12, representation.name)
    rotation, translation = rates["relative"]
    turned = here["relative"][0].T @ rotation
    local = np.array([*(here["relative"][0].T @ translation), turned[2, 1], turned[0, 2], turned[1, 0]])
    check(r["LOCAL"]["relative_velocity"], local, 1e-12)


def test_the_coriolis_matrix_makes_the_rate_of_the_mass_matrix_skew():
    _, _, (_, _, rates, r) = by_differentiation()
    skew = rates["mass_matrix"] - 2 * r["coriolis"]
    assert np.abs(skew).max() > 0.1
    check(skew, -skew.T, 1e-12)


def test_closed_forms_are_what_automatic_differentiation_gives():
    _, _, (here, jacobians, _, r) = by_differentiation()
    for k, by in enumerate(("dq", "dv", "da")):
        for representation in REPRESENTATIONS:
            mine = r[representation.name]
            theirs = {part: value[k] for part, value in jacobians[representation.name].items()}
            if by != "da":
                check(mine["velocity"][by], theirs["velocity"], 1e-12, representation.name)
            check(mine["acceleration"][by], theirs["acceleration"], 1e-12, representation.name)
        check(r["centroidal"][f"rate_{by}"], jacobians["rate"][k], 1e-12)
        if by != "da":
            check(r["centroidal"][f"momentum_{by}"], jacobians["momentum"][k], 1e-12)
    check(r["centroidal"]["momentum"], here["momentum"], 1e-12)
    check(r["centroidal"]["rate"], here["rate"], 1e-12)


# Bodies, payloads, edges


def test_a_payload_is_felt_as_its_regressor_says():
    """A body fixed to a frame: the torques that it adds are J^T times the regressor's wrench."""
    model, s, r = evaluate("small", jnp.float64)
    frame = frames(model)[0]
    body = model.tree.frame_bodies[model.frame(frame)]
    placement = model.frame_placement
    payload = jnp.asarray([0.7, 0.1, -0.2, 0.05, 0.3, 0.02, 0.2, -0.01, 0.03, 0.25])
    index = model.frame(frame)
    at = SE3(placement.rotation[index], placement.translation[index])
    total = jax.tree.map(lambda x: x[body], model.inertia) + SpatialInertia.from_point_parameters(payload).transform(at)
    heavier = eqx.tree_at(
        lambda m: m.inertia, model, jax.tree.map(lambda x, y: x.at[body].set(y), model.inertia, total)
    )
    i = 0
    q, v, a = (jnp.asarray(s[key][i]) for key in ("q", "v", "a"))
    added = alg.rnea(heavier, q, v, a) - alg.rnea(model, q, v, a)
    expected = r["LOCAL"]["jacobian"][i].T @ r["frame_regressor"][i] @ payload
    check(added, expected, 1e-11)


def test_torques_and_energies_are_linear_in_the_parameters():
    model, s, r = evaluate("small", jnp.float64)
    parameters = np.asarray(alg.inertial_parameters(model)).reshape(-1)
    for i in range(len(s["q"])):
        q, v, a = (jnp.asarray(s[key][i]) for key in ("q", "v", "a"))
        check(r["regressor"][i] @ parameters, alg.rnea(model, q, v, a) - model.armature * a, 1e-12)
        check(r["kinetic"][i] @ parameters, alg.kinetic_energy(model, q, v), 1e-12)
        check(r["potential"][i] @ parameters, alg.potential_energy(model, q), 1e-12)
        energy = alg.mechanical_energy(model, q, v)
        check(energy, alg.kinetic_energy(model, q, v) + alg.potential_energy(model, q), 1e-14)


def test_regressors_are_derivatives_by_the_parameters():
    model, s, r = evaluate("small", jnp.float64)
    q, v, a = (jnp.asarray(s[key][0]) for key in ("q", "v", "a"))

    def at(parameters):
        changed = eqx.tree_at(lambda m: m.inertia, model, SpatialInertia.from_point_parameters(parameters))
        return alg.rnea(changed, q, v, a), alg.kinetic_energy(changed, q, v), alg.potential_energy(changed, q)

    by_parameters = quick_jit(jax.jacfwd(at))(alg.inertial_parameters(model))
    for part, derivative in zip(("regressor", "kinetic", "potential"), by_parameters, strict=True):
        check(r[part][0], derivative.reshape(r[part][0].shape), 1e-11, part)


def test_static_torques_hold_the_robot():
    model, s, r = evaluate("small", jnp.float64)
    for i in range(len(s["q"])):
        a = alg.aba(model, s["q"][i], jnp.zeros(model.nv), r["static"][i], s["wrenches"][i])
        assert np.abs(a).max() < 1e-9


def test_power_is_the_rate_of_the_energy():
    model, s, r = evaluate("small", jnp.float64)
    i = 1
    q, v, tau, wrenches = (jnp.asarray(s[key][i]) for key in ("q", "v", "a", "wrenches"))
    a = alg.aba(model, q, v, tau, wrenches)
    moving = lambda t: alg.mechanical_energy(model, integrate(model, q, v * t), v + a * t)  # noqa: E731
    _, rate = quick_jit(lambda: jax.jvp(moving, (jnp.zeros(()),), (jnp.ones(()),)))()
    check(r["power"][i], rate, 1e-11)


def test_the_world_as_a_frame_and_robots_without_joints():
    weld = '<joint name="f" type="fixed"><parent link="base"/><child link="tool"/></joint>'
    text = f'<robot name="r"><link name="base"/><link name="tool"/>{weld}</robot>'
    model = from_urdf(text, dtype=jnp.float64)
    empty = jnp.zeros(0)
    kin = alg.forward_kinematics(model, empty, empty, empty)
    assert alg.coriolis_matrix(model, empty, empty).shape == (0, 0)
    assert alg.joint_torque_regressor(model, empty, empty, empty).shape == (0, 0)
    assert alg.centroidal_derivatives(model, empty, empty, empty).rate_dq.shape == (6, 0)
    assert alg.centroidal_map_dot(model, kin).shape == (6, 0)
    assert alg.com_jacobian_dot(model, kin).shape == (3, 0)
    assert alg.subtree_centers_of_mass(model, kin).shape == (0, 3)
    arm = load("double_pendulum", dtype=jnp.float64)
    two = jnp.array([0.3, -0.2])
    kin = alg.forward_kinematics(arm, two, two, two)
    still = arm.frame_names[[b < 0 for b in arm.tree.frame_bodies].index(True)]
    for part in (
        alg.frame_jacobian_dot(arm, kin, still),
        alg.frame_acceleration(arm, kin, still, kind="classical"),
        alg.frame_velocity_derivatives(arm, kin, still).dq,
        alg.frame_acceleration_derivatives(arm, kin, still).dv,
        alg.relative_jacobian(arm, kin, still, still),
        alg.relative_velocity(arm, kin, still, still),
    ):
        assert not np.any(part)
    moving = arm.frame_names[-1]
    check(alg.relative_velocity(arm, kin, moving, still), alg.frame_velocity(arm, kin, moving), 1e-14)


def test_what_is_missing_is_named():
    model = load("double_pendulum", dtype=jnp.float64)
    two = jnp.array([0.3, -0.2])
    frame = model.frame_names[-1]
    bare, moving = alg.forward_kinematics(model, two), alg.forward_kinematics(model, two, two)
    with pytest.raises(InputError, match="velocities"):
        alg.frame_jacobian_dot(model, bare, frame)
    with pytest.raises(InputError, match="velocities"):
        alg.centroidal_map_dot(model, bare)
    with pytest.raises(InputError, match="accelerations"):
        alg.frame_acceleration_derivatives(model, moving, frame)
    with pytest.raises(InputError, match="accelerations"):
        alg.centroidal_momentum_rate(model, moving)
    kin = alg.forward_kinematics(model, two, two, two)
    with pytest.raises(InputError, match="'classical'"):
        alg.frame_acceleration(model, kin, frame, kind="clasical")
    with pytest.raises(InputError, match=r"\bv\b"):
        alg.coriolis_matrix(model, two, jnp.zeros(3))
