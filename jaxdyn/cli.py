"""The command `jaxdyn`: reads its arguments, sets the precision, and turns faults into one line and an exit status.

Exit status: 0 if all went well, 1 for bad input or a failed check, 2 for a command line that makes no sense, 130 after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

import jaxdyn
from jaxdyn.app import check, demo, info, optimize, rollout, view
from jaxdyn.app.terminal import abandoned

COMMANDS = {
    "demo": (demo, "drop many quadrupeds on the ground, then optimise a hop"),
    "rollout": (rollout, "simulate many copies of a robot from perturbed states, holding a posture"),
    "optimize": (
        optimize,
        "find the torques of a motion that reaches a goal, by gradient descent through the simulation",
    ),
    "info": (info, "list the joints, bodies, frames, limits and contact candidates of a robot"),
    "check": (check, "look for faults in a robot's file, and test its dynamics and their derivatives"),
    "view": (view, "write a page with the robot, still or in motion"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="jaxdyn", description=(jaxdyn.__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"jaxdyn {jaxdyn.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, purpose) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (default: those of the process) and returns its exit status."""
    try:
        arguments = make_parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    with _precision(arguments.precision), warnings.catch_warnings():
        warnings.simplefilter("always", jaxdyn.JaxdynWarning)
        warnings.showwarning = _show_warning
        status = _run(arguments)
    if abandoned():
        # a second Ctrl-C: XLA still compiles in a thread that nobody waits for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(arguments: argparse.Namespace) -> int:
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        print("jaxdyn: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `jaxdyn info robot.urdf | head`: the reader has gone, and Python must not flush into the pipe when it ends
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (jaxdyn.JaxdynError, OSError, MemoryError) as error:
        return _fault(arguments, str(error) or type(error).__name__)
    except Exception as error:
        return _fault(arguments, f"{type(error).__name__} (a fault of jaxdyn itself? --debug shows where): {error}")


def _fault(arguments: argparse.Namespace, message: str) -> int:
    if arguments.debug:
        traceback.print_exc()
    text = " ".join(message.split())
    print(f"jaxdyn {arguments.command}: {text if len(text) < 600 else text[:600] + ' ...'}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def _precision(bits: int) -> Iterator[None]:
    """Sets JAX's default float while a command runs, for those who call `main` inside another program too."""
    before, wanted = _doubles_are_on(), bits == 64
    _set_precision(wanted)
    try:
        yield
    finally:
        _set_precision(before)


def _doubles_are_on() -> bool:
    return jnp.result_type(float) == jnp.float64


def _set_precision(doubles: bool) -> None:
    if doubles != _doubles_are_on():
        jax.config.update("jax_enable_x64", doubles)
        jax.clear_caches()  # what was traced before has index types of the other precision


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    text = " ".join(str(message).split())
    kind = "note" if issubclass(category, jaxdyn.JaxdynWarning) else category.__name__
    print(f"jaxdyn: {kind}: {text}", file=sys.stderr)
