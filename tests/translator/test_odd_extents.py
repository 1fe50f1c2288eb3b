"""Extents and dtypes that used to fail only when a port was lowered: they work, or are refused in words."""

import numpy as np
import pytest

pytest.importorskip("jax")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from .evidence import codes, computes, lowers  # noqa: E402

HEAD = """
import functools
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

PARAMS = plgpu.CompilerParams(num_warps=4, num_stages=2)
"""
MATMUL = HEAD + """
def kernel(a_ref, b_ref, o_ref, *, bk):
    def step(t, acc):
        ks = pl.ds(t * bk, bk)
        return acc + jnp.dot(a_ref[:, ks], b_ref[ks, :], preferred_element_type=jnp.float32)

    acc = lax.fori_loop(0, UPPER, step, jnp.zeros((a_ref.shape[0], b_ref.shape[1]), jnp.float32))
    o_ref[...] = acc.astype(o_ref.dtype)


def run(a, b, bk=64):
    (m, k), n = a.shape, b.shape[1]
    return pl.pallas_call(
        functools.partial(kernel, bk=bk),
        grid=(m // 64, n // 64),
        in_specs=[pl.BlockSpec((64, k), lambda i, j: (i, 0)), pl.BlockSpec((k, 64), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((64, 64), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=PARAMS,
    )(a, b)
"""


def operands(k: int):
    a, b = np.random.default_rng(k).standard_normal((2, 64 * k))
    return a.reshape(64, k).astype(jnp.bfloat16), b.reshape(k, 64).astype(jnp.bfloat16)


@pytest.mark.parametrize("k, upper, used", [
    pytest.param(96, "a_ref.shape[1] // bk", 64, id="a-rest-that-no-step-takes"),
    pytest.param(32, "a_ref.shape[1] // bk", 0, id="no-step-as-the-block-is-longer"),
    pytest.param(128, "0", 0, id="no-step"),
])
def test_loops_of_products_over_part_of_the_contraction(k, upper, used):
    a, b = operands(k)
    result = computes(MATMUL.replace("UPPER", upper), a, b)
    np.testing.assert_allclose(result, a[:, :used].astype(np.float32) @ b[:used].astype(np.float32), rtol=1e-5, atol=1e-5)


def test_rows_that_tma_cannot_cut_are_refused_in_words():
    shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands(136))
    with pytest.raises(ValueError, match="not multiples of 16: pad the arrays"):
        lowers(MATMUL.replace("UPPER", "a_ref.shape[1] // bk"), *shapes)


ROWS = HEAD + """
def kernel(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = VALUE


def run(x):
    return pl.pallas_call(
        kernel, grid=(x.shape[0] // 8,), in_specs=[pl.BlockSpec((8, 1), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 1), lambda i: (i, 0)), out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        compiler_params=PARAMS,
    )(x)
"""


@pytest.mark.parametrize("value, code", [
    ("x - jnp.max(x, axis=1)[:, None]", "B112"), ("x - x.sum(axis=-1, keepdims=True)", "B112"),
    ("x - jnp.max(x, axis=0)[None, :]", "B105"),
])
def test_reduction_along_one_element_stays_on_triton(value, code):
    assert code in codes(ROWS.replace("VALUE", value))


@pytest.mark.parametrize("axis, code", [(0, "B112"), (None, "B108")])
def test_reduction_of_one_row_stays_on_triton(axis, code):
    source = ROWS.replace("VALUE", f"x.sum(axis={axis})").replace("(8, 1), lambda i: (i, 0)", "(1, 128), lambda i: (i, 0)", 1)
    assert code in codes(source)


def test_columns_of_one_element_port_otherwise():
    lowers(ROWS.replace("VALUE", "jnp.exp(x)"), jax.ShapeDtypeStruct((32, 1), jnp.float32))


ROOT = HEAD + """
def kernel(x_ref, o_ref):
    o_ref[...] = VALUE


def run(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32), compiler_params=PARAMS)(x)
"""


@pytest.mark.parametrize("value, expected", [
    ("jnp.sqrt(x_ref[...])", lambda x: np.sqrt(x)),
    ("1 / jnp.sqrt(jnp.arange(256) + 1)", lambda x: 1 / np.sqrt(np.arange(256) + 1)),
    ("x_ref[...] / jnp.sqrt(jnp.arange(256) + 1)", lambda x: x / np.sqrt(np.arange(256) + 1)),
])
def test_roots_of_integers(value, expected):
    x = np.arange(256, dtype=np.int32)
    np.testing.assert_allclose(computes(ROOT.replace("VALUE", value), x), expected(x), rtol=1e-6)


CHUNKED_SUMS = HEAD + """
def kernel(x_ref, w_ref, o_ref, ends_ref):
    n = x_ref.shape[1]
    w = w_ref[...][None, :]

    def chunk(c, carry):
        sums, total = carry
        rows = pl.ds(c * 16, 16)
        x = x_ref[rows, :] * w
        ends_ref[pl.ds(c, 1), :] = sums
        again = ends_ref[pl.ds(c, 1), :]
        o_ref[rows, :] = jnp.cumsum(x, axis=0) + again + total + jnp.max(w, axis=-1, keepdims=True)
        of_rows = jnp.sum(x, axis=1, keepdims=True)
        return sums + jnp.sum(x, axis=0, keepdims=True), total + jnp.sum(of_rows, axis=0, keepdims=True)

    last, _ = lax.fori_loop(0, x_ref.shape[0] // 16, chunk, (START, jnp.zeros((1, 1), jnp.float32)))
    o_ref[pl.ds(0, 16), :] = o_ref[pl.ds(0, 16), :] + jnp.cumsum(last, axis=1) + jnp.cumsum(w, axis=1)


def run(x, w):
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((x.shape[0] // 16, x.shape[1]), x.dtype)]
    return pl.pallas_call(kernel, out_shape=shapes, compiler_params=PARAMS)(x, w)
"""


@pytest.mark.parametrize("start", ["jnp.zeros((1, n), jnp.float32)", "jnp.full((1, n), 0.0)", "jnp.zeros_like(w)"])
def test_rows_that_meet_tiles(start):
    """Arrays of one row are kept at rank 1: made, loaded, stored, carried, summed along either dimension."""
    x = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float32)
    w = np.linspace(0.5, 2, 32, dtype=np.float32)
    got, ends = computes(CHUNKED_SUMS.replace("START", start), x, w)
    parts = (x * w).reshape(3, 16, 32)
    before = np.cumsum(parts.sum(1), 0) - parts.sum(1)
    want = np.cumsum(parts, 1) + before[:, None] + before.sum(-1)[:, None, None] + w.max()
    want[0] += np.cumsum(parts.sum((0, 1))) + np.cumsum(w)
    np.testing.assert_allclose(ends, before, atol=1e-4)
    np.testing.assert_allclose(got, want.reshape(x.shape), atol=1e-4)


@pytest.mark.parametrize("statement", [
    "y = x_ref[0, :] + jnp.sum(x, axis=1, keepdims=True).sum(axis=0, keepdims=True)", "y = jnp.cumsum(x.sum(axis=1, keepdims=True), axis=1)[:, 0]", "o_ref[0, pl.ds(0, 1)] = jnp.sum(x_ref[0, :], keepdims=True)",
])
def test_arrays_of_one_element_that_the_port_would_give_another_rank_stay(statement):
    source = HEAD + f"""
def kernel(x_ref, o_ref):
    x = x_ref[pl.ds(0, 8), :]
    y = x_ref[0, :]
    {statement}
    o_ref[0, :] = y


def run(x):
    return pl.pallas_call(kernel, out_shape=x, compiler_params=PARAMS)(x)
"""
    assert codes(source) & {"B105", "B107"}


LEGACY_MATMUL = HEAD + """
def kernel(a_ref, b_ref, o_ref, *, bm, bn, bk, dtype):
    i, j = pl.program_id(0), pl.program_id(1)
    m, n = a_ref.shape[0], b_ref.shape[1]
    rows, columns = pl.ds(i * bm, bm), pl.ds(j * bn, bn)
    row_mask = (i * bm + jnp.arange(bm) < m)[:, None]
    column_mask = (j * bn + jnp.arange(bn) < n)[None, :]
    places = jnp.arange(bk)

    def body(t, carry):
        total = carry
        ks = pl.ds(t * bk, bk)
        flags = FLAGS
        a = plgpu.load(a_ref.at[rows, ks], mask=row_mask & (flags[None, :] < m), other=0.0)
        b = plgpu.load(b_ref.at[ks, columns], mask=(flags[:, None] < n) & column_mask, other=0.0)
        return jnp.dot(a, b) + total

    o = lax.fori_loop(0, pl.cdiv(b_ref.shape[0], bk), body, jnp.zeros((bm, bn), dtype=DTYPE))
    over = (i * bm + jnp.arange(bm) < o_ref.shape[0])[:, None]
    inside = over & (j * bn + jnp.arange(bn) < o_ref.shape[1])[None, :]
    plgpu.store(o_ref.at[rows, columns], o.astype(o_ref.dtype), mask=inside)


def run(a, b):
    m, n = a.shape[0], b.shape[1]
    return pl.pallas_call(
        functools.partial(kernel, bm=64, bn=64, bk=64, dtype=jnp.float32), grid=(pl.cdiv(m, 64), pl.cdiv(n, 64)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32), compiler_params=PARAMS,
    )(a, b)
"""


@pytest.mark.parametrize("dtype", ["dtype", "o_ref.dtype"])
def test_product_with_a_renamed_carry_and_masks_in_statements_of_their_own(dtype):
    source = LEGACY_MATMUL.replace("DTYPE", dtype).replace("FLAGS", "t * bk + places < places")
    a, b = np.random.default_rng(1).standard_normal((2, 72 * 128))
    a, b = a.reshape(72, 128).astype(jnp.bfloat16), b.reshape(128, 72).astype(jnp.bfloat16)
    np.testing.assert_allclose(computes(source, a, b), a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="need more than 1"):
        lowers(source, jax.ShapeDtypeStruct((1, 128), jnp.bfloat16), jax.ShapeDtypeStruct((128, 64), jnp.bfloat16))


@pytest.mark.parametrize("flags", ["places * places", "(t * bk + places < 64).astype(jnp.int32)"])
def test_product_with_a_mask_on_other_numbers_than_flags_stays_on_triton(flags):
    assert "B130" in codes(LEGACY_MATMUL.replace("DTYPE", "dtype").replace("FLAGS", flags))
