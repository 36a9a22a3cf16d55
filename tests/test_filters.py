"""Butterworth filters against scipy and by their response; weights between named states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

from jaxdyn import ButterworthLowPassFilter, InputError, MultiStateWeightProvider, UnknownNameError


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
def test_coefficients_are_those_of_scipy(order):
    b, a = ButterworthLowPassFilter(order, 10.0, 0.01).coefficients
    expected_b, expected_a = scipy.signal.butter(order, 10.0, fs=100.0)
    np.testing.assert_allclose(b, expected_b, rtol=1e-12)
    np.testing.assert_allclose(a, expected_a, rtol=1e-12, atol=1e-14)


def test_coefficients_of_the_original():
    b, a = ButterworthLowPassFilter(2, 10.0, 0.01).coefficients
    np.testing.assert_allclose(b, (0.0674552738890719, 0.1349105477781438, 0.0674552738890719), rtol=1e-13)
    np.testing.assert_allclose(a, (1, -1.1429805025399011, 0.41280159809618877), rtol=1e-13)
    b, a = ButterworthLowPassFilter(2, 10.0, 0.01, prewarping=False).coefficients
    np.testing.assert_allclose(b[0], 0.063964384855588, rtol=1e-13)
    np.testing.assert_allclose(a, (1, -1.1682606671932643, 0.42411820661561617), rtol=1e-13)


def test_a_signal_is_filtered_as_by_scipy_from_rest_and_from_a_level():
    u = np.random.default_rng(0).normal(size=(200, 2))
    low_pass = ButterworthLowPassFilter(3, 4.0, 0.01)
    b, a = scipy.signal.butter(3, 4.0, fs=100.0)
    _, y = jax.jit(lambda u: low_pass.run(low_pass.reset(jnp.zeros(2)), u))(u)
    np.testing.assert_allclose(y, scipy.signal.lfilter(b, a, u, axis=0), atol=1e-12)
    level = jnp.array([2.0, -1.0])
    _, y = low_pass.run(low_pass.reset(level), jnp.broadcast_to(level, (50, 2)))
    np.testing.assert_allclose(y, np.broadcast_to(level, (50, 2)), atol=1e-12)


def test_the_cutoff_can_be_tuned_by_gradient():
    u = jnp.asarray(np.random.default_rng(1).normal(size=100))

    def energy(cutoff):
        low_pass = ButterworthLowPassFilter(2, cutoff, 0.01)
        return jnp.sum(low_pass.run(low_pass.reset(0.0), u)[1] ** 2)

    gradient, h = jax.jit(jax.grad(energy))(8.0), 1e-5
    np.testing.assert_allclose(gradient, (energy(8.0 + h) - energy(8.0 - h)) / (2 * h), rtol=1e-7)
    assert gradient > 0


def test_weights_move_from_state_to_state():
    provider = MultiStateWeightProvider({"stance": [10.0, 1.0], "swing": [0.0, 5.0]}, 0.1, 0.001)
    w = provider.start()
    np.testing.assert_allclose(w, (10.0, 1.0))
    for _ in range(100):
        w = provider.step(w, "swing")
    kept = (1 - 3 / 0.1 * 0.001) ** 100
    np.testing.assert_allclose(w, (10 * kept, 5 - 4 * kept), rtol=1e-12)
    np.testing.assert_allclose(provider.start("swing"), (0.0, 5.0))


def test_mistakes_are_named():
    with pytest.raises(InputError, match="order"):
        ButterworthLowPassFilter(0, 10.0, 0.01)
    with pytest.raises(InputError, match="50 Hz"):
        ButterworthLowPassFilter(2, 60.0, 0.01)
    with pytest.raises(InputError, match="u: wanted shape"):
        low_pass = ButterworthLowPassFilter(2, 10.0, 0.01)
        low_pass.step(low_pass.reset(jnp.zeros(2)), jnp.zeros(3))
    with pytest.raises(InputError, match="one length"):
        MultiStateWeightProvider({"a": [1.0], "b": [1.0, 2.0]}, 0.1, 0.001)
    provider = MultiStateWeightProvider({"stance": [10.0]}, 0.1, 0.001)
    with pytest.raises(UnknownNameError, match="stance"):
        provider.step(provider.start(), "stanse")
