"""Which joints of a description follow which, and where a frozen leader leaves them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn.errors import InputError, URDFError, listing, suggestion, warn
from jaxdyn.model.description import Joint, Robot, at_line
from jaxdyn.model.tree import JOINT_SIZES

MIMIC = ("reduce", "independent")


class Follower(NamedTuple):
    """A joint that stands at `ratio` times the coordinate of `leader` plus `offset`. `leader` is "" where that is
    constant, as the leader is a fixed joint."""

    leader: str
    ratio: float
    offset: float


def find_followers(robot: Robot, movable: Sequence[Joint]) -> dict[str, Follower]:
    """The followers among the joints that can move, by name.

    **Raises:** `URDFError` for a leader that does not exist, joints that follow each other in a ring, or a joint with
    several coordinates on either side. **Warns** of leaders that are fixed.
    """
    found: dict[str, Follower] = {}
    still = []
    for joint in movable:
        if joint.leader is None:
            continue
        where = f"joint {joint.name!r}{at_line(joint.line)}"
        leader = robot.joints.get(joint.leader)
        if leader is None:
            near = suggestion(joint.leader, [name for name in robot.joints if name != joint.name])
            raise URDFError(
                f"{where}: <mimic> joint={joint.leader!r} does not exist{near}. (mimic='independent' ignores the tag.)"
            )
        for one in (joint, leader):
            if one.kind != "fixed" and JOINT_SIZES[one.kind][0] != 1:
                raise URDFError(
                    f"{where}: <mimic> joint={joint.leader!r}: joint {one.name!r} is {one.kind}; only joints with one "
                    "coordinate follow and lead."
                )
        if leader.kind == "fixed":
            still.append(f"{joint.name!r} (follows {leader.name!r})")
            found[joint.name] = Follower("", 0.0, joint.offset)
        else:
            found[joint.name] = Follower(joint.leader, joint.ratio, joint.offset)
    for name in found:
        chain = [name]
        while (leader := found[chain[-1]].leader if chain[-1] in found else "") and leader not in chain:
            chain.append(leader)
        if leader:
            raise URDFError(f"the joints {listing(chain[chain.index(leader) :])} follow each other in a ring.")
    if still:
        warn(f"joints that follow a fixed joint stand still, at the offset of their <mimic>: {', '.join(still)}.")
    return found


def frozen_followers(followers: dict[str, Follower], values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Where the followers of frozen joints stand, those with an own entry in `values` aside."""
    result: dict[str, np.ndarray] = {}

    def value(name: str) -> np.ndarray | None:
        if name in values or name in result:
            return values.get(name, result.get(name))
        if name not in followers:
            return None
        leader, ratio, offset = followers[name]
        above = np.zeros(1) if not leader else value(leader)
        if above is not None:
            result[name] = ratio * above + offset
        return result.get(name)

    for name in followers:
        value(name)
    return result


def check_kept_followers(names: Sequence[str], followers: Mapping[str, Follower], kept: set[str]) -> None:
    """Raises `InputError` if a follower is asked to move, and its leader is not."""
    for name in names:
        top = name
        while top in followers and followers[top].leader:
            top = followers[top].leader
        if top != name and top not in kept:
            raise InputError(
                f"joints: {name!r} follows {top!r}, which is not kept: keep it too, or load with mimic='independent'."
            )


class Sides(NamedTuple):
    """What of a joint its followers change: limits of the coordinate and the speed, friction, springs."""

    lower: float
    upper: float
    velocity: float
    damping: float
    friction: float
    armature: float
    stiffness: float
    rest: np.ndarray | None


def combined_sides(joint: Joint, followers: Sequence[tuple[Joint, float, float]]) -> Sides:
    """A joint with its followers, each with its ratio and offset along the chain.

    Limits are those that every one of them obeys. The force of a viscous damper d behind a ratio r is d r^2 at the
    leader, dry friction f is |r| f, a rotor's inertia a is a r^2. A spring k at rest at x_f, behind r and an offset o, pulls the
    leader to (x_f - o) / r with k r^2; several are one spring at the weighted mean, up to a constant of the energy.
    """
    lower, upper, velocity = joint.lower, joint.upper, joint.velocity
    damping, friction, armature = joint.damping, joint.friction, joint.armature
    stiffness, rest, tight = joint.stiffness, joint.rest, []
    pull = stiffness * _rest(joint)
    for follower, ratio, offset in followers:
        damping += ratio * ratio * follower.damping
        friction += abs(ratio) * follower.friction
        armature += ratio * ratio * follower.armature
        if follower.stiffness:
            stiffness += ratio * ratio * follower.stiffness
            pull += ratio * follower.stiffness * (_rest(follower) - offset)
            rest = np.array([pull / stiffness]) if stiffness else rest
        if ratio == 0:
            continue
        ends = sorted(((follower.lower - offset) / ratio, (follower.upper - offset) / ratio))
        if max(lower, ends[0]) > min(upper, ends[1]):
            tight.append(follower.name)
            continue
        lower, upper = max(lower, ends[0]), min(upper, ends[1])
        velocity = min(velocity, follower.velocity / abs(ratio))
    if tight:
        warn(
            f"the limits of joint {joint.name!r} leave no room for those of its followers {listing(tight)}, which are dropped."
        )
    velocity = velocity if not math.isnan(velocity) else joint.velocity
    return Sides(lower, upper, velocity, damping, friction, armature, stiffness, rest)


def _rest(joint: Joint) -> float:
    return 0.0 if joint.rest is None or len(joint.rest) != 1 else float(joint.rest[0])
