"""Environments over several devices, of one process or of many.

Several processes, on one machine or on many, are one JAX program (`jax.distributed`): each runs the same code with the same
arguments, a mesh spans the devices of all, and each device computes its environments by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdyn.errors import InputError


def environment_mesh(devices: int | None = None) -> Mesh:
    """A mesh for `batch_rollout`: one axis, over the first `devices` of each process (default: over all there are).

    **Raises:** `InputError` if a process has fewer.
    """
    by_process: dict[int, list] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    fewest = min(len(some) for some in by_process.values())
    if devices is not None and not 1 <= devices <= fewest:
        raise InputError(f"devices: wanted from 1 to {fewest}, as many as each process has, given {devices}.")
    return Mesh(np.array([device for _, some in sorted(by_process.items()) for device in some[:devices]]), ("env",))


def check_mesh(mesh: Mesh) -> Mesh:
    """The mesh; raises `InputError` unless it has one axis, along which environments can be laid out."""
    if len(mesh.axis_names) != 1:
        raise InputError(f"mesh: wanted one axis, for the environments, given {mesh.axis_names}.")
    return mesh


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether the mesh has devices of other processes, whose numbers this one cannot read."""
    return mesh is not None and mesh.is_multi_process


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
    return tree if mesh is None else _put(tree, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))


def to_every_device(tree: Any, mesh: Mesh | None) -> Any:
    """The arrays of a pytree, whole on every device; what is no array stays. Within one process, JAX does that by itself."""
    return _put(tree, NamedSharding(mesh, PartitionSpec())) if mesh is not None and spans_processes(mesh) else tree


def _put(tree: Any, sharding: NamedSharding) -> Any:
    if not sharding.mesh.is_multi_process:
        return jax.device_put(tree, sharding)

    def put(leaf: Any) -> Any:
        if not eqx.is_array_like(leaf) or (isinstance(leaf, jax.Array) and leaf.sharding == sharding):
            return leaf
        # every process has the whole array, and gives its devices their part
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, tree)


def to_host(tree: Any, mesh: Mesh | None) -> Any:
    """The arrays as NumPy arrays, whole on every process. With several processes all of them must call this."""
    return jax.tree.map(np.asarray, _gathered(tree, mesh) if spans_processes(mesh) else tree)


def readable(tree: Any, mesh: Mesh | None) -> Any:
    """The pytree with its arrays where this process can compute with them; what is no array stays."""
    if not spans_processes(mesh):
        return tree
    arrays, others = eqx.partition(tree, eqx.is_array)
    return eqx.combine(to_host(arrays, mesh), others)


@functools.partial(jax.jit, static_argnames="mesh")
def _gathered(tree: Any, mesh: Mesh) -> Any:
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, whole), tree)


def of_all_processes(value: int, mesh: Mesh | None) -> np.ndarray:
    """The values that the processes have, one for each device. All of them must call this."""
    if mesh is None or not spans_processes(mesh):
        return np.array([value])
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    mine = np.full(mesh.size, value, np.int32)
    return to_host(jax.make_array_from_callback(mine.shape, sharding, lambda index: mine[index]), mesh)
