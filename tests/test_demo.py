"""`jaxdyn demo`, small: what it computes, prints and writes."""

import contextlib
import io
import json
import re
import subprocess

import numpy as np
import pytest

import jaxdyn
from jaxdyn.cli import main

ENVS, STEPS = 6, 300
ARGUMENTS = (
    f"demo --envs {ENVS} --steps {STEPS} --iterations 12 --duration 0.2 --hop 0.35 --show 4 --precision 64".split()
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Status, folder and printed text of a small demo."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    with contextlib.redirect_stdout(io.StringIO()) as text:
        status = main([*ARGUMENTS, "--out", str(folder)])
    return status, folder, text.getvalue()


@pytest.fixture(scope="module")
def data(demo):
    with np.load(demo[1] / "data.npz") as arrays:
        return dict(arrays)


def test_it_succeeds_and_writes_what_it_says(demo):
    status, folder, text = demo
    assert status == 0
    names = {
        "index.html",
        "base_height.png",
        "contact_forces.png",
        "cost.png",
        "hop_height.png",
        "data.npz",
        "figures.json",
    }
    assert {path.name for path in folder.iterdir()} == names
    assert all(str(folder / name) in text for name in names)


def test_it_prints_progress_figures_and_the_cost_as_it_falls(demo):
    _, _, text = demo
    assert re.search(r"\[#+\.*\] \d+/300 +[\d ]+ env-steps/s", text)
    costs = [float(cost) for cost in re.findall(r"^ +\d+ +([\d.e+-]+)(?: +[\d.e+-]+){4}$", text, re.M)]
    assert len(costs) == 13 and costs[-1] < 0.7 * costs[0]
    assert re.search(r"env-steps/s; compile time .* s \(drop\), .* s \(gradient\); cost .* before, .* after", text)


def test_the_quadrupeds_fall_and_stand_under_different_friction(data):
    q, friction = data["drop_q"], data["drop_friction"]
    assert q.shape == (ENVS, len(data["drop_time"]), 19) and q.dtype == np.float64
    assert data["drop_time"][0] == 0 and data["drop_time"][-1] == pytest.approx(0.3)
    assert (q[:, 0, 2] > 0.38).all() and (q[:, -1, 2] > 0.2).all() and (q[:, -1, 2] < 0.36).all()
    assert np.unique(friction).size == ENVS and (friction >= 0.4).all() and (friction <= 1).all()


def test_forces_push_and_stay_near_the_friction_cone_of_each_environment(data):
    force = data["drop_contact_forces"]
    normal, across = force[..., 2], np.linalg.norm(force[..., :2], axis=-1)
    assert (normal >= 0).all() and normal.max() > 50
    assert (across <= data["drop_friction"][:, None, None] * normal + 1e-3).all()
    assert (normal[:, 0] == 0).all(), "no force before the fall"


def test_points_of_application_are_on_the_ground(data):
    pressed = data["drop_contact_forces"][..., 2] > 5
    assert pressed.any()
    assert np.abs(data["drop_contact_points"][pressed][:, 2]).max() < 1e-4


def test_the_hop_goes_up_within_the_limits_of_the_joints(data, demo):
    figures = json.loads((demo[1] / "figures.json").read_text())
    assert figures["cost_after"] == pytest.approx(data["cost"].min())
    assert figures["height_reached"] > data["hop_q_before"][:, 2].max() + 0.005
    model = jaxdyn.load("quadruped", root="floating")
    assert (np.abs(data["hop_torque"]) <= np.asarray(model.effort_limit[6:]) + 1e-4).all()


def test_the_same_seed_gives_the_same_drop(data, tmp_path):
    assert main([*ARGUMENTS, "--iterations", "0", "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "data.npz") as again:
        np.testing.assert_array_equal(again["drop_q"], data["drop_q"])


def test_the_page_opens_in_a_browser(demo, browser, tmp_path):
    page = demo[1] / "index.html"
    assert (
        "http://" not in re.sub(r"http://www\.w3\.org/\S*", "", page.read_text()) and "https://" not in page.read_text()
    )
    shot = tmp_path / "shot.png"
    options = "--headless=new --no-sandbox --disable-gpu --use-angle=swiftshader --enable-unsafe-swiftshader".split()
    done = subprocess.run(
        [browser, *options, "--window-size=640,400", "--virtual-time-budget=3000", f"--screenshot={shot}", f"file://{page}#t=0.1"],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and shot.stat().st_size > 20_000
    assert "CONSOLE" not in done.stderr, done.stderr
