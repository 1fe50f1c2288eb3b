import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x512x256": dict(m=128, n=512, k=256),
    "192x128x320 in 64x64x64": dict(m=192, n=128, k=320, **SMALL_BLOCKS),
    "1152x1280x4096": dict(m=1152, n=1280, k=4096),
    "4096^3": dict(m=4096, n=4096, k=4096),
}
SMALL = ("192x128x320 in 64x64x64", "128x512x256")
TIMED = ("1152x1280x4096", "4096^3")
INSTRUCTIONS = {"sm90": ("IGMMA", "UTMALDG"), "sm100": ("UTCIMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "weights not transposed ahead": ("_tf32(x).swapaxes(-1, -2)", "_tf32(x).reshape(x.shape[::-1])", "interpret"),
    "weights as they lie": ("else _Turned(_tf32(x).swapaxes(-1, -2))", "else x", "lower"),
    "stages as they lie": ("s.transpose((1, 0)) if t else s for", "s for", "interpret"),
    "summed in float32": ("plgpu.ACC(part.shape, jnp.int32)", "plgpu.ACC(part.shape, jnp.float32)", "lower"),
    "scales exchanged": ("part.load_cols(w_scale_ref)[None, :]", "part.load_rows(x_scale_ref)[:, None]", "interpret"),
}


def inputs(m, n, k, **config):
    keys = jax.random.split(jax.random.key(21), 4)
    # All of int8, -128 too, and means that are not zero: sums beyond 2^24, which float32 would round.
    x = jax.random.randint(keys[0], (m, k), -128, 128, jnp.int8) | jnp.int8(64)
    w = jax.random.randint(keys[1], (k, n), -128, 128, jnp.int8)
    x_scale, w_scale = (jax.random.uniform(key, (size,), minval=0.5) / 128 for key, size in zip(keys[2:], (m, n)))
    return "run", (x, w, x_scale, w_scale), config


def reference(x, w, x_scale, w_scale):
    acc = jnp.dot(x, w, preferred_element_type=jnp.int32)
    return acc.astype(jnp.float32) * x_scale[:, None] * w_scale[None, :]


def peers(x, w, x_scale, w_scale):
    return {"XLA": lambda *args: reference(*args).astype(jnp.bfloat16)}


def work(x, w, x_scale, w_scale):
    (m, k), n = x.shape, w.shape[1]
    return {"bytes": x.nbytes + w.nbytes + 2 * m * n, "flops": 2 * m * n * k}
