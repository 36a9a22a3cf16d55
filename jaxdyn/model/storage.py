"""Models as files: `save` and `restore`.

A file is a NumPy archive (`.npz`): one array per leaf, by name, and the text `header`, JSON with the format, its
version and the tree. No pickle: reading a file runs no code of it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.errors import InputError, is_concrete, listing, suggestion
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.model import Model, check_model, float_dtype
from jaxdyn.model.tree import ShapeInfo, Tree
from jaxdyn.version import __version__

FORMAT = "jaxdyn model"
VERSION = 2
"""2 knows springs; a robot without is written in version 1, which older readers know."""
SPRINGS = ("stiffness", "spring_reference")


def save(path: str | os.PathLike, model: Model) -> None:
    """Writes a model to a file, which is replaced only when the new one is complete.

    Leaves with more axes (a batch of robots) are kept as they are. The name is taken as given; `.npz` is usual.

    **Raises:** `InputError` under `jit`, `vmap` or `grad`, where the numbers cannot be read; `OSError` with the path where it
    cannot be written.
    """
    check_model(model)
    leaves = _leaves(model)
    if not all(is_concrete(leaf) for leaf in leaves.values()):
        raise InputError("save: the model's numbers cannot be read under jit, vmap or grad.")
    version = VERSION if any(name in leaves for name in SPRINGS) else 1
    header = {"format": FORMAT, "version": version, "written_by": __version__, "tree": dataclasses.asdict(model.tree)}
    arrays: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    target = Path(path)
    try:
        handle, scratch = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
    except OSError as error:  # of the file that was asked for, not of the scratch file beside it
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, header=np.asarray(json.dumps(header)), **arrays)
        os.replace(scratch, target)
    except BaseException:
        os.unlink(scratch)
        raise


def restore(path: str | os.PathLike, *, dtype: Any = None) -> Model:
    """Reads a model from a file that `save` wrote.

    **Arguments:** `dtype`: of the leaves; default that of the file, if JAX can hold it now, else its default float.

    **Raises:** `InputError` for a file that is not there, is none of `save`, is damaged, or was written by a later
    version of the format.
    """
    shown = repr(os.fspath(path))
    try:
        archive = np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{shown} is no model: it holds a single array.")
        with archive:
            content = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {shown}.") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown} is no model that save wrote, or it is damaged: {error}.") from None
    header = _header(content.pop("header", None), shown)
    try:
        tree = _tree(header["tree"])
    except (KeyError, TypeError, InputError) as error:
        raise InputError(f"{shown} is damaged: its tree cannot be read: {error}.") from None
    return _model(tree, content, dtype, shown)


def _header(text: np.ndarray | None, shown: str) -> dict[str, Any]:
    try:
        header = json.loads(str(text)) if text is not None else None
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{shown} is an archive of arrays, but no model that save wrote.")
    version = header.get("version")
    if not isinstance(version, int) or version < 1:
        raise InputError(f"{shown} is damaged: its format version is {version!r}.")
    if version > VERSION:
        raise InputError(
            f"{shown} was written by jaxdyn {header.get('written_by')} in version {version} of the format; this one, "
            f"{__version__}, reads up to {VERSION}: update jaxdyn."
        )
    return header


def _tree(data: dict[str, Any]) -> Tree:
    fields = {name: tuple(value) for name, value in data.items()}
    fields["geometry"] = tuple(ShapeInfo(**shape) for shape in data["geometry"])
    fields["followers"] = tuple((int(joint), int(leader)) for joint, leader in data["followers"])
    return Tree(**fields)


def _leaves(model: Model) -> dict[str, jax.Array]:
    """The leaves by their names, those of nested parts with dots: `inertia.mass`."""
    found = {}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if isinstance(value, SE3 | SpatialInertia):
            found |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in dataclasses.fields(value)}
        elif field.name != "tree" and value is not None:
            found[field.name] = value
    return found


def _shapes(tree: Tree, present: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the leaves of one robot; those of springs only if they are `present`."""
    n, nv, nq, k = tree.n_joints, tree.nv, tree.nq, len(tree.followers)
    shapes: dict[str, tuple[int, ...]] = {"joint_axis": (n, 3), "gravity": (3,), "lower": (nq,), "upper": (nq,)}
    for name, count in (("joint", n), ("frame", tree.n_frames), ("shape", len(tree.geometry))):
        shapes |= {f"{name}_placement.rotation": (count, 3, 3), f"{name}_placement.translation": (count, 3)}
    shapes |= {"inertia.mass": (n,), "inertia.com": (n, 3), "inertia.inertia": (n, 3, 3)}
    shapes |= dict.fromkeys(("armature", "damping", "friction", "velocity_limit", "effort_limit"), (nv,))
    shapes |= {"shape_size": (len(tree.geometry), 3), "shape_color": (len(tree.geometry), 4)}
    shapes |= {name: size for name, size in zip(SPRINGS, ((nv,), (nq,)), strict=True) if name in present}
    return shapes | (dict.fromkeys(("follower_ratio", "follower_offset"), (k,)) if k else {})


def _model(tree: Tree, content: dict[str, np.ndarray], dtype: Any, shown: str) -> Model:
    shapes = _shapes(tree, content)
    missing, strange = sorted(set(shapes) - set(content)), sorted(set(content) - set(shapes))
    if missing:
        raise InputError(f"{shown} is damaged: it lacks {listing(missing)}.")
    if strange:
        raise InputError(
            f"{shown} holds {strange[0]!r}, which is no leaf of a model{suggestion(strange[0], list(shapes))}."
        )
    for name, shape in shapes.items():
        given = content[name]
        if given.dtype.kind != "f" or given.shape[given.ndim - len(shape) :] != shape or given.ndim < len(shape):
            raise InputError(
                f"{shown} is damaged: {name} is {given.dtype}{given.shape}, wanted floats of shape {shape}."
            )
    if dtype is None:
        stored = content["gravity"].dtype
        dtype = stored if jax.dtypes.canonicalize_dtype(stored) == stored else None
    dtype = float_dtype(dtype)
    # a batch of robots has longer shapes than `Model` takes, so the leaves are put into one robot's place
    one = _nested(tree, {name: np.zeros(shape, dtype) for name, shape in shapes.items()})
    names = {id(leaf): name for name, leaf in _leaves(one).items()}
    leaves, structure = jax.tree.flatten(one)
    return jax.tree.unflatten(structure, [jnp.asarray(np.asarray(content[names[id(x)]], dtype)) for x in leaves])


def _nested(tree: Tree, arrays: dict[str, np.ndarray]) -> Model:
    parts: dict[str, Any] = {}
    for name, array in arrays.items():
        head, _, part = name.partition(".")
        if part:
            parts.setdefault(head, {})[part] = jnp.asarray(array)
        else:
            parts[head] = jnp.asarray(array)
    parts["inertia"] = SpatialInertia(**parts["inertia"])
    for name in ("joint_placement", "frame_placement", "shape_placement"):
        parts[name] = SE3(**parts[name])
    return Model(tree=tree, **parts)
