import jax
import jax.numpy as jnp

SHAPES = {
    "32x128 f32": dict(m=32, n=128),
    "16x256 i32": dict(m=16, n=256, dtype="int32"),
    "8x64 bf16": dict(m=8, n=64, dtype="bfloat16"),
    "2x2048 f32, 1 row": dict(m=2, n=2048, rows=1),
    "columns 128x64 f32": dict(entry="run_columns", m=128, n=64),
    "columns 64x16 i32": dict(entry="run_columns", m=64, n=16, dtype="int32"),
    "16384x1024 f32": dict(m=16384, n=1024),
    "16384x4096 f32, 1 row": dict(m=16384, n=4096, rows=1),
    "columns 131072x64 f32": dict(entry="run_columns", m=131072, n=64),
}
SMALL = tuple(SHAPES)[:6]
TIMED = tuple(SHAPES)[6:]
WRONG = {
    "rows along the other axis": ("axis=1, layout=layout)", "axis=0, layout=layout)", "interpret"),
}


def inputs(m, n, entry="run", dtype="float32", **config):
    return entry, (jax.random.randint(jax.random.key(0), (m, n), -8, 9).astype(dtype),), config  # exact sums


def _wide(x):
    return x.astype(jnp.int32 if x.dtype == jnp.int32 else jnp.float32)


def _columns(x):
    return jnp.cumsum(_wide(x).reshape(-1, 64, x.shape[1]), axis=1).reshape(x.shape)  # tiles of 64 rows


reference = {"run": lambda x: jnp.cumsum(_wide(x), axis=1), "run_columns": _columns}


def work(x):
    return {"bytes": 2 * x.nbytes}
