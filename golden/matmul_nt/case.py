import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(bm=64, bn=64, bk=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x256x128 bf16": dict(m=128, n=256, k=128, dtype="bfloat16"),
    "136x200x72 bf16": dict(m=136, n=200, k=72, dtype="bfloat16"),
    "200x72x264 f16 in 64x64x64": dict(m=200, n=72, k=264, dtype="float16", **SMALL_BLOCKS),
    "40x48x24 bf16 in 64x64x64": dict(m=40, n=48, k=24, dtype="bfloat16", **SMALL_BLOCKS),
    "1000x1088x1152 bf16": dict(m=1000, n=1088, k=1152, dtype="bfloat16"),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16", bn=256),
    "4008x4160x4032 bf16": dict(m=4008, n=4160, k=4032, dtype="bfloat16", bn=256),
}
SMALL = ("200x72x264 f16 in 64x64x64", "128x256x128 bf16", "136x200x72 bf16", "40x48x24 bf16 in 64x64x64")
TIMED = ("1000x1088x1152 bf16", "4096^3 bf16", "4008x4160x4032 bf16")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "store without commit_smem": ("plgpu.commit_smem()", "pass", "interpret"),
    "operands exchanged": ("a, b = ring.wait(count)", "b, a = ring.wait(count)", "interpret"),
    "not transposed": (".transpose((1, 0))", "", "interpret"),
    "the first step again and again": (
        "a_ref.at[pl.ds(i * bm, bm), pl.ds(step * bk, bk)]",
        "a_ref.at[pl.ds(i * bm, bm), pl.ds(0, bk)]",
        "interpret",
    ),
    "padding not zero": (
        "jnp.pad(x, [(0, m - n) for n, m in zip(x.shape, shape)])",
        "jnp.pad(x, [(0, m - n) for n, m in zip(x.shape, shape)], constant_values=1)",
        "interpret",
    ),
    "every program on the first rows": (
        "part.store(acc.astype(o_ref.dtype), o_ref.at[pl.ds(i * bm, bm)",
        "part.store(acc.astype(o_ref.dtype), o_ref.at[pl.ds(0 * bm, bm)",
        "interpret",
    ),
    "zeros": ("acc.astype(o_ref.dtype)", "(0 * acc).astype(o_ref.dtype)", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    a, b = jax.random.split(jax.random.key(8))
    # Means that are not zero: a product of the wrong rows or columns is far off.
    a = 0.5 + jax.random.normal(a, (m, k))
    b = (0.5 + jax.random.normal(b, (n, k))) / k**0.5
    return "run", (a.astype(dtype), b.astype(dtype)), config


def reference(a, b):
    return jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32).T, precision="highest")


def peers(a, b):
    return {"cuBLAS": lambda a, b: jnp.dot(a, b.T)}


def work(a, b):
    (m, k), n = a.shape, b.shape[0]
    return {"bytes": a.nbytes + b.nbytes + m * n * a.itemsize, "flops": 2 * m * n * k}
