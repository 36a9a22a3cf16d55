"""What the documentation and the README say is there, and works."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("jaxdyn_docs_pages", ROOT / "docs" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_an_entry_in_the_reference(pages, tmp_path):
    import jaxdyn

    pages.write_reference(tmp_path)
    entries = set()
    for path in tmp_path.glob("*.md"):
        entries |= set(re.findall(r"^#+ (\S+)$", path.read_text(encoding="utf-8"), re.M))
    missing = sorted(name for name, _ in pages.public_names(jaxdyn) if name not in entries)
    assert not missing


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_example_runs_as_printed(page):
    (block, *_) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    names = {}
    exec(compile(block, f"<first example of {page}>", "exec"), names)
    assert names["batch"].shape == (256, names["model"].nv)
    assert names["slope"].shape == (names["model"].nv,) * 2


def test_the_page_on_rollouts_runs_as_printed():
    pytest.importorskip("diffrax")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/rollouts.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) > 8
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "<docs/rollouts.md>", "exec"), names)
    assert names["result"].status == 0 and names["path"].stopped and names["path"].steps < 100
    assert names["slope"].shape == () and names["substeps"] > 1


@pytest.mark.slow
def test_the_page_on_contact_runs_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/contact.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) > 6
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "<docs/contact.md>", "exec"), names)
    assert names["forces"].shape == (4, 6) and (names["forces"][:, 2] > 0).all()
    # the ball bounces: it is higher the faster it fell, by the time that it is on its way up for longer
    assert np.isfinite(names["slope"]) and names["slope"] != 0
    assert names["height"].shape == (1,) and names["margin"].shape == (10, 4) and (names["slack"] >= 0).all()
    assert names["trot"].at(0.3).tolist() == [0, 1, 1, 0]
    assert names["slid"].shape == (10, 1, 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    # the build writes the pages of these two folders, and fails for links that lead nowhere
    local = [
        target for target in targets if "://" not in target and not target.startswith(("notebooks/", "reference/"))
    ]
    assert not [target for target in local if not (page.parent / target).exists()]


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        for line in re.findall(r"^make ([a-z -]+)", page.read_text(encoding="utf-8"), re.M):
            assert set(line.split()) <= targets, f"{page.name}: make {line}"


def test_names_and_tests_in_the_table_for_users_of_pinocchio_exist():
    import jaxdyn

    rows = re.findall(r"^\| (.*?) \| (.*?) \| `(test_\w+\.py)` \|$", (ROOT / "docs/pinocchio.md").read_text(), re.M)
    assert len(rows) > 40
    for _, ours, test in rows:
        assert (ROOT / "tests" / test).exists(), test
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", ours):
            thing = None if name.startswith("jax.") else jaxdyn
            for part in name.split(".") if thing else ():
                thing = getattr(thing, part, None)
                assert thing is not None, name
