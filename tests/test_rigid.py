"""Rigid constraints: against the equations of motion solved in NumPy from Pinocchio's quantities, by what they hold,
and at the edges (dependent, contradictory and empty sets)."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from evaluations import check, quick_jit
from oracles import Oracle, pinocchio_from_model, states

from jaxdyn import (
    FixedFrame,
    FixedPoint,
    FrameLoop,
    JointCoupling,
    PointLoop,
    constraint_dynamics,
    constraint_error,
    constraint_jacobian,
    impulse_dynamics,
)
from jaxdyn.algorithms import aba, forward_kinematics, frame_pose, kinetic_energy, mechanical_energy
from jaxdyn.errors import InputError, Status, UnknownNameError
from jaxdyn.model import from_urdf, integrate, load

FEET = ("fl_foot", "fr_foot", "rl_foot", "rr_foot")


@functools.cache
def quadruped():
    model = load("quadruped", root="floating", dtype=jnp.float64)
    return model, states(model), Oracle(model, pinocchio_from_model(model))


def held(model, kin):
    """Two point feet, a flat one, two knees coupled, and the trunk tied to the fourth foot: 3 + 3 + 6 + 1 + 3 rows."""
    arm = jnp.array([0.01, -0.02, 0.03])
    tip = kin.translation  # any point of the world will do for a target
    return (
        FixedPoint("fl_foot", tip[0], arm, stiffness=3.0, damping=2.0),
        FixedPoint("fr_foot", frame_pose(model, kin, "fr_foot").translation),
        FixedFrame("rl_foot", frame_pose(model, kin, "rl_foot"), damping=1.0),
        JointCoupling("fl_knee", "fr_knee", -0.5, 0.1, stiffness=4.0),
        PointLoop("trunk", "rr_foot", arm, 2.0 * arm),
    )


@functools.cache
def solved():
    model, s, _ = quadruped()

    def one(q, v, tau, wrenches):
        constraints = held(model, forward_kinematics(model, q))
        kin = forward_kinematics(model, q, v)
        motion = constraint_dynamics(model, q, v, tau, constraints, wrenches=wrenches)
        impact = impulse_dynamics(model, q, v, constraints, restitution=0.25)
        error, jacobian = constraint_error(model, q, constraints), constraint_jacobian(model, kin, constraints)
        return motion, impact, error, jacobian

    args = {name: s[name] for name in ("q", "v", "tau", "wrenches")}
    return s, jax.tree.map(np.asarray, quick_jit(jax.vmap(lambda x: one(**x)))(args))


def rows_in_pinocchio(o, q, v):
    """J and J_dot v of the same constraints."""
    m, d = o.model, o.data
    qp, vp = o.q(q), o.v(v)
    pin.computeJointJacobians(m, d, qp)
    pin.forwardKinematics(m, d, qp, vp, np.zeros(m.nv))
    pin.updateFramePlacements(m, d)

    def point(frame, at=(0.0, 0.0, 0.0)):
        f = m.getFrameId(frame)
        arm = d.oMf[f].rotation @ np.asarray(at)
        jac = o.columns(pin.computeFrameJacobian(m, d, qp, f, pin.LOCAL_WORLD_ALIGNED))
        a = pin.getFrameClassicalAcceleration(m, d, f, pin.LOCAL_WORLD_ALIGNED).vector
        w = pin.getFrameVelocity(m, d, f, pin.LOCAL_WORLD_ALIGNED).angular
        bias = a[:3] + np.cross(a[3:], arm) + np.cross(w, np.cross(w, arm))
        return jac[:3] - pin.skew(arm) @ jac[3:], bias

    arm = np.array([0.01, -0.02, 0.03])
    rl = m.getFrameId("rl_foot")
    flat = o.columns(pin.computeFrameJacobian(m, d, qp, rl, pin.LOCAL))
    flat_bias = pin.getFrameAcceleration(m, d, rl, pin.LOCAL).vector
    coupling = np.zeros((1, m.nv))
    names = o.ours.joint_names
    coupling[0, o.ours.tree.v_offset[names.index("fl_knee")]] = 1.0
    coupling[0, o.ours.tree.v_offset[names.index("fr_knee")]] = 0.5
    trunk, foot = point("trunk", arm), point("rr_foot", 2 * arm)
    parts = [
        point("fl_foot", arm),
        point("fr_foot"),
        (flat, flat_bias),
        (coupling, np.zeros(1)),
        (trunk[0] - foot[0], trunk[1] - foot[1]),
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def test_motions_and_impacts_solve_the_equations():
    """M, bias and rows of Pinocchio, the saddle-point system solved in NumPy."""
    tolerance = 1e-8
    model, _, o = quadruped()
    s, (motion, impact, error, jacobian) = solved()
    stiffness = np.repeat([3.0, 0.0, 0.0, 4.0, 0.0], [3, 3, 6, 1, 3])
    damping = np.repeat([2.0, 0.0, 1.0, 0.0, 0.0], [3, 3, 6, 1, 3])
    for i in range(len(s["q"])):
        q, v, tau, wrenches = (np.asarray(s[name][i], float) for name in ("q", "v", "tau", "wrenches"))
        rows, bias = rows_in_pinocchio(o, q, v)
        check(jacobian[i], rows, 1e-12)
        drift = bias + damping * (rows @ v) + stiffness * error[i]
        mass = o.mass_matrix(q)
        force = tau + o.generalized_force(q, wrenches) - o.rnea(q, v, np.zeros_like(v))
        n, k = model.nv, len(rows)
        system = np.block([[mass, -rows.T], [rows, np.zeros((k, k))]])
        expected = np.linalg.solve(system, np.concatenate([force, -drift]))
        check(motion.a[i], expected[:n], tolerance)
        check(np.concatenate([f[i] for f in motion.forces]), expected[n:], tolerance)
        assert motion.status[i] == Status.OK and motion.residual[i] < tolerance * np.abs(expected[:n]).max()
        hit = np.linalg.solve(system, np.concatenate([mass @ v, -0.25 * rows @ v]))
        check(impact.v[i], hit[:n], tolerance)
        check(np.concatenate([f[i] for f in impact.impulses]), hit[n:], tolerance)


def test_errors_are_of_what_is_held():
    model, s, _ = quadruped()
    q = s["q"][0]
    kin = forward_kinematics(model, q)
    _, (_, _, error, _) = solved()
    foot = frame_pose(model, kin, "fl_foot").apply(jnp.array([0.01, -0.02, 0.03]))
    check(error[0][:3], foot - kin.translation[0], 1e-13)
    assert np.abs(error[0][3:12]).max() < 1e-12
    names = model.joint_names
    at = lambda name: q[model.tree.q_offset[names.index(name)]]  # noqa: E731
    check(error[0][12], at("fl_knee") + 0.5 * at("fr_knee") - 0.1, 1e-13)


@pytest.mark.parametrize("kind", ["frame", "point"])
def test_jacobian_and_bias_are_derivatives_of_the_error(kind):
    """Where the error of a pose is zero; that of a point anywhere."""
    model, s, _ = quadruped()
    q, v = s["q"][0], s["v"][0]
    kin = forward_kinematics(model, q, v)
    if kind == "frame":
        pose, other = frame_pose(model, kin, "rl_foot"), frame_pose(model, kin, "fr_foot")
        constraints = (FixedFrame("rl_foot", pose), FrameLoop("rl_foot", "fr_foot", other.inverse() @ pose))
    else:
        constraints = (FixedPoint("fl_foot", jnp.ones(3)), PointLoop("fl_foot", "trunk", jnp.array([0.1, 0.2, 0.3])))

    def at(d):
        return constraint_error(model, integrate(model, q, d), constraints)

    @quick_jit
    def compute(v):
        rows = jax.jacfwd(at)(jnp.zeros(model.nv))
        along = lambda t: constraint_jacobian(model, forward_kinematics(model, integrate(model, q, v * t)), constraints)  # noqa: E731
        return rows, jax.jvp(along, (jnp.zeros(()),), (jnp.ones(()),))[1]

    rows, rate = compute(v)
    check(constraint_jacobian(model, kin, constraints), rows, 1e-11)
    bias = jnp.concatenate([c.bias(model, kin) for c in constraints])
    check(bias, rate @ v, 1e-11)


# Motion in time


def four_bar():
    """A crank, a coupler and a rocker of one plane; the loop closes at the rocker's foot."""
    bar = (
        '<inertial><origin xyz="{x} 0 0"/><mass value="{m}"/>'
        '<inertia ixx="0.001" iyy="{i}" izz="{i}" ixy="0" ixz="0" iyz="0"/></inertial>'
    )
    links = "".join(
        f'<link name="{name}">{bar.format(x=length / 2, m=length, i=length**3 / 12)}</link>'
        for name, length in (("crank", 0.4), ("coupler", 1.0), ("rocker", 0.8))
    )
    joint = (
        '<joint name="{n}" type="continuous"><origin xyz="{x} 0 0"/><parent link="{p}"/><child link="{c}"/>'
        '<axis xyz="0 1 0"/></joint>'
    )
    joints = joint.format(n="a", x=0, p="ground", c="crank") + joint.format(n="b", x=0.4, p="crank", c="coupler")
    joints += joint.format(n="c", x=1.0, p="coupler", c="rocker")
    return from_urdf(f'<robot name="four_bar"><link name="ground"/>{links}{joints}</robot>', dtype=jnp.float64)


def test_a_four_bar_linkage_keeps_its_loop_and_its_energy():
    model = four_bar()
    foot, ground = jnp.array([0.8, 0.0, 0.0]), jnp.array([0.9, 0.0, 0.0])
    k = 20.0
    loop = PointLoop("rocker", "ground", foot, ground, stiffness=k * k, damping=2 * k)
    q = jnp.array([0.9, 0.0, 0.0])

    # closed by Newton's method in the two joint angles of the plane
    rows = lambda x: constraint_error(model, q.at[1:].set(x), loop)[jnp.array([0, 2])]  # noqa: E731
    x = jnp.array([-0.6, 1.9])
    for _ in range(20):
        x = x - jnp.linalg.solve(jax.jacfwd(rows)(x), rows(x))
    q = q.at[1:].set(x)
    assert np.abs(constraint_error(model, q, loop)).max() < 1e-12

    def energy(q, v):
        return mechanical_energy(model, q, v)

    def rate(state):
        q, v = state
        return v, constraint_dynamics(model, q, v, jnp.zeros(3), loop).a

    @jax.jit
    def simulate(q):
        h = 1e-3
        move = lambda s, d, c: jax.tree.map(lambda a, b: a + c * b, s, d)  # noqa: E731

        def step(s, _):
            k1 = rate(s)
            k2 = rate(move(s, k1, h / 2))
            k3 = rate(move(s, k2, h / 2))
            k4 = rate(move(s, k3, h))
            d = jax.tree.map(lambda a, b, c, e: (a + 2 * b + 2 * c + e) / 6, k1, k2, k3, k4)
            s = move(s, d, h)
            return s, (constraint_error(model, s[0], loop), energy(*s))

        return jax.lax.scan(step, (q, jnp.zeros(3)), None, length=1000)

    (_, v), (errors, energies) = simulate(q)
    assert np.abs(v).max() > 0.5  # it did fall
    assert np.abs(errors).max() < 1e-8
    assert np.abs(energies - energy(q, jnp.zeros(3))).max() < 1e-6


# Derivatives


def test_derivatives_are_those_of_the_solution():
    """Both modes against differences, with respect to state, torque, target and the model's masses; and second ones."""
    model = four_bar()
    q, v, tau = jnp.array([0.3, -0.5, 0.9]), jnp.array([0.4, -0.3, 0.8]), jnp.array([0.1, 0.2, -0.3])
    target = jnp.array([0.7, 0.0, 0.4])

    def f(x):
        moved = eqx.tree_at(lambda m: m.inertia.mass, model, x["mass"])
        hold = FixedPoint("rocker", x["target"], jnp.array([0.8, 0.0, 0.0]), stiffness=5.0, damping=1.0)
        motion = constraint_dynamics(moved, x["q"], x["v"], x["tau"], (hold,))
        return jnp.concatenate([motion.a, motion.forces[0][jnp.array([0, 2])]])

    x = {"q": q, "v": v, "tau": tau, "target": target, "mass": model.inertia.mass}
    rng = np.random.default_rng(0)
    t = jax.tree.map(lambda y: jnp.asarray(rng.normal(size=y.shape)), x)
    c = jnp.asarray(rng.normal(size=5))

    h = 1e-5
    three = jax.tree.map(lambda a, b: jnp.stack([a, a + h * b, a - h * b]), x, t)

    @quick_jit
    def compute(x, t, three):
        gradient = jax.grad(lambda x: c @ f(x))
        values, gradients = jax.vmap(lambda x: (f(x), gradient(x)))(three)
        difference = lambda y: (y[1] - y[2]) / (2 * h)  # noqa: E731
        first = jax.tree.map(lambda y: y[0], gradients), difference(values)
        return jax.jvp(f, (x,), (t,))[1], *first, jax.jvp(gradient, (x,), (t,))[1], jax.tree.map(difference, gradients)

    pushed, pulled, expected, second, expected_second = compute(x, t, three)
    check(pushed, expected, 1e-7)
    along = sum(float(jnp.vdot(pulled[name], t[name])) for name in x)
    check(np.asarray(along), c @ pushed, 1e-10)
    for name in x:
        check(second[name], expected_second[name], 1e-6, name)


def test_single_precision():
    model = four_bar()
    q, v, tau = jnp.array([0.3, -0.5, 0.9]), jnp.array([0.4, -0.3, 0.8]), jnp.array([0.1, 0.2, -0.3])
    hold = FixedPoint("rocker", jnp.zeros(3), jnp.array([0.8, 0.0, 0.0]), stiffness=5.0, damping=1.0)
    run = quick_jit(constraint_dynamics)
    exact = run(model, q, v, tau, hold)
    single = run(*jax.tree.map(lambda x: x.astype(jnp.float32), (model, q, v, tau, hold)))
    assert single.a.dtype == single.forces[0].dtype == jnp.float32
    assert exact.status == single.status == Status.DEPENDENT_CONSTRAINTS  # the plane is held by the joints already
    check(single.a, exact.a, 1e-4)
    check(single.forces[0], exact.forces[0], 1e-4)


# Edges


@functools.cache
def flat_feet():
    """All four feet held flat: 24 rows on 18 degrees of freedom, of rank 18 at most."""
    model, s, _ = quadruped()

    @quick_jit
    def compute(q, v, tau):
        kin = forward_kinematics(model, q)
        feet = [FixedFrame(foot, frame_pose(model, kin, foot)) for foot in FEET]
        twice = [FixedPoint("fl_foot", jnp.zeros(3))] * 2
        away = [FixedPoint("fl_foot", jnp.zeros(3), stiffness=1.0), FixedPoint("fl_foot", jnp.ones(3), stiffness=1.0)]
        runs = [feet, twice, away, twice[:1]]
        return [constraint_dynamics(model, q, v, tau, c) for c in runs]

    return model, s, [compute(s["q"][i], v, s["tau"][i]) for i, v in ((0, jnp.zeros(model.nv)), (1, s["v"][1]))]


def test_dependent_constraints_leave_the_motion_unique_and_say_so():
    _, _, runs = flat_feet()
    for feet, twice, _, once in runs:
        assert np.isfinite(feet.a).all()
        assert twice.status == Status.DEPENDENT_CONSTRAINTS and once.status == Status.OK
        check(twice.a, once.a, 1e-8)
        check(twice.forces[0] + twice.forces[1], once.forces[0], 1e-8)
    at_rest = runs[0][0]
    assert at_rest.status == Status.DEPENDENT_CONSTRAINTS
    assert np.abs(at_rest.a).max() < 1e-6  # nothing can move


def test_contradictory_constraints_are_reported():
    _, _, runs = flat_feet()
    for _, _, away, _ in runs:
        assert away.status == Status.INFEASIBLE
        assert np.isfinite(away.a).all() and float(away.residual) > 0.4


def test_compliance_gives_way():
    """R f = what the constraint falls short of."""
    model, s, _ = quadruped()
    q, v, tau = (s[name][0] for name in ("q", "v", "tau"))
    foot = FixedPoint("fl_foot", jnp.zeros(3))
    motion = constraint_dynamics(model, q, v, tau, foot, compliance=0.3)
    kin = forward_kinematics(model, q, v)
    check(constraint_jacobian(model, kin, foot) @ motion.a + foot.bias(model, kin), -0.3 * motion.forces[0], 1e-9)


def test_no_constraints_and_no_degrees_of_freedom():
    model, s, _ = quadruped()
    q, v, tau = (s[name][0] for name in ("q", "v", "tau"))
    motion = constraint_dynamics(model, q, v, tau, ())
    check(motion.a, aba(model, q, v, tau), 1e-10)
    assert motion.forces == () and motion.status == Status.OK
    still = from_urdf('<robot name="r"><link name="a"/></robot>', dtype=jnp.float64)
    none = jnp.zeros(0)
    motion = constraint_dynamics(still, none, none, none, FixedPoint("a", jnp.zeros(3)))
    assert motion.a.shape == (0,) and np.isfinite(motion.forces[0]).all()


def test_an_impact_takes_energy_away():
    model, _, _ = quadruped()
    s, (_, impact, _, _) = solved()
    for i in range(3):
        before, after = (float(kinetic_energy(model, s["q"][i], v)) for v in (s["v"][i], impact.v[i]))
        assert after <= before


def test_mistakes_are_named():
    model, s, _ = quadruped()
    q, v, tau = (s[name][0] for name in ("q", "v", "tau"))
    with pytest.raises(UnknownNameError, match="fl_foot"):
        constraint_dynamics(model, q, v, tau, FixedPoint("fl_fot", jnp.zeros(3)))
    with pytest.raises(InputError, match="one degree of freedom"):
        constraint_dynamics(model, q, v, tau, JointCoupling(model.joint_names[0], "fl_knee"))
    with pytest.raises(InputError, match="'fl_knee' cannot be coupled to itself"):
        JointCoupling("fl_knee", "fl_knee")
    for restitution in (-0.1, jnp.asarray([0.0, 0.5, 1.5]), jnp.nan):
        with pytest.raises(InputError, match="restitution: wanted numbers from 0 to 1"):
            impulse_dynamics(model, q, v, FixedPoint("fl_foot", jnp.zeros(3)), restitution=restitution)
    with pytest.raises(InputError, match="compliance: wanted a number that is not negative"):
        impulse_dynamics(model, q, v, FixedPoint("fl_foot", jnp.zeros(3)), compliance=-1.0)
    with pytest.raises(InputError, match="target"):
        FixedPoint("fl_foot", jnp.zeros(2))
    with pytest.raises(InputError, match=r"compliance.*3 rows"):
        constraint_dynamics(model, q, v, tau, FixedPoint("fl_foot", jnp.zeros(3)), compliance=jnp.zeros(2))
    with pytest.raises(InputError, match="iterations"):
        constraint_dynamics(model, q, v, tau, FixedPoint("fl_foot", jnp.zeros(3)), iterations=0)
