"""Several devices and several processes, for commands that simulate batches."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

import jaxdyn

LONGEST_WAIT = 300  # s, for the other processes to arrive


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command that runs on several devices, and as several processes."""
    parser.add_argument(
        "--devices",
        type=int,
        default=None,
        metavar="N",
        help="split the environments over N devices of each process (on a CPU: so many parts of it)",
    )
    parser.add_argument(
        "--coordinator",
        default=None,
        metavar="HOST:PORT",
        help="run as one of several processes, which meet at this address of the first one; 'auto' under a launcher that JAX knows",
    )
    parser.add_argument("--processes", type=int, default=None, metavar="N", help="number of processes")
    parser.add_argument("--process-id", type=int, default=None, metavar="I", help="which of them this is, from 0 on")


def connect(arguments: argparse.Namespace) -> Mesh | None:
    """The devices that the arguments name, those of all processes; None if they name none.

    Called before anything is computed: what exists is settled by the first use of JAX.

    **Raises:** `InputError` for arguments that do not fit together, more devices than there are, or processes that do not meet.
    """
    devices, address = arguments.devices, arguments.coordinator
    if devices is not None and devices < 1:
        raise jaxdyn.InputError(f"--devices: wanted at least 1, given {devices}.")
    if address is None and (arguments.processes is not None or arguments.process_id is not None):
        raise jaxdyn.InputError("--processes, --process-id: wanted the address at which they meet, as --coordinator.")
    if devices is not None:
        with contextlib.suppress(RuntimeError):  # JAX is at work already: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", devices)
    if address is not None:
        _join(arguments)
    if address is None and devices is None:
        return None
    try:
        return jaxdyn.environment_mesh(devices)
    except jaxdyn.InputError as error:
        raise jaxdyn.InputError(f"--{error}") from None


def _join(arguments: argparse.Namespace) -> None:
    """Makes this process one of several."""
    count, number = arguments.processes, arguments.process_id
    if (count is None) != (number is None):
        raise jaxdyn.InputError(
            "--processes and --process-id: wanted both, or neither under a launcher that JAX knows."
        )
    if count is not None and not 0 <= number < count:
        raise jaxdyn.InputError(f"--process-id: wanted from 0 to {count - 1}, given {number}.")
    address = None if arguments.coordinator == "auto" else arguments.coordinator
    try:
        jax.distributed.initialize(address, count, number, initialization_timeout=LONGEST_WAIT)
    except (RuntimeError, ValueError) as error:
        raise jaxdyn.InputError(f"--coordinator: the processes did not meet: {error}") from None


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


@contextlib.contextmanager
def silent_unless_first() -> Iterator[None]:
    """Processes but the first print nothing, errors aside."""
    if is_first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
    sys.stdout.flush()
