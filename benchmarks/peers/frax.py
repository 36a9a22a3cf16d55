"""frax: dynamics in JAX. Derivatives by automatic differentiation, in both modes; the driver keeps the faster."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frax
import jax
import numpy as np

from benchmarks import conventions
from benchmarks.peers.cases import Job
from benchmarks.peers.jax_cases import Function, case_maker


def cases(job: Job) -> Callable[[str], Any]:
    robot = frax.Robot(
        str(with_root_inertia(job)),
        joint_ordering=list(job.joint_names),
        floating_base="quaternion" if job.floating else None,
    )
    return case_maker(functions(robot, job), job.checked)


def with_root_inertia(job: Job) -> Path:
    """frax cannot read a root link without `<inertial>`; in a root that is welded to the world it changes nothing."""
    file = ElementTree.parse(job.urdf)
    robot = file.getroot()
    children = {joint.find("child").get("link") for joint in robot.iter("joint") if joint.find("child") is not None}
    root = next(link for link in robot.findall("link") if link.get("name") not in children)
    if job.floating or root.find("inertial") is not None:
        return Path(job.urdf)
    inertial = ElementTree.SubElement(root, "inertial")
    ElementTree.SubElement(inertial, "mass", value="1")
    ElementTree.SubElement(inertial, "inertia", ixx="1", iyy="1", izz="1", ixy="0", ixz="0", iyz="0")
    changed = Path(job.states).with_name("with_root_inertia.urdf")
    file.write(changed)
    return changed


def functions(robot, job: Job) -> dict[str, Function]:
    given = job.load_states()
    own = conventions.to_world_linear(given) if job.floating else given
    q, v, a, tau = (own[key] for key in ("q", "v", "a", "tau"))
    gravity = np.array([0.0, 0.0, job.gravity, 0.0, 0.0, 0.0])

    def head(outputs) -> dict[str, np.ndarray]:
        count = len(jax.tree.leaves(outputs)[0])
        return {key: value[:count] for key, value in given.items()}

    def force(x):
        return conventions.force_from_world_linear(head(x)["q"], x) if job.floating else x

    def mass(x):
        return conventions.mass_from_world_linear(head(x)["q"], x) if job.floating else x

    def acceleration(x):
        states = head(x)
        return conventions.acceleration_from_world_linear(states["q"], states["v"], x) if job.floating else x

    def inverse_dynamics(q, v, a):
        return robot.rnea(q, v, a, gravity, None)

    def forward_dynamics(q, v, tau):
        return robot.forward_dynamics(q, v, tau, None)

    def with_value(jacobian):
        """The value too, which the change of coordinates needs; it costs nothing beside the Jacobian."""
        return lambda q, v, tau: (forward_dynamics(q, v, tau), jacobian(q, v, tau))

    def derivatives(x):
        value, blocks = x
        if not job.floating:
            return np.stack(blocks, axis=1)
        return conventions.acceleration_jacobian_from_world_linear(head(value), value, blocks)

    reverse = with_value(jax.jacrev(forward_dynamics, argnums=(0, 1, 2)))
    forward = with_value(jax.jacfwd(forward_dynamics, argnums=(0, 1, 2)))
    return {
        "rnea": Function(inverse_dynamics, (q, v, a), force),
        "crba": Function(robot.crba, (q,), mass),
        "aba": Function(forward_dynamics, (q, v, tau), acceleration),
        "aba_derivatives_reverse": Function(reverse, (q, v, tau), derivatives),
        "aba_derivatives_forward": Function(forward, (q, v, tau), derivatives),
    }
