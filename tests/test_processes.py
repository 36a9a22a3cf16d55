"""Batches over several processes, and batches that outlive the process that computes them."""

import json
import signal
import socket
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.errors import InputError, Status
from jaxdyn.model import load
from jaxdyn.systems import (
    FixedBaseDynamics,
    FixedBaseState,
    SemiImplicitEuler,
    batch_rollout,
    environment_mesh,
)

# What the processes run: `swing(mesh, **options)`. It is executed here too, for the results to compare with.
SWING = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from jaxdyn.model import load
from jaxdyn.systems import *

class Spring(eqx.Module):
    stiffness: jax.Array
    def __call__(self, x, t):
        return -self.stiffness * x.joint_position

def swing(mesh=None, steps=40, poison=False, **options):
    system = FixedBaseDynamics(load("pendulum", dtype=jnp.float64))
    system = randomize(system, lambda s: s.model.inertia.mass, lambda key, m: m * (1 + jax.random.uniform(key, m.shape, m.dtype)),
                       jax.random.key(0), 8)
    x = FixedBaseState(jnp.linspace(0.1, 1.0, 8)[:, None], jnp.zeros((8, 1)))
    if poison:
        x = FixedBaseState(x.joint_position, x.joint_velocity.at[6].set(jnp.inf))
    stop = lambda x, t: (x.joint_position[0] < 0.3) & (t > 0.1)
    return batch_rollout(system, SemiImplicitEuler(), x, Spring(jnp.asarray(2.0)), 1e-2, steps, save_every=5, chunk=5, mesh=mesh,
                         record=lambda x, u, t: u, stop=stop, **options)

def arrays(result):
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(result.trajectory))}
"""

WORKER = (
    """
import json, sys, time
import jax
options = json.loads(sys.argv[1])
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", options["devices"])
if options["processes"] > 1:
    jax.distributed.initialize(options["address"], options["processes"], options["id"], initialization_timeout=90,
                               heartbeat_timeout_seconds=60, shutdown_timeout_seconds=60)
"""
    + SWING
    + """
def progress(now):
    print(now.done, flush=True)
    if now.done >= 15 and options["wait"]:
        time.sleep(120)  # the end comes from outside
    if now.done >= 15 and options["id"] == options["interrupted"]:
        raise KeyboardInterrupt

mesh = environment_mesh() if options["processes"] > 1 else None
result = swing(mesh, progress=progress, checkpoint_dir=options["folder"], resume=options["folder"] is not None,
               poison=options["poison"])
print(result.message)
print(result.status.name, result.steps, result.resumed, len(jax.devices()), flush=True)
np.savez(options["out"], **arrays(result))
"""
)
LIMIT = 150  # s, after which a process is killed and the test fails


def start(tmp_path, **given):
    """A process that runs `WORKER`; its result goes to the file `out`."""
    options = {
        "devices": 1,
        "processes": 1,
        "id": 0,
        "wait": False,
        "interrupted": -1,
        "folder": None,
        "address": "",
        "poison": False,
    } | given
    options["out"] = str(tmp_path / f"out-{options['id']}.npz")
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(processes):
    """What each of them printed; none outlives this."""
    try:
        printed = [p.communicate(timeout=LIMIT) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
    for p, (_, faults) in zip(processes, printed, strict=True):
        assert p.returncode == 0, faults[-3000:]
    return [out.split("\n")[:-1] for out, _ in printed]


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def read(path):
    with np.load(path) as data:
        return dict(data)


@pytest.fixture(scope="module")
def here():
    """`swing` and `arrays` in this process."""
    names = {}
    exec(compile(SWING, "<swing>", "exec"), names)
    return names


@pytest.fixture(scope="module")
def whole(here):
    """The result of one process and one device, in one go."""
    result = here["swing"]()
    assert result.status is Status.OK and result.steps == 40 and result.trajectory.stopped.any()
    return here["arrays"](result)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_two_devices_give_the_bits_of_one(here, whole):
    same(here["arrays"](here["swing"](environment_mesh())), whole)
    with pytest.raises(InputError, match="devices: wanted from 1 to 2, as many as each process has, given 3"):
        environment_mesh(3)
    assert environment_mesh(1).size == 1


def test_two_processes_give_the_bits_of_one(tmp_path, whole):
    address = free_address()
    printed = finish([start(tmp_path, processes=2, id=i, address=address) for i in (0, 1)])
    for i in (0, 1):
        assert printed[i][-1] == "OK 40 0 2"
        same(read(tmp_path / f"out-{i}.npz"), whole)


def test_an_interruption_of_one_process_ends_all_of_them_after_the_same_step(tmp_path):
    address, folder = free_address(), str(tmp_path / "kept")
    options = {"processes": 2, "address": address, "interrupted": 1, "folder": folder}
    for lines in finish([start(tmp_path, id=i, **options) for i in (0, 1)]):
        assert lines[-1] == "INTERRUPTED 15 0 2"
    assert len(list((tmp_path / "kept").glob("chunk-*.eqx"))) == 3  # the first process wrote them, and it alone


def test_a_killed_process_loses_at_most_the_chunk_that_it_was_at(tmp_path, here, whole):
    folder = tmp_path / "kept"
    process = start(tmp_path, wait=True, folder=str(folder))
    try:
        for line in process.stdout:
            if line.strip() == "15":
                break
        process.send_signal(signal.SIGKILL)
        assert process.wait(LIMIT) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
    assert sorted(p.name for p in folder.iterdir()) == [f"chunk-{first:012d}.eqx" for first in (0, 5, 10)]
    (folder / "chunk-000000000015.99.part").write_bytes(b"what was being written")
    result = here["swing"](checkpoint_dir=folder, resume=True)
    assert (result.status, result.steps, result.resumed) == (Status.OK, 40, 15)
    same(here["arrays"](result), whole)
    # once more: everything is there
    again = here["swing"](checkpoint_dir=folder, resume=True)
    assert again.resumed == again.steps == 40
    same(here["arrays"](again), whole)


@pytest.mark.slow
def test_all_processes_name_what_is_not_finite(tmp_path, here):
    expected = here["swing"](poison=True)
    assert expected.status is Status.NON_FINITE and "environment 6: joint_" in expected.message
    common = {"processes": 2, "address": free_address(), "poison": True}
    for lines in finish([start(tmp_path, id=i, **common) for i in (0, 1)]):
        assert lines[-2:] == [expected.message, "NON_FINITE 5 0 2"]


@pytest.mark.slow
def test_processes_that_see_different_folders_are_told_so(tmp_path, here):
    here["swing"](checkpoint_dir=tmp_path / "kept-0")
    common = {"processes": 2, "address": free_address()}
    processes = [start(tmp_path, id=i, folder=str(tmp_path / f"kept-{i}"), **common) for i in (0, 1)]
    with pytest.raises(AssertionError, match="wanted a folder that all processes can read"):
        finish(processes)


# Checkpoints in this process


def pendulums(n=3):
    system = FixedBaseDynamics(load("pendulum"))
    return system, FixedBaseState(jnp.linspace(0.1, 1.0, n)[:, None], jnp.zeros((n, 1)))


def go(folder, system, x, controls=None, dt=1e-2, steps=20, **options):
    options = {"save_every": 5, "chunk": 10, "resume": True} | options
    return batch_rollout(system, SemiImplicitEuler(), x, controls, dt, steps, checkpoint_dir=folder, **options)


def test_a_rollout_goes_on_with_more_steps_and_other_tiles(tmp_path):
    system, x = pendulums()
    first = go(tmp_path, system, x)
    assert first.steps == 20 and first.resumed == 0
    more = go(tmp_path, system, x, steps=30, chunk=5, tile=2)
    assert more.steps == 30 and more.resumed == 20 and more.trajectory.state.joint_position.shape == (3, 6, 1)
    straight = batch_rollout(system, SemiImplicitEuler(), x, None, 1e-2, 30, save_every=5, chunk=10)
    jax.tree.map(np.testing.assert_array_equal, more.trajectory, straight.trajectory)
    with pytest.raises(InputError, match="holds 30 steps, more than the 10 wanted"):
        go(tmp_path, system, x, steps=10)


@pytest.mark.parametrize(
    "named, change",
    [
        (r"'system\.model\.gravity'", lambda a: {"system": eqx.tree_at(lambda s: s.model.gravity, a["system"], jnp.ones(3))}),
        (r"'dt'", lambda a: {"dt": 2e-2}),
        (r"'x0\.joint_position'", lambda a: {"x": eqx.tree_at(lambda x: x.joint_position, a["x"], 1 + a["x"].joint_position)}),
        (r"'structure of controls'", lambda a: {"controls": jnp.ones(1)}),
        (r"'substeps'", lambda a: {"substeps": 2}),
        (r"'save_every'", lambda a: {"save_every": 10}),
        (r"'stop'", lambda a: {"stop": lambda x, t: t > 1}),
    ],
)  # fmt: skip
def test_a_folder_with_another_rollout_is_refused_and_the_difference_named(checkpoints, named, change):
    folder, arguments = checkpoints
    with pytest.raises(InputError, match="holds another rollout, which differs in .*" + named):
        go(folder, **arguments | change(arguments))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    system, x = pendulums()
    arguments = {"system": system, "x": x}
    go(folder, **arguments)
    return folder, arguments


def test_files_that_cannot_be_used_are_named(checkpoints, tmp_path):
    folder, arguments = checkpoints
    with pytest.raises(InputError, match="holds a rollout already: continue it with resume=True"):
        go(folder, **arguments, resume=False)
    with pytest.raises(InputError, match="wanted the folder to resume from"):
        go(None, **arguments)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        go(tmp_path / "file", **arguments)
    names = [f"chunk-{first:012d}.eqx" for first in (0, 10)]
    data = [(folder / name).read_bytes() for name in names]

    def put(name, content):
        (tmp_path / name).write_bytes(content)

    put(names[1], data[1])
    with pytest.raises(InputError, match="lacks the steps 0 to 10"):
        go(tmp_path, **arguments)
    put(names[0], data[0][:-8])
    with pytest.raises(InputError, match="is damaged"):
        go(tmp_path, **arguments)
    put(names[0], b"{}\n")
    with pytest.raises(InputError, match="is no chunk of a batch rollout"):
        go(tmp_path, **arguments)
    put(names[0], data[0].replace(b'"version": 1', b'"version": 9', 1))
    with pytest.raises(InputError, match=r"in version 9 of the format; this one, .*, reads up to 1"):
        go(tmp_path, **arguments)


def test_what_was_not_finite_is_so_after_resuming(tmp_path):
    system, x = pendulums()
    torque = jnp.zeros((3, 20, 1)).at[1, 4].set(jnp.nan)
    first = go(tmp_path, system, x, torque)
    assert first.status is Status.NON_FINITE and first.steps == 10
    again = go(tmp_path, system, x, torque)
    assert again.status is Status.NON_FINITE and again.steps == again.resumed == 10
    assert again.message.startswith("environment 1, in ")
    onwards = go(tmp_path, system, x, torque, stop_if_not_finite=False)
    assert onwards.steps == 20 and onwards.finite.tolist() == [True, False, True]
    assert onwards.trajectory.status.tolist() == [0, Status.NON_FINITE, 0]
