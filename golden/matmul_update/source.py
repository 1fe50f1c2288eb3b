"""`c + a @ b`: the sums start as a tile of `c`."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def update_kernel(a_ref, b_ref, c_ref, out_ref, *, block_k):
  def step(i, acc):
    ks = pl.ds(i * block_k, block_k)
    return acc + jnp.dot(a_ref[:, ks], b_ref[ks, :], preferred_element_type=jnp.float32)

  start = c_ref[...].astype(jnp.float32)
  acc = lax.fori_loop(0, a_ref.shape[1] // block_k, step, start)
  out_ref[...] = acc.astype(out_ref.dtype)


def run(a, b, c, *, block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, interpret=False):
  (m, k), n = a.shape, b.shape[1]
  if m % block_m or n % block_n or k % block_k:
    raise ValueError("the blocks must divide the arrays")
  tile = pl.BlockSpec((block_m, block_n), lambda i, j: (i, j))
  return pl.pallas_call(
      functools.partial(update_kernel, block_k=block_k),
      grid=(m // block_m, n // block_n),
      in_specs=[
          pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
          pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
          tile,
      ],
      out_specs=tile,
      out_shape=jax.ShapeDtypeStruct(c.shape, c.dtype),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(a, b, c)
