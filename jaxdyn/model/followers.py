"""Joints that follow others (`<mimic>`), reduced exactly.

With `x` the coordinates of the independent joints, those of all joints are `G x + g`: each row of the constant `G` has
one entry, 1 for an independent joint and the product of the ratios along its chain for a follower. So the robot with
followers is the robot with all joints free, moved along `G`:

    v_free = G v,      M = G^T M_free G,      tau = G^T tau_free,      J = J_free G.

What acts on single joints reduces exactly too: `G^T diag(d) G` is diagonal, so armature and damping of the followers
become part of their leader's, times the square of the ratio, and springs too (`mimic.combined_sides`).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.model.model import Model
from jaxdyn.model.tree import Tree


class _Table:
    """Where the coordinates and velocities of the free tree come from."""

    def __init__(self, tree: Tree) -> None:
        free = tree.free
        coordinate, dof, own_coordinate, own_dof = [], [], [], []
        for i, lead in enumerate(tree.leading_joint):
            coordinate += [tree.q_offset[lead] + k for k in range(free.joint_nq[i])]
            dof += [tree.v_offset[lead] + k for k in range(free.joint_nv[i])]
            if lead == i:
                own_coordinate += range(free.q_offset[i], free.q_offset[i] + free.joint_nq[i])
                own_dof += range(free.v_offset[i], free.v_offset[i] + free.joint_nv[i])
        joints = [joint for joint, _ in tree.followers]
        self.follower_coordinate = np.asarray([free.q_offset[i] for i in joints], dtype=int)
        self.follower_dof = np.asarray([free.v_offset[i] for i in joints], dtype=int)
        self.coordinate, self.dof = np.asarray(coordinate, dtype=int), np.asarray(dof, dtype=int)
        self.own_coordinate, self.own_dof = np.asarray(own_coordinate, dtype=int), np.asarray(own_dof, dtype=int)


@functools.lru_cache(maxsize=64)
def _table(tree: Tree) -> _Table:
    return _Table(tree)


def follower_coefficients(model: Model) -> tuple[Float[Array, " followers"], Float[Array, " followers"]]:
    """Ratio and offset of each follower with respect to the independent joint at the end of its chain."""
    ratio, offset = model.follower_ratio, model.follower_offset
    if ratio is None or offset is None:
        empty = jnp.zeros(0, model.dtype)
        return empty, empty
    number = {joint: i for i, (joint, _) in enumerate(model.tree.followers)}
    found: dict[int, tuple[jax.Array, jax.Array]] = {}

    def along(i: int) -> tuple[jax.Array, jax.Array]:
        if i not in found:
            leader = model.tree.followers[i][1]
            if leader in number:
                above = along(number[leader])
                found[i] = ratio[i] * above[0], ratio[i] * above[1] + offset[i]
            else:
                found[i] = ratio[i], offset[i]
        return found[i]

    pairs = [along(i) for i in range(len(number))]
    return jnp.stack([r for r, _ in pairs]), jnp.stack([o for _, o in pairs])


def along_chains(model: Model, x: Float[Array, " free"], followers: np.ndarray) -> Float[Array, " free"]:
    """Coordinates of which the entries `followers` still hold those of their leaders: times ratio plus offset."""
    ratio, offset = (c.astype(x.dtype) for c in follower_coefficients(model))
    return x * jnp.ones_like(x).at[followers].set(ratio) + jnp.zeros_like(x).at[followers].set(offset)


def projection(model: Model) -> Float[Array, "free nv"]:
    """The matrix `G`: velocities of all joints, each taken as free, are `G v`."""
    table, tree = _table(model.tree), model.tree
    entries = jnp.ones(tree.free.nv, model.dtype).at[table.follower_dof].set(follower_coefficients(model)[0])
    return jnp.zeros((tree.free.nv, tree.nv), model.dtype).at[np.arange(tree.free.nv), table.dof].set(entries)


def free_velocity(model: Model, v: Float[Array, " nv"]) -> Float[Array, " free"]:
    """Velocities, or accelerations, of all joints from those of the independent ones: `G v`."""
    table, ratio = _table(model.tree), follower_coefficients(model)[0].astype(v.dtype)
    return v[table.dof] * jnp.ones(len(table.dof), v.dtype).at[table.follower_dof].set(ratio)


def free_coordinates(model: Model, q: Float[Array, " nq"]) -> Float[Array, " free"]:
    """Coordinates of all joints from those of the independent ones: `G q + g`. A model without followers: `q`."""
    if not model.tree.followers:
        return q
    table = _table(model.tree)
    return along_chains(model, q[table.coordinate], table.follower_coordinate)


def independent_coordinates(model: Model, q: Float[Array, " free"]) -> Float[Array, " nq"]:
    """Coordinates of the independent joints out of those of all: what `free_coordinates` puts in order. Where the
    followers stand is not looked at."""
    return q[_table(model.tree).own_coordinate] if model.tree.followers else q


def free_model(model: Model) -> Model:
    """The same robot with every joint independent: followers have no armature, damping, friction, springs or limits there, as
    these are part of their leaders'. A model without followers: itself."""
    tree = model.tree
    if not tree.followers:
        return model
    table, free = _table(tree), tree.free

    def spread(leaf: jax.Array, where: np.ndarray, size: int, other: float) -> jax.Array:
        return jnp.full(size, other, leaf.dtype).at[where].set(leaf)

    infinity = float("inf")
    of_dofs = {"armature": 0.0, "damping": 0.0, "friction": 0.0, "velocity_limit": infinity, "effort_limit": infinity}
    leaves = {name: spread(getattr(model, name), table.own_dof, free.nv, other) for name, other in of_dofs.items()}
    leaves["lower"] = spread(model.lower, table.own_coordinate, free.nq, -infinity)
    leaves["upper"] = spread(model.upper, table.own_coordinate, free.nq, infinity)
    if model.stiffness is not None:
        leaves["stiffness"] = spread(model.stiffness, table.own_dof, free.nv, 0.0)
    if model.spring_reference is not None:
        leaves["spring_reference"] = spread(model.spring_reference, table.own_coordinate, free.nq, 0.0)
    return dataclasses.replace(model, tree=free, follower_ratio=None, follower_offset=None, **leaves)
