"""Sums that many programs share: row sums split over column blocks, and a weighted histogram with a ragged end."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

ROWS, COLUMNS = 128, 64


def split_sum_kernel(x_ref, zero_ref, total_ref):
    del zero_ref  # the same memory as total_ref
    part = jnp.sum(x_ref[...], axis=1)
    plgpu.atomic_add(total_ref, pl.ds(pl.program_id(0) * ROWS, ROWS), part)


def split_sum(x):
    rows, columns = x.shape
    whole = pl.BlockSpec((rows,), lambda i, j: (0,))
    return pl.pallas_call(
        split_sum_kernel,
        grid=(rows // ROWS, columns // COLUMNS),
        in_specs=[pl.BlockSpec((ROWS, COLUMNS), lambda i, j: (i, j)), whole],
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct((rows,), jnp.float32),
        input_output_aliases={1: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x, jnp.zeros((rows,), jnp.float32))


def histogram_kernel(bins_ref, weights_ref, zero_ref, total_ref, *, block):
    del zero_ref  # the same memory as total_ref
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < bins_ref.shape[0]
    bins = plgpu.load(bins_ref.at[at], mask=inside, other=0)
    weights = plgpu.load(weights_ref.at[at], mask=inside)
    plgpu.atomic_add(total_ref, (bins,), weights, mask=inside)


def histogram(bins, weights, count, block=1024):
    zero = jnp.zeros((count,), weights.dtype)
    return pl.pallas_call(
        functools.partial(histogram_kernel, block=block),
        grid=(pl.cdiv(bins.shape[0], block),),
        out_shape=jax.ShapeDtypeStruct((count,), weights.dtype),
        input_output_aliases={2: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(bins, weights, zero)
