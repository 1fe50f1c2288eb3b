import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x256x128 bf16": dict(m=128, n=256, k=128, dtype="bfloat16"),
    "128x192x256 f16 in 64x64x64": dict(m=128, n=192, k=256, dtype="float16", **SMALL_BLOCKS),
    "128x128x192 bf16 to f32": dict(m=128, n=128, k=192, dtype="bfloat16", out_dtype="float32"),
    "1152x1280x4096 bf16": dict(m=1152, n=1280, k=4096, dtype="bfloat16"),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16", block_n=256),
}
SMALL = ("128x192x256 f16 in 64x64x64", "128x256x128 bf16", "128x128x192 bf16 to f32")
TIMED = ("1152x1280x4096 bf16", "4096^3 bf16")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "store without commit_smem": ("plgpu.commit_smem()", "pass", "interpret"),
    "operands exchanged": ("a, b = ring.wait(count)", "b, a = ring.wait(count)", "interpret"),
    "not transposed": ("a.at[:, part.rows].transpose((1, 0))", "a.at[:, part.rows]", "interpret"),
    "zeros": ("acc.astype(out_ref.dtype)", "(0 * acc).astype(out_ref.dtype)", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    a, b = jax.random.split(jax.random.key(9))
    # Means that are not zero: a product of the wrong rows or columns is far off.
    a = 0.5 + jax.random.normal(a, (k, m))
    b = (0.5 + jax.random.normal(b, (k, n))) / k**0.5
    return "run", (a.astype(dtype), b.astype(dtype)), config


def reference(a, b):
    return jnp.dot(a.astype(jnp.float32).T, b.astype(jnp.float32), precision="highest")


def peers(a, b):
    return {"cuBLAS": lambda a, b: jnp.dot(a.T, b)}


def work(a, b):
    (k, m), n = a.shape, b.shape[1]
    return {"bytes": a.nbytes + b.nbytes + m * n * a.itemsize, "flops": 2 * m * n * k}
