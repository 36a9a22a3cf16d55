"""`Scene`: robots, ground, contact forces and more, in motion, as one HTML page that needs no network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.configuration import Configuration
from jaxdyn.contact.terrain import FlatTerrain, PlaneTerrain, Terrain
from jaxdyn.errors import FloatLike, InputError, listing, unknown_name
from jaxdyn.model.manifold import neutral
from jaxdyn.model.model import Model
from jaxdyn.viz import document, html, layers
from jaxdyn.viz.layers import Clock, Layer, fraction
from jaxdyn.viz.poses import trajectory
from jaxdyn.viz.shapes import MeshLibrary, robot_shapes, typical_color
from jaxdyn.viz.values import colors, hexadecimal, numbers

THEMES = ("light", "dark")


@dataclasses.dataclass(frozen=True)
class _Robot:
    index: int
    model: Model
    poses: np.ndarray
    offsets: np.ndarray
    clock: Clock


class Scene:
    """A picture in motion of robots and of what acts on them.

    ```python
    scene = Scene("Drop test")
    scene.add_robot(model, q, times=t)                       # q: (steps, nq) or (environments, steps, nq)
    scene.add_contact_forces(points, forces, robot="robot")  # each (steps, n, 3), N in world axes
    scene.add_ground()
    scene.save("drop.html")                                  # in a notebook: just `scene`
    ```

    A scene is a document that is put together, not a pytree: the `add_` methods change it and return it. Positions
    are in world axes, in m; times in s; forces in N; the world's z axis points up.

    **Arguments:** `title`, `subtitle`: plain text; `theme`: `"light"` or `"dark"` (the page can change it); `rate`:
    samples per second that are kept of each motion, between which the page interpolates; fewer where the file would
    exceed about 5 MB; `speed`: 0.25 is slow motion; `autoplay`: starts by itself; `height`: of the frame in a
    notebook, pixels.
    """

    def __init__(
        self,
        title: str = "Scene",
        *,
        subtitle: str = "",
        theme: str = "light",
        rate: FloatLike = 60.0,
        speed: FloatLike = 1.0,
        autoplay: bool = True,
        height: int = 540,
    ) -> None:
        if theme not in THEMES:
            raise InputError(f"theme: wanted one of {listing(THEMES)}, given {theme!r}.")
        for name, value in (("rate", rate), ("speed", speed), ("height", height)):
            if not numbers(name, value, ()) > 0:
                raise InputError(f"{name}: must be positive, given {value}.")
        self._settings = {
            "title": str(title),
            "subtitle": str(subtitle),
            "theme": theme,
            "speed": float(speed),
            "autoplay": bool(autoplay),
            "follow": False,
        }
        self._camera: dict[str, Any] = {"azimuth": 40.0, "elevation": None, "distance": None, "target": None}
        self._rate = float(rate)
        self._height = int(height)
        self._layers: list[Layer] = []
        self._robots: dict[str, _Robot] = {}
        self._labels: list[dict] = []
        self._readouts: list[dict] = []
        self._events: list[dict] = []
        self._ground: dict | None = None
        self._meshes = MeshLibrary()

    # Robots

    def add_robot(
        self,
        model: Model,
        q: FloatLike | Configuration | None = None,
        *,
        poses: Any = None,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        name: str | None = None,
        color: Any = None,
        opacity: FloatLike = 1.0,
        offset: FloatLike = (0.0, 0.0, 0.0),
        spacing: FloatLike | None = None,
        shapes: str = "visual",
    ) -> Scene:
        """Adds a robot, or many copies of it, one for each environment.

        Main arguments:

        - `model`: one robot, not a batch of models; its shapes are drawn.
        - `q`: configurations, (nq,), (steps, nq) or (environments, steps, nq), or a `Configuration` with such leading
          axes. Default: the neutral one.
        - `times`: (steps,), increasing; or `timestep`, their distance.

        Other arguments:

        - `poses`: instead of `q`, the poses of all bodies: an `SE3` or `Kinematics` (rotation (..., n_bodies, 3, 3),
          translation (..., n_bodies, 3)), or such a pair, with the leading axes of `q`.
        - `name`: for the legend and to refer to it; default `"robot"`, then `"robot 2"`.
        - `color`: of all its shapes instead of their own: a name (one of `jaxdyn.viz.values.COLORS`), `"#rrggbb"`,
          three numbers in 0 .. 1, or one such colour for each environment.
        - `opacity`: in 0 .. 1, one or one for each environment; a robot that is below 1 everywhere counts as a ghost
          in the legend.
        - `offset`: (3,) or (environments, 3), added to all positions. `spacing`: puts the environments on a square
          grid of this distance.
        - `shapes`: `"visual"`, `"collision"` or `"skeleton"`; a body that has no such shape gets another.

        **Raises:** `InputError` for wrong shapes, numbers that are not finite, times that do not fit. **Warns** of
        meshes that cannot be read.
        """
        if model.gravity.ndim != 1:
            batch = model.gravity.shape[:-1]
            raise InputError(f"model: wanted one robot, given a batch of shape {batch}; pass one of them.")
        if q is not None and poses is not None:
            raise InputError("add_robot: give q or poses, not both.")
        name = self._free_name(name, "robot")
        if q is None and poses is None:
            q = neutral(model)
        samples, clock = trajectory(model, q, poses, times, timestep, self._rate, name)
        environments = samples.shape[1]
        shift = numbers("offset", offset, (3,), (environments, 3))
        offsets = np.broadcast_to(shift, (environments, 3)) + _grid(environments, spacing)
        alpha = fraction("opacity", opacity, environments)
        tints = None if color is None else colors(color, environments)
        solids = robot_shapes(model, shapes, self._meshes)
        kind = "ghost" if max(alpha) < 1 else "robot"
        swatch = hexadecimal(tints[0] if tints else typical_color(solids))
        options = {"offsets": offsets, "opacity": alpha, "colors": tints}
        self._robots[name] = _Robot(len(self._layers), model, samples, offsets, clock)
        self._layers.append(layers.bodies(kind, name, swatch, samples, clock, solids, **options))
        return self

    # What acts on robots, and what they leave behind

    def add_contact_forces(
        self,
        points: FloatLike,
        forces: FloatLike,
        *,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        robot: str | None = None,
        name: str | None = None,
        color: Any = "orange",
        scale: FloatLike | None = None,
    ) -> Scene:
        """Adds forces as arrows that start where they act.

        **Arguments:** `points`, `forces`: (n, 3), (steps, n, 3) or (environments, steps, n, 3); `times` or
        `timestep`, by default those of `robot`; `robot`: name of the robot whose offsets (of its environments) are
        added to the points; `scale`: length of the arrows, m/N, by default such that usual forces are about as long
        as the robot. Forces below 2 % of the usual ones are not drawn.
        """
        p = numbers("points", points, ("n", 3), ("steps", "n", 3), ("environments", "steps", "n", 3))
        f = numbers("forces", forces, p.shape)
        p, f = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (p, f))
        p, clock = self._placed("contact forces", p, times, timestep, robot)
        self._layers.append(layers.forces(self._free_name(name, "contact forces"), p, f, clock, color, scale))
        return self

    def add_trace(
        self,
        points: FloatLike | None = None,
        *,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        robot: str | None = None,
        body: str | None = None,
        name: str | None = None,
        color: Any = "blue",
        width: FloatLike = 2.5,
    ) -> Scene:
        """Adds the path of a point as a line; with times, what lies ahead is drawn paler.

        **Arguments:** `points`: (steps, 3) or (environments, steps, 3); or, instead, `robot` and `body` (names): the
        path of that body's origin; `robot` with `points` as in `add_contact_forces`; `color`: one, or one for each
        environment; `width`: pixels.
        """
        if points is None:
            if robot is None or body is None:
                raise InputError("add_trace: give points, or robot= and body=.")
            owner = self._robot(robot)
            p = owner.poses[:, :, owner.model.body(body), :3].swapaxes(0, 1)
            times, timestep = owner.clock.times, None
        else:
            p = numbers("points", points, ("steps", 3), ("environments", "steps", 3))
            p = p if p.ndim == 3 else p[None]
        default = "trace" if body is None else f"path of {body}"
        if times is None and timestep is None and robot is None:
            clock = Clock(None, np.arange(p.shape[1]))
        else:
            placed, clock = self._placed("trace", p[:, :, None], times, timestep, robot)
            p = placed[:, :, 0]
        self._layers.append(layers.traces(self._free_name(name, default), p, clock, color, width))
        return self

    def add_frames(
        self,
        poses: Any,
        *,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        name: str | None = None,
        size: FloatLike | None = None,
    ) -> Scene:
        """Adds coordinate axes (x red, y green, z blue), such as targets.

        **Arguments:** `poses`: an `SE3` or a pair (rotation, translation) of shapes (n, 3, 3), (n, 3), or with steps
        before them; `size`: length of the axes, m.
        """
        self._layers.append(layers.frames(self._free_name(name, "frames"), poses, times, timestep, self._rate, size))
        return self

    def add_label(
        self,
        text: str,
        position: FloatLike | None = None,
        *,
        times: FloatLike | None = None,
        robot: str | None = None,
        body: str | None = None,
        environment: int = 0,
        lift: FloatLike | None = None,
    ) -> Scene:
        """Adds a text at a point of the world, (3,), or (steps, 3) with `times`; or above a body of a robot.

        **Arguments:** `robot`, `body` (default: its first), `environment`; `lift`: m above the origin of the body.
        """
        if position is not None:
            p = numbers("position", position, (3,), ("steps", 3)).reshape(-1, 3)
            clock = Clock.of("label", len(p), times, None, self._rate)
            self._labels.append({"text": str(text), "arrays": clock.arrays(points=p[clock.keep])})
            return self
        if robot is None:
            raise InputError("add_label: give a position, or robot=.")
        owner = self._robot(robot)
        if not 0 <= environment < len(owner.offsets):
            raise InputError(f"environment: {robot!r} has {len(owner.offsets)}, given {environment}.")
        index = owner.model.body(body) if body is not None else min(0, owner.model.n_bodies - 1)
        self._labels.append(
            {
                "text": str(text),
                "robot": owner.index,
                "environment": environment,
                "body": index,
                "lift": None if lift is None else float(numbers("lift", lift, ())),
                "arrays": {},
            }
        )
        return self

    def add_time_stamp(self, time: FloatLike, text: str) -> Scene:
        """Marks a moment (s) on the time slider."""
        self._events.append({"time": float(numbers("time", time, ())), "text": str(text)})
        return self

    def add_readout(
        self,
        name: str,
        values: FloatLike,
        *,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        unit: str = "",
        digits: int = 3,
    ) -> Scene:
        """Shows a number that changes in time, `values` (steps,), below the title."""
        v = numbers(f"values of {name!r}", values, ("steps",))
        clock = Clock.of(f"readout {name!r}", len(v), times, timestep, self._rate)
        arrays = {"times": np.zeros(1)} | clock.arrays(values=v[clock.keep])
        self._readouts.append({"name": str(name), "unit": str(unit), "digits": int(digits), "arrays": arrays})
        return self

    # Surroundings

    def add_ground(
        self,
        height: FloatLike = 0.0,
        *,
        normal: FloatLike = (0.0, 0.0, 1.0),
        point: FloatLike | None = None,
        style: str = "checker",
        cell: FloatLike | None = None,
    ) -> Scene:
        """The ground: an endless plane at a height, or through `point` (3,) with a `normal` (3,).

        Without it, a plain floor is drawn beneath everything. **Arguments:** `style`: `"checker"`, `"grid"` or
        `"plain"`; `cell`: size of its cells, m.
        """
        self._ground = layers.ground(height, normal, point, style, cell)
        return self

    def add_terrain(
        self,
        terrain: Terrain,
        *,
        x: FloatLike | None = None,
        y: FloatLike | None = None,
        name: str | None = None,
    ) -> Scene:
        """The ground of a contact law: a plane as it is, any other shape sampled at the grid `x` (n,), `y` (m,), by
        default the terrain's own."""
        if isinstance(terrain, FlatTerrain):
            return self.add_ground(terrain.level)
        if isinstance(terrain, PlaneTerrain):
            return self.add_ground(normal=terrain.normal, point=terrain.point)
        own = terrain.grid()
        if own is not None:
            x, y = (own[0] if x is None else x), (own[1] if y is None else y)
        if x is None or y is None:
            kind = type(terrain).__name__
            raise InputError(f"add_terrain: a {kind} needs x= and y=, the grid at which its height is sampled.")
        gx, gy = numbers("x", x, ("n",)), numbers("y", y, ("m",))
        points = np.stack(np.meshgrid(gx, gy, [0.0], indexing="ij"), axis=-1).reshape(-1, 3)
        heights = np.asarray(terrain.at(jnp.asarray(points))[2]).reshape(len(gx), len(gy))
        return self.add_heightmap(gx, gy, heights, name=name)

    def add_heightmap(
        self,
        x: FloatLike,
        y: FloatLike,
        heights: FloatLike,
        *,
        name: str | None = None,
        color: Any = "#cfd4db",
        cell: FloatLike | None = None,
    ) -> Scene:
        """A surface z = heights[i, j] over the points (x[i], y[j]); `cell`: distance of the lines on it, m."""
        self._layers.append(layers.surface(self._free_name(name, "terrain"), x, y, heights, color, cell))
        return self

    def add_boxes(
        self,
        centers: FloatLike,
        sizes: FloatLike,
        *,
        rotations: FloatLike | None = None,
        name: str | None = None,
        color: Any = "grey",
        opacity: FloatLike = 1.0,
    ) -> Scene:
        """Fixed boxes: `centers` (n, 3), full `sizes` (n, 3), `rotations` (n, 3, 3)."""
        self._layers.append(layers.boxes(self._free_name(name, "boxes"), centers, sizes, rotations, color, opacity))
        return self

    def add_spheres(
        self,
        centers: FloatLike,
        radius: FloatLike = 0.02,
        *,
        times: FloatLike | None = None,
        timestep: FloatLike | None = None,
        name: str | None = None,
        color: Any = "red",
        opacity: FloatLike = 1.0,
    ) -> Scene:
        """Balls of one radius, such as goals: `centers` (n, 3), or (steps, n, 3) with times."""
        p = numbers("centers", centers, ("n", 3), ("steps", "n", 3))
        p = p if p.ndim == 3 else p[None]
        clock = Clock.of("spheres", len(p), times, timestep, self._rate)
        self._layers.append(layers.spheres(self._free_name(name, "markers"), p, radius, clock, color, opacity))
        return self

    def set_camera(
        self,
        *,
        azimuth: FloatLike | None = None,
        elevation: FloatLike | None = None,
        distance: FloatLike | None = None,
        target: FloatLike | None = None,
        follow: bool | None = None,
    ) -> Scene:
        """Where the picture is seen from at first.

        **Arguments:** `azimuth`: degrees from the x axis; `elevation`: degrees above the horizon; `distance`: m from
        `target` (3,); `follow`: the camera goes with the first robot. What is not given is chosen such that
        everything is in view.
        """
        for key, value in (("azimuth", azimuth), ("elevation", elevation), ("distance", distance)):
            if value is not None:
                self._camera[key] = float(numbers(key, value, ()))
        if target is not None:
            self._camera["target"] = numbers("target", target, (3,)).tolist()
        if follow is not None:
            self._settings["follow"] = bool(follow)
        return self

    # Results

    def to_html(self, path: str | Path | None = None) -> str:
        """The page as text; with `path` also written there, folders included."""
        settings = {**self._settings, "camera": dict(self._camera), "events": self._events}
        parts = document.assemble(self._layers, settings, self._labels, self._readouts, self._ground)
        text = html.page(*parts)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
        return text

    def save(self, path: str | Path) -> Path:
        """Writes the page and returns its path; folders are made."""
        self.to_html(path)
        return Path(path)

    def _repr_html_(self) -> str:
        return html.frame(self.to_html(), self._height, self._settings["title"])

    def __repr__(self) -> str:
        names = [layer.entry["name"] for layer in self._layers]
        return f"Scene({self._settings['title']!r}, {len(names)} layers: {listing(names)})"

    def _free_name(self, name: str | None, default: str) -> str:
        taken = [layer.entry["name"] for layer in self._layers]
        if name is None:
            return next(n for n in (default, *(f"{default} {i}" for i in range(2, 10_000))) if n not in taken)
        if name in taken:
            raise InputError(f"name: there is a {name!r} in this scene already.")
        return name

    def _robot(self, name: str) -> _Robot:
        if name not in self._robots:
            raise unknown_name("robot", name, self._robots)
        return self._robots[name]

    def _placed(
        self, what: str, points: np.ndarray, times: Any, timestep: Any, robot: str | None
    ) -> tuple[np.ndarray, Clock]:
        """Points (environments, steps, n, 3) with the offsets of a robot, and their clock."""
        if robot is not None:
            owner = self._robot(robot)
            if len(points) != len(owner.offsets):
                raise InputError(
                    f"{what}: {len(points)} environments, but {robot!r} has {len(owner.offsets)}; they must be equally many."
                )
            points = points + owner.offsets[:, None, None]
            if times is None and timestep is None and points.shape[1] > 1:
                times = owner.clock.given
        return points, Clock.of(what, points.shape[1], times, timestep, self._rate)


def _grid(environments: int, spacing: FloatLike | None) -> np.ndarray:
    """(environments, 3) offsets on a square grid around the origin."""
    if spacing is None:
        return np.zeros((environments, 3))
    columns = int(np.ceil(np.sqrt(environments)))
    row, column = np.divmod(np.arange(environments), columns)
    place = np.stack([row, column, np.zeros(environments)], axis=1)
    middle = (place.max(axis=0) + place.min(axis=0)) / 2
    return (place - middle) * float(numbers("spacing", spacing, ()))
