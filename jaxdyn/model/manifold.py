"""Operations on configurations: the space of `q` is a manifold (quaternions, angles), that of `v` is flat.

`integrate` and `difference` are inverse to each other: `difference(model, q, integrate(model, q, v)) == v`
while no rotation exceeds half a turn. Joints of one type are handled together, so the size of the compiled
code does not grow with the number of joints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxdyn.errors import FloatLike, InputError, Status, check_key, check_shape, is_concrete
from jaxdyn.model import joints
from jaxdyn.model.joints import neutral_coordinates
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.tree import QUATERNION_START, Tree


def neutral(model: Model) -> Float[Array, " nq"]:
    """The neutral configuration (nq): zero, and the identity for quaternions."""
    check_model(model)
    return jnp.asarray(neutral_coordinates(model.tree), dtype=model.dtype)


def integrate(model: Model, q: FloatLike, v: FloatLike) -> Float[Array, " nq"]:
    """The configuration reached from `q` by the constant body velocity `v` in unit time (for a step of length
    dt pass `v * dt`).

    **Arguments:** `q`: (nq,), quaternions of any length but zero; `v`: (nv,), in axes of the child of each
    joint.

    **Returns:** (nq,), quaternions of unit length. Angles are not wrapped.

    **Raises:** `InputError` for a wrong shape or dtype, and outside of `jit` for a zero quaternion.

    Source: exponential map of SE(3), Murray, Li and Sastry, A Mathematical Introduction to Robotic
    Manipulation, 1994, chapter 2.
    """
    q = check_configuration(model, q)
    v = check_shape("v", v, (model.nv,), dtype=q.dtype)
    return _by_group(model.tree, joints.integrate_joint, "q", ("q", "v"), q, v)


def difference(model: Model, q0: FloatLike, q1: FloatLike) -> Float[Array, " nv"]:
    """The constant body velocity (nv) that leads from `q0` to `q1` in unit time, the short way round for
    angles and rotations.

    Quaternions `q` and `-q` are the same rotation and give the same difference. Derivatives of first and
    second order are right also at `q0 == q1`; at half a turn the short way is not unique and the difference
    jumps.

    **Raises:** `InputError` for a wrong shape or dtype, and outside of `jit` for a zero quaternion.
    """
    q0 = check_configuration(model, q0, "q0")
    q1 = check_configuration(model, q1, "q1")
    return _by_group(model.tree, joints.difference_joint, "v", ("q", "q"), q0, q1)


def interpolate(model: Model, q0: FloatLike, q1: FloatLike, t: FloatLike) -> Float[Array, " nq"]:
    """The point at fraction `t` of the shortest path from `q0` to `q1`: `q0` at 0, `q1` at 1 (up to whole
    turns and the quaternion's sign).

    **Arguments:** `q0`, `q1`: (nq,); `t`: scalar, outside 0 .. 1 too.

    **Raises:** as `difference`.
    """
    v = difference(model, q0, q1)
    return integrate(model, q0, check_shape("t", float(t) if isinstance(t, int) else t, (), dtype=v.dtype) * v)


def normalize(model: Model, q: FloatLike) -> Float[Array, " nq"]:
    """The configuration (nq) with quaternions at unit length; a zero quaternion becomes the identity. Other
    coordinates stay.
    """
    check_model(model)
    q = check_shape("q", q, (model.nq,), _layout(model, q), dtype=model.dtype)
    return _by_group(model.tree, joints.normalize_joint, "q", ("q",), q)


def coordinate_rates(model: Model, q: FloatLike, v: FloatLike) -> Float[Array, " nq"]:
    """Time derivative (nq) of the coordinates at configuration `q` (nq,) and velocity `v` (nv,). Linear in
    `v`; quaternions keep their length.
    """
    q = check_configuration(model, q)
    v = check_shape("v", v, (model.nv,), dtype=q.dtype)
    return _by_group(model.tree, joints.rates_joint, "q", ("q", "v"), q, v)


def velocity_from_rates(model: Model, q: FloatLike, rates: FloatLike) -> Float[Array, " nv"]:
    """Velocity (nv) from the time derivative `rates` (nq,) of the coordinates: the inverse of
    `coordinate_rates`.

    What would change a quaternion's length is ignored.
    """
    q = check_configuration(model, q)
    rates = check_shape("rates", rates, (model.nq,), dtype=q.dtype)
    return _by_group(model.tree, joints.velocity_joint, "v", ("q", "q"), q, rates)


def random_configuration(model: Model, key: PRNGKeyArray | UInt32[Array, "2"]) -> Float[Array, " nq"]:
    """A random configuration (nq), never NaN.

    A coordinate with two finite limits is uniform between them; with one, it lies within by the magnitude of
    a normal number; without, it is normal (metres), uniform over one turn (continuous, angle of planar) or a
    uniform rotation (quaternions).

    **Raises:** `InputError` for what is no key, such as a plain seed.
    """
    check_model(model)
    check_key("key", key)
    return _random(model.tree, key, model.lower, model.upper)


@partial(jax.jit, static_argnums=0, inline=True)
def _random(tree: Tree, key: jax.Array, lower: Float[Array, " nq"], upper: Float[Array, " nq"]) -> Float[Array, " nq"]:
    keys = jax.random.split(key)
    low, high = jnp.isfinite(lower), jnp.isfinite(upper)
    low_value, high_value = jnp.where(low, lower, 0), jnp.where(high, upper, 0)
    normal = jax.random.normal(keys[0], lower.shape, lower.dtype)
    share = jax.random.uniform(keys[1], lower.shape, lower.dtype)
    free = jnp.where(jnp.asarray(_angle_mask(tree)), np.pi * (2 * share - 1), normal)
    q = jnp.where(
        low & high,
        low_value + share * (high_value - low_value),
        jnp.where(low, low_value + jnp.abs(normal), jnp.where(high, high_value - jnp.abs(normal), free)),
    )
    # four normal numbers at unit length are a uniform quaternion; the limits of quaternions are infinite
    return _by_group(tree, joints.normalize_joint, "q", ("q",), q)


def configuration_status(model: Model, q: FloatLike) -> Int[Array, ""]:
    """`Status` of a configuration as an int32 scalar, also under `jit`: `NON_FINITE`, `ZERO_QUATERNION` or
    `OK`."""
    check_model(model)
    q = check_shape("q", q, (model.nq,), _layout(model, q), dtype=model.dtype)
    status = jnp.where(jnp.all(jnp.isfinite(q)), Status.OK.value, Status.NON_FINITE.value)
    starts = _quaternion_starts(model.tree)
    if starts.size:
        zero = jnp.any(jnp.all(q[starts[:, None] + np.arange(4)] == 0, axis=1))
        status = jnp.where(zero & (status == Status.OK.value), Status.ZERO_QUATERNION.value, status)
    return status.astype(jnp.int32)


def check_configuration(model: Model, q: FloatLike, name: str = "q") -> Float[Array, " nq"]:
    """`q` as an array, after the checks that every function which takes a configuration makes.

    **Raises:** `InputError` at trace time for a wrong shape or dtype; and, where the numbers can be read (not
    under `jit`, `vmap` or `grad`), for a zero quaternion. Under `jit` ask `configuration_status`; a zero
    quaternion there counts as the identity.
    """
    check_model(model)
    q = check_shape(name, q, (model.nq,), _layout(model, q), dtype=model.dtype)
    starts = _quaternion_starts(model.tree)
    if starts.size and is_concrete(q):
        values = np.asarray(q)
        for joint, start in zip(_quaternion_joints(model.tree), starts, strict=True):
            if not values[start : start + 4].any():
                raise InputError(
                    f"{name}: the quaternion of joint {joint!r}, {name}[{start}:{start + 4}], is zero and stands for no rotation; "
                    "neutral(model) has the identity (1, 0, 0, 0) there."
                )
    return q


def _layout(model: Model, q: FloatLike) -> str:
    """What the entries of `q` are, for the message if its shape is wrong."""
    tree = model.tree
    if getattr(q, "shape", None) == (tree.nq,):
        return ""  # no message will be needed, and putting it together takes longer than the check
    special = [
        f"{kind} {name!r} at [{start}:{start + size}]"
        for name, kind, start, size in zip(
            tree.joint_names, tree.joint_types, tree.q_offset, tree.joint_nq, strict=True
        )
        if size > 1
    ]
    followers = f" ({len(tree.followers)} more follow others)" if tree.followers else ""
    return f"The robot has {len(tree.independent)} joints{followers}" + (
        f", among them {', '.join(special[:3])}." if special else "."
    )


def _quaternion_joints(tree: Tree) -> list[str]:
    return [name for name, kind in zip(tree.joint_names, tree.joint_types, strict=True) if kind in QUATERNION_START]


def _quaternion_starts(tree: Tree) -> np.ndarray:
    offsets = zip(tree.q_offset, tree.joint_types, strict=True)
    return np.asarray(
        [start + QUATERNION_START[kind] for start, kind in offsets if kind in QUATERNION_START], dtype=int
    )


def _angle_mask(tree: Tree) -> np.ndarray:
    mask = np.zeros(tree.nq, dtype=bool)
    for i in tree.independent:
        kind = tree.joint_types[i]
        if kind in joints.WRAPPED:
            mask[tree.q_offset[i] + joints.WRAPPED[kind]] = True
    return mask


# Types whose coordinates form a vector space in all operations share one group
_FLAT = ("revolute", "prismatic")


def _groups(tree: Tree) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = {}
    for i in tree.independent:
        kind = tree.joint_types[i]
        groups.setdefault("revolute" if kind in _FLAT else kind, []).append(i)
    return list(groups.items())


def _indices(tree: Tree, members: list[int], space: str) -> np.ndarray:
    """Indices (joints, size) of the members' entries in `q` or `v`."""
    offsets, sizes = (tree.q_offset, tree.joint_nq) if space == "q" else (tree.v_offset, tree.joint_nv)
    return np.asarray([offsets[i] for i in members])[:, None] + np.arange(sizes[members[0]])


@partial(jax.jit, static_argnums=(0, 1, 2, 3), inline=True)
def _by_group(tree: Tree, operation: Callable, result: str, spaces: tuple[str, ...], *arrays: jax.Array) -> jax.Array:
    """Applies an operation of joints.py to all joints of one type at once and puts the results in order.

    `spaces` says for each array whether it is laid out as `q` or as `v`, `result` the same for what comes
    out.
    """
    parts, order = [], []
    for kind, members in _groups(tree):
        parts.append(
            operation(
                kind, *(_take(x, _indices(tree, members, s)) for x, s in zip(arrays, spaces, strict=True))
            ).reshape(-1)
        )
        order.append(_indices(tree, members, result).reshape(-1))
    if not parts:
        return arrays[0]
    flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
    return _take(flat, np.argsort(np.concatenate(order)))


def _take(x: jax.Array, index: np.ndarray) -> jax.Array:
    """`x[index]`, as a slice where the index is a range: XLA fuses slices better than gathers."""
    flat = index.reshape(-1)
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        return x[int(flat[0]) : int(flat[0]) + flat.size].reshape(index.shape)
    return x[index]
