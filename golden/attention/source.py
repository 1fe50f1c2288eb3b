"""Causal attention with grouped heads: `softmax(q @ k.T * scale) @ v`, one program per block of queries."""

import functools
import math

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp


def attention_kernel(q_ref, k_ref, v_ref, out_ref, lse_ref, *, scale, causal, block_q, block_k):
  first = pl.program_id(0) * block_q
  head_dim = q_ref.shape[1]
  q = q_ref[...]

  def body(t, carry):
    acc, peak, total = carry
    keys = pl.ds(t * block_k, block_k)
    k = k_ref[keys, :]
    # Scores in units of log2, so that exp2 can be used.
    s = plgpu.dot(q, k.T) * (scale * math.log2(math.e))
    if causal:
      row = first + jnp.arange(block_q)
      column = t * block_k + jnp.arange(block_k)
      s = jnp.where(row[:, None] >= column[None, :], s, -1e30)
    new_peak = jnp.maximum(peak, jnp.max(s, axis=1))
    fade = jnp.exp2(peak - new_peak)
    p = jnp.exp2(s - new_peak[:, None])
    total = fade * total + jnp.sum(p, axis=1)
    acc = fade[:, None] * acc
    v = v_ref[keys, :]
    acc += plgpu.dot(p.astype(v.dtype), v)
    return acc, new_peak, total

  acc = jnp.zeros((block_q, head_dim), jnp.float32)
  peak = jnp.full((block_q,), -jnp.inf, jnp.float32)
  total = jnp.zeros(block_q, jnp.float32)
  steps = k_ref.shape[0] // block_k
  if causal:
    steps = lax.div(first + block_q + block_k - 1, block_k)
  acc, peak, total = lax.fori_loop(0, steps, body, (acc, peak, total))
  out_ref[...] = (acc / total[:, None]).astype(out_ref.dtype)
  lse_ref[...] = peak + jnp.log2(total)


def run(q, k, v, *, causal=True, block_q=128, block_k=128, num_warps=8, num_stages=2):
  """q: (heads, rows, head_dim); k, v: (kv_heads, keys, head_dim)."""
  heads, rows, head_dim = q.shape
  kv_heads, keys, _ = k.shape
  if rows % block_q or keys % block_k or heads % kv_heads:
    raise ValueError("blocks must divide the rows and keys, and the heads those of k and v")
  group = heads // kv_heads
  queries = pl.BlockSpec((None, block_q, head_dim), lambda i, h: (h, i, 0))
  whole = pl.BlockSpec((None, keys, head_dim), lambda i, h: (h // group, 0, 0))
  return pl.pallas_call(
      functools.partial(
          attention_kernel, scale=head_dim**-0.5, causal=causal, block_q=block_q, block_k=block_k
      ),
      grid=(rows // block_q, heads),
      in_specs=[queries, whole, whole],
      out_specs=[queries, pl.BlockSpec((None, block_q), lambda i, h: (h, i))],
      out_shape=[
          jax.ShapeDtypeStruct(q.shape, q.dtype),
          jax.ShapeDtypeStruct((heads, rows), jnp.float32),
      ],
      compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
      name="attention",
  )(q, k, v)


def run_full(q, k, v, **config):
  """Every query sees every key."""
  return run(q, k, v, causal=False, **config)
