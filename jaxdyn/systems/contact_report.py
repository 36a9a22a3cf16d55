"""What the contacts of a robot do at a state: margins and measures for costs, constraints and plots."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import in_dtype_of
from jaxdyn.contact.terrain import standing_axes
from jaxdyn.contact.wrench_cone import center_of_pressure, friction_margin, wrench_in_contact_axes
from jaxdyn.errors import FloatLike, InputError, as_float_array
from jaxdyn.math import so3
from jaxdyn.systems.anchored import AnchoredDynamics
from jaxdyn.systems.robot import RobotDynamics


class ContactReport(eqx.Module):
    """Contacts at one state, stacked in their order.

    | field | shape | meaning |
    |---|---|---|
    | `axes` | (c, 3, 3) | axes of the contact in the world: z the ground's normal, x the frame's x axis laid on the ground |
    | `position` | (c, 3) | origin of the frame in the world, m |
    | `wrench` | (c, 6) | of the ground on the robot, MIXED: world axes, about that origin, N and N m |
    | `local_wrench` | (c, 6) | the same in `axes` |
    | `friction_margin` | (c,) | `mu f_z` minus the length of `f_t`, N: negative where friction cannot bear it, or the contact pulls |
    | `center_of_pressure` | (c, 2) | from the origin along x and y of `axes`, m; zero without load |
    | `slip` | (c, 2) | velocity of the frame's origin along x and y of `axes`, m/s |
    | `power` | (c,) | that the ground does on the robot, W |
    """

    axes: Float[Array, "c 3 3"]
    position: Float[Array, "c 3"]
    wrench: Float[Array, "c 6"]
    local_wrench: Float[Array, "c 6"]
    friction_margin: Float[Array, " c"]
    center_of_pressure: Float[Array, "c 2"]
    slip: Float[Array, "c 2"]
    power: Float[Array, " c"]


def contact_report(
    system: RobotDynamics | AnchoredDynamics,
    x: Any,
    u: Any = None,
    t: FloatLike = 0.0,
    friction: FloatLike | None = None,
) -> ContactReport:
    """What the contacts of a system do at a state `x` under the input `u` at time `t`.

    **Arguments:** `friction`: coefficients for the margin, a number or (contacts,); default those of the laws.

    It is a `record` of a rollout: `record=lambda x, u, t: contact_report(system, x, u, t)`. The wrench cone of a sole takes
    `local_wrench`: `wrench_margins(report.local_wrench[i], wrench_cone(length, width, friction))`.

    **Raises:** `InputError` if a law has no coefficient of friction and none is given, or for a wrong shape.
    """
    contacts = system.acting_contacts(x, u, t)
    friction = _coefficients(contacts, friction, system.velocity(x))
    poses, twists = system.contact_states(x, u)
    wrenches = system.contact_wrenches(x, u, t)
    terrain = system.terrain
    if terrain is None:
        normals = jnp.stack([contact.null_rotation[:, 2] for contact in contacts])
    else:
        normals = terrain.at(poses.translation)[1]
    axes = standing_axes(poses.rotation[..., None], normals[..., None])[..., 0]
    local = jax.vmap(wrench_in_contact_axes)(wrenches, axes)
    slip = jax.vmap(so3.rotate_back)(axes, twists[:, :3])[:, :2]
    margin, center = jax.vmap(friction_margin)(local, friction), jax.vmap(center_of_pressure)(local)
    power = jnp.sum(wrenches * twists, axis=1)
    return ContactReport(axes, poses.translation, wrenches, local, margin, center, slip, power)


def _coefficients(contacts: tuple, friction: FloatLike | None, like: Array) -> Float[Array, " c"]:
    n = len(contacts)
    if n == 0:
        raise InputError("system: it has no contacts to report on.")
    if friction is not None:
        given = as_float_array("friction", in_dtype_of(friction, like))
        if given.shape not in ((), (n,)):
            raise InputError(f"friction: wanted a number or shape ({n},), given shape {given.shape}.")
        return jnp.broadcast_to(given, (n,))
    found = []
    for contact in contacts:
        law = getattr(contact.law, "traction", contact.law)
        if not hasattr(law, "friction"):
            raise InputError(
                f"friction: the {type(law).__name__} of the contact {contact.frame!r} has no coefficient of friction; "
                "give one."
            )
        found.append(law.friction)
    return jnp.stack(found)
