"""Domain randomisation: environments that differ in any number of the system."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.errors import InputError
from jaxdyn.model import load
from jaxdyn.systems import (
    FixedBaseDynamics,
    FixedBaseState,
    SemiImplicitEuler,
    batch_rollout,
    environment_axes,
    randomize,
    rollout,
)


def heavier(key, inertia):
    """Each body by a factor of its own, its moments of inertia by the same."""
    factor = jax.random.uniform(key, inertia.mass.shape, inertia.mass.dtype, 0.5, 2.0)
    changed = inertia.mass * factor, inertia.inertia * factor[:, None, None]
    return eqx.tree_at(lambda i: (i.mass, i.inertia), inertia, changed)


@pytest.fixture(scope="module")
def system():
    return FixedBaseDynamics(load("double_pendulum"))


@pytest.fixture(scope="module")
def random(system):
    first, second = jax.random.split(jax.random.key(3))
    some = randomize(system, lambda s: s.model.inertia, heavier, first, 5)
    lighter = lambda key, g: [g[0] * jax.random.uniform(key, (), g[0].dtype)]  # noqa: E731
    return randomize(some, lambda s: [s.model.gravity], lighter, second, 5)


def test_what_belongs_together_changes_together_and_differs_between_environments(system, random):
    masses, inertias = random.model.inertia.mass, random.model.inertia.inertia
    assert masses.shape == (5, 2) and inertias.shape == (5, 2, 3, 3) and random.model.gravity.shape == (5, 3)
    factors = masses / system.model.inertia.mass[None]
    assert np.unique(np.asarray(factors)).size == 10
    np.testing.assert_allclose(inertias, factors[..., None, None] * system.model.inertia.inertia[None], rtol=1e-14)
    # what the sample leaves as it is has the axis too
    np.testing.assert_array_equal(random.model.inertia.com, np.tile(system.model.inertia.com, (5, 1, 1)))
    again = randomize(system, lambda s: s.model.inertia, heavier, jax.random.split(jax.random.key(3))[0], 5)
    np.testing.assert_array_equal(again.model.inertia.mass, masses)


def test_batches_and_vmap_give_each_environment_its_own_numbers(system, random):
    x = FixedBaseState(jnp.tile(jnp.array([0.4, -0.2]), (5, 1)), jnp.zeros((5, 2)))
    axes = environment_axes(random)
    assert axes.model.inertia.mass == 0 == axes.model.gravity and axes.model.armature is None

    def final(system, x):
        return rollout(system, SemiImplicitEuler(), x, None, 1e-2, 20, save_every=None).final

    each = jax.vmap(final, (axes, 0))(random, x)
    batch = batch_rollout(random, SemiImplicitEuler(), x, None, 1e-2, 20).trajectory.final
    np.testing.assert_allclose(batch.joint_position, each.joint_position, rtol=0, atol=1e-12)

    def taken(tree, i):
        return jax.tree.map(lambda a, axis: a if axis is None else a[i], tree, axes, is_leaf=lambda a: a is None)

    for i in (0, 4):
        alone = final(taken(random, i), jax.tree.map(lambda a, i=i: a[i], x))
        np.testing.assert_allclose(alone.joint_position, each.joint_position[i], rtol=0, atol=1e-13)
    assert np.unique(np.round(np.asarray(each.joint_position[:, 0]), 6)).size == 5


def test_wrong_samples_are_named(system, random):
    key, mass = jax.random.key(0), lambda s: s.model.inertia.mass
    with pytest.raises(InputError, match=r"sample: wanted float64\(2,\), given float64\(\)"):
        randomize(system, mass, lambda key, m: jnp.sum(m), key, 3)
    with pytest.raises(InputError, match=r"wanted float64\(2,\), given float32\(2,\)"):
        randomize(system, mass, lambda key, m: m.astype(jnp.float32), key, 3)
    with pytest.raises(InputError, match="wanted the structure of the part"):
        randomize(system, mass, lambda key, m: [m], key, 3)
    with pytest.raises(InputError, match="has an axis for the environments already"):
        randomize(random, mass, lambda key, m: m, key, 5)
    with pytest.raises(InputError, match="environments: wanted at least 1, given 0"):
        randomize(system, mass, lambda key, m: m, key, 0)
    with pytest.raises(InputError, match="key: wanted one random key"):
        randomize(system, mass, lambda key, m: m, 0, 3)
    twice = eqx.tree_at(mass, system, jnp.ones((3, 4, 2)))
    with pytest.raises(InputError, match=r"system\.model\.inertia\.mass: wanted rank 1, or one axis more"):
        environment_axes(twice)
