"""Filters in discrete time: a Butterworth low-pass filter, and weights that move smoothly between named sets.

A filter is a pure function of its memory: `memory, y = filter.step(memory, u)`; `run` does that over a signal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdyn.errors import FloatLike, InputError, as_float_array, check_shape, is_concrete, unknown_name
from jaxdyn.systems.linear import FirstOrderSmoother


class ButterworthLowPassFilter(eqx.Module):
    """Digital Butterworth filter by the bilinear transform: no ripple, -3 dB at the cutoff frequency.

    **Arguments:** `order` >= 1; `cutoff` frequency, Hz; `sampling_time`, s; `prewarping`: the cutoff is exact (default),
    not that of the analogue filter. Cutoff and sampling time are leaves: a filter can be tuned by gradient.

    **Raises:** `InputError` for an order below 1, or a cutoff not between 0 and half the sampling rate.

    Source: Oppenheim and Schafer, Discrete-Time Signal Processing, 7.2.
    """

    order: int = eqx.field(static=True)
    prewarping: bool = eqx.field(static=True)
    cutoff: Float[Array, ""]
    sampling_time: Float[Array, ""]

    def __init__(self, order: int, cutoff: FloatLike, sampling_time: FloatLike, prewarping: bool = True) -> None:
        if not isinstance(order, int) or isinstance(order, bool) or order < 1:
            raise InputError(f"order: wanted a whole number from 1 on, given {order!r}.")
        self.order, self.prewarping = order, prewarping
        self.cutoff = check_shape("cutoff", cutoff, ())
        self.sampling_time = check_shape("sampling_time", sampling_time, (), dtype=self.cutoff.dtype)
        if is_concrete(self.cutoff) and is_concrete(self.sampling_time):
            if not float(self.sampling_time) > 0:
                raise InputError(f"sampling_time: wanted a positive time, given {self.sampling_time}.")
            nyquist = 0.5 / float(self.sampling_time)
            if not 0 < float(self.cutoff) < nyquist:
                raise InputError(
                    f"cutoff: wanted a frequency between 0 and half the sampling rate, {nyquist:g} Hz, given {self.cutoff}."
                )

    @property
    def coefficients(self) -> tuple[Float[Array, " taps"], Float[Array, " taps"]]:
        """Numerator b and denominator a, a[0] = 1, in powers of z^-1. (order + 1,) each."""
        angle = math.pi * self.cutoff * self.sampling_time
        # analogue poles w e^{i theta} in the left half-plane; s = K (1 - 1/z) / (1 + 1/z)
        ratio = jnp.tan(angle) if self.prewarping else angle
        denominator = jnp.ones(1, ratio.dtype)
        numerator = np.ones(1)
        for k in range(self.order // 2):
            damping = math.sin(math.pi * (2 * k + 1) / (2 * self.order))
            # 1 / (s^2 + 2 damping s + 1) with s in units of the cutoff
            c = 1 / (1 + 2 * damping * ratio + ratio**2)
            second = jnp.stack([jnp.ones_like(c), 2 * (ratio**2 - 1) * c, (1 - 2 * damping * ratio + ratio**2) * c])
            denominator = jnp.convolve(denominator, second, precision="highest")
            numerator = np.convolve(numerator, [1.0, 2.0, 1.0])
        if self.order % 2:
            first = jnp.stack([jnp.ones_like(ratio), (ratio - 1) / (ratio + 1)])
            denominator = jnp.convolve(denominator, first, precision="highest")
            numerator = np.convolve(numerator, [1.0, 1.0])
        # the gain at frequency zero is 1
        gain = jnp.sum(denominator) / numerator.sum()
        return gain * jnp.asarray(numerator, gain.dtype), denominator

    def reset(self, value: FloatLike) -> Float[Array, "taps 2 *shape"]:
        """The memory of a filter that has seen `value`, of any shape, for ever: (order, 2, ...), past inputs and outputs,
        the latest first."""
        value = as_float_array("value", value, self.cutoff.dtype)
        return jnp.broadcast_to(value, (self.order, 2, *value.shape))

    def _check(self, memory: Array) -> None:
        if jnp.shape(memory)[:2] != (self.order, 2):
            raise InputError(
                f"memory: wanted shape ({self.order}, 2, ...), as reset makes it, given {jnp.shape(memory)}."
            )

    def step(
        self, memory: Float[Array, "taps 2 *shape"], u: FloatLike
    ) -> tuple[Float[Array, "taps 2 *shape"], Float[Array, "*shape"]]:
        """The new memory and the output, of the memory and the input at this sample.

        **Raises:** `InputError` if `u` has another shape than what the memory was made for.
        """
        self._check(memory)
        u = as_float_array("u", u, memory.dtype)
        if u.shape != memory.shape[2:]:
            raise InputError(f"u: wanted shape {memory.shape[2:]}, as the filter was reset with, given {u.shape}.")
        b, a = self.coefficients
        past = jnp.tensordot(b[1:], memory[:, 0], 1, precision="highest")
        y = b[0] * u + past - jnp.tensordot(a[1:], memory[:, 1], 1, precision="highest")
        return jnp.concatenate([jnp.stack([u, y])[None], memory[:-1]]), y

    def run(
        self, memory: Float[Array, "taps 2 *shape"], signal: FloatLike
    ) -> tuple[Float[Array, "taps 2 *shape"], Float[Array, "time *shape"]]:
        """The memory at the end and the outputs, of a signal (time, ...)."""
        self._check(memory)
        signal = as_float_array("signal", signal, memory.dtype)
        if signal.shape[1:] != memory.shape[2:] or not signal.ndim:
            raise InputError(f"signal: wanted shape (time, *{memory.shape[2:]}), given shape {signal.shape}.")
        return jax.lax.scan(lambda memory, u: self.step(memory, u), memory, signal)


class MultiStateWeightProvider(eqx.Module):
    """Weights that go smoothly from one named set to another, as a `FirstOrderSmoother` goes.

    **Arguments:** `states`: named vectors of one length; the first is where `start` begins; `settling_time`, s;
    `sampling_time`, s.

    **Raises:** `InputError` for vectors of different lengths or no states at all.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    weights: Float[Array, "states n"]
    smoother: FirstOrderSmoother
    sampling_time: Float[Array, ""]

    def __init__(self, states: Mapping[str, FloatLike], settling_time: FloatLike, sampling_time: FloatLike) -> None:
        if not isinstance(states, Mapping):
            raise InputError(f"states: wanted a mapping from names to weights, given a {type(states).__name__}.")
        if not states:
            raise InputError("states: wanted at least one named vector of weights, given none.")
        vectors = {name: as_float_array(f"states[{name!r}]", value) for name, value in states.items()}
        shapes = {name: vector.shape for name, vector in vectors.items()}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise InputError(f"states: wanted vectors of one length, given shapes {shapes}.")
        self.names = tuple(vectors)
        self.weights = jnp.stack(list(vectors.values()))
        self.smoother = FirstOrderSmoother(settling_time)
        self.sampling_time = check_shape("sampling_time", sampling_time, (), dtype=self.weights.dtype)
        if is_concrete(self.sampling_time) and not float(self.sampling_time) > 0:
            raise InputError(f"sampling_time: wanted a positive time, given {self.sampling_time}.")

    def start(self, name: str | None = None) -> Float[Array, " n"]:
        """The weights of a state, reached at once; of the first one without a name.

        **Raises:** `UnknownNameError`.
        """
        return self.weights[0] if name is None else self.weights[self._index(name)]

    def step(self, weights: Float[Array, " n"], name: str) -> Float[Array, " n"]:
        """The weights one sampling time later, on the way to state `name`: explicit Euler, as in
        bipedal-locomotion-framework.

        **Raises:** `UnknownNameError`.
        """
        weights = check_shape("weights", weights, self.weights.shape[1:], dtype=self.weights.dtype)
        return weights + self.sampling_time * self.smoother(weights, self.weights[self._index(name)])

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise unknown_name("state", name, self.names)
        return self.names.index(name)
