"""Decode attention over pages: one query per sequence, a few heads that share keys and values.

The keys of a sequence lie in pages of memory that a table names. Programs along the second grid axis
take a part of the pages each; `run` joins what they found.
"""

import functools
import math

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp


def decode_kernel(
    q_ref, k_ref, v_ref, table_ref, length_ref, out_ref, peak_ref, total_ref, *, pages_per_step, scale
):
  share = pl.program_id(1)
  heads, head_dim = q_ref.shape
  page = k_ref.shape[1]
  tokens = pages_per_step * page
  # The first token of this program, and the end of its tokens.
  first = share * table_ref.shape[0] * page
  end = jnp.minimum(length_ref[0], first + table_ref.shape[0] * page)

  def multiply(a, b):
    return plgpu.dot(a, b)

  def attend(acc, peak, total):
    q = q_ref[...]

    def body(t, carry):
      acc, peak, total = carry
      pages = table_ref[pl.ds(t * pages_per_step, pages_per_step)]
      k = k_ref[pages].reshape(tokens, head_dim)
      s = multiply(q, k.T) * (scale * math.log2(math.e))
      token = first + t * tokens + jnp.arange(tokens)
      s = jnp.where((token < end)[None, :], s, -1e30)
      new_peak = jnp.maximum(peak, jnp.max(s, axis=1))
      fade = jnp.exp2(peak - new_peak)
      p = jnp.exp2(s - new_peak[:, None])
      total = fade * total + jnp.sum(p, axis=1)
      v = v_ref[pages].reshape(tokens, head_dim)
      acc = fade[:, None] * acc + multiply(p.astype(v.dtype), v)
      return acc, new_peak, total

    return lax.fori_loop(0, pl.cdiv(end - first, tokens), body, (acc, peak, total))

  acc = jnp.zeros((heads, head_dim), jnp.float32)
  peak = jnp.full((heads,), -1e30, jnp.float32)
  total = jnp.zeros(heads, jnp.float32)
  # A program behind the end of its sequence has nothing to do.
  acc, peak, total = lax.cond(
      first < end, lambda: attend(acc, peak, total), lambda: (acc, peak, total)
  )
  out_ref[...] = acc
  peak_ref[...] = peak
  total_ref[...] = total


def run(q, k, v, table, lengths, *, parts=2, pages_per_step=4, num_warps=4, num_stages=2):
  """q: (sequences, groups, heads, head_dim); k, v: (groups, pages, page, head_dim); table: (sequences, pages)."""
  sequences, groups, heads, head_dim = q.shape
  _, num_pages, page, _ = k.shape
  per_part = table.shape[1] // parts
  if table.shape[1] % parts or per_part % pages_per_step:
    raise ValueError("the pages of a sequence must divide into parts, and these into steps")

  def one(q, table, length):
    pages = pl.BlockSpec((None, num_pages, page, head_dim), lambda g, i: (g, 0, 0, 0))
    statistics = pl.BlockSpec((None, None, heads), lambda g, i: (i, g, 0))
    return pl.pallas_call(
        functools.partial(decode_kernel, pages_per_step=pages_per_step, scale=head_dim**-0.5),
        grid=(groups, parts),
        in_specs=[
            pl.BlockSpec((None, heads, head_dim), lambda g, i: (g, 0, 0)),
            pages,
            pages,
            pl.BlockSpec((None, per_part), lambda g, i: (i, 0)),
            pl.BlockSpec((1,), lambda g, i: (0,)),
        ],
        out_specs=[pl.BlockSpec((None, None, heads, head_dim), lambda g, i: (i, g, 0, 0)), statistics, statistics],
        out_shape=[
            jax.ShapeDtypeStruct((parts, groups, heads, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((parts, groups, heads), jnp.float32),
            jax.ShapeDtypeStruct((parts, groups, heads), jnp.float32),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        name="decode",
    )(q, k, v, table, length)

  out, peak, total = jax.vmap(one)(q, table.reshape(sequences, parts, per_part), lengths[:, None])
  weight = jnp.exp2(peak - jnp.max(peak, axis=1, keepdims=True))
  out = jnp.sum(out * weight[..., None], axis=1) / jnp.sum(total * weight, axis=1)[..., None]
  return out.astype(q.dtype)
