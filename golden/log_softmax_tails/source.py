"""Log-softmax in tiles that reach past the rows and past the columns, as windows of slices."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def log_softmax(scores_ref, out_ref, *, height, width):
    m, n = scores_ref.shape
    top = height * pl.program_id(0)
    inside = (top + jnp.arange(height) < m)[:, None] & (jnp.arange(width) < n)[None, :]
    tile = pl.ds(top, height), pl.ds(0, width)
    scores = plgpu.load(scores_ref.at[tile], mask=inside, other=float("-inf"))
    # Rows past the end hold -inf only: the bound keeps their maximum finite.
    peak = jnp.maximum(scores.max(axis=1), -1e20)[:, None]
    shifted = scores - peak
    norm = jnp.log(jnp.maximum(jnp.sum(jnp.exp(shifted), axis=1), 1e-20))
    plgpu.store(out_ref.at[tile], shifted - norm[:, None], mask=inside)


def run(scores, height=4, width=128):
    return pl.pallas_call(
        functools.partial(log_softmax, height=height, width=width),
        grid=(pl.cdiv(scores.shape[0], height),),
        out_shape=jax.ShapeDtypeStruct(scores.shape, scores.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(scores)
