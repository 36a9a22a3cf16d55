"""`FunctionSet`: several functions of one argument as one function."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError
from jaxdyn.functions.function import DifferentiableFunction, check_function
from jaxdyn.functions.kinematic import values_and_jacobians_of, values_of
from jaxdyn.functions.spaces import Space, same_space
from jaxdyn.math.lie_space import LieSpace


class FunctionSet(DifferentiableFunction):
    """Several functions of one argument as one function: values in a row, Jacobians stacked, output spaces multiplied,
    masks joined. Kinematics of one robot are computed once for all of them.

    **Arguments:** `functions`: at least one; a set among them is kept as one member; `name`; `context`.

    **Raises:** `InputError` for no function, or functions of different arguments.
    """

    functions: tuple[DifferentiableFunction, ...]

    def __init__(self, functions: Sequence[DifferentiableFunction], name: str = "", context: str = "") -> None:
        if isinstance(functions, DifferentiableFunction):
            raise InputError(f"FunctionSet: wanted a sequence of functions, given one: {functions!r:.80}.")
        functions = tuple(functions)
        for i, f in enumerate(functions):
            check_function(f"FunctionSet: function {i}", f)
        if not functions:
            raise InputError("FunctionSet: wanted at least one function, given none.")
        for f in functions[1:]:
            if not same_space(f.input_space, functions[0].input_space):
                raise InputError(
                    f"FunctionSet: all functions must have one argument, but {functions[0].name!r} takes "
                    f"{functions[0].input_space} and {f.name!r} takes {f.input_space}."
                )
        self.functions = functions
        self.name = name or ", ".join(f.name for f in functions)
        self.context = context

    @property
    def input_space(self) -> Space:
        """That of the first function."""
        return self.functions[0].input_space

    @property
    def output_space(self) -> LieSpace:
        """Product of the functions' output spaces."""
        return LieSpace(tuple(factor for f in self.functions for factor in f.output_space.factors))

    def value(self, q: FloatLike) -> Float[Array, " nq_out"]:
        """The functions' values in a row."""
        return jnp.concatenate(values_of(self.functions, q))

    def jacobian(self, q: FloatLike) -> Float[Array, "nv_out nv_in"]:
        """The functions' Jacobians, stacked."""
        return self.value_and_jacobian(q)[1]

    def value_and_jacobian(self, q: FloatLike) -> tuple[Float[Array, " nq_out"], Float[Array, "nv_out nv_in"]]:
        """Both."""
        values, jacobians = zip(*values_and_jacobians_of(self.functions, q), strict=True)
        return jnp.concatenate(values), jnp.concatenate(jacobians)

    @property
    def active_parameters(self) -> np.ndarray:
        """True where any of the functions depends on the coordinate."""
        return np.any([f.active_parameters for f in self.functions], axis=0)

    @property
    def active_derivative_parameters(self) -> np.ndarray:
        """True where any of the functions depends on the degree of freedom."""
        return np.any([f.active_derivative_parameters for f in self.functions], axis=0)

    @property
    def relative_pose_bodies(self) -> tuple[int, int] | None:
        """The pair that all functions share, or None."""
        pairs = {f.relative_pose_bodies for f in self.functions}
        return pairs.pop() if len(pairs) == 1 else None

    def details(self) -> list[str]:
        """The functions."""
        return [line for f in self.functions for line in str(f).splitlines()]
