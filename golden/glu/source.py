"""Gated linear unit, `silu(x @ w_gate) * (x @ w_up)`, both products in one sweep over K.

The number of rows of `x` (tokens) is arbitrary; blocks divide the weights.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton


def glu_kernel(x_ref, gate_ref, up_ref, out_ref, *, block_m: int, block_k: int):
    # x and out are whole; gate and up are the columns of this program.
    tokens, k = x_ref.shape
    block_n = gate_ref.shape[1]
    rows = pl.program_id(0) * block_m + jnp.arange(block_m)
    cols = pl.program_id(1) * block_n + jnp.arange(block_n)
    valid = (rows < tokens)[:, None]

    def body(i, accs):
        gate, up = accs
        ks = i * block_k + jnp.arange(block_k)
        x = pltriton.load(x_ref.at[rows[:, None], ks[None, :]], mask=valid, other=0.0)
        gate += jnp.dot(x, gate_ref[pl.ds(i * block_k, block_k), :], preferred_element_type=jnp.float32)
        up += jnp.dot(x, up_ref[pl.ds(i * block_k, block_k), :], preferred_element_type=jnp.float32)
        return gate, up

    zeros = jnp.zeros((block_m, block_n), jnp.float32)
    gate, up = lax.fori_loop(0, k // block_k, body, (zeros, zeros))
    silu = gate / (1 + jnp.exp(-gate))
    pltriton.store(out_ref.at[rows[:, None], cols[None, :]], (silu * up).astype(out_ref.dtype), mask=valid)


def run(
    x,
    w_gate,
    w_up,
    *,
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    num_warps: int = 8,
    num_stages: int = 3,
    interpret: bool = False,
):
    tokens, k = x.shape
    n = w_gate.shape[1]
    if n % block_n or k % block_k:
        raise ValueError(f"blocks of {block_k}x{block_n} do not divide weights of {k}x{n}")
    weight_spec = pl.BlockSpec((k, block_n), lambda i, j: (0, j))
    return pl.pallas_call(
        functools.partial(glu_kernel, block_m=block_m, block_k=block_k),
        grid=(pl.cdiv(tokens, block_m), n // block_n),
        in_specs=[pl.BlockSpec(x.shape, lambda i, j: (0, 0)), weight_spec, weight_spec],
        out_specs=pl.BlockSpec((tokens, n), lambda i, j: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((tokens, n), x.dtype),
        compiler_params=pltriton.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=interpret,
        name="glu",
    )(x, w_gate, w_up)
