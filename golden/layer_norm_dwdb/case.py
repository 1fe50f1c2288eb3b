import jax
import jax.numpy as jnp
from jax import lax

SHAPES = {
    "32x48 f32": dict(m=32, n=48, dtype="float32"),
    "37x50 f32": dict(m=37, n=50, dtype="float32"),
    "70x33 bf16": dict(m=70, n=33, dtype="bfloat16"),
    "45x100 f16 in 32x64": dict(m=45, n=100, dtype="float16", block_m=32, block_n=64, num_warps=4),
    "1000x1001 f32": dict(m=1000, n=1001, dtype="float32"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 bf16 in 32x128": dict(m=16384, n=4096, dtype="bfloat16", block_m=32, block_n=128, num_warps=4),
}
SMALL = ("37x50 f32", "32x48 f32", "70x33 bf16", "45x100 f16 in 32x64")
TIMED = ("16384x4096 bf16", "16384x4096 bf16 in 32x128")
WRONG = {
    "no mask of the rows": ("row_mask[:, None] & col_mask[None, :]", "col_mask[None, :]", "interpret"),
    "gradients past the end are 1": (
        "dy_ref, (rows[:, None], cols[None, :]), mask=mask, other=0.0,",
        "dy_ref, (rows[:, None], cols[None, :]), mask=mask, other=1.0,",
        "interpret",
    ),
    "last rows not in the sums": ("pl.cdiv(m, block_m), body", "m // block_m, body", "interpret"),
    "sums exchanged": (
        "dw = dw.sum(axis=0)\n  db = db.sum(axis=0)",
        "dw, db = db.sum(axis=0), dw.sum(axis=0)",
        "interpret",
    ),
    "only the last rows": ("return dw + dy * x_hat, db + dy", "return dy * x_hat, dy", "interpret"),
    "store without its mask": ("db.astype(db_ref.dtype), mask=col_mask,", "db.astype(db_ref.dtype),", "interpret"),
    "statistics laid out along columns": ("row_layout = layout.reduce(1)", "row_layout = layout.reduce(0)", "lower"),
    "no scratch for the sums across warps": ("reduction_scratch_bytes=8192", "reduction_scratch_bytes=0", "compile"),
}


def inputs(m, n, dtype, **config):
    values, gradients = jax.random.split(jax.random.key(6))
    x = (1 + 3 * jax.random.normal(values, (m, n))).astype(dtype)
    dy = (0.5 + jax.random.normal(gradients, (m, n))).astype(dtype)
    mean = jnp.mean(x, axis=1, dtype=jnp.float32)
    rstd = lax.rsqrt(jnp.var(x.astype(jnp.float32), axis=1) + 1e-5)
    return "run", (x, dy, mean, rstd), config


def reference(x, dy, mean, rstd):
    dy = dy.astype(jnp.float32)
    x_hat = (x.astype(jnp.float32) - mean[:, None]) * rstd[:, None]
    return jnp.sum(dy * x_hat, axis=0), jnp.sum(dy, axis=0)


def work(x, dy, mean, rstd):
    return {"bytes": x.nbytes + dy.nbytes}
