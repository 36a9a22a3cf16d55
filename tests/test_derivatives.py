"""Derivatives of the algorithms: closed forms against Pinocchio, automatic ones against differences, in every mode
and to second order.

`small` has one joint of each type on three levels. All real arguments of a function are perturbed at once or one by
one: the configuration (in tangent space), the velocities, torques and wrenches, and every leaf of the model that has
to do with dynamics.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, evaluate, every_robot_in_both_precisions, quick_jit, robot
from oracles import states
from random_trees import MOVING, random_model

from jaxdyn.algorithms import (
    aba,
    aba_derivatives,
    center_of_mass,
    centroidal_momentum,
    compute_minv,
    crba,
    forward_kinematics,
    frame_jacobian,
    generalized_force,
    rnea,
    rnea_derivatives,
)
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.model import Model, from_urdf, integrate, load, neutral


@every_robot_in_both_precisions
def test_derivatives_of_inverse_dynamics_agree_with_pinocchio(name, dtype, tolerance):
    """One of the states has a wrench on every body, held constant in world axes."""
    result = evaluate(name, dtype)
    expected = result.reference(result.oracle.rnea_derivatives, "q", "v", "a", "wrenches")
    for part, there in expected.items():
        check(result["rnea_derivatives", part], there, tolerance, part)


@every_robot_in_both_precisions
def test_derivatives_of_forward_dynamics_agree_with_pinocchio(name, dtype, tolerance):
    result = evaluate(name, dtype)
    expected = result.reference(result.oracle.aba_derivatives, "q", "v", "tau", "wrenches")
    for part, there in expected.items():
        check(result["aba_derivatives", part], there, result.of_accelerations(tolerance, there), part)


# Automatic derivatives of the public functions


LEAVES = {
    "mass": lambda x: x["model"].inertia.mass,
    "com": lambda x: x["model"].inertia.com,
    "inertia": lambda x: x["model"].inertia.inertia,
    "placement": lambda x: x["model"].joint_placement.translation,
    "orientation": lambda x: x["model"].joint_placement.rotation,
    "axis": lambda x: x["model"].joint_axis,
    "gravity": lambda x: x["model"].gravity,
    "armature": lambda x: x["model"].armature,
    "q": lambda x: x["dq"],
    "v": lambda x: x["v"],
    "a": lambda x: x["a"],
    "tau": lambda x: x["tau"],
    "wrenches": lambda x: x["wrenches"],
}


def _q(x):
    return integrate(x["model"], x["q"], x["dq"])


def _kinematics(x):
    kin = forward_kinematics(x["model"], _q(x), x["v"], x["a"])
    last = x["model"].n_bodies - 1
    return {
        "rotation": kin.rotation,
        "translation": kin.translation,
        "twist": kin.twist,
        "acceleration": kin.acceleration,
        "jacobian": frame_jacobian(x["model"], kin, last),
        "com": center_of_mass(x["model"], kin),
        "momentum": centroidal_momentum(x["model"], kin),
    }


FUNCTIONS = {
    "rnea": lambda x: rnea(x["model"], _q(x), x["v"], x["a"], x["wrenches"]),
    "aba": lambda x: aba(x["model"], _q(x), x["v"], x["tau"], x["wrenches"]),
    "crba": lambda x: crba(x["model"], _q(x)),
    "kinematics": _kinematics,
    "compute_minv": lambda x: compute_minv(x["model"], _q(x)),
    "generalized_force": lambda x: generalized_force(x["model"], _q(x), x["wrenches"]),
    "rnea_derivatives": lambda x: rnea_derivatives(x["model"], _q(x), x["v"], x["a"], x["wrenches"])._asdict(),
    "aba_derivatives": lambda x: aba_derivatives(x["model"], _q(x), x["v"], x["tau"], x["wrenches"])._asdict(),
}


def cases(*fast, slow=()):
    """Pairs of a function and the name of a robot."""
    return pytest.mark.parametrize(
        "function, model", [*fast, *(pytest.param(*x, marks=pytest.mark.slow) for x in slow)]
    )


@functools.cache
def small() -> Model:
    model = robot("small")
    assert set(model.tree.joint_types) == set(MOVING) and len(model.tree.levels) == 3
    return eqx.tree_at(lambda m: m.armature, model, jnp.linspace(0.0, 0.5, model.nv))


@functools.cache
def tiny() -> Model:
    """A free base with a ball joint and a hinge."""
    text = "".join(
        f'<link name="{name}"><inertial><origin xyz="0.1 0.2 -0.1"/><mass value="{mass}"/>'
        '<inertia ixx="0.2" ixy="0.02" ixz="0.01" iyy="0.3" iyz="-0.03" izz="0.25"/></inertial></link>'
        for name, mass in (("a", 2), ("b", 1), ("c", 0.5))
    )
    text += (
        '<joint name="j" type="spherical"><origin xyz="0.3 0 0.1" rpy="0.4 0.2 -0.3"/><parent link="a"/><child link="b"/></joint>'
        '<joint name="k" type="continuous"><origin xyz="0 0.2 0.1" rpy="0.1 -0.2 0.3"/><parent link="a"/><child link="c"/>'
        '<axis xyz="0.6 0 0.8"/></joint>'
    )
    return from_urdf(f'<robot name="r">{text}</robot>', root="floating", dtype=jnp.float64)


MODELS = {"small": small, "tiny": tiny}


def arguments(model):
    return {"model": model, "dq": jnp.zeros(model.nv)} | {name: x[1] for name, x in states(model).items()}


def directions(x, seed=1):
    """One tangent for each entry of `LEAVES`, stacked: of that leaf alone."""
    rng = np.random.default_rng(seed)
    zero = jax.tree.map(lambda leaf: jnp.zeros((len(LEAVES), *leaf.shape)), x)
    for k, leaf in enumerate(LEAVES.values()):
        change = rng.normal(size=leaf(x).shape)
        if leaf is LEAVES["inertia"]:
            change = 0.5 * (change + np.swapaxes(change, 1, 2))
        zero = eqx.tree_at(leaf, zero, leaf(zero).at[k].set(change))
    return zero


STEP = 1e-4


def points(x, tangent):
    """`x` moved along a tangent by -2, -1, 1 and 2 steps, stacked."""
    steps = STEP * jnp.array([-2.0, -1.0, 1.0, 2.0])
    return jax.tree.map(lambda a, b: a[None] + steps.reshape(-1, *[1] * a.ndim) * b[None], x, tangent)


def difference(values):
    """The derivative by central differences of fourth order, from the values at `points`."""
    return jax.tree.map(lambda y: (y[0] - 8 * y[1] + 8 * y[2] - y[3]) / (12 * STEP), values)


@functools.cache
def gradients(function):
    """The gradient of c . f at each of stacked points; compiled once for first and second derivatives."""
    f = FUNCTIONS[function]
    return quick_jit(jax.vmap(jax.grad(lambda x, c: dot(c, f(x))), (0, None)))


def dot(a, b):
    return sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def cotangent(f, x, seed=2):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda y: jnp.asarray(rng.normal(size=y.shape)), jax.eval_shape(f, x))


@cases(
    ("rnea", "tiny"),
    ("aba", "tiny"),
    ("crba", "tiny"),
    ("kinematics", "small"),
    slow=[(f, "small") for f in FUNCTIONS if f != "kinematics"],
)
def test_first_derivatives_of_all_arguments_and_leaves_equal_differences_and_both_modes_agree(function, model):
    f, x = FUNCTIONS[function], arguments(MODELS[model]())
    t, c = directions(x), cotangent(FUNCTIONS[function], x)

    @quick_jit
    def pushed_and_differences(x, t):
        push = lambda t: jax.jvp(f, (x,), (t,))[1]  # noqa: E731
        return jax.vmap(push)(t), jax.vmap(lambda t: difference(jax.vmap(f)(points(x, t))))(t)

    pushed, expected = pushed_and_differences(x, t)
    pulled = jax.tree.map(lambda y: y[0], gradients(function)(points(x, jax.tree.map(jnp.zeros_like, x)), c))
    for k, leaf in enumerate(LEAVES):
        for value, there in zip(jax.tree.leaves(pushed), jax.tree.leaves(expected), strict=True):
            scale = max(1.0, float(np.abs(there).max()))
            np.testing.assert_allclose(value[k], there[k], atol=1e-8 * scale, err_msg=leaf)
        one = jax.tree.map(lambda y, k=k: y[k], (t, pushed))
        forward, reverse = dot(one[1], c), dot(pulled, one[0])
        np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-9, err_msg=leaf)
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(pulled))


def test_closed_forms_are_what_automatic_differentiation_gives():
    """jacrev (and with it the transposed jvp) in tangent space, wrenches held constant."""
    x = arguments(small())

    def jacobian(function, x, *names):
        return jax.jacrev(lambda part: FUNCTIONS[function](x | part))({name: x[name] for name in names})

    inverse, forward = quick_jit(lambda x: (jacobian("rnea", x, "dq", "v", "a"), jacobian("aba", x, "dq", "v", "tau")))(
        x
    )
    closed = quick_jit(lambda x: (FUNCTIONS["rnea_derivatives"](x), FUNCTIONS["aba_derivatives"](x)))(x)
    for ours, theirs in (("dq", "dq"), ("dv", "v"), ("da", "a")):
        check(closed[0][ours], inverse[theirs], 1e-12, ours)
    for ours, theirs in (("dq", "dq"), ("dv", "v"), ("dtau", "tau")):
        check(closed[1][ours], forward[theirs], 1e-11, ours)


def test_gradients_of_a_batch_are_those_of_its_states():
    """vmap of grad, and grad of vmap with a shared model."""
    model = tiny()
    batch = states(model, 3)
    loss = lambda model, s: jnp.sum(aba(model, s["q"], s["v"], s["tau"]) ** 2)  # noqa: E731
    each = quick_jit(jax.vmap(jax.grad(loss), (None, 0)))(model, batch)
    shared = quick_jit(jax.grad(lambda m, s: jax.vmap(loss, (None, 0))(m, s).sum()))(model, batch)
    for leaf in (lambda m: m.inertia.mass, lambda m: m.joint_placement.translation, lambda m: m.gravity):
        check(leaf(each).sum(axis=0), leaf(shared), 1e-11)


def test_derivatives_along_the_length_of_a_quaternion_vanish():
    """Trial T24: the length does not matter, and automatic differentiation knows."""
    x = arguments(small())
    model, q = x["model"], x["q"]
    slope = quick_jit(jax.jacrev(lambda q: rnea(model, q, x["v"], x["a"])))(q)
    for start, kind in zip(model.tree.q_offset, model.tree.joint_types, strict=True):
        if kind in ("floating", "spherical"):
            part = slice(start + 3, start + 7) if kind == "floating" else slice(start, start + 4)
            np.testing.assert_allclose(slope[:, part] @ q[part], 0, atol=1e-12 * np.abs(slope).max())


def test_a_configuration_has_the_derivatives_of_its_coordinates():
    """Along a motion of the matrices the derivative is that in tangent space."""
    x = arguments(small())
    model = x["model"]
    d = jnp.asarray(np.random.default_rng(3).normal(size=model.nv))

    @quick_jit
    def rates(x, d):
        at = lambda t: as_configuration(model, integrate(model, x["q"], d * t))  # noqa: E731
        configuration, change = jax.jvp(at, (jnp.zeros(()),), (jnp.ones(()),))
        assert isinstance(configuration, Configuration)

        def torque_and_acceleration(q):
            return rnea(model, q, x["v"], x["a"], x["wrenches"]), aba(model, q, x["v"], x["tau"], x["wrenches"])

        closed = [FUNCTIONS[f](x)["dq"] @ d for f in ("rnea_derivatives", "aba_derivatives")]
        return jax.jvp(torque_and_acceleration, (configuration,), (change,))[1], closed

    for found, expected in zip(*rates(x, d), strict=True):
        check(found, expected, 1e-11)


# Second derivatives


@pytest.mark.parametrize("state", ["moving", "at rest in neutral"])
@cases(
    ("rnea", "tiny"),
    ("aba", "tiny"),
    slow=[
        ("crba", "tiny"),
        ("kinematics", "tiny"),
        ("rnea", "small"),
        ("aba", "small"),
        ("rnea_derivatives", "tiny"),
        ("aba_derivatives", "tiny"),
    ],
)
def test_second_derivatives_equal_differences_of_first_ones(function, model, state):
    f, x = FUNCTIONS[function], second_order_arguments(model, state)
    c, t = cotangent(f, x), one_direction(x)
    value = products(function)(x, c, t)
    expected = difference(gradients(function)(points(x, t), c))
    for leaf, get in LEAVES.items():
        scale = max(1.0, float(np.abs(get(expected)).max()))
        np.testing.assert_allclose(get(value), get(expected), atol=2e-8 * scale, err_msg=leaf)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["rnea", "aba"])
def test_second_derivatives_agree_in_every_mode(function):
    """Orientations and axes of joints turn: off the rotation matrices and unit vectors there is no robot, and modes
    differ."""
    f, x = FUNCTIONS[function], second_order_arguments("tiny", "moving")
    c, t = cotangent(f, x), one_direction(x)
    orientation, axis = LEAVES["orientation"], LEAVES["axis"]
    turned = orientation(x) @ so3.hat(orientation(t)[:, 0])
    t = eqx.tree_at(lambda x: (orientation(x), axis(x)), t, (turned, jnp.cross(axis(t), axis(x))))
    turns = {
        "orientation": lambda y: so3.vee(jnp.matrix_transpose(orientation(x)) @ y),
        "axis": lambda y: jnp.cross(axis(x), y),
    }
    gradient = jax.grad(lambda x: dot(c, f(x)))
    first, *others = quick_jit(
        lambda x: (
            jax.jvp(gradient, (x,), (t,))[1],
            jax.grad(lambda x: dot(gradient(x), t))(x),
            jax.grad(lambda x: dot(c, jax.jvp(f, (x,), (t,))[1]))(x),
        )
    )(x)
    for other in others:
        for leaf, get in LEAVES.items():
            along = turns.get(leaf, lambda y: y)
            check(along(get(other)), along(get(first)), 1e-10, leaf)


def second_order_arguments(model, state):
    x = arguments(MODELS[model]())
    if state != "moving":
        x |= {"q": neutral(x["model"]), "v": jnp.zeros(x["model"].nv)}
    return x


def one_direction(x):
    return jax.tree.map(lambda y: y.sum(axis=0), directions(x, 5))


@functools.cache
def products(function):
    """The Hessian of c . f times a direction, forward over reverse."""
    f = FUNCTIONS[function]
    gradient = jax.grad(lambda x, c: dot(c, f(x)))
    return quick_jit(lambda x, c, t: jax.jvp(lambda x: gradient(x, c), (x,), (t,))[1])


# Edges


def test_a_robot_without_joints_has_empty_derivatives():
    model = from_urdf('<robot name="r"><link name="base"/></robot>')
    empty = jnp.zeros(0)
    inverse = rnea_derivatives(model, empty, empty, empty, jnp.zeros((0, 6)))
    forward = aba_derivatives(model, empty, empty, empty, jnp.zeros((0, 6)))
    assert inverse.dq.shape == inverse.dv.shape == inverse.da.shape == (0, 0)
    assert forward.a.shape == (0,) and forward.dq.shape == forward.dtau.shape == (0, 0)
    assert jax.jacfwd(rnea, 1)(model, empty, empty, empty).shape == (0, 0)


def test_massless_links_give_finite_derivatives_where_the_mass_matrix_is_regular():
    """A massless link between massive ones, and a state at rest in neutral."""
    model = random_model(4, 3, massless=1.0, shape="chain", fixed=0.0)
    assert 0 in np.asarray(model.inertia.mass)
    q, zero = neutral(model), jnp.zeros(model.nv)
    armature = eqx.tree_at(lambda m: m.armature, model, jnp.full(model.nv, 0.1))
    gradient = quick_jit(jax.grad(lambda m, q, v: aba(m, q, v, v).sum(), (0, 1, 2)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient(armature, q, zero)))


def test_wrong_shapes_are_refused_with_name_and_shapes():
    model = load("arm7")
    seven = jnp.zeros(7)
    with pytest.raises(InputError, match=r"a: wanted shape \(7,\), given shape \(6,\)"):
        rnea_derivatives(model, seven, seven, jnp.zeros(6))
    with pytest.raises(InputError, match=r"tau: wanted shape \(7,\), given shape \(\)"):
        aba_derivatives(model, seven, seven, jnp.zeros(()))
    with pytest.raises(InputError, match=r"wrenches: wanted shape \(7, 6\), given shape \(7,\)"):
        rnea_derivatives(model, seven, seven, seven, seven)
