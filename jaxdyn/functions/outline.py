"""Outlines of planar polygons as plain numbers: checks, repair, hull, and cutting into convex pieces.

All of this happens in NumPy when a shape is made, never under `jit`. An outline is an array (n, 3) of corners in order;
the right-hand rule gives its normal.
"""

from __future__ import annotations

import numpy as np

from jaxdyn.errors import FloatLike, InputError, warn

#: Allowed distance from the plane, per diameter, and sine of a turn to the wrong side.
TOLERANCE = 1e-6


def as_outline(points: FloatLike, name: str = "points") -> np.ndarray:
    """Corners (n, 3) as doubles.

    **Raises:** `InputError` for another shape, no corner, or numbers that are not finite.
    """
    try:
        corners = np.asarray(points, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: cannot be read as corners (n, 3): {error}") from None
    if corners.size == 0:
        raise InputError(f"{name}: a shape needs at least one corner, given none.")
    if corners.ndim != 2 or corners.shape[1] != 3:
        raise InputError(f"{name}: wanted corners of shape (n, 3), given shape {corners.shape}.")
    if not np.isfinite(corners).all():
        raise InputError(f"{name}: corner {int(np.argmin(np.isfinite(corners).all(axis=1)))} is not finite.")
    return corners


def newell(corners: np.ndarray) -> np.ndarray:
    """Twice the area vector (3,) of a polygon: the sum of P_i x P_(i+1). Its direction is the normal."""
    p = corners - corners.mean(axis=0)
    return np.cross(p, np.roll(p, -1, axis=0)).sum(axis=0)


def check_outline(points: FloatLike, *, hull: bool = False, simplify: bool = False) -> np.ndarray:
    """The corners (n, 3) of a point, a segment or a convex polygon, after all checks.

    **Arguments:** `hull`: take the convex hull of the corners; `simplify`: leave out corners between two edges of one
    line.

    | corners | result |
    |---|---|
    | none; not finite; not (n, 3) | error |
    | one; two different ones | a point; a segment |
    | a corner that repeats the one before | left out, with a `JaxdynWarning`; error if fewer than three remain of three or more |
    | the first three on one line | error: the first two edges decide the frame of the shape |
    | three others on one line | kept; left out if `simplify` |
    | not in one plane, by more than 1e-6 of the diameter | error |
    | a turn to the wrong side, or more than one turn altogether | error; see `hull`, and `split_outline` |
    | clockwise or counter-clockwise | both: the order decides the normal, and is never changed |

    **Raises:** `InputError`.
    """
    corners = as_outline(points)
    if len(corners) > 2 and hull:
        corners = convex_hull(corners)
    corners = _without_repetitions(corners)
    if len(corners) <= 2:
        return corners
    first, second = corners[1] - corners[0], corners[2] - corners[1]
    if np.linalg.norm(np.cross(first, second)) <= TOLERANCE * np.linalg.norm(first) * np.linalg.norm(second):
        raise InputError(
            "points: the first three corners lie on one line; start the outline at another corner, so that its first two "
            "edges span the plane."
        )
    normal = _normal(corners)
    if (turned := _wrong_turn(corners, normal)) is not None:
        raise InputError(
            f"points: the outline is not convex at corner {turned}, {corners[turned]}. convex_hull=True takes the hull of the "
            "corners; split_outline(points) cuts the outline into convex pieces."
        )
    if _turns(corners, normal) != 1:
        raise InputError("points: the outline crosses itself. convex_hull=True takes the hull of the corners.")
    if simplify:
        corners = _without_straight_corners(corners)
    return corners


def _without_repetitions(corners: np.ndarray) -> np.ndarray:
    if len(corners) == 1:
        return corners
    size = np.ptp(corners, axis=0).max()
    step = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
    keep = step > TOLERANCE**2 * size
    # two corners that are one: the rule above finds both repeated
    if keep.all():
        return corners
    if size == 0 or keep.sum() < min(len(corners), 3):
        raise InputError(
            f"points: the {len(corners)} corners are not different; {int(keep.sum())} edges have a length."
        )
    warn(f"points: corners {np.flatnonzero(~keep).tolist()} repeat the one before and are left out.")
    return corners[keep]


def _without_straight_corners(corners: np.ndarray) -> np.ndarray:
    before, after = corners - np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0) - corners
    sine = np.linalg.norm(np.cross(before, after), axis=1)
    return corners[sine > TOLERANCE * np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)]


def _normal(corners: np.ndarray) -> np.ndarray:
    """Unit normal; raises `InputError` where there is none, or if the corners leave its plane."""
    area = newell(corners)
    diameter = max(np.linalg.norm(corners - c, axis=1).max() for c in corners)
    if np.linalg.norm(area) <= TOLERANCE * diameter**2:
        raise InputError("points: the corners enclose no area (they lie on one line, or the outline crosses itself).")
    normal = area / np.linalg.norm(area)
    off = np.abs((corners - corners.mean(axis=0)) @ normal)
    if off.max() > TOLERANCE * diameter:
        raise InputError(
            f"points: the corners do not lie in one plane; corner {int(off.argmax())} is {off.max():.3g} m off it, "
            f"allowed are {TOLERANCE * diameter:.1g} m."
        )
    return normal


def _sines(corners: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Sine of the turn at each corner, positive to the left as seen against the normal."""
    before, after = corners - np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0) - corners
    return np.cross(before, after) @ normal / (np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1))


def _wrong_turn(corners: np.ndarray, normal: np.ndarray) -> int | None:
    sines = _sines(corners, normal)
    return int(sines.argmin()) if sines.min() < -TOLERANCE else None


def _turns(corners: np.ndarray, normal: np.ndarray) -> int:
    """How often the outline goes round."""
    before, after = corners - np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0) - corners
    angles = np.arctan2(np.cross(before, after) @ normal, (before * after).sum(axis=1))
    return round(abs(angles.sum()) / (2 * np.pi))


def _plane_axes(corners: np.ndarray) -> np.ndarray:
    """Two unit vectors (2, 3) that span the plane of the corners, right-handed with the outline's normal."""
    centred = corners - corners.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    if len(sizes) < 2 or sizes[1] <= TOLERANCE * max(sizes[0], np.finfo(float).tiny):
        raise InputError("points: the corners lie on one line.")
    if len(sizes) > 2 and sizes[2] > TOLERANCE * sizes[0]:
        raise InputError(f"points: the corners do not lie in one plane; they leave it by about {sizes[2]:.3g} m.")
    u, w = axes[0], axes[1]
    if np.cross(u, w) @ newell(corners) < 0:
        w = -w
    return np.stack([u, w])


def convex_hull(points: FloatLike) -> np.ndarray:
    """Corners (m, 3) of the convex hull of points (n, 3) of one plane, m <= n, without corners on straight edges. The normal
    is that of the order in which the points are given.

    **Raises:** `InputError` if the points lie on one line, or not in one plane.

    Source: A. M. Andrew, Another efficient algorithm for convex hulls in two dimensions, 1979.
    """
    corners = as_outline(points)
    if len(corners) < 3:
        return corners
    flat = (corners - corners.mean(axis=0)) @ _plane_axes(corners).T
    order = np.lexsort((flat[:, 1], flat[:, 0]))
    size = np.ptp(flat, axis=0).max()

    def chain(indices: np.ndarray) -> list[int]:
        kept: list[int] = []
        for i in indices:
            while (
                len(kept) > 1 and _cross(flat[kept[-1]] - flat[kept[-2]], flat[i] - flat[kept[-1]]) <= 1e-12 * size**2
            ):
                kept.pop()
            kept.append(int(i))
        return kept[:-1]

    hull = chain(order) + chain(order[::-1])
    # start at the first of the given points that is a corner
    start = hull.index(min(hull))
    return corners[hull[start:] + hull[:start]]


def _cross(a: np.ndarray, b: np.ndarray) -> float:
    return float(a[0] * b[1] - a[1] * b[0])


def split_outline(points: FloatLike) -> list[np.ndarray]:
    """Convex pieces, each (m, 3), of a simple polygon (n, 3), which they cover without overlap; the same normal.

    At most four times as many pieces as necessary: ears are cut off, then diagonals that no piece needs are left out.

    **Raises:** `InputError` if the outline crosses itself or does not lie in one plane.

    Source: S. Hertel, K. Mehlhorn, Fast triangulation of simple polygons, 1983.
    """
    corners = _without_repetitions(as_outline(points))
    if len(corners) < 3:
        raise InputError(f"points: an outline has three corners at least, given {len(corners)}.")
    flat = (corners - corners.mean(axis=0)) @ _plane_axes(corners).T
    _normal(corners)
    _require_simple(flat)
    pieces = _merge(flat, _ears(flat))
    return [corners[piece] for piece in pieces]


def _require_simple(flat: np.ndarray) -> None:
    n = len(flat)
    for i in range(n):
        for j in range(i + 1, n):
            if j in (i, (i + 1) % n) or i == (j + 1) % n:
                continue
            a, b, c, d = flat[i], flat[(i + 1) % n], flat[j], flat[(j + 1) % n]
            sides = [_cross(b - a, c - a) * _cross(b - a, d - a), _cross(d - c, a - c) * _cross(d - c, b - c)]
            if max(sides) < 0:
                raise InputError(f"points: the outline crosses itself: the edges from corners {i} and {j} do.")


def _ears(flat: np.ndarray) -> list[list[int]]:
    """Triangles of a simple polygon, as indices of its corners."""
    left = list(range(len(flat)))
    triangles: list[list[int]] = []
    while len(left) > 3:
        for k in range(len(left)):
            a, b, c = left[k - 1], left[k], left[(k + 1) % len(left)]
            area = _cross(flat[b] - flat[a], flat[c] - flat[b])
            if area > 0 and not any(_inside(flat, (a, b, c), i) for i in left if i not in (a, b, c)):
                triangles.append([a, b, c])
                del left[k]
                break
        else:
            # only straight corners remain to be cut: they need no triangle
            straight = [k for k in range(len(left)) if _is_straight(flat, left, k)]
            if not straight:
                raise InputError("points: the outline crosses or touches itself.")
            del left[straight[0]]
    triangles.append(left)
    return triangles


def _is_straight(flat: np.ndarray, left: list[int], k: int) -> bool:
    a, b, c = flat[left[k - 1]], flat[left[k]], flat[left[(k + 1) % len(left)]]
    return abs(_cross(b - a, c - b)) <= 1e-12 * np.ptp(flat, axis=0).max() ** 2


def _inside(flat: np.ndarray, triangle: tuple[int, int, int], i: int) -> bool:
    a, b, c = (flat[k] for k in triangle)
    p = flat[i]
    return min(_cross(b - a, p - a), _cross(c - b, p - b), _cross(a - c, p - c)) >= 0


def _merge(flat: np.ndarray, pieces: list[list[int]]) -> list[list[int]]:
    """Joins neighbouring pieces while the union stays convex."""
    merged = True
    while merged:
        merged = False
        for x in range(len(pieces)):
            for y in range(x + 1, len(pieces)):
                union = _union(pieces[x], pieces[y])
                if union and _is_convex(flat[union]):
                    pieces = [p for k, p in enumerate(pieces) if k not in (x, y)] + [union]
                    merged = True
                    break
            if merged:
                break
    return pieces


def _union(first: list[int], second: list[int]) -> list[int]:
    """The outline of two pieces that share one edge; empty if they do not."""
    for k, a in enumerate(first):
        b = first[(k + 1) % len(first)]
        for m, c in enumerate(second):
            if (c, second[(m + 1) % len(second)]) == (b, a):
                # from b round the first to a, then round the second from a to b, both ends once
                around = first[k + 1 :] + first[: k + 1]
                back = second[m + 1 :] + second[: m + 1]
                return around + back[1:-1]
    return []


def _is_convex(flat: np.ndarray) -> bool:
    before, after = flat - np.roll(flat, 1, axis=0), np.roll(flat, -1, axis=0) - flat
    turn = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return bool((turn >= -1e-12 * np.ptp(flat, axis=0).max() ** 2).all())
