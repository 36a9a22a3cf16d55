"""Gains and contact constants for any robot, from its masses and the time step.

An explicit integrator is stable while no spring or damper is too stiff for the inertia that it acts on. So everything
here starts from the mass matrix `M` in the initial posture:

- **Contact.** In equilibrium the robot sinks in by 0.8 % of its height, 1 cm at most: `k = weight / (n depth)` for `n`
  supporting points; the damper is half of the critical one for the mass that a point carries. With `lambda` the
  largest eigenvalue of `J M^-1 J^T` (J: velocities of all points along the normal) semi-implicit Euler needs
  `k lambda dt^2` and `b lambda dt` well below 4 and 2; they are kept below 0.3 and 0.8.
- **Friction** grows over the slip velocity `v_s = friction N lambda dt / 1.4`, with the usual load `N` of a point and
  `lambda` as before, across the normal: a factor of 0.7 below what is stable. It grows further until all of it together,
  contacts, friction of the largest coefficient that environments draw, and gains, has `h eig(M^-1 (D + h K / 2))` of 1.9 at
  most, where 2 is the limit. If that takes more than 0.5 m/s, there is one more substep.
- **Substeps**: as many as it takes for the ground not to become softer than a fifth of what is wanted, and for a slip
  velocity of 0.3 m/s at most; but not more than 8.
- **PD control.** `kp = weight * height` for robots that stand (that keeps an inverted pendulum upright), `10 x` the
  torque that gravity asks for, at least, for arms; never above `0.3 I / dt^2`, with `I = 1 / (M^-1)_jj`, what the joint feels of
  inertia while all others are free. `kd` damps half critically, at most `0.5 I / dt`. Of light joints that move each
  other, such as a wrist's, both are lowered further, until all joints together bear the time step. It is the
  whole one that counts here: the controller's torque is held over the substeps.
- **Hold torque**: what keeps the posture in equilibrium, with the least sum of squares of the contact forces.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import numpy as np

import jaxdyn
from jaxdyn.app.ground import Spot, choose, clouds, height
from jaxdyn.app.robot import base_sizes, is_floating
from jaxdyn.model.followers import projection

# The largest coefficient of friction that environments draw.
LARGEST_FRICTION = 1.0


@dataclasses.dataclass(frozen=True)
class Survey:
    """The robot in its initial posture: mass matrix, gravity torque, poses of the bodies, motion axes; NumPy, float64."""

    mass: np.ndarray
    gravity: np.ndarray
    rotation: np.ndarray
    translation: np.ndarray
    origin: np.ndarray
    axes: np.ndarray


@eqx.filter_jit
def _survey(model: jaxdyn.Model, q: jax.Array):
    kin = jaxdyn.forward_kinematics(model, q)
    return jaxdyn.crba(model, q), jaxdyn.gravity_torque(model, q), kin


def survey(model: jaxdyn.Model, q: np.ndarray) -> Survey:
    """Measures a robot at the configuration `q` (nq,)."""
    mass, gravity, kin = _survey(model, jax.numpy.asarray(q, model.dtype))
    parts = (mass, gravity, kin.rotation, kin.translation, kin.origin, kin.axes)
    return Survey(*(np.asarray(part, np.float64) for part in parts))


def point_jacobians(model: jaxdyn.Model, at: Survey, spots: list[Spot]) -> np.ndarray:
    """Jacobians (n, 3, nv) of the velocities of all points of the spots, in world axes."""
    rows, free = [], model.tree.free  # the axes are those of all joints, of followers too
    for spot in spots:
        i = model.frame(spot.frame)
        body = model.tree.frame_bodies[i]
        place = np.asarray(model.frame_placement.rotation[i], np.float64)
        local = spot.points @ place.T + np.asarray(model.frame_placement.translation[i], np.float64)
        world = local @ at.rotation[body].T + at.translation[body]
        moves = np.asarray(free.dof_support)[body]
        arms = world[:, None] - at.origin
        velocity = at.axes[None, :, :3] + np.cross(at.axes[None, :, 3:], arms)
        rows.append(np.where(moves[None, :, None], velocity, 0).swapaxes(1, 2))
    all_joints = np.concatenate(rows) if rows else np.zeros((0, 3, free.nv))
    return all_joints @ np.asarray(projection(model), np.float64)


def lowest_point(model: jaxdyn.Model, at: Survey, spots: list[Spot]) -> float:
    """Height of the lowest point of the spots, m."""
    lows = []
    for spot in spots:
        i = model.frame(spot.frame)
        body = model.tree.frame_bodies[i]
        place = np.asarray(model.frame_placement.rotation[i], np.float64)
        local = spot.points @ place.T + np.asarray(model.frame_placement.translation[i], np.float64)
        lows.append(float((local @ at.rotation[body][2] + at.translation[body][2]).min()))
    return min(lows, default=0.0)


@dataclasses.dataclass(frozen=True)
class Ground:
    """Constants of the contact of one point: N/m, N s/m, m/s; `sink`: depth in equilibrium, m."""

    stiffness: float
    damping: float
    slip_velocity: float
    sink: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a simulation of a robot needs to be told.

    `q`: (nq,) configuration to start from, standing on the ground if there is one; `spots`; `ground`; `substeps`;
    `kp`, `kd`, `hold`, `limit`: (joints,) gains, torque in equilibrium, largest torque; `height`: of the robot, m;
    `longest_dt`: s, that needs no substeps, infinite without contacts.
    """

    q: np.ndarray
    spots: list[Spot]
    ground: Ground
    substeps: int
    kp: np.ndarray
    kd: np.ndarray
    hold: np.ndarray
    limit: np.ndarray
    height: float
    longest_dt: float


def plan(
    model: jaxdyn.Model,
    q: np.ndarray,
    dt: float,
    *,
    contacts: list[str] | None = None,
    friction: float = 0.8,
    substeps: int | None = None,
    falls: bool = True,
) -> Plan:
    """Chooses contacts, constants and gains, by the rules of this module and of `ground`.
    The mass matrix must not be singular: see `regular`.
    """
    at = survey(model, q)
    floating = is_floating(model)
    wanted = floating or contacts is not None
    spots = choose(model, at.rotation, at.translation, contacts, falls=falls and floating) if wanted else []
    size = height(clouds(model, at.rotation, at.translation))
    inverse = np.linalg.inv(at.mass)
    weight = float(np.sum(np.asarray(model.inertia.mass, np.float64))) * float(np.linalg.norm(model.gravity))
    jacobians = point_jacobians(model, at, spots)
    supports = np.concatenate([np.full(len(s.points), s.support) for s in spots]) if spots else np.zeros(0, bool)
    down = jacobians[supports]
    n = max(len(down), 1)
    load = max(weight, 1e-6) / n
    wish = load / min(0.008 * size, 0.01)
    along, across = _largest(down[:, 2:], inverse), _largest(down[:, :2], inverse)
    longest = min(np.sqrt(0.3 / (0.2 * wish * along)), 1.4 * 0.3 / (friction * load * across)) if len(down) else np.inf
    kp, kd = _gains(model, at, weight, size, inverse, dt, floating)

    def ground_for(substeps: int) -> Ground:
        h = dt / substeps
        ground = _ground(wish, load, friction, along, across, h)
        if not len(down):
            return ground
        most = max(friction, LARGEST_FRICTION) * load
        return dataclasses.replace(
            ground, slip_velocity=_slip_velocity(ground, most, down, inverse, kd + 0.5 * (dt / substeps) * kp, h)
        )

    fewest = min(8, max(1, int(np.ceil(dt / longest - 1e-6))))
    chosen = substeps or next((n for n in range(fewest, 8) if ground_for(n).slip_velocity < 0.5), 8)
    ground = ground_for(chosen)
    longest = min(longest, dt / chosen) if chosen > fewest else longest
    q = np.array(q)
    if floating:
        q[2] -= lowest_point(model, at, spots) + ground.sink
    hold = _hold(model, at, jacobians[supports])
    return Plan(q, spots, ground, chosen, kp, kd, hold, torque_limit(model), size, float(longest))


def regular(model: jaxdyn.Model, q: np.ndarray, armature: float = 0.0) -> tuple[jaxdyn.Model, list[str]]:
    """The robot with rotor inertia on its joints: `armature`, and where the mass matrix would be singular a tenth of
    the inertia of the joints in question.

    **Returns:** the robot, and the names of the joints that got inertia for the second reason.
    """
    if not model.nv:
        raise jaxdyn.InputError(
            "the robot has no joints and a fixed base: nothing can move (--base floating lets it go)."
        )
    nv = base_sizes(model)[1]
    model = _with_armature(model, np.where(np.arange(model.nv) < nv, 0, armature))
    mass = survey(model, q).mass
    names = singular_joints(model, mass)
    if names:
        dofs = np.isin(np.asarray(model.tree.dof_body), [model.joint(name) for name in names])
        if dofs[:nv].any():
            raise jaxdyn.InputError("the mass matrix is singular in the floating base: the robot has no mass.")
        diagonal = np.diag(mass)[nv:]
        inertia = 0.1 * float(np.max(np.diag(mass)[dofs])) or 0.01 * float(np.median(diagonal)) or 1e-3
        model = _with_armature(model, np.where(dofs, inertia, 0))
    return model, names


def _with_armature(model: jaxdyn.Model, extra: np.ndarray) -> jaxdyn.Model:
    return eqx.tree_at(lambda m: m.armature, model, model.armature + jax.numpy.asarray(extra, model.dtype))


def singular_joints(model: jaxdyn.Model, mass: np.ndarray) -> list[str]:
    """Names of the joints along which motion meets no inertia."""
    if not mass.size:
        return []
    if not np.isfinite(mass).all():
        return list(model.joint_names)
    diagonal = np.diag(mass)
    scale = np.sqrt(np.maximum(diagonal, 0))
    safe = np.where(scale > 1e-6, scale, 1)
    # scaled to a unit diagonal: a light finger on a heavy robot is not singular, a massless one is
    values, vectors = np.linalg.eigh(np.where(scale > 1e-6, 1, 0)[:, None] * mass / np.outer(safe, safe))
    bad = vectors[:, values <= (2e-5 if model.dtype == np.float32 else 1e-12)]
    owners = np.asarray(model.tree.dof_body)
    found = sorted({int(owners[k]) for k in np.flatnonzero((np.abs(bad) > 0.3).any(axis=1))}) if bad.size else []
    return [model.tree.joint_names[i] for i in found]


def torque_limit(model: jaxdyn.Model) -> np.ndarray:
    """(joints,) effort limits; none (a number so large that it does not act) where the file says 0, inf or nothing."""
    limit = np.asarray(model.effort_limit, np.float64)[base_sizes(model)[1] :]
    return np.where(np.isfinite(limit) & (limit > 0), limit, 1e6)


def _largest(jacobians: np.ndarray, inverse: np.ndarray) -> float:
    """Largest eigenvalue of `J M^-1 J^T`, 1/kg."""
    if not len(jacobians):
        return 0.0
    J = jacobians.reshape(-1, jacobians.shape[-1])
    return float(np.linalg.eigvalsh(J @ inverse @ J.T).max())


def _ground(wish: float, load: float, friction: float, along: float, across: float, h: float) -> Ground:
    k = min(wish, 0.3 / (along * h * h)) if along else wish
    b = np.sqrt(k * load / 9.81)  # half of the critical damping of the mass that the point carries
    b = min(b, 0.8 / (along * h)) if along else b
    slip = max(0.02, friction * load * across * h / 1.4)
    return Ground(float(k), float(b), float(slip), float(load / k))


def _slip_velocity(
    ground: Ground, most: float, jacobians: np.ndarray, inverse: np.ndarray, kd: np.ndarray, h: float
) -> float:
    """That of the ground, raised until contacts that bear friction of up to `most` (N) and the joints' damping are stable together."""
    root = np.linalg.cholesky(0.5 * (inverse + inverse.T))

    def onto(rows: np.ndarray) -> np.ndarray:
        rows = rows.reshape(-1, rows.shape[-1]) @ root
        return rows.T @ rows

    joints = root[len(root) - len(kd) :]
    rest = h * ((ground.damping + 0.5 * h * ground.stiffness) * onto(jacobians[:, 2:]) + (joints.T * kd) @ joints)
    rubbing = h * most * onto(jacobians[:, :2])
    fastest = lambda a: float(np.linalg.eigvalsh(a).max())  # noqa: E731
    limit = max(1.9, 0.5 * (fastest(rest) + 2))
    slip = ground.slip_velocity
    while fastest(rest) < 2 and fastest(rest + rubbing / slip) > limit:
        slip *= 1.05
    return float(slip)


def _gains(
    model: jaxdyn.Model, at: Survey, weight: float, size: float, inverse: np.ndarray, dt: float, floating: bool
) -> tuple[np.ndarray, np.ndarray]:
    nv = base_sizes(model)[1]
    felt = 1 / np.maximum(np.diag(inverse)[nv:], 1e-12)
    carried = np.diag(at.mass)[nv:]
    if floating:
        kp = np.full(model.nv - nv, weight * size)
    else:
        # torque that would hold the arm stretched out, joint by joint
        kp = np.maximum(10 * np.abs(at.gravity[nv:]), carried * 100.0)
    joints = inverse[nv:, nv:]
    kp = _bounded(joints, np.minimum(kp, 0.3 * felt / dt**2), 0.5 / dt**2)
    damping = np.asarray(model.damping, np.float64)[nv:]
    kd = np.minimum(np.maximum(np.sqrt(kp * carried), damping), 0.5 * felt / dt)
    return kp, _bounded(joints, kd, 1.0 / dt)


def _bounded(inverse: np.ndarray, gains: np.ndarray, most: float) -> np.ndarray:
    """The gains (joints,), lowered until no eigenvalue of M^-1 diag(gains) is above `most`; those joints give way that take
    part in the fastest motion."""
    gains = gains.copy()
    for _ in range(1000):
        root = np.sqrt(gains)
        values, vectors = np.linalg.eigh(root[:, None] * inverse * root)
        if not gains.size or values[-1] <= most:
            break
        share = vectors[:, -1] ** 2
        gains *= 1 - np.minimum(1 - 0.99 * most / values[-1], 0.2) * share / share.max()
    return gains


def _hold(model: jaxdyn.Model, at: Survey, jacobians: np.ndarray) -> np.ndarray:
    nv = base_sizes(model)[1]
    if not nv:
        return at.gravity
    if not len(jacobians):
        return np.zeros(model.nv - nv)
    # only forces that push count: with the least squares of the three components each point would also pull sideways
    up = jacobians[:, 2]
    force = np.linalg.lstsq(up[:, :nv].T, at.gravity[:nv], rcond=None)[0]
    return (at.gravity - up.T @ force)[nv:]


@eqx.filter_jit
def _poses(model: jaxdyn.Model, q: jax.Array):
    kin = jaxdyn.forward_kinematics(model, q)
    return kin.rotation, kin.translation


def still_poses(model: jaxdyn.Model, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotations (n_bodies, 3, 3) and positions (n_bodies, 3) of the bodies at a configuration; NumPy, float64."""
    rotation, translation = _poses(model, jax.numpy.asarray(q, model.dtype))
    return np.asarray(rotation, np.float64), np.asarray(translation, np.float64)
