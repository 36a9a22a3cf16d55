"""Where the meshes of a robot file are: `package://`, `model://`, `file://` and relative names become paths."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

# ROS 1, Gazebo (old and new); ROS 2 keeps packages in the folder `share` of each prefix
_FOLDERS = ("ROS_PACKAGE_PATH", "GAZEBO_MODEL_PATH", "IGN_GAZEBO_RESOURCE_PATH", "GZ_SIM_RESOURCE_PATH")
_PREFIXES = ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH")


class Resolver:
    """Turns the file names of meshes into paths where they can be found; elsewhere the name stays as it is in the
    file.

    A package is looked for in `package_dirs`, in the folders above the file, and in those that the environment names
    (`ROS_PACKAGE_PATH`, `AMENT_PREFIX_PATH`, `GZ_SIM_RESOURCE_PATH` and older names), in this order. Each folder may
    hold the package or be it.
    """

    def __init__(self, package_dirs: Sequence[str | os.PathLike], folder: Path | None) -> None:
        if isinstance(package_dirs, str | os.PathLike):
            package_dirs = [package_dirs]
        self.package_dirs = [Path(d).expanduser() for d in package_dirs]
        self.folder = folder
        self.known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name and name not in self.known:
            found = next((path for path in self._candidates(name) if _is_file(path)), None)
            self.known[name] = name if found is None else str(found)
        return self.known.get(name, "")

    def _candidates(self, name: str) -> Iterator[Path]:
        scheme, separator, rest = name.partition(":")
        if not separator or scheme not in ("file", "package", "model"):
            path = Path(name)
            if path.is_absolute():
                yield path
            elif self.folder is not None:
                yield self.folder / path
            return
        for inside in dict.fromkeys((rest, urllib.parse.unquote(rest))):
            if scheme == "file":
                # file:///path, file://localhost/path and file:/path
                yield Path("/" + inside.removeprefix("//localhost").lstrip("/"))
                continue
            package, _, file = inside.lstrip("/").partition("/")
            for folder in self._package_folders():
                yield folder / package / file
                if folder.name == package:
                    yield folder / file

    def _package_folders(self) -> Iterator[Path]:
        yield from self.package_dirs
        if self.folder is not None:
            folder = self.folder.absolute()
            yield from (folder, *folder.parents)
        for variable in _FOLDERS:
            yield from (Path(d) for d in os.environ.get(variable, "").split(os.pathsep) if d)
        for variable in _PREFIXES:
            yield from (Path(d) / "share" for d in os.environ.get(variable, "").split(os.pathsep) if d)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for the system, or with a zero byte
        return False
