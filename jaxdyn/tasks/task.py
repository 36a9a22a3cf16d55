"""Tasks: least-squares wishes 1/2 (A x - b)^T W (A x - b) + c^T x, their parts, sums and multiples.

A task is an immutable pytree. Names, row counts and the tasks of a sum are static; weight, gain, reference, mask and
activity are leaves: changing them compiles nothing anew.

    t.with_weight(W)        W a number, a diagonal (rows,) or a matrix (rows, rows)
    t.with_gain(k)          error gain, k >= 0
    t.with_active(flag)     an inactive task has A = 0 (b, W, c stay)
    t.with_mask(mask)       columns of A where the mask (n,) is False are 0
    w * t,  M * t           W becomes w W, M W
    a + b                   both at one level: AggregatedTask
    t % [0, 2]              some rows: SubTask
    t << constraint         a constraint that binds only where this task is solved
    a / b                   a before b: Stack
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, NotDefinedError, check_shape, is_concrete
from jaxdyn.math.arguments import check_core
from jaxdyn.tasks.affine import Affine
from jaxdyn.tasks.constraint import Constraint, as_constraint
from jaxdyn.tasks.data import HessianType, TaskData
from jaxdyn.tasks.leaves import bool_leaf, checked_rows, float_leaf, not_negative, ranges
from jaxdyn.tasks.stack import Stack
from jaxdyn.tasks.state import RobotState


class Task(eqx.Module):
    """What all tasks share. Subclasses give `size` and `_terms`.

    **Fields:** `name`; `weight` W (see `with_weight`); `gain` lambda of the error, None for the default of the kind;
    `active`; `mask` (n,) or None for all; `linear` c (n,) or None for zero; `constraints` that bind at its level only;
    `hessian`; `variable`: the task is one in y = M x + q, an expression of the unknowns x.
    """

    name: str = eqx.field(static=True, kw_only=True, default="task")
    weight: Any = eqx.field(kw_only=True, default=1.0, converter=float_leaf)
    gain: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)
    active: Any = eqx.field(kw_only=True, default=True, converter=bool_leaf)
    mask: Any = eqx.field(kw_only=True, default=None, converter=bool_leaf)
    linear: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)
    constraints: tuple = eqx.field(kw_only=True, default=())
    hessian: HessianType = eqx.field(static=True, kw_only=True, default=HessianType.UNKNOWN)
    variable: Affine | None = eqx.field(kw_only=True, default=None)

    cores: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    """Last axes of leaves that have a fixed shape; a task may be built as a batch, with axes before them."""

    def __check_init__(self) -> None:
        for leaf, core in self.cores.items():
            if getattr(self, leaf) is not None:
                check_core(f"{self.name}: {leaf}", getattr(self, leaf), core)

    __array_ufunc__ = None  # NumPy arrays leave `matrix * task` to us

    @abc.abstractmethod
    def _terms(self, state: Any) -> tuple[Array, Array]:
        """A (rows, n) and b (rows,) as they are when active and unmasked."""

    @abc.abstractmethod
    def size_in(self, state: Any) -> int:
        """Number of rows."""

    # -- evaluation

    def evaluate(self, state: RobotState | None = None) -> TaskData:
        """The task in numbers, in this situation (`robot_state`; None for tasks that need no robot)."""
        A, b = self._terms(state)
        dtype, c = A.dtype, self.linear
        if self.variable is not None:
            if self.variable.size != A.shape[1]:
                raise InputError(
                    f"{self.name}: variable has {self.variable.size} rows, the task has {A.shape[1]} unknowns."
                )
            b = b - A @ self.variable.q
            A = A @ self.variable.M
            c = None if c is None else self.variable.M.T @ c.astype(dtype)
        n = A.shape[1]
        c = jnp.zeros(n, dtype) if c is None else check_shape(f"{self.name}: linear", c, (n,)).astype(dtype)
        if self.mask is not None:
            if self.mask.shape != (n,):
                raise InputError(f"{self.name}: mask: wanted shape ({n},), given shape {self.mask.shape}.")
            A = jnp.where(self.mask[None], A, 0.0)
        A = jnp.where(self.active, A, 0.0)
        return TaskData(A, b, c, self._weight(A.shape[0], dtype, state), self.hessian)

    def _weight(self, rows: int, dtype: Any, state: Any) -> Array:
        W = self.weight.astype(dtype)
        if W.ndim and W.shape not in ((rows,), (rows, rows)):
            raise InputError(
                f"{self.name}: weight: wanted a number, shape ({rows},) or ({rows}, {rows}), given shape {W.shape}."
            )
        return W

    def all_constraints(self) -> tuple[Constraint, ...]:
        """Constraints that bind at the level of this task only."""
        return self.constraints

    def cost(self, x: FloatLike, state: RobotState | None = None) -> Float[Array, ""]:
        """(A x - b)^T W (A x - b), see `TaskData.cost`."""
        return self.evaluate(state).cost(x)

    def check(self, state: RobotState | None = None) -> None:
        """Raise `InputError` if the task or its constraints are inconsistent, or their numbers of unknowns differ."""
        data = self.evaluate(state)
        faults = [f"{self.name}: {f}" for f in data.faults()]
        for constraint in self.all_constraints():
            inner = constraint.evaluate(state).faults(data.c.shape[0])
            faults += [f"{self.name}: constraint {constraint.name}: {f}" for f in inner]
        if faults:
            raise InputError("; ".join(faults) + ".")

    def reset(self, state: Any = None) -> Any:
        """The task with its reference where the robot is now; `NotDefinedError` if it has none."""
        raise NotDefinedError(f"{self.name}: a {type(self).__name__} has no reference to reset.")

    def diagnostics(self, state: RobotState | None = None) -> dict[str, Any]:
        """Numbers worth logging, by name."""
        data = self.evaluate(state)
        out = {f"{self.name}_{key}": getattr(data, key) for key in ("A", "b", "W", "c")}
        if self.gain is not None:
            out[f"{self.name}_lambda"] = self.gain
        for constraint in self.all_constraints():
            out |= constraint.diagnostics(state)
        return out

    # -- changed copies

    def with_weight(self, weight: FloatLike) -> Task:
        """The task with another weight: a number >= 0, a diagonal (rows,), or a matrix (rows, rows)."""
        weight = float_leaf(weight)
        if weight.ndim > 2 or (weight.ndim == 2 and weight.shape[0] != weight.shape[1]):
            raise InputError(f"weight: wanted a number, a diagonal or a square matrix, given shape {weight.shape}.")
        not_negative("weight", weight if weight.ndim < 2 else jnp.diagonal(weight))
        return dataclasses.replace(self, weight=weight)

    def with_cost(self, cost: FloatLike) -> Task:
        """The task with W = cost^2: for those used to factors of the residual, as in pink and mink."""
        cost = float_leaf(cost)
        return self.with_weight(cost * cost)

    def with_gain(self, gain: FloatLike) -> Task:
        """The task with another gain, >= 0."""
        gain = check_shape("gain", float_leaf(gain), ())
        not_negative("gain", gain)
        return dataclasses.replace(self, gain=gain)

    def with_active(self, active: Any) -> Task:
        """The task switched on or off."""
        return dataclasses.replace(self, active=active)

    def with_mask(self, mask: Any) -> Task:
        """The task that uses only some unknowns: `mask` (n,) of bools."""
        mask = jnp.asarray(mask)
        if mask.ndim != 1:
            raise InputError(f"mask: wanted shape (n,), given shape {mask.shape}.")
        return dataclasses.replace(self, mask=mask)

    def with_linear(self, linear: FloatLike) -> Task:
        """The task with a linear cost c^T x."""
        return dataclasses.replace(self, linear=linear)

    def with_variable(self, variable: Affine) -> Task:
        """The task in y = M x + q instead of x."""
        return dataclasses.replace(self, variable=variable)

    def with_name(self, name: str) -> Task:
        """The task under another name."""
        return dataclasses.replace(self, name=name)

    # -- operators

    def scaled(self, factor: FloatLike) -> Task:
        """W multiplied from the left by a number or a matrix (rows, rows)."""
        factor, W = float_leaf(factor), self.weight
        if factor.ndim == 0:
            not_negative("weight", factor)
            return dataclasses.replace(self, weight=factor.astype(W.dtype) * W)
        if factor.ndim != 2 or factor.shape[0] != factor.shape[1]:
            raise InputError(f"factor: wanted a number or a square matrix, given shape {factor.shape}.")
        if W.ndim and W.shape[0] != factor.shape[0]:
            raise InputError(f"factor: wanted shape {(W.shape[0],) * 2}, given shape {factor.shape}.")
        product = factor @ W if W.ndim == 2 else factor * W[None] if W.ndim == 1 else factor * W
        return dataclasses.replace(self, weight=product)

    def __mul__(self, factor: FloatLike) -> Task:
        return self.scaled(factor)

    __rmul__ = __mul__

    def __add__(self, other: Task) -> AggregatedTask:
        if not isinstance(other, Task):
            return NotImplemented
        return AggregatedTask((*_summands(self), *_summands(other)), constraints=_own(self) + _own(other))

    def __mod__(self, rows: Sequence[int]) -> SubTask:
        return SubTask(self, tuple(rows))

    def __truediv__(self, other: Any) -> Stack:
        if isinstance(other, Stack):
            return dataclasses.replace(other, levels=(self, *other.levels), active=None)
        return Stack((self, other)) if isinstance(other, Task) else NotImplemented

    def __lshift__(self, constraint: Any) -> Task:
        added = as_constraint(constraint)
        if any(added is c for c in self.constraints):
            return self
        return dataclasses.replace(self, constraints=(*self.constraints, added))


def _summands(task: Task) -> tuple[Task, ...]:
    """The tasks of a plain sum (one level is flattened), or the task itself."""
    if isinstance(task, AggregatedTask) and task.plain:
        return task.tasks
    return (task,)


def _own(task: Task) -> tuple:
    return task.constraints if isinstance(task, AggregatedTask) and task.plain else ()


class GenericTask(Task):
    """The task of given numbers: `GenericTask(A, b)`, A (rows, n), b (rows,); the gain plays no part in b."""

    A: Any = eqx.field(converter=float_leaf)
    b: Any = eqx.field(converter=float_leaf)

    def __check_init__(self):
        if self.A.ndim == 2 and self.b.ndim == 1 and self.A.shape[0] != self.b.shape[0]:
            raise InputError(f"{self.name}: A has {self.A.shape[0]} rows, b {self.b.shape[0]}.")

    def _terms(self, state):
        return self.A, self.b.astype(self.A.dtype)

    def size_in(self, state):
        return self.A.shape[0]


def linear_task(c: FloatLike, *, name: str = "linear") -> GenericTask:
    """The task of a linear cost c^T x and nothing else."""
    c = float_leaf(c)
    empty = jnp.zeros((0, c.shape[0]), c.dtype)
    return GenericTask(empty, empty[:, 0], linear=c, hessian=HessianType.ZERO, name=name)


def minimize_variable(variable: Affine, reference: FloatLike | None = None, *, name: str = "minimize") -> GenericTask:
    """The task that an expression of the unknowns be near a reference (default: zero)."""
    reference = jnp.zeros(variable.size, variable.q.dtype) if reference is None else float_leaf(reference)
    eye = jnp.eye(variable.size, dtype=variable.q.dtype)
    return GenericTask(eye, reference, variable=variable, name=name)


class SubTask(Task):
    """Some rows of a task: A and W of these rows; b too, times the gain of the subtask (default 1).

    Constraints, mask, activity and gain of the task it is taken from hold as well. Its weight is a factor.
    """

    task: Task
    rows: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, task: Task, rows: Sequence[int], **options: Any):
        if len(set(rows)) != len(tuple(rows)):
            raise InputError(f"{task.name}: rows are given twice: {tuple(rows)}.")
        for field in dataclasses.fields(Task):
            setattr(self, field.name, options.get(field.name, _default(field)))
        self.task, self.rows = task, tuple(sorted(int(r) for r in rows))
        if "name" not in options:
            self.name = f"{task.name}_{ranges(rows)}"
        if "hessian" not in options:
            identity = task.hessian is HessianType.IDENTITY
            self.hessian = HessianType.POSDEF if identity else task.hessian

    def _terms(self, state):
        data = self.task.evaluate(state)
        rows = np.asarray(checked_rows(self.name, self.rows, data.A.shape[0]))
        gain = 1.0 if self.gain is None else self.gain.astype(data.b.dtype)
        return data.A[rows], gain * data.b[rows]

    def _weight(self, rows, dtype, state):
        pick = np.asarray(self.rows)
        W = self.task.evaluate(state).weight[pick][:, pick]
        own = self.weight.astype(dtype)
        return own @ W if own.ndim == 2 else own[:, None] * W if own.ndim == 1 else own * W

    def all_constraints(self):
        return (*self.task.all_constraints(), *self.constraints)

    def size_in(self, state):
        return len(self.rows)

    def reset(self, state):
        return dataclasses.replace(self, task=self.task.reset(state))


def _default(field: dataclasses.Field) -> Any:
    value = field.default if field.default is not dataclasses.MISSING else None
    converter = field.metadata.get("converter")
    return value if converter is None else converter(value)


class AggregatedTask(Task):
    """Tasks at one level of priority: rows stacked, W block-diagonal, linear costs summed, constraints united.

    `weight`: None for the blocks of the summands, or a whole W (rows, rows) in their place; `factor` multiplies it.
    """

    tasks: tuple[Task, ...]
    factor: Any = eqx.field(default=None, converter=float_leaf)
    weight: Any = eqx.field(kw_only=True, default=None, converter=float_leaf)
    name: str = eqx.field(static=True, kw_only=True, default="")

    def __check_init__(self):
        if not self.tasks:
            raise InputError("a sum of no tasks.")

    def __post_init__(self):
        self.tasks = tuple(self.tasks)
        self.name = self.name or "+".join(t.name for t in self.tasks)
        self.hessian = _sum_type([t.hessian for t in self.tasks])
        self.weight, self.gain, self.linear = float_leaf(self.weight), float_leaf(self.gain), float_leaf(self.linear)
        self.active, self.mask, self.factor = bool_leaf(self.active), bool_leaf(self.mask), float_leaf(self.factor)

    @property
    def plain(self) -> bool:
        """True if nothing is set on the sum itself, so that it may be flattened into a larger one."""
        changed = (self.factor, self.weight, self.gain, self.mask, self.linear, self.variable)
        active = is_concrete(self.active) and bool(self.active)
        return active and all(c is None for c in changed)

    def _terms(self, state):
        data = [t.evaluate(state) for t in self.tasks]
        n = {d.A.shape[1] for d in data}
        if len(n) > 1:
            raise InputError(f"{self.name}: tasks with different numbers of unknowns: {sorted(n)}.")
        return jnp.concatenate([d.A for d in data]), jnp.concatenate([d.b for d in data])

    def evaluate(self, state=None):
        data = Task.evaluate(self, state)
        c = data.c
        for t in self.tasks:
            c = c + t.evaluate(state).c
        return dataclasses.replace(data, c=c)

    def _weight(self, rows, dtype, state):
        if self.weight is not None:
            W = Task._weight(self, rows, dtype, state)
            W = W if W.ndim == 2 else W * jnp.eye(rows, dtype=dtype)
        else:
            W = jax.scipy.linalg.block_diag(*[t.evaluate(state).weight for t in self.tasks])
        if self.factor is None:
            return W
        factor = self.factor.astype(dtype)
        return factor * W if factor.ndim == 0 else factor @ W

    def scaled(self, factor):
        factor = float_leaf(factor)
        old = self.factor
        if old is not None:
            factor = factor @ old if factor.ndim == 2 and old.ndim == 2 else factor * old
        return dataclasses.replace(self, factor=factor)

    def with_gain(self, gain):
        """All summands with this gain."""
        return dataclasses.replace(self, tasks=tuple(t.with_gain(gain) for t in self.tasks))

    def all_constraints(self):
        out = [c for t in self.tasks for c in t.all_constraints()]
        return (*out, *self.constraints)

    def size_in(self, state):
        return sum(t.size_in(state) for t in self.tasks)

    def reset(self, state):
        return dataclasses.replace(self, tasks=tuple(t.reset(state) for t in self.tasks))

    def diagnostics(self, state=None):
        return {k: v for t in self.tasks for k, v in t.diagnostics(state).items()}


def _sum_type(types: list[HessianType]) -> HessianType:
    """Of one task its own; else the first UNKNOWN or POSDEF decides; all ZERO: ZERO; else SEMIDEF."""
    if len(types) == 1:
        return types[0]
    for kind in types:
        if kind in (HessianType.UNKNOWN, HessianType.POSDEF):
            return kind
    return HessianType.ZERO if all(t is HessianType.ZERO for t in types) else HessianType.SEMIDEF
