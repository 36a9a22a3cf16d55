"""Contact schedules: activities over time, and rollouts under them."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from floating_base_data import assert_tree_close

from jaxdyn.contact import CompliantContact, ContactSchedule, HuntCrossley
from jaxdyn.errors import InputError
from jaxdyn.model import load
from jaxdyn.systems import (
    RKMK4,
    FloatingBaseDynamics,
    Input,
    SemiImplicitEuler,
    batch_rollout,
    rollout,
    state_from_configuration,
)

EULER = SemiImplicitEuler()
at = eqx.filter_jit(lambda schedule, times: jax.vmap(schedule.at)(times))

LIFTED = ContactSchedule.of_phases([[(0.5, 1), (0.3, 0), (0.5, 0.7)], [(1.3, 1)]])


def test_phases_follow_each_other_and_the_last_holds():
    times = [-1.0, 0.0, 0.499, 0.5, 0.799, 0.8, 1.2, 1.3, 50.0]
    expected = [1, 1, 1, 0, 0, 0.7, 0.7, 0.7, 0.7]
    np.testing.assert_array_equal(at(LIFTED, jnp.asarray(times)), np.stack([expected, np.ones(9)], axis=1))
    later = eqx.tree_at(lambda s: s.start, LIFTED, jnp.array([0.1, 0.0]))
    np.testing.assert_array_equal(at(later, jnp.asarray([0.5, 0.6]))[:, 0], [1, 0])


def test_periodic_phases_repeat_in_both_directions():
    trot = ContactSchedule.gait(0.4, 0.5, [0.0, 0.5, 0.5, 0.0])
    pattern = np.array([[1, 0, 0, 1], [0, 1, 1, 0]] * 4)
    np.testing.assert_array_equal(at(trot, jnp.asarray(np.arange(8) * 0.2 - 0.8)), pattern)
    np.testing.assert_array_equal(at(trot, jnp.asarray(np.arange(8) * 0.2 - 0.7)), pattern)
    ragged = ContactSchedule.of_phases([[(0.1, 1), (0.2, 0)], [(0.1, 0)]], periodic=True)
    np.testing.assert_array_equal(at(ragged, jnp.asarray([0.05, 0.15, 0.3, 0.35]))[:, 0], [1, 0, 1, 1])
    walk = ContactSchedule.gait(1.0, jnp.array([0.75, 0.6]), jnp.array([0.0, 0.5]))
    np.testing.assert_array_equal(at(walk, jnp.asarray([0.7, 0.8, 0.05, 0.2])), [[1, 1], [0, 1], [1, 1], [1, 0]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_switches_are_met_by_the_times_of_steps(dtype):
    # 0.1, 0.2, ... are no binary numbers: the products and the sums must meet all the same
    schedule = ContactSchedule(jnp.full((1, 20), 0.1, dtype), jnp.asarray([[0.0, 1.0] * 10], dtype))
    steps = jnp.arange(2000).astype(dtype) * jnp.asarray(1e-3, dtype)
    found = at(schedule, steps)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, 0], (np.arange(2000) // 100) % 2)
    periodic = ContactSchedule(jnp.asarray([[0.1, 0.2]], dtype), jnp.asarray([[1.0, 0.0]], dtype), 0.0, True)
    np.testing.assert_array_equal(at(periodic, steps)[:, 0], np.arange(2000) % 300 < 100)


def test_derivatives_reach_the_activities_and_are_zero_for_the_rest():
    def weighed(schedule, t):
        return jnp.sum(schedule.at(t) * jnp.array([2.0, 3.0]))

    slopes, by_time = jax.jit(jax.grad(weighed, argnums=(0, 1)))(LIFTED, 0.9)
    np.testing.assert_array_equal(slopes.activity, [[0, 0, 2], [3, 0, 0]])
    assert not slopes.durations.any() and not slopes.start.any() and by_time == 0


def box(schedule=None, **options):
    return eqx.tree_at(lambda s: s.schedule, data.box_on_patch(**options), schedule, is_leaf=lambda x: x is None)


def test_a_rollout_under_a_schedule_is_two_rollouts_one_after_the_other():
    _, x = data.box_case("drop")
    schedule = ContactSchedule.of_phases([[(0.015, 1.0), (1.0, 0.0)]])
    path = rollout(box(schedule), EULER, x, None, 1e-3, 30)
    on = rollout(box(), EULER, x, None, 1e-3, 15)
    off = rollout(data.system("box", with_contacts=False), EULER, on.final, None, 1e-3, 15)
    assert_tree_close(path.final, off.final, 1e-13)
    # wrenches that are asked for obey it too, and those of contacts in an input
    held = Input(jnp.zeros(0), box().contacts)
    pressed = eqx.tree_at(lambda x: x.position, x, jnp.array([0.0, 0.0, 0.04]))
    wrench = eqx.filter_jit(lambda s, t: s.contact_wrenches(pressed, held, t))
    assert wrench(box(schedule), 0.01)[0, 2] > 0 and not wrench(box(schedule), 0.016).any()


def test_schedules_differ_between_the_robots_of_a_batch_and_compile_once():
    _, x = data.box_case("drop")
    traces = []

    @eqx.filter_jit
    def final(schedule):
        traces.append(None)
        return rollout(box(schedule), EULER, x, None, 1e-3, 30, save_every=None).final

    schedules = [ContactSchedule([[a, 1.0]], [[1.0, 0.0]]) for a in (0.01, 0.015, 0.02)]
    alone = [final(s) for s in schedules]
    assert len(traces) == 1
    together = jax.tree.map(lambda *a: jnp.stack(a), *schedules)
    states = jax.tree.map(lambda a: jnp.broadcast_to(a, (3, *a.shape)), x)
    result = batch_rollout(box(together), EULER, states, None, 1e-3, 30)
    for i, one in enumerate(alone):
        assert_tree_close(jax.tree.map(lambda a, i=i: a[i], result.trajectory.final), one, 1e-12)


def test_inner_stages_of_a_step_see_their_own_time():
    # RK4 over a switch in the middle of its only step: only the first stage is on
    _, x = data.box_case("drop")
    pressed = eqx.tree_at(lambda x: x.position, x, jnp.array([0.0, 0.0, 0.04]))
    accelerations = []
    for activity in ([[1.0, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]]):
        schedule = ContactSchedule([0.5e-3, 1.0], activity)
        end = rollout(box(schedule), RKMK4(), pressed, None, 1e-3, 1).final
        accelerations.append(float(end.twist[2]) / 1e-3)
    on, off, both = accelerations
    assert both == pytest.approx((on + 5 * off) / 6, rel=2e-2)


def test_a_schedule_of_a_quadruped_lifts_two_feet_at_a_time():
    model = load("quadruped", root="floating", dtype=jnp.float64)
    feet = [f for f in model.frame_names if f.endswith("foot")]
    contacts = [CompliantContact(f, HuntCrossley(1e6, 0.5), null_position=[0.0, 0.0, 0.5]) for f in feet]
    system = FloatingBaseDynamics(model, contacts, schedule=ContactSchedule.gait(0.4, 0.5, [0.0, 0.5, 0.5, 0.0]))
    x = state_from_configuration(model)
    forces = jax.jit(jax.vmap(lambda t: system.contact_wrenches(x, None, t)[:, 2]))(jnp.array([0.1, 0.3]))
    np.testing.assert_array_equal(np.asarray(forces) > 0, [[True, False, False, True], [False, True, True, False]])


def test_mistakes_are_named():
    for wrong, match in (
        (lambda: ContactSchedule([[0.1, -0.2]], [[1.0, 0.0]]), r"durations: wanted finite.*given -0.2 at \[0, 1\]"),
        (lambda: ContactSchedule([[0.1, np.inf]], [[1.0, 0.0]]), r"durations: wanted finite.*inf at \[0, 1\]"),
        (lambda: ContactSchedule([[0.1, 0.2]], [[1.0, 1.5]]), r"activity: wanted numbers from 0.*1.5 at \[0, 1\]"),
        (lambda: ContactSchedule([[0.1]], [[1.0, 0.0]]), r"durations: wanted shape \(1, 2\) as activity"),
        (lambda: ContactSchedule([0.1, 0.2], [[1.0, 0.0]], [0.0, 0.0]), r"start: wanted shape \(1,\)"),
        (lambda: ContactSchedule([[0.0, 0.0]], [[1.0, 0.0]], periodic=True), "cannot repeat"),
        (lambda: ContactSchedule(np.zeros((1, 0)), np.zeros((1, 0))), "at least one phase"),
        (lambda: ContactSchedule([0.1], [1.0]), r"durations: wanted shape \(n, n\)"),
        (lambda: ContactSchedule.of_phases([[(0.1, 1)], []]), "of contact 1, at least one"),
        (lambda: ContactSchedule.of_phases([[0.1, 0.2]]), r"pairs \(duration, activity\) of contact 0"),
        (lambda: ContactSchedule.gait(0.4, 1.2, [0.0, 0.5]), "duty: wanted parts"),
        (lambda: ContactSchedule.gait(0.0, 0.5, [0.0, 0.5]), "period: wanted a positive time"),
        (lambda: ContactSchedule.gait(0.4, 0.5, 0.5), r"offset: wanted shape \(contacts,\)"),
        (lambda: FloatingBaseDynamics(data.model("box"), schedule=LIFTED), "for 2 contacts, there are 0"),
        (lambda: FloatingBaseDynamics(data.model("box"), schedule=[1.0]), "wanted a ContactSchedule, given list"),
    ):
        with pytest.raises(InputError, match=match):
            wrong()
