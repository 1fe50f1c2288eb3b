"""Elements that a kernel loads and stores again: every thread holds a copy, so all must have loaded."""

import numpy as np

from .evidence import computes, ported

SOURCE = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def kernel(x_ref, o_ref, s_ref):
    o_ref[...] = x_ref[...]
    o_ref[...] += 1
    s_ref[0] = jnp.sum(x_ref[...])
    s_ref[0] = s_ref[0] * 2


def run(x):
    t = pl.BlockSpec((8,), lambda i: (i,))
    return pl.pallas_call(
        kernel, grid=(4,), in_specs=[t], out_specs=[t, pl.BlockSpec((1,), lambda i: (i,))],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((4,), x.dtype)],
        compiler_params=plgpu.CompilerParams(num_warps=4))(x)
"""


def test_elements_and_small_tiles():
    x = np.arange(32, dtype=np.float32)
    one, sums = computes(SOURCE, x)
    assert np.array_equal(one, x + 1) and np.array_equal(sums, x.reshape(4, 8).sum(1) * 2)
    assert "_store(s_ref, 0, s_ref[0] * 2)" in ported(SOURCE)


def test_elements_that_are_only_stored_stay_plain():
    source = SOURCE.replace("    s_ref[0] = s_ref[0] * 2\n", "")
    assert "s_ref[0] = jnp.sum(" in ported(source)
