"""Gradients of layer normalization with respect to its weight and bias: sums over all rows."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def dw_db_kernel(x_ref, dy_ref, mean_ref, rstd_ref, dw_ref, db_ref, *, block_m, block_n):
  """A block of columns walks down the rows, `block_m` at a time."""
  m, n = x_ref.shape
  cols = pl.program_id(0) * block_n + jnp.arange(block_n)
  col_mask = cols < n

  def body(step, sums):
    dw, db = sums
    rows = step * block_m + jnp.arange(block_m)
    row_mask = rows < m
    mask = row_mask[:, None] & col_mask[None, :]
    x = plgpu.load(x_ref.at[rows[:, None], cols[None, :]], mask=mask, other=0.0)
    dy = plgpu.load(dy_ref.at[rows[:, None], cols[None, :]], mask=mask, other=0.0)
    mean = plgpu.load(mean_ref.at[rows], mask=row_mask, other=0.0)
    rstd = plgpu.load(rstd_ref.at[rows], mask=row_mask, other=0.0)

    x_hat = (x.astype(jnp.float32) - mean[:, None]) * rstd[:, None]
    dy = dy.astype(jnp.float32)
    return dw + jnp.sum(dy * x_hat, axis=0), db + jnp.sum(dy, axis=0)

  zeros = jnp.zeros((block_n,), jnp.float32)
  dw, db = lax.fori_loop(0, pl.cdiv(m, block_m), body, (zeros, zeros))
  plgpu.store(dw_ref.at[cols], dw.astype(dw_ref.dtype), mask=col_mask)
  plgpu.store(db_ref.at[cols], db.astype(db_ref.dtype), mask=col_mask)


def run(x, dy, mean, rstd, *, block_m=16, block_n=16, num_warps=8, interpret=False):
  """Returns `(dw, db)` in the dtype of `x`."""
  n = x.shape[1]
  gradient = jax.ShapeDtypeStruct((n,), x.dtype)
  return pl.pallas_call(
      functools.partial(dw_db_kernel, block_m=block_m, block_n=block_n),
      out_shape=(gradient, gradient),
      grid=(pl.cdiv(n, block_n),),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps),
      interpret=interpret,
  )(x, dy, mean, rstd)
