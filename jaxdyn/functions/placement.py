"""Putting surfaces on surfaces: placements of objects, footholds, and everything else that must hold meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.errors import FloatLike, Status
from jaxdyn.functions.convex_shape_contact import ConvexShapeContact
from jaxdyn.functions.implicit import Implicit
from jaxdyn.functions.newton import solve_newton


class Placement(eqx.Module):
    """What `solve_placement` returns: `q` (nq,); `floor` and `object`: numbers of the surfaces that touch; `error`: length of
    the exact contact's value; `status`: a `Status`; `iterations`."""

    q: Float[Array, " nq"]
    floor: Int[Array, ""]
    object: Int[Array, ""]
    error: Float[Array, ""]
    status: Int[Array, ""]
    iterations: Int[Array, ""]

    @property
    def success(self) -> Bool[Array, ""]:
        """True where the status is OK."""
        return self.status == Status.OK.value


def solve_placement(
    contact: ConvexShapeContact, q: FloatLike, *, constraints: Sequence[Any] = (), **options: Any
) -> Placement:
    """Moves a configuration so that the nearest object surface lies on the nearest floor.

    The pair that is nearest at the start is kept on the way, for another may come nearer while the object turns and the value
    would jump; when they touch they are the nearest. The way is that of the contact's projected mode, which moves less than
    the exact one and does not jump at the outline; the result is judged by the exact one.

    **Arguments:** `contact`; `q` (nq,): the start; `constraints`: what else must hold, as for `solve_newton`; `options`: of
    `solve_newton`. Batches go through `jax.vmap`.

    **Returns:** `Placement`; its status is STALLED also where the exact contact is missed, that is where the object ends upside
    down or beside the floor.
    """
    exact = contact.with_mode("exact", "log")
    start = exact.select(q)
    way = contact.with_mode("projected", contact.normal_align).with_pair(start.floor, start.object)
    result = solve_newton([Implicit(way), *constraints], q, **options)
    value = exact.value(result.q)
    chosen = exact.select(result.q)
    square = jnp.sum(value * value)
    error = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    # the tolerance of the solver is that of all constraints together
    allowed = jnp.maximum(10 * result.errors[0], float(jnp.finfo(value.dtype).eps) ** 0.5)
    status = jnp.where(result.success & ~(error <= allowed), Status.STALLED.value, result.status).astype(jnp.int32)
    return Placement(result.q, chosen.floor, chosen.object, error, status, result.iterations)
