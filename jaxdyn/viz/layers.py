"""The parts of a scene: each function checks what the user gave and makes one `Layer` of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxdyn.errors import FloatLike, InputError, listing
from jaxdyn.viz.shapes import Shape
from jaxdyn.viz.values import check_rotations, color, colors, hexadecimal, numbers, picked, quaternion, time_base

GROUND_STYLES = ("checker", "grid", "plain")
AXES_COLOR = "#2973eb"


@dataclasses.dataclass
class Layer:
    """One line of the legend.

    `entry`: what the page is told; `arrays`: what goes with it; `timed`: names of those whose first axis is the time
    (with `times` among them); `shapes`: solids of its bodies; `low`, `high`: (3,) corners of the box that it stays
    in; `size`: half the diagonal of the box around the first robot at the first moment, m.
    """

    entry: dict[str, Any]
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    timed: tuple[str, ...] = ()
    shapes: list[Shape] = dataclasses.field(default_factory=list)
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    size: float = 0.0

    @property
    def times(self) -> np.ndarray | None:
        """Times of the samples, s; None if it does not move."""
        return self.arrays.get("times")


@dataclasses.dataclass(frozen=True)
class Clock:
    """When something moves: `given`, all times (steps,), None if it stands still; `keep`: the steps that go into
    the page.
    """

    given: np.ndarray | None
    keep: np.ndarray

    @staticmethod
    def of(what: str, steps: int, times: FloatLike | None, timestep: FloatLike | None, rate: float) -> Clock:
        """From the arguments of a method of `Scene`; see `values.time_base`."""
        given = time_base(what, steps, times, timestep)
        return Clock(given, picked(given, rate))

    @property
    def times(self) -> np.ndarray | None:
        """Times that go into the page."""
        return None if self.given is None else self.given[self.keep]

    def arrays(self, **sampled: np.ndarray) -> dict[str, np.ndarray]:
        """The given arrays, already thinned, and their times."""
        return sampled if self.times is None else sampled | {"times": self.times}


def bodies(
    kind: str, name: str, swatch: str, samples: np.ndarray, clock: Clock, solids: list[Shape], **options: Any
) -> Layer:
    """Solids on bodies with poses (steps, environments, bodies, 7).

    `options`: `offsets` (environments, 3), `opacity` and `colors` for each environment.
    """
    environments = samples.shape[1]
    offsets = options.get("offsets", np.zeros((environments, 3)))
    entry = {
        "form": "bodies",
        "kind": kind,
        "name": name,
        "swatch": swatch,
        "detail": f"{environments}\u00d7" if environments > 1 else "",
        "environments": environments,
        "bodies": samples.shape[2],
        "opacity": list(options.get("opacity", [1.0] * environments)),
        "colors": options.get("colors"),
        "shadow": True,
    }
    low, high = extent(samples, solids, offsets)
    first_low, first_high = extent(samples[:1, :1], solids, offsets[:1])
    size = float(np.linalg.norm(first_high - first_low)) / 2 if kind in ("robot", "ghost") else 0.0
    timed = () if clock.times is None else ("poses", "times")
    return Layer(entry, {**clock.arrays(poses=samples), "offsets": offsets}, timed, solids, low, high, size)


def extent(poses: np.ndarray, shapes: list[Shape], offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(3,) lower and upper corner of the box around shapes on bodies with poses (steps, environments, bodies, 7)."""
    some = poses[np.unique(np.linspace(0, len(poses) - 1, min(len(poses), 24)).astype(int))]
    lows, highs = [], []
    for shape in shapes:
        corners = shape.corners()
        if shape.body < 0:
            points = corners[None, None] + offsets[None, :, None]
        else:
            p, q = some[:, :, shape.body, :3], some[:, :, shape.body, 3:]
            points = p[:, :, None] + offsets[None, :, None] + rotate(q[:, :, None], corners)
        lows.append(points.min(axis=(0, 1, 2)))
        highs.append(points.max(axis=(0, 1, 2)))
    if not shapes:
        points = (some[..., :3] + offsets[None, :, None]).reshape(-1, 3)
        points = points if len(points) else offsets
        return points.min(axis=0) - 0.05, points.max(axis=0) + 0.05
    return np.min(lows, axis=0), np.max(highs, axis=0)


def rotate(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Vectors (..., 3) turned by unit quaternions (..., 4)."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * np.cross(u, v)
    return v + w * t + np.cross(u, t)


def forces(
    name: str, points: np.ndarray, values: np.ndarray, clock: Clock, tint: Any, scale: FloatLike | None
) -> Layer:
    """Arrows; `points` and `values` (environments, steps, n, 3)."""
    samples = np.concatenate([points, values], axis=-1)[:, clock.keep].swapaxes(0, 1)
    samples = samples.reshape(len(clock.keep), -1, 6)
    entry = {
        "form": "forces",
        "kind": "forces",
        "name": name,
        "swatch": hexadecimal(color(tint)),
        "count": samples.shape[1],
        "scale": None if scale is None else float(numbers("scale", scale, ())),
    }
    arrays = clock.arrays(samples=samples)
    return Layer(entry, arrays, () if clock.times is None else tuple(arrays))


def traces(name: str, points: np.ndarray, clock: Clock, tint: Any, width: FloatLike) -> Layer:
    """Lines through points (environments, steps, 3)."""
    if points.shape[1] < 2:
        raise InputError(f"trace: a line has two points at least, given {points.shape[1]}.")
    p = points[:, clock.keep] if clock.times is not None else points
    tints = colors(tint, len(p))
    entry = {
        "form": "traces",
        "kind": "trace",
        "name": name,
        "swatch": hexadecimal(tints[0]),
        "colors": tints,
        "width": float(numbers("width", width, ())),
        "count": len(p),
        "length": p.shape[1],
    }
    # not thinned with the rest: a line needs its corners, and they cost little
    return Layer(entry, clock.arrays(points=p), (), [], p.min(axis=(0, 1)), p.max(axis=(0, 1)))


def frames(name: str, poses: Any, times: FloatLike | None, timestep: FloatLike | None, rate: float, size: Any) -> Layer:
    """Coordinate axes at poses (n,) or (steps, n)."""
    rotation, translation = (poses.rotation, poses.translation) if hasattr(poses, "rotation") else poses
    p = numbers("translation", translation, ("n", 3), ("steps", "n", 3))
    R = numbers("rotation", rotation, (*p.shape, 3))
    check_rotations("rotation", R)
    samples = np.concatenate([p, quaternion(R)], axis=-1)
    samples = samples if samples.ndim == 3 else samples[None]
    clock = Clock.of("frames", len(samples), times, timestep, rate)
    arrays = clock.arrays(poses=samples[clock.keep])
    entry = {
        "form": "frames",
        "kind": "frames",
        "name": name,
        "swatch": AXES_COLOR,
        "count": samples.shape[1],
        "size": None if size is None else float(numbers("size", size, ())),
    }
    points = p.reshape(-1, 3)
    timed = () if clock.times is None else tuple(arrays)
    return Layer(entry, arrays, timed, [], points.min(axis=0), points.max(axis=0))


def surface(name: str, x: FloatLike, y: FloatLike, heights: FloatLike, tint: Any, cell: FloatLike | None) -> Layer:
    """z = heights[i, j] over (x[i], y[j])."""
    gx, gy = numbers("x", x, ("n",)), numbers("y", y, ("m",))
    z = numbers("heights", heights, (len(gx), len(gy)))
    for axis, grid in (("x", gx), ("y", gy)):
        if len(grid) < 2 or not (np.diff(grid) > 0).all():
            raise InputError(f"{axis}: wanted two or more increasing numbers.")
    lines = max(np.diff(gx).max(), np.diff(gy).max()) if cell is None else numbers("cell", cell, ())
    entry = {
        "form": "surface",
        "kind": "terrain",
        "name": name,
        "swatch": hexadecimal(color(tint)),
        "cell": float(lines),
    }
    low, high = np.array([gx[0], gy[0], z.min()]), np.array([gx[-1], gy[-1], z.max()])
    return Layer(entry, {"x": gx, "y": gy, "z": z}, (), [], low, high)


def boxes(name: str, centers: FloatLike, sizes: FloatLike, rotations: Any, tint: Any, opacity: FloatLike) -> Layer:
    """Fixed boxes."""
    p = numbers("centers", centers, ("n", 3))
    s = numbers("sizes", sizes, p.shape)
    R = np.broadcast_to(np.eye(3), (len(p), 3, 3))
    if rotations is not None:
        R = numbers("rotations", rotations, (len(p), 3, 3))
        check_rotations("rotations", R)
    if s.min() <= 0:
        raise InputError(f"sizes: must be positive, the smallest is {s.min():g} m.")
    rgb = color(tint)
    solids = [Shape(-1, "box", p[i], R[i], s[i], (*rgb, 1.0)) for i in range(len(p))]
    alpha = [fraction("opacity", opacity)]
    still = Clock(None, np.zeros(1, dtype=int))
    return bodies("thing", name, hexadecimal(rgb), np.zeros((1, 1, 0, 7)), still, solids, opacity=alpha)


def spheres(name: str, centers: np.ndarray, radius: FloatLike, clock: Clock, tint: Any, opacity: FloatLike) -> Layer:
    """Balls at centers (steps, n, 3)."""
    p = centers[clock.keep]
    samples = np.concatenate([p, np.broadcast_to([1.0, 0.0, 0.0, 0.0], (*p.shape[:2], 4))], axis=-1)
    size, rgb = np.array([float(numbers("radius", radius, ())), 0, 0]), color(tint)
    if size[0] <= 0:
        raise InputError(f"radius: must be positive, given {size[0]:g} m.")
    solids = [Shape(i, "sphere", np.zeros(3), np.eye(3), size, (*rgb, 1.0)) for i in range(p.shape[1])]
    alpha = [fraction("opacity", opacity)]
    return bodies("thing", name, hexadecimal(rgb), samples[:, None], clock, solids, opacity=alpha)


def ground(height: FloatLike, normal: FloatLike, point: FloatLike | None, style: str, cell: FloatLike | None) -> dict:
    """An endless plane."""
    if style not in GROUND_STYLES:
        raise InputError(f"style: wanted one of {listing(GROUND_STYLES)}, given {style!r}.")
    n = numbers("normal", normal, (3,))
    if not n[2] > 1e-3 * np.linalg.norm(n):
        raise InputError(f"normal: must point upwards, given {n.tolist()}.")
    n = n / np.linalg.norm(n)
    at = [0.0, 0.0, float(numbers("height", height, ()))] if point is None else numbers("point", point, (3,)).tolist()
    # the x axis of the grid stays above the world's x axis
    x = np.array([n[2], 0.0, -n[0]]) / np.hypot(n[0], n[2])
    return {
        "name": "ground",
        "point": at,
        "quaternion": quaternion(np.stack([x, np.cross(n, x), n], axis=1)).tolist(),
        "style": style,
        "cell": None if cell is None else float(numbers("cell", cell, ())),
        "visible": True,
        "level": bool(n[2] > 0.9999),
    }


def fraction(name: str, value: FloatLike, count: int | None = None) -> Any:
    """A number in 0 .. 1, or a list of `count` of them from one or as many."""
    array = numbers(name, value, *(((),) if count is None else ((), (count,))))
    if array.min() < 0 or array.max() > 1:
        raise InputError(f"{name}: between 0 and 1, given {array.min():g} .. {array.max():g}.")
    return float(array) if count is None else [float(x) for x in np.broadcast_to(array, (count,))]
