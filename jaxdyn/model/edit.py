"""Changing a model: lock joints, add frames and payloads, append another robot, take another base, mirror.

Each function returns a new model and is made of JAX operations: it can be compiled, and differentiated with respect to
the leaves of the model and to its other numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdyn.errors import FloatLike, InputError, check_shape, is_concrete, listing, unknown_name, warn
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.description import reversed_rest, warn_of_lost_spring
from jaxdyn.model.joints import joint_pose, neutral_of
from jaxdyn.model.model import Model, check_model
from jaxdyn.model.order import check_locked
from jaxdyn.model.parts import OF_SPRINGS, Body, Frame, Parts, Solid, moved, put_together, take_apart
from jaxdyn.model.tree import JOINT_SIZES


def reduce(model: Model, locked: Mapping[str, FloatLike] | Sequence[str]) -> Model:
    """The robot with some joints locked: their bodies become part of those before them, exactly.

    **Arguments:** `locked`: joint name to its coordinates (a number, or an array for a joint with several), or names
    alone for joints at zero. A joint that follows a locked one is locked where that puts it, unless it is in `locked`
    itself.

    All links stay as frames. Armature, friction, springs and limits of the other joints are kept. Bodies that are welded to
    the world lose their inertia, on which nothing depends.

    **Raises:** `UnknownNameError` for a joint that does not exist, `InputError` for a wrong shape.
    """
    parts = take_apart(model)
    values = _locked_coordinates(model, locked)
    identity = SE3.identity(dtype=model.dtype)
    where: dict[int, tuple[int, SE3]] = {-1: (-1, identity)}
    kept: list[Body] = []
    lost: list[Frame] = []
    for i, body in enumerate(parts.bodies):
        parent, pose = where[body.parent]
        placement = pose @ body.placement
        if body.joint in values:
            motion = joint_pose(body.kind, body.axis, values[body.joint])
            where[i] = parent, placement @ motion
            lost.append(Frame(body.name, *where[i]))
            if parent >= 0:
                whole = kept[parent].inertia + body.inertia.transform(where[i][1])
                kept[parent] = dataclasses.replace(kept[parent], inertia=whole)
            continue
        where[i] = len(kept), identity
        kept.append(dataclasses.replace(body, parent=parent, placement=placement))
    frames, shapes = moved(parts, where)
    return put_together(Parts(kept, lost + frames, shapes, parts.gravity))


def _locked_coordinates(model: Model, locked: Mapping[str, FloatLike] | Sequence[str]) -> dict:
    tree, dtype = model.tree, model.dtype
    if locked is None:
        raise InputError("locked: wanted a mapping from joint names to values, or names alone, given None.")
    check_locked(locked)
    values = {}
    for name in locked:
        if name not in tree.joint_names:
            raise unknown_name("joint", name, tree.joint_names)
        kind = tree.joint_types[tree.joint(name)]
        size = JOINT_SIZES[kind][0]
        if isinstance(locked, Mapping):
            value = locked[name]
            value = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            shape = () if size == 1 and np.ndim(value) == 0 else (size,)
            value = check_shape(f"locked[{name!r}]", value, shape, dtype=dtype).astype(dtype).reshape(size)
            if is_concrete(value) and not np.all(np.isfinite(value)):
                raise InputError(f"locked[{name!r}]: wanted finite numbers, given {np.asarray(value).tolist()}.")
            values[name] = value
        else:
            values[name] = jnp.asarray(neutral_of(kind), dtype)
    # leaders first: a follower may stand before its leader, and follow a follower
    for name in sorted(model.follower_names, key=lambda n: _depth(model, n)):
        k = model.follower_names.index(name)
        leader = tree.joint_names[tree.followers[k][1]]
        if leader in values and name not in values:
            assert model.follower_ratio is not None and model.follower_offset is not None
            values[name] = model.follower_ratio[k] * values[leader] + model.follower_offset[k]
    return values


def _depth(model: Model, name: str) -> int:
    leader, depth, at = dict(model.tree.followers), 0, model.tree.joint(name)
    while at in leader:
        at, depth = leader[at], depth + 1
    return depth


def _pose(name: str, pose: SE3 | FloatLike | None, dtype) -> SE3:
    if pose is None:
        return SE3.identity(dtype=dtype)
    if isinstance(pose, SE3):
        rotation = check_shape(f"{name}.rotation", pose.rotation, (3, 3)).astype(dtype)
        return SE3(rotation, check_shape(f"{name}.translation", pose.translation, (3,)).astype(dtype))
    if jnp.shape(pose) == (4, 4):
        return SE3.from_matrix(check_shape(name, pose, (4, 4), dtype=dtype).astype(dtype))
    hint = "An SE3, a matrix (4, 4) or a position."
    return SE3(jnp.eye(3, dtype=dtype), check_shape(name, pose, (3,), hint, dtype=dtype).astype(dtype))


def _frame(model: Model, frame: str) -> tuple[int, SE3]:
    """The body of a frame, and its pose there."""
    check_model(model)
    i = model.frame(frame)
    return model.tree.frame_bodies[i], SE3(model.frame_placement.rotation[i], model.frame_placement.translation[i])


def add_frame(model: Model, name: str, frame: str, placement: SE3 | FloatLike | None = None) -> Model:
    """The model with one named frame more, fixed to `frame` at `placement` (an `SE3`, a matrix (4, 4), or a position
    (3,); default: the same pose).

    **Raises:** `UnknownNameError`; `InputError` if the name is taken.
    """
    check_model(model)
    if name in model.frame_names:
        raise InputError(f"name: there is a frame {name!r} already.")
    parts = take_apart(model)
    body, pose = _frame(model, frame)
    parts.frames.append(Frame(name, body, pose @ _pose("placement", placement, model.dtype)))
    return put_together(parts)


def attach(
    model: Model,
    frame: str,
    inertia: SpatialInertia,
    placement: SE3 | FloatLike | None = None,
    *,
    name: str | None = None,
) -> Model:
    """The model with a rigid payload fixed to a frame: its inertia becomes part of the body that carries the frame.

    **Arguments:** `frame`: name; `inertia`: of the payload, in its own frame; `placement`: pose of that frame in
    `frame`, default the same; `name`: names the payload's frame, if it is to be found again.

    **Raises:** `UnknownNameError`; `InputError` for a frame that is fixed to the world, where a mass changes nothing.
    """
    body, pose = _frame(model, frame)
    if body < 0:
        raise InputError(f"frame: {frame!r} is fixed to the world; a mass there moves nothing.")
    if inertia.mass.shape != ():
        raise InputError(f"inertia: wanted one body, given a stack of shape {inertia.mass.shape}.")
    parts = take_apart(model)
    at = pose @ _pose("placement", placement, model.dtype)
    carrier = parts.bodies[body]
    parts.bodies[body] = dataclasses.replace(carrier, inertia=carrier.inertia + inertia.transform(at))
    if name is not None:
        if name in model.frame_names:
            raise InputError(f"name: there is a frame {name!r} already.")
        parts.frames.append(Frame(name, body, at))
    return put_together(parts)


def append(
    model: Model, other: Model, frame: str, placement: SE3 | FloatLike | None = None, *, prefix: str = ""
) -> Model:
    """The model with another robot's root fixed to one of its frames.

    **Arguments:** `other`: load it with `root="floating"`: its free-flyer is taken away and its root link welded. Of
    a robot with a fixed root, the inertia of what is welded to its world is not known: that is a warning. `frame`:
    name; `placement`: pose of the other's root link (or world) in that frame; `prefix`: put before all names of
    `other`.

    The joints of `other` come after those of `model`. Gravity is that of `model`.

    **Raises:** `UnknownNameError`; `InputError` if names occur twice.
    """
    parts, more = take_apart(model), take_apart(other.astype(model.dtype))
    carrier, pose = _frame(model, frame)
    at = pose @ _pose("placement", placement, model.dtype)
    roots = [i for i, body in enumerate(more.bodies) if body.parent < 0]
    n, dropped = len(parts.bodies), -1
    where: dict[int, tuple[int, SE3]] = {-1: (carrier, at)}
    if roots == [0] and more.bodies[0].kind == "floating":
        dropped = 0
        root = more.bodies[0]
        where[0] = carrier, at
        parts.frames.append(Frame(prefix + root.name, carrier, at))
        if carrier >= 0:
            body = parts.bodies[carrier]
            parts.bodies[carrier] = dataclasses.replace(body, inertia=body.inertia + root.inertia.transform(at))
    else:
        welded = [f.name for f in more.frames if f.body < 0]
        if welded and carrier >= 0:
            warn(
                f"append: the inertia of the other robot's links {listing(welded, 6)} is not known, as they were welded to "
                'the world when it was loaded; load it with root="floating".'
            )
    identity = SE3.identity(dtype=model.dtype)
    for i in range(len(more.bodies)):
        if i != dropped:
            where[i] = n + i - (dropped == 0), identity
    for i, body in enumerate(more.bodies):
        if i != dropped:
            parent, above = where[body.parent]
            follows = None if body.follows is None else (prefix + body.follows[0], *body.follows[1:])
            parts.bodies.append(
                dataclasses.replace(
                    body,
                    name=prefix + body.name,
                    joint=prefix + body.joint,
                    parent=parent,
                    placement=above @ body.placement,
                    follows=follows,
                )
            )
    frames, shapes = moved(more, where)
    parts.frames += [dataclasses.replace(f, name=prefix + f.name) for f in frames]
    parts.shapes += [
        dataclasses.replace(s, info=dataclasses.replace(s.info, link=prefix + s.info.link)) for s in shapes
    ]
    return put_together(parts)


def change_base(model: Model, frame: str) -> Model:
    """The same robot with another link as its floating base: `q` then starts with the pose of `frame`.

    The joints between the two point the other way: those with one degree of freedom keep the meaning of their
    coordinate, those with several get that of the inverse motion. Such a joint carries a body `link_at_joint` whose
    frame is at the joint; the link itself is a frame on it. A spring of a planar or floating joint among them, or of the
    root, has no like there and is left out, with a warning; one of a spherical joint needs one stiffness about all axes.

    **Raises:** `UnknownNameError`; `InputError` for a robot whose one root joint is not floating: of a fixed root the
    inertia is not known; load the file with `base_link=` instead.
    """
    check_model(model)
    tree = model.tree
    if tree.parents.count(-1) != 1 or tree.joint_types[0] != "floating":
        raise InputError("model: wanted a floating root; of a fixed one, load the file with base_link= instead.")
    parts = take_apart(model)
    body, pose = _frame(model, frame)
    if body < 0:
        raise InputError(f"frame: {frame!r} is fixed to the world.")
    old, dtype = parts.bodies, model.dtype
    identity = SE3.identity(dtype=dtype)
    back = pose.inverse()
    carried = old[body].inertia.transform(back)
    root = Body(frame, old[0].joint, "floating", -1, identity, old[0].axis, carried, _reversed_sides(old[0]))
    new, where, frames = [root], {body: (0, back)}, []
    if frame != old[body].name:
        frames.append(Frame(old[body].name, 0, back))
    at = body
    while old[at].parent >= 0:
        joint, above = old[at], old[at].parent
        number, here = where[at]
        step = joint.placement.inverse()
        one = JOINT_SIZES[joint.kind] == (1, 1)
        new.append(
            dataclasses.replace(
                joint,
                name=f"{old[above].name}_at_{joint.joint}",
                parent=number,
                placement=here,
                axis=-joint.axis if one else joint.axis,
                inertia=old[above].inertia.transform(step),
                sides=_reversed_sides(joint),
            )
        )
        where[above] = len(new) - 1, step
        frames.append(Frame(old[above].name, *where[above]))
        at = above
    for i, other in enumerate(old):
        if i not in where:
            number, here = where[other.parent]
            where[i] = len(new), identity
            new.append(dataclasses.replace(other, parent=number, placement=here @ other.placement))
    others, shapes = moved(parts, where)
    frames += [f for f in others if f.name != frame]
    return put_together(Parts(new, frames, shapes, parts.gravity))


def _reversed_sides(body: Body) -> dict:
    """The sides of a joint that points the other way."""
    sides, kind = dict(body.sides), body.kind
    if JOINT_SIZES[kind] == (1, 1) or not any(name in sides for name in OF_SPRINGS):
        return sides
    if kind == "spherical":
        return sides | {k: reversed_rest(kind, x) for k, x in sides.items() if k == "spring_reference"}
    stiffness = sides.get("stiffness")
    if stiffness is not None and not (is_concrete(stiffness) and not np.any(stiffness)):
        warn_of_lost_spring(body.joint, kind)
    return {name: x for name, x in sides.items() if name not in OF_SPRINGS}


def _mirrored_sides(body: Body, s: Array) -> dict:
    """The sides of a joint in a mirror with signs `s` (3,) of the coordinates: a spring rests at the mirrored place."""
    rest, sides = body.sides.get("spring_reference"), dict(body.sides)
    if rest is None:
        return sides
    turn = jnp.concatenate([jnp.ones_like(s[:1]), -s])  # of a quaternion: an axis of rotation is axial
    if body.kind == "planar":
        # the in-plane axes u, w are mirrored to s_k u, s_k w of the mirrored normal: see `joints`
        in_plane = s[(jnp.argmax(jnp.abs(body.axis)) + 1) % 3]
        sides["spring_reference"] = rest * jnp.stack([in_plane, in_plane, jnp.ones_like(in_plane)])
    elif body.kind in ("spherical", "floating"):
        signs = turn if body.kind == "spherical" else jnp.concatenate([s, turn])
        sides["spring_reference"] = rest * signs
    return sides


def mirror(model: Model, normal: str = "y", *, rename: Callable[[str], str] | None = None) -> Model:
    """The robot seen in a mirror: reflected in the plane through the world's origin that is normal to axis `normal`
    ("x", "y" or "z").

    Each joint with one coordinate stands at the same value in both, so limits stay. Joints with several get the
    coordinates of the mirrored motion: of a quaternion the two components along the other axes change their sign.
    Meshes are mirrored by a negative scale. `rename` is applied to the names of joints, links and frames (such as left
    to right).

    **Raises:** `InputError` for another `normal`, or names that are no longer different.
    """
    if normal not in ("x", "y", "z"):
        raise InputError(f"normal: wanted 'x', 'y' or 'z', given {normal!r}.")
    parts, dtype = take_apart(model), model.dtype
    sign = np.ones(3)
    sign["xyz".index(normal)] = -1.0
    s = jnp.asarray(sign, dtype)
    outer = s[:, None] * s[None]
    name = rename or (lambda given: given)

    def pose(p: SE3) -> SE3:
        return SE3(p.rotation * outer, p.translation * s)

    bodies = []
    for body in parts.bodies:
        # an axis of rotation is axial: mirrored, it also changes its sense
        axis = body.axis * s if body.kind == "prismatic" else -body.axis * s
        follows = None if body.follows is None else (name(body.follows[0]), *body.follows[1:])
        inertia = SpatialInertia(body.inertia.mass, body.inertia.com * s, body.inertia.inertia * outer)
        place, sides = pose(body.placement), _mirrored_sides(body, s)
        bodies.append(
            Body(name(body.name), name(body.joint), body.kind, body.parent, place, axis, inertia, sides, follows)
        )
    frames = [Frame(name(f.name), f.body, pose(f.placement)) for f in parts.frames]
    shapes = [
        Solid(
            dataclasses.replace(x.info, link=name(x.info.link)),
            pose(x.placement),
            x.size * s if x.info.kind == "mesh" else x.size,
            x.color,
        )
        for x in parts.shapes
    ]
    return put_together(Parts(bodies, frames, shapes, parts.gravity * s))
