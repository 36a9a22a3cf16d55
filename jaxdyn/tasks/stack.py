"""Stacks of tasks in order of priority, with the constraints that bind all of them.

    hands / (com + 0.1 * posture) << limits        two levels, the second a weighted sum
    stack << task                                  the task as an equality for all levels

Structure is static; `active` (levels,) switches levels without compiling anew.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdyn.errors import InputError, NotDefinedError, unknown_name
from jaxdyn.tasks.constraint import Constraint, aggregate, as_constraint
from jaxdyn.tasks.data import ConstraintData, TaskData
from jaxdyn.tasks.leaves import bool_leaf
from jaxdyn.tasks.state import RobotState


class StackData(eqx.Module):
    """A stack in numbers: levels from high to low priority, constraints of each level only, and of all levels."""

    levels: tuple[TaskData, ...]
    local: tuple[ConstraintData, ...]
    shared: ConstraintData
    active: Bool[Array, " levels"]
    regularisation: TaskData | None

    @property
    def n(self) -> int:
        """Number of unknowns."""
        return self.levels[0].c.shape[0]


class Stack(eqx.Module):
    """Tasks in order of priority, highest first.

    **Fields:** `levels`: tasks; `constraints` of all levels; `regularisation`: a task added to the cost of every level,
    but to no level's claim on those below; `active` (levels,) of bools, None for all.
    """

    levels: tuple
    constraints: tuple = ()
    regularisation: Any = None
    active: Any = eqx.field(default=None, converter=bool_leaf)

    def __check_init__(self):
        for level in self.levels:
            if not hasattr(level, "size_in"):
                raise InputError(f"levels: wanted tasks, given {type(level).__name__}.")
        if self.active is not None and self.active.shape != (len(self.levels),):
            raise InputError(f"active: wanted shape ({len(self.levels)},), given shape {self.active.shape}.")

    @property
    def tasks(self) -> tuple:
        """All tasks, those within sums too."""

        def flat(task):
            return [x for t in task.tasks for x in flat(t)] if hasattr(task, "tasks") else [task]

        return tuple(t for level in self.levels for t in flat(level))

    def task(self, name: str) -> Any:
        """A task by name, in a sum too; raises `UnknownNameError`."""
        tasks = {t.name: t for t in (*self.tasks, *self.levels)}
        if name not in tasks:
            raise unknown_name("task", name, tasks)
        return tasks[name]

    def with_active(self, active: Any) -> Stack:
        """The stack with levels switched on or off: `active` (levels,) of bools."""
        return dataclasses.replace(self, active=active)

    def with_regularisation(self, task: Any) -> Stack:
        """The stack with a task that is added to the cost of every level."""
        return dataclasses.replace(self, regularisation=task)

    def evaluate(self, state: RobotState | None = None) -> StackData:
        """The stack in numbers, in this situation."""
        levels = tuple(level.evaluate(state) for level in self.levels)
        local = tuple(aggregate([c.evaluate(state) for c in level.all_constraints()]) for level in self.levels)
        shared = aggregate([c.evaluate(state) for c in self.constraints])
        active = jnp.ones(len(levels), bool) if self.active is None else self.active
        sizes = {d.c.shape[0] for d in levels}
        if len(sizes) != 1:
            raise InputError(f"the levels have different numbers of unknowns: {[d.c.shape[0] for d in levels]}.")
        extra = None if self.regularisation is None else self.regularisation.evaluate(state)
        return StackData(levels, local, shared, active, extra)

    def check(self, state: RobotState | None = None) -> None:
        """Raise `InputError` if a task or a constraint is inconsistent."""
        n = self.evaluate(state).n
        for level in self.levels:
            level.check(state)
        for constraint in self.constraints:
            constraint.check(state, n)

    def diagnostics(self, state: RobotState | None = None) -> dict[str, Any]:
        """Numbers worth logging, of all tasks and constraints."""
        out: dict[str, Any] = {}
        for thing in (*self.levels, *self.constraints):
            out |= thing.diagnostics(state)
        return out

    def reset(self, state: RobotState) -> Stack:
        """All tasks that have a reference, with the reference where the robot is now."""

        def one(task):
            try:
                return task.reset(state)
            except NotDefinedError:
                return task

        return dataclasses.replace(self, levels=tuple(one(level) for level in self.levels))

    def __truediv__(self, other: Any) -> Stack:
        if isinstance(other, Stack):
            constraints = (*self.constraints, *(c for c in other.constraints if _new(c, self.constraints)))
            return Stack((*self.levels, *other.levels), constraints, self.regularisation)
        if not hasattr(other, "size_in"):
            return NotImplemented
        return Stack((*self.levels, other), self.constraints, self.regularisation)

    def __lshift__(self, constraint: Any) -> Stack:
        added: Constraint = as_constraint(constraint)
        if not _new(added, self.constraints):
            return self
        return dataclasses.replace(self, constraints=(*self.constraints, added))


def _new(constraint: Constraint, existing: tuple) -> bool:
    return all(constraint is not c for c in existing)
