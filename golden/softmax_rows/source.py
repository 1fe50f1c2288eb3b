"""Softmax over the rows of a matrix with any number of rows and columns.

A program holds whole rows in registers: several short ones, or one long one.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def make_kernel(tile_rows, tile_cols):
  def softmax_kernel(x_ref, probs_ref):
    n_rows, n_cols = x_ref.shape
    rows = pl.program_id(0) * tile_rows + jnp.arange(tile_rows)
    cols = jnp.arange(tile_cols)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]

    # -inf is neutral for the maximum, and its exponential for the sum.
    x = plgpu.load(
        x_ref.at[rows[:, None], cols[None, :]], mask=mask, other=-jnp.inf
    ).astype(jnp.float32)
    e = jnp.exp(x - jnp.max(x, axis=1)[:, None])
    probs = e / jnp.sum(e, axis=1)[:, None]
    plgpu.store(
        probs_ref.at[rows[:, None], cols[None, :]],
        probs.astype(probs_ref.dtype),
        mask=mask,
    )

  return softmax_kernel


def run(x, *, tile_rows=None, num_warps=4, interpret=False):
  n_rows, n_cols = x.shape
  tile_cols = pl.next_power_of_2(n_cols)
  if tile_rows is None:
    tile_rows = max(1, 4096 // tile_cols)
  return pl.pallas_call(
      make_kernel(tile_rows, tile_cols),
      out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
      grid=(pl.cdiv(n_rows, tile_rows),),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=1),
      interpret=interpret,
  )(x)
