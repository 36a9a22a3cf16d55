"""`ContactSchedule`: which contacts are on, as a function of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.contact.compliant import CompliantContact
from jaxdyn.contact.fields import in_one_dtype, parameter
from jaxdyn.errors import FloatLike, InputError, is_concrete


class ContactSchedule(eqx.Module):
    """Activities of contacts, constant from one switch to the next: a gait, a sequence of steps, a release.

    Contact `i` has phases of `durations[i, j]` seconds with `activity[i, j]`, one after the other from the time
    `start[i]` on. Before the first phase that one holds, after the last the last; with `periodic=True` they repeat for ever in
    both directions. A phase begins with its first instant: at a time that is a switch up to rounding the new
    activity holds.

    **Arguments:** `durations`: (contacts, phases), s, zero for a phase that is skipped, or (phases,) for all contacts; `activity`:
    (contacts, phases), from 0 (off) to 1 (on), what the contact's own `active` is multiplied by; `start`: (contacts,) or a number, s;
    `periodic`.

    All numbers are leaves: other durations compile nothing anew, and may differ between the robots of a batch. Derivatives with
    respect to activities are right; with respect to durations, start and time they are zero, as nothing but the
    instants of the switches depends on those.

    **Raises:** `InputError` for shapes that do not match, a duration that is negative or not finite, an activity outside
    of 0 to 1, or a periodic contact without duration, if the numbers can be read.
    """

    periodic: bool = eqx.field(static=True)
    durations: Float[Array, "..."] = parameter("durations", (None, None))
    activity: Float[Array, "..."] = parameter("activity", (None, None))
    start: Float[Array, "..."] = parameter("start", (None,))

    def __init__(self, durations: FloatLike, activity: FloatLike, start: FloatLike = 0.0, periodic: bool = False):
        durations, activity, start = in_one_dtype(durations, activity, start)
        shape = np.shape(activity)
        if len(shape) >= 2 and np.ndim(durations) == 1:
            durations = jnp.broadcast_to(jnp.asarray(durations), (shape[-2], np.shape(durations)[0]))
        if len(shape) >= 2 and np.ndim(start) == 0:
            start = jnp.broadcast_to(jnp.asarray(start), shape[-2:-1])
        self.durations = durations  # pyright: ignore (the field converts it)
        self.activity = activity  # pyright: ignore
        self.start = start  # pyright: ignore
        self.periodic = bool(periodic)

    def __check_init__(self) -> None:
        contacts, phases = self.activity.shape[-2:]
        if phases == 0:
            raise InputError("activity: wanted at least one phase, given none.")
        for name, wanted in (("durations", (contacts, phases)), ("start", (contacts,))):
            given = getattr(self, name).shape
            if given[-len(wanted) :] != wanted:
                raise InputError(f"{name}: wanted shape {wanted} as activity, given {given}.")
        if is_concrete(self.activity):
            activity = np.asarray(self.activity)
            if not ((activity >= 0) & (activity <= 1)).all():
                raise InputError(f"activity: wanted numbers from 0 (off) to 1 (on), given {_first(activity)}.")
        if is_concrete(self.durations):
            durations = np.asarray(self.durations)
            if not ((durations >= 0) & np.isfinite(durations)).all():
                raise InputError(f"durations: wanted finite times, not negative, given {_first(durations)}.")
            if self.periodic and not (durations.sum(axis=-1) > 0).all():
                raise InputError("durations: a contact's phases take no time; they cannot repeat.")
        if is_concrete(self.start) and not np.isfinite(np.asarray(self.start)).all():
            raise InputError(f"start: wanted finite times, given {np.asarray(self.start)}.")

    @classmethod
    def of_phases(cls, phases: Sequence[Any], start: FloatLike = 0.0, periodic: bool = False) -> ContactSchedule:
        """The schedule of lists `[(duration, activity), ...]`, one per contact, of any lengths.

        `ContactSchedule.of_phases([[(0.5, 1), (0.3, 0), (0.5, 1)], [(1.3, 1)]])`: the first contact is lifted from 0.5 s
        to 0.8 s, the second stays.
        """
        rows = [list(contact) for contact in phases]
        for i, row in enumerate(rows):
            if not row or any(not isinstance(p, Sequence) or len(p) != 2 for p in row):
                raise InputError(
                    f"phases: wanted pairs (duration, activity) of contact {i}, at least one, given {row!r:.80}."
                )
        longest = max((len(row) for row in rows), default=0)
        padded = [row + [(0.0, row[-1][1])] * (longest - len(row)) for row in rows]
        durations, activity = ([[float(p[k]) for p in row] for row in padded] for k in (0, 1))
        return cls(durations, activity, start, periodic)

    @classmethod
    def gait(cls, period: FloatLike, duty: FloatLike, offset: FloatLike) -> ContactSchedule:
        """A periodic gait.

        **Arguments:** `period`: of one cycle, s; `duty`: the part of it that each contact is on, 0 to 1, a number or
        (contacts,); `offset`: (contacts,), when each is put down, in parts of the period. A trot has `duty=0.5` and
        `offset=[0, 0.5, 0.5, 0]`.
        """
        period, duty, offset = (jnp.asarray(a) for a in in_one_dtype(period, duty, offset))
        if offset.ndim != 1:
            raise InputError(f"offset: wanted shape (contacts,), given {offset.shape}.")
        dtype = offset.dtype if jnp.issubdtype(offset.dtype, jnp.floating) else jnp.result_type(float)
        period, duty, offset = (a.astype(dtype) for a in (period, jnp.broadcast_to(duty, offset.shape), offset))
        for name, value, good in (("period", period, period > 0), ("duty", duty, (duty >= 0) & (duty <= 1))):
            if is_concrete(value) and not np.all(good):
                wanted = "a positive time" if name == "period" else "parts of the period, 0 to 1"
                raise InputError(f"{name}: wanted {wanted}, given {np.asarray(value)}.")
        durations = jnp.stack([duty, 1 - duty], axis=1) * period
        activity = jnp.broadcast_to(jnp.asarray([1, 0], dtype)[None], durations.shape)
        return cls(durations, activity, offset * period, periodic=True)

    @property
    def n_contacts(self) -> int:
        """Number of contacts."""
        return self.activity.shape[-2]

    def at(self, t: FloatLike) -> Float[Array, " contacts"]:
        """The activities at the time `t`, s."""
        dtype = self.durations.dtype
        ends = jnp.cumsum(self.durations, axis=1)
        total = ends[:, -1]
        local = jnp.asarray(t, dtype) - self.start
        # a time that was summed or multiplied up may miss a switch by a rounding
        local = local + 8 * float(jnp.finfo(dtype).eps) * (jnp.abs(local) + jnp.abs(self.start) + total)
        if self.periodic:
            local = local - total * jnp.floor(local / total)
        phase = jnp.sum(local[:, None] >= ends, axis=1, dtype=jnp.int32)
        phase = jnp.minimum(phase, ends.shape[1] - 1)
        chosen = jnp.arange(ends.shape[1], dtype=jnp.int32)[None] == phase[:, None]
        return jnp.sum(jnp.where(chosen, self.activity, 0), axis=1)

    def switched(self, contacts: Sequence[CompliantContact], t: FloatLike) -> tuple[CompliantContact, ...]:
        """The contacts as they are at the time `t`: the `active` of each, times that of the schedule.

        **Raises:** `InputError` if these are not as many contacts as the schedule has.
        """
        self.check_contacts(len(contacts))
        now = self.at(t)
        return tuple(
            eqx.tree_at(lambda c: c.active, contact, contact.active * now[i].astype(contact.active.dtype))
            for i, contact in enumerate(contacts)
        )

    def check_contacts(self, n: int) -> None:
        """Raises `InputError` unless the schedule is for `n` contacts."""
        if n != self.n_contacts:
            raise InputError(f"schedule: it has phases for {self.n_contacts} contacts, there are {n}.")


def _first(numbers: np.ndarray) -> str:
    """The first number that is negative, above 1 or not finite, and where it is; for durations, 1 is no bound."""
    wrong = ~np.isfinite(numbers) | (numbers < 0)
    wrong = wrong if wrong.any() else numbers > 1
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{numbers[at]:g} at {list(at)}"
