import jax
import jax.numpy as jnp

SHAPES = {
    "split sum 256x128": dict(entry="split_sum", m=256, n=128),
    "histogram 300": dict(entry="histogram", n=300, count=40, block=128),
    "split sum 16384x4096": dict(entry="split_sum", m=16384, n=4096),
    "split sum 65536x256": dict(entry="split_sum", m=65536, n=256),
    "histogram 2^24 in 2^20": dict(entry="histogram", n=2**24, count=2**20),
    "histogram 2^24-77 in 2^20": dict(entry="histogram", n=2**24 - 77, count=2**20),
    "histogram 2^24 in 1000": dict(entry="histogram", n=2**24, count=1000),
}
ENTRIES = {label: shape["entry"] for label, shape in SHAPES.items()}
SMALL = ("split sum 256x128", "histogram 300")
TIMED = tuple(label for label in SHAPES if label not in SMALL)
WRONG = {
    "one block of rows for all": ("pl.ds(lax.axis_index(\"i\") * ROWS, ROWS), part", "pl.ds(0, ROWS), part", "interpret"),
    "overwritten": ('"add", total_ref, pl.ds(', '"xchg", total_ref, pl.ds(', "interpret"),
    "buffer not zeroed": ("jnp.zeros((rows,)", "jnp.ones((rows,)", "interpret"),
}


def inputs(entry, n, m=None, count=None, **config):
    values, bins = jax.random.split(jax.random.key(11))
    if entry == "split_sum":
        return entry, (jax.random.normal(values, (m, n)),)
    where = jax.random.randint(bins, (n,), 0, count, jnp.int32)
    return entry, (where, jax.random.uniform(values, (n,)), count), config


def weighted(bins, weights, count, **config):
    # Sorted, so that long sums of equal signs stay accurate; float64 is not at hand.
    order = jnp.argsort(bins)
    return jax.ops.segment_sum(weights[order], bins[order], count, indices_are_sorted=True)


reference = {"split_sum": lambda x: x.sum(axis=1), "histogram": weighted}


def work(*args, **config):
    return {"bytes": sum(a.nbytes for a in args if hasattr(a, "nbytes"))}
