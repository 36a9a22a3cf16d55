"""jaxdyn: the public functions under `vmap` and `jit`.

The model is an argument, so that its numbers stay numbers; for single calls also tried as a constant.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from benchmarks import rollout_task as task
from benchmarks.peers.cases import Job, Loop
from benchmarks.peers.jax_cases import Function, JaxCase, case_maker


class Order:
    """Between the joint order of the model and Pinocchio's; quaternions w first or w last."""

    def __init__(self, model: jaxdyn.Model, job: Job):
        base_q, base_v = (7, 6) if job.floating else (0, 0)
        names = list(model.joint_names)[1 if job.floating else 0 :]
        if sorted(names) != sorted(job.joint_names):
            raise ValueError("the joints are not those of Pinocchio's model")
        theirs = {name: i for i, name in enumerate(job.joint_names)}
        columns = np.array([theirs[name] for name in names], dtype=int)
        self._quaternion = [0, 1, 2, 6, 3, 4, 5] if job.floating else []
        self._q = np.concatenate([np.array(self._quaternion, dtype=int), base_q + columns])
        self._v = np.concatenate([np.arange(base_v), base_v + columns])
        self._back = np.argsort(self._v)

    def q(self, x: np.ndarray) -> np.ndarray:
        return x[:, self._q]

    def v(self, x: np.ndarray) -> np.ndarray:
        return x[:, self._v]

    def vector_back(self, x: np.ndarray) -> np.ndarray:
        return x[..., self._back]

    def matrix_back(self, x: np.ndarray) -> np.ndarray:
        return x[..., self._back, :][..., :, self._back]


def load(job: Job) -> jaxdyn.Model:
    root = "floating" if job.floating else "fixed"
    return jaxdyn.from_urdf(job.urdf, root=root, mimic="independent", gravity=[0.0, 0.0, -job.gravity])


def cases(job: Job) -> Callable[[str], Any]:
    model = load(job)
    order = Order(model, job)
    by_algorithm = case_maker(functions(model, order, job), job.checked)
    by_rollout = rollouts(model, order, job)

    def make(name: str) -> Any:
        return by_rollout[name]() if name in by_rollout else by_algorithm(name)

    return make


def functions(model: jaxdyn.Model, order: Order, job: Job) -> dict[str, Function]:
    states = job.load_states()
    q = order.q(states["q"])
    v, a, tau = (order.v(states[key]) for key in ("v", "a", "tau"))

    def blocks(names):
        return lambda out: np.stack([order.matrix_back(getattr(out, name)) for name in names], axis=1)

    shared = (model,)
    made = {
        "rnea": Function(jaxdyn.rnea, (q, v, a), order.vector_back, shared),
        "crba": Function(jaxdyn.crba, (q,), order.matrix_back, shared),
        "aba": Function(jaxdyn.aba, (q, v, tau), order.vector_back, shared),
        "aba_derivatives": Function(jaxdyn.aba_derivatives, (q, v, tau), blocks(("dq", "dv", "dtau")), shared),
        "rnea_derivatives": Function(jaxdyn.rnea_derivatives, (q, v, a), blocks(("dq", "dv", "da")), shared),
    }
    if hasattr(jaxdyn, "cholesky"):

        def mass_solve(model, q, tau):
            return jaxdyn.mass_solve(model, q, tau)

        def factor_solve(model, mass, tau):
            return jaxdyn.cholesky.factor_solve(model, mass, tau)

        ends = sorted(set(range(model.n_bodies)) - set(model.tree.parents))

        def jacobians(model, q):
            kin = jaxdyn.forward_kinematics(model, q)
            return tuple(jaxdyn.sparse_point_jacobian(model, kin, end, jnp.zeros(3)) for end in ends)

        def factor_delassus(model, mass, *values):
            points = [j.with_block(v) for j, v in zip(empty, values, strict=True)]
            return jaxdyn.delassus(jaxdyn.cholesky.decompose(model, mass), points)

        points = jax.jit(jax.vmap(jacobians, (None, 0)))(model, q)
        mass = np.asarray(jax.jit(jax.vmap(jaxdyn.crba, (None, 0)))(model, q))
        made["mass_solve"] = Function(mass_solve, (q, tau), order.vector_back, shared)
        made["factor_solve"] = Function(factor_solve, (mass, tau), order.vector_back, shared)
        empty = tuple(jaxdyn.SparseJacobian.from_values(jnp.zeros(j.values.shape[1:]), j.idx, j.nv) for j in points)
        values = tuple(np.asarray(j.values) for j in points)
        made["factor_delassus"] = Function(factor_delassus, (mass, *values), lambda out: out, shared)
    return made | {f"{name}_closed": closed(function) for name, function in made.items()}


def closed(function: Function) -> Function:
    """With the model as a constant of the compiled program: less to hand over per call, but compiled for one robot."""
    return Function(functools.partial(function.call, *function.shared), function.arguments, function.convert)


class JointControl(eqx.Module):
    """Joint PD control towards `target`, which every environment has of its own."""

    target: jax.Array
    stiffness: jax.Array
    damping: jax.Array

    def __call__(self, x, t):
        return self.stiffness * (self.target - x.joint_position) - self.damping * x.joint_velocity


def rollouts(model: jaxdyn.Model, order: Order, job: Job) -> dict[str, Callable[[], Any]]:
    """The contact rollout in the two ways that jaxdyn has, its gradient, and the memory of a long gradient."""

    def setting(count: int):
        law = jaxdyn.SmoothCoulomb(
            stiffness=task.GROUND_STIFFNESS,
            damping=task.GROUND_DAMPING,
            friction=task.FRICTION,
            slip_velocity=task.SLIP_VELOCITY,
        )
        contacts = tuple(jaxdyn.CompliantContact(foot, law) for foot in task.FEET)
        system = jaxdyn.FloatingBaseDynamics(model, contacts, terrain=jaxdyn.FlatTerrain())
        states = task.initial_states(job.joint_names, count)
        x0 = jax.vmap(jaxdyn.state_from_configuration, (None, 0, 0))(
            model, jnp.asarray(order.q(states["q"])), jnp.asarray(order.v(states["v"]))
        )
        target = order.q(np.hstack([np.zeros((1, 7)), task.stance(job.joint_names)[None]]))[0, 7:]
        control = JointControl(jnp.asarray(target), jnp.asarray(task.STIFFNESS), jnp.asarray(task.DAMPING))
        return system, x0, control

    def simulate(system, x0, control, steps, checkpoint):
        integrator = jaxdyn.SemiImplicitEuler()
        made = jaxdyn.rollout(
            system, integrator, x0, control, task.TIME_STEP, steps, checkpoint=checkpoint, save_every=None
        )
        return made.final

    def height(final) -> np.ndarray:
        return np.asarray(final.position)[:, 2]

    def numbers(tree) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    def vectorised() -> JaxCase:
        system, x0, control = setting(task.ENVIRONMENTS)

        def run(system, x0, control):
            return jax.vmap(lambda x: simulate(system, x, control, task.STEPS, "none"))(x0)

        return JaxCase(run, (system, x0, control), task.ENVIRONMENTS * task.STEPS, height)

    def by_batch_rollout() -> Loop:
        system, x0, control = setting(task.ENVIRONMENTS)
        integrator = jaxdyn.SemiImplicitEuler()
        last: list[Any] = []

        def run():
            last[:] = [
                jaxdyn.batch_rollout(system, integrator, x0, control, task.TIME_STEP, task.STEPS, threads=job.threads)
            ]

        return Loop(run, task.ENVIRONMENTS * task.STEPS, lambda: height(last[0].trajectory.final))

    def cost(system, x, control, steps, checkpoint):
        final = simulate(system, x, control, steps, checkpoint)
        return jnp.sum(final.position**2) + jnp.sum(final.twist**2) + jnp.sum(final.joint_velocity**2)

    def of_cost(transformed: bool, checkpoint: str) -> Callable[[], JaxCase]:
        def make() -> JaxCase:
            system, x0, control = setting(task.ENVIRONMENTS)
            # Each environment its own targets: what an optimiser of motions asks for.
            targets = jnp.tile(control.target, (task.ENVIRONMENTS, 1))

            def one(system, x, target):
                chosen = JointControl(target, control.stiffness, control.damping)
                return cost(system, x, chosen, task.STEPS, checkpoint)

            each = jax.grad(one, argnums=(1, 2)) if transformed else one

            def run(system, x0, targets):
                return jax.vmap(each, (None, 0, 0))(system, x0, targets)

            return JaxCase(run, (system, x0, targets), task.ENVIRONMENTS * task.STEPS, numbers)

        return make

    def long_gradient(checkpoint: str) -> Callable[[], JaxCase]:
        def make() -> JaxCase:
            system, x0, control = setting(1)
            x = jax.tree.map(lambda leaf: leaf[0], x0)

            def run(system, x, control):
                return jax.grad(lambda x: cost(system, x, control, task.LONG, checkpoint))(x)

            return JaxCase(run, (system, x, control), 1)

        return make

    return {
        "rollout:steps_vmap": vectorised,
        "rollout:steps_batch_rollout": by_batch_rollout,
        "rollout:gradient_base": of_cost(False, "none"),
        "rollout:gradient_none": of_cost(True, "none"),
        "rollout:gradient_step": of_cost(True, "step"),
        "memory:plain": long_gradient("none"),
        "memory:nested": long_gradient("nested"),
    }
