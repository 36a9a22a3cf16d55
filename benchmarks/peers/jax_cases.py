"""Cases for libraries on JAX: the same function over a batch of states, and as single calls."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.cases import timed


@dataclasses.dataclass(frozen=True)
class Function:
    """`call` takes `shared`, then one state; `arguments` have a leading axis over states.

    `convert` takes the outputs at the first states (NumPy arrays, stacked) to Pinocchio's convention.
    """

    call: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    convert: Callable[[Any], np.ndarray] | None = None
    shared: tuple[Any, ...] = ()


class JaxCase:
    """A compiled function with its arguments on the device."""

    def __init__(self, call: Callable[..., Any], arguments: tuple[Any, ...], evaluations: int, convert=None):
        self._call = call
        self._arguments = jax.tree.map(jnp.asarray, arguments)
        self._convert = convert
        self._jitted = jax.jit(call)
        self._last: Any = None
        self.evaluations = evaluations

    def run(self) -> None:
        self._last = jax.block_until_ready(self._jitted(*self._arguments))

    def result(self) -> np.ndarray:
        if self._convert is None:
            raise NotImplementedError("there is nothing to compare for this case")
        if self._last is None:  # asked for before it was timed
            self.run()
        return self._convert(jax.tree.map(np.asarray, self._last))

    def _lower(self):
        # A new function object and empty caches: nothing that was traced or compiled before is found again.
        jax.clear_caches()
        call = self._call

        def fresh(*arguments):
            return call(*arguments)

        return jax.jit(fresh).lower(*self._arguments)

    def compile(self) -> dict[str, float]:
        """Tracing, lowering and compilation, from nothing; `trace` is the part before XLA."""
        lowered: list[Any] = []
        trace = timed(lambda: lowered.append(self._lower()))
        build = timed(lambda: lowered[0].compile())
        return {
            "wall": trace["wall"] + build["wall"],
            "cpu": trace["cpu"] + build["cpu"],
            "trace": trace["wall"],
        }

    def memory(self) -> dict[str, int]:
        """Bytes that the compiled function needs beside its arguments and results."""
        analysis = self._lower().compile().memory_analysis()
        if analysis is None:
            raise NotImplementedError("this backend reports no memory analysis")
        return {"temporary": int(analysis.temp_size_in_bytes), "output": int(analysis.output_size_in_bytes)}


def batch_case(function: Function, checked: int) -> JaxCase:
    convert = function.convert
    first = None
    if convert is not None:

        def first(outputs):
            return convert(jax.tree.map(lambda x: x[:checked], outputs))

    count = len(function.arguments[0])
    axes = (*[None] * len(function.shared), *[0] * len(function.arguments))
    return JaxCase(jax.vmap(function.call, axes), (*function.shared, *function.arguments), count, first)


def single_case(function: Function) -> JaxCase:
    convert = function.convert
    one = None
    if convert is not None:

        def one(outputs):
            return convert(jax.tree.map(lambda x: x[None], outputs))

    return JaxCase(function.call, (*function.shared, *(x[0] for x in function.arguments)), 1, one)


def case_maker(functions: dict[str, Function], checked: int) -> Callable[[str], JaxCase]:
    """Makes `batch:NAME` and `single:NAME` on demand."""

    def make(name: str) -> JaxCase:
        kind, _, algorithm = name.partition(":")
        if algorithm not in functions:
            raise NotImplementedError("not offered")
        function = functions[algorithm]
        return batch_case(function, checked) if kind == "batch" else single_case(function)

    return make
