"""Sum of two vectors of any length."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt


def add_kernel(x_ref, y_ref, out_ref, *, block):
    # The last program reaches past the end of the vectors.
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < out_ref.shape[0]
    x = plt.load(x_ref.at[at], mask=inside, other=0)
    y = plt.load(y_ref.at[at], mask=inside, other=0)
    plt.store(out_ref.at[at], x + y, mask=inside)


def run(x, y, *, block=1024, num_warps=4, interpret=False):
    return pl.pallas_call(
        functools.partial(add_kernel, block=block),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        compiler_params=plt.CompilerParams(num_warps=num_warps),
        interpret=interpret,
    )(x, y)
