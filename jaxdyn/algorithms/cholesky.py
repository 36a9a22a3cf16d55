"""Sparse factorisation M = U D U^T of the joint-space inertia matrix, and products and solves with it.

U is unit upper triangular, D diagonal; U has the pattern of M (`Topology`), so nothing fills in. This is not the
L D L^T of textbooks, which eliminates the first row first and fills the whole matrix; it is the L^T D L of
Featherstone (Rigid Body Dynamics Algorithms, 6.4) with U = L^T, and what Pinocchio's `cholesky` computes. D_j is the
inertia that degree of freedom j feels with its ancestors held and all below it free; det M is the product of D.

    factor = cholesky.decompose(model, crba(model, q))
    a = cholesky.solve(factor, tau)

Functions take vectors (nv,) or matrices (nv, k) of columns and return new arrays; batch with `jax.vmap`. Only entries
(i, j) of M with i equal to j or an ancestor of it are read, and only these receive a gradient: `jax.grad` with respect
to M returns zero below the diagonal and between branches.

Derivatives. Of x = M^{-1} y: dx = M^{-1} (dy - dM x), with the factor at hand; the factorisation is not
differentiated. The factor therefore carries M's own entries too. Of U and D: in closed form (see `elimination`). Both
hold to every order, forward and reverse.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdyn.algorithms import elimination, single_state
from jaxdyn.algorithms.columns import as_columns
from jaxdyn.algorithms.elimination import plan
from jaxdyn.algorithms.single_state import symmetric, unit_upper
from jaxdyn.algorithms.topology import Topology, TopologyLike, topology_of
from jaxdyn.errors import FloatLike, InputError, Status, check_shape, unknown_name
from jaxdyn.math import batching
from jaxdyn.math.stacked import Stack

METHODS = ("auto", "sparse", "ldl", "dense")


class MassCholesky(eqx.Module):
    """The factor of a joint-space inertia matrix, made by `decompose`.

    `U` (nv, nv), `D` (nv,), `Dinv` (nv,) and `M` (nv, nv) are its stable interface. The fields `mass`, `upper` and
    `inverse` hold the structural entries alone, in an order that is private and may change; `topology` is static. Shapes
    depend on the topology alone, so a factor may be carried through `jax.lax.scan`.

    Solves are differentiated through `mass`, products through `upper` and `inverse`: a gradient with respect to a
    factor that was not carried on to the M it came from has little meaning.
    """

    mass: Float[Array, " entries"]
    upper: Float[Array, " strict_entries"]
    inverse: Float[Array, " nv"]
    topology: Topology = eqx.field(static=True)

    @property
    def nv(self) -> int:
        """Number of degrees of freedom."""
        return self.topology.nv

    @property
    def dtype(self) -> Any:
        """Floating-point type of the entries."""
        return self.inverse.dtype

    @property
    def U(self) -> Float[Array, "nv nv"]:
        """Unit upper triangular factor; zero, exactly, where `Topology.related` says so."""
        return unit_upper(self.topology, self.upper)

    @property
    def D(self) -> Float[Array, " nv"]:
        """Pivots, kg m^2 or kg: positive if M is positive definite."""
        return 1.0 / self.Dinv

    @property
    def Dinv(self) -> Float[Array, " nv"]:
        """1 / D."""
        return self.inverse[plan(self.topology).rank] if self.nv else self.inverse

    @property
    def M(self) -> Float[Array, "nv nv"]:
        """The matrix that was factorised: symmetric, zero between branches, with what a pivot floor added."""
        return symmetric(self.topology, self.mass)

    @property
    def min_pivot(self) -> Float[Array, ""]:
        """The smallest of `D`; infinite if there is none, NaN if one is."""
        return jnp.min(self.D, initial=jnp.inf)

    @property
    def ok(self) -> Bool[Array, ""]:
        """Whether all pivots are positive and finite, that is whether M is positive definite."""
        return jnp.all((self.D > 0) & jnp.isfinite(self.D))

    @property
    def status(self) -> Int[Array, ""]:
        """`Status.OK`, `Status.SINGULAR_MASS_MATRIX` if a pivot is not positive (or rounding alone explains it), or
        `Status.NON_FINITE` if M holds a NaN or infinity where it is read. int32."""
        diagonal = self.mass[plan(self.topology).diagonal] if self.nv else self.mass
        regular = jnp.all(1.0 / self.inverse > 8 * jnp.finfo(self.dtype).eps * jnp.abs(diagonal))
        finite = jnp.all(jnp.isfinite(self.mass))
        singular = jnp.where(regular, jnp.int32(Status.OK), jnp.int32(Status.SINGULAR_MASS_MATRIX))
        return jnp.where(finite, singular, jnp.int32(Status.NON_FINITE))

    @property
    def log_det(self) -> Float[Array, ""]:
        """log det M, the sum of log D; NaN if a pivot is negative."""
        return -jnp.sum(jnp.log(self.inverse))

    def as_lineax(self, *, inverse: bool = False):
        """M, or with `inverse` M^{-1}, as a `lineax.FunctionLinearOperator`: symmetric, positive semidefinite.

        Needs the optional package lineax.
        """
        import lineax as lx

        apply = solve if inverse else UDUtv
        like = jax.ShapeDtypeStruct((self.nv,), self.dtype)
        tags = (lx.symmetric_tag, lx.positive_semidefinite_tag)
        return lx.FunctionLinearOperator(functools.partial(apply, self), like, tags)


def decompose(
    tree_or_model: TopologyLike, M: FloatLike, *, method: str = "auto", pivot_floor: FloatLike | None = None
) -> MassCholesky:
    """Factorise M = U D U^T.

    **Arguments:** `tree_or_model`: `Model`, `Tree`, `Topology`, or the parent of each degree of freedom; any numbering
    with parents first will do. `M` (nv, nv), kg m^2, of which only the structural upper part is read: NaN elsewhere
    does no harm. `method`: `"sparse"`, alias `"ldl"`, needs no square roots and so takes indefinite matrices too;
    `"dense"` is LAPACK's Cholesky of the reversed matrix (NaN unless M is positive definite, and a NaN spreads to all
    of this M); `"auto"` takes what was measured to be faster: for a single state of a robot with one root and at least
    8 degrees of freedom the dense way (with a loop without square roots where M is not positive definite), else, and in
    every batch, the sparse one. `pivot_floor` (), kg m^2: lower pivots are raised to it, as if M had more inertia there;
    its derivatives are finite. (Not with `"dense"`.)

    **Returns:** `MassCholesky`. A matrix that is singular gives infinities or NaN in the pivots concerned and what
    hangs above them, no exception: see `MassCholesky.status`. In a batch only that element is hit.

    **Raises:** `InputError` for a wrong shape, dtype or method.
    """
    topology = topology_of(tree_or_model)
    M = check_shape("M", M, (topology.nv, topology.nv), f"The robot has nv = {topology.nv}.")
    if method not in METHODS:
        raise unknown_method(method)
    if pivot_floor is not None and method == "dense":
        raise InputError("pivot_floor: the dense method has no pivots to raise; use method='sparse'.")
    mass = M[tuple(plan(topology).entries)] if topology.nv else M.reshape(0)
    return factor_entries(topology, mass, method=method, pivot_floor=pivot_floor)


def unknown_method(method: object) -> InputError:
    """The exception for a method that does not exist."""
    return InputError(str(unknown_name("method", method, METHODS)))


def factor_entries(
    topology: Topology, mass: Float[Array, " entries"], *, method: str = "auto", pivot_floor: FloatLike | None = None
) -> MassCholesky:
    """The factor from the packed entries of M."""
    if topology.nv == 0:
        return MassCholesky(mass, mass, mass, topology)
    if pivot_floor is None:
        upper, inverse = _factor(topology, method, mass)
        return MassCholesky(mass, upper, inverse, topology)
    floor = check_shape("pivot_floor", pivot_floor, (), dtype=mass.dtype).astype(mass.dtype)
    upper, inverse, raised = _floored_factor(topology, mass, jax.lax.stop_gradient(floor))
    return MassCholesky(mass.at[plan(topology).diagonal].add(raised), upper, inverse, topology)


def solve(factor: MassCholesky, y: FloatLike) -> Float[Array, "nv *columns"]:
    """M^{-1} y. `y` (nv,) or (nv, k); the result has its shape. Pinocchio: `solve`.

    **Raises:** `InputError` for a wrong shape.
    """
    topology, y = factor.topology, _columns(factor, "y", y)
    if y.size == 0:
        return y
    stored = jax.lax.stop_gradient((factor.upper, factor.inverse))
    return implicit_solve(topology, factor.mass, _solve_kernel, topology, stored, y)


def factor_solve(tree_or_model: TopologyLike, M: FloatLike, y: FloatLike) -> Float[Array, "nv *columns"]:
    """M^{-1} y where the factor is needed no more: `solve(decompose(...), y)` in one pass, faster on batches.

    **Raises:** `InputError` for a wrong shape or dtype.
    """
    topology = topology_of(tree_or_model)
    M = check_shape("M", M, (topology.nv, topology.nv), f"The robot has nv = {topology.nv}.")
    y = as_columns("y", y, topology.nv, M.dtype)
    if y.size == 0:
        return y
    mass = M[tuple(plan(topology).entries)].astype(y.dtype)
    return implicit_solve(topology, mass, factor_solve_kernel, topology, (jax.lax.stop_gradient(mass),), y)


def Mv(tree_or_model: TopologyLike, M: FloatLike, v: FloatLike) -> Float[Array, "nv *columns"]:
    """M v from the structural upper part of M alone, as if it were symmetric and zero elsewhere. `v` (nv,) or (nv, k).
    Pinocchio: `Mv`.

    **Raises:** `InputError` for a wrong shape.
    """
    topology = topology_of(tree_or_model)
    M = check_shape("M", M, (topology.nv, topology.nv), f"The robot has nv = {topology.nv}.")
    v = as_columns("v", v, topology.nv, M.dtype)
    if v.size == 0:
        return v
    mass = M[tuple(plan(topology).entries)].astype(v.dtype)
    return _linear(_mass_kernel, topology, (mass,), v)


def UDUtv(factor: MassCholesky, v: FloatLike) -> Float[Array, "nv *columns"]:
    """U D U^T v, that is M v from the factor. `v` (nv,) or (nv, k). Pinocchio: `UDUtv`."""
    v = _columns(factor, "v", v)
    return v if v.size == 0 else _linear(_product_kernel, factor.topology, (factor.upper, factor.inverse), v)


def Uv(factor: MassCholesky, v: FloatLike) -> Float[Array, "nv *columns"]:
    """U v. `v` (nv,) or (nv, k). Pinocchio: `Uv`."""
    return _triangular(factor, v, transposed=False)


def Utv(factor: MassCholesky, v: FloatLike) -> Float[Array, "nv *columns"]:
    """U^T v. `v` (nv,) or (nv, k). Pinocchio: `Utv`."""
    return _triangular(factor, v, transposed=True)


def Uiv(factor: MassCholesky, v: FloatLike) -> Float[Array, "nv *columns"]:
    """U^{-1} v, by substitution. `v` (nv,) or (nv, k). Pinocchio: `Uiv`."""
    return _triangular_solve(factor, v, transposed=False)


def Utiv(factor: MassCholesky, v: FloatLike) -> Float[Array, "nv *columns"]:
    """U^{-T} v, by substitution. `v` (nv,) or (nv, k). Pinocchio: `Utiv`."""
    return _triangular_solve(factor, v, transposed=True)


def compute_minv(factor: MassCholesky) -> Float[Array, "nv nv"]:
    """M^{-1}: symmetric to the last bit, exactly zero between degrees of freedom of different roots. (nv, nv).
    Pinocchio: `computeMinv`. (`jaxdyn.compute_minv` computes it from the configuration.)"""
    if factor.nv == 0:
        return jnp.zeros((0, 0), factor.dtype)
    return _inverse(factor.topology, factor.mass, factor.upper, factor.inverse)


# -- arguments
# ---------------------------------------------------------------------------------------------------------------


def _columns(factor: MassCholesky, name: str, x: FloatLike) -> Array:
    return as_columns(name, x, factor.nv, factor.dtype)


# -- linear maps: each is a primitive that keeps the batch last, is differentiated and transposed as a whole
# ---------------------------------------------------------------------------------------------------------------


def _squeezed(arrays) -> tuple[Any, ...]:
    return tuple(None if x is None else x[..., 0] for x in arrays)


def _mass_kernel(topology: Topology, mass: Stack, x: Stack) -> Stack:
    if single_state.serves(topology, mass, x):
        return jnp.matmul(symmetric(topology, mass[..., 0]), x[..., 0], precision="highest")[..., None]
    return elimination.mass_kernel(topology, mass, x)


def _solve_kernel(topology: Topology, upper: Stack, inverse: Stack, x: Stack) -> Stack:
    if single_state.serves(topology, upper, inverse, x):
        return single_state.solve(topology, *_squeezed((upper, inverse, x)))[..., None]
    return elimination.solve_kernel(topology, upper, inverse, x)


def _product_kernel(topology: Topology, upper: Stack, inverse: Stack, x: Stack) -> Stack:
    if single_state.serves(topology, upper, inverse, x):
        return single_state.product(topology, *_squeezed((upper, inverse, x)))[..., None]
    return elimination.product_kernel(topology, upper, inverse, x)


def _triangular_kernel(static: tuple[Topology, bool, bool], upper: Stack, x: Stack) -> Stack:
    topology, transposed, inverse = static
    if single_state.serves(topology, upper, x):
        U = unit_upper(topology, upper[..., 0])
        return single_state.triangular(U, x[..., 0], transposed, inverse)[..., None]
    return elimination.triangular_kernel(static, upper, x)


def _factor_kernel(static: tuple[Topology, bool], mass: Stack, floor: Stack | None):
    topology, always_sparse = static
    if not always_sparse and single_state.serves(topology, mass, floor):
        result = single_state.factor(topology, mass[..., 0], None if floor is None else floor[0])
        return tuple(None if x is None else x[..., None] for x in result)
    return elimination.factor_kernel(topology, mass, floor)


def factor_solve_kernel(topology: Topology, mass: Stack, x: Stack) -> Stack:
    """M^{-1} x from the packed M."""
    if single_state.serves(topology, mass, x):
        upper, inverse, _ = single_state.factor(topology, mass[..., 0], None)
        return single_state.solve(topology, upper, inverse, x[..., 0])[..., None]
    return elimination.factor_solve_kernel(topology, mass, x)


def _tangent_kernel(topology: Topology, upper: Stack, inverse: Stack, held: Stack | None, dmass: Stack):
    if single_state.serves(topology, upper, inverse, held, dmass):
        result = single_state.tangent(topology, *_squeezed((upper, inverse, held, dmass)))
        if result is not None:
            return tuple(None if x is None else x[..., None] for x in result)
    return elimination.tangent_kernel(topology, upper, inverse, held, dmass)


class _Map:
    """A linear kernel of (*residuals, operands) as a hashable function of flat arrays."""

    def __init__(self, kernel, static) -> None:
        self._key = (kernel, static)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Map) and self._key == other._key

    def __call__(self, *arrays):
        kernel, static = self._key
        result = kernel(static, *arrays)
        return result if isinstance(result, tuple) else (result,)


def implicit_solve(topology: Topology, mass: Array, kernel, static, stored: tuple[Array, ...], y: Array) -> Array:
    """x = M^{-1} y by a linear kernel of (*stored, y), differentiated as the solution of M x = y with the packed entries
    `mass`; `stored` is not differentiated."""
    return jax.lax.custom_linear_solve(
        lambda x: _linear(_mass_kernel, topology, (mass,), x),
        y,
        lambda _, b: _linear(kernel, static, stored, b),
        symmetric=True,
    )


def _linear_all(kernel, static, residuals, x: Array) -> list[Array]:
    dtype = x.dtype
    arrays = [r.astype(dtype)[..., None] for r in residuals]
    return [y[..., 0] for y in batching.linear(_Map(kernel, static), arrays, [x[..., None]])]


def _linear(kernel, static, residuals, x: Array) -> Array:
    return _linear_all(kernel, static, residuals, x)[0]


def _triangular(factor: MassCholesky, v: FloatLike, transposed: bool) -> Array:
    v = _columns(factor, "v", v)
    static = (factor.topology, transposed, False)
    return v if v.size == 0 else _linear(_triangular_kernel, static, (factor.upper,), v)


def _triangular_solve(factor: MassCholesky, v: FloatLike, transposed: bool) -> Array:
    v = _columns(factor, "v", v)
    if v.size == 0:
        return v
    topology, stored = factor.topology, jax.lax.stop_gradient(factor.upper)

    def substitute(transposed: bool):
        static = (topology, transposed, True)
        return lambda _, b: _linear(_triangular_kernel, static, (stored,), b)

    return jax.lax.custom_linear_solve(
        lambda x: _linear(_triangular_kernel, (topology, transposed, False), (factor.upper,), x),
        v,
        substitute(transposed),
        substitute(not transposed),
    )


# -- the factor as a differentiable function of the packed entries
# ---------------------------------------------------------------------------------------------------------------


_factor_p = batching.batch_last(_factor_kernel)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _factor(topology: Topology, method: str, mass: Array) -> tuple[Array, Array]:
    if method == "dense":
        return single_state.dense_factor(topology, mass)
    upper, inverse, _ = _factor_p((topology, method in ("sparse", "ldl")), mass, None)
    return upper, inverse


@_factor.defjvp
def _factor_jvp(topology, method, primals, tangents):
    upper, inverse = _factor(topology, method, *primals)
    du, dd = _linear_all(_tangent, topology, (upper, inverse), tangents[0])
    return (upper, inverse), (du, dd)


def _tangent(topology, upper, inverse, dmass):
    return _tangent_kernel(topology, upper, inverse, None, dmass)[:2]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _floored_factor(topology: Topology, mass: Array, floor: Array) -> tuple[Array, Array, Array]:
    return _factor_p((topology, False), mass, floor)


@_floored_factor.defjvp
def _floored_factor_jvp(topology, primals, tangents):
    upper, inverse, raised = _floored_factor(topology, *primals)
    held = jax.lax.stop_gradient((raised > 0).astype(raised.dtype))
    tangent = _linear_all(_tangent_kernel, topology, (upper, inverse, held), tangents[0])
    return (upper, inverse, raised), tuple(tangent)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse(topology: Topology, mass: Array, upper: Array, inverse: Array) -> Array:
    nv = topology.nv
    full = _linear(_solve_kernel, topology, (upper, inverse), jnp.eye(nv, dtype=mass.dtype))
    return jnp.where(np.triu(np.ones((nv, nv), bool)), full, full.T)


@_inverse.defjvp
def _inverse_jvp(topology, primals, tangents):
    # d M^{-1} = - M^{-1} dM M^{-1}
    inverse = _inverse(topology, *primals)
    change = jnp.matmul(symmetric(topology, tangents[0]), inverse, precision="highest")
    return inverse, -jnp.matmul(inverse, change, precision="highest")
