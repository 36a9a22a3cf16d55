"""Contacts of a robot: from its kinematics to the wrenches on its bodies."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.compliant import CompliantContact
from jaxdyn.contact.fields import cast
from jaxdyn.errors import InputError, UnknownNameError
from jaxdyn.math import SE3, so3
from jaxdyn.model import Model

Contacts = tuple[CompliantContact, ...]


def checked_contacts(model: Model, contacts: Contacts) -> Contacts:
    """The contacts, in the dtype of the model.

    **Raises:** `InputError` if one is not a `CompliantContact`, or its frame does not exist or is fixed to the world.
    """
    contacts = (contacts,) if isinstance(contacts, CompliantContact) else tuple(contacts)
    for contact in contacts:
        if not isinstance(contact, CompliantContact):
            raise InputError(f"contacts: wanted CompliantContact objects, given {type(contact).__name__}.")
        try:
            frame = model.frame(contact.frame)
        except UnknownNameError as error:
            raise InputError(f"contacts: {error}") from None
        if model.tree.frame_bodies[frame] < 0:
            raise InputError(
                f"contacts: the frame {contact.frame!r} is fixed to the world; no force there moves the robot."
            )
    return cast(contacts, model.dtype)


def bodies_of(model: Model, contacts: Contacts) -> np.ndarray:
    """Index of the body that carries each contact."""
    return np.asarray([model.tree.frame_bodies[model.frame(c.frame)] for c in contacts], dtype=int)


def contact_frames(model: Model, contacts: Contacts, kinematics) -> tuple[SE3, Float[Array, "contacts 6"]]:
    """Poses and MIXED twists of the contacts' frames, stacked, in the axes that the kinematics are in."""
    bodies = bodies_of(model, contacts)
    frames = np.asarray([model.frame(c.frame) for c in contacts], dtype=int)
    body = SE3(kinematics.rotation[bodies], kinematics.translation[bodies])
    local = SE3(model.frame_placement.rotation[frames], model.frame_placement.translation[frames])
    arms = so3.rotate(body.rotation, local.translation)
    twist = kinematics.twist[bodies]
    linear = twist[:, :3] + so3.cross(twist[:, 3:], arms)
    pose = SE3(so3.compose(body.rotation, local.rotation), body.translation + arms)
    return pose, jnp.concatenate([linear, twist[:, 3:]], axis=-1)


def sum_on_bodies(model: Model, contacts: Contacts, wrenches: Float[Array, "contacts 6"]) -> Float[Array, "bodies 6"]:
    """The sum of the wrenches on each body."""
    bodies = bodies_of(model, contacts)
    zero = jnp.zeros(6, wrenches.dtype)
    rows = []
    for body in range(model.n_bodies):
        members = np.flatnonzero(bodies == body)
        rows.append(sum((wrenches[i] for i in members[1:]), wrenches[members[0]]) if members.size else zero)
    return jnp.stack(rows)
