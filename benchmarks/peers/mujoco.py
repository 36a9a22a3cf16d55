"""MuJoCo in C through `mujoco.rollout`: the quadruped on four sphere feet, the same URDF.

The URDF goes through MuJoCo's own reader, under a joint of type `floating`; its shapes are left out and a
sphere is put at each foot, so that the four feet against the ground are the only pairs to test. The PD control
is that of MuJoCo's position actuators. Joint damping and dry friction of the file are left out, as in jaxdyn's
`aba`. Everything else (solver, cone, integrator) is as MuJoCo has it by default.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import mujoco
import mujoco.rollout
import numpy as np

from benchmarks import conventions
from benchmarks import rollout_task as task
from benchmarks.peers.cases import Job, Loop


def _world_above(urdf: str) -> str:
    """The URDF without shapes and joint friction, its root on a floating joint under a link `world`."""
    robot = ElementTree.fromstring(urdf)
    children = {joint.find("child").get("link") for joint in robot.iter("joint")}
    root = next(link.get("name") for link in robot.iter("link") if link.get("name") not in children)
    for link in robot.iter("link"):
        for kind in ("visual", "collision"):
            for shape in link.findall(kind):
                link.remove(shape)
    for joint in robot.iter("joint"):
        for friction in joint.findall("dynamics"):
            joint.remove(friction)
    ElementTree.SubElement(robot, "link", name="world")
    joint = ElementTree.SubElement(robot, "joint", name="root", type="floating")
    ElementTree.SubElement(joint, "parent", link="world")
    ElementTree.SubElement(joint, "child", link=root)
    extension = ElementTree.SubElement(robot, "mujoco")
    ElementTree.SubElement(extension, "compiler", fusestatic="false", balanceinertia="false")
    return ElementTree.tostring(robot, encoding="unicode")


def build(urdf: str, joint_names: tuple[str, ...], gravity: float):
    spec = mujoco.MjSpec.from_string(_world_above(urdf))
    spec.option.gravity = [0.0, 0.0, -gravity]
    spec.option.timestep = task.TIME_STEP
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 1],
        contype=1,
        conaffinity=0,
        friction=[task.FRICTION, 0, 0],
    )
    for foot in task.FEET:
        # A tip frame without mass is a body of its own here; its sphere belongs to the shank above it.
        tip = spec.body(foot)
        tip.parent.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[task.FOOT_RADIUS, 0, 0],
            pos=tip.pos + np.array([0.0, 0.0, task.FOOT_RADIUS]),
            contype=0,
            conaffinity=1,
            mass=0.0,
            friction=[task.FRICTION, 0, 0],
        )
        spec.delete(tip)
    for name in joint_names:
        actuator = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.set_to_position(kp=task.STIFFNESS, kv=task.DAMPING)
        spec.joint(name).limited = mujoco.mjtLimited.mjLIMITED_FALSE
    return spec.compile()


def cases(job: Job) -> Callable[[str], Loop]:
    model = build(Path(job.urdf).read_text(encoding="utf-8"), job.joint_names, job.gravity)
    positions = [model.joint(name).qposadr[0] for name in job.joint_names]
    velocities = [model.joint(name).dofadr[0] for name in job.joint_names]

    def coordinates(q, base):
        out = np.zeros((len(q), model.nq if base == 7 else model.nv))
        out[:, :base] = q[:, :base]
        out[:, positions if base == 7 else velocities] = q[:, base:]
        return out

    def forward_dynamics() -> Loop:
        """Without contacts and control, to see that the model is the same robot."""
        given = job.load_states()
        own = conventions.to_world_linear(given)
        data = mujoco.MjData(model)
        flags = mujoco.mjtDisableBit
        q, v, tau = coordinates(own["q"], 7), coordinates(own["v"], 6), coordinates(own["tau"], 6)

        def one(i):
            data.qpos, data.qvel, data.qfrc_applied = q[i], v[i], tau[i]
            mujoco.mj_forward(model, data)
            return np.concatenate([data.qacc[:6], data.qacc[velocities]])

        def run():
            for i in range(len(q)):
                one(i)

        def result():
            model.opt.disableflags = flags.mjDSBL_CONTACT | flags.mjDSBL_ACTUATION
            acceleration = np.stack([one(i) for i in range(job.checked)])
            model.opt.disableflags = 0
            states = {key: value[: job.checked] for key, value in given.items()}
            return conventions.acceleration_from_world_linear(states["q"], states["v"], acceleration)

        return Loop(run, len(q), result)

    def rollout() -> Loop:
        states = task.initial_states(job.joint_names, task.ENVIRONMENTS)
        own = conventions.to_world_linear({**states, "a": states["v"], "tau": states["v"]})
        q, v = coordinates(own["q"], 7), coordinates(own["v"], 6)
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        size = mujoco.mj_stateSize(model, kind)
        data = mujoco.MjData(model)
        start = np.empty((len(q), size))
        for i in range(len(q)):
            data.qpos, data.qvel = q[i], v[i]
            mujoco.mj_getState(model, data, start[i], kind)
        control = np.tile(task.stance(job.joint_names), (len(q), task.STEPS, 1))
        pool = [mujoco.MjData(model) for _ in range(job.threads)]
        runner = mujoco.rollout.Rollout(nthread=job.threads if job.threads > 1 else 0)
        out = np.empty((len(q), task.STEPS, size))

        def run():
            runner.rollout(model, pool, start, control, nstep=task.STEPS, skip_checks=False, state=out)

        def result():
            """Height of the trunk at the end."""
            return out[:, -1, 1 + 2]

        return Loop(run, len(q) * task.STEPS, result)

    makers = {"batch:aba": forward_dynamics, "rollout:steps": rollout}
    return lambda name: makers[name]()
