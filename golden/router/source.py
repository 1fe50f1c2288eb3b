"""Routes each token to its best expert: the index of the largest logit, and the softmax there."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def route(logits_ref, expert_ref, gate_ref):
    logits = logits_ref[...]
    expert_ref[...] = jnp.argmax(logits, axis=1).astype(jnp.int32)
    best = jnp.max(logits, axis=1)
    gate_ref[...] = 1.0 / jnp.sum(jnp.exp(logits - best[:, None]), axis=1)


def run(logits, *, tokens=64):
    n, experts = logits.shape
    per_token = pl.BlockSpec((tokens,), lambda i: (i,))
    return pl.pallas_call(
        route,
        grid=(n // tokens,),
        in_specs=[pl.BlockSpec((tokens, experts), lambda i: (i, 0))],
        out_specs=[per_token, per_token],
        out_shape=[jax.ShapeDtypeStruct((n,), jnp.int32), jax.ShapeDtypeStruct((n,), jnp.float32)],
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(logits)
