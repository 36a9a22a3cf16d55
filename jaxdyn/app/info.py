"""`jaxdyn info`: what is in a robot's file."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

import numpy as np

import jaxdyn
from jaxdyn.app import ground, tuning
from jaxdyn.app.output import Folder, add_common
from jaxdyn.app.robot import add_robot, describe, is_floating, load_robot, posture, robot_name
from jaxdyn.app.terminal import say, table


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_robot(parser)
    add_common(parser, out=None)


def run(arguments: argparse.Namespace) -> int:
    """Prints the tables; with --out also writes them to info.json."""
    model = load_robot(arguments)
    name = robot_name(arguments.path)
    facts = collect(model, name, arguments)
    say(describe(model, name))
    say()
    say(
        table([list(row.values()) for row in facts["joints"]], list(facts["joints"][0]), right=range(4, 12))
        if facts["joints"]
        else "no joints"
    )
    say()
    rows = [list(row.values()) for row in facts["bodies"]]
    say(table(rows, ["body", "mass kg", "centre of mass m", "frames"], right=(1,)))
    say()
    say(f"shapes: {', '.join(f'{n} {kind}' for kind, n in facts['shapes'].items()) or 'none'}")
    for contact in facts["contacts"]:
        points = " ".join("(" + ", ".join(f"{x:.3g}" for x in point) + ")" for point in contact["points"])
        say(f"{'contact' if contact['support'] else 'contact in a fall'}, {contact['link']}: {points} m, in its frame")
    if arguments.out:
        folder = Folder(arguments.out)
        folder.note("info.json", "the same as JSON").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        folder.tell()
    return 0


def collect(model: jaxdyn.Model, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All that is printed, as plain numbers and strings; `None` where there is no limit."""
    tree = model.tree
    joints, leader = [], dict(tree.followers)
    for i, joint in enumerate(tree.joint_names):
        one = tree.joint_nq[i] == 1
        at, dof = tree.q_offset[i], tree.v_offset[i]
        joints.append(
            {
                "joint": joint,
                "type": tree.joint_types[i] + (f" follows {tree.joint_names[leader[i]]}" if i in leader else ""),
                "parent": "world" if tree.parents[i] < 0 else tree.body_names[tree.parents[i]],
                "body": tree.body_names[i],
                "q": _span(at, tree.joint_nq[i]),
                "v": _span(dof, tree.joint_nv[i]),
                "lower": _limit(model.lower[at]) if one else "",
                "upper": _limit(model.upper[at]) if one else "",
                "effort": _limit(model.effort_limit[dof]) if one else "",
                "velocity": _limit(model.velocity_limit[dof]) if one else "",
                "damping": _limit(model.damping[dof]) if one else "",
                "friction": _limit(model.friction[dof]) if one else "",
            }
        )
    mass, com = np.asarray(model.inertia.mass), np.asarray(model.inertia.com)
    bodies = []
    for i in range(-1, model.n_bodies):
        frames = [n for n, body in zip(tree.frame_names, tree.frame_bodies, strict=True) if body == i]
        if i < 0 and frames:
            bodies.append({"body": "world", "mass": "", "com": "", "frames": ", ".join(frames)})
        elif i >= 0:
            where = ", ".join(f"{x:.4g}" for x in com[i])
            others = ", ".join(n for n in frames if n != tree.body_names[i])
            bodies.append({"body": tree.body_names[i], "mass": f"{mass[i]:.5g}", "com": f"({where})", "frames": others})
    q = posture(model, name, arguments.posture)
    rotation, translation = tuning.still_poses(model, q)
    spots = ground.choose(model, rotation, translation) if is_floating(model) else []
    return {
        "robot": name,
        "nq": model.nq,
        "nv": model.nv,
        "mass": float(mass.sum()),
        "gravity": np.asarray(model.gravity, float).tolist(),
        "joints": joints,
        "bodies": bodies,
        "shapes": dict(Counter(f"{info.role} {info.kind}" for info in tree.geometry)),
        "contacts": [{"link": s.frame, "support": s.support, "points": s.points.round(5).tolist()} for s in spots],
    }


def _span(start: int, size: int) -> str:
    return str(start) if size == 1 else f"{start}..{start + size - 1}" if size else ""


def _limit(value: Any) -> str:
    number = float(value)
    return f"{number:.5g}" if np.isfinite(number) else "-"
