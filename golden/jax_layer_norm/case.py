"""The four call sites: without gradient, forward with residuals, and the two kernels of the backward pass."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_port.golden import norm_shapes

SOURCE_MODULE = "jax.experimental.pallas.ops.gpu.layer_norm"
EPS = 1e-5

_SMALL, _TIMED = norm_shapes.small("layer_norm"), norm_shapes.timed("layer_norm")
SHAPES = _SMALL | _TIMED
ENTRIES = {label: shape["entry"] for label, shape in SHAPES.items()}
SMALL, TIMED = tuple(_SMALL), tuple(_TIMED)


def inputs(entry, shape, dtype):
    values, weights, biases, gradients = jax.random.split(jax.random.key(14), 4)
    x = 1 + 3 * jax.random.normal(values, shape)
    weight = 1 + 0.5 * jax.random.normal(weights, shape[-1:])
    bias = jax.random.normal(biases, shape[-1:])
    x, weight, bias = (array.astype(dtype) for array in (x, weight, bias))
    dout = (0.5 + jax.random.normal(gradients, shape)).astype(dtype)
    if entry == "example:gradients":
        return x, weight, bias, dout
    if entry != "layer_norm_backward":
        return x, weight, bias
    mean, rstd = (statistic.astype(dtype) for statistic in _statistics(x))
    num_warps, num_stages, backward, interpret = None, 3, "triton", False
    return num_warps, num_stages, EPS, backward, interpret, (x, weight, bias, mean, rstd), dout


def _statistics(x):
    x = x.astype(jnp.float32)
    return jnp.mean(x, axis=-1), lax.rsqrt(jnp.var(x, axis=-1) + EPS)


def _forward(x, weight, bias):
    mean, rstd = _statistics(x)
    x_hat = (x.astype(jnp.float32) - mean[..., None]) * rstd[..., None]
    return x_hat * weight.astype(jnp.float32) + bias.astype(jnp.float32), (x, weight, bias, mean, rstd)


def _backward(num_warps, num_stages, eps, backward, interpret, residuals, dout):
    x, weight, bias, mean, rstd, dout = (array.astype(jnp.float32) for array in (*residuals, dout))
    rows = tuple(range(x.ndim - 1))
    x_hat, g = (x - mean[..., None]) * rstd[..., None], dout * weight
    mean_g, mean_gx = (jnp.mean(v, axis=-1, keepdims=True) for v in (g, g * x_hat))
    dx = rstd[..., None] * (g - mean_g - x_hat * mean_gx)
    return dx, jnp.sum(dout * x_hat, axis=rows), jnp.sum(dout, axis=rows)


def gradients(module, x, weight, bias, dout):
    """As a user gets them: through the module's ``custom_vjp``."""
    out, vjp = jax.vjp(module.layer_norm, x, weight, bias)
    return out, *vjp(dout)


def _gradients(x, weight, bias, dout):
    x, weight, bias, dout = (array.astype(jnp.float32) for array in (x, weight, bias, dout))
    out, vjp = jax.vjp(lambda *args: _forward(*args)[0], x, weight, bias)
    return out, *vjp(dout)


reference = {
    "example:gradients": _gradients,
    "layer_norm": lambda x, weight, bias: _forward(x, weight, bias)[0],
    "layer_norm_forward": _forward,
    "layer_norm_backward": _backward,
}


def work(*args):
    if len(args) == 3:
        return {"bytes": 2 * args[0].nbytes}
    *_, (x, *_), dout = args
    return {"bytes": 3 * x.nbytes + 2 * dout.nbytes}  # both kernels read x and dout
