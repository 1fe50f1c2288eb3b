"""Running sums along the rows or the columns of tiles."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def along_rows(x_ref, o_ref):
    o_ref[...] = jnp.cumsum(x_ref[...], axis=1)


def along_columns(x_ref, o_ref):
    o_ref[...] = jnp.cumsum(x_ref[...], axis=0)


def run(x, *, rows=8):
    tile = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        along_rows, grid=(x.shape[0] // rows,), in_specs=[tile], out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)


def run_columns(x, *, rows=64):
    tile = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        along_columns, grid=(x.shape[0] // rows,), in_specs=[tile], out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
