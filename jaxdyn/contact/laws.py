"""Traction laws: the stress that the ground exerts on a point of a sole, from how deep the point is and how it moves.

A law sees points alone, and returns force per area (N/m^2). `ContactPatch` and `ContactPoints` integrate it over a
surface. For a point contact the area is 1, and the constants are those of a spring: N/m in place of N/m^3.

| law | normal stress | friction | pulls | smooth |
|---|---|---|---|---|
| `Brush` | spring and damper to the anchor | spring and damper to the anchor, without bound | yes | C-infinity |
| `UnilateralBrush` | the same, only pushing | the same, cut at the friction cone | no | kinks |
| `StickSlip` | the same, only pushing | the same, and the anchor slides along | no | kinks |
| `SmoothUnilateral` | softplus of the same | the same, smoothly saturated in the cone | no | C-infinity |
| `Coulomb` | spring and damper, only pushing | regularised Coulomb: follows the velocity | no | kinks |
| `SmoothCoulomb` | softplus of the same | regularised Coulomb | no | C-infinity |
| `HuntCrossley` | power of depth, damping in proportion | regularised Coulomb | no | kink of order `exponent` |

A brush holds on to its anchor (null pose) and does not creep. One whose anchor is a constant pulls back towards it for
ever, however far the sole has slid; `AnchoredDynamics` makes anchors a part of the state. Regularised Coulomb friction
needs no anchor, so a robot may land anywhere, but creeps: on a slope with tangent `r * friction`, `r < 1`, it slides for
ever at `slip_velocity * r / sqrt(1 - r^2)`.

The laws with kinks are exactly zero above the ground, with all derivatives. The smooth ones fall off as `exp(depth /
smoothing)` there, and are what to differentiate a landing through: with a hard law the derivative of a discrete bounce
is wrong however short the step. Choose `smoothing` not below half the impact speed times the time step.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxdyn.contact.fields import Scalar, check_sign, parameter
from jaxdyn.errors import FloatLike
from jaxdyn.math.stacked import dot


class Nodes(eqx.Module):
    """State of the points of a sole, in world axes.

    `displacement`: from each point to its anchor, m; `velocity`: of the point, m/s; `depth`: below the ground, m,
    negative above; `normal`: unit normal of the ground, away from it.

    The first axis is that of the points, the second that of the coordinates, the last that of a batch of robots, of length
    one where something is shared.
    """

    displacement: Float[Array, "n 3 #batch"]
    velocity: Float[Array, "n 3 #batch"]
    depth: Float[Array, "n #batch"]
    normal: Float[Array, "n 3 #batch"]


# constants that others are divided by
_DIVISORS = ("slip_velocity", "smoothing", "exponent")


class TractionLaw(eqx.Module):
    """A law of contact for points. When `traction` is called, its constants have the shape (n, batch) as well."""

    #: whether each point has an anchor that slides, see `StickSlip`
    slides: ClassVar[bool] = False
    #: whether it pulls at a point that is above the ground, see `Brush`
    pulls: ClassVar[bool] = False

    def __check_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_sign(field.name, getattr(self, field.name), positive=field.name in _DIVISORS)

    @abc.abstractmethod
    def traction(self, nodes: Nodes) -> Float[Array, "n 3 #batch"]:
        """Force per area that the ground exerts on each point, in world axes, N/m^2."""

    def kept(self, nodes: Nodes) -> tuple[Bool[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        """Which points stick, and the tangential displacement to its anchor that each point has after this one has slid:
        for laws with `slides` alone."""
        raise NotImplementedError(f"{type(self).__name__} has no anchors that slide.")


def _split(vector: Array, normal: Array) -> tuple[Array, Array]:
    """Normal component and tangential vector."""
    along = dot(vector, normal)
    return along, vector - along[:, None] * normal


class _DryLaw(TractionLaw):
    """A law that only pushes, with dry friction: the normal stress depends on the normal motion alone, the friction on the
    tangential motion and that stress."""

    @abc.abstractmethod
    def _pressure(self, depth: Array, separation: Array) -> Array:
        """Normal stress (n, batch), from depth and speed away from the ground; not negative."""

    @abc.abstractmethod
    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        """Tangential traction (n, 3, batch), from the tangential parts of the displacement to the anchor and of the
        velocity."""

    def traction(self, nodes: Nodes) -> Float[Array, "n 3 #batch"]:
        separation, slip = _split(nodes.velocity, nodes.normal)
        _, stretch = _split(nodes.displacement, nodes.normal)
        pressure = self._pressure(nodes.depth, separation)
        return pressure[:, None] * nodes.normal + self._friction(stretch, slip, pressure)


def _positive(x: Array) -> Array:
    """max(x, 0) with derivative 0, not 1/2, at 0."""
    return jnp.where(x > 0, x, 0)


def _limit(vector: Array, bound: Array) -> Array:
    """The vector, shortened to the length `bound` if it is longer."""
    square = dot(vector, vector)
    inside = square < bound * bound
    # Where the quotient is not used, or would overflow, it is formed with 1. With bound 0 the derivative is 0, also of the vector 0.
    root = jnp.sqrt(jnp.where(inside | (square < jnp.finfo(square.dtype).tiny ** 0.5), 1, square))
    return jnp.where(inside, 1, bound / root)[:, None] * vector


def _spring_damper(depth: Array, separation: Array, stiffness: Array, damping: Array) -> Array:
    """Pushing part of a spring and damper, zero above the ground. It jumps to the damper's stress at touch-down."""
    return jnp.where(depth > 0, _positive(stiffness * depth - damping * separation), 0)


def _soft_spring_damper(depth: Array, separation: Array, stiffness: Array, damping: Array, smoothing: Array) -> Array:
    """`scale softplus((k depth - gate b separation) / scale)` with `scale = k smoothing` and the damper gated by
    `sigmoid(depth / smoothing)`.

    At rest it is `k smoothing softplus(depth / smoothing)`; as `smoothing` tends to zero it tends to the pushing part
    of a spring and damper. The softplus is outermost, so that the stress stays positive however fast the point departs.
    """
    scale = stiffness * smoothing
    gate = jax.nn.sigmoid(depth / smoothing)
    return scale * jax.nn.softplus((stiffness * depth - gate * damping * separation) / scale)


def _viscous_coulomb(slip: Array, pressure: Array, friction: Array, slip_velocity: Array) -> Array:
    """`-mu p v / sqrt(|v|^2 + v_s^2)`: below the cone, smooth at rest."""
    return -(friction * pressure / jnp.sqrt(dot(slip, slip) + slip_velocity**2))[:, None] * slip


class Brush(TractionLaw):
    """Springs and dampers between each point of the sole and its place on the anchored sole: the "continuous" compliant
    contact.

    Linear in its constants and smooth, but it pulls as well as it pushes and holds sideways without limit; whether
    there is contact must be decided outside: by `CompliantContact.active`, or by `AnchoredDynamics`, which lets go of a
    sole once it has left the ground. It ignores the terrain: its ground is the anchor.

    **Arguments:** `stiffness`: N/m^3; `damping`: N s/m^3.

    Source: the continuous contact model of bipedal-locomotion-framework.
    """

    pulls: ClassVar[bool] = True

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")

    def traction(self, nodes: Nodes) -> Float[Array, "n 3 #batch"]:
        return self.stiffness[:, None] * nodes.displacement - self.damping[:, None] * nodes.velocity


class UnilateralBrush(_DryLaw):
    """A brush that only pushes, with dry friction: the tangential traction is cut at `friction` times the normal
    stress, point by point.

    **Arguments:** `stiffness`: N/m^3; `damping`: N s/m^3; `friction`: coefficient of dry friction.
    """

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")
    friction: Scalar = parameter("friction", default=0.5)

    def _pressure(self, depth: Array, separation: Array) -> Array:
        return _spring_damper(depth, separation, self.stiffness, self.damping)

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        return _limit(self.stiffness[:, None] * stretch - self.damping[:, None] * slip, self.friction * pressure)


class StickSlip(_DryLaw):
    """A brush that only pushes, whose anchors slide when friction gives way: it holds without creeping, slides, and holds
    again where it has come to rest.

    Each point has a spring to an anchor of its own. With tangential stretch `s` and slip velocity `v` the friction is `t = k_t s -
    b_t v`, cut at the cone `|t| <= friction * stress`. Where it is cut, the anchor follows at the end of the step, until the
    spring alone carries exactly the friction: `k_t s = t`, the return mapping of plasticity. Then friction takes energy
    whenever a point slides, and what the spring stores is at most `(friction * stress)^2 / (2 k_t)`.

    The anchors are state: give the system to `AnchoredDynamics`. Without it they stay where `CompliantContact` has
    them, and the law is a `UnilateralBrush`.

    **Arguments:** `stiffness`: N/m^3; `damping`: N s/m^3; `friction`: coefficient; `tangential_stiffness`,
    `tangential_damping`: of the friction's springs, default those of the normal.

    Source of the mapping: Simo and Hughes, Computational inelasticity, 1998, ch. 1.4.
    """

    slides: ClassVar[bool] = True

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")
    friction: Scalar = parameter("friction")
    tangential_stiffness: Scalar = parameter("tangential_stiffness")
    tangential_damping: Scalar = parameter("tangential_damping")

    def __init__(
        self,
        stiffness: FloatLike,
        damping: FloatLike,
        friction: FloatLike = 0.5,
        tangential_stiffness: FloatLike | None = None,
        tangential_damping: FloatLike | None = None,
    ):
        self.stiffness = stiffness
        self.damping = damping
        self.friction = friction
        self.tangential_stiffness = stiffness if tangential_stiffness is None else tangential_stiffness
        self.tangential_damping = damping if tangential_damping is None else tangential_damping

    def _pressure(self, depth: Array, separation: Array) -> Array:
        return _spring_damper(depth, separation, self.stiffness, self.damping)

    def _trial(self, stretch: Array, slip: Array) -> Array:
        return self.tangential_stiffness[:, None] * stretch - self.tangential_damping[:, None] * slip

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        return _limit(self._trial(stretch, slip), self.friction * pressure)

    def kept(self, nodes: Nodes) -> tuple[Bool[Array, "n #batch"], Float[Array, "n 3 #batch"]]:
        separation, slip = _split(nodes.velocity, nodes.normal)
        _, stretch = _split(nodes.displacement, nodes.normal)
        bound = self.friction * self._pressure(nodes.depth, separation)
        trial = self._trial(stretch, slip)
        sticks = dot(trial, trial) <= bound * bound
        carried = _limit(trial, bound) / self.tangential_stiffness[:, None]
        return sticks, jnp.where(sticks[:, None], stretch, carried)


class SmoothUnilateral(_DryLaw):
    """`UnilateralBrush` without kinks, which it approaches as `smoothing` tends to zero.

    The normal stress is `k smoothing softplus((depth - gated damping) / smoothing)`. With brush traction `t` and bound
    `s = friction * stress` the friction is `t s / sqrt(|t|^2 + s^2 + tiny^2)`, always inside the cone; `tiny` is a
    millionth of `k smoothing`.

    **Arguments:** `stiffness`: N/m^3, positive; `damping`: N s/m^3; `friction`: coefficient; `smoothing`: m, positive,
    the depth over which the contact sets in.
    """

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")
    friction: Scalar = parameter("friction", default=0.5)
    smoothing: Scalar = parameter("smoothing", default=1e-3)

    def _pressure(self, depth: Array, separation: Array) -> Array:
        return _soft_spring_damper(depth, separation, self.stiffness, self.damping, self.smoothing)

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        tangential = self.stiffness[:, None] * stretch - self.damping[:, None] * slip
        bound = self.friction * pressure
        tiny = 1e-6 * self.stiffness * self.smoothing
        return (bound / jnp.sqrt(dot(tangential, tangential) + bound**2 + tiny**2))[:, None] * tangential


class Coulomb(_DryLaw):
    """A spring and damper that only push, and dry friction regularised over `slip_velocity`; it needs no anchor, and
    creeps (see the module's text).

    **Arguments:** `stiffness`: N/m^3; `damping`: N s/m^3; `friction`: coefficient; `slip_velocity`: m/s, positive, the
    speed at which friction reaches 0.7 of its bound.
    """

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")
    friction: Scalar = parameter("friction", default=0.5)
    slip_velocity: Scalar = parameter("slip_velocity", default=1e-2)

    def _pressure(self, depth: Array, separation: Array) -> Array:
        return _spring_damper(depth, separation, self.stiffness, self.damping)

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        return _viscous_coulomb(slip, pressure, self.friction, self.slip_velocity)


class SmoothCoulomb(_DryLaw):
    """`Coulomb` with the normal stress of `SmoothUnilateral`: smooth everywhere, and needs no anchor. The law to
    optimise a landing with.

    **Arguments:** `stiffness`: N/m^3, positive; `damping`: N s/m^3; `friction`: coefficient; `slip_velocity`: m/s,
    positive; `smoothing`: m, positive.
    """

    stiffness: Scalar = parameter("stiffness")
    damping: Scalar = parameter("damping")
    friction: Scalar = parameter("friction", default=0.5)
    slip_velocity: Scalar = parameter("slip_velocity", default=1e-2)
    smoothing: Scalar = parameter("smoothing", default=1e-3)

    def _pressure(self, depth: Array, separation: Array) -> Array:
        return _soft_spring_damper(depth, separation, self.stiffness, self.damping, self.smoothing)

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        return _viscous_coulomb(slip, pressure, self.friction, self.slip_velocity)


class HuntCrossley(_DryLaw):
    """Stress `k depth^exponent (1 - dissipation * separation speed)`, not below zero, with regularised Coulomb
    friction.

    It never gains energy, and the stress starts from zero at touch-down whatever the speed.

    **Arguments:** `stiffness`: N/m^(2 + exponent) over an area, N/m^exponent for a point; `dissipation`: s/m;
    `friction`: coefficient; `exponent`: at least 1 (1.5 for spheres, after Hertz); `slip_velocity`: m/s, positive.

    Source: Hunt and Crossley, Coefficient of restitution interpreted as damping in vibroimpact, 1975.
    """

    stiffness: Scalar = parameter("stiffness")
    dissipation: Scalar = parameter("dissipation", default=0.0)
    friction: Scalar = parameter("friction", default=0.5)
    exponent: Scalar = parameter("exponent", default=1.5)
    slip_velocity: Scalar = parameter("slip_velocity", default=1e-2)

    def _pressure(self, depth: Array, separation: Array) -> Array:
        below = depth > 0
        # The power of 1 where there is no contact: the derivative with respect to the exponent is a logarithm.
        spring = jnp.where(below, self.stiffness * jnp.where(below, depth, 1) ** self.exponent, 0)
        return spring * _positive(1 - self.dissipation * separation)

    def _friction(self, stretch: Array, slip: Array, pressure: Array) -> Array:
        return _viscous_coulomb(slip, pressure, self.friction, self.slip_velocity)
