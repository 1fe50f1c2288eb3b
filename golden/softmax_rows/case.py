import jax
import jax.numpy as jnp

SHAPES = {
    "5x200 f32": dict(m=5, n=200, dtype="float32"),
    "37x130 bf16": dict(m=37, n=130, dtype="bfloat16"),
    "8x256 f16": dict(m=8, n=256, dtype="float16", tile_rows=4),
    "3x1001 f32": dict(m=3, n=1001, dtype="float32", tile_rows=1),
    "1000x5000 bf16": dict(m=1000, n=5000, dtype="bfloat16"),
    "16384x4096 bf16": dict(m=16384, n=4096, dtype="bfloat16"),
    "16384x4096 f32": dict(m=16384, n=4096, dtype="float32"),
    "16384x1001 bf16": dict(m=16384, n=1001, dtype="bfloat16"),
    "16384x1001 f32": dict(m=16384, n=1001, dtype="float32"),
}
SMALL = ("5x200 f32", "37x130 bf16", "8x256 f16", "3x1001 f32")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")
WRONG = {
    "columns past the end hold 0": ("other=-jnp.inf", "other=0.0", "interpret"),
    "load without its mask": ("mask=mask, other=-jnp.inf,", "", "interpret"),
    "no mask of the rows": (
        "(rows < n_rows)[:, None] & (cols < n_cols)[None, :]",
        "(cols < n_cols)[None, :]",
        "interpret",
    ),
    "bound one short": ("(cols < n_cols)", "(cols < n_cols - 1)", "interpret"),
    "maximum of the columns": ("jnp.max(x, axis=1)[:, None]", "jnp.max(x, axis=0)[None, :]", "interpret"),
    "operands of the quotient exchanged": (
        "e / jnp.sum(e, axis=1)[:, None]",
        "jnp.sum(e, axis=1)[:, None] / e",
        "interpret",
    ),
    "zeros": ("probs = e /", "probs = 0 * e /", "interpret"),
}


def inputs(m, n, dtype, **config):
    scores, offsets = jax.random.split(jax.random.key(2))
    # Every row far below zero, each by another offset: a column filled with zero would win the row.
    x = 3 * jax.random.normal(scores, (m, n)) - jax.random.uniform(offsets, (m, 1), minval=20, maxval=60)
    return "run", (x.astype(dtype),), config


def reference(x):
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1)


def peers(x):
    return {"XLA": lambda x: jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)}


def work(x):
    return {"bytes": 2 * x.nbytes}
