"""Contact and operational space: the inverse inertia that constraints feel, and what follows from it.

With J the rows of all constraints on top of each other (points, frames, loops), the *Delassus matrix* or inverse
operational-space inertia is

    G = J M^{-1} J^T = Y D^{-1} Y^T,   Y = J U^{-T},

of which only one substitution is needed, since M = U D U^T. A row of Y has the support of the same row of J made
complete with ancestors; block (a, b) of G sums over the degrees of freedom that both constraints share, and is exactly
zero between different roots. `Constraints` also holds the factor of G + R, with R >= 0 a *damping* of the
constraints (compliance), and with it the factor of the whole system, constraints first,

    [ -R   J  ]   [ U_c   J U^{-T} D^{-1} ] [ -D_c     ] [ ...  ]^T
    [ J^T  M  ] = [       U               ] [       D  ] [      ]      with G + R = U_c D_c U_c^T.

Rows that depend on each other (four feet of six rows, closed loops) make G singular: with damping there is an answer;
without, `Constraints.status` tells. (Featherstone, Exploiting sparsity in operational-space dynamics, 2010; Carpentier,
Budhiraja and Mansard, Proximal and sparse resolution of constrained dynamic equations, 2021.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxdyn.algorithms import cholesky
from jaxdyn.algorithms.cholesky import MassCholesky
from jaxdyn.algorithms.delassus_matrix import delassus_matrix
from jaxdyn.algorithms.sparse_jacobian import SparseJacobian
from jaxdyn.algorithms.topology import Topology
from jaxdyn.errors import FloatLike, InputError, Status, as_float_array, check_shape

Jacobians: TypeAlias = SparseJacobian | FloatLike | Sequence[SparseJacobian | FloatLike]
"""One Jacobian or several, on top of each other: `SparseJacobian`s, or full matrices (m, nv)."""


def delassus(factor: MassCholesky, jacobians: Jacobians, damping: FloatLike | None = None) -> Float[Array, "rows rows"]:
    """G + R = J M^{-1} J^T + R: symmetric to the last bit. (m, m), 1/kg for points.

    **Arguments:** `factor` of the mass matrix; `jacobians` one or several; `damping` R: one number or one per row.

    **Raises:** `InputError` if sizes differ.
    """
    parts = _parts(factor, jacobians)
    G = delassus_matrix(factor, parts)
    return G if damping is None else G + jnp.diag(_damping(damping, G))


def delassus_block(
    factor: MassCholesky, a: SparseJacobian | FloatLike, b: SparseJacobian | FloatLike
) -> Float[Array, "rows_a rows_b"]:
    """Block J_a M^{-1} J_b^T of the Delassus matrix: the velocity at a that an impulse at b causes.

    **Raises:** `InputError` if sizes differ.
    """
    rows = _parts(factor, [a])[0].rows
    return delassus(factor, [a, b])[:rows, rows:]


def minv_jt(factor: MassCholesky, jacobians: Jacobians) -> Float[Array, "nv rows"]:
    """M^{-1} J^T: the joint accelerations that a unit force along each row causes. (nv, m). RaiSim: `MinvJT`.

    **Raises:** `InputError` if sizes differ.
    """
    return cholesky.solve(factor, _dense(_parts(factor, jacobians)).T)


class Constraints(eqx.Module):
    """A mass matrix with constraints on it, factorised; made by `constrain`.

    `mass`: factor of M; `delassus` (m, m): G + R; `inner`: factor of that; `jacobians`; `damping` (m,): R.
    """

    mass: MassCholesky
    delassus: Float[Array, "rows rows"]
    inner: MassCholesky
    jacobians: tuple[SparseJacobian, ...]
    damping: Float[Array, " rows"]

    @property
    def rows(self) -> int:
        """Number m of constraint rows."""
        return self.inner.nv

    @property
    def status(self) -> Int[Array, ""]:
        """`Status.OK`; else that of the mass matrix, `Status.NON_FINITE`, or `Status.DEPENDENT_CONSTRAINTS` if some row
        moves nothing that the rows after it do not move (to rounding). int32."""
        size = jnp.abs(jnp.diagonal(self.delassus))
        dependent = jnp.any(self.inner.D <= 64 * max(self.rows, 1) * jnp.finfo(self.inner.dtype).eps * size)
        finite = jnp.all(jnp.isfinite(self.delassus))
        own = jnp.where(dependent, jnp.int32(Status.DEPENDENT_CONSTRAINTS), jnp.int32(Status.OK))
        own = jnp.where(finite, own, jnp.int32(Status.NON_FINITE))
        return jnp.where(self.mass.status == 0, own, self.mass.status)

    @property
    def U(self) -> Float[Array, "size size"]:
        """Unit upper triangular factor of the whole system, constraints first. (m + nv, m + nv)"""
        y = cholesky.Uiv(self.mass, _dense(self.jacobians).T)
        upper_right = (y * self.mass.Dinv[:, None]).T
        zeros = jnp.zeros((self.mass.nv, self.rows), y.dtype)
        top = jnp.concatenate([self.inner.U, upper_right], axis=1)
        return jnp.concatenate([top, jnp.concatenate([zeros, self.mass.U], axis=1)])

    @property
    def D(self) -> Float[Array, " size"]:
        """Its pivots: those of the constraints are negative. (m + nv,)"""
        return jnp.concatenate([-self.inner.D, self.mass.D])

    def product(self, v: FloatLike) -> Float[Array, " rows"]:
        """J v, row by row."""
        return jnp.concatenate([J @ v for J in self.jacobians]) if self.jacobians else self.damping

    def transposed_product(self, f: Float[Array, " rows"]) -> Float[Array, " nv"]:
        """J^T f: the generalised force of forces along the rows."""
        total, at = jnp.zeros(self.mass.nv, f.dtype), 0
        for J in self.jacobians:
            total, at = total + J.T @ f[at : at + J.rows], at + J.rows
        return total


def constrain(factor: MassCholesky, jacobians: Jacobians, damping: FloatLike | None = None) -> Constraints:
    """Factorise the mass matrix with constraints on it.

    **Arguments:** `factor` of M; `jacobians` one or several (`sparse_relative_jacobian` closes loops); `damping` R >= 0:
    one number or one per row, default none.

    **Raises:** `InputError` if sizes differ.
    """
    parts = _parts(factor, jacobians)
    G = delassus_matrix(factor, parts)
    r = jnp.zeros(G.shape[0], G.dtype) if damping is None else _damping(damping, G)
    G = G if damping is None else G + jnp.diag(r)
    return Constraints(factor, G, cholesky.decompose(Topology.full(G.shape[0]), G), parts, r)


def constrained_solve(
    constraints: Constraints, a: FloatLike, b: FloatLike
) -> tuple[Float[Array, " rows"], Float[Array, " nv"]]:
    """The solution (f, x) of -R f + J x = a and J^T f + M x = b. `a` (m,), `b` (nv,).

    **Raises:** `InputError` for wrong shapes.
    """
    c = constraints
    a, b = _rows(c, "a", a), check_shape("b", b, (c.mass.nv,), dtype=c.mass.dtype)
    free = cholesky.solve(c.mass, b)
    f = cholesky.solve(c.inner, c.product(free) - a)
    return f, free - cholesky.solve(c.mass, c.transposed_product(f))


def constrained_acceleration(
    constraints: Constraints, force: FloatLike, drift: FloatLike | None = None
) -> tuple[Float[Array, " nv"], Float[Array, " rows"]]:
    """Accelerations a and constraint forces f with M a = force + J^T f and J a + drift = -R f.

    **Arguments:** `force` (nv,): tau - h(q, v); `drift` (m,): J_dot v, minus the accelerations that the constraints
    ask for (default zero).

    **Returns:** `a` (nv,), `f` (m,), the environment on the robot.

    **Raises:** `InputError` for wrong shapes.
    """
    drift = jnp.zeros(constraints.rows, constraints.inner.dtype) if drift is None else drift
    f, a = constrained_solve(constraints, -_rows(constraints, "drift", drift), force)
    return a, -f


def contact_impulse(
    constraints: Constraints, v: FloatLike, restitution: FloatLike | None = None
) -> tuple[Float[Array, " nv"], Float[Array, " rows"]]:
    """Velocity after an impact and its impulses p: M (v_after - v) = J^T p and J v_after = -e J v - R p.

    **Arguments:** `v` (nv,) before; `restitution` e: one number or one per row, 0 to 1 (default 0: rows come to rest).

    **Returns:** `v_after` (nv,), `p` (m,).

    **Raises:** `InputError` for wrong shapes.
    """
    c = constraints
    v = check_shape("v", v, (c.mass.nv,), dtype=c.mass.dtype)
    before = c.product(v)
    wanted = before if restitution is None else before + _spread("restitution", restitution, c.rows, c.mass) * before
    p = -cholesky.solve(c.inner, wanted)
    return v + cholesky.solve(c.mass, c.transposed_product(p)), p


def operational_space_inertia(
    factor: MassCholesky, jacobians: Jacobians, damping: FloatLike | None = None
) -> Float[Array, "rows rows"]:
    """Lambda = (J M^{-1} J^T + R)^{-1}: the inertia felt along the rows, all else free. (m, m), kg for points.

    Without damping the rows must be independent: see `Constraints.status`.

    **Raises:** `InputError` if sizes differ.

    Source: Khatib, A unified approach for motion and force control of robot manipulators, 1987.
    """
    return cholesky.compute_minv(constrain(factor, jacobians, damping).inner)


def dynamically_consistent_inverse(
    factor: MassCholesky, jacobians: Jacobians, damping: FloatLike | None = None
) -> Float[Array, "nv rows"]:
    """J_bar = M^{-1} J^T Lambda: of all inverses of J the one with the least kinetic energy. (nv, m)

    **Raises:** `InputError` if sizes differ.
    """
    c = constrain(factor, jacobians, damping)
    return cholesky.solve(c.inner, minv_jt(factor, jacobians).T).T


def null_space_projector(
    factor: MassCholesky, jacobians: Jacobians, damping: FloatLike | None = None
) -> Float[Array, "nv nv"]:
    """N = 1 - J_bar J: velocities N v do not move the rows (J N = 0), forces N^T tau do not accelerate them. (nv, nv)

    **Raises:** `InputError` if sizes differ.
    """
    inverse = dynamically_consistent_inverse(factor, jacobians, damping)
    full = _dense(_parts(factor, jacobians))
    return jnp.eye(factor.nv, dtype=inverse.dtype) - jnp.matmul(inverse, full, precision="highest")


def _parts(factor: MassCholesky, jacobians: Jacobians) -> tuple[SparseJacobian, ...]:
    given = list(jacobians) if isinstance(jacobians, list | tuple) else [jacobians]
    parts = []
    for i, J in enumerate(given):
        if not isinstance(J, SparseJacobian):
            J = as_float_array(f"jacobians[{i}]", J, factor.dtype)
            if J.ndim != 2:
                raise InputError(f"jacobians[{i}]: wanted shape (rows, {factor.nv}), given shape {J.shape}.")
            J = SparseJacobian.from_values(J, range(J.shape[1]), J.shape[1])
        if J.nv != factor.nv:
            raise InputError(f"jacobians[{i}]: wanted nv = {factor.nv} as the mass matrix has, given nv = {J.nv}.")
        parts.append(J)
    return tuple(parts)


def _dense(parts: tuple[SparseJacobian, ...]) -> Float[Array, "rows nv"]:
    return jnp.concatenate([J.to_dense() for J in parts])


def _damping(damping: FloatLike, G: Array) -> Array:
    r = as_float_array("damping", damping, G.dtype).astype(G.dtype)
    if r.shape not in ((), G.shape[:1]):
        raise InputError(f"damping: wanted one number or one for each of {G.shape[0]} rows, given shape {r.shape}.")
    return jnp.broadcast_to(r, G.shape[:1])


def _spread(name: str, value: FloatLike, rows: int, like: MassCholesky) -> Array:
    x = as_float_array(name, value, like.dtype).astype(like.dtype)
    if x.shape not in ((), (rows,)):
        raise InputError(f"{name}: wanted one number or one for each of {rows} rows, given shape {x.shape}.")
    return jnp.broadcast_to(x, (rows,))


def _rows(constraints: Constraints, name: str, x: FloatLike) -> Array:
    return check_shape(name, x, (constraints.rows,), dtype=constraints.inner.dtype)
