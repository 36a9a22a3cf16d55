"""What the commands show on the terminal, and how Ctrl-C reaches them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

WORKER = "jaxdyn-work"

Result = TypeVar("Result")


def say(text: str = "") -> None:
    """Prints a line at once, also into a pipe."""
    print(text, flush=True)


def count(number: float | int) -> str:
    """A number with thin groups of three digits: `81 234`."""
    return f"{number:,.0f}".replace(",", " ")


def table(rows: Sequence[Sequence[Any]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """Columns as wide as they need to be; those in `right` are set to the right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])


class Bar:
    """A progress bar: redrawn in place on a terminal, a line for every tenth elsewhere.

    **Arguments:** `label`; `total`: the number of steps; `stream`: default standard output.
    """

    def __init__(self, label: str, total: int, stream: Any = None):
        self.label, self.total = label, max(total, 1)
        self.stream = sys.stdout if stream is None else stream
        self.live = self.stream.isatty()
        self.start, self.shown, self.width = time.perf_counter(), -1, 0

    def update(self, done: int, note: str = "", elapsed: float | None = None) -> None:
        """Shows that `done` steps are done in `elapsed` s (default: since the bar was made), and a `note`."""
        tenth = 10 * done // self.total
        if not self.live and tenth == self.shown:
            return
        self.shown = tenth
        filled = 24 * done // self.total
        elapsed = time.perf_counter() - self.start if elapsed is None else elapsed
        left = elapsed * (self.total - done) / max(done, 1)
        end = f"{elapsed:.1f} s" if done >= self.total else f"{left:.0f} s left"
        text = f"{self.label} [{'#' * filled}{'.' * (24 - filled)}] {done}/{self.total}  {note}  {end}"
        if self.live:
            self.stream.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Ends the line."""
        if self.live and self.width:
            self.stream.write("\n")
            self.stream.flush()


def interruptible(work: Callable[[Callable[[], None]], Result]) -> Result:
    """`work(check)`, in a thread of its own, so that Ctrl-C is answered at once even while JAX compiles.

    After the first Ctrl-C, `check()` raises `KeyboardInterrupt` inside `work`, which may catch it and return what it
    has. After the second one this function raises `KeyboardInterrupt` itself, and `work` is left to itself.
    """
    stop, done = threading.Event(), threading.Event()
    result: list[Result] = []
    fault: list[BaseException] = []

    def check() -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    def target() -> None:
        try:
            result.append(work(check))
        except BaseException as error:  # handed on to the thread that waits
            fault.append(error)
        finally:
            done.set()

    # Waiting with `Thread.join` would not do: interrupted, it takes the thread for dead (CPython 3.11).
    threading.Thread(target=target, name=WORKER, daemon=True).start()
    while not done.is_set():
        try:
            done.wait(0.1)
        except KeyboardInterrupt:
            if stop.is_set():
                raise
            stop.set()
            say("\nStopping after this step; what has been computed is kept (Ctrl-C again: at once).")
    if fault:
        raise fault[0]
    return result[0]


def abandoned() -> bool:
    """Whether a thread of `interruptible` is still at work."""
    return any(thread.name == WORKER and thread.is_alive() for thread in threading.enumerate())
