"""Dynamics and their derivatives on drawn trees with joints of every type, against Pinocchio, joint by joint.

Where a property fails, the smallest such tree is shown.
"""

import warnings

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, quick_jit
from hypothesis import given, settings
from oracles import Oracle, pinocchio_from_model, states
from random_trees import MOVING

from jaxdyn.algorithms import aba_derivatives, forward_kinematics, rnea, rnea_derivatives
from jaxdyn.errors import JaxdynWarning
from jaxdyn.math import SE3, so3
from jaxdyn.model import ModelBuilder

lengths = st.floats(-1, 1, width=16)
positive = st.floats(0.125, 2, width=16)
three = st.tuples(lengths, lengths, lengths)
axes = three.filter(lambda x: np.linalg.norm(x) > 0.1)


@st.composite
def recipes(draw):
    """What `build` takes: the base, and one to four joints with their links."""
    joints = [
        {
            "parent": draw(st.integers(0, i)),
            "kind": draw(st.sampled_from(MOVING)),
            "turn": draw(three),
            "shift": draw(three),
            "axis": draw(axes),
            "rotor": draw(st.sampled_from([0.0, 0.25])),
            "mass": draw(positive),
            "com": draw(three),
            "sides": draw(st.tuples(positive, positive, positive)),
        }
        for i in range(draw(st.integers(1, 4)))
    ]
    return draw(st.sampled_from(["fixed", "floating"])), joints


def build(recipe):
    """The robot, in code."""
    root, joints = recipe
    builder = ModelBuilder("drawn").add_link("link0", 1.5, (0.1, -0.2, 0.3), (0.02, 0.03, 0.04))
    for i, joint in enumerate(joints, 1):
        square = np.square(joint["sides"])
        moments = joint["mass"] * (square.sum() - square) / 12  # of a box, so physical
        builder.add_link(f"link{i}", joint["mass"], joint["com"], moments)
        placement = SE3(so3.exp(jnp.asarray(joint["turn"]) * np.pi), jnp.asarray(joint["shift"]))
        parent, rotor = f"link{joint['parent']}", joint["rotor"]
        builder.add_joint(f"j{i}", joint["kind"], parent, f"link{i}", placement, joint["axis"], armature=rotor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JaxdynWarning)  # joints without limits
        return builder.build(root=root, dtype=jnp.float64)


def assert_agrees_with_pinocchio(recipe):
    model = build(recipe)
    there = pinocchio_from_model(model)
    oracle = Oracle(model, there)
    s = {key: x[0] for key, x in states(model, 2).items()}
    s["wrenches"] = jnp.ones_like(s["wrenches"])

    @quick_jit
    def everything(model, q, v, a, tau, wrenches):
        kin = forward_kinematics(model, q, v, a)
        return (
            kin.translation,
            rnea(model, q, v, a, wrenches),
            rnea_derivatives(model, q, v, a, wrenches)._asdict(),
            aba_derivatives(model, q, v, tau, wrenches)._asdict(),
        )

    position, torque, inverse, forward = jax.tree.map(np.asarray, everything(model, **s))
    q, v, a, tau, wrenches = (np.asarray(s[key]) for key in ("q", "v", "a", "tau", "wrenches"))
    bodies = [model.frame(body) for body in model.body_names]
    np.testing.assert_allclose(position, oracle.kinematics(q, v, a)["translation"][bodies], atol=1e-12)
    check(torque, oracle.rnea(q, v, a, wrenches), 1e-10, "torque")
    for part, value in oracle.rnea_derivatives(q, v, a, wrenches).items():
        check(inverse[part], value, 1e-10, f"inverse {part}", scale=1.0)
    for part, value in oracle.aba_derivatives(q, v, tau, wrenches).items():
        condition = np.linalg.cond(oracle.mass_matrix(q))
        check(forward[part], value, max(1e-10, 1e-14 * condition), f"forward {part}", scale=1.0)


@settings(max_examples=3)
@given(recipes())
def test_a_few_drawn_trees_agree_with_pinocchio(recipe):
    assert_agrees_with_pinocchio(recipe)


@pytest.mark.slow
@settings(max_examples=60)
@given(recipes())
def test_many_drawn_trees_agree_with_pinocchio(recipe):
    assert_agrees_with_pinocchio(recipe)
