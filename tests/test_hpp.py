"""A live comparison with hpp-python, where there is one: in this interpreter, or in the one that JAXDYN_HPP_PYTHON names.

`python -m venv hpp; hpp/bin/pip install --only-binary :all: hpp-python pin==4.1.0` makes one, in 600 MB.
"""

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contact_scenes import FOOT, PENTAGON, TRAPEZOID, free_bodies
from evaluations import quick_jit

from jaxdyn import functions
from jaxdyn.functions import ConvexShapeContact, ConvexShapeContactComplement
from jaxdyn.math import so3
from jaxdyn.math.se3 import SE3

MARGIN = 0.015
FLOORS = {"penta": PENTAGON, "trap": TRAPEZOID + np.array([0.2, 0.1, 0.6])}
OBJECTS = {"sole": FOOT, "side": FOOT[::-1] + np.array([0.1, 0.0, 0.3])}
FRAMES = [
    SE3(so3.exp(jnp.array(w)), jnp.array(p))
    for w, p in (([0.2, -0.5, 0.8], [0.3, 0.1, -0.4]), ([1.1, 0.4, 0.2], [-0.2, 0.5, 0.1]))
]


def _interpreter():
    named = os.environ.get("JAXDYN_HPP_PYTHON", "")
    if named:
        return named
    if importlib.util.find_spec("pyhpp"):
        return sys.executable
    pytest.skip("no hpp-python here; JAXDYN_HPP_PYTHON may name an interpreter that has it")


def _srdf(shapes):
    parts = [
        f'<contact name="{name}"><link name="base"/><point>{" ".join(str(x) for p in points for x in p)}</point>'
        f"<shape>{len(points)} {' '.join(map(str, range(len(points))))}</shape></contact>"
        for name, points in shapes.items()
    ]
    return f'<robot name="b">{"".join(parts)}</robot>'


def _configurations():
    """In our order: position, quaternion wxyz, of the floor's body and of the object's."""
    rng = np.random.default_rng(11)
    q = rng.normal(size=(40, 2, 7))
    q[:, :, 3:] /= np.linalg.norm(q[:, :, 3:], axis=2, keepdims=True)
    q[:20, 1, :3] = q[:20, 0, :3] + 0.4 * rng.normal(size=(20, 3))
    return q


@functools.cache
def original():
    python = _interpreter()
    libraries = next((p / "cmeel.prefix" / "lib" for p in _site_packages(python)), None)
    inertia = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    urdf = f'<robot name="b"><link name="base">{inertia}</link></robot>'
    job = {
        "bodies": [
            {"name": name, "urdf": urdf, "srdf": _srdf(shapes)} for name, shapes in (("1", FLOORS), ("2", OBJECTS))
        ],
        "floors": [f"1/{name}" for name in FLOORS],
        "objects": [f"2/{name}" for name in OBJECTS],
        "margin": MARGIN,
        "q": _configurations()[:, :, [0, 1, 2, 4, 5, 6, 3]].reshape(-1, 14).tolist(),
        "frame1": np.asarray(FRAMES[0].as_matrix()).tolist(),
        "frame2": np.asarray(FRAMES[1].as_matrix()).tolist(),
    }
    done = subprocess.run(
        [python, pathlib.Path(__file__).parent / "hpp_oracle.py"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries or "")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index("{") :])


def _site_packages(python):
    root = pathlib.Path(python).absolute().parent.parent
    return [p for p in root.glob("lib/python3.*/site-packages") if (p / "cmeel.prefix").is_dir()]


@functools.cache
def ours():
    model = free_bodies(2)
    shapes = [[(frame, p) for p in given.values()] for frame, given in (("b0", FLOORS), ("b1", OBJECTS))]
    contact = ConvexShapeContact(model, *shapes, margin=MARGIN)
    one, two = FRAMES
    each = {"contact": contact, "complement": ConvexShapeContactComplement(contact)}
    for kind in ("Position", "Orientation", "Transformation"):
        each[kind] = getattr(functions, kind)(model, "b0", two, one)
        each[f"Relative{kind}"] = getattr(functions, f"Relative{kind}")(model, "b1", "b0", two, one)
    run = quick_jit(jax.vmap(lambda q: {name: f.value_and_jacobian(q) for name, f in each.items()}))
    return jax.tree.map(np.asarray, run(_configurations().reshape(-1, 14)))


@pytest.mark.parametrize(
    "name",
    ["contact", "complement"]
    + [r + k for k in ("Position", "Orientation", "Transformation") for r in ("", "Relative")],
)
def test_values_and_jacobians_are_those_of_the_original(name):
    theirs = original()[name]
    value, jacobian = ours()[name]
    np.testing.assert_allclose(value, [row[0] for row in theirs], atol=1e-10)
    wanted = np.array([row[1] for row in theirs])
    scale = np.maximum(1, np.abs(wanted).max(axis=(1, 2), keepdims=True))
    np.testing.assert_allclose(jacobian / scale, wanted / scale, atol=1e-10)
