"""A quantised dense layer: int8 activations and weights, each row and column with a scale of its own."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def quantised_kernel(x_ref, w_ref, x_scale_ref, w_scale_ref, y_ref, *, block_k):
  """`y = (x @ w) * x_scale[:, None] * w_scale[None, :]`, the product exact in int32."""

  def step(i, acc):
    ks = pl.ds(i * block_k, block_k)
    return acc + jnp.dot(x_ref[:, ks], w_ref[ks, :], preferred_element_type=jnp.int32)

  acc = lax.fori_loop(0, x_ref.shape[1] // block_k, step, jnp.zeros(y_ref.shape, jnp.int32))
  y = acc.astype(jnp.float32) * x_scale_ref[...][:, None] * w_scale_ref[...][None, :]
  y_ref[...] = y.astype(y_ref.dtype)


def run(
    x, w, x_scale, w_scale, *, block_m=128, block_n=256, block_k=128, num_warps=8, num_stages=3,
    interpret=False,
):
  (m, k), n = x.shape, w.shape[1]
  if m % block_m or n % block_n or k % block_k:
    raise ValueError("the blocks must divide the arrays")
  return pl.pallas_call(
      functools.partial(quantised_kernel, block_k=block_k),
      grid=(m // block_m, n // block_n),
      in_specs=[
          pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
          pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
          pl.BlockSpec((block_m,), lambda i, j: (i,)),
          pl.BlockSpec((block_n,), lambda i, j: (j,)),
      ],
      out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
      out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      interpret=interpret,
  )(x, w, x_scale, w_scale)
