"""The notebooks run from start to end in a fresh kernel, with small numbers, and end in a picture."""

import json
import pathlib
import re

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SLOW = ("06",)  # more than a minute of compilation
CASES = [pytest.param(path, marks=[pytest.mark.slow] if path.stem[:2] in SLOW else []) for path in PATHS]


@pytest.fixture(scope="module", params=CASES, ids=[path.stem for path in PATHS])
def executed(request, tmp_path_factory):
    """A notebook with its results, and the variables `costs` that it ends with, if any."""
    notebook = nbformat.read(request.param, as_version=4)
    last = "import json\nprint(json.dumps([float(c) for c in globals().get('costs', [])]))"
    notebook.cells.append(nbformat.v4.new_code_cell(last))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXDYN_NOTEBOOKS_QUICK", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        # Away from the clone: what a notebook needs, it must bring itself.
        resources = {"metadata": {"path": str(tmp_path_factory.mktemp(request.param.stem))}}
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    costs = json.loads(notebook.cells.pop().outputs[-1]["text"])
    return request.param.stem, notebook, costs


def _outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_are_two_notebooks_numbered_from_one():
    assert [path.stem[:2] for path in PATHS][:2] == ["01", "02"]


def test_a_notebook_runs_without_an_error_or_a_warning(executed):
    _, notebook, _ = executed
    outputs = _outputs(notebook)
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    warnings = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr" and "Warning" in o.text]
    assert not warnings


def test_a_notebook_shows_a_plot_and_ends_in_an_animation(executed):
    _, notebook, _ = executed
    data = [output["data"] for output in _outputs(notebook) if "data" in output]
    plots = [d["image/png"] for d in data if "image/png" in d]
    # base64: less than this is an empty frame
    assert plots
    assert min(len(plot) for plot in plots) > 10_000
    page = notebook.cells[-1].outputs[-1]["data"]["text/html"]
    assert "<iframe" in page
    assert len(page) > 50_000


def test_the_cost_of_an_optimised_motion_falls(executed):
    name, _, costs = executed
    if not name.startswith("02"):
        assert costs == []
        return
    assert len(costs) > 5
    assert 0 <= min(costs) < 0.7 * costs[0]
    assert costs[-1] < costs[0]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_results_and_explain_themselves(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert notebook.cells[0].cell_type == "markdown"
    assert re.match(r"# \S", notebook.cells[0].source)
    assert any("jax_enable_x64" in cell.source for cell in code), "the precision is chosen"
