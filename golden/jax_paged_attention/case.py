"""JAX's own paged attention: keys and values in pages, whose numbers a table in memory holds."""

import functools

import jax
import jax.numpy as jnp

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.paged_attention"

SHAPES = {
    "2x16/2 heads, 16 pages, f16": dict(batch=2, heads=16, kv_heads=2, pages=16, head_dim=64, dtype="float16", lengths=(256, 77)),
    "1x40/2 heads, 8 pages, bf16": dict(batch=1, heads=40, kv_heads=2, pages=8, head_dim=128, dtype="bfloat16"),
    "32x32/4 heads, 256 pages, 4 parts, f16": dict(
        batch=32, heads=32, kv_heads=4, pages=256, head_dim=128, dtype="float16", k_splits=4
    ),
    "32x32/4 heads, 256 pages, 16 parts, bf16": dict(
        batch=32, heads=32, kv_heads=4, pages=256, head_dim=128, dtype="bfloat16", k_splits=16
    ),
}
CAP = 3.0
ENTRIES = dict.fromkeys(SHAPES, "paged_attention") | {"1x40/2 heads, 8 pages, bf16": "example:capped"}
SMALL = tuple(SHAPES)[:2]
TIMED = tuple(SHAPES)[2:]
# On sm100 the queries stay in registers beside scores and results of 128 padded rows.
MAX_SPILL_BYTES = 256
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
PAGE = 16


def inputs(batch, heads, kv_heads, pages, head_dim, dtype, lengths=None, k_splits=2):
    q, k, v, table = jax.random.split(jax.random.key(22), 4)
    shape = (kv_heads, batch * pages, PAGE, head_dim)
    q = 2 * head_dim**-0.5 * jax.random.normal(q, (batch, heads, head_dim))
    k = jax.random.normal(k, shape)
    v = 0.5 + jax.random.normal(v, shape)
    table = jax.random.permutation(table, batch * pages).reshape(batch, pages).astype(jnp.int32)
    lengths = None if lengths is None else jnp.array(lengths, jnp.int32)
    arrays = (*(x.astype(dtype) for x in (q, k, v)), table)
    if lengths is None and pages < 64:
        return "example:capped", arrays
    return "paged_attention", (*arrays, lengths), dict(k_splits=k_splits, pages_per_compute_block=4 if pages < 64 else 8)


def capped(module, q, k, v, table):
    config = dict(k_splits=2, pages_per_compute_block=4, attn_logits_soft_cap=CAP)
    return module.paged_attention(q, k, v, table, None, **config)


def _reference(q, k, v, table, lengths=None, cap=None):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    (batch, heads, depth), kv_heads = q.shape, k.shape[0]
    k, v = (x[:, table].reshape(kv_heads, batch, -1, depth) for x in (k, v))
    s = jnp.einsum("bhgd,hbkd->bhgk", q.reshape(batch, kv_heads, -1, depth), k, precision="highest")
    if cap is not None:
        s = jnp.tanh(s / cap) * cap
    if lengths is not None:
        s = jnp.where(jnp.arange(s.shape[-1]) < lengths[:, None, None, None], s, -jnp.inf)
    return jnp.einsum("bhgk,hbkd->bhgd", jax.nn.softmax(s, axis=-1), v, precision="highest").reshape(q.shape)


reference = {"paged_attention": _reference, "example:capped": functools.partial(_reference, cap=CAP)}


def work(q, k, v, table, lengths):
    return {"bytes": 2 * q.nbytes + k.nbytes + v.nbytes}
