import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x256x192 bf16": dict(m=128, n=256, k=192, dtype="bfloat16"),
    "192x128x128 f16 in 64x64x64": dict(m=192, n=128, k=128, dtype="float16", **SMALL_BLOCKS),
    "128x128x128 bf16, residual f32": dict(m=128, n=128, k=128, dtype="bfloat16", residual_dtype="float32"),
    "1152x1280x4096 bf16": dict(m=1152, n=1280, k=4096, dtype="bfloat16"),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16", block_n=256),
}
SMALL = ("192x128x128 f16 in 64x64x64", "128x256x192 bf16", "128x128x128 bf16, residual f32")
TIMED = ("1152x1280x4096 bf16", "4096^3 bf16")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
MAX_SPILL_BYTES = 16  # JAX 0.12 spills 8 for one warpgroup with a 128 x 128 tile and a float32 residual
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "store without commit_smem": ("plgpu.commit_smem()", "pass", "interpret"),
    "no activation": ("y = activation(acc +", "y = (acc +", "interpret"),
    "bias after the activation": (
        "activation(acc + part.load_cols(bias_ref).astype(jnp.float32)[None, :])",
        "activation(acc) + part.load_cols(bias_ref).astype(jnp.float32)[None, :]",
        "interpret",
    ),
    "no residual": ("y += part", "y = y + 0 * part", "interpret"),
    "bias along rows": (
        "part.load_cols(bias_ref).astype(jnp.float32)[None, :]",
        "part.load_rows(bias_ref).astype(jnp.float32)[:, None]",
        "interpret",
    ),
    "bias laid out along rows": ("layout=self.layout.reduce(0)", "layout=self.layout.reduce(1)", "lower"),
}


def inputs(m, n, k, dtype, residual_dtype=None, **config):
    keys = jax.random.split(jax.random.key(10), 4)
    x = 0.5 + jax.random.normal(keys[0], (m, k))
    w = jax.random.normal(keys[1], (k, n)) / k**0.5
    bias = jax.random.normal(keys[2], (n,))
    residual = 2 * jax.random.normal(keys[3], (m, n))
    arrays = *(array.astype(dtype) for array in (x, w, bias)), residual.astype(residual_dtype or dtype)
    return "run", arrays, config


def reference(x, w, bias, residual):
    product = jnp.dot(x.astype(jnp.float32), w.astype(jnp.float32), precision="highest")
    return jax.nn.gelu(product + bias.astype(jnp.float32)) + residual.astype(jnp.float32)


def peers(x, w, bias, residual):
    def xla(x, w, bias, residual):
        y = jax.nn.gelu(jnp.dot(x, w, preferred_element_type=jnp.float32) + bias.astype(jnp.float32))
        return (y + residual.astype(jnp.float32)).astype(residual.dtype)

    return {"XLA": xla}


def work(x, w, bias, residual):
    (m, k), n = x.shape, w.shape[1]
    return {"bytes": x.nbytes + w.nbytes + 2 * residual.nbytes, "flops": 2 * m * n * k}
