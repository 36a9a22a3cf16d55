"""Forward dynamics of a robot on compliant contacts, in one kernel, and its derivatives.

    M(q) a = tau + tau_c(q, v, contacts) - h(q, v)

with the generalised force `tau_c` of the contacts. The acceleration solves `ID(q, v, a) = tau + tau_c`, so

    da = M^-1 (d tau + d(tau_c - ID)),      the last differential at fixed a,

for which there are two ways:

- *by products*: the tangent of `tau_c - ID` along the change, and one solve. Its transpose is one solve and one backward
  sweep through `tau_c - ID`: two to three forward dynamics, no matrix. For gradients, and for few directions.
- *dense*: the matrices `da/dq`, `da/dv`, `M^-1` of `aba_derivatives`, shared by all directions. For whole Jacobians.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms import world
from jaxdyn.algorithms.articulated import forward_dynamics_derivatives, forward_dynamics_kernel
from jaxdyn.algorithms.bodies import Bodies, bodies_of
from jaxdyn.algorithms.configuration import Configuration, tangent_of
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.coupled_dynamics import coupled_accelerations
from jaxdyn.contact.terrain import Terrain
from jaxdyn.math import SE3, batching
from jaxdyn.math.stacked import Stack, total
from jaxdyn.model import Model
from jaxdyn.systems.contacts import Base, Contacts, contact_placements, generalized_contact_force

Ground = tuple[SE3, Base | tuple[()], Contacts, Terrain | tuple[()]]
"""What `generalized_contact_force` takes besides the robot: placements, base, contacts, terrain. Without contacts: ()."""


# Each part of a kernel computes the robot's geometry for itself; the compiler sees that it is the same and keeps one.


def _force_kernel(static, bodies: Bodies, q: Configuration, v: Stack, ground: Ground) -> Stack:
    """`tau_c`: (nv, B)."""
    tree, carriers = static
    at = world.geometry(bodies, q)
    twist, _ = world.velocities(tree, at, v)
    return generalized_contact_force(tree, carriers, at, twist, *ground)


def _dynamics_kernel(
    static, bodies: Bodies, q: Configuration, v: Stack, tau: Stack, ground: Ground | tuple[()]
) -> Stack:
    """Accelerations (nv, B)."""
    tau = tau + _force_kernel(static, bodies, q, v, ground) if ground else tau
    return forward_dynamics_kernel(static[0], bodies, q, v, tau)


def _balance_kernel(static, bodies: Bodies, q: Configuration, v: Stack, a: Stack, ground: Ground | tuple[()]) -> Stack:
    """`tau_c - ID(q, v, a)`: (nv, B)."""
    tau = world.rnea_kernel(static[0], bodies, q, v, a)
    return _force_kernel(static, bodies, q, v, ground) - tau if ground else -tau


def _sum(*terms: Stack | None) -> Stack | None:
    present = [t for t in terms if t is not None]
    return total(present) if present else None


def _still(tree: Any) -> Any:
    """Tangents for arguments that do not vary."""
    return jax.tree.map(lambda _: None, tree)


def _rule_by_products(static, arguments, tangents, a: Stack) -> Stack | None:
    bodies, q, v, _, ground = arguments
    d_bodies, d_q, d_v, d_tau, d_ground = tangents
    moved = batching.push_forward(
        _balance_kernel, static, (bodies, q, v, a, ground), (d_bodies, d_q, d_v, None, d_ground)
    )
    change = _sum(d_tau, moved)
    if change is None:
        return None
    # linear in the torque: its tangent is the solve alone
    zero = jnp.zeros((static[0].nv, 1), a.dtype)
    arguments = bodies, q, zero, zero
    return batching.push_forward(
        forward_dynamics_kernel, static[0], arguments, (_still(bodies), _still(q), None, change)
    )


def _rule_dense(static, arguments, tangents, a: Stack) -> Stack | None:
    tree, _ = static
    bodies, q, v, _, ground = arguments
    d_bodies, d_q, d_v, d_tau, d_ground = tangents
    by_q, by_v, inverse = batching.call(forward_dynamics_derivatives, None, tree, bodies, q, v, a)
    fixed = _still(q), None, None
    of_model = batching.push_forward(_balance_kernel, static, (bodies, q, v, a, ()), (d_bodies, *fixed, ()))
    of_ground = None
    if ground:
        of_ground = batching.push_forward(_force_kernel, static, (bodies, q, v, ground), (d_bodies, d_q, d_v, d_ground))
    changes = ((by_q, tangent_of(tree, q, d_q)), (by_v, d_v), (inverse, _sum(d_tau, of_model, of_ground)))
    return _sum(*(jnp.sum(matrix * change[None], axis=1) for matrix, change in changes if change is not None))


_DYNAMICS: dict[str, Callable] = {
    "products": batching.batch_last(_dynamics_kernel, _rule_by_products),
    "dense": batching.batch_last(_dynamics_kernel, _rule_dense),
}
_force = batching.batch_last(_force_kernel)


def _ground(model: Model, base: Base | None, contacts: Contacts, terrain: Terrain | None) -> tuple[Any, Any]:
    if not contacts:
        return (model.tree, ()), ()
    static, placement = contact_placements(model, contacts)
    return static, (placement, base or (), contacts, () if terrain is None else terrain)


def contact_dynamics(
    model: Model,
    q: Configuration,
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    base: Base | None,
    contacts: Contacts,
    terrain: Terrain | None,
    derivatives: str,
) -> Float[Array, " nv"]:
    """Accelerations of a robot under torques and contacts, both in its own axes.

    **Arguments:** `base`: where these axes lie in the world; None if they are the world's; `derivatives`: `"products"` or
    `"dense"`, see the module's text.
    """
    if model.tree.followers:
        if contacts:
            tau = tau + contact_torque(model, q, v, base, contacts, terrain)
        return coupled_accelerations(model, q, v, tau)
    static, ground = _ground(model, base, contacts, terrain)
    return _DYNAMICS[derivatives](static, bodies_of(model), q, v, tau, ground)


@through_followers(0)
def contact_torque(
    model: Model,
    q: Configuration,
    v: Float[Array, " nv"],
    base: Base | None,
    contacts: Contacts,
    terrain: Terrain | None,
) -> Float[Array, " nv"]:
    """Generalised force of the contacts; of a floating base, in its own axes."""
    static, ground = _ground(model, base, contacts, terrain)
    return _force(static, bodies_of(model), q, v, ground)
