"""XML and numbers of a robot file: from a path or text to a small tree of elements with line numbers.

Built on expat alone, whose callbacks give the line of every element. No entity is ever expanded and nothing outside
the file is read.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from xml.parsers import expat

from jaxdyn.errors import URDFError, listing, nearest

_BLANK = " \t\r\n"
_BOM = "\ufeff"
# a C literal of a decimal number, in ASCII digits: no 1_000, no hexadecimal, no decimal comma
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITY = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
# no robot file nests deeper than about ten
_MAX_DEPTH = 200


@dataclasses.dataclass(slots=True)
class Element:
    """An XML element. `owner` names the link or joint it belongs to, for messages: `link 'arm'`."""

    tag: str
    attributes: dict[str, str]
    line: int
    owner: str
    children: list[Element] = dataclasses.field(default_factory=list)

    @property
    def where(self) -> str:
        """`joint 'j': <origin> (line 7)`."""
        inside = f"<{self.tag}>"
        line = f" (line {self.line})" if self.line else ""  # none if it comes from no file
        return f"{self.owner}: {inside}{line}" if self.owner else f"{inside}{line}"

    def all(self, tag: str) -> list[Element]:
        """All direct children of this tag."""
        return [child for child in self.children if child.tag == tag]

    def one(self, tag: str) -> Element | None:
        """The only child of this tag, None if there is none; raises `URDFError` if there are several."""
        found = self.all(tag)
        if len(found) > 1:
            lines = ", ".join(str(child.line) for child in found)
            lines = f" (lines {lines})" if self.line else ""
            raise URDFError(f"{self.where} has {len(found)} <{tag}> elements{lines}, at most one is meant.")
        return found[0] if found else None

    def need(self, tag: str) -> Element:
        """The only child of this tag; raises `URDFError` if there is none."""
        found = self.one(tag)
        if found is None:
            raise URDFError(
                f"{self.where} needs a <{tag}> element{_near(tag, [child.tag for child in self.children])}."
            )
        return found

    def text(self, attribute: str, default: str | None = None) -> str:
        """An attribute; without a default it is required."""
        value = self.attributes.get(attribute, default)
        if value is None:
            raise URDFError(f"{self.where} needs the attribute {attribute!r}{_near(attribute, list(self.attributes))}.")
        return value

    def name(self, attribute: str = "name") -> str:
        """A required attribute that must not be blank."""
        value = self.text(attribute)
        if not value.strip(_BLANK):
            raise URDFError(f"{self.where}: attribute {attribute!r} is empty.")
        return value

    def numbers(
        self, attribute: str, count: int, default: tuple[float, ...] | None = None, *, infinite: bool = False
    ) -> list[float]:
        """An attribute of exactly `count` numbers with white space between; `infinite` allows inf. Raises
        `URDFError`.
        """
        text = self.attributes.get(attribute)
        if text is None:
            if default is not None:
                return list(default)
            text = self.text(attribute)
        words = [word for word in re.split(r"[ \t\r\n]+", text) if word]
        if len(words) != count:
            comma = " Write a decimal point and blanks, no commas." if "," in text else ""
            raise URDFError(
                f"{self.where}: {attribute}={shortened(text)!r}: wanted {count} number{'s' * (count > 1)}, found {len(words)}.{comma}"
            )
        values = []
        for word in words:
            shown = shortened(word)
            if _NUMBER.fullmatch(word):
                value = float(word)
                if not math.isinf(value):
                    values.append(value)
                    continue
                problem = f"{shown!r} is too large for a float"
            elif _INFINITY.fullmatch(word) and infinite:
                values.append(float(word))
                continue
            else:
                problem = (
                    f"{shown!r} is not a finite number"
                    if word.lower().strip("+-") in ("nan", "inf", "infinity")
                    else f"{shown!r} is not a number"
                )
            comma = "; write a decimal point, not a comma" if "," in word else ""
            raise URDFError(f"{self.where}: {attribute}={shortened(text)!r}: {problem}{comma}.")
        return values

    def number(self, attribute: str, default: float | None = None, *, infinite: bool = False) -> float:
        """An attribute of one number."""
        return self.numbers(attribute, 1, None if default is None else (default,), infinite=infinite)[0]


def shortened(text: str, most: int = 80) -> str:
    """The text, cut where it is long: it stands in a message."""
    return text if len(text) <= most else f"{text[: most - 12]}... ({len(text)} characters)"


def _near(name: str, existing: list[str]) -> str:
    close = nearest(name, existing, 1)
    return f"; is {close[0]!r} a misspelling of it?" if close else ""


def read_source(source: str | bytes | os.PathLike) -> tuple[str | bytes, Path | None]:
    """The XML, and the file it came from (None for text).

    A `str` whose first visible character is `<` is XML, any other a path; `bytes` are always XML. Raises `URDFError`
    for what cannot be read.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _not_empty(bytes(source), "the text"), None
    if isinstance(source, str):
        start = source.lstrip(_BLANK + _BOM)
        if not start:
            raise URDFError("the robot description is empty: wanted the path of a URDF file or XML text.")
        if start.startswith("<"):
            return source, None
    elif not isinstance(source, os.PathLike):
        raise URDFError(f"wanted the path of a URDF file or XML text, given {type(source).__name__}.")
    shown = os.fspath(source)
    shown = shown if isinstance(shown, str) else os.fsdecode(shown)
    if "\0" in shown or "\n" in shown:
        raise URDFError(f"neither XML (it does not start with '<') nor the path of a file: {shown[:60]!r}.")
    path = Path(shown)
    try:
        path = path.expanduser()
        if path.is_dir():
            inside = sorted(p.name for p in path.iterdir() if p.suffix.lower() == ".urdf")
            raise URDFError(
                f"{shown!r} is a folder, wanted a URDF file" + (f"; it holds {listing(inside)}." if inside else ".")
            )
        return _not_empty(path.read_bytes(), repr(shown)), path
    except FileNotFoundError:
        raise URDFError(f"there is no file {shown!r}{_neighbours(path)}.") from None
    except (OSError, RuntimeError) as error:
        raise URDFError(f"{shown!r} cannot be read: {error}.") from None


def _neighbours(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix.lower() in (".urdf", ".xml")]
    except OSError:
        return f"; the folder {str(path.parent)!r} does not exist either"
    close = nearest(path.name, names)
    return f"; near it in that folder: {listing(close)}" if close else ""


_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


def _not_empty(content: bytes, what: str) -> bytes:
    for magic, name in _COMPRESSED.items():
        if content.startswith(magic):
            raise URDFError(f"{what} is compressed ({name}): unpack it first.")
    if not content.strip(b" \t\r\n\xef\xbb\xbf"):
        raise URDFError(f"{what} is empty: wanted a URDF robot description.")
    return content


def parse_xml(content: str | bytes) -> Element:
    """The root element `<robot>`.

    **Raises:** `URDFError` with line and column for what is not well-formed, for any entity or external document
    type, and with the likely format for another root element.
    """
    skipped = 0
    if isinstance(content, str):
        # Text written inside code often starts with a line end, which XML does not allow before its declaration
        body = content.lstrip(_BLANK + _BOM)
        skipped = content[: len(content) - len(body)].count("\n")
        content = body
    else:
        body = content.lstrip(_BLANK.encode())
        skipped = content[: len(content) - len(body)].count(b"\n")
        content = body

    parser = expat.ParserCreate()
    parser.buffer_text = True
    roots: list[Element] = []
    stack: list[Element] = []

    def line() -> int:
        return parser.CurrentLineNumber + skipped

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) >= _MAX_DEPTH:
            raise URDFError(f"line {line()}: elements nest deeper than {_MAX_DEPTH}; this is no robot description.")
        owner = stack[-1].owner if stack else ""
        if len(stack) == 1 and tag in ("link", "joint"):
            owner = f"{tag} {attributes.get('name', '')!r}"
        element = Element(tag, attributes, line(), owner)
        if stack:
            stack[-1].children.append(element)
        else:
            roots.append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def doctype(name: str, system: str | None, public: str | None, internal: int) -> None:
        if system or public:
            raise URDFError(
                f"line {line()}: the DOCTYPE refers to an external document, which is never read; delete the DOCTYPE."
            )

    def entity(name: str, *_: object) -> None:
        raise URDFError(
            f"line {line()}: the DOCTYPE defines the entity {name!r}; entities are refused, as they can blow up or read other files."
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        # the position stands in the message of expat relative to the text after what was skipped
        reason = expat.ErrorString(error.code)
        raise URDFError(
            f"not well-formed XML: {reason} at line {error.lineno + skipped}, column {error.offset + 1}."
        ) from None
    except (UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, URDFError):
            raise
        raise URDFError(f"the text cannot be decoded: {error}.") from None
    root = roots[0]
    if root.tag != "robot":
        formats = {
            "sdf": "an SDF file",
            "mujoco": "an MJCF file, for from_mjcf",
            "COLLADA": "a COLLADA mesh",
            "html": "a web page",
        }
        kind = f"; this is {formats[root.tag]}" if root.tag in formats else ""
        if root.tag.lower().rpartition(":")[2] == "robot":
            kind = "; tags are written in lower case and without a prefix"
        raise URDFError(f"the outermost element is <{root.tag}> (line {root.line}), wanted <robot>{kind}.")
    for child in root.children:
        if child.tag.startswith("xi:"):
            raise URDFError(f"<{child.tag}> (line {child.line}): other files are never read; put their content here.")
        if child.tag.startswith("xacro:"):
            raise URDFError(
                f"<{child.tag}> (line {child.line}): this is a xacro file; expand it with the program xacro first."
            )
    return root
