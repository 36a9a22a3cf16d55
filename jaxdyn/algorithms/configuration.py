"""`Configuration`: a point of the configuration manifold with its rotations as matrices, and tangents to it.

Algorithms accept a `Configuration` wherever they accept `q`: a simulator whose state holds a rotation matrix never
goes by way of a quaternion.
"""

from __future__ import annotations

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, check_shape
from jaxdyn.math import so3
from jaxdyn.math.stacked import Stack, flat, join, take, total
from jaxdyn.model.manifold import check_configuration
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.tree import QUATERNION_START, Tree


class Configuration(eqx.Module):
    """Coordinates of a robot: the rotation matrices (child to joint frame) of its spherical and floating joints in
    their order, then all other coordinates in theirs, m or rad (position of a floating joint; x, y, angle of a planar
    one).
    """

    rotations: Float[Array, "rotations 3 3"]
    coordinates: Float[Array, " coordinates"]


@functools.lru_cache(maxsize=256)
def layout(tree: Tree) -> Layout:
    """Where the numbers of a `Configuration` come from and go to."""
    return Layout(tree)


class Layout:
    """Index tables between `q`, `v` and a `Configuration`."""

    def __init__(self, tree: Tree) -> None:
        rotating, quaternion, coordinate, first = [], [], [], []
        for i, kind in enumerate(tree.joint_types):
            start, size = tree.q_offset[i], tree.joint_nq[i]
            if kind in QUATERNION_START:
                at = start + QUATERNION_START[kind]
                rotating.append(i)
                quaternion.append(range(at, at + 4))
                first.append(len(coordinate))
                coordinate.extend(range(start, at))
            else:
                first.append(len(coordinate))
                coordinate.extend(range(start, start + size))
        self.rotating = tuple(rotating)
        """Joints with a rotation matrix."""
        self.quaternion = np.asarray([list(r) for r in quaternion], dtype=int).reshape(len(rotating), 4)
        self.coordinate = np.asarray(coordinate, dtype=int)
        self.first_coordinate = tuple(first)
        """Where the coordinates of each joint start among `coordinates`."""
        self.rotation_of = {joint: k for k, joint in enumerate(rotating)}


def as_configuration(model: Model, q: FloatLike | Configuration, name: str = "q") -> Configuration:
    """`q` (nq), checked, as a `Configuration`; quaternions are normalised, so derivatives along their scale vanish.

    **Raises:** `InputError` for a wrong shape or dtype, and outside of `jit` for a zero quaternion.
    """
    check_model(model)
    table = layout(model.tree)
    if isinstance(q, Configuration):
        check_shape(f"{name}.rotations", q.rotations, (len(table.rotating), 3, 3))
        check_shape(f"{name}.coordinates", q.coordinates, (len(table.coordinate),))
        return q
    q = check_configuration(model, q, name)
    rotations = so3.from_quaternion(q[table.quaternion]) if table.rotating else jnp.zeros((0, 3, 3), q.dtype)
    return Configuration(rotations, q[table.coordinate])


def configuration_from_pose(
    model: Model, position: FloatLike, rotation: FloatLike, joint_position: FloatLike
) -> Configuration:
    """The configuration of a robot whose first joint is floating, all others without rotations.

    **Arguments:** `position` (3,) m and `rotation` (3, 3), body to world, of the floating body; `joint_position`:
    coordinates of the other joints. The rotation is used as given: if it is not orthonormal its transpose still
    stands for its inverse.

    **Raises:** `InputError` if the robot has another structure.
    """
    check_model(model)
    tree = model.tree
    if not tree.joint_types or tree.joint_types[0] != "floating" or len(layout(tree).rotating) != 1:
        raise InputError(
            "wanted a robot whose first joint is floating and the only one with a rotation, "
            f"given joints of types {tree.joint_types}; load it with root='floating'."
        )
    position = check_shape("position", position, (3,), dtype=model.dtype)
    rotation = check_shape("rotation", rotation, (3, 3), dtype=model.dtype)
    joint_position = check_shape("joint_position", joint_position, (model.nq - 7,), dtype=model.dtype)
    return Configuration(rotation[None], jnp.concatenate([position, joint_position]))


def tangent_of(tree: Tree, configuration: Configuration, tangent: Configuration | None) -> Stack | None:
    """The velocity-like vector (nv, B) of a change of a `Configuration`, all with trailing batch axis; `None` leaves
    stand for no change.

    A change dR of a rotation is read as R hat(w) with w = vee of the skew part of R^T dR, exact for every change that
    stays on the manifold.
    """
    if tangent is None or (tangent.rotations is None and tangent.coordinates is None):
        return None
    table = layout(tree)
    rotations = configuration.rotations
    parts: list[Stack] = []
    order: list[int] = []
    if tangent.rotations is not None and table.rotating:
        d = tangent.rotations
        # entry (i, j) of R^T dR, only the six that vee needs
        rd = lambda i, j: total(rotations[:, k, i] * d[:, k, j] for k in range(3))  # noqa: E731
        w = 0.5 * jnp.stack([rd(2, 1) - rd(1, 2), rd(0, 2) - rd(2, 0), rd(1, 0) - rd(0, 1)], 1)
        parts.append(flat(w))
        order += [tree.v_offset[j] + tree.joint_nv[j] - 3 + k for j in table.rotating for k in range(3)]
    if tangent.coordinates is not None:
        d = tangent.coordinates
        plain = [(tree.v_offset[j], table.first_coordinate[j]) for j in range(tree.n_joints) if tree.joint_nv[j] == 1]
        if plain:
            parts.append(take(d, [c for _, c in plain]))
            order += [v for v, _ in plain]
        for j, kind in enumerate(tree.joint_types):
            c, v = table.first_coordinate[j], tree.v_offset[j]
            if kind == "floating":
                r = rotations[table.rotation_of[j]]
                parts.append(total(r[k] * d[c + k][None] for k in range(3)))
                order += [v, v + 1, v + 2]
            elif kind == "planar":
                angle = configuration.coordinates[c + 2]
                s, co = jnp.sin(angle), jnp.cos(angle)
                parts.append(jnp.stack([co * d[c] + s * d[c + 1], co * d[c + 1] - s * d[c], d[c + 2] + 0.0 * s]))
                order += [v, v + 1, v + 2]
    if not parts:
        return None
    joined = join(parts)
    n, missing = tree.nv, sorted(set(range(tree.nv)) - set(order))
    if missing:
        joined = join([joined, jnp.zeros((1, joined.shape[-1]), joined.dtype)])
    where = {v: i for i, v in enumerate(order)} | dict.fromkeys(missing, len(order))
    return take(joined, [where[v] for v in range(n)])
