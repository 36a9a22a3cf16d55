"""Pictures of shapes with matplotlib (the extra `jaxdyn[viz]`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn.errors import InputError
from jaxdyn.functions.polygon import LINE, POINT, ConvexShape
from jaxdyn.math.se3 import SE3

_COLOR = "#2f6fde"


def draw_shapes(
    shapes: ConvexShape | Sequence[ConvexShape],
    *,
    poses: Sequence[SE3 | None] | None = None,
    color: str = _COLOR,
    opacity: float = 0.35,
    normals: float = 0.1,
    label: str | None = None,
    axes: Any = None,
) -> Any:
    """Draws shapes in space, filled, with their normals.

    **Arguments:** `shapes`: one or several; `poses`: of the frames that carry them, in the world (None: the world itself);
    `color`, `opacity`: of all; `normals`: length of the arrows, m, 0 for none; `label`: for a legend; `axes`: three-dimensional
    axes of matplotlib, or None for a new figure.

    **Returns:** the axes.

    **Raises:** `InputError` if matplotlib is not installed, or the lengths differ.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("drawing needs matplotlib: pip install 'jaxdyn[viz]'.") from None
    shapes = [shapes] if isinstance(shapes, ConvexShape) else list(shapes)
    poses = [None] * len(shapes) if poses is None else list(poses)
    if len(poses) != len(shapes):
        raise InputError(f"poses: wanted one for each of the {len(shapes)} shapes, given {len(poses)}.")
    if axes is None:
        axes = Figure(figsize=(5.5, 4.5), layout="constrained").add_subplot(projection="3d")
    for k, (shape, pose) in enumerate(zip(shapes, poses, strict=True)):
        placed = shape if pose is None else shape.transformed(pose)
        loop = np.asarray(placed.outline())
        named = label if k == 0 else None
        if shape.kind == POINT:
            axes.plot(*loop[:1].T, "o", color=color, label=named)
        else:
            axes.plot(*loop.T, color=color, lw=1.4, label=named)
        if shape.kind not in (POINT, LINE):
            _fill(axes, loop[:-1], color, opacity)
        if normals and shape.kind != POINT:
            g = placed.geometry()
            axes.quiver(*np.asarray(g.center), *(normals * np.asarray(g.normal)), color=color, lw=1.2)
    axes.set_aspect("equal")
    return axes


def _fill(axes: Any, corners: np.ndarray, color: str, opacity: float) -> None:
    # a fan of triangles: needs nothing but what matplotlib's three-dimensional axes offer themselves
    triangles = [[0, i, i + 1] for i in range(1, len(corners) - 1)]
    flat = corners if np.ptp(corners[:, :2], axis=0).min() > 1e-9 else corners + 1e-9 * np.arange(len(corners))[:, None]
    axes.plot_trisurf(*flat.T, triangles=triangles, color=color, alpha=opacity, shade=False, lw=0)
