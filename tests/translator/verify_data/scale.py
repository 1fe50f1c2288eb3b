"""The original that the ladder's tests verify ports of: 2x + 1 with a masked tail."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

N = 256


def body(x_ref, o_ref):
    at = pl.program_id(0) * N + jnp.arange(N)
    keep = at < x_ref.shape[0]
    x = plt.load(x_ref.at[at], mask=keep, other=0.0)
    plt.store(o_ref.at[at], 2.0 * x + 1.0, mask=keep)


def run(x):
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], N),),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plt.CompilerParams(num_warps=4),
    )(x)


def ragged():
    return (jax.random.normal(jax.random.key(0), (600,)),)


def whole():
    return (jax.random.normal(jax.random.key(0), (512,)),)


def by_function():
    return run, ragged()


def by_name():
    return "run", (), {"x": ragged()[0]}


def wrong_protocol():
    return ragged()[0]
