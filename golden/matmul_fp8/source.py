"""Matrix product `a @ b.T` of 8-bit elements that accumulates in float32, for sizes that no block need divide."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def fp8_kernel(a_ref, b_ref, scale_ref, o_ref, *, bm, bn, bk):
  (m, k), n = a_ref.shape, b_ref.shape[0]
  rows = pl.program_id(0) * bm + jnp.arange(bm)
  cols = pl.program_id(1) * bn + jnp.arange(bn)

  def step(t, acc):
    ks = t * bk + jnp.arange(bk)
    k_mask = (ks < k)[None, :]
    a = plgpu.load(a_ref.at[rows[:, None], ks[None, :]], mask=(rows < m)[:, None] & k_mask, other=0.0)
    b = plgpu.load(b_ref.at[cols[:, None], ks[None, :]], mask=(cols < n)[:, None] & k_mask, other=0.0)
    return acc + jnp.dot(a, b.T, preferred_element_type=jnp.float32)

  acc = lax.fori_loop(0, pl.cdiv(k, bk), step, jnp.zeros((bm, bn), jnp.float32))
  plgpu.store(
      o_ref.at[rows[:, None], cols[None, :]], (acc * scale_ref[0]).astype(o_ref.dtype),
      mask=(rows < m)[:, None] & (cols < n)[None, :],
  )


def run(a, b, scale, *, out_dtype=jnp.bfloat16, bm=128, bn=256, bk=128, num_warps=8, num_stages=3, interpret=False):
  (m, _), n = a.shape, b.shape[0]
  return pl.pallas_call(
      functools.partial(fp8_kernel, bm=bm, bn=bn, bk=bk),
      grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
      out_shape=jax.ShapeDtypeStruct((m, n), out_dtype),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(a, b, scale)
