"""`jaxdyn check`: what is wrong with a robot's file, and whether its dynamics and their derivatives can be trusted."""

from __future__ import annotations

import argparse
import importlib
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn.app import scenario, tuning
from jaxdyn.app.output import Folder, add_common
from jaxdyn.app.robot import add_robot, base_sizes, describe, is_floating, load_robot, posture, robot_name
from jaxdyn.app.rollout import add_simulation, check_numbers
from jaxdyn.app.terminal import interruptible, say
from jaxdyn.errors import listing
from jaxdyn.model.urdf import ROBOTS

SAMPLES = 4


class Finding(NamedTuple):
    """One line of the report; `level`: "ok", "note" or "FAIL"."""

    level: str
    subject: str
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_robot(parser)
    add_simulation(parser)
    add_common(parser, precision=64, out=None)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; 1 if one of them is a failure, 130 if it was interrupted."""
    check_numbers(arguments)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        model = load_robot(arguments)
    name = robot_name(arguments.path)
    say(describe(model, name))
    findings = [Finding("note", "file", str(remark.message)) for remark in remarks]
    for finding in findings:
        _print(finding)
    q = posture(model, name, arguments.posture)
    interrupted = False

    def all_checks(stop: Callable[[], None]) -> None:
        for finding in checks(model, q, arguments):
            findings.append(finding)
            _print(finding)
            stop()

    try:
        interruptible(all_checks)
    except KeyboardInterrupt:
        interrupted = True
    if arguments.out:
        folder = Folder(arguments.out)
        path = folder.note("check.json", "the findings as JSON")
        path.write_text(json.dumps([f._asdict() for f in findings], indent=2) + "\n", encoding="utf-8")
        folder.tell()
    failed = [f.subject for f in findings if f.level == "FAIL"]
    if interrupted:
        say("Interrupted: the checks above were complete.")
        return 130
    say(
        f"{len(failed)} problem{'s' * (len(failed) != 1)}: {', '.join(dict.fromkeys(failed))}."
        if failed
        else "No problem found."
    )
    return 1 if failed else 0


def _print(finding: Finding) -> None:
    say(f"  {finding.level:4}  {finding.subject}: {' '.join(finding.text.split())}")


def checks(model: jaxdyn.Model, q: np.ndarray, arguments: argparse.Namespace) -> Iterator[Finding]:
    """All checks, one after the other."""
    yield from check_inertias(model)
    yield from check_limits(model, q)
    if not model.nv:
        yield Finding("note", "joints", "none, and the base is fixed: nothing can move")
        return
    singular = list(check_mass_matrix(model, q, arguments))
    yield from singular
    model, _ = tuning.regular(model, q, arguments.armature)
    names = None if arguments.contacts is None else [n for n in arguments.contacts.split(",") if n]
    plan = tuning.plan(model, q, arguments.dt, contacts=names, substeps=arguments.substeps)
    yield from check_contacts(plan, arguments)
    yield from check_dynamics(model, plan, arguments)
    yield from compare_with_pinocchio(model, plan, arguments)


def check_inertias(model: jaxdyn.Model) -> Iterator[Finding]:
    """Masses positive, inertia tensors those of a real body."""
    mass, tensors = np.asarray(model.inertia.mass, np.float64), np.asarray(model.inertia.inertia, np.float64)
    faults = []
    massless, pointlike = [], []
    for i, name in enumerate(model.body_names):
        moments = np.linalg.eigvalsh(tensors[i])
        scale = max(float(np.abs(moments).max()), 1e-6 * abs(mass[i]))  # smaller ones are rounding
        if not (np.isfinite(mass[i]) and np.isfinite(tensors[i]).all()):
            faults.append(f"{name}: not finite")
        elif mass[i] < 0:
            faults.append(f"{name}: negative mass {mass[i]:.4g} kg")
        elif moments[0] < -1e-6 * scale:
            faults.append(
                f"{name}: inertia is not positive, principal moments {', '.join(f'{m:.3g}' for m in moments)}"
            )
        elif moments[2] > (moments[0] + moments[1]) * (1 + 1e-3) + 1e-12:
            shown = ", ".join(f"{m:.3g}" for m in moments)
            faults.append(
                f"{name}: no body has the principal moments {shown}: the largest exceeds the sum of the others"
            )
        elif mass[i] == 0:
            massless.append(name)
        elif moments[0] <= 1e-9 * mass[i]:
            pointlike.append(name)
    for fault in faults:
        yield Finding("FAIL", "inertia", fault)
    if massless:
        yield Finding("note", "inertia", f"no mass: {listing(massless)}")
    if pointlike:
        yield Finding("note", "inertia", f"almost a point or a thin rod: {listing(pointlike)}")
    if not faults:
        yield Finding("ok", "inertia", f"{model.n_bodies} bodies, {mass.sum():.5g} kg")


def check_limits(model: jaxdyn.Model, q: np.ndarray) -> Iterator[Finding]:
    """Limits in order; a neutral position within them; effort and velocity given."""
    tree = model.tree
    lower, upper = np.asarray(model.lower, np.float64), np.asarray(model.upper, np.float64)
    owner = np.repeat(np.arange(model.n_joints), tree.joint_nq)
    names = lambda mask: [tree.joint_names[i] for i in dict.fromkeys(owner[mask])]  # noqa: E731
    crossed = lower > upper
    if crossed.any():
        yield Finding("FAIL", "limits", f"lower above upper: {listing(names(crossed))}")
    if found := names((lower == upper) & np.isfinite(lower)):
        yield Finding("note", "limits", f"no room: {listing(found)}")
    neutral = np.asarray(jaxdyn.neutral(model), np.float64)
    if found := names(((neutral < lower) | (neutral > upper)) & ~crossed):
        yield Finding("note", "limits", f"zero is outside: {listing(found)}; postures start from the middle there")
    if found := names(((q < lower) | (q > upper)) & ~crossed):
        yield Finding("note", "limits", f"the posture is outside: {listing(found)}")
    dofs = np.repeat(np.arange(model.n_joints), tree.joint_nv)
    one = np.asarray([size == 1 for size in tree.joint_nv], bool)[dofs]
    for what, limit in (("effort", model.effort_limit), ("velocity", model.velocity_limit)):
        limit = np.asarray(limit, np.float64)
        bad = one & ~(np.isfinite(limit) & (limit > 0))
        if bad.any():
            found = [tree.joint_names[i] for i in dict.fromkeys(dofs[bad])]
            yield Finding("note", "limits", f"no {what} limit, or 0: {listing(found)}; treated as none")
    if not crossed.any():
        yield Finding(
            "ok",
            "limits",
            f"{int((np.isfinite(lower) & np.isfinite(upper)).sum())} of {model.nq} coordinates have both",
        )


def check_mass_matrix(model: jaxdyn.Model, q: np.ndarray, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Positive definite, at the posture and at random configurations."""
    extra = np.where(np.arange(model.nv) < base_sizes(model)[1], 0, arguments.armature)
    model = eqx.tree_at(lambda m: m.armature, model, model.armature + jnp.asarray(extra, model.dtype))
    keys = jax.random.split(jax.random.key(arguments.seed), SAMPLES)
    masses = [tuning.survey(model, q).mass]
    masses += [tuning.survey(model, np.asarray(jaxdyn.random_configuration(model, key))).mass for key in keys]
    found = list(dict.fromkeys(name for mass in masses for name in tuning.singular_joints(model, mass)))
    if found:
        yield Finding(
            "FAIL",
            "mass matrix",
            f"singular in {listing(found)}: motion of these joints meets no inertia; give their links inertia, or use --armature",
        )
        return
    condition = max(np.linalg.cond(mass) for mass in masses)
    asymmetry = max(float(np.abs(mass - mass.T).max() / np.abs(mass).max()) for mass in masses)
    yield Finding(
        "ok",
        "mass matrix",
        f"positive definite at {len(masses)} configurations, condition {condition:.2g}, asymmetry {asymmetry:.1g}",
    )


def check_contacts(plan: tuning.Plan, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Which links touch the ground, and which time step that allows."""
    if not plan.spots:
        yield Finding("ok", "contacts", "none: the base is fixed")
        return
    supports = [spot.frame for spot in plan.spots if spot.support]
    g = plan.ground
    yield Finding(
        "ok",
        "contacts",
        f"{listing(supports)}: {g.stiffness:.3g} N/m and {g.damping:.3g} N s/m per point, slip velocity {g.slip_velocity:.2g} m/s",
    )
    if plan.longest_dt < arguments.dt:
        needed = int(np.ceil(arguments.dt / plan.longest_dt - 1e-6))
        level = "note" if plan.substeps > 1 else "FAIL"
        yield Finding(
            level,
            "time step",
            f"{arguments.dt:g} s is too long for these contacts, {plan.longest_dt:.2g} s is not: take {needed} substeps, "
            "or give --armature",
        )
    else:
        yield Finding(
            "ok",
            "time step",
            f"contacts of the default stiffness bear {plan.longest_dt:.2g} s, asked for {arguments.dt:g} s",
        )


@eqx.filter_jit
def _identities(model: jaxdyn.Model, q: jax.Array, v: jax.Array, tau: jax.Array) -> Any:
    a = jaxdyn.aba(model, q, v, tau)
    mass = jaxdyn.crba(model, q)
    bias = jaxdyn.nonlinear_effects(model, q, v)
    return a, jaxdyn.rnea(model, q, v, a), mass, bias, jaxdyn.kinetic_energy(model, q, v)


def check_dynamics(model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Forward against inverse dynamics, energies, and the gradient of a time step against finite differences."""
    keys = jax.random.split(jax.random.key(arguments.seed), 4)
    dtype = model.dtype
    q = jaxdyn.integrate(model, jnp.asarray(plan.q, dtype), 0.1 * jax.random.normal(keys[0], (model.nv,), dtype))
    v = 0.3 * jax.random.normal(keys[1], (model.nv,), dtype)
    tau = jax.random.normal(keys[2], (model.nv,), dtype)
    a, back, mass, bias, energy = (np.asarray(x, np.float64) for x in _identities(model, q, v, tau))
    tolerance = 1e-8 if dtype == np.float64 else 2e-2
    vn = np.asarray(v, np.float64)
    for subject, fault in (
        ("forward against inverse dynamics", _relative(back, np.asarray(tau, np.float64), np.abs(bias).max())),
        ("mass matrix against inverse dynamics", _relative(mass @ a + bias, back, np.abs(bias).max())),
        ("kinetic energy", _relative(0.5 * vn @ mass @ vn, energy, 1e-9)),
    ):
        level = "ok" if fault < tolerance else "FAIL"
        yield Finding(level, subject, f"relative difference {fault:.1g}")

    system = scenario.make_system(model, plan, smoothing=2e-3)
    x = scenario.make_state(model, q, v)
    torque = tau[base_sizes(model)[1] :]
    direction = jax.random.normal(keys[3], (2 * model.nv + system.n,), dtype)
    dt = jnp.asarray(arguments.dt / plan.substeps, dtype)
    forward, reverse, numeric = (np.asarray(s, np.float64) for s in _slopes(system, x, torque, dt, direction))
    broken = [mode for mode, slope in (("forward", forward), ("reverse", reverse)) if not np.isfinite(slope).all()]
    if broken:
        yield Finding("FAIL", "gradient", f"of a time step is not finite in {' and '.join(broken)} mode")
        return
    modes = _relative(np.sum(forward), np.sum(reverse * np.asarray(direction, np.float64)), np.abs(forward).max())
    text, good = f"of a time step is finite; forward and reverse mode differ by {modes:.1g}", modes < tolerance
    if dtype == np.float64:
        off = _relative(numeric, forward, 1e-6)
        text, good = f"{text}, from finite differences by {off:.1g}", good and off < 1e-4
    yield Finding("ok" if good else "FAIL", "gradient", text)


@eqx.filter_jit
def _slopes(system: Any, x: Any, torque: jax.Array, dt: jax.Array, direction: jax.Array) -> Any:
    """Of a time step: its derivative along a direction (2 nv,), the gradient of the sum of its results, and the former
    by central differences."""
    n = 2 * system.velocity(x).size
    after = jaxdyn.step(system, jaxdyn.SemiImplicitEuler(), x, torque, dt)

    def moved(change: jax.Array) -> jax.Array:
        start = jaxdyn.boxplus(system, x, change[:n])
        new = jaxdyn.step(system, jaxdyn.SemiImplicitEuler(), start, torque + change[n:], dt)
        return jaxdyn.boxminus(system, new, after)

    zero, h = jnp.zeros_like(direction), 1e-6
    _, forward = jax.jvp(moved, (zero,), (direction,))
    reverse = jax.grad(lambda change: jnp.sum(moved(change)))(zero)
    # one evaluation of the pair: the step is compiled once for both
    ends = jax.vmap(moved)(jnp.stack([h * direction, -h * direction]))
    return forward, reverse, (ends[0] - ends[1]) / (2 * h)


def _relative(x: Any, reference: Any, floor: float) -> float:
    """Largest difference, in terms of the largest number."""
    x, reference = np.asarray(x), np.asarray(reference)
    if not x.size:
        return 0.0
    scale = max(float(np.abs(reference).max()), float(floor), 1e-300)
    fault = float(np.abs(x - reference).max()) / scale
    return fault if np.isfinite(fault) else np.inf


def compare_with_pinocchio(model: jaxdyn.Model, plan: tuning.Plan, arguments: argparse.Namespace) -> Iterator[Finding]:
    """The mass matrix and the bias torque against Pinocchio's, if it is installed and the joints are of its kinds."""
    try:
        pin = importlib.import_module("pinocchio")
    except ImportError:
        yield Finding("note", "comparison", "left out: Pinocchio is not installed (pip install pin)")
        return
    tree = model.tree
    kinds = set(tree.joint_types[1 if is_floating(model) else 0 :])
    if not kinds <= {"revolute", "prismatic", "continuous"}:
        yield Finding("note", "comparison", f"left out: joints of the kinds {listing(sorted(kinds))}")
        return
    path = ROBOTS / f"{arguments.path}.urdf" if arguments.path in jaxdyn.robot_names() else arguments.path
    try:
        root = [pin.JointModelFreeFlyer()] if is_floating(model) else []
        other = pin.buildModelFromUrdf(str(path), *root)
        order = [other.getJointId(name) for name in tree.joint_names]
        if other.nv != model.nv or max(order) >= other.njoints:
            raise ValueError("it reads other joints")
        other.gravity.linear = np.asarray(model.gravity, np.float64)
        other.armature = np.zeros(other.nv)
        keys = jax.random.split(jax.random.key(arguments.seed + 1))
        q = jaxdyn.integrate(
            model, jnp.asarray(plan.q, model.dtype), 0.3 * jax.random.normal(keys[0], (model.nv,), model.dtype)
        )
        v = 0.3 * jax.random.normal(keys[1], (model.nv,), model.dtype)
        _, _, mass, bias, _ = (np.asarray(x, np.float64) for x in _identities(model, q, v, jnp.zeros_like(v)))
        q, v = np.asarray(q, np.float64), np.asarray(v, np.float64)
        q_pin, v_pin, columns = _to_pinocchio(model, other, order, q, v)
        data = other.createData()
        theirs = pin.crba(other, data, q_pin)
        theirs = np.triu(theirs) + np.triu(theirs, 1).T
        theirs_bias = pin.nonLinearEffects(other, data, q_pin, v_pin)
    except Exception as error:
        # that the other library cannot read a file says nothing about this one
        yield Finding("note", "comparison", f"Pinocchio does not follow: {error}")
        return
    armature = np.diag(np.asarray(model.armature, np.float64))
    fault = max(
        _relative(mass - armature, theirs[np.ix_(columns, columns)], 1e-9),
        _relative(bias, theirs_bias[columns], np.abs(mass).max() * 1e-6),
    )
    level = "ok" if fault < (1e-8 if model.dtype == np.float64 else 1e-3) else "FAIL"
    yield Finding(
        level,
        "comparison",
        f"mass matrix and bias torque against Pinocchio {pin.__version__}: relative difference {fault:.1g}",
    )


def _to_pinocchio(
    model: jaxdyn.Model, other: Any, order: list[int], q: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State in Pinocchio's order, and where the entries of our velocity are in theirs."""
    q_pin, v_pin, columns = np.zeros(other.nq), np.zeros(other.nv), np.zeros(model.nv, int)
    for i, j in enumerate(order):
        joint, at, dof = other.joints[j], model.tree.q_offset[i], model.tree.v_offset[i]
        if model.tree.joint_types[i] == "floating":
            q_pin[joint.idx_q : joint.idx_q + 7] = [*q[at : at + 3], *q[at + 4 : at + 7], q[at + 3]]
        elif joint.nq == 2:
            q_pin[joint.idx_q : joint.idx_q + 2] = [np.cos(q[at]), np.sin(q[at])]
        else:
            q_pin[joint.idx_q] = q[at]
        size = model.tree.joint_nv[i]
        columns[dof : dof + size] = joint.idx_v + np.arange(size)
    v_pin[columns] = v
    return q_pin, v_pin, columns
