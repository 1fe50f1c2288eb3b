"""The call of the matmul that ./demo verifies, and what it must give."""

import jax
import jax.numpy as jnp


def example_inputs():
    a, b = jax.random.split(jax.random.key(0))
    a = jax.random.normal(a, (256, 256)).astype(jnp.bfloat16)
    b = jax.random.normal(b, (256, 512)).astype(jnp.bfloat16)
    return "run", (a, b)


def reference(a, b):
    return jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
