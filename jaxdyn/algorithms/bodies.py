"""The part of a `Model` that the dynamics depend on, and how public functions hand it to a kernel."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


class Bodies(eqx.Module):
    """Leaves of `Model` that enter its dynamics, under the same names; inside a kernel each carries a trailing batch
    axis."""

    tree: Tree = eqx.field(static=True)
    joint_placement: SE3
    joint_axis: Float[Array, "joints 3 *batch"]
    inertia: SpatialInertia
    gravity: Float[Array, "3 *batch"]
    armature: Float[Array, "nv *batch"]


def bodies_of(model: Model) -> Bodies:
    """What a kernel of the dynamics takes of a model.

    Of the rotational inertias the symmetric part: kernels read one half or the other, and only so does a derivative with
    respect to an entry have one value, whatever the algorithm and the mode.
    """
    inertia = eqx.tree_at(lambda x: x.inertia, model.inertia, replace_fn=symmetric_part)
    return Bodies(model.tree, model.joint_placement, model.joint_axis, inertia, model.gravity, model.armature)


def symmetric_part(x: Float[Array, "*any n n"]) -> Float[Array, "*any n n"]:
    """Exactly `x` where it is symmetric."""
    return 0.5 * (x + jnp.matrix_transpose(x))
