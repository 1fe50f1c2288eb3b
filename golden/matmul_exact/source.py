"""Matrix product in full float32 precision, `x @ w`, for sizes that no block need divide."""

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def _exact_kernel(x_ref, w_ref, y_ref, *, bm, bn, bk):
  (m, k), n = x_ref.shape, w_ref.shape[1]
  rows = pl.program_id(0) * bm + jnp.arange(bm)
  cols = pl.program_id(1) * bn + jnp.arange(bn)

  def body(t, acc):
    ks = t * bk + jnp.arange(bk)
    x = plgpu.load(
        x_ref.at[rows[:, None], ks[None, :]],
        mask=(rows < m)[:, None] & (ks < k)[None, :], other=0.0)
    w = plgpu.load(
        w_ref.at[ks[:, None], cols[None, :]],
        mask=(ks < k)[:, None] & (cols < n)[None, :], other=0.0)
    # TF32 would keep 10 of the 23 bits.
    return acc + jnp.dot(x, w, precision=lax.Precision.HIGHEST)

  acc = lax.fori_loop(0, pl.cdiv(k, bk), body, jnp.zeros((bm, bn), jnp.float32))
  plgpu.store(
      y_ref.at[rows[:, None], cols[None, :]], acc,
      mask=(rows < m)[:, None] & (cols < n)[None, :])


def run(x, w, *, bm=128, bn=128, bk=32, num_warps=8, num_stages=2, interpret=False):
  m, n = x.shape[0], w.shape[1]
  return pl.pallas_call(
      partial(_exact_kernel, bm=bm, bn=bn, bk=bk),
      out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
      grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(x, w)
