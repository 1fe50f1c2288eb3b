"""Layer normalization, forward, with the statistics that the backward pass needs."""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp


def layer_norm_kernel(
    x_ref, weight_ref, bias_ref,  # inputs
    y_ref, mean_ref, rstd_ref,  # outputs
    *, eps, chunk
):
  """One row, in three sweeps over its columns, `chunk` of them at a time."""
  row = pl.program_id(0)
  n = x_ref.shape[1]
  steps = pl.cdiv(n, chunk)

  def add_values(i, total):
    cols = i * chunk + jnp.arange(chunk)
    x = plgpu.load(
        x_ref.at[row, cols], mask=cols < n, other=0., eviction_policy='evict_last')
    return total + x.astype(jnp.float32)

  mean = jnp.sum(lax.fori_loop(0, steps, add_values, jnp.zeros(chunk))) / n

  def add_squares(i, total):
    cols = i * chunk + jnp.arange(chunk)
    x = plgpu.load(
        x_ref.at[row, cols], mask=cols < n, other=0., eviction_policy='evict_last')
    # Columns past the end hold 0, which is not the mean.
    centered = jnp.where(cols < n, x.astype(jnp.float32) - mean, 0.)
    return total + centered * centered

  var = jnp.sum(lax.fori_loop(0, steps, add_squares, jnp.zeros(chunk))) / n
  rstd = 1. / jnp.sqrt(var + eps)
  mean_ref[row] = mean
  rstd_ref[row] = rstd

  @pl.loop(0, steps)
  def _(i):
    cols = i * chunk + jnp.arange(chunk)
    mask = cols < n
    x = plgpu.load(
        x_ref.at[row, cols], mask=mask, other=0., eviction_policy='evict_first')
    weight = plgpu.load(weight_ref.at[cols], mask=mask, other=0.)
    bias = plgpu.load(bias_ref.at[cols], mask=mask, other=0.)
    y = (x.astype(jnp.float32) - mean) * rstd * weight + bias
    plgpu.store(y_ref.at[row, cols], y.astype(y_ref.dtype), mask=mask)


def run(x, weight, bias, *, eps=1e-5, chunk=None, num_warps=None,
        interpret=False):
  """Returns `(y, mean, rstd)`; the statistics are float32."""
  m, n = x.shape
  if chunk is None:
    chunk = min(max(pl.next_power_of_2(n), 128), 4096)
  if num_warps is None:
    num_warps = min(max(chunk // 256, 1), 8)
  statistic = jax.ShapeDtypeStruct((m,), jnp.float32)
  return pl.pallas_call(
      functools.partial(layer_norm_kernel, eps=eps, chunk=chunk),
      grid=(m,),
      out_shape=[
          jax.ShapeDtypeStruct(x.shape, x.dtype), statistic, statistic],
      compiler_params=plgpu.CompilerParams(num_warps=num_warps),
      interpret=interpret,
      name='layer_norm_forward',
  )(x, weight, bias)
