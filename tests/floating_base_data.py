"""The robots, states and contacts of tests/data/floating_base, as objects of the library.

The numbers there come from bipedal-locomotion-framework (commit 592d1cd), cross-checked with Pinocchio 4.1.
"""

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.contact import Brush, CompliantContact, ContactPatch
from jaxdyn.model import from_urdf
from jaxdyn.systems import FloatingBaseDynamics, State

DATA = pathlib.Path(__file__).parent / "data"


@functools.cache
def read(name):
    return json.loads((DATA / "floating_base" / f"{name}.json").read_text())


def urdf_path(name):
    if name != "talos_reduced":
        return DATA / "floating_base" / f"{name}.urdf"
    import example_robot_data

    folder = example_robot_data.getModelPath("talos_data/robots/talos_reduced.urdf")
    return os.path.join(folder, "talos_data/robots/talos_reduced.urdf")


@functools.cache
def model(name, dtype=jnp.float64):
    """The robot with its joints in the order of the fixture."""
    joints = read("fdyn")[name]["joints"]
    return from_urdf(urdf_path(name), root="floating", joints=joints, dtype=dtype)


def patch(params):
    law = Brush(params["spring_coeff"], params["damper_coeff"])
    return ContactPatch(law, params["length"], params["width"])


def contacts(name):
    """The contacts of the fixture's case with all contacts."""
    data = read("fdyn")[name]
    law = patch(data["contact_params"])
    return tuple(CompliantContact(frame, law, s["null_p"], s["null_R"]) for frame, s in data["soles"].items())


def state(data, dtype=jnp.float64):
    """A `State` of a dictionary of the fixtures."""
    twist = data["base_twist_mixed"] if "base_twist_mixed" in data else data["twist"]
    parts = twist, data.get("ds", []), data["p"], data["R"], data.get("s", [])
    return State(*(jnp.asarray(x, dtype).reshape(np.shape(x)) for x in parts))


def system(name, *, with_contacts=True, dtype=jnp.float64, **options):
    return FloatingBaseDynamics(model(name, dtype), contacts(name) if with_contacts else (), **options)


def box_on_patch(*, projected_area="abs_r33", stiffness=2e5, damping=2e3, dtype=jnp.float64, **options):
    """The 10 kg box on a brush with the null pose at the world's origin."""
    p = read("rollouts")["box"]["params"]
    law = ContactPatch(Brush(stiffness, damping), p["length"], p["width"], projected_area=projected_area)
    return FloatingBaseDynamics(model("box", dtype), CompliantContact("sole", law), **options)


def box_case(name, dtype=jnp.float64):
    case = next(c for c in read("rollouts")["box"]["cases"] if c["name"] == name)
    return case, state(case["init"], dtype)


def assert_close(actual, expected, tolerance, err_msg=""):
    """Largest difference relative to the largest component."""
    expected = np.asarray(expected)
    scale = max(1e-300, np.abs(expected).max()) if expected.size else 1.0
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance * scale, err_msg=err_msg)


def random_state(model, rng, dtype=jnp.float64):
    from jaxdyn.math import so3

    n = model.nv - 6
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    return State(draw(6), draw(n), draw(3), so3.exp(2 * draw(3)), 0.7 * draw(n))


def assert_tree_close(actual, expected, tolerance):
    jax.tree.map(lambda a, b: assert_close(a, b, tolerance), actual, expected)
