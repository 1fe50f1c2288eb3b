"""Matrix product a @ b for shapes that the blocks divide."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def matmul_kernel(a_ref, b_ref, c_ref, *, block_k):
    """One block of `c`. `a_ref` holds all of K for its rows, `b_ref` for its columns."""

    def step(i, acc):
        ks = pl.ds(i * block_k, block_k)
        return acc + jnp.dot(a_ref[:, ks], b_ref[ks, :], preferred_element_type=jnp.float32)

    acc = jnp.zeros(c_ref.shape, jnp.float32)
    acc = lax.fori_loop(0, a_ref.shape[1] // block_k, step, acc)
    c_ref[...] = acc.astype(c_ref.dtype)


def run(a, b, *, block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=3, interpret=False):
    (m, k), n = a.shape, b.shape[1]
    if m % block_m or n % block_n or k % block_k:
        raise ValueError(f"{m}x{n}x{k} is not a multiple of the blocks {block_m}x{block_n}x{block_k}")
    return pl.pallas_call(
        functools.partial(matmul_kernel, block_k=block_k),
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=interpret,
    )(a, b)
