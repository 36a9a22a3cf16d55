"""A robot on compliant contacts: what does not depend on whether its base moves."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.compliant import contact_wrenches
from jaxdyn.contact.fields import cast
from jaxdyn.contact.schedule import ContactSchedule
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.math import SE3
from jaxdyn.model import Model
from jaxdyn.systems.contacts import Contacts, checked_contacts
from jaxdyn.systems.system import Input, System, check_leaves, inputs_of


class RobotDynamics(System):
    """The contacts of a system, and the checks of its states and inputs."""

    model: eqx.AbstractVar[Model]
    contacts: eqx.AbstractVar[Contacts]
    terrain: eqx.AbstractVar[Terrain | None]
    schedule: eqx.AbstractVar[ContactSchedule | None]
    _state_type: ClassVar[type]

    @abc.abstractmethod
    def contact_states(self, x: Any, u: Any = None) -> tuple[SE3, Float[Array, "contacts 6"]]:
        """World poses and MIXED twists of the contacts' frames, stacked in the order of the contacts."""

    def contact_wrenches(self, x: Any, u: Any = None, t: FloatLike = 0.0) -> Float[Array, "contacts 6"]:
        """Wrenches `[force, moment]` of the ground on each contact's frame at time `t` (of which only a schedule takes
        notice): world axes, moment about the frame's origin."""
        u = self._checked(x, u, t)
        if not u.contacts:
            return jnp.zeros((0, 6), self.velocity(x).dtype)
        return contact_wrenches(u.contacts, *self.contact_states(x, u), self.terrain)

    @abc.abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each leaf of the state."""

    def acting_contacts(self, x: Any, u: Any = None, t: FloatLike = 0.0) -> Contacts:
        """The contacts as they act at time `t`: the system's or the input's, switched by the schedule."""
        return self._checked(x, u, t).contacts or ()

    def _checked(self, x: Any, u: Any, t: FloatLike | None = None) -> Input:
        """`u` as an `Input` whose contacts are those that act at time `t`. **Raises:** `InputError` for a wrong state or
        input."""
        if not isinstance(x, self._state_type):
            raise InputError(f"x: wanted a {self._state_type.__name__}, given {type(x).__name__}.")
        check_leaves(x, self._shapes())
        u = inputs_of(self.model, u, self.n, self.velocity(x).dtype)
        contacts = self.contacts if u.contacts is None else checked_contacts(self.model, u.contacts)
        if self.schedule is not None and t is not None:
            contacts = self.schedule.switched(contacts, t)
        return Input(u.torque, contacts, u.wrenches)


def checked_schedule(schedule: Any, contacts: Contacts, dtype: Any) -> ContactSchedule | None:
    """The schedule in a dtype. **Raises:** `InputError` if it is none, or one for another number of contacts."""
    if schedule is None:
        return None
    if not isinstance(schedule, ContactSchedule):
        raise InputError(f"schedule: wanted a ContactSchedule, given {type(schedule).__name__}.")
    schedule.check_contacts(len(contacts))
    return cast(schedule, dtype)


def adapted(model: Model, gravity: FloatLike | None, armature: FloatLike | None, n: int) -> Model:
    """The model with another gravity, and with other rotor inertias of its last `n` degrees of freedom and none of the
    others. None leaves them as they are.

    **Raises:** `InputError` for a wrong shape.
    """
    dtype = model.dtype
    if gravity is not None:
        gravity = check_shape("gravity", gravity, (3,), "It is a vector in world axes.", dtype=dtype).astype(dtype)
        model = eqx.tree_at(lambda m: m.gravity, model, gravity)
    if armature is not None:
        armature = check_shape("armature", armature, (n,), dtype=dtype).astype(dtype)
        model = eqx.tree_at(lambda m: m.armature, model, jnp.zeros(model.nv, dtype).at[model.nv - n :].set(armature))
    return model
