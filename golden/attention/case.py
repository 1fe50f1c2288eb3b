import functools

import jax
import jax.numpy as jnp

SHAPES = {
    "2 heads, 256x256x64 f16": dict(heads=2, kv_heads=1, rows=256, keys=256, head_dim=64, dtype="float16", block_k=64),
    "2 heads, 384x256x128 bf16, not causal": dict(
        heads=2, kv_heads=2, rows=384, keys=256, head_dim=128, dtype="bfloat16", block_k=64, causal=False
    ),
    "2 heads, 128x512x96 bf16, not causal": dict(
        heads=2, kv_heads=1, rows=128, keys=512, head_dim=96, dtype="bfloat16", causal=False
    ),
    "32 heads, 4096x4096x128 f16": dict(heads=32, kv_heads=32, rows=4096, keys=4096, head_dim=128, dtype="float16"),
    "32 heads, 4096x4096x128 f16, not causal": dict(
        heads=32, kv_heads=32, rows=4096, keys=4096, head_dim=128, dtype="float16", causal=False
    ),
    "32 heads, 4096x4096x64 bf16": dict(heads=32, kv_heads=8, rows=4096, keys=4096, head_dim=64, dtype="bfloat16"),
}
SMALL = ("2 heads, 256x256x64 f16", "2 heads, 384x256x128 bf16, not causal")
TIMED = (
    "32 heads, 4096x4096x128 f16", "32 heads, 4096x4096x128 f16, not causal", "32 heads, 4096x4096x64 bf16",
)
# A missing wait for a product is not among them: no check without a GPU notices it.
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "stage given back too early": ("    k, v = ring.wait(t)\n", "    k, v = ring.wait(t)\n    ring.release(t)\n", "interpret"),
    "accumulator not rescaled": ("acc = fade[:, None] * acc", "acc = 1 * acc", "interpret"),
    "mask off by one": ("row[:, None] >= column", "row[:, None] > column", "interpret"),
    "both warpgroups on the same rows": (
        "pl.ds(self.wg * size if self.tile.warpgroups > 1 else 0, size)", "pl.ds(0, size)", "interpret"
    ),
    "rows counted from the block": ("part.indices(rows, axis=0)", "part.indices(rows.size, axis=0)", "interpret"),
    "keys and values exchanged": ("k, v = ring.wait(t)", "v, k = ring.wait(t)", "interpret"),
    "one step too few": ("first + block_q + block_k - 1, block_k)\n  part", "first + block_k - 1, block_k)\n  part", "interpret"),
}
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}


def inputs(heads, kv_heads, rows, keys, head_dim, dtype, causal=True, **config):
    q, k, v = jax.random.split(jax.random.key(11), 3)
    q = 2 * jax.random.normal(q, (heads, rows, head_dim))
    k = jax.random.normal(k, (kv_heads, keys, head_dim))
    v = 0.5 + jax.random.normal(v, (kv_heads, keys, head_dim))
    return "run" if causal else "run_full", (q.astype(dtype), k.astype(dtype), v.astype(dtype)), config


def _reference(causal, q, k, v):
    group = q.shape[0] // k.shape[0]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = jnp.repeat(k, group, axis=0), jnp.repeat(v, group, axis=0)
    s = jnp.einsum("hqd,hkd->hqk", q, k, precision="highest") * q.shape[-1] ** -0.5
    if causal:
        s = jnp.where(jnp.arange(s.shape[1])[:, None] >= jnp.arange(s.shape[2]), s, -jnp.inf)
    out = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(s, axis=-1), v, precision="highest")
    return [out, jax.nn.logsumexp(s, axis=-1) / jnp.log(2.0)]


reference = {"run": functools.partial(_reference, True), "run_full": functools.partial(_reference, False)}


def work(q, k, v):
    return {"bytes": 2 * q.nbytes + k.nbytes + v.nbytes}
