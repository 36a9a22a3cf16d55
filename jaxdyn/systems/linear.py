"""Linear time-invariant systems, and the first-order smoother, which is one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, parameter
from jaxdyn.errors import FloatLike, InputError, is_concrete
from jaxdyn.systems.first_order import VectorSystem, check_vector


class LinearTimeInvariantSystem(VectorSystem):
    """`x_dot = A x + B u`.

    **Arguments:** `A` (n, n), `B` (n, m).

    **Raises:** `InputError` if A is not square or B has another number of rows; at a call for vectors of a wrong length.
    """

    A: Float[Array, "... n n"] = parameter("A", (None, None))
    B: Float[Array, "... n m"] = parameter("B", (None, None))

    def __check_init__(self) -> None:
        rows, columns = self.A.shape[-2:]
        if rows != columns:
            raise InputError(f"A: wanted a square matrix, given shape {self.A.shape}.")
        if self.B.shape[-2] != rows:
            raise InputError(f"B: wanted {rows} rows, as A has, given shape {self.B.shape}.")

    def __call__(self, x: Float[Array, " n"], u: Any = None, t: FloatLike = 0.0) -> Float[Array, " n"]:
        u = self.default_input if u is None else u
        x = check_vector("x", x, self.A.shape[-1], "one entry per column of A")
        u = check_vector("u", u, self.B.shape[-1], "one entry per column of B")
        return jnp.matmul(self.A, x, precision="highest") + jnp.matmul(self.B, u, precision="highest")

    @property
    def default_input(self) -> Float[Array, " m"]:
        return jnp.zeros(self.B.shape[-1], self.B.dtype)


class FirstOrderSmoother(VectorSystem):
    """`x_dot = 3 / T (u - x)`: follows the input `u`, any vector, and has made 95 % of a step after the settling time T (s).

    **Raises:** `InputError` for a settling time that is not positive; at a call if `u` has another shape than `x`.
    """

    settling_time: Scalar = parameter("settling_time")

    def __check_init__(self) -> None:
        if is_concrete(self.settling_time) and not bool(jnp.all(self.settling_time > 0)):
            raise InputError(f"settling_time: wanted a positive time, given {self.settling_time}.")

    def __call__(self, x: Float[Array, " n"], u: Any, t: FloatLike = 0.0) -> Float[Array, " n"]:
        x = check_vector("x", x, jnp.size(x), "a vector")
        if u is None:
            return jnp.zeros_like(x)
        u = check_vector("u", u, x.size, "as the state has")
        return 3.0 / self.settling_time * (u - x)

    @property
    def default_input(self) -> None:
        return None
