"""The order of the house: who may import whom, and what an import may do.

Read from the source with `ast`, so that a module that cannot be imported yet is judged too.
"""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxdyn"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from its own layer and from layers before it. The root package hands on names of all
# layers before `app`; only `app` and what follows may import from it.
LAYERS = (
    "version", "errors", "math", "model", "algorithms", "contact", "functions", "tasks", "systems", "control",
    "viz", "app", "cli", "__main__",
)  # fmt: skip
USES_THE_ROOT = ("app", "cli", "__main__")

CORE = {"jax", "jaxlib", "equinox", "optax", "jaxtyping", "numpy"}
OPTIONAL = {
    "matplotlib",
    "viser",
    "IPython",
    "trimesh",
    "mujoco",
    "pinocchio",
    "idyntree",
    "diffrax",
    "lineax",
    "optimistix",
}
# Internals, and names that move from one release of JAX to the next.
UNSTABLE = ("jax.experimental", "jax.core", "jax._src", "jax.interpreters", "jax.pmap")
STABLE_ALL_THE_SAME = {"jax.core.Tracer"}  # documented as public
# JAX's guide to new primitives names these modules and no others; one file, and only it, defines primitives.
PRIMITIVES = ("jaxdyn", "math", "batching")
FOR_PRIMITIVES = ("jax.interpreters.ad", "jax.interpreters.batching", "jax.interpreters.mlir", "jax.core.ShapedArray")

MAX_LINES = 520


def _module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {_module(path): path for path in FILES}


def _imports(path):
    """Each import of a file as (line, dotted parts, inside a function, only for type checkers)."""
    package = _module(path) if path.name == "__init__.py" else _module(path)[:-1]

    def visit(node, inside, typing_only):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield child.lineno, tuple(alias.name.split(".")), inside, typing_only
            elif isinstance(child, ast.ImportFrom):
                base = tuple(child.module.split(".")) if child.module else ()
                if child.level:
                    base = package[: len(package) - child.level + 1] + base
                for alias in child.names:
                    yield child.lineno, (*base, alias.name), inside, typing_only
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, inside or function, typing_only or guard)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False, False)


def _own(target):
    """The module of the package that an import reads: `from .a import b` names the module a.b, or b in a."""
    return target if target in MODULES else target[:-1]


def _layer(module):
    return module[1] if len(module) > 1 else ""


def _assert_none(faults):
    assert not faults, "\n" + "\n".join(faults)


def test_every_module_belongs_to_a_layer():
    _assert_none(
        [f"{path}: add {_layer(m)!r} to LAYERS" for m, path in MODULES.items() if _layer(m) not in ("", *LAYERS)]
    )


def test_modules_import_only_from_layers_above():
    faults = []
    for path in FILES:
        here = _layer(_module(path))
        for line, target, *_ in _imports(path):
            if target[0] != "jaxdyn":
                continue
            there = _layer(_own(target))
            if here == "":
                allowed = there in LAYERS and there not in USES_THE_ROOT
            elif there == "":
                allowed = here in USES_THE_ROOT
            else:
                allowed = LAYERS.index(there) <= LAYERS.index(here)
            if not allowed:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {here or 'jaxdyn'} imports from {there or 'jaxdyn'}")
    _assert_none(faults)


def test_modules_do_not_import_each_other_in_a_ring():
    graph = {}
    for module, path in MODULES.items():
        targets = {_own(t) for _, t, _, typing_only in _imports(path) if t[0] == "jaxdyn" and not typing_only}
        graph[module] = targets - {module}
    rings, done = [], set()

    def walk(module, trail):
        if module in trail:
            rings.append(" -> ".join(".".join(m) for m in (*trail[trail.index(module) :], module)))
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                walk(target, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())
    _assert_none(rings)


def test_imports_inside_functions_are_optional_packages_only():
    faults = []
    for path in FILES:
        for line, target, inside, _ in _imports(path):
            if inside and target[0] not in OPTIONAL:
                faults.append(f"{path.relative_to(ROOT)}:{line}: imports {'.'.join(target)} inside a function")
    _assert_none(faults)


def test_imports_at_the_top_are_core_dependencies_or_the_standard_library():
    faults = []
    for path in FILES:
        for line, target, inside, typing_only in _imports(path):
            known = target[0] == "jaxdyn" or target[0] in CORE or target[0] in sys.stdlib_module_names
            if not (known or inside or (typing_only and target[0] in OPTIONAL)):
                faults.append(f"{path.relative_to(ROOT)}:{line}: imports {target[0]}, which is no core dependency")
    _assert_none(faults)


def test_no_internals_of_jax_are_used():
    faults = []
    for path in FILES:
        used = {(line, ".".join(target)) for line, target, *_ in _imports(path)}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add((node.lineno, ast.unparse(node)))
        for line, name in sorted(used):
            part = any(at == line and longer.startswith(name + ".") for at, longer in used)
            bad = any(name == prefix or name.startswith(prefix + ".") for prefix in UNSTABLE)
            primitive = _module(path) == PRIMITIVES and name.startswith(FOR_PRIMITIVES)
            if bad and not part and not primitive and name not in STABLE_ALL_THE_SAME:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    _assert_none(faults)


def test_package_files_only_hand_names_on():
    faults = []
    for path in (p for p in FILES if p.name == "__init__.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            handed_on = isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names)
            if not (docstring or handed_on):
                faults.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}")
    _assert_none(faults)


def test_files_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    _assert_none(
        [f"{path.relative_to(ROOT)}: {n} lines, {MAX_LINES} allowed" for path, n in lengths.items() if n > MAX_LINES]
    )


IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import jax, equinox, optax
from jax._src import xla_bridge

before = dict(jax.config.values)
started = xla_bridge.backends_are_initialized()
import jaxdyn
for info in pkgutil.walk_packages(jaxdyn.__path__, "jaxdyn."):
    if info.name != "jaxdyn.__main__":
        importlib.import_module(info.name)
after = dict(jax.config.values)
changed = sorted(name for name in after if after[name] != before.get(name))
assert not changed, f"changed settings of JAX: {changed}"
assert not xla_bridge.backends_are_initialized() or started, "started a backend"
optional = sorted(set(OPTIONAL) & set(sys.modules))
assert not optional, f"imported optional packages: {optional}"
print("imported")
"""


def test_importing_changes_no_setting_and_starts_no_backend(run_python):
    code = f"OPTIONAL = {sorted(OPTIONAL)}\n{IMPORT_EVERYTHING}"
    assert run_python("-c", code).stdout.strip() == "imported"


def _public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    return sorted(
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    )


def _docstring(thing):
    if not isinstance(thing, type):
        return thing.__doc__ or ""
    text = thing.__dict__.get("__doc__") or ""
    # What dataclasses and enumerations write by themselves is not a docstring.
    return "" if text.startswith(f"{thing.__name__}(") or text == "An enumeration." else text


def test_every_public_name_has_a_docstring():
    import jaxdyn

    things = {name: getattr(jaxdyn, name) for name in _public_names()}
    _assert_none([f"jaxdyn.{name} has no docstring" for name, thing in things.items() if not _docstring(thing).strip()])


@pytest.mark.parametrize("line, fault", [("import jaxdyn", "jaxdyn"), ("from ..viz import Scene", "viz")])
def test_the_layer_test_sees_a_fault(tmp_path, monkeypatch, line, fault):
    path = PACKAGE / "math" / "_probe.py"
    source = tmp_path / "_probe.py"
    source.write_text(f"def f():\n    {line}\n")

    class Probe(type(path)):
        def read_text(self, *args, **kwargs):
            return source.read_text()

    monkeypatch.setattr(sys.modules[__name__], "FILES", [Probe(path)])
    with pytest.raises(AssertionError, match=f"math imports from {fault}"):
        test_modules_import_only_from_layers_above()
    with pytest.raises(AssertionError, match="inside a function"):
        test_imports_inside_functions_are_optional_packages_only()
