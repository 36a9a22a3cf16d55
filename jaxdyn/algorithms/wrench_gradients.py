"""How the generalised force of constant wrenches changes with the configuration."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.kinematics import forward_kinematics
from jaxdyn.errors import FloatLike, check_shape
from jaxdyn.math.so3 import cross
from jaxdyn.math.spatial import force_cross
from jaxdyn.model.model import Model


@through_followers(0, 1)
def generalized_force_by_q(model: Model, q: FloatLike | Configuration, wrenches: FloatLike) -> Float[Array, "nv nv"]:
    """Derivative in tangent space of `generalized_force(model, q, wrenches)`, the MIXED wrenches held constant. (nv,
    nv)

    With f_b the wrenches about a common point and F_i their sum over the bodies at or below that of i, tau_i = S_i .
    F_i. A motion along S_j carries the axes at or below j along, and moves the origin of each body b there by u_jb,
    which shifts the moment of its force about the point by u_jb x force_b; with T_ij the sum of these over the bodies
    at or below i:

        i at or below j:       d tau_i / dq_j = (S_j x S_i) . F_i + S_i . [0, T_ij]
        i strictly above j:    d tau_i / dq_j = S_i . [0, T_jj]
    """
    wrenches = check_shape("wrenches", wrenches, (model.n_bodies, 6))
    kin = forward_kinematics(model, q)
    tree, s = model.tree, kin.axes
    if tree.nv == 0:
        return jnp.zeros((0, 0), kin.origin.dtype)
    arm = kin.translation - kin.origin[None]
    force = wrenches[:, :3]
    about_origin = jnp.concatenate([force, wrenches[:, 3:] + cross(arm, force)], axis=1)
    moves = jnp.asarray(tree.dof_support.T, s.dtype)
    total = jnp.matmul(moves, about_origin, precision="highest")
    u = s[:, None, :3] + cross(s[:, None, 3:], arm[None])
    shift = jnp.einsum("ib,jbk->ijk", moves, cross(u, force[None]), precision="highest")
    carried = -jnp.einsum("ik,jik->ij", s, force_cross(s[:, None], total[None]), precision="highest")
    own = jnp.einsum("ik,ijk->ij", s[:, 3:], shift, precision="highest")
    from_above = jnp.einsum("ik,jjk->ij", s[:, 3:], shift, precision="highest")
    at_or_below = tree.dof_support[list(tree.dof_body)]
    strictly_above = at_or_below.T & ~at_or_below
    return jnp.where(at_or_below, carried + own, jnp.where(strictly_above, from_above, jnp.zeros_like(own)))
