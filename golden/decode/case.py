import jax
import jax.numpy as jnp

SHAPES = {
    "2 sequences, 2x8 heads, 16 pages, bf16": dict(
        sequences=2, groups=2, heads=8, pages=16, head_dim=64, dtype="bfloat16", lengths=(256, 83), pages_per_step=4
    ),
    "32 sequences, 4x8 heads, 256 pages, 4 parts, f16": dict(
        sequences=32, groups=4, heads=8, pages=256, head_dim=128, dtype="float16", parts=4, pages_per_step=8
    ),
    "32 sequences, 4x16 heads, 256 pages, 16 parts, bf16": dict(
        sequences=32, groups=4, heads=16, pages=256, head_dim=128, dtype="bfloat16", parts=16, pages_per_step=4
    ),
}
SMALL = tuple(SHAPES)[:1]
TIMED = tuple(SHAPES)[1:]
PAGE = 16
WRONG = {
    "pages of the step before": ("pl.ds(t * pages_per_step, pages_per_step)", "pl.ds(0, pages_per_step)", "interpret"),
    "pages below each other in another order": ("pl.ds(i * rows, rows)", "pl.ds((len(pages) - 1 - i) * rows, rows)", "interpret"),
    "mask off by one": ("(token < end)", "(token <= end)", "interpret"),
    "stage given back too early": ("      k, v = ring.wait(t)\n", "      k, v = ring.wait(t)\n      ring.release(t)\n", "interpret"),
}
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}


def inputs(sequences, groups, heads, pages, head_dim, dtype, lengths=None, **config):
    q, k, v, table = jax.random.split(jax.random.key(23), 4)
    shape = (groups, sequences * pages, PAGE, head_dim)
    q = 2 * jax.random.normal(q, (sequences, groups, heads, head_dim))
    k = jax.random.normal(k, shape)
    v = 0.5 + jax.random.normal(v, shape)
    table = jax.random.permutation(table, sequences * pages).reshape(sequences, pages).astype(jnp.int32)
    lengths = jnp.array(lengths or [pages * PAGE] * sequences, jnp.int32)
    return "run", (*(x.astype(dtype) for x in (q, k, v)), table, lengths), config


def reference(q, k, v, table, lengths):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    sequences, groups, _, head_dim = q.shape
    k, v = (x[:, table].reshape(groups, sequences, -1, head_dim) for x in (k, v))
    s = jnp.einsum("bghd,gbkd->bghk", q, k, precision="highest") * head_dim**-0.5
    s = jnp.where(jnp.arange(s.shape[-1]) < lengths[:, None, None, None], s, -jnp.inf)
    return jnp.einsum("bghk,gbkd->bghd", jax.nn.softmax(s, axis=-1), v, precision="highest")


def work(q, k, v, table, lengths):
    return {"bytes": 2 * q.nbytes + k.nbytes + v.nbytes}
