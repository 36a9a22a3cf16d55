"""What users hand to a scene, checked and turned into NumPy arrays: numbers, times, colours; and rotations as quaternions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn.errors import FloatLike, InputError, unknown_name

COLORS = {
    "blue": "#2f6fde", "orange": "#f2711c", "green": "#1f9d61", "red": "#d93a3a", "purple": "#7a51d1", "teal": "#0e97a7",
    "yellow": "#e5a50a", "pink": "#d6459b", "grey": "#8a94a3", "dark": "#3a4350", "white": "#f4f5f7", "black": "#16191d",
}  # fmt: skip


def numbers(name: str, value: FloatLike, *shapes: Sequence[str | int]) -> np.ndarray:
    """A finite float array of one of the shapes, whose entries are sizes or, for any size, names: `("steps", "n", 3)`.

    **Raises:** `InputError` that gives the wanted and the given shape, or where the first number that is not finite stands.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "V":
            # bfloat16 and its kin
            array = array.astype(np.float64)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"dtype {array.dtype}")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: wanted numbers, given {type(value).__name__} ({error}).") from None
    array = np.asarray(array, dtype=np.float64)

    def fits(shape: Sequence[str | int]) -> bool:
        return len(shape) == array.ndim and all(
            isinstance(s, str) or s == n for s, n in zip(shape, array.shape, strict=True)
        )

    match = next((shape for shape in shapes if fits(shape)), None)
    if match is None:
        wanted = " or ".join(
            "(" + ", ".join(str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")" for shape in shapes
        )
        raise InputError(f"{name}: wanted shape {wanted}, given shape {array.shape}.")
    if any(n == 0 and isinstance(s, str) for s, n in zip(match, array.shape, strict=True)):
        raise InputError(f"{name}: is empty, shape {array.shape}.")
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        where = ", ".join(str(i) for i in bad[0])
        raise InputError(
            f"{name}: {len(bad)} of {array.size} numbers are not finite, the first is {name.split()[0]}[{where}]. "
            "Of a rollout that diverged, show the steps before."
        )
    return array


def time_base(name: str, steps: int, times: FloatLike | None, timestep: FloatLike | None) -> np.ndarray | None:
    """(steps,) times in s, strictly increasing; None for what does not move (one step, no time given).

    **Raises:** `InputError` for a missing time, both at once, another length, or times that do not increase.
    """
    if times is not None and timestep is not None:
        raise InputError(f"{name}: give times or timestep, not both.")
    if timestep is not None:
        step = float(numbers("timestep", timestep, ()))
        if step <= 0:
            raise InputError(f"{name}: timestep must be positive, given {step} s.")
        return np.arange(steps) * step
    if times is None:
        if steps == 1:
            return None
        raise InputError(f"{name}: {steps} steps need their times: times=(steps,) in s, or timestep=.")
    array = numbers("times", times, ("steps",))
    if len(array) != steps:
        raise InputError(f"{name}: {steps} steps, but {len(array)} times; they must be equally many.")
    if steps > 1 and not (np.diff(array) > 0).all():
        i = int(np.argmin(np.diff(array) > 0))
        raise InputError(
            f"{name}: times must increase, but times[{i}] = {array[i]:g} and times[{i + 1}] = {array[i + 1]:g}."
        )
    return array


def picked(times: np.ndarray | None, rate: float) -> np.ndarray:
    """Indices of the samples to keep: the nearest ones to a clock of `rate` per second, with the first and the last one."""
    if times is None:
        return np.zeros(1, dtype=int)
    wanted = round((times[-1] - times[0]) * rate) + 1
    if wanted >= len(times):
        return np.arange(len(times))
    clock = np.linspace(times[0], times[-1], max(wanted, 2))
    right = np.clip(np.searchsorted(times, clock), 1, len(times) - 1)
    nearer_left = clock - times[right - 1] < times[right] - clock
    return np.unique(right - nearer_left)


def color(value: Any, name: str = "color") -> tuple[float, float, float]:
    """Red, green, blue in 0 .. 1 from a name of `COLORS`, "#rrggbb" or three numbers.

    **Raises:** `InputError`, `UnknownNameError`.
    """
    if isinstance(value, str):
        text = COLORS.get(value, value)
        if not text.startswith("#"):
            raise unknown_name("color", value, COLORS)
        digits = text[1:] if len(text) == 7 else "".join(c + c for c in text[1:])
        try:
            if len(digits) != 6:
                raise ValueError
            r, g, b = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
        except ValueError:
            raise InputError(f"{name}: wanted '#rrggbb', given {value!r}.") from None
        return r, g, b
    r, g, b = numbers(name, value, (3,))
    if min(r, g, b) < 0 or max(r, g, b) > 1:
        raise InputError(f"{name}: red, green and blue are between 0 and 1, given {(float(r), float(g), float(b))}.")
    return float(r), float(g), float(b)


def colors(value: Any, count: int, name: str = "color") -> list[tuple[float, float, float]]:
    """One colour for all of `count`, or a sequence of `count` colours."""
    single = isinstance(value, str) or (
        len(value) == 3 and all(np.ndim(x) == 0 and not isinstance(x, str) for x in value)
    )
    if single:
        return [color(value, name)] * count
    if len(value) != count:
        raise InputError(f"{name}: wanted one colour or {count}, given {len(value)}.")
    return [color(item, name) for item in value]


def hexadecimal(rgb: Sequence[float]) -> str:
    """`"#rrggbb"`."""
    return "#" + "".join(f"{round(255 * min(max(x, 0.0), 1.0)):02x}" for x in rgb[:3])


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(..., 4) unit quaternions (w, x, y, z) of rotation matrices (..., 3, 3), from the largest of the four components
    (S. W. Shepperd, Quaternion from rotation matrix, 1978).
    """
    R = np.asarray(rotation, dtype=np.float64)
    trace = R[..., 0, 0] + R[..., 1, 1] + R[..., 2, 2]
    # four times the products of the quaternion with itself, row k being the quaternion scaled by its component k
    K = np.empty((*R.shape[:-2], 4, 4))
    K[..., 0, 0] = 1 + trace
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        K[..., i + 1, i + 1] = 1 + 2 * R[..., i, i] - trace
        K[..., 0, i + 1] = K[..., i + 1, 0] = R[..., k, j] - R[..., j, k]
        K[..., i + 1, j + 1] = K[..., j + 1, i + 1] = R[..., j, i] + R[..., i, j]
    best = np.argmax(np.diagonal(K, axis1=-2, axis2=-1), axis=-1)
    q = np.take_along_axis(K, best[..., None, None], axis=-2)[..., 0, :]
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def check_rotations(name: str, rotation: np.ndarray) -> None:
    """Raises `InputError` unless all matrices (..., 3, 3) are rotations, to 1e-3."""
    if rotation.size == 0:
        return
    error = np.abs(np.swapaxes(rotation, -1, -2) @ rotation - np.eye(3)).max(axis=(-1, -2))
    if error.max() > 1e-3 or np.linalg.det(rotation).min() < 0:
        worst = tuple(int(i) for i in np.unravel_index(np.argmax(error), error.shape))
        raise InputError(
            f"{name}: not all are rotations; R^T R is off the identity by {error.max():.2g} at index {worst}."
        )


def nice(value: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten, from below."""
    power = 10.0 ** np.floor(np.log10(max(value, 1e-9)))
    return float(next((m for m in (5.0, 2.0) if m * power <= value * 1.0001), 1.0) * power)
