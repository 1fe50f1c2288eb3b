import jax
import jax.numpy as jnp

SHAPES = {
    "1000 f32": dict(n=1000, dtype="float32"),
    "1 f32": dict(n=1, dtype="float32"),
    "2048 f16": dict(n=2048, dtype="float16"),
    "4099 bf16": dict(n=4099, dtype="bfloat16"),
    "777 i32": dict(n=777, dtype="int32"),
    "333 f32 in blocks of 64": dict(n=333, dtype="float32", block=64, num_warps=1),
    "2^26 f32": dict(n=2**26, dtype="float32"),
    "2^26 + 3 bf16": dict(n=2**26 + 3, dtype="bfloat16"),
}
SMALL = ("333 f32 in blocks of 64", "1000 f32", "1 f32", "2048 f16", "4099 bf16", "777 i32")
TIMED = ("2^26 f32", "2^26 + 3 bf16")
WRONG = {
    "load without its mask": ("x = _load(x_ref, at, mask=inside, other=0, ", "x = _load(x_ref, at, ", "interpret"),
    "store without its mask": ("x + y, mask=inside, ", "x + y, ", "interpret"),
    "bound one short": ("at < out_ref.shape[0]\n", "at < out_ref.shape[0] - 1\n", "interpret"),
    "vectors across the end": ("vec = _vec((x_ref, y_ref, out_ref), block, out_ref.shape[0])", "vec = 4", "interpret"),
    "first operand twice": ("y = _load(y_ref,", "y = _load(x_ref,", "interpret"),
    "zeros": ("at, x + y,", "at, 0 * x,", "interpret"),
}


def inputs(n, dtype, **config):
    x, y = (100 * jax.random.normal(key, (n,)) for key in jax.random.split(jax.random.key(1)))
    return "run", (x.astype(dtype), y.astype(dtype)), config


def reference(x, y):
    return x.astype(jnp.float32) + y.astype(jnp.float32)


def peers(x, y):
    return {"XLA": jnp.add}


def work(x, y):
    return {"bytes": 3 * x.nbytes, "flops": x.size}
