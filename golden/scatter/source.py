"""Elements placed by an index vector from memory, with a ragged end."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def scatter_kernel(values_ref, index_ref, out_ref, *, block):
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < index_ref.shape[0]
    index = plgpu.load(index_ref.at[at], mask=inside, other=0)
    values = plgpu.load(values_ref.at[at], mask=inside)
    plgpu.store(out_ref.at[index], values, mask=inside)


def run(values, index, block=1024):
    return pl.pallas_call(
        functools.partial(scatter_kernel, block=block),
        grid=(pl.cdiv(index.shape[0], block),),
        out_shape=jax.ShapeDtypeStruct(values.shape, values.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(values, index)
