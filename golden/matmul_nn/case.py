import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x256x192 bf16": dict(m=128, n=256, k=192, dtype="bfloat16"),
    "256x128x128 f16 in 64x64x64": dict(m=256, n=128, k=128, dtype="float16", **SMALL_BLOCKS),
    "128x128x32 bf16 in 128x128x32": dict(
        m=128, n=128, k=32, dtype="bfloat16", block_m=128, block_n=128, block_k=32, num_warps=4
    ),
    "1152x1280x4096 bf16 in 64x64x64": dict(m=1152, n=1280, k=4096, dtype="bfloat16", **SMALL_BLOCKS),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16"),
    "4096^3 f16": dict(m=4096, n=4096, k=4096, dtype="float16"),
    "4096^3 bf16 in 256x128x64": dict(m=4096, n=4096, k=4096, dtype="bfloat16", block_m=256, block_n=128),
    "4096^3 bf16 in 128x128x64": dict(
        m=4096, n=4096, k=4096, dtype="bfloat16", block_m=128, block_n=128, num_warps=4, num_stages=4
    ),
}
SMALL = ("256x128x128 f16 in 64x64x64", "128x256x192 bf16", "128x128x32 bf16 in 128x128x32")
TIMED = ("4096^3 bf16", "4096^3 f16", "4096^3 bf16 in 256x128x64", "4096^3 bf16 in 128x128x64")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
# A missing wgmma_wait is not among them: no check without a GPU notices it.
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "stage given back twice": (
        "plgpu.barrier_arrive(self.empty.at[self.slot(count)])",
        "[plgpu.barrier_arrive(self.empty.at[self.slot(count)]) for _ in range(2)]",
        "interpret",
    ),
    "store without commit_smem": ("plgpu.commit_smem()", "pass", "interpret"),
    "chunks of the result overwrite each other": (
        "plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)",
        "pass",
        "interpret",
    ),
    "operands exchanged": ("a, b = ring.wait(count)", "b, a = ring.wait(count)", "interpret"),
    "the first step again and again": (
        "pl.ds(i * block_k, block_k)\n        return ring",
        "pl.ds(0, block_k)\n        return ring",
        "interpret",
    ),
    "zeros": ("acc.astype(c_ref.dtype)", "(0 * acc).astype(c_ref.dtype)", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    a, b = jax.random.split(jax.random.key(7))
    # Means that are not zero: a product of the wrong rows or columns is far off.
    a = 0.5 + jax.random.normal(a, (m, k))
    b = (0.5 + jax.random.normal(b, (k, n))) / k**0.5
    return "run", (a.astype(dtype), b.astype(dtype)), config


def reference(a, b):
    return jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")


def peers(a, b):
    return {"cuBLAS": jnp.dot}


def work(a, b):
    (m, k), n = a.shape, b.shape[1]
    return {"bytes": a.nbytes + b.nbytes + m * n * a.itemsize, "flops": 2 * m * n * k}
