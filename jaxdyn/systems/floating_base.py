"""Dynamics of a floating-base robot on compliant contacts.

With the velocity `nu = [p_dot, omega, s_dot]` (base twist MIXED) the equations are

    (M + M_reg) nu_dot = -h + [0, tau] + sum_c J_c^T w_c

in which every quantity belongs to that choice of velocity: `M` has `m I` in its first block, `J_c nu` is the MIXED
twist of the contact frame, and `w_c` is the wrench of the ground on it, world axes, moment about the frame's origin.

All is computed in axes of the base: with `T = blkdiag(R, R, I)` and hats on the quantities of the same robot with its
base at rest in the world's frame, `M = T M^ T^T`, `h = T h^` and `nu^ = T^T nu`. So positions far from the origin cost
no digits, and gravity, which shifts `p_ddot` alone, is added at the end.

A rotation matrix that is not orthonormal (an embedded integrator drifts, a finite difference perturbs an entry) is
taken as it is, in the same places as iDynTree and bipedal-locomotion-framework take it: `f` has their values off the
group too, and derivatives to match. The Jacobian of a contact is then `[R R^T, -S(r) R R^T; 0, R R^T]` for the base and
`[(R a) x r_j; R a]` for a joint with axis `a`, with `r` and `r_j` the arms in world axes. From `R^T ((R x) x f) = x x
(cof(R)^T f)`, in axes of the base moments are those of the force `cof(R)^T f`, while the base is pushed by `R^T f`. On
the group `cof(R) = R`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdyn.algorithms.configuration import Configuration, as_configuration, configuration_from_pose
from jaxdyn.algorithms.inverse_dynamics import generalized_force, joint_friction_torque, nonlinear_effects
from jaxdyn.algorithms.kinematics import forward_kinematics, frame_pose, frame_velocity
from jaxdyn.algorithms.mass_matrix import crba
from jaxdyn.algorithms.springs import joint_spring_torque
from jaxdyn.contact.fields import cast, parameter
from jaxdyn.contact.schedule import ContactSchedule
from jaxdyn.contact.terrain import Terrain
from jaxdyn.errors import FloatLike, InputError, UnknownNameError, check_shape
from jaxdyn.math import SE3, so3
from jaxdyn.math.series import stumpff
from jaxdyn.model import Model
from jaxdyn.systems.contacts import Base, Contacts, checked_contacts, contact_frames
from jaxdyn.systems.dynamics import contact_dynamics, contact_torque
from jaxdyn.systems.robot import RobotDynamics, adapted, checked_schedule
from jaxdyn.systems.system import (
    Input,
    State,
    StateDerivative,
    check_floating,
    check_leaves,
    check_regularization,
    full_coordinates,
    is_flat,
    joint_chart_rate,
    joint_displacement,
    joint_rates,
    move_joints,
)


class _BodyAxes(NamedTuple):
    """The robot in axes of its base: coordinates and velocity `nu^`, and where those axes lie in the world."""

    configuration: Configuration
    velocity: Array
    base: Base


def cofactors(matrix: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
    """Cofactor matrix: `det(R) R^-T`, equal to `R` for a rotation."""
    return so3.cross(matrix[jnp.array([1, 2, 0])], matrix[jnp.array([2, 0, 1])])


def _placed(configuration: Configuration, x: State) -> Configuration:
    """The configuration with its base where the state has it."""
    base = configuration.rotations.at[0].set(x.rotation), configuration.coordinates.at[:3].set(x.position)
    return Configuration(*base)


class FloatingBaseDynamics(RobotDynamics):
    """`x_dot = f(x, u, t)` of a robot with a floating base; see the module's text for the equations.

    **Arguments:**

    - `model`: loaded with a floating root.
    - `contacts`: the compliant contacts; none is fine.
    - `gravity`: (3,), world axes, m/s^2; default: the model's.
    - `rho`: gain (1/s) of the term `(rho / 2) (R^-T - R)` in the derivative of the rotation matrix. Only the embedded
      integrators use that derivative. The default, 0.01, is there for parity and its time constant is 100 s; about
      `0.1 / dt` is of use with `EmbeddedEuler`.
    - `base_link`: frame that the state's twist, position and rotation are those of; default: the root link.
    - `mass_regularization`: (6 + n, 6 + n), symmetric, added to the mass matrix of the velocity `nu`.
    - `terrain`: the ground for contacts that do not carry it with them; default: the plane of each anchor.
    - `armature`: (n,), rotor inertia of the joints, in place of the model's.
    - `joint_friction`: whether the model's joint damping and friction act. Default: they do not, only `torque` does.
    - `joint_springs`: whether the springs at the model's joints act, that of the base too. Default: they do not.
    - `schedule`: when which contact is on; default: always, as far as its `active` says so.

    Joint limits and effort limits are not enforced.

    **Raises:** `InputError` at construction for a gravity that is not a vector, a frame that does not exist or is fixed
    to the world, or a wrong shape; at a call for vectors of a wrong length.
    """

    model: Model
    contacts: Contacts
    terrain: Terrain | None
    schedule: ContactSchedule | None
    base_link: str | None = eqx.field(static=True)
    joint_friction: bool = eqx.field(static=True)
    joint_springs: bool = eqx.field(static=True)
    derivatives: str = eqx.field(static=True)
    _state_type: ClassVar[type] = State
    rho: Float[Array, "..."] = parameter("rho")
    mass_regularization: Float[Array, "... nv nv"] | None = eqx.field(default=None, metadata={"rank": 2})

    def __init__(
        self,
        model: Model,
        contacts: Any = (),
        *,
        gravity: FloatLike | None = None,
        rho: FloatLike = 0.01,
        base_link: str | None = None,
        mass_regularization: FloatLike | None = None,
        terrain: Terrain | None = None,
        armature: FloatLike | None = None,
        joint_friction: bool = False,
        joint_springs: bool = False,
        schedule: Any = None,
    ):
        check_floating(model)
        model, dtype = adapted(model, gravity, armature, model.nv - 6), model.dtype
        if base_link is not None:
            check_base_link(model, base_link)
        if mass_regularization is not None:
            mass_regularization = check_regularization(mass_regularization, model.nv, dtype)
        self.model = model
        self.contacts = checked_contacts(model, contacts)
        self.terrain = None if terrain is None else cast(terrain, dtype)
        self.schedule = checked_schedule(schedule, self.contacts, dtype)
        self.rho = check_shape("rho", float(rho) if isinstance(rho, int) else rho, (), dtype=dtype).astype(dtype)
        self.mass_regularization = mass_regularization
        self.base_link = None if base_link == model.body_names[0] else base_link
        self.joint_friction = joint_friction
        self.joint_springs = joint_springs
        self.derivatives = "dense"

    # The system

    @property
    def n(self) -> int:
        """Number of joint velocities."""
        return self.model.nv - 6

    def __call__(self, x: State, u: Any, t: FloatLike = 0.0) -> StateDerivative:
        """Time derivative of `x` under `u` (an `Input`, or a bare torque vector) at time `t`, on which only a schedule
        depends.

        **Raises:** `InputError` for vectors of a wrong length.
        """
        acceleration = self.acceleration(x, u, t)
        rotation = x.rotation
        spin = so3.cross(x.twist[None, 3:], rotation.T).T
        adjugate = cofactors(rotation)
        inverse_transposed = adjugate / jnp.sum(adjugate[0] * rotation[0])
        rotation_rate = spin + 0.5 * self.rho * (inverse_transposed - rotation)
        rates = joint_rates(self.model, x.joint_position, x.joint_velocity)
        return StateDerivative(acceleration[:6], acceleration[6:], x.twist[:3], rotation_rate, rates)

    def acceleration(self, x: State, u: Any, t: FloatLike = 0.0) -> Float[Array, " nv"]:
        """`nu_dot`: MIXED acceleration of the base `[p_ddot, omega_dot]`, then joint accelerations."""
        u = self._checked(x, u, t)
        if self.base_link is None:
            return self._acceleration(x, u, None)
        root = self._root(x)
        # nu = B nu_root: the twist of the base link is a function of the root's state
        twist_of_link = lambda x: self._link_twist(x)  # noqa: E731
        jacobian = jnp.concatenate(
            [
                jax.jacfwd(lambda v: self._link_twist(self.displace(root, jnp.zeros_like(v), v)))(self.velocity(root)),
                jnp.eye(self.model.nv, dtype=x.twist.dtype)[6:],
            ]
        )
        zero = jnp.zeros_like(self.velocity(root))
        still = self._derivative_of_configuration(root, zero)
        bias = jnp.concatenate([jax.jvp(twist_of_link, (root,), (still,))[1], jnp.zeros_like(zero[6:])])
        a = self._acceleration(root, u, (jacobian, bias))
        return jnp.sum(jacobian * a[None], axis=-1) + bias

    def velocity(self, x: State) -> Float[Array, " nv"]:
        return jnp.concatenate([x.twist, x.joint_velocity])

    def displace(self, x: State, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> State:
        rotation = turned(x.rotation, displacement[3:6])
        joints = move_joints(self.model, x.joint_position, displacement[6:])
        return _state(velocity[:6], velocity[6:], x.position + displacement[:3], rotation, joints)

    def displacement(self, x0: State, x1: State) -> Float[Array, " nv"]:
        turn = so3.log(so3.compose(x1.rotation, so3.inverse(x0.rotation)))
        joints = joint_displacement(self.model, x0.joint_position, x1.joint_position)
        return jnp.concatenate([x1.position - x0.position, turn, joints])

    def chart_rate(self, displacement: Float[Array, " nv"], velocity: Float[Array, " nv"]) -> Float[Array, " nv"]:
        # R = Exp(u) R_0 with omega in world axes: the inverse of the left Jacobian (Hairer, Lubich, Wanner, III.4)
        u, omega = displacement[3:6], velocity[3:6]
        once = so3.cross(u, omega)
        turn = omega - once / 2 + so3.cross(u, once) / 12
        joints = joint_chart_rate(self.model, displacement[6:], velocity[6:])
        return jnp.concatenate([velocity[:3], turn, joints])

    def project(self, x: State) -> State:
        return eqx.tree_at(lambda x: x.rotation, x, so3.project(x.rotation))

    # Quantities

    def mass_matrix(self, x: State) -> Float[Array, "nv nv"]:
        """Mass matrix of the velocity `nu` of the root link, armature and `mass_regularization` not counted twice: `M`
        alone."""
        check_leaves(x, self._shapes())
        at = self._body_axes(self._root(x))
        return _congruence(at.base.rotation, crba(self.model, at.configuration))

    def bias_force(self, x: State) -> Float[Array, " nv"]:
        """Coriolis, centrifugal and gravity terms `h` of the velocity `nu` of the root link."""
        check_leaves(x, self._shapes())
        at = self._body_axes(self._root(x))
        mass, bias = self._mass_and_bias(at)
        weight = jnp.sum(mass[:, :3] * so3.rotate_back(at.base.rotation, self.model.gravity)[None], axis=-1)
        return _turn_base(at.base.rotation, bias - weight)

    def contact_states(self, x: State, u: Any = None) -> tuple[SE3, Float[Array, "contacts 6"]]:
        """World poses and MIXED twists of the contacts' frames, stacked in the order of the contacts."""
        u = self._checked(x, u)
        at = self._body_axes(self._root(x))
        frames = contact_frames(self.model, u.contacts, at.configuration, at.velocity, at.base)
        twists = jnp.concatenate([frames.linear, frames.angular], axis=1)
        return SE3(frames.rotation, frames.position), twists

    # Internals

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n, nq = self.n, self.model.nq - 7
        return {
            "twist": (6,),
            "joint_velocity": (n,),
            "position": (3,),
            "rotation": (3, 3),
            "joint_position": (nq,),
        }

    def _body_axes(self, x: State) -> _BodyAxes:
        rotation = x.rotation
        velocity = jnp.concatenate(
            [so3.rotate_back(rotation, x.twist[:3]), so3.rotate_back(rotation, x.twist[3:]), x.joint_velocity]
        )
        base = Base(rotation, cofactors(rotation), x.position)
        return _BodyAxes(self._configuration(x.joint_position), velocity, base)

    def _configuration(self, joint_position: Array) -> Configuration:
        """The robot with its base in the world's frame."""
        if is_flat(self.model):
            dtype = joint_position.dtype
            return configuration_from_pose(self.model, jnp.zeros(3, dtype), jnp.eye(3, dtype=dtype), joint_position)
        return as_configuration(self.model, full_coordinates(self.model, joint_position))

    def _mass_and_bias(self, at: _BodyAxes) -> tuple[Array, Array]:
        """`M^` and the bias `h^` without gravity, of the MIXED velocity at the identity."""
        mass = crba(self.model, at.configuration)
        bias = nonlinear_effects(_weightless(self.model), at.configuration, at.velocity)
        # LOCAL and MIXED accelerations differ by omega x v
        swing = so3.cross(at.velocity[3:6], at.velocity[:3])
        return mass, bias - jnp.sum(mass[:, :3] * swing[None], axis=-1)

    def _acceleration(self, x: State, u: Input, link: tuple[Array, Array] | None) -> Array:
        """`nu_dot` of the root link. `link` is the Jacobian `B` and bias `b` in `nu_link_dot = B nu_dot + b`."""
        at = self._body_axes(x)
        torque = u.torque
        if self.joint_friction:
            torque = torque + joint_friction_torque(self.model, at.velocity)[6:]
        force = jnp.concatenate([jnp.zeros_like(x.twist), torque])
        if self.joint_springs:
            force = force + joint_spring_torque(self.model, _placed(at.configuration, x))
        robot = at.configuration, at.velocity
        if u.wrenches is not None:
            turned_back = jax.vmap(so3.rotate_back, in_axes=(None, 0))
            wrenches = [turned_back(at.base.rotation, part) for part in (u.wrenches[:, :3], u.wrenches[:, 3:])]
            force = force + generalized_force(self.model, at.configuration, jnp.concatenate(wrenches, axis=1))
        gravity = self.model.gravity
        if self.mass_regularization is None:
            weightless = _weightless(self.model)
            local = contact_dynamics(
                weightless, *robot, force, at.base, u.contacts or (), self.terrain, self.derivatives
            )
            linear = local[:3] + so3.cross(at.velocity[3:6], at.velocity[:3])
            inverse_transposed = at.base.cofactors / jnp.sum(at.base.cofactors[0] * at.base.rotation[0])
            linear, angular = (so3.rotate(inverse_transposed, part) for part in (linear, local[3:6]))
            return jnp.concatenate([linear + gravity, angular, local[6:]])
        if u.contacts:
            force = force + contact_torque(self.model, *robot, at.base, u.contacts or (), self.terrain)
        mass, bias = self._mass_and_bias(at)
        weight = jnp.sum(mass[:, :3] * so3.rotate_back(at.base.rotation, gravity)[None], axis=-1)
        right = _turn_base(at.base.rotation, force - bias + weight)
        extra = self.mass_regularization
        if link is not None:
            # the regularisation belongs to nu_link: B^T M_reg (B nu_dot + b)
            jacobian, drift = link
            half = jnp.sum(extra[:, :, None] * jacobian[None], axis=1)
            right = right - jnp.sum(half * drift[:, None], axis=0)
            extra = jnp.sum(jacobian[:, :, None] * half[:, None], axis=0)
        factor = jax.scipy.linalg.cho_factor(_congruence(at.base.rotation, mass) + extra, lower=True)
        return jax.scipy.linalg.cho_solve(factor, right)

    # A base link that is not the root link

    def _link_twist(self, x: State) -> Array:
        """MIXED twist of the base link, given the state of the root link."""
        at = self._body_axes(x)
        kinematics = forward_kinematics(self.model, at.configuration, at.velocity)
        return _turn_pair(at.base.rotation, frame_velocity(self.model, kinematics, self.base_link or "")[None])[0]

    def _root(self, x: State) -> State:
        """The state with the root link as base, of the state with `base_link` as base."""
        if self.base_link is None:
            return x
        still = jnp.concatenate([jnp.zeros_like(x.twist), x.joint_velocity])
        kinematics = forward_kinematics(self.model, self._configuration(x.joint_position), still)
        link = frame_pose(self.model, kinematics, self.base_link or "")
        relative = frame_velocity(self.model, kinematics, self.base_link or "")
        rotation = so3.compose(x.rotation, so3.inverse(link.rotation))
        arm = so3.rotate(rotation, link.translation)
        angular = x.twist[3:] - so3.rotate(rotation, relative[3:])
        linear = x.twist[:3] - so3.cross(angular, arm) - so3.rotate(rotation, relative[:3])
        return _state(
            jnp.concatenate([linear, angular]), x.joint_velocity, x.position - arm, rotation, x.joint_position
        )

    def _derivative_of_configuration(self, x: State, acceleration: Array) -> State:
        """Time derivative of a state of the root link, as a tangent of `State`."""
        spin = so3.cross(x.twist[None, 3:], x.rotation.T).T
        rates = joint_rates(self.model, x.joint_position, x.joint_velocity)
        return _state(acceleration[:6], acceleration[6:], x.twist[:3], spin, rates)


def turned(rotation: Float[Array, "3 3"], w: Float[Array, "3"]) -> Float[Array, "3 3"]:
    """`Exp(w) R` as `R + w x (c_1 R + c_2 w x R)`, column by column, with the Stumpff functions of `|w|^2`.

    In a small step the entries of `Exp(w)` next to 1 would be rounded in the same way at every step, and the rotation
    would leave the group steadily; the rounding of a small increment is as good as random. In single precision this keeps
    it orthonormal twenty times better over 10^4 steps.
    """
    square = jnp.sum(w * w)
    columns = rotation.T
    inner = stumpff(1, square) * columns + stumpff(2, square) * so3.cross(w, columns)
    return rotation + so3.cross(w, inner).T


def _state(*leaves: Array) -> State:
    """A `State` of arrays that need no conversion."""
    return State(*leaves)


def _weightless(model: Model) -> Model:
    return eqx.tree_at(lambda m: m.gravity, model, jnp.zeros_like(model.gravity))


def _turn_pair(rotation: Array, pairs: Float[Array, "n 6"]) -> Float[Array, "n 6"]:
    """Both halves of 6-vectors, turned."""
    return jnp.concatenate([so3.rotate(rotation, pairs[:, :3]), so3.rotate(rotation, pairs[:, 3:])], axis=-1)


def _turn_base(rotation: Array, vector: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """`T x` with `T = blkdiag(R, R, I)`."""
    return jnp.concatenate([so3.rotate(rotation, vector[:3]), so3.rotate(rotation, vector[3:6]), vector[6:]])


def _congruence(rotation: Array, matrix: Float[Array, "nv nv"]) -> Float[Array, "nv nv"]:
    """`T A T^T`."""
    turn = jax.vmap(_turn_base, in_axes=(None, 1), out_axes=1)
    return turn(rotation, turn(rotation, matrix).T).T


def check_base_link(model: Model, base_link: str) -> None:
    """Raises `InputError` unless `base_link` is a frame on a moving body."""
    try:
        frame = model.frame(base_link)
    except UnknownNameError as error:
        raise InputError(f"base_link: {error}") from None
    if model.tree.frame_bodies[frame] < 0:
        raise InputError(f"base_link: {base_link!r} is fixed to the world.")
