"""`Model`: a robot as a pytree. Its `Tree` is static; every number is a leaf, so it can be differentiated, batched
and replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, check_shape, unknown_name
from jaxdyn.math.se3 import SE3
from jaxdyn.math.spatial import SpatialInertia
from jaxdyn.model.joints import neutral_coordinates
from jaxdyn.model.tree import Tree


class Model(eqx.Module):
    """A robot: a tree of rigid bodies.

    All numbers are SI. The frame of body `i` is the frame of its link, at the joint. Body frames, joint axes and
    shapes are fixed to bodies; what hangs on body -1 is fixed to the world.

    | leaf | shape | meaning |
    |---|---|---|
    | `joint_placement` | SE3 of (n_joints) | pose of the joint frame, that of the child at zero, in the parent body |
    | `joint_axis` | (n_joints, 3) | unit axis in the joint frame; normal if planar; unused if spherical, floating |
    | `inertia` | SpatialInertia of (n_bodies) | mass, centre of mass in the body frame, inertia about the centre of mass in body axes |
    | `gravity` | (3,) | acceleration of free fall in world axes |
    | `armature` | (nv,) | rotor inertia on the joint side, added to the diagonal of the mass matrix |
    | `damping`, `friction` | (nv,) | viscous (N m s/rad or N s/m) and dry (N m or N) friction of the joints |
    | `lower`, `upper` | (nq,) | limits of the coordinates; -inf and inf where there is none, and for coordinates of rotations |
    | `velocity_limit`, `effort_limit` | (nv,) | largest magnitudes; inf where there is none |
    | `frame_placement` | SE3 of (n_frames) | pose of each frame in the frame of its body |
    | `shape_placement` | SE3 of (n_shapes) | pose of each shape in the frame of its body |
    | `shape_size` | (n_shapes, 3) | box: full extents; sphere: r, 0, 0; cylinder and capsule (axis z): r, length, 0; mesh: scale |
    | `shape_color` | (n_shapes, 4) | red, green, blue, opacity in 0 .. 1 |
    | `follower_ratio`, `follower_offset` | (n_followers,) or None | a follower is at ratio times its leader plus offset |
    | `stiffness` | (nv,) or None | springs at the joints, N m/rad or N/m; None if there are none (`joint_spring_torque`) |
    | `spring_reference` | (nq,) or None | where they are at rest; None: at the neutral configuration |

    A joint that follows another has no coordinate: `nq`, `nv`, and the leaves of these sizes, are those of the
    independent joints. Armature, damping, friction, springs and limits of the followers are part of those of their leaders.

    A capsule's length is that of its cylindrical part. Links welded to the world carry no inertia here: nothing
    depends on it.
    """

    tree: Tree = eqx.field(static=True)
    joint_placement: SE3
    joint_axis: Float[Array, "joints 3"]
    inertia: SpatialInertia
    gravity: Float[Array, "3"]
    armature: Float[Array, " nv"]
    damping: Float[Array, " nv"]
    friction: Float[Array, " nv"]
    lower: Float[Array, " nq"]
    upper: Float[Array, " nq"]
    velocity_limit: Float[Array, " nv"]
    effort_limit: Float[Array, " nv"]
    frame_placement: SE3
    shape_placement: SE3
    shape_size: Float[Array, "shapes 3"]
    shape_color: Float[Array, "shapes 4"]
    follower_ratio: Float[Array, " followers"] | None = None
    follower_offset: Float[Array, " followers"] | None = None
    stiffness: Float[Array, " nv"] | None = None
    spring_reference: Float[Array, " nq"] | None = None

    @property
    def nq(self) -> int:
        """Number of coordinates."""
        return self.tree.nq

    @property
    def nv(self) -> int:
        """Number of degrees of freedom."""
        return self.tree.nv

    @property
    def n_joints(self) -> int:
        """Number of moving joints, those that follow others included."""
        return self.tree.n_joints

    @property
    def n_bodies(self) -> int:
        """Number of moving bodies, one per joint."""
        return self.tree.n_bodies

    @property
    def n_frames(self) -> int:
        """Number of named frames."""
        return self.tree.n_frames

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints in the order of `q` and `v`; joints that follow others have none there, see
        `follower_names`."""
        t = self.tree
        return tuple(t.joint_names[i] for i in t.independent) if t.followers else t.joint_names

    @property
    def follower_names(self) -> tuple[str, ...]:
        """Names of the joints that follow others (`<mimic>`)."""
        return tuple(self.tree.joint_names[joint] for joint, _ in self.tree.followers)

    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of the links that the joints move."""
        return self.tree.body_names

    @property
    def frame_names(self) -> tuple[str, ...]:
        """Names of all links: first the bodies, then the links that fixed joints weld to them or to the world."""
        return self.tree.frame_names

    @property
    def total_mass(self) -> Float[Array, "*batch"]:
        """Mass of all moving bodies, kg."""
        return jnp.sum(self.inertia.mass, axis=-1)

    @property
    def dtype(self) -> Any:
        """dtype of the leaves."""
        return self.gravity.dtype

    def joint(self, name: str) -> int:
        """Index of a joint by name; raises `UnknownNameError` with the nearest names."""
        return self.tree.joint(name)

    def body(self, name: str) -> int:
        """Index of a body by the name of its link; raises `UnknownNameError` with the nearest names."""
        return self.tree.body(name)

    def frame(self, name: str) -> int:
        """Index of a frame by the name of its link; raises `UnknownNameError` with the nearest names."""
        return self.tree.frame(name)

    def astype(self, dtype: Any) -> Model:
        """The same robot with all floating leaves of another dtype (float64 needs `jax_enable_x64`)."""
        dtype = float_dtype(dtype)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, self)

    def __repr__(self) -> str:
        t = self.tree
        return f"Model(n_joints={t.n_joints}, nq={t.nq}, nv={t.nv}, n_frames={t.n_frames}, n_shapes={len(t.geometry)}, dtype={self.dtype})"


def check_model(model: Any) -> None:
    """Refuses what is no robot, for functions that would ask it for its tree.

    **Raises:** `InputError`.
    """
    if not isinstance(model, Model):
        given = f"the text {model!r:.60}" if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(f"model: wanted a Model, as load or from_urdf makes it, given {given}.")


def float_dtype(dtype: Any) -> Any:
    """A NumPy dtype for the leaves of a model: JAX's default float for None. Raises `InputError` if it is not a float
    that JAX may hold now.
    """
    if dtype is None:
        return jnp.result_type(float)
    try:
        result = jnp.dtype(dtype)
    except TypeError:
        raise InputError(f"dtype: wanted a floating-point dtype, given {dtype!r}.") from None
    if not jnp.issubdtype(result, jnp.floating):
        raise InputError(f"dtype: wanted a floating-point dtype, given {result}.")
    if result == np.float64 and jnp.result_type(float) != result:
        raise InputError(f'dtype: {result} needs jax.config.update("jax_enable_x64", True) before the model is built.')
    return result


def configuration(
    model: Model, values: Mapping[str, FloatLike], *, base: FloatLike | None = None
) -> Float[Array, " nq"]:
    """The configuration `q` with the given joints at the given values, the others where `base` (default: neutral) has
    them.

    **Arguments:** `model`; `values`: joint name to coordinates: a number for a joint with one coordinate, else an
    array of the joint's coordinates (planar: x, y, angle; spherical: quaternion wxyz; floating: position, quaternion
    wxyz), m or rad; `base`: (nq,).

    **Raises:** `UnknownNameError` for a joint that does not exist, `InputError` for a wrong shape.
    """
    check_model(model)
    if base is None:
        base = jnp.asarray(neutral_coordinates(model.tree), dtype=model.dtype)
    return _scatter(model, "base", base, values, model.tree.q_offset, model.tree.joint_nq)


def tangent(model: Model, values: Mapping[str, FloatLike], *, base: FloatLike | None = None) -> Float[Array, " nv"]:
    """A vector of velocities, accelerations or joint torques (nv) with the given joints at the given values, the
    others at zero or as in `base`.

    **Arguments:** as for `configuration`, with the joint's degrees of freedom (floating: linear then angular in body
    axes).

    **Raises:** `UnknownNameError`, `InputError`.
    """
    check_model(model)
    if base is None:
        base = jnp.zeros(model.nv, model.dtype)
    return _scatter(model, "base", base, values, model.tree.v_offset, model.tree.joint_nv)


def _scatter(
    model: Model, name: str, base: FloatLike, values: Mapping[str, FloatLike], offsets: tuple, sizes: tuple
) -> jax.Array:
    if not isinstance(values, Mapping):
        raise InputError(f"values: wanted a mapping from joint names to values, given {type(values).__name__}.")
    result = check_shape(name, base, (sum(sizes),), dtype=model.dtype)
    for joint, value in values.items():
        if joint in model.follower_names:
            leader = model.tree.joint_names[model.tree.leading_joint[model.tree.joint(joint)]]
            raise InputError(f"values: joint {joint!r} follows {leader!r} and has no value of its own.")
        if joint not in model.joint_names:
            raise unknown_name("joint", joint, model.joint_names)
        i = model.tree.joint(joint)  # followers are not among `joint_names`
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        shape = () if sizes[i] == 1 and np.ndim(value) == 0 else (sizes[i],)
        part = check_shape(joint, value, shape, dtype=result.dtype).astype(result.dtype)
        result = result.at[offsets[i] : offsets[i] + sizes[i]].set(part)
    return result
