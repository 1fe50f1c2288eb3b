import jax
import jax.numpy as jnp

SMALL_BLOCKS = dict(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
SHAPES = {
    "128x128x192 bf16": dict(m=128, n=128, k=192, dtype="bfloat16"),
    "200x128x128 bf16": dict(m=200, n=128, k=128, dtype="bfloat16"),
    "104x192x128 f16 in 64x64x64": dict(m=104, n=192, k=128, dtype="float16", **SMALL_BLOCKS),
    "1000x1280x4096 bf16": dict(m=1000, n=1280, k=4096, dtype="bfloat16"),
    "4096^3 bf16": dict(m=4096, n=4096, k=4096, dtype="bfloat16"),
    "4096^3 bf16 in 128x64x64": dict(m=4096, n=4096, k=4096, dtype="bfloat16", block_n=64, num_warps=4),
}
SMALL = ("104x192x128 f16 in 64x64x64", "128x128x192 bf16", "200x128x128 bf16")
TIMED = ("1000x1280x4096 bf16", "4096^3 bf16", "4096^3 bf16 in 128x64x64")
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "no wait for the copies": ("plgpu.barrier_wait(self.full.at[slot])", "pass", "interpret"),
    "copy into a stage in use": ("plgpu.barrier_wait(self.empty.at[slot])", "pass", "interpret"),
    "store without commit_smem": ("plgpu.commit_smem()", "pass", "interpret"),
    "activation of the other product": (
        "silu = gate / (1 + jnp.exp(-gate))",
        "silu = up / (1 + jnp.exp(-up))\n    up = gate",
        "interpret",
    ),
    "weights exchanged": ("x, gate_tile, up_tile = ring", "x, up_tile, gate_tile = ring", "interpret"),
    "one weight twice": (
        "gate_ref.at[pl.ds(i * block_k, block_k), :]",
        "up_ref.at[pl.ds(i * block_k, block_k), :]",
        "interpret",
    ),
    "no gate": ("(silu * up)", "(silu + up)", "interpret"),
}


def inputs(m, n, k, dtype, **config):
    keys = jax.random.split(jax.random.key(11), 3)
    x = 0.5 + jax.random.normal(keys[0], (m, k))
    # Different scales: exchanged weights show.
    w_gate = jax.random.normal(keys[1], (k, n)) / k**0.5
    w_up = 2 * jax.random.normal(keys[2], (k, n)) / k**0.5
    return "run", tuple(array.astype(dtype) for array in (x, w_gate, w_up)), config


def reference(x, w_gate, w_up):
    x, w_gate, w_up = (array.astype(jnp.float32) for array in (x, w_gate, w_up))
    return jax.nn.silu(jnp.dot(x, w_gate, precision="highest")) * jnp.dot(x, w_up, precision="highest")


def peers(x, w_gate, w_up):
    def xla(x, w_gate, w_up):
        gate, up = (jnp.dot(x, w, preferred_element_type=jnp.float32) for w in (w_gate, w_up))
        return (jax.nn.silu(gate) * up).astype(x.dtype)

    return {"XLA": xla}


def work(x, w_gate, w_up):
    (m, k), n = x.shape, w_gate.shape[1]
    return {"bytes": x.nbytes + w_gate.nbytes + w_up.nbytes + m * n * x.itemsize, "flops": 4 * m * n * k}
