"""Ground as a grid of heights."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import in_dtype_of, parameter
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError, is_concrete, unknown_name

INTERPOLATIONS = ("bilinear", "cubic")


class HeightmapTerrain(Terrain):
    """Heights on a regular grid, and what lies between them.

    **Arguments:** `heights`: (nx, ny), m; `heights[i, j]` is over `origin + (i, j) * spacing`; `spacing`: distance of the
    grid's lines, m: a number, or (2,) along x and y; `origin`: (2,), where `heights[0, 0]` is, m; `interpolation`: see
    below.

    | `interpolation` | between the heights | normal | heights read per point |
    |---|---|---|---|
    | `"bilinear"` | `a + b x + c y + d x y` in each cell | jumps at the grid's lines | 4 |
    | `"cubic"` | a cubic through four neighbours along each axis (Catmull and Rom) | continuous | 16 |

    Both go through the heights, and reproduce planes. Beyond the grid the ground goes on at the height of the nearest
    point of its edge, level across it. Heights, spacing and origin are leaves: the depth has derivatives with respect
    to them, and to the point. The depth is the vertical distance times the normal's z component: the distance from the
    tangent plane, exact on slopes.

    **Raises:** `InputError` for fewer than 2 x 2 heights, a spacing that is not positive or a height that is not finite (if their
    numbers can be read), `UnknownNameError` for another interpolation.

    Source of the cubic: Catmull and Rom, A class of local interpolating splines, 1974; at the edge the neighbour that is
    missing continues the last two heights on a line.
    """

    interpolation: str = eqx.field(static=True)
    heights: Float[Array, "..."] = parameter("heights", (None, None))
    spacing: Float[Array, "..."] = parameter("spacing", (2,))
    origin: Float[Array, "..."] = parameter("origin", (2,))

    def __init__(
        self,
        heights: FloatLike,
        spacing: FloatLike = 1.0,
        origin: FloatLike = (0.0, 0.0),
        interpolation: str = "bilinear",
    ):
        if interpolation not in INTERPOLATIONS:
            raise unknown_name("interpolation", interpolation, INTERPOLATIONS)
        self.heights = heights  # pyright: ignore (the field converts it)
        spacing = (spacing, spacing) if isinstance(spacing, (int, float)) else spacing
        self.spacing = in_dtype_of(spacing, heights)  # pyright: ignore
        self.origin = in_dtype_of(origin, heights)  # pyright: ignore
        self.interpolation = interpolation

    def __check_init__(self) -> None:
        if min(self.heights.shape[-2:]) < 2:
            raise InputError(f"heights: wanted at least 2 x 2 heights, given shape {self.heights.shape}.")
        if is_concrete(self.spacing) and not np.all(np.asarray(self.spacing) > 0):
            raise InputError(f"spacing: wanted positive distances, given {np.asarray(self.spacing)}.")
        if is_concrete(self.heights) and not np.all(np.isfinite(np.asarray(self.heights))):
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(self.heights)))[0])
            raise InputError(f"heights: wanted finite heights, given {np.asarray(self.heights)[at]} at {list(at)}.")

    def query(self, points: Float[Array, "n 3 #batch"]) -> tuple[Float[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        height, (slope_x, slope_y) = self._surface(points[:, :2])
        upright = 1 / jnp.sqrt(1 + slope_x**2 + slope_y**2)
        normal = jnp.stack([-slope_x * upright, -slope_y * upright, upright], axis=1)
        return (height - points[:, 2]) * upright, normal

    def height(self, xy: Float[Array, "n 2 #batch"]) -> Float[Array, "n #batch"]:
        return self._surface(xy)[0]

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates x (nx,) and y (ny,) of the grid's lines, m, for drawing."""
        lines = (np.arange(n) for n in self.heights.shape[-2:])
        x, y = (float(o) + float(s) * i for o, s, i in zip(self.origin, self.spacing, lines, strict=True))
        return x, y

    def _surface(self, xy: Array) -> tuple[Array, tuple[Array, Array]]:
        """Height (n, batch), and its derivatives along x and y."""
        at = (xy - self.origin) / self.spacing
        axes = []
        for k in (0, 1):
            taps, inside = self._taps(at[:, k], self.heights.shape[1 + k])
            axes.append((taps, jnp.where(inside, 1 / self.spacing[:, k], 0)))
        (along_x, scale_x), (along_y, scale_y) = axes
        height, by_x, by_y = (jnp.zeros((), xy.dtype) for _ in range(3))
        for i, weight_x, rate_x in along_x:
            row, row_y = jnp.zeros((), xy.dtype), jnp.zeros((), xy.dtype)
            for j, weight_y, rate_y in along_y:
                here = self._pick(i, j)
                row, row_y = _plus(row, weight_y * here), _plus(row_y, rate_y * here)
            height, by_x = _plus(height, weight_x * row), _plus(by_x, rate_x * row)
            by_y = _plus(by_y, weight_x * row_y)
        return height, (by_x * scale_x, by_y * scale_y)

    def _taps(self, at: Array, n: int) -> tuple[list[tuple[Array, Array, Array]], Array]:
        """Along one axis: numbers of the heights that count, their weights and the derivatives of these; and which
        points are over the grid."""
        last = n - 1
        inside = (at >= 0) & (at <= last)
        at = jnp.where(at < 0, 0, jnp.where(at > last, last, at))
        # clipped as an integer: where a position is NaN, the number of the cell must still be one
        cell = jnp.clip(jnp.floor(at).astype(jnp.int32), 0, last - 1)
        t = at - cell.astype(at.dtype)
        if self.interpolation == "bilinear":
            one = jnp.ones_like(t)
            return [(cell, 1 - t, -one), (cell + 1, t, one)], inside
        weights = [t * (t * (2 - t) - 1) / 2, (t * t * (3 * t - 5) + 2) / 2, t * (t * (4 - 3 * t) + 1) / 2]
        weights.append(t * t * (t - 1) / 2)
        rates = [(t * (4 - 3 * t) - 1) / 2, t * (9 * t - 10) / 2, (t * (8 - 9 * t) + 1) / 2, t * (3 * t - 2) / 2]
        first, final = cell == 0, cell == last - 1
        taps = [_inner(w, first, final) for w in (weights, rates)]
        numbers = (jnp.clip(cell + k, 0, last) for k in (-1, 0, 1, 2))
        return list(zip(numbers, *taps, strict=True)), inside

    def _pick(self, i: Array, j: Array) -> Array:
        """The heights with the numbers i, j (n, batch)."""
        table = self.heights[0]
        width = table.shape[-1]
        robot = jnp.zeros((), jnp.int32) if width == 1 else jnp.arange(width, dtype=jnp.int32)[None]
        return table.at[i, j, robot].get(mode="promise_in_bounds")


def _plus(a: Array, b: Array) -> Array:
    """`a + b`, where the sum starts from a plain zero."""
    return b if a.ndim == 0 else a + b


def _inner(weights: list[Array], first: Array, final: Array) -> list[Array]:
    """Weights in which a neighbour outside the grid, `2 h_0 - h_1`, is expressed by those inside."""
    a, b, c, d = weights
    low, high = jnp.where(first, a, 0), jnp.where(final, d, 0)
    return [a - low, b + 2 * low - high, c - low + 2 * high, d - high]
