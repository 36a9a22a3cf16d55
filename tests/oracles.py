"""Pinocchio as the oracle of the algorithms: the same robots there, and states, vectors and matrices converted by
joint name.

Conversions (jaxdyn -> Pinocchio): quaternions w, x, y, z -> x, y, z, w; a continuous joint's angle -> its cosine and
sine; joints in the other's order. Velocities agree joint by joint: twists of a free-flyer are [linear, angular] in
body axes in both.
"""

import os

import example_robot_data
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin

from jaxdyn.math.spatial import Representation
from jaxdyn.model import Model, neutral, random_configuration
from jaxdyn.model.joints import planar_axes

# name: (path in the robot package, base)
ROBOTS = {
    "panda": ("panda_description/urdf/panda.urdf", "fixed"),
    "ur5": ("ur_description/urdf/ur5_robot.urdf", "fixed"),
    "kinova": ("kinova_description/robots/kinova.urdf", "fixed"),
    "xarm7": ("xarm_description/urdf/xarm7.urdf", "fixed"),
    "allegro": ("allegro_hand_description/urdf/allegro_left_hand.urdf", "fixed"),
    "baxter": ("baxter_description/urdf/baxter.urdf", "fixed"),
    "tiago": ("tiago_description/robots/tiago.urdf", "fixed"),
    "go2": ("go2_description/urdf/go2.urdf", "floating"),
    "solo12": ("solo_description/robots/solo12.urdf", "floating"),
    "anymal": ("anymal_b_simple_description/robots/anymal.urdf", "floating"),
    "anymal_c": ("anymal_c_simple_description/urdf/anymal.urdf", "floating"),
    "hyq": ("hyq_description/robots/hyq_no_sensors.urdf", "floating"),
    "b1_z1": ("b1_description/urdf/b1-z1.urdf", "floating"),
    "talos": ("talos_data/robots/talos_reduced.urdf", "floating"),
    "g1": ("g1_description/urdf/g1_29dof_rev_1_0.urdf", "floating"),
    "icub": ("icub_description/robots/icub.urdf", "floating"),
    "pr2": ("pr2_description/urdf/pr2.urdf", "floating"),
    "romeo": ("romeo_description/urdf/romeo.urdf", "floating"),
}

FRAMES = {
    Representation.LOCAL: pin.LOCAL,
    Representation.MIXED: pin.LOCAL_WORLD_ALIGNED,
    Representation.WORLD: pin.WORLD,
}


def urdf_path(name: str) -> str:
    """The file of a robot of the robot package."""
    path, _ = ROBOTS[name]
    return os.path.join(example_robot_data.getModelPath(path), path)


def pinocchio_from_urdf(path_or_text: str, root: str = "fixed") -> pin.Model:
    """Pinocchio's own reading of a URDF. Its reader takes armature from nowhere; followers are independent joints."""
    build = pin.buildModelFromXML if path_or_text.lstrip().startswith("<") else pin.buildModelFromUrdf
    model = build(path_or_text, pin.JointModelFreeFlyer()) if root == "floating" else build(path_or_text)
    model.armature[:] = 0.0
    return model


def pinocchio_from_model(model: Model) -> pin.Model:
    """The same numbers in Pinocchio, joint by joint: also joints that its reader of URDF refuses, and any values of
    the leaves.

    Planar and continuous joints turn about z there. With A = [u w n] their frame is that of the joint turned by A,
    the child's frame that of the body turned by A.
    """
    result = pin.Model()
    turns = []
    for i, kind in enumerate(model.tree.joint_types):
        axis, parent = np.asarray(model.joint_axis[i], float), model.tree.parents[i]
        turn = np.eye(3)
        if kind in ("planar", "continuous"):
            u, w = planar_axes(jnp.asarray(axis))
            turn = np.stack([u, w, axis], axis=1)
        joint = {
            "revolute": lambda a: pin.JointModelRevoluteUnaligned(a),
            "continuous": lambda _: pin.JointModelRUBZ(),
            "prismatic": lambda a: pin.JointModelPrismaticUnaligned(a),
            "spherical": lambda _: pin.JointModelSpherical(),
            "planar": lambda _: pin.JointModelPlanar(),
            "floating": lambda _: pin.JointModelFreeFlyer(),
        }[kind](axis)
        rotation = np.asarray(model.joint_placement.rotation[i], float)
        translation = np.asarray(model.joint_placement.translation[i], float)
        above = turns[parent] if parent >= 0 else np.eye(3)
        placement = pin.SE3(above.T @ rotation @ turn, above.T @ translation)
        index = result.addJoint(parent + 1, joint, placement, model.joint_names[i])
        inertia = pin.Inertia(
            float(model.inertia.mass[i]),
            turn.T @ np.asarray(model.inertia.com[i], float),
            turn.T @ np.asarray(model.inertia.inertia[i], float) @ turn,
        )
        result.appendBodyToJoint(index, inertia, pin.SE3.Identity())
        turns.append(turn)
    for f, (name, body) in enumerate(zip(model.frame_names, model.tree.frame_bodies, strict=True)):
        rotation = np.asarray(model.frame_placement.rotation[f], float)
        translation = np.asarray(model.frame_placement.translation[f], float)
        turn = turns[body] if body >= 0 else np.eye(3)
        placement = pin.SE3(turn.T @ rotation, turn.T @ translation)
        result.addFrame(pin.Frame(name, body + 1, 0, placement, pin.FrameType.BODY))
    result.armature = np.zeros(result.nv)
    return result


def key(*parts) -> str:
    """Name of a result, such as `"twist LOCAL"`."""
    return " ".join(part.name if isinstance(part, Representation) else part for part in parts)


class Oracle:
    """A robot in Pinocchio beside ours; all arguments and results are in our order and conventions, of one state."""

    def __init__(self, model: Model, pinocchio: pin.Model) -> None:
        self.ours, self.model, self.data = model, pinocchio, pinocchio.createData()
        assert pinocchio.nv == model.nv and pinocchio.njoints - 1 == model.n_joints
        self.dofs = np.zeros(model.nv, int)
        """Ours of each degree of freedom there: v there is `v[dofs]`."""
        for i, name in enumerate(model.joint_names):
            joint = pinocchio.joints[pinocchio.getJointId(name)]
            assert joint.nv == model.tree.joint_nv[i], name
            self.dofs[joint.idx_v : joint.idx_v + joint.nv] = model.tree.v_offset[i] + np.arange(joint.nv)
        pinocchio.gravity.linear = np.asarray(model.gravity, float)
        pinocchio.armature = np.asarray(model.armature, float)[self.dofs]

    # Conversions

    def q(self, q) -> np.ndarray:
        """Coordinates there; quaternions at unit length to the last digit."""
        q, result = np.asarray(q, float), pin.neutral(self.model)
        for i, name in enumerate(self.ours.joint_names):
            joint = self.model.joints[self.model.getJointId(name)]
            ours = q[self.ours.tree.q_offset[i] :][: self.ours.tree.joint_nq[i]]
            kind = self.ours.tree.joint_types[i]
            if kind in ("floating", "spherical"):
                w, x, y, z = ours[-4:] / np.linalg.norm(ours[-4:])
                ours = [*ours[:-4], x, y, z, w]
            elif joint.nq == len(ours) + 1:  # an angle as its cosine and sine
                ours = [*ours[:-1], np.cos(ours[-1]), np.sin(ours[-1])]
            result[joint.idx_q : joint.idx_q + joint.nq] = ours
        return result

    def v(self, v) -> np.ndarray:
        return np.asarray(v, float)[self.dofs]

    def vector(self, there) -> np.ndarray:
        result = np.zeros(self.model.nv)
        result[self.dofs] = there
        return result

    def columns(self, there) -> np.ndarray:
        result = np.zeros((len(there), self.model.nv))
        result[:, self.dofs] = there
        return result

    def matrix(self, there) -> np.ndarray:
        result = np.zeros((self.model.nv, self.model.nv))
        result[np.ix_(self.dofs, self.dofs)] = there
        return result

    def wrenches(self, q, wrenches):
        """Wrenches (n_bodies, 6) MIXED as forces in the axes of the joints there."""
        pin.forwardKinematics(self.model, self.data, self.q(q))
        forces = pin.StdVec_Force()
        for _ in range(self.model.njoints):
            forces.append(pin.Force.Zero())
        for wrench, name in zip(np.asarray(wrenches, float), self.ours.joint_names, strict=True):
            joint = self.model.getJointId(name)
            r = self.data.oMi[joint].rotation
            forces[joint] = pin.Force(r.T @ wrench[:3], r.T @ wrench[3:])
        return forces

    # Kinematics

    def kinematics(self, q, v, a) -> dict:
        """Poses, MIXED twists and accelerations of all frames in our order; J_dot v under "bias"."""
        m, d = self.model, self.data
        result = {}
        frames = [self.model.getFrameId(name, pin.FrameType.BODY) for name in self.ours.frame_names]
        assert all(f < self.model.nframes for f in frames)
        pin.forwardKinematics(m, d, self.q(q), self.v(v), self.v(a))
        pin.updateFramePlacements(m, d)
        result["rotation"] = np.array([d.oMf[f].rotation for f in frames])
        result["translation"] = np.array([d.oMf[f].translation for f in frames])
        for representation, there in FRAMES.items():
            classical = representation is Representation.MIXED
            acceleration = pin.getFrameClassicalAcceleration if classical else pin.getFrameAcceleration
            result[key("twist", representation)] = np.array(
                [pin.getFrameVelocity(m, d, f, there).vector for f in frames]
            )
            result[key("acceleration", representation)] = np.array(
                [acceleration(m, d, f, there).vector for f in frames]
            )
        pin.forwardKinematics(m, d, self.q(q), self.v(v), np.zeros(m.nv))
        for representation, there in FRAMES.items():
            classical = representation is Representation.MIXED
            acceleration = pin.getFrameClassicalAcceleration if classical else pin.getFrameAcceleration
            result[key("bias", representation)] = np.array([acceleration(m, d, f, there).vector for f in frames])
        return result

    def jacobian(self, q, frame: str, representation: Representation) -> np.ndarray:
        f = self.model.getFrameId(frame, pin.FrameType.BODY)  # joints may have names of links
        return self.columns(pin.computeFrameJacobian(self.model, self.data, self.q(q), f, FRAMES[representation]))

    # Dynamics

    def mass_matrix(self, q) -> np.ndarray:
        upper = np.triu(pin.crba(self.model, self.data, self.q(q)))
        return self.matrix(upper + np.triu(upper, 1).T)

    def rnea(self, q, v, a, wrenches=None) -> np.ndarray:
        forces = () if wrenches is None else (self.wrenches(q, wrenches),)
        return self.vector(pin.rnea(self.model, self.data, self.q(q), self.v(v), self.v(a), *forces))

    def aba(self, q, v, tau, wrenches=None) -> np.ndarray:
        forces = () if wrenches is None else (self.wrenches(q, wrenches),)
        return self.vector(pin.aba(self.model, self.data, self.q(q), self.v(v), self.v(tau), *forces))

    def generalized_force(self, q, wrenches) -> np.ndarray:
        return self.vector(self.force_there(self.q(q), wrenches))

    def rnea_derivatives(self, q, v, a, wrenches) -> dict[str, np.ndarray]:
        m, d = self.model, self.data
        pin.computeRNEADerivatives(m, d, self.q(q), self.v(v), self.v(a))
        by_q = self.matrix(d.dtau_dq) - self._force_by_q(self.q(q), wrenches)
        return {"dq": by_q, "dv": self.matrix(d.dtau_dv), "da": self.mass_matrix(q)}

    def aba_derivatives(self, q, v, tau, wrenches) -> dict[str, np.ndarray]:
        m, d = self.model, self.data
        force = self.force_there(self.q(q), wrenches)
        pin.computeABADerivatives(m, d, self.q(q), self.v(v), self.v(tau) + force)
        upper = np.triu(d.Minv)
        inverse = self.matrix(upper + np.triu(upper, 1).T)
        by_q = self.matrix(d.ddq_dq) + inverse @ self._force_by_q(self.q(q), wrenches)
        return {"a": self.vector(d.ddq), "dq": by_q, "dv": self.matrix(d.ddq_dv), "dtau": inverse}

    def force_there(self, q_there, wrenches) -> np.ndarray:
        m, d = self.model, self.data
        pin.computeJointJacobians(m, d, q_there)
        total = np.zeros(m.nv)
        for wrench, name in zip(np.asarray(wrenches, float), self.ours.joint_names, strict=True):
            total += pin.getJointJacobian(m, d, m.getJointId(name), pin.LOCAL_WORLD_ALIGNED).T @ wrench
        return total

    def _force_by_q(self, q_there, wrenches) -> np.ndarray:
        """Pinocchio's own forces turn with the joints, ours do not: central differences of fourth order, good to
        about 1e-12."""
        if not np.any(wrenches):
            return np.zeros((self.model.nv, self.model.nv))
        step, columns = 1e-3, []
        for direction in np.eye(self.model.nv):
            at = lambda h, e=direction: self.force_there(pin.integrate(self.model, q_there, h * e), wrenches)  # noqa: E731
            columns.append((8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step))
        return self.matrix(np.stack(columns, axis=1))

    def minv(self, q) -> np.ndarray:
        upper = np.triu(pin.computeMinverse(self.model, self.data, self.q(q)))
        return self.matrix(upper + np.triu(upper, 1).T)

    def centroidal(self, q, v) -> dict:
        m, d = self.model, self.data
        v = np.asarray(v, float)
        qp, vp = self.q(q), self.v(v)
        pin.ccrba(m, d, qp, vp)
        result = {"momentum": d.hg.vector.copy(), "map": self.columns(d.Ag)}
        pin.centerOfMass(m, d, qp, vp)
        result["com"], result["com_velocity"] = d.com[0].copy(), d.vcom[0].copy()
        result["com_jacobian"] = self.columns(pin.jacobianCenterOfMass(m, d, qp))
        result["kinetic_energy"] = 0.5 * v @ self.mass_matrix(q) @ v  # Pinocchio's own leaves out the rotors
        result["potential_energy"] = pin.computePotentialEnergy(m, d, qp)
        return result


# States


def states(model: Model, count: int = 4, seed: int = 0) -> dict[str, jax.Array]:
    """`count` states, stacked: q, v, a, tau and wrenches. The last one is neutral and at rest; wrenches act in the
    second alone."""
    rng = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed), count - 1)
    q = jnp.stack([*(random_configuration(model, key) for key in keys), neutral(model)])
    draw = lambda scale, *shape: jnp.asarray(scale * rng.normal(size=(count, *shape)), model.dtype)  # noqa: E731
    v = draw(1.0, model.nv).at[-1].set(0.0)
    loaded = jnp.zeros((count, 1, 1), model.dtype).at[1].set(1.0)
    return {
        "q": q,
        "v": v,
        "a": draw(1.0, model.nv),
        "tau": draw(10.0, model.nv),
        "wrenches": loaded * draw(5.0, model.n_bodies, 6),
    }


def relative_error(value, reference, scale=0.0) -> float:
    """Largest error over the largest component of the reference, or over `scale` where that is more (over 1 if both are
    zero)."""
    value, reference = np.asarray(value, float), np.asarray(reference, float)
    assert value.shape == reference.shape, (value.shape, reference.shape)
    if not reference.size:
        return 0.0
    error, scale = np.max(np.abs(value - reference)), max(np.max(np.abs(reference)), scale)
    return float(error / scale if scale > 0 else error)
