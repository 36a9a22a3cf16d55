"""Numbers to text: times, rates, ratios with their spread, and tables that read well in a terminal and in Markdown."""

import unicodedata
from collections.abc import Sequence

from benchmarks.timing import Statistics

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATES = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, " "))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def digits(value: float, significant: int = 3) -> str:
    """`value` in plain notation with so many significant digits, and never fewer than its whole part."""
    if value == 0.0:
        return "0"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    text = f"{value:#.{significant}g}"  # with its trailing zeros
    if "e" not in text:
        return text.rstrip(".")
    return f"{value:.0f}" if abs(value) >= 1.0 else text


def seconds(value: float) -> str:
    for unit, name in _TIMES:
        if value >= unit * 0.9995:
            return f"{digits(value / unit)} {name}"
    return f"{digits(value / 1e-9)} ns"


def rate(value: float) -> str:
    """Evaluations per second."""
    for unit, name in _RATES:
        if value >= unit * 0.9995:
            return f"{digits(value / unit)}{name}/s"
    return f"{digits(value)} /s"


def size(value: float) -> str:
    """Bytes."""
    for unit, name in _SIZES:
        if value >= unit:
            return f"{digits(value / unit)} {name}"
    return "0 B"


def spread(value: Statistics) -> str:
    """Half the distance between the quartiles, in percent of the median."""
    if value.count < 2 or value.median == 0.0:
        return "?"
    return f"±{100.0 * (value.high - value.low) / 2.0 / abs(value.median):.0f} %"


def ratio(value: Statistics) -> str:
    """Median and the quartiles: `1.84 (1.79-1.90)`."""
    if value.count < 2:
        return digits(value.median)
    return f"{digits(value.median)} ({digits(value.low)}-{digits(value.high)})"


def width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def render(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table with its columns lined up; the columns numbered in `right` are flushed right."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells, the header {len(header)}: {row}")
    widths = [max(3, *(width(line[i]) for line in (header, *rows))) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for i, cell in enumerate(cells):
            space = " " * (widths[i] - width(cell))
            padded.append(space + cell if i in right else cell + space)
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if i in right else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
