"""A dense layer in one kernel: `activation(x @ w + bias) + residual`."""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp


def gelu(x):
  """The tanh approximation."""
  return 0.5 * x * (1.0 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def dense_kernel(
    x_ref, w_ref, bias_ref, residual_ref, out_ref, *, block_k, activation
):
  block_m, k = x_ref.shape
  block_n = w_ref.shape[1]

  def body(i, acc):
    x = x_ref[:, pl.ds(i * block_k, block_k)]
    w = w_ref[pl.ds(i * block_k, block_k), :]
    return acc + plgpu.dot(x, w)

  acc = lax.fori_loop(
      0, k // block_k, body, jnp.zeros((block_m, block_n), jnp.float32)
  )

  # The epilogue stays in float32; only the result is rounded.
  y = activation(acc + bias_ref[...].astype(jnp.float32)[None, :])
  y += residual_ref[...].astype(jnp.float32)
  out_ref[...] = y.astype(out_ref.dtype)


def run(
    x, w, bias, residual, *, activation=gelu,
    block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3,
    interpret=False,
):
  m, k = x.shape
  n = w.shape[1]
  if m % block_m or n % block_n or k % block_k:
    raise ValueError("block sizes must divide the array sizes")
  tile = pl.BlockSpec((block_m, block_n), lambda i, j: (i, j))
  return pl.pallas_call(
      functools.partial(dense_kernel, block_k=block_k, activation=activation),
      grid=(m // block_m, n // block_n),
      in_specs=[
          pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
          pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
          pl.BlockSpec((block_n,), lambda i, j: (j,)),
          tile,
      ],
      out_specs=tile,
      out_shape=jax.ShapeDtypeStruct((m, n), residual.dtype),
      compiler_params=plgpu.CompilerParams(
          num_warps=num_warps, num_stages=num_stages
      ),
      interpret=interpret,
  )(x, w, bias, residual)
