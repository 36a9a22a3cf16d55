"""What the commands write into their folder: the page, plots, data, figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxdyn
from jaxdyn import plots
from jaxdyn.app.terminal import say


def add_common(parser: argparse.ArgumentParser, precision: int = 32, out: str | None = "out") -> None:
    """Arguments that every command has."""
    parser.add_argument("--seed", type=_seed, default=0, help="of all random numbers (default 0)")
    parser.add_argument(
        "--precision", type=int, choices=(32, 64), default=precision, help=f"bits of a number (default {precision})"
    )
    where = f"default {out!r}" if out else "default: none, only what is printed"
    parser.add_argument("--out", default=out, metavar="DIR", help=f"folder for the results ({where})")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")


def _seed(text: str) -> int:
    # what JAX can hold in either precision: larger ones overflow, or lose their upper half without a word
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"wanted a whole number from 0 to {2**32 - 1}, given {text}")
    return int(text)


class Folder:
    """A folder of results; it remembers what was written into it.

    **Raises:** `InputError` if the folder cannot be made or written to.
    """

    def __init__(self, path: str):
        self.path = Path(path)
        self.written: list[tuple[Path, str]] = []
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".jaxdyn"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise jaxdyn.InputError(f"--out: cannot write to {str(path)!r}: {error.strerror}.") from None

    def note(self, name: str, meaning: str) -> Path:
        """Path of a file that is about to be written."""
        path = self.path / name
        self.written.append((path, meaning))
        return path

    def page(self, scene: jaxdyn.Scene, name: str = "index.html") -> None:
        """The animation."""
        scene.save(self.note(name, "animation: open it in any browser"))

    def data(self, name: str, meaning: str, arrays: Mapping[str, Any]) -> None:
        """Arrays, as compressed npz."""
        plain: dict[str, Any] = {key: np.asarray(value) for key, value in arrays.items()}
        np.savez_compressed(self.note(name, meaning), **plain)

    def figures(self, figures: Mapping[str, Any], name: str = "figures.json") -> None:
        """Numbers that describe the run."""
        plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in figures.items()}
        self.note(name, "figures").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")

    def plot(self, name: str, meaning: str, kind: str, *arguments: Any, **options: Any) -> None:
        """A plot by a function of `jaxdyn.plots`; says so where matplotlib is missing."""
        try:
            figure, _ = getattr(plots, kind)(*arguments, **options)
        except ImportError as error:
            say(f"{name}: left out; {error}")
            return
        figure.savefig(self.note(name, meaning))

    def tell(self) -> None:
        """Prints where to look."""
        say("Look at")
        width = max((len(str(path)) for path, _ in self.written), default=0)
        for path, meaning in self.written:
            say(f"  {str(path).ljust(width)}  {meaning}")


def seconds(value: float) -> str:
    """A duration, for people."""
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"
