import jax
import jax.numpy as jnp
from jax import lax

SHAPES = {
    "4x256 f32": dict(m=4, n=256, dtype="float32"),
    "3x100 f32": dict(m=3, n=100, dtype="float32"),
    "5x1001 bf16": dict(m=5, n=1001, dtype="bfloat16", chunk=256),
    "2x640 f16": dict(m=2, n=640, dtype="float16", chunk=128),
    "1000x5000 bf16": dict(m=1000, n=5000, dtype="bfloat16"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 f32": dict(m=16384, n=4096, dtype="float32"),
    "16384x1001 bf16": dict(m=16384, n=1001, dtype="bfloat16"),
    "16384x1001 f32": dict(m=16384, n=1001, dtype="float32"),
}
SMALL = ("4x256 f32", "3x100 f32", "5x1001 bf16", "2x640 f16")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")


def inputs(m, n, dtype, **config):
    values, weights, biases = jax.random.split(jax.random.key(4), 3)
    x = 1 + 3 * jax.random.normal(values, (m, n))
    weight = 1 + 0.5 * jax.random.normal(weights, (n,))
    bias = jax.random.normal(biases, (n,))
    return "run", (x.astype(dtype), weight.astype(dtype), bias.astype(dtype)), config


def reference(x, weight, bias):
    x, weight, bias = (array.astype(jnp.float32) for array in (x, weight, bias))
    mean = jnp.mean(x, axis=1)
    rstd = lax.rsqrt(jnp.var(x, axis=1) + 1e-5)
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd


def work(x, weight, bias):
    return {"bytes": 2 * x.nbytes}
