"""Products on stacks equal their definitions in NumPy, for shared (length 1) and full batches, and for stacks without
items."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.math import so3, spatial, stacked

BATCH = 4


def stack(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def batch_first(x):
    return np.moveaxis(np.asarray(x), -1, 0)


PRODUCTS = {
    # name: (function, shapes of the operands, the same on arrays without batch)
    "matmul": (stacked.matmul, [(5, 3, 2), (5, 2, 4)], lambda a, b: np.einsum("nik,nkj->nij", a, b)),
    "matmul_transposed": (
        stacked.matmul_transposed,
        [(5, 3, 2), (5, 4, 2)],
        lambda a, b: np.einsum("nik,njk->nij", a, b),
    ),
    "matvec": (stacked.matvec, [(5, 3, 2), (5, 2)], lambda a, b: np.einsum("nik,nk->ni", a, b)),
    "transposed_matvec": (
        stacked.transposed_matvec,
        [(5, 2, 3), (5, 2)],
        lambda a, b: np.einsum("nki,nk->ni", a, b),
    ),
    "dot": (stacked.dot, [(5, 6), (5, 6)], lambda a, b: np.einsum("nk,nk->n", a, b)),
    "cross": (stacked.cross, [(5, 3), (5, 3)], np.cross),
    "hat": (stacked.hat, [(5, 3)], so3.hat),
    "motion_cross": (stacked.motion_cross, [(5, 6), (5, 6)], spatial.motion_cross),
    "force_cross": (stacked.force_cross, [(5, 6), (5, 6)], spatial.force_cross),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("widths", [(BATCH, BATCH), (1, BATCH), (BATCH, 1), (1, 1)])
def test_products_equal_their_definitions(name, widths):
    function, shapes, definition = PRODUCTS[name]
    operands = [stack(i, *shape, width) for i, (shape, width) in enumerate(zip(shapes, widths, strict=False))]
    result = batch_first(jax.jit(function)(*operands))
    width = max(x.shape[-1] for x in operands)
    single = [np.broadcast_to(batch_first(x), (width, *x.shape[:-1])) for x in operands]
    expected = np.stack([definition(*(jnp.asarray(x[b]) for x in single)) for b in range(width)])
    np.testing.assert_allclose(result, expected, atol=1e-14)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_no_items_are_empty(name):
    function, shapes, _ = PRODUCTS[name]
    result = function(*(jnp.zeros((0, *shape[1:], BATCH)) for shape in shapes))
    assert result.shape[0] == 0 and result.shape[-1] == BATCH


@pytest.mark.parametrize(
    "index",
    [[0, 1, 2, 3, 4], [], [3], [1, 2, 3], [2, 2, 2], [4, 0, 3], [0, 0, 1], [4, 3, 2, 1, 0]],
    ids=str,
)
def test_take_equals_indexing(index):
    x = stack(0, 5, 2, BATCH)
    np.testing.assert_array_equal(stacked.take(x, index), np.asarray(x)[np.asarray(index, int)])
    slope = jax.grad(lambda x: (stacked.take(x, index) ** 2).sum())(x)
    np.testing.assert_array_equal(slope, jax.grad(lambda x: (x[np.asarray(index, int)] ** 2).sum())(x))


def test_join_and_pile_widen_what_is_shared():
    full, shared, empty = stack(0, 2, 3, BATCH), stack(1, 2, 3, 1), jnp.zeros((0, 3, 1))
    for axis in (0, 1):
        result = stacked.join([full, shared], axis)
        np.testing.assert_array_equal(result, np.concatenate([full, np.broadcast_to(shared, full.shape)], axis))
    np.testing.assert_array_equal(
        stacked.pile([full, shared], 1), np.stack([full, np.broadcast_to(shared, full.shape)], 1)
    )
    assert stacked.join([shared, shared]).shape == (4, 3, 1)
    np.testing.assert_array_equal(stacked.join([empty, full]), full)
    assert stacked.join([empty, empty]).shape == (0, 3, 1)


def test_constants_take_the_dtype_of_their_neighbours():
    for dtype in (jnp.float32, jnp.float64):
        made = stacked.constant(np.eye(3), jnp.zeros(1, dtype))
        assert made.dtype == dtype and made.shape == (3, 3, 1)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-12), (jnp.float32, 1e-4)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_inverses_of_positive_definite_matrices(size, dtype, tolerance):
    rng = np.random.default_rng(size)
    a = rng.normal(size=(5, BATCH, size, size))
    a = a @ np.swapaxes(a, 2, 3) + 0.1 * np.eye(size)
    result = stacked.spd_inverse(jnp.asarray(np.moveaxis(a, 1, -1), dtype))
    assert result.dtype == dtype
    expected = np.moveaxis(np.linalg.inv(a), 1, -1)
    np.testing.assert_allclose(result, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(result, np.swapaxes(result, 1, 2), atol=tolerance * np.abs(expected).max())


def test_inverses_of_badly_scaled_matrices_keep_their_digits_in_float32():
    """Mass 50 kg beside inertia 1e-4 kg m^2: a cofactor formula would lose all digits of the small entries."""
    matrix = np.diag([50.0, 50, 50, 1e-4, 2e-4, 1e-4]).astype(np.float32)
    result = stacked.spd_inverse(jnp.asarray(matrix)[None, :, :, None])[0, :, :, 0]
    np.testing.assert_allclose(np.diag(result), 1 / np.diag(matrix), rtol=1e-6)


def test_no_matrices_have_no_inverses():
    assert stacked.spd_inverse(jnp.zeros((0, 3, 3, BATCH))).shape == (0, 3, 3, BATCH)


def test_a_singular_matrix_gives_no_finite_inverse():
    assert not np.isfinite(stacked.spd_inverse(jnp.zeros((1, 2, 2, 1)))).all()


def test_pairs_are_all_products_between_two_stacks():
    a, b = stack(0, 5, 6, BATCH), stack(1, 3, 6, 1)
    expected = np.einsum("nkb,mkb->nmb", a, np.broadcast_to(b, (3, 6, BATCH)))
    result = np.asarray(stacked.pairs(a, b))
    result = result if result.shape == expected.shape else np.moveaxis(result, 0, -1)  # batch first or last
    np.testing.assert_allclose(result, expected, atol=1e-14)
