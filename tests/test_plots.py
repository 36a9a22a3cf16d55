"""Plots: what is drawn, and that matplotlib stays optional and untouched."""

import sys

import numpy as np
import pytest

from jaxdyn.errors import InputError
from jaxdyn.viz import plots

T = np.linspace(0, 1, 40)
MANY = np.sin(6 * T) + np.linspace(-0.3, 0.3, 25)[:, None]


def test_a_plot_has_units_on_its_axes_and_can_be_written(tmp_path):
    figure, axes = plots.plot_base_height(T, 0.3 + 0.1 * MANY, target=0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (s)", "height of the base (m)")
    assert any("target 0.5 m" in text.get_text() for text in axes.texts)
    figure.savefig(tmp_path / "height.png")
    assert (tmp_path / "height.png").stat().st_size > 5000


def test_environments_become_a_median_and_two_bands():
    _, axes = plots.plot_base_height(T, MANY)
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_ydata(), np.median(MANY, axis=0))
    assert len(axes.collections) == 2 and "25 environments" in axes.get_title(loc="right")
    _, one = plots.plot_base_height(T, MANY[:1])
    assert len(one.collections) == 0 and len(one.lines) == 1


def test_contact_forces_are_split_along_and_across_the_normal():
    forces = np.zeros((40, 2, 3))
    forces[:, 0] = [3.0, 4.0, 10.0]
    figure, (top, bottom) = plots.plot_contact_forces(T, forces, names=["left", "right"], weight=20.0)
    assert top.lines[0].get_ydata()[0] == 10 and bottom.lines[0].get_ydata()[0] == 5
    assert [text.get_text() for text in top.get_legend().get_texts()] == ["left", "right"]
    assert any(text.get_text() == "weight / 2" for text in top.texts)
    tilted = plots.plot_contact_forces(T, forces, normal=(3.0, 4.0, 10.0))[1]
    assert abs(tilted[1].lines[0].get_ydata()[0]) < 1e-9
    assert plots.plot_contact_forces(T, np.stack([forces] * 3))[0] is not figure


def test_a_cost_that_falls_far_has_a_logarithmic_axis_and_says_where_it_ends():
    _, axes = plots.plot_cost(10.0 ** -np.arange(4.0))
    assert axes.get_yscale() == "log" and {text.get_text() for text in axes.texts} == {"1", "0.001"}
    assert plots.plot_cost(np.linspace(2, 1, 5))[1].get_yscale() == "linear"
    with pytest.raises(InputError, match="positive"):
        plots.plot_cost(np.array([1.0, -1.0]), log=True)


def test_joints_have_their_own_axes_with_limits_and_reference():
    x = np.stack([MANY] * 5, axis=-1)
    figure, axes = plots.plot_joint_trajectories(
        T, x, names=list("abcde"), lower=[-1.5, -np.inf, -100, -1, -1], upper=[np.inf] * 5, reference=np.zeros(5)
    )
    assert axes.shape == (5,) and [ax.get_title(loc="left") for ax in axes] == list("abcde")
    assert [len(ax.patches) for ax in axes] == [1, 0, 0, 1, 1]
    assert axes[0].get_ylabel() == "position (rad)" and axes[4].get_xlabel() == "time (s)"
    assert len(plots.plot_joint_trajectories(T, MANY.T[:, :1])[1]) == 1
    figure.draw_without_rendering()


def test_given_axes_are_drawn_into():
    from matplotlib.figure import Figure

    figure = Figure()
    ax = figure.subplots()
    assert plots.plot_cost(np.ones(3), axes=ax) == (figure, ax)
    pair = Figure().subplots(2)
    assert plots.plot_contact_forces(T, np.ones((40, 1, 3)), axes=pair)[1][0] is pair[0]
    with pytest.raises(InputError, match="axes: wanted 2"):
        plots.plot_contact_forces(T, np.ones((40, 1, 3)), axes=ax)


def test_plots_leave_the_state_of_pyplot_alone(run_python):
    code = (
        "import sys, numpy as np; from jaxdyn.viz import plots; assert 'matplotlib' not in sys.modules\n"
        "plots.plot_cost(np.ones(3)); print('matplotlib.pyplot' in sys.modules)"
    )
    assert run_python("-c", code).stdout.strip() == "False"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdyn\[viz\]'"):
        plots.plot_cost(np.ones(3))


@pytest.mark.parametrize(
    "act, text",
    [
        (lambda: plots.plot_base_height(T, MANY[:, :-1]), "39 steps, but 40 times"),
        (lambda: plots.plot_base_height(T, np.full(40, np.nan)), "not finite"),
        (lambda: plots.plot_base_height(T, np.zeros((2, 2, 40))), "wanted shape"),
        (lambda: plots.plot_contact_forces(T, np.zeros((39, 1, 3))), "39 steps, but 40 times"),
        (lambda: plots.plot_contact_forces(T, np.zeros((40, 2, 3)), names=["one"]), "names: wanted 2, given 1"),
        (lambda: plots.plot_joint_trajectories(T, np.zeros((40, 2)), lower=np.zeros(3)), r"lower: wanted shape \(2,\)"),
        (lambda: plots.plot_cost([]), "is empty"),
    ],
)
def test_mistakes_are_refused(act, text):
    with pytest.raises(InputError, match=text):
        act()
