import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(bm=64, bn=64, bk=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x256x256 e4m3": dict(m=128, n=256, k=256),
    "136x200x80 e5m2": dict(m=136, n=200, k=80, dtype="float8_e5m2"),
    "200x72x264 e4m3 in 64x64x64": dict(m=200, n=72, k=264, **SMALL_BLOCKS),
    "1000x1088x1152 e4m3": dict(m=1000, n=1088, k=1152),
    "4096^3 e4m3": dict(m=4096, n=4096, k=4096),
    "4096^3 e5m2": dict(m=4096, n=4096, k=4096, dtype="float8_e5m2"),
}
SMALL = ("200x72x264 e4m3 in 64x64x64", "128x256x256 e4m3", "136x200x80 e5m2")
TIMED = ("1000x1088x1152 e4m3", "4096^3 e4m3", "4096^3 e5m2")
INSTRUCTIONS = {"sm90": ("QGMMA", "UTMALDG"), "sm100": ("UTCQMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "not transposed": ("b.at[part.cols, :].transpose((1, 0))", "b.at[:, part.cols]", "lower"),
    "no scale": ("acc * scale_ref[0]", "acc", "interpret"),
    "rows of the first program": ("a_ref.at[pl.ds(i * bm, bm)", "a_ref.at[pl.ds(0 * bm, bm)", "interpret"),
}


def inputs(m, n, k, dtype="float8_e4m3fn", **config):
    a, b = jax.random.split(jax.random.key(22))
    a = 0.5 + jax.random.normal(a, (m, k))
    b = 0.5 + jax.random.normal(b, (n, k))
    return "run", (a.astype(dtype), b.astype(dtype), jnp.full((1,), k**-0.5)), config


def reference(a, b, scale):
    return scale[0] * jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32).T, precision="highest")


def peers(a, b, scale):
    def xla(a, b, scale):
        return (scale[0] * jnp.dot(a, b.T, preferred_element_type=jnp.float32)).astype(jnp.bfloat16)

    return {"XLA": xla}


def work(a, b, scale):
    (m, k), n = a.shape, b.shape[0]
    return {"bytes": a.nbytes + b.nbytes + 2 * m * n, "flops": 2 * m * n * k}
