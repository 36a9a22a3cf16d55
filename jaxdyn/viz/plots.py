"""Plots of rollouts and optimisations with matplotlib (the extra `jaxdyn[viz]`).

Each function takes arrays, draws into the given `axes` or a new figure, and returns `(figure, axes)`; nothing is shown
and no global state is touched: `figure.savefig("height.png")`. Where an array has environments as its first axis, the
median over them is drawn with two bands: the middle half, and the middle 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn.errors import FloatLike, InputError
from jaxdyn.viz.values import numbers

# Apart in lightness too, so that they differ in print and to colour-blind eyes.
PALETTE = ("#2f6fde", "#f2711c", "#1f9d61", "#7a51d1", "#d93a3a", "#0e97a7", "#b98900", "#5b6675")
INK, PALE = "#1d2530", "#667180"


def plot_base_height(
    times: FloatLike,
    heights: FloatLike,
    *,
    target: FloatLike | None = None,
    label: str = "height of the base",
    axes: Any = None,
) -> tuple[Any, Any]:
    """Height of the base, m, over time, s.

    **Arguments:** `times` (steps,); `heights` (steps,) or (environments, steps); `target`: a height to mark; `label`: of the vertical axis.

    **Returns:** figure and axes.
    """
    t, h = _series("times", times, "heights", heights, ("steps",))
    figure, ax = _axes(axes, 1, (7.2, 3.6))
    _line(ax, t, h, PALETTE[0], "median" if h.ndim == 2 and len(h) > 1 else None)
    if target is not None:
        ax.axhline(float(target), color=PALETTE[1], lw=1.4, ls=(0, (5, 3)), zorder=1)
        ax.annotate(
            f"target {float(target):.3g} m",
            (1, float(target)),
            (-4, 4),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            color=PALETTE[1],
            fontsize=9,
        )
    _finish(ax, "time (s)", f"{label} (m)")
    _note(ax, h)
    return figure, ax


def plot_contact_forces(
    times: FloatLike,
    forces: FloatLike,
    *,
    names: Sequence[str] | None = None,
    weight: FloatLike | None = None,
    normal: FloatLike = (0.0, 0.0, 1.0),
    axes: Any = None,
) -> tuple[Any, Any]:
    """Contact forces, N, over time, s: along the normal, and across it.

    **Arguments:** `times` (steps,); `forces` (steps, n, 3) or (environments, steps, n, 3), the environment on the
    robot, world axes; `names` of the n contacts; `weight`: N, marked for comparison (shared equally between the
    contacts); `normal`: of the ground; `axes`: two of them.

    **Returns:** figure and the two axes.
    """
    t = numbers("times", times, ("steps",))
    f = numbers("forces", forces, ("steps", "n", 3), ("environments", "steps", "n", 3))
    _same_length(t, "forces", f.shape[-3])
    n = f.shape[-2]
    names = _names(names, n, "contact")
    up = numbers("normal", normal, (3,))
    up = up / np.linalg.norm(up)
    along = f @ up
    across = np.linalg.norm(f - along[..., None] * up, axis=-1)
    figure, (top, bottom) = _axes(axes, 2, (7.2, 5.2), rows=2, sharex=True)
    for k in range(n):
        _line(top, t, along[..., k], PALETTE[k % len(PALETTE)], names[k], spread=n <= 4)
        _line(bottom, t, across[..., k], PALETTE[k % len(PALETTE)], None, spread=n <= 4)
    if weight is not None:
        top.axhline(float(weight) / n, color=PALE, lw=1.2, ls=(0, (5, 3)), zorder=1)
        top.annotate(
            "weight" if n == 1 else f"weight / {n}",
            (1, float(weight) / n),
            (-4, 4),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            color=PALE,
            fontsize=9,
        )
    _finish(top, "", "normal force (N)")
    _finish(bottom, "time (s)", "tangential force (N)")
    if n <= 12:
        top.legend(
            frameon=False,
            ncols=min(n, 4),
            fontsize=9,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.2,
            handlelength=1.4,
        )
    _note(bottom, f[..., 0, 0])
    return figure, np.array([top, bottom])


def plot_cost(costs: FloatLike, *, log: bool | None = None, label: str = "cost", axes: Any = None) -> tuple[Any, Any]:
    """The cost over the iterations of an optimisation.

    **Arguments:** `costs` (iterations,) or (runs, iterations); `log`: logarithmic axis, by default where all costs are
    positive and span more than a factor of 20; `label`: of the vertical axis, with its unit if it has one.

    **Returns:** figure and axes.
    """
    c = numbers("costs", costs, ("iterations",), ("runs", "iterations"))
    figure, ax = _axes(axes, 1, (7.2, 3.6))
    _line(ax, np.arange(c.shape[-1]), c, PALETTE[0], None)
    log = bool(c.min() > 0 and c.max() > 20 * c.min()) if log is None else log
    if log:
        if c.min() <= 0:
            raise InputError(f"costs: a logarithmic axis needs positive costs, the smallest is {c.min():g}.")
        ax.set_yscale("log")
    middle = np.median(np.atleast_2d(c), axis=0)
    for i, align in ((0, "left"), (c.shape[-1] - 1, "right")):
        ax.plot([i], [middle[i]], "o", color=PALETTE[0], ms=5, zorder=4)
        ax.annotate(
            f"{middle[i]:.4g}",
            (i, middle[i]),
            (6 if align == "left" else -2, 7),
            textcoords="offset points",
            ha=align,
            color=INK,
            fontsize=9,
        )
    ax.margins(y=0.14)
    _finish(ax, "iteration", label)
    _note(ax, c, "runs")
    return figure, ax


def plot_joint_trajectories(
    times: FloatLike,
    values: FloatLike,
    *,
    names: Sequence[str] | None = None,
    lower: FloatLike | None = None,
    upper: FloatLike | None = None,
    reference: FloatLike | None = None,
    label: str = "position",
    unit: str = "rad",
    axes: Any = None,
) -> tuple[Any, Any]:
    """One small plot for each joint, over time, s.

    **Arguments:** `times` (steps,); `values` (steps, n) or (environments, steps, n); `names` of the n joints; `lower`,
    `upper` (n,): limits, infinite for none, beyond which the ground is tinted; `reference` (steps, n) or (n,), dashed;
    `label`, `unit`: what the values are; `axes`: n of them.

    **Returns:** figure and axes (n,).
    """
    t = numbers("times", times, ("steps",))
    x = numbers("values", values, ("steps", "n"), ("environments", "steps", "n"))
    _same_length(t, "values", x.shape[-2])
    n = x.shape[-1]
    names = _names(names, n, "joint")
    low_limits, high_limits = _limits("lower", lower, n), _limits("upper", upper, n)
    goal = (
        None if reference is None else np.broadcast_to(numbers("reference", reference, (n,), (len(t), n)), (len(t), n))
    )
    columns = min(n, 3 if n <= 9 else 4)
    rows = -(-n // columns)
    size = (2.9 * columns, 1.75 * rows + 0.5)
    figure, grid = _axes(axes, n, size, rows=rows, columns=columns, sharex=True)
    grid = np.atleast_1d(grid)
    for k in range(n):
        ax = grid[k]
        _line(ax, t, x[..., k], PALETTE[0], None)
        if goal is not None:
            ax.plot(t, goal[:, k], color=PALETTE[1], lw=1.3, ls=(0, (4, 2)), zorder=2)
        low, high = ax.get_ylim()
        for limit, sign in ((low_limits, -1), (high_limits, 1)):
            edge = float(limit[k])
            if low - 0.3 * (high - low) < edge < high + 0.3 * (high - low):
                ax.axhspan(edge, edge + sign * 10 * (high - low), color=PALETTE[4], alpha=0.10, lw=0)
                ax.axhline(edge, color=PALETTE[4], lw=1, alpha=0.7)
                low, high = min(low, edge - 0.06 * (high - low)), max(high, edge + 0.06 * (high - low))
        ax.set_ylim(low, high)
        last = k + columns >= n
        _finish(ax, "time (s)" if last else "", f"{label} ({unit})" if k % columns == 0 else "")
        ax.tick_params(labelbottom=last, labelsize=8)
        ax.set_title(names[k], fontsize=9.5, color=INK, loc="left", pad=3)
    for ax in grid[n:]:
        ax.set_visible(False)
    return figure, grid[:n]


def _axes(axes: Any, count: int, size: tuple[float, float], **layout: Any) -> tuple[Any, Any]:
    """`count` axes, given or on a new figure that pyplot does not know, and their figure."""
    if axes is not None:
        given = np.ravel(np.asarray(axes, dtype=object))
        if len(given) < count:
            raise InputError(f"axes: wanted {count} of them, given {len(given)}.")
        return given[0].figure, given[:count] if count > 1 else given[0]
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib, which the extra 'viz' installs: pip install 'jaxdyn[viz]'") from None
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    rows, columns = layout.pop("rows", 1), layout.pop("columns", 1)
    grid = figure.subplots(rows, columns, **layout)
    return figure, grid if rows * columns == 1 else np.ravel(grid)


def _line(ax: Any, t: np.ndarray, values: np.ndarray, color: str, label: str | None, spread: bool = True) -> None:
    """A line, or the median with bands over the first axis."""
    if values.ndim == 1 or len(values) == 1:
        ax.plot(t, values.reshape(-1), color=color, lw=1.8, label=label, zorder=3)
        return
    q05, q25, q50, q75, q95 = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    if spread:
        ax.fill_between(t, q05, q95, color=color, alpha=0.13, lw=0)
        ax.fill_between(t, q25, q75, color=color, alpha=0.22, lw=0)
    ax.plot(t, q50, color=color, lw=1.8, label=label, zorder=3)


def _finish(ax: Any, x: str, y: str) -> None:
    ax.set_xlabel(x, color=PALE)
    ax.set_ylabel(y, color=PALE)
    ax.grid(True, color="#e4e7eb", lw=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=PALE, length=3, width=0.8)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#c3c9d1")
    ax.margins(x=0.01)


def _note(ax: Any, values: np.ndarray, what: str = "environments") -> None:
    """Says what the bands are."""
    if values.ndim == 2 and len(values) > 1:
        ax.set_title(
            f"{len(values)} {what}: median, middle 50 % and 90 %", fontsize=8.5, color=PALE, loc="right", pad=4
        )


def _series(
    time_name: str, times: FloatLike, name: str, values: FloatLike, shape: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    t = numbers(time_name, times, shape)
    v = numbers(name, values, shape, ("environments", *shape))
    _same_length(t, name, v.shape[-1])
    return t, v


def _same_length(t: np.ndarray, name: str, steps: int) -> None:
    if len(t) != steps:
        raise InputError(f"{name}: {steps} steps, but {len(t)} times; they must be equally many.")


def _limits(name: str, value: FloatLike | None, n: int) -> np.ndarray:
    """(n,) limits, NaN where there is none."""
    if value is None:
        return np.full(n, np.nan)
    array = np.asarray(value, float)
    return np.where(np.isfinite(array), numbers(name, np.where(np.isfinite(array), array, 0.0), (n,)), np.nan)


def _names(names: Sequence[str] | None, n: int, kind: str) -> list[str]:
    if names is None:
        return [f"{kind} {k + 1}" if n > 1 else kind for k in range(n)]
    if len(names) != n:
        raise InputError(f"names: wanted {n}, given {len(names)}.")
    return [str(name) for name in names]
