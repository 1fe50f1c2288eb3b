"""JAX's own decode attention: one query per sequence, keys divided between programs, few rows of heads."""

import jax
import jax.numpy as jnp

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.decode_attention"

SHAPES = {
    "mqa 2x8 heads, 256 keys, bf16": dict(
        batch=2, heads=8, kv_heads=0, keys=256, head_dim=128, dtype="bfloat16", lengths=(256, 77), block_k=64
    ),
    "gqa 1x40/2 heads, 256 keys, from 50, f16": dict(
        batch=1, heads=40, kv_heads=2, keys=256, head_dim=64, dtype="float16", lengths=(200,), starts=(50,), block_k=64
    ),
    "gqa 32x32/4 heads, 4096 keys, f16": dict(
        batch=32, heads=32, kv_heads=4, keys=4096, head_dim=128, dtype="float16", k_splits=4
    ),
    "gqa 32x32/4 heads, 4096 keys in 16 parts, bf16": dict(
        batch=32, heads=32, kv_heads=4, keys=4096, head_dim=128, dtype="bfloat16", k_splits=16
    ),
}
SMALL = tuple(SHAPES)[:2]
TIMED = tuple(SHAPES)[2:]
# What is stored in 16 bits is joined in float32.
TOLERANCE = {"float32": 1e-2}
# On sm100 the queries stay in registers beside scores and results of 128 padded rows.
MAX_SPILL_BYTES = 256
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}


def inputs(batch, heads, kv_heads, keys, head_dim, dtype, lengths=None, starts=None, block_k=128, k_splits=2):
    q, k, v = jax.random.split(jax.random.key(21), 3)
    shape = (batch, keys, kv_heads, head_dim) if kv_heads else (batch, keys, head_dim)
    q = 2 * jax.random.normal(q, (batch, heads, head_dim))
    k = jax.random.normal(k, shape)
    v = 0.5 + jax.random.normal(v, shape)
    limits = [None if x is None else jnp.array(x, jnp.int32) for x in (starts, lengths)]
    arrays = tuple(x.astype(dtype) for x in (q, k, v))
    return "gqa" if kv_heads else "mqa", (*arrays, *limits), dict(k_splits=k_splits, block_k=block_k)


def _reference(q, k, v, start, length):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    if k.ndim == 3:
        k, v = k[:, :, None], v[:, :, None]
    group = q.shape[1] // k.shape[2]
    k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    s = jnp.einsum("bhd,bkhd->bhk", q, k, precision="highest") * q.shape[-1] ** -0.5
    at = jnp.arange(k.shape[1])[None, :]
    start = jnp.zeros(q.shape[0], jnp.int32) if start is None else start
    length = jnp.full(q.shape[0], k.shape[1]) if length is None else length
    s = jnp.where(((at >= start[:, None]) & (at < length[:, None]))[:, None, :], s, -jnp.inf)
    return jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(s, axis=-1), v, precision="highest")


reference = {"gqa": _reference, "mqa": _reference}


def work(q, k, v, start, length):
    return {"bytes": 2 * q.nbytes + k.nbytes + v.nbytes}
