"""The page: one HTML file that holds its style, its program and its data, and needs nothing else.

The program lives in `page/` (see the README there). Its data are a JSON text that says what there is, and one base64
text with all arrays in it, one after the other; in the JSON an array is `[type, offset in bytes, number of elements]`.
"""

from __future__ import annotations

import base64
import functools
import html
import importlib.resources
import json
import re

import numpy as np

from jaxdyn.viz.mesh_files import MeshPart

# In the order in which they build on each other.
SCRIPTS = ("math", "geometry", "shaders", "webgl", "camera", "world", "painter", "interface", "main")


class Archive:
    """Arrays one after the other; `add` gives the reference that the page reads them by."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def add(self, array: np.ndarray) -> list:
        """Floats are stored as float32, integers as uint16 or uint32; little endian."""
        if np.issubdtype(array.dtype, np.floating):
            kind = "f4"
        else:
            kind = "u2" if array.size == 0 or array.max() < 2**16 else "u4"
        content = np.ascontiguousarray(array, dtype="<" + kind).tobytes()
        reference = [kind, self.size, array.size]
        content += bytes(-len(content) % 4)
        self.pieces.append(content)
        self.size += len(content)
        return reference

    def add_mesh(self, mesh: MeshPart) -> dict:
        """Vertices as 16-bit steps of the box around them."""
        low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
        steps = np.round((mesh.vertices - low) / np.where(high > low, high - low, 1.0) * 65535).astype(np.uint16)
        return {
            "low": low.tolist(),
            "high": high.tolist(),
            "vertices": self.add(steps),
            "triangles": self.add(mesh.triangles),
        }

    def text(self) -> str:
        """All of it in base64."""
        return base64.b64encode(b"".join(self.pieces)).decode("ascii")


@functools.cache
def _part(name: str) -> str:
    return importlib.resources.files("jaxdyn.viz").joinpath("page", name).read_text(encoding="utf-8")


def page(data: dict, archive: Archive) -> str:
    """The HTML text of a scene. Titles are escaped here; all other texts of users stay inside the JSON, whose `<`, `>`
    and `&` are escaped.
    """
    content = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    parts = {
        "TITLE": html.escape(data["title"]),
        "SUBTITLE": html.escape(data["subtitle"]),
        "THEME": data["theme"],
        "STYLE": _part("style.css"),
        "SCRIPT": "'use strict';\n" + "\n".join(_part(f"{name}.js") for name in SCRIPTS),
        "DATA": content,
        "ARRAYS": archive.text(),
    }
    # In one pass, so that what stands in the data is not taken for a place to fill
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], _part("page.html"))


def frame(text: str, height: int, title: str) -> str:
    """The page in an inline frame of its own, for notebooks: neither its style nor its program meets those around it."""
    return (
        f'<iframe srcdoc="{html.escape(text)}" title="{html.escape(title)}" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:0;border-radius:10px;display:block"></iframe>'
    )
