import jax
import jax.numpy as jnp
from jax import lax

SHAPES = {
    "4x256 f32": dict(m=4, n=256, dtype="float32"),
    "2x300 f32": dict(m=2, n=300, dtype="float32", chunk=128),
    "5x1001 bf16": dict(m=5, n=1001, dtype="bfloat16", chunk=256),
    "2x640 f16": dict(m=2, n=640, dtype="float16", chunk=128),
    "1000x5000 bf16": dict(m=1000, n=5000, dtype="bfloat16"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 f32": dict(m=16384, n=4096, dtype="float32"),
    "16384x1001 bf16": dict(m=16384, n=1001, dtype="bfloat16"),
    "16384x1001 f32": dict(m=16384, n=1001, dtype="float32"),
}
SMALL = ("2x300 f32", "4x256 f32", "5x1001 bf16", "2x640 f16")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")
WRONG = {
    "columns past the end in the variance": (
        "jnp.where(cols < n, x.astype(jnp.float32) - mean, 0.)",
        "x.astype(jnp.float32) - mean",
        "interpret",
    ),
    "store without its mask": ("y.astype(y_ref.dtype), mask=mask,", "y.astype(y_ref.dtype),", "interpret"),
    "statistics exchanged": (
        "mean_ref[row] = mean\n  rstd_ref[row] = rstd",
        "mean_ref[row] = rstd\n  rstd_ref[row] = mean",
        "interpret",
    ),
    "weight and bias exchanged": ("rstd * weight + bias", "rstd * bias + weight", "interpret"),
    "last chunk not in the mean": (
        "lax.fori_loop(0, steps, add_values",
        "lax.fori_loop(0, steps - 1, add_values",
        "interpret",
    ),
    "last chunk not written": ("@pl.loop(0, steps)", "@pl.loop(0, steps - 1)", "interpret"),
}


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
