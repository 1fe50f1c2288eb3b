"""Matrix product with the first operand transposed, `a.T @ b`: the gradient of a weight.

Both operands lie with the contracted axis first, as activations and output gradients do.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt


def run(
    a, b, *, block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3, out_dtype=None, interpret=False
):
    k, m = a.shape
    _, n = b.shape
    if m % block_m or n % block_n or k % block_k:
        raise ValueError("the blocks must divide the matrices")
    tiles_n = n // block_n

    def kernel(a_ref, b_ref, out_ref):
        # A flat grid, so that programs that run together share rows of `out`.
        pid = pl.program_id(0)
        rows = pl.ds((pid // tiles_n) * block_m, block_m)
        cols = pl.ds((pid % tiles_n) * block_n, block_n)

        def accumulate(i, acc):
            ks = pl.ds(i * block_k, block_k)
            return acc + plt.dot(a_ref[ks, rows], b_ref[ks, cols], trans_a=True)

        acc = jax.lax.fori_loop(0, k // block_k, accumulate, jnp.zeros((block_m, block_n), jnp.float32))
        out_ref[rows, cols] = acc.astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(m // block_m * tiles_n,),
        out_shape=jax.ShapeDtypeStruct((m, n), out_dtype or a.dtype),
        compiler_params=plt.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=interpret,
    )(a, b)
