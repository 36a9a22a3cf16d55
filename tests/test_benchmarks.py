"""The arithmetic and the tables of `benchmarks/`, on made-up numbers: nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import bar, conventions, report, robots, rollout_task, table, timing
from benchmarks.run import Plan, Record, Results, interleave
from benchmarks.timing import Sample, Statistics
from benchmarks.workers import Failed

ROOT = Path(__file__).resolve().parent.parent


def samples(*seconds, evaluations=1):
    return [Sample(wall=2.0 * s * evaluations, cpu=s * evaluations, evaluations=evaluations) for s in seconds]


def record(kind, algorithm, peer, *seconds, robot="quadruped", threads=1, error=None):
    return Record(kind, robot, algorithm, peer, threads, algorithm, error, samples(*seconds, evaluations=1000))


def test_summary_is_the_median_with_its_quartiles():
    assert timing.summarise([5.0, 1.0, 3.0, 2.0, 4.0]) == Statistics(3.0, 2.0, 4.0, 5)
    assert timing.summarise([7.0]) == Statistics(7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="no repeats"):
        timing.summarise([])


def test_one_slow_repeat_does_not_move_the_summary():
    calm, disturbed = timing.summarise([1.0, 1.0, 1.0, 1.0, 1.0]), timing.summarise([1.0, 1.0, 1.0, 1.0, 50.0])
    assert calm == disturbed


def test_time_of_one_evaluation_by_either_clock():
    repeats = samples(2e-6, 3e-6, 4e-6, evaluations=1000)
    assert timing.seconds_per_evaluation(repeats, "cpu").median == pytest.approx(3e-6)
    assert timing.seconds_per_evaluation(repeats, "wall").median == pytest.approx(6e-6)
    with pytest.raises(ValueError, match="'wall' or 'cpu'"):
        repeats[0].seconds("sun")


def test_ratio_of_pairs_is_steady_where_the_machine_is_not():
    noise = np.array([1.0, 3.0, 1.2, 8.0, 1.0])
    ratio = timing.speed_ratio(samples(*(1e-6 * noise)), samples(*(2e-6 * noise)), "wall")
    assert ratio.median == pytest.approx(2.0)
    assert ratio.high - ratio.low == pytest.approx(0.0, abs=1e-12)


def test_loops_and_repeats_fit_the_time():
    assert timing.loops_for(0.2, 0.001) == 200
    assert timing.loops_for(0.2, 5.0) == 1
    assert timing.loops_for(0.2, 0.0, at_most=10) == 10
    assert timing.repeats_for(9, one=1.0, budget=60.0) == 9
    assert timing.repeats_for(9, one=10.0, budget=60.0) == 6
    assert timing.repeats_for(9, one=100.0, budget=60.0) == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (table.seconds(1.234e-6), "1.23 µs"),
        (table.seconds(8.3e-7), "830 ns"),
        (table.seconds(0.99999), "1.00 s"),
        (table.seconds(61.0), "61.0 s"),
        (table.rate(1.2e6), "1.20 M/s"),
        (table.rate(70500.0), "70.5 k/s"),
        (table.rate(3.0), "3.00 /s"),
        (table.size(1536.0), "1.50 KiB"),
        (table.digits(0.0), "0"),
        (table.digits(12345.0), "12345"),
        (table.digits(0.333333), "0.333"),
        (table.ratio(Statistics(1.84, 1.79, 1.9, 5)), "1.84 (1.79-1.90)"),
        (table.ratio(Statistics(1.84, 1.84, 1.84, 1)), "1.84"),
        (table.spread(Statistics(2.0, 1.9, 2.1, 5)), "±5 %"),
        (table.spread(Statistics(2.0, 2.0, 2.0, 1)), "?"),
    ],
)
def test_numbers_as_text(text, wanted):
    assert text == wanted


def test_table_lines_up():
    lines = table.render(["name", "value"], [["a", "1"], ["µs", "10.5"]], right=(1,)).splitlines()
    assert lines == ["| name | value |", "|------|------:|", "| a    |     1 |", "| µs   |  10.5 |"]
    with pytest.raises(ValueError, match="1 cells, the header 2"):
        table.render(["name", "value"], [["a"]])


def test_bar_says_what_was_reached():
    assert [bar.Bar(0.5, 2.0).verdict(x) for x in (0.4, 0.5, 1.9, 2.0)] == ["below", "must", "must", "aim"]
    assert [bar.Bar(5.0, 2.0, "lower").verdict(x) for x in (6.0, 5.0, 2.0)] == ["below", "must", "aim"]


def test_ratios_against_the_bar():
    records = [
        record("batch", "aba", "jaxdyn", 5e-6, 5e-6),
        record("batch", "aba", "pinocchio", 4e-6, 4e-6),
        record("batch", "aba", "frax", 20e-6, 20e-6),
        record("single", "aba", "jaxdyn", 50e-6, 50e-6, threads=2),
        record("single", "aba", "frax", 100e-6, 100e-6, threads=2),
        record("rollout", "steps", "jaxdyn", 10e-6, 10e-6),
        record("rollout", "steps", "mujoco", 5e-6, 5e-6),
        record("rollout", "gradient_base", "jaxdyn", 1.0, 1.0),
        record("rollout", "gradient", "jaxdyn", 5.0, 5.0),
        record("compile", "aba, single", "jaxdyn", 1.5, 1.5, robot="humanoid", threads=2),
    ]
    memory = Record("memory", "quadruped", "memory", "jaxdyn", 1)
    memory.values = {"plain": 100.0e6, "nested": 1.0e6}
    text = report.against_bar([*records, memory])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    reached = {(row[0], row[3]): (row[4].split()[0], row[7]) for row in cells}
    assert reached["forward dynamics, throughput", "Pinocchio C++"] == ("0.800", "must")
    assert reached["forward dynamics, throughput", "frax"] == ("4.00", "must")
    assert reached["forward dynamics, latency", "frax"] == ("0.500", "aim")
    assert reached["contact rollout, env-steps", "MuJoCo C"] == ("0.500", "below")
    assert reached["gradient of 100 steps / rollout", "itself"] == ("5.00", "must")
    assert reached["memory of a gradient, plain / nested", "itself"] == ("100", "aim")


def test_every_sample_is_in_the_table_of_times():
    text = report.measured([record("batch", "rnea", "frax", 8e-6, 9e-6, error=1e-16)])
    assert "inverse dynamics" in text and "frax" in text and "8.50 ms" not in text and "8.50 µs" in text


def test_repeats_take_turns_and_a_failure_stops_only_its_own():
    calls = []

    def measured(name):
        def call():
            calls.append(name)
            if name == "b" and len(calls) > 3:
                raise Failed("gone")
            return Sample(1.0, 1.0)

        return call

    results = Results()
    records = [Record("batch", "arm7", "aba", name, 1) for name in "abc"]
    interleave(records, [measured(name) for name in "abc"], 3, results)
    assert "".join(calls) == "abc" + "bca" + "ca"
    assert [len(r.samples) for r in records] == [3, 1, 3]
    assert results.remarks == ["b, arm7, aba: gone"]


def test_error_is_relative_to_the_largest_value_of_each_state():
    wanted = np.array([[1.0, 100.0], [1.0, 2.0]])
    assert robots.relative_error(wanted + np.array([[0.0, 1.0], [0.0, 0.0]]), wanted) == pytest.approx(0.01)
    assert robots.relative_error(np.full((2, 2), np.nan), wanted) == np.inf
    with pytest.raises(ValueError, match="expected"):
        robots.relative_error(wanted[0], wanted)


def test_change_of_convention_and_back():
    rng = np.random.default_rng(1)
    q = rng.normal(size=(3, 9))
    q[:, 3:7] /= np.linalg.norm(q[:, 3:7], axis=1, keepdims=True)
    v, a, tau = rng.normal(size=(3, 3, 8))
    own = conventions.to_world_linear({"q": q, "v": v, "a": a, "tau": tau})
    np.testing.assert_allclose(np.linalg.det(conventions.rotation(q)), 1.0)
    np.testing.assert_array_equal(own["q"][:, 3], q[:, 6])
    np.testing.assert_allclose(conventions.acceleration_from_world_linear(q, v, own["a"]), a)
    np.testing.assert_allclose(conventions.force_from_world_linear(q, own["tau"]), tau)
    power = np.einsum("si,si->s", tau, v)
    np.testing.assert_allclose(np.einsum("si,si->s", own["tau"], own["v"]), power)


def test_rollout_starts_above_the_ground():
    names = tuple(f"{leg}_{part}" for leg in ("fl", "fr", "rl", "rr") for part in ("hip_roll", "hip_pitch", "knee"))
    states = rollout_task.initial_states(names, 5)
    assert states["q"].shape == (5, 19) and states["v"].shape == (5, 18)
    assert np.all(states["q"][:, 2] >= rollout_task.STANDING_HEIGHT)
    np.testing.assert_allclose(np.linalg.norm(states["q"][:, 3:7], axis=1), 1.0)


def test_samples_survive_json():
    text = json.dumps(record("batch", "rnea", "frax", 8e-6).as_json())
    assert json.loads(text)["samples"][0]["evaluations"] == 1000


def test_quick_plan_is_small():
    quick = command.plan(command.parser().parse_args(["--quick"]))
    full = command.plan(command.parser().parse_args([]))
    assert isinstance(quick, Plan) and quick.robots == ("quadruped",) and not quick.all_cores
    assert full.repeats > quick.repeats and full.target > quick.target and full.robots == robots.DEFAULT
    assert command.plan(command.parser().parse_args(["--only", "aba", "--robots", "panda"])).only == ("aba",)


def test_help_and_a_wrong_name():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert all(option in done.stdout for option in ("--quick", "--robots", "--only", "--json"))
    with pytest.raises(SystemExit) as stopped:
        command.main(["--robots", "quadrupd"])
    assert stopped.value.code == 2
