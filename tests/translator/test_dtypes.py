"""Loads and stores of every dtype that JAX has: ported with the right values, or diagnosed."""

import jax.numpy as jnp
import numpy as np
import pytest

from .evidence import codes, computes, plan

SOURCE = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def copy(x_ref, o_ref):
    columns = jnp.arange(64)
    x = plgpu.load(x_ref.at[columns], mask=columns < 40, other={other})
    plgpu.store(o_ref.at[columns], x, mask=columns < 50)


def run(x):
    row = pl.BlockSpec((None, 64), lambda i: (i, 0))
    return pl.pallas_call(
        copy, grid=(2,), in_specs=[row, row][:1], out_specs=row, out_shape=jax.ShapeDtypeStruct(x.shape, {dtype}),
        compiler_params=plgpu.CompilerParams(num_warps=4))(x)
""".replace("[row, row][:1]", "[row]")
DTYPES = {
    "float32": "1.5", "float16": "1.5", "bfloat16": "1.5", "int8": "3", "int16": "3", "int32": "3", "uint8": "3",
    "uint16": "3", "uint32": "3", "bool": "False", "float8_e4m3fn": "0.0", "float8_e5m2": "0.0",
}


@pytest.mark.parametrize("name, other", DTYPES.items(), ids=list(DTYPES))
def test_masked_copy(name, other):
    dtype = jnp.dtype(name)
    values = np.arange(128).reshape(2, 64)
    x = (values % 3 == 0 if name == "bool" else values - 64 * (np.iinfo(dtype).min < 0 if dtype.kind in "iu" else 1)).astype(dtype)
    got = np.asarray(computes(SOURCE.format(other=other, dtype="x.dtype"), x))
    assert got.dtype == dtype
    assert np.array_equal(got[:, :40], x[:, :40])
    assert (got[:, 40:50].astype(np.float32) == float(eval(other))).all()


@pytest.mark.parametrize("dtype", ["jnp.float64", "jnp.int64", "jnp.uint64", "jnp.complex64", "'float64'", "jnp.complex128", "'int64'"])
def test_dtypes_of_results_that_stay(dtype):
    source = SOURCE.format(other="0", dtype=dtype)
    assert codes(source) == {"B131"} and plan(source).text == source


@pytest.mark.parametrize("expression", ["x_ref[...].astype(jnp.float64)", "jnp.zeros(64, jnp.int64) + x_ref[...]", "x_ref[...] + jnp.int64(1)"])
def test_dtypes_inside_kernels_that_stay(expression):
    source = SOURCE.format(other="0", dtype="x.dtype").split("def copy")
    source = f"{source[0]}def copy(x_ref, o_ref):\n    o_ref[...] = {expression}\n\n\ndef run{source[1].split('def run')[1]}"
    assert "B131" in codes(source)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_values_below_a_byte_are_refused_when_the_port_is_traced(name):
    with pytest.raises(ValueError, match="use 8 to 32 bits"):
        computes(SOURCE.format(other="0", dtype="x.dtype"), np.arange(128).reshape(2, 64).astype(jnp.dtype(name)))


def test_dtypes_that_are_only_asked_about():
    source = SOURCE.format(other="0", dtype="x.dtype").replace("def copy(x_ref, o_ref):\n", "def copy(x_ref, o_ref):\n    assert x_ref.dtype != jnp.float64\n")
    assert not codes(source)
