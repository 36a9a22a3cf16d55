"""What is in the wheel that a user installs."""

import pathlib
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    (path,) = hatchling.WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"]
    )
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(wheel.namelist())
    kinds = {".py", ".urdf", ".xml", ".html", ".js", ".css", ".typed", ".md"}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "jaxdyn").rglob("*")
        if path.is_file() and (path.suffix in kinds or path.name == "py.typed")
    }
    assert wanted <= names, f"left out: {sorted(wanted - names)}"
    strangers = {name for name in names if not name.startswith(("jaxdyn/", "jaxdyn-"))}
    assert not strangers


def test_the_wheel_names_the_command_and_the_licence(wheel):
    files = {name.rpartition("/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "jaxdyn = jaxdyn.cli:main" in wheel.read(files["entry_points.txt"]).decode()
    metadata = wheel.read(files["METADATA"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "LICENSE" in files


def test_dependencies_have_a_floor_and_no_cap():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        assert ">=" in requirement and "<" not in requirement and "==" not in requirement, requirement
