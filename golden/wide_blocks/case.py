import jax
import jax.numpy as jnp

SHAPES = {"as written": {}}
SMALL = ("as written",)
TIMED = ()
INSTRUCTIONS = {"sm90": ("HGMMA", "UTMALDG"), "sm100": ("UTCHMMA", "UTMALDG")}
WRONG = {
    "second operand always of the first step": ("rhs_ref.at[where, :]", "rhs_ref.at[pl.ds(0, STEP), :]", "interpret"),
    "product not stored": ("part.store(total.astype(out_ref.dtype), out_ref)", "pass", "interpret"),
}


def inputs():
    lhs, rhs = (jax.random.normal(key, (8192, 128)) for key in jax.random.split(jax.random.key(3)))
    return lhs.T.astype(jnp.bfloat16), (rhs / 90).astype(jnp.bfloat16)


def reference(lhs, rhs):
    return jnp.dot(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision="highest")


def work(*args):
    return {"bytes": sum(a.nbytes for a in args)}
