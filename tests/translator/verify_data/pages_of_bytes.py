"""JAX's own paged attention with keys and values in 8 bits, each token with a scale."""

import jax
import jax.numpy as jnp

PAGE = 16


def inputs(batch=1, heads=8, kv_heads=1, pages=8, head_dim=64, length=77):
    q, k, v, table, k_scales, v_scales = jax.random.split(jax.random.key(24), 6)
    shape = (kv_heads, batch * pages, PAGE, head_dim)
    q = (2 * head_dim**-0.5 * jax.random.normal(q, (batch, heads, head_dim))).astype(jnp.bfloat16)
    k, v = (jax.random.randint(x, shape, -127, 128).astype(jnp.int8) for x in (k, v))
    scales = [jax.random.uniform(x, shape[:-1], minval=0.5, maxval=1.5) / 70 for x in (k_scales, v_scales)]
    table = jax.random.permutation(table, batch * pages).reshape(batch, pages).astype(jnp.int32)
    lengths = jnp.full(batch, length, jnp.int32)
    config = dict(k_splits=1, pages_per_compute_block=4)
    return "paged_attention", (q, k, v, table, lengths, *scales), config


def reference(q, k, v, table, lengths, k_scales, v_scales):
    (batch, heads, depth), kv_heads = q.shape, k.shape[0]
    k, v = (x.astype(jnp.float32) * s[..., None] for x, s in ((k, k_scales), (v, v_scales)))
    k, v = (x[:, table].reshape(kv_heads, batch, -1, depth) for x in (k, v))
    q = q.astype(jnp.float32).reshape(batch, kv_heads, -1, depth)
    s = jnp.einsum("bhgd,hbkd->bhgk", q, k, precision="highest")
    s = jnp.where(jnp.arange(s.shape[-1]) < lengths[:, None, None, None], s, -jnp.inf)
    out = jnp.einsum("bhgk,hbkd->bhgd", jax.nn.softmax(s, axis=-1), v, precision="highest")
    return out.reshape(batch, heads, depth)

