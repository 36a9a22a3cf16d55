"""Spaces in which functions take their values: vector spaces, groups of rotations and rigid motions, and their products.

A space is described, not instantiated: `LieSpace` is static and hashable, its elements are flat arrays. Coordinates of
an element (`nq` numbers) and of a tangent vector (`nv` numbers), factor by factor:

| space | element | nq | nv | `plus(e, v)` |
|---|---|---|---|---|
| R^n | x | n | n | x + v |
| SO(2) | cos, sin | 2 | 1 | angle + v |
| SO(3) | quaternion w, x, y, z | 4 | 3 | q exp(v) |
| SE(2) | x, y, cos, sin | 4 | 3 | M exp(v), v = linear (2), angular |
| SE(3) | x, y, z, quaternion | 7 | 6 | M exp(v), v = linear (3), angular (3), in body axes |
| R^2 x SO(2) | x, y, cos, sin | 4 | 3 | x + v, angle + v |
| R^3 x SO(3) | x, y, z, quaternion | 7 | 6 | x + v, q exp(v) |

Every function acts on one element and also takes leading batch axes. Quaternions and (cos, sin) may have any length;
zero counts as the identity. `minus(e1, e0) = log(e0^-1 e1)` inverts `plus` while no rotation exceeds half a turn, and
its derivatives of every order are right at zero and, on the branch that the value takes, at half a turn.

Source: J. Sola, J. Deray, D. Atchuthan, A micro Lie theory for state estimation in robotics, 2018.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_key, unknown_name
from jaxdyn.math import se3, so3
from jaxdyn.math.se3 import SE3
from jaxdyn.math.series import half_angle_quotient, stumpff

# name of the kind: sizes (nq, nv) and the name of the space
_SIZES = {"SO2": (2, 1), "SO3": (4, 3), "SE2": (4, 3), "SE3": (7, 6), "R2xSO2": (4, 3), "R3xSO3": (7, 6)}
_NAMES = {
    "SO2": "SO(2)", "SO3": "SO(3)", "SE2": "SE(2)", "SE3": "SE(3)", "R2xSO2": "R^2 x SO(2)", "R3xSO3": "R^3 x SO(3)",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Factor:
    """One factor of a `LieSpace`: `kind` is "R" with dimension `size`, or one of the groups; `rotation` says that the
    coordinate of R^1 is an angle (a label only)."""

    kind: str
    size: int = 0
    rotation: bool = False

    @property
    def nq(self) -> int:
        """Number of coordinates of an element."""
        return self.size if self.kind == "R" else _SIZES[self.kind][0]

    @property
    def nv(self) -> int:
        """Number of coordinates of a tangent vector."""
        return self.size if self.kind == "R" else _SIZES[self.kind][1]

    def __str__(self) -> str:
        if self.kind == "R":
            return f"R^{self.size}" + (" (angle)" if self.rotation else "")
        return _NAMES[self.kind]


@dataclasses.dataclass(frozen=True)
class LieSpace:
    """A product of vector spaces and Lie groups. Equality is structural: the same factors in the same order.

    ```python
    space = LieSpace.R(2) * LieSpace.SO3()
    space.nq, space.nv                    # 6, 5
    e = space.plus(space.neutral(), v)
    space.minus(e, space.neutral())       # v
    ```

    **Arguments:** `factors`: of the product; usually made by the static methods and `*`.

    **Raises:** `UnknownNameError` for an unknown kind, `InputError` for a wrong size.
    """

    factors: tuple[Factor, ...] = ()

    def __post_init__(self) -> None:
        for factor in self.factors:
            if factor.kind != "R" and factor.kind not in _SIZES:
                raise unknown_name("kind of space", factor.kind, ["R", *_SIZES])
            if factor.kind == "R" and factor.size < 0:
                raise InputError(f"LieSpace: R^n needs n >= 0, given {factor.size}.")
            if factor.rotation and (factor.kind, factor.size) != ("R", 1):
                raise InputError(f"LieSpace: only R^1 can be an angle, given {factor}.")

    # Construction

    @staticmethod
    def R(size: int, rotation: bool = False) -> LieSpace:
        """The vector space R^size; `rotation`: the coordinate of R^1 is an angle (a label, it is not wrapped)."""
        return LieSpace((Factor("R", size, rotation),))

    @staticmethod
    def SO2() -> LieSpace:
        """Rotations of the plane."""
        return LieSpace((Factor("SO2"),))

    @staticmethod
    def SO3() -> LieSpace:
        """Rotations of space."""
        return LieSpace((Factor("SO3"),))

    @staticmethod
    def SE2() -> LieSpace:
        """Rigid motions of the plane."""
        return LieSpace((Factor("SE2"),))

    @staticmethod
    def SE3() -> LieSpace:
        """Rigid motions of space."""
        return LieSpace((Factor("SE3"),))

    @staticmethod
    def R2xSO2() -> LieSpace:
        """Translations and rotations of the plane, each on its own."""
        return LieSpace((Factor("R2xSO2"),))

    @staticmethod
    def R3xSO3() -> LieSpace:
        """Translations and rotations of space, each on its own."""
        return LieSpace((Factor("R3xSO3"),))

    def __mul__(self, other: LieSpace) -> LieSpace:
        """The product of two spaces."""
        return LieSpace(self.factors + other.factors)

    def merged(self) -> LieSpace:
        """The same space with neighbouring vector spaces joined into one, and spaces of dimension zero left out."""
        factors: list[Factor] = []
        for factor in self.factors:
            if factor.kind != "R":
                factors.append(factor)
            elif factors and factors[-1].kind == "R":
                factors[-1] = Factor("R", factors[-1].size + factor.size)
            elif factor.size:
                factors.append(Factor("R", factor.size))
        return LieSpace(tuple(factors))

    # Description

    @functools.cached_property
    def nq(self) -> int:
        """Number of coordinates of an element."""
        return sum(factor.nq for factor in self.factors)

    @functools.cached_property
    def nv(self) -> int:
        """Dimension: number of coordinates of a tangent vector."""
        return sum(factor.nv for factor in self.factors)

    @property
    def is_vector_space(self) -> bool:
        """True if `plus` and `minus` are the sum and the difference of coordinates."""
        return all(factor.kind == "R" for factor in self.factors)

    @functools.cached_property
    def coordinate_of(self) -> tuple[int, ...]:
        """For each tangent coordinate the element's coordinate that it changes alone and at unit rate, or -1."""
        result: list[int] = []
        start = 0
        for factor in self.factors:
            flat = factor.size if factor.kind == "R" else {"R2xSO2": 2, "R3xSO3": 3}.get(factor.kind, 0)
            result += [start + i for i in range(flat)] + [-1] * (factor.nv - flat)
            start += factor.nq
        return tuple(result)

    def __str__(self) -> str:
        return " x ".join(map(str, self.factors)) if self.factors else "R^0"

    # Elements

    def neutral(self, dtype: DTypeLike | None = None) -> Float[Array, " nq"]:
        """The neutral element (nq); `dtype` defaults to JAX's float."""
        values = np.concatenate([np.zeros(0), *(_neutral(factor) for factor in self.factors)])
        return jnp.asarray(values, jnp.result_type(float) if dtype is None else dtype)

    def plus(self, element: FloatLike, vector: FloatLike) -> Float[Array, "*batch nq"]:
        """The element reached from `element` along the tangent `vector`: e exp(v).

        **Arguments:** `element` (..., nq); `vector` (..., nv).

        **Raises:** `InputError` for a wrong last axis or dtype.
        """
        e, v = self._element("element", element), self._tangent("vector", vector)
        return self._map(_PLUS, "q", (e, v), "qv")

    def minus(self, element: FloatLike, origin: FloatLike) -> Float[Array, "*batch nv"]:
        """The tangent vector that leads from `origin` to `element`, by at most half a turn: log(origin^-1 element).

        **Arguments:** `element`, `origin` (..., nq).

        **Raises:** `InputError` for a wrong last axis or dtype.
        """
        e, o = self._element("element", element), self._element("origin", origin)
        return self._map(_MINUS, "v", (e, o), "qq")

    def exp(self, vector: FloatLike) -> Float[Array, "*batch nq"]:
        """The element reached from the neutral one: `plus(neutral, vector)`."""
        v = self._tangent("vector", vector)
        return self.plus(jnp.broadcast_to(self.neutral(v.dtype), (*v.shape[:-1], self.nq)), v)

    def log(self, element: FloatLike) -> Float[Array, "*batch nv"]:
        """The tangent vector that leads to `element` from the neutral one: `minus(element, neutral)`."""
        e = self._element("element", element)
        return self.minus(e, jnp.broadcast_to(self.neutral(e.dtype), e.shape))

    def interpolate(self, first: FloatLike, second: FloatLike, t: FloatLike) -> Float[Array, "*batch nq"]:
        """The point at fraction `t` (a number) of the way from `first` to `second` (..., nq)."""
        step = self.minus(second, first)
        return self.plus(first, jnp.asarray(t, step.dtype) * step)

    def normalize(self, element: FloatLike) -> Float[Array, "*batch nq"]:
        """The element (..., nq) with quaternions and (cos, sin) at unit length."""
        e = self._element("element", element)
        return self._map(_NORMALIZE, "q", (e,), "q")

    def random(
        self,
        key: PRNGKeyArray | UInt32[Array, "2"],
        shape: tuple[int, ...] = (),
        dtype: DTypeLike | None = None,
    ) -> Float[Array, "*batch nq"]:
        """Random elements with batch axes `shape`: vectors normal with unit variance, rotations uniform."""
        check_key("key", key)
        dtype = jnp.result_type(float) if dtype is None else dtype
        numbers = jax.random.normal(key, (*shape, self.nq), dtype)
        # normal numbers at unit length are uniform on the circle, and on the sphere of quaternions
        return self.normalize(numbers)

    # Jacobians, tangent to tangent: all tangents in body axes, that is on the right

    def plus_jacobians(
        self, element: FloatLike, vector: FloatLike
    ) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
        """Derivatives of `plus(element, vector)` with respect to `element` and to `vector`, each (..., nv, nv).

        To first order, `plus(plus(e, a), v + b) = plus(plus(e, v), A a + B b)`: A is the adjoint of exp(-v), B the
        right Jacobian of exp.
        """
        self._element("element", element)
        v = self._tangent("vector", vector)
        return self._blocks(_ADJOINT_BACK, v), self._blocks(_RIGHT_JACOBIAN, v)

    def minus_jacobians(
        self, element: FloatLike, origin: FloatLike
    ) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
        """Derivatives of `minus(element, origin)` with respect to `element` and to `origin`, each (..., nv, nv).

        The inverse right Jacobian of exp at the difference, and minus the inverse left one.
        """
        d = self.minus(element, origin)
        return self._blocks(_RIGHT_JACOBIAN_INVERSE, d), -self._blocks(_RIGHT_JACOBIAN_INVERSE, -d)

    # Parts

    def _element(self, name: str, x: FloatLike) -> Array:
        return self._checked(name, x, self.nq, "coordinates of an element")

    def _tangent(self, name: str, x: FloatLike) -> Array:
        return self._checked(name, x, self.nv, "coordinates of a tangent vector")

    def _checked(self, name: str, x: FloatLike, size: int, what: str) -> Array:
        x = as_float_array(name, x)
        if x.ndim == 0 or x.shape[-1] != size:
            raise InputError(f"{name}: wanted {size} {what} of {self}, given shape {x.shape}.")
        return x

    def _map(self, operations: dict[str, Callable], result: str, arrays: tuple[Array, ...], sizes: str) -> Array:
        """Applies an operation factor by factor; `sizes` says which arrays hold elements (q) and vectors (v)."""
        parts: list[Array] = []
        at = {"q": 0, "v": 0}
        for factor in self.factors:
            size = {"q": factor.nq, "v": factor.nv}
            pieces = [x[..., at[s] : at[s] + size[s]] for x, s in zip(arrays, sizes, strict=True)]
            parts.append(operations[factor.kind](*pieces))
            at = {s: at[s] + size[s] for s in at}
        if not parts:
            return arrays[0]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def _blocks(self, operations: dict[str, Callable], vector: Array) -> Array:
        """Block-diagonal matrix of an operation that takes the tangent vector of each factor."""
        matrix = jnp.zeros((*vector.shape, self.nv), vector.dtype)
        start = 0
        for factor in self.factors:
            end = start + factor.nv
            if factor.kind == "R":
                block = _eye(vector[..., start:end])
            else:
                block = operations[factor.kind](vector[..., start:end])
            matrix = matrix.at[..., start:end, start:end].set(block)
            start = end
        return matrix


class LieElement(eqx.Module):
    """An element of a space: `space` (static) and its coordinates `value` (..., nq). `e + v` moves it along a tangent
    vector, `e1 - e0` is the tangent vector from `e0` to `e1`."""

    space: LieSpace = eqx.field(static=True)
    value: Float[Array, "*batch nq"]

    def __add__(self, vector: FloatLike) -> LieElement:
        return LieElement(self.space, self.space.plus(self.value, vector))

    def __sub__(self, other: LieElement) -> Array:
        if self.space.merged() != other.space.merged():
            raise InputError(f"minus: the elements are of different spaces, {self.space} and {other.space}.")
        return self.space.minus(self.value, other.value)

    def log(self) -> Array:
        """Tangent vector (..., nv) that leads here from the neutral element."""
        return self.space.log(self.value)


# --- one factor ---------------------------------------------------------------------------------------------------


def _neutral(factor: Factor) -> np.ndarray:
    e = np.zeros(factor.nq)
    if factor.kind != "R":
        e[{"SO2": 0, "SO3": 0, "SE2": 2, "SE3": 3, "R2xSO2": 2, "R3xSO3": 3}[factor.kind]] = 1.0
    return e


def _eye(v: Array) -> Array:
    n = v.shape[-1]
    return jnp.broadcast_to(jnp.eye(n, dtype=v.dtype), (*v.shape, n))


def _circle(z: Array) -> Array:
    """(cos, sin) at unit length; zero becomes (1, 0). The scale is a constant to differentiation, as for quaternions."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(z), axis=-1, keepdims=True))
    is_zero = largest == 0
    one = jnp.broadcast_to(jnp.asarray(np.array([1.0, 0.0]), z.dtype), z.shape)
    z = jnp.where(is_zero, one, z / jnp.where(is_zero, 1, largest))
    return z / jnp.sqrt(jnp.sum(z * z, axis=-1, keepdims=True))


def _turn(z: Array, p: Array) -> Array:
    """The product of complex numbers: `p` turned by the unit `z`."""
    c, s, x, y = z[..., 0], z[..., 1], p[..., 0], p[..., 1]
    return jnp.stack([c * x - s * y, s * x + c * y], axis=-1)


def _conjugate(z: Array) -> Array:
    return jnp.concatenate([z[..., :1], -z[..., 1:]], axis=-1)


def _angle(z: Array) -> Array:
    return jnp.arctan2(z[..., 1:], z[..., :1])


def _so2_plus(e: Array, v: Array) -> Array:
    return _turn(_circle(e), jnp.concatenate([jnp.cos(v), jnp.sin(v)], axis=-1))


def _so2_minus(e: Array, o: Array) -> Array:
    return _angle(_turn(_conjugate(_circle(o)), _circle(e)))


def _so3_plus(e: Array, v: Array) -> Array:
    return so3.quaternion_multiply(so3.quaternion_normalize(e), so3.quaternion_exp(v))


def _so3_minus(e: Array, o: Array) -> Array:
    unit = so3.quaternion_normalize
    return so3.quaternion_log(so3.quaternion_multiply(so3.quaternion_conjugate(unit(o)), unit(e)))


# In the plane the left Jacobian of the rotation by w is c_1 + i w c_2 as a complex number, with the Stumpff functions
# of w^2; its inverse is a - i w / 2 with a = (w/2) cot(w/2) = 1 - w^2 d, d the half-angle quotient.
def _se2_plus(e: Array, v: Array) -> Array:
    z, w = _circle(e[..., 2:]), v[..., 2:]
    x = w * w
    moved = _turn(jnp.concatenate([stumpff(1, x), w * stumpff(2, x)], axis=-1), v[..., :2])
    return jnp.concatenate([e[..., :2] + _turn(z, moved), _so2_plus(z, w)], axis=-1)


def _se2_minus(e: Array, o: Array) -> Array:
    back, w = _conjugate(_circle(o[..., 2:])), _so2_minus(e[..., 2:], o[..., 2:])
    x = w * w
    inverse = jnp.concatenate([1 - x * half_angle_quotient(x), -0.5 * w], axis=-1)
    return jnp.concatenate([_turn(inverse, _turn(back, e[..., :2] - o[..., :2])), w], axis=-1)


def _pose(e: Array) -> SE3:
    return SE3.from_quaternion(e[..., 3:], e[..., :3])


def _se3_plus(e: Array, v: Array) -> Array:
    pose = _pose(e)
    shift = se3.exp(v).translation
    return jnp.concatenate([e[..., :3] + so3.rotate(pose.rotation, shift), _so3_plus(e[..., 3:], v[..., 3:])], axis=-1)


def _se3_minus(e: Array, o: Array) -> Array:
    p = so3.rotate_back(_pose(o).rotation, e[..., :3] - o[..., :3])
    w = _so3_minus(e[..., 3:], o[..., 3:])
    wp = so3.cross(w, p)
    d = half_angle_quotient(jnp.sum(w * w, axis=-1, keepdims=True))
    return jnp.concatenate([p - 0.5 * wp + d * so3.cross(w, wp), w], axis=-1)


def _beside(n: int, operation: Callable) -> Callable:
    """An operation on R^n x G from that on G: coordinates of R^n are added or subtracted."""
    flat = {_so2_plus: jnp.add, _so3_plus: jnp.add}.get(operation, jnp.subtract)

    def both(a: Array, b: Array) -> Array:
        return jnp.concatenate([flat(a[..., :n], b[..., :n]), operation(a[..., n:], b[..., n:])], axis=-1)

    return both


def _beside_normalize(n: int, operation: Callable) -> Callable:
    return lambda e: jnp.concatenate([e[..., :n], operation(e[..., n:])], axis=-1)


def _beside_matrix(n: int, operation: Callable) -> Callable:
    """Block-diagonal matrix: the identity of size n and that of the group."""

    def both(v: Array) -> Array:
        return _eye(v).at[..., n:, n:].set(operation(v[..., n:]))

    return both


# The plane within space: v = (x, y, angle) is the twist (x, y, 0, 0, 0, angle), and the matrices keep these rows.
_PLANE = np.array([0, 1, 5])


def _planar(operation: Callable) -> Callable:
    def reduced(v: Array) -> Array:
        zero = jnp.zeros_like(v)
        return operation(jnp.concatenate([v[..., :2], zero, v[..., 2:]], axis=-1))[..., _PLANE[:, None], _PLANE]

    return reduced


def _matrices(so3_matrix: Callable, se3_matrix: Callable) -> dict[str, Callable]:
    return {
        "SO2": _eye,
        "SO3": so3_matrix,
        "SE2": _planar(se3_matrix),
        "SE3": se3_matrix,
        "R2xSO2": _eye,
        "R3xSO3": _beside_matrix(3, so3_matrix),
    }


def _identity(x: Any) -> Any:
    return x


_PLUS = {
    "R": jnp.add, "SO2": _so2_plus, "SO3": _so3_plus, "SE2": _se2_plus, "SE3": _se3_plus,
    "R2xSO2": _beside(2, _so2_plus), "R3xSO3": _beside(3, _so3_plus),
}  # fmt: skip
_MINUS = {
    "R": jnp.subtract, "SO2": _so2_minus, "SO3": _so3_minus, "SE2": _se2_minus, "SE3": _se3_minus,
    "R2xSO2": _beside(2, _so2_minus), "R3xSO3": _beside(3, _so3_minus),
}  # fmt: skip
_NORMALIZE = {
    "R": _identity, "SO2": _circle, "SO3": so3.quaternion_normalize,
    "SE2": _beside_normalize(2, _circle), "SE3": _beside_normalize(3, so3.quaternion_normalize),
    "R2xSO2": _beside_normalize(2, _circle), "R3xSO3": _beside_normalize(3, so3.quaternion_normalize),
}  # fmt: skip
_ADJOINT_BACK = _matrices(lambda v: so3.exp(-v), lambda v: se3.exp(-v).adjoint())
_RIGHT_JACOBIAN = _matrices(so3.right_jacobian, se3.right_jacobian)
_RIGHT_JACOBIAN_INVERSE = _matrices(so3.right_jacobian_inverse, se3.right_jacobian_inverse)
