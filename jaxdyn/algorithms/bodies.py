"""The part of a `Model` that the dynamics depend on, and how public functions hand it to a kernel."""

from __future__ import annotations

import equinox as eqx
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
    """What a kernel of the dynamics takes of a model."""
    return Bodies(model.tree, model.joint_placement, model.joint_axis, model.inertia, model.gravity, model.armature)
