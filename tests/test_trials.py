"""The numbers of the trials in data/trials: cases from public threads in which other libraries were wrong. What is about
loading alone is in test_urdf.py and test_urdf_text.py.

The expected values have ten digits; tolerance 1e-8 unless a trial says otherwise. Quaternions there are x, y, z, w.
"""

import json
import pathlib
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import quick_jit

from jaxdyn.algorithms import (
    aba,
    center_of_mass,
    centroidal_momentum,
    com_jacobian,
    com_velocity,
    crba,
    forward_kinematics,
    frame_acceleration,
    frame_jacobian,
    frame_pose,
    gravity_torque,
    jacobian_dot_v,
    joint_friction_torque,
    kinetic_energy,
    mass_matrix_status,
    nonlinear_effects,
    potential_energy,
    rnea,
)
from jaxdyn.errors import InputError, JaxdynWarning, Status, UnknownNameError
from jaxdyn.math import so3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model import configuration, configuration_status, from_urdf, integrate, neutral, tangent

TRIALS = pathlib.Path(__file__).parent / "data" / "trials"
EXPECTED = json.loads((TRIALS / "expected.json").read_text())
ZERO = jnp.zeros(())


def robot(name, root="fixed", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JaxdynWarning)  # tests of loading look at the warnings
        return from_urdf(TRIALS / f"{name}.urdf", root=root, gravity=(0.0, 0.0, -9.81), **options)


def close(value, expected, tolerance=1e-8):
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def values(trial, *names):
    return [jnp.asarray(trial[name]) for name in names]


def floating(model, position, quaternion, joints):
    return configuration(model, {"root_joint": jnp.asarray([*position, *quaternion]), **joints})


def quaternion(rpy):
    return so3.to_quaternion(so3.from_rpy(jnp.asarray(rpy)))


def compute(function, *arguments):
    """The function of the arguments, compiled as one program: eager calls would compile one each."""
    return quick_jit(function)(*arguments)


def by_name(model, names, size=6):
    """Our index of each entry of a vector there: `size` of the base, then the named joints."""
    return np.array([*range(size), *(model.tree.v_offset[model.joint(name)] for name in names)])


# A. Reading URDF


def test_t01_an_absent_axis_is_x():
    model, t = robot("T01"), EXPECTED["T01"]
    q = configuration(model, dict(zip(t["joints"], t["q"], strict=True)))
    v, a = (tangent(model, dict(zip(t["joints"], t[x], strict=True))) for x in ("v", "a"))

    def all_of(model, q, v, a):
        return frame_pose(model, forward_kinematics(model, q), "tip"), crba(model, q), rnea(model, q, v, a)

    pose, mass, torque = compute(all_of, model, q, v, a)
    close(pose.translation, t["tip_xyz"])
    close(pose.rotation, t["tip_R"])
    close(mass, t["M"])
    close(torque, t["tau"])


def test_t04_inertial_frames_absent_turned_and_with_off_diagonal_terms():
    model, t = robot("T04"), EXPECTED["T04"]
    mass, torque = compute(lambda m, q, v, a: (crba(m, q), rnea(m, q, v, a)), model, *values(t, "q", "v", "a"))
    close(mass, t["M"])
    close(torque, t["tau"])
    box = robot("T04b", root="floating")
    torque = compute(rnea, box, neutral(box), jnp.zeros(6), jnp.zeros(6).at[3].set(1.0))
    close(torque[3:], EXPECTED["T04b"]["torque_for_unit_angular_acceleration_about_link_x"])


def test_t08_followers_are_solved():
    model, t = robot("T08"), EXPECTED["T08"]
    q = configuration(model, {"left_j": t["left_j"]})

    def all_of(model, q):
        kin = forward_kinematics(model, q)
        torques = gravity_torque(model, q), rnea(model, q, jnp.full(1, 0.2), jnp.full(1, 0.5))
        return frame_pose(model, kin, "right"), frame_pose(model, kin, "flap"), crba(model, q)[0, 0], *torques

    right, flap, mass, gravity, torque = compute(all_of, model, q)
    close(right.translation, t["right_xyz"])
    close(flap.rotation, t["flap_R"])
    close(mass, t["reduced_M"])
    close(gravity[0], t["reduced_gravity"])
    close(torque[0], t["reduced_tau_at_xd_0p2_xdd_0p5"])


def test_t10_planar_and_floating_joints_move_as_their_axes_say():
    model, t = robot("T10a"), EXPECTED["T10a"]["if_supported"]
    q, v = jnp.array([0.2, 0.1, 0.5]), jnp.array([0.0, 0.0, 2.0])
    kin, mass, force = compute(
        lambda m, q, v: (forward_kinematics(m, q, v), crba(m, q), gravity_torque(m, neutral(m))), model, q, v
    )
    close(mass, t["M_planar"], 1e-14)
    close(kin.translation[0], [0.1, 0.0, 0.7])  # u = z and w = x
    close(kin.twist[0, 3:], [0, 2, 0])
    close(force, [t["gravity_z"], 0, 0])
    drone = robot("T10b")
    total = EXPECTED["T10b"]["if_supported"]["total_mass"]
    force, mass = compute(lambda m: (gravity_torque(m, neutral(m)), crba(m, neutral(m))), drone)
    close(force[:3], [0, 0, 9.81 * total])
    close(mass[:3, :3], total * np.eye(3))


def test_t12_numbers_are_read_however_they_are_written():
    model, t = robot("T12"), EXPECTED["T12"]

    def all_of(model, q, v, a):
        return frame_pose(model, forward_kinematics(model, q), "tip"), crba(model, q), rnea(model, q, v, a)

    tip, mass, torque = compute(all_of, model, jnp.asarray(t["q"]), jnp.array([0.5]), jnp.array([0.2]))
    close(tip.translation, t["tip_xyz"])
    close(mass, t["M"])
    close(torque, t["tau"])


def test_t14_forward_kinematics_work_without_limits():
    for name, tip in (("T14", [0.1 + 0.7 * np.cos(0.5), 0.7 * np.sin(0.5), 0]), ("T14b", [0, 0, 0])):
        model = robot(name)
        kin = forward_kinematics(model, jnp.full(model.nq, 0.5))
        close(kin.translation[-1], tip)


def test_t16_the_order_of_elements_does_not_matter():
    model, t = robot("T16"), EXPECTED["T16"]

    def all_of(model, q, v):
        kin = forward_kinematics(model, q)
        tip = frame_pose(model, kin, "tip"), frame_jacobian(model, kin, "tip")
        return *tip, crba(model, q), nonlinear_effects(model, q, v)

    tip, jacobian, mass, bias = compute(all_of, model, configuration(model, t["q"]), tangent(model, t["v"]))
    for pair, expected in t["M"].items():
        i, j = (model.joint(name) for name in pair.split(","))
        close(mass[i, j], expected)
        close(mass[j, i], expected)
    for name, expected in t["bias_force"].items():
        close(bias[model.joint(name)], expected)
        close(jacobian[:3, model.joint(name)], t["tip_J_lin_world_axes"][name])
    close(tip.translation, t["tip_xyz"])


# B. Changing a model


def test_t19_armature_is_in_every_algorithm_and_damping_where_it_is_asked_for():
    bare, t = robot("T19"), EXPECTED["T19"]
    q, v, a, armature = values(t, "q", "v", "a", "armature")
    # the file has dry friction too
    model = eqx.tree_at(lambda m: (m.armature, m.friction), bare, (armature, jnp.zeros(2)))

    @quick_jit
    def all_of(model, q, v, a):
        torque, friction = rnea(model, q, v, a), joint_friction_torque(model, v)
        free = [aba(model, q, v, tau) for tau in (torque, jnp.zeros(2), friction)]
        return crba(model, q), torque, torque - friction, *free

    mass, torque, *_ = all_of(bare, q, v, a)
    close(mass, t["M_without"])
    close(torque, t["tau_without"])
    mass, torque, damped, same, free, slowed = all_of(model, q, v, a)
    close(mass, t["M_with"])
    close(torque, t["tau_with_armature"])
    close(damped, t["tau_with_armature_and_viscous_damping"])
    close(same, a, 1e-12)
    close(free, t["qdd_for_zero_torque_without_damping"])
    close(slowed, t["qdd_for_zero_torque_with_damping"])


# C. Numbers


def test_t20_the_mass_matrix_is_full_symmetric_and_that_of_inverse_and_forward_dynamics():
    model, t = robot("T20", root="floating"), EXPECTED["T20"]
    x, y, z, w = t["base_quat_xyzw"]
    q = floating(model, t["base_xyz"], (w, x, y, z), t["joints"])
    v = tangent(model, {"root_joint": jnp.asarray(t["v_base"]), **t["v_joints"]})
    order = by_name(model, t["joint_order_here"])

    def all_of(model, q, v):
        zero = jnp.zeros(model.nv)
        columns = jax.vmap(lambda a: rnea(model, q, zero, a))(jnp.eye(model.nv)).T
        forward = aba(model, q, v, zero)
        return crba(model, q), columns - gravity_torque(model, q)[:, None], nonlinear_effects(model, q, v), forward

    mass, columns, bias, free = compute(all_of, model, q, v)
    close(mass[np.ix_(order, order)], t["M"])
    np.testing.assert_allclose(mass, mass.T, atol=1e-15)
    close(mass[np.ix_(order[6:], order[6:])], t["joint_block_is_convention_free"])
    close(np.linalg.eigvalsh(mass).min(), t["eig_min"])
    np.testing.assert_allclose(columns, mass, atol=1e-13)
    close(bias[order], t["nle"])
    close(free[order], t["aba_for_tau_zero"])
    close(compute(kinetic_energy, model, q, v), t["kinetic_energy"])


def test_t22_the_time_derivative_of_a_jacobian_times_v_is_the_classical_acceleration():
    model, t = robot("T22"), EXPECTED["T22"]

    def all_of(model, q, v):
        kin = forward_kinematics(model, q, v)
        jacobian = lambda time: frame_jacobian(model, forward_kinematics(model, integrate(model, q, v * time)), "tool")  # noqa: E731
        return jacobian_dot_v(model, kin, "tool"), jax.jvp(jacobian, (ZERO,), (jnp.ones(()),))[1]

    bias, rate = compute(all_of, model, *values(t, "q", "v"))
    close(bias, t["Jdot_v"])
    close(rate, t["Jdot_local_world_aligned"], 1e-7)
    assert np.abs(bias - np.asarray(t["spatial_acceleration_not_the_same"])).max() > 0.1


def test_t22b_zero_base_acceleration_means_constant_velocity_in_base_axes():
    model, t = robot("T22b", root="floating"), EXPECTED["T22b"]
    q = floating(model, t["base_xyz"], quaternion(t["base_rpy"]), {"hip": t["hip"]})
    v = tangent(model, {"root_joint": jnp.asarray(t["v_base_in_base_axes"]), "hip": t["v_hip"]})
    kin = forward_kinematics(model, q, v, jnp.zeros(7))
    close(kin.twist[0], [*t["base_linear_velocity_world"], *t["base_angular_velocity_world"]])
    close(jacobian_dot_v(model, kin, "foot"), t["foot_accel_when_d_dt_of_base_axes_velocity_is_zero"])
    close(frame_acceleration(model, kin, "foot"), t["foot_accel_when_d_dt_of_base_axes_velocity_is_zero"])
    # constant velocity in the world: the base's own rate cancels R (omega x v)
    swing = jnp.cross(v[3:6], v[:3])
    still = forward_kinematics(model, q, v, jnp.zeros(7).at[:3].set(-swing))
    close(frame_acceleration(model, still, "foot"), t["foot_accel_when_world_velocity_of_base_is_constant"])
    close(kin.rotation[0] @ swing, t["difference"][:3])


def test_t24_the_length_of_a_quaternion_does_not_matter_and_zero_is_refused():
    model, t = robot("T24", root="floating"), EXPECTED["T24"]
    x, y, z, w = t["quat_xyzw_unit"]
    unit = jnp.array([w, x, y, z])
    at = lambda scale: floating(model, t["base_xyz"], scale * unit, {"pin": t["pin_angle"]})  # noqa: E731
    along = jnp.zeros(model.nq).at[3:7].set(unit)

    @quick_jit
    def all_of(model, q):
        function = lambda q: (frame_pose(model, forward_kinematics(model, q), "bob"), gravity_torque(model, q))  # noqa: E731
        return *jax.jvp(function, (q,), (along,)), configuration_status(model, q)

    for scale in t["scales"]:
        (bob, torque), slopes, status = all_of(model, at(float(scale)))
        close(bob.translation, t["bob_xyz"])
        close(bob.rotation, t["bob_R"])
        close(torque, t["tau_gravity"])
        assert status == Status.OK
        if scale == 1:
            for slope in jax.tree.leaves(slopes):
                close(slope, 0, 1e-12)
    with pytest.raises(InputError, match=r"quaternion of joint 'root_joint'.*is zero"):
        forward_kinematics(model, at(0.0))
    (bob, _), _, status = all_of(model, at(0.0))
    assert np.isfinite(bob.rotation).all() and status == Status.ZERO_QUATERNION


def test_t26_centroidal_momentum_is_about_the_centre_of_mass_and_falls_with_gravity():
    model, t = robot("T26", root="floating"), EXPECTED["T26"]
    q = floating(model, t["base_xyz"], quaternion(t["base_rpy"]), t["joints"])
    v = tangent(model, {"root_joint": jnp.asarray(t["v_base_in_base_axes"]), **t["v_joints"]})

    def all_of(model, q, v):
        kin = forward_kinematics(model, q, v)
        momentum = lambda q, v: centroidal_momentum(model, forward_kinematics(model, q, v))  # noqa: E731
        a = aba(model, q, v, jnp.zeros(model.nv))
        after = lambda time: momentum(integrate(model, q, v * time), v + a * time)  # noqa: E731
        return (
            (center_of_mass(model, kin), com_velocity(model, kin), com_jacobian(model, kin) @ v),
            momentum(q, v),
            jax.jvp(after, (ZERO,), (jnp.ones(()),))[1],
            momentum(q.at[:3].add(jnp.array([3.0, -2.0, 1.0])), v),
            jax.jacfwd(lambda p: momentum(q.at[:3].set(p), v))(q[:3]),
        )

    (com, velocity, same_velocity), momentum, rate, moved, by_place = compute(all_of, model, q, v)
    close(model.total_mass, t["total_mass"])
    close(com, t["com"])
    close(velocity, t["com_velocity"])
    close(same_velocity, t["com_velocity"])
    close(momentum, [*t["h_linear_world"], *t["h_angular_about_com_world_axes"]])
    close(rate, t["dh_dt_in_free_fall_fd"])
    close(moved, momentum, 1e-12)
    close(by_place, t["dh_d_base_translation"], 1e-12)


# D. Gradients


def test_t32_massless_parts_have_finite_gradients():
    model, t = robot("T32"), EXPECTED["T32"]
    q = jnp.asarray(t["q"])

    def all_of(model, q):
        com = lambda m, q: center_of_mass(m, forward_kinematics(m, q))  # noqa: E731
        kin = forward_kinematics(model, q)
        return {
            "com": com(model, q),
            "dcom_dq": (jax.jacfwd(com, 1)(model, q), jax.jacrev(com, 1)(model, q), com_jacobian(model, kin)),
            "dU_dq": (jax.grad(potential_energy, 1)(model, q), gravity_torque(model, q)),
            "M": crba(model, q),
            "lens_xyz": frame_pose(model, kin, "lens").translation,
            "of model": jax.grad(lambda m: com(m, q).sum() + rnea(m, q, q, q).sum())(model),
        }

    jax.config.update("jax_debug_nans", True)
    try:
        results = compute(all_of, model, q)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(results["of model"]))
    for part in ("com", "dcom_dq", "dU_dq", "M", "lens_xyz"):
        for value in jax.tree.leaves(results[part]):
            close(value, t[part])
    # forward dynamics has no answer, and says so
    with pytest.warns(JaxdynWarning, match=r"mass matrix is singular at joints .*'pan', 'tilt'"):
        assert not np.isfinite(aba(model, q, q, jnp.ones(3))).all()
    assert jax.jit(mass_matrix_status)(model, q) == Status.SINGULAR_MASS_MATRIX


def test_t35_torques_are_linear_in_the_inertial_parameters():
    model, t = robot("T35"), EXPECTED["T35"]
    q, v, a, parameters = values(t, "q", "v", "a", "parameters")

    def torque(parameters):
        inertia = SpatialInertia.from_point_parameters(parameters.reshape(2, 10))
        return rnea(eqx.tree_at(lambda m: m.inertia, model, inertia), q, v, a)

    close(model.inertia.point_parameters().reshape(-1), parameters)
    value, forward, reverse = compute(lambda p: (torque(p), jax.jacfwd(torque)(p), jax.jacrev(torque)(p)), parameters)
    close(value, t["tau"])
    close(forward, t["dtau_dparameters"])
    close(reverse, t["dtau_dparameters"])
    close(forward @ parameters, t["tau"])


# E. JAX behaviour


def test_t36_robots_that_differ_in_numbers_share_one_compiled_function():
    t, function = EXPECTED["T36"], jax.jit(rnea)
    q, v, a = values(t, "q", "v", "a")
    for name, expected in (("T36", "tau_T36"), ("T36", "tau_T36"), ("T36b", "tau_T36b")):
        close(function(robot(name), q, v, a), t[expected])
    assert function._cache_size() == 1


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_t38_a_long_chain_keeps_its_digits(dtype):
    model, t = robot("T38", dtype=dtype), EXPECTED["T38"]
    order = np.array([model.joint(name) for name in t["order"]])
    i = np.arange(1, 16)
    q = jnp.zeros(15, dtype).at[order].set(jnp.asarray(0.3 * np.sin(i), dtype))
    v = jnp.zeros(15, dtype).at[order].set(jnp.asarray(0.5 * np.cos(i), dtype))
    mass, bias, free = compute(
        lambda m, q, v: (crba(m, q), nonlinear_effects(m, q, v), aba(m, q, v, jnp.zeros(15, dtype))), model, q, v
    )
    results = {"M_diag": np.diag(mass)[order], "bias": bias[order], "aba_tau_zero": free[order]}
    single = {"M_diag": 1e-4, "bias": 1e-4, "aba_tau_zero": 1e-2}
    for part, value in results.items():
        assert value.dtype == dtype
        tolerance = single[part] if dtype == jnp.float32 else 1e-9
        error = np.linalg.norm(np.asarray(value, float) - t[part]) / np.linalg.norm(t[part])
        # ten digits, or six decimals, are given
        assert error < max(tolerance, 1e-8), part


def test_t41_wrong_shapes_and_unknown_names_are_explained():
    model = robot("T22")
    shapes = [(2,), (4,), (), (1,), (1, 3), (3, 1)]
    for transform in (lambda f: f, jax.jit, lambda f: jax.vmap(f, axis_size=2, in_axes=None)):
        for shape in shapes:
            given = str(shape).replace("(", r"\(").replace(")", r"\)")
            with pytest.raises(InputError, match=rf"q: wanted shape \(3,\), given shape {given}"):
                transform(lambda q: forward_kinematics(model, q).translation)(jnp.zeros(shape))
        with pytest.raises(InputError, match="q: wanted floating-point numbers, given dtype int64"):
            transform(lambda q: gravity_torque(model, q))(jnp.zeros(3, int))
        for wrong, near in (("tol", "tool"), ("Tool", "tool"), ("l4", "l1")):
            with pytest.raises(UnknownNameError, match=rf"unknown frame '{wrong}'. Did you mean.*'{near}'"):
                transform(lambda q, f=wrong: frame_pose(model, forward_kinematics(model, q), f).translation)(
                    jnp.zeros(3)
                )
    with pytest.raises(UnknownNameError, match=r"unknown joint 'q9'\. Did you mean 'q"):
        configuration(model, {"q9": 0.1})


def test_t43_accelerations_of_a_badly_conditioned_robot_keep_their_digits():
    """M x = 1 at rest without gravity, masses from 1 g to 50 kg; the sparse factor has tests of its own."""
    model, t = robot("T43", root="floating"), EXPECTED["T43"]
    model = eqx.tree_at(lambda m: m.gravity, model, jnp.zeros(3))
    q = floating(model, (0, 0, 0.5), (1, 0, 0, 0), t["joints"])
    solution = t["x_solves_M_x_equals_ones"]
    order = by_name(model, [name for name in solution if not name.startswith("base")])
    expected = np.array(list(solution.values()))
    x, mass = compute(lambda m, q: (aba(m, q, jnp.zeros(m.nv), jnp.ones(m.nv)), crba(m, q)), model, q)
    np.testing.assert_allclose(x[order], expected, rtol=1e-8, atol=1e-8)  # given to eight decimals
    close(np.linalg.slogdet(mass)[1], t["logdet"])
    joints = {name: model.joint(name) for name in t["joints"]}
    for a, i in joints.items():
        for b, j in joints.items():
            if a[2] != b[2]:
                assert mass[model.tree.v_offset[i], model.tree.v_offset[j]] == 0
