"""The configurations of a robot as a space that functions take their argument from."""

from __future__ import annotations

from typing import TypeAlias

import equinox as eqx
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from jaxdyn.errors import FloatLike
from jaxdyn.math.lie_space import LieSpace
from jaxdyn.model.manifold import difference, integrate, neutral, normalize, random_configuration
from jaxdyn.model.model import Model, check_model


class ConfigurationSpace(eqx.Module):
    """The configuration manifold of a robot, with the operations of a `LieSpace`: `plus` is `integrate`, `minus` is
    `difference`, both of single configurations."""

    model: Model

    def __check_init__(self) -> None:
        check_model(self.model)

    @property
    def nq(self) -> int:
        """Number of coordinates."""
        return self.model.nq

    @property
    def nv(self) -> int:
        """Number of degrees of freedom."""
        return self.model.nv

    @property
    def is_vector_space(self) -> bool:
        """True if all joints are prismatic or revolute: `plus` and `minus` add and subtract coordinates."""
        return all(kind in ("revolute", "prismatic") for kind in self.model.tree.joint_types)

    @property
    def coordinate_of(self) -> tuple[int, ...]:
        """For each degree of freedom the coordinate that it changes alone and at unit rate, or -1."""
        tree = self.model.tree
        result = np.full(tree.nv, -1)
        for i, kind in enumerate(tree.joint_types):
            if tree.joint_nv[i] == 1:
                result[tree.v_offset[i]] = tree.q_offset[i]
            elif kind == "planar":
                result[tree.v_offset[i] + 2] = tree.q_offset[i] + 2
        return tuple(int(i) for i in result)

    def neutral(self, dtype: DTypeLike | None = None) -> Float[Array, " nq"]:
        """The neutral configuration; `dtype` defaults to that of the model."""
        q = neutral(self.model)
        return q if dtype is None else q.astype(dtype)

    def plus(self, element: FloatLike, vector: FloatLike) -> Float[Array, " nq"]:
        """The configuration reached from `element` (nq) by the body velocity `vector` (nv) in unit time."""
        return integrate(self.model, element, vector)

    def minus(self, element: FloatLike, origin: FloatLike) -> Float[Array, " nv"]:
        """The body velocity that leads from `origin` to `element` (nq) in unit time."""
        return difference(self.model, origin, element)

    def normalize(self, element: FloatLike) -> Float[Array, " nq"]:
        """The configuration with quaternions at unit length."""
        return normalize(self.model, element)

    def random(self, key: PRNGKeyArray | UInt32[Array, "2"]) -> Float[Array, " nq"]:
        """A random configuration within the limits of the joints."""
        return random_configuration(self.model, key)

    def __str__(self) -> str:
        return f"configurations (nq={self.nq}, nv={self.nv})"


Space: TypeAlias = LieSpace | ConfigurationSpace
"""Where the argument of a function lives."""


def same_space(a: Space, b: Space) -> bool:
    """True if elements of `a` can be elements of `b`: the same factors, or robots of the same structure."""
    if isinstance(a, LieSpace) and isinstance(b, LieSpace):
        return a.merged() == b.merged()
    if isinstance(a, ConfigurationSpace) and isinstance(b, ConfigurationSpace):
        return a.model.tree == b.model.tree
    return False
