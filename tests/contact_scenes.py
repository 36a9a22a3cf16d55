"""Robots and surfaces for the tests of contacts: the reference configurations, converted, and the shapes of the closed-form
cases.

The references have quaternions x, y, z, w and a cosine and a sine for a continuous joint; ours are w, x, y, z and an angle.
"""

import functools
import json
import pathlib

import numpy as np

from jaxdyn.functions import ConvexShape, ConvexShapeContact, ConvexShapeContactComplement
from jaxdyn.model import from_urdf

SCENES = json.loads((pathlib.Path(__file__).parent / "data" / "convex_shape_contact.json").read_text())
FREE, TREE = SCENES[:4], SCENES[4:]

SQUARE = np.array([(0.0, 0, 0), (2, 0, 0), (2, 2, 0), (0, 2, 0)])
FOOT = np.array([(-0.1, 0.1, 0), (0.1, 0.1, 0), (0.1, -0.1, 0), (-0.1, -0.1, 0)])
SQUARE_5 = np.array([(5.0, 5, 0), (5, -5, 0), (0, -5, 0), (0, 5, 0)])
PENTAGON = np.array([(0.0, 5, 0), (0, -5, 0), (-2, -6, 0), (-5, 0, 0), (-2, 6, 0)])
TRAPEZOID = np.array([(-0.1, 0.1, 0), (0.1, 0.1, 0), (0.2, -0.1, 0), (-0.1, -0.1, 0)])


@functools.cache
def free_bodies(n=1):
    """`n` bodies b0, b1, ... that float freely, moved by the joints j0, j1, ..."""
    inertia = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    parts = "".join(
        f'<link name="b{i}">{inertia}</link>'
        f'<joint name="j{i}" type="floating"><parent link="world"/><child link="b{i}"/></joint>'
        for i in range(n)
    )
    return from_urdf(f'<robot name="free"><link name="world"/>{parts}</robot>')


@functools.cache
def tree():
    """A trunk with two arms, of the reference configurations."""
    return from_urdf(TREE[0]["urdf"])


def robot_of(scene):
    return free_bodies(scene["nq"] // 7) if scene in FREE else tree()


def contact_of(scene, padding=5):
    """The contact of a scene, its shapes stored with `padding` corners."""
    model = robot_of(scene)
    names = [None, *model.body_names]

    def shapes(given):
        return [ConvexShape(points, names[joint + 1]).padded(padding) for joint, points in given]

    return ConvexShapeContact(model, shapes(scene["floors"]), shapes(scene["objects"]), margin=scene["margin"])


def configurations(scene):
    """Configurations of a scene in our convention."""
    q = np.array([case["q"] for case in scene["cases"]])
    if scene in FREE:
        bodies = q.reshape(len(q), -1, 7)
        return bodies[:, :, [0, 1, 2, 6, 3, 4, 5]].reshape(len(q), -1)
    angle = np.arctan2(q[:, 4], q[:, 3])
    return np.concatenate([q[:, :3], angle[:, None], q[:, 5:]], axis=1)


def reference(scene, name):
    return np.array([case[name] for case in scene["cases"]])


def pose(x, y, z, angle=0.0, axis=(0.0, 0.0, 1.0)):
    """Coordinates of a free body: position, and a turn about an axis."""
    axis = np.asarray(axis) / np.linalg.norm(axis)
    return np.concatenate([[x, y, z], [np.cos(angle / 2)], np.sin(angle / 2) * axis])


def everything(contact, q, near=0.15):
    """All that a contact says of one configuration; `near`: margin of the contact list."""
    value, jacobian = contact.value_and_jacobian(q)
    complement, complement_jacobian = ConvexShapeContactComplement(contact).value_and_jacobian(q)
    return {
        "value": value,
        "J": jacobian,
        "complement": complement,
        "Jc": complement_jacobian,
        "contacts": contact.contact_points(q, near),
    }
