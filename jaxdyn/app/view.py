"""`jaxdyn view`: a page with the robot, still or in the motion of a data file."""

from __future__ import annotations

import argparse
import webbrowser
import zipfile

import jax
import numpy as np

import jaxdyn
from jaxdyn.app import ground
from jaxdyn.app.output import Folder, add_common
from jaxdyn.app.robot import add_robot, describe, is_floating, load_robot, posture, robot_name
from jaxdyn.app.terminal import say
from jaxdyn.app.tuning import still_poses


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_robot(parser)
    parser.add_argument("--random", action="store_true", help="a random posture within the limits")
    parser.add_argument(
        "--motion", metavar="FILE.npz", help="show the motion in a file with arrays time (steps,) and q (steps, nq)"
    )
    parser.add_argument(
        "--shapes", choices=("visual", "collision", "skeleton"), default="visual", help="what is drawn (default visual)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and prints its path."""
    folder = Folder(arguments.out)
    model = load_robot(arguments)
    name = robot_name(arguments.path)
    say(describe(model, name))
    scene = jaxdyn.Scene(name, subtitle=describe(model, name).partition(": ")[2])
    if arguments.motion:
        times, q = read_motion(model, arguments.motion)
        scene.add_robot(model, q, times=times, name=name, shapes=arguments.shapes)
        scene.add_ground()
    else:
        q = posture(model, name, arguments.posture)
        if arguments.random:
            q = np.asarray(jaxdyn.random_configuration(model, jax.random.key(arguments.seed)), np.float64)
        rotation, translation = still_poses(model, q)
        if is_floating(model):
            shift = min((cloud.low for cloud in ground.clouds(model, rotation, translation)), default=0.0)
            translation = translation - np.array([0, 0, shift])
        scene.add_robot(model, poses=(rotation, translation), name=name, shapes=arguments.shapes)
        if is_floating(model):
            scene.add_ground()
    folder.page(scene)
    folder.tell()
    if arguments.open and not webbrowser.open(folder.written[0][0].resolve().as_uri()):
        say("No browser could be started.")
    return 0


def read_motion(model: jaxdyn.Model, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and configurations of a data file; of several environments, the first one.

    **Raises:** `InputError` for a file that cannot be read, lacks the arrays, or is of another robot.
    """
    try:
        with np.load(path) as data:
            arrays = {key: data[key] for key in ("time", "q") if key in data}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise jaxdyn.InputError(f"--motion: cannot read {path!r}: {error}") from None
    if len(arrays) < 2:
        raise jaxdyn.InputError(f"--motion: {path!r} must hold the arrays 'time' and 'q'.")
    times, q = arrays["time"], arrays["q"]
    q = q[0] if q.ndim == 3 else q
    if q.shape != (len(times), model.nq):
        raise jaxdyn.InputError(
            f"--motion: wanted q of shape ({len(times)}, {model.nq}) for this robot, given {q.shape}."
        )
    return times, q
