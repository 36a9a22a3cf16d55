"""Ground with boxes on it: blocks, steps, stairs."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.fields import Scalar, in_dtype_of, in_one_dtype, parameter
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError, is_concrete
from jaxdyn.math.stacked import total


class BoxTerrain(Terrain):
    """Boxes on level ground.

    **Arguments:** `center`: (m, 3), world axes, m; `size`: (m, 3), full lengths along the axes of each box, m; `rotation`:
    (m, 3, 3), of each box in the world, default none; `level`: height of the ground, m; `underside`: see below.

    The depth of a point is its distance from the surface of what is deepest around it, box or ground: inside a box the
    nearest face, outside the nearest point. So the normal is that of a face where there is contact, and turns round
    the edges above it, where only smooth laws act. It changes from the top to a side where a point is as deep under one
    as behind the other: a foot that sinks in further than the width by which it hits a step is pushed off it.

    Boxes stand on the ground: with `underside=False` the face below is none, and the box goes on downwards. Otherwise a
    foot on a thin plate could be nearer to its underside, and be pulled through. `underside=True` is for
    boxes in the air: tables, beams to crawl under.

    `height` is that of the highest surface, seen from above. Centres, sizes, rotations and level are leaves.
    """

    underside: bool = eqx.field(static=True)
    center: Float[Array, "..."] = parameter("center", (None, 3))
    size: Float[Array, "..."] = parameter("size", (None, 3))
    rotation: Float[Array, "..."] = parameter("rotation", (None, 3, 3))
    level: Scalar = parameter("level")

    def __init__(
        self,
        center: FloatLike,
        size: FloatLike,
        rotation: FloatLike | None = None,
        level: FloatLike = 0.0,
        underside: bool = False,
    ):
        self.center = center  # pyright: ignore (the field converts it)
        self.size = in_dtype_of(size, center)  # pyright: ignore
        if rotation is None:
            rotation = jnp.broadcast_to(jnp.eye(3, dtype=getattr(center, "dtype", None)), (*np.shape(center), 3))
        self.rotation = in_dtype_of(rotation, center)  # pyright: ignore
        self.level = in_dtype_of(level, center)  # pyright: ignore
        self.underside = bool(underside)

    def __check_init__(self) -> None:
        m = self.center.shape[-2]
        if m == 0:
            raise InputError("center: wanted at least one box, given none; FlatTerrain is ground without boxes.")
        for name, wanted in (("size", (m, 3)), ("rotation", (m, 3, 3))):
            given = getattr(self, name).shape
            if given[-len(wanted) :] != wanted:
                raise InputError(f"{name}: wanted shape {wanted} for the {m} boxes of center, given shape {given}.")
        if is_concrete(self.size) and not np.all(np.asarray(self.size) > 0):
            raise InputError(f"size: wanted positive lengths, given {np.asarray(self.size).tolist()}.")

    def query(self, points: Float[Array, "n 3 #batch"]) -> tuple[Float[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        depth, normal = self._of_boxes(points)
        ground = self.level - points[:, 2]
        deepest = jnp.max(depth, axis=1)
        chosen = jnp.arange(depth.shape[1])[None, :, None] == jnp.argmax(depth, axis=1)[:, None]
        on_ground = ground >= deepest  # on the line where a box meets the ground, the ground
        depth = jnp.where(on_ground, ground, jnp.sum(jnp.where(chosen, depth, 0), axis=1))
        of_box = jnp.sum(jnp.where(chosen[:, :, None], normal, 0), axis=1)
        up = jnp.asarray([0, 0, 1], points.dtype)[None, :, None]
        return depth, jnp.where(on_ground[:, None], up, of_box)

    def _of_boxes(self, points: Array) -> tuple[Array, Array]:
        """Depth (n, m, batch) in each box, and the normal (n, m, 3, batch)."""
        local = self._turn_back(points[:, None] - self.center)
        side = [jnp.where(x >= 0, 1.0, -1.0).astype(points.dtype) for x in local]
        if not self.underside:
            side[2] = jnp.ones_like(side[2])
        beyond = [s * x - self.size[:, :, k] / 2 for k, (s, x) in enumerate(zip(side, local, strict=True))]
        x, y, z = beyond
        inside = (x <= 0) & (y <= 0) & (z <= 0)
        # inside: the nearest face; of equally near ones the top
        top = (z >= x) & (z >= y)
        front = ~top & (x >= y)
        faces = front, ~top & ~front, top
        nearest = jnp.where(top, z, jnp.where(front, x, y))
        # outside: the nearest point
        out = [jnp.where(b > 0, b, 0) for b in beyond]
        square = total(o * o for o in out)
        distance = jnp.sqrt(jnp.where(inside, 1, square))
        normal = [
            s * jnp.where(inside, face.astype(points.dtype), o / distance)
            for s, face, o in zip(side, faces, out, strict=True)
        ]
        turned = jnp.stack([total(self.rotation[:, :, i, k] * normal[k] for k in range(3)) for i in range(3)], axis=2)
        return jnp.where(inside, -nearest, -distance), turned

    def _turn_back(self, x: Array) -> list[Array]:
        """The three coordinates (n, m, batch) in axes of the boxes, of vectors (n, m, 3, batch) of the world."""
        return [total(self.rotation[:, :, i, k] * x[:, :, i] for i in range(3)) for k in range(3)]

    def height(self, xy: Float[Array, "n 2 #batch"]) -> Float[Array, "n #batch"]:
        # The vertical line over a point enters and leaves each box somewhere, or does not meet it.
        foot = jnp.concatenate([xy, jnp.zeros_like(xy[:, :1])], axis=1)
        start = self._turn_back(foot[:, None] - self.center)
        far = float(jnp.finfo(xy.dtype).max) ** 0.5
        lowest, highest = jnp.asarray(-far, xy.dtype), jnp.asarray(far, xy.dtype)
        for k in range(3):
            slope, half = self.rotation[:, :, 2, k], self.size[:, :, k] / 2
            along = jnp.abs(slope) < 1e-9
            safe = jnp.where(along, 1, slope)
            a, b = (-half - start[k]) / safe, (half - start[k]) / safe
            enter, leave = jnp.where(slope > 0, a, b), jnp.where(slope > 0, b, a)
            if k == 2 and not self.underside:
                enter = jnp.where(slope > 0, -far, enter)
            missed = along & (jnp.abs(start[k]) > half)
            enter = jnp.where(missed, far, jnp.where(along, -far, enter))
            leave = jnp.where(missed, -far, jnp.where(along, far, leave))
            lowest = enter if k == 0 else jnp.where(enter > lowest, enter, lowest)
            highest = leave if k == 0 else jnp.where(leave < highest, leave, highest)
        top = jnp.where((lowest <= highest) & (highest < far), highest, -far)
        chosen = jnp.arange(top.shape[1])[None, :, None] == jnp.argmax(top, axis=1)[:, None]
        top = jnp.sum(jnp.where(chosen, top, 0), axis=1)
        return jnp.where(top > self.level, top, self.level)

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates x and y (m) of lines that show the boxes' edges as steep as a grid can, for drawing."""
        half = np.abs(np.asarray(self.rotation)) @ (np.asarray(self.size)[:, :, None] / 2)
        center, half = np.asarray(self.center), half[:, :, 0]
        lines = []
        for k in (0, 1):
            edges = np.concatenate([center[:, k] - half[:, k], center[:, k] + half[:, k]])
            margin = 0.2 * (edges.max() - edges.min())
            hair = 1e-4 * (edges.max() - edges.min())
            even = np.linspace(edges.min() - margin, edges.max() + margin, 61)
            lines.append(np.unique(np.concatenate([even, edges - hair, edges + hair])))
        return lines[0], lines[1]


def stairs(
    steps: int,
    rise: FloatLike,
    run: FloatLike,
    width: FloatLike,
    position: FloatLike = (0.0, 0.0),
    heading: FloatLike = 0.0,
    level: FloatLike = 0.0,
) -> BoxTerrain:
    """Stairs that go up, and end in a platform.

    **Arguments:** `steps`: how many; `rise`, `run`: height and depth of a step, m, the platform as deep as a step;
    `width`: m; `position`: (2,), middle of the lower edge of the first step, m; `heading`: of who walks up, rad from x to
    y; `level`: height of the ground, m.

    **Returns:** a `BoxTerrain` with one box per step, each reaching to the end, so that no face is hidden in another.
    """
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps: wanted a number of steps, at least 1, given {steps!r}.")
    given = in_one_dtype(rise, run, width, heading, level, position)
    dtype = jnp.result_type(float) if not hasattr(given[0], "dtype") else given[0].dtype
    rise, run, width, heading, level, place = (jnp.asarray(a, dtype) for a in given)
    i = jnp.arange(steps, dtype=dtype)
    length, height = (steps - i) * run, (i + 1) * rise
    cosine, sine = jnp.cos(heading), jnp.sin(heading)
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    forward = i * run + length / 2
    center = jnp.stack([place[0] + forward * cosine, place[1] + forward * sine, level + height / 2], axis=-1)
    size = jnp.stack([length, jnp.broadcast_to(width, (steps,)), height], axis=-1)
    turn = jnp.stack([jnp.stack([cosine, -sine, zero]), jnp.stack([sine, cosine, zero]), jnp.stack([zero, zero, one])])
    return BoxTerrain(center, size, jnp.broadcast_to(turn, (steps, 3, 3)), level)
