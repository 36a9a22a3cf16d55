"""Batch-last kernels behave as plain JAX functions under every transformation, alone and nested.

The kernels below are compared with the same formulas on single arrays. `bare` is differentiated by JAX, `ruled` has a
derivative rule of its own that calls further kernels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.math import batching
from jaxdyn.math.batching import TILE, batch_last, materialize


def formula(static, p, q, sum_axis):
    y = static * jnp.sin(q) * p["m"] + q[::-1] * q**2
    return {"y": y, "z": (y * p["m"]).sum(sum_axis)}


def kernel(static, p, q):
    result = formula(static, p, q, 0)
    return {"y": materialize(result["y"]), "z": result["z"]}


def slopes(static, p, q):
    """dy_i/dq_i, dy_i/dq_{n-1-i} and dy_i/dm_i."""
    return static * jnp.cos(q) * p["m"] + 2 * q[::-1] * q, q**2, static * jnp.sin(q)


def rule(static, arguments, tangents, output):
    p, q = arguments
    dm, dq = tangents[0]["m"], tangents[1]
    own, other, by_m = batching.call(slopes, None, static, p, q)
    dy = jnp.zeros_like(output["y"])
    if dq is not None:
        dy = dy + own * dq + other * dq[::-1]
    if dm is not None:
        dy = dy + by_m * dm
    dz = (dy * p["m"]).sum(0)
    return {"y": dy, "z": dz if dm is None else dz + (output["y"] * dm).sum(0)}


def pushed(static, arguments, tangents, output):
    return batching.push_forward(kernel, static, arguments, tangents)


STATIC = 1.7
FUNCTIONS = {
    "bare": functools.partial(batch_last(kernel), STATIC),
    "ruled": functools.partial(batch_last(kernel, rule), STATIC),
    "pushed": functools.partial(batch_last(kernel, pushed), STATIC),
}


def plain(p, q):
    return formula(STATIC, p, q, None)


def random(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


p, q = {"m": random(0, 3)}, random(1, 3)
many_p, many_q, grid_q = {"m": random(2, 5, 3)}, random(3, 5, 3), random(4, 4, 5, 3)


def loss(f):
    return lambda p, q: (f(p, q)["y"] ** 2).sum() + jnp.sin(f(p, q)["z"])


def scanned(f):
    """Sum over a recursion."""
    return lambda p, q: jax.lax.scan(lambda c, _: (f(p, c)["y"] * 0.1, f(p, c)["z"]), q, None, length=4)[1].sum()


def batch_scanned(f):
    """A recursion of a whole batch, as a rollout is."""
    step = jax.vmap(f, (None, 0))
    return lambda p, q: jax.lax.scan(lambda c, _: (step(p, c)["y"] * 0.1, step(p, c)["z"]), q, None, length=4)[1].sum()


def looped(f):
    return lambda p, q: jax.lax.fori_loop(0, 4, lambda _, c: f(p, c)["y"] * 0.1, q)


def shared(f):
    """A batch with one parameter: the parameter's gradient is a sum over the batch."""
    return lambda p, q: jax.vmap(loss(f), (None, 0))(p, q).sum()


def twice(outer, inner):
    return lambda f: outer(inner(loss(f), (0, 1)), (0, 1))


CASES = {
    # name: (transformation, arguments)
    "single": (lambda f: f, (p, q)),
    "vmap q": (lambda f: jax.vmap(f, (None, 0)), (p, many_q)),
    "vmap p": (lambda f: jax.vmap(f, (0, None)), (many_p, q)),
    "vmap both": (jax.vmap, (many_p, many_q)),
    "vmap another axis": (lambda f: jax.vmap(f, (None, 1), {"y": 1, "z": 0}), (p, many_q.T)),
    "vmap last axis": (lambda f: jax.vmap(f, (None, -1)), (p, many_q.T)),
    "vmap one": (lambda f: jax.vmap(f, (None, 0)), (p, many_q[:1])),
    "vmap vmap": (lambda f: jax.vmap(jax.vmap(f, (0, 0)), (None, 0)), (many_p, grid_q)),
    "vmap vmap, p inside, q outside": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (many_p, many_q)),
    "vmap vmap, p outside, q inside": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (many_p, many_q)),
    "vmap vmap, axes swapped": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (None, 1)), (p, grid_q)),
    "grad": (lambda f: jax.grad(loss(f), (0, 1)), (p, q)),
    "grad of p": (lambda f: jax.grad(loss(f)), (p, q)),
    "vmap grad": (lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (None, 0)), (p, many_q)),
    "vmap vmap grad": (
        lambda f: jax.vmap(jax.vmap(jax.grad(loss(f), (0, 1)), (0, 0)), (None, 0)),
        (many_p, grid_q),
    ),
    "grad vmap": (lambda f: jax.grad(shared(f), (0, 1)), (p, many_q)),
    "grad vmap vmap": (
        lambda f: jax.grad(lambda p, q: jax.vmap(shared(f), (None, 0))(p, q).sum(), (0, 1)),
        (p, grid_q),
    ),
    "vmap grad vmap": (lambda f: jax.vmap(jax.grad(shared(f), (0, 1)), (None, 0)), (p, grid_q)),
    "grad vmap grad": (
        lambda f: jax.grad(lambda p, q: (jax.vmap(jax.grad(loss(f), 1), (None, 0))(p, q) ** 2).sum(), (0, 1)),
        (p, many_q),
    ),
    "jvp": (lambda f: lambda p, q: jax.jvp(f, (p, q), ({"m": 0.3 * q}, q[::-1])), (p, q)),
    "jvp vmap": (lambda f: lambda p, q: jax.jvp(jax.vmap(f, (None, 0)), (p, q), (p, q[::-1])), (p, many_q)),
    "jvp vmap, p shared and alone": (
        lambda f: lambda p, q: jax.jvp(lambda p: jax.vmap(f, (None, 0))(p, q), (p,), ({"m": 0.3 * p["m"]},)),
        (p, many_q),
    ),
    "vjp vmap": (
        lambda f: lambda p, q: jax.vjp(jax.vmap(f, (None, 0)), p, q)[1]({"y": q**2, "z": q[:, 0]}),
        (p, many_q),
    ),
    "linearize": (lambda f: lambda p, q: jax.linearize(f, p, q)[1](p, q), (p, q)),
    "jacfwd": (lambda f: jax.jacfwd(f, (0, 1)), (p, q)),
    "jacrev": (lambda f: jax.jacrev(f, (0, 1)), (p, q)),
    "vmap jacfwd": (lambda f: jax.vmap(jax.jacfwd(f, (0, 1)), (None, 0)), (p, many_q)),
    "vmap jacrev": (lambda f: jax.vmap(jax.jacrev(f, (0, 1)), (None, 0)), (p, many_q)),
    "jacrev vmap": (lambda f: jax.jacrev(jax.vmap(f, (None, 0)), (0, 1)), (p, many_q)),
    "jacfwd vmap": (lambda f: jax.jacfwd(jax.vmap(f, (None, 0)), (0, 1)), (p, many_q)),
    "hessian": (lambda f: jax.hessian(loss(f), (0, 1)), (p, q)),
    "vmap hessian": (lambda f: jax.vmap(jax.hessian(loss(f), (0, 1)), (None, 0)), (p, many_q)),
    "hessian vmap": (lambda f: jax.hessian(shared(f)), (p, many_q)),
    "reverse over reverse": (twice(jax.jacrev, jax.jacrev), (p, q)),
    "forward over forward": (twice(jax.jacfwd, jax.jacfwd), (p, q)),
    "reverse over forward": (twice(jax.jacrev, jax.jacfwd), (p, q)),
    "third derivative": (lambda f: jax.jacfwd(jax.jacrev(jax.grad(loss(f), 1), 1), 1), (p, q)),
    "scan": (scanned, (p, q)),
    "grad scan": (lambda f: jax.grad(scanned(f), (0, 1)), (p, q)),
    "vmap grad scan": (lambda f: jax.vmap(jax.grad(scanned(f), (0, 1)), (None, 0)), (p, many_q)),
    "grad scan vmap": (lambda f: jax.grad(batch_scanned(f), (0, 1)), (p, many_q)),
    "hessian scan": (lambda f: jax.hessian(scanned(f)), (p, q)),
    "fori_loop": (lambda f: jax.vmap(looped(f), (None, 0)), (p, many_q)),
    "jacfwd fori_loop": (lambda f: jax.jacfwd(looped(f), (0, 1)), (p, q)),
    "grad checkpoint": (lambda f: jax.grad(jax.checkpoint(loss(f)), (0, 1)), (p, q)),
    "grad checkpoint vmap": (lambda f: jax.grad(jax.checkpoint(shared(f)), (0, 1)), (p, many_q)),
    "vmap grad scan checkpoint": (
        lambda f: jax.vmap(jax.grad(scanned(lambda p, q: jax.checkpoint(f)(p, q)), (0, 1)), (None, 0)),
        (p, many_q),
    ),
    "cond": (lambda f: lambda p, q: jax.lax.cond(q[0] > 0, f, lambda p, q: f(p, -q), p, q), (p, q)),
    "vmap cond": (
        lambda f: jax.vmap(lambda p, q: jax.lax.cond(q[0] > 0, f, lambda p, q: f(p, -q), p, q), (None, 0)),
        (p, many_q),
    ),
}


def assert_equal(value, reference, name=""):
    assert jax.tree.structure(value) == jax.tree.structure(reference)
    for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(reference), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_transforms_like_a_plain_function(case):
    transformation, arguments = CASES[case]
    everything = jax.jit(lambda *x: {name: transformation(f)(*x) for name, f in {"plain": plain, **FUNCTIONS}.items()})
    results = everything(*arguments)
    for name in FUNCTIONS:
        assert_equal(results[name], results["plain"], name)


@pytest.mark.parametrize("case", ["single", "vmap vmap", "grad vmap grad"])
def test_a_kernel_transforms_like_a_plain_function_outside_of_jit(case):
    transformation, arguments = CASES[case]
    assert_equal(transformation(FUNCTIONS["ruled"])(*arguments), jax.jit(transformation(plain))(*arguments))


# Tiles of a large batch on a CPU


@pytest.mark.parametrize(
    "size", [1, TILE - 1, TILE, TILE + 1, TILE + TILE // 2, TILE + TILE // 2 + 1, 2 * TILE, 2 * TILE + 1, 1000]
)
def test_a_large_batch_is_cut_into_tiles_without_a_seam(size):
    q = random(size, size, 3)
    f = FUNCTIONS["bare"]

    def both(f):
        return lambda p, q: (
            jax.vmap(f, (None, 0))(p, q),
            jax.grad(lambda p, q: (jax.vmap(f, (None, 0))(p, q)["z"] ** 2).sum(), (0, 1))(p, q),
        )

    (value, slope), (expected_value, expected_slope) = jax.jit(lambda p, q: (both(f)(p, q), both(plain)(p, q)))(p, q)
    assert_equal(value, expected_value)
    scale = np.abs(expected_slope[0]["m"]).max()  # a sum over the batch, in another order
    np.testing.assert_allclose(slope[0]["m"], expected_slope[0]["m"], atol=1e-13 * size * scale)
    assert_equal(slope[1], expected_slope[1])


def test_tiles_meet_nested_maps():
    p, q = {"m": random(0, 13, 3)}, random(1, 31, 3)
    both = lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(p, q)  # noqa: E731
    assert_equal(jax.jit(lambda: both(FUNCTIONS["bare"]))(), both(plain))


def test_each_robot_of_a_batch_gets_its_own_result_only():
    """A NaN in one state stays there."""
    q = random(0, 250, 3).at[77].set(jnp.nan)
    result = jax.jit(jax.vmap(FUNCTIONS["bare"], (None, 0)))(p, q)
    bad = np.flatnonzero(np.isnan(result["z"]))
    np.testing.assert_array_equal(bad, [77])


def test_a_batch_may_be_spread_over_devices():
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    q = random(0, 500, 3)
    split = jax.device_put(q, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch")))
    f = jax.jit(jax.vmap(FUNCTIONS["bare"], (None, 0)))
    assert_equal(f(p, split), f(p, q))


# What is shared, cached and refused


def test_what_is_not_mapped_is_not_widened():
    """The parameter of a batch enters the kernel once."""
    widths = []

    def spy(_, m, q):
        widths.append((m.shape[-1], q.shape[-1]))
        return m * q

    jax.vmap(batch_last(spy), (None, None, 0))(None, p["m"], many_q)
    assert widths[-1] == (1, 5)


def test_a_result_that_does_not_depend_on_the_batch_is_repeated():
    f = batch_last(lambda _, m, q: (m, q))
    m, same_q = jax.vmap(f, (None, None, 0))(None, p["m"], many_q)
    np.testing.assert_array_equal(m, np.broadcast_to(p["m"], (5, 3)))
    np.testing.assert_array_equal(same_q, many_q)


def test_float32_stays_float32():
    narrow = jax.tree.map(lambda x: x.astype(jnp.float32), (p, many_q))
    value = jax.vmap(FUNCTIONS["ruled"], (None, 0))(*narrow)
    slope = jax.grad(shared(FUNCTIONS["ruled"]), (0, 1))(*narrow)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((value, slope)))


def test_equal_kernels_are_traced_once():
    count = 0

    def counting(_, q):
        nonlocal count
        count += 1
        return q * 2

    f = batch_last(counting)
    f("a", q)
    traced = count
    f("a", q + 1)
    jax.jit(functools.partial(f, "a"))(q)
    assert traced < 5
    f("a", q - 1)
    before = count
    f("a", q - 2)
    assert count == before


def test_arguments_without_leaves_and_empty_arrays_pass():
    f = batch_last(lambda _, p, q: (q, None if p is None else p))
    value, nothing = f("s", None, q)
    np.testing.assert_array_equal(value, q)
    assert nothing is None
    empty = jax.vmap(lambda x: f("s", None, x)[0])(jnp.zeros((4, 0)))
    assert empty.shape == (4, 0)


def test_materialize_is_the_identity_with_derivatives():
    x = random(0, 4, 3)
    assert_equal(jax.jit(materialize)(x), x)
    assert_equal(jax.jit(jax.hessian(lambda x: (materialize(x) ** 3).sum()))(x), jax.hessian(lambda x: (x**3).sum())(x))
    assert_equal(jax.vmap(materialize, 1, 1)(x), x)
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(materialize(special), special)


def test_a_batch_may_be_empty():
    none = jnp.zeros((0, 3))
    for f in FUNCTIONS.values():
        value = jax.jit(jax.vmap(f, (None, 0)))(p, none)
        assert value["y"].shape == (0, 3) and value["z"].shape == (0,)
        slope = jax.grad(lambda p, q, f=f: jax.vmap(f, (None, 0))(p, q)["z"].sum(), (0, 1))(p, none)
        np.testing.assert_array_equal(slope[0]["m"], 0.0)
        assert slope[1].shape == (0, 3)
        assert jax.vmap(jax.vmap(f, (None, 0)), (None, 0))(p, jnp.zeros((4, 0, 3)))["y"].shape == (4, 0, 3)


def test_kernels_run_step_by_step_where_jit_is_switched_off():
    """As in a debugger."""
    with jax.disable_jit():
        value = FUNCTIONS["ruled"](p, q)
        slope = jax.grad(loss(FUNCTIONS["ruled"]), (0, 1))(p, q)
    assert_equal(value, plain(p, q))
    assert_equal(slope, jax.grad(loss(plain), (0, 1))(p, q))
