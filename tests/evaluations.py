"""One compiled function per robot that returns everything, run once on a batch of states: the tests of the algorithms
look at its parts.

Compilation is what these tests wait for. The batch holds random states and, last, the neutral one at rest.
"""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import ROBOTS, Oracle, key, pinocchio_from_model, pinocchio_from_urdf, relative_error, states, urdf_path
from random_trees import MOVING, random_model

from jaxdyn import algorithms as alg
from jaxdyn.errors import JaxdynWarning
from jaxdyn.math.spatial import Representation
from jaxdyn.model import Model, from_urdf

# seeds, numbers of joints and shares of fixed links of random robots that have joints of all six types; "small", 1, 2
# and 32 hang on the world by several joints, 17 and 26 by one; "small" has fixed links on the world and on two bodies
TREES = {"small": (1054, 6, 0.25)} | {f"tree{seed}": (seed, 10, 0.2) for seed in (1, 2, 17, 26, 32)}
FAST = ("panda", "solo12", "talos", "small")
SLOW = tuple(name for name in (*ROBOTS, *TREES) if name not in FAST)

# the neck of icub has no inertia about one axis, fingers of romeo have none at all: rotors make their mass matrices
# regular
ROTORS = {"icub": 0.01, "romeo": 0.01}

every_robot = pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])

PRECISIONS = {"float64": (jnp.float64, 1e-10), "float32": (jnp.float32, 2e-5)}


def _in_precision(name, precision):
    slow = name in SLOW or (precision == "float32" and name not in FAST_FLOAT32)
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(name, *PRECISIONS[precision], id=f"{name}-{precision}", marks=marks)


FAST_FLOAT32 = ("small",)
every_robot_in_both_precisions = pytest.mark.parametrize(
    "name, dtype, tolerance", [_in_precision(name, p) for name in (*FAST, *SLOW) for p in PRECISIONS]
)


quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jax.jit` for programs that run once: without the compiler's last optimisations, a third of the wait."""


@functools.cache
def robot(name: str) -> Model:
    """A robot of the robot package or a random one."""
    if name in TREES:
        seed, joints, fixed = TREES[name]
        return random_model(seed, joints, types=MOVING, fixed=fixed, dtype=jnp.float64)
    with warnings.catch_warnings():
        # followers that move on their own, joints without limits: as in Pinocchio
        warnings.simplefilter("ignore", JaxdynWarning)
        model = from_urdf(urdf_path(name), root=ROBOTS[name][1], mimic="independent", dtype=jnp.float64)
    armature = jnp.full(model.nv, ROTORS.get(name, 0.0)).at[: 6 * (ROBOTS[name][1] == "floating")].set(0.0)
    return eqx.tree_at(lambda m: m.armature, model, armature)


@functools.cache
def oracle(name: str) -> Oracle:
    """The robot in Pinocchio, from its own reading of the file where there is one."""
    model = robot(name)
    if name in TREES:
        return Oracle(model, pinocchio_from_model(model))
    return Oracle(model, pinocchio_from_urdf(urdf_path(name), ROBOTS[name][1]))


def some_frames(model: Model) -> tuple[str, ...]:
    """The frames of a body in the middle and of the last link."""
    names = model.frame_names
    return names[model.n_bodies // 2], names[-1]


def everything(model, q, v, a, tau, wrenches):
    """All that can be computed of one state."""
    kin = alg.forward_kinematics(model, q, v, a)
    result = {
        "kin": kin,
        "bias_accelerations": alg.bias_accelerations(model, kin),
        "rnea": alg.rnea(model, q, v, a, wrenches),
        "generalized_force": alg.generalized_force(model, q, wrenches),
        "mass_matrix": alg.crba(model, q),
        "rnea_derivatives": alg.rnea_derivatives(model, q, v, a, wrenches)._asdict(),
        "aba_derivatives": alg.aba_derivatives(model, q, v, tau, wrenches)._asdict(),
        "com": alg.center_of_mass(model, kin),
        "com_velocity": alg.com_velocity(model, kin),
        "com_jacobian": alg.com_jacobian(model, kin),
        "momentum": alg.centroidal_momentum(model, kin),
        "map": alg.centroidal_map(model, kin),
        "kinetic_energy": alg.kinetic_energy(model, q, v),
        "potential_energy": alg.potential_energy(model, q),
    }
    for frame in some_frames(model):
        for representation in Representation:
            at = (model, kin, frame, representation)
            result[key("jacobian", frame, representation)] = alg.frame_jacobian(*at)
            result[key("twist", frame, representation)] = alg.frame_velocity(*at)
            result[key("acceleration", frame, representation)] = alg.frame_acceleration(*at)
            result[key("bias", frame, representation)] = alg.jacobian_dot_v(*at)
        pose = alg.frame_pose(model, kin, frame)
        result[key("rotation", frame)], result[key("translation", frame)] = pose.rotation, pose.translation
    return result


class Evaluation:
    """`inputs` and `outputs` of `everything`, stacked over the states, as NumPy; `oracle` at the same inputs."""

    def __init__(self, name: str, dtype) -> None:
        self.model, self.oracle = robot(name).astype(dtype), oracle(name)
        inputs = states(self.model)
        jit = quick_jit if name in FAST and dtype == jnp.float64 else jax.jit
        outputs = jit(jax.vmap(lambda model, x: everything(model, **x), (None, 0)))(self.model, inputs)
        assert all(x.dtype == dtype for x in jax.tree.leaves(outputs))
        self.inputs = {key: np.asarray(x) for key, x in inputs.items()}
        self.outputs = jax.tree.map(np.asarray, _flat(outputs))
        self.count = len(self.inputs["q"])

    def __getitem__(self, parts) -> np.ndarray:
        return self.outputs[parts if isinstance(parts, str) else key(*parts)]

    def reference(self, function, *inputs: str):
        """`function` of the named inputs at each state, stacked; `function` may return a dictionary."""
        each = [function(*(self.inputs[name][i] for name in inputs)) for i in range(self.count)]
        return jax.tree.map(lambda *x: np.stack(x), *each)

    def of_accelerations(self, tolerance: float, solutions: np.ndarray | None = None) -> float:
        """The tolerance for `solutions` x of M x = b, (states, nv) or (states, nv, n), relative to the largest, by default
        the accelerations: not below what the rounding of the torques' terms `|M| |x|` makes of them through the inverse,
        which of badly conditioned random trees is more."""
        if solutions is None:
            solutions = self.reference(self.oracle.aba, "q", "v", "tau", "wrenches")
        worst, largest = 0.0, 0.0
        for q, x in zip(self.inputs["q"], np.abs(solutions), strict=True):
            terms = np.abs(self.oracle.minv(q)) @ (np.abs(self.oracle.mass_matrix(q)) @ x)
            worst = max(worst, np.max(terms, initial=0))
            largest = max(largest, np.max(x, initial=1e-300))
        eps = np.finfo(self.outputs["rnea"].dtype).eps
        return max(tolerance, float(eps) * worst / largest)


def _flat(outputs: dict) -> dict:
    kin = outputs.pop("kin")
    parts = {
        "rotation": kin.rotation,
        "translation": kin.translation,
        "body_twist": kin.twist,
        "body_acceleration": kin.acceleration,
    }
    for name in [name for name, value in outputs.items() if isinstance(value, dict)]:
        parts |= {key(name, part): value for part, value in outputs.pop(name).items()}
    return outputs | parts


def evaluate(name: str, dtype=jnp.float64) -> Evaluation:
    """Computed once."""
    return _evaluate(name, dtype)


_evaluate = functools.cache(Evaluation)


def check(value, reference, tolerance, what="", scale=0.0) -> None:
    """All of `value` within `tolerance` of the largest component of the reference, or of `scale`, the size of the terms
    that cancel in it."""
    error = relative_error(value, reference, scale)
    assert error <= tolerance, f"{what}: relative error {error:.3g}, allowed {tolerance:.3g}"
