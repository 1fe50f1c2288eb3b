import jax
import jax.numpy as jnp

SHAPES = {
    "333 f32": dict(n=333, dtype="float32", block=128),
    "512 f16": dict(n=512, dtype="float16", block=256),
    "2^24 f32": dict(n=2**24, dtype="float32"),
    "2^24-77 f32": dict(n=2**24 - 77, dtype="float32"),
    "2^24 bf16": dict(n=2**24, dtype="bfloat16"),
}
SMALL = ("333 f32", "512 f16")
TIMED = ("2^24 f32", "2^24-77 f32", "2^24 bf16")
WRONG = {
    "in order": ("_store(out_ref, index, values", "_store(out_ref, at, values", "interpret"),
    "without a mask": ("_store(out_ref, index, values, mask=inside,", "_store(out_ref, index, values,", "interpret"),
}


def inputs(n, dtype, **config):
    values, order = jax.random.split(jax.random.key(8))
    # Every element is written once.
    index = jax.random.permutation(order, n).astype(jnp.int32)
    return "run", (jax.random.normal(values, (n,)).astype(dtype), index), config


def reference(values, index, **config):
    return jnp.zeros_like(values).at[index].set(values)


def work(values, index, **config):
    return {"bytes": index.nbytes + 2 * values.nbytes}
