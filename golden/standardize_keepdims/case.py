import jax
import jax.numpy as jnp

SHAPES = {"as written": {}}
SMALL = ("as written",)
TIMED = ()
WRONG = {
    "mean not taken off": ("((x - mean[:, None])", "((x)", "interpret"),
    "sum instead of mean": ("variance = jnp.mean(", "variance = jnp.sum(", "interpret"),
    "every program on the first block": ('i = lax.axis_index("i")', "i = 0", "interpret"),
}


def inputs():
    values, gains, offsets = jax.random.split(jax.random.key(2), 3)
    x = (2 + 4 * jax.random.normal(values, (96, 128))).astype(jnp.float16)
    return x, 1 + 0.2 * jax.random.normal(gains, (128,)), 0.3 * jax.random.normal(offsets, (128,))


def reference(x, gain, offset):
    x = x.astype(jnp.float32)
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * gain + offset


def work(*args):
    return {"bytes": sum(a.nbytes for a in args)}
