"""The four call sites: without gradient, forward with residuals, and the two kernels of the backward pass."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_port.golden import norm_shapes

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.rms_norm"
EPS = 1e-5

_SMALL, _TIMED = norm_shapes.small("rms_norm"), norm_shapes.timed("rms_norm")
SHAPES = _SMALL | _TIMED
ENTRIES = {label: shape["entry"] for label, shape in SHAPES.items()}
SMALL, TIMED = tuple(_SMALL), tuple(_TIMED)


def inputs(entry, shape, dtype):
    values, sizes, weights, biases, gradients = jax.random.split(jax.random.key(13), 5)
    # Rows of different size, so that each needs a factor of its own.
    x = jax.random.normal(values, shape) * jax.random.uniform(sizes, (*shape[:-1], 1), minval=0.2, maxval=5.0)
    weight = 1 + 0.5 * jax.random.normal(weights, shape[-1:])
    bias = jax.random.normal(biases, shape[-1:])
    x, weight, bias = (array.astype(dtype) for array in (x, weight, bias))
    dout = (0.5 + jax.random.normal(gradients, shape)).astype(dtype)
    if entry == "example:gradients":
        return x, weight, bias, dout
    if entry != "rms_norm_backward":
        return x, weight, bias
    num_warps, num_stages, backward, interpret = None, 3, "triton", False
    return num_warps, num_stages, EPS, backward, interpret, (x, weight, bias, _rstd(x).astype(dtype)), dout


def _rstd(x):
    return lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1) + EPS)


def _forward(x, weight, bias):
    rstd = _rstd(x)
    out = x.astype(jnp.float32) * rstd[..., None] * weight.astype(jnp.float32) + bias.astype(jnp.float32)
    return out, (x, weight, bias, rstd)


def _backward(num_warps, num_stages, eps, backward, interpret, residuals, dout):
    x, weight, bias, rstd, dout = (array.astype(jnp.float32) for array in (*residuals, dout))
    rows = tuple(range(x.ndim - 1))
    x_hat, g = x * rstd[..., None], dout * weight
    dx = rstd[..., None] * (g - x_hat * jnp.mean(g * x_hat, axis=-1, keepdims=True))
    return dx, jnp.sum(dout * x_hat, axis=rows), jnp.sum(dout, axis=rows)


def gradients(module, x, weight, bias, dout):
    """As a user gets them: through the module's ``custom_vjp``."""
    out, vjp = jax.vjp(module.rms_norm, x, weight, bias)
    return out, *vjp(dout)


def _gradients(x, weight, bias, dout):
    x, weight, bias, dout = (array.astype(jnp.float32) for array in (x, weight, bias, dout))
    out, vjp = jax.vjp(lambda *args: _forward(*args)[0], x, weight, bias)
    return out, *vjp(dout)


reference = {
    "example:gradients": _gradients,
    "rms_norm": lambda x, weight, bias: _forward(x, weight, bias)[0],
    "rms_norm_forward": _forward,
    "rms_norm_backward": _backward,
}


def work(*args):
    if len(args) == 3:
        return {"bytes": 2 * args[0].nbytes}
    *_, (x, *_), dout = args
    return {"bytes": 3 * x.nbytes + 2 * dout.nbytes}  # both kernels read x and dout
