import jax
import jax.numpy as jnp

SHAPES = {"as written": {}}
SMALL = ("as written",)
TIMED = ()
WRONG = {
    "coefficients exchanged": ("(coefficients_ref[2] * ", "(coefficients_ref[0] * ", "interpret"),
    "linear term dropped": (" + coefficients_ref[1]", "", "interpret"),
}


def inputs():
    return jax.random.normal(jax.random.key(0), (32,)), jnp.array([0.5, -2.0, 3.0])


def reference(x, coefficients):
    return coefficients[0] + coefficients[1] * x + coefficients[2] * x * x


def work(*args):
    return {"bytes": sum(a.nbytes for a in args)}
