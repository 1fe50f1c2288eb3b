import jax
import jax.numpy as jnp

SHAPES = {
    "16x128x256 bf16": dict(m=16, n=128, k=256, dtype="bfloat16"),
    "21x192x200 f16, 2 blocks of 16": dict(m=21, n=192, k=200, dtype="float16"),
    "27x128x128 bf16 in 32 rows": dict(m=27, n=128, k=128, dtype="bfloat16", bm=32),
    "16x8192x8192 bf16": dict(m=16, n=8192, k=8192, dtype="bfloat16"),
    "32x8192x8192 bf16": dict(m=32, n=8192, k=8192, dtype="bfloat16", bm=32),
    "5x8192x8192 bf16": dict(m=5, n=8192, k=8192, dtype="bfloat16"),
}
SMALL = ("21x192x200 f16, 2 blocks of 16", "16x128x256 bf16", "27x128x128 bf16 in 32 rows")
TIMED = ("16x8192x8192 bf16", "32x8192x8192 bf16", "5x8192x8192 bf16")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "the rows that are not copied": ("self.sums.at[self.window[0]]", "self.sums.at[pl.ds(32, self.window[0].size)]", "interpret"),
    "all rows as the tile": ("plgpu.load(self.sums.at[self.window[0]], layout=self.layout, optimized=False)", "acc[...]", "lower"),
    "bias along rows": ("part.load_cols(bias_ref", "part.load_rows(bias_ref", "lower"),
    "no bias": ("y = acc + ", "y = acc + 0 * ", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    keys = jax.random.split(jax.random.key(23), 3)
    x = 0.5 + jax.random.normal(keys[0], (m, k))
    w = (0.5 + jax.random.normal(keys[1], (k, n))) / k**0.5
    bias = 4 * jax.random.normal(keys[2], (n,))
    return "run", tuple(array.astype(dtype) for array in (x, w, bias)), config


def reference(x, w, bias):
    return jnp.dot(x.astype(jnp.float32), w.astype(jnp.float32), precision="highest") + bias.astype(jnp.float32)


def peers(x, w, bias):
    return {"XLA": lambda x, w, bias: (jnp.dot(x, w, preferred_element_type=jnp.float32) + bias).astype(x.dtype)}


def work(x, w, bias):
    (m, k), n = x.shape, w.shape[1]
    return {"bytes": x.nbytes + w.nbytes + m * n * x.itemsize, "flops": 2 * m * n * k}
