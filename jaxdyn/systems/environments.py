"""Many environments that differ: who has an axis for them, and random numbers for any leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from jaxdyn.contact.fields import leaf_ranks
from jaxdyn.errors import InputError, check_key
from jaxdyn.systems.first_order import FirstOrderSystem
from jaxdyn.systems.integrators import AnySystem
from jaxdyn.systems.rollout import Controls, input_ranks
from jaxdyn.systems.system import Input


def randomize(system: Any, where: Callable, sample: Callable, key: Any, environments: int) -> Any:
    """The system (or model, or any pytree) with numbers drawn anew for each of `environments`: domain randomisation.

    **Arguments:**

    - `where`: a function `where(system)` that returns a leaf, a part such as `s.model.inertia`, or a list of them, as that of
      `equinox.tree_at`.
    - `sample`: a function `sample(key, part)` that returns one environment's version of that part, with the same shapes: so
      what belongs together, such as a mass and its moments of inertia, can be changed together.
    - `key`: a random key, as `jax.random.key(0)` makes it; another one for each call.

    **Returns:** the system, in which every array of that part has a leading axis of length `environments`. `batch_rollout` takes
    it as it is; `jax.vmap` takes it with `in_axes=environment_axes(system)`.

    **Raises:** `InputError` for another structure, shape or dtype of a sample, for a part that has an axis for environments
    already, and for a wrong key.
    """
    check_key("key", key)
    if environments < 1:
        raise InputError(f"environments: wanted at least 1, given {environments}.")
    part = where(system)
    if jax.tree.leaves(where(environment_axes(system))):
        raise InputError("randomize: the part has an axis for the environments already; draw its numbers in one call.")
    new = jax.vmap(sample, (0, None))(jax.random.split(key, environments), part)
    _check_sample(part, new)
    return eqx.tree_at(where, system, new)


def _check_sample(part: Any, new: Any) -> None:
    """Raises `InputError` unless the samples differ from the part by one leading axis alone."""
    given, wanted = jax.tree.structure(new), jax.tree.structure(part)
    if given != wanted:
        raise InputError(f"sample: wanted the structure of the part, {wanted}, given {given}.")
    for (path, leaf), drawn in zip(jax.tree_util.tree_flatten_with_path(part)[0], jax.tree.leaves(new), strict=True):
        if drawn.shape[1:] != leaf.shape or drawn.dtype != leaf.dtype:
            raise InputError(
                f"sample{jax.tree_util.keystr(path)}: wanted {leaf.dtype}{leaf.shape}, given {drawn.dtype}{drawn.shape[1:]}."
            )


def environment_axes(tree: Any) -> Any:
    """For `in_axes` of `jax.vmap`: the pytree with 0 for each leaf that has an axis for environments, and None for the others.

    **Raises:** `InputError` for a leaf with more than one axis too many.
    """

    def axis(path: tuple, leaf: Any, rank: int | None) -> int | None:
        extra = 0 if rank is None or not eqx.is_array(leaf) else leaf.ndim - rank
        if extra not in (0, 1):
            raise InputError(
                f"system{jax.tree_util.keystr(path)}: wanted rank {rank}, or one axis more, given shape {leaf.shape}."
            )
        return 0 if extra else None

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return structure.unflatten([axis(*leaf, rank) for leaf, rank in zip(leaves, leaf_ranks(tree), strict=True)])


def count_environments(x0: Any) -> int:
    """Number of environments, from the states."""
    leaves = jax.tree.leaves(x0)
    sizes = set()
    for leaf, rank in zip(leaves, leaf_ranks(x0), strict=True):
        if rank is not None and leaf.ndim != rank + 1:
            raise InputError(
                f"x0: wanted states with one leading axis for the environments, given a leaf of shape {leaf.shape}."
            )
        sizes.add(leaf.shape[0])
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"x0: wanted the same number of environments, at least one, in all leaves, given {sorted(sizes)}."
        )
    return sizes.pop()


def batched_leaves(tree: Any, axes: Any, environments: int) -> Any:
    """A pytree of bools: which leaves have an axis for the environments; told by `axes`, else by the ranks."""
    structure = jax.tree.structure(tree)
    if axes is not None:
        flat = jax.tree.map(lambda axis, part: jax.tree.map(lambda _: axis == 0, part), axes, tree, is_leaf=_is_none)
        return structure.unflatten(jax.tree.leaves(flat))
    flags = []
    for (path, leaf), rank in zip(jax.tree_util.tree_flatten_with_path(tree)[0], leaf_ranks(tree), strict=True):
        extra = 0 if rank is None or not eqx.is_array(leaf) else leaf.ndim - rank
        if extra not in (0, 1) or (extra and leaf.shape[0] != environments):
            raise InputError(
                f"system{jax.tree_util.keystr(path)}: wanted rank {rank}, or one leading axis of {environments} environments "
                f"more, given shape {leaf.shape}."
            )
        flags.append(extra == 1)
    return structure.unflatten(flags)


def _is_none(x: Any) -> bool:
    return x is None


def batch_controls(system: AnySystem, controls: Any, environments: int, steps: int) -> tuple[Controls, Any]:
    """The controls, and which of their leaves have an axis for the environments."""
    if controls is None or (callable(controls) and not isinstance(controls, Input)):
        controls = Controls(controls, None, None)
        return controls, batched_leaves(controls, None, environments)
    if not isinstance(controls, eqx.Module) and not isinstance(system, FirstOrderSystem):
        controls = Input(controls)
    leaves, structure = jax.tree.flatten(controls)
    in_time, in_batch = [], []
    for leaf, rank in zip(leaves, input_ranks(controls), strict=True):
        extra = leaf.shape[: leaf.ndim - (rank or 0)]
        if extra in ((), (environments,), (steps,), (environments, steps)):
            if extra == (steps,) == (environments,):
                raise InputError(f"controls: an axis of length {steps} may be time or environments; give both axes.")
        else:
            raise InputError(
                f"controls: wanted leading axes (), ({steps},) for the time, ({environments},) for the environments or "
                f"({environments}, {steps}), given shape {leaf.shape}."
            )
        in_time.append(extra in ((steps,), (environments, steps)))
        in_batch.append(extra in ((environments,), (environments, steps)))
    time_mask, batch_mask = structure.unflatten(in_time), structure.unflatten(in_batch)
    scanned, held = eqx.partition(controls, time_mask)
    return Controls(None, scanned, held), Controls(None, *eqx.partition(batch_mask, time_mask))
