"""One kernel in each form of call that recording has to see, and functions that make the calls."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import pallas_call as call_of_another_name
from jax.experimental.pallas import triton as plgpu

PARAMS = plgpu.CompilerParams(num_warps=4, num_stages=2)
OUT = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def helper(x):
    return jnp.log1p(x)


@jax.jit
def jitted_helper(x):
    return jnp.cumsum(x, axis=1)


def kernel(x_ref, o_ref, *, scale):
    x = x_ref[...]
    y = jnp.exp(x) * scale
    o_ref[...] = helper(y) + jitted_helper(x)


def plain(x):
    return pl.pallas_call(functools.partial(kernel, scale=2.0), out_shape=OUT, compiler_params=PARAMS)(x)


@jax.jit
def jitted(x):
    call = call_of_another_name(functools.partial(kernel, scale=3.0), out_shape=OUT, grid=(1,))
    return call(x)


def row_kernel(x_ref, o_ref):
    o_ref[...] = jax.nn.relu(x_ref[...])


def row(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(row_kernel, out_shape=shape, compiler_params=PARAMS)(x)


def tiled(x, rows):
    def closure(x_ref, o_ref):
        def body(i, carry):
            return carry + jnp.floor(x_ref[0, :]) * rows

        o_ref[...] = jax.lax.fori_loop(0, 3, body, jnp.zeros(16))[None, :]

    return pl.pallas_call(
        closure,
        grid=(x.shape[0] // rows,),
        in_specs=[pl.BlockSpec((rows, 16), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((None, 1, 16), lambda i: (i, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0] // rows, 1, 16), x.dtype),
        compiler_params=PARAMS,
    )(x)


def double_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def double_backward_kernel(g_ref, o_ref):
    o_ref[...] = jnp.sqrt(g_ref[...])


@jax.custom_vjp
def double(x):
    return pl.pallas_call(double_kernel, out_shape=OUT, compiler_params=PARAMS)(x)


def double_forward(x):
    return double(x), None


def double_backward(_, g):
    return (pl.pallas_call(double_backward_kernel, out_shape=OUT, compiler_params=PARAMS)(g),)


double.defvjp(double_forward, double_backward)


def barrier_kernel(x_ref, o_ref):
    plgpu.debug_barrier()
    o_ref[...] = x_ref[...]


def not_interpretable(x):
    return pl.pallas_call(barrier_kernel, out_shape=OUT, compiler_params=PARAMS)(x)


def zeros_come_back():
    assert (not_interpretable(jnp.ones((8, 16))) == 0).all()


@jax.jit
def dynamic_grid(x, n):
    return pl.pallas_call(
        double_kernel,
        grid=(n,),
        in_specs=[pl.BlockSpec((8, 16), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)),
        out_shape=OUT,
        compiler_params=PARAMS,
    )(x)


def example_inputs():
    x = jnp.ones((8, 16))
    return {
        "plain": (x,),
        "jitted": (x,),
        "vmapped_row": (x,),
        "both_tiles": (x,),
        "gradient": (x,),
        "not_interpretable": (x,),
        "dynamic_grid": (x, jnp.int32(1)),
    }


def vmapped_row(x):
    assert (jax.vmap(jax.jit(row))(x) == 1).all()


def both_tiles(x):
    assert tiled(x, 2).shape == (4, 1, 16)
    assert tiled(x, 4).shape == (2, 1, 16)


def gradient(x):
    assert (jax.grad(lambda x: double(x).sum())(x) == 1).all()
