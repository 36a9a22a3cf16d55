"""Functions that start from the kinematics of a configuration, so that several of them can share it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from jaxdyn.algorithms.kinematics import Kinematics, forward_kinematics
from jaxdyn.errors import FloatLike
from jaxdyn.functions.function import DifferentiableFunction, automatic_jacobian
from jaxdyn.functions.spaces import ConfigurationSpace
from jaxdyn.model.model import Model


class KinematicFunction(DifferentiableFunction):
    """A function of a robot's configuration that starts from its forward kinematics.

    A subclass defines `value_with`, and may define `value_and_jacobian_with`; both take the kinematics of `q`, which
    `FunctionSet` and `solve_newton` compute once for all functions of one robot.
    """

    @property
    @abc.abstractmethod
    def input_space(self) -> ConfigurationSpace:
        """Configurations of the robot."""

    @abc.abstractmethod
    def value_with(self, q: FloatLike, kin: Kinematics) -> Float[Array, " nq_out"]:
        """The value (nq_out,) at `q` (nq,), of which `kin` are the kinematics."""

    def value_and_jacobian_with(
        self, q: FloatLike, kin: Kinematics
    ) -> tuple[Float[Array, " nq_out"], Float[Array, "nv_out nv"]]:
        """Value and Jacobian at `q` (nq,), of which `kin` are the kinematics; by default the Jacobian is found by automatic
        differentiation, which needs kinematics of its own."""
        return self.value_with(q, kin), automatic_jacobian(self, q)

    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The value (nq_out,) at `q` (nq,)."""
        return self.value_with(q, forward_kinematics(self.input_space.model, q))

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out nv"]:
        """Jacobian (nv_out, nv) at `q` (nq,), from tangent to tangent."""
        return self.value_and_jacobian(q)[1]

    def value_and_jacobian(self, q: FloatLike) -> tuple[Float[Array, " nq_out"], Float[Array, "nv_out nv"]]:
        """Both."""
        return self.value_and_jacobian_with(q, forward_kinematics(self.input_space.model, q))


_OWN = ("value", "jacobian", "value_and_jacobian")


def _shares(function: DifferentiableFunction) -> bool:
    """True for a kinematic function whose class leaves `value` and its relatives as they are."""
    return isinstance(function, KinematicFunction) and all(
        getattr(type(function), member) is getattr(KinematicFunction, member) for member in _OWN
    )


class _SharedKinematics:
    """Kinematics of robots at one configuration, each computed once. Robots are the same if all their arrays are."""

    def __init__(self, q: FloatLike) -> None:
        self._q = q
        self._known: list[tuple[Model, Kinematics]] = []

    def of(self, model: Model) -> Kinematics:
        for other, kin in self._known:
            if same_objects(other, model):
                return kin
        kin = forward_kinematics(model, self._q)
        self._known.append((model, kin))
        return kin


def same_objects(a: Any, b: Any) -> bool:
    """True if two trees have one structure, and each leaf of one is the very leaf of the other."""
    if a is b:
        return True
    leaves, structure = jax.tree.flatten(a)
    others, other_structure = jax.tree.flatten(b)
    return structure == other_structure and all(x is y for x, y in zip(leaves, others, strict=True))


def _each(functions: Sequence[DifferentiableFunction], q: FloatLike, member: str) -> list[Any]:
    """`f.member(q)` of all functions, or `f.member_with(q, kin)` of those that can share kinematics."""
    shared = _SharedKinematics(q)
    return [
        getattr(f, f"{member}_with")(q, shared.of(f.input_space.model))
        if isinstance(f, KinematicFunction) and _shares(f)
        else getattr(f, member)(q)
        for f in functions
    ]


def values_of(functions: Sequence[DifferentiableFunction], q: FloatLike) -> list[Array]:
    """Values of several functions at one argument `q` (nq,)."""
    return _each(functions, q, "value")


def values_and_jacobians_of(functions: Sequence[DifferentiableFunction], q: FloatLike) -> list[tuple[Array, Array]]:
    """Values and Jacobians of several functions at one argument `q` (nq,)."""
    return _each(functions, q, "value_and_jacobian")


class OneOfEachModel(eqx.Module):
    """A tree in which each robot is kept once, however many functions refer to it. Transformations that take trees apart and
    put them together would otherwise give each function a robot of its own, and kinematics of its own."""

    models: tuple[Model, ...]
    others: list[Any]
    places: tuple[int, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    def __init__(self, tree: Any) -> None:
        leaves, self.structure = jax.tree.flatten(tree, is_leaf=_is_model)
        models: list[Model] = []
        places = []
        for leaf in leaves:
            if _is_model(leaf):
                found = [i for i, model in enumerate(models) if same_objects(model, leaf)]
                places.append(found[0] if found else len(models))
                models += [] if found else [leaf]
            else:
                places.append(-1)
        self.models, self.places = tuple(models), tuple(places)
        self.others = [leaf for leaf, place in zip(leaves, places, strict=True) if place < 0]

    def tree(self) -> Any:
        """The tree again."""
        others = iter(self.others)
        leaves = [next(others) if place < 0 else self.models[place] for place in self.places]
        return jax.tree.unflatten(self.structure, leaves)


def _is_model(x: Any) -> bool:
    return isinstance(x, Model)
