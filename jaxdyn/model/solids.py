"""Inertia of homogeneous solids: of a primitive, of a closed triangle mesh, of a shape of a model.

All formulas are differentiable with respect to sizes and vertices.
"""

from __future__ import annotations

import math
import os

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_shape, unknown_name
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.model import Model, check_model

WATER = 1000.0
_SIZES = {"box": 3, "sphere": 1, "cylinder": 2, "capsule": 2}


def solid_inertia(
    kind: str, size: FloatLike, *, mass: FloatLike | None = None, density: FloatLike = WATER
) -> SpatialInertia:
    """Inertia of a primitive about its centre, in its own axes.

    **Arguments:** `kind`, `size`: "box" and full extents (3,); "sphere" and radius; "cylinder" or "capsule" and
    (radius, length), along z, a capsule's length that of its cylindrical part; `mass`: kg; without it `density`, kg/m^3,
    counts (default: that of water).

    **Raises:** `UnknownNameError` for another kind, `InputError` for a wrong shape.
    """
    if kind not in _SIZES:
        raise unknown_name("kind of solid", kind, _SIZES)
    wanted = _SIZES[kind]
    values = as_float_array("size", size)
    values = check_shape("size", values.reshape(1) if values.ndim == 0 else values, (wanted,), f"Of a {kind}.")
    if kind == "box":
        volume = values[0] * values[1] * values[2]
        x, y, z = (values[k] ** 2 / 12 for k in range(3))
        moments = y + z, z + x, x + y
    elif kind == "sphere":
        r = values[0]
        volume = 4 / 3 * math.pi * r**3
        moments = (0.4 * r**2,) * 3
    else:
        r, length = values[0], values[1]
        tube = math.pi * r**2 * length
        across, along = (3 * r**2 + length**2) / 12, r**2 / 2
        if kind == "cylinder":
            volume, moments = tube, (across, across, along)
        else:
            caps = 4 / 3 * math.pi * r**3
            volume = tube + caps
            share = caps / volume
            # a half ball about its flat side, moved to the end of the tube
            side = 0.4 * r**2 + length**2 / 4 + 3 / 8 * length * r
            across = (1 - share) * across + share * side
            moments = across, across, (1 - share) * along + share * 0.4 * r**2
    total = density * volume if mass is None else check_shape("mass", mass, (), dtype=values.dtype)
    return SpatialInertia(jnp.asarray(total), jnp.zeros(3, values.dtype), total * jnp.diag(jnp.stack(moments)))


def mesh_inertia(
    vertices: FloatLike,
    faces: Int[Array, "faces 3"] | np.ndarray,
    *,
    mass: FloatLike | None = None,
    density: FloatLike = WATER,
) -> SpatialInertia:
    """Inertia of the solid that a closed triangle mesh bounds, in the axes of its vertices.

    **Arguments:** `vertices` (n, 3) m; `faces` (m, 3) indices, all seen counter-clockwise from the same side; `mass`,
    `density` as of `solid_inertia`.

    The integral over tetrahedra between each face and the origin; the solid need not contain it. (Eberly, Polyhedral
    mass properties, 2002.)
    """
    points = as_float_array("vertices", vertices)
    if points.ndim != 2 or points.shape[1] != 3 or np.ndim(faces) != 2 or np.shape(faces)[1] != 3:
        raise InputError(f"wanted vertices (n, 3) and faces (m, 3), given {points.shape} and {np.shape(faces)}.")
    a, b, c = (points[jnp.asarray(faces)[:, k]] for k in range(3))
    six_volumes = jnp.sum(a * jnp.cross(b, c), axis=1)
    volume = jnp.sum(six_volumes) / 6
    middle = a + b + c
    first = jnp.sum(six_volumes[:, None] * middle, axis=0) / 24
    outer = sum(p[:, :, None] * p[:, None] for p in (a, b, c, middle))
    second = jnp.sum(six_volumes[:, None, None] * outer, axis=0) / 120
    # with the faces turned the other way all three change their sign
    total = density * jnp.abs(volume) if mass is None else check_shape("mass", mass, (), dtype=points.dtype)
    com = first / volume
    about = second / volume - com[:, None] * com[None]
    inertia = total * (jnp.trace(about) * jnp.eye(3, dtype=points.dtype) - about)
    return SpatialInertia(jnp.asarray(total), com, inertia)


def read_mesh(path: str | os.PathLike, scale: FloatLike = (1.0, 1.0, 1.0)) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (n, 3) and faces (m, 3) of a mesh file, scaled; a mirroring scale also turns the faces round. Read by the
    package `trimesh`, which knows STL, OBJ, PLY, COLLADA and others.

    **Raises:** `InputError` if the package is missing or the file cannot be read.
    """
    try:
        import trimesh
    except ImportError:
        raise InputError("read_mesh needs the package trimesh: pip install trimesh.") from None
    try:
        mesh = trimesh.load(os.fspath(path), force="mesh")
        vertices, faces = np.asarray(mesh.vertices, float), np.asarray(mesh.faces, int)
    except Exception as error:  # each format has errors of its own
        raise InputError(f"{os.fspath(path)!r} cannot be read as a mesh: {error}.") from None
    if faces.ndim != 2 or not len(faces):
        raise InputError(f"{os.fspath(path)!r} cannot be read as a mesh: it has no triangles.")
    factors = np.asarray(scale, float)
    return vertices * factors, faces[:, ::-1] if np.prod(factors) < 0 else faces


def shape_inertia(
    model: Model, shape: int, *, mass: FloatLike | None = None, density: FloatLike = WATER
) -> SpatialInertia:
    """Inertia of a shape of a model (index into `model.tree.geometry`) as a solid, in the frame of its body. A mesh is read by
    `read_mesh`.

    **Raises:** `InputError` for an index out of range or a mesh that cannot be read.
    """
    check_model(model)
    if not 0 <= shape < len(model.tree.geometry):
        raise InputError(f"shape: wanted an index below {len(model.tree.geometry)}, given {shape}.")
    info, size = model.tree.geometry[shape], model.shape_size[shape]
    pose = SE3(model.shape_placement.rotation[shape], model.shape_placement.translation[shape])
    if info.kind == "mesh":
        vertices, faces = read_mesh(info.mesh, np.asarray(size))
        inertia = mesh_inertia(jnp.asarray(vertices, model.dtype), faces, mass=mass, density=density)
    else:
        inertia = solid_inertia(info.kind, size[: _SIZES[info.kind]], mass=mass, density=density)
    return inertia.transform(pose)
