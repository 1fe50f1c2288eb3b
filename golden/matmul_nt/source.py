"""Matrix product with the second operand transposed, `a @ b.T`, for sizes that no block need divide."""

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def _matmul_nt_kernel(a_ref, b_ref, o_ref, *, bm, bn, bk):
  m, k = a_ref.shape
  n, _ = b_ref.shape
  rows = pl.program_id(0) * bm + jnp.arange(bm)
  cols = pl.program_id(1) * bn + jnp.arange(bn)
  row_mask = (rows < m)[:, None]
  col_mask = (cols < n)[:, None]

  def body(step, acc):
    ks = step * bk + jnp.arange(bk)
    k_mask = (ks < k)[None, :]
    a = plgpu.load(
        a_ref.at[rows[:, None], ks[None, :]], mask=row_mask & k_mask, other=0.0)
    b = plgpu.load(
        b_ref.at[cols[:, None], ks[None, :]], mask=col_mask & k_mask, other=0.0)
    return acc + jnp.dot(a, b.T, preferred_element_type=jnp.float32)

  acc = lax.fori_loop(
      0, pl.cdiv(k, bk), body, jnp.zeros((bm, bn), dtype=jnp.float32))
  plgpu.store(
      o_ref.at[rows[:, None], cols[None, :]],
      acc.astype(o_ref.dtype),
      mask=row_mask & (cols < n)[None, :],
  )


def run(a, b, *, bm=128, bn=128, bk=64, num_warps=8, num_stages=3,
        interpret=False):
  m, k = a.shape
  n, _ = b.shape
  return pl.pallas_call(
      partial(_matmul_nt_kernel, bm=bm, bn=bn, bk=bk),
      out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
      grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
      compiler_params=plgpu.CompilerParams(
          num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(a, b)
