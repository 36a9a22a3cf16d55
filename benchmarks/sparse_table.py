"""Sparse against dense factor and solve of the mass matrix: `python -m benchmarks.sparse_table`.

Both as a user would write them, under `vmap` and for one state; on one core, processor time, the least of several
repeats; compile time from nothing. Prints a table in Markdown.
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import Topology, cholesky


def limb(parents: list[int], start: int, length: int) -> int:
    """Append a chain that hangs on `start`; gives its end."""
    for _ in range(length):
        parents.append(start)
        start = len(parents) - 1
    return start


def dexterous_humanoid() -> Topology:
    """61 degrees of freedom: base, waist, two legs, neck, two arms with five fingers of two joints."""
    parents: list[int] = []
    base = limb(parents, -1, 6)
    waist = limb(parents, base, 1)
    for _ in range(2):
        limb(parents, base, 6)
    limb(parents, waist, 4)
    for _ in range(2):
        wrist = limb(parents, waist, 6)
        for _ in range(5):
            limb(parents, wrist, 2)
    return Topology(tuple(parents + [base] * (61 - len(parents))))


def topologies() -> dict[str, Topology]:
    built_in = {name: jaxdyn.load(name, root=root).tree for name, root in ROOTS.items()}
    hand = Topology(tuple(j - 1 if j % 4 else -1 for j in range(16)))
    return {name: Topology.from_tree(tree) for name, tree in built_in.items()} | {
        "hand": hand,
        "humanoid with hands": dexterous_humanoid(),
    }


ROOTS = {"arm7": "fixed", "quadruped": "floating", "humanoid": "floating"}


def random_matrices(topology: Topology, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    nv = topology.nv
    U = np.where(topology.related, 0.3 * rng.normal(size=(count, nv, nv)), 0.0)
    U[:, range(nv), range(nv)] = 1.0
    return np.einsum("bij,bj,bkj->bik", U, rng.uniform(0.5, 2.0, (count, nv)), U)


def dense(M, y):
    factor = jnp.linalg.cholesky(M)
    half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return jax.scipy.linalg.solve_triangular(factor, half, lower=True, trans=1)


def compile_and_time(function, arguments, target: float) -> tuple[float, float, int]:
    """Seconds of compilation, of one call, and bytes of temporaries."""
    jax.clear_caches()
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    compiled = time.perf_counter() - start
    jax.block_until_ready(program(*arguments))
    loops, best = 1, np.inf
    for _ in range(7):
        start = time.process_time()
        for _ in range(loops):
            result = program(*arguments)
        jax.block_until_ready(result)
        spent = time.process_time() - start
        if spent < target:
            loops = max(2 * loops, int(loops * target / max(spent, 1e-6)))
        else:
            best = min(best, spent / loops)
    analysis = program.memory_analysis()
    return compiled, best if np.isfinite(best) else spent / loops, analysis.temp_size_in_bytes if analysis else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse_table", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of one repeat")
    parser.add_argument("--robots", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        "| robot | nv | products, of full | way | one state: µs | compile: s | batch: µs each | compile: s | temporaries: kB each |"
    )
    print("|---|--:|--:|---|--:|--:|--:|--:|--:|")
    for name, topology in topologies().items():
        if options.robots and name not in options.robots:
            continue
        M = jnp.asarray(random_matrices(topology, options.batch))
        y = jnp.asarray(np.random.default_rng(1).normal(size=(options.batch, topology.nv)))
        share = topology.factor_cost / Topology.full(topology.nv).factor_cost
        ways = {
            "decompose, solve": lambda M, y, t=topology: cholesky.solve(cholesky.decompose(t, M), y),
            "factor_solve": lambda M, y, t=topology: cholesky.factor_solve(t, M, y),
            "dense": dense,
        }
        for way, function in ways.items():
            alone = compile_and_time(function, (M[0], y[0]), options.seconds)
            batch = compile_and_time(jax.vmap(function), (M, y), options.seconds)
            print(
                f"| {name} | {topology.nv} | {topology.factor_cost}, {share:.0%} | {way} | {1e6 * alone[1]:.0f} | {alone[0]:.1f} "
                f"| {1e6 * batch[1] / options.batch:.2f} | {batch[0]:.1f} | {batch[2] / options.batch / 1e3:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
