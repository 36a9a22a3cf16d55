"""The command `jaxdyn rollout` on several devices, as several processes, and after it was killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxdyn.cli import main

LIMIT = 200  # s, after which a process is killed and the test fails
LINE = "rollout pendulum --envs 4 --steps 40 --show 1 --precision 64"


def arrays(folder):
    with np.load(folder / "data.npz") as data:
        return dict(data)


def same(folder, other):
    found, expected = arrays(folder), arrays(other)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The results of one process on one device."""
    folder = tmp_path_factory.mktemp("plain")
    assert main([*LINE.split(), "--out", str(folder)]) == 0
    return folder


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "jaxdyn", *LINE.split(), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    """`(exit status, standard output, standard error)` of each; none outlives this."""
    try:
        printed = [p.communicate(timeout=LIMIT) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
    return [(p.returncode, *texts) for p, texts in zip(processes, printed, strict=True)]


def test_devices_of_one_process_give_the_same_bits(plain, tmp_path, capsys):
    assert main([*LINE.split(), "--devices", "2", "--out", str(tmp_path)]) == 0
    assert "on 2 devices of 1 process(es)" in capsys.readouterr().out
    same(tmp_path, plain)


def test_two_processes_give_the_same_bits_and_the_first_one_speaks(plain, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    common = ("--devices", 1, "--coordinator", address, "--processes", 2, "--out", tmp_path)
    first, second = finish([start("--process-id", i, *common) for i in (0, 1)])
    assert first[0] == 0, first[2][-3000:]
    assert second[0] == 0, second[2][-3000:]
    assert "on 2 devices of 2 process(es)" in first[1]
    # the collectives of a CPU say who is there
    assert [line for line in second[1].splitlines() if not line.startswith("[Gloo]")] == []
    same(tmp_path, plain)


@pytest.mark.parametrize(
    "options, words",
    [
        ("--devices 0", "--devices: wanted at least 1, given 0"),
        ("--devices 3", "--devices: wanted from 1 to 2, as many as each process has, given 3"),
        ("--processes 2", "wanted the address at which they meet, as --coordinator"),
        ("--coordinator localhost:1 --processes 2", "--processes and --process-id: wanted both, or neither"),
        ("--coordinator localhost:1 --processes 2 --process-id 2", "--process-id: wanted from 0 to 1, given 2"),
        # JAX is at work here already
        ("--coordinator localhost:1 --processes 2 --process-id 0", "--coordinator: the processes did not meet"),
    ],
)
def test_arguments_that_do_not_fit_are_named_in_one_line(tmp_path, capsys, options, words):
    assert main([*LINE.split(), *options.split(), "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and words in text


def test_a_killed_command_resumes_with_the_same_bits(plain, tmp_path, capsys):
    process = start("--resume", "--out", tmp_path)
    kept = tmp_path / "checkpoint"
    try:
        while process.poll() is None and not list(kept.glob("chunk-*.eqx")):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)
    assert list(kept.glob("chunk-*.eqx"))
    (tmp_path / "data.npz").unlink(missing_ok=True)  # it may have been faster than the signal
    resuming = [*LINE.split(), "--resume", "--out", str(tmp_path)]
    assert main(resuming) == 0
    assert f"resumed after {json.loads((tmp_path / 'figures.json').read_text())['resumed_steps']} of 40 steps" in (
        capsys.readouterr().out
    )
    same(tmp_path, plain)
    assert main([*resuming, "--seed", "1"]) == 1
    assert "holds another rollout, which differs in 'x0.joint_position'" in capsys.readouterr().err


def test_without_resume_nothing_is_kept(plain):
    assert not os.path.exists(plain / "checkpoint")
