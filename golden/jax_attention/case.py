"""JAX's own flash attention: forward, and with gradients, which run its preprocessing and its backward kernel."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention as original

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.attention"

_LARGE = dict(batch=4, rows=4096, heads=8)
SHAPES = {
    "1x256x2x64 f16, causal, segments": dict(
        batch=1, rows=256, heads=2, head_dim=64, dtype="float16", causal=True, segments=3, block_k=64
    ),
    "1x256x1x96 bf16": dict(batch=1, rows=256, heads=1, head_dim=96, dtype="bfloat16", block_k=64),
    "1x256x1x64 bf16, causal, gradients": dict(
        batch=1, rows=256, heads=1, head_dim=64, dtype="bfloat16", causal=True, gradients=True, block=128
    ),
    "2x512x2x80 f16, segments, gradients": dict(
        batch=2, rows=512, heads=2, head_dim=80, dtype="float16", segments=3, gradients=True
    ),
    "4x4096x8x128 f16": dict(_LARGE, head_dim=128, dtype="float16"),
    "4x4096x8x128 f16, causal": dict(_LARGE, head_dim=128, dtype="float16", causal=True),
    "4x4096x8x128 f16, segments": dict(_LARGE, head_dim=128, dtype="float16", segments=8),
    "4x4096x8x64 bf16, causal": dict(_LARGE, head_dim=64, dtype="bfloat16", causal=True),
    "4x4096x8x256 bf16, causal": dict(_LARGE, head_dim=256, dtype="bfloat16", causal=True, block_k=64),
    "4x4096x8x128 f16, gradients": dict(_LARGE, head_dim=128, dtype="float16", gradients=True),
    "4x4096x8x128 f16, causal, gradients": dict(_LARGE, head_dim=128, dtype="float16", causal=True, gradients=True),
}
SMALL = ("1x256x2x64 f16, causal, segments", "1x256x1x64 bf16, causal, gradients")
TIMED = tuple(SHAPES)[4:]
# Backward with blocks of 128x128, which sm100 needs, holds four tiles of scores in registers; blocks of 64 rows on
# sm90, as in the shapes that are timed, spill nothing.
MAX_SPILL_BYTES = 4096
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
# gradients are sums of products that were rounded before they were added
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}


def inputs(batch, rows, heads, head_dim, dtype, causal=False, segments=0, gradients=False, block_k=128, block=64):
    keys = jax.random.split(jax.random.key(23), 4)
    q, k, v, do = (jax.random.normal(key, (batch, rows, heads, head_dim)).astype(dtype) for key in keys)
    ids = None
    if segments:  # of unequal lengths, no multiples of a block
        ids = jnp.cumsum(jnp.arange(rows) % (rows // segments + 7) == 0).astype(jnp.int32)
        ids = jnp.broadcast_to(ids, (batch, rows))
    if gradients:
        return "example:gradients", (q, k, v, ids, causal, block_k, do, block)
    return "example:forward", (q, k, v, ids, causal, block_k)


def forward(module, q, k, v, ids, causal, block_k, num_warps=8, block=64):
    blocks = module.BlockSizes(128, block_k, block, 128, 128, block)  # sm100 multiplies 128 rows at least
    return module.mha(
        q, k, v, ids, sm_scale=q.shape[-1] ** -0.5, causal=causal, block_sizes=blocks, num_warps=num_warps, num_stages=2
    )


def gradients(module, q, k, v, ids, causal, block_k, do, block):
    out, vjp = jax.vjp(lambda q, k, v: forward(module, q, k, v, ids, causal, block_k, block=block), q, k, v)
    return out, *vjp(do)


def _reference(q, k, v, ids, causal, block_k):
    del block_k
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") * q.shape[-1] ** -0.5
    if ids is not None:
        s = jnp.where((ids[:, :, None] == ids[:, None, :])[:, None], s, -jnp.inf)
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v, precision="highest")


def _gradients(q, k, v, ids, causal, block_k, do, block):
    del block
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    out, vjp = jax.vjp(lambda q, k, v: _reference(q, k, v, ids, causal, block_k), q, k, v)
    return out, *vjp(do.astype(jnp.float32))


reference = {"example:forward": _reference, "example:gradients": _gradients}


def peers(q, k, v, ids, causal, block_k, *rest):
    """The original with the blocks that are fastest for it, and the library's attention."""
    if rest or q.shape[-1] > 128:
        return {}
    found = {"triton, 128x64 blocks": functools.partial(forward, original, causal=causal, block_k=64, num_warps=4)}
    found = {name: lambda q, k, v, ids, *_, run=run: run(q, k, v, ids) for name, run in found.items()}
    if ids is None:
        found["cudnn"] = lambda q, k, v, *_: jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")
    return found


def work(q, k, v, ids, causal, block_k, *rest):
    """Two products forward, five more backward; half of them where causal."""
    batch, rows, heads, head_dim = q.shape
    products = 7 if rest else 2
    return {"flops": products * 2 * batch * heads * rows * rows * head_dim // (2 if causal else 1)}
