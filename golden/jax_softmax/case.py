import jax
import jax.numpy as jnp

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.softmax"

SHAPES = {
    "5x200 f32": dict(shape=(5, 200), dtype="float32"),
    "2x3x128 bf16": dict(shape=(2, 3, 128), dtype="bfloat16"),
    "3x1001 f16": dict(shape=(3, 1001), dtype="float16"),
    "130 f32": dict(shape=(130,), dtype="float32"),
    "16384x4096 bf16": dict(shape=(16384, 4096), dtype="bfloat16"),
    "16384x4096 f32": dict(shape=(16384, 4096), dtype="float32"),
    "16384x1001 bf16": dict(shape=(16384, 1001), dtype="bfloat16"),
    "16384x1001 f32": dict(shape=(16384, 1001), dtype="float32"),
}
ENTRIES = dict.fromkeys(SHAPES, "softmax")
SMALL = ("5x200 f32", "2x3x128 bf16", "3x1001 f16", "130 f32")
TIMED = ("16384x4096 bf16", "16384x4096 f32", "16384x1001 bf16", "16384x1001 f32")


def inputs(shape, dtype):
    scores, offsets = jax.random.split(jax.random.key(12))
    # Every row far below zero, each by another offset: a column filled with zero would win the row.
    offset = jax.random.uniform(offsets, (*shape[:-1], 1), minval=20, maxval=60)
    return ((3 * jax.random.normal(scores, shape) - offset).astype(dtype),)


def reference(x):
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1)


def work(x):
    return {"bytes": 2 * x.nbytes}
