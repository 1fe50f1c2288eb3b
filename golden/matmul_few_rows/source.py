"""One step of decoding: a few tokens times a large weight, which is read once; `x @ w + bias`."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def project_kernel(x_ref, w_ref, bias_ref, y_ref, *, bm, bn, bk):
  tokens, features = x_ref.shape
  rows = pl.program_id(0) * bm + jnp.arange(bm)
  cols = pl.program_id(1) * bn + jnp.arange(bn)
  row_mask = (rows < tokens)[:, None]

  def step(i, acc):
    ks = i * bk + jnp.arange(bk)
    x = plgpu.load(
        x_ref.at[rows[:, None], ks[None, :]], mask=row_mask & (ks < features)[None, :], other=0.0)
    w = plgpu.load(w_ref.at[ks[:, None], cols[None, :]], mask=(ks < features)[:, None], other=0.0)
    return acc + jnp.dot(x, w, preferred_element_type=jnp.float32)

  acc = lax.fori_loop(0, pl.cdiv(features, bk), step, jnp.zeros((bm, bn), jnp.float32))
  y = acc + bias_ref[pl.ds(pl.program_id(1) * bn, bn)].astype(jnp.float32)[None, :]
  plgpu.store(y_ref.at[rows[:, None], cols[None, :]], y.astype(y_ref.dtype), mask=row_mask)


def run(x, w, bias, *, bm=16, bn=64, bk=128, num_warps=4, num_stages=4, interpret=False):
  tokens, n = x.shape[0], w.shape[1]
  if n % bn:
    raise ValueError(f"{n} columns are not a multiple of {bn}")
  return pl.pallas_call(
      functools.partial(project_kernel, bm=bm, bn=bn, bk=bk),
      grid=(pl.cdiv(tokens, bm), n // bn),
      out_shape=jax.ShapeDtypeStruct((tokens, n), x.dtype),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(x, w, bias)
