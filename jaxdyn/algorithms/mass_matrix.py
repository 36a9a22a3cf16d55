"""The joint-space inertia matrix."""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxdyn.algorithms.bodies import bodies_of
from jaxdyn.algorithms.configuration import Configuration, as_configuration
from jaxdyn.algorithms.coupled import through_followers
from jaxdyn.algorithms.gradients import mass_matrix_kernel
from jaxdyn.errors import FloatLike
from jaxdyn.math import batching
from jaxdyn.model.model import Model

_crba = batching.batch_last(mass_matrix_kernel)


@through_followers(0, 1)
def crba(model: Model, q: FloatLike | Configuration) -> Float[Array, "nv nv"]:
    """Joint-space inertia matrix M(q): full and symmetric, armature on the diagonal, exact zeros between branches.
    (nv, nv), kg m^2, kg m, kg.

    **Arguments:** `model`; `q` (nq,) or `Configuration`.

    **Raises:** `InputError` for a wrong shape or dtype.

    Source: composite rigid body algorithm, Featherstone, Rigid Body Dynamics Algorithms, 6.2; here in world axes.
    """
    return _crba(model.tree, bodies_of(model), as_configuration(model, q))
