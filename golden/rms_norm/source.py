"""RMS normalization of rows, scaled per column."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton


def _rms_norm_row(x_ref, scale_ref, y_ref, *, eps, block_cols):
    """Normalizes one row of `x`; `block_cols` is at least its length."""
    n_cols = x_ref.shape[0]
    cols = jnp.arange(block_cols)
    valid = cols < n_cols
    x = pltriton.load(x_ref.at[cols], mask=valid, other=0.0, eviction_policy="evict_first")
    scale = pltriton.load(scale_ref.at[cols], mask=valid, other=0.0, eviction_policy="evict_last")
    x = x.astype(jnp.float32)
    mean_square = jnp.sum(x * x) / n_cols
    y = x / jnp.sqrt(mean_square + eps) * scale.astype(jnp.float32)
    pltriton.store(y_ref.at[cols], y.astype(y_ref.dtype), mask=valid)


def run(x, scale, eps=1e-6, *, num_warps=None, interpret=False):
    n_rows, n_cols = x.shape
    block_cols = pl.next_power_of_2(n_cols)
    if num_warps is None:
        num_warps = min(max(block_cols // 256, 1), 8)
    row = pl.BlockSpec((None, n_cols), lambda i: (i, 0))
    return pl.pallas_call(
        partial(_rms_norm_row, eps=eps, block_cols=block_cols),
        grid=(n_rows,),
        in_specs=[row, pl.BlockSpec((n_cols,), lambda i: (0,))],
        out_specs=row,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltriton.CompilerParams(num_warps=num_warps, num_stages=1),
        interpret=interpret,
        name="rms_norm",
    )(x, scale)
