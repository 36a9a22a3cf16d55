"""Springs at the joints: torque and energy.

A spring of a joint has the energy `1/2 sum k_i x_i^2`, with `x` the way from its reference to where the joint is, and
the torque `-k x`, carried to the axes in which the joint's velocity is. As in MuJoCo, `x` of a floating joint is the
shift of the origin in axes of the joint frame, and the rotation vector of the turn.

For a rotation vector `phi` from the reference, in axes of the child, `phi_dot = Jr(phi)^-1 omega`, so the torque is
`-Jr(phi)^-T k phi`. Where `k` is one number, that is `-k phi`: `phi` is an eigenvector of its own Jacobian.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration, as_configuration, layout
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math import so3
from jaxdyn.model.joints import WRAPPED, nearest_turn, neutral_coordinates
from jaxdyn.model.model import Model, check_model


def joint_spring_torque(model: Model, q: FloatLike | Configuration) -> Float[Array, " nv"]:
    """Torque of the springs at the joints: minus the derivative of `spring_energy` along the velocities.
    (nv,), N m or N; zero for a model without springs.

    | joint | torque at stiffness k and reference r |
    |---|---|
    | revolute, prismatic | -k (q - r) |
    | continuous | the same, the short way round: a spring that winds up needs a revolute joint |
    | planar, floating | for the shift, along the axes of the joint frame; the turn as below |
    | spherical | -k times the rotation vector from r to q; MuJoCo's |

    `rnea`, `aba` and energies of the robot leave it out, like friction; systems take `joint_springs=True`. The three
    stiffnesses of a rotation may differ. At half a turn from the reference the short way, and so the torque, jumps.

    **Arguments:** `model`; `q` (nq,) or `Configuration`.

    **Raises:** `InputError` for a wrong shape or dtype, also of the leaves.
    """
    check_model(model)
    q = as_configuration(model, q)
    if model.stiffness is None:
        return jnp.zeros(model.nv, model.dtype)
    x, tree, table = _stretch(model, q), model.tree, layout(model.tree)
    force = -check_shape("model.stiffness", model.stiffness, (model.nv,)) * x
    parts = []
    for i in tree.independent:
        at, kind = tree.v_offset[i], tree.joint_types[i]
        part = force[at : at + tree.joint_nv[i]]
        if kind == "planar":
            angle = q.coordinates[table.first_coordinate[i] + 2]
            s, c = jnp.sin(angle), jnp.cos(angle)
            part = jnp.stack([c * part[0] + s * part[1], c * part[1] - s * part[0], part[2]])
        elif i in table.rotation_of:
            turn, torque = x[at + tree.joint_nv[i] - 3 : at + tree.joint_nv[i]], part[-3:]
            torque = so3.rotate_back(so3.right_jacobian_inverse(turn), torque)
            if kind == "floating":
                linear = so3.rotate_back(q.rotations[table.rotation_of[i]], part[:3])
                part = jnp.concatenate([linear, torque])
            else:
                part = torque
        parts.append(part)
    return jnp.concatenate(parts) if parts else force


def spring_energy(model: Model, q: FloatLike | Configuration) -> Float[Array, ""]:
    """Energy of the springs at the joints, J; zero for a model without, and where all are at rest.

    `potential_energy` is that of gravity alone: MuJoCo's potential energy is the sum of both. Where springs of
    followers were made part of their leader's, the constant that is left at rest is not counted.

    **Raises:** `InputError` for a wrong shape or dtype.
    """
    check_model(model)
    q = as_configuration(model, q)
    if model.stiffness is None:
        return jnp.zeros((), model.dtype)
    x = _stretch(model, q)
    return 0.5 * jnp.sum(check_shape("model.stiffness", model.stiffness, (model.nv,)) * x * x)


def _stretch(model: Model, q: Configuration) -> Float[Array, " nv"]:
    """The way from the references to the coordinates, for each degree of freedom."""
    tree, table = model.tree, layout(model.tree)
    reference = model.spring_reference
    if reference is None:
        reference = jnp.asarray(neutral_coordinates(tree), model.dtype)
    reference = check_shape("model.spring_reference", reference, (tree.nq,))
    # shifts and angles, in the order of `coordinates`
    x = q.coordinates - reference[table.coordinate]
    wrapped = [
        table.first_coordinate[i] + WRAPPED[tree.joint_types[i]]
        for i in tree.independent
        if tree.joint_types[i] in WRAPPED
    ]
    if wrapped:
        at = np.asarray(wrapped)
        x = x.at[at].set(nearest_turn(x[at]))
    if not table.rotating:
        return x
    turns = so3.log(so3.compose(so3.inverse(so3.from_quaternion(reference[table.quaternion])), q.rotations))
    parts = []
    for i in tree.independent:
        first, size = table.first_coordinate[i], tree.joint_nq[i]
        if i in table.rotation_of:
            parts += [x[first : first + size - 4], turns[table.rotation_of[i]]]
        else:
            parts.append(x[first : first + size])
    return jnp.concatenate(parts)
