"""A robot whose contacts remember where they are held.

`FloatingBaseDynamics` and `FixedBaseDynamics` take the anchors of their contacts for constants. `AnchoredDynamics` makes
them a part of the state: a foot is anchored where it touches down, slides along if its law lets it (`StickSlip`), and
is free in the air. Anchors change at the end of a step, not within it; so every integrator keeps its order between two
touch-downs while all points stick.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.compliant import Anchor
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError
from jaxdyn.math import SE3
from jaxdyn.model import Model
from jaxdyn.systems.contacts import Contacts, settled
from jaxdyn.systems.robot import RobotDynamics
from jaxdyn.systems.system import Input, System


class AnchoredState(eqx.Module):
    """`robot`: a `State` or `FixedBaseState`; `anchors`: an `Anchor` for each contact, in their order."""

    robot: Any
    anchors: tuple[Anchor, ...]


class AnchoredDerivative(eqx.Module):
    """Time derivative of an `AnchoredState` within a step: anchors stand still."""

    robot: Any
    anchors: tuple[Anchor, ...]


class AnchoredDynamics(System):
    """`system` with the anchors of its contacts as state.

    **Arguments:** `system`: a `FloatingBaseDynamics` or `FixedBaseDynamics` with contacts, whose own anchors then give no
    more than the planes of the ground, where there is no terrain; `stop_gradient`: differentiate as if each anchor had
    been there from the beginning.

    The state is an `AnchoredState`, made by `start`. At the end of each step:

    - A contact that is off, or has no point below the ground, is anchored anew: the sole's projection on the ground with
      its heading (`touchdown_anchor`), all points unstressed.
    - Else its anchor stays. Of a law that slides (`StickSlip`) the anchor of each point stays if the point sticks, moves by
      the return mapping if it slides, and is set anew if the point is in the air.

    For what is off, the activity at the beginning of the step counts, so that a contact that a schedule switches on is
    anchored where it was at that moment. A law that pulls (`Brush`) acts from the end of the step in which some point has come
    below the ground to that in which the last has left it. Contacts in an `Input` take their anchors from the state.
    """

    system: RobotDynamics
    stop_gradient: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if not isinstance(self.system, RobotDynamics):
            raise InputError(
                f"system: wanted a FloatingBaseDynamics or FixedBaseDynamics, given {type(self.system).__name__}."
            )

    def start(self, robot: Any, u: Any = None, t: FloatLike = 0.0, touch_down: bool = True) -> AnchoredState:
        """The state at the start: `robot` with its contacts anchored where they are, unstressed along the ground, or, with
        `touch_down=False`, where the contacts' own anchors are."""
        contacts = self.system.acting_contacts(robot, u, t)
        if not contacts:
            return AnchoredState(robot, ())
        off = tuple(eqx.tree_at(lambda c: c.active, c, jnp.zeros_like(c.active)) for c in contacts)
        anchors = settled(off, *self.system.contact_states(robot, u), self.system.terrain)
        if not touch_down:
            own = [(c.null_position, c.null_rotation, c.slip) for c in contacts]
            anchors = tuple(Anchor(*parts, found.held) for parts, found in zip(own, anchors, strict=True))
        return AnchoredState(robot, anchors)

    @property
    def model(self) -> Model:
        """The robot."""
        return self.system.model

    @property
    def terrain(self) -> Terrain | None:
        """The ground; None if each contact has its own."""
        return self.system.terrain

    @property
    def n(self) -> int:
        return self.system.n

    def __call__(self, x: Any, u: Any, t: FloatLike = 0.0) -> AnchoredDerivative:
        robot, u = self._inside(x, u)
        return AnchoredDerivative(self.system(robot, u, t), jax.tree.map(jnp.zeros_like, x.anchors))

    def acceleration(self, x: Any, u: Any, t: FloatLike = 0.0) -> Float[Array, " nv"]:
        return self.system.acceleration(*self._inside(x, u), t)

    def velocity(self, x: Any) -> Float[Array, " nv"]:
        return self.system.velocity(x.robot)

    def displace(self, x: Any, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> AnchoredState:
        return AnchoredState(self.system.displace(x.robot, displacement, velocity), x.anchors)

    def displacement(self, x0: Any, x1: Any) -> Float[Array, " nv"]:
        return self.system.displacement(x0.robot, x1.robot)

    def chart_rate(self, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Float[Array, " nv"]:
        return self.system.chart_rate(displacement, velocity)

    def project(self, x: Any) -> AnchoredState:
        return AnchoredState(self.system.project(x.robot), x.anchors)

    def settle(self, x: Any, u: Any, t: FloatLike) -> AnchoredState:
        robot, u = self._inside(x, u, let_go=False)
        contacts = self.system.acting_contacts(robot, u, t)
        if not contacts:
            return x
        anchors = settled(contacts, *self.system.contact_states(robot, u), self.system.terrain)
        return AnchoredState(robot, jax.lax.stop_gradient(anchors) if self.stop_gradient else anchors)

    def with_derivatives(self, kind: str) -> AnchoredDynamics:
        return AnchoredDynamics(self.system.with_derivatives(kind), self.stop_gradient)  # pyright: ignore

    def contact_states(self, x: Any, u: Any = None) -> tuple[SE3, Float[Array, "contacts 6"]]:
        """World poses and MIXED twists of the contacts' frames, stacked in the order of the contacts."""
        return self.system.contact_states(*self._inside(x, u))

    def contact_wrenches(self, x: Any, u: Any = None, t: FloatLike = 0.0) -> Float[Array, "contacts 6"]:
        """Wrenches of the ground on each contact's frame: world axes, moment about the frame's origin."""
        return self.system.contact_wrenches(*self._inside(x, u), t)

    def acting_contacts(self, x: Any, u: Any = None, t: FloatLike = 0.0) -> Contacts:
        """The contacts as they act at time `t`, with the anchors of the state."""
        return self.system.acting_contacts(*self._inside(x, u), t)

    def _inside(self, x: Any, u: Any, let_go: bool = True) -> tuple[Any, Input]:
        """The robot's state, and the input with contacts tied to the state's anchors; with `let_go`, those off that pull and
        are not held.

        **Raises:** `InputError` for another state, or contacts that the state has no anchors for.
        """
        if not isinstance(x, AnchoredState):
            raise InputError(
                f"x: wanted an AnchoredState, given {type(x).__name__}; the system's start(state) makes one."
            )
        u = u if isinstance(u, Input) or u is None else Input(u)
        contacts = self.system.contacts if u is None or u.contacts is None else u.contacts
        if len(contacts) != len(x.anchors):
            raise InputError(f"x: wanted an anchor for each of the {len(contacts)} contacts, given {len(x.anchors)}.")
        tied = tuple(contact.with_anchor(anchor) for contact, anchor in zip(contacts, x.anchors, strict=True))
        if let_go:
            tied = tuple(
                c if a.held is None else eqx.tree_at(lambda c: c.active, c, c.active * a.held)
                for c, a in zip(tied, x.anchors, strict=True)
            )
        dtype = self.system.velocity(x.robot).dtype
        torque = jnp.zeros(self.n, dtype) if u is None else u.torque
        return x.robot, Input(torque, tied, None if u is None else u.wrenches)
