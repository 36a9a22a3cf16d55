"""Environments over several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdyn.errors import InputError


def check_mesh(mesh: Mesh) -> Mesh:
    """The mesh; raises `InputError` unless it has one axis, along which environments can be laid out."""
    if len(mesh.axis_names) != 1:
        raise InputError(f"mesh: wanted one axis, for the environments, given {mesh.axis_names}.")
    return mesh


def split_over_devices(function: Callable, mesh: Mesh | None) -> Callable:
    """`function(split, shared)`, each device doing its part of the leading axis of `split` by itself; nothing is exchanged.

    Without a mesh: the function itself.
    """
    if mesh is None:
        return function
    along = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(function, mesh=mesh, in_specs=(along, PartitionSpec()), out_specs=along, check_vma=False)


def lay_out(tree: Any, mesh: Mesh | None) -> Any:
    """The arrays of a pytree, with their leading axis over the devices of the mesh."""
    if mesh is None:
        return tree
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
