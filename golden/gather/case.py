import jax
import jax.numpy as jnp

SHAPES = {
    "300 of 77 f32": dict(entry="gather", n=300, table=77, dtype="float32", block=128),
    "4096 of 1000 bf16": dict(entry="gather", n=4096, table=1000, dtype="bfloat16", block=512),
    "32 rows of 64 f32": dict(entry="gather_rows", n=32, table=50, width=64, dtype="float32"),
    "32 rows of 128 bf16": dict(entry="gather_rows", n=32, table=50, width=128, dtype="bfloat16"),
    "2^24 of 2^20 f32": dict(entry="gather", n=2**24, table=2**20, dtype="float32"),
    "2^24-77 of 2^20 f32": dict(entry="gather", n=2**24 - 77, table=2**20, dtype="float32"),
    "32768 rows of 512 f32": dict(entry="gather_rows", n=32768, table=10000, width=512, dtype="float32"),
    "32768 rows of 512 bf16": dict(entry="gather_rows", n=32768, table=10000, width=512, dtype="bfloat16"),
}
ENTRIES = {label: shape["entry"] for label, shape in SHAPES.items()}
SMALL = ("300 of 77 f32", "4096 of 1000 bf16", "32 rows of 64 f32", "32 rows of 128 bf16")
TIMED = tuple(label for label in SHAPES if label not in SMALL)
WRONG = {
    "elements instead of picked elements": ("_load(table_ref, index, mask", "_load(table_ref, at, mask", "interpret"),
    "stored without a mask": ("layout=layout),\n        mask=inside,", "layout=layout),\n       ", "interpret"),
}


def inputs(entry, n, table, dtype, width=None, **config):
    values, indices = jax.random.split(jax.random.key(7))
    values = jax.random.normal(values, (table,) if width is None else (table, width)).astype(dtype)
    return entry, (values, jax.random.randint(indices, (n,), 0, table, jnp.int32)), config


def pick(table, index, **config):
    return table[index]


reference = {"gather": pick, "gather_rows": pick}


def work(table, index, **config):
    picked = index.size * table.itemsize * (table.shape[1] if table.ndim == 2 else 1)
    return {"bytes": index.nbytes + 2 * picked}
