"""Writes the pages of the documentation that follow from the source: the reference, and the notebooks.

Docstrings are shown as they are written: they hold small tables, matrices and truth tables, which no markup
should reflow.
"""

import ast
import importlib
import inspect
import pathlib
import shutil
import textwrap
import types

TITLES = {
    "errors": "Errors and statuses",
    "math": "Rotations, motions, spatial algebra",
    "model": "Models and configurations",
    "algorithms": "Kinematics and dynamics",
    "contact": "Contact",
    "functions": "Functions of a configuration",
    "tasks": "Tasks",
    "systems": "Systems, integrators, rollouts",
    "control": "Optimal control",
    "viz": "Pictures",
}
OTHER = "other"
TITLES[OTHER] = "Other names"


def public_names(module):
    """What a package hands on by `from .x import Y as Y`: pairs of name and object."""
    imports = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)]
    names = sorted(alias.asname or alias.name for node in imports for alias in node.names)
    return [(name, getattr(module, name)) for name in names if not name.startswith("_")]


def _layer(thing):
    home = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", "")
    package, _, rest = home.partition(".")
    layer = rest.partition(".")[0]
    return layer if package == "jaxdyn" and layer in TITLES else OTHER


def _signature(name, thing):
    """Names and defaults only: shapes and types are in the text, where a meaning stands beside them."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return name + str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _block(language, text):
    return f"```{language}\n{text}\n```\n"


def _members(thing):
    """Members of a class, with those of its bases in the package that have no entry of their own."""
    jaxdyn = importlib.import_module("jaxdyn")
    hidden = lambda base: base.__module__.startswith("jaxdyn.") and getattr(jaxdyn, base.__name__, None) is not base  # noqa: E731
    bases = [base for base in reversed(thing.__mro__) if base is thing or hidden(base)]
    return {name: part for base in bases for name, part in vars(base).items()}


def _entry(name, thing, level):
    lines = [f"{'#' * level} {name}\n"]
    text = (inspect.getdoc(thing) or "").strip()
    if isinstance(thing, types.ModuleType):
        lines.append(_block("text", text))
        for inner, part in sorted(vars(thing).items()):
            mine = getattr(part, "__module__", None) == thing.__name__
            if mine and not inner.startswith("_") and callable(part):
                lines.append(_entry(f"{name}.{inner}", part, level + 1))
        return "\n".join(lines)
    if callable(thing):
        lines.append(_block("python", _signature(name, thing)))
    lines.append(_block("text", text))
    if isinstance(thing, type):
        for inner, part in sorted(_members(thing).items()):
            function = getattr(part, "__func__", part)
            if inner.startswith("_") or not (inspect.isfunction(function) or isinstance(part, property)):
                continue
            if text := inspect.getdoc(function):
                shown = _signature(inner, function) if inspect.isfunction(function) else inner
                lines.append(_block("text", f".{shown}\n{textwrap.indent(text, '    ')}"))
    return "\n".join(lines)


def write_reference(folder):
    """One page per layer with every public name of the package, and a page that lists them."""
    jaxdyn = importlib.import_module("jaxdyn")
    groups = {}
    for name, thing in public_names(jaxdyn):
        groups.setdefault(_layer(thing), []).append((name, thing))
    layers = [layer for layer in TITLES if layer in groups]
    pages = {}
    index = ["# Reference\n", "Every public name of `jaxdyn`, by layer.\n"]
    index.append(_block("{toctree}", "\n".join([":maxdepth: 1", "", *layers])))
    for layer in layers:
        names = ", ".join(f"`{name}`" for name, _ in groups[layer])
        index.append(f"**{TITLES[layer]}**: {names}\n")
        entries = [_entry(name, thing, 2) for name, thing in groups[layer]]
        pages[f"{layer}.md"] = "\n".join([f"# {TITLES[layer]}\n", *entries])
    _replace(folder, {"index.md": "\n".join(index), **pages})


def copy_notebooks(source, folder):
    """The notebooks beside the other pages, and a page that lists them."""
    found = sorted(source.glob("*.ipynb")) if source.is_dir() else []
    text = "# Notebooks\n\nEach starts from nothing and ends in a picture.\n"
    if found:
        text += "\n```{toctree}\n:maxdepth: 1\n\n" + "\n".join(path.stem for path in found) + "\n```\n"
    _replace(folder, {"index.md": text, **{path.name: path.read_text(encoding="utf-8") for path in found}})


def _replace(folder, pages):
    """Writes only what changed: an untouched page is not built again."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in pages:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
