import jax
import jax.numpy as jnp

SHAPES = {
    "128x384x192 bf16": dict(m=128, n=384, k=192, dtype="bfloat16"),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16", block_n=256, num_warps=8),
}
SMALL = ("128x384x192 bf16",)
TIMED = ("4096^3 bf16",)
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "starts at zero": ("acc += part.load(c_ref)", "acc += 0 * part.load(c_ref)", "interpret"),
    "added twice": ("part.load(c_ref).astype(jnp.float32)", "2 * part.load(c_ref).astype(jnp.float32)", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    keys = jax.random.split(jax.random.key(25), 3)
    a = 0.5 + jax.random.normal(keys[0], (m, k))
    b = (0.5 + jax.random.normal(keys[1], (k, n))) / k**0.5
    c = 8 * jax.random.normal(keys[2], (m, n))
    return "run", tuple(array.astype(dtype) for array in (a, b, c)), config


def reference(a, b, c):
    return c.astype(jnp.float32) + jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")


def peers(a, b, c):
    return {"XLA": lambda a, b, c: (c + jnp.dot(a, b, preferred_element_type=jnp.float32)).astype(c.dtype)}


def work(a, b, c):
    (m, k), n = a.shape, b.shape[1]
    return {"bytes": a.nbytes + b.nbytes + 2 * c.nbytes, "flops": 2 * m * n * k}
