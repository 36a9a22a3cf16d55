"""The state of a long batch rollout on disk, from which it can be taken up again.

A folder holds one file for each chunk of steps that was done: a line of JSON, then the arrays, as Equinox serialises them.
A file appears under its name only when it is complete, so a process that is killed loses the chunk that it was working on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from jaxdyn.errors import InputError, listing
from jaxdyn.version import __version__

FORMAT = "jaxdyn batch rollout"
VERSION = 1


class Chunk(NamedTuple):
    """What is kept of some steps, with the environments first: the lanes after the last of them, the saved states and
    records, and which of the saved states are active."""

    lanes: Any
    states: Any
    records: Any
    active: Any


def fingerprint(**parts: Any) -> dict[str, str]:
    """Short digests, by name, of all that must be the same for a rollout to be taken up again: of each array's numbers and
    of the structure around them. Functions are known by their name alone."""
    digests = {}
    for name, part in parts.items():
        leaves, structure = jax.tree_util.tree_flatten_with_path(part)
        # the addresses of functions differ from one process to the next
        digests[f"structure of {name}"] = _digest(re.sub(r" at 0x[0-9a-f]+", "", str(structure)).encode())
        digests |= {name + jax.tree_util.keystr(path): _digest(_bytes(leaf)) for path, leaf in leaves}
    return digests


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic):
        array = np.asarray(leaf)
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    if callable(leaf):
        return getattr(leaf, "__qualname__", type(leaf).__qualname__).encode()
    return repr(leaf).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class Store:
    """The files of one rollout in a folder.

    **Raises:** `InputError` if the folder cannot be made; if it holds chunks already and `resume` is false; if these are
    of another rollout, damaged, or of a later version of the format.
    """

    def __init__(self, folder: str | os.PathLike, prints: dict[str, str], resume: bool):
        self.folder, self.prints = Path(folder), prints
        self.shown = repr(os.fspath(folder))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"checkpoint_dir: cannot make the folder {self.shown}: {error.strerror}.") from None
        self.found = sorted(self.folder.glob("chunk-*.eqx"))
        if self.found and not resume:
            raise InputError(
                f"checkpoint_dir: {self.shown} holds a rollout already: continue it with resume=True, or name an empty folder."
            )

    def chunks(self, like: Callable[[int], Chunk]) -> Iterator[tuple[int, Chunk]]:
        """`(steps done after it, chunk)` for each chunk on disk, in order.

        **Arguments:** `like`: a function that gives the shapes of a chunk of so many steps.
        """
        done = 0
        for path in self.found:
            with path.open("rb") as file:
                header = self._header(path, file.readline())
                if header["first"] != done:
                    raise InputError(f"checkpoint_dir: {self.shown} lacks the steps {done} to {header['first']}.")
                try:
                    chunk = eqx.tree_deserialise_leaves(file, like(header["count"]))
                except (RuntimeError, ValueError, EOFError, OSError) as error:
                    raise InputError(f"checkpoint_dir: {str(path)!r} is damaged: {error}.") from None
            done += header["count"]
            yield done, chunk

    def _header(self, path: Path, line: bytes) -> dict[str, Any]:
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise InputError(f"checkpoint_dir: {str(path)!r} is no chunk of a batch rollout.")
        if header["version"] > VERSION:
            raise InputError(
                f"checkpoint_dir: {str(path)!r} was written by jaxdyn {header.get('written_by')} in version "
                f"{header['version']} of the format; this one, {__version__}, reads up to {VERSION}: update jaxdyn."
            )
        theirs = header["fingerprint"]
        names = [name for name in (*self.prints, *(n for n in theirs if n not in self.prints))]
        differ = [name for name in names if self.prints.get(name) != theirs.get(name)]
        if differ:
            raise InputError(
                f"checkpoint_dir: {self.shown} holds another rollout, which differs in {listing(differ, 4)}. Give the "
                "same arguments, or another folder."
            )
        return header

    def write(self, first: int, count: int, chunk: Chunk) -> None:
        """Adds a chunk of `count` steps from number `first` on."""
        header = {"format": FORMAT, "version": VERSION, "written_by": __version__, "first": first, "count": count}
        header["fingerprint"] = self.prints
        path = self.folder / f"chunk-{first:012d}.eqx"
        scratch = path.with_suffix(f".{os.getpid()}.part")
        try:
            with scratch.open("wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                eqx.tree_serialise_leaves(file, chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise
