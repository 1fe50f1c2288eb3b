import jax
import jax.numpy as jnp
from jax import lax

SHAPES = {
    "4x256 f32": dict(m=4, n=256, dtype="float32"),
    "3x100 f32": dict(m=3, n=100, dtype="float32"),
    "5x1001 bf16": dict(m=5, n=1001, dtype="bfloat16"),
    "2x640 f16": dict(m=2, n=640, dtype="float16"),
    "2x300 f32 eps 1": dict(m=2, n=300, dtype="float32", eps=1.0),
    "1000x8192 bf16": dict(m=1000, n=8192, dtype="bfloat16"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 f32": dict(m=16384, n=4096, dtype="float32"),
    "16384x1001 bf16": dict(m=16384, n=1001, dtype="bfloat16"),
    "16384x1001 f32": dict(m=16384, n=1001, dtype="float32"),
}
SMALL = ("3x100 f32", "4x256 f32", "5x1001 bf16", "2x640 f16", "2x300 f32 eps 1")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")
WRONG = {
    "load without its mask": ("x_ref, cols, mask=valid, other=0.0,", "x_ref, cols,", "interpret"),
    "columns past the end hold 1": (
        "x_ref, cols, mask=valid, other=0.0,",
        "x_ref, cols, mask=valid, other=1.0,",
        "interpret",
    ),
    "store without its mask": ("y.astype(y_ref.dtype), mask=valid,", "y.astype(y_ref.dtype),", "interpret"),
    "mean over the block": (" / n_cols", " / block_cols", "interpret"),
    "no root": ("lax.rsqrt(mean_square + eps)", "(mean_square + eps)", "interpret"),
    "every program on the first row": ('i = lax.axis_index("i")', "i = 0", "interpret"),
}


def inputs(m, n, dtype, eps=1e-6):
    values, sizes, scales = jax.random.split(jax.random.key(3), 3)
    # Rows of different size, so that each needs a factor of its own.
    x = jax.random.normal(values, (m, n)) * jax.random.uniform(sizes, (m, 1), minval=0.2, maxval=5.0)
    scale = 1 + 0.5 * jax.random.normal(scales, (n,))
    return x.astype(dtype), scale.astype(dtype), eps


def reference(x, scale, eps):
    x, scale = x.astype(jnp.float32), scale.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps) * scale


def work(x, scale, eps):
    return {"bytes": 2 * x.nbytes}
