"""States, inputs, and what an integrator asks of a system.

A floating-base robot's state is kept on the manifold itself: the base has a position and a rotation matrix, its twist
is MIXED. With `n` joint velocities:

| | `State` | `StateDerivative` | shape |
|---|---|---|---|
| 0 | `twist`: `[p_dot, omega]`, world axes | `twist_rate`: `[p_ddot, omega_dot]`, plain time derivatives | (6,) |
| 1 | `joint_velocity` | `joint_acceleration` | (n,) |
| 2 | `position` of the base's origin in the world | `position_rate` | (3,) |
| 3 | `rotation`, base to world | `rotation_rate` | (3, 3) |
| 4 | `joint_position` | `joint_rate` | (n,), longer if a joint has a quaternion |

Velocities come before positions, the linear part before the angular one. The *velocity* of a system is the vector
`[twist, joint_velocity]` of length `nv = 6 + n`; a *displacement* is a vector of the same layout, `[dp, dphi, ds]`,
which moves the configuration to `p + dp`, `Exp(dphi) R`, `s + ds`. A *tangent* is `[displacement, change of the
velocity]`, of length `2 nv`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.compliant import CompliantContact
from jaxdyn.contact.fields import parameter
from jaxdyn.errors import FloatLike, InputError, check_shape, is_concrete, unknown_name
from jaxdyn.math import so3
from jaxdyn.model import Model, coordinate_rates, integrate, neutral
from jaxdyn.model import difference as model_difference
from jaxdyn.model.model import check_model


class State(eqx.Module):
    """State of a floating-base robot; see the module's table. Batched states have leading axes."""

    twist: Float[Array, "... 6"] = parameter("twist", (6,))
    joint_velocity: Float[Array, "... n"] = parameter("joint_velocity", (None,))
    position: Float[Array, "... 3"] = parameter("position", (3,))
    rotation: Float[Array, "... 3 3"] = parameter("rotation", (3, 3))
    joint_position: Float[Array, "... nq"] = parameter("joint_position", (None,))


class StateDerivative(eqx.Module):
    """Time derivative of a `State`, element by element; see the module's table."""

    twist_rate: Float[Array, "... 6"]
    joint_acceleration: Float[Array, "... n"]
    position_rate: Float[Array, "... 3"]
    rotation_rate: Float[Array, "... 3 3"]
    joint_rate: Float[Array, "... nq"]


class FixedBaseState(eqx.Module):
    """State of a robot whose base stands still: `joint_position` (nq,) and `joint_velocity` (nv,)."""

    joint_position: Float[Array, "... nq"] = parameter("joint_position", (None,))
    joint_velocity: Float[Array, "... n"] = parameter("joint_velocity", (None,))


class FixedBaseDerivative(eqx.Module):
    """Time derivative of a `FixedBaseState`, element by element."""

    joint_rate: Float[Array, "... nq"]
    joint_acceleration: Float[Array, "... n"]


class Input(eqx.Module):
    """What acts on a robot.

    **Arguments:** `torque`: (n,) of the joints, N m (N for prismatic ones); `contacts`: contacts to use in place of the
    system's own, or None for those: so that a policy can move anchors and switch contacts; `wrenches`: (n_bodies, 6), a push
    on each body, `[force, moment]` in world axes, the moment about the origin of the body's frame, or None.
    """

    torque: Float[Array, "... n"] = parameter("torque", (None,))
    contacts: tuple[CompliantContact, ...] | None = None
    wrenches: Float[Array, "... bodies 6"] | None = eqx.field(default=None, metadata={"rank": 2})


class System(eqx.Module):
    """A mechanical system `x_dot = f(x, u, t)`: the equations, and the manifold that its states live on."""

    @property
    @abc.abstractmethod
    def n(self) -> int:
        """Number of torques."""

    @abc.abstractmethod
    def __call__(self, x: Any, u: Any, t: FloatLike = 0.0) -> Any:
        """Time derivative of the state `x` under the input `u` at time `t` (s)."""

    @abc.abstractmethod
    def acceleration(self, x: Any, u: Any, t: FloatLike = 0.0) -> Float[Array, " nv"]:
        """Time derivative of the velocity."""

    @abc.abstractmethod
    def velocity(self, x: Any) -> Float[Array, " nv"]:
        """The velocity vector of a state."""

    @abc.abstractmethod
    def displace(self, x: Any, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Any:
        """The state with the configuration of `x` moved along `displacement`, and with another `velocity`."""

    @abc.abstractmethod
    def displacement(self, x0: Any, x1: Any) -> Float[Array, " nv"]:
        """The displacement from the configuration of `x0` to that of `x1`: the inverse of `displace`."""

    @abc.abstractmethod
    def chart_rate(self, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Float[Array, " nv"]:
        """Rate of the displacement from a fixed configuration to one that moves with `velocity`, to third order in the
        former."""

    @abc.abstractmethod
    def project(self, x: Any) -> Any:
        """The state with its rotations made orthonormal."""

    def settle(self, x: Any, u: Any, t: FloatLike) -> Any:
        """What a step does to a state besides moving it: called with the new state `x` at the end of each step (and of
        each substep) that began at time `t`. Here: nothing."""
        return x

    def with_derivatives(self, kind: str) -> System:
        """The same system, differentiated in another way: see `jaxdyn.systems.dynamics`. Values do not change.

        **Arguments:** `kind`: `"dense"`, best for whole Jacobians, which is what a system does by itself; or `"products"`, best
        for gradients, which is what `rollout` switches to. A system without this choice stays as it is.
        """
        if not hasattr(self, "derivatives"):
            return self
        if kind not in ("dense", "products"):
            raise unknown_name("kind of derivatives", kind, ("dense", "products"))
        new = object.__new__(type(self))
        for field in dataclasses.fields(self):
            value = kind if field.name == "derivatives" else getattr(self, field.name)
            object.__setattr__(new, field.name, value)
        return new


def boxplus(system: System, x: Any, tangent: Float[Array, " two_nv"]) -> Any:
    """The state reached from `x` along a tangent `[displacement, change of velocity]`, of length 2 nv."""
    v = system.velocity(x)
    tangent = check_shape("tangent", tangent, (2 * v.size,), dtype=v.dtype)
    return system.displace(x, tangent[: v.size], v + tangent[v.size :])


def boxminus(system: System, x1: Any, x0: Any) -> Float[Array, " two_nv"]:
    """The tangent that leads from `x0` to `x1`: `boxplus(system, x0, boxminus(system, x1, x0))` is `x1`.

    Rotations must differ by less than half a turn.
    """
    return jnp.concatenate([system.displacement(x0, x1), system.velocity(x1) - system.velocity(x0)])


# Robots with a floating root


def check_floating(model: Model) -> None:
    """Raises `InputError` unless the first joint is floating and hangs on the world, and is the only one to do so."""
    check_model(model)
    types, parents = model.tree.joint_types, model.tree.parents
    if not types or types[0] != "floating" or parents.count(-1) != 1:
        raise InputError(
            "model: wanted a robot with one floating root joint, which comes first; "
            'given one without. Load it with from_urdf(..., root="floating").'
        )


def state_from_configuration(model: Model, q: FloatLike | None = None, v: FloatLike | None = None) -> State:
    """The `State` of a floating-root model at configuration `q` and velocity `v` (default: neutral, at rest).

    **Arguments:** `q`: (nq,), starts with the base's position and quaternion; `v`: (nv,), starts with its LOCAL twist.

    **Raises:** `InputError` for a model without a floating root or a wrong shape.
    """
    check_model(model)
    check_floating(model)
    q = check_shape("q", neutral(model) if q is None else q, (model.nq,), dtype=model.dtype)
    v = check_shape("v", jnp.zeros(model.nv, q.dtype) if v is None else v, (model.nv,), dtype=q.dtype)
    rotation = so3.from_quaternion(q[3:7])
    twist = jnp.concatenate([so3.rotate(rotation, v[:3]), so3.rotate(rotation, v[3:6])])
    return State(twist, v[6:], q[:3], rotation, q[7:])


def configuration_from_state(model: Model, x: State) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """Configuration `q` and velocity `v` of a floating-root model: the inverse of `state_from_configuration`."""
    check_model(model)
    check_floating(model)
    q = jnp.concatenate([x.position, so3.to_quaternion(x.rotation), x.joint_position])
    linear, angular = (so3.rotate_back(x.rotation, part) for part in (x.twist[:3], x.twist[3:]))
    return q, jnp.concatenate([linear, angular, x.joint_velocity])


# Joints. Coordinates that form a vector space, the usual case, are added; others go through the manifold of the model. With a floating
# root, `joint` vectors are those of all joints but the first.


def is_flat(model: Model) -> bool:
    """True if the joints, a floating root aside, have one degree of freedom each (or follow another)."""
    start = 1 if has_floating_root(model) else 0
    return all(n <= 1 for n in model.tree.joint_nq[start:])


def has_floating_root(model: Model) -> bool:
    """True if the first joint is floating."""
    return bool(model.tree.joint_types) and model.tree.joint_types[0] == "floating"


def full_coordinates(model: Model, s: Array) -> Array:
    """Coordinates of all joints from those without the root; the root is neutral."""
    return jnp.concatenate([jnp.asarray([0, 0, 0, 1, 0, 0, 0], s.dtype), s]) if has_floating_root(model) else s


def _root_sizes(model: Model) -> tuple[int, int]:
    return (7, 6) if has_floating_root(model) else (0, 0)


def move_joints(model: Model, s: Array, displacement: Array) -> Array:
    """Joint coordinates `s` moved by a displacement of the joints."""
    if is_flat(model):
        return s + displacement
    nq, nv = _root_sizes(model)
    full = jnp.concatenate([jnp.zeros(nv, s.dtype), displacement])
    return integrate(model, full_coordinates(model, s), full)[nq:]


def joint_displacement(model: Model, s0: Array, s1: Array) -> Array:
    """The displacement that moves joints from `s0` to `s1`; angles are not wrapped where `move_joints` only adds."""
    if is_flat(model):
        return s1 - s0
    nv = _root_sizes(model)[1]
    return model_difference(model, full_coordinates(model, s0), full_coordinates(model, s1))[nv:]


def joint_rates(model: Model, s: Array, velocity: Array) -> Array:
    """Time derivative of the joint coordinates."""
    if is_flat(model):
        return velocity
    nq, nv = _root_sizes(model)
    full = jnp.concatenate([jnp.zeros(nv, s.dtype), velocity])
    return coordinate_rates(model, full_coordinates(model, s), full)[nq:]


def joint_bracket(model: Model, a: Array, b: Array) -> Array:
    """Lie bracket of two joint displacements in axes of the children: zero for joints with one degree of freedom."""
    if is_flat(model):
        return jnp.zeros_like(b)
    start = 1 if has_floating_root(model) else 0
    parts, at = [], 0
    for kind, size in zip(model.tree.joint_types[start:], model.tree.joint_nv[start:], strict=True):
        parts.append(_bracket(kind, a[at : at + size], b[at : at + size]))
        at += size
    return jnp.concatenate(parts)


def _bracket(kind: str, a: Array, b: Array) -> Array:
    if kind == "spherical":
        return so3.cross(a, b)
    if kind == "floating":
        return jnp.concatenate([so3.cross(a[3:], b[:3]) + so3.cross(a[:3], b[3:]), so3.cross(a[3:], b[3:])])
    if kind == "planar":  # v = (v_x, v_y, omega)
        return jnp.stack([b[2] * a[1] - a[2] * b[1], a[2] * b[0] - b[2] * a[0], jnp.zeros_like(a[2])])
    return jnp.zeros_like(b)


def joint_chart_rate(model: Model, displacement: Array, velocity: Array) -> Array:
    """Rate of the displacement `u` in `s = s_0 Exp(u)`, with the velocity in axes of the children: the inverse of the
    right Jacobian up to third order, `v + [u, v] / 2 + [u, [u, v]] / 12` (Hairer, Lubich, Wanner, Geometric Numerical
    Integration, III.4)."""
    if is_flat(model):
        return velocity
    once = joint_bracket(model, displacement, velocity)
    return velocity + once / 2 + joint_bracket(model, displacement, once) / 12


def inputs_of(model: Model, u: Any, n: int, dtype: Any) -> Input:
    """`u` as an `Input` in `dtype`: a bare torque is wrapped, None is no torque.

    **Raises:** `InputError` for a wrong shape.
    """
    if u is None:
        return Input(jnp.zeros(n, dtype))
    u = u if isinstance(u, Input) else Input(u)
    if u.torque.shape != (n,):
        raise InputError(f"torque: wanted shape ({n},), one entry per joint velocity, given {u.torque.shape}.")
    wrenches = u.wrenches
    if wrenches is not None:
        hint = "One row [force, moment] per body, in world axes."
        wrenches = check_shape("wrenches", wrenches, (model.n_bodies, 6), hint, dtype=dtype).astype(dtype)
    return Input(u.torque.astype(dtype), u.contacts, wrenches)


def check_leaves(x: Any, expected: dict[str, tuple[int, ...]]) -> None:
    """Raises `InputError` if a leaf of the state has another shape than that of one robot, or another dtype than the
    first."""
    first = next(iter(expected))
    missing = [name for name in expected if not hasattr(x, name)]
    if missing:
        raise InputError(
            f"x: wanted a state with {', '.join(expected)}; given a {type(x).__name__} without {', '.join(missing)}."
        )
    for name, shape in expected.items():
        leaf = getattr(x, name)
        if leaf.shape != shape:
            raise InputError(
                f"{name}: wanted shape {shape}, given {leaf.shape}. One state is one robot; batches go through jax.vmap."
            )
        if leaf.dtype != getattr(x, first).dtype:
            raise InputError(f"{name}: its dtype {leaf.dtype} differs from {getattr(x, first).dtype} of {first}.")


def strong(tree: Any, like: Any) -> Any:
    """The pytree with the dtypes of `like`, not weakly typed: what a rollout carries must not change its type."""
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), tree, like)


def check_regularization(matrix: FloatLike, nv: int, dtype: Any) -> Float[Array, "nv nv"]:
    """The regularisation of the mass matrix.

    **Raises:** `InputError` for a wrong shape, or for a matrix that is not symmetric, if its numbers can be read.
    """
    matrix = check_shape("mass_regularization", matrix, (nv, nv), "It is added to the whole mass matrix.", dtype=dtype)
    if is_concrete(matrix):
        numbers = np.asarray(matrix)
        if not np.allclose(numbers, numbers.T, rtol=1e-6, atol=0):
            raise InputError("mass_regularization: wanted a symmetric matrix, as a mass matrix is.")
    return matrix.astype(dtype)
