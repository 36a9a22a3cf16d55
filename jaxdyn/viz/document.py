"""From the parts of a scene to the data of its page: one time scale, bounds, sizes of what is drawn, a limit on the size
of the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdyn.errors import InputError, warn
from jaxdyn.viz.html import Archive
from jaxdyn.viz.layers import AXES_COLOR, Layer
from jaxdyn.viz.values import nice

# Bytes of all arrays that follow the time, before base64: pages stay below 5 MB.
MOST_BYTES = 3_000_000
# Below this many pictures a second fast motion cannot be followed any more.
FEWEST_PER_SECOND = 12


def assemble(
    layers: list[Layer], scene: dict[str, Any], labels: list[dict], readouts: list[dict], ground: dict | None
) -> tuple[dict, Archive]:
    """The JSON data of the page and its arrays. `scene`: settings, camera and events."""
    archive, meshes = Archive(), []
    low, high = _bounds(layers)
    radius = max(float(np.linalg.norm(high - low)) / 2, 1e-3)
    size = max((layer.size for layer in layers), default=0.0) or radius
    floor = _ground(ground, low, size, radius)
    if floor["level"]:
        low = np.minimum(low, [np.inf, np.inf, floor["point"][2]])
    numbers = [Layer({}, item["arrays"], tuple(item["arrays"])) for item in readouts]
    stride = _stride([*layers, *numbers])

    entries = []
    for layer in layers:
        entry = dict(layer.entry)
        if layer.shapes or entry["form"] == "bodies":
            entry["shapes"] = [shape.entry(meshes) for shape in layer.shapes]
        if entry["form"] == "forces":
            entry |= _arrows(entry["scale"], layer.arrays["samples"], size)
        if entry["form"] == "frames":
            entry["size"] = entry["size"] or 0.3 * size
        entries.append(entry | _archived(archive, layer, stride))
    robots = [i for i, layer in enumerate(layers) if layer.entry["kind"] == "robot"]
    if robots:
        entries.append({**_MORE["frames"], "robots": robots, "size": 0.16 * size})
    if labels:
        entries.append({**_MORE["labels"], "items": [_label(archive, label, size) for label in labels]})

    moving = [layer.times for layer in [*layers, *numbers] if layer.times is not None and len(layer.times) > 1]
    start, end = (float(min(t[0] for t in moving)), float(max(t[-1] for t in moving))) if moving else (0.0, 0.0)
    for event in scene["events"]:
        if not start <= event["time"] <= end:
            raise InputError(
                f"time stamp {event['text']!r} at {event['time']:g} s: the scene goes from {start:g} to {end:g} s."
            )
    data = {
        **scene,
        "camera": _camera(scene["camera"], high - low),
        "events": sorted(scene["events"], key=lambda event: event["time"]),
        "duration": [start, end],
        "frames": max((len(_thinned(t, stride)) for t in moving), default=1),
        "bounds": [low.tolist(), high.tolist()],
        "robotSize": size,
        "ground": floor,
        "layers": entries,
        "meshes": [archive.add_mesh(mesh) for mesh in meshes],
        "readouts": [
            {key: value for key, value in item.items() if key != "arrays"} | _archived(archive, layer, stride)
            for item, layer in zip(readouts, numbers, strict=True)
        ],
    }
    return data, archive


_MORE = {
    "frames": {"form": "bodyFrames", "kind": "frames", "name": "body frames", "swatch": AXES_COLOR, "visible": False},
    "labels": {"form": "labels", "kind": "labels", "name": "labels", "swatch": "#98a2ae"},
}


def _bounds(layers: list[Layer]) -> tuple[np.ndarray, np.ndarray]:
    lows = [layer.low for layer in layers if layer.low is not None]
    highs = [layer.high for layer in layers if layer.high is not None]
    return (np.min(lows, axis=0), np.max(highs, axis=0)) if lows else (np.full(3, -0.5), np.full(3, 0.5))


def _archived(archive: Archive, layer: Layer, stride: int) -> dict[str, list]:
    return {
        name: archive.add(_thinned(array, stride) if name in layer.timed else array)
        for name, array in layer.arrays.items()
    }


def _label(archive: Archive, label: dict, size: float) -> dict:
    item = {key: value for key, value in label.items() if key != "arrays"}
    if "lift" in item:
        item["lift"] = [0.0, 0.0, 0.75 * size if item["lift"] is None else item["lift"]]
    return item | {name: archive.add(array) for name, array in label["arrays"].items()}


def _camera(camera: dict[str, Any], extent: np.ndarray) -> dict[str, Any]:
    """Angles in radians; seen from higher up where much stands side by side."""
    elevation = camera["elevation"]
    if elevation is None:
        flat = float(max(extent[:2])) / max(float(extent[2]), 1e-6)
        elevation = 15 + 11 * float(np.clip((flat - 1.5) / 5, 0, 1))
    return {**camera, "azimuth": float(np.deg2rad(camera["azimuth"])), "elevation": float(np.deg2rad(elevation))}


def _stride(layers: list[Layer]) -> int:
    """Every how manieth sample is kept, so that the arrays do not exceed their limit."""
    total = sum(4 * layer.arrays[name].size for layer in layers for name in layer.timed)
    stride = max(1, int(np.ceil(total / MOST_BYTES)))
    moving = [layer.times for layer in layers if layer.times is not None and len(layer.times) > 1]
    if stride == 1 or not moving:
        return stride
    longest = max(1, int(max((len(t) - 1) / (t[-1] - t[0]) for t in moving) / FEWEST_PER_SECOND))
    if stride > longest:
        size = total / longest * 4 / 3 / 1e6
        warn(
            f"this scene makes a page of {size:.0f} MB, even with only {FEWEST_PER_SECOND} pictures a second; "
            "show fewer environments or a shorter time."
        )
    return min(stride, longest)


def _thinned(array: np.ndarray, stride: int) -> np.ndarray:
    """Every so manieth element along the first axis, and the last."""
    if stride == 1 or len(array) < 3:
        return array
    return array[np.unique(np.append(np.arange(0, len(array), stride), len(array) - 1))]


def _ground(ground: dict | None, low: np.ndarray, size: float, radius: float) -> dict[str, Any]:
    """The ground that was added, or a floor beneath everything: it says where up is, and catches the shadows."""
    if ground is None:
        level = 0.0 if abs(low[2]) < 0.15 * size else float(low[2]) - 0.02 * size
        still = [1.0, 0.0, 0.0, 0.0]
        ground = {"name": "floor", "point": [0.0, 0.0, level], "quaternion": still, "style": "grid", "level": True}
    cell = ground.get("cell") or nice(max(0.55 * size, 0.12 * radius))
    return {**ground, "kind": "ground", "cell": cell}


def _arrows(scale: float | None, samples: np.ndarray, size: float) -> dict[str, Any]:
    """Length per newton, thickness, and the least force that is drawn."""
    force = np.linalg.norm(samples[..., 3:], axis=-1)
    peak = float(force.max())
    present = force[force > 1e-6 * peak]
    usual = float(np.quantile(present, 0.95)) if present.size else 1.0
    return {
        "scale": scale or 0.8 * size / usual,
        "radius": 0.011 * size,
        "threshold": max(0.02 * usual, 1e-9),
        "detail": f"peak {peak:.3g} N",
    }
