"""The command `jaxdyn`: arguments, exit statuses, messages of one line, results, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from oracles import ROBOTS, urdf_path

import jaxdyn
from jaxdyn.cli import COMMANDS, main

SLED = """<robot name="sled">
  <link name="body"><inertial><mass value="2"/><inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision name="hull"><geometry><box size="0.2 0.1 0.1"/></geometry></collision></link>
  <link name="mast"><inertial><origin xyz="0 0 0.1"/><mass value="0.5"/>
    <inertia ixx="0.003" iyy="0.003" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="tilt" type="revolute"><origin xyz="0 0 0.05"/><parent link="body"/><child link="mast"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="5" velocity="5"/></joint>
</robot>"""


@pytest.fixture
def sled(tmp_path):
    """Path of a small robot: a box with a mast."""
    path = tmp_path / "sled.urdf"
    path.write_text(SLED)
    return str(path)


@pytest.fixture
def run(capsys):
    """`run("info pendulum ...")` gives (status, standard output, standard error)."""

    def call(*arguments):
        words = arguments[0].split() if len(arguments) == 1 else list(map(str, arguments))
        if set(words).isdisjoint({"--precision", "--help"}) and words[:1] and words[0] in COMMANDS:
            words += ["--precision", "64"]  # that of the tests: another one forgets all compiled programs
        status = main(words)
        return status, *capsys.readouterr()

    return call


def arrays(path):
    with np.load(path) as data:
        return dict(data)


# Arguments


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_the_common_options(run, command):
    status, text, _ = run(f"{command} --help")
    assert status == 0
    assert all(option in text for option in ("--seed", "--precision {32,64}", "--out", "--debug", "--help"))


def test_help_lists_the_commands_and_version_is_that_of_the_package(run):
    status, text, _ = run("--help")
    assert status == 0 and all(command in text for command in COMMANDS)
    assert run("--version")[:2] == (0, f"jaxdyn {jaxdyn.__version__}\n")


@pytest.mark.parametrize(
    "line, status, words",
    [
        ("", 2, "COMMAND"),
        ("fly", 2, "fly"),
        ("info", 2, "PATH"),
        ("rollout pendulum --envs many", 2, "many"),
        ("rollout pendulum --precision 16", 2, "16"),
        ("rollout pendulum --seed -1", 2, "wanted a whole number from 0 to 4294967295, given -1"),
        ("rollout pendulum --seed 99999999999999999999", 2, "wanted a whole number"),
        ("rollout pendulum --seed one", 2, "'one'"),
        ("info pendulun", 1, "did you mean 'pendulum'"),
        ("info nowhere/robot.urdf", 1, "nowhere"),
        ("rollout pendulum --envs 0", 1, "--envs: wanted at least 1, given 0"),
        ("rollout pendulum --dt -1", 1, "--dt: wanted a positive number, given -1.0"),
        ("rollout pendulum --dt nan", 1, "--dt"),
        ("optimize pendulum --knots 1", 1, "--knots"),
        ("view pendulum --posture pivot", 1, "wanted JOINT=VALUE with a number, given 'pivot'"),
        ("view pendulum --posture pivot=up", 1, "'pivot=up'"),
        ("view pendulum --posture pivto=1", 1, "did you mean 'pivot'"),
        ("view pendulum --motion nothing.npz", 1, "--motion: cannot read 'nothing.npz'"),
        ("rollout double_pendulum --contacts tipp", 1, "unknown frame 'tipp'"),
        ("optimize pendulum --frame tip", 1, "--frame: say where it is to go"),
        ("optimize pendulum --to 0 0 1 --by 0 0 1", 1, "one of --to, --by and --joints"),
        ("optimize pendulum --frame base --by 0 0 1", 1, "'base' is fixed to the world"),
        ("optimize box", 1, "no joints"),
        ("demo --hop inf", 1, "--hop"),
    ],
)
def test_bad_input_is_answered_with_one_line_and_a_status(run, tmp_path, monkeypatch, line, status, words):
    monkeypatch.chdir(tmp_path)
    code, _, text = run(line)
    assert code == status
    assert text.count("\n") == 1 and "Traceback" not in text
    assert words.lower() in text.lower()


def test_a_file_that_is_no_robot_is_answered_with_one_line(run, tmp_path):
    path = tmp_path / "bad.urdf"
    path.write_text("<robot name='x'><link name='a'/><link name='a'/></robot>")
    status, _, text = run("info", path)
    assert status == 1 and text.count("\n") == 1 and "'a'" in text


def test_a_folder_that_cannot_be_written_is_answered_with_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, text = run("view", "pendulum", "--out", tmp_path / "file")
    assert status == 1 and text.count("\n") == 1 and "--out: cannot write" in text


def test_debug_shows_where_an_error_comes_from(run):
    status, _, text = run("info pendulun --debug")
    assert status == 1 and "Traceback" in text and text.rstrip().splitlines()[-1].startswith("jaxdyn info: ")


def test_remarks_about_a_file_are_one_line_each(run, tmp_path):
    path = tmp_path / "free.urdf"
    path.write_text(SLED.replace('<limit lower="-1" upper="1" effort="5" velocity="5"/>', ""))
    status, _, text = run("info", path, "--out", tmp_path)
    assert status == 0
    assert text and all(line.startswith("jaxdyn: note: ") for line in text.splitlines())


# info, check, view


def test_info_shows_joints_limits_frames_and_contacts(run, sled, tmp_path):
    status, text, _ = run("info", sled, "--base", "floating", "--out", tmp_path / "out")
    assert status == 0
    row = next(line for line in text.splitlines() if line.startswith("tilt"))
    assert row.split() == ["tilt", "revolute", "body", "mast", "7", "6", "-1", "1", "5", "5", "0", "0"]
    assert "1 collision box" in text and "contact, body:" in text
    facts = json.loads((tmp_path / "out" / "info.json").read_text())
    assert facts["nv"] == 7 and facts["mass"] == pytest.approx(2.5)
    assert sorted(map(tuple, facts["contacts"][0]["points"])) == sorted(
        (x, y, -0.05) for x in (-0.1, 0.1) for y in (-0.05, 0.05)
    )


def test_check_finds_nothing_wrong_with_a_sound_robot(run, sled):
    status, text, error = run("check", sled, "--base", "floating")
    assert status == 0, error
    assert "No problem found." in text and "FAIL" not in text
    for subject in ("inertia", "limits", "mass matrix", "contacts", "time step", "gradient", "Pinocchio"):
        assert subject in text


FAULTS = {
    "mass matrix": (
        ('<mass value="0.5"/>', '<mass value="0"/>'),
        ('ixx="0.003" iyy="0.003" izz="0.001"', 'ixx="0" iyy="0" izz="0"'),
    ),
    "inertia": (('ixx="0.003"', 'ixx="0.03"'),),
}


@pytest.mark.parametrize("subject, name", [("mass matrix", "'tilt'"), ("inertia", "mast")])
def test_check_names_what_is_wrong_and_fails(run, tmp_path, subject, name):
    text = SLED
    for old, new in FAULTS[subject]:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "faulty.urdf"
    path.write_text(text)
    status, printed, _ = run("check", path, "--out", tmp_path / "out")
    assert status == 1
    (line,) = [line for line in printed.splitlines() if "FAIL" in line]
    assert name in line and subject in line
    assert f"1 problem: {subject}." in printed
    findings = json.loads((tmp_path / "out" / "check.json").read_text())
    assert [f["subject"] for f in findings if f["level"] == "FAIL"] == [subject]


def test_check_repeats_the_remarks_of_the_reader_as_notes(run, tmp_path):
    path = tmp_path / "crossed.urdf"
    path.write_text(SLED.replace('lower="-1" upper="1"', 'lower="1" upper="-1"'))
    status, printed, error = run("check", path)
    assert status == 0 and error == ""
    assert "note  file: " in printed and "lower > upper" in printed


def test_view_writes_a_page_and_prints_its_path(run, sled, tmp_path):
    status, text, _ = run("view", sled, "--base", "floating", "--posture", "tilt=0.3", "--out", tmp_path / "out")
    page = tmp_path / "out" / "index.html"
    assert status == 0 and str(page) in text and "<canvas" in page.read_text()


# rollout, optimize


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    """A small rollout of a floating robot."""
    folder = tmp_path_factory.mktemp("rollout")
    (folder / "sled.urdf").write_text(SLED)
    line = f"rollout {folder}/sled.urdf --base floating --envs 5 --steps 400 --precision 64 --out {folder}/out"
    assert main(line.split()) == 0
    return line, folder / "out"


def test_rollout_writes_page_plots_data_and_figures(rolled):
    assert {p.name for p in rolled[1].iterdir()} == {
        "index.html",
        "base_height.png",
        "contact_forces.png",
        "data.npz",
        "figures.json",
    }
    figures = json.loads((rolled[1] / "figures.json").read_text())
    assert figures["environments"] == 5 and figures["steps"] == 400 and figures["status"] == "OK"
    assert figures["env_steps_per_second"] > 0


def test_a_dropped_robot_comes_to_rest_with_its_weight_on_the_ground(rolled):
    data = arrays(rolled[1] / "data.npz")
    assert data["q"].shape == (5, 101, 8) and data["v"].shape == (5, 101, 7) and data["q"].dtype == np.float64
    assert data["contact_names"].tolist() == ["body", "mast"]
    np.testing.assert_allclose(data["q"][:, 0, 2].min(), 0.05 + 0.05, atol=0.03)
    total = data["contact_forces"][:, -20:, :, 2].sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(total, 2.5 * 9.80665, rtol=0.25)


def test_the_seed_decides_the_rollout(rolled, tmp_path):
    line, folder = rolled
    for seed, same in ((0, True), (1, False)):
        assert main([*line.split()[:-1], str(tmp_path), "--seed", str(seed)]) == 0
        assert np.array_equal(arrays(tmp_path / "data.npz")["q"], arrays(folder / "data.npz")["q"]) == same


@pytest.mark.parametrize("bits", [64, 32])
def test_the_precision_is_that_of_the_results_and_is_given_back(run, tmp_path, bits):
    status, text, error = run(f"rollout double_pendulum --envs 2 --steps 20 --precision {bits} --out {tmp_path}")
    assert status == 0, error
    assert f"float{bits}" in text and arrays(tmp_path / "data.npz")["q"].dtype == np.dtype(f"float{bits}")
    assert {p.name for p in tmp_path.iterdir()} == {"index.html", "joints.png", "data.npz", "figures.json"}
    assert jax.config.jax_enable_x64


def test_a_rollout_that_becomes_infinite_says_so_and_keeps_what_came_before(run, tmp_path):
    line = f"rollout double_pendulum --envs 2 --steps 200 --dt 30 --substeps 1 --perturb 300 --out {tmp_path}"
    status, _, text = run(line)
    if status == 0:
        pytest.skip("the PD control of this version keeps even that finite")
    assert status == 1 and text.count("\n") == 1 and "after step" in text
    assert (tmp_path / "data.npz").exists()


@pytest.mark.parametrize("goal", ["--joints elbow=0.3", "--frame tip --by 0.1 0 0.05"])
def test_optimize_reaches_its_goal(run, tmp_path, goal):
    line = f"optimize double_pendulum {goal} --duration 0.5 --dt 0.01 --iterations 60 --out {tmp_path}"
    status, text, error = run(line)
    assert status == 0, error
    figures, data = json.loads((tmp_path / "figures.json").read_text()), arrays(tmp_path / "data.npz")
    assert figures["cost_after"] < 0.2 * figures["cost_before"] and figures["miss_after"] < 0.3 * figures["miss_before"]
    assert data["cost"].shape == (61,) and data["torque"].shape[1] == 2 and (tmp_path / "index.html").exists()
    assert re.search(r"^ +60 +", text, re.M)


@pytest.mark.parametrize("bits", [64, 32])
def test_an_optimisation_repeats_itself_with_its_seed_and_precision(run, tmp_path, bits):
    line = f"optimize double_pendulum --duration 0.05 --dt 0.01 --iterations 3 --precision {bits}"
    knots = []
    for k, seed in enumerate((5, 5, 6)):
        status, text, error = run(f"{line} --seed {seed} --out {tmp_path}/{k}")
        assert status == 0, error
        data = arrays(tmp_path / str(k) / "data.npz")
        assert f"float{bits}" in text
        assert {data[name].dtype for name in ("q", "v", "torque", "goal")} == {np.dtype(f"float{bits}")}
        knots.append(data["knots"])
    np.testing.assert_array_equal(knots[0], knots[1])
    assert not np.array_equal(knots[0], knots[2])


def test_another_seed_starts_another_search_also_towards_the_same_goal(run, tmp_path):
    line = "optimize double_pendulum --joints elbow=0.2 --duration 0.02 --dt 0.01 --iterations 1"
    for seed in (0, 1):
        assert run(f"{line} --seed {seed} --out {tmp_path}/{seed}")[0] == 0
    first, second = (arrays(tmp_path / str(seed) / "data.npz") for seed in (0, 1))
    np.testing.assert_array_equal(first["goal"], second["goal"])
    assert not np.array_equal(first["knots"], second["knots"])


# robots of the robot package, and the links that they stand on
FEET = {
    "panda": (),
    "ur5": (),
    "go2": ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
    "solo12": ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"),
    "anymal": ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"),
    "talos": ("left_sole_link", "right_sole_link"),
    "g1": ("left_ankle_roll_link", "right_ankle_roll_link"),
    "icub": ("l_foot", "r_foot_dh_frame"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEET)
def test_optimize_improves_the_motion_of_real_robots(run, tmp_path, name):
    """Standing on its feet and still at first; then nearer to the goal with each of a few steps."""
    options = "--duration 0.1 --dt 0.002 --iterations 5 --precision 32"
    line = f"optimize {urdf_path(name)} --base {ROBOTS[name][1]} {options} --out {tmp_path}"
    status, text, error = run(line)
    assert status == 0, error
    figures, data = json.loads((tmp_path / "figures.json").read_text()), arrays(tmp_path / "data.npz")
    assert all(np.isfinite(data[key]).all() for key in ("q", "v", "torque", "cost", "contact_forces")), text
    assert tuple(data["contact_names"]) == FEET[name]
    assert figures["cost_after"] < 0.97 * figures["cost_before"] and figures["miss_after"] < figures["miss_before"]
    if FEET[name]:
        height, before = data["q"][0, 2], data["q_before"]
        assert abs(before[:, 2] - height).max() < 0.02 * height
        # the posture control alone lets no joint go
        assert abs(before[:, 7:] - before[0, 7:]).max() < 0.15
        total = data["contact_forces"][:3, :, 2].sum(axis=1)
        weight = 9.80665 * float(re.search(r"([\d.]+) kg, float32", text).group(1))
        np.testing.assert_allclose(total, weight, rtol=0.2)


# Interruption


def interrupted(arguments, ready, tmp_path):
    """Starts the command, sends SIGINT when `ready` is printed; gives the exit status and what was printed."""
    command = [sys.executable, "-m", "jaxdyn", *arguments.split(), "--out", str(tmp_path)]
    log = tmp_path / "log.txt"
    with open(log, "w") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            until = time.monotonic() + 240
            while not re.search(ready, log.read_text()):
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            return process.wait(timeout=120), log.read_text()
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_keeps_the_steps_of_a_rollout(tmp_path):
    status, text = interrupted("rollout double_pendulum --envs 8 --steps 2000000", r"\d+/2000000", tmp_path)
    assert status == 130 and "Interrupted after" in text and "Traceback" not in text
    data = arrays(tmp_path / "data.npz")
    assert 0 < data["time"][-1] < 1999 and data["q"].shape[:2] == (8, len(data["time"]))
    assert json.loads((tmp_path / "figures.json").read_text())["status"] == "INTERRUPTED"


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_keeps_the_best_motion_of_an_optimisation(tmp_path):
    line = "optimize double_pendulum --duration 0.2 --dt 0.005 --iterations 1000000"
    # the table has few lines: the first one tells that it runs
    status, text = interrupted(line, r"\n +0 +[\d.]+", tmp_path)
    assert status == 130 and "the best motion until then" in text and "Traceback" not in text
    data = arrays(tmp_path / "data.npz")
    assert len(data["cost"]) >= 1 and np.isfinite(data["q"]).all()


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    done = subprocess.run(
        f'"{sys.executable}" -m jaxdyn info pendulum | head -n 1',
        shell=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.startswith("pendulum:") and done.stderr == ""
