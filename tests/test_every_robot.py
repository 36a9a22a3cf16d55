"""Every robot of the robot package against Pinocchio: how it reads, and its dynamics with their derivatives.

`evaluations` looks closely at some of them; here all others are looked at in one state.
"""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluations import check, quick_jit
from example_robot_data import getModelPath
from example_robot_data.robots_loader import ROBOTS as LOADERS
from oracles import ROBOTS, Oracle, pinocchio_from_urdf, states
from test_cholesky import assert_factors_agree
from test_robots import assert_same_as_pinocchio

from jaxdyn.algorithms import aba_derivatives, forward_kinematics, mass_matrix_status, rnea, rnea_derivatives
from jaxdyn.errors import JaxdynWarning, Status
from jaxdyn.model import from_urdf

# Reads from a file of another format
NO_URDF = {"cassie"}


def _relative_path(loader):
    return os.path.join(loader.path, loader.urdf_subpath, loader.urdf_filename)


def _every_robot():
    """One name for each file and base."""
    found = {}
    for name, loader in LOADERS.items():
        if name not in NO_URDF:
            root = "floating" if loader.free_flyer else "fixed"
            found.setdefault((_relative_path(loader), root), name)
    return {name: case for case, name in found.items()}


EVERY = _every_robot()
OTHERS = [name for name, case in EVERY.items() if case not in ROBOTS.values()]


def test_the_robot_package_has_many_robots():
    assert len(EVERY) > 60
    assert len(OTHERS) > 45
    assert NO_URDF <= set(LOADERS)


def _read(name):
    relative, root = EVERY[name]
    path = os.path.join(getModelPath(relative), relative)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", JaxdynWarning
        )  # followers that move on their own, odd inertias: as in Pinocchio
        return from_urdf(path, root=root, mimic="independent", dtype=jnp.float64), pinocchio_from_urdf(path, root)


@pytest.mark.parametrize("name", EVERY)
def test_it_reads_as_in_pinocchio(name):
    assert_same_as_pinocchio(*_read(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_its_dynamics_and_their_derivatives_are_those_of_pinocchio(name):
    model, there = _read(name)
    oracle = Oracle(model, there)
    s = {key: x[0] for key, x in states(model, 2).items()}

    @quick_jit
    def everything(q, v, a, tau, wrenches):
        kin = forward_kinematics(model, q, v, a)
        return (
            (kin.rotation, kin.translation, kin.twist),
            rnea(model, q, v, a, wrenches),
            rnea_derivatives(model, q, v, a, wrenches)._asdict(),
            aba_derivatives(model, q, v, tau, wrenches)._asdict(),
        )

    poses, torque, inverse, forward = jax.tree.map(np.asarray, everything(**s))
    q, v, a, tau, wrenches = (np.asarray(s[key]) for key in ("q", "v", "a", "tau", "wrenches"))
    expected = oracle.kinematics(q, v, a)
    bodies = [model.frame(body) for body in model.body_names]
    check(poses[0], expected["rotation"][bodies], 1e-12, "rotation")
    check(poses[1], expected["translation"][bodies], 1e-12, "translation")
    check(torque, oracle.rnea(q, v, a, wrenches), 1e-10, "torque")
    for part, value in oracle.rnea_derivatives(q, v, a, wrenches).items():
        check(inverse[part], value, 1e-10, f"inverse {part}")
    singular = np.linalg.cond(oracle.mass_matrix(q)) > 1e12  # light or massless last links: nothing to compare
    for part, value in oracle.aba_derivatives(q, v, tau, wrenches).items():
        if not singular:
            check(forward[part], value, 1e-8 if part != "a" else 1e-9, f"forward {part}")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_the_factor_of_its_mass_matrix_is_that_of_pinocchio(name):
    model, there = _read(name)
    if int(mass_matrix_status(model, states(model, 2)["q"][0])) != Status.OK:
        pytest.skip("links without inertia at the end of a limb: the mass matrix is singular in Pinocchio too")
    assert_factors_agree(model, Oracle(model, there))
