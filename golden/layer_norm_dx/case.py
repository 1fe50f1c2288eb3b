import jax
import jax.numpy as jnp
from jax import lax

SHAPES = {
    "4x256 f32": dict(m=4, n=256, dtype="float32"),
    "9x100 f32": dict(m=9, n=100, dtype="float32", rows=4),
    "3x1001 bf16": dict(m=3, n=1001, dtype="bfloat16", rows=1),
    "5x320 f16": dict(m=5, n=320, dtype="float16"),
    "1000x5000 bf16": dict(m=1000, n=5000, dtype="bfloat16"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 f32": dict(m=16384, n=4096, dtype="float32"),
    "16384x1001 bf16": dict(m=16384, n=1001, dtype="bfloat16"),
    "16384x1001 f32": dict(m=16384, n=1001, dtype="float32"),
}
SMALL = ("9x100 f32", "4x256 f32", "3x1001 bf16", "5x320 f16")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")
WRONG = {
    "no mask of the rows": ("ok = row_ok[:, None] & col_ok[None, :]", "ok = col_ok[None, :]", "interpret"),
    "no mask of the columns": ("ok = row_ok[:, None] & col_ok[None, :]", "ok = row_ok[:, None]", "interpret"),
    "means exchanged": (
        "g - mean_g[:, None] - x_hat * mean_gx[:, None]",
        "g - mean_gx[:, None] - x_hat * mean_g[:, None]",
        "interpret",
    ),
    "input and gradient exchanged": ("x = _load(x_ref, tile", "x = _load(dy_ref, tile", "interpret"),
    "zeros": ("dx.astype(dx_ref.dtype)", "(0 * dx).astype(dx_ref.dtype)", "interpret"),
    "statistics laid out along columns": ("row_layout = layout.reduce(1)", "row_layout = layout.reduce(0)", "lower"),
}


def inputs(m, n, dtype, **config):
    values, weights, gradients = jax.random.split(jax.random.key(5), 3)
    x = (1 + 3 * jax.random.normal(values, (m, n))).astype(dtype)
    weight = (1 + 0.5 * jax.random.normal(weights, (n,))).astype(dtype)
    # A mean that is not zero: both means of the gradient matter.
    dy = (0.5 + jax.random.normal(gradients, (m, n))).astype(dtype)
    mean = jnp.mean(x, axis=1, dtype=jnp.float32)
    rstd = lax.rsqrt(jnp.var(x.astype(jnp.float32), axis=1) + 1e-5)
    return "run", (x, weight, dy, mean, rstd), config


def reference(x, weight, dy, mean, rstd):
    x, weight, dy = (array.astype(jnp.float32) for array in (x, weight, dy))
    mean, rstd = mean[:, None], rstd[:, None]
    x_hat, g = (x - mean) * rstd, dy * weight
    mean_g, mean_gx = (jnp.mean(v, axis=1, keepdims=True) for v in (g, g * x_hat))
    return rstd * (g - mean_g - x_hat * mean_gx)


def work(x, weight, dy, mean, rstd):
    return {"bytes": 3 * x.nbytes}
